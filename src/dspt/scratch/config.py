"""Every setting of a run from scratch, with its default and the reason for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dspt.config import Config
from dspt.internal.errors import InputError

# Depth and width of each stage. "small" is for trials: it learns a little in seconds.
MODELS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "resnet34": ((3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512)),
    "small": ((1, 1), (16, 32)),
}
STEMS = ("imagenet", "cifar")


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class ScratchConfig:
    """The settings of a run from scratch; the defaults are the paper's."""

    model: str = _setting("resnet34", "The network: resnet34, resnet18, or small for trials.")
    stem: str = _setting(
        "imagenet",
        "First layer: imagenet (7x7, stride 2, then pooled), as the paper; or cifar (3x3, stride 1).",
    )
    method: str = _setting("dspt", "The loss: coop (cross-entropy), dspt, gce, mae, ...")
    option: tuple[str, ...] = _setting(
        (), "A hyper-parameter of the method, as name=value; may be repeated."
    )
    seed: int = _setting(1, "Seed of everything random: noise, weights, order, crops and flips.")
    epochs: int = _setting(200, "Passes over the training set; 200 in the paper.")
    batch_size: int = _setting(
        128, "Images a step; 128 in the paper. The last short batch is left out."
    )
    lr: float = _setting(0.1, "Learning rate, a tenth of it after 40 % and 70 % of the epochs.")
    momentum: float = _setting(0.9, "Momentum of SGD, without Nesterov.")
    weight_decay: float = _setting(5e-4, "Weight decay of SGD.")
    limit: int = _setting(
        0, "Train on so many images of each class, drawn with the seed; 0 takes all, as the paper."
    )
    test_every: int = _setting(
        1, "Epochs from one test to the next; the last five are tested in any case."
    )
    device: str = _setting("auto", "auto, cpu, cuda or cuda:1.")

    def __post_init__(self) -> None:
        for name in ("seed", "epochs", "batch_size", "limit", "test_every"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self._require(name, whole, "a whole number")
        self._require("model", self.model in MODELS, ", ".join(MODELS))
        self._require("stem", self.stem in STEMS, " or ".join(STEMS))
        for name in ("epochs", "test_every"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("batch_size", self.batch_size >= 2, "at least 2, for batch normalisation")
        self._require("limit", self.limit >= 0, "at least 0")
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            finite = isinstance(value, int | float) and math.isfinite(value) and value >= 0
            self._require(name, finite, "a finite number, at least 0")
        self._require("momentum", self.momentum < 1, "below 1")
        object.__setattr__(self, "option", tuple(self.option))
        self.method_options()  # a malformed option is found here, not in the middle of a run

    def method_options(self) -> dict[str, float | bool | str]:
        """Return the method's hyper-parameters, numbers and truth values recognised."""
        return Config(option=self.option).method_options()

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(f"{name} = {getattr(self, name)!r}: expected {expected}")
