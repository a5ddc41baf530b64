"""DSPT that adjusts itself: between cross-entropy and the double softmax, by the noise rate that it estimates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dspt.methods.method import Epoch, Method, Phase, loss_of
from dspt.posterior import noise_rate

# Cross-entropy is not hurt by so few wrong labels, and hard images are what it learns from.
FORGIVEN = 0.01


@dataclass(frozen=True)
class DSPTAuto(Method):
    """Between CoOp and DSPT by the estimated noise rate: cross-entropy if none is wrong for sure, towards MAE if many.

    The noise rate is estimated once, before training, from the zero-shot prediction, which no label has touched. Its
    standard error is added, so that what cannot be told counts as noise; one label in a hundred is forgiven, so that
    labels which are as good as clean are learnt as clean ones.
    """

    name = "dspt-auto"
    formula = "(1 + n) log((1 + n) / (p_y + n)), n = estimated noise rate + its error - 0.01, within 0..1"
    source = "this package"
    needs_clip = "it needs CLIP's comparison of images with text"

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        memory = epoch.memory
        if "noise_rate" not in memory:
            found = noise_rate.estimate_noise_rate(epoch.zero_shot_logits(), epoch.labels)
            memory["noise_rate"] = torch.tensor(found.rate, dtype=torch.float64)
            memory["noise_rate_error"] = torch.tensor(found.error, dtype=torch.float64)
        upper = float(memory["noise_rate"]) + float(memory["noise_rate_error"])
        shift = min(1.0, max(0.0, upper - FORGIVEN))
        everything = np.arange(len(epoch.labels))
        return [Phase(everything, epoch.labels, loss_of("shifted", shift=shift))]
