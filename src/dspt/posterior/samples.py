"""What is computed from some rows: sums over them, and what a classifier makes of each.

All methods that take `rows` are work for `internal.passes`: what they return for parts of the rows, added or put one
after another, is what they return for all. They are functions of the samples and of a few parameters; all that they
write is p of their own rows, and none of them reads there what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dspt.internal.scratch import Room
from dspt.internal.shards import Features
from dspt.posterior.calibration import drawn, tempered
from dspt.posterior.mixture import Mixture, probabilities
from dspt.posterior.transition import Transition, uniform_transition

# Entries of (rows, classes) that are computed at once.
_ENTRIES = 2**21


class Classifiers(NamedTuple):
    """What the samples of each fold are judged by, which was learnt from the other folds."""

    weights: Tensor  # (FOLDS, D, C)
    bias: Tensor  # (FOLDS, C)
    mixture: Mixture  # of the discriminants, which are in the weights, and the text


class Look(NamedTuple):
    """What a classifier that has not seen a sample's label makes of it."""

    predicted: np.ndarray  # (n,) the class it is most probably
    sureness: np.ndarray  # (n,) how probable that is
    given: np.ndarray  # (n,) how probable the class of its label is
    likeness: Tensor  # (C, C) how probable other classes are where one is predicted


class ClassSums(NamedTuple):
    """Sums over the samples of each fold: how much of them each class has, and of its features."""

    counts: Tensor  # (FOLDS, C)
    features: Tensor  # (FOLDS, C, D)


class Told(NamedTuple):
    """Sums over samples of which the posterior is told."""

    counts: Tensor
    features: Tensor
    confusion: Tensor  # (C, C) how probable each class is by the image alone, where one is true


@dataclass(frozen=True)
class Samples:
    """Features, given labels and zero-shot logits, read in blocks.

    Attributes
    ----------
    x : array of shape (N, D)
        Features.
    labels : int64 array of shape (N,)
        Given labels.
    known : int64 array of shape (N,)
        The true class where somebody has looked, -1 elsewhere.
    fold : uint8 array of shape (N,)
        The fold that each sample is in.
    folds, classes : int
        How many there are.
    p : float32 array of shape (N, C)
        How probable each class is by image and text: all that grows with samples times classes.
    z : array of shape (N, C), optional
        Zero-shot logits.
    mean : Tensor of shape (D,), optional
        Of the features.
    scale : Tensor of shape (D,), optional
        What brings the mean variance of the features to 1.
    text_scale : float
        What brings the logits to CLIP's height; 0 if they are of no use.
    at_once : int
        Samples that are read together.
    """

    x: Features
    labels: np.ndarray
    known: np.ndarray
    fold: np.ndarray
    folds: int
    classes: int
    p: Room
    at_once: int
    z: Features | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    text_scale: float = 0.0

    @property
    def width(self) -> int:
        """How many features a sample has."""
        return int(self.x.shape[1])

    # What is read of some samples

    def blocks(self, rows: slice) -> Iterator[slice]:
        """Yield slices of some rows, as many as are computed at once."""
        for first in range(rows.start, rows.stop, self.at_once):
            yield slice(first, min(first + self.at_once, rows.stop))

    def features(self, rows: slice | np.ndarray) -> Tensor:
        """Return some samples' features, centred and brought to a mean variance of 1."""
        assert self.mean is not None
        assert self.scale is not None
        x = self.x[rows]
        # A slice may be what was given itself, or a map of it, which are not written to.
        own = x if x.dtype == np.float32 and not isinstance(rows, slice) else None
        return torch.from_numpy(np.subtract(x, self.mean.numpy(), out=own, dtype=np.float32)).mul_(self.scale)

    def by_fold(self, rows: slice | np.ndarray) -> tuple[Tensor, Tensor, list[slice]]:
        """Return the features of some samples, those of one fold together; that order, and where each fold lies."""
        fold = self.fold[rows]
        order = np.argsort(fold, kind="stable")
        ends = np.cumsum(np.bincount(fold, minlength=self.folds)).tolist()
        x = self.features(rows.start + order if isinstance(rows, slice) else rows[order])
        return x, torch.from_numpy(order), [slice(*both) for both in pairwise([0, *ends])]

    def text(self, rows: slice | np.ndarray) -> Tensor | None:
        """Return some samples' zero-shot logits, at CLIP's height; None if there are none of use."""
        if self.z is None or not self.text_scale:
            return None
        logits = torch.from_numpy(np.array(self.z[rows], dtype=np.float32))
        return (logits - logits.amax(1, keepdim=True)) * self.text_scale

    def given(self, rows: slice | np.ndarray) -> Tensor:
        """Return some samples' labels."""
        return torch.from_numpy(np.array(self.labels[rows]))

    def believed(self, p: Tensor, rows: slice | np.ndarray) -> Tensor:
        """Return p (n, C) with nothing left of what is known not to be so: how probable, and nothing but, the truth is.

        A sample that somebody has looked at counts in all sums by its true class from here on, and where an anchor is
        sought it is as sure as the classifier was of that class: those looked at are no fair sample of the others.
        """
        known = self.known[rows]
        looked_at = np.flatnonzero(known >= 0)
        if len(looked_at):
            told, true = torch.from_numpy(looked_at), torch.from_numpy(known[looked_at])[:, None]
            left = p[told].gather(1, true).clamp_min(1e-12)
            p[told] = torch.zeros(len(told), self.classes).scatter_(1, true, left)
        return p

    def joint(self, rows: slice, transition: Transition) -> Tensor:
        """Return P(true class, given label | image) of some samples (n, C), by p."""
        return torch.from_numpy(self.p[rows]) * transition.likely(self.given(rows), rows.start)

    # Work on a range of rows: the features

    def sums(self, rows: slice) -> np.ndarray:
        """Return the sum of the features as they come (D,)."""
        found = np.zeros(self.width)
        for block in self.blocks(rows):
            found += self.x[block].sum(0, dtype=np.float64)
        return found

    def squares(self, rows: slice, mean: np.ndarray) -> np.ndarray:
        """Return the sums of squared distances from a mean (D,), of each feature."""
        found = np.zeros(self.width)
        for block in self.blocks(rows):
            away = np.subtract(self.x[block], mean)
            found += np.einsum("nd,nd->d", away, away)
        return found

    def products(self, rows: slice) -> Tensor:
        """Return the sums of products of features, by fold (FOLDS, D, D)."""
        found = torch.zeros(self.folds, self.width, self.width, dtype=torch.float64)
        for block in self.blocks(rows):
            x, _, folds = self.by_fold(block)
            for k, own in enumerate(folds):
                found[k] += x[own].T @ x[own]
        return found

    # Work on a range of rows: the classes

    def label_sums(self, rows: slice) -> ClassSums:
        """Return the sums if all given labels are right."""
        return self._class_sums(
            rows, lambda block: torch.from_numpy(np.where(self.known[block] < 0, self.labels[block], self.known[block]))
        )

    def text_sums(self, rows: slice, rate: float, weight: float, share: float) -> ClassSums:
        """Return the sums if classes are what text and labels say together, in a share; else the given labels."""
        columns = uniform_transition(rate, self.classes)  # symmetric

        def responsibility(block: slice) -> Tensor:
            labels, text = self.given(block), self.text(block)
            assert text is not None
            q = normalised((weight * text).softmax(1) * columns[labels])
            q = q.mul_(share).scatter_add_(1, labels[:, None], torch.full((len(q), 1), 1 - share))
            return normalised(self.believed(q, block))

        return self._class_sums(rows, responsibility)

    def posterior_sums(self, rows: slice, transition: Transition, order: Tensor | None) -> ClassSums:
        """Return the sums by the posterior, from p; classes may be given other names."""

        def responsibility(block: slice) -> Tensor:
            q = normalised(self.joint(block, transition))
            return q if order is None else q[:, order]

        return self._class_sums(rows, responsibility)

    def _class_sums(self, rows: slice, responsibility: Callable[[slice], Tensor]) -> ClassSums:
        found = self._no_sums()
        for block in self.blocks(rows):
            x, order, folds = self.by_fold(block)
            self._add(found, x, responsibility(block)[order], folds)
        return found

    def _no_sums(self) -> ClassSums:
        counts = torch.zeros(self.folds, self.classes, dtype=torch.float64)
        return ClassSums(counts, torch.zeros(self.folds, self.classes, self.width, dtype=torch.float64))

    def _add(self, sums: ClassSums, x: Tensor, q: Tensor, folds: list[slice]) -> None:
        """Add samples to the sums: classes (n,), or how much of a sample each class has (n, C)."""
        for k, own in enumerate(folds):
            if q.ndim == 1:
                sums.counts[k] += torch.bincount(q[own], minlength=self.classes)
                sums.features[k].index_add_(0, q[own], x[own].double())
            else:
                sums.counts[k] += q[own].sum(0, dtype=torch.float64)
                sums.features[k] += q[own].T @ x[own]

    # Work on a range of rows: what a model says

    def fill(self, rows: slice, by: Classifiers) -> Look:
        """Return what the samples are predicted as, after their p is written."""
        n = rows.stop - rows.start
        predicted = np.empty(n, dtype=np.int64)
        sureness, given = (np.empty(n, dtype=np.float32) for _ in range(2))
        likeness = torch.zeros(self.classes, self.classes)
        for block in self.blocks(rows):
            p = self._judged(block, by, *self.by_fold(block))
            self.p[block] = p.numpy()
            top, which = p.max(1)
            own = slice(block.start - rows.start, block.stop - rows.start)
            predicted[own], sureness[own] = which.numpy(), top.numpy()
            given[own] = p.gather(1, self.given(block)[:, None])[:, 0].numpy()
            likeness.index_add_(0, which, p)
        return Look(predicted, sureness, given, likeness)

    def _judged(self, block: slice, by: Classifiers, x: Tensor, order: Tensor, folds: list[slice]) -> Tensor:
        """Return p of some samples (n, C), whose features are given by fold."""
        scores = torch.empty(len(x), self.classes)
        for k, own in enumerate(folds):
            torch.addmm(by.bias[k], x[own], by.weights[k], out=scores[own])
        p = torch.empty_like(scores).index_copy_(0, order, scores)
        if (text := self.text(block)) is not None:
            p.add_(text, alpha=by.mixture.weights[-1])
        return self.believed(probabilities(p, by.mixture.softness), block)

    def likelihood(self, rows: slice, transition: Transition) -> tuple[float, float]:
        """Return the sums of the labels' log likelihoods, and of the probabilities that they are wrong."""
        total, wrong = 0.0, 0.0
        for block in self.blocks(rows):
            q = self.joint(block, transition)
            likely = q.sum(1).clamp_min(1e-30)
            right = q.gather(1, self.given(block)[:, None])[:, 0]
            total += float(likely.log().sum())
            wrong += float((1 - right / likely).sum())
        return total, wrong

    def likelihoods(self, rows: slice, transition: Transition) -> np.ndarray:
        """Return the log likelihood of each label (n,)."""
        found = np.empty(rows.stop - rows.start)
        for block in self.blocks(rows):
            own = slice(block.start - rows.start, block.stop - rows.start)
            found[own] = self.joint(block, transition).sum(1).clamp_min(1e-30).log().numpy()
        return found

    def named(self, rows: slice, transition: Transition) -> Tensor:
        """Return how many images of each group, by the posterior, the text calls each class (C, C)."""
        found = torch.zeros(self.classes, self.classes, dtype=torch.float64)
        for block in self.blocks(rows):
            q = normalised(self.joint(block, transition))
            text = self.text(block)
            assert text is not None
            found.index_add_(1, text.argmax(1), q.T.double())
        return found

    def made_up(self, rows: slice, transition: Transition, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return true classes drawn from the posterior, and labels drawn from the transition, both (n,).

        Parameters
        ----------
        rows : slice
        transition : Transition
        uniform : float array of shape (2, N)
            Random numbers in [0, 1), two for each of all samples.
        """
        true, labels = (np.empty(rows.stop - rows.start, dtype=np.int64) for _ in range(2))
        for block in self.blocks(rows):
            own = slice(block.start - rows.start, block.stop - rows.start)
            first, second = np.array(uniform[:, block])
            classes = drawn(self.joint(block, transition), self.given(block), first)
            true[own] = classes.numpy()
            labels[own] = drawn(transition.matrix[classes], classes, second).numpy()
        return true, labels

    def log_odds(self, rows: slice, transition: Transition) -> np.ndarray:
        """Return the log odds of each label's being wrong (n,)."""
        found = np.empty(rows.stop - rows.start)
        for block in self.blocks(rows):
            q = self.joint(block, transition).clamp_min_(1e-30)
            right = q.gather(1, self.given(block)[:, None])[:, 0]
            own = slice(block.start - rows.start, block.stop - rows.start)
            found[own] = ((q.sum(1) - right).clamp_min(1e-30).log() - right.log()).numpy()
        return found

    def tell(self, rows: slice, by: Classifiers | None, transition: Transition, trust: float) -> Told:
        """Return sums by the posterior, after it has taken the place of p, no surer than it may be.

        Parameters
        ----------
        rows : slice
        by : Classifiers, optional
            What p is by; None if nothing can be told of an image.
        transition : Transition
        trust : float
            What log odds are multiplied with.
        """
        sums, confusion = self._no_sums(), torch.zeros(self.classes, self.classes)
        for block in self.blocks(rows):
            x, order, folds = self.by_fold(block)
            labels = self.given(block)
            p = torch.ones(len(x), self.classes) if by is None else self._judged(block, by, x, order, folds)
            q = normalised(self.believed(p * transition.likely(labels, block.start), block))
            confusion.addmm_(q.T, p)
            self._add(sums, x, q[order], folds)
            self.p[block] = tempered(q, labels, trust).numpy()
        return Told(*sums, confusion)


def at_once(classes: int, width: int) -> int:
    """Return how many samples are read together: a few dozen megabytes of them."""
    return max(1, _ENTRIES // max(classes, width))


def normalised(q: Tensor) -> Tensor:
    """Return rows that sum to 1."""
    return q / q.sum(1, keepdim=True).clamp_min(1e-30)
