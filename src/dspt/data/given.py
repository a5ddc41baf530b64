"""What a user of Python gives as X and y, as items and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspt.internal.errors import InputError
from dspt.internal.shards import Shards


def given_items(X: Any) -> Any:
    """Return X as items to encode, or as a float32 array of L2-normalised features; shards are returned as they are."""
    if isinstance(X, Shards):
        return X
    if isinstance(X, str | Path):
        raise InputError(f"X: a single path ({X}); give a list of them")
    if hasattr(X, "to_numpy"):  # pandas
        X = X.to_numpy()
    if hasattr(X, "detach"):  # torch
        X = X.detach().cpu()
        X = X.float().numpy() if X.is_floating_point() else X.numpy()
    if not isinstance(X, np.ndarray):
        try:
            X = list(X)
        except TypeError:
            raise InputError(f"X: expected a list or an array, found {type(X).__name__}") from None
        if X and np.ndim(X[0]) == 1:  # feature vectors one by one
            try:
                X = np.stack([np.asarray(row, dtype=np.float32) for row in X])
            except (TypeError, ValueError):
                raise InputError("X: rows differ in length or are not numbers; features are (N, D)") from None
    if len(X) == 0:
        raise InputError("X: it is empty; at least one sample is needed")
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
        return list(X.ravel())
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        if X.ndim != 2 or not X.shape[1]:
            raise InputError(f"X: float array of shape {X.shape}; features are (N, D), and images are uint8 arrays")
        X = X.astype(np.float32, copy=False)
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        bad = ~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0)
        if bad.any():
            raise InputError(f"X: row {int(np.argmax(bad))} is zero or not finite; every row must be a feature")
        # unit rows stay as they are, to the bit
        return X if np.allclose(norms, 1, atol=1e-5) else X / norms
    return X


def given_labels(y: Any, class_names: Sequence[str] | None) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the prompt names, the labels as the user writes them, and y as numbers."""
    y = _as_labels(y)
    if y.dtype.kind == "U":
        # in sorted order, as scikit-learn's metrics expect columns to be
        found = np.unique(y) if class_names is None else np.unique(list(map(str, class_names)))
        unknown = ~np.isin(y, found)
        if unknown.any():
            row = int(unknown.argmax())
            raise InputError(f"y: {str(y[row])!r} at row {row} is not one of class_names")
        names = tuple(map(str, found))
        _check_different(names if class_names is None else tuple(map(str, class_names)))
        return names, np.array(names), np.searchsorted(found, y).astype(np.int64)
    if class_names is None:
        raise InputError("class_names: needed, since y holds numbers; class_names[i] is the name of label i")
    names = tuple(map(str, class_names))
    _check_different(names)
    return names, np.arange(len(names)), y.astype(np.int64)


def distinct_labels(y: Any) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the names of the labels that there are, the labels themselves, and y as numbers of them."""
    classes, labels = np.unique(_as_labels(y), return_inverse=True)
    return tuple(map(str, classes)), classes, labels.astype(np.int64)


def _as_labels(y: Any) -> np.ndarray:
    """Return y as an array (N,) of texts or of whole numbers."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    elif isinstance(y, list | tuple):
        y = np.array(y, dtype=object)  # as they are: numpy would make texts of all for the sake of one
    y = np.asarray(y)
    if y.ndim != 1:
        raise InputError(f"y: expected one label for each sample, found shape {y.shape}")
    if y.dtype == object:
        y = _written(y)
    if y.dtype.kind == "S":
        y = np.char.decode(y)
    if y.dtype.kind == "U":
        if (empty := np.char.strip(y) == "").any():
            raise InputError(f"y: the label at row {int(empty.argmax())} is empty; leave the sample out")
    elif y.dtype.kind not in "iu":
        raise InputError(f"y: expected class names or whole numbers, found {y.dtype}")
    labels: np.ndarray = y
    return labels


def _written(y: np.ndarray) -> np.ndarray:
    """Return an array of objects as one of texts or of whole numbers; nothing else is a label."""
    labels = [label.decode() if isinstance(label, bytes) else label for label in y]
    for row, label in enumerate(labels):
        same = label == label  # NaN is not the same as itself, and pandas' NA cannot tell
        if label is None or not (isinstance(same, bool | np.bool_) and same):
            raise InputError(f"y: the label at row {row} is missing ({label}); leave the sample out")
    kinds = [kind for kind in (str, int | np.integer) if all(isinstance(each, kind) for each in labels)]
    if labels and (not kinds or any(isinstance(label, bool) for label in labels)):
        kinds_found = ", ".join(sorted({type(label).__name__ for label in labels}))
        raise InputError(f"y: expected class names or whole numbers alone, found {kinds_found}")
    return np.array(labels)


def _check_different(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"class_names: {twice!r} is there twice; every class needs a name of its own")
