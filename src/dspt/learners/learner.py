"""The seam between the training loop and what is learnt.

A learner owns its inputs, its parameters, its schedule and how it is saved and read. The training loop knows nothing
else about it, so every method works with every learner, unless it needs CLIP and the learner has none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dspt.backbone.checkpoint import DEFAULT_LOGIT_SCALE, Checkpoint, open_checkpoint
from dspt.backbone.prompt import clean_name, is_mended, layout_template
from dspt.backbone.text import TextTower
from dspt.config import Config, Settings
from dspt.data import Split
from dspt.data.dataset import are_features
from dspt.features import Encoder
from dspt.internal.device import find_device, sent
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import NO_MODEL
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream
from dspt.internal.shards import Features, Shards
from dspt.internal.workers import Spread
from dspt.posterior import Posterior

Parameters = dict[str, Tensor]
Classify = Callable[[Tensor], Tensor]  # inputs (n, ...) -> logits (n, C), without a gradient
Fetch = Callable[[np.ndarray], Tensor]  # row numbers of the training set -> their inputs, on the device

# Bytes of inputs that are kept on a GPU as a whole.
_RESIDENT = 4 * 1024**3


class Inputs(NamedTuple):
    """The training set in one epoch: as it is learnt from, and as it is judged by a method that looks at it."""

    learn: Fetch
    judge: Fetch


class Solution(NamedTuple):
    """What is learnt without steps, and what was found out about the labels."""

    parameters: Parameters
    found: dict[str, float]


class Samples(NamedTuple):
    """Training samples that a learner may start from: inputs, given labels, and how much each counts."""

    train_x: Features
    labels: np.ndarray
    weights: np.ndarray | None = None


class Reader(Protocol):
    """What turns the items of a split into the arrays that a learner takes."""

    def __call__(self, split: Split, name: str, views: int = 0) -> tuple[Features, np.ndarray]:
        """Return the arrays of the items that can be used, and their positions in the split."""

    def check_there(self, split: Split) -> None:
        """Stop at files that are not there, unless bad ones are left out."""

    @property
    def skipped(self) -> Sequence[Fault]:
        """What was left out."""


class Learner(ABC):
    """What is learnt, and from what."""

    settings: ClassVar[type[Settings]] = Config
    # Whether it has CLIP's knowledge of images and text.
    has_clip: ClassVar[bool] = True
    # Whether classes are points that images are compared with, the same for all images.
    has_prototypes: ClassVar[bool] = True
    # Whether a sample's weight can be honoured.
    weighs_samples: ClassVar[bool] = True
    # Epochs at a rate so low that next to nothing is learnt.
    warmup: ClassVar[int] = 0
    # The fewest samples a step can learn from.
    smallest_batch: ClassVar[int] = 1
    # Samples judged at once: bounds the memory of an evaluation whatever their number.
    judged_at_once: ClassVar[int] = 1024

    class_names: tuple[str, ...]
    device: torch.device
    # Multiplications of a step's largest matrix product, by which its threads are chosen; None for all of them.
    product: int | None = None
    # Parameters that no gradient changes, such as running means.
    buffers: frozenset[str] = frozenset()

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise `InputError` for settings that make no sense for this learner; most take all of them."""
        return

    @classmethod
    def feature_width(cls, parameters: Parameters) -> int | None:
        """Return the width of the image features it takes, if its parameters tell."""
        return None

    @abstractmethod
    def start(self, samples: Samples | None = None) -> Parameters:
        """Return the parameters before the first epoch; nothing if it starts from samples, and there are none.

        Parameters
        ----------
        samples : Samples, optional
            The training set. Few learners look at it.
        """

    def start_by(self, found: Posterior, samples: Samples) -> Parameters | None:
        """Return the parameters to begin with if the posterior is a better place than `start`; else None, as most do.

        Parameters
        ----------
        found : Posterior
            Of the samples' labels.
        samples : Samples
            The training set.
        """
        return None

    @abstractmethod
    def reader(self, reporter: Reporter, cache: Path | None = None, skip_bad: bool = False) -> Reader:
        """Return what reads the inputs of this learner from a split.

        Parameters
        ----------
        reporter : Reporter
            Shows how far the work is.
        cache : Path, optional
            The folder of the feature store, if the learner needs one; None is the default one.
        skip_bad : bool
            Leave out images that cannot be read, instead of stopping at them.
        """

    @abstractmethod
    def inputs(self, train_x: Features) -> Callable[[int], Inputs]:
        """Return a function from the number of an epoch to the training set in it."""

    @abstractmethod
    def logits(self, inputs: Tensor, parameters: Parameters) -> Tensor:
        """Return the logits (n, C), differentiable in the parameters."""

    @abstractmethod
    def classify(self, parameters: Parameters) -> Classify:
        """Return the classifier with its parameters fixed."""

    @abstractmethod
    def learning_rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""

    def solve(self, train_x: Features, labels: np.ndarray) -> Solution | None:
        """Return what is learnt from all samples at once; None for a learner that goes step by step, as most do."""
        return None

    def check_inputs(self, inputs: Features, name: str) -> None:
        """Raise `InputError` for inputs that this learner cannot take; some take all that are read."""
        return

    def placed(self, parameters: Parameters) -> Parameters:
        """Return a copy of the parameters on the device."""
        return {name: value.to(self.device, copy=True) for name, value in parameters.items()}

    def blend(self, inputs: Tensor, partners: Tensor, share: float) -> Tensor:
        """Return inputs blended with their partners.

        Parameters
        ----------
        inputs : Tensor of shape (n, ...)
            Inputs of a batch.
        partners : Tensor of the shape of `inputs`
            What each is blended with.
        share : float in 0..1
            What each input itself has of the blend; its partner has the rest.

        Returns
        -------
        Tensor of the shape of `inputs`
        """
        raise InputError("method: it blends samples, and this learner's inputs cannot be blended")

    def prototypes(self, parameters: Parameters) -> Tensor | None:
        """Return the class prototypes (C, D), L2-normalised; None if there are none that fit all images."""
        return None

    @property
    def zero_shot(self) -> Tensor | None:
        """The class prototypes (C, D) of the fixed prompt; None without CLIP."""
        return None

    @property
    def scale(self) -> float:
        """The factor between cosine and logit."""
        return 1.0

    @property
    def made_with(self) -> dict[str, Any]:
        """What a run folder says of the model: where it is, what it computes, its scale; nothing without CLIP."""
        return {}


class FeatureReader:
    """Reads the features of a split as they are; there is no tower for images."""

    skipped: Sequence[Fault] = ()

    def __call__(self, split: Split, name: str, views: int = 0) -> tuple[Features, np.ndarray]:
        """Return all features, and their positions in the split."""
        if not are_features(split.items):
            raise InputError(
                f"model {NO_MODEL}: it goes with features, and the {name} split has images", "name a `model`"
            )
        return split.items, np.arange(len(split.labels))

    def check_there(self, split: Split) -> None:
        """Do nothing: features are there."""


class ClipLearner(Learner):
    """A classifier of image features by class names, on top of a frozen text tower.

    Without a model there is no tower, and nothing is known of class names: `zero_shot` is None then.
    """

    warmup = 1

    def __init__(self, class_names: Sequence[str], config: Config, tower: TextTower | None = None) -> None:
        self.class_names = tuple(class_names)
        self.config = config
        self.text = tower or (None if config.model == NO_MODEL else open_text_tower(config))
        self.device = self.text.device if self.text else find_device(config.device, config.precision)

    @property
    def tower(self) -> TextTower:
        """The text tower, of a learner that has one."""
        assert self.text is not None
        return self.text

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint whose towers are used; None without a model."""
        return self.text.checkpoint if self.text else None

    @property
    def scale(self) -> float:
        """The factor between cosine and logit: of the checkpoint, or where CLIP's own training ends."""
        return self.checkpoint.logit_scale if self.checkpoint else DEFAULT_LOGIT_SCALE

    @property
    def made_with(self) -> dict[str, Any]:
        """Where the checkpoint is, what it computes, and its scale."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return {"logit_scale": self.scale}
        texts = (*map(clean_name, self.class_names), self.config.template, self.config.context_words or "")
        return {
            "model": checkpoint.location,
            "text_mended": any(is_mended(checkpoint, text) for text in texts) or None,
            "model_fingerprint": checkpoint.fingerprint,
            "tokenizer_fingerprint": checkpoint.tokenizer_fingerprint,
            "text_tower": checkpoint.text_tower,
            "logit_scale": checkpoint.logit_scale,
        }

    @cached_property
    def zero_shot(self) -> Tensor | None:
        """The class prototypes (C, D) of the fixed prompt; None without a model."""
        if self.text is None:
            return None
        return zero_shot_prototypes(self.tower, self.class_names, self.config.template)

    def reader(self, reporter: Reporter, cache: Path | None = None, skip_bad: bool = False) -> Reader:
        """Return the encoder of images; features pass through it.

        Parameters
        ----------
        reporter : Reporter
            Shows how far the work is.
        cache : Path, optional
            The folder of the feature store; None is $DSPT_CACHE, or dspt/features in the user's cache folder.
        skip_bad : bool
            Leave out images that cannot be read, instead of stopping at them.
        """
        if self.checkpoint is None:
            return FeatureReader()
        return open_encoder(self.config, self.checkpoint, reporter, cache, skip_bad)

    def inputs(self, train_x: Features) -> Callable[[int], Inputs]:
        """Return, for each epoch, the features of one view of each image, drawn at random."""
        placed = _placed(train_x, self.device)

        def of_epoch(epoch: int) -> Inputs:
            chosen = None
            if placed.ndim == 3:
                chosen = Stream(self.config.seed, "view", epoch).integers(len(placed), placed.shape[1])

            def rows_of(rows: np.ndarray) -> Tensor:
                where = (rows,) if chosen is None else (rows, chosen[rows])
                if isinstance(placed, Tensor):
                    return placed[tuple(sent(index, self.device) for index in where)]
                return sent(placed[where], self.device)

            return Inputs(rows_of, rows_of)

        return of_epoch

    def check_inputs(self, inputs: Features, name: str) -> None:
        """Raise `InputError` for features of another width than the class features have."""
        if self.text is not None and inputs.shape[-1] != self.text.feature_dim:
            raise InputError(
                f"{name} features: {inputs.shape[-1]} wide, but {self.text.checkpoint.name} gives class "
                f"features of width {self.text.feature_dim}; use the checkpoint they were made with"
            )

    def blend(self, inputs: Tensor, partners: Tensor, share: float) -> Tensor:
        """Return the blends, brought back to length 1.

        Parameters
        ----------
        inputs : Tensor of shape (n, D)
            Image features of a batch.
        partners : Tensor of shape (n, D)
            What each is blended with.
        share : float in 0..1
            What each input itself has of the blend; its partner has the rest.

        Returns
        -------
        Tensor of shape (n, D)
        """
        return torch.nn.functional.normalize(share * inputs + (1 - share) * partners, dim=1)

    def learning_rate(self, epoch: int) -> float:
        """Return a constant rate for the first epoch, then half a cosine from `lr` towards zero."""
        if epoch < self.warmup:
            return self.config.warmup_lr
        return 0.5 * self.config.lr * (1 + math.cos(math.pi * (epoch - 1) / self.config.epochs))


class PrototypicalLearner(ClipLearner):
    """A learner whose classes are the same for every image."""

    @abstractmethod
    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return the class prototypes (C, D), L2-normalised."""

    def logits(self, inputs: Tensor, parameters: Parameters) -> Tensor:
        """Return the scaled cosines between images and prototypes."""
        return self.scale * inputs @ self.prototypes(parameters).T

    def classify(self, parameters: Parameters) -> Classify:
        """Return the comparison with the prototypes as they are."""
        with torch.no_grad():
            return by_prototypes(self.prototypes(parameters), self.scale)


def by_prototypes(prototypes: Tensor, scale: float) -> Classify:
    """Return the classifier that compares images with these prototypes."""
    return lambda features: scale * features.to(prototypes) @ prototypes.T


def zero_shot_prototypes(tower: TextTower, class_names: Sequence[str], template: str) -> Tensor:
    """Return the class prototypes (C, D) of a fixed prompt.

    Parameters
    ----------
    tower : TextTower
        Encodes the prompts.
    class_names : sequence of str
        The name of each class, in the order of labels.
    template : str
        The prompt, with exactly one {} for the class name.

    Returns
    -------
    Tensor of shape (C, D)
        L2-normalised, without a gradient.
    """
    prompts = tower.compile(layout_template(tower.checkpoint, class_names, template))
    with torch.no_grad():
        return prompts(None)


def open_text_tower(config: Config, checkpoint: Checkpoint | None = None) -> TextTower:
    """Return the text tower of the checkpoint on the device the config asks for."""
    # The context's gradient is so small that float16 would lose it; bfloat16 has the range of float32.
    low = config.precision != "float32"
    return TextTower(
        checkpoint or open_checkpoint(config.model),
        find_device(config.device, config.precision),
        config.text_memory * 1024**2,
        torch.bfloat16 if low else torch.float32,
    )


def open_encoder(
    config: Config,
    checkpoint: Checkpoint,
    reporter: Reporter,
    cache: Path | None = None,
    skip_bad: bool = False,
    spread: Spread | None = None,
) -> Encoder:
    """Return the encoder of images that the config asks for.

    Parameters
    ----------
    config : Config
        Its device, precision, compile, workers and seed count.
    checkpoint : Checkpoint
        Has the image tower.
    reporter : Reporter
        Shows how far the work is.
    cache : Path, optional
        The folder of the feature store; None is $DSPT_CACHE, or dspt/features in the user's cache folder.
    skip_bad : bool
        Leave out images that cannot be read, instead of stopping at them.
    spread : Spread, optional
        Has workers encode; None is this process.
    """
    return Encoder(
        checkpoint,
        # a worker finds its own
        device=config.device if spread else str(find_device(config.device, config.precision)),
        precision=config.precision,
        compiled=config.compile,
        workers=config.workers or None,
        seed=config.seed,
        cache=cache,
        skip_bad=skip_bad,
        reporter=reporter,
        spread=spread,
    )


def _placed(train_x: Features, device: torch.device) -> Features | Tensor:
    """Return the features where steps read them: on a GPU as a whole if they are small enough, else where they are."""
    if device.type == "cpu" or train_x.nbytes > _RESIDENT:
        # shards have the system read no more of a map than what is asked for
        return Shards([train_x]) if isinstance(train_x, np.memmap) and train_x.ndim == 2 else train_x
    # a copy, because a memory-mapped row must not be handed to torch as if it could be written
    return sent(np.array(train_x), device)
