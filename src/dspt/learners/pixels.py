"""Images as one array of bytes, and what training makes of them: crops, flips, normalised numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dspt.data import Split
from dspt.internal.errors import Fault, InputError
from dspt.internal.seeds import Stream
from dspt.internal.shards import Shards
from dspt.internal.threads import in_threads

PADDING = 4
# Of CIFAR-10, as the paper has them; other images are brought to the same range.
MEAN, STD = (0.492, 0.482, 0.446), (0.247, 0.244, 0.262)


def read(split: Split, name: str) -> np.ndarray:
    """Return the images of a split, uint8 (N, H, W, 3); they must be of one size."""
    items = split.items
    if isinstance(items, np.ndarray) and items.dtype == np.uint8:
        return items if items.ndim == 4 else np.repeat(items[..., None], 3, axis=3)
    if isinstance(items, np.ndarray | Shards):
        raise InputError(
            f"{name} split: it holds features, not images, and a network from scratch learns from images; give those"
        )
    images = list(in_threads(lambda i: _opened(items, i), range(len(items))))
    for position, image in enumerate(images):
        if image.shape != images[0].shape:
            found, first = (f"{w} x {h}" for h, w, _ in (image.shape, images[0].shape))
            raise InputError(
                f"{_name(items, position)}: {found} pixels, but the first image has {first}; a network "
                "from scratch needs images of one size"
            )
    return np.stack(images) if images else np.empty((0, 1, 1, 3), np.uint8)


class PixelReader:
    """Reads the images of a split for a network; none is left out."""

    skipped: tuple[Fault, ...] = ()

    def __call__(self, split: Split, name: str, views: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the images, and their positions in the split."""
        images = read(split, name)
        return images, np.arange(len(images))

    def check_there(self, split: Split) -> None:
        """Leave it to reading, which is quick."""


@dataclass(frozen=True)
class Crops:
    """Where each image is cut from when padded on all sides, and whether it is then mirrored."""

    top: np.ndarray  # (N,) in 0..2 * PADDING
    left: np.ndarray
    flipped: np.ndarray  # (N,) of bool

    def __getitem__(self, rows: np.ndarray) -> Crops:
        return Crops(self.top[rows], self.left[rows], self.flipped[rows])


def draw(n: int, seed: int, epoch: int) -> Crops:
    """Return the crops of n images in an epoch.

    Parameters
    ----------
    n : int
        How many images.
    seed : int
        Seed of the run.
    epoch : int
        The number of the epoch, counted from 0.
    """
    top, left = Stream(seed, "crop", epoch).integers(2 * n, 2 * PADDING + 1).reshape(2, n)
    return Crops(top, left, Stream(seed, "flip", epoch).integers(n, 2).astype(bool))


def cropped(images: Tensor, crops: Crops) -> Tensor:
    """Return a crop of each image, of its own size: images (N, H, W, 3) in, and out.

    Around an image there are PADDING rows and columns of black.
    """
    n, height, width, _ = images.shape
    top, left, flipped = (
        torch.from_numpy(values).to(images.device)[:, None] for values in (crops.top, crops.left, crops.flipped)
    )
    padded = F.pad(images, (0, 0, *[PADDING] * 4))
    rows = top + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = left + torch.where(flipped, columns.flip(0), columns)
    which = torch.arange(n, device=images.device)
    return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalised(images: Tensor) -> Tensor:
    """Return images (N, H, W, 3) of bytes as the network takes them: float (N, 3, H, W)."""
    scale = 1 / (255 * torch.tensor(STD, device=images.device))
    shift = torch.tensor(MEAN, device=images.device) / torch.tensor(STD, device=images.device)
    return (images.float() * scale - shift).permute(0, 3, 1, 2)


def _opened(items: Any, position: int) -> np.ndarray:
    from dspt.data.images import open_image
    from dspt.features import contents

    _, source = contents.read(items[position], position)
    return np.asarray(open_image(source, _name(items, position)))


def _name(items: Any, position: int) -> str:
    from dspt.features import contents

    return contents.name_in(items, position)
