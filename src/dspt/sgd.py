"""SGD with momentum and weight decay: what torch.optim.SGD computes, to the bit.

torch's own loads torch's compiler with the first optimizer that is made, which takes longer than a first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class SGD:
    """Steps on named parameters. `velocity` is the state to save, and to start from again."""

    def __init__(
        self,
        learnt: Mapping[str, Tensor],
        momentum: float,
        weight_decay: float,
        velocity: Mapping[str, Tensor],
    ) -> None:
        self._learnt = learnt
        self._momentum = momentum
        self._weight_decay = weight_decay
        self.velocity = {
            name: torch.empty_like(learnt[name]).copy_(value) for name, value in velocity.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move each parameter that has a gradient, and drop the gradient."""
        for name, value in self._learnt.items():
            if value.grad is None:
                continue
            gradient = value.grad.add(value, alpha=self._weight_decay)
            if name in self.velocity:
                self.velocity[name].mul_(self._momentum).add_(gradient)
            else:
                self.velocity[name] = gradient
            value.add_(self.velocity[name], alpha=-rate)
            value.grad = None
