"""What given labels become of true ones: the transition matrix, read off anchor points.

The labels alone cannot tell a hard image from a wrong label. What tells them apart here is an assumption, and it is
named: **the surest third of the images predicted as a class are of that class** (anchor points), so that labels which
contradict it there are wrong, but for those that the classifier itself would have given next; and labels are as often
wrong, and as what, elsewhere as there.

No label bears witness in its own case: what is said of a sample comes from the anchors without it. Where a class has
five anchors, one label that contradicts would otherwise make its own mistake a habit of the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

# The surest of each predicted class that are taken for right.
ANCHORS = 0.3
# A class's rate is drawn to the common one as if so many anchors had shown that.
RATE_WEIGHTS = (3.0, 10.0, 30.0, 100.0)
# The shape of mistakes is drawn to a common one as if so many wrong labels had shown it; infinity is that shape. With a
# tenth of a label, what two anchors of a class are taken for is all that the class is taken for.
SHAPE_WEIGHTS = (0.1, 1.0, 10.0, 100.0, float("inf"))
# The part of the common shape that goes to classes which are taken for each other; the rest goes to all alike.
LIKENESSES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
# The greatest rate of a class whose mistakes are counted again.
_HIGHEST_RATE = 0.9
# Times it is asked which anchors with another label are hard images.
_DOUBT_ROUNDS = 3
# Rounds in which shares of classes are found: more fit the chance in the counts.
_SHARE_ROUNDS = 20


@dataclass(frozen=True)
class Anchors:
    """Samples that are taken for what a classifier, which has not seen their labels, predicts.

    Attributes
    ----------
    rows, predicted, labels : int64 Tensors of shape (n,)
        Which samples they are, in order, what they are predicted as, and what label they are given.
    doubt : float Tensor of shape (n,)
        How probable the given label is by the classifier, as a share of how probable the predicted class is.
    likeness : float Tensor of shape (C, C)
        For each class, how probable the others are where it is predicted; rows sum to 1, the diagonal is 0.
    """

    rows: Tensor
    predicted: Tensor
    labels: Tensor
    doubt: Tensor
    likeness: Tensor


@dataclass(frozen=True)
class Transition:
    """How labels come about.

    Attributes
    ----------
    matrix : Tensor of shape (C, C)
        `matrix[t, y]` is the probability of the given label y if t is true; rows sum to 1.
    anchors : Anchors, optional
        What it was read off.
    without : Tensor of shape (n,), optional
        For each anchor, the probability of its label if the predicted class is true, read off the other anchors.
    """

    matrix: Tensor
    anchors: Anchors | None = None
    without: Tensor | None = None

    def raised_to(self, rate: float) -> Transition:
        """Return the same with mistakes as many times as frequent in each class as makes them so many in the mean.

        The anchors are the surest images. Where others are mislabelled more often, they show too few mistakes.

        Parameters
        ----------
        rate : float
            The share of wrong labels. If the anchors show as many, nothing is changed; no class has above nine tenths.
        """
        assert self.anchors is not None
        assert self.without is not None
        predicted, rates = self.anchors.predicted, 1 - self.matrix.diagonal()
        times = rate / max(float(rates[predicted].mean()), 1e-6)
        if times <= 1:
            return self
        grown = ((times * rates).clamp_max(_HIGHEST_RATE) / rates.clamp_min(1e-30)).clamp_min(1.0)
        matrix = (self.matrix * grown[:, None]).fill_diagonal_(0)
        matrix += torch.diag(1 - matrix.sum(1))
        own = grown[predicted]
        contradicted = self.anchors.labels != predicted
        without = torch.where(contradicted, own * self.without, 1 - own * (1 - self.without))
        least = self.without.clamp_max(1 - _HIGHEST_RATE)
        return Transition(matrix, self.anchors, torch.where(contradicted, without, torch.maximum(without, least)))

    def likely(self, labels: Tensor, first: int = 0) -> Tensor:
        """Return how likely each label is if each class is the true one (n, C), by all anchors but the sample itself.

        Parameters
        ----------
        labels : int64 Tensor of shape (n,)
            Given labels of samples that lie beside each other.
        first : int
            The row of the first of them.
        """
        found = self.matrix.T[labels]
        if self.anchors is not None and self.without is not None:
            low, high = torch.searchsorted(self.anchors.rows, torch.tensor([first, first + len(labels)]))
            own = slice(int(low), int(high))
            found[self.anchors.rows[own] - first, self.anchors.predicted[own]] = self.without[own]
        return found


def uniform_transition(rate: float, classes: int) -> Tensor:
    """Return the matrix of mistakes that are spread evenly over the other classes."""
    matrix = torch.full((classes, classes), rate / (classes - 1))
    return matrix.fill_diagonal_(1 - rate)


def log_shares(given: Tensor, matrix: Tensor) -> Tensor:
    """Return the log of how common each true class is (C,), from how often each label is given and the transition.

    The shares that make the counts of given labels most likely, by expectation and maximisation from even ones, and
    drawn half-way back to even, since the transition is not known well. A label alone counts here, not the image it
    stands at: were shares learnt from predictions, common classes would grow with every round.

    Parameters
    ----------
    given : Tensor of shape (C,)
        How often each label is given.
    matrix : Tensor of shape (C, C)
        `matrix[t, y]` is the probability of the label y if t is true.
    """
    given, matrix = given.double(), matrix.double()
    shares = torch.full_like(given, 1 / len(given))
    for _ in range(_SHARE_ROUNDS):
        shares = shares * (matrix @ (given / (shares @ matrix).clamp_min(1e-30)))
        shares = shares / shares.sum().clamp_min(1e-30)
    return ((shares + 1 / len(given)) / 2).log().float()


def anchor_rows(predicted: np.ndarray, order: np.ndarray, share: float) -> np.ndarray:
    """Return the rows of the surest of each predicted class, at least one of each.

    Parameters
    ----------
    predicted : int array of shape (N,)
    order : int array of shape (N,)
        The rows by predicted class, the surest of each first.
    share : float in 0..1
        Of the rows predicted as a class.
    """
    counts = np.bincount(predicted)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(order[rank < np.ceil(share * np.repeat(counts, counts))])


def estimate_transition(anchors: Anchors, first_look: bool = False) -> Transition:
    """Return the transition that the anchors show.

    A label that contradicts an anchor counts as far as it is a mistake rather than the right label of a hard image, by
    what all others show: confusions of the classifier would pass for habits of whoever gave the labels.

    Parameters
    ----------
    anchors : Anchors
    first_look : bool
        Whether the classifier knows little yet: its doubts and confusions are not asked then.
    """
    believed = torch.ones(len(anchors.rows))
    if first_look:
        return _shown(anchors, believed, LIKENESSES[:1])
    contradicted = anchors.predicted != anchors.labels
    for _ in range(_DOUBT_ROUNDS):
        found = _shown(anchors, believed, LIKENESSES)
        assert found.without is not None
        hard = anchors.doubt * found.matrix.diagonal()[anchors.labels]
        believed = torch.where(contradicted, found.without / (found.without + hard).clamp_min(1e-30), 1.0)
    return _shown(anchors, believed, LIKENESSES)


def _shown(anchors: Anchors, believed: Tensor, likenesses: tuple[float, ...]) -> Transition:
    """Return the transition if each anchor counts as much as it is believed (n,).

    What few anchors of a class show is drawn to what all show: its rate to the common one, the shape of its mistakes to
    one between all alike and the likeness of classes. How far, makes each anchor's label most likely by the others.
    """
    t, y = anchors.predicted, anchors.labels
    classes = len(anchors.likeness)
    contradicted = t != y
    counts = torch.zeros(classes, classes).index_put_((t, y), believed, accumulate=True)
    seen, right = counts.sum(1), counts.diagonal()
    wrong = seen - right
    # As if half an anchor more had been wrong: no number of right ones makes a wrong label impossible.
    common = float((wrong.sum() + 0.5) / (seen.sum() + 1))

    def rate(weight: float) -> Tensor:
        own = believed * contradicted
        return ((wrong[t] - own).clamp_min(0) + weight * common) / ((seen[t] - believed).clamp_min(0) + weight)

    def rate_likelihood(weight: float) -> float:
        found = rate(weight)
        return float((believed * torch.where(contradicted, found, 1 - found).clamp_min(1e-6).log()).sum())

    tw, yw, own = t[contradicted], y[contradicted], believed[contradicted]
    like, shown, shown_of = anchors.likeness[tw, yw], counts[tw, yw] - own, wrong[tw] - own

    def shape(weight: float, likeness: float) -> Tensor:
        base = likeness * like + (1 - likeness) / (classes - 1)
        if weight == float("inf"):
            return base
        return (shown.clamp_min(0) + weight * base) / (shown_of.clamp_min(0) + weight)

    def shape_likelihood(choice: tuple[float, float]) -> float:
        return float((own * shape(*choice).clamp_min(1e-6).log()).sum())

    rate_weight = max(RATE_WEIGHTS, key=rate_likelihood)
    weight, likeness = max(product(SHAPE_WEIGHTS, likenesses), key=shape_likelihood)
    rates = (wrong + rate_weight * common) / (seen + rate_weight)
    matrix = likeness * anchors.likeness + (1 - likeness) / (classes - 1)
    if weight < float("inf"):
        matrix = (counts + weight * matrix) / (wrong + weight)[:, None]
    matrix = (matrix * rates[:, None]).fill_diagonal_(0)
    # A class without a like has no row of likeness: what is left to it goes to all alike.
    matrix = matrix * (rates / matrix.sum(1).clamp_min(1e-30))[:, None] + torch.diag(1 - rates)
    without = 1 - rate(rate_weight)
    without[contradicted] = (1 - without[contradicted]) * shape(weight, likeness)
    return Transition(matrix, anchors, without)
