"""The posterior's own classifier: a discriminant of the features beside the fixed prompt, in closed form."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.scratch import scratch
from dspt.internal.shards import BLOCK, Features
from dspt.learners.learner import Classify, ClipLearner, Learner, Parameters, Samples, Solution, by_prototypes
from dspt.learners.prototypes import refuse_prompt_settings
from dspt.posterior import Posterior, label_posterior


class PosteriorLearner(ClipLearner):
    """A linear classifier of features, solved for at once; nothing is learnt step by step."""

    has_prototypes = False
    weighs_samples = False
    warmup = 0

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise `InputError` for settings of a prompt."""
        refuse_prompt_settings(config)

    @classmethod
    def feature_width(cls, parameters: Parameters) -> int:
        """Return the width of the weights."""
        return parameters["weights"].shape[1]

    def start(self, samples: Samples | None = None) -> Parameters:
        """Return a classifier that knows nothing.

        Parameters
        ----------
        samples : Samples, optional
            The training set, whose width counts if no model tells it.
        """
        if self.text is None and samples is None:
            return {}
        width = self.text.feature_dim if self.text else samples.train_x.shape[-1]  # type: ignore[union-attr]
        classes = len(self.class_names)
        return {"weights": torch.zeros(classes, width), "bias": torch.zeros(classes)}

    def solve(self, train_x: Features, labels: np.ndarray) -> Solution:
        """Return the classifier of the posterior, the fixed prompt's part in it, and the noise rate it found."""
        found = posterior_of(train_x, labels, self)
        weights = torch.from_numpy(found.weights.T)
        if self.zero_shot is not None:
            weights = weights + found.text_weight * self.scale * self.zero_shot.cpu()
        parameters = {"weights": weights.contiguous(), "bias": torch.from_numpy(found.bias)}
        return Solution(self.placed(parameters), found.findings())

    def logits(self, inputs: Tensor, parameters: Parameters) -> Tensor:
        """Return the scores of the discriminant."""
        return F.linear(inputs, parameters["weights"], parameters["bias"])

    def classify(self, parameters: Parameters) -> Classify:
        """Return the discriminant as it is."""
        weights, bias = parameters["weights"].detach(), parameters["bias"].detach()
        return lambda features: F.linear(features.to(weights), weights, bias)


def posterior_of(train_x: Features, labels: np.ndarray, learner: Learner) -> Posterior:
    """Return the posterior of labels from features and the learner's fixed prompt, if it has one.

    Parameters
    ----------
    train_x : array of shape (N, D), or (N, V, D) of V views
        Of several views the mean counts.
    labels : integer array of shape (N,)
        Given labels.
    learner : Learner
        On top of CLIP: it may have the fixed prompt.
    """
    if not learner.has_clip:
        raise InputError("posterior: it is made from CLIP's features, and a network from scratch has none")
    if isinstance(train_x, np.ndarray) and train_x.ndim == 3:
        train_x = train_x.mean(1)
        train_x /= np.linalg.norm(train_x, axis=1, keepdims=True).clip(1e-12)
    classes = len(learner.class_names)
    if learner.zero_shot is None:
        return label_posterior(train_x, labels, num_classes=classes)
    classify = by_prototypes(learner.zero_shot, learner.scale)
    logits = scratch(len(train_x), classes)
    for first in range(0, len(train_x), BLOCK):
        rows = slice(first, first + BLOCK)
        logits[rows] = classify(torch.from_numpy(np.array(train_x[rows]))).cpu().numpy()
    return label_posterior(train_x, labels, logits)
