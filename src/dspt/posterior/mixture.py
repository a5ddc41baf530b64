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

# By how much the logits of images that are less clear are divided.
SOFTER = 3.0
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
    p = logits.softmax(1)
    return p.mul_(1 - softness).add_((logits / SOFTER).softmax(1), alpha=softness) if softness else p


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
        logits = weighted(terms, numbers[:-1].tolist())
        logits = logits if prior is None else logits.add_(prior)
        total: Tensor | float = 0.0
        pulls, sums = [], []
        for share, temperature in ((1 - numbers[-1], 1.0), (numbers[-1], SOFTER)) if soft[1] else ((1.0, 1.0),):
            p = (logits / temperature).softmax(1) if temperature != 1 else logits.softmax(1)
            q = p * likely
            own = q.sum(1, keepdim=True)
            pulls.append(q.sub_(p.mul_(own)).mul_(float(share / temperature)))
            sums.append(own)
            total = total + float(share) * own
        assert isinstance(total, Tensor)
        total = total.clamp_min(1e-30)
        pull = sum(pulls[1:], pulls[0]).div_(total)
        slopes = [-float((pull * term).sum(dtype=torch.float64)) / len(pull) for term in terms]
        slopes.append(-float(((sums[-1] - sums[0]) / total).mean(dtype=torch.float64)))
        return -float(total.log().mean(dtype=torch.float64)), np.array(slopes)

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
