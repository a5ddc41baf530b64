"""The seam between the training loop and a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from dspt import losses
from dspt.internal.seeds import Stream
from dspt.losses import Loss
from dspt.posterior import Posterior, noise_rate

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """The samples of one step; with a share below 1, each is blended with another of them: mixup."""

    places: np.ndarray  # (b,) in the samples of the phase
    partners: np.ndarray | None = None  # (b,) places in the batch
    share: float = 1.0  # of a sample itself; its partner has the rest


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: these samples, with these targets and this loss."""

    samples: np.ndarray  # (n,) rows of the training set
    # (n,) classes, (n, C) distributions, or what makes those of a batch from its places and the logits at that step
    targets: Tensor | Callable[[Tensor, Tensor], Tensor]
    loss: PerSampleLoss  # (logits, targets) -> (n,)
    batches: Sequence[Batch] | None = None  # None: shuffled ones, none of the samples twice


@dataclass(frozen=True)
class Epoch:
    """What a method may look at when it plans an epoch."""

    number: int
    batch_size: int
    labels: Tensor  # (N,) given labels
    logits: Callable[[], Tensor]  # (N, C) of the training set with the parameters as they are now
    zero_shot_logits: Callable[[], Tensor]  # (N, C) of the training set with the fixed prompt
    posterior: Callable[[], Posterior]  # what features, labels and names say about the true labels; computed once
    stream: Callable[..., Stream]  # randomness by name, of this run, method and epoch
    memory: dict[str, Tensor]  # what the method keeps from epoch to epoch; saved with the run


class Method(ABC):
    """A way to learn from given labels.

    A subclass is a frozen dataclass whose fields are its hyper-parameters. What is said of a method is in class
    attributes, which are not annotated there, so that they are no fields.
    """

    name: str
    formula: str
    source: str
    # False: nothing is learnt, the zero-shot prompt is the answer.
    trains: bool = True
    # Why it cannot do without CLIP, if so: "it needs CLIP's comparison of images with text".
    needs_clip: str = ""
    # Whether that is what CLIP knows of class names, and features alone will not do.
    needs_text: bool = False
    # Whether a learner may begin where the posterior of labels says, if that is better than where it would.
    starts_by_posterior: bool = False
    # What the learning rate may be multiplied with; of several, the run takes what learns best at first.
    multiples: tuple[float, ...] = (1.0,)
    # Whether a sample's weight can be honoured: its loss is its own, and counts so much.
    weighs_samples: bool = True

    @abstractmethod
    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return the phases of this epoch, in order."""

    def lr_multiples(self, epoch: Epoch) -> tuple[float, ...]:
        """Return those of `multiples` that are tried in this run."""
        return self.multiples

    @property
    def what(self) -> str:
        """What it does, in one sentence."""
        return (type(self).__doc__ or "").splitlines()[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its hyper-parameters."""
        own: list[str] = [each.name for each in fields(self)] if is_dataclass(self) else []
        return {name: getattr(self, name) for name in own}

    def with_options(self, **options: Any) -> Method:
        """Return the method with other hyper-parameters; they are checked."""
        return replace(self, **options)  # type: ignore[type-var]

    def words(self, found: Mapping[str, float]) -> str:
        """Return in words what was found out about the labels, from the findings of a run; "" if nothing."""
        return noise_rate.in_words(found)


@dataclass(frozen=True)
class LossMethod(Method):
    """Every sample, its given label, one loss."""

    loss: Loss
    hyper: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self.loss.check(**self.hyper)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The loss's name as a method."""
        return self.loss.method or self.loss.name

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The loss's formula."""
        return self.loss.formula

    @property
    def source(self) -> str:  # type: ignore[override]
        """Where the loss comes from."""
        return self.loss.source

    @property
    def what(self) -> str:
        """What the loss is, in one sentence."""
        return self.loss.what

    @property
    def options(self) -> dict[str, Any]:
        """The loss's hyper-parameters."""
        return {**self.loss.defaults, **self.hyper}

    def with_options(self, **options: Any) -> LossMethod:
        """Return the method with other hyper-parameters; they are checked."""
        return LossMethod(self.loss, {**self.hyper, **options})

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        loss = partial(self.loss, reduction="none", validate=False, **self.hyper)
        return [Phase(np.arange(len(epoch.labels)), epoch.labels, loss)]


def batches(n: int, size: int, stream: Stream) -> Iterator[np.ndarray]:
    """Yield shuffled batches of 0..n-1, leaving out the last short one; fewer than one batch is one batch.

    Parameters
    ----------
    n : int
        How many samples.
    size : int
        Samples a batch.
    stream : Stream
        Gives the order.

    Yields
    ------
    int64 array of shape (min(size, n),)
    """
    order = stream.permutation(n)
    size = min(size, n)
    for start in range(0, n - size + 1, size) if n else ():
        yield order[start : start + size]


def loss_of(name: str, **hyper: Any) -> PerSampleLoss:
    """Return a loss of `dspt.losses` as a phase takes it; labels have been checked by then."""
    return partial(losses.get(name), reduction="none", validate=False, **hyper)
