"""Bootstrapping: part of each target is the prediction itself, so that a label can be outvoted."""

from dataclasses import dataclass

from dspt.methods.method import LossMethod


@dataclass(frozen=True)
class Bootstrap(LossMethod):
    """Soft bootstrapping: the rest of the target is the prediction."""

    name = "bootstrap"
    formula = "b CE - (1 - b) sum_k p_k log p_k"
    source = "Reed et al., ICLR 2015 workshop"

    b: float = 0.95


@dataclass(frozen=True)
class HardBootstrap(LossMethod):
    """Hard bootstrapping: the rest of the target is the predicted class."""

    name = "bootstrap-hard"
    formula = "b CE - (1 - b) log p_argmax"
    source = "Reed et al., ICLR 2015 workshop"

    b: float = 0.8
