"""What an item is called, whatever its place: a label is tied to it by that."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from dspt.data.dataset import Items
from dspt.internal.shards import Shards

# What no line of text can hold: control characters, line breaks, bytes that are no text.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def item_names(items: Items, root: str = "") -> Iterator[str]:
    """Yield a name for each item: its path below the folder `root`, or a digest of its content if it has no path.

    A path that leads elsewhere is absolute. Items of the same content are numbered, "... (2)": which is which, nobody
    could tell.
    """
    if isinstance(items, np.ndarray | Shards):
        yield from _content_names(items)
        return
    here = os.getcwd()
    start = os.path.join(_whole(here, root), "")
    seen: dict[str, int] = {}
    for item in items:
        if isinstance(item, (str, os.PathLike)):
            path = _whole(here, os.fspath(item))
            inside = root and path.startswith(start)
            yield written((path[len(start) :] if inside else path).replace(os.sep, "/"))
        else:
            name = _named(_digest(item))
            seen[name] = times = seen.get(name, 0) + 1
            yield name if times == 1 else f"{name} ({times})"


def _content_names(items: np.ndarray | Shards) -> Iterator[str]:
    """Yield the names of the rows of an array; 16 bytes of each are kept, since there may be very many."""
    digests = bytearray()
    for row in items:
        digests += _digest(np.ascontiguousarray(row))
    _, first, times = np.unique(np.frombuffer(digests, "S16"), return_inverse=True, return_counts=True)
    seen: dict[int, int] = {}  # of those that are there more than once
    for row, which in enumerate(first.tolist()):
        name = _named(digests[16 * row : 16 * (row + 1)])
        if times[which] > 1:
            seen[which] = seen.get(which, 0) + 1
        yield name if seen.get(which, 1) == 1 else f"{name} ({seen[which]})"


def written(name: str) -> str:
    r"""Return a name as a line of text can hold it: a line break is written \n, a byte that is no text \udcff."""
    return _UNWRITABLE.sub(lambda found: ascii(found[0])[1:-1], name)


def _whole(here: str, path: str) -> str:
    return os.path.normpath(os.path.join(here, path))


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _named(digest: bytes | bytearray) -> str:
    # A spreadsheet would take some digests for numbers, if nothing stood before them.
    return f"blake2b:{digest.hex()}"
