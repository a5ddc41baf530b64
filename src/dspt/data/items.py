"""What an item is called, whatever its place: a label is tied to it by that."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from dspt.data.dataset import Items

# What no line of text can hold: control characters, line breaks, bytes that are no text.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def item_names(items: Items, root: str = "") -> Iterator[str]:
    """Yield a name for each item: its path below the folder `root`, or a digest of its content if it has no path.

    A path that leads elsewhere is absolute. Items of the same content are numbered, "... (2)": which is which, nobody
    could tell.
    """
    here = os.getcwd()
    start = os.path.join(_whole(here, root), "")
    seen: dict[str, int] = {}
    for item in np.ascontiguousarray(items) if isinstance(items, np.ndarray) else items:
        if isinstance(item, (str, os.PathLike)):
            path = _whole(here, os.fspath(item))
            inside = root and path.startswith(start)
            yield written((path[len(start) :] if inside else path).replace(os.sep, "/"))
        else:
            name = _digest(item)
            seen[name] = times = seen.get(name, 0) + 1
            yield name if times == 1 else f"{name} ({times})"


def written(name: str) -> str:
    r"""Return a name as a line of text can hold it: a line break is written \n, a byte that is no text \udcff."""
    return _UNWRITABLE.sub(lambda found: ascii(found[0])[1:-1], name)


def _whole(here: str, path: str) -> str:
    return os.path.normpath(os.path.join(here, path))


def _digest(content: Any) -> str:
    # A spreadsheet would take some digests for numbers, if nothing stood before them.
    return f"blake2b:{hashlib.blake2b(content, digest_size=16).hexdigest()}"
