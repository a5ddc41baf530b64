"""Features in many files as one array, of which only the rows that are asked for are ever in memory."""

from __future__ import annotations

import mmap
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

# Rows that are read together where all of them are walked through.
BLOCK = 4096
# Rows are scattered if fewer than one in so many of where they lie is asked for.
_SPARSE = 8


class Shards:
    """float32 rows (N, D) in parts that lie one after another, each a memory map or an array.

    It is read as an array is: `len`, `shape`, and indices. A slice or an array of row numbers gives an array in memory,
    the same one whatever the parts are; `take` gives rows that are not read yet. `np.asarray` reads all of it.

    Parameters
    ----------
    parts : sequence of float arrays of shape (n, D)
        In any precision; rows are float32 when they are read.
    lengths : float32 array of shape (N,), optional
        What each row is divided by when it is read.
    rows : integer array, optional
        Which rows of the parts these are, in order; all of them if not given.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(
        self, parts: Sequence[np.ndarray], lengths: np.ndarray | None = None, rows: np.ndarray | None = None
    ) -> None:
        self._parts, self._lengths, self._rows = tuple(parts), lengths, rows
        self._ends = np.cumsum([len(part) for part in parts])
        self._scattered = False

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._rows is None else len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self._parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        """The memory that all rows would take."""
        return len(self) * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, tuple):
            (index,) = index  # whole rows alone can be asked for
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1 and self._rows is None:
                return self._between(start, max(start, stop))
            index = np.arange(start, stop, step)
        elif np.ndim(index) == 0:
            found: np.ndarray = self[np.array([operator.index(index)])][0]
            return found
        return self._at(self._places(np.asarray(index)))

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"Shards{self.shape}"

    def take(self, rows: np.ndarray) -> Shards:
        """Return the rows at these places, in their order; none is read."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        return Shards(self._parts, self._lengths, rows if self._rows is None else self._rows[rows])

    def and_then(self, other: Shards) -> Shards:
        """Return these rows followed by others; none is read."""
        lengths = rows = None
        if self._lengths is not None or other._lengths is not None:
            lengths = np.concatenate([one._all_lengths() for one in (self, other)])
        if self._rows is not None or other._rows is not None:
            rows = np.concatenate([self._all_rows(), other._all_rows() + self._ends[-1]])
        return Shards([*self._parts, *other._parts], lengths, rows)

    def kept(self, keep: Callable[[np.ndarray], np.ndarray]) -> Shards:
        """Return the same rows of parts that `keep` has put elsewhere, and their numbers and lengths with them."""
        lengths, rows = (None if each is None else keep(each) for each in (self._lengths, self._rows))
        return Shards([keep(part) for part in self._parts], lengths, rows)

    def _places(self, index: np.ndarray) -> np.ndarray:
        """Return where in the parts rows lie, by their numbers or by a mask of all."""
        if self._rows is not None:
            found: np.ndarray = self._rows[index]
            return found
        if index.dtype == bool:
            if len(index) != len(self):
                raise IndexError(f"a mask of {len(index)} for {len(self)} rows")
            return np.flatnonzero(index)
        if len(index) and not -len(self) <= index.min() <= index.max() < len(self):
            raise IndexError(f"a row that is not among {len(self)}")
        return np.where(index < 0, index + len(self), index)

    def _all_lengths(self) -> np.ndarray:
        return np.ones(self._ends[-1], np.float32) if self._lengths is None else self._lengths

    def _all_rows(self) -> np.ndarray:
        return np.arange(self._ends[-1]) if self._rows is None else self._rows

    def _between(self, start: int, stop: int) -> np.ndarray:
        """Return rows of the parts that lie beside each other."""
        self._expect(scattered=False)
        found = np.empty((stop - start, self.shape[1]), self.dtype)
        number = int(np.searchsorted(self._ends, start, side="right"))
        row = start
        while row < stop:
            first, end = self._first(number), min(stop, int(self._ends[number]))
            found[row - start : end - start] = self._parts[number][row - first : end - first]
            row, number = end, number + 1
        return found if self._lengths is None else self._divided(found, self._lengths[start:stop])

    def _at(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the parts from anywhere."""
        self._expect(len(rows) > 0 and int(rows.max()) - int(rows.min()) > _SPARSE * len(rows))
        found = np.empty((len(rows), self.shape[1]), self.dtype)
        numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers):
            own = numbers == number
            found[own] = self._parts[number][rows[own] - self._first(number)]
        return found if self._lengths is None else self._divided(found, self._lengths[rows])

    def _expect(self, scattered: bool) -> None:
        """Tell the system whether it is worth reading on beyond a row of a mapped file.

        By default it does so, 128 KiB and more at a time. Where rows are drawn at random and the files are larger than
        memory, that is dozens of times what is asked for; where they come in order, without it each page is waited for.
        """
        if scattered != self._scattered:
            for part in self._parts:
                file = getattr(part, "_mmap", None)
                if file is not None and hasattr(file, "madvise"):  # not on Windows
                    file.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self._scattered = scattered

    def _first(self, number: int) -> int:
        return int(self._ends[number]) - len(self._parts[number])

    @staticmethod
    def _divided(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        rows /= lengths[:, None]
        return rows


# What holds rows of features: all of them in memory or in one map, or shards.
Features = np.ndarray | Shards


def take_rows(features: Features, rows: np.ndarray) -> Features:
    """Return some rows; those of shards, and those of a map, are not read yet."""
    features = _unread(features)
    return features.take(rows) if isinstance(features, Shards) else features[rows]


def joined(parts: Sequence[Features]) -> Features:
    """Return the rows of all parts, one after another; those of shards, and those of maps, are not read yet."""
    if len(parts) == 1:
        return parts[0]
    parts = [_unread(part) for part in parts]
    if not any(isinstance(part, Shards) for part in parts):
        return np.concatenate(parts)
    first, *others = (part if isinstance(part, Shards) else Shards([part]) for part in parts)
    for other in others:
        first = first.and_then(other)
    return first


def _unread(features: Features) -> Features:
    """Return a map as shards, of which rows can be taken without reading them; anything else as it is."""
    return Shards([features]) if isinstance(features, np.memmap) and features.ndim == 2 else features
