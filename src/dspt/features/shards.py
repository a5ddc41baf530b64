"""Images encoded by many workers: what each is sent, what it answers, and how that comes into the store.

Workers read images and compute; the first process alone writes. Shards are cut as one process cuts them, from the
images that are missing, in their order, and a worker is sent whole batches of one: so the batches are the same, and the
bits with the same number of threads. Only an image that cannot be read makes one of them shorter here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import ImageTower, most_at_once
from dspt.features import contents, packs
from dspt.features.decoding import Decoder, Look, Seen
from dspt.features.feeder import Feeder, Shard
from dspt.internal.errors import Fault, InputError
from dspt.internal.rounding import counted
from dspt.internal.workers import Spread


class Part(NamedTuple):
    """Images for one worker, their positions among all, and where they begin among those that are asked for."""

    positions: list[int]
    items: list[Any]
    start: int

    def __str__(self) -> str:
        return f"{counted(len(self.positions), 'image')} from {self.positions[0]} on"


class Encoded(NamedTuple):
    """What came of a part: how many images it had, which cannot be used, and the shard that is whole with it."""

    images: int
    bad: dict[int, Fault]
    shard: Shard | None


# How many workers are to have images, where there are not enough of these for whole shards.
_WORKERS = 64


@dataclass(frozen=True)
class Recipe:
    """All that decides a feature besides the image; as in `features.encode`."""

    model: str
    fingerprint: str
    look: Look
    device: str
    dtype: str
    compiled: bool
    batch_size: int | None


def digest(
    items: Any, positions: Sequence[int], digests: np.ndarray, known: np.ndarray, look: Look, spread: Spread
) -> dict[int, Fault]:
    """Return which images cannot be read; the `digests` of the others are `known` now.

    Parameters
    ----------
    items : sequence or array
        All images.
    positions : sequence of int
        Those whose digests are not known.
    digests : uint8 array of shape (N, 32)
        Filled in.
    known : bool array of shape (N,)
        Filled in.
    look : Look
        What will be seen of them.
    spread : Spread
        Has workers do it.
    """
    bad = {}
    for part, seen in spread(partial(_digest, look), _parts(items, positions, packs.SHARD, packs.SHARD)):
        for one in seen:
            at = part.positions[one.position]
            if one.fault:
                bad[at] = _named(one.fault, items, at)
            else:
                digests[at], known[at] = np.frombuffer(one.digest, np.uint8), True
    return bad


def encode(items: Any, positions: Sequence[int], recipe: Recipe, step: int, spread: Spread) -> Iterator[Encoded]:
    """Yield what comes of images, a part at a time and in any order.

    Parameters
    ----------
    items : sequence or array
        All images.
    positions : sequence of int
        Those to encode.
    recipe : Recipe
        How they are encoded.
    step : int
        Images in a shard.
    spread : Spread
        Has workers do it.
    """
    size = _images_a_part(recipe, len(positions), step)
    waiting: dict[int, dict[int, Shard | None]] = {}  # by shard: its parts by where they begin
    for part, (found, bad) in spread(partial(_encode, recipe), _parts(items, positions, size, step)):
        faults = {part.positions[i]: _named(fault, items, part.positions[i]) for i, fault in bad.items()}
        first = part.start - part.start % step
        parts = waiting.setdefault(first, {})
        parts[part.start] = found and found._replace(positions=[part.positions[i] for i in found.positions])
        whole = len(parts) == len(range(first, min(first + step, len(positions)), size))
        yield Encoded(len(part.positions), faults, _joined(waiting.pop(first)) if whole else None)


def _images_a_part(recipe: Recipe, number: int, step: int) -> int:
    """Return how many images a worker is sent at a time: whole batches, and few where there are few images.

    Then up to `_WORKERS` have something to do. A tower's own batches are a power of two up to `most_at_once`, so that
    what is cut here is a multiple of them.
    """
    from dspt.internal.device import find_device

    device = find_device("auto") if recipe.device == "auto" else recipe.device
    batch = recipe.batch_size or most_at_once(device)
    batch //= math.gcd(batch, recipe.look.rows)
    return min(step, batch * max(1, number // (batch * _WORKERS)))


def _joined(parts: dict[int, Shard | None]) -> Shard | None:
    """Return the parts of a shard as one, in their order; None if no image of it can be used."""
    found = [shard for _, shard in sorted(parts.items(), key=itemgetter(0)) if shard is not None]
    if not found:
        return None
    positions, digests = (list(chain.from_iterable(one)) for one in list(zip(*found, strict=True))[:2])
    return Shard(positions, digests, np.concatenate([shard.features for shard in found]))


def _parts(items: Any, positions: Sequence[int], size: int, step: int) -> Iterator[Part]:
    """Yield parts of at most `size` images, none of which lies in two shards of `step`."""
    for first in range(0, len(positions), step):
        for start in range(first, min(first + step, len(positions)), size):
            these = [int(i) for i in positions[start : min(start + size, first + step)]]
            yield Part(these, [items[i] for i in these], start)


def _named(fault: Fault, items: Any, position: int) -> Fault:
    return replace(fault, name=contents.name_in(items, position))


# Below, what happens in a worker.


def _digest(look: Look, part: Part) -> list[Seen]:
    with _decoder(look) as decoder:
        return list(decoder.digests(part.items, range(len(part.items))))


def _encode(recipe: Recipe, part: Part) -> tuple[Shard | None, dict[int, Fault]]:
    bad: dict[int, Fault] = {}
    with _decoder(recipe.look) as decoder:
        feeder = Feeder(decoder, lambda: _tower(recipe), recipe.batch_size)
        shards = list(feeder.shards(part.items, iter(range(len(part.items))), bad, len(part.items)))
    return (shards[0] if shards else None), bad


def _decoder(look: Look) -> Decoder:
    import torch

    return Decoder(look, torch.get_num_threads())  # its share of the machine


@cache
def _tower(recipe: Recipe) -> ImageTower:
    from dspt.internal.device import find_device

    checkpoint = open_checkpoint(recipe.model)
    if checkpoint.fingerprint != recipe.fingerprint:
        raise InputError(f"model {recipe.model}: a worker finds another one under this name than the first process")
    device = str(find_device(recipe.device, recipe.dtype))
    return ImageTower(checkpoint, device, recipe.dtype, recipe.compiled)
