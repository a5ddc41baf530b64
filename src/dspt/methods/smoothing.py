"""Label smoothing: part of each target is spread over all classes, so no label is believed wholly."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class Smoothing(LossMethod):
    """Cross-entropy with smoothed labels."""

    name = "smoothing"
    formula = "-(1 - eps) log p_y - eps/C sum_k log p_k"
    source = "Szegedy et al., CVPR 2016"

    eps: float = 0.2
