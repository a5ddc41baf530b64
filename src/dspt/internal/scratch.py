"""Room for results: in memory while they are small, in a temporary file when they are not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from dspt.internal.files import told

# Bytes beyond which an array lies in a file.
MOST_IN_MEMORY = 2**30


def place() -> tuple[str, str]:
    """Return what errors call the folder of temporary files, and what to do about it."""
    return f"the folder of temporary files, {tempfile.gettempdir()}", "set TMPDIR to a folder on a larger disk"


def scratch(*shape: int) -> np.ndarray:
    """Return a float32 array of this shape that holds nothing of worth yet.

    One above `MOST_IN_MEMORY` is a map of a file in the folder of temporary files ($TMPDIR), so that the system can
    write it out when memory is short; unless that folder is itself in memory (tmpfs). The file has no name, and is gone
    with the array, whatever happens.
    """
    size = 4 * int(np.prod(shape))
    if size <= MOST_IN_MEMORY:
        return np.empty(shape, np.float32)
    with told(*place()), tempfile.TemporaryFile() as file:
        _reserve(file.fileno(), size)
        return np.memmap(file, np.float32, "r+", shape=shape)


class ScratchFile:
    """float32 rows in a file, which every process that sees it reads and writes by slices, as those of an array.

    The file is opened for each slice and closed again: where machines share it, that is when one sees what another has
    written. Two processes may write at a time if their rows share no page.

    Parameters
    ----------
    path : Path
        Where it is made.
    rows, width : int
        The shape.
    """

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self.path, self.shape = path, (rows, width)
        with told(*place()), open(path, "xb") as file:
            _reserve(file.fileno(), 4 * rows * width)

    def __getitem__(self, rows: slice) -> np.ndarray:
        with open(self.path, "rb") as file:
            file.seek(4 * rows.start * self.shape[1])
            found = np.fromfile(file, np.float32, (rows.stop - rows.start) * self.shape[1])
        return found.reshape(-1, self.shape[1])

    def __setitem__(self, rows: slice, values: np.ndarray) -> None:
        with told(*place()), open(self.path, "r+b") as file:
            file.seek(4 * rows.start * self.shape[1])
            file.write(np.ascontiguousarray(values, np.float32).data)


# What is read and written by rows of float32: an array, or a file that any process can write its rows of.
Room = np.ndarray | ScratchFile


def whole_of(room: Room) -> np.ndarray:
    """Return all rows as an array, which needs no file with a name any more; in memory if they are small."""
    if isinstance(room, np.ndarray):
        return room
    if 4 * int(np.prod(room.shape)) <= MOST_IN_MEMORY:
        return room[0 : room.shape[0]]
    return np.memmap(room.path, np.float32, "r+", shape=room.shape)


def _reserve(file: int, size: int) -> None:
    """Have a file be so long. Room that is not there must be an error now, and not a crash when a page is written."""
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
