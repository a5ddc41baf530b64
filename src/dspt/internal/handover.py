"""Objects handed to other processes in files: arrays that lie in files already are mapped there and not copied."""

from __future__ import annotations

import mmap
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dspt.internal.errors import InputError


class Home(NamedTuple):
    """Where an array lies: all that is needed to map it."""

    path: str
    dtype: str
    offset: int
    shape: tuple[int, ...]


def home(array: np.ndarray) -> Home | None:
    """Return where in a file with a name an array lies; None if it does not, or not as a whole."""
    root: Any = array
    while isinstance(root, np.ndarray) and not isinstance(root.base, mmap.mmap):
        root = root.base
    path = getattr(root, "filename", None)
    if path is None or not array.size or not array.flags.c_contiguous or not os.path.exists(path):
        return None
    # the offset of a part of a map is that of the whole
    offset = root.offset + array.ctypes.data - root.ctypes.data
    return Home(str(path), array.dtype.str, offset, array.shape)


def stamp(path: str) -> tuple[int, int] | None:
    """Return by what a file is known from another that has taken its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def changed(path: str) -> InputError:
    """Return the error that a file is another than it was."""
    return InputError(f"{path}: it was changed while it was read; leave it as it is and begin again")


def write(value: Any, path: Path) -> None:
    """Put an object into a file; of arrays in files, only where they lie."""
    with open(path, "wb") as file:
        _Writer(file, pickle.HIGHEST_PROTOCOL).dump(value)


def read(path: Path) -> Any:
    """Return the object in a file; arrays that lay in files are read-only maps of them."""
    with open(path, "rb") as file:
        return _Reader(file).load()


class _Writer(pickle.Pickler):
    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        found = home(value) if isinstance(value, np.ndarray) else None
        return found and tuple(found)


class _Reader(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> np.ndarray:
        found = Home(*pid)
        try:
            return np.memmap(found.path, np.dtype(found.dtype), "r", found.offset, found.shape)
        except ValueError:  # it is too short
            raise changed(found.path) from None
