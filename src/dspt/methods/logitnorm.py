"""Cross-entropy of normalised logits: only their direction can be learnt, not their size."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class LogitNorm(LossMethod):
    """Cross-entropy of logits of one length."""

    name = "logitnorm"
    formula = "CE(z / |z| / t)"
    source = "Wei et al., ICML 2022"

    t: float = 1.0
