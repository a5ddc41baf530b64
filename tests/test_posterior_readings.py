"""How sure the posterior may be, and whose names it believes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import features

import dspt
from dspt.posterior import label_posterior
from dspt.posterior.calibration import LEAST, drawn, tempered, trust
from dspt.posterior.naming import disputed, naming
from dspt.posterior.noise_rate import RateEvidence, rate_and_error


def clouds(classes, seed, each=60, width=32, apart=1.5):
    """Return features, true labels and the logits of a text tower that knows where the classes are."""
    random = np.random.default_rng(seed)
    means = random.standard_normal((classes, width))
    true = np.arange(each * classes) % classes
    x = (apart * means[true] + random.standard_normal((len(true), width))).astype(np.float32)
    return x, true, x @ means.T.astype(np.float32), random


class TestDraws:
    @pytest.mark.parametrize("first", range(4))
    def test_are_as_frequent_as_probable(self, first):
        p = torch.tensor([0.5, 0.2, 0.3, 0.0])
        uniform = (np.arange(10_000) + 0.5) / 10_000
        found = drawn(2 * p.repeat(10_000, 1), torch.full((10_000,), first), uniform)
        np.testing.assert_allclose(torch.bincount(found, minlength=4) / 10_000, p, atol=1e-3)

    def test_do_not_depend_on_the_order_of_classes(self):
        random = np.random.default_rng(0)
        p, first = torch.from_numpy(random.random((50, 7))), torch.from_numpy(random.integers(0, 7, 50))
        turned = torch.from_numpy(random.permutation(7))  # class c is called turned[c]
        uniform = random.random(50)
        other = drawn(p[:, torch.argsort(turned)], turned[first], uniform)
        assert torch.equal(other, turned[drawn(p, first, uniform)])


class TestTrust:
    @pytest.mark.parametrize("number", [0.3, 0.5, 0.8])
    def test_is_the_number_by_which_log_odds_are_too_large(self, number):
        random = np.random.default_rng(0)
        log_odds = 4 * random.standard_normal(20_000)
        wrong = random.random(20_000) < 1 / (1 + np.exp(-number * log_odds))
        assert trust(log_odds, wrong) == pytest.approx(number, abs=0.02)

    def test_is_never_above_1(self):
        log_odds = np.array([1.0, -1.0] * 500)
        assert trust(log_odds, log_odds > 0) == pytest.approx(1, abs=1e-3)

    def test_is_never_below_its_least(self):
        log_odds = np.array([5.0, -5.0] * 500)
        assert trust(log_odds, log_odds < 0) == pytest.approx(LEAST, abs=1e-3)

    def test_of_no_label_is_1(self):
        assert trust(np.zeros(0), np.zeros(0, dtype=bool)) == pytest.approx(1, abs=1e-3)

    @given(st.integers(2, 9), st.floats(0.2, 1), st.integers(0, 2**16))
    @settings(deadline=None, max_examples=30)
    def test_multiplies_log_odds_and_keeps_the_proportions_of_other_classes(self, classes, number, seed):
        generator = torch.Generator().manual_seed(seed)
        q = (2 * torch.randn(20, classes, generator=generator)).softmax(1)
        labels = torch.randint(0, classes, (20,), generator=generator)
        found = tempered(q, labels, number)
        right, before = (each.gather(1, labels[:, None]) for each in (found, q))
        torch.testing.assert_close(torch.logit(right), number * torch.logit(before), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.sum(1), torch.ones(20))
        scale = found / q
        others = torch.ones_like(q, dtype=torch.bool).scatter_(1, labels[:, None], False)
        torch.testing.assert_close(
            scale[others].reshape(20, -1), ((1 - right) / (1 - before)).expand(20, classes - 1), rtol=1e-3, atol=1e-3
        )

    def test_a_label_that_is_surely_right_or_wrong_stays_so(self):
        q = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        torch.testing.assert_close(tempered(q, torch.tensor([0, 0]), 0.5), q)

    @pytest.mark.parametrize("seed", [0, 3, 4])
    def test_where_mistakes_look_like_the_images_probabilities_are_better_than_a_guess(self, seed):
        """Each class has a twin, and a third of the labels is that of the twin: rounds believe themselves there."""
        random = np.random.default_rng(seed)
        true = np.arange(640) % 16
        means = np.repeat(1.5 * random.standard_normal((8, 24)), 2, axis=0) + 0.32 * random.standard_normal((16, 24))
        x = means[true] + random.standard_normal((640, 24))
        wrong = random.random(640) < 0.35
        quality = label_posterior(x, np.where(wrong, true ^ 1, true)).label_quality.astype(np.float64)
        loss = -np.log(np.clip(np.where(wrong, 1 - quality, quality), 1e-6, 1)).mean()
        assert loss < -0.35 * math.log(0.35) - 0.65 * math.log(0.65)  # of the share, said of every label


class TestNames:
    @staticmethod
    def _groups(classes, told, labels=0.8):
        """Return what the text calls groups of 100 images, a fifth of whose labels are that of the next class."""
        named = torch.zeros(classes, classes, dtype=torch.float64)
        named[torch.arange(classes), torch.as_tensor(told)] = 100
        matrix = labels * torch.eye(classes) + (1 - labels) * torch.eye(classes).roll(1, 1)
        return named, matrix

    def test_of_the_text_are_taken_if_all_groups_have_labels_with_them(self):
        """The chance that useless names are all those of the next class is (1/7)^8."""
        found = naming(*self._groups(8, (np.arange(8) + 1) % 8))
        assert found is not None
        assert found.sure
        assert found.rate == pytest.approx(0.8)
        assert found.order.tolist() == [7, 0, 1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("classes", [2, 3, 4])
    def test_of_few_classes_may_be_chance(self, classes):
        """(1/3)^4 is above a hundredth: either reading may be right."""
        found = naming(*self._groups(classes, (np.arange(classes) + 1) % classes))
        assert found is not None
        assert not found.sure
        assert found.rate == pytest.approx(0.8)

    def test_that_no_label_has_are_not_taken(self):
        assert naming(*self._groups(8, (np.arange(8) + 3) % 8)) is None

    def test_that_agree_with_the_labels_are_left(self):
        assert naming(*self._groups(8, np.arange(8))) is None

    @pytest.mark.parametrize("prior", ["random", "opposite", "shuffled"])
    @pytest.mark.parametrize("classes", [3, 5, 8])
    def test_that_mean_nothing_do_not_overturn_labels(self, classes, prior):
        for seed in range(3):
            x, true, z, random = clouds(classes, seed)
            if prior == "random":
                z = x @ random.standard_normal((x.shape[1], classes)).astype(np.float32)
            z = -z if prior == "opposite" else z[:, random.permutation(classes)] if prior == "shuffled" else z
            labels = np.asarray(dspt.corrupt(true, classes, "pair", 0.3, seed=seed))
            found = label_posterior(x, labels, z)
            assert (found.probabilities.argmax(1) == true).mean() > 0.95
            assert abs(found.noise_rate - 0.3) <= 2 * found.noise_rate_error

    @pytest.mark.parametrize("classes", [3, 4, 5, 8])
    def test_that_are_right_tell_of_four_labels_in_five_or_that_it_cannot_be_told(self, classes):
        for seed in range(3):
            x, true, z, _ = clouds(classes, seed)
            found = label_posterior(x, np.asarray(dspt.corrupt(true, classes, "pair", 0.8, seed=seed)), z)
            assert abs(found.noise_rate - 0.8) <= 2 * found.noise_rate_error
            if classes >= 5:
                assert (found.probabilities.argmax(1) == true).mean() > 0.95
                assert found.noise_rate_error < 0.1


class TestDisputedGroups:
    """Groups that the text calls by another of their own labels: more labels may be wrong."""

    def matrix(self, other=0.4):
        return torch.tensor([[1 - other, other, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])

    def test_are_as_wrong_as_the_label_is_rare_that_the_text_says(self):
        named = torch.diag(torch.full((4,), 100.0)).double()
        named[0] = torch.tensor([30.0, 70, 0, 0])
        # A quarter of the images: 60 of 100 of their labels are wrong instead of 40. One in ten of all is anyway.
        assert disputed(named, self.matrix()) == pytest.approx(0.2 / 4 * 2 * 0.1)
        assert disputed(named, self.matrix(0.2)) == pytest.approx(0.6 / 4 * 2 * 0.05)

    def test_count_whole_where_half_of_the_labels_are_wrong(self):
        named = torch.diag(torch.full((4,), 100.0)).double().roll(1, 1)
        matrix = 0.5 * torch.eye(4) + 0.4 * torch.eye(4).roll(1, 1) + 0.1 * torch.eye(4).roll(2, 1)
        assert disputed(named, matrix) == pytest.approx(0.1)

    def test_are_those_alone_that_have_labels_of_the_name(self):
        named = torch.diag(torch.full((4,), 100.0)).double()
        named[0] = torch.tensor([30.0, 0, 70, 0])
        assert disputed(named, self.matrix()) == 0
        named[0] = torch.tensor([30.0, 70, 0, 0])
        assert disputed(named, self.matrix(0.02)) == 0, "two labels in a hundred are anybody's mistakes"

    def test_are_none_if_the_text_knows_no_more_than_chance(self):
        named = torch.full((4, 4), 25.0).double()
        named[0] = torch.tensor([25.0, 26, 25, 24])
        assert disputed(named, self.matrix()) == 0

    def test_add_to_the_error_and_leave_the_rate(self):
        evidence = RateEvidence(0.4, (0.4,), 0.4, 900, 3000, True)
        assert rate_and_error(evidence._replace(disputed=0.2))[0] == 0.4
        chance = rate_and_error(evidence)[1]
        assert rate_and_error(evidence._replace(disputed=0.2))[1] == pytest.approx((chance**2 + 0.04) ** 0.5)

    def test_the_error_reaches_every_reading_that_is_as_likely(self):
        evidence = RateEvidence(0.4, (0.4,), 0.4, 900, 3000, True, otherwise=(0.42, 0.7))
        assert rate_and_error(evidence)[1] == pytest.approx(0.3)


@pytest.mark.parametrize("apart", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("noise", ["none", "symmetric", "pair"])
def test_where_not_even_the_surest_images_are_clear_the_error_covers_that_all_are_hard(apart, noise):
    """Ten clouds on top of each other, of which nobody could tell more than a fifth to two fifths."""
    random = np.random.default_rng(0)
    true = np.arange(1000) % 10
    x = apart * random.standard_normal((10, 16))[true] + random.standard_normal((1000, 16))
    found = label_posterior(x, true if noise == "none" else dspt.corrupt(true, 10, noise, 0.4))
    assert abs(found.noise_rate - (found.labels != true).mean()) <= 2 * found.noise_rate_error + 1e-9
    assert found.noise_rate <= 2 * found.noise_rate_error + 1e-9, "none may be wrong"


def test_where_labels_contradict_images_that_are_not_clear_and_none_need_be_wrong_nothing_is_told():
    random = np.random.default_rng(0)
    true = np.arange(1000) % 10
    x = 0.2 * random.standard_normal((10, 16))[true] + random.standard_normal((1000, 16))
    found = label_posterior(x, true)
    assert not found.can_tell
    assert (found.label_quality == 1).all(), "no right label is called wrong"


@pytest.mark.parametrize("largest", [1, 50])
def test_features_that_differ_by_next_to_nothing_are_all_the_same(largest):
    random = np.random.default_rng(0)
    x = 1e-40 * random.standard_normal((100, 8)) * np.array([1.0] * 7 + [largest])
    assert not label_posterior(x, np.arange(100) % 4).can_tell


@pytest.mark.parametrize("seed", range(5))
def test_one_image_with_names_has_a_posterior(seed):
    random = np.random.default_rng(seed)
    found = label_posterior(random.standard_normal((1, 4)), [1], random.standard_normal((1, 3)))
    assert found.probabilities.shape == (1, 3)


def test_labels_that_contradict_the_surest_images_as_often_as_any_are_wrong_and_the_images_not_hard():
    """Clouds that lie apart: a classifier as soft as need be explains as much, but not where the mistakes are."""
    x, true, _, _ = clouds(10, 0, each=400, width=64, apart=1.0)
    found = label_posterior(x, np.asarray(dspt.corrupt(true, 10, "symmetric", 0.2)))
    assert found.noise_rate == pytest.approx(0.2, abs=0.01)
    assert found.noise_rate_error < 0.03


def test_what_the_rounds_left_is_surer_and_says_the_same():
    """dspt-auto learns from it; made tempered again, it is what is told."""
    x, true, z, _ = clouds(8, 0, apart=0.5)
    found = label_posterior(x, np.asarray(dspt.corrupt(true, 8, "pair", 0.4)), z)
    assert found.trust < 1
    sharp = torch.from_numpy(found.as_found())
    labels = torch.from_numpy(found.labels)
    told = tempered(sharp, labels, found.trust).numpy()
    np.testing.assert_allclose(told, found.probabilities, atol=1e-3)
    right = sharp.gather(1, labels[:, None])[:, 0].numpy()
    assert (np.abs(right - 0.5) >= np.abs(found.label_quality - 0.5) - 1e-6).all()


class TestClassesThatNoLabelNames:
    """A class without a label has no mean of its own: images between the others are not its images."""

    @pytest.mark.parametrize("names", ["none", "random", "mixed up"])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_take_no_images_where_nothing_tells_of_them(self, names, seed):
        x, true = features(600, seed, classes=3)
        random = np.random.default_rng(seed)
        prototypes = random.standard_normal((4, x.shape[1]))
        if names == "mixed up":
            prototypes[:3] = [x[true == k].mean(0) for k in (1, 2, 0)]
        prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
        logits = None if names == "none" else 100 * x @ prototypes.T
        found = label_posterior(x, true, logits, num_classes=4)
        assert (found.classify(x, logits).argmax(1) < 3).all()
        assert (found.probabilities.argmax(1) == true).mean() > 0.995
        assert found.noise_rate < 0.01

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_take_theirs_where_names_tell_the_others_and_them(self, seed):
        x, true = features(1200, seed)
        labels = np.where(true == 3, 2, true)
        prototypes = np.stack([x[true == k].mean(0) for k in range(4)])
        prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
        found = label_posterior(x, labels, 100 * x @ prototypes.T)
        assert (found.probabilities.argmax(1) == true).mean() > 0.95

    @pytest.mark.parametrize("seed", [2, 3])
    def test_do_not_change_what_is_said_of_the_others(self, seed):
        """Wrong labels are found as they are without the empty classes."""
        x, true = features(600, seed)
        labels = np.asarray(dspt.corrupt(true, 4, "symmetric", 0.3))
        alone, among = (label_posterior(x, labels, num_classes=classes) for classes in (4, 9))
        assert (among.probabilities.argmax(1) < 4).all()
        assert ((alone.label_quality < 0.5) == (among.label_quality < 0.5)).mean() > 0.97
        assert abs(alone.noise_rate - among.noise_rate) < 0.02

    def test_take_theirs_where_somebody_has_looked_at_some(self):
        x, true = features(1200, 1)
        labels = np.where(true == 3, 2, true)
        known = np.full(len(true), -1)
        known[np.flatnonzero(true == 3)[:5]] = 3
        found = label_posterior(x, labels, num_classes=4, known=known)
        unseen = (true == 3) & (known < 0)
        assert (found.probabilities.argmax(1) == 3)[unseen].mean() > 0.95

    @pytest.mark.parametrize("named", [2, 3])
    def test_take_theirs_where_labels_name_few_of_the_classes_that_names_tell(self, named):
        x, true = features(1000, 1, classes=10, dim=32)
        prototypes = np.stack([x[true == k].mean(0) for k in range(10)])
        prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
        found = label_posterior(x, true % named, 100 * x @ prototypes.T)
        assert (found.probabilities.argmax(1) == true).mean() > 0.95
        assert abs(found.noise_rate - (1 - named / 10)) <= 2 * found.noise_rate_error

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_take_none_where_somebody_has_corrected_all_of_theirs(self, seed):
        x, true = features(600, seed, classes=3)
        corrected = np.random.default_rng(seed).permutation(600)[:5]
        labels, known = true.copy(), np.full(600, -1)
        labels[corrected], known[corrected] = 3, true[corrected]
        found = label_posterior(x, labels, num_classes=4, known=known)
        assert (found.probabilities.argmax(1) == true).mean() > 0.995
        assert abs(found.noise_rate - 5 / 600) <= 2 * found.noise_rate_error

    @pytest.mark.parametrize("classes", [5, 400, 2000])
    def test_take_no_images_however_many_they_are(self, classes):
        random = np.random.default_rng(2)
        centres = np.random.default_rng(99).standard_normal((4, 16))
        true = np.arange(100) % 4
        x = centres[true] + 1.6 * random.standard_normal((100, 16))
        found = label_posterior(x / np.linalg.norm(x, axis=1, keepdims=True), true, num_classes=classes)
        assert found.probabilities[:, 4:].sum() < 0.5
