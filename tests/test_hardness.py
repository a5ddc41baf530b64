"""How hard images are by what two judges say who know half, and the labels that are wrong by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression

from dspt import corrupt
from dspt.posterior import evidence, label_posterior
from dspt.posterior.hardness import WIDEST, halves, most_in_doubt, sharpened
from dspt.posterior.mixture import Mixture, probabilities, weighted
from dspt.posterior.transition import Anchors, estimate_transition


def products(x):
    x = torch.from_numpy(np.asarray(x, dtype=np.float64))
    return (x - x.mean(0)).T @ (x - x.mean(0))


def normal(width, seed=0):
    return np.random.default_rng(seed).standard_normal((width, width))


class TestHalves:
    def test_share_no_direction(self):
        one, other = halves(products(np.random.default_rng(1).standard_normal((100, 12))), normal(12))
        assert one.shape == other.shape
        both = torch.cat([one, other], 1)
        torch.testing.assert_close(both.T @ both, torch.eye(both.shape[1], dtype=torch.float64))
        assert both.shape[1] > 8

    def test_of_features_that_say_the_same_twice_are_those_of_the_features_once(self):
        """Else either half would know everything, and judges would always agree."""
        x = np.random.default_rng(1).standard_normal((100, 6))
        assert [half.shape for half in halves(products(np.c_[x, x, 2 * x]), normal(18))] == [(18, 3), (18, 3)]

    def test_see_no_more_than_so_many_directions(self):
        x = np.random.default_rng(1).standard_normal((900, 3 * WIDEST))
        assert [half.shape[1] for half in halves(products(x), normal(x.shape[1]))] == [WIDEST, WIDEST]

    def test_are_of_the_few_directions_that_hold_most(self):
        """Features that were learnt for ten classes have nine; a judge with half of 64 would see all of these."""
        random = np.random.default_rng(1)
        x = 3 * random.standard_normal((900, 9)) @ random.standard_normal((9, 64)) + random.standard_normal((900, 64))
        assert [half.shape[1] for half in halves(products(x), normal(64))] == [4, 4]

    @pytest.mark.parametrize("x", [np.zeros((9, 4)), np.arange(9.0)[:, None] * np.ones(4), np.ones((9, 1))])
    def test_are_none_of_a_single_direction(self, x):
        assert halves(products(x), normal(x.shape[1])) == []


class TestSharpened:
    def terms(self, seed, n=200, classes=5):
        random = np.random.default_rng(seed)
        return [torch.from_numpy(3 * random.standard_normal((n, classes))).float() for _ in range(2)], torch.zeros(
            n, classes
        )

    def doubt(self, terms, prior, mixture):
        p = probabilities(weighted(terms, mixture.weights) + prior, mixture.softness)
        return float(1 - p.amax(1).mean())

    @given(st.integers(0, 99), st.floats(0.02, 0.6))
    @settings(max_examples=25, deadline=None)
    def test_leaves_no_more_in_doubt_and_the_weights_in_proportion(self, seed, most):
        terms, prior = self.terms(seed)
        before = Mixture((0.2, 0.1), 0.1)
        found = sharpened(before, terms, prior, most)
        if self.doubt(terms, prior, before) <= most or self.doubt(terms, prior, Mixture((1.6, 0.8), 0.1)) > most:
            assert found is None
        else:
            assert found.weights[0] / found.weights[1] == pytest.approx(2)
            assert found.softness == 0.1
            # no further than needed, but for the last step of the search
            assert most * 0.97 <= self.doubt(terms, prior, found) <= most

    def test_is_nothing_if_nothing_is_known_of_how_hard_images_are(self):
        terms, prior = self.terms(0)
        assert sharpened(Mixture((1e-3, 1e-3)), terms, prior, 1.0) is None

    def test_as_many_as_judges_disagree_about_and_a_tenth_more(self):
        assert most_in_doubt(99, 1000) == pytest.approx(0.11)
        assert most_in_doubt(950, 1000) == 1.0
        assert most_in_doubt(0, 4) > 0.25, "four that agree are no proof"


class TestMistakesCountedAgain:
    def transition(self, rate=0.1, classes=4, n=4000):
        random = np.random.default_rng(0)
        true = np.arange(n) % classes
        wrong = random.random(n) < rate * (1 + true % 2)  # some classes have twice as many
        labels = np.where(wrong, (true + 1) % classes, true)
        rows, predicted, given_ = (torch.from_numpy(each) for each in (np.arange(n), true, labels))
        likeness = (1 - torch.eye(classes)) / (classes - 1)
        return estimate_transition(Anchors(rows, predicted, given_, torch.zeros(n), likeness), first_look=True)

    @given(st.floats(0.2, 0.4))
    @settings(max_examples=20, deadline=None)
    def test_are_as_frequent_as_was_found_and_in_the_same_proportions(self, rate):
        before = self.transition()
        found = before.raised_to(rate)
        rates = 1 - found.matrix.diagonal()
        assert float(rates[found.anchors.predicted].mean()) == pytest.approx(rate, rel=1e-3)
        torch.testing.assert_close(found.matrix.sum(1), torch.ones(4))
        assert (found.matrix >= 0).all()
        shape, shape_before = (
            (one.matrix - torch.diag(one.matrix.diagonal())) / (1 - one.matrix.diagonal())[:, None]
            for one in (found, before)
        )
        torch.testing.assert_close(shape, shape_before)
        torch.testing.assert_close(rates / rates.sum(), (1 - before.matrix.diagonal()) / (4 - before.matrix.trace()))
        # what others say of an anchor's own label follows
        assert (found.without > 0).all()
        assert (found.without <= 1).all()

    def test_of_nearly_only_mistakes_are_left_alone(self):
        before = self.transition(rate=0.65)
        found = before.raised_to(0.0)
        torch.testing.assert_close(found.without, before.without)

    def test_are_never_fewer(self):
        before = self.transition()
        torch.testing.assert_close(before.raised_to(0.01).matrix, before.matrix)
        torch.testing.assert_close(before.raised_to(0.01).without, before.without)

    def test_leave_a_tenth_right(self):
        assert float(self.transition().raised_to(1.0).matrix.diagonal().min()) == pytest.approx(0.1)


def annotated(x, true, samples, columns, seed=0):
    """Return what somebody says who has seen a few samples and some of the features, none of those that are asked."""
    random = np.random.default_rng(seed)
    part, said = random.integers(0, 2, len(true)), np.empty_like(true)
    for k in (0, 1):
        seen = random.permutation(np.flatnonzero(part != k))[:samples]
        judge = LogisticRegression(C=0.01, max_iter=500).fit(x[seen][:, columns], true[seen])
        said[part == k] = judge.predict(x[part == k][:, columns])
    return said


def clouds(n=2000, classes=10, width=64):
    random = np.random.default_rng(3)
    true = np.arange(n) % classes
    return (0.75 * random.standard_normal((classes, width))[true] + random.standard_normal((n, width))), true


class TestLabelsByWhoeverKnowsLess:
    """People mislabel what is hard for them: as a judge does who has seen fewer samples, and less of each."""

    def test_are_found_where_images_are_not_that_hard(self, monkeypatch):
        x, true = clouds()
        labels = annotated(x, true, 100, np.arange(32))
        wrong = labels != true
        assert 0.1 < wrong.mean() < 0.45, "the test would be of something else"

        def f1():
            flagged = label_posterior(x, labels).label_quality < 0.5
            return 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum())

        with_judges = f1()
        monkeypatch.setattr(evidence, "sharpened", lambda *_: None)
        assert with_judges > max(0.7, f1() + 0.15)

    @pytest.mark.parametrize(
        ("samples", "columns"), [(100, slice(None)), (700, slice(0, 64, 2)), (200, slice(0, 64, 3))]
    )
    @pytest.mark.parametrize("load", ["clouds", "digits"])
    def test_their_share_is_within_two_errors(self, load, samples, columns):
        x, true = clouds() if load == "clouds" else load_digits(return_X_y=True)
        labels = annotated(x, true, samples, np.arange(64)[columns])
        found = label_posterior(x, labels)
        assert abs(found.noise_rate - (labels != true).mean()) <= 2 * found.noise_rate_error

    def test_of_labels_that_contradict_more_than_can_be_hard_something_can_be_told(self, monkeypatch):
        """Six of ten labels wrong at random, of images that lie apart: all of them right would be explained as well."""
        monkeypatch.setattr(evidence, "CLEAR", 1.1)  # so that the surest images are never clear enough
        random = np.random.default_rng(0)
        true = np.arange(600) % 10
        x = 0.7 * random.standard_normal((10, 64))[true] + random.standard_normal((600, 64))
        labels = np.asarray(corrupt(true, 10, "symmetric", 0.6))
        found = label_posterior(x, labels)
        assert found.can_tell
        assert (found.probabilities.argmax(1) == true).mean() > 0.95
        assert abs(found.noise_rate - 0.6) <= 2 * found.noise_rate_error
        monkeypatch.setattr(evidence.Evidence, "most_in_doubt", lambda *_: 1.0)
        assert not label_posterior(x, labels).can_tell, "the test would show nothing"

    @pytest.mark.parametrize("load", [load_digits, load_breast_cancer])
    def test_right_labels_of_hard_images_stay_right(self, load):
        x, true = load(return_X_y=True)
        assert (label_posterior(x, true).label_quality < 0.5).mean() < 0.01
