"""Images encoded once, kept on disk, memory-mapped.

A frozen tower gives an image the same feature for ever, so a feature is found by what it was made
from: checkpoint, preprocessing and view name a folder, and the content of an image names its row.

A folder holds *packs*. A pack is a folder with `digests.npy` (n, 32), the content of n images, and
`features.npy`, their features; its name is a hash of its digests. It is written under another name
and renamed when all of it is on disk, and never changed: there is a whole pack or none. Missing
features are written as small packs while the work goes on, so a kill loses one of these at most,
and copied to one pack in the asked order at the end. A process that finds a pack gone looks again:
packs are removed only after another one holds their rows.

What is bit for bit the same: a second call; and any call, interrupted or not, that starts from the
same store with the same threads. The last bits of a feature can depend on the batch in which it was
computed, as matrix products round differently for other shapes; across batches, features agree to
about 1e-6. Padding all batches to one shape would not change that (a row's place still counts when
there are several threads) and would make a single image as dear as a batch.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt.backbone.image import BadImage, ImageTower, Preprocessing, open_image
from dspt.errors import InputError
from dspt.files import replacing
from dspt.seeds import Stream

if TYPE_CHECKING:
    from dspt.backbone.checkpoint import Checkpoint

# Part of every key: raise it when the same key would no longer mean the same features.
FORMAT = 1
# Features between two commits to disk; a pack of no more than these is cheap to copy again.
SHARD = 1024
# Rows copied at a time when packs are joined.
BLOCK = 4096
# Bad images after which the rest is not looked at, and how many of them an error names.
MOST_BAD, NAMED_BAD = 100, 5
# Rounds after which images that change all the time are given up.
ROUNDS = 10
# Age in seconds at which a temporary folder is nobody's any more.
STALE = 24 * 3600
# A file can change twice within one tick of its clock, so the digest of one that changed less than
# this many seconds ago is not remembered.
SETTLED = 2.0
# Remembered digests, of 48 bytes; when there are more, only the present images' are kept.
MOST_REMEMBERED = 4_000_000

_FEATURES, _DIGESTS = "features.npy", "digests.npy"
_FLOAT = np.dtype(np.float32).str

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
    store = _Store(root, (FORMAT, checkpoint.fingerprint, look, dtype))
    signatures, digests, known = _recall(root, items)
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
            _remember(root, signatures, digests, known)
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
    store: _Store,
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
    step = max(1, SHARD // encoder.look.rows)
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
        for i, future in self._ahead(lambda i: _read(items[i], i)[0], positions):
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
            digest, source = _read(items[i], i)
            return digest, self.look(open_image(source, _item_name(items[i], i)), digest)

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
        return _matrix(digests), features.reshape(shape)

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


def _item_name(item: Any, position: int) -> str:
    return os.fspath(item) if _is_path(item) else f"image {position}"


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike))


def _read(item: Any, position: int) -> tuple[bytes, Any]:
    """Give the digest of an image's content, and what `open_image` makes the image from."""
    if _is_path(item):
        try:
            data = Path(item).read_bytes()
        except OSError as error:
            raise BadImage(os.fspath(item), error.strerror or "cannot be read") from None
        return hashlib.blake2b(data, digest_size=32, person=b"file").digest(), io.BytesIO(data)
    if not isinstance(item, np.ndarray):
        item = open_image(item, _item_name(item, position))
    pixels = np.asarray(item)
    shape = repr((pixels.dtype.str, pixels.shape)).encode()
    return hashlib.blake2b(shape + pixels.tobytes(), digest_size=32, person=b"array").digest(), item


class _Store:
    """The packs of one key."""

    def __init__(self, root: Path, key: tuple[object, ...]) -> None:
        self._folder = root / _hash(repr(key).encode())
        with _told(root):
            self._folder.mkdir(parents=True, exist_ok=True)
            for folder in self._folder.glob(".*"):
                with suppress(FileNotFoundError):  # it was somebody's, who has just ended
                    if time.time() - folder.stat().st_mtime > STALE:
                        shutil.rmtree(folder, ignore_errors=True)

    def open(self, digests: np.ndarray) -> np.ndarray | None:
        """Give the features of exactly these images in this order, if there is such a pack."""
        pack = self._open(self._path(digests))
        return pack and pack[1]

    def index(self) -> _Index:
        """Give the place of every feature that is stored now."""
        opened = ((path, self._open(path)) for path in sorted(self._folder.glob("[!.]*")))
        return _Index([(path, pack[0]) for path, pack in opened if pack])

    def write(self, digests: np.ndarray, features: np.ndarray) -> None:
        """Keep `features` as a pack."""
        with self._writing(digests) as folder:
            np.save(folder / _FEATURES, features)

    def join(self, digests: np.ndarray) -> None:
        """Copy the features of these images to one pack, if they are all there; drop its parts."""
        index = self.index()
        places = index.find(digests)
        if (places < 0).any():
            return
        try:
            if not self._path(digests).exists():
                self._copy(digests, index, places)
        except FileNotFoundError:
            return  # another process joined and dropped a pack; the next round finds its rows
        whole = _Index([(self._path(digests), digests)])
        for path, part in index.packs:
            # Larger ones may be what another call asks for, and are not so quickly copied.
            if path != self._path(digests) and len(part) <= SHARD and (whole.find(part) >= 0).all():
                self._drop(path)

    def _copy(self, digests: np.ndarray, index: _Index, places: np.ndarray) -> None:
        packs, rows = index.pack[places], index.row[places]

        def features(number: int) -> np.ndarray:
            return np.load(index.packs[number][0] / _FEATURES, mmap_mode="r")

        shape = features(packs[0]).shape[1:]
        header = {"descr": _FLOAT, "fortran_order": False, "shape": (len(digests), *shape)}
        with self._writing(digests) as folder, open(folder / _FEATURES, "wb") as file:
            np.lib.format.write_array_header_2_0(file, header)
            for start in range(0, len(digests), BLOCK):
                pack, row = packs[start : start + BLOCK], rows[start : start + BLOCK]
                block = np.empty((len(pack), *shape), _FLOAT)
                for number in np.unique(pack):
                    block[pack == number] = features(number)[row[pack == number]]
                # Written, not mapped: when the disk is full this is an error, not a crash.
                file.write(block.data)

    def _path(self, digests: np.ndarray) -> Path:
        return self._folder / _hash(digests.tobytes())

    def _open(self, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Give the digests and features of a pack that is whole; one that is not is removed."""
        try:
            digests = np.load(path / _DIGESTS, allow_pickle=False)
            # A file that is shorter than its header says cannot be mapped.
            features = np.load(path / _FEATURES, mmap_mode="r", allow_pickle=False)
            if self._path(digests) == path and len(features) == len(digests):
                return digests, features
        except Exception:  # numpy answers damaged headers with errors of many kinds
            pass
        if path.exists():
            self._drop(path)
        return None

    @contextmanager
    def _writing(self, digests: np.ndarray) -> Iterator[Path]:
        """Give a temporary folder, which becomes the pack of `digests` when the block ends well."""
        folder = self._folder / f".{uuid.uuid4().hex}"
        try:
            with _told(self._folder):
                folder.mkdir()
                yield folder
                np.save(folder / _DIGESTS, digests)
                for path in (folder / _DIGESTS, folder / _FEATURES, folder):
                    _sync(path)
                try:
                    folder.rename(self._path(digests))
                except OSError as error:
                    # Another process may have made the same pack, and even dropped it since.
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                _sync(self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _drop(self, path: Path) -> None:
        """Remove a pack: first its name, so that nobody finds half of it."""
        away = self._folder / f".{uuid.uuid4().hex}"
        with suppress(OSError):
            path.rename(away)
        shutil.rmtree(away, ignore_errors=True)


class _Index:
    """Where each digest is: a place p stands for row[p] of packs[pack[p]]."""

    def __init__(self, packs: list[tuple[Path, np.ndarray]]) -> None:
        self.packs = packs
        lengths = [len(digests) for _, digests in packs]
        self.pack = np.repeat(np.arange(len(packs)), lengths)
        self.row = np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)])
        keys = _keys(np.concatenate([_matrix([]), *(digests for _, digests in packs)]))
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, digests: np.ndarray) -> np.ndarray:
        """Give the place of each digest, -1 for one that is not there."""
        if not len(self._keys):
            return np.full(len(digests), -1)
        keys = _keys(digests)
        near = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[near] == keys, self._order[near], -1)


def _recall(root: Path, items: Items) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the signature of each file, the digest of each item, and which digests are known.

    A signature stands for path, size, inode and both times of a file: a change that keeps size and
    modification time still changes the inode's own time. Known are the digests of files that were
    read before, and of items in memory.
    """
    here, now = os.getcwd(), time.time()
    signatures = np.array([_signature(item, here, now) for item in items], "S16")
    digests, known = np.zeros((len(items), 32), np.uint8), np.zeros(len(items), bool)
    table = _remembered(root)
    if len(table):
        near = np.minimum(np.searchsorted(table["signature"], signatures), len(table) - 1)
        known = (table["signature"][near] == signatures) & (signatures != b"")
        digests[known] = table["digest"][near[known]]
    for i, item in enumerate(items):
        if not _is_path(item):
            with suppress(BadImage):  # it is told of with the others
                digests[i], known[i] = np.frombuffer(_read(item, i)[0], np.uint8), True
    return signatures, digests, known


def _remember(root: Path, signatures: np.ndarray, digests: np.ndarray, known: np.ndarray) -> None:
    """Keep the digests of files for `_recall`; it saves reading them, so failing is no error."""
    known = known & (signatures != b"")
    table = np.zeros(known.sum(), _TABLE)
    table["signature"], table["digest"] = signatures[known], digests[known]
    old = _remembered(root)
    if np.isin(table["signature"], old["signature"]).all():
        return
    if len(old) + len(table) <= MOST_REMEMBERED:
        table = np.concatenate([table, old])
    _, first = np.unique(table["signature"], return_index=True)
    with suppress(OSError), replacing(root / _DIGESTS) as file, open(file, "wb") as stream:
        np.save(stream, table[first])


_TABLE = np.dtype([("signature", "S16"), ("digest", "u1", 32)])


def _remembered(root: Path) -> np.ndarray:
    try:
        table = np.load(root / _DIGESTS, allow_pickle=False)
        if table.dtype == _TABLE and table.ndim == 1:
            return table
    except Exception:  # missing, damaged, or from another version
        pass
    return np.zeros(0, _TABLE)


def _signature(item: Any, here: str, now: float) -> bytes:
    if not _is_path(item):
        return b""
    path = os.path.join(here, item)
    try:
        status = os.stat(path)
    except OSError:
        return b""
    if now - max(status.st_mtime, status.st_ctime) < SETTLED:
        return b""
    stamp = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(
        f"{path}{stamp}".encode(errors="surrogateescape"), digest_size=16
    ).digest()


def _matrix(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def _keys(digests: np.ndarray) -> np.ndarray:
    """Give digests in a form that numpy can sort."""
    return np.ascontiguousarray(digests).view("S32")[:, 0]


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write into a sentence."""
    try:
        yield
    except FileNotFoundError:
        raise  # another process tidied up at the same moment
    except OSError as error:
        raise InputError(
            f"feature store {folder}: cannot be written ({error.strerror}); make room there, name "
            "another folder, or set DSPT_CACHE"
        ) from None


def _sync(path: Path) -> None:
    """Have a file or folder on disk before what comes next."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
