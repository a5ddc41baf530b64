"""A linear probe without a prompt: the class prototypes themselves, from zero-shot or from class means on."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.shards import BLOCK
from dspt.learners.learner import Parameters, PrototypicalLearner, Samples

PROMPT_SETTINGS = ("context_length", "position", "class_specific", "context_words")


class PrototypeLearner(PrototypicalLearner):
    """The class prototypes, learnt as they are."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise `InputError` for settings of a prompt."""
        refuse_prompt_settings(config)

    def start(self, samples: Samples | None = None) -> Parameters:
        """Return the zero-shot prototypes; without a model the class means of the samples by their given labels.

        Parameters
        ----------
        samples : Samples, optional
            The training set; not looked at if there is a text tower.
        """
        if self.zero_shot is not None:
            return {"weights": self.zero_shot}
        return {} if samples is None else {"weights": class_means(samples, len(self.class_names))}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return the weights, brought to length 1."""
        return F.normalize(parameters["weights"], dim=1)


def class_means(samples: Samples, classes: int) -> Tensor:
    """Return the mean feature of each class by its given labels (C, D), of length 1.

    A class that nobody has lies opposite to the mean of all, so that it is next to nobody until it is learnt.
    """
    width = samples.train_x.shape[-1]
    sums = torch.zeros(classes, width, dtype=torch.float64)
    for first in range(0, len(samples.labels), BLOCK):
        rows = slice(first, first + BLOCK)
        x = torch.from_numpy(np.array(samples.train_x[rows], np.float64))
        if samples.weights is not None:
            x *= torch.from_numpy(samples.weights[rows])[:, None]
        sums.index_add_(0, torch.from_numpy(samples.labels[rows]), x)
    opposite = -sums.sum(0)
    # Of features that cancel out, any direction will do; at length 0 there would be no gradient.
    opposite = opposite if opposite.norm() > 1e-6 else torch.ones(width, dtype=torch.float64)
    sums = torch.where(sums.norm(dim=1, keepdim=True) > 1e-6, sums, opposite)
    return F.normalize(sums, dim=1).float()


def refuse_prompt_settings(config: Config) -> None:
    """Raise `InputError` for settings of a prompt, where there is none."""
    for name in PROMPT_SETTINGS:
        if (value := getattr(config, name)) != getattr(Config, name):
            raise InputError(f"{name} = {value!r}: learner {config.learner} has no prompt", f"leave `{name}` out")
