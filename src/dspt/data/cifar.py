"""CIFAR-10 and CIFAR-100, as they are downloaded or as folders of images."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dspt.data import folder, unpickle
from dspt.data.dataset import Dataset, Split, listed
from dspt.internal.checks import check_labels
from dspt.internal.errors import InputError, summary

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Form:
    """One of the official downloads: its archive, the folder in it, and the files in that."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


@dataclass(frozen=True)
class Entry:
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
    python: Form
    binary: Form
    label_key: str
    label_bytes: int
    template: str = "a photo of a {}."
    homepage: str = HOMEPAGE


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

CIFAR10 = Entry(
    name="cifar-10",
    class_names=tuple(_NAMES.split()),
    train_size=50_000,
    test_size=10_000,
    python=Form("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch"),
    binary=Form(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in _BATCHES),
        "test_batch.bin",
    ),
    label_key="labels",
    label_bytes=1,
)

CIFAR100 = Entry(
    name="cifar-100",
    class_names=tuple(_FINE_NAMES.split()),
    train_size=50_000,
    test_size=10_000,
    python=Form("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test"),
    binary=Form("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin"),
    label_key="fine_labels",
    label_bytes=2,
)

ENTRIES = (CIFAR10, CIFAR100)


def find(name: str) -> Entry | None:
    """Return the dataset that `name` means, whatever its case and punctuation.

    A name with a slash is a path, as in "./cifar10", and never a dataset.
    """
    if re.search(r"[/\\]", name):
        return None
    return next((entry for entry in ENTRIES if _plain(entry.name) == _plain(name)), None)


def read(entry: Entry, root: Path | str | None) -> Dataset:
    """Return the dataset from the first of its forms that is found in `root`.

    The items of an official download are uint8 (N, 32, 32, 3) in the official order, which is the
    order that human label files count in; those of image folders are paths.
    """
    if root is None or not str(root):
        raise InputError(
            f"{entry.name}: no root is given",
            f"set `root`, the folder in which {entry.python.archive} lies",
        )
    root = Path(root).expanduser()
    places = [root, root / entry.name, root / _plain(entry.name)]
    try:
        for place in places:
            for form in (entry.python, entry.binary):
                named = place / form.folder
                if any((named / name).is_file() for name in form.files):
                    return _official(entry, form, _in_folder(entry, form, named))
                # "train" and "test" may be anything where the folder's name does not say CIFAR.
                if all((place / name).is_file() for name in (form.train[0], form.test)):
                    return _official(entry, form, _in_folder(entry, form, place))
            for form in (entry.python, entry.binary):
                for archive in (place / form.archive, place):
                    if archive.name == form.archive and archive.is_file():
                        return _official(entry, form, _in_archive(entry, form, archive))
            if _holds_images(entry, place):
                return _images(entry, place)
    except OSError as error:
        raise InputError(f"{root}: cannot be searched ({error.strerror})") from None
    raise InputError(
        f"{entry.name}: nothing found in {root} or in {places[1].name} or {places[2].name} there; "
        f"download {entry.python.archive} or {entry.binary.archive} from {entry.homepage} and put "
        f"it there as it is, or its folder {entry.python.folder} or {entry.binary.folder}, or "
        "images as train/CLASS and test/CLASS"
    )


def _official(entry: Entry, form: Form, files: Iterator[tuple[str, BinaryIO, str]]) -> Dataset:
    """Give the dataset in the files of a download, whatever order they come in."""
    sizes = {form.test: entry.test_size}
    sizes |= dict.fromkeys(form.train, entry.train_size // len(form.train))
    train, test = (
        (np.zeros((size, _SIDE, _SIDE, 3), np.uint8), np.zeros(size, np.int64))
        for size in (entry.train_size, entry.test_size)
    )
    for name, file, where in files:
        pixels, found = (_pickled if form is entry.python else _binary)(
            entry, file, where, sizes[name]
        )
        check_labels(found, len(entry.class_names), where=where, hint=_again(entry))
        images, labels = test if name == form.test else train
        start = 0 if name == form.test else form.train.index(name) * sizes[name]
        rows = slice(start, start + sizes[name])
        images[rows] = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        labels[rows] = found
    return Dataset(
        entry.name, entry.class_names, Split(*train), Split(*test), template=entry.template
    )


def _in_folder(entry: Entry, form: Form, place: Path) -> Iterator[tuple[str, BinaryIO, str]]:
    for name in form.files:
        path = place / name
        try:
            with open(path, "rb") as file:
                yield name, file, str(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); extract {form.archive} again, from "
                f"{entry.homepage}"
            ) from None


def _in_archive(entry: Entry, form: Form, path: Path) -> Iterator[tuple[str, BinaryIO, str]]:
    """Give the files of a download as they come in its archive; nothing is put on the disk."""
    missing = set(form.files)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                above, _, name = member.name.removeprefix("./").partition("/")
                if above == form.folder and name in form.files and member.isfile():
                    file = archive.extractfile(member)
                    content = file.read() if file else b""
                    missing.discard(name)
                    yield name, io.BytesIO(content), f"{path}: {name}"
            # The checksum of all that was read stands behind the last file.
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    except Exception as error:  # tarfile, gzip, zlib and the operating system all speak up here
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise InputError(f"{path}: a damaged archive ({reason}); {_again(entry)}") from None
    if missing:
        raise InputError(f"{path}: {listed(sorted(missing))} is not in it; {_again(entry)}")


def _pickled(entry: Entry, file: BinaryIO, where: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the pixels and labels in a batch that Python 2 pickled."""
    batch = unpickle.load(file, where)
    held = {}
    if isinstance(batch, dict):
        held = {
            key.decode("latin1") if isinstance(key, bytes) else key: batch[key] for key in batch
        }
    pixels, labels = held.get("data"), held.get(entry.label_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, (list, np.ndarray)):
        raise InputError(
            f"{where}: expected a dict with data and {entry.label_key}, found "
            f"{listed(sorted(map(str, held))) if held else type(batch).__name__}; {_again(entry)}"
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise InputError(
            f"{where}: data must be uint8 of shape ({rows}, {_PIXELS}), found {pixels.dtype} of "
            f"shape {pixels.shape}; {_again(entry)}"
        )
    if len(pixels) != rows or len(labels) != rows:
        raise InputError(
            f"{where}: expected {rows} images and labels, found {len(pixels)} and {len(labels)}; "
            f"{_again(entry)}"
        )
    # Asked first, because lists within lists can be few bytes in a pickle and endless as an array.
    if isinstance(labels, np.ndarray) or all(type(label) is int for label in labels):
        numbers = np.asarray(labels)
        if numbers.ndim == 1 and numbers.dtype.kind in "iu":
            return pixels, numbers
    raise InputError(f"{where}: {entry.label_key} must be whole numbers; {_again(entry)}")


def _binary(entry: Entry, file: BinaryIO, where: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the pixels and labels in a batch of bytes."""
    width = entry.label_bytes + _PIXELS
    content = file.read(rows * width + 1)
    if len(content) != rows * width:
        found = "more" if len(content) > rows * width else f"{len(content)}"
        raise InputError(
            f"{where}: expected {rows * width} bytes for {rows} images, found {found}; "
            f"{_again(entry)}"
        )
    table = np.frombuffer(content, np.uint8).reshape(rows, width)
    return table[:, entry.label_bytes :], table[:, entry.label_bytes - 1].astype(np.int64)


def _holds_images(entry: Entry, place: Path) -> bool:
    train = place / "train"
    if not train.is_dir() or not (place / "test").is_dir():
        return False
    names = set(map(_plain, entry.class_names))
    return any(_plain(found.name) in names and found.is_dir() for found in train.iterdir())


def _images(entry: Entry, place: Path) -> Dataset:
    """Give the dataset from class folders of images, with labels in the official order."""
    found = folder.read(place, skip_bad=True)
    if found.skipped:
        raise InputError(
            f"{place}: {len(found.skipped)} folders cannot be used ({summary(found.skipped)}); "
            f"{entry.name} is read whole or not at all"
        )
    official = {_plain(name): label for label, name in enumerate(entry.class_names)}
    unknown = [name for name in found.class_names if _plain(name) not in official]
    there = set(map(_plain, found.class_names))
    missing = [name for name in entry.class_names if _plain(name) not in there]
    if unknown or missing or len(found.class_names) != len(official):
        what = f"{listed(missing)} missing" if missing else f"{listed(unknown)} unknown"
        raise InputError(
            f"{place / 'train'}: expected the {len(official)} classes of {entry.name}, found "
            f"{len(found.class_names)} with {what}; give the folder itself to use it as it is"
        )
    renumber = np.array([official[_plain(name)] for name in found.class_names], np.int64)
    for part, split, size in (
        ("train", found.train, entry.train_size),
        ("test", found.test, entry.test_size),
    ):
        if len(split.labels) != size:
            raise InputError(
                f"{place / part}: expected the {size} images of {entry.name}, found "
                f"{len(split.labels)}; give the folder itself to use it as it is"
            )
    note = (
        f"{place} holds images in the order of their names, not in the official order of "
        f"{entry.name}: human label files cannot be used with them."
    )
    return Dataset(
        entry.name,
        entry.class_names,
        Split(found.train.items, renumber[found.train.labels]),
        Split(found.test.items, renumber[found.test.labels]),
        template=entry.template,
        notes=(note, *found.notes),
    )


def _again(entry: Entry) -> str:
    return f"download it again from {entry.homepage}"


def _plain(name: str) -> str:
    """Give a name in small letters and digits alone."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
