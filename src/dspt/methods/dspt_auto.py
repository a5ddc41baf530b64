"""DSPT that adjusts itself: between a single and a double softmax, by the noise rate that it estimates."""

from dataclasses import dataclass

import numpy as np
import torch

from dspt import noiserate
from dspt.methods.method import Epoch, Method, Phase, loss_of


@dataclass(frozen=True)
class DSPTAuto(Method):
    """A second normalisation as soft as the labels are wrong: none for clean labels, DSPT's for random ones.

    The double softmax normalises exp(p), which is nearly 1 + p. Here p + n is normalised, q = (p + n) / (1 + C n), with
    n the noise rate: n = 0 is the single softmax of CoOp, n = 1 nearly DSPT. So DSPT is what one would
    do if all labels were wrong. The noise rate is estimated once, before training, from the zero-shot prediction, which
    no label has touched; its standard error is added, so that what cannot be told counts as noise.
    """

    name = "dspt-auto"
    formula = "(1 + n) log((1 + n) / (p_y + n)), n = estimated noise rate"
    source = "this package"

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        memory = epoch.memory
        if "noise_rate" not in memory:
            found = noiserate.estimate(epoch.zero_shot_logits(), epoch.labels)
            memory["noise_rate"] = torch.tensor(found.rate, dtype=torch.float64)
            memory["noise_rate_error"] = torch.tensor(found.error, dtype=torch.float64)
        shift = min(1.0, float(memory["noise_rate"]) + float(memory["noise_rate_error"]))
        everything = np.arange(len(epoch.labels))
        return [Phase(everything, epoch.labels, loss_of("shifted", shift=shift))]
