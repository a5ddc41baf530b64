"""The seam between the training loop and a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from dspt.seeds import Stream

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: these samples, in shuffled batches, with these targets and this loss."""

    samples: np.ndarray  # (n,) rows of the training set
    targets: Tensor  # (n,) classes, or (n, C) distributions
    loss: PerSampleLoss  # (logits, targets) -> (n,)


@dataclass(frozen=True)
class Epoch:
    """What a method may look at when it plans an epoch."""

    number: int
    labels: Tensor  # (N,) given labels
    logits: Callable[[], Tensor]  # (N, C) of the training set with the context as it is now
    zero_shot_logits: Callable[[], Tensor]  # (N, C) of the training set with the fixed prompt
    stream: Callable[..., Stream]  # randomness by name, of this run, method and epoch
    memory: dict[str, Tensor]  # what the method keeps from epoch to epoch; saved with the run


class Method(ABC):
    """A way to learn from given labels. Subclasses are frozen dataclasses: their fields are hyper-parameters."""

    name: ClassVar[str]
    formula: ClassVar[str]
    trains: ClassVar[bool] = True  # False: nothing is learnt, the zero-shot prompt is the answer

    @abstractmethod
    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return the phases of this epoch, in order."""


class LossMethod(Method):
    """A method that is a loss: every sample, its given label, one loss."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample."""

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        return [Phase(np.arange(len(epoch.labels)), epoch.labels, self.loss)]
