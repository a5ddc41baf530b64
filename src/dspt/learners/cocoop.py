"""CoCoOp's learner: a small network looks at the image and shifts every context vector by its output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from dspt.internal.seeds import Stream
from dspt.learners.learner import Classify, Parameters, Samples
from dspt.learners.prompt import PromptLearner


class ConditionalPromptLearner(PromptLearner):
    """A context that depends on the image.

    Each image has prompts of its own, so a step costs as much as one of `PromptLearner` for every image of the batch.
    """

    has_prototypes = False

    @classmethod
    def feature_width(cls, parameters: Parameters) -> int:
        """Return the width of what the small network looks at."""
        return parameters["meta.down.weight"].shape[1]

    def start(self, samples: Samples | None = None) -> Parameters:
        """Return the context, and two linear layers with a bottleneck of a sixteenth between them.

        Parameters
        ----------
        samples : Samples, optional
            Not looked at.
        """
        width = self.tower.feature_dim
        middle = max(1, width // 16)
        return {
            **super().start(),
            **_linear("meta.down", width, middle, self.config.seed),
            **_linear("meta.up", middle, self.tower.width, self.config.seed),
        }

    def prototypes(self, parameters: Parameters) -> None:  # type: ignore[override]
        """Return None: every image has its own."""

    def logits(self, inputs: Tensor, parameters: Parameters) -> Tensor:
        """Return the scaled cosines between each image and its own prototypes."""
        hidden = F.linear(inputs, parameters["meta.down.weight"], parameters["meta.down.bias"])
        shifts = F.linear(hidden.relu(), parameters["meta.up.weight"], parameters["meta.up.bias"])

        def of_one(image: Tensor, shift: Tensor) -> Tensor:
            return self.scale * self.prompts(parameters["context"] + shift) @ image

        compute: Callable[[Tensor, Tensor], Tensor] = of_one
        if len(inputs) * self.prompts.kept_bytes > self.tower.memory_limit:
            # each image's prompts are computed again in the backward pass, so that only one's are kept
            compute = partial(recompute, of_one, use_reentrant=False, preserve_rng_state=False)
        pairs = zip(inputs, shifts, strict=True)
        return torch.stack([compute(image, shift) for image, shift in pairs])

    def classify(self, parameters: Parameters) -> Classify:
        """Return the logits without a gradient."""

        @torch.no_grad()
        def logits(features: Tensor) -> Tensor:
            return self.logits(features.to(self.device), parameters)

        return logits


def _linear(name: str, inputs: int, outputs: int, seed: int) -> Parameters:
    """Return weight and bias of a linear layer, uniform within 1/sqrt(inputs) as torch draws them."""
    bound = inputs**-0.5

    def draw(part: str, *shape: int) -> Tensor:
        values = Stream(seed, name, part).uniform(int(np.prod(shape))).reshape(shape)
        return torch.from_numpy((2 * values - 1) * bound).float()

    return {
        f"{name}.weight": draw("weight", outputs, inputs),
        f"{name}.bias": draw("bias", outputs),
    }
