"""Class folders: one folder for each class, with or without train and test folders above them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from dspt.data.dataset import Dataset, Split, listed, make_dataset, unusable
from dspt.data.images import HEIC, HEIC_SUFFIXES, reads_heic
from dspt.data.paths import Paths
from dspt.internal.checks import is_text
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import replacing
from dspt.internal.rounding import counted

IMAGE_SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".avif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
}
# Why a folder of a class is left out.
EMPTY = "no images in it"
_KINDS = 5  # of files that were left out, which a sentence names
_TEST_FOLDERS = ("test", "val", "valid", "validation")


def read(root: Path, *, seed: int = 1, test_fraction: float = 0.2, skip_bad: bool = False) -> Dataset:
    """Return the images below `root`, one class for each folder.

    Either `root/class/…` or `root/train/class/…` beside `root/test/class/…`; `val` or `valid`
    stands in for a missing `test`. Without any of them, `test_fraction` of each class is held out:
    which images depends on `seed`, the class name and the number of its images alone.

    Parameters
    ----------
    root : Path
        The folder of class folders, or of train and test folders.
    seed : int
        Seed of the draw of held-out images.
    test_fraction : float
        The part of each class that is held out, above 0 and below 1.
    skip_bad : bool
        Leave out folders that cannot be used and list them in `Dataset.skipped`, instead of stopping at them. HEIC
        images that cannot be read here are listed there, too; they stop nobody.
    """
    notes: list[str] = []
    faults: list[Fault] = []
    ignored = _Ignored()
    train_root, test_root = _split_folders(root, notes)
    names, train = _classes(train_root, "train" if test_root else "", faults, ignored)
    test_names, test = names, None
    if test_root is not None:
        untested: list[Fault] = []  # a class without test images is no fault
        test_names, test = _classes(test_root, "test", untested, ignored)
        faults += [fault for fault in untested if fault.reason != EMPTY]
    if faults and not skip_bad:
        remedy = "put images there or remove the folders"
        raise unusable(f"{root}: {counted(len(faults), 'folder')}", faults, remedy)
    if len(names) < 2:
        raise InputError(
            f"{train_root}: found {counted(len(names), 'class folder')}; give a folder that has one folder of "
            "images for each class, and at least two classes"
        )
    if test_root is not None and test is not None:
        test = _renumbered(test, test_names, names, test_root, train_root, faults, skip_bad)
    notes += ignored.notes()
    if skip_bad:
        faults += ignored.images
    return make_dataset(
        root.resolve().name,
        names,
        train,
        test,
        where=str(root),
        root=str(root),
        missing="has no test folder",
        seed=seed,
        test_fraction=test_fraction,
        notes=notes,
        skipped=faults,
    )


def write_image_folder(dataset: Dataset, folder: Path | str) -> Path:
    """Return `folder`, to which the image arrays of `dataset` were written as class folders."""
    folder = Path(folder)
    if dataset.holds_features or not isinstance(dataset.train.items, np.ndarray):
        raise InputError(f"dataset {dataset.name}: only image arrays can be written as files")
    for name in dataset.class_names:
        if not name or name.startswith(".") or set(name) & set('/\\\0<>:"|?*'):
            raise InputError(f"class {name!r} cannot be the name of a folder; rename it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: it is there and not an empty folder; give a new folder")
    if folder.resolve() == Path.cwd():
        raise InputError(f"{folder}: it is the working directory, which stays as it is; give a new folder")
    with replacing(folder.resolve()) as whole:  # half of it would pass for a smaller dataset
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            for name in dataset.class_names:
                (whole / part / name).mkdir(parents=True)
            for i, (image, label) in enumerate(zip(split.items, split.labels, strict=True)):
                Image.fromarray(image).save(whole / part / dataset.class_names[label] / f"{i:06}.png")
    return folder


def _split_folders(root: Path, notes: list[str]) -> tuple[Path, Path | None]:
    """Return the folders that hold the train and the test classes; None for a missing test folder."""
    folders = [entry.name for entry in _entries(root) if _is_folder(entry)]
    # A class may be called "train"; then there are images in it, not folders.
    if "train" not in folders or not any(map(_is_folder, _entries(root / "train"))):
        return root, None
    tests = [name for name in _TEST_FOLDERS if name in folders]
    others = [name for name in folders if name not in ("train", *tests[:1])]
    if not tests:
        if others:
            raise InputError(
                f"{root}: beside {listed(others)} stands a train folder that has folders itself, so "
                "it is not clear what the classes are; add a test folder, or give train alone"
            )
        return root / "train", None
    if tests[0] != "test":
        notes.append(f"{root} has no test folder: {tests[0]} is used as the test split.")
    if others:
        notes.append(f"Not used in {root}: folder {listed(others)}.")
    return root / "train", root / tests[0]


@dataclass
class _Ignored:
    """Files that are no images: how many of each suffix, and the first of them; and images that cannot be read here."""

    suffixes: Counter[str] = field(default_factory=Counter)
    first: str = ""
    images: list[Fault] = field(default_factory=list)

    def add(self, file: str) -> None:
        self.first = self.first or file
        self.suffixes[_suffix(file)] += 1

    def notes(self) -> Iterator[str]:
        """Yield sentences about them."""
        if self.suffixes:
            kinds = [f"{count} {suffix or 'without a suffix'}" for suffix, count in self.suffixes.most_common()]
            more = f" and {len(kinds) - _KINDS} other kinds" if len(kinds) > _KINDS else ""
            one = self.suffixes.total() == 1
            why = (
                f"{'was' if one else 'were'} left out, because "
                f"{'it is no image or lies' if one else 'they are no images or lie'} outside"
            )
            yield (
                f"{counted(self.suffixes.total(), 'file')} {why} the class folders "
                f"({', '.join(kinds[:_KINDS])}{more}); the first is {self.first}."
            )
        heic = sum(self.suffixes[suffix] for suffix in HEIC_SUFFIXES)
        if heic and not reads_heic():
            yield f"{heic} of them are HEIC images; pip install 'dspt[heic]' to have them read."


def _classes(root: Path, split: str, faults: list[Fault], ignored: _Ignored) -> tuple[tuple[str, ...], Split]:
    """Yield the class folders in `root` that have images, and their images in order."""
    above = {_identity(folder) for folder in (root.resolve(), *root.resolve().parents)}
    names: list[str] = []
    counts: list[int] = []

    def images() -> Iterator[str]:
        for entry in _entries(root):
            if not _is_folder(entry):
                ignored.add(entry.path)
                continue
            if not is_text(entry.name):
                faults.append(Fault(entry.path, "its name is not UTF-8 text", split))
                continue
            count, told = 0, len(faults)
            for file in walk(entry.path, above):
                if isinstance(file, Fault):
                    faults.append(replace(file, split=split))
                elif is_image(file):
                    count += 1
                    yield file
                else:
                    ignored.add(file)
                    if _suffix(file) in HEIC_SUFFIXES:
                        ignored.images.append(Fault(file, HEIC, split))
            if count:
                names.append(entry.name)
                counts.append(count)
            elif len(faults) == told:
                faults.append(Fault(entry.path, EMPTY, split))

    items = Paths(images())
    return tuple(names), Split(items, np.repeat(np.arange(len(names), dtype=np.int64), counts))


def _renumbered(
    split: Split,
    own: Sequence[str],
    names: Sequence[str],
    where: Path,
    train: Path,
    faults: list[Fault],
    skip_bad: bool,
) -> Split:
    """Return `split`, whose labels count the names in `own`, with labels that count `names`."""
    position = {name: c for c, name in enumerate(names)}
    unknown = [name for name in own if name not in position]
    if unknown and not skip_bad:
        raise InputError(
            f"{where}: class {listed(unknown)} has no images in {train}; "
            "test images must belong to a class that is trained"
        )
    reason = f"its class has no images in {train}"
    faults += [Fault(os.path.join(where, name), reason, "test") for name in unknown]
    labels = np.array([position.get(name, -1) for name in own], np.int64)[split.labels]
    return Split(split.items, labels).take(np.flatnonzero(labels >= 0))


def walk(folder: Path | str, above: Collection[tuple[int, int]] = ()) -> Iterator[str | Fault]:
    """Yield all files below `folder` that are not hidden, in order, and its folders that cannot be listed.

    Links may lead in circles or back `above`, to folders known by device and inode: each folder is walked once.
    """
    stack, seen = [(os.fspath(folder), True)], set(above)
    while stack:
        path, is_folder = stack.pop()
        if not is_folder:
            yield path
            continue
        try:
            identity = _identity(path)
            if identity not in seen:
                seen.add(identity)
                stack += [(entry.path, _is_folder(entry)) for entry in reversed(_listed(path))]
        except OSError as error:
            yield Fault(path, f"cannot be listed ({error.strerror})")


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        return _listed(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror})") from None


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return what is in a folder and not hidden, in order; or raise `OSError`."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_image(file: str) -> bool:
    """Return whether a file is named like an image that can be read."""
    suffix = _suffix(file)
    return suffix in IMAGE_SUFFIXES or (suffix in HEIC_SUFFIXES and reads_heic())


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()
