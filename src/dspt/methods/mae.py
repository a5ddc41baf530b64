"""Mean absolute error, DSPT's nearest neighbour: DSPT is MAE plus a small confidence term."""

from dataclasses import dataclass

from torch import Tensor

from dspt import losses
from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class MAE(LossMethod):
    """Mean absolute error on every sample with its given label."""

    name = "mae"
    formula = "1 - p_y"

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 - p_y."""
        return losses.get("mae")(logits, labels, "none", validate=False)
