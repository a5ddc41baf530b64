"""CIFAR-10 and CIFAR-100, as they are downloaded or as folders of images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dspt.data import folder, unpickle
from dspt.data.dataset import Dataset, benchmark, listed
from dspt.internal.checks import check_labels
from dspt.internal.errors import InputError, summary
from dspt.internal.names import GENERIC_TEMPLATE, lookup, plain

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_AGAIN = f"download it again from {HOMEPAGE}"
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Download:
    """One of the official downloads: its archive, the folder in it, and the files in that."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return (*self.train, self.test)


@dataclass(frozen=True)
class Cifar:
    """A dataset and what its files are called.

    Attributes
    ----------
    python
        The download whose files are pickles of dicts.
    binary
        The download whose files are labels and pixels, byte after byte.
    label_key
        Where the labels are in such a dict.
    label_bytes
        How many labels stand before the pixels of an image; the last of them is the one.
    """

    name: str
    class_names: tuple[str, ...]
    train_size: int
    test_size: int
    python: Download
    binary: Download
    label_key: str
    label_bytes: int
    template: str = GENERIC_TEMPLATE


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
_FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR10 = Cifar(
    name="cifar-10",
    class_names=tuple(_NAMES.split()),
    train_size=50_000,
    test_size=10_000,
    python=Download("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch"),
    binary=Download(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in _BATCHES),
        "test_batch.bin",
    ),
    label_key="labels",
    label_bytes=1,
)

CIFAR100 = Cifar(
    name="cifar-100",
    class_names=tuple(_FINE_NAMES.split()),
    train_size=50_000,
    test_size=10_000,
    python=Download("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test"),
    binary=Download("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin"),
    label_key="fine_labels",
    label_bytes=2,
)

DATASETS = (CIFAR10, CIFAR100)


_BY_NAME = {plain(dataset.name): dataset for dataset in DATASETS}


def find(name: str) -> Cifar | None:
    """Return the dataset that `name` means, whatever its case and punctuation."""
    return lookup(name, _BY_NAME)


def read(dataset: Cifar, root: Path | str | None) -> Dataset:
    """Return the dataset from the first of its forms that is found in `root`.

    The items of an official download are uint8 (N, 32, 32, 3) in the official order, which is the
    order that human label files count in; those of image folders are paths.
    """
    if root is None or not str(root):
        raise InputError(
            f"{dataset.name}: no root is given",
            f"set `root`, the folder in which {dataset.python.archive} lies",
        )
    root = Path(root).expanduser()
    places = [root, root / dataset.name, root / plain(dataset.name)]
    try:
        for place in places:
            for download in (dataset.python, dataset.binary):
                named = place / download.folder
                if any((named / name).is_file() for name in download.files):
                    return _official(dataset, download, _in_folder(download, named))
                # "train" and "test" may be anything where the folder's name does not say CIFAR.
                if all((place / name).is_file() for name in (download.train[0], download.test)):
                    return _official(dataset, download, _in_folder(download, place))
            for download in (dataset.python, dataset.binary):
                for archive in (place / download.archive, place):
                    if archive.name == download.archive and archive.is_file():
                        return _official(dataset, download, _in_archive(download, archive))
            if _holds_images(dataset, place):
                return _images(dataset, place)
    except OSError as error:
        raise InputError(f"{root}: cannot be searched ({error.strerror})") from None
    raise InputError(
        f"{dataset.name}: nothing found in {root} or in {places[1].name} or {places[2].name} there; "
        f"download {dataset.python.archive} or {dataset.binary.archive} from {HOMEPAGE} and put "
        f"it there as it is, or its folder {dataset.python.folder} or {dataset.binary.folder}, or "
        "images as train/CLASS and test/CLASS"
    )


def _official(dataset: Cifar, download: Download, files: Iterator[tuple[str, BinaryIO, str]]) -> Dataset:
    """Return the dataset in the files of a download, whatever order they come in."""
    sizes = {download.test: dataset.test_size}
    sizes |= dict.fromkeys(download.train, dataset.train_size // len(download.train))
    train, test = (
        (np.zeros((size, _SIDE, _SIDE, 3), np.uint8), np.zeros(size, np.int64))
        for size in (dataset.train_size, dataset.test_size)
    )
    for name, file, where in files:
        pixels, found = (_pickled if download is dataset.python else _binary)(dataset, file, where, sizes[name])
        check_labels(found, len(dataset.class_names), where=where, hint=_AGAIN)
        images, labels = test if name == download.test else train
        start = 0 if name == download.test else download.train.index(name) * sizes[name]
        rows = slice(start, start + sizes[name])
        images[rows] = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        labels[rows] = found
    return Dataset(dataset.name, dataset.class_names, benchmark(*train), benchmark(*test), template=dataset.template)


def _in_folder(download: Download, place: Path) -> Iterator[tuple[str, BinaryIO, str]]:
    for name in download.files:
        path = place / name
        try:
            with open(path, "rb") as file:
                yield name, file, str(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); extract {download.archive} again, from {HOMEPAGE}"
            ) from None


def _in_archive(download: Download, path: Path) -> Iterator[tuple[str, BinaryIO, str]]:
    """Yield the files of a download as they come in its archive; nothing is put on the disk."""
    missing = set(download.files)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                above, _, name = member.name.removeprefix("./").partition("/")
                if above == download.folder and name in download.files and member.isfile():
                    file = archive.extractfile(member)
                    content = file.read() if file else b""
                    missing.discard(name)
                    yield name, io.BytesIO(content), f"{path}: {name}"
            # The checksum of all that was read stands behind the last file.
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    except Exception as error:  # tarfile, gzip, zlib and the operating system all speak up here
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise InputError(f"{path}: a damaged archive ({reason}); {_AGAIN}") from None
    if missing:
        raise InputError(f"{path}: {listed(sorted(missing))} is not in it; {_AGAIN}")


def _pickled(dataset: Cifar, file: BinaryIO, where: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels in a batch that Python 2 pickled."""
    batch = unpickle.load(file, where)
    held = {}
    if isinstance(batch, dict):
        held = {key.decode("latin1") if isinstance(key, bytes) else key: batch[key] for key in batch}
    pixels, labels = held.get("data"), held.get(dataset.label_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, (list, np.ndarray)):
        raise InputError(
            f"{where}: expected a dict with data and {dataset.label_key}, found "
            f"{listed(sorted(map(str, held))) if held else type(batch).__name__}; {_AGAIN}"
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise InputError(
            f"{where}: data must be uint8 of shape ({rows}, {_PIXELS}), found {pixels.dtype} of "
            f"shape {pixels.shape}; {_AGAIN}"
        )
    if len(pixels) != rows or len(labels) != rows:
        raise InputError(f"{where}: expected {rows} images and labels, found {len(pixels)} and {len(labels)}; {_AGAIN}")
    # Asked first, because lists within lists can be few bytes in a pickle and endless as an array.
    if isinstance(labels, np.ndarray) or all(type(label) is int for label in labels):
        numbers = np.asarray(labels)
        if numbers.ndim == 1 and numbers.dtype.kind in "iu":
            return pixels, numbers
    raise InputError(f"{where}: {dataset.label_key} must be whole numbers; {_AGAIN}")


def _binary(dataset: Cifar, file: BinaryIO, where: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels in a batch of bytes."""
    width = dataset.label_bytes + _PIXELS
    content = file.read(rows * width + 1)
    if len(content) != rows * width:
        found = "more" if len(content) > rows * width else f"{len(content)}"
        raise InputError(f"{where}: expected {rows * width} bytes for {rows} images, found {found}; {_AGAIN}")
    table = np.frombuffer(content, np.uint8).reshape(rows, width)
    return table[:, dataset.label_bytes :], table[:, dataset.label_bytes - 1].astype(np.int64)


def _holds_images(dataset: Cifar, place: Path) -> bool:
    train = place / "train"
    if not train.is_dir() or not (place / "test").is_dir():
        return False
    known = set(map(plain, dataset.class_names))
    return any(plain(found.name) in known and found.is_dir() for found in train.iterdir())


def _images(dataset: Cifar, place: Path) -> Dataset:
    """Return the dataset from class folders of images, with labels in the official order."""
    found = folder.read(place, skip_bad=True)
    if found.skipped:
        raise InputError(
            f"{place}: {len(found.skipped)} folders cannot be used ({summary(found.skipped)}); "
            f"{dataset.name} is read whole or not at all"
        )
    official = {plain(name): label for label, name in enumerate(dataset.class_names)}
    unknown = [name for name in found.class_names if plain(name) not in official]
    there = set(map(plain, found.class_names))
    missing = [name for name in dataset.class_names if plain(name) not in there]
    if unknown or missing or len(found.class_names) != len(official):
        what = f"{listed(missing)} missing" if missing else f"{listed(unknown)} unknown"
        raise InputError(
            f"{place / 'train'}: expected the {len(official)} classes of {dataset.name}, found "
            f"{len(found.class_names)} with {what}; give the folder itself to use it as it is"
        )
    renumber = np.array([official[plain(name)] for name in found.class_names], np.int64)
    for part, split, size in (
        ("train", found.train, dataset.train_size),
        ("test", found.test, dataset.test_size),
    ):
        if len(split.labels) != size:
            raise InputError(
                f"{place / part}: expected the {size} images of {dataset.name}, found "
                f"{len(split.labels)}; give the folder itself to use it as it is"
            )
    note = (
        f"{place} holds images in the order of their names, not in the official order of "
        f"{dataset.name}: human label files cannot be used with them."
    )
    return Dataset(
        dataset.name,
        dataset.class_names,
        benchmark(found.train.items, renumber[found.train.labels]),
        benchmark(found.test.items, renumber[found.test.labels]),
        template=dataset.template,
        notes=(note, *found.notes),
        root=found.root,
    )
