"""Double-softmax cross-entropy: a confident prediction against the label has almost no gradient."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class DSPT(LossMethod):
    """Double-softmax cross-entropy; s scales the outer softmax: 1 is the paper's, towards 0 it is MAE."""

    name = "dspt"
    loss_name = "dspt-scale"
    formula = "(logsumexp(s p) - s p_y) / s"
    source = "the DSPT paper, ICML 2026"

    s: float = 1.0
