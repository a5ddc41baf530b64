"""From features and given labels to what is wrong with them; images themselves are not looked at here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dspt.auditing.audit import INSEPARABLE
from dspt.internal.names import plain
from dspt.internal.scratch import scratch
from dspt.internal.shards import Features
from dspt.posterior import Posterior, label_posterior

# Images that are shown beside a suspect, of the given class and of the proposed one.
EXAMPLES = 3
# Examples are of labels that are at least this surely right, and the nearest of so many of a class.
_SURE, _POOL = 0.9, 2000
# What is added to the covariance, as a share of the mean variance: with it, strangers were told best from members.
_RIDGE = 1.0
# Robust standard deviations beyond which an image is said to fit no class.
_FAR = 3.0
# Rows that are computed at once, and pairs of them: a few dozen megabytes.
_ROWS, _PAIRS = 2048, 2**22


class Judged(NamedTuple):
    """What features and labels tell."""

    posterior: Posterior
    class_noise_rates: np.ndarray  # (C,)
    fits_no_class: np.ndarray  # (N,)
    is_outlier: np.ndarray  # (N,)
    inseparable: tuple[tuple[int, int, float], ...]


def judge(
    features: Features,
    labels: np.ndarray,
    classes: int,
    *,
    prototypes: np.ndarray | None = None,
    scale: float = 100.0,
    known: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> Judged:
    """Return what is to be said of every label and of the classes.

    Parameters
    ----------
    features : array of shape (N, D)
        May be a memory map, or shards.
    labels : integer array of shape (N,)
        Given labels.
    classes : int
        C.
    prototypes : array of shape (C, D), optional
        The class names as the text tower sees them; None if there is no text tower.
    scale : float
        Of the zero-shot logits, scale * cosine.
    known : integer array of shape (N,), optional
        The true class where somebody has looked, -1 elsewhere.
    names : sequence of str
        The names of the classes: those that are one word but for its spelling cannot be told apart either.
    """
    logits = None
    if prototypes is not None:
        logits = scratch(len(labels), classes)
        for rows in _parts(len(labels)):
            logits[rows] = scale * np.asarray(features[rows], np.float32) @ prototypes.T
    found = label_posterior(features, labels, logits, num_classes=classes, known=known)
    doubt = 1 - found.label_quality
    counts = np.bincount(labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        rates = np.bincount(labels, doubt, minlength=classes) / counts
    score, far = _strangeness(features, found.probabilities)
    return Judged(found, rates, score, far, _inseparable(found, names))


def nearest_examples(
    features: Features, labels: np.ndarray, proposed: np.ndarray, quality: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the rows (N, 2, K) of the nearest surely right images of the given and of the proposed class; -1: none.

    Parameters
    ----------
    features : array of shape (N, D)
    labels, proposed : integer arrays of shape (N,)
        The given class and the most probable other one.
    quality : array of shape (N,)
        The probability that the given label is right.
    rows : integer array
        For whom examples are sought; the others have none.
    """
    found = np.full((len(labels), 2, EXAMPLES), -1, np.int32)
    sure = np.flatnonzero(quality >= _SURE)
    sure = sure[np.argsort(-quality[sure], kind="stable")]
    for side, classes in enumerate((labels, proposed)):
        by_class = sure[np.argsort(labels[sure], kind="stable")]
        for c in np.unique(classes[rows]):
            asking = rows[classes[rows] == c]
            first, last = np.searchsorted(labels[by_class], [c, c + 1])
            pool = by_class[first:last][:_POOL]
            if not len(pool):
                continue
            there = _unit(features[pool])
            for part in np.array_split(asking, 1 + len(asking) * len(pool) // _PAIRS):
                near = _unit(features[part]) @ there.T
                near[part[:, None] == pool] = -np.inf  # nobody is an example for itself
                best = np.argsort(-near, axis=1, kind="stable")[:, :EXAMPLES]
                good = np.isfinite(np.take_along_axis(near, best, 1))
                found[part, side, : best.shape[1]] = np.where(good, pool[best], -1)
    return found


def _strangeness(features: Features, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each sample lies from every class, in 0..1, and which lie so far out that they fit none.

    The distance is Mahalanobis's to the nearest class, each sample left out of its own mean; its logarithm is
    compared with that of the others by median and median deviation, which strangers do not move.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.special import ndtr

    n, width = features.shape
    counts = probabilities.sum(0, dtype=np.float64)
    centre = np.zeros(width)
    sums = np.zeros((len(counts), width))
    products = np.zeros((width, width))
    for rows in _parts(n):
        centre += np.asarray(features[rows], np.float64).sum(0)
    centre /= n
    for rows in _parts(n):
        x = np.asarray(features[rows], np.float64) - centre
        sums += probabilities[rows].T.astype(np.float64) @ x
        products += x.T @ x
    held = counts > 1.5  # the mean of a single sample tells nothing about it
    means = sums[held] / counts[held][:, None]
    within = (products - means.T @ (means * counts[held][:, None])) / n
    spread = np.trace(products) / (n * width)
    if not held.any() or spread <= 1e-12:
        return np.full(n, 0.5, np.float32), np.zeros(n, bool)
    variance = max(np.trace(within) / width, 1e-3 * spread)
    within.flat[:: width + 1] += variance * (_RIDGE + width / n)
    root = cholesky(within, lower=True)
    whitened = solve_triangular(root, means.T, lower=True)
    power = np.square(whitened).sum(0)
    logs = np.empty(n)
    for rows in _parts(n):
        x = solve_triangular(root, (np.asarray(features[rows], np.float64) - centre).T, lower=True)
        squares = np.square(x).sum(0)[:, None] - 2 * x.T @ whitened + power
        share = np.minimum(probabilities[rows][:, held] / counts[held], 0.9)
        logs[rows] = np.log((squares / (1 - share) ** 2).min(1).clip(1e-12))
    middle = np.median(logs)
    deviation = 1.4826 * np.median(np.abs(logs - middle))
    away = (logs - middle) / deviation if deviation > 1e-9 else np.zeros(n)
    return ndtr(away).astype(np.float32), np.asarray(away > _FAR)


def _inseparable(found: Posterior, names: Sequence[str]) -> tuple[tuple[int, int, float], ...]:
    """Return the pairs of classes of which as much could be the one as the other, and the share of it, most first."""
    either = np.triu(found.confusion + found.confusion.T, 1)
    pairs = {(int(a), int(b)) for a, b in np.argwhere(either > INSEPARABLE)} if found.can_tell else set()
    spelt: dict[str, int] = {}
    for c, name in enumerate(names):
        # "Cat", "cats" and "cat_" are one word
        first = spelt.setdefault(plain(name).rstrip("s") or name, c)
        if first != c:
            pairs.add((first, c))
    told = [(a, b, float(min(1.0, either[a, b]))) for a, b in sorted(pairs)]
    return tuple(sorted(told, key=lambda pair: -pair[2]))


def _unit(features: np.ndarray) -> np.ndarray:
    x = np.asarray(features, np.float32)
    unit: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
    return unit


def _parts(n: int) -> Iterator[slice]:
    for first in range(0, n, _ROWS):
        yield slice(first, min(first + _ROWS, n))
