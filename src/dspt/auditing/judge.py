"""From features and given labels to what is wrong with them; images themselves are not looked at here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dspt.auditing.audit import INSEPARABLE, adding_up
from dspt.internal.names import plain
from dspt.internal.passes import Passes, added, all_added, joined, passes
from dspt.internal.scratch import Room
from dspt.internal.shards import Features
from dspt.internal.workers import Spread
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
    spread: Spread | None = None,
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
    spread : Spread, optional
        Has workers go through the samples; None is this process.
    """
    with passes(len(labels), spread) as each:
        features, logits = each.keep(features), None
        if prototypes is not None:
            room = each.room(len(labels), classes)
            list(each.each(_zero_shot, features, prototypes, scale, room))
            logits = each.filled(room)
        found = label_posterior(features, labels, logits, num_classes=classes, known=known, spread=spread)
        score, far = _strangeness(each, features, found.probabilities)
    doubt = 1 - found.label_quality.astype(np.float64)
    if found.can_tell:
        asked = np.ones(len(labels), bool) if known is None else known < 0
        doubt[asked] = adding_up(doubt[asked], found.noise_rate * len(labels) - doubt[~asked].sum())
    counts = np.bincount(labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        rates = np.bincount(labels, doubt, minlength=classes) / counts
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


def _strangeness(each: Passes, features: Features, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each sample lies from every class, in 0..1, and which lie so far out that they fit none.

    The distance is Mahalanobis's to the nearest class, each sample left out of its own mean; its logarithm is
    compared with that of the others by median and median deviation, which strangers do not move.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.special import ndtr

    n, width = features.shape
    counts = probabilities.sum(0, dtype=np.float64)
    probabilities = each.keep(probabilities)
    centre = added(each.each(_sum, features)) / n
    sums, products = all_added(each.each(_class_sums, features, probabilities, centre))
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
    clouds = _Clouds(centre, root, whitened, np.square(whitened).sum(0), held, counts[held])
    logs = joined(each.each(_log_distances, features, probabilities, clouds))
    middle = np.median(logs)
    deviation = 1.4826 * np.median(np.abs(logs - middle))
    away = (logs - middle) / deviation if deviation > 1e-9 else np.zeros(n)
    return ndtr(away).astype(np.float32), np.asarray(away > _FAR)


class _Clouds(NamedTuple):
    """Classes as clouds of one shape, by which distances are measured."""

    centre: np.ndarray  # (D,) of all features
    root: np.ndarray  # (D, D) of the covariance
    whitened: np.ndarray  # (D, C) means of the classes that are held
    power: np.ndarray  # (C,) their squared lengths
    held: np.ndarray  # which of all classes are
    counts: np.ndarray  # (C,) how many samples they have


# Below, work for `passes` on a range of rows.


def _zero_shot(rows: slice, features: Features, prototypes: np.ndarray, scale: float, room: Room) -> None:
    """Write the zero-shot logits of the rows."""
    for part in _parts(rows):
        room[part] = scale * np.asarray(features[part], np.float32) @ prototypes.T


def _sum(rows: slice, features: Features) -> np.ndarray:
    """Return the sum of the features (D,)."""
    found = np.zeros(features.shape[1])
    for part in _parts(rows):
        found += np.asarray(features[part], np.float64).sum(0)
    return found


def _class_sums(
    rows: slice, features: Features, probabilities: np.ndarray, centre: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the centred features by class (C, D), and of their products (D, D)."""
    width = features.shape[1]
    sums, products = np.zeros((probabilities.shape[1], width)), np.zeros((width, width))
    for part in _parts(rows):
        x = np.asarray(features[part], np.float64) - centre
        sums += probabilities[part].T.astype(np.float64) @ x
        products += x.T @ x
    return sums, products


def _log_distances(rows: slice, features: Features, probabilities: np.ndarray, clouds: _Clouds) -> np.ndarray:
    """Return the log of the squared distance of each row from the nearest class, itself left out (n,)."""
    from scipy.linalg import solve_triangular

    found = np.empty(rows.stop - rows.start)
    for part in _parts(rows):
        x = solve_triangular(clouds.root, (np.asarray(features[part], np.float64) - clouds.centre).T, lower=True)
        squares = np.square(x).sum(0)[:, None] - 2 * x.T @ clouds.whitened + clouds.power
        share = np.minimum(probabilities[part][:, clouds.held] / clouds.counts, 0.9)
        own = slice(part.start - rows.start, part.stop - rows.start)
        found[own] = np.log((squares / (1 - share) ** 2).min(1).clip(1e-12))
    return found


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


def _parts(rows: slice) -> Iterator[slice]:
    for first in range(rows.start, rows.stop, _ROWS):
        yield slice(first, min(first + _ROWS, rows.stop))
