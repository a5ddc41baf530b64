"""The noise rate is found from predictions that have not seen the labels, with an honest error."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspt.noise import corrupt
from dspt.posterior import noise_rate


def sample(n=4000, classes=10, kind="symmetric", rate=0.4, sharpness=3.0, temperature=1.0, seed=0):
    """Return logits and given labels: true classes drawn from softmax(z), then made wrong at `rate`.

    The logits given back are `temperature` times too large, as those of an over-confident classifier.
    """
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(sharpness * rng.standard_normal((n, classes)))
    true = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    given = corrupt(true.numpy(), classes, kind, rate, seed=1) if rate else true.numpy()
    return temperature * z, torch.from_numpy(np.asarray(given))


# Pair noise above a half would make the next class the right one.
NOISES = [("symmetric", r) for r in (0.0, 0.1, 0.4, 0.8)] + [("pair", r) for r in (0.1, 0.4)]


@pytest.mark.parametrize(("kind", "rate"), NOISES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_estimate_is_within_its_error(kind, rate, temperature):
    found = noise_rate.estimate_noise_rate(*sample(kind=kind, rate=rate, temperature=temperature))
    assert abs(found.rate - rate) <= max(4 * found.error, 0.01)
    assert found.error < 0.03


def test_the_temperature_is_found_too():
    for temperature in (0.5, 1.0, 4.0):
        found = noise_rate.estimate_noise_rate(*sample(temperature=temperature))
        assert found.temperature == pytest.approx(temperature, rel=0.1)


def test_a_hard_image_is_not_taken_for_a_wrong_label():
    # Two thirds of the predictions are mistaken, all labels are right.
    logits, labels = sample(rate=0.0, sharpness=0.9)
    assert (logits.argmax(1) != labels).double().mean() > 0.6
    assert noise_rate.estimate_noise_rate(logits, labels).rate < 0.1


def test_the_error_falls_with_the_root_of_the_number_of_samples():
    few, many = (noise_rate.estimate_noise_rate(*sample(n)).error for n in (1000, 16000))
    assert few / many == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(("n", "sharpness", "rate"), [(500, 3.0, 0.4), (500, 1.5, 0.6)])
def test_the_error_is_the_spread_over_draws(n, sharpness, rate):
    """Also where images are hard, so that rate and temperature are hard to tell apart."""
    draws = [sample(n, rate=rate, sharpness=sharpness, seed=seed) for seed in range(80)]
    found = [noise_rate.estimate_noise_rate(*draw) for draw in draws]
    spread = np.std([one.rate for one in found])
    assert np.median([one.error for one in found]) == pytest.approx(spread, rel=0.25)


def test_predictions_that_say_nothing_leave_everything_open():
    labels = torch.arange(300) % 5
    assert noise_rate.estimate_noise_rate(torch.zeros(300, 5), labels).error == 1.0


@settings(max_examples=15)
@given(seed=st.integers(0, 99), rate=st.sampled_from([0.0, 0.3, 0.7]), move=st.floats(-50, 50))
def test_neither_order_nor_a_constant_changes_it(seed, rate, move):
    logits, labels = sample(300, 5, rate=rate, seed=seed)
    found = noise_rate.estimate_noise_rate(logits, labels)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
    turned = noise_rate.estimate_noise_rate((logits + move)[order].roll(1, 1), (labels[order] + 1) % 5)
    assert turned.rate == pytest.approx(found.rate, abs=1e-3)
    assert turned.error == pytest.approx(found.error, rel=1e-2, abs=1e-4)
