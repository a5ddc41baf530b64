"""Noise that depends on the image: each has a rate of its own, and a class that it is taken for.

"instance" is the part-dependent noise of Xia et al. (NeurIPS 2020), as the field generates it, on the
features of the images. Each image has a rate of its own around the asked one; and each class has a
random projection of features to the classes, whose scores say what an image is mistaken for. Alike
images of a class are taken for the same wrong class, but which one that is has been drawn: it is not
a class that the image looks like, so these are no honest confusions.

"instance-likely" flips the same images, and takes each for the other class that it looks most like.
"""

from __future__ import annotations

import numpy as np

from dspt.internal.checks import checked_rows
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.noise.similar import DECIMALS, rows_at_once, unit_rows

# Spread of the images' own rates around the asked one, as in the literature.
SPREAD = 0.1
# Rows looked at together: no second copy of all features is ever made.
_ROWS = 65536


def instance_noise(
    true: np.ndarray, num_classes: int, rate: float, seed: int, features: np.ndarray, likely: bool = False
) -> np.ndarray:
    """Return noisy labels of which, on average, a share of `rate` is wrong.

    Parameters
    ----------
    true : int64 array of shape (N,)
    num_classes : int
        C.
    rate : float in 0..1
    seed : int
        Seed of the images' rates, of the flips and of the projections.
    features : array of shape (N, D)
        What stands for an image. Their scale does not matter: their common mean is taken off and
        their spread brought to 1, or, if `likely`, each is brought to length 1.
    likely : bool
        Whether an image is taken for the class that it looks most like, and not for one that a
        random projection of its features names.
    """
    features = np.asarray(checked_rows(features, len(true), "features", "label"))
    flipped = Stream(seed, "noise", "instance", "flip").uniform(len(true)) < rates(len(true), rate, seed)
    if not likely:
        return _projected(true, num_classes, seed, features, flipped)
    noisy: np.ndarray = true.copy()
    if rate and len(true):
        noisy[flipped] = likeliest(true, num_classes, features, np.flatnonzero(flipped))
    return noisy


def likeliest(true: np.ndarray, num_classes: int, features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return, for some images, the other class whose mean feature has the highest cosine with the image's.

    Parameters
    ----------
    true : int64 array of shape (N,)
        The true labels, at least two different ones.
    num_classes : int
        C. A class without images has no mean, and nothing is taken for it.
    features : array of shape (N, D)
        Finite numbers, brought to length 1 before the means are taken.
    rows : int array of shape (n,)
        Which images.

    Returns
    -------
    int64 array of shape (n,)
        Of classes with the same cosine, the one of lower index.
    """
    counts = np.bincount(true, minlength=num_classes)
    if np.count_nonzero(counts) < 2:
        raise InputError(
            f"labels: all are of class {true[0]}, so no image can be taken for another; "
            "noise inst-likely needs images of two classes or more"
        )
    step = rows_at_once(max(num_classes, features.shape[1]))
    sums = np.zeros((num_classes, features.shape[1]))
    for start in range(0, len(true), step):
        np.add.at(sums, true[start : start + step], unit_rows(features[start : start + step]))
    means = unit_rows(sums)
    found = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        cosines = (unit_rows(features[some]) @ means.T).round(DECIMALS)
        cosines[:, counts == 0] = -np.inf
        cosines[np.arange(len(some)), true[some]] = -np.inf
        found[start : start + step] = cosines.argmax(axis=1)
    return found


def _projected(true: np.ndarray, num_classes: int, seed: int, features: np.ndarray, flipped: np.ndarray) -> np.ndarray:
    """Return the labels, those of `flipped` images drawn by the projection of their true class."""
    mean = features.mean(axis=0, dtype=np.float64)
    spread = _spread(features, mean)
    place = Stream(seed, "noise", "instance", "class").uniform(len(true))
    noisy: np.ndarray = true.copy()
    for k in np.unique(true[flipped]):
        rows = np.flatnonzero(flipped & (true == k))
        likely = mistakes((features[rows] - mean) / spread, int(k), num_classes, seed)
        # The last class ends at exactly 1, whatever the rounding of the sum.
        cumulative = likely.cumsum(axis=1)
        noisy[rows] = (place[rows, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
    return noisy


def rates(n: int, rate: float, seed: int) -> np.ndarray:
    """Return the rate of each of `n` images: normal around `rate`, cut off alike on both sides.

    The cut keeps every rate in 0..1, and their mean is `rate`, which cutting at 0 and 1 alone would
    shift.

    Parameters
    ----------
    n : int
        How many images.
    rate : float in 0..1
        The mean of the rates.
    seed : int
        Seed of the draw.

    Returns
    -------
    float64 array of shape (n,)
    """
    from scipy.special import ndtr, ndtri

    reach = min(rate, 1 - rate)
    if not reach:
        return np.full(n, float(rate))
    low, high = ndtr(-reach / SPREAD), ndtr(reach / SPREAD)
    uniform = Stream(seed, "noise", "instance", "rate").uniform(n)
    drawn: np.ndarray = rate + SPREAD * ndtri(low + (high - low) * uniform)
    return drawn.clip(rate - reach, rate + reach)


def mistakes(features: np.ndarray, label: int, num_classes: int, seed: int) -> np.ndarray:
    """Return how likely images of class `label` are to be mistaken for each class, (N, C).

    Parameters
    ----------
    features : array of shape (N, D)
        What stands for the images, brought to mean 0 and spread 1.
    label : int
        Their true class, the same for all.
    num_classes : int
        C.
    seed : int
        Seed of the projection of features to the classes.

    Returns
    -------
    float array of shape (N, C)
        Every row sums to 1 and is 0 at `label`.
    """
    stream = Stream(seed, "noise", "instance", "parts", label)
    scores: np.ndarray = features @ stream.normal(features.shape[1], num_classes)
    scores[:, label] = -np.inf
    likely: np.ndarray = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    return likely


def _spread(features: np.ndarray, mean: np.ndarray) -> float:
    """Return the root of the mean square of the features around their mean."""
    squares = sum(
        float(np.square(features[start : start + _ROWS] - mean).sum()) for start in range(0, len(features), _ROWS)
    )
    return float(np.sqrt(squares / max(1, features.size))) or 1.0
