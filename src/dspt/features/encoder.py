"""Images encoded once, kept on disk, memory-mapped.

A frozen tower gives an image the same feature for ever, so a feature is found by what it was made
from: checkpoint, preprocessing and view name a folder, and the content of an image names its row.

What is bit for bit the same: a second call; and any call, interrupted or not, that starts from the
same store with the same threads. The last bits of a feature can depend on the batch in which it was
computed, as matrix products round differently for other shapes; across batches, features agree to
about 1e-6. Padding all batches to one shape would not change that (a row's place still counts when
there are several threads) and would make a single image as dear as a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt.backbone.image import ImageTower, Preprocessing
from dspt.data import Split
from dspt.data.dataset import Items, are_features
from dspt.features import contents, packs, shards
from dspt.features.decoding import Decoder, Look, use_processes
from dspt.features.feeder import Feeder, Shard
from dspt.features.shards import Recipe
from dspt.internal.errors import Fault, InputError, summary
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted
from dspt.internal.shards import Features
from dspt.internal.workers import Spread

if TYPE_CHECKING:
    from dspt.backbone.checkpoint import Checkpoint

# Part of every key: raise it when the same key would no longer mean the same features.
FORMAT = 1
# Bad images after which the rest is not looked at, unless all of them are asked for.
MOST_BAD = 100
# How often files that change while they are read are read again.
ROUNDS = 10

Progress = Callable[[int, int], None]


class BadImages(InputError):
    """Images that cannot be used, by their positions among all.

    `all_known` tells whether there are no others, `can_skip` whether the work can be done without them.
    """

    def __init__(self, faults: dict[int, Fault], total: int, all_known: bool = True, can_skip: bool = True) -> None:
        self.faults = dict(sorted(faults.items()))
        found = list(self.faults.values())
        if len(found) == 1:
            sentence = f"{summary(found)}; replace it or leave it out"
            advice = "set `skip_bad` to go on without it"
        else:
            count = len(found) if all_known else f"at least {len(found)}"
            sentence = f"{count} of {total} images cannot be used ({summary(found)}); replace them or leave them out"
            advice = "set `skip_bad` to go on without them"
        super().__init__(sentence, advice if can_skip else "")


def encode(
    items: Items,
    checkpoint: Checkpoint,
    *,
    views: int = 0,
    seed: int = 1,
    cache: Path | str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    compiled: bool = False,
    progress: Progress | None = None,
    all_bad: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    spread: Spread | None = None,
    count: Callable[[int], None] = lambda images: None,
) -> np.ndarray:
    """Return the features of images, encoding only those that the store does not have yet.

    Parameters
    ----------
    items
        Image paths, encoded images (bytes), PIL images or uint8 arrays.
    views, seed
        0 is the centre of each image; more are so many random crops of it, which depend on the
        image's content, the number of the crop and `seed` alone.
    cache
        Folder of the store; by default $DSPT_CACHE, or dspt/features in the user's cache folder.
    batch_size
        Views a tower call; by default as many as suit the device and its memory.
    workers
        Processes, or threads where images are few, that decode ahead of the tower; by default one
        for each core.
    device, dtype, compiled
        Where the tower runs, in which precision, and whether torch compiles it; the features are
        float32 always.
    progress
        Called with the number of images done and of all.
    all_bad
        Look for every bad image before `BadImages` is raised, not for the first hundred alone.
    tell
        Hears of features in the store that are damaged, and so are made again.
    spread
        Has workers read and encode images, a shard each at a time; None is this process. It alone writes.
    count
        Hears of each shard that was encoded, how many images there are in it.

    Returns
    -------
    numpy.ndarray
        float32 (N, D), or (N, views, D) for random crops, each feature of length 1; a read-only
        memory map.

    Raises
    ------
    BadImages
        If images cannot be read. What was encoded is in the store for the next time.
    """
    if not len(items):
        raise InputError("images: none given, so there is nothing to encode")
    if views < 0:
        raise InputError(f"views: expected 0 or more, found {views}")
    look = Look(Preprocessing.read(checkpoint.folder), views, seed if views else 0)
    root = Path(cache).expanduser() if cache else default_cache()
    store = packs.Store(root, f"{FORMAT, checkpoint.fingerprint, look, dtype}", tell)
    bad = _absent(items)
    if bad and not all_bad:
        raise BadImages(bad, len(items))
    signatures, digests, known = contents.recall(root, items)
    with Decoder(look, workers, use_processes(items)) as decoder:
        feeder = Feeder(decoder, lambda: ImageTower(checkpoint, device, dtype, compiled), batch_size)
        try:
            for _ in range(ROUNDS):
                features = store.open(digests) if known.all() else None
                if features is not None:
                    return features if views else features[:, 0]
                most = len(items) if all_bad else MOST_BAD
                wanted = _Wanted(items, digests, known, bad, most, store, progress, count)
                if spread is None:
                    _fill(wanted, feeder)
                else:
                    place = checkpoint.location, checkpoint.fingerprint
                    _fill_by_many(wanted, Recipe(*place, look, device, dtype, compiled, batch_size), spread)
                if known.all():
                    store.join(digests)
        finally:
            contents.remember(root, signatures, digests, known)
    raise InputError(f"feature store {root}: the images keep changing; encode them when they rest")


class Encoder:
    """Turns the images of a split into features, each encoded once; features pass through.

    Parameters
    ----------
    checkpoint : Checkpoint
    device, precision, compiled, workers, seed, cache, spread
        As in `encode`.
    skip_bad : bool
        Leave out images that cannot be read, instead of stopping at them; `skipped` lists them.
    reporter : Reporter, optional
        Shows how far the work is.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "cpu",
        precision: str = "float32",
        compiled: bool = False,
        workers: int | None = None,
        seed: int = 1,
        cache: Path | None = None,
        skip_bad: bool = False,
        reporter: Reporter | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._encode = partial(
            encode,
            checkpoint=checkpoint,
            device=device,
            dtype=precision,
            compiled=compiled,
            workers=workers,
            seed=seed,
            cache=cache,
            spread=spread,
            count=self._count,
        )
        self.encoded = 0  # images, since they were not in the store
        self._skip_bad = skip_bad
        self._reporter = reporter or Reporter(silent=True)
        self._skipped: dict[Fault, None] = {}

    def _count(self, images: int) -> None:
        self.encoded += images

    @property
    def skipped(self) -> list[Fault]:
        """The images that could not be read, each told once."""
        return list(self._skipped)

    def check_there(self, split: Split) -> None:
        """Stop at files that are not there, unless bad images are skipped: before hours of work, not after them."""
        if not self._skip_bad and (bad := _absent(split.items)):
            raise BadImages(bad, len(split.items))

    def __call__(self, split: Split, name: str, views: int = 0) -> tuple[Features, np.ndarray]:
        """Return the features of the images that can be used, and their positions in the split.

        They are (N, D), of the centre of each image, or (N, views, D), of so many random crops. `name` is what the
        user is shown: "train".
        """
        everything = np.arange(len(split.labels))
        try:
            return self.features(split.items, f"{name} images", views), everything
        except BadImages as error:
            good = np.delete(everything, list(error.faults))
            if not self._skip_bad or not len(good):
                raise
            self._skipped |= {replace(fault, split=name): None for fault in error.faults.values()}
            count = len(error.faults)
            left = f"{counted(count, f'{name} image')} cannot be used and {'is' if count == 1 else 'are'} left out"
            self._reporter.say(f"note: {left}")
            return self.features(split.take(good).items, f"{name} images", views), good

    def features(self, items: Items, title: str = "images", views: int = 0) -> Features:
        """Return the features of items; those that are features already pass through.

        Parameters
        ----------
        items : sequence or array
            What `encode` takes, or float features (N, D).
        title : str
            What the user is shown: "train images".
        views : int
            0 is the centre of each image; more are so many random crops of it. Features are returned as they are.

        Returns
        -------
        float array of shape (N, D), or (N, views, D) for random crops
        """
        if are_features(items) and items.ndim == 2:
            return items
        unit = f"encoding {len(items)} {title}"
        with self._reporter.task(unit, len(items), unit="images") as update:
            return self._encode(
                items,
                views=views,
                progress=lambda done, total: update(done, ""),
                all_bad=self._skip_bad,
                tell=self._reporter.say,
            )


def _absent(items: Items) -> dict[int, Fault]:
    if isinstance(items, np.ndarray) or not isinstance(items[0], (str, os.PathLike)):
        return {}
    return {i: Fault(contents.name_in(items, i), "no such file") for i in contents.absent(items)}


def embed(
    items: Items,
    tower: ImageTower,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    decoder: Decoder | None = None,
) -> np.ndarray:
    """Return the test-view features (N, D) of images in memory, leaving the store alone.

    A `decoder` whose workers have started already may be given, and stays open.

    Parameters
    ----------
    items : sequence or array
        Image paths, encoded images (bytes), PIL images or uint8 arrays.
    tower : ImageTower
        Computes the features, with its own preprocessing.
    batch_size : int, optional
        Views a tower call; None is as many as suit the device and its memory.
    workers : int, optional
        As in `encode`; not looked at with a `decoder`.
    decoder : Decoder, optional
        What decodes the images; None opens one and closes it again.

    Returns
    -------
    float32 array of shape (N, D)
        Each feature of length 1.
    """
    if decoder is None:
        with Decoder(Look(tower.preprocessing), workers, use_processes(items)) as own:
            return embed(items, tower, batch_size=batch_size, decoder=own)
    bad: dict[int, Fault] = {}
    feeder = Feeder(decoder, lambda: tower, batch_size)
    found = list(feeder.shards(items, iter(range(len(items))), bad, len(items)))
    if bad:
        raise BadImages(bad, len(items), can_skip=False)
    return np.concatenate([shard.features for shard in found])[:, 0]


def stream(
    items: Iterable[Any], tower: ImageTower, *, workers: int | None = None
) -> Iterator[tuple[list[Any], list[Fault | None], np.ndarray]]:
    """Yield the test-view features of images a batch at a time, in order, while the next images are decoded.

    Neither images nor features are kept, in memory or in the store, so there may be any number of them.

    Parameters
    ----------
    items : iterable
        As in `embed`; a `Fault` is an image of which it is known already that it cannot be used. It is read in the
        calling thread, some way ahead.
    tower : ImageTower
        Computes the features, with its own preprocessing.
    workers : int, optional
        As in `encode`.

    Yields
    ------
    items : list
        The next of them.
    faults : list of Fault or None
        What is wrong with each.
    features : float32 array of shape (n, D)
        Of the items without a fault.
    """
    size = tower.batch_size()
    with Decoder(Look(tower.preprocessing), workers) as decoder:
        found = decoder.stream(items)
        while batch := list(islice(found, size)):
            pixels = [seen.pixels for _, seen in batch if seen.pixels is not None]
            features = tower(np.concatenate(pixels)) if pixels else np.empty((0, 0), np.float32)
            yield [item for item, _ in batch], [seen.fault for _, seen in batch], features


def default_cache() -> Path:
    """Return the folder of the store that is used when none is named."""
    if named := os.environ.get("DSPT_CACHE"):
        return Path(named).expanduser()
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "dspt" / "features"


@dataclass(frozen=True)
class _Wanted:
    """The features of which images are wanted in a store, and what is known of these so far."""

    items: Items
    digests: np.ndarray
    known: np.ndarray  # of which the digest is
    bad: dict[int, Fault]
    most_bad: int
    store: packs.Store
    progress: Progress | None
    count: Callable[[int], None]

    def report(self, done: int) -> None:
        """Tell how many images are done."""
        if self.progress:
            self.progress(done, len(self.items))

    def keep(self, shard: Shard) -> None:
        """Put a shard into the store."""
        self.store.write(packs.matrix(shard.digests), shard.features)
        self.count(len(shard.positions))
        # An image that changed since its digest was taken has to be looked at again.
        for i, digest in zip(shard.positions, shard.digests, strict=True):
            self.known[i] = digest == self.digests[i].tobytes()

    def check(self) -> None:
        """Raise `BadImages` if there are any."""
        if self.bad:
            _add_copies(self.bad, self.items, self.digests, self.known)
            all_known = len(self.bad) < self.most_bad or self.most_bad == len(self.items)
            raise BadImages(self.bad, len(self.items), all_known)


def _fill(wanted: _Wanted, feeder: Feeder) -> None:
    """Make the digests known, and put the features that are missing into the store, shard by shard."""
    items, digests, known, bad = wanted.items, wanted.digests, wanted.known, wanted.bad
    stored, asked, settled = wanted.store.index(), set[bytes](), 0
    step = _images_a_shard(feeder.decoder.look)

    def missing() -> Iterator[int]:
        """Yield the images to encode, as they are found."""
        nonlocal settled
        for start in range(0, len(items), step):
            part = np.arange(start, min(start + step, len(items)))
            unknown = [int(i) for i in part[~known[part]] if i not in bad]
            # Files are read for their digest just before they are decoded, while they are in memory.
            for seen in feeder.decoder.digests(items, unknown):
                if seen.fault:
                    bad[seen.position] = seen.fault
                else:
                    digests[seen.position] = np.frombuffer(seen.digest, np.uint8)
                    known[seen.position] = True
            new = _first_of_each(part[known[part]], digests, stored, asked)
            settled += len(part) - len(new)
            if len(bad) >= wanted.most_bad:
                return
            yield from new

    for shard in feeder.shards(items, missing(), bad, step, lambda encoded: wanted.report(settled + encoded)):
        wanted.keep(shard)
    if not asked:
        wanted.report(settled)
    wanted.check()


def _fill_by_many(wanted: _Wanted, recipe: Recipe, spread: Spread) -> None:
    """Do what `_fill` does with many workers: first all digests, then the shards that are missing."""
    items, digests, known, bad = wanted.items, wanted.digests, wanted.known, wanted.bad
    unknown = [i for i in np.flatnonzero(~known).tolist() if i not in bad]
    bad |= shards.digest(items, unknown, digests, known, recipe.look, spread)
    if len(bad) < wanted.most_bad:
        new = _first_of_each(np.flatnonzero(known), digests, wanted.store.index(), set())
        done = len(items) - len(new)
        wanted.report(done)
        for part in shards.encode(items, new, recipe, _images_a_shard(recipe.look), spread):
            bad |= part.bad
            if part.shard is not None:
                wanted.keep(part.shard)
            done += part.images
            wanted.report(done)
    wanted.check()


def _images_a_shard(look: Look) -> int:
    return max(1, packs.SHARD // look.rows)


def _first_of_each(positions: np.ndarray, digests: np.ndarray, stored: packs.Index, asked: set[bytes]) -> list[int]:
    """Return the images that are neither stored nor asked for yet, and ask for them; of copies the first."""
    found = []
    for i in positions[stored.find(digests[positions]) < 0].tolist():
        if (digest := digests[i].tobytes()) not in asked:
            asked.add(digest)
            found.append(i)
    return found


def _add_copies(bad: dict[int, Fault], items: Items, digests: np.ndarray, known: np.ndarray) -> None:
    """Add the images with the content of a bad one, of which only the first was looked at."""
    found = [i for i in bad if known[i]]
    reasons = {digests[i].tobytes(): bad[i].reason for i in found}
    for i in np.flatnonzero(known & packs.are_in(digests, digests[found])).tolist():
        name = contents.name_in(items, i)
        bad.setdefault(i, Fault(name, reasons[digests[i].tobytes()]))
