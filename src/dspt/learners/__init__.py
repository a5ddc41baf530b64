"""What is learnt: a context for the prompts, a context that depends on the image, or the class prototypes themselves.

A learner turns image features and its parameters into logits. The training loop knows nothing else about it, so every
method works with every learner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from dspt.backbone.prompt import initial_context, layout_context, layout_template
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.seeds import Stream

Parameters = dict[str, Tensor]
Classify = Callable[[Tensor], Tensor]  # image features (n, D) -> logits (n, C), without a gradient


class Learner(ABC):
    """A classifier of image features by class names, on top of a frozen text tower."""

    def __init__(self, class_names: Sequence[str], config: Config, tower: TextTower) -> None:
        self.class_names = tuple(class_names)
        self.config = config
        self.tower = tower
        self.scale = tower.checkpoint.logit_scale

    @abstractmethod
    def start(self) -> Parameters:
        """Return the parameters before the first epoch."""

    @abstractmethod
    def logits(self, features: Tensor, parameters: Parameters) -> Tensor:
        """Return the logits (n, C), differentiable in the parameters."""

    @abstractmethod
    def classify(self, parameters: Parameters) -> Classify:
        """Return the classifier with its parameters fixed."""

    def prototypes(self, parameters: Parameters) -> Tensor | None:
        """Return the class prototypes (C, D), L2-normalised; None if they depend on the image."""
        return None

    def zero_shot(self) -> Tensor:
        """Return the class prototypes (C, D) of the fixed prompt."""
        return zero_shot_prototypes(self.tower, self.class_names, self.config.template)


class _WithPrototypes(Learner):
    """A learner whose classes are the same for every image."""

    @abstractmethod
    def prototypes(self, parameters: Parameters) -> Tensor: ...

    def logits(self, features: Tensor, parameters: Parameters) -> Tensor:
        return self.scale * features @ self.prototypes(parameters).T

    def classify(self, parameters: Parameters) -> Classify:
        with torch.no_grad():
            return by_prototypes(self.prototypes(parameters), self.scale)


class PromptLearner(_WithPrototypes):
    """CoOp: context vectors in front of the class names, the same for all images."""

    def __init__(self, class_names: Sequence[str], config: Config, tower: TextTower) -> None:
        super().__init__(class_names, config, tower)
        layout = layout_context(
            *(tower.checkpoint, class_names, config.context_length, config.position),
            class_specific=config.class_specific,
        )
        self.prompts = tower.compile(layout)

    def start(self) -> Parameters:
        """Return the context, drawn at random or taken from words."""
        tower, config = self.tower, self.config
        context = initial_context(
            *(tower.checkpoint, tower.embeddings, self.prompts.layout),
            seed=config.seed,
            words=config.context_words,
        )
        return {"context": context}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return what the text tower makes of context and class names."""
        return self.prompts(parameters["context"])


class ConditionalPromptLearner(PromptLearner):
    """CoCoOp: a small network looks at the image and shifts every context vector by its output.

    Each image has prompts of its own, so a step costs as much as one of `PromptLearner` for every image of the batch.
    """

    def start(self) -> Parameters:
        """Return the context, and two linear layers with a bottleneck of a sixteenth between them."""
        width = self.tower.feature_dim
        middle = max(1, width // 16)
        return {
            **super().start(),
            **_linear("meta.down", width, middle, self.config.seed),
            **_linear("meta.up", middle, self.tower.width, self.config.seed),
        }

    def prototypes(self, parameters: Parameters) -> None:  # type: ignore[override]
        """Return None: every image has its own."""

    def logits(self, features: Tensor, parameters: Parameters) -> Tensor:
        hidden = F.linear(features, parameters["meta.down.weight"], parameters["meta.down.bias"])
        up = parameters["meta.up.weight"], parameters["meta.up.bias"]
        shifts = F.linear(hidden.relu(), *up)

        def of_one(image: Tensor, shift: Tensor) -> Tensor:
            return self.scale * self.prompts(parameters["context"] + shift) @ image

        if len(features) * self.prompts.kept_bytes > self.tower.memory_limit:
            # each image's prompts are computed again in the backward pass, so that only one's are kept
            of_one = partial(recompute, of_one, use_reentrant=False, preserve_rng_state=False)
        pairs = zip(features, shifts, strict=True)
        return torch.stack([of_one(image, shift) for image, shift in pairs])

    def classify(self, parameters: Parameters) -> Classify:
        @torch.no_grad()
        def logits(features: Tensor) -> Tensor:
            return self.logits(features.to(self.tower.device), parameters)

        return logits


class PrototypeLearner(_WithPrototypes):
    """A linear probe without a prompt: the class prototypes themselves, from zero-shot on."""

    def start(self) -> Parameters:
        """Return the zero-shot prototypes."""
        return {"weights": self.zero_shot()}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return the weights, brought to length 1."""
        return F.normalize(parameters["weights"], dim=1)


LEARNERS: dict[str, type[Learner]] = {
    "prompt": PromptLearner,
    "cocoop": ConditionalPromptLearner,
    "prototypes": PrototypeLearner,
}


def make(class_names: Sequence[str], config: Config, tower: TextTower) -> Learner:
    """Return the learner the config asks for."""
    return LEARNERS[config.learner](class_names, config, tower)


def zero_shot_prototypes(tower: TextTower, class_names: Sequence[str], template: str) -> Tensor:
    """Return the class prototypes (C, D) of a fixed prompt."""
    prompts = tower.compile(layout_template(tower.checkpoint, class_names, template))
    with torch.no_grad():
        return prompts(None)


def by_prototypes(prototypes: Tensor, scale: float) -> Classify:
    """Return the classifier that compares images with these prototypes."""
    return lambda features: scale * features.to(prototypes.device) @ prototypes.T


def _linear(name: str, inputs: int, outputs: int, seed: int) -> Parameters:
    """Give weight and bias of a linear layer, uniform within 1/sqrt(inputs) as torch draws them."""
    bound = inputs**-0.5

    def draw(part: str, *shape: int) -> Tensor:
        values = Stream(seed, name, part).uniform(int(np.prod(shape))).reshape(shape)
        return torch.from_numpy((2 * values - 1) * bound).float()

    return {
        f"{name}.weight": draw("weight", outputs, inputs),
        f"{name}.bias": draw("bias", outputs),
    }
