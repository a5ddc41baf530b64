"""How hard images are, by something else than their labels: how often two judges disagree who know half of each.

Labels alone cannot tell a hard image from one that somebody has mislabelled because it was hard for them. But two
judges who see different halves of the features disagree about images that are hard, whatever their labels are, and
seldom about others. **More images than they disagree about, by a tenth, are not hard** (an assumption, and here it is
named): labels that contradict more of them are wrong. On clean labels of 13 sets of features of images, texts and
measurements, of 2 to 211 classes and 569 to 20,000 samples, the whole of the features contradicts 0.2 to 1.01 times as
many labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspt.posterior.mixture import Mixture, probabilities, weighted

# How many times as many images may be in doubt as two judges disagree about.
MOST_IN_DOUBT = 1.1
# Directions that a judge sees at most. Of more, the halves of many features say the same, and judges always agree.
WIDEST = 128
# The share of the variance held by the directions that judges see mixtures of. Where few hold most, as in features that
# were learnt for these very classes, each of many would show all of it to both judges.
_HELD = 0.9
# Weights are multiplied with this at most, which is found in so many steps.
_SHARPEST, _STEPS = 8.0, 8


def halves(products: Tensor, random: np.ndarray) -> list[Tensor]:
    """Return two sets of directions (D, R) in which features vary, as many and as good; none if one holds nearly all.

    Features that say the same twice do not count twice: directions are of the space that holds nearly all of how the
    features vary.

    Parameters
    ----------
    products : float64 Tensor of shape (D, D)
        Sums of products of centred features.
    random : float array of shape (D, D)
        Normal numbers, by which the directions are mixed: the widest ones are in neither half alone.
    """
    values, axes = torch.linalg.eigh(products)
    values, axes = values.flip(0).clamp_min(0), axes.flip(1)
    rank = int((values.cumsum(0) < _HELD * values.sum()).sum()) + 1
    mixed = axes[:, :rank] @ torch.linalg.qr(torch.from_numpy(random[:rank, :rank]))[0]
    width = min(rank // 2, WIDEST)
    return [mixed[:, :width], mixed[:, width : 2 * width]] if width else []


def most_in_doubt(disagreed: int, judged: int) -> float:
    """Return the greatest share of images that may be hard, if judges disagreed on so many of those judged."""
    return min(1.0, MOST_IN_DOUBT * (disagreed + 1) / judged)


def sharpened(mixture: Mixture, terms: Sequence[Tensor], prior: Tensor, doubt: float) -> Mixture | None:
    """Return the mixture with all weights multiplied so that images are in no more doubt.

    None if they are in no more doubt as it is, or if no weights would do: then it does not look at the images.

    Parameters
    ----------
    mixture : Mixture
    terms : sequence of Tensor of shape (n, C)
    prior : Tensor of shape (n, C)
    doubt : float
        The greatest mean probability that an image is not of its likeliest class.
    """

    def times(factor: float) -> Mixture:
        return mixture._replace(weights=tuple(factor * weight for weight in mixture.weights))

    def in_doubt(factor: float) -> bool:
        logits = weighted(terms, times(factor).weights).add_(prior)
        return float(1 - probabilities(logits, mixture.softness).amax(1).mean()) > doubt

    if doubt >= 1 or not in_doubt(1.0) or in_doubt(_SHARPEST):
        return None
    low, high = 1.0, _SHARPEST
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if in_doubt(middle) else (low, middle)
    return times(high)
