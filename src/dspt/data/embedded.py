"""The images that come with the package, so that everything runs without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspt.data.dataset import Dataset, benchmark

IMAGES = Path(__file__).parent.parent / "assets" / "images.npz"


def read() -> Dataset:
    """Return the embedded dataset: grey uint8 images (N, H, W)."""
    with np.load(IMAGES, allow_pickle=False) as arrays:
        return Dataset(
            name="embedded",
            class_names=tuple(map(str, arrays["classnames"])),
            train=benchmark(arrays["train_x"], arrays["train_y"].astype(np.int64)),
            test=benchmark(arrays["test_x"], arrays["test_y"].astype(np.int64)),
            model="embedded",  # made for these images; no other data suit it
        )
