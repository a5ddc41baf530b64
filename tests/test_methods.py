"""Methods: each rule on a case worked out by hand, each method to the bit across a resume, each on the embedded set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoints import tiny_clip
from problems import NAMES, features
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.mixture import GaussianMixture
from torch.testing import assert_close

from dspt import learners, losses, methods, train
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.learners import open_text_tower
from dspt.methods import METHODS, joapr, nlprompt
from dspt.methods.method import Epoch
from dspt.methods.nlprompt import transport
from dspt.posterior import label_posterior
from dspt.problem import Problem, Task
from dspt.workflows.train import run

TRAINED = [name for name, method in METHODS.items() if method.trains]


def epoch(logits, labels, zero_shot=None, number=0, memory=None, posterior=None) -> Epoch:
    """Return what a method sees: these logits of the prompt, these given labels."""
    return Epoch(
        number=number,
        batch_size=8,
        labels=torch.tensor(labels),
        logits=lambda: torch.tensor(logits, dtype=torch.float32),
        zero_shot_logits=lambda: torch.tensor(zero_shot, dtype=torch.float32),
        posterior=lambda: posterior,
        stream=partial(Stream, 1, "test", number),
        memory={} if memory is None else memory,
    )


# The defaults of protocol 5, and the loss of `dspt.losses` that each method is.
LOSSES = {
    "coop": ("ce", {}),
    "smoothing": ("smoothing", {"eps": 0.2}),
    "mae": ("mae", {}),
    "gce": ("gce", {"q": 0.7}),
    "nce": ("nce", {"scale": 1.0}),
    "sce": ("sce", {"alpha": 0.1, "beta": 1.0}),
    "nce-rce": ("nce-rce", {"alpha": 1.0, "beta": 1.0}),
    "bootstrap": ("bootstrap", {"b": 0.95}),
    "bootstrap-hard": ("bootstrap-hard", {"b": 0.8}),
    "logitnorm": ("logitnorm", {"t": 1.0}),
    "logitclip": ("logitclip", {"tau": 0.1, "reciprocal": True}),
    "square": ("square", {}),
    "dspt": ("dspt", {}),
}


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("upl", "top", float("nan")),
        ("upl", "top", float("inf")),
        ("joapr", "warmup", float("nan")),
        ("nlprompt", "reg", True),
        ("logitclip", "reciprocal", 0.0),
    ],
)
def test_an_option_of_a_wrong_kind_is_refused(method, option, value):
    with pytest.raises(InputError, match=f"{option} = {value}: expected"):
        methods.make(method, **{option: value})


class TestLossMethods:
    @pytest.mark.parametrize("name", LOSSES)
    def test_are_one_loss_on_every_sample_with_its_given_label(self, name):
        loss, hyper = LOSSES[name]
        (phase,) = methods.make(name).plan(epoch([[0.0, 1, 2]] * 4, [0, 1, 2, 1]))
        assert phase.samples.tolist() == [0, 1, 2, 3]
        assert phase.targets.tolist() == [0, 1, 2, 1]
        logits = 5 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        expected = losses.get(loss)(logits, phase.targets, "none", **hyper)
        assert_close(phase.loss(logits, phase.targets), expected)

    @pytest.mark.parametrize("name", LOSSES)
    def test_have_the_defaults_of_the_protocol(self, name):
        assert METHODS[name].options == ({"s": 1.0} if name == "dspt" else LOSSES[name][1])

    def test_the_outer_scale_is_an_option_of_dspt(self):
        (phase,) = methods.make("dspt", s=3.0).plan(epoch([[0.0, 1]], [0]))
        logits = torch.tensor([[2.0, 1.0]])
        scaled = 3 * logits.softmax(1)
        expected = torch.nn.functional.cross_entropy(scaled, torch.tensor([0])) / 3
        assert_close(phase.loss(logits, torch.tensor([0]))[0], expected)

    @pytest.mark.parametrize(
        ("name", "options"),
        [("gce", {"q": 0.0}), ("logitclip", {"tau": -1.0}), ("dspt", {"s": 0.0})],
    )
    def test_refuse_hyper_parameters_out_of_range_before_any_work(self, name, options):
        with pytest.raises(InputError, match="must be"):
            methods.make(name, **options)


class TestSelect:
    def test_keeps_the_samples_whose_label_is_predicted(self):
        logits = [[3.0, 1, 0], [0, 5, 1], [2, 1, 0], [0, 0, 1]]
        (phase,) = methods.make("select").plan(epoch(logits, [0, 0, 1, 2]))
        assert phase.samples.tolist() == [0, 3]
        assert phase.targets.tolist() == [0, 2]
        assert_close(
            phase.loss(torch.tensor([[1.0, 0, 0]]), torch.tensor([0])),
            -torch.tensor([[1.0, 0, 0]]).log_softmax(1)[:, 0],
        )

    def test_learns_nothing_where_nothing_agrees(self):
        (phase,) = methods.make("select").plan(epoch([[1.0, 0]], [1]))
        assert len(phase.samples) == 0


class TestUPL:
    zero_shot = ((9.0, 0), (1, 0), (5, 0), (0, 2), (0, 8), (0, 1))

    def test_learns_from_zero_shot_predictions_and_not_from_the_given_labels(self):
        (phase,) = methods.make("upl").plan(epoch([], [1] * 6, self.zero_shot))
        assert phase.targets.tolist() == [0, 0, 0, 1, 1, 1]
        assert phase.samples.tolist() == [0, 1, 2, 3, 4, 5]

    def test_may_keep_the_surest_of_each_class(self):
        (phase,) = methods.make("upl", top=2.0).plan(epoch([], [1] * 6, self.zero_shot))
        assert phase.samples.tolist() == [0, 2, 3, 4]
        assert phase.targets.tolist() == [0, 0, 1, 1]

    def test_keeps_what_the_published_rule_keeps(self):
        """All by their greatest probability, then the first two of each predicted class.

        Class 0 is predicted three times, class 1 once, class 2 never: it has nothing, though the fifth is almost its.
        """
        p = [[0.5, 0.3, 0.2], [0.9, 0.05, 0.05], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.34, 0.33, 0.33]]
        ranked = sorted(range(5), key=lambda i: -max(p[i]))
        assert ranked == [1, 3, 2, 0, 4]
        (phase,) = methods.make("upl", top=2.0).plan(epoch([], [2] * 5, np.log(p)))
        assert dict(zip(phase.samples.tolist(), phase.targets.tolist(), strict=True)) == {1: 0, 2: 0, 3: 1}

    def test_labels_stay_what_they_were_in_the_first_epoch(self):
        memory: dict[str, torch.Tensor] = {}
        methods.make("upl").plan(epoch([], [0] * 6, self.zero_shot, memory=memory))
        turned = [row[::-1] for row in self.zero_shot]
        (phase,) = methods.make("upl").plan(epoch([], [0] * 6, turned, 1, memory))
        assert phase.targets.tolist() == [0, 0, 0, 1, 1, 1]

    def test_the_robust_one_has_generalised_cross_entropy_of_one_half(self):
        (phase,) = methods.make("robust-upl").plan(epoch([], [1] * 6, self.zero_shot))
        logits = torch.tensor([[2.0, 1.0]])
        p = logits.softmax(1)[:, 0]
        assert_close(phase.loss(logits, torch.tensor([0])), (1 - p.sqrt()) / 0.5)
        with pytest.raises(InputError, match="q must be"):
            methods.make("robust-upl", q=2.0)
        with pytest.raises(InputError, match=r"top = 1\.5"):
            methods.make("upl", top=1.5)


class TestNLPrompt:
    def test_the_plan_has_uniform_marginals_and_tends_to_the_exact_one(self):
        import ot

        rng = np.random.default_rng(0)
        cost = torch.from_numpy(rng.uniform(0, 1, (30, 5)))
        plan = transport(cost, 0.01)
        assert_close(plan.sum(1), torch.full((30,), 1 / 30, dtype=torch.float64), atol=1e-6, rtol=0)
        assert_close(plan.sum(0), torch.full((5,), 1 / 5, dtype=torch.float64), atol=1e-6, rtol=0)
        exact = ot.emd(np.full(30, 1 / 30), np.full(5, 1 / 5), cost.numpy())
        assert (plan * cost).sum() < (exact * cost.numpy()).sum() + 0.01
        assert (plan.argmax(1).numpy() == exact.argmax(1)).mean() > 0.9

    @pytest.mark.parametrize("reg", [0.01, 0.02])
    def test_the_plan_is_that_of_the_log_domain(self, reg):
        import ot

        logits = 8 * torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
        cost = -logits.softmax(1).log_softmax(1)
        assert float((cost - cost.amin(1, keepdim=True)).max()) > 0.9
        expected = ot.sinkhorn(
            np.full(60, 1 / 60),
            np.full(5, 1 / 5),
            cost.double().numpy(),
            reg,
            method="sinkhorn_log",
            numItermax=1000,
            stopThr=1e-6,
            warn=False,
        )
        assert_close(transport(cost, reg).numpy(), expected, atol=1e-5, rtol=0)

    def test_a_small_regulariser_does_not_underflow(self):
        cost = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
        plan = transport(cost, 0.003)
        assert float((cost / 0.003).max()) > nlprompt.SMALLEST  # so this is the log domain
        assert_close(plan.sum(1), torch.full((50,), 1 / 50, dtype=torch.float64), atol=1e-5, rtol=0)
        assert_close(plan.sum(0), torch.full((4,), 1 / 4, dtype=torch.float64), atol=1e-5, rtol=0)

    def test_clean_samples_come_first_with_cross_entropy_then_the_rest_with_mae(self):
        # Two samples a class, all surely predicted: the plan is the prediction.
        logits = [[9.0, 0], [9, 0], [0, 9], [0, 9]]
        clean, rest = methods.make("nlprompt").plan(epoch(logits, [0, 1, 1, 0]))
        assert clean.samples.tolist() == [0, 2]
        assert clean.targets.tolist() == [0, 1]
        assert rest.samples.tolist() == [1, 3]
        assert rest.targets.tolist() == [1, 0]
        some = torch.tensor([[1.0, 0.0]])
        p = some.softmax(1)[:, 0]
        assert_close(clean.loss(some, torch.tensor([0])), -p.log())
        assert_close(rest.loss(some, torch.tensor([0])), 1 - p)

    def test_the_uniform_class_marginal_moves_samples_of_a_crowded_class(self):
        # All four are predicted class 0; half of the mass has to go to class 1: the least sure ones.
        logits = [[9.0, 0], [9, 0], [1.0, 0], [1.0, 0]]
        clean, _ = methods.make("nlprompt").plan(epoch(logits, [0, 0, 0, 0]))
        assert clean.samples.tolist() == [0, 1]

    def test_the_cost_is_of_two_softmaxes(self):
        """Three samples, a class each: the plan has the greatest sum of p, not the greatest product."""
        p = np.array([[0.8, 0.19, 0.01], [0.45, 0.1, 0.45], [0.01, 0.01, 0.98]])
        places = {places: p[range(3), places] for places in permutations(range(3))}
        assert max(places, key=lambda of: places[of].sum()) == (0, 1, 2)  # -log softmax(p) is -p and a constant a row
        assert max(places, key=lambda of: places[of].prod()) == (1, 0, 2)  # what -log p would choose
        clean, rest = methods.make("nlprompt").plan(epoch(np.log(p), [0, 1, 2]))
        assert clean.samples.tolist() == [0, 1, 2]
        assert len(rest.samples) == 0

    def test_as_published_a_short_batch_is_not_looked_at(self):
        logits = [[9.0, 0]] * 10 + [[0, 9.0]] * 10  # in batches of eight, four are left over
        labels = [0] * 10 + [1] * 10
        clean, rest = methods.make("nlprompt").plan(epoch(logits, labels))
        assert (len(clean.samples), len(rest.samples)) == (20, 0)
        left = []
        for number in range(2):
            clean, rest = methods.make("nlprompt", published=True).plan(epoch(logits, labels, number=number))
            assert sorted([*clean.samples, *rest.samples]) == list(range(20))
            assert len(rest.samples) >= 4
            left.append(set(rest.samples))
        assert left[0] != left[1]
        few = methods.make("nlprompt", published=True).plan(epoch(logits[8:12], labels[8:12]))
        assert [len(phase.samples) for phase in few] == [4, 0]

    def test_as_published_all_get_cross_entropy_where_nothing_is_clean(self):
        logits, labels = [[9.0, 0], [9, 0], [0, 9], [0, 9]], [1, 1, 0, 0]
        some = torch.tensor([[1.0, 0.0]])
        clean, rest = methods.make("nlprompt").plan(epoch(logits, labels))
        assert (len(clean.samples), len(rest.samples)) == (0, 4)
        (phase,) = methods.make("nlprompt", published=True).plan(epoch(logits, labels))
        assert phase.samples.tolist() == [0, 1, 2, 3]
        assert_close(phase.loss(some, torch.tensor([0])), -some.log_softmax(1)[:, 0])


class TestDSPTAuto:
    def posterior(self):
        random = np.random.default_rng(0)
        true = np.arange(90) % 3
        x = 3 * random.standard_normal((3, 8))[true] + random.standard_normal((90, 8))
        return true, label_posterior(x, np.where(np.arange(90) < 18, (true + 1) % 3, true))

    def test_learns_each_sample_as_what_its_label_most_probably_ought_to_be(self):
        true, found = self.posterior()
        (phase,) = methods.make("dspt-auto").plan(epoch([], found.labels.tolist(), posterior=found))
        assert phase.samples.tolist() == list(range(90))
        assert phase.targets.argmax(1).tolist() == true.tolist()
        assert_close(phase.targets, torch.from_numpy(found.probabilities))

    def test_believes_labels_as_far_as_they_cannot_be_told_from_clean_ones(self):
        _, found = self.posterior()
        vague = replace(found, noise_rate=0.02, noise_rate_error=0.08)
        (phase,) = methods.make("dspt-auto").plan(epoch([], found.labels.tolist(), posterior=vague))
        given = torch.eye(3)[torch.from_numpy(found.labels)]
        assert_close(phase.targets, 0.25 * torch.from_numpy(found.probabilities) + 0.75 * given)

    def test_is_dspt_where_nothing_can_be_told(self):
        random = np.random.default_rng(0)
        labels = random.integers(0, 3, 60)
        nothing = label_posterior(random.standard_normal((60, 4)), labels)
        assert not nothing.can_tell
        (phase,) = methods.make("dspt-auto").plan(epoch([], labels.tolist(), posterior=nothing))
        assert phase.targets.tolist() == labels.tolist()
        logits = torch.tensor([[2.0, 1.0, 0.0]])
        assert_close(phase.loss(logits, torch.tensor([1])), losses.get("dspt")(logits, torch.tensor([1]), "none"))

    def test_its_learning_rate_is_left_open_unless_labels_cannot_be_judged(self):
        _, found = self.posterior()
        auto = methods.make("dspt-auto")
        assert auto.lr_multiples(epoch([], found.labels.tolist(), posterior=found)) == (1.0, 3.0, 10.0, 30.0)
        random = np.random.default_rng(0)
        labels = random.integers(0, 3, 60)
        nothing = label_posterior(random.standard_normal((60, 4)), labels)
        assert auto.lr_multiples(epoch([], labels.tolist(), posterior=nothing)) == (1.0,)

    def test_another_learning_rate_is_told(self):
        auto, found = methods.make("dspt-auto"), {"noise_rate": 0.2, "noise_rate_error": 0.01}
        assert auto.words({**found, "lr_multiple": 1.0}) == "estimated share of wrong labels: 20.0 ± 1.0 %"
        assert auto.words({**found, "lr_multiple": 30.0}).endswith(
            "; learning rate: 30 times the usual one, which is too low here"
        )

    def test_its_loss_is_the_cross_entropy_of_a_distribution(self):
        _, found = self.posterior()
        (phase,) = methods.make("dspt-auto").plan(epoch([], found.labels.tolist(), posterior=found))
        logits, targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.eye(3)[[0, 1, 2, 0]]
        targets = 0.7 * targets + 0.1
        assert_close(phase.loss(logits, targets), F.cross_entropy(logits, targets, reduction="none"))

    def test_what_it_found_about_the_labels_is_kept_with_the_run(self):
        _, found = self.posterior()
        memory: dict[str, torch.Tensor] = {}
        methods.make("dspt-auto").plan(epoch([], found.labels.tolist(), posterior=found, memory=memory))
        assert float(memory["noise_rate"]) == pytest.approx(0.2, abs=0.02)
        assert abs(float(memory["noise_rate"]) - 0.2) <= 2 * float(memory["noise_rate_error"])


class TestJoAPR:
    def test_warms_up_on_given_labels_with_a_penalty_on_confidence(self):
        (phase,) = methods.make("joapr", warmup=2.0, a1=0.3).plan(epoch([], [0, 1], number=1))
        assert phase.targets.tolist() == [0, 1]
        logits = torch.tensor([[2.0, 0.0]])
        p = logits.softmax(1)[0]
        expected = -p[0].log() + 0.3 * (p * p.log()).sum()
        assert_close(phase.loss(logits, torch.tensor([0]))[0], expected)

    def test_by_default_half_of_the_entropy_is_taken_off_in_the_warm_up(self):
        """a1 = 0.5: an even prediction of two classes costs log 2 and has an entropy of log 2."""
        (phase,) = methods.make("joapr").plan(epoch([], [0, 1]))
        assert_close(phase.loss(torch.zeros(1, 2), torch.tensor([0]))[0], torch.tensor(np.log(2) / 2).float())

    def test_by_default_half_of_the_divergence_from_even_classes_is_added(self):
        """a2 = 0.5: classes predicted with 1/4 and 3/4 diverge by log(4/3) / 2, and the label of 3/4 costs log(4/3)."""
        _, phase = self.planned(1)
        found = phase.loss(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.0, 1.0]]))
        assert_close(found[0], torch.tensor(1.25 * np.log(4 / 3)).float())

    def test_at_first_a_sample_counts_as_noisy_that_is_as_likely_so_as_clean(self, monkeypatch):
        """The first threshold is 0.5: of ten samples, those of 0.1, 0.4 and 0.5 are not above it, so 0.3 are noisy."""
        likely = np.array([0.1, 0.4, 0.5, 0.51, 0.55, 0.7, 0.8, 0.9, 0.95, 1.0])
        mixture = SimpleNamespace(means_=np.array([[0.0], [1.0]]), covariances_=np.full((2, 1, 1), 0.01))
        mixture.fit = lambda values: mixture
        mixture.predict_proba = lambda values: np.c_[likely, 1 - likely]
        monkeypatch.setattr("sklearn.mixture.GaussianMixture", lambda *_, **__: mixture)
        memory: dict[str, torch.Tensor] = {}
        methods.make("joapr").plan(epoch(np.eye(10)[:, :2], [0] * 10, number=1, memory=memory))
        assert float(memory["noise_rate"]) == pytest.approx(0.3)

    def test_mixup_hardly_mixes(self):
        """Beta(a, a) of a small a has a density of about a / 2 over log-odds: a = 0.001 has 2 % of it in -20..20."""
        planned = joapr._paired(np.ones(40_000, bool), epoch([], [0] * 40_000))
        shares = np.array([batch.share for batch in planned])
        assert len(shares) == 5_000
        mixed = (shares < 1 / (1 + np.exp(-20))).mean()
        assert mixed == pytest.approx(0.02, abs=4 * np.sqrt(0.02 / 5_000))

    def test_one_sample_is_clean(self):
        clean, probability, threshold = joapr.partition(torch.tensor([0.3]), 0.5, seed=0)
        assert clean.tolist() == [True]
        assert probability.tolist() == [1.0]
        assert threshold == 0

    def test_parts_two_heaps_of_losses(self):
        rng = np.random.default_rng(0)
        loss = torch.from_numpy(np.r_[rng.normal(0.1, 0.03, 300), rng.normal(0.8, 0.1, 100)])
        clean, probability, threshold = joapr.partition(loss, 0.5, seed=0)
        assert clean.tolist() == [True] * 300 + [False] * 100
        assert probability[:300].min() > 0.99
        assert probability[300:].max() < 0.01
        assert threshold == 0.25  # the share of the second heap

    def test_the_crossing_is_where_half_of_the_lower_density_is_the_higher_with_variances_for_deviations(self):
        x = joapr._crossing(np.array([0.2, 0.7]), np.array([0.005, 0.02]))
        assert 0.2 < x < 0.7
        assert norm.logpdf(x, 0.2, 0.005) - np.log(2) == pytest.approx(norm.logpdf(x, 0.7, 0.02), rel=1e-4)

    def test_there_may_be_no_crossing(self):
        assert np.isnan(joapr._crossing(np.array([0.3, 0.3]), np.array([0.01, 0.015])))

    @pytest.mark.parametrize(("threshold", "deviations", "matters"), [(0.2, (0.1, 0.15), 0), (0.9, (0.14, 0.1), 1)])
    def test_clean_is_below_the_crossing_or_above_the_threshold_estimated_anew(self, threshold, deviations, matters):
        """Against sklearn and a search for the crossing, where the old threshold, or no crossing, chooses others."""
        rng = np.random.default_rng(1)
        loss = np.r_[rng.normal(0.3, deviations[0], 150), rng.normal(0.6, deviations[1], 250)]
        mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(loss[:, None])
        low, high = mixture.means_[:, 0].argsort()
        (m1, m2), (v1, v2) = mixture.means_[[low, high], 0], mixture.covariances_[[low, high], 0, 0]
        crossing = brentq(lambda x: norm.logpdf(x, m1, v1) - np.log(2) - norm.logpdf(x, m2, v2), m1, m2)
        likely = mixture.predict_proba(loss[:, None])[:, low]
        rate = (likely <= threshold).mean()
        expected = (loss < crossing) | (likely > rate)
        others = ((loss < crossing) | (likely > threshold), likely > rate)
        assert (expected != others[matters]).any()
        clean, _, found = joapr.partition(torch.from_numpy(loss), threshold, seed=0)
        assert found == pytest.approx(rate)
        assert clean.tolist() == expected.tolist()

    def test_labels_are_refined_by_their_trust_and_sharpened(self):
        p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
        found = joapr.refined(p, torch.tensor([0, 0]), torch.tensor([0.8, 0.0]))
        mixed = torch.tensor([[0.8 + 0.1, 0.06, 0.04], [0.1, 0.6, 0.3]])
        assert_close(found, mixed**2 / (mixed**2).sum(1, keepdim=True))

    def test_losses_are_scaled_and_averaged_over_five_epochs(self):
        memory: dict[str, torch.Tensor] = {}
        for number in range(7):
            found = joapr._averaged(torch.tensor([float(number), 1.0]), memory)
        assert_close(found, torch.tensor([(2 + 3 + 4 + 5 + 6) / 5, 1.0]))
        p = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])
        scaled = joapr._scaled_loss(p.log(), torch.tensor([0, 0, 0]))
        # All have -log p_0; the first and the last have one entropy, which is left out of the difference between them.
        entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
        middle = (2 * np.log(2) + np.log(0.9) - entropy) / np.log(9)
        assert_close(scaled, torch.tensor([0.0, middle, 1.0], dtype=torch.float32))

    def planned(self, number, memory=None):
        """Return the phase of an epoch for two heaps, 30 samples of label 0 sure of it and 10 sure of another."""
        logits = np.tile([4.0, 0, 0], (40, 1)) + np.random.default_rng(0).normal(size=(40, 3)) / 10
        logits[30:] = logits[30:, [1, 0, 2]]
        seen = epoch(logits, [0] * 40, number=number, memory={} if memory is None else memory)
        (phase,) = methods.make("joapr").plan(seen)
        return torch.tensor(logits).softmax(1), phase

    def test_targets_come_from_the_logits_of_the_step_and_the_trust_of_the_epochs_start(self):
        places, logits = torch.tensor([0, 3, 35]), torch.tensor([[1.0, 2, 0], [0, 0, 1], [2, 0, 1]])
        p = logits.softmax(1)
        for number, trusted in ((1, False), (2, True)):
            before, phase = self.planned(number)
            # Far apart, so that clean ones surely are: from the second epoch after the warm-up, p_y counts, too.
            w = before[places, 0].float() if trusted else torch.ones(3)
            w = (w * torch.tensor([1.0, 1, 0]))[:, None]
            mixed = (w * torch.tensor([1.0, 0, 0]) + (1 - w) * p) ** 2
            assert_close(phase.targets(places, logits), mixed / mixed.sum(1, keepdim=True), rtol=1e-3, atol=1e-4)

    def test_a_sample_that_is_not_clean_has_no_share_of_its_label_however_likely_it_is(self):
        logits = np.c_[np.linspace(3, -3, 60), np.zeros(60)]
        loss = joapr._scaled_loss(torch.tensor(logits, dtype=torch.float32), torch.zeros(60, dtype=torch.long))
        seen = epoch(logits, [0] * 60, number=1)
        clean, probability, _ = joapr.partition(loss, 0.5, joapr._seed(seen))
        doubtful = (~clean & (probability > 0.05)).nonzero()[:, 0]
        assert len(doubtful) > 0
        (phase,) = methods.make("joapr").plan(seen)
        p = torch.full((len(doubtful), 2), 0.5)
        assert_close(phase.targets(doubtful, p.log()), p)

    def test_a_step_has_a_batch_of_clean_samples_and_one_of_the_others(self):
        memory: dict[str, torch.Tensor] = {}
        _, phase = self.planned(1, memory)
        assert float(memory["noise_rate"]) == 0.25
        assert len(phase.batches) == 3  # 30 // 8 of the larger part
        clean, other = (np.array([batch.places[part] for batch in phase.batches]) for part in (slice(8), slice(8, 16)))
        assert len(set(clean.ravel())) == 24
        assert clean.max() < 30
        assert other.min() >= 30
        # One pass over the ten others is one batch, so each step has a shuffle of its own.
        assert all(len(set(places)) == 8 for places in other)
        assert len({tuple(places) for places in other}) == 3
        for batch in phase.batches:
            assert sorted(batch.partners) == list(range(16))
            assert 0.5 <= batch.share <= 1

    def test_without_others_a_step_has_clean_samples_alone(self):
        planned = joapr._paired(np.ones(20, bool), epoch([], [0] * 20))
        assert [len(batch.places) for batch in planned] == [8, 8]

    def test_the_loss_has_a_term_for_classes_that_are_never_predicted(self):
        logits, targets = torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0], [1, 0]])
        found = joapr._balanced(logits, targets, weight=0.7)
        mean = logits.softmax(1).mean(0)
        divergence = (0.5 * (0.5 / mean).log()).sum()
        assert_close(found, -logits.log_softmax(1)[:, 0] + 0.7 * divergence)


class TestAll:
    def test_names_are_those_of_the_command_line(self):
        names = (
            "zero-shot coop smoothing mae gce nce sce nce-rce bootstrap bootstrap-hard logitnorm "
            "logitclip square select nlprompt upl robust-upl joapr dspt dspt-auto"
        )
        assert set(names.split()) <= set(METHODS)

    @pytest.mark.parametrize("name", METHODS)
    def test_say_what_they_are(self, name):
        method = METHODS[name]
        assert method.formula
        assert method.source
        assert method.what

    @pytest.mark.parametrize("name", TRAINED)
    def test_end_at_the_same_bits_across_an_interruption(self, name, tmp_path):
        config = Config(model=str(tiny_clip(tmp_path, text_only=True)), method=name, epochs=4)
        tower = open_text_tower(config)
        (x, _), y = features(80), np.random.default_rng(0).integers(0, 4, 80)
        learner = learners.make(NAMES, config, tower)
        task = Task.of(Problem(tuple(NAMES), x, y), config, learner)
        states = [state for state, _ in train.fit(task)]
        again = [state for state, _ in train.fit(task, states[1])]
        assert len(states) == 4
        assert len(again) == 2
        assert torch.equal(states[-1].parameters["context"], again[-1].parameters["context"])

    @pytest.mark.parametrize("name", METHODS)
    def test_run_on_the_embedded_set(self, name, tmp_path_factory):
        cache = tmp_path_factory.getbasetemp() / "embedded-cache"
        config = Config(method=name, epochs=3)
        folder = tmp_path_factory.mktemp("runs") / name
        result = run("embedded", config, "sym:0.4", folder, cache=cache)
        assert 0 < result.accuracy <= 100
        assert result.method == name

    def test_a_mixed_sample_is_between_its_partners(self, tmp_path):
        x = torch.eye(3)
        config = Config(model=str(tiny_clip(tmp_path, text_only=True)))
        found = learners.make(NAMES, config).blend(x[[1, 0]], x[[2, 1]], 0.6)
        expected = torch.tensor([[0.0, 0.6, 0.4], [0.6, 0.4, 0]])
        assert_close(found, torch.nn.functional.normalize(expected, dim=1))

    def test_an_option_that_is_no_number_is_refused(self):
        with pytest.raises(InputError, match="option q = 'high': expected a number"):
            methods.make("gce", q="high")
