"""The posterior of labels, against formulas, simulated truth and what cannot be known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

import dspt
from dspt.internal.errors import InputError
from dspt.internal.passes import passes
from dspt.posterior import evidence, label_posterior, noise_rate, samples
from dspt.posterior.discriminant import Sums, combined, discriminants
from dspt.posterior.mixture import Mixture, most_likely, probabilities
from dspt.posterior.transition import Anchors, anchor_rows, estimate_transition, log_shares, uniform_transition

CLASSES, WIDTH = 6, 12


def clouds(n=480, classes=CLASSES, apart=1.4, seed=0, vague=0.7):
    """Return features, true labels, and logits of a text tower that knows roughly where the classes are."""
    random = np.random.default_rng(seed)
    means = random.standard_normal((classes, WIDTH))
    true = np.arange(n) % classes
    x = apart * means[true] + random.standard_normal((n, WIDTH))
    names = means + vague * random.standard_normal(means.shape)
    return x.astype(np.float32), true, (2 * x @ names.T).astype(np.float32)


def found_wrong(posterior, true):
    """Return F1 of the labels held to be wrong."""
    flagged, wrong = posterior.label_quality < 0.5, posterior.labels != true
    return 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum())


def sums_of(x, labels, classes):
    chosen = torch.nn.functional.one_hot(torch.as_tensor(labels), classes).double()
    x = torch.as_tensor(x, dtype=torch.float64)
    return Sums(chosen.sum(0), chosen.T @ x, x.T @ x)


class TestDiscriminant:
    def test_is_the_log_density_of_gaussians_with_one_covariance(self):
        x, labels, _ = clouds(6000, apart=3.0)
        x = x - x.mean(0)
        found = discriminants(sums_of(x, labels, CLASSES), [0.5])[0]
        means = np.stack([x[labels == c].mean(0) for c in range(CLASSES)]).astype(np.float64)
        within = np.cov((x - means[labels]).T, bias=True)
        within += (0.5 + WIDTH / len(x)) * np.trace(within) / WIDTH * np.eye(WIDTH)
        density = np.stack([multivariate_normal(mean, within).logpdf(x[:50]) for mean in means], axis=1)
        scores = (torch.from_numpy(x[:50]) @ found.weights + found.bias).numpy()
        # means are drawn to the common one by less than a thousandth here
        np.testing.assert_allclose(scores - scores[:, :1], density - density[:, :1], rtol=0.01, atol=0.05)

    def test_of_the_others_is_that_of_a_set_without_them(self):
        x, labels, _ = clouds()
        rows = np.arange(len(x)) % 5 == 0
        whole, part, rest = (sums_of(x[r], labels[r], CLASSES) for r in (slice(None), rows, ~rows))
        one, other = discriminants(whole.without(part), [0.1])[0], discriminants(rest, [0.1])[0]
        torch.testing.assert_close(one.weights, other.weights)
        torch.testing.assert_close(one.bias, other.bias)

    def test_a_class_without_samples_is_the_common_mean(self):
        x, labels, _ = clouds()
        found = discriminants(sums_of(x - x.mean(0), labels, CLASSES + 1), [0.1])[0]
        assert not found.weights[:, -1].any()
        assert not found.bias[-1]

    def test_few_samples_draw_a_mean_to_the_common_one(self):
        x, labels, _ = clouds()
        others = labels > 0
        middle = x[~others].mean(0)
        one, many = (
            discriminants(
                sums_of(np.r_[x[others], np.tile(middle, (n, 1))], np.r_[labels[others], np.zeros(n, int)], CLASSES),
                [2.0],
            )[0]
            for n in (1, 80)
        )
        assert one.weights[:, 0].norm() < 0.8 * many.weights[:, 0].norm()

    def test_combined_is_the_weighted_sum(self):
        x, labels, _ = clouds()
        parts = discriminants(sums_of(x, labels, CLASSES), (0.1, 2.0))
        prior = torch.arange(CLASSES).float()
        found = combined(parts, (0.2, 0.7), prior)
        torch.testing.assert_close(found.weights, 0.2 * parts[0].weights + 0.7 * parts[1].weights)
        torch.testing.assert_close(found.bias, 0.2 * parts[0].bias + 0.7 * parts[1].bias + prior)


def anchors(predicted, labels, doubt=None, likeness=None):
    """All samples as anchors, of whose labels the classifier has no doubt but the given one."""
    classes = max(CLASSES, predicted.max() + 1, labels.max() + 1) if likeness is None else len(likeness)
    if likeness is None:
        likeness = (1 - np.eye(classes)) / (classes - 1)
    if doubt is None:
        doubt = (predicted == labels).astype(float)
    rows, predicted, labels = (torch.from_numpy(each) for each in (np.arange(len(labels)), predicted, labels))
    doubt, likeness = (torch.from_numpy(np.asarray(each, dtype=np.float32)) for each in (doubt, likeness))
    return Anchors(rows, predicted, labels, doubt, likeness)


class TestTransition:
    def test_anchors_are_the_surest_of_each_predicted_class(self):
        predicted = np.array([0, 0, 0, 0, 1, 1, 2])
        sureness = np.array([0.5, 0.9, 0.8, 0.6, 0.3, 0.4, 0.2])
        order = np.lexsort((-sureness, predicted))
        assert set(anchor_rows(predicted, order, 0.5)) == {1, 2, 5, 6}
        assert set(anchor_rows(predicted, order, 0.01)) == {1, 5, 6}

    @pytest.mark.parametrize("first_look", [True, False])
    @pytest.mark.parametrize("kind", ["symmetric", "pair"])
    def test_what_sure_predictions_show_is_found(self, kind, first_look):
        true = np.arange(6000) % CLASSES
        labels = dspt.corrupt(true, CLASSES, kind, 0.3, sampling="bernoulli")
        found = estimate_transition(anchors(true, labels), first_look)
        expected = dspt.noise.transition_matrix(kind, CLASSES, 0.3).T
        np.testing.assert_allclose(found.matrix.numpy(), expected, atol=0.06)

    def test_labels_the_classifier_would_have_given_next_are_no_mistakes(self):
        """A tenth of the labels contradict; to the classifier they are as probable as what it predicts."""
        true = np.arange(600) % CLASSES
        labels = dspt.corrupt(true, CLASSES, "symmetric", 0.1)
        wrong = labels != true
        sure, unsure = (
            estimate_transition(anchors(true, labels, np.where(wrong, doubt, 1.0))).matrix.diagonal().mean()
            for doubt in (0.0, 1.0)
        )
        assert float(sure) == pytest.approx(0.9, abs=0.01)
        assert float(unsure) > 0.985

    def test_few_anchors_share_what_classes_are_taken_for(self):
        """Forty classes of five anchors; each mistake goes to one of two classes that are alike."""
        classes = 40
        true = np.repeat(np.arange(classes), 5)
        near = np.eye(classes)[(np.arange(classes)[:, None] + [1, 2]) % classes].sum(1) / 2
        random = np.random.default_rng(0)
        moved = random.random(len(true)) < 0.3
        labels = np.where(moved, (true + random.integers(1, 3, len(true))) % classes, true)
        found = estimate_transition(anchors(true, labels, likeness=near)).matrix.numpy()
        lonely = estimate_transition(anchors(true, labels)).matrix.numpy()
        # the mean chance of a mistake to a like class is 0.15; by counts alone, only what a class has shown is known
        like = near > 0
        assert np.abs(found[like] - 0.15).mean() < 0.05 < np.abs(lonely[like] - 0.15).mean()

    @given(st.integers(2, 7), st.integers(1, 60), st.integers(0, 10**6), st.booleans())
    @settings(max_examples=50, deadline=None)
    def test_rows_are_distributions_whatever_the_anchors(self, classes, n, seed, first_look):
        random = np.random.default_rng(seed)
        predicted, labels = random.integers(0, classes, (2, n))
        likeness = random.random((classes, classes)) * (random.random((classes, 1)) < 0.8)
        np.fill_diagonal(likeness, 0)
        likeness /= np.maximum(likeness.sum(1, keepdims=True), 1e-30)
        found = estimate_transition(anchors(predicted, labels, random.random(n), likeness), first_look)
        assert bool((found.matrix >= 0).all())
        assert 0 <= float(found.without.min()) <= float(found.without.max()) <= 1
        torch.testing.assert_close(found.matrix.sum(1), torch.ones(classes))

    @pytest.mark.parametrize("kind", ["symmetric", "pair"])
    def test_a_label_has_no_say_in_its_own_case(self, kind):
        """What is said of an anchor is what the others show, found anew without it."""
        true = np.arange(120) % CLASSES
        labels = dspt.corrupt(true, CLASSES, kind, 0.3)
        found = estimate_transition(anchors(true, labels), first_look=True)
        likely = found.likely(torch.from_numpy(labels))
        for row in (int(np.flatnonzero(labels != true)[0]), int(np.flatnonzero(labels == true)[0])):
            rest = np.arange(120) != row
            others = estimate_transition(anchors(true[rest], labels[rest]), first_look=True).matrix
            assert float(likely[row, true[row]]) == pytest.approx(float(others[true[row], labels[row]]), abs=0.01)
            assert float(found.matrix[true[row], labels[row]]) > float(likely[row, true[row]])

    def test_of_samples_that_are_no_anchors_the_whole_matrix_tells(self):
        true = np.arange(120) % CLASSES
        found = estimate_transition(anchors(true, dspt.corrupt(true, CLASSES, "pair", 0.3)))
        labels = torch.tensor([1, 4, 2])
        torch.testing.assert_close(found.likely(labels, 120), found.matrix.T[labels])

    def test_shares_of_true_classes_are_those_that_give_the_counts_of_labels(self):
        shares = np.array([0.6, 0.25, 0.1, 0.05])
        matrix = dspt.noise.transition_matrix("pair", 4, 0.3).T
        found = log_shares(torch.from_numpy(10_000 * shares @ matrix), torch.from_numpy(matrix)).exp().numpy()
        np.testing.assert_allclose(found, (shares + 0.25) / 2, atol=0.02)  # half-way to even ones
        assert np.abs(shares @ matrix - shares).max() > 0.1  # the labels' own shares are others

    def test_uniform(self):
        np.testing.assert_allclose(
            uniform_transition(0.3, 4).numpy(), dspt.noise.transition_matrix("symmetric", 4, 0.3), rtol=1e-6
        )


class TestMixture:
    @pytest.mark.parametrize("softness", [0.0, 0.2])
    def test_weights_under_which_labels_were_drawn_are_found(self, softness):
        random = np.random.default_rng(0)
        terms = [torch.from_numpy(random.standard_normal((40_000, 4)).astype(np.float32)) for _ in range(2)]
        p = probabilities(2.5 * terms[0] + 0.8 * terms[1], softness).numpy()
        true = (p.cumsum(1) < random.random((len(p), 1))).sum(1).clip(max=3)
        _, found = most_likely(terms, torch.eye(4)[torch.from_numpy(true)], Mixture((0.5, 0.5), 0.1), soft=(0, 0.5))
        np.testing.assert_allclose(found.weights, (2.5, 0.8), rtol=0.1)
        assert found.softness == pytest.approx(softness, abs=0.06)

    def test_what_is_less_clear_is_as_likely_as_at_a_higher_temperature(self):
        logits = torch.tensor([[6.0, 0.0]])
        expected = 0.8 / (1 + np.exp(-6)) + 0.2 / (1 + np.exp(-2))
        assert float(probabilities(logits, 0.2)[0, 0]) == pytest.approx(expected)


class TestWhatIsFound:
    @pytest.mark.parametrize("text", [True, False])
    @pytest.mark.parametrize(("kind", "rate"), [("symmetric", 0.4), ("pair", 0.3), ("symmetric", 0.6)])
    def test_wrong_labels_their_number_and_what_they_ought_to_be(self, kind, rate, text):
        x, true, z = clouds(900, apart=2.0)
        labels = dspt.corrupt(true, CLASSES, kind, rate)
        found = label_posterior(x, labels, z if text else None)
        assert found_wrong(found, true) > 0.95
        assert (found.probabilities.argmax(1) == true).mean() > 0.95
        assert abs(found.noise_rate - rate) < 2 * found.noise_rate_error
        assert found.noise_rate_error < 0.05
        expected = dspt.noise.transition_matrix(kind, CLASSES, rate)
        assert np.abs(found.transition - expected).max() < 0.25
        np.testing.assert_allclose(found.transition.sum(0), 1, rtol=1e-5)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-4)
        np.testing.assert_array_equal(found.label_quality, found.probabilities[np.arange(len(labels)), labels])

    @pytest.mark.parametrize("text", [True, False])
    @pytest.mark.parametrize("rate", [0.0, 0.2])
    def test_common_classes_do_not_lose_their_samples_to_rare_ones(self, rate, text):
        random = np.random.default_rng(0)
        sizes = np.geomspace(1200, 12, 10).astype(int)
        true = np.repeat(np.arange(10), sizes)
        means = random.standard_normal((10, WIDTH))
        x = 1.1 * means[true] + random.standard_normal((len(true), WIDTH))
        labels = dspt.corrupt(true, 10, rate=rate)
        z = x @ (means + 0.7 * random.standard_normal(means.shape)).T
        found = label_posterior(x, labels, z if text else None)
        assert abs(found.noise_rate - rate) < 2 * found.noise_rate_error
        assert (found.probabilities.argmax(1) == true).mean() > 0.9

    def test_where_wrong_labels_stand_in_the_file_does_not_matter(self):
        x, true, _ = clouds(1800, apart=4.0)
        for where in (np.arange(1800) < 360, np.arange(1800) >= 1440):
            found = label_posterior(x, np.where(where, (true + 1) % CLASSES, true))
            assert abs(found.noise_rate - 0.2) < 0.02

    def test_clean_labels_raise_no_alarm(self):
        x, true, z = clouds(900, apart=2.0)
        found = label_posterior(x, true, z)
        assert (found.label_quality < 0.5).mean() < 0.01
        assert found.noise_rate < 0.02

    def test_classifier_of_its_own_is_not_fooled(self):
        x, true, z = clouds(1800, apart=1.4)
        labels = dspt.corrupt(true[:900], CLASSES, "pair", 0.4)
        found = label_posterior(x[:900], labels, z[:900])
        by_truth = label_posterior(x[:900], true[:900], z[:900])
        accuracy = [(one.classify(x[900:], z[900:]).argmax(1) == true[900:]).mean() for one in (found, by_truth)]
        assert accuracy[0] > accuracy[1] - 0.02
        np.testing.assert_allclose(found.classify(x[900:], z[900:]).sum(1), 1, rtol=1e-5)

    def test_logits_that_are_linear_in_the_features_need_not_be_given_again(self):
        x, true, z = clouds(60, apart=0.9, vague=0.0)
        found = label_posterior(x, dspt.corrupt(true, CLASSES, rate=0.3), z)
        assert found.text_weight > 0
        np.testing.assert_allclose(found.scores(x), found.scores(x, z), atol=1e-2)

    def test_logits_that_are_not_are_asked_for(self):
        x, true, _ = clouds(apart=0.7)
        z = 3 * np.eye(CLASSES)[true] + np.random.default_rng(1).standard_normal((len(true), CLASSES))
        found = label_posterior(x, dspt.corrupt(true, CLASSES, rate=0.3), z)
        with pytest.raises(InputError, match="zero_shot_logits: needed"):
            found.classify(x)

    def test_logits_are_asked_for_where_too_few_samples_could_tell(self):
        random = np.random.default_rng(0)
        true = np.arange(60) % 3
        x, z = random.standard_normal((60, 90)), 4 * np.eye(3)[true] + random.standard_normal((60, 3))
        found = label_posterior(x, true, z)
        assert found.text_weight > 0
        with pytest.raises(InputError, match="zero_shot_logits: needed"):
            found.classify(x)

    def test_classes_may_be_named_in_any_order(self):
        x, true, z = clouds()
        labels = dspt.corrupt(true, CLASSES, "pair", 0.3)
        turned = np.random.default_rng(3).permutation(CLASSES)  # class c is called turned[c]
        one, other = label_posterior(x, labels, z), label_posterior(x, turned[labels], z[:, np.argsort(turned)])
        np.testing.assert_allclose(other.probabilities[:, turned], one.probabilities, atol=1e-2)
        assert other.noise_rate == pytest.approx(one.noise_rate, abs=1e-3)

    def test_scale_and_place_of_features_and_logits_do_not_matter(self):
        x, true, z = clouds()
        labels = dspt.corrupt(true, CLASSES, rate=0.3)
        one, other = label_posterior(x, labels, z), label_posterior(300 * x + 7, labels, 0.01 * z - 3)
        np.testing.assert_allclose(other.probabilities, one.probabilities, atol=1e-2)

    @pytest.mark.parametrize("units", [np.r_[1e4, np.ones(WIDTH)], np.r_[1.0, np.logspace(-2, 2, WIDTH)]])
    def test_features_may_be_measured_in_other_units(self, units):
        """A column of nothing that is the largest by far, and columns from hundredths to hundreds."""
        x, true, _ = clouds()
        labels = dspt.corrupt(true, CLASSES, "pair", 0.2)
        x = np.c_[np.random.default_rng(1).standard_normal(len(x)), x]
        plain, other = label_posterior(x, labels), label_posterior(units * x, labels)
        assert found_wrong(other, true) > found_wrong(plain, true) - 0.02
        assert abs(other.noise_rate - 0.2) < 0.02
        right = [(found.classify(rows).argmax(1) == true).mean() for found, rows in ((plain, x), (other, units * x))]
        assert right[1] > right[0] - 0.02

    def test_confusion_tells_which_classes_look_alike_whatever_their_labels(self):
        """Classes 0 and 1 are one cloud, whose labels are all told right by nothing but the labels."""
        x, true, _ = clouds(900, apart=3.0)
        x[true == 1] = x[true == 0]
        found = label_posterior(x, true).confusion
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-4)
        assert found[0, 1] == pytest.approx(0.5, abs=0.1)
        assert found[1, 0] == pytest.approx(0.5, abs=0.1)
        assert found[2:].diagonal(2).min() > 0.95

    def test_same_bits_again(self):
        x, true, z = clouds()
        labels = dspt.corrupt(true, CLASSES, rate=0.4)
        one, other = label_posterior(x, labels, z), label_posterior(x, labels, z)
        assert one.probabilities.tobytes() == other.probabilities.tobytes()
        assert one.noise_rate_error == other.noise_rate_error

    def test_in_many_parts_as_in_one(self, monkeypatch, tmp_path):
        x, true, z = clouds()
        labels = dspt.corrupt(true, CLASSES, rate=0.4)
        whole = label_posterior(x, labels, z)
        np.save(tmp_path / "x.npy", x)
        monkeypatch.setattr(samples, "_ENTRIES", 40 * WIDTH)
        parts = label_posterior(np.load(tmp_path / "x.npy", mmap_mode="r"), labels, z)
        # Weights are sought until they gain next to nothing: rounding may end that a step earlier.
        np.testing.assert_allclose(parts.probabilities, whole.probabilities, atol=5e-3)

    def test_a_label_does_not_vouch_for_itself(self):
        x, true, _ = clouds()
        other = true.copy()
        other[7] = (true[7] + 1) % CLASSES
        nobody = np.full(len(x), -1)
        with passes(len(x)) as each:
            one, two = (evidence.Evidence(each, x, y, None, CLASSES, nobody, 1) for y in (true, other))
        fold = int(one.fold[7])
        pairs = [[discriminants(each, [0.1])[0] for each in one_.others(one_.label_sums())] for one_ in (one, two)]
        torch.testing.assert_close(pairs[0][fold].weights, pairs[1][fold].weights)
        assert not torch.equal(pairs[0][fold - 1].weights, pairs[1][fold - 1].weights)


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits, load_iris, load_wine])
@pytest.mark.parametrize("noise", [None, ("symmetric", 0.1), ("symmetric", 0.3), ("pair", 0.3)])
def test_real_measurements_of_other_kinds(load, noise):
    """Sets that come with scikit-learn: 2 to 10 classes, 150 to 1,797 samples, no text."""
    measured = load()
    x, true = StandardScaler().fit_transform(measured.data), measured.target
    labels = true if noise is None else dspt.corrupt(true, true.max() + 1, *noise)
    found = label_posterior(x, labels)
    wrong = labels != true
    assert abs(found.noise_rate - wrong.mean()) <= 2 * found.noise_rate_error
    assert found.noise_rate_error < 0.2
    if noise is None:
        assert (found.label_quality < 0.5).mean() < 0.01
    else:
        assert roc_auc_score(wrong, -found.label_quality) > 0.95


class TestTheTextPrior:
    def test_helps_where_features_say_little(self):
        x, true, _ = clouds(240, apart=0.3)
        z = 4 * np.eye(CLASSES)[true] + np.random.default_rng(1).standard_normal((240, CLASSES))
        labels = dspt.corrupt(true, CLASSES, rate=0.4)
        with_text, without = label_posterior(x, labels, z), label_posterior(x, labels)
        assert found_wrong(with_text, true) > 0.95
        assert found_wrong(without, true) < 0.9

    @pytest.mark.parametrize("names", ["shuffled", "meaningless", "all the same"])
    def test_of_no_use_costs_nothing(self, names):
        x, true, z = clouds(900, apart=1.8)
        if names == "shuffled":
            z = np.roll(z, 2, axis=1)
        else:
            z = np.random.default_rng(0).standard_normal(z.shape) if names == "meaningless" else np.ones_like(z)
        labels = dspt.corrupt(true, CLASSES, rate=0.4)
        found, without = label_posterior(x, labels, z), label_posterior(x, labels)
        assert found_wrong(found, true) > found_wrong(without, true) - 0.01
        assert abs(found.noise_rate - 0.4) < 2 * found.noise_rate_error

    def test_alone_can_tell_that_most_labels_are_wrong(self):
        x, true, z = clouds(900, apart=2.0)
        labels = dspt.corrupt(true, CLASSES, "pair", 0.8)
        found = label_posterior(x, labels, z)
        assert (found.probabilities.argmax(1) == true).mean() > 0.95
        assert abs(found.noise_rate - 0.8) < 0.05
        # without it the groups are found, under the names that most of their labels have
        assert label_posterior(x, labels).noise_rate == pytest.approx(0.2, abs=0.05)

    @pytest.mark.parametrize("seed", range(4))
    def test_that_means_nothing_names_no_group(self, seed):
        x, true, _ = clouds(960, classes=24, apart=2.0, seed=seed)
        nonsense = x @ np.random.default_rng(seed).standard_normal((WIDTH, 24))
        found = label_posterior(x, dspt.corrupt(true, 24, "pair", 0.4), nonsense)
        assert found.start != "renamed"
        assert (found.probabilities.argmax(1) == true).mean() > 0.8

    def test_is_not_believed_where_names_are_mixed_up(self):
        x, true, z = clouds(900, apart=2.0)
        found = label_posterior(x, dspt.corrupt(true, CLASSES, rate=0.2), np.roll(z, 1, axis=1))
        assert (found.probabilities.argmax(1) == true).mean() > 0.95


class TestWhatCannotBeKnown:
    @pytest.mark.parametrize("text", [True, False])
    @pytest.mark.parametrize(("n", "classes"), [(60, 3), (400, 10), (300, 100)])
    def test_features_that_say_nothing(self, n, classes, text):
        random = np.random.default_rng(0)
        labels = random.integers(0, classes, n)
        x, z = random.standard_normal((n, 20)), random.standard_normal((n, classes)) if text else None
        found = label_posterior(x, labels, z, num_classes=classes)
        assert not found.can_tell
        assert found.noise_rate_error == 0.5
        np.testing.assert_array_equal(found.label_quality, 1)  # nothing speaks against them
        assert "cannot be told" in noise_rate.in_words(found.findings())

    def test_rounds_that_believe_themselves_are_not_the_answer(self):
        """Four of five labels of twelve images a class are wrong: later rounds would hold every label to be right."""
        random = np.random.default_rng(0)
        true = np.arange(960) % 80
        x = 0.5 * random.standard_normal((80, 200))[true] + random.standard_normal((960, 200))
        found = label_posterior(x, dspt.corrupt(true, 80, "symmetric", 0.8))
        assert found.noise_rate > 0.5
        assert abs(found.noise_rate - 0.8) <= 2 * found.noise_rate_error

    def test_the_error_covers_the_truth(self):
        kinds = ["symmetric", "pair", "instance", "instance-likely", "near"]
        hits, trials = 0, 0
        for seed in range(12):
            x, true, z = clouds(360, apart=(0.8, 1.4, 2.0)[seed % 3], seed=seed)
            means = np.stack([x[true == c].mean(0) for c in range(CLASSES)])
            for kind in kinds:
                extra = {"features": x} if "instance" in kind else {}
                extra = {"class_features": means - means.mean(0)} if kind == "near" else extra
                labels = dspt.corrupt(true, CLASSES, kind, (0.0, 0.1, 0.2, 0.4)[seed % 4], seed, **extra)
                found = label_posterior(x, labels, z if seed % 2 else None)
                hits += abs(found.noise_rate - (labels != true).mean()) <= 2 * found.noise_rate_error
                trials += 1
        assert hits >= 0.9 * trials

    @pytest.mark.parametrize(
        ("x", "labels", "classes"),
        [
            (np.ones((1, 4)), [0], 2),
            (np.eye(2, 4), [0, 1], 2),
            (np.ones((40, 3)), [0, 1, 2, 3] * 10, 4),
            (np.arange(80.0).reshape(20, 4), [0] * 20, 3),
            (np.random.default_rng(0).standard_normal((30, 8)), list(range(30)), 30),
            (np.random.default_rng(0).standard_normal((12, 500)), [0, 1, 2] * 4, 3),
            (np.repeat(np.eye(3, 5), 20, axis=0), [0] * 20 + [1] * 20 + [2] * 20, 3),
            (np.zeros((10, 1)), [0, 1] * 5, 2),
            (np.random.default_rng(0).standard_normal((60, 4)), [0] * 57 + [1, 2, 3], 1000),
        ],
    )
    @pytest.mark.parametrize("text", [True, False])
    def test_odd_sets_give_distributions(self, x, labels, classes, text):
        z = np.random.default_rng(1).standard_normal((len(x), classes)) if text else None
        found = label_posterior(x, labels, z, num_classes=classes)
        assert found.probabilities.shape == (len(x), classes)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-4)
        np.testing.assert_allclose(found.transition.sum(0), 1, rtol=1e-4)
        assert 0 <= found.noise_rate <= 1
        assert 0 <= found.noise_rate_error <= 0.5
        assert np.isfinite(found.classify(x, z)).all()

    @given(st.integers(2, 8), st.integers(2, 4), st.booleans(), st.booleans(), st.integers(0, 10**6))
    @settings(max_examples=15, deadline=None)
    def test_a_handful_of_samples_gives_distributions(self, n, classes, copies, text, seed):
        random = np.random.default_rng(seed)
        x, labels = random.standard_normal((n, 5)), random.integers(0, classes, n)
        x[1:] = x[1] if copies else x[1:]
        z = 100 * random.standard_normal((n, classes)) if text else None
        found = label_posterior(x, labels, z, num_classes=classes)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-4)
        assert 0 < found.noise_rate_error <= 0.5

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ((np.ones((3, 2)), [0, 1]), "features: expected 2 rows"),
            ((np.ones((2, 2)), [0, 1.5]), "labels: expected integers, found 1.5 at row 1"),
            ((np.ones((2, 2)), [0, 5], np.ones((2, 3))), "labels: expected 0..2 for 3 classes, found 5 at row 1"),
            ((np.full((2, 2), np.nan), [0, 1]), "features: expected finite numbers"),
            ((np.ones((2, 2)), [0, 1], np.ones((3, 2))), "zero_shot_logits: expected 2 rows"),
            ((np.ones((0, 2)), []), "labels: none are given"),
            ((np.ones((2, 0)), [0, 1]), "features: they have no columns"),
            ((np.array([[1e39], [-1e39]]), [0, 1]), "features: they are as large as 1e"),
        ],
    )
    def test_bad_input_is_named(self, arguments, sentence):
        with pytest.raises(InputError, match=sentence):
            label_posterior(*arguments)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"num_classes": 0}, "num_classes: expected 2 or more, found 0"),
            ({"num_classes": 2.0}, "num_classes: expected a whole number, found 2.0"),
            ({"num_classes": 10**7}, r"num_classes: 10,000,000, and .* \(800,000 GB\); expected at most 100,000"),
            ({"seed": 1.5}, "seed: expected a whole number, found 1.5"),
            ({"seed": "a"}, "seed: expected a whole number, found 'a'"),
            ({"seed": None}, "seed: expected a whole number, found None"),
            ({"known": np.ma.array([0, -1], mask=[True, False])}, "known: 1 value is masked"),
        ],
    )
    def test_options_that_make_no_sense_are_named(self, options, sentence):
        with pytest.raises(InputError, match=sentence):
            label_posterior(np.eye(2), [0, 1], **options)

    def test_what_a_mask_hides_is_not_shown(self):
        x, labels = np.ma.array(np.eye(4)), np.ma.array([0, 1, 0, 1])
        label_posterior(x, labels)
        x[2, 1] = labels[3] = np.ma.masked
        with pytest.raises(InputError, match="features: 1 value is masked; leave these samples out"):
            label_posterior(x, labels.data)
        with pytest.raises(InputError, match="labels: 1 value is masked; leave these samples out"):
            label_posterior(x.data, labels)

    def test_numbers_of_other_types_are_the_same_numbers(self):
        x, labels = np.repeat(np.eye(3, 4), 20, axis=0), np.repeat([0, 1, 2], 20)
        expected = label_posterior(x, labels).probabilities
        for other_x, other in (
            (torch.from_numpy(x).bfloat16(), labels),  # ones and zeros are the same in it
            (x, labels.astype(object)),
            (x, pd.Series(labels, dtype=object)),
        ):
            np.testing.assert_array_equal(label_posterior(other_x, other).probabilities, expected)

    @pytest.mark.parametrize("odd", [1.5, True, "a", None, 2**70])
    def test_objects_that_are_no_labels_are_named(self, odd):
        with pytest.raises(InputError, match="labels: expected"):
            label_posterior(np.eye(2), np.array([0, odd], dtype=object))


class TestHardImages:
    @pytest.mark.parametrize(("width", "apart"), [(2, 1.0), (16, 0.2), (16, 0.3)])
    def test_right_labels_of_classes_that_overlap_are_within_the_error(self, width, apart):
        """Nothing can tell them from wrong ones, and the error says so."""
        random = np.random.default_rng(0)
        true = np.arange(1000) % 5
        x = apart * random.standard_normal((5, width))[true] + random.standard_normal((1000, width))
        found = label_posterior(x, true)
        assert found.noise_rate <= 2 * found.noise_rate_error

    def test_mistakes_on_hard_images_alone_are_within_the_error(self):
        """A fifth of the digits, the hardest the likelier, gets what a classifier takes them for."""
        x, true = load_digits(return_X_y=True)
        x = PCA(5, random_state=0).fit_transform(x)
        told = cross_val_predict(LinearDiscriminantAnalysis(), x, true, cv=3, method="predict_proba")
        random = np.random.default_rng(0)
        hard = 1.1 - told[np.arange(len(true)), true]
        told[np.arange(len(true)), true] = 0
        given = true.copy()
        for i in random.choice(len(true), len(true) // 5, replace=False, p=hard / hard.sum()):
            given[i] = random.choice(10, p=(told[i] + 1e-3) / (told[i] + 1e-3).sum())
        found = label_posterior(x, given)
        assert abs(found.noise_rate - (given != true).mean()) < 2 * found.noise_rate_error
        assert roc_auc_score(given != true, -found.label_quality) > 0.85  # what is doubtful is known all the same

    def test_two_errors_reach_the_case_in_which_every_contradiction_is_a_mistake_and_others_are_not_seen(self):
        found = noise_rate.RateEvidence(0.1, (0.1,), contradicted=0.3, anchors=10**9, samples=10**9, can_tell=True)
        rate, error = noise_rate.rate_and_error(found)
        assert rate + 2 * error == pytest.approx(0.1 + 1.4 * 0.2, abs=1e-4)

    def test_wrong_labels_of_classes_that_do_not_are_not_taken_for_hard_images(self):
        x, true, _ = clouds(apart=2.0)
        found = label_posterior(x, np.asarray(dspt.corrupt(true, CLASSES, "symmetric", 0.3)))
        assert found.noise_rate_error < 0.1

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(("n", "classes", "wrong"), [(100, 5, 1), (200, 5, 10), (400, 2, 10)])
    def test_a_few_wrong_labels_of_a_small_clear_set_are_found(self, n, classes, wrong, seed):
        random = np.random.default_rng(seed)
        true = np.arange(n) % classes
        x = 3 * random.standard_normal((classes, 64))[true] + random.standard_normal((n, 64))
        labels = true.copy()
        rows = random.permutation(n)[:wrong]
        labels[rows] = (true[rows] + 1) % classes
        found = label_posterior(x, labels)
        assert found.can_tell
        np.testing.assert_array_equal(np.flatnonzero(found.label_quality < 0.5), np.sort(rows))


class TestWhatSomebodyHasLookedAt:
    def test_is_believed(self):
        x, true, _ = clouds()
        labels = np.asarray(dspt.corrupt(true, CLASSES, "pair", 0.3))
        known = np.where(np.arange(len(true)) % 7 == 0, (true + 1) % CLASSES, -1)  # even where it is wrong
        found = label_posterior(x, labels, known=known)
        told = known >= 0
        np.testing.assert_allclose(found.probabilities[told], np.eye(CLASSES)[known[told]], atol=1e-6)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-4)

    def test_makes_the_others_better_judged(self):
        x, true, _ = clouds(apart=0.8)
        labels = np.asarray(dspt.corrupt(true, CLASSES, "symmetric", 0.4))
        before = label_posterior(x, labels)
        seen = np.argsort(before.label_quality)[: len(true) // 2]  # the suspects, as a person would
        known = np.full(len(true), -1)
        known[seen] = true[seen]
        after = label_posterior(x, labels, known=known)
        left = known < 0
        assert after.noise_rate_error < before.noise_rate_error
        still = (1 - after.label_quality[left]).sum()
        wrong = (labels != true)[left].sum()
        assert abs(still - wrong) <= 2 * after.noise_rate_error * len(true)
        right = [(one.probabilities.argmax(1) == true)[left].mean() for one in (before, after)]
        assert right[1] >= right[0]

    def test_nothing_is_what_it_was(self):
        x, true, z = clouds()
        labels = np.asarray(dspt.corrupt(true, CLASSES, "pair", 0.3))
        one, same = label_posterior(x, labels, z), label_posterior(x, labels, z, known=np.full(len(true), -1))
        np.testing.assert_array_equal(one.probabilities, same.probabilities)

    def test_of_all_is_the_truth(self):
        x, true, _ = clouds()
        labels = np.asarray(dspt.corrupt(true, CLASSES, "pair", 0.3))
        found = label_posterior(x, labels, known=true)
        assert found.noise_rate == pytest.approx((labels != true).mean(), abs=1e-6)
        assert found.noise_rate_error < 0.02

    def test_where_nothing_can_be_told_is_still_believed(self):
        random = np.random.default_rng(0)
        x, labels = random.standard_normal((60, 8)), random.integers(0, 3, 60)
        known = np.where(np.arange(60) < 10, (labels + 1) % 3, -1)
        found = label_posterior(x, labels, num_classes=3, known=known)
        assert (found.probabilities.argmax(1)[:10] == known[:10]).all()

    @pytest.mark.parametrize("known", [[0, 1], [0.5] * 4, [3, -1, -1, -1], [-2, -1, -1, -1]])
    def test_must_be_classes(self, known):
        with pytest.raises(InputError, match=r"known: expected 4 whole numbers, -1 or 0\.\.2"):
            label_posterior(np.eye(4), [0, 1, 2, 0], num_classes=3, known=known)
