"""How much each witness counts: the weights of what features and names say, and how often they are less sure than that.

    p = (1 - e) softmax(s) + e softmax(s / 3),    s = a1 g1 + a2 g2 + b z + log prior

Most images are as clear as one temperature says; some are not, and e is their share. Without them one sure prediction
that is wrong would outweigh any label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# By how much the logits of images that are less clear are divided; a whole number, so that one exponential gives both.
SOFTER = 3
# The lowest logit below the highest: what is less probable counts as nothing, and in numbers that are too small for
# single precision a processor is ten times slower.
LOWEST = -50.0
# Rows whose numbers stay in the processor's cache while a likelihood is computed.
_ROWS = 512
# The least and the greatest share of such images. Labels alone would often choose none: mistakes between like classes
# explain as much, and the probabilities would be too sure.
SOFT = (0.1, 0.3)
# The greatest weight: beyond it, hardly any image is in doubt, and no label could change that again.
HEAVIEST = 3.0


class Mixture(NamedTuple):
    """The weights of the terms, 0 or more, and the share of images that are less clear."""

    weights: tuple[float, ...]
    softness: float = 0.0


def probabilities(logits: Tensor, softness: float) -> Tensor:
    """Return the probability of each class (n, C)."""
    if not softness:
        return logits.softmax(1)
    clear, softer = _powers(logits)
    clear.mul_((1 - softness) / clear.sum(1, keepdim=True))
    return clear.add_(softer.mul_(softness / softer.sum(1, keepdim=True)))


def _powers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exponentials (n, C) of logits below the highest, and of the same divided by SOFTER."""
    softer = (logits - logits.amax(1, keepdim=True)).clamp_min_(LOWEST).div_(SOFTER).exp_()
    return softer**SOFTER, softer


def weighted(terms: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of terms."""
    total = terms[0] * float(weights[0])
    for term, weight in zip(terms[1:], weights[1:], strict=True):
        total.add_(term, alpha=float(weight))
    return total


def most_likely(
    terms: list[Tensor], likely: Tensor, start: Mixture, prior: Tensor | None = None, soft: tuple[float, float] = (0, 0)
) -> tuple[float, Mixture]:
    """Return the least mean negative log likelihood of the labels, and the mixture that has it.

    Parameters
    ----------
    terms : list of Tensor of shape (n, C)
        Their weighted sum are the logits of the true class.
    likely : Tensor of shape (n, C)
        The probability of each sample's given label under each true class.
    start : Mixture
        Where to begin.
    prior : Tensor of shape (n, C), optional
        Added to the weighted sum as it is.
    soft : pair of float
        The least and the greatest share of images that are less clear; 0 if all are alike.
    """
    from scipy.optimize import minimize

    def value_and_slope(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        *weights, softness = numbers.tolist()
        value, slopes = 0.0, np.zeros(len(numbers))
        for first in range(0, len(likely), _ROWS):
            rows = slice(first, first + _ROWS)
            some, label = [term[rows] for term in terms], likely[rows]
            logits = weighted(some, weights)
            clear, softer = _powers(logits if prior is None else logits.add_(prior[rows]))
            by_clear, by_softer = clear.sum(1, keepdim=True), softer.sum(1, keepdim=True)
            if_clear, if_softer = (clear * label).sum(1, keepdim=True), (softer * label).sum(1, keepdim=True)
            if_clear, if_softer = if_clear.div_(by_clear), if_softer.div_(by_softer)
            total = ((1 - softness) * if_clear + softness * if_softer).clamp_min_(1e-30)
            pull = clear.mul_((1 - softness) / (by_clear * total)).mul_(label - if_clear)
            if softness:
                pull.addcmul_(softer.mul_(softness / SOFTER / (by_softer * total)), label - if_softer)
            value -= float(total.log_().sum(dtype=torch.float64))
            slopes[:-1] -= [float(torch.dot(pull.view(-1), term.reshape(-1))) for term in some]
            slopes[-1] -= float(((if_softer - if_clear) / total.exp_()).sum(dtype=torch.float64))
        return value / len(likely), slopes / len(likely)

    found = minimize(
        value_and_slope,
        (*start.weights, min(max(start.softness, soft[0]), soft[1])),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, HEAVIEST)] * len(terms) + [soft],
        options={"maxiter": 25, "ftol": 1e-6},
    )
    *weights, softness = (float(each) for each in found.x)
    return float(found.fun), Mixture(tuple(weights), softness)
