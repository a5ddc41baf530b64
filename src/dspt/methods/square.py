"""Squared directions in place of the inner softmax; the paper describes it in words only."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class Square(LossMethod):
    """Cross-entropy of the squares of normalised logits."""

    name = "square"
    formula = "CE(u * u), u = z / |z|"
    source = "the DSPT paper, ICML 2026"
