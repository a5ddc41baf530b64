"""What a look at each image tells: whether it is tiny, blank, dark, light or blurred, and whether it is there twice.

The measures are CleanVision's in kind, simple and each on its own scale; what is odd about sizes is odd beside the
other images of the set. Every image is decoded once. What was seen of a file is kept, so that of a folder that grows
only the new images are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dspt.data.duplicates import Print, Prints, print_of, read_picture
from dspt.data.images import BadImage
from dspt.features.contents import recall
from dspt.internal.files import replacing
from dspt.internal.progress import Reporter
from dspt.internal.threads import in_threads

# An image that is 32 pixels or less high or wide is tiny, unless most of the set are.
_TINY, _TINY_BESIDE = 32, 0.5
# So many times as large or as small as the median image is odd; so narrow, too.
_ODD_SIZE, _ODD_ASPECT = 10.0, 0.35
# Grey levels of 255: between the darkest and the brightest hundredth; the brightest hundredth; the darkest twentieth.
_BLANK, _DARK, _LIGHT = 10.0, 80.0, 242.0
# Variance of the Laplacian over that of the grey levels, the image brought to 64 pixels.
_BLURRY, _BLURRY_SIDE = 0.01, 64

# A table with other names in it is of another version, and what it says is not taken.
_KEPT = np.dtype(
    [("signature", "S16"), ("digest", "u1", 16), ("clear_bits", "u1", 16), ("cells", "u1", 81), ("flat", "?")]
    + [(name, "f4") for name in ("width", "height", "darkest", "brightest", "span", "sharpness")]
)


class Seen(NamedTuple):
    """What a look at one image tells."""

    print: Print
    width: float
    height: float
    darkest: float  # level of the darkest twentieth
    brightest: float  # level of the brightest hundredth
    span: float  # levels between the darkest and the brightest hundredth
    sharpness: float


@dataclass(frozen=True)
class Looks:
    """What was seen of all images: what is the matter with each, and which are the same."""

    issues: tuple[str, ...]
    duplicate_groups: tuple[tuple[int, ...], ...]
    identical_groups: int


def look(item: Any, name: str = "image") -> Seen:
    """Return what a look at an image tells; of a row of features, only by what it is known again.

    Raises
    ------
    BadImage
        If it is not a whole image.
    """
    digest, picture = read_picture(item, name)
    printed = print_of(digest, picture)
    if picture is None:
        return Seen(printed, 0, 0, 0, 255, 255, 1)
    small = picture.convert("L")
    small.thumbnail((_BLURRY_SIDE, _BLURRY_SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, dtype=np.float32)
    low, darkest, high = np.percentile(grey, [1, 5, 99])
    sharpness = 1.0
    if min(grey.shape) > 2 and grey.var() > 0:
        centre = grey[1:-1, 1:-1]
        bends = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * centre
        sharpness = float(bends.var() / grey.var())
    return Seen(printed, *picture.size, float(darkest), float(high), float(high - low), sharpness)


def look_at_all(items: Sequence[Any], reporter: Reporter, memory: Path | None = None) -> Looks:
    """Return what a look at every image tells.

    Parameters
    ----------
    items : sequence
        Images of any kind that a split holds, all of which can be read; or rows of features.
    reporter : Reporter
        Shows how far the work is.
    memory : Path, optional
        A file in which what was seen is kept; files that have not changed since are not opened again.
    """
    signatures = recall(Path(), items)[0] if isinstance(items[0], str) else np.zeros(len(items), "S16")
    table = _remembered(memory)
    near = np.minimum(np.searchsorted(table["signature"], signatures), max(0, len(table) - 1))
    known = (table["signature"][near] == signatures) & (signatures != b"") if len(table) else signatures != signatures
    records = np.zeros(len(items), _KEPT)
    records[known] = table[near[known]]
    new = np.flatnonzero(~known)
    with reporter.task(f"looking at {len(new)} samples", len(items), len(items) - len(new), unit="images") as update:
        for place, seen in enumerate(in_threads(lambda i: _record(items[i]), new.tolist()), 1):
            records[new[place - 1]] = seen
            update(len(items) - len(new) + place, "")
    records["signature"] = signatures
    _remember(memory, records)
    prints = Prints()
    for one in records:
        prints.add(_print(one))
    alike = prints.near()
    met = {row for group in alike for row in group}
    # Copies of an image that is also there in another size are one group with it, or they would be counted twice.
    identical = [group for group in prints.identical() if group[0] not in met]
    return Looks(_issues(records), tuple(map(tuple, [*identical, *alike])), len(identical))


def _record(item: Any) -> Any:
    record = np.zeros(1, _KEPT)[0]
    try:
        seen = look(item)
    except BadImage:  # it was read a moment ago; what has become of it is told when it is read again
        record["flat"] = True
        return record
    record["digest"] = np.frombuffer(seen.print.digest, np.uint8)
    record["flat"] = not seen.print.bits
    if seen.print.bits:
        record["clear_bits"] = np.frombuffer(seen.print.bits, np.uint8)
        record["cells"] = np.frombuffer(seen.print.cells, np.uint8)
    for name in ("width", "height", "darkest", "brightest", "span", "sharpness"):
        record[name] = getattr(seen, name)
    return record


def _print(record: np.void) -> Print:
    digest = record["digest"].tobytes()
    return Print(digest) if record["flat"] else Print(digest, record["clear_bits"].tobytes(), record["cells"].tobytes())


def _issues(seen: np.ndarray) -> tuple[str, ...]:
    """Return what is the matter with each image, several joined by ";"."""
    width, height = seen["width"], seen["height"]
    if not width.any():
        return ("",) * len(seen)
    shorter, longer = np.minimum(width, height), np.maximum(np.maximum(width, height), 1)
    side = np.sqrt(width * height)
    usual = max(1.0, float(np.median(side)))
    blank = seen["span"] < _BLANK
    found = {
        "tiny": (shorter <= _TINY) & (shorter < _TINY_BESIDE * np.median(shorter)),
        "odd_size": (side > _ODD_SIZE * usual) | (side < usual / _ODD_SIZE),
        "odd_aspect_ratio": shorter / longer < _ODD_ASPECT,
        "blank": blank,
        "dark": ~blank & (seen["brightest"] < _DARK),
        "light": ~blank & (seen["darkest"] > _LIGHT),
        "blurry": ~blank & (seen["sharpness"] < _BLURRY),
    }
    return tuple(";".join(name for name, there in found.items() if there[i]) for i in range(len(seen)))


def _remembered(memory: Path | None) -> np.ndarray:
    try:
        table: np.ndarray = np.load(memory, allow_pickle=False)  # type: ignore[arg-type]
        if table.dtype == _KEPT and table.ndim == 1:
            return table
    except Exception:  # missing, damaged, or from another version: everything is looked at again
        pass
    return np.zeros(0, _KEPT)


def _remember(memory: Path | None, records: np.ndarray) -> None:
    if memory is not None:
        _, first = np.unique(records["signature"], return_index=True)
        kept = records[first]
        with replacing(memory) as file, open(file, "wb") as stream:
            np.save(stream, kept[kept["signature"] != b""])
