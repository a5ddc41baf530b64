"""What given labels become of true ones: the transition matrix, read off anchor points.

The labels alone cannot tell a hard image from a wrong label. What tells them apart here is an assumption, and it is
named: **the surest third of the images predicted as a class are of that class** (anchor points), so that labels which
contradict it there are wrong; and labels are as often wrong, and as what, elsewhere as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# The surest of each predicted class that are taken for right.
ANCHORS = 0.3
# A class's rate is drawn to the common one as if so many anchors had shown that.
RATE_WEIGHT = 10.0
# The shape of mistakes is drawn to the uniform one as if so many wrong labels had shown it; infinity is uniform.
SHAPE_WEIGHTS = (1.0, 10.0, 100.0, float("inf"))
# Rounds in which shares of classes are found: more fit the chance in the counts.
_SHARE_ROUNDS = 20
# Parts of the anchors, each judged by the matrix of the others.
PARTS = 5


@dataclass(frozen=True)
class Transition:
    """How labels come about: `matrix[t, y]` is the probability of the given label y if t is true."""

    matrix: Tensor  # (C, C), rows sum to 1
    rate: float  # share of wrong labels among the anchors
    shape_weight: float
    anchors: int


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


def estimate_transition(
    predicted: np.ndarray, order: np.ndarray, labels: np.ndarray, part: np.ndarray, classes: int, share: float
) -> tuple[Transition, list[Tensor]]:
    """Return the transition from the anchors, and for each part of the samples the matrix of the others' anchors.

    Parameters
    ----------
    predicted : int array of shape (N,)
        The class that each image is predicted as by a classifier that has not seen its label.
    order : int array of shape (N,)
        The rows by predicted class, the surest of each first.
    labels : int array of shape (N,)
        Given labels.
    part : int array of shape (N,)
        Which of `PARTS` parts a sample belongs to.
    classes : int
        C.
    share : float
        The share of anchors.
    """
    rows = anchor_rows(predicted, order, share)
    counts = torch.zeros(PARTS, classes, classes)
    where = tuple(torch.from_numpy(each[rows]) for each in (part, predicted, labels))
    counts.index_put_(where, torch.ones(len(rows)), accumulate=True)
    total = counts.sum(0)

    def held_out(weight: float) -> float:
        likelihood = 0.0
        for own in counts:
            matrix = _matrix(total - own, weight)
            likelihood += float((own * matrix.clamp_min(1e-6).log()).sum())
        return likelihood

    weight = max(SHAPE_WEIGHTS, key=held_out)
    rate = float(1 - total.diagonal().sum() / total.sum())
    found = Transition(_matrix(total, weight), rate, weight, len(rows))
    return found, [_matrix(total - own, weight) for own in counts]


def _matrix(counts: Tensor, shape_weight: float) -> Tensor:
    """Return the matrix that counts (C, C) of anchors suggest, what few of them show drawn to what all show."""
    classes = len(counts)
    anchors = counts.sum(1)
    wrong = anchors - counts.diagonal()
    # As if half an anchor more had been wrong: no number of right ones makes a wrong label impossible.
    common = (wrong.sum() + 0.5) / (anchors.sum() + 1)
    rate = (wrong + RATE_WEIGHT * common) / (anchors + RATE_WEIGHT)
    uniform = 1 / (classes - 1)
    if shape_weight == float("inf"):
        shape = torch.full_like(counts, uniform)
    else:
        shape = (counts + shape_weight * uniform) / (wrong + shape_weight)[:, None]
    return (shape * rate[:, None]).fill_diagonal_(0) + torch.diag(1 - rate)
