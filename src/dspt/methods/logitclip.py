"""Cross-entropy of clipped logits: bounded, since long logits are cut to length tau."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class LogitClip(LossMethod):
    """Cross-entropy of logits no longer than tau; public code cuts to 1/tau (reciprocal)."""

    name = "logitclip"
    formula = "CE(z min(1, tau / |z|))"
    source = "Wei et al., ICML 2023"

    tau: float = 1.0
    reciprocal: bool = False
