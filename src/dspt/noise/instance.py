"""Noise that depends on the image: alike images of a class are taken for the same wrong class.

The part-dependent noise of Xia et al. (NeurIPS 2020), as the field generates it, on the features of
the images. Each image has a rate of its own around the asked one; and each class has a random
projection of features to the classes, whose largest score names what an image is mistaken for.
"""

from __future__ import annotations

import numpy as np

from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream

# Spread of the images' own rates around the asked one, as in the literature.
SPREAD = 0.1
# Rows looked at together: no second copy of all features is ever made.
_ROWS = 65536


def instance_noise(true: np.ndarray, num_classes: int, rate: float, seed: int, features: np.ndarray) -> np.ndarray:
    """Return noisy labels of which, on average, a share of `rate` is wrong.

    Parameters
    ----------
    true : int64 array of shape (N,)
    rate : float in 0..1
    features : array of shape (N, D)
        What stands for an image. Their common mean is taken off and their spread brought to 1, so
        that their scale does not matter.
    """
    features = _checked(features, len(true))
    mean = features.mean(axis=0, dtype=np.float64)
    spread = _spread(features, mean)
    flipped = Stream(seed, "noise", "instance", "flip").uniform(len(true)) < rates(len(true), rate, seed)
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


def _checked(features: np.ndarray, n: int) -> np.ndarray:
    array = np.asarray(features)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or len(array) != n:
        raise InputError(
            f"features: expected {n} rows of numbers, one for each label, found {array.dtype} of shape {array.shape}"
        )
    for start in range(0, n, _ROWS):
        finite = np.isfinite(array[start : start + _ROWS]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise InputError(f"features: expected finite numbers, found another at row {row}")
    return array


def _spread(features: np.ndarray, mean: np.ndarray) -> float:
    """Return the root of the mean square of the features around their mean."""
    squares = sum(
        float(np.square(features[start : start + _ROWS] - mean).sum()) for start in range(0, len(features), _ROWS)
    )
    return float(np.sqrt(squares / max(1, features.size))) or 1.0
