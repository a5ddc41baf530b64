"""The paper's propositions and theorems on the double-softmax loss, as functions.

`L = -log q_y` with `p = softmax(z)` and `q = softmax(p)`. What is computed is what holds; where the
printed text differs, the function says so. Tensors are worked on in float64, because the quantities
of Theorem 3.2 vanish exactly where float32 has no digits left to subtract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspt.internal.errors import InputError
from dspt.losses import check_values
from dspt.noise import checked_transition


def gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Return dL/dz in closed form (Proposition 3.1).

    `dL/dz_i = p_i [(q_i - 1{i=y}) + (p_y - sum_j p_j q_j)]`; every row sums to zero.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    labels : Tensor of shape (N,)

    Returns
    -------
    Tensor of shape (N, C), float64
    """
    check_values(logits, labels)
    p = logits.detach().double().softmax(1)
    q = p.softmax(1)
    at_label = labels.long()[:, None]
    alignment = q.scatter_add(1, at_label, -torch.ones_like(p))
    balance = p.gather(1, at_label) - (p * q).sum(1, keepdim=True)
    return p * (alignment + balance)


def gradient_bound(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's total gradient and its bound (Theorem 3.2).

    `sum_i |dL/dz_i| <= 5 (1 - p_yhat)` for any class `yhat != y`, hence 0 in the limit of a
    confident prediction that contradicts the label. `yhat` is the most probable class other than
    the label, which gives the least bound. The proof prints `sum_{i != yhat} |p_i| = 2 delta`,
    where `2 sum |p_i| = 2 delta` is meant.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    labels : Tensor of shape (N,)

    Returns
    -------
    total, bound : Tensors of shape (N,), float64
    """
    p = logits.detach().double().softmax(1)
    others = p.scatter(1, labels.long()[:, None], -1.0)
    # Summing the rest keeps the digits that 1 - p_yhat would lose.
    rest = p.scatter(1, others.argmax(1, keepdim=True), 0.0).sum(1)
    return gradient(logits, labels).abs().sum(1), 5 * rest


def greatest_total_gradient(num_classes: int) -> float:
    """Return the least upper bound on a sample's total gradient, `sum_i |dL/dz_i|`, over all logits.

    The text after Proposition 3.1 says "not greater than 1". The sharp bound is about half of that: 0.528 for 2
    classes, 0.503 for 10, 0.50003 for 100, and towards MAE's 0.5 for more. It is

    `max over x of 2x(1-x) [1 + (e^(1-x) - e^x) / (e^(1-x) + e^x + C-2)]`,

    the total where the label has probability x and one other class all of the rest, so that it is attained for 2
    classes and approached for more. docs/theory.md has the proof. Cross-entropy's is 2.
    """
    from scipy.optimize import minimize_scalar

    _check_classes(num_classes)

    def negative(x: float) -> float:
        label, other = math.exp(x), math.exp(1 - x)
        return -2 * x * (1 - x) * (1 + (other - label) / (other + label + num_classes - 2))

    return -float(minimize_scalar(negative, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}).fun)


def bounds(num_classes: int) -> tuple[float, float]:
    """Return the least and greatest loss for `num_classes` classes (Proposition 3.3).

    `log(1 + (C-1)/e) <= L <= log(e + C-1)`, approached as `p` becomes one-hot at the label and at
    another class. The two differ by exactly 1 for every C. The proof's letters `p` and `q` are
    swapped with respect to Proposition 3.1.
    """
    _check_classes(num_classes)
    return math.log1p((num_classes - 1) / math.e), math.log(math.e + num_classes - 1)


def clean_risk_gap_bound(rate: float, num_classes: int) -> float:
    """Return the bound `rate / (1 - rate)` on the clean-risk gap (Theorem 3.4).

    Under symmetric noise it bounds `R(f_noisy) - R(f_clean)`, where the two minimise the noisy and
    the clean risk over the same set of classifiers, whichever set. The printed factor
    `log((e+C-1) / (1+(C-1)/e))` is 1. The proof needs only Proposition 3.3 and `rate < 1`; as no
    gap exceeds 1, the bound says something for rates below one half.

    Raises
    ------
    InputError
        Unless `0 <= rate < 1 - 1/C`, the theorem's condition.
    """
    _check_symmetric(rate, num_classes)
    return rate / (1 - rate)


def sharp_clean_risk_gap_bound(rate: float, num_classes: int) -> float:
    """Return another bound on Theorem 3.4's gap, `rate C span / (C - 1 - rate C)`.

    Not in the paper. Over all labels the losses of one prediction sum to `C logsumexp(p) - 1`,
    which varies by `C * confidence_span(C)` only, so the noisy risk is nearly a multiple of the
    clean one: for 100 classes at rate 0.4 this gives 0.005 where the theorem gives 0.667. The
    multiple is positive exactly when `rate < 1 - 1/C`, and the bound grows without limit there.
    """
    _check_symmetric(rate, num_classes)
    flipped = rate * num_classes
    return flipped * confidence_span(num_classes) / (num_classes - 1 - flipped)


def noisy_risk_gap_bound(transition: np.ndarray, class_probabilities: Sequence[float]) -> float:
    """Return the bound `C E[T_yy]` on the noisy-risk gap under asymmetric noise (Theorem 3.5).

    It bounds `RT(f_clean) - RT(f_noisy)` for risks under noisy labels. The printed factor
    `log((e+C-1) / (1+(C-1)/e))` is 1. The proof writes `log(1+e(C-1))` for `log(e+C-1)` and `T_yi`
    for `T_iy`, and takes the clean minimiser to be one-hot at every label. The bound holds without
    that, over any set of classifiers: the condition makes every `T_yy >= 1/C`, so the bound is at
    least 1, which no gap exceeds by Proposition 3.3. For the same reason it excludes nothing.

    Parameters
    ----------
    transition : array of shape (C, C)
        `T[j, k] = Pr(noisy = j | true = k)`; columns sum to 1.
    class_probabilities : sequence of C floats
        How frequent each true class is.

    Raises
    ------
    InputError
        Unless `T[j, k] <= T[k, k]` for all j and k, the theorem's condition.
    """
    frequency = np.asarray(class_probabilities, dtype=np.float64)
    transition = checked_transition(transition, len(frequency))
    if (frequency < 0).any() or not math.isclose(frequency.sum(), 1, abs_tol=1e-6):
        raise InputError("class_probabilities: expected numbers of 0 or more that sum to 1")
    stays = transition.diagonal()
    broken = np.argwhere(transition > stays + 1e-12)
    if len(broken):
        j, k = broken[0]
        found = f"T[{j},{k}] = {transition[j, k]:g} above T[{k},{k}] = {stays[k]:g}"
        raise InputError(f"transition: Theorem 3.5 needs T[j,k] <= T[k,k], found {found}")
    return len(frequency) * float(frequency @ stays)


def mae_and_confidence(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of `L = (1 - p_y) + (logsumexp(p) - 1)`.

    The first is MAE. The second knows nothing of the label: it rewards an even `p`, and moves by
    no more than `confidence_span(C)`.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    labels : Tensor of shape (N,)

    Returns
    -------
    mae, confidence : Tensors of shape (N,), float64
    """
    p = logits.detach().double().softmax(1)
    return 1 - p.gather(1, labels.long()[:, None]).squeeze(1), p.logsumexp(1) - 1


def confidence_span(num_classes: int) -> float:
    """Return how far `logsumexp(p)` moves from even to one-hot `p`: `log(e+C-1) - log(C) - 1/C`.

    0.059 for 10 classes, 0.007 for 100 and 0.0036 for 196.
    """
    _check_classes(num_classes)
    return math.log1p((math.e - 1) / num_classes) - 1 / num_classes


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"num_classes: expected 2 or more, found {num_classes}")


def _check_symmetric(rate: float, num_classes: int) -> None:
    _check_classes(num_classes)
    if not 0 <= rate < 1 - 1 / num_classes:
        limit = f"1 - 1/C = {1 - 1 / num_classes:g} for {num_classes} classes"
        raise InputError(f"noise rate: Theorem 3.4 needs 0 <= rate < {limit}, found {rate}")
