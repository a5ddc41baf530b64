"""Which things are alike: cosines between rows of numbers, and the nearest classes of each class."""

from __future__ import annotations

import numpy as np

from dspt.internal.checks import checked_rows
from dspt.internal.errors import InputError

# CLIP's own factor between cosine and logit, whatever the checkpoint: a kind of noise has no settings.
SCALE = 100.0
# Decimals by which cosines are compared. Machines add in different orders; what is equal must stay equal on all.
DECIMALS = 9
# Numbers held together: no matrix of all classes with all classes is ever made.
_MOST = 2**24


def nearest_classes(class_features: np.ndarray, num_classes: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` classes nearest to each class, the nearest first, and how likely each is taken for it.

    Parameters
    ----------
    class_features : array of shape (C, D)
        What stands for the classes, such as CLIP's features of their names. Their lengths do not matter.
    num_classes : int
        C, 2 or more.
    k : int
        How many, in 1..C-1.

    Returns
    -------
    int64 array of shape (C, k)
        Other classes by falling cosine; of those with the same, the one of lower index first.
    float64 array of shape (C, k)
        The softmax of 100 times these cosines: every row sums to 1.
    """
    if not 1 <= k < num_classes:
        expected = "near" if num_classes == 2 else f"near or near-1 to near-{num_classes - 1}"
        raise InputError(f"noise near-{k}: {num_classes} classes have no {k} others each; give {expected}")
    units = unit_rows(np.asarray(checked_rows(class_features, num_classes, "class_features", "class")))
    order = np.empty((num_classes, k), dtype=np.int64)
    likely = np.empty((num_classes, k))
    step = rows_at_once(num_classes)
    for first in range(0, num_classes, step):
        rows = np.arange(first, min(first + step, num_classes))
        cosines = (units[rows] @ units.T).round(DECIMALS)
        cosines[np.arange(len(rows)), rows] = -np.inf
        order[rows] = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        likely[rows] = np.take_along_axis(cosines, order[rows], axis=1)
    likely = np.exp(SCALE * (likely - likely[:, :1]))
    likely /= likely.sum(axis=1, keepdims=True)
    return order, likely


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows as float64 of length 1; a row of zeros stays as it is."""
    # By the largest first: the squares of very large or small numbers are no numbers any more.
    scaled = np.asarray(rows, dtype=np.float64)
    largest = np.abs(scaled).max(axis=1, keepdims=True, initial=0)
    scaled = scaled / np.where(largest > 0, largest, 1)
    units: np.ndarray = scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1)
    return units


def rows_at_once(width: int) -> int:
    """Return how many rows of this width are looked at together."""
    return max(1, _MOST // max(1, width))
