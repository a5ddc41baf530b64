"""Significance: the tests as Demšar (JMLR 2006) has them, against his worked example, his formula and scipy."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from dspt.experiments.significance import critical_difference, holm, least, ranks, wilcoxon

# Demšar 2006, Table 6: AUC of C4.5, with m, with cf, with both, on 14 datasets.
AUC = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.97501, 0.975],  # he prints .975 twice, and ranks them 2 and 3
        [0.957, 0.978, 0.946, 0.970],
    ]
)


class TestWilcoxon:
    @pytest.mark.parametrize("n", [1, 2, 5, 12, 40])
    def test_is_scipys_exact_p_where_there_are_no_ties(self, n):
        differences = np.random.RandomState(n).randn(n) + 0.3
        assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)

    @pytest.mark.parametrize("differences", [(1, 1, -1, 2, 2, 3), (1, -1, 2, 2, 3, 3), (-1, 1, 1, 1, 2, -2)])
    def test_with_ties_counts_every_way_to_set_the_signs(self, differences):
        differences = np.array(differences, dtype=float)

        def statistic(x):
            return stats.rankdata(abs(x))[x > 0].sum()

        signs = np.array(np.meshgrid(*[[1, -1]] * 6)).reshape(6, -1).T
        sums = np.array([statistic(abs(differences) * one) for one in signs])
        seen = statistic(differences)
        assert wilcoxon(differences) == pytest.approx(2 * min((sums >= seen).mean(), (sums <= seen).mean()))

    def test_of_many_pairs_is_scipys(self):
        differences = np.random.RandomState(0).randn(80) + 0.2
        assert wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences).pvalue)

    def test_tells_demsars_two_classifiers_apart(self):
        # his section 3.1.3: C4.5 with m is better, T = 12 being less than 21, the critical value at 0.05
        assert wilcoxon(np.round(AUC[:, 1] - AUC[:, 0], 6)) < 0.05

    def test_without_a_difference_is_1(self):
        assert wilcoxon([0.0, 0.0]) == 1.0
        assert wilcoxon([0.0, 2.0, 1.0]) == wilcoxon([2.0, 1.0])

    @pytest.mark.parametrize("n", [1, 3, 6])
    def test_can_be_no_less_than_all_of_one_sign(self, n):
        assert wilcoxon(np.arange(1.0, n + 1)) == pytest.approx(least(n)) == pytest.approx(2 / 2**n)


class TestRanks:
    def test_of_demsars_example_are_his(self):
        found = ranks(AUC)
        # his section 3.2.4, where the worst and the best rank are less than the critical difference apart
        assert found.mean == pytest.approx((3.143, 2.000, 2.893, 1.964), abs=5e-4)
        assert found.distance == pytest.approx(1.25, abs=0.005)
        assert found.groups == [(3, 1, 2, 0)]

    def test_without_ties_friedmans_test_is_his_formula(self):
        scores = np.random.RandomState(1).rand(11, 5) + np.linspace(0, 0.5, 5)
        found, n, k = ranks(scores), 11, 5
        chi = 12 * n / (k * (k + 1)) * (np.square(found.mean).sum() - k * (k + 1) ** 2 / 4)
        assert found.statistic == pytest.approx((n - 1) * chi / (n * (k - 1) - chi))
        assert found.p == pytest.approx(stats.f.sf(found.statistic, k - 1, (k - 1) * (n - 1)))

    def test_quantiles_are_demsars(self):
        # his Table 5(a): q at 0.05 for 2 to 10 classifiers; the critical difference of k(k + 1)/6 datasets is q
        printed = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)
        for k, q in enumerate(printed, 2):
            assert critical_difference(k, 1) / np.sqrt(k * (k + 1) / 6) == pytest.approx(q, abs=1.1e-3)
        assert critical_difference(4, 1, 0.10) / np.sqrt(20 / 6) == pytest.approx(2.291, abs=1e-3)

    def test_alike_everywhere_show_nothing(self):
        found = ranks(np.ones((5, 3)))
        assert found.mean == (2.0, 2.0, 2.0)
        assert found.p == 1.0
        assert found.groups == [(0, 1, 2)]

    def test_the_same_everywhere_show_all(self):
        found = ranks(np.tile([3.0, 2.0, 1.0], (40, 1)))
        assert found.mean == (1.0, 2.0, 3.0)
        assert found.p == pytest.approx(6.0**-39)
        assert found.groups == []  # 1 apart, and 2.343 * sqrt(12 / 240) = 0.52

    @pytest.mark.parametrize(("n", "k"), [(2, 3), (3, 3), (2, 4)])
    def test_where_all_agree_the_p_is_how_often_chance_agrees(self, n, k):
        orders = list(permutations(range(k)))
        agree = [len(set(drawn)) == 1 for drawn in product(orders, repeat=n)]
        assert ranks(np.tile(np.arange(k), (n, 1))).p == pytest.approx(np.mean(agree))

    def test_groups_are_the_largest_that_cannot_be_told_apart(self):
        # mean ranks 1, 2, 3, 4 in 9 datasets, critical difference 1.56: neighbours only
        found = ranks(np.tile([4.0, 3.0, 2.0, 1.0], (9, 1)))
        assert found.groups == [(0, 1), (1, 2), (2, 3)]


def test_holm_corrects_the_least_most():
    # 3 * 0.01, then 2 * 0.02, then 0.03 but no less than the one before
    assert holm([0.02, 0.03, 0.01]) == pytest.approx([0.04, 0.04, 0.03])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
