"""Feature files: image features computed elsewhere, with labels and class names.

A file holds `train_x` (N, D), `train_y` (N,), `test_x` (M, D), `test_y` (M,) and `classnames` (C,).
A .safetensors file has no text arrays: its class names are a JSON list, under the metadata key
"classnames" or as the UTF-8 bytes of a uint8 array of that name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspt.data.arrays import open_npz
from dspt.data.dataset import Dataset, Split
from dspt.internal.checks import check_labels, check_names
from dspt.internal.errors import InputError
from dspt.internal.files import check_regular, parse_json

SUFFIXES = (".npz", ".safetensors")
_ARRAYS = ("train_x", "train_y", "test_x", "test_y")

# A unit vector's length is within the first of 1 after rounding to float32, and within the second
# after float16: that is put right without a word.
_UNIT, _NEARLY_UNIT = 1e-5, 1e-2


def read(path: Path, needs_test: bool = True) -> Dataset:
    """Return the dataset in the feature file `path`, its features float32 and of length 1.

    A file without a test split is refused, unless none is needed.
    """
    arrays, names = _npz(path) if path.suffix.lower() == ".npz" else _safetensors(path)
    parts = ("train", "test") if needs_test or {"test_x", "test_y"} & arrays.keys() else ("train",)
    missing = [name for name in _ARRAYS if name not in arrays and name.split("_")[0] in parts]
    if names is None:
        missing.append("classnames")
    if missing or names is None:
        raise InputError(
            f"{path}: has no {', '.join(missing)}; a feature file holds {', '.join(_ARRAYS)} and classnames"
        )
    check_names(names, f"{path}: classnames")
    notes: list[str] = []
    splits = [
        Split(
            _features(path, f"{split}_x", arrays[f"{split}_x"], notes),
            _labels(path, f"{split}_y", arrays[f"{split}_y"], len(names)),
        )
        for split in parts
    ]
    for split, found in zip(parts, splits, strict=True):
        if len(found.items) != len(found.labels):
            raise InputError(
                f"{path}: {split}_x has {len(found.items)} rows and {split}_y has "
                f"{len(found.labels)}; each feature needs one label"
            )
    train, test = splits if len(splits) > 1 else (splits[0], splits[0].take(np.empty(0, np.int64)))
    if np.shape(train.items)[1:] != np.shape(test.items)[1:]:
        raise InputError(
            f"{path}: train_x has {arrays['train_x'].shape[1]} columns and test_x has "
            f"{arrays['test_x'].shape[1]}; both must come from the same image tower"
        )
    return Dataset(path.stem, tuple(names), train, test, notes=tuple(notes))


def _npz(path: Path) -> tuple[dict[str, np.ndarray], list[str] | None]:
    """Return the arrays of an .npz file, and its class names if there are any."""
    hint = "; save the class names with np.array(names, dtype=str)"
    with open_npz(path, hint) as (held, array):
        arrays = {name: array(name) for name in (*_ARRAYS, "classnames") if name in held}
    names = arrays.pop("classnames", None)
    if names is None:
        return arrays, None
    if names.dtype.kind not in "US" or names.ndim != 1:
        raise InputError(
            f"{path}: classnames must be a list of texts, found {names.dtype} of shape "
            f"{names.shape}; save them with np.array(names, dtype=str)"
        )
    try:
        texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    except Exception:  # numbers that stand for no character: a SystemError, even
        raise InputError(f"{path}: a name in classnames is not text; save the names as UTF-8") from None
    return arrays, texts


def _safetensors(path: Path) -> tuple[dict[str, np.ndarray], list[str] | None]:
    """Return the arrays of a .safetensors file, and its class names if there are any."""
    from safetensors import safe_open

    check_regular(path)  # opening a pipe would wait for ever
    try:
        with safe_open(path, framework="numpy") as file:
            stored = set(file.keys())
            arrays = {name: file.get_tensor(name) for name in _ARRAYS if name in stored}
            text = (file.metadata() or {}).get("classnames")
            if text is None and "classnames" in stored:
                text = file.get_tensor("classnames").tobytes().decode()
    except Exception as error:  # its Rust core raises its own kind; bfloat16 is a TypeError
        raise InputError(
            f"{path}: not a .safetensors file that numpy can hold ({type(error).__name__}: {error})"
        ) from None
    if text is None:
        return arrays, None
    try:
        names = parse_json(text)
    except InputError as error:
        raise InputError(f"{path}: classnames must be a JSON list of texts; it is {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: classnames must be a JSON list of texts")
    return arrays, names


def _features(path: Path, name: str, given: np.ndarray, notes: list[str]) -> np.ndarray:
    if given.ndim != 2 or given.dtype.kind != "f" or 0 in given.shape:
        raise InputError(
            f"{path}: {name} must hold floating-point features (N, D) with at least one row, "
            f"found {given.dtype} of shape {given.shape}"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told
        features = given.astype(np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    bad = np.flatnonzero(~((lengths > 0) & (lengths <= np.finfo(np.float32).max)))
    if bad.size:
        what = "only zeros" if lengths[bad[0]] == 0 else "a value that is not a finite number"
        raise InputError(
            f"{path}: {name} has {what} in row {bad[0]} ({bad.size} such rows); "
            "compute these features again or leave the rows out"
        )
    off = np.abs(lengths - 1).max()
    if off > _UNIT:
        features /= lengths[:, None].astype(np.float32)
    if off > _NEARLY_UNIT:
        notes.append(
            f"{name}: features had lengths {lengths.min():.4g} to {lengths.max():.4g}; each was divided by its length."
        )
    return features


def _labels(path: Path, name: str, given: np.ndarray, classes: int) -> np.ndarray:
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InputError(f"{path}: {name} must hold whole numbers (N,), found {given.dtype} of shape {given.shape}")
    check_labels(given, classes, name, str(path))
    return given.astype(np.int64)
