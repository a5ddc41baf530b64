"""Whether a difference is more than chance: the tests of Demšar (JMLR 2006) for methods over several datasets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
# Up to so many pairs all signs are counted; above, the normal distribution is close enough.
_EXACT = 50


def wilcoxon(differences: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test; pairs without a difference are left out.

    It is exact up to 50 pairs, with ties too, where scipy would fall back on the normal distribution, which for three
    pairs gives a p that no three pairs can have.
    """
    from scipy import stats

    found = np.asarray(differences, dtype=float)
    found = found[found != 0]
    if not len(found):
        return 1.0
    if len(found) > _EXACT:
        return float(stats.wilcoxon(found).pvalue)
    ranks = np.rint(2 * stats.rankdata(abs(found))).astype(int)  # doubled, so that those of ties are whole, too
    chances = np.ones(1)  # of each sum of the ranks that have a plus, each sign being a coin
    for rank in ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    plus = ranks[found > 0].sum()
    return float(min(1.0, 2 * min(chances[: plus + 1].sum(), chances[plus:].sum())))


def least(pairs: int) -> float:
    """Return the least p that so many pairs can give: all differences have one sign."""
    return min(1.0, 2.0 ** (1 - pairs))


def holm(ps: Sequence[float]) -> list[float]:
    """Return each p of several tests, corrected for their number by Holm's rule."""
    corrected, highest = [1.0] * len(ps), 0.0
    for number, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - number) * ps[index]))
        corrected[index] = highest
    return corrected


@dataclass(frozen=True)
class Ranks:
    """The ranks of k methods on N datasets, 1 the best.

    Attributes
    ----------
    mean : tuple of k floats
        The mean rank of each method; methods alike share theirs.
    statistic, p : float
        Friedman's test whether all methods are alike, as Iman and Davenport's F; None for two methods. The p is no
        less than that of N datasets which all have the same ranks.
    distance : float
        Nemenyi's critical difference: mean ranks that are at least so far apart differ at `LEVEL`.
    """

    mean: tuple[float, ...]
    statistic: float | None
    p: float | None
    distance: float

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Return the largest groups of methods, by index and rank, of which no two can be told apart."""
        order = sorted(range(len(self.mean)), key=self.mean.__getitem__)
        groups: list[tuple[int, ...]] = []
        for start, first in enumerate(order):
            group = tuple(i for i in order[start:] if self.mean[i] - self.mean[first] < self.distance)
            if len(group) > 1 and not (groups and set(group) <= set(groups[-1])):
                groups.append(group)
        return groups


def ranks(scores: np.ndarray) -> Ranks:
    """Return the ranks of the columns of (N, k) scores, more being better, and what they show."""
    from scipy import stats

    n, k = scores.shape
    mean = stats.rankdata(-scores, axis=1).mean(axis=0)
    statistic = p = None
    if k > 2:
        chi = float(stats.friedmanchisquare(*scores.T).statistic) if np.ptp(scores, axis=1).any() else 0.0
        room = n * (k - 1) - chi  # nothing, if all datasets have the same ranks
        statistic = (n - 1) * chi / room if room > 1e-9 else np.inf
        p = float(stats.f.sf(statistic, k - 1, (k - 1) * (n - 1)))
        # F is an approximation: where all agree it is infinite, yet n datasets agree by chance once in k!^(n-1) times.
        p = max(p, math.exp((1 - n) * math.lgamma(k + 1)))
    return Ranks(tuple(map(float, mean)), statistic, p, critical_difference(k, n))


def critical_difference(methods: int, datasets: int, level: float = LEVEL) -> float:
    """Return Nemenyi's critical difference of mean ranks."""
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * datasets)))
