"""Claims about the losses, against formulas written out in numpy and scipy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

from dspt import losses
from dspt.internal.errors import InputError

claim = settings(max_examples=40)

# What protocol section 5 gives as defaults.
DEFAULTS = {
    "ce": {},
    "smoothing": {"eps": 0.2},
    "mae": {},
    "gce": {"q": 0.7},
    "nce": {"scale": 1},
    "rce": {},
    "sce": {"alpha": 0.1, "beta": 1},
    "nce-rce": {"alpha": 1, "beta": 1},
    "nce-mae": {"alpha": 1, "beta": 1},
    "bootstrap": {"b": 0.95},
    "bootstrap-hard": {"b": 0.8},
    "logitnorm": {"t": 1},
    "logitclip": {"tau": 0.1, "reciprocal": True},
    "square": {},
    "dspt": {},
    "dspt-scale": {"s": 1},
}
OTHERS = {
    "smoothing": [{"eps": 0.0}, {"eps": 0.5}],
    "gce": [{"q": 1.0}, {"q": 0.3}],
    "nce": [{"scale": 2.5}],
    "sce": [{"alpha": 2.0, "beta": 0.5}],
    "nce-rce": [{"alpha": 0.3, "beta": 2.0}],
    "nce-mae": [{"alpha": 0.3, "beta": 2.0}],
    "bootstrap": [{"b": 0.0}, {"b": 0.4}],
    "bootstrap-hard": [{"b": 0.0}, {"b": 0.4}],
    "logitnorm": [{"t": 0.1}],
    "logitclip": [{"tau": 0.3}, {"tau": 2.0}, {"tau": 4.0, "reciprocal": False}, {"tau": 0.1, "reciprocal": False}],
    "dspt-scale": [{"s": 0.01}, {"s": 30.0}],
}
CASES = [(name, hyper) for name in DEFAULTS for hyper in [{}, *OTHERS.get(name, [])]]
SOFTMAX_BASED = [name for name in DEFAULTS if name not in {"logitnorm", "logitclip", "square"}]


def expected(name: str, z: np.ndarray, y: int, **hyper: float) -> float:
    """The loss of one sample, as the literature writes it."""
    h = {**DEFAULTS[name], **hyper}
    p, log_p, one_hot = softmax(z), log_softmax(z), np.eye(len(z))[y]
    ce = logsumexp(z) - z[y]
    mae = np.abs(one_hot - p).sum() / 2
    rce = -(p * np.log(np.clip(one_hot, 1e-4, 1))).sum()
    nce = ce / sum(logsumexp(z) - z[k] for k in range(len(z)))
    norm = math.sqrt(sum(value * value for value in z))
    match name:
        case "ce":
            return ce
        case "smoothing":
            return -(((1 - h["eps"]) * one_hot + h["eps"] / len(z)) * log_p).sum()
        case "mae":
            return mae
        case "gce":
            return (1 - p[y] ** h["q"]) / h["q"]
        case "nce":
            return h["scale"] * nce
        case "rce":
            return rce
        case "sce":
            return h["alpha"] * ce + h["beta"] * rce
        case "nce-rce":
            return h["alpha"] * nce + h["beta"] * rce
        case "nce-mae":
            return h["alpha"] * nce + h["beta"] * mae
        case "bootstrap":
            return -((h["b"] * one_hot + (1 - h["b"]) * p) * log_p).sum()
        case "bootstrap-hard":
            return -h["b"] * log_p[y] - (1 - h["b"]) * log_p[np.argmax(p)]
        case "logitnorm":
            return -log_softmax(z / (norm + 1e-7) / h["t"])[y]
        case "logitclip":
            radius = 1 / h["tau"] if h["reciprocal"] else h["tau"]
            return -log_softmax(z / norm * radius if norm > radius else z)[y]
        case "square":
            return -np.log(softmax((z / norm) ** 2)[y])
        case "dspt":
            return -np.log(softmax(softmax(z))[y])
        case "dspt-scale":
            return -np.log(softmax(h["s"] * softmax(z))[y]) / h["s"]
    raise AssertionError(name)


def batch(rows: int = 12, classes: int = 7, spread: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(spread * rng.standard_normal((rows, classes)))
    return logits, torch.from_numpy(rng.integers(0, classes, rows))


def differentiated(
    name: str, logits: torch.Tensor, labels: torch.Tensor, **hyper: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.clone().requires_grad_()
    values = losses.get(name)(logits, labels, "none", **hyper)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    return values.detach(), gradient


def test_every_loss_of_the_protocol_is_there_with_its_defaults() -> None:
    assert {name: losses.get(name).defaults for name in losses.names()} == DEFAULTS


@pytest.mark.parametrize(("name", "hyper"), CASES)
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_values_follow_the_formula(name: str, hyper: dict[str, float], spread: float) -> None:
    logits, labels = batch(spread=spread)
    values = losses.get(name)(logits, labels, "none", **hyper)
    wanted = [expected(name, z, int(y), **hyper) for z, y in zip(logits.numpy(), labels.numpy(), strict=True)]
    np.testing.assert_allclose(values.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_gradients_are_the_derivative(name: str, hyper: dict[str, float]) -> None:
    logits, labels = batch(rows=4, classes=5)
    assert torch.autograd.gradcheck(lambda z: losses.get(name)(z, labels, "none", **hyper), logits.requires_grad_())


def test_smoothing_is_that_of_torch() -> None:
    logits, labels = batch()
    torch.testing.assert_close(
        losses.get("smoothing")(logits, labels),
        F.cross_entropy(logits, labels, label_smoothing=0.2),
    )


def test_double_softmax_gradient_is_proposition_3_1() -> None:
    logits, labels = batch()
    _, gradient = differentiated("dspt", logits, labels)
    for z, y, found in zip(logits.numpy(), labels.numpy(), gradient.numpy(), strict=True):
        p = softmax(z)
        q = softmax(p)
        mean_q = sum(p[j] * q[j] for j in range(len(p)))
        wanted = [p[i] * ((q[i] - (i == y)) + (p[y] - mean_q)) for i in range(len(p))]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)


def test_double_softmax_by_its_own_name() -> None:
    logits, labels = batch()
    for reduction in ("none", "mean", "sum"):
        torch.testing.assert_close(
            losses.double_softmax_cross_entropy(logits, labels, reduction),
            F.cross_entropy(logits.softmax(1), labels, reduction=reduction),
        )


def test_soft_cross_entropy_is_that_of_torch_and_takes_hard_labels_as_one_hot() -> None:
    logits, labels = batch()
    targets = batch(spread=1.0)[0].softmax(1)
    torch.testing.assert_close(losses.soft_cross_entropy(logits, targets), F.cross_entropy(logits, targets))
    torch.testing.assert_close(
        losses.soft_cross_entropy(logits, F.one_hot(labels, 7), "none"),
        F.cross_entropy(logits, labels, reduction="none"),
    )
    with pytest.raises(InputError, match=r"targets: .* found \(12, 6\) for logits \(12, 7\)"):
        losses.soft_cross_entropy(logits, targets[:, 1:])


def test_hard_bootstrap_pulls_towards_the_prediction_as_a_fixed_target() -> None:
    logits, labels = batch()
    _, gradient = differentiated("bootstrap-hard", logits, labels, b=0.0)
    wanted = logits.softmax(1) - F.one_hot(logits.argmax(1), 7)
    torch.testing.assert_close(gradient, wanted)


def extremes(classes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows at the corners of what a model can produce, and their labels."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(classes)
    peak = (np.arange(classes) == 1).astype(float)
    rows = [scale * noise for scale in (1e-3, 1.0, 100.0)]
    rows += [1e4 * np.sign(noise), 1e4 * peak, -1e4 * peak, 1e4 * (2 * peak - 1), 20 * peak]
    rows += [np.full(classes, 1e4), np.full(classes, -1e4), 1e4 - 1e-3 * noise, 1e4 * noise / 5]
    logits = torch.tensor(np.clip(np.array(rows), -1e4, 1e4)).to(dtype).repeat(2, 1)
    return logits, torch.arange(2).repeat_interleave(len(rows))


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        (2, torch.float32),
        (10, torch.float32),
        (21_000, torch.float32),
        (10, torch.float16),
        (1_000, torch.bfloat16),
    ],
)
def test_values_and_gradients_hold_for_extreme_logits(name: str, classes: int, dtype: torch.dtype) -> None:
    logits, labels = extremes(classes, dtype)
    values, gradient = differentiated(name, logits, labels)
    exact_values, exact_gradient = differentiated(name, logits.double(), labels)
    assert values.dtype == torch.float32
    assert gradient.dtype == dtype
    # A float32 sum over C terms, and the rounding of a gradient to its dtype, may be lost; no more.
    atol = max(2e-6, 3e-9 * classes)
    rtol = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(values.double(), exact_values, rtol=1e-5, atol=atol)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", DEFAULTS)
def test_zero_logits_have_finite_gradients(name: str) -> None:
    values, gradient = differentiated(name, torch.zeros(3, 5), torch.tensor([0, 1, 4]))
    assert values.isfinite().all()
    assert gradient.isfinite().all()


def test_double_softmax_keeps_to_its_bounds_at_float32_extremes() -> None:
    for classes in (2, 10, 100, 21_000):
        values, _ = differentiated("dspt", *extremes(classes, torch.float32))
        assert values.min() >= math.log(1 + (classes - 1) / math.e) - 1e-6
        assert values.max() <= math.log(math.e + classes - 1) + 1e-6


rows_of_logits = st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=9)


def sample(row: list[float], label: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([row], dtype=torch.float64), torch.tensor([label % len(row)])


@claim
@given(rows_of_logits, st.integers(0, 8), st.floats(-100, 100))
def test_softmax_based_losses_ignore_a_shift(row: list[float], label: int, shift: float) -> None:
    logits, labels = sample(row, label)
    for name in SOFTMAX_BASED:
        loss = losses.get(name)
        torch.testing.assert_close(loss(logits + shift, labels), loss(logits, labels), rtol=1e-9, atol=1e-9)


@claim
@given(rows_of_logits, st.integers(0, 8))
def test_gradients_of_softmax_based_losses_sum_to_zero(row: list[float], label: int) -> None:
    for name in SOFTMAX_BASED:
        _, gradient = differentiated(name, *sample(row, label))
        assert abs(gradient.sum()) < 1e-10


@claim
@given(rows_of_logits, st.integers(0, 8), st.integers(1, 8))
def test_no_loss_depends_on_the_order_of_classes(row: list[float], label: int, turn: int) -> None:
    logits, labels = sample(row, label)
    turned = logits.roll(turn, 1), (labels + turn) % len(row)
    for name in DEFAULTS:
        if name == "bootstrap-hard" and (logits == logits.max()).sum() > 1:
            continue
        loss = losses.get(name)
        torch.testing.assert_close(loss(*turned), loss(logits, labels))


@claim
@given(rows_of_logits, st.integers(0, 8))
def test_bounded_losses_stay_within_their_bounds(row: list[float], label: int) -> None:
    logits, labels = sample(row, label)
    classes = len(row)
    bounds = {
        "mae": (0, 1),
        "gce": (0, 1 / 0.7),
        "nce": (0, 1),
        "rce": (0, -math.log(1e-4)),
        "dspt": (math.log(1 + (classes - 1) / math.e), math.log(math.e + classes - 1)),
        "square": (math.log(1 + (classes - 1) / math.e), math.log(math.e + classes - 1)),
        "logitnorm": (0, math.log(classes) + math.sqrt(2)),
        "logitclip": (0, math.log(classes) + 10 * math.sqrt(2)),
    }
    for name, (low, high) in bounds.items():
        if name == "square" and not logits.any():
            continue
        assert low - 1e-12 <= losses.get(name)(logits, labels) <= high + 1e-12, name


@claim
@given(rows_of_logits, st.integers(0, 8))
def test_gce_runs_from_cross_entropy_to_mae(row: list[float], label: int) -> None:
    logits, labels = sample(row, label)
    gce = losses.get("gce")
    torch.testing.assert_close(gce(logits, labels, q=1.0), 1 - logits.softmax(1)[0, labels[0]])
    torch.testing.assert_close(gce(logits, labels, q=1e-9), F.cross_entropy(logits, labels), rtol=1e-6, atol=1e-9)


@claim
@given(rows_of_logits, st.integers(0, 8))
def test_outer_scale_runs_from_mae_to_double_softmax(row: list[float], label: int) -> None:
    logits, labels = sample(row, label)
    scaled, gradient = differentiated("dspt-scale", logits, labels, s=1e-6)
    p_y = float(logits.softmax(1)[0, labels[0]])
    classes = len(row)
    # CE(s p, y)/s = log(C)/s + 1/C - p_y + O(s): MAE up to a constant.
    assert abs(float(scaled) - math.log(classes) / 1e-6 - (1 / classes - p_y)) < 1e-5
    torch.testing.assert_close(gradient, differentiated("mae", logits, labels)[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(losses.get("dspt-scale")(logits, labels), F.cross_entropy(logits.softmax(1), labels))


@pytest.mark.parametrize("name", DEFAULTS)
def test_reductions_agree(name: str) -> None:
    logits, labels = batch()
    loss = losses.get(name)
    values = loss(logits, labels, "none")
    assert values.shape == (12,)
    assert loss(logits, labels).item() == pytest.approx(np.mean(values.numpy()))
    assert loss(logits, labels, reduction="sum").item() == pytest.approx(np.sum(values.numpy()))


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_empty_batch_has_a_sum_but_no_mean(name: str) -> None:
    logits, labels = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    loss = losses.get(name)
    assert loss(logits, labels, "none").shape == (0,)
    assert loss(logits, labels, "sum") == 0
    with pytest.raises(InputError, match="0 rows have no mean loss"):
        loss(logits, labels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16])
def test_labels_may_have_any_integer_type(dtype: torch.dtype) -> None:
    logits, labels = batch()
    loss = losses.get("dspt")
    assert loss(logits, labels.to(dtype)) == loss(logits, labels)


def test_a_loop_may_skip_the_look_at_the_values() -> None:
    logits, labels = batch()
    loss = losses.get("dspt")
    assert loss(logits, labels, validate=False) == loss(logits, labels)
    logits[3, 2] = math.nan
    assert loss(logits, labels, validate=False).isnan()


def test_large_finite_logits_are_not_taken_for_infinite() -> None:
    logits = torch.full((2, 3), 3e38)
    assert losses.get("ce")(logits, torch.tensor([0, 1])).item() == pytest.approx(math.log(3))


GOOD = batch(rows=4, classes=3)


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (GOOD[0], [0, 1, 3, 9], "labels: expected 0..2 for 3 classes, found 3 at row 2"),
        (GOOD[0], [0, 1, 2, 3], "labels: expected 0..2 for 3 classes, found 3 at row 3"),
        (GOOD[0], [0, -1, 1, 1], "labels: expected 0..2 for 3 classes, found -1 at row 1"),
        (GOOD[0], [0.0, 1.0, 1.0, 1.0], "labels: expected integers, found torch.float32"),
        (GOOD[0], [True, False, True, True], "labels: expected integers, found torch.bool"),
        (GOOD[0], [0, 1], r"labels: expected shape \(4,\), one a row of logits, found \(2,\)"),
        (GOOD[0], [[0], [1], [1], [2]], r"labels: expected shape \(4,\).* found \(4, 1\)"),
        (GOOD[0].long(), [0, 1, 1, 2], "logits: expected floating point, found torch.int64"),
        (GOOD[0].numpy(), [0, 1, 1, 2], "logits: expected a torch tensor, found ndarray"),
        (GOOD[0][0], [0, 1, 1], r"logits: expected shape \(N, C\).* found \(3,\)"),
        (GOOD[0][:, :1], [0, 0, 0, 0], r"2 or more classes, found \(4, 1\)"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), [0, 1], "found nan at row 1, class 0"),
        (torch.tensor([[0.0, 1.0], [0.0, -math.inf]]), [0, 1], "found -inf at row 1, class 1"),
    ],
)
def test_bad_input_is_named_with_its_value_and_row(logits: torch.Tensor, labels: list[int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        losses.get("dspt")(logits, torch.tensor(labels))


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(InputError, match="expected none, mean, sum, found 'average'"):
        losses.get("ce")(*GOOD, reduction="average")


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(InputError, match=r"no 'nce_rce' \(did you mean nce-rce") as error:
        losses.get("nce_rce")
    for name in DEFAULTS:
        assert name in str(error.value)


def test_an_unknown_hyper_parameter_is_answered_with_those_there_are() -> None:
    with pytest.raises(InputError, match="loss gce: no hyper-parameter 'p'; it takes q"):
        losses.get("gce")(*GOOD, p=0.5)
    with pytest.raises(InputError, match="loss dspt: no hyper-parameter 'q'; it takes none"):
        losses.get("dspt")(*GOOD, q=0.5)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("smoothing", "eps", 1.0),
        ("smoothing", "eps", -0.1),
        ("gce", "q", 0.0),
        ("gce", "q", 1.1),
        ("gce", "q", math.nan),
        ("gce", "q", "0.7"),
        ("gce", "q", True),
        ("nce", "scale", 0),
        ("sce", "alpha", -1),
        ("nce-rce", "beta", -0.5),
        ("nce-mae", "beta", math.inf),
        ("bootstrap", "b", 1.5),
        ("bootstrap-hard", "b", -0.5),
        ("logitnorm", "t", 0.0),
        ("logitclip", "tau", 0.0),
        ("logitclip", "reciprocal", 1),
        ("dspt-scale", "s", 0.0),
    ],
)
def test_a_hyper_parameter_out_of_range_is_refused(name: str, key: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"loss {name}: {key} must be .*, not {value!r}"):
        losses.get(name)(*GOOD, **{key: value})
    with pytest.raises(InputError):
        losses.get(name).check(**{key: value})
