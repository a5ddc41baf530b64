"""DSPT that adjusts itself: cross-entropy on what the labels most probably ought to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dspt import losses
from dspt.methods.method import Epoch, Method, Phase, loss_of

# What the learning rate may be multiplied with: a prompt that has far to go needs more than CoOp's. Less is not tried,
# as what learns slowly always looks better at first.
LR_MULTIPLES = (1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True)
class DSPTAuto(Method):
    """Cross-entropy on the posterior of each label: sure labels are learnt whole, doubtful ones in shares.

    The posterior is computed once, before training, from the image features, the given labels and the zero-shot
    logits, if there are any; where names or labels are of no use, it leaves them aside. A sample whose label is most
    probably wrong is not dropped: it is learnt as what it most probably is. Labels that cannot be told from clean ones,
    since the estimated share of wrong ones is within its error, are believed to that extent. The learning rate is
    multiplied with what learns best at first: the samples of the epoch after the warm-up are told best, each before it
    is learnt; of short epochs, of several. Prototypes whose class names tell next to nothing begin at the class means
    by the posterior. Where images and names tell nothing about the labels, it is DSPT, at the
    usual rate.
    """

    name = "dspt-auto"
    formula = "-sum_t (s Q_t + (1 - s) 1{t = y}) log p_t, Q the posterior of the true class, s = min(1, rate / error)"
    source = "this package"
    starts_by_posterior = True
    multiples = LR_MULTIPLES
    needs_clip = "it reads the posterior of labels, made from features"

    def lr_multiples(self, epoch: Epoch) -> tuple[float, ...]:
        """Return all of them, but 1 alone where the labels cannot be judged."""
        return self.multiples if epoch.posterior().can_tell else (1.0,)

    def words(self, found: Mapping[str, float]) -> str:
        """Return in words how many labels are wrong, and the learning rate if it is not the usual one."""
        multiple = found.get("lr_multiple", 1.0)
        rate = f"learning rate: {multiple:g} times the usual one, which is too low here" if multiple != 1 else ""
        return "; ".join(filter(None, (super().words(found), rate)))

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with all samples."""
        found = epoch.posterior()
        for name, value in found.findings().items():
            epoch.memory[name] = torch.tensor(value, dtype=torch.float64)
        everything = np.arange(len(epoch.labels))
        if not found.can_tell:
            return [Phase(everything, epoch.labels, loss_of("dspt"))]
        doubt = min(1.0, found.noise_rate / found.noise_rate_error)
        targets = torch.from_numpy(found.as_found()).mul_(doubt).to(epoch.labels.device)
        targets.scatter_add_(1, epoch.labels[:, None], torch.full_like(targets[:, :1], 1 - doubt))
        return [Phase(everything, targets, partial(losses.soft_cross_entropy, reduction="none"))]
