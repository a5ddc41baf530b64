"""Claims about the paper's theory: what is stated holds, and where it is tight."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

from dspt import theory
from dspt.internal.errors import InputError

claim = settings(max_examples=100)
rows_of_logits = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def double_softmax(logits: torch.Tensor) -> torch.Tensor:
    """The loss of every label, written as the paper writes it."""
    return -logits.softmax(-1).softmax(-1).log()


@claim
@given(rows_of_logits, st.integers(0, 11))
def test_closed_form_gradient_equals_autograd(row: list[float], label: int) -> None:
    logits = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    label %= len(row)
    (wanted,) = torch.autograd.grad(double_softmax(logits)[0, label], logits)
    found = theory.gradient(logits, torch.tensor([label]))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-14)


@claim
@given(rows_of_logits, st.integers(0, 11))
def test_total_gradient_is_within_five_times_the_doubt(row: list[float], label: int) -> None:
    label %= len(row)
    total, bound = theory.gradient_bound(torch.tensor([row]), torch.tensor([label]))
    assert total <= bound + 1e-12
    # The theorem lets any other class be the prediction; ours must be the least of those bounds.
    p = softmax(np.array(row, dtype=np.float32).astype(np.float64))
    others = [1 - p[k] for k in range(len(p)) if k != label]
    assert float(bound) == pytest.approx(5 * min(others), abs=1e-12)


def test_gradient_of_a_confident_contradiction_vanishes_at_the_known_pace() -> None:
    logits = torch.tensor([[0.0, height] for height in (1.0, 5.0, 10.0, 20.0, 30.0)])
    total, bound = theory.gradient_bound(logits, torch.zeros(5, dtype=torch.long))
    assert (total[1:] < total[:-1]).all()
    assert total[-1] < 1e-12
    # For two classes dL/dz_y tends to -p_y (1 - q_y + q_yhat), and the other is its opposite.
    pace = 4 * math.e / (1 + math.e)
    assert float(total[3] / (bound[3] / 5)) == pytest.approx(pace, rel=1e-6)


def total_gradient(logits: np.ndarray) -> float:
    """The sum of |dL/dz| for label 0, written as Proposition 3.1 writes it."""
    p = softmax(logits)
    q = softmax(p)
    return float(np.abs(p * ((q - np.eye(len(p))[0]) + (p[0] - p @ q))).sum())


@claim
@given(rows_of_logits, st.integers(0, 11))
def test_no_total_gradient_is_above_the_greatest(row: list[float], label: int) -> None:
    label %= len(row)
    total, _ = theory.gradient_bound(torch.tensor([row]), torch.tensor([label]))
    assert total <= theory.greatest_total_gradient(len(row)) + 1e-12


@pytest.mark.parametrize("num_classes", [2, 3, 4, 5, 8])
def test_a_blind_search_finds_the_greatest_total_gradient_and_nothing_above(num_classes: int) -> None:
    """Climbing from many places, where labels are likely, unlikely, and where small classes pull backwards."""
    rng = np.random.default_rng(num_classes)
    starts = rng.normal(0, 3, (12, num_classes))
    found = [minimize(lambda z: -total_gradient(z), start, method="L-BFGS-B").fun for start in starts]
    greatest = theory.greatest_total_gradient(num_classes)
    assert -min(found) == pytest.approx(greatest, abs=1e-4)
    assert -min(found) <= greatest + 1e-12


def test_the_greatest_total_gradient_is_half_of_what_the_paper_says() -> None:
    assert theory.greatest_total_gradient(2) == pytest.approx(0.528, abs=5e-4)
    totals = [theory.greatest_total_gradient(c) for c in (2, 3, 10, 100, 10**6)]
    assert totals == sorted(totals, reverse=True)
    mae = 2 * 0.5 * (1 - 0.5)  # 2 p_y (1 - p_y) at its top
    assert mae < totals[-1] == pytest.approx(mae, abs=1e-6)


@pytest.mark.parametrize("num_classes", [3, 4, 10])
def test_where_small_classes_pull_backwards_the_total_is_below_the_greatest(num_classes: int) -> None:
    """The second case of the proof, by a grid over its one free number, the probability of the likeliest class."""
    b = np.linspace(0, 1, 10_001)
    spread = np.expm1(b) / (np.exp(b) + num_classes - b)
    assert 2 * (spread * (1 - b) + b * np.minimum(spread, 1 - b)).max() < theory.greatest_total_gradient(num_classes)


@pytest.mark.parametrize(("num_classes", "low", "high"), [(10, 1.4612, 2.4612), (100, 3.6222, 4.6222)])
def test_bounds_are_those_of_the_protocol(num_classes: int, low: float, high: float) -> None:
    assert theory.bounds(num_classes) == pytest.approx((low, high), abs=5e-5)


@claim
@given(st.integers(2, 10**6))
def test_bounds_are_one_apart_for_every_number_of_classes(num_classes: int) -> None:
    low, high = theory.bounds(num_classes)
    assert high - low == pytest.approx(1, abs=1e-12)
    assert low == pytest.approx(math.log(1 + (num_classes - 1) / math.e), rel=1e-12)


@claim
@given(rows_of_logits)
def test_every_loss_is_within_the_bounds(row: list[float]) -> None:
    low, high = theory.bounds(len(row))
    values = double_softmax(torch.tensor(row, dtype=torch.float64))
    assert low - 1e-12 <= values.min()
    assert values.max() <= high + 1e-12


@pytest.mark.parametrize("num_classes", [2, 10, 196])
def test_bounds_are_attained_in_the_limit(num_classes: int) -> None:
    logits = torch.zeros(num_classes, dtype=torch.float64)
    logits[1] = 50
    values = double_softmax(logits)
    low, high = theory.bounds(num_classes)
    assert values[1].item() == pytest.approx(low, abs=1e-12)
    assert values[0].item() == pytest.approx(high, abs=1e-12)


@claim
@given(rows_of_logits, st.integers(0, 11))
def test_the_loss_is_mae_plus_a_confidence_term(row: list[float], label: int) -> None:
    label %= len(row)
    logits = torch.tensor([row], dtype=torch.float64)
    mae, confidence = theory.mae_and_confidence(logits, torch.tensor([label]))
    p = softmax(row)
    assert float(mae) == pytest.approx(np.abs(np.eye(len(row))[label] - p).sum() / 2, abs=1e-12)
    assert float(mae + confidence) == pytest.approx(float(double_softmax(logits)[0, label]))
    least = math.log(len(row)) + 1 / len(row) - 1
    span = theory.confidence_span(len(row))
    assert least - 1e-12 <= float(confidence) <= least + span + 1e-12


@pytest.mark.parametrize(("num_classes", "span", "digits"), [(10, 0.059, 3), (100, 0.007, 3), (196, 0.0036, 4)])
def test_confidence_spans_are_those_of_the_protocol(num_classes: int, span: float, digits: int) -> None:
    assert round(theory.confidence_span(num_classes), digits) == span
    even, certain = torch.zeros(2, num_classes, dtype=torch.float64)
    certain[0] = 50
    _, terms = theory.mae_and_confidence(torch.stack([even, certain]), torch.tensor([0, 0]))
    assert float(terms[1] - terms[0]) == pytest.approx(theory.confidence_span(num_classes))


def risks(joint: np.ndarray, transition: np.ndarray, classifiers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The clean and the noisy risk of each classifier.

    `joint[x, y]` is a probability, `classifiers[f, x]` the logits of classifier f at point x.
    """
    loss = -np.log(softmax(softmax(classifiers, axis=-1), axis=-1))
    return (joint * loss).sum((1, 2)), (joint @ transition.T * loss).sum((1, 2))


def random_problem(seed: int, points: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.full(points * num_classes, 0.2)).reshape(points, num_classes)
    spread = rng.choice([0.1, 1.0, 10.0, 100.0], size=(8, 1, 1))
    return joint, spread * rng.standard_normal((8, points, num_classes))


problems = given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6), st.floats(0, 0.999))


@claim
@problems
def test_clean_risk_gap_is_bounded_over_any_set_of_classifiers(
    seed: int, points: int, num_classes: int, fraction: float
) -> None:
    rate = fraction * (1 - 1 / num_classes)
    joint, classifiers = random_problem(seed, points, num_classes)
    off_diagonal = rate / (num_classes - 1) * (1 - np.eye(num_classes))
    transition = (1 - rate) * np.eye(num_classes) + off_diagonal
    clean, noisy = risks(joint, transition, classifiers)
    gap = clean[noisy.argmin()] - clean.min()
    assert 0 <= gap <= theory.clean_risk_gap_bound(rate, num_classes) + 1e-12
    assert gap <= theory.sharp_clean_risk_gap_bound(rate, num_classes) + 1e-12


def test_clean_risk_gap_bound_is_the_printed_formula() -> None:
    for rate, num_classes in [(0.0, 2), (0.4, 10), (0.8, 100)]:
        low, high = theory.bounds(num_classes)
        printed = (high - low) * rate / (1 - rate)
        assert theory.clean_risk_gap_bound(rate, num_classes) == pytest.approx(printed)


def test_sharp_bound_is_attained() -> None:
    """Noise just high enough prefers an even classifier to a certain and right one."""
    num_classes = 10
    certain, even = np.zeros((2, 1, num_classes))
    certain[0, 0] = 50
    joint = np.eye(num_classes)[:1]
    loss_gap = math.log(num_classes) - math.log(1 + (num_classes - 1) / math.e)
    span = math.log(math.e + num_classes - 1) - math.log(num_classes) - 1 / num_classes
    # Where the noisy risks cross: loss_gap (C - 1 - rate C) = rate C span.
    rate = (num_classes - 1) / num_classes * loss_gap / (loss_gap + span) + 1e-6
    transition = np.full((num_classes, num_classes), rate / (num_classes - 1))
    np.fill_diagonal(transition, 1 - rate)
    clean, noisy = risks(joint, transition, np.stack([certain, even]))
    gap = clean[noisy.argmin()] - clean.min()
    assert gap == pytest.approx(loss_gap)
    assert gap == pytest.approx(theory.sharp_clean_risk_gap_bound(rate, num_classes), rel=1e-3)


@claim
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0, 0.999))
def test_theorem_3_5_excludes_nothing(seed: int, num_classes: int, fraction: float) -> None:
    """Its bound is the printed formula, and at least 1: as far apart as two risks can be by Proposition 3.3."""
    rng = np.random.default_rng(seed)
    frequency = rng.dirichlet(np.ones(num_classes))
    transition = rng.dirichlet(np.full(num_classes, 0.5), num_classes).T
    transition = fraction * transition + (1 - fraction) / num_classes
    for k, j in enumerate(transition.argmax(0)):
        transition[[j, k], k] = transition[[k, j], k]
    bound = theory.noisy_risk_gap_bound(transition, frequency.tolist())
    expected_stay = sum(frequency[k] * transition[k, k] for k in range(num_classes))
    assert bound == pytest.approx(num_classes * expected_stay)
    low, high = theory.bounds(num_classes)
    assert bound >= high - low - 1e-9, "T_kk is the largest of C numbers that sum to 1"


@pytest.mark.parametrize(
    ("rate", "num_classes", "sentence"),
    [
        (0.9, 10, "0 <= rate < 1 - 1/C = 0.9 for 10 classes, found 0.9"),
        (-0.1, 10, "found -0.1"),
        (math.nan, 10, "found nan"),
        (0.1, 1, "num_classes: expected 2 or more, found 1"),
    ],
)
def test_theorem_3_4_is_not_stretched_beyond_its_condition(rate: float, num_classes: int, sentence: str) -> None:
    for bound in (theory.clean_risk_gap_bound, theory.sharp_clean_risk_gap_bound):
        with pytest.raises(InputError, match=sentence):
            bound(rate, num_classes)


@pytest.mark.parametrize(
    ("transition", "frequency", "sentence"),
    [
        ([[0.4, 0.0], [0.6, 1.0]], [0.5, 0.5], r"found T\[1,0\] = 0.6 above T\[0,0\] = 0.4"),
        ([[0.9, 0.0], [0.0, 1.0]], [0.5, 0.5], "column 0 sums to 0.9"),
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.6], "class_probabilities: expected .* sum to 1"),
        ([[1.0, 0.0], [0.0, 1.0]], [1.5, -0.5], "class_probabilities: expected numbers of 0 or"),
    ],
)
def test_theorem_3_5_is_not_stretched_beyond_its_condition(
    transition: list[list[float]], frequency: list[float], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        theory.noisy_risk_gap_bound(np.array(transition), frequency)


def test_bounds_need_two_classes() -> None:
    for function in (theory.bounds, theory.confidence_span, theory.greatest_total_gradient):
        with pytest.raises(InputError, match="num_classes: expected 2 or more, found 1"):
            function(1)
