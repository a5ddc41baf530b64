"""A tower that computes features, shard by shard, while the next images are decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dspt.backbone.image import ImageTower
from dspt.features.decoding import Decoder, Seen, ahead
from dspt.internal.errors import Fault, InputError

# Batches that wait for the tower: one would do if images were all alike.
BATCHES_AHEAD = 2


class Shard(NamedTuple):
    """Images encoded one after the other, to be kept together."""

    positions: list[int]
    digests: list[bytes]
    features: np.ndarray  # (n, rows, D)


class _Batch(NamedTuple):
    """Views for one call of the tower, and the images of the shard that end with it, if one does."""

    pixels: np.ndarray
    shard: list[Seen] | None


class Feeder:
    """A tower, loaded when first needed, that computes while a decoder looks at the next images."""

    def __init__(self, decoder: Decoder, load_tower: Callable[[], ImageTower], batch_size: int | None) -> None:
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch size: expected at least 1, found {batch_size}")
        self.decoder = decoder
        self._load_tower = load_tower
        self._tower: ImageTower | None = None
        self._batch_size = batch_size

    def shards(
        self,
        items: Any,
        positions: Iterator[int],
        bad: dict[int, Fault],
        step: int,
        report: Callable[[int], None] = lambda done: None,
    ) -> Iterator[Shard]:
        """Yield the features of the images at `positions`, `step` good images at a time.

        Batches begin anew with each shard, so that work taken up after a kill, which goes on with
        the next shard, meets the same batches and gives the same bits.
        """
        first = next(positions, None)
        if first is None:
            return
        if self._tower is None:
            self._tower = self._load_tower()
        size = self._batch_size or self._tower.batch_size()

        computed, done, rows = [], 0, self.decoder.look.rows
        for batch in ahead(self._batches(items, chain([first], positions), bad, step, size), BATCHES_AHEAD):
            computed.append(self._tower(batch.pixels))
            done += len(batch.pixels)
            report(done // rows)
            if batch.shard:
                features = np.concatenate(computed)
                shape = (len(batch.shard), rows, features.shape[1])
                yield Shard(
                    [seen.position for seen in batch.shard],
                    [seen.digest for seen in batch.shard],
                    features.reshape(shape),
                )
                computed = []

    def _batches(
        self, items: Any, positions: Iterator[int], bad: dict[int, Fault], step: int, size: int
    ) -> Iterator[_Batch]:
        rows: list[np.ndarray] = []
        shard: list[Seen] = []

        def cut(most: int) -> Iterator[_Batch]:
            """Yield full batches while there are more than `most` rows; the last one ends a shard."""
            while len(rows) > most:
                pixels = np.stack(rows[:size])
                del rows[:size]
                yield _Batch(pixels, None if rows or most else shard)

        for seen in self.decoder.views(items, positions):
            if seen.fault or seen.pixels is None:
                bad[seen.position] = seen.fault or Fault(f"image {seen.position}", "not seen")
                continue
            rows.extend(seen.pixels)
            shard.append(replace(seen, pixels=None))
            if len(shard) < step:
                yield from cut(size)
            else:
                yield from cut(0)
                shard = []
        yield from cut(0)
