"""Cross-entropy, as CoOp trains its prompts: fits every label, the wrong ones too."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class CoOp(LossMethod):
    """Cross-entropy on every sample with its given label."""

    name = "coop"
    loss_name = "ce"
    formula = "-log p_y"
    source = "Zhou et al., IJCV 2022"
