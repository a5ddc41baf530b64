"""File names by the million, kept out of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Self, TypeVar, overload

import numpy as np

from dspt.internal.files import told

Item = TypeVar("Item", covariant=True)


class Rows(Sequence[Item]):
    """Rows of something that is read when they are asked for, and shared by all that `take` gives."""

    _rows: Sequence[int] | np.ndarray

    def _read(self, row: int) -> Item:
        """Return what is in a row of the thing that is shared."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Item | Self:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return self._read(int(self._rows[index]))

    def take(self, positions: np.ndarray) -> Self:
        """Return the items at these positions, in their order."""
        # All rows are counted by a range, which numpy would make a list of first.
        rows = positions if isinstance(self._rows, range) else np.asarray(self._rows)[positions]
        taken = object.__new__(type(self))
        taken.__dict__.update(self.__dict__, _rows=rows)
        return taken

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} items)"


class Paths(Rows[str]):
    """A sequence of file names that lies in a temporary file and is mapped, not held, in memory.

    The file has no name and is gone with the object. An Arrow array of a million names would hold
    four times as much memory, and copy them with every `take`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        # The system's pages, not this process's memory: they are dropped when memory is short.
        where = f"the folder of temporary files, {tempfile.gettempdir()}"
        with told(where), tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as ends:
            end = 0
            for block in _blocks(map(os.fsencode, names)):
                text.write(b"".join(block))
                stops = end + np.cumsum([len(name) for name in block], dtype=np.int64)
                ends.write(stops.tobytes())
                end = int(stops[-1])
            self._text = _mapped(text, np.uint8)
            self._ends = _mapped(ends, np.int64)
        self._rows = range(len(self._ends))

    def _read(self, row: int) -> str:
        start = int(self._ends[row - 1]) if row else 0
        return os.fsdecode(self._text[start : int(self._ends[row])].tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return Paths, (list(self),)


def _blocks(names: Iterator[bytes], size: int = 65536) -> Iterator[list[bytes]]:
    """Yield lists of so many names, the last one shorter."""
    while block := list(islice(names, size)):
        yield block


def _mapped(file: BinaryIO, dtype: type) -> np.ndarray:
    """Return the numbers in a file, mapped."""
    file.flush()
    if not file.tell():
        return np.zeros(0, dtype)  # nothing cannot be mapped
    return np.memmap(file, dtype, "r")
