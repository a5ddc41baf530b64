"""Symmetric cross-entropy: cross-entropy and its reverse, in which the prediction is the truth."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class SCE(LossMethod):
    """Symmetric cross-entropy on every sample with its given label."""

    name = "sce"
    formula = "alpha CE + beta RCE"
    source = "Wang et al., ICCV 2019"

    alpha: float = 0.1
    beta: float = 1.0
