"""Every setting of a training run, in one place, with its default and the reason for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from dspt.internal.errors import InputError

GENERIC_TEMPLATE = "a photo of a {}."

# Settings that change how a run is done; what comes out of it differs at most by the rounding of sums.
HARMLESS = frozenset({"compile", "device", "text_memory", "workers"})


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Config:
    """The settings of a run. The command line is made from these fields; a run folder keeps them."""

    model: str = _setting(
        "embedded", "CLIP checkpoint: a folder, a Hugging Face hub id, or 'embedded'."
    )
    method: str = _setting(
        "dspt", "How to learn: dspt, coop, gce, nlprompt, ...; 'dspt methods' lists them."
    )
    option: tuple[str, ...] = _setting(
        (), "A hyper-parameter of the method, as name=value; may be repeated."
    )
    learner: str = _setting(
        "prompt",
        "What is learnt: prompt (a context, CoOp), cocoop (a context that depends on the image; slow), "
        "prototypes (the class features themselves, without a prompt).",
    )
    seed: int = _setting(1, "Seed of everything random: noise, context, order of samples.")
    epochs: int = _setting(50, "Passes over the training set; 50 in the paper.")
    batch_size: int = _setting(
        32, "Samples a step; 32 in the paper. The last short batch is left out."
    )
    lr: float = _setting(0.002, "Learning rate after warm-up, falling to zero on a cosine.")
    warmup_lr: float = _setting(1e-5, "Learning rate of the first epoch.")
    momentum: float = _setting(0.9, "Momentum of SGD, without Nesterov.")
    weight_decay: float = _setting(5e-4, "Weight decay of SGD.")
    context_length: int = _setting(16, "Number of context vectors.")
    position: str = _setting("end", "Where the class name stands: end, middle or front.")
    class_specific: bool = _setting(
        False, "Learn one context for each class instead of one for all."
    )
    context_words: str | None = _setting(
        None, "Start from the embeddings of these words, e.g. 'a photo of a', not from N(0, 0.02)."
    )
    shots: int = _setting(
        0, "Train on so many images of each class, drawn with the seed; 0 takes all, as the paper."
    )
    views: int = _setting(
        0,
        "Random crops and flips to keep of each training image; 0 trains on the centre view alone.",
    )
    template: str = _setting(GENERIC_TEMPLATE, "Prompt for zero-shot, with {} for the class name.")
    text_memory: int = _setting(
        2048, "MiB of activations a step may keep; more classes than fit are processed in chunks."
    )
    device: str = _setting("auto", "auto, cpu, cuda or cuda:1.")
    precision: str = _setting(
        "float32",
        "Of the towers' products: float32, or bfloat16 or float16 on a GPU. Context, logits and loss are "
        "float32 always; the text tower takes bfloat16 for float16.",
    )
    compile: bool = _setting(
        False, "Have torch compile the image tower: slow to start, faster on many images."
    )
    workers: int = _setting(0, "Processes that decode images ahead of the tower; 0: one a core.")

    def __post_init__(self) -> None:
        whole_numbers = ("seed", "epochs", "batch_size", "context_length", "text_memory")
        for name in (*whole_numbers, "shots", "views", "workers"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            _require(self, name, whole, "a whole number")
        for name in ("lr", "warmup_lr", "momentum", "weight_decay"):
            _require(self, name, isinstance(getattr(self, name), int | float), "a number")
        for name in ("class_specific", "compile"):
            _require(self, name, isinstance(getattr(self, name), bool), "true or false")
        for name in ("model", "method", "template", "device"):
            _require(self, name, isinstance(getattr(self, name), str), "a text")
        words = self.context_words is None or isinstance(self.context_words, str)
        _require(self, "context_words", words, "a text")
        for name in ("epochs", "shots", "views", "workers"):
            _require(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("batch_size", "context_length", "text_memory"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "warmup_lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            _require(self, name, math.isfinite(value) and value >= 0, "a finite number, at least 0")
        _require(self, "momentum", self.momentum < 1, "below 1")
        _require(
            self, "position", self.position in ("end", "middle", "front"), "end, middle or front"
        )
        learners = ("prompt", "cocoop", "prototypes")
        _require(self, "learner", self.learner in learners, "prompt, cocoop or prototypes")
        if self.learner == "prototypes":
            for name in ("class_specific", "context_words"):
                _require(self, name, not getattr(self, name), "none with learner prototypes")
            for name, usual in (("context_length", 16), ("position", "end")):
                same = getattr(self, name) == usual
                _require(
                    self, name, same, f"{usual}, the default: learner prototypes has no prompt"
                )
        _require(
            self, "template", str(self.template).count("{}") == 1, "a text with exactly one {}"
        )
        _require(
            self,
            "precision",
            self.precision in ("float32", "bfloat16", "float16"),
            "float32, bfloat16 or float16",
        )
        object.__setattr__(self, "option", tuple(self.option))
        self.method_options()  # a malformed option is found here, not in the middle of a run

    def method_options(self) -> dict[str, float | bool | str]:
        """Return the method's hyper-parameters, numbers and truth values recognised."""
        found: dict[str, float | bool | str] = {}
        for text in self.option:
            name, equals, value = text.partition("=")
            if not (name and equals and value):
                raise InputError(f"option {text!r}: expected name=value, such as q=0.7")
            if value.lower() in ("true", "false"):
                found[name] = value.lower() == "true"
                continue
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = value
        return found


def from_dict(values: dict[str, Any]) -> Config:
    """Return the config with these values; an unknown name is an error, as a typing mistake would hide."""
    known = {f.name for f in fields(Config)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(
            f"setting {unknown[0]!r}: not known; the settings are {', '.join(sorted(known))}"
        )
    return Config(**values)


def _require(config: Config, name: str, holds: bool, expected: str) -> None:
    if not holds:
        raise InputError(f"{name} = {getattr(config, name)!r}: expected {expected}")
