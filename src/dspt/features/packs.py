"""Features on disk in immutable packs, each of them whole or absent.

A key, hashed, names a folder, which holds *packs*. A pack is a folder with `digests.npy` (n, 32),
the content of n images, `features.npy`, their features, and `checksum`, a CRC of these; its name is a
hash of its digests. It is written under another name and renamed when all of it is on disk, and never
changed: there is a whole pack or none. Missing features are written as small packs while the work goes
on, so a kill loses one of these at most, and copied to one pack in the asked order at the end. A process
that finds a pack gone looks again: packs are removed only after another one holds their rows.

A process compares features with their checksum when it first reads a pack, and again if the file has
changed since. A pack that differs is removed, and its images are encoded again.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from dspt.internal.errors import FileError
from dspt.internal.files import remove_left, sync, temporary_name, told

# Features between two commits to disk; a pack of no more than these is cheap to copy again.
SHARD = 1024
# Rows copied at a time when packs are joined.
BLOCK = 4096
# Age in seconds at which a temporary folder of another machine is nobody's any more.
STALE = 24 * 3600

_FEATURES, _DIGESTS, _CHECKSUM = "features.npy", "digests.npy", "checksum"
_FLOAT = np.dtype(np.float32).str


class Store:
    """The packs of one key; `tell` hears of those that are damaged."""

    def __init__(self, root: Path, key: str, tell: Callable[[str], None] = lambda line: None) -> None:
        self._folder = root / _hash(key.encode())
        self._tell = tell
        with _told(root):
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_left(self._folder, stale=STALE)

    def open(self, digests: np.ndarray) -> np.ndarray | None:
        """Return the features of exactly these images in this order, if there is such a pack."""
        pack = self._open(self._path(digests))
        return pack[1] if pack and self._is_sound(self._path(digests), pack[1]) else None

    def index(self) -> Index:
        """Return the place of every feature that is stored now."""
        opened = ((path, self._open(path)) for path in sorted(self._folder.glob("[!.]*")))
        return Index([(path, pack[0]) for path, pack in opened if pack])

    def write(self, digests: np.ndarray, features: np.ndarray) -> None:
        """Keep `features` as a pack."""
        features = np.ascontiguousarray(features, _FLOAT)
        with self._writing(digests) as folder:
            np.save(folder / _FEATURES, features)
            self._write_checksum(folder, zlib.crc32(features.data, self._start(self._path(digests))))

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
            return  # a pack was dropped, joined by another process or damaged; the next round finds or makes its rows
        whole = Index([(self._path(digests), digests)])
        for path, part in index.packs:
            # Larger ones may be what another call asks for, and are not so quickly copied.
            if path != self._path(digests) and len(part) <= SHARD and (whole.find(part) >= 0).all():
                self._drop(path)

    def _copy(self, digests: np.ndarray, index: Index, places: np.ndarray) -> None:
        packs, rows = index.pack[places], index.row[places]

        def features(number: int) -> np.ndarray:
            path = index.packs[number][0]
            stored: np.ndarray = np.load(path / _FEATURES, mmap_mode="r")
            if not self._is_sound(path, stored):
                raise FileNotFoundError(path)
            return stored

        shape = features(packs[0]).shape[1:]
        header = {"descr": _FLOAT, "fortran_order": False, "shape": (len(digests), *shape)}
        checksum = self._start(self._path(digests))
        with self._writing(digests) as folder:
            with open(folder / _FEATURES, "wb") as file:
                np.lib.format.write_array_header_2_0(file, header)
                for start in range(0, len(digests), BLOCK):
                    pack, row = packs[start : start + BLOCK], rows[start : start + BLOCK]
                    block = np.empty((len(pack), *shape), _FLOAT)
                    for number in np.unique(pack):
                        block[pack == number] = features(number)[row[pack == number]]
                    # Written, not mapped: when the disk is full this is an error, not a crash.
                    file.write(block.data)
                    checksum = zlib.crc32(block.data, checksum)
            self._write_checksum(folder, checksum)

    def _path(self, digests: np.ndarray) -> Path:
        return self._folder / _hash(digests.tobytes())

    def _open(self, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the digests and features of a pack that is whole; one that is not is removed."""
        try:
            digests = np.load(path / _DIGESTS, allow_pickle=False)
            # A file that is shorter than its header says cannot be mapped.
            features = np.load(path / _FEATURES, mmap_mode="r", allow_pickle=False)
            fits = len(features) == len(digests) and features.dtype.str == _FLOAT and features.flags.c_contiguous
            if fits and self._path(digests) == path:
                return digests, features
        except FileNotFoundError:
            if not path.exists():
                return None  # another process dropped it
        except (OSError, MemoryError):
            raise  # the machine's trouble, not the pack's: it must not cost what was encoded
        except Exception:  # numpy answers damaged headers with errors of many kinds
            pass
        self._drop_damaged(path)
        return None

    def _is_sound(self, path: Path, features: np.ndarray) -> bool:
        """Return whether the features of a pack are those that were written; one whose are not is removed."""
        signature = _signature(path / _FEATURES)
        if _SOUND.get(path) == signature:
            return True
        try:
            expected = (path / _CHECKSUM).read_text()
        except FileNotFoundError:
            expected = None  # a pack from before there were checksums: each of its features has length 1, at least
        except (UnicodeDecodeError, IsADirectoryError):
            expected = ""
        if expected is None:
            sound = all(_are_units(features[i : i + BLOCK]) for i in range(0, len(features), BLOCK))
        else:
            sound = expected == f"{zlib.crc32(features.data, self._start(path)):08x}"
        if sound:
            _SOUND[path] = signature
        else:
            self._drop_damaged(path)
        return sound

    @staticmethod
    def _start(path: Path) -> int:
        """Return the value a checksum starts from, so that features do not pass for those of other images."""
        return zlib.crc32(path.name.encode())

    @staticmethod
    def _write_checksum(folder: Path, checksum: int) -> None:
        (folder / _CHECKSUM).write_text(f"{checksum:08x}")
        sync(folder / _CHECKSUM)

    @contextmanager
    def _writing(self, digests: np.ndarray) -> Iterator[Path]:
        """Yield a temporary folder, which becomes the pack of `digests` when the block ends well."""
        folder = temporary_name(self._path(digests))
        try:
            with _told(self._folder):
                folder.mkdir()
                yield folder
                np.save(folder / _DIGESTS, digests)
                for path in (folder / _DIGESTS, folder / _FEATURES, folder):
                    sync(path)
                try:
                    folder.rename(self._path(digests))
                except OSError as error:
                    # Another process may have made the same pack, and even dropped it since.
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                sync(self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _drop_damaged(self, path: Path) -> None:
        line = f"feature store {path}: it is damaged and was removed; its images are encoded again"
        logging.getLogger("dspt").warning(line)
        self._tell(f"note: {line}")
        self._drop(path)

    def _drop(self, path: Path) -> None:
        """Remove a pack: first its name, so that nobody finds half of it."""
        away = temporary_name(path)
        with suppress(OSError):
            path.rename(away)
        shutil.rmtree(away, ignore_errors=True)


class Index:
    """Where each digest is: a place p stands for row[p] of packs[pack[p]]."""

    def __init__(self, packs: list[tuple[Path, np.ndarray]]) -> None:
        self.packs = packs
        lengths = [len(digests) for _, digests in packs]
        self.pack = np.repeat(np.arange(len(packs)), lengths)
        self.row = np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)])
        keys = _keys(np.concatenate([matrix([]), *(digests for _, digests in packs)]))
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, digests: np.ndarray) -> np.ndarray:
        """Return the place of each digest, -1 for one that is not there."""
        if not len(self._keys):
            return np.full(len(digests), -1)
        keys = _keys(digests)
        near = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[near] == keys, self._order[near], -1)


def matrix(digests: list[bytes]) -> np.ndarray:
    """Return digests as rows of bytes, (n, 32)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def are_in(digests: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which of these digests are among the others."""
    return np.isin(_keys(digests), _keys(others))


def _keys(digests: np.ndarray) -> np.ndarray:
    """Return digests in a form that numpy can sort."""
    return np.ascontiguousarray(digests).view("S32")[:, 0]


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# Packs whose features this process has compared with their checksum, and the state of the file then.
_SOUND: dict[Path, tuple[int, ...]] = {}


def _signature(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _are_units(features: np.ndarray) -> bool:
    lengths = np.einsum("...d,...d->...", features, features)
    return bool((np.abs(lengths - 1) < 1e-2).all())  # NaN is not


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write into a sentence."""
    try:
        with told(f"feature store {folder}", "name another folder, or set DSPT_CACHE"):
            yield
    except FileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None  # another process tidied up at the same moment
        raise
