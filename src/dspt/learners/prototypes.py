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
from dspt.learners.names import names_tell
from dspt.posterior import Posterior

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

    def start_by(self, found: Posterior, samples: Samples) -> Parameters | None:
        """Return the class means by the posterior, if class names tell next to nothing of the images; else None.

        Where the labels cannot be judged, the posterior is the labels, and names that agree with them no more often
        than chance are as good as none.

        Parameters
        ----------
        found : Posterior
            Of the samples' labels.
        samples : Samples
            The training set.
        """
        told = names_tell(samples.train_x, found.probabilities.argmax(1), self)
        if told is not None and told.known(found.can_tell):
            return None
        return {"weights": class_means(samples, len(self.class_names), found.as_found())}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return the weights, brought to length 1."""
        return F.normalize(parameters["weights"], dim=1)


def class_means(samples: Samples, classes: int, shares: np.ndarray | None = None) -> Tensor:
    """Return the mean feature of each class (C, D), of length 1.

    A class that no sample is of, most probably, lies opposite to the mean of all, so that it is next to none until
    it is learnt.

    Parameters
    ----------
    samples : Samples
        The training set.
    classes : int
        C.
    shares : array of shape (N, C), optional
        How much of a sample each class has; all of it has the class of its label if not given.
    """
    width = samples.train_x.shape[-1]
    sums = torch.zeros(classes, width, dtype=torch.float64)
    nobody = torch.ones(classes, dtype=torch.bool)
    step = max(1, min(BLOCK, 2**22 // max(classes, width)))  # tens of megabytes
    for first in range(0, len(samples.labels), step):
        rows = slice(first, first + step)
        x = torch.from_numpy(np.array(samples.train_x[rows], np.float64))
        x = x.mean(1) if x.ndim == 3 else x  # of several views
        if samples.weights is not None:
            x *= torch.from_numpy(samples.weights[rows])[:, None]
        if shares is None:
            labels = torch.from_numpy(samples.labels[rows])
            sums.index_add_(0, labels, x)
        else:
            some = torch.from_numpy(np.array(shares[rows], np.float64))
            sums += some.T @ x
            labels = some.argmax(1)
        nobody[labels] = False
    opposite = -sums.sum(0)
    # Of features that cancel out, any direction will do; at length 0 there would be no gradient.
    opposite = opposite if opposite.norm() > 1e-6 else torch.ones(width, dtype=torch.float64)
    nobody |= sums.norm(dim=1) <= 1e-6
    return F.normalize(torch.where(nobody[:, None], opposite, sums), dim=1).float()


def refuse_prompt_settings(config: Config) -> None:
    """Raise `InputError` for settings of a prompt, where there is none."""
    for name in PROMPT_SETTINGS:
        if (value := getattr(config, name)) != getattr(Config, name):
            raise InputError(f"{name} = {value!r}: learner {config.learner} has no prompt", f"leave `{name}` out")
