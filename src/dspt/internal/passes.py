"""The same work for all rows, range by range: in this process, or by workers that see the same files.

Work is a function `work(rows, ...)` of a slice of rows and a few parameters. It reads what is kept for it, may write
the same rows of a scratch array, and answers with sums over the rows or with numbers for each. It keeps nothing to
itself and reads nothing that it writes, so a range whose worker died is simply done again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache, reduce
from itertools import count
from operator import iadd
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dspt.internal import handover
from dspt.internal.errors import InputError
from dspt.internal.files import file_error, remove, remove_left, temporary_name, told
from dspt.internal.scratch import Room, ScratchFile, place, scratch
from dspt.internal.shards import BLOCK, Features, Shards
from dspt.internal.workers import Spread

# Ranges depend on the number of rows alone, so that sums have the same bits however many workers make them, and without
# any. Fewer rows than these take less time than sending and adding their sums; more ranges have the first process only
# add.
LEAST_ROWS = 32768
_MOST_RANGES = 256
# Ranges begin at multiples of this many rows, which are whole pages of any array of float32: no two workers write to
# one page.
_ALIGNED = 1024

# What the folder of scratch files is called, between a dot and what makes the name its own.
_SCRATCH = "dspt"

Kept = TypeVar("Kept", bound=Features)
Answer = TypeVar("Answer")
Number = TypeVar("Number")


class Passes(Protocol):
    """Who does the work."""

    def keep(self, array: Kept) -> Kept:
        """Return rows, or numbers, that work can read, whoever does it: the same ones, none of them changed."""

    def filled(self, room: Room) -> np.ndarray:
        """Return what work has written as an array that work can read; it is gone when the block ends."""

    def room(self, rows: int, width: int) -> Room:
        """Return room for float32 rows that work can read and write."""

    def each(self, work: Callable[..., Answer], *given: Any) -> Iterator[Answer]:
        """Yield what `work(rows, *given)` answers for each range, in the order of the rows.

        Answers are not to be written to: on Ray, arrays lie in memory that workers share.
        """


@contextmanager
def passes(rows: int, spread: Spread | None = None) -> Iterator[Passes]:
    """Yield who works on so many rows; what is kept in files is removed when the block ends, however it does.

    Parameters
    ----------
    rows : int
        How many there are.
    spread : Spread, optional
        Has workers do it; None is this process.
    """
    if spread is None:
        yield _Here(rows)
        return
    above = Path(tempfile.gettempdir())
    remove_left(above)
    folder = temporary_name(above / _SCRATCH)
    try:
        with told(*place()):
            folder.mkdir(mode=0o700)
        yield _Elsewhere(rows, spread, folder)
    finally:
        remove(folder)


def added(answers: Iterable[Number]) -> Number:
    """Return the sum of what ranges answered, added in their order, in an array of its own."""
    left = iter(answers)
    return reduce(iadd, left, deepcopy(next(left)))


def all_added(answers: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the sums of what ranges answered, one of each kind, in arrays of their own."""
    left = iter(answers)
    return reduce(lambda one, other: tuple(map(iadd, one, other)), left, deepcopy(next(left)))


def joined(answers: Iterable[np.ndarray]) -> np.ndarray:
    """Return what ranges answered for each of their rows, one after another."""
    first, *others = answers
    return np.concatenate([first, *others]) if others else first


class _Here:
    """One range after another, in this process."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def keep(self, array: Kept) -> Kept:
        return array

    def filled(self, room: Room) -> np.ndarray:
        assert isinstance(room, np.ndarray)
        return room

    def room(self, rows: int, width: int) -> Room:
        return scratch(rows, width)

    def each(self, work: Callable[..., Answer], *given: Any) -> Iterator[Answer]:
        for rows in _ranges(self._rows):
            yield work(rows, *given)


class _Elsewhere:
    """Workers do a range at a time. What they read and write lies in files."""

    def __init__(self, rows: int, spread: Spread, folder: Path) -> None:
        self._rows, self._spread, self._folder = rows, spread, folder
        self._numbers = count()
        self._stamps: dict[str, tuple[int, int]] = {}  # of files that are not made here

    def keep(self, array: Kept) -> Kept:
        if isinstance(array, Shards):
            return array.kept(self.keep)  # type: ignore[return-value]
        if (home := handover.home(array)) is not None:
            stamp = handover.stamp(home.path)
            if stamp is not None and not Path(home.path).parent.name.startswith(f".{_SCRATCH}."):
                self._stamps.setdefault(home.path, stamp)
            return array
        if not array.size:
            return array
        path = self._path()
        with told(*place()), open(path, "xb") as file:
            for first in range(0, len(array), BLOCK):
                file.write(np.ascontiguousarray(array[first : first + BLOCK]).data)
        return np.memmap(path, array.dtype, "r", shape=array.shape)  # type: ignore[return-value]

    def filled(self, room: Room) -> np.ndarray:
        assert isinstance(room, ScratchFile)
        return np.memmap(room.path, np.float32, "r", shape=room.shape)

    def room(self, rows: int, width: int) -> Room:
        return ScratchFile(self._path(), rows, width)

    def each(self, work: Callable[..., Answer], *given: Any) -> Iterator[Answer]:
        asked = self._path()
        with told(*place()):
            handover.write((work, given), asked)
        ended: dict[int, Answer] = {}
        following = 0
        try:
            parts = (_Range(number, rows, asked) for number, rows in enumerate(_ranges(self._rows)))
            for part, answer in self._spread(_answer, parts):
                ended[part.number] = answer
                while following in ended:  # sums are added in the order of the rows, whoever is first
                    yield ended.pop(following)
                    following += 1
            self._check_unchanged()
        finally:
            remove(asked)

    def _check_unchanged(self) -> None:
        """Raise `InputError` if a worker may have read another file than this process has: one with its name."""
        for path, stamp in self._stamps.items():
            if handover.stamp(path) not in (stamp, None):  # what is gone was handed over as it was
                raise handover.changed(path)

    def _path(self) -> Path:
        return self._folder / str(next(self._numbers))


class _Range(NamedTuple):
    """Rows for one worker, and the file that says what to do with them."""

    number: int
    rows: slice
    asked: Path

    def __str__(self) -> str:
        return f"rows {self.rows.start} to {self.rows.stop - 1}"


def _ranges(rows: int) -> Iterator[slice]:
    size = max(LEAST_ROWS, -(-rows // (_MOST_RANGES * _ALIGNED)) * _ALIGNED)
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


# Below, what happens in a worker.


def _answer(part: _Range) -> Any:
    work, given = _opened(part.asked)
    return work(part.rows, *given)


@lru_cache(maxsize=1)
def _opened(asked: Path) -> Any:
    if not asked.exists():
        raise InputError(f"folder {asked.parent}: a worker cannot see it; set TMPDIR to a folder that all workers see")
    try:
        return handover.read(asked)
    except OSError as error:
        name = error.filename or asked
        raise file_error(name, error, "read", "have it where all workers see it") from error
