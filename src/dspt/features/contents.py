"""The content of images, by which their features are found, without reading every file every time."""

from __future__ import annotations

import hashlib
import io
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dspt.data.images import BadImage, open_image, read_file
from dspt.internal.files import replacing

# A file can change twice within one tick of its clock, so the digest of one that changed less than
# this many seconds ago is not remembered.
SETTLED = 2.0
# Remembered digests, of 48 bytes; when there are more, only the present images' are kept.
MOST_REMEMBERED = 4_000_000

_MEMORY = "digests.npy"


def item_name(item: Any, position: int) -> str:
    """Return what to call an image in a sentence: its path, or its place."""
    return os.fspath(item) if _is_path(item) else f"image {position}"


def name_in(items: Any, position: int) -> str:
    """Return what to call the image at `position`, if its source knows a better name than that."""
    if hasattr(items, "name"):
        return str(items.name(position))
    return item_name(items[position], position)


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike))


def read(item: Any, position: int) -> tuple[bytes, Any]:
    """Return the digest of an image's content, and what `open_image` makes the image from."""
    if _is_path(item):
        data = read_file(item)
        return _file_digest(data), io.BytesIO(data)
    if isinstance(item, bytes):
        return _file_digest(item), io.BytesIO(item)
    if not isinstance(item, np.ndarray):
        item = open_image(item, item_name(item, position))
    pixels = np.asarray(item)
    shape = repr((pixels.dtype.str, pixels.shape)).encode()
    return hashlib.blake2b(shape + pixels.tobytes(), digest_size=32, person=b"array").digest(), item


def _file_digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, person=b"file").digest()


def absent(items: Any) -> list[int]:
    """Return the positions of paths at which there is nothing."""
    return [i for i, item in enumerate(items) if _is_path(item) and not _is_there(item)]


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        pass  # closed folders and impossible names: reading it tells more
    return True


def recall(root: Path, items: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the signature of each file, the digest of each item, and which digests are known.

    A signature stands for path, size, inode and both times of a file: a change that keeps size and
    modification time still changes the inode's own time. Known are the digests of files that were
    read before, and of pictures and arrays in memory.
    """
    signatures = np.zeros(len(items), "S16")
    digests, known = np.zeros((len(items), 32), np.uint8), np.zeros(len(items), bool)
    if isinstance(items[0], bytes):
        return signatures, digests, known  # they may have to be fetched first, and take long
    here, now = os.getcwd(), time.time()
    for i, item in enumerate(items):
        if _is_path(item):
            signatures[i] = _signature(item, here, now)
        else:
            with suppress(BadImage):  # it is told of with the others
                digests[i], known[i] = np.frombuffer(read(item, i)[0], np.uint8), True
    table = _remembered(root)
    if len(table):
        near = np.minimum(np.searchsorted(table["signature"], signatures), len(table) - 1)
        found = (table["signature"][near] == signatures) & (signatures != b"")
        digests[found], known[found] = table["digest"][near[found]], True
    return signatures, digests, known


def remember(root: Path, signatures: np.ndarray, digests: np.ndarray, known: np.ndarray) -> None:
    """Keep the digests of files for `recall`; it saves reading them, so failing is no error.

    Parameters
    ----------
    root : Path
        The folder of the feature store.
    signatures : array of N byte strings, at most 16 long
        From `recall`; an empty one is not remembered.
    digests : uint8 array of shape (N, 32)
        The digest of each item's content.
    known : bool array of shape (N,)
        Which of the digests are known; others are not remembered.
    """
    known = known & (signatures != b"")
    table = np.zeros(known.sum(), _TABLE)
    table["signature"], table["digest"] = signatures[known], digests[known]
    old = _remembered(root)
    if np.isin(table["signature"], old["signature"]).all():
        return
    if len(old) + len(table) <= MOST_REMEMBERED:
        table = np.concatenate([table, old])
    _, first = np.unique(table["signature"], return_index=True)
    with suppress(OSError), replacing(root / _MEMORY) as file, open(file, "wb") as stream:
        np.save(stream, table[first])


_TABLE = np.dtype([("signature", "S16"), ("digest", "u1", 32)])


def _remembered(root: Path) -> np.ndarray:
    try:
        table: np.ndarray = np.load(root / _MEMORY, allow_pickle=False)
        if table.dtype == _TABLE and table.ndim == 1:
            return table
    except Exception:  # missing, damaged, or from another version
        pass
    return np.zeros(0, _TABLE)


def _signature(item: Any, here: str, now: float) -> bytes:
    path = os.path.join(here, item)
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return b""
    if now - max(status.st_mtime, status.st_ctime) < SETTLED:
        return b""
    stamp = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(f"{path}{stamp}".encode(errors="surrogateescape"), digest_size=16).digest()
