"""NLPrompt: optimal transport parts the samples; clean ones get cross-entropy, the others MAE."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dspt.errors import InputError
from dspt.methods.method import Epoch, Method, Phase, loss_of

ITERATIONS, TOLERANCE = 1000, 1e-6


@dataclass(frozen=True)
class NLPrompt(Method):
    """Cross-entropy on samples whose transport plan prefers the given label, then MAE on the rest, each epoch."""

    name = "nlprompt"
    formula = "CE where argmax OT plan = y, then MAE elsewhere"
    source = "Pan et al., CVPR 2025"

    reg: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.reg < float("inf"):
            raise InputError(f"reg = {self.reg}: expected a number above 0")

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return a phase of clean and a phase of other samples, each with its given labels."""
        cost = -epoch.logits().softmax(1).log_softmax(1)
        clean = transport(cost, self.reg).argmax(1) == epoch.labels
        phases = []
        for chosen, loss in ((clean, "ce"), (~clean, "mae")):
            samples = chosen.nonzero()[:, 0]
            phases.append(Phase(samples.cpu().numpy(), epoch.labels[samples], loss_of(loss)))
        return phases


def transport(cost: Tensor, reg: float) -> Tensor:
    """Return the entropic transport plan (N, C) from uniform samples to uniform classes.

    In the log domain: at a small `reg` the plain iteration underflows to a plan of zeros.
    """
    import ot

    n, classes = cost.shape
    rows, columns = cost.new_full((n,), 1 / n), cost.new_full((classes,), 1 / classes)
    with torch.no_grad():
        return ot.sinkhorn(
            rows,
            columns,
            cost,
            reg,
            method="sinkhorn_log",
            numItermax=ITERATIONS,
            stopThr=TOLERANCE,
            warn=False,
        )
