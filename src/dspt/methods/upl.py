"""Unsupervised prompt learning: CLIP's own zero-shot predictions are the labels; the given ones are not looked at."""

from dataclasses import dataclass

import torch

from dspt import losses
from dspt.internal.errors import InputError
from dspt.methods.method import Epoch, Method, PerSampleLoss, Phase, loss_of


@dataclass(frozen=True)
class UPL(Method):
    """Cross-entropy on zero-shot pseudo-labels; top keeps the surest images of each class, 0 keeps all."""

    name = "upl"
    formula = "CE(z, argmax z_zero-shot)"
    source = "Huang et al., 2022"
    needs_clip = "it needs CLIP's comparison of images with text"
    needs_text = True

    top: float = 0

    def __post_init__(self) -> None:
        if self.top < 0 or not float(self.top).is_integer():
            raise InputError(f"top = {self.top}: expected a whole number of 0 or more")

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with the pseudo-labelled samples, which stay the same in all epochs."""
        if "pseudo" not in epoch.memory:
            sure, pseudo = epoch.zero_shot_logits().softmax(1).max(1)
            epoch.memory["pseudo"] = pseudo
            epoch.memory["samples"] = _surest(sure, pseudo, int(self.top))
        samples = epoch.memory["samples"].cpu()
        targets = epoch.memory["pseudo"].to(epoch.labels.device)[samples]
        return [Phase(samples.numpy(), targets, self.loss())]

    def loss(self) -> PerSampleLoss:
        """Return the loss on pseudo-labels."""
        return loss_of("ce")


@dataclass(frozen=True)
class RobustUPL(UPL):
    """UPL with generalised cross-entropy, as pseudo-labels are noisy labels too."""

    name = "robust-upl"
    formula = "GCE(z, argmax z_zero-shot)"
    source = "Wu et al., ICCV 2023"

    q: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        losses.get("gce").check(q=self.q)

    def loss(self) -> PerSampleLoss:
        """Return the loss on pseudo-labels."""
        return loss_of("gce", q=self.q)


def _surest(sure: torch.Tensor, pseudo: torch.Tensor, top: int) -> torch.Tensor:
    """Return the samples to learn from: all, or the `top` surest of each class."""
    if not top:
        return torch.arange(len(sure))
    order = sure.argsort(descending=True, stable=True)
    order = order[pseudo[order].argsort(stable=True)]
    counts = pseudo.bincount()
    first = (counts.cumsum(0) - counts)[pseudo[order]]
    rank = torch.arange(len(sure), device=sure.device) - first
    return order[rank < top].sort().values.cpu()
