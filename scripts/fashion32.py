"""The embedded images in CIFAR-10's shape, 32 x 32 x 3, as class folders: run `python scripts/fashion32.py FOLDER`.

They are Fashion-MNIST's, 2,200 of them, grey and 28 x 28, enlarged; 50 of each class go to FOLDER/test, the other 170
to FOLDER/train. A stand-in to try `dspt scratch` and `dspt reproduce cifar10 --data FOLDER` with, where CIFAR-10 is
not at hand. What comes out says nothing about CIFAR-10.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from dspt.data import open_dataset
from dspt.internal.files import replacing

SIDE, TESTED = 32, 50


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    dataset = open_dataset("embedded")
    splits = (dataset.test, dataset.train)
    images = np.concatenate([split.items for split in splits])
    labels = np.concatenate([split.labels for split in splits])
    for label, name in enumerate(dataset.class_names):
        for number, image in enumerate(images[labels == label]):
            path = folder / ("test" if number < TESTED else "train") / name.replace("/", "-") / f"{number:03}.png"
            larger = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR).convert("RGB")
            with replacing(path) as temporary:
                larger.save(temporary, "PNG")
    print(f"{folder}: {TESTED * len(dataset.class_names)} test images, the other {len(images) - 500} train")


if __name__ == "__main__":
    main()
