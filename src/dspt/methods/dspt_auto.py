"""DSPT that adjusts itself: cross-entropy on what the labels most probably ought to be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dspt import losses
from dspt.methods.method import Epoch, Method, Phase


@dataclass(frozen=True)
class DSPTAuto(Method):
    """Cross-entropy on the posterior of each label: sure labels are learnt whole, doubtful ones in shares.

    The posterior is computed once, before training, from the image features, the given labels and the zero-shot
    logits; where names or labels are of no use, it leaves them aside. A sample whose label is most probably wrong is
    not dropped: it is learnt as what it most probably is.
    """

    name = "dspt-auto"
    formula = "-sum_t Q_t log p_t, Q the posterior of the true class given image and label"
    source = "this package"
    needs_clip = "it reads the posterior of labels, made from CLIP's features"

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        found = epoch.posterior()
        for name, value in found.findings().items():
            epoch.memory[name] = torch.tensor(value, dtype=torch.float64)
        targets = torch.from_numpy(found.probabilities).to(epoch.labels.device)
        everything = np.arange(len(epoch.labels))
        return [Phase(everything, targets, partial(losses.soft_cross_entropy, reduction="none"))]
