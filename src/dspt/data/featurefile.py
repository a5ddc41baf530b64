"""Feature files: image features computed elsewhere, with labels and class names.

A file holds `train_x` (N, D), `train_y` (N,), `test_x` (M, D), `test_y` (M,) and `classnames` (C,).
A .safetensors file has no text arrays: its class names are a JSON list, under the metadata key
"classnames" or as the UTF-8 bytes of a uint8 array of that name.

A folder of .safetensors files is one dataset: each file is a shard, a feature file with some rows of the train split,
of the test split or of both, and rows follow each other by the names of the files. What `sha256sum` has written to
SHA256SUMS there is what each file must hold. Features of .safetensors files are memory-mapped and never read whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dspt.data.arrays import open_npz
from dspt.data.dataset import Dataset, Split, listed
from dspt.internal.checks import check_labels, check_names
from dspt.internal.errors import InputError
from dspt.internal.files import check_regular, file_error, parse_json, read_text
from dspt.internal.shards import BLOCK, Features, Shards
from dspt.internal.tensors import mapped

SUFFIXES = (".npz", ".safetensors")
SHARD = ".safetensors"
SUMS = "SHA256SUMS"
_SPLITS = ("train", "test")
_ARRAYS = ("train_x", "train_y", "test_x", "test_y")
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")

# A unit vector's length is within the first of 1 after rounding to float32, and within the second
# after float16: that is put right without a word.
_UNIT, _NEARLY_UNIT = 1e-5, 1e-2


class _File(NamedTuple):
    """What a feature file holds."""

    path: Path
    arrays: dict[str, np.ndarray]
    names: list[str]


def is_shards(folder: Path) -> bool:
    """Return whether this is a folder of shards: it holds .safetensors files, and no folders as classes would be."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        return any(_is_shard(entry.name) for entry in visible) and not any(entry.is_dir() for entry in visible)
    except OSError:
        return False  # reading it tells more


def read(path: Path, needs_test: bool = True) -> Dataset:
    """Return the dataset in the feature file `path`, its features float32 and of length 1.

    A file without a test split is refused, unless none is needed.
    """
    arrays, names = _npz(path) if path.suffix.lower() == ".npz" else _safetensors(path)
    splits = _SPLITS if needs_test or {"test_x", "test_y"} & arrays.keys() else _SPLITS[:1]
    return _dataset(path.stem, [_file(path, arrays, names, splits)], splits)


def read_shards(folder: Path, needs_test: bool = True) -> Dataset:
    """Return the dataset whose shards lie in `folder`; one without a test split is refused, unless none is needed."""
    paths = sorted(folder / name for name in os.listdir(folder) if _is_shard(name) and not name.startswith("."))
    _check_sums(folder, paths)
    files: list[_File] = []
    for path in paths:
        arrays, names = _safetensors(path)
        own = [split for split in _SPLITS if {f"{split}_x", f"{split}_y"} & arrays.keys()]
        files.append(_file(path, arrays, names, own or _SPLITS[:1]))
        if (others := files[0].names) != files[-1].names:
            raise InputError(
                f"{path}: its class names are not those of {paths[0].name} ({_difference(files[-1].names, others)}); "
                "give all shards the same, in the same order"
            )
    there = [split for split in _SPLITS if any(f"{split}_x" in file.arrays for file in files)]
    for split in _SPLITS if needs_test else _SPLITS[:1]:
        if split not in there:
            raise InputError(f"{folder}: no shard has {split}_x and {split}_y; add one that has them")
    return _dataset(folder.resolve().name, files, there)


def _is_shard(name: str) -> bool:
    return name.lower().endswith(SHARD)


def _dataset(name: str, files: Sequence[_File], splits: Sequence[str]) -> Dataset:
    """Return what files hold together: their rows one after another."""
    names: list[str] = files[0].names
    notes: list[str] = []
    check_names(names, f"{files[0].path}: classnames")
    _check_forms(files, splits)
    found = {}
    for split in splits:
        having = [file for file in files if f"{split}_x" in file.arrays]
        labels = np.concatenate([file.arrays[f"{split}_y"].astype(np.int64) for file in having])
        found[split] = Split(_features(having, f"{split}_x", notes), labels)
    train = found["train"]
    test = found["test"] if "test" in found else train.take(np.empty(0, np.int64))
    return Dataset(name, tuple(names), train, test, notes=tuple(notes))


def _check_sums(folder: Path, paths: Sequence[Path]) -> None:
    """Raise `InputError` for a shard that is not what SHA256SUMS says, if there is such a file."""
    sums = folder / SUMS
    try:
        lines = read_text(sums).splitlines()
    except FileNotFoundError:
        return
    expected: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if (entry := _SUM.fullmatch(line)) is None:
            raise InputError(f"{sums}: line {number} is none of sha256sum; write the file again with sha256sum")
        expected[entry[2].removeprefix("./")] = entry[1].lower()
    there = {path.name for path in paths}
    if gone := sorted(name for name in expected if _is_shard(name) and name not in there):
        raise InputError(f"{sums}: {listed(gone)} is named and not there; copy the shards again")
    for path in paths:
        if path.name not in expected:
            raise InputError(f"{path}: it is not in {SUMS}; write that file again with sha256sum, or move the shard")
        check_regular(path)  # opening a pipe would wait for ever
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise file_error(path, error, "read") from None
        if found != expected[path.name]:
            raise InputError(f"{path}: damaged, since it is not what {SUMS} says; copy or make this shard again")


def _file(path: Path, arrays: dict[str, np.ndarray], names: list[str] | None, splits: Sequence[str]) -> _File:
    """Return a file, once it holds all that it must of these splits."""
    missing = [name for name in _ARRAYS if name not in arrays and name.split("_")[0] in splits]
    if names is None:
        missing.append("classnames")
    if missing or names is None:
        raise InputError(
            f"{path}: has no {', '.join(missing)}; a feature file holds {', '.join(_ARRAYS)} and classnames"
        )
    return _File(path, arrays, names)


def _check_forms(files: Sequence[_File], splits: Sequence[str]) -> None:
    """Raise `InputError` for arrays that are no features or no labels, or do not fit each other."""
    first: tuple[str, Path, int] | None = None
    for file, split in ((file, split) for file in files for split in splits if f"{split}_x" in file.arrays):
        name, x, y = f"{split}_x", file.arrays[f"{split}_x"], file.arrays[f"{split}_y"]
        if x.ndim != 2 or x.dtype.kind != "f" or 0 in x.shape:
            raise InputError(
                f"{file.path}: {name} must hold floating-point features (N, D) with at least one row, "
                f"found {x.dtype} of shape {x.shape}"
            )
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise InputError(f"{file.path}: {split}_y must hold whole numbers (N,), found {y.dtype} of shape {y.shape}")
        check_labels(y, len(file.names), f"{split}_y", str(file.path))
        if len(x) != len(y):
            raise InputError(
                f"{file.path}: {name} has {len(x)} rows and {split}_y has {len(y)}; each feature needs one label"
            )
        first = first or (name, file.path, x.shape[1])
        if x.shape[1] != first[2]:
            where = "" if file.path == first[1] else f" of {first[1].name}"
            raise InputError(
                f"{file.path}: {first[0]}{where} has {first[2]} columns and {name} has {x.shape[1]}; both must come "
                "from the same image tower"
            )


def _difference(names: Sequence[str], others: Sequence[str]) -> str:
    """Return how class names differ from others, in words."""
    if len(names) != len(others):
        return f"{len(names)} classes, and not {len(others)}"
    place = next(i for i, pair in enumerate(zip(names, others, strict=True)) if pair[0] != pair[1])
    return f"class {place} is {names[place]!r}, and not {others[place]!r}"


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
    check_regular(path)  # opening a pipe would wait for ever
    try:
        arrays, metadata = mapped(path)
        names = arrays.pop("classnames", None)
        text = metadata.get("classnames") or (None if names is None else names.tobytes().decode())
    except OSError as error:
        advice = "join shards to fewer, or raise 'ulimit -n'" if error.errno == errno.EMFILE else "look at the file"
        raise file_error(path, error, "read", advice) from None
    except Exception as error:  # the Rust core of safetensors raises its own kind; bfloat16 is a TypeError
        raise InputError(
            f"{path}: not a .safetensors file that numpy can hold ({type(error).__name__}: {error})"
        ) from None
    if text is None:
        return arrays, None
    try:
        listing = parse_json(text)
    except InputError as error:
        raise InputError(f"{path}: classnames must be a JSON list of texts; it is {error}") from None
    if not isinstance(listing, list) or not all(isinstance(name, str) for name in listing):
        raise InputError(f"{path}: classnames must be a JSON list of texts")
    return arrays, listing


def _features(files: Sequence[_File], name: str, notes: list[str]) -> Features:
    """Return the features of all files, of length 1: shards of those that are mapped, else an array."""
    lengths = np.concatenate([_lengths(file.arrays[name], name, file.path) for file in files])
    off = np.abs(lengths - 1).max()
    if off > _NEARLY_UNIT:
        notes.append(
            f"{name}: features had lengths {lengths.min():.4g} to {lengths.max():.4g}; each was divided by its length."
        )
    parts = [file.arrays[name] for file in files]
    features = Shards(parts, lengths.astype(np.float32) if off > _UNIT else None)
    return features if isinstance(parts[0], np.memmap) else np.asarray(features)


def _lengths(given: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Return the length of each row (N,), once all of them can be divided by it."""
    lengths = np.empty(len(given))
    for start in range(0, len(given), BLOCK):
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told
            block = given[start : start + BLOCK].astype(np.float32).astype(np.float64)
        lengths[start : start + BLOCK] = np.sqrt(np.square(block).sum(1))
    bad = np.flatnonzero(~((lengths > 0) & (lengths <= np.finfo(np.float32).max)))
    if bad.size:
        what = "only zeros" if lengths[bad[0]] == 0 else "a value that is not a finite number"
        raise InputError(
            f"{path}: {name} has {what} in row {bad[0]} ({bad.size} such rows); "
            "compute these features again or leave the rows out"
        )
    return lengths
