"""Images that are there more than once: byte for byte, or saved again in another size or quality.

Two images are near-identical if their brightness goes up and down at the same places (a difference hash: an image is
cut into 9 x 9 cells, and 128 bits say whether a cell is clearly brighter than the one to its left and the one above it;
3 may differ) and their cells are equally bright (within 3 of 256 levels on average). So an image that was scaled or
recompressed is found, one that was cropped, mirrored or brightened is not. Images of nearly one colour are left out.
"""

from __future__ import annotations

import hashlib
import io
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from dspt.data.dataset import Items
from dspt.data.images import BadImage, open_image, read_file
from dspt.internal.threads import Progress, in_threads

_CELLS = 9
_MOST_BITS, _MOST_LEVELS = 3, 3
# Levels between the darkest and the brightest cell, below which there is nothing to compare.
_FLAT = 8
# A cell is brighter by more than this share of those levels, or a white background would have a bit for each level that
# saving again has moved. With a larger share, distinct images of little contrast begin to look the same.
_CLEARLY = 0.02
# One more than bits may differ, so that two hashes that differ little agree in one of them at least.
_BANDS = 4


@dataclass(frozen=True)
class Print:
    """By what an image is known again: a digest of its bytes, its hash and its cells; none of these for a flat one."""

    digest: bytes
    bits: bytes = b""
    cells: bytes = b""


def take_print(item: Any, name: str) -> Print:
    """Return the print of an image of any kind that a split holds, or of a row of features.

    Raises
    ------
    BadImage
        If it is not a whole image.
    """
    return print_of(*read_picture(item, name))


def read_picture(item: Any, name: str) -> tuple[bytes, Image.Image | None]:
    """Return a digest of an item's bytes and its picture; a row of features has none.

    Raises
    ------
    BadImage
        If it is not a whole image.
    """
    if isinstance(item, (str, os.PathLike)):
        item = read_file(item)
    if isinstance(item, Image.Image):
        return hashlib.blake2b(item.tobytes(), digest_size=16).digest(), open_image(item, name)
    content = np.ascontiguousarray(item).data if isinstance(item, np.ndarray) else item
    digest = hashlib.blake2b(content, digest_size=16).digest()
    if isinstance(item, np.ndarray) and item.dtype.kind == "f":
        return digest, None
    return digest, open_image(io.BytesIO(item) if isinstance(item, bytes) else item, name)


def print_of(digest: bytes, picture: Image.Image | None) -> Print:
    """Return the print of a picture with this digest."""
    if picture is None:
        return Print(digest)
    cells = np.asarray(picture.convert("L").resize((_CELLS, _CELLS), Image.Resampling.BOX))
    span = int(cells.max()) - int(cells.min())
    if span < _FLAT:
        return Print(digest)
    levels = cells.astype(np.int16)
    across, down = levels[:-1, 1:] - levels[:-1, :-1], levels[1:, :-1] - levels[:-1, :-1]
    bits = np.concatenate([across.ravel(), down.ravel()]) > _CLEARLY * span
    # Each band has bits from everywhere, so that few images share one for their white background.
    return Print(digest, np.packbits(bits.reshape(-1, _BANDS).T).tobytes(), cells.tobytes())


class Prints:
    """The prints of many images, about 120 bytes each."""

    def __init__(self) -> None:
        self._digests, self._bits, self._cells = bytearray(), bytearray(), bytearray()
        self._shaped = array("q")  # those that are not flat
        self._count = 0

    def add(self, one: Print) -> None:
        """Add the print of the next image."""
        self._digests += one.digest
        if one.bits:
            self._shaped.append(self._count)
            self._bits += one.bits
            self._cells += one.cells
        self._count += 1

    def identical(self) -> list[list[int]]:
        """Return groups of images that are the same byte for byte, each by the order in which they were added."""
        digests = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        new = np.flatnonzero((digests[order][1:] != digests[order][:-1]).any(1)) + 1
        bounds = [0, *new.tolist(), len(order)]
        return sorted(order[start:end].tolist() for start, end in pairwise(bounds) if end - start > 1)

    def near(self) -> list[list[int]]:
        """Return groups of images that are near-identical, where they are not all the same byte for byte."""
        first = np.arange(self._count)  # of those that are the same
        for group in self.identical():
            first[group] = group[0]
        shaped = np.asarray(self._shaped, np.int64)
        one_of_each = first[shaped] == shaped
        bits = np.frombuffer(self._bits, np.uint32).reshape(-1, _BANDS)[one_of_each]
        cells = np.frombuffer(self._cells, np.uint8).reshape(-1, _CELLS**2)[one_of_each]
        shaped = shaped[one_of_each]
        groups = {i: [i] for i in shaped.tolist()}
        for a, b in _alike(bits, cells):
            one, other = groups[int(shaped[a])], groups[int(shaped[b])]
            if one is not other:
                one += other
                groups |= dict.fromkeys(other, one)
        copies: dict[int, list[int]] = {}
        for i, of in enumerate(first.tolist()):
            copies.setdefault(of, []).append(i)
        found = {id(group): group for group in groups.values() if len(group) > 1}
        return sorted(sorted(i for of in group for i in copies[of]) for group in found.values())


def copies(items: Items, progress: Progress) -> list[np.ndarray]:
    """Return groups of rows that are one image, identical or near-identical; an image that is broken is in none."""
    prints, printed = Prints(), []

    def printed_or_not(item: Any) -> Print | None:
        try:
            return take_print(item, "image")
        except BadImage:
            return None

    for row, found in enumerate(in_threads(printed_or_not, items)):
        if found is not None:
            prints.add(found)
            printed.append(row)
        progress(row + 1, len(items))
    rows = np.array(printed, np.int64)
    near = prints.near()
    met = {row for group in near for row in group}
    return [rows[group] for group in (*near, *(one for one in prints.identical() if one[0] not in met))]


def _alike(bits: np.ndarray, cells: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the pairs of rows that are near-identical, perhaps more than once."""
    for band in range(_BANDS):
        order = np.argsort(bits[:, band], kind="stable")
        new = np.flatnonzero(np.diff(bits[order, band])) + 1
        for start, end in pairwise([0, *new.tolist(), len(order)]):
            bucket = order[start:end]
            while len(bucket) > 1:
                row, bucket = bucket[0], bucket[1:]
                differing = np.unpackbits((bits[bucket] ^ bits[row]).view(np.uint8), axis=1).sum(1)
                levels = np.abs(cells[bucket].astype(np.int16) - cells[row]).mean(1)
                for other in bucket[(differing <= _MOST_BITS) & (levels <= _MOST_LEVELS)]:
                    yield int(row), int(other)
                # The row stands for those that are as good as it, or a film of a still life would take hours.
                bucket = bucket[(differing > 1) | (levels > 1)]
