"""File names by the million, kept out of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np


class Paths(Sequence[str]):
    """A sequence of file names that lies in a temporary file and is mapped, not held, in memory.

    The file has no name and is gone with the object. `take` gives chosen names in a chosen order
    and shares the file.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        # The system's pages, not this process's memory: they are dropped when memory is short.
        with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as ends:
            end = 0
            for block in _blocks(map(os.fsencode, names)):
                text.write(b"".join(block))
                stops = end + np.cumsum([len(name) for name in block], dtype=np.int64)
                ends.write(stops.tobytes())
                end = int(stops[-1])
            self._text = _mapped(text, np.uint8)
            self._ends = _mapped(ends, np.int64)
        self._rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._ends if self._rows is None else self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> str | Paths:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        index = range(len(self))[index]  # counts from the end, or raises IndexError
        row = index if self._rows is None else int(self._rows[index])
        start = int(self._ends[row - 1]) if row else 0
        return os.fsdecode(self._text[start : int(self._ends[row])].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def take(self, positions: np.ndarray) -> Paths:
        """Return the names at these positions, in their order."""
        taken = object.__new__(Paths)
        taken._text, taken._ends = self._text, self._ends
        taken._rows = np.asarray(positions) if self._rows is None else self._rows[positions]
        return taken

    def __reduce__(self) -> tuple[Any, ...]:
        return Paths, (list(self),)

    def __repr__(self) -> str:
        return f"Paths({len(self)} names)"


def _blocks(names: Iterator[bytes], size: int = 65536) -> Iterator[list[bytes]]:
    from itertools import islice

    while block := list(islice(names, size)):
        yield block


def _mapped(file: Any, dtype: Any) -> np.ndarray:
    file.flush()
    if not file.tell():
        return np.zeros(0, dtype)  # nothing cannot be mapped
    return np.memmap(file, dtype, "r")
