"""Mean absolute error, DSPT's nearest neighbour: DSPT is MAE plus a small confidence term."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class MAE(LossMethod):
    """Mean absolute error on every sample with its given label."""

    name = "mae"
    formula = "1 - p_y"
    source = "Ghosh et al., AAAI 2017"
