"""NLPrompt: optimal transport parts the samples; clean ones get cross-entropy, the others MAE."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspt.internal.errors import InputError
from dspt.methods.method import Epoch, Method, Phase, loss_of

ITERATIONS, TOLERANCE = 1000, 1e-6

# exp(-SMALLEST) and its square are far from underflow in double precision.
SMALLEST = 200


@dataclass(frozen=True)
class NLPrompt(Method):
    """Cross-entropy on samples whose transport plan prefers the given label, then MAE on the rest, each epoch.

    With `published` it does two more things as its published code does them: the last short batch of a shuffled pass
    is not looked at and gets MAE, and where nothing is clean all samples get cross-entropy.
    """

    name = "nlprompt"
    formula = "CE where argmax OT plan = y, then MAE elsewhere"
    source = "Pan et al., CVPR 2025"
    needs_clip = "it trusts what CLIP knows before training"
    needs_text = True

    reg: float = 0.01
    published: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.reg < float("inf"):
            raise InputError(f"reg = {self.reg}: expected a number above 0")

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return a phase of clean and a phase of other samples, each with its given labels."""
        labels = epoch.labels
        seen = torch.from_numpy(self._seen(epoch)).to(labels.device)
        cost = -epoch.logits()[seen].softmax(1).log_softmax(1)
        clean = torch.zeros_like(labels, dtype=torch.bool)
        clean[seen] = transport(cost, self.reg).argmax(1) == labels[seen]
        if self.published and not clean.any():
            return [Phase(np.arange(len(labels)), labels, loss_of("ce"))]
        phases = []
        for chosen, loss in ((clean, "ce"), (~clean, "mae")):
            samples = chosen.nonzero()[:, 0]
            phases.append(Phase(samples.cpu().numpy(), labels[samples], loss_of(loss)))
        return phases

    def _seen(self, epoch: Epoch) -> np.ndarray:
        """Return the samples that are looked at, in order."""
        n = len(epoch.labels)
        left_out = n % epoch.batch_size if self.published and n > epoch.batch_size else 0
        order = epoch.stream("seen").permutation(n) if left_out else np.arange(n)
        return np.sort(order[left_out:])


def transport(cost: Tensor, reg: float) -> Tensor:
    """Return the entropic transport plan (N, C) from uniform samples to uniform classes.

    In double precision: in single, most of the time goes into numbers too small to be normal. Where the kernel
    exp(-cost / reg) would underflow even so, the iteration is done in the log domain, which is thirty times slower.
    At NLPrompt's own `reg` it never would, since its costs differ by less than 1.
    """
    import ot

    with torch.no_grad():
        cost = cost.double()
        # The plan does not change, since the rows' sums are given.
        cost = cost - cost.amin(1, keepdim=True)
        n, classes = cost.shape
        plan: Tensor = ot.sinkhorn(
            cost.new_full((n,), 1 / n),
            cost.new_full((classes,), 1 / classes),
            cost,
            reg,
            method="sinkhorn" if cost.max() / reg < SMALLEST else "sinkhorn_log",
            numItermax=ITERATIONS,
            stopThr=TOLERANCE,
            warn=False,
        )
        return plan
