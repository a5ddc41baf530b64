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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt import contents, packs
from dspt.backbone.image import BadImage, ImageTower, Preprocessing, open_image
from dspt.errors import InputError
from dspt.seeds import Stream

if TYPE_CHECKING:
    from dspt.backbone.checkpoint import Checkpoint

# Part of every key: raise it when the same key would no longer mean the same features.
FORMAT = 1
# Bad images after which the rest is not looked at, and how many of them an error names.
MOST_BAD, NAMED_BAD = 100, 5
# Rounds after which images that change all the time are given up.
ROUNDS = 10

Items = Sequence[Any] | np.ndarray
Progress = Callable[[int, int], None]


def encode(
    items: Items,
    checkpoint: Checkpoint,
    *,
    view: str = "test",
    views: int = 1,
    seed: int = 1,
    cache: Path | str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the features of images, encoding only those that the store does not have yet.

    Parameters
    ----------
    items
        Image paths, PIL images or uint8 arrays.
    view, views, seed
        "test" is the centre of each image; "train" is `views` random crops of it, which depend on
        the image's content, the number of the crop and `seed` alone.
    cache
        Folder of the store; by default $DSPT_CACHE, or dspt/features in the user's cache folder.
    batch_size, workers
        Views a tower call, and threads that read images meanwhile.
    device, dtype
        Where the tower runs, and in which precision; the features are float32 always.
    progress
        Called with the number of images done and of all.

    Returns
    -------
    numpy.ndarray
        float32 (N, D), or (N, views, D) for the train view, each feature of length 1; a read-only
        memory map.

    Raises
    ------
    InputError
        If images cannot be read. What was encoded is in the store for the next time.
    """
    if not len(items):
        raise InputError("images: none given, so there is nothing to encode")
    look = _look(Preprocessing.read(checkpoint.folder), view, views, seed)
    root = Path(cache).expanduser() if cache else default_cache()
    store = packs.Store(root, (FORMAT, checkpoint.fingerprint, look, dtype))
    signatures, digests, known = contents.recall(root, items)
    with _Encoder(
        look, lambda: ImageTower(checkpoint, device, dtype), batch_size, workers
    ) as encoder:
        try:
            for _ in range(ROUNDS):
                features = store.open(digests) if known.all() else None
                if features is not None:
                    return features if view == "train" else features[:, 0]
                _fill(items, digests, known, store, encoder, progress)
                if known.all():
                    store.join(digests)
        finally:
            contents.remember(root, signatures, digests, known)
    raise InputError(f"feature store {root}: the images keep changing; encode them when they rest")


def embed(
    items: Items, tower: ImageTower, *, batch_size: int = 32, workers: int | None = None
) -> np.ndarray:
    """Return the test-view features (N, D) of images in memory, leaving the store alone."""
    bad: list[BadImage] = []
    look = _look(tower.preprocessing, "test", 1, 0)
    with _Encoder(look, lambda: tower, batch_size, workers) as encoder:
        _, features = encoder.features(items, range(len(items)), bad)
    _raise(bad, len(items))
    return features[:, 0]


def default_cache() -> Path:
    """Return the folder of the store that is used when none is named."""
    if named := os.environ.get("DSPT_CACHE"):
        return Path(named).expanduser()
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "dspt" / "features"


def _fill(
    items: Items,
    digests: np.ndarray,
    known: np.ndarray,
    store: packs.Store,
    encoder: _Encoder,
    progress: Progress | None,
) -> None:
    """Make `digests` known, and put the features that are missing into `store`, shard by shard."""

    def report(before: int, done: int) -> None:
        if progress:
            progress(before + done, len(items))

    stored = store.index()
    fresh: set[bytes] = set()
    bad: list[BadImage] = []
    step = max(1, packs.SHARD // encoder.look.rows)
    for start in range(0, len(items), step):
        part = np.arange(start, min(start + step, len(items)))
        # Files are read for their digest just before they are decoded, while they are in memory.
        for i, digest in encoder.digests(items, part[~known[part]], bad):
            digests[i], known[i] = np.frombuffer(digest, np.uint8), True
        readable = part[known[part]]
        wanted = {
            digests[i].tobytes(): i
            for i in reversed(readable[stored.find(digests[readable]) < 0])
            if digests[i].tobytes() not in fresh
        }
        missing = sorted(wanted.values())
        if missing:
            before = start + len(part) - len(missing)
            encoded, features = encoder.features(items, missing, bad, partial(report, before))
            if len(encoded):
                store.write(encoded, features)
            fresh |= {digest.tobytes() for digest in encoded}
            # An image that changed since its digest was taken has to be looked at again.
            for digest, i in wanted.items():
                known[i] = digest in fresh
        report(start, len(part))
        if len(bad) >= MOST_BAD:
            break
    _raise(bad, len(items))


def _raise(bad: list[BadImage], total: int) -> None:
    """Stop with one sentence if there are bad images."""
    if len(bad) == 1:
        raise bad[0]
    if bad:
        count = f"at least {len(bad)}" if len(bad) >= MOST_BAD else len(bad)
        named = "; ".join(f"{error.name}: {error.reason}" for error in bad[:NAMED_BAD])
        more = ", and others" if len(bad) > NAMED_BAD else ""
        raise InputError(
            f"{count} of {total} images cannot be used ({named}{more}); "
            "replace them or leave them out"
        )


@dataclass(frozen=True)
class _Look:
    """What the tower sees of an image: its centre, or a number of random crops."""

    preprocessing: Preprocessing
    crops: int
    seed: int

    @property
    def rows(self) -> int:
        return self.crops or 1

    def __call__(self, image: Any, digest: bytes) -> list[np.ndarray]:
        if not self.crops:
            return [self.preprocessing.test_view(image)]
        streams = (Stream(self.seed, "view", digest.hex(), v) for v in range(self.crops))
        return [self.preprocessing.train_view(image, stream) for stream in streams]


def _look(preprocessing: Preprocessing, view: str, views: int, seed: int) -> _Look:
    if view not in ("test", "train"):
        raise InputError(f"view: expected 'test' or 'train', found {view!r}")
    if views < 1 or (view == "test" and views != 1):
        raise InputError(f"views: expected 1 for the test view, 1 or more for train, found {views}")
    return _Look(preprocessing, views, seed) if view == "train" else _Look(preprocessing, 0, 0)


class _Encoder:
    """Reads images in threads while the tower, loaded when first needed, computes."""

    def __init__(
        self,
        look: _Look,
        load_tower: Callable[[], ImageTower],
        batch_size: int,
        workers: int | None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch size: expected at least 1, found {batch_size}")
        self.look = look
        self._load_tower = load_tower
        self._batch_size = batch_size
        self._workers = workers or min(8, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._workers)

    def __enter__(self) -> _Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _tower(self) -> ImageTower:
        return self._load_tower()

    def digests(
        self, items: Items, positions: Iterable[int], bad: list[BadImage]
    ) -> Iterator[tuple[int, bytes]]:
        """Give the position and digest of each image; those that cannot be read go to `bad`."""
        for i, future in self._ahead(lambda i: contents.read(items[i], i)[0], positions):
            if not _is_bad(future, bad):
                yield i, future.result()

    def features(
        self,
        items: Items,
        positions: Iterable[int],
        bad: list[BadImage],
        report: Callable[[int], None] = lambda done: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give the digests (n, 32) and features (n, rows, D) of the images that can be read."""
        digests: list[bytes] = []

        def look(i: int) -> tuple[bytes, list[np.ndarray]]:
            digest, source = contents.read(items[i], i)
            return digest, self.look(open_image(source, contents.item_name(items[i], i)), digest)

        def pixels() -> Iterator[np.ndarray]:
            for _, future in self._ahead(look, positions):
                if not _is_bad(future, bad):
                    digest, views = future.result()
                    digests.append(digest)
                    yield from views

        rows, computed = pixels(), []
        while batch := list(islice(rows, self._batch_size)):
            computed.append(self._tower(np.stack(batch)))
            report(len(digests))
        features = np.concatenate(computed) if computed else np.zeros((0, 1), np.float32)
        shape = (len(digests), self.look.rows, features.shape[1])
        return packs.matrix(digests), features.reshape(shape)

    def _ahead(
        self, function: Callable[[int], Any], positions: Iterable[int]
    ) -> Iterator[tuple[int, Future[Any]]]:
        """Give function(position) of each position in turn, working some positions ahead."""
        queue: deque[tuple[int, Future[Any]]] = deque()
        depth = 2 * max(self._workers, self._batch_size // self.look.rows)
        for i in positions:
            queue.append((i, self._pool.submit(function, i)))
            if len(queue) > depth:
                yield queue.popleft()
        yield from queue


def _is_bad(future: Future[Any], bad: list[BadImage]) -> bool:
    error = future.exception()
    if isinstance(error, BadImage):
        bad.append(error)
        return True
    return False
