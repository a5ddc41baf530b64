"""The seam between the training loop and a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from dspt import losses
from dspt.internal.seeds import Stream

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Mix:
    """Mixup: each sample is blended with a partner, on the unit sphere of features."""

    partners: np.ndarray  # (n,) rows of the training set
    weights: Tensor  # (n,) of the sample itself; its partner has the rest


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: these samples, in shuffled batches, with these targets and this loss."""

    samples: np.ndarray  # (n,) rows of the training set
    targets: Tensor  # (n,) classes, or (n, C) distributions
    loss: PerSampleLoss  # (logits, targets) -> (n,)
    mix: Mix | None = None


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
    source: ClassVar[str]
    trains: ClassVar[bool] = True  # False: nothing is learnt, the zero-shot prompt is the answer

    @abstractmethod
    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return the phases of this epoch, in order."""


class LossMethod(Method):
    """A method that is a loss: every sample, its given label, one loss of `dspt.losses`."""

    loss_name: ClassVar[str] = ""  # where the loss is called otherwise than the method

    def __post_init__(self) -> None:
        losses.get(self.loss_name or self.name).check(**self._hyper)

    @property
    def _hyper(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        loss = loss_of(self.loss_name or self.name, **self._hyper)
        return [Phase(np.arange(len(epoch.labels)), epoch.labels, loss)]


def loss_of(name: str, **hyper: Any) -> PerSampleLoss:
    """Return a loss of `dspt.losses` as a phase takes it; labels have been checked by then."""
    return partial(losses.get(name), reduction="none", validate=False, **hyper)
