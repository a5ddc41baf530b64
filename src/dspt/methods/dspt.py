"""Double-softmax cross-entropy: a confident prediction against the label has almost no gradient."""

from dataclasses import dataclass

from torch import Tensor

from dspt import losses
from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class DSPT(LossMethod):
    """Double-softmax cross-entropy on every sample with its given label."""

    name = "dspt"
    formula = "logsumexp(p) - p_y"

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return logsumexp(p) - p_y."""
        return losses.get("dspt")(logits, labels, "none", validate=False)
