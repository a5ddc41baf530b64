"""Class folders: one folder for each class, with or without train and test folders above them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from dspt.data import Dataset, Split
from dspt.errors import InputError
from dspt.seeds import Stream

IMAGE_SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".avif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
}
_TEST_FOLDERS = ("test", "val", "valid")

# Class name -> image paths, sorted.
_Classes = dict[str, list[str]]


def read(root: Path, *, seed: int = 1, test_fraction: float = 0.2) -> Dataset:
    """Return the images below `root`, one class for each folder.

    Either `root/class/…` or `root/train/class/…` beside `root/test/class/…`; `val` or `valid`
    stands in for a missing `test`. Without any of them, `test_fraction` of each class is held out:
    which images depends on `seed`, the class name and the number of its images alone.
    """
    notes: list[str] = []
    train_root, test_root = _split_folders(root, notes)
    ignored: list[str] = []
    train = _classes(train_root, ignored)
    empty = [name for name, images in train.items() if not images]
    if len(train) < 2:
        raise InputError(
            f"{train_root}: found {len(train)} class folders; give a folder that has one folder of "
            "images for each class, and at least two classes"
        )
    if empty:
        raise InputError(
            f"{train_root}: no images in class {_list(empty)}; add some or remove the folder"
        )
    if test_root is None:
        train, test = _hold_out(train, seed, test_fraction)
        held = sum(map(len, test.values()))
        total = held + sum(map(len, train.values()))
        notes.append(
            f"{root} has no test folder: {held} of {total} images, drawn from each class with seed "
            f"{seed}, are held out as the test split."
        )
    else:
        test = _classes(test_root, ignored)
    test = {name: images for name, images in test.items() if images}
    unknown = sorted(test.keys() - train.keys())
    if unknown:
        raise InputError(
            f"{test_root}: class {_list(unknown)} has no folder in {train_root}; "
            "test images must belong to a class that is trained"
        )
    if not test:
        raise InputError(f"{test_root or root}: no images to test with; add some to each class")
    if ignored:
        notes.append(
            f"{len(ignored)} files were left out, because they are no images or lie outside the "
            f"class folders; the first is {ignored[0]}."
        )
    names = tuple(train)
    return Dataset(
        root.resolve().name, names, _split(train, names), _split(test, names), notes=tuple(notes)
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
    try:
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            for name in dataset.class_names:
                (folder / part / name).mkdir(parents=True)
            for i, (image, label) in enumerate(zip(split.items, split.labels, strict=True)):
                file = folder / part / dataset.class_names[label] / f"{i:06}.png"
                Image.fromarray(image).save(file)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    return folder


def _split_folders(root: Path, notes: list[str]) -> tuple[Path, Path | None]:
    """Give the folders that hold the train and the test classes; None for a missing test folder."""
    folders = [entry.name for entry in _entries(root) if _is_folder(entry)]
    # A class may be called "train"; then there are images in it, not folders.
    if "train" not in folders or not any(map(_is_folder, _entries(root / "train"))):
        return root, None
    tests = [name for name in _TEST_FOLDERS if name in folders]
    others = [name for name in folders if name not in ("train", *tests[:1])]
    if not tests:
        if others:
            raise InputError(
                f"{root}: beside {_list(others)} stands a train folder that has folders itself, so "
                "it is not clear what the classes are; add a test folder, or give train alone"
            )
        return root / "train", None
    if tests[0] != "test":
        notes.append(f"{root} has no test folder: {tests[0]} is used as the test split.")
    if others:
        notes.append(f"Not used in {root}: folder {_list(others)}.")
    return root / "train", root / tests[0]


def _classes(root: Path, ignored: list[str]) -> _Classes:
    """Give the images of each class folder in `root`; what is no image is added to `ignored`."""
    classes = {}
    above = {_identity(folder) for folder in (root.resolve(), *root.resolve().parents)}
    for entry in _entries(root):
        if _is_folder(entry):
            files = list(_files(entry, above))
            classes[entry.name] = [file for file in files if _is_image(file)]
            ignored += [file for file in files if not _is_image(file)]
        else:
            ignored.append(entry.path)
    return classes


def _files(folder: os.DirEntry[str], above: set[tuple[int, int]]) -> Iterator[str]:
    """Give all files below `folder`, in order; links may lead in circles or back `above`."""
    stack, seen = [folder], set(above)
    while stack:
        entry = stack.pop()
        if not _is_folder(entry):
            yield entry.path
        elif (identity := _identity(entry.path)) not in seen:
            seen.add(identity)
            stack += reversed(_entries(entry.path))


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror})") from None
    return sorted(visible, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES


def _hold_out(classes: _Classes, seed: int, fraction: float) -> tuple[_Classes, _Classes]:
    """Give train and test, at least one image of each in every class of two images or more."""
    if not 0 < fraction < 1:
        raise InputError(f"test fraction: expected a number between 0 and 1, found {fraction}")
    train, test = {}, {}
    for name, images in classes.items():
        count = min(max(1, int(len(images) * fraction + 0.5)), len(images) - 1)
        chosen = set(Stream(seed, "split", name).permutation(len(images))[:count].tolist())
        train[name] = [image for i, image in enumerate(images) if i not in chosen]
        test[name] = [image for i, image in enumerate(images) if i in chosen]
    return train, test


def _split(classes: _Classes, names: tuple[str, ...]) -> Split:
    items = [image for name in names for image in classes.get(name, ())]
    counts = [len(classes.get(name, ())) for name in names]
    return Split(items, np.repeat(np.arange(len(names), dtype=np.int64), counts))


def _list(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
