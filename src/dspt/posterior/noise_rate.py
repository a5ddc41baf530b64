"""How many labels are wrong: the noise rate, estimated from what a classifier that has not seen the labels says.

A right label of an image has the probability p_y that the classifier gives it, a wrong one is any other class:

    Pr(y | x) = (1 - eta) p_y + eta (1 - p_y) / (C - 1),    p = softmax(z / tau)

The noise rate eta and the temperature tau that make the given labels most likely are the estimate. The temperature is
what tells a hard image from a wrong label: a classifier that is often mistaken is made less sure, not its labels wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Beyond these temperatures a softmax is one-hot or flat.
_TEMPERATURES = (1 / 16, 64.0)


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of wrong labels."""

    rate: float
    error: float  # standard error, as far as the number of samples causes it
    temperature: float


def in_words(found: Mapping[str, float]) -> str:
    """Return the rate and its error, as a run has them among its findings, in words; "" if it has none."""
    if not {"noise_rate", "noise_rate_error"} <= found.keys():
        return ""
    rate, error = 100 * found["noise_rate"], 100 * found["noise_rate_error"]
    return f"estimated share of wrong labels: {rate:.1f} ± {error:.1f} %, if mistakes are spread over all classes"


def estimate_noise_rate(logits: Tensor, labels: Tensor) -> NoiseRate:
    """Return the most likely noise rate of labels, from logits (N, C) of a classifier that has not learnt them."""
    from scipy.optimize import minimize_scalar

    logits = logits.double()

    def negative_log_likelihood(log_temperature: float) -> float:
        right, wrong = _likelihoods(logits, labels, math.exp(log_temperature))
        rate = _rate(right, wrong)
        return -_mixed(right, wrong, rate).log().mean().item()

    low, high = map(math.log, _TEMPERATURES)
    # A coarse look first: the likelihood may have more than one hill.
    grid = torch.linspace(low, high, 21).tolist()
    best = min(range(len(grid)), key=lambda i: negative_log_likelihood(grid[i]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(negative_log_likelihood, bounds=around, method="bounded", options={"xatol": 1e-3})
    temperature = math.exp(found.x)
    right, wrong = _likelihoods(logits, labels, temperature)
    rate = _rate(right, wrong)
    return NoiseRate(rate, _error(logits, labels, rate, temperature), temperature)


def _error(logits: Tensor, labels: Tensor, rate: float, temperature: float) -> float:
    """Return the standard error of the rate, the temperature being estimated with it: from the scores of both."""
    right, wrong = _likelihoods(logits, labels, temperature)
    scaled = logits / temperature
    of_label = scaled.gather(1, labels[:, None])[:, 0]
    by_temperature = right * ((scaled.softmax(1) * scaled).sum(1) - of_label)  # d right / d log t
    by_temperature = by_temperature * (1 - rate - rate / (logits.shape[1] - 1))
    scores = torch.stack([wrong - right, by_temperature]) / _mixed(right, wrong, rate)
    (a, b), (_, c) = (scores @ scores.T).tolist()  # the information in the rate and in the temperature
    # What is left of the first if the second is not known; sure predictions do not depend on it at all.
    left = a - b * b / c if c > 1e-9 * len(labels) else a
    return min(1.0, left**-0.5) if left > 0 else 1.0


def _likelihoods(logits: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the probability of each given label if it is right, and if it is wrong."""
    right = (logits / temperature).softmax(1).gather(1, labels[:, None])[:, 0]
    return right, (1 - right) / (logits.shape[1] - 1)


def _mixed(right: Tensor, wrong: Tensor, rate: float) -> Tensor:
    return ((1 - rate) * right + rate * wrong).clamp_min(1e-300)


def _rate(right: Tensor, wrong: Tensor) -> float:
    """Return the most likely share of wrong labels: the likelihood is concave in it, so its slope is bisected."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        slope = ((wrong - right) / _mixed(right, wrong, middle)).sum().item()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (low + high) / 2
