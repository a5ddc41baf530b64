"""Encoding: JPEG files against the image tower alone on pixels in memory, and bfloat16 against float32.

What is compared is measured in turn and compared pair by pair, since a machine's speed drifts.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from dspt.backbone.image import ImageTower, Preprocessing
from dspt.bench.timing import ratios, seconds, spread
from dspt.data.images import open_image
from dspt.features import embed
from dspt.features.decoding import Decoder, Look
from dspt.internal.device import precisions_of_the_cpu
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream

# The usual size of a photograph in the paper's datasets.
WIDTH, HEIGHT = 500, 375


def measure(rounds: int, images: int, reporter: Reporter) -> dict[str, float]:
    """Return images/s of the tower alone and from files, and the fraction that is reached.

    Parameters
    ----------
    rounds : int
        How often encoding from files is timed, each time between two timings of the tower alone.
    images : int
        How many images are encoded each time.
    reporter : Reporter
        Shows how far the work is.

    Returns
    -------
    dict of str to float
        Medians of images/s "tower" and "files"; the "fraction", its median, "lowest" and "highest"; "decode_ms",
        milliseconds to open one image and cut its view. Where the processor has bfloat16, images/s of the tower alone
        in it, "bfloat16", and how many times float32's that is, "bfloat16_ratio" with "_lowest" and "_highest".
    """
    tower = vit_b16()
    side = tower.preprocessing.crop
    pixels = (Stream(0, "bench", "pixels").uniform(images * side * side * 3) * 256).astype(np.uint8)
    views = pixels.reshape(images, side, side, 3)
    size = tower.batch_size()

    def alone(tower: ImageTower = tower) -> None:
        for start in range(0, images, size):
            tower(views[start : start + size])

    def from_files() -> None:
        embed(files, tower, decoder=decoder)

    def decode() -> None:
        for file in files:
            tower.preprocessing.test_view(open_image(file))

    with (
        tempfile.TemporaryDirectory() as folder,
        Decoder(Look(tower.preprocessing), processes=True) as decoder,
        reporter.task("encoding", 2 * rounds + 1) as update,
    ):
        files = photographs(Path(folder), images)
        decoding = seconds(decode)
        embed(files[:size], tower, decoder=decoder)  # workers start, memory is taken
        tower_rates, file_rates = [images / seconds(alone)], []
        update(1, "")
        for number in range(rounds):
            file_rates.append(images / seconds(from_files))
            update(2 * number + 2, "")
            tower_rates.append(images / seconds(alone))
            update(2 * number + 3, "")
    fractions = ratios(file_rates, tower_rates)
    low = {}
    if "bfloat16" in precisions_of_the_cpu():
        lower = vit_b16("bfloat16")
        alone(lower)  # weights are laid out, memory is taken
        around, between = [images / seconds(alone)], []
        for _ in range(rounds):
            between.append(images / seconds(alone, lower))
            around.append(images / seconds(alone))
        low = {"bfloat16": statistics.median(between), **spread("bfloat16_ratio", ratios(between, around))}
    return {
        "tower": statistics.median(tower_rates),
        "files": statistics.median(file_rates),
        "fraction": statistics.median(fractions),
        "lowest": min(fractions),
        "highest": max(fractions),
        "decode_ms": 1000 * decoding / images,
        **low,
    }


def vit_b16(precision: str = "float32") -> ImageTower:
    """Return an image tower of ViT-B/16's shape; its weights are random, which costs the same."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        patch_size=16,
        image_size=224,
        projection_dim=512,
    )
    model = CLIPVisionModelWithProjection(config).to(getattr(torch, precision))
    return ImageTower.of(model, Preprocessing(224, 224))


def photographs(folder: Path, count: int, first: int = 0) -> list[str]:
    """Return JPEG files with the detail of photographs: large shapes, fine grain. No two numbers are alike.

    Parameters
    ----------
    folder : Path
        Where they are written.
    count : int
        How many.
    first : int
        The number of the first of them.
    """
    files = []
    for i in range(first, first + count):
        shapes = (Stream(i, "bench", "shapes").uniform(36 * 48 * 3) * 256).astype(np.uint8)
        large = Image.fromarray(shapes.reshape(36, 48, 3)).resize((WIDTH, HEIGHT), 3)
        grain = 6 * Stream(i, "bench", "grain").normal(HEIGHT, WIDTH, 3)
        image = Image.fromarray((np.asarray(large) + grain).clip(0, 255).astype(np.uint8))
        files.append(str(folder / f"{i}.jpg"))
        image.save(files[-1], quality=90)
    return files
