"""Generalised cross-entropy, between cross-entropy (q to 0) and MAE (q = 1)."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class GCE(LossMethod):
    """Generalised cross-entropy on every sample with its given label."""

    name = "gce"
    formula = "(1 - p_y^q) / q"
    source = "Zhang and Sabuncu, NeurIPS 2018"

    q: float = 0.7
