"""Audits that are made up: who is wrong is known, and pictures are drawn by code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from dspt.auditing.audit import Audit
from dspt.internal.errors import Fault

CLASSES = ("cat", "dog", "red panda", "fox")


def make_audit(
    samples: int = 60,
    wrong: int = 12,
    class_names: Sequence[str] = CLASSES,
    items: Sequence[str] | None = None,
    seed: int = 0,
    **changed: Any,
) -> Audit:
    """Return an audit of `samples` labels, the first `wrong` of which are called wrong, the surest of them first."""
    random = np.random.RandomState(seed)
    classes = len(class_names)
    labels = np.arange(samples) % classes
    true = labels.copy()
    true[:wrong] = (labels[:wrong] + 1 + random.randint(classes - 1, size=wrong)) % classes
    sure = np.full(samples, 0.97)
    sure[:wrong] = np.linspace(0.95, 0.6, wrong)
    probabilities = np.repeat(((1 - sure) / (classes - 1))[:, None], classes, 1)
    probabilities[np.arange(samples), true] = sure
    examples = np.full((samples, 2, 3), -1, np.int32)
    right = [np.flatnonzero((true == c) & (labels == c))[:3] for c in range(classes)]
    other = np.where(np.arange(samples) < wrong, true, np.where(labels == 0, 1, 0))  # the first of equals
    for row in range(samples):
        for side, c in enumerate((labels[row], other[row])):
            examples[row, side, : len(right[c])] = right[c]
    rates = np.array([(true != labels)[labels == c].mean() if (labels == c).any() else np.nan for c in range(classes)])
    facts: dict[str, Any] = {
        "source": "photos",
        "class_names": tuple(class_names),
        "items": tuple(items or (f"{class_names[c]}/{row:04d}.png" for row, c in enumerate(labels))),
        "splits": ("train",) * samples,
        "labels": labels,
        "probabilities": probabilities.astype(np.float32),
        "noise_rate": wrong / samples,
        "noise_rate_error": 0.015,
        "can_tell": True,
        "class_noise_rates": rates,
        "fits_no_class": np.full(samples, 0.5, np.float32),
        "is_outlier": np.zeros(samples, bool),
        "image_issues": ("",) * samples,
        "examples": examples,
        "made_with": {"model": "embedded"},
    }
    return Audit(**(facts | changed))


def with_findings(**changed: Any) -> Audit:
    """Return an audit that has found something of every kind."""
    outlier = np.zeros(60, bool)
    outlier[[50, 51]] = True
    issues = [""] * 60
    issues[40], issues[41] = "blurry;dark", "tiny"
    facts: dict[str, Any] = {
        "splits": ("train",) * 55 + ("test",) * 5,
        "is_outlier": outlier,
        "image_issues": tuple(issues),
        "duplicate_groups": ((20, 24), (30, 31), (32, 56)),
        "identical_groups": 1,
        "unusable": (Fault("cat/broken.png", "not a whole image", "train"),),
        "inseparable": ((0, 3, 0.7),),
    }
    return make_audit(**(facts | changed))


def draw(row: int) -> Image.Image:
    """Return a picture that differs from row to row."""
    picture = Image.new("RGB", (64, 48), (row * 37 % 256, row * 91 % 256, 120))
    ImageDraw.Draw(picture).ellipse((8 + row % 20, 8, 40, 40), fill=(250, 250, row * 17 % 256))
    return picture


def no_picture(row: int) -> None:
    """Return nothing: the samples are features."""


Opener = Callable[[int], Image.Image | None]
