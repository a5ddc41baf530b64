"""Every setting of a run, in one place, with its default and the reason for it.

`Settings` are those of any run; `Config` adds those of a run on CLIP's features, `NetworkConfig` those of a network
that is trained from scratch. Whether a method or a learner exists is their rooms' business, not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from dspt.internal.errors import InputError
from dspt.internal.names import AUTO, NO_MODEL, PAPER_MODEL, did_you_mean
from dspt.internal.names import GENERIC_TEMPLATE as GENERIC_TEMPLATE

MODEL_HELP = (
    f"CLIP checkpoint: a folder, a Hugging Face hub id, or 'embedded', a miniature to try things out. {AUTO}: "
    f"{PAPER_MODEL}, the paper's; for embedded data the miniature."
)

# Settings that change how a run is done; what comes out of it differs at most by the rounding of sums.
HARMLESS = frozenset({"compile", "device", "text_memory", "workers"})

# Training is in single precision, whose largest number is 3.4e38.
_LARGEST = 1e38

# Leaves it open what is learnt.
AUTO_LEARNER = "auto"

# Crops of an image that are kept; each takes as long to encode as an image.
MOST_VIEWS = 1000

Value = TypeVar("Value")


def _setting(default: Value, help: str, *, least: float | None = None, among: tuple[str, ...] = ()) -> Value:
    """Return a field with its help, and what its values are limited to."""
    return field(default=default, metadata={"help": help, "least": least, "among": among})


@dataclass(frozen=True)
class Settings:
    """What every run has, whatever is learnt. The command line is made from the fields; a run folder keeps them."""

    model: str = _setting(
        AUTO,
        f"{MODEL_HELP} {NO_MODEL}: a feature file by itself (DINO's, your own, anything), with the learner "
        "prototypes, posterior or auto.",
    )
    method: str = _setting("dspt", "How to learn: dspt, coop, gce, nlprompt, ...; 'dspt methods' lists them.")
    option: tuple[str, ...] = _setting((), "A hyper-parameter of the method, as name=value; may be repeated.")
    learner: str = _setting(
        "prompt",
        "What is learnt: prompt (a context, CoOp), cocoop (a context that depends on the image; slow), "
        "prototypes (the class features themselves, without a prompt), posterior (a classifier in closed form, in "
        "seconds), or auto (trains with dspt-auto what makes held-out labels most likely).",
    )
    seed: int = _setting(1, "Seed of everything random: noise, context, order of samples.")
    epochs: int = _setting(50, "Passes over the training set; 50 in the paper.", least=0)
    batch_size: int = _setting(32, "Samples a step; 32 in the paper. The last short batch is left out.", least=1)
    lr: float = _setting(0.002, "Learning rate after warm-up, falling to zero on a cosine.", least=0)
    momentum: float = _setting(0.9, "Momentum of SGD, without Nesterov.", least=0)
    weight_decay: float = _setting(5e-4, "Weight decay of SGD.", least=0)
    shots: int = _setting(
        0,
        "Train on so many images of each class, drawn with the seed; 0 takes all, as the paper.",
        least=0,
    )
    test_every: int = _setting(1, "Epochs from one test to the next; the last five are tested in any case.", least=1)
    device: str = _setting("auto", "auto, cpu, cuda or cuda:1.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "option", tuple(self.option))
        for each in fields(self):
            self._check(each.name, each.type, each.metadata)
        self._require("momentum", self.momentum < 1, "below 1")
        self.method_options()  # a malformed option is found here, not in the middle of a run

    @property
    def name(self) -> str:
        """What a person calls a run with these settings."""
        return self.method

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

    def _check(self, name: str, kind: Any, limits: Mapping[str, Any]) -> None:
        """Raise `InputError` unless a setting is of its kind and within its limits."""
        value, least, among = getattr(self, name), limits.get("least"), limits.get("among")
        truth = isinstance(value, bool)
        if kind == "int":
            self._require(name, isinstance(value, int) and not truth, "a whole number")
        elif kind == "float":
            self._require(name, isinstance(value, int | float) and not truth, "a number")
            self._require(name, abs(value) <= _LARGEST, f"a finite number, at least {least} and at most {_LARGEST:g}")
        elif kind == "bool":
            self._require(name, truth, "true or false")
        elif kind == "str":
            self._require(name, isinstance(value, str), "a text")
        elif kind == "str | None":
            self._require(name, value is None or isinstance(value, str), "a text")
        if least is not None:
            number = "a finite number, " if kind == "float" else ""
            self._require(name, value >= least, f"{number}at least {least}")
        if among:
            listed = f"{', '.join(among[:-1])} or {among[-1]}"
            self._require(name, value in among, listed)

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(f"{name} = {getattr(self, name)!r}: expected {expected}")


@dataclass(frozen=True)
class Config(Settings):
    """The settings of a run on the features of a frozen CLIP; the defaults are the paper's."""

    warmup_lr: float = _setting(1e-5, "Learning rate of the first epoch.", least=0)
    context_length: int = _setting(16, "Number of context vectors.", least=1)
    position: str = _setting(
        "end",
        "Where the class name stands: end, middle or front.",
        among=("end", "middle", "front"),
    )
    class_specific: bool = _setting(False, "Learn one context for each class instead of one for all.")
    context_words: str | None = _setting(
        None, "Start from the embeddings of these words, e.g. 'a photo of a', not from N(0, 0.02)."
    )
    views: int = _setting(
        0,
        "Random crops and flips to keep of each training image; 0 trains on the centre view alone.",
        least=0,
    )
    template: str = _setting(GENERIC_TEMPLATE, "Prompt for zero-shot, with {} for the class name.")
    text_memory: int = _setting(
        2048,
        "MiB of activations a step may keep; more classes than fit are processed in chunks.",
        least=1,
    )
    precision: str = _setting(
        "float32",
        "Of the towers' products: float32; bfloat16 on a GPU or a CPU that has it, about twice as fast; float16 on a "
        "GPU. Context, logits and loss are float32 always; the text tower takes bfloat16 for float16.",
        among=("float32", "bfloat16", "float16"),
    )
    compile: bool = _setting(False, "Have torch compile the image tower: slow to start, faster on many images.")
    workers: int = _setting(0, "Processes that decode images ahead of the tower; 0: one a core.", least=0)

    @property
    def name(self) -> str:
        """What a person calls a run with these settings: its method, or the learner that needs none."""
        return self.learner if self.learner == "posterior" else self.method

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("views", self.views <= MOST_VIEWS, f"at most {MOST_VIEWS}")
        self._require("template", self.template.count("{}") == 1, "a text with exactly one {}")


@dataclass(frozen=True)
class NetworkConfig(Settings):
    """The settings of a network trained from scratch; the defaults are the paper's."""

    model: str = _setting(
        "resnet34",
        "The network: resnet34, resnet18, or small for trials.",
        among=("resnet34", "resnet18", "small"),
    )
    method: str = _setting("dspt", "The loss: coop (cross-entropy), dspt, gce, mae, ...")
    learner: str = field(default="network", init=False, metadata={"help": "A network."})
    seed: int = _setting(1, "Seed of everything random: noise, weights, order, crops and flips.")
    epochs: int = _setting(200, "Passes over the training set; 200 in the paper.", least=1)
    batch_size: int = _setting(
        128,
        "Images a step; 128 in the paper. The last short batch is left out.",
        least=2,  # for batch normalisation
    )
    lr: float = _setting(0.1, "Learning rate, a tenth of it after 40 % and 70 % of the epochs.", least=0)
    stem: str = _setting(
        "imagenet",
        "First layer: imagenet (7x7, stride 2, then pooled), as the paper; or cifar (3x3, stride 1).",
        among=("imagenet", "cifar"),
    )

    @property
    def name(self) -> str:
        """What a person calls a run with these settings: the network and the method."""
        return f"{self.model}-{self.method}"


def config_for(learner: object) -> type[Settings]:
    """Return the kind of settings that a learner takes."""
    return NetworkConfig if learner == NetworkConfig.learner else Config


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Return the settings with these values; an unknown name is an error, as a typing mistake would hide."""
    kind = config_for(values.get("learner"))
    known = {each.name for each in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise InputError(f"setting {unknown[0]!r}: not known{hint}; the settings are {', '.join(sorted(known))}")
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.init and each.name in values})
