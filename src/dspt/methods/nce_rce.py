"""An active and a passive loss: normalised and reverse cross-entropy."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class NCERCE(LossMethod):
    """Normalised plus reverse cross-entropy on every sample with its given label."""

    name = "nce-rce"
    formula = "alpha NCE + beta RCE"
    source = "Ma et al., ICML 2020"

    alpha: float = 1.0
    beta: float = 1.0
