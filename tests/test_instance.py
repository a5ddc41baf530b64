"""Instance-dependent noise: the asked share of mistakes, and alike images make the same ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspt import corrupt, noise
from dspt.internal.errors import InputError
from dspt.noise.instance import mistakes, rates


def clusters(classes: int = 5, each: int = 3000, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return features of two tight clusters in each class, and the labels."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, 2, dim))
    features = np.repeat(centres.reshape(-1, dim), each // 2, axis=0)
    return features + 0.01 * rng.normal(size=features.shape), np.repeat(np.arange(classes), each)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.97])
def test_the_share_of_wrong_labels_is_the_rate(rate):
    features, labels = clusters()
    noisy = corrupt(labels, 5, "instance", rate, features=features)
    wrong = (noisy != labels).mean()
    # Three standard deviations of a mean of 15,000 draws.
    assert abs(wrong - rate) < 3 * np.sqrt(rate * (1 - rate) / len(labels))


@given(rate=st.floats(0, 1), seed=st.integers(0, 9))
@settings(max_examples=50)
def test_each_images_own_rate_is_a_probability_and_they_average_to_the_rate(rate, seed):
    own = rates(4000, rate, seed)
    assert (own >= 0).all()
    assert (own <= 1).all()
    assert abs(own.mean() - rate) < 0.1 * 4 / np.sqrt(4000)


def test_own_rates_spread_as_a_normal_of_a_tenth_where_nothing_is_cut_off():
    own = rates(20_000, 0.5, 1)
    np.testing.assert_allclose(own.std(), 0.1, rtol=0.02)


def test_a_rate_of_nothing_and_of_everything_are_exact():
    features, labels = clusters(each=100)
    assert (corrupt(labels, 5, "inst", 0.0, features=features) == labels).all()
    assert (corrupt(labels, 5, "inst", 1.0, features=features) != labels).all()


def test_alike_images_are_mistaken_for_the_same_class_and_others_of_their_class_need_not_be():
    features, labels = clusters()
    noisy = corrupt(labels, 5, "instance", 0.5, seed=3, features=features)
    half = np.arange(len(labels)) // 1500 % 2
    common = {}
    for k in range(5):
        for side in (0, 1):
            wrong = noisy[(labels == k) & (half == side) & (noisy != labels)]
            share = np.bincount(wrong, minlength=5) / len(wrong)
            assert share.max() > 0.55  # symmetric noise gives each of the four a quarter
            common[k, side] = share.argmax()
    assert any(common[k, 0] != common[k, 1] for k in range(5))


def test_likelihoods_are_the_softmax_of_a_projection_without_the_true_class():
    x = np.random.default_rng(1).normal(size=(7, 4))
    likely = mistakes(x, 2, 5, seed=4)
    np.testing.assert_allclose(likely.sum(axis=1), 1)
    assert (likely[:, 2] == 0).all()
    # Log-odds between two classes are linear in the features.
    odds = np.log(likely[:, 0] / likely[:, 1])
    np.testing.assert_allclose(mistakes(2 * x, 2, 5, 4)[:, 0], _softmax_like(x, odds, 2), atol=1e-9)


def _softmax_like(x: np.ndarray, odds: np.ndarray, factor: float) -> np.ndarray:
    logs = np.log(np.delete(mistakes(x, 2, 5, 4), 2, axis=1)) * factor
    assert np.allclose((logs[:, 0] - logs[:, 1]) / factor, odds)
    return np.exp(logs[:, 0]) / np.exp(logs).sum(axis=1)


def test_scale_and_shift_of_the_features_do_not_matter_but_features_and_seed_do():
    features, labels = clusters(each=200)
    noisy = corrupt(labels, 5, "inst", 0.4, features=features)
    np.testing.assert_array_equal(corrupt(labels, 5, "inst", 0.4, features=8 * features + 16), noisy)
    assert (corrupt(labels, 5, "inst", 0.4, features=features[:, ::-1]) != noisy).any()
    assert (corrupt(labels, 5, "inst", 0.4, seed=2, features=features) != noisy).any()


def test_images_without_any_difference_are_no_trouble():
    labels = np.zeros(50, int)
    noisy = corrupt(labels, 3, "inst", 0.5, features=np.ones((50, 4)))
    assert 5 < (noisy != labels).sum() < 45


def test_the_written_form_comes_back():
    spec = noise.parse("inst:0.3")
    assert (spec.kind, spec.rate, str(spec)) == ("instance", 0.3, "inst:0.3")
    assert noise.parse(str(spec)) == spec == noise.parse("instance:0.3")
    assert spec.needs_features
    assert not noise.parse("sym:0.3").needs_features


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        (None, "features: go with kind 'instance'"),
        (np.zeros((3, 2)), "features: expected 4 rows"),
        (np.zeros(4), "expected 4 rows"),
        (np.array([[0.0], [1], [np.nan], [1]]), "finite numbers, found another at row 2"),
        (np.array([["a"]] * 4), "rows of numbers"),
    ],
)
def test_wrong_features_are_refused(features, sentence):
    with pytest.raises(InputError, match=sentence):
        corrupt([0, 1, 0, 1], 2, "instance", 0.4, features=features)
    with pytest.raises(InputError, match="only with it, found 'symmetric'"):
        corrupt([0, 1, 0, 1], 2, features=np.zeros((4, 2)))


class TestLikely:
    def by_hand(self, labels: np.ndarray, features: np.ndarray, row: int) -> int:
        """Return the other class, of those with images, whose mean direction is nearest to an image."""
        units = [x / np.linalg.norm(x) for x in features]
        cosines = {}
        for c in set(labels.tolist()) - {int(labels[row])}:
            mean = np.mean([u for u, y in zip(units, labels, strict=True) if y == c], axis=0)
            cosines[c] = units[row] @ mean / np.linalg.norm(mean)
        return max(cosines, key=lambda c: cosines[c])

    def problem(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(5)
        labels = rng.permutation(np.arange(60) % 4)
        labels[labels >= 2] += 1  # class 2 has no image
        return labels, rng.normal(size=(60, 6)) * rng.uniform(0.1, 10, (60, 1))

    def test_an_image_is_taken_for_the_class_whose_mean_it_is_nearest_to(self):
        labels, features = self.problem()
        noisy = corrupt(labels, 5, "inst-likely", 1.0, features=features)
        assert noisy.tolist() == [self.by_hand(labels, features, row) for row in range(60)]

    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.4, 0.9])
    def test_the_same_images_are_flipped_as_by_inst(self, rate):
        labels, features = self.problem()
        for seed in range(4):
            one, other = (
                corrupt(labels, 5, kind, rate, seed, features=features) for kind in ("inst", "instance-likely")
            )
            np.testing.assert_array_equal(one != labels, other != labels)
        flipped = np.flatnonzero(other != labels)
        assert other[flipped].tolist() == [self.by_hand(labels, features, row) for row in flipped]

    def test_lengths_of_features_do_not_matter(self):
        labels, features = self.problem()
        noisy = corrupt(labels, 5, "inst-likely", 0.6, features=features)
        lengths = 2.0 ** (np.arange(60)[:, None] % 7)
        np.testing.assert_array_equal(corrupt(labels, 5, "inst-likely", 0.6, features=lengths * features), noisy)

    def test_of_classes_as_near_it_is_the_one_of_lower_index(self):
        labels = np.arange(40) % 4
        assert corrupt(labels, 4, "inst-likely", 1.0, features=np.ones((40, 3))).tolist() == [1, 0, 0, 0] * 10

    def test_many_images_are_looked_at_some_at_a_time(self, monkeypatch):
        labels, features = self.problem()
        whole = corrupt(labels, 5, "inst-likely", 0.7, features=features)
        monkeypatch.setattr("dspt.noise.similar._MOST", 42)  # seven rows of six
        np.testing.assert_array_equal(corrupt(labels, 5, "inst-likely", 0.7, features=features), whole)

    def test_images_of_one_class_cannot_be_taken_for_another(self):
        labels, features = np.full(10, 2), np.ones((10, 3))
        with pytest.raises(
            InputError, match=r"^labels: all are of class 2, .* inst-likely needs images of two classes"
        ):
            corrupt(labels, 3, "inst-likely", 0.5, features=features)
        assert (corrupt(labels, 3, "inst-likely", 0.0, features=features) == labels).all()
        assert corrupt([], 3, "inst-likely", 0.5, features=np.zeros((0, 3))) == []

    def test_the_written_form_comes_back(self):
        spec = noise.parse("inst-likely:0.3")
        assert (spec.kind, spec.rate, spec.sampling, str(spec)) == (
            *("instance-likely", 0.3, "bernoulli"),
            "inst-likely:0.3",
        )
        assert noise.parse(str(spec)) == spec == noise.parse("instance-likely:0.3")
        assert spec.needs_features
        assert not spec.needs_class_features

    def test_without_features_it_is_refused(self):
        with pytest.raises(
            InputError, match=r"^features: go with kind 'instance' or 'instance-likely' .* without them$"
        ):
            corrupt([0, 1], 2, "inst-likely", 0.4)
