"""The paper's nine datasets, in the folders and with the splits that CoOp gave them."""

from __future__ import annotations

import os
import re
import reprlib
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dspt.data.dataset import Dataset, Split, benchmark, unusable
from dspt.data.paths import Paths
from dspt.internal.checks import check_names
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import check_regular, parse_json, read_json
from dspt.internal.names import lookup, plain

SPLITS = ("train", "val", "test")
USED = ("train", "test")


@dataclass(frozen=True)
class NamedDataset:
    """What is known about a dataset before it is looked at.

    Attributes
    ----------
    folder
        Its place below the root of all datasets; the split files lie in it.
    images
        What the paths in the split files start from, seen from `folder`.
    split_files
        One JSON file; or a list of class names and one list of images for each split.
    train, val, test
        Numbers of images.
    template
        The prompt of zero-shot classification, with {} for the class name.
    prepare
        A command that makes the images, where they are not downloaded.
    split_source
        Where the split files come from.
    """

    name: str
    folder: str
    images: str
    split_files: tuple[str, ...]
    classes: int
    train: int
    val: int
    test: int
    template: str
    licence: str
    homepage: str
    aliases: tuple[str, ...] = ()
    prepare: str = ""
    split_source: str = "https://github.com/KaiyangZhou/CoOp (DATASETS.md)"

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Images to train, validate and test with, and classes."""
        return self.train, self.val, self.test, self.classes

    def bad_split(self, where: Path, what: str) -> InputError:
        """Return the error for a split file in which something is wrong."""
        return InputError(f"{where}: {what}; put the original in its place, from {self.split_source}")

    @property
    def image_source(self) -> str:
        """Where the images come from, in words that follow a semicolon."""
        where = f"the official homepage is {self.homepage}"
        return f"make them with {self.prepare}; {where}" if self.prepare else where


def _known() -> tuple[NamedDataset, ...]:
    """Return the datasets in nine.json, in the order of the paper's protocol."""
    rows: list[dict[str, Any]] = read_json(Path(__file__).with_name("nine.json"))
    for row in rows:
        row |= {key: tuple(row.get(key, ())) for key in ("split_files", "aliases")}
    return tuple(NamedDataset(**row) for row in rows)


DATASETS = _known()
_BY_NAME = {plain(name): dataset for dataset in DATASETS for name in (dataset.name, dataset.folder, *dataset.aliases)}


def find(name: str) -> NamedDataset | None:
    """Return the dataset of this name or usual alias, whatever its case and punctuation."""
    return lookup(name, _BY_NAME)


def read(dataset: NamedDataset, root: Path | str | None, *, skip_bad: bool = False) -> Dataset:
    """Return the train and test splits of a dataset that lies below `root` in CoOp's layout.

    The validation split is left alone: its images are neither trained on nor tested with, and need
    not be there. Underscores in class names stay; labels and their order are the split file's.

    Parameters
    ----------
    dataset : NamedDataset
        Which dataset.
    root : Path or str
        The folder in which the dataset's own folder lies; None is an error.
    skip_bad : bool
        Do not stop at images that are missing one by one.

    Raises
    ------
    InputError
        If split files or images are missing or are not the ones the paper used. With `skip_bad`,
        images that are missing one by one stay in the splits, so that noise and few-shot sampling
        count as ever, and are left out when images are read.
    """
    root = given_root(dataset, root)
    listing = list_images(dataset, root)
    if wrong := wrong_sizes(dataset, root, listing):
        raise InputError(wrong)
    base = image_folder(dataset, root)
    if not os.path.isdir(base):
        raise InputError(no_images(dataset, root))
    there = Files(base)
    splits: dict[str, Split] = {}
    faults: list[Fault] = []
    for split in USED:
        files = listing.files[split]
        lacking = [Fault(os.path.join(base, file), reason, split) for file in files if (reason := there.lack(file))]
        if len(lacking) == len(files):
            raise InputError(
                f"{dataset.name}: none of the {split} images is below {base}; put them there ({dataset.image_source})"
            )
        faults += lacking
        items = Paths(os.path.join(base, file) for file in files)
        splits[split] = benchmark(items, listing.labels[split])
    if faults and not skip_bad:
        total = dataset.train + dataset.test
        raise unusable(
            f"{dataset.name}: {len(faults)} of {total} train and test images",
            faults,
            f"put them there ({dataset.image_source})",
        )
    return Dataset(
        dataset.name,
        listing.class_names,
        splits["train"],
        splits["test"],
        template=dataset.template,
        root=str(base),
    )


def at(folder: Path) -> NamedDataset | None:
    """Return the dataset whose folder this is, known by its name and its split file."""
    for dataset in DATASETS:
        if folder.resolve().name == dataset.folder and all(
            os.path.isfile(folder / file) for file in dataset.split_files
        ):
            return dataset
    return None


@dataclass(frozen=True)
class Listing:
    """What split files say: class names, and for each split the images and their labels."""

    class_names: tuple[str, ...]
    files: dict[str, list[str]]
    labels: dict[str, np.ndarray]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Images to train, validate and test with, and classes."""
        train, val, test = (len(self.files[split]) for split in SPLITS)
        return train, val, test, len(self.class_names)


class Files:
    """The files below a folder; each folder is listed once, however many files are asked for."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._folders: dict[str, set[str] | str] = {}

    def lack(self, file: str) -> str:
        """Return why `file`, a relative path, is not there; nothing if it is."""
        folder, name = os.path.split(file)
        if folder not in self._folders:
            self._folders[folder] = self._listed(folder)
        listed = self._folders[folder]
        if isinstance(listed, str):
            return listed
        return "" if name in listed else "no such file"

    def _listed(self, folder: str) -> set[str] | str:
        try:
            with os.scandir(os.path.join(self._base, folder)) as entries:
                return {entry.name for entry in entries if _is_file(entry)}
        except (FileNotFoundError, NotADirectoryError):
            return "no such file"
        except OSError as error:
            return f"its folder cannot be listed ({error.strerror})"


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()  # known from the listing, except for links
    except OSError:  # a link to itself
        return False


def given_root(dataset: NamedDataset, root: Path | str | None) -> Path:
    """Return `root` as a folder that is there."""
    if root is None or not str(root):
        raise InputError(
            f"{dataset.name}: no root is given",
            f"set `root`, the folder in which {dataset.folder} lies",
        )
    root = Path(root).expanduser()
    if not os.path.isdir(root):
        what = "not a folder" if os.path.exists(root) else "no such folder"
        raise InputError(f"root {root}: {what}; give the folder in which {dataset.folder} lies for {dataset.name}")
    return root


def split_paths(dataset: NamedDataset, root: Path) -> list[Path]:
    """Return where the split files belong."""
    return [root / dataset.folder / file for file in dataset.split_files]


def image_folder(dataset: NamedDataset, root: Path) -> Path:
    """Return where the images belong."""
    return root / dataset.folder / dataset.images


def no_images(dataset: NamedDataset, root: Path) -> str:
    """Return the sentence that says that the folder of images is missing."""
    return (
        f"{dataset.name}: its images belong in {image_folder(dataset, root)}, which is not there; "
        f"{dataset.image_source}"
    )


def wrong_sizes(dataset: NamedDataset, root: Path, listing: Listing) -> str:
    """Return the sentence that says how the split is not the paper's; nothing if it is.

    Parameters
    ----------
    dataset : NamedDataset
        Has the paper's numbers of images and classes.
    root : Path
        The folder in which the dataset's own folder lies, for the sentence.
    listing : Listing
        What the split files say.

    Returns
    -------
    str
        The sentence; "" if all numbers are the paper's.
    """
    if listing.sizes == dataset.sizes:
        return ""
    words = "{} train, {} val and {} test images of {} classes"
    where = split_paths(dataset, root)
    return (
        f"{where[0] if len(where) == 1 else where[0].parent}: found "
        f"{words.format(*listing.sizes)}, expected {words.format(*dataset.sizes)}; put the original "
        f"split in its place, from {dataset.split_source}"
    )


def list_images(dataset: NamedDataset, root: Path) -> Listing:
    """Return what the split files below `root` say, whatever its size."""
    files = split_paths(dataset, root)
    missing = [file.name for file in files if not os.path.exists(file)]
    if missing:
        are, them = ("are", "them") if len(missing) > 1 else ("is", "it")
        raise InputError(
            f"{dataset.name}: {', '.join(missing)} {are} not in {files[0].parent}; put {them} there, "
            f"from {dataset.split_source}, since no random split is made instead"
        )
    if len(files) == 1:
        return _from_json(dataset, files[0])
    return _from_lists(dataset, files)


_Rows = dict[str, list[tuple[str, int]]]


def _from_json(dataset: NamedDataset, file: Path) -> Listing:
    """Read {"train" | "val" | "test": [[path, label, class name], ...]}."""
    text = _text(file)
    try:
        value = parse_json(text)
    except InputError as error:
        raise dataset.bad_split(file, str(error)) from None
    names: dict[int, str] = {}
    found: _Rows = {}
    for split in SPLITS:
        rows = value.get(split) if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise dataset.bad_split(file, f"there is no list {split!r} of images in it")
        found[split] = []
        for i, row in enumerate(rows):
            if not _is_row(row):
                what = f"{split} row {i} is {reprlib.repr(row)}"
                raise dataset.bad_split(file, f"{what}, which is not [path, label, class name]")
            path, label, name = row
            if names.setdefault(label, name) != name:
                both = f"both {names[label]!r} and {name!r} (in {split} row {i})"
                raise dataset.bad_split(file, f"label {label} is called {both}")
            found[split].append((path, label))
    gap = next(label for label in count() if label not in names)
    if gap < len(names):
        what = f"no image has label {gap}, though labels go up to {max(names)}"
        raise dataset.bad_split(file, what)
    return _listing(dataset, file, [names[label] for label in range(gap)], found)


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    path, label, name = row
    return (
        isinstance(path, str)
        and isinstance(name, str)
        and type(label) is int  # true and false are whole numbers to Python
        and label >= 0
        and not re.search("[\0\ud800-\udfff]", path + name)
    )


def _from_lists(dataset: NamedDataset, files: list[Path]) -> Listing:
    """Read class names in label order, and for each split lines "ID class name" of ID.jpg."""
    names = [line for _, line in _lines(files[0])]
    labels = {name: label for label, name in enumerate(names)}
    found: _Rows = {}
    for split, file in zip(SPLITS, files[1:], strict=True):
        found[split] = []
        for number, line in _lines(file):
            image, _, name = line.partition(" ")
            if name.strip() not in labels:
                what = f"line {number} is {reprlib.repr(line)}"
                wanted = f"an image and a class of {files[0].name}"
                raise dataset.bad_split(file, f"{what}, which is not {wanted}")
            found[split].append((f"{image}.jpg", labels[name.strip()]))
    return _listing(dataset, files[0].parent, names, found)


def _lines(file: Path) -> list[tuple[int, str]]:
    lines = enumerate(_text(file).split("\n"), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _text(file: Path) -> str:
    try:
        check_regular(file)
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"{file}: it begins with a byte-order mark; save it as UTF-8 without one, or put the original in its place"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text (at byte {error.start}); put the original in its place") from None


# Absolute on any system, or above the folder of images.
_ASTRAY = re.compile(r"^$|^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)|\0")


def _listing(dataset: NamedDataset, where: Path, names: list[str], found: _Rows) -> Listing:
    check_names(names, str(where))
    seen: dict[str, str] = {}
    for split, rows in found.items():
        for path, _ in rows:
            if _ASTRAY.search(path):
                below = f"{dataset.folder}/{dataset.images}"
                raise dataset.bad_split(where, f"{split} image {path!r} is not a path below {below}")
            if path in seen:
                twice = split if seen[path] == split else f"{seen[path]} and {split}"
                raise dataset.bad_split(where, f"image {path!r} is listed twice, in {twice}")
            seen[path] = split
    return Listing(
        tuple(names),
        {split: [path for path, _ in rows] for split, rows in found.items()},
        {split: np.array([label for _, label in rows], np.int64) for split, rows in found.items()},
    )
