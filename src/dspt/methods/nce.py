"""Normalised cross-entropy: the share of the label in the cross-entropies of all classes, so it is bounded."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class NCE(LossMethod):
    """Normalised cross-entropy on every sample with its given label."""

    name = "nce"
    formula = "scale * log p_y / sum_k log p_k"
    source = "Ma et al., ICML 2020"

    scale: float = 1.0
