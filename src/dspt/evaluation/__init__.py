"""How well a classifier does: the figures (`measures`), their picture, and the page that shows them (`page`)."""

from __future__ import annotations

from dspt.evaluation.measures import Evaluation, harmonic_mean

__all__ = ["Evaluation", "harmonic_mean"]
