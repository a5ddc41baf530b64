"""Methods, or folders of runs, beside each other: which is ahead, and whether that is more than chance.

Runs are paired: the same data, noise and seed, and so the same wrong labels. A test takes one difference for each
dataset, for each setting (a dataset with a noise), or for each run. The fewer, the less they have in common: settings
of one dataset share its images, runs of one setting its classes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dspt.experiments import catalogue, collect, terminal
from dspt.experiments.catalogue import EXPERIMENTS, Condition, Experiment, Variant
from dspt.experiments.collect import DECIMALS, TableRun, Tell, seeds_of
from dspt.experiments.significance import LEVEL, Ranks, holm, least, ranks, wilcoxon
from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean, plain, wrapped
from dspt.internal.rounding import counted, figure
from dspt.runs import made_with

OVER = ("datasets", "settings", "runs")


@dataclass(frozen=True, order=True)
class Place:
    """Where runs meet: what two of them have in common that are compared."""

    dataset: str
    noise: str
    method: str  # "" where it is the methods that are compared
    seed: int


@dataclass(frozen=True)
class Comparison:
    """The accuracies of several sides in the places where all of them have a run.

    Attributes
    ----------
    names : tuple of k str
        The sides: labels of methods, or folders.
    places : tuple of P Place
        Sorted.
    accuracy : array of shape (P, k)
        In percent.
    alone : dict of str to int
        How many runs of a side have no partner.
    differing : tuple of str
        In what settings folders differ: "learner prompt, prototypes".
    made_with : str
        The text tower, what was learnt, epochs, seeds.
    """

    names: tuple[str, ...]
    places: tuple[Place, ...]
    accuracy: np.ndarray
    alone: dict[str, int] = field(default_factory=dict)
    differing: tuple[str, ...] = ()
    made_with: str = ""

    def over(self, what: str) -> tuple[list[str], np.ndarray]:
        """Return what a test counts as one, with its accuracies (N, k): the means over all runs that belong to it."""
        groups: dict[str, list[int]] = {}
        for row, place in enumerate(self.places):
            whole = (place.dataset, place.noise, place.method, f"seed {place.seed}")
            part = whole[: {"datasets": 1, "settings": 3}.get(what, 4)]
            groups.setdefault(" ".join(filter(None, part)), []).append(row)
        means = np.array([self.accuracy[rows].mean(axis=0) for rows in groups.values()])
        return list(groups), _rounded(means)

    def p(self, what: str, first: int = 0, second: int = 1) -> tuple[int, float]:
        """Return how many of `what` two sides differ in, and the p of Wilcoxon's test over them."""
        scores = self.over(what)[1]
        differences = _rounded(scores[:, first] - scores[:, second])
        return int(np.count_nonzero(differences)), wilcoxon(differences)

    def ranks(self, what: str) -> Ranks:
        """Return the ranks of the sides over `what`."""
        labels, scores = self.over(what)
        if len(labels) < 2:
            raise InputError(f"compare: ranks need two {what} or more, there is {len(labels)}", "give another `over`")
        return ranks(scores)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return accuracies without what sums leave of them, so that what is equal is a tie."""
    return np.round(values, 6)


def compare(
    names: Sequence[str],
    folder: Path,
    experiment: str | None = None,
    only: str | None = None,
    where: str | None = None,
    tell: Tell = lambda why: None,
) -> Comparison:
    """Return a comparison of methods, by the runs below a folder, or of folders of runs.

    Parameters
    ----------
    names : sequence of str
        Two methods or more, by name or label, or two folders or more; none is the methods that have the most runs in
        common.
    folder : Path
        Where the runs of methods are.
    experiment : str, optional
        Take the runs of this table or figure alone.
    only : str, optional
        A part of the runs: "dataset=pets,noise=sym:0.4".
    where : str, optional
        Take runs with these settings alone, as `collect.having` takes them.
    tell : callable
        Hears which folders are not used, and why.
    """
    if len(set(names)) == 1:
        raise InputError(f"compare {names[0]}: expected two methods or two folders, or more")

    def runs_in(place: Path) -> list[TableRun]:
        runs = collect.find_runs(place, tell)
        runs = collect.having(runs, where) if where else runs
        if experiment:
            runs = collect.own_runs(catalogue.get(experiment), runs, tell)
        return _part(runs, only) if only and runs else runs

    if names and all(Path(name).is_dir() for name in names):
        folders = {name: runs_in(Path(name)) for name in names}
        for name, runs in folders.items():
            collect.check_alike(name, runs)
        return _paired(folders)
    sides: dict[str, list[TableRun]] = {}
    for run in runs_in(folder):
        sides.setdefault(_label(run), []).append(run)
    if names:
        labels = {name: _named(name, sides) for name in names}
        if len(set(labels.values())) < len(names):
            raise InputError(f"compare {', '.join(names)}: two of them are the same method; name another")
        sides = {label: sides[label] for label in labels.values()}
    collect.check_alike("compare", [run for side in sides.values() for run in side])
    places = {label: {(run.dataset, run.noise, run.seed) for run in side} for label, side in sides.items()}
    chosen = list(sides) if names else _most_in_common(places)
    found = _paired({label: side for label, side in sides.items() if label in chosen})
    left_out = {label: len(places[label]) for label in sides if label not in chosen}
    return replace(found, alone={**found.alone, **left_out})


def _most_in_common(places: dict[str, set[tuple[str, str, int]]]) -> list[str]:
    """Return the sides that together have the most runs in places where all of them have one."""
    by_size = sorted(places, key=lambda label: -len(places[label]))
    groups = [by_size[:size] for size in range(2, len(by_size) + 1)]
    in_common = [len(group) * len(set.intersection(*(places[label] for label in group))) for group in groups]
    return groups[in_common.index(max(in_common))] if any(in_common) else by_size


def _part(runs: Sequence[TableRun], only: str) -> list[TableRun]:
    """Return the runs that fit "dataset=pets,noise=sym:0.4"."""
    conditions = tuple(dict.fromkeys(Condition(run.dataset, run.noise) for run in runs))
    variants = tuple(dict.fromkeys(Variant(_label(run), run.method, run.options) for run in runs))
    seeds = tuple(sorted({run.seed for run in runs}))
    part = catalogue.narrowed(Experiment("runs", "table", "", conditions, variants, seeds), only)
    labels = {variant.label for variant in part.variants}
    return [
        run
        for run in runs
        if Condition(run.dataset, run.noise) in part.conditions and _label(run) in labels and run.seed in part.seeds
    ]


def _label(run: TableRun) -> str:
    """Return the method of a run as tables head it, with its options if a table does not name them."""
    if not run.options:
        labels = [v.label for e in EXPERIMENTS.values() for v in e.variants if v == Variant(v.label, run.method)]
        return labels[0] if labels else run.method
    return " ".join([run.method, *run.options])


def _named(name: str, sides: dict[str, list[TableRun]]) -> str:
    """Return the label of the side that a user calls `name`."""
    found = [label for label in sides if plain(label) == plain(name)]
    found = found or [label for label, runs in sides.items() if plain(runs[0].method) == plain(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"compare {name}: it may be {', '.join(found)}; name one of them")
    there = f"whose methods are {', '.join(sides)}" if sides else "of which there are none"
    hint = did_you_mean(name, dict.fromkeys([*(runs[0].method for runs in sides.values()), *map(str.lower, sides)]))
    raise InputError(f"compare {name}: neither a folder nor a method of the runs{hint}, {there}")


def _paired(sides: dict[str, list[TableRun]]) -> Comparison:
    """Return the comparison of the sides in the places where all have a run."""
    # What is compared is the methods if each side has one, else what was done with them.
    one_each = all(len({_label(run) for run in runs}) == 1 for runs in sides.values())
    accuracies = []
    for runs in sides.values():
        here = {Place(r.dataset, r.noise, "" if one_each else _label(r), r.seed): r.accuracy for r in runs}
        accuracies.append(here)
    common = sorted(set.intersection(*map(set, accuracies))) if accuracies else []
    if len(sides) < 2 or not common:
        counts = ", ".join(f"{name} has {len(runs)}" for name, runs in sides.items())
        raise InputError(f"compare: no two runs of the same data, noise and seed; {counts or 'there are no runs'}")
    values = _rounded(np.array([[side[place] for side in accuracies] for place in common]))
    alone = {name: len(side) - len(common) for name, side in zip(sides, accuracies, strict=True)}
    seeds = seeds_of(sorted({place.seed for place in common}))
    made = f"{made_with((run.settings, run.text_tower) for runs in sides.values() for run in runs)}; {seeds}"
    lonely = {name: count for name, count in alone.items() if count}
    return Comparison(tuple(sides), tuple(common), values, lonely, _differing(sides), made)


def _differing(sides: dict[str, list[TableRun]]) -> tuple[str, ...]:
    """Return the settings in which the sides are not alike, each with the value of each side."""
    settings = [runs[0].settings for runs in sides.values()]
    names = sorted({name for one in settings for name in one} - collect.MAY_DIFFER)
    found = []
    for name in names:
        values = [str(one.get(name)) for one in settings]
        if len(set(values)) > 1:
            found.append(f"{name.replace('_', ' ')} {', '.join(values)}")
    return tuple(found)


def usual(comparison: Comparison) -> str:
    """Return what tests count as one if nothing is asked for: datasets, if there are several."""
    return next((what for what in OVER if len(comparison.over(what)[0]) > 1), OVER[-1])


def as_json(comparison: Comparison, over: str) -> dict[str, Any]:
    """Return a comparison as JSON holds it."""
    found: dict[str, Any] = {
        "names": list(comparison.names),
        "pairs": len(comparison.places),
        "alone": comparison.alone,
        "differing": list(comparison.differing),
        "over": over,
        "rows": [
            {"name": name, "accuracy": dict(zip(comparison.names, map(float, row), strict=True))}
            for name, row in zip(*comparison.over(over), strict=True)
        ],
        "wilcoxon": [
            {"over": what, "first": comparison.names[0], "second": other, "differing": n, "p": p}
            for what in OVER
            for index, other in enumerate(comparison.names[1:], 1)
            for n, p in [comparison.p(what, 0, index)]
        ],
    }
    if len(comparison.over(over)[0]) > 1:
        made = comparison.ranks(over)
        found["ranks"] = {
            "mean": dict(zip(comparison.names, made.mean, strict=True)),
            "friedman_f": made.statistic if made.statistic is None or np.isfinite(made.statistic) else None,
            "friedman_p": made.p,
            "critical_difference": made.distance,
            "groups": [[comparison.names[i] for i in group] for group in made.groups],
        }
    return found


def in_words(comparison: Comparison, over: str, width: int) -> list[str]:
    """Return a comparison as lines for a terminal of this width: of two sides as differences, of more as ranks.

    Parameters
    ----------
    comparison : Comparison
        Of two sides or more.
    over : {"datasets", "settings", "runs"}
        What the ranks count as one.
    width : int
        Columns of the terminal.
    """
    names, places = comparison.names, comparison.places
    count = len({place.dataset for place in places})
    where = places[0].dataset if count == 1 else f"{count} datasets"
    heading = f"{' against '.join(names)}" if len(names) == 2 else f"{len(names)} methods"
    lines = wrapped(
        f"{heading}, on {where}: {counted(len(places), 'run')} of each, paired by data, noise and seed", width
    )
    lines += ["", *(_pair if len(names) == 2 else _several)(comparison, over, width)]
    notes = [f"Not alike: {setting}." for setting in comparison.differing]
    notes += [f"{name}: {counted(n, 'run')} without a partner, not counted." for name, n in comparison.alone.items()]
    if count > 1:
        notes.append(
            "Settings and runs of one dataset share its images: tests over them speak of these datasets, tests over "
            "datasets of others like them."
        )
    return lines + [""] * bool(notes) + [line for note in notes for line in wrapped(note, width)]


def _pair(comparison: Comparison, over: str, width: int) -> list[str]:
    first, second = comparison.names
    rows = [["", "runs", first, second, "difference", "ahead", "level", "behind", "p"]]
    parts = [
        (name, list(rows))
        for name, rows in groupby(range(len(comparison.places)), lambda i: comparison.places[i].dataset)
    ]
    everything = [("all", list(range(len(comparison.places))))] if len(parts) > 1 else []
    for name, indices in [*parts, *everything]:
        here = comparison.accuracy[indices]
        differences = _rounded(here[:, 0] - here[:, 1])
        spread = f" ± {figure(float(differences.std(ddof=1)), DECIMALS)}" if len(indices) > 1 else ""
        means = [figure(float(value), DECIMALS) for value in here.mean(axis=0)]
        signs = [int(np.sum(np.sign(differences) == sign)) for sign in (1, 0, -1)]
        shown = figure(float(differences.mean()), DECIMALS, "+") + spread
        rows.append([name, str(len(indices)), *means, shown, *map(str, signs), _p(wilcoxon(differences))])
    lines = [*terminal.columns(rows, width), "", "Wilcoxon's signed-rank test, two-sided:"]
    for what in OVER:
        number = len(comparison.over(what)[0])
        differing, p = comparison.p(what)
        text = f"  over {number} {what if number > 1 else what.removesuffix('s')}: p {_p(p, '= ')}"
        if differing and least(differing) > LEVEL:
            text += f", and {counted(differing, 'pair')} can give no less than {_p(least(differing))}"
        lines += wrapped(text, width, "    ")
    return [*lines, *wrapped(_verdict(comparison, over), width)]


def _verdict(comparison: Comparison, over: str) -> str:
    """Return which of two sides is ahead, by the means that the test looks at, and whether that may be chance."""
    first, second = comparison.names
    scores = comparison.over(over)[1]
    mean = float((scores[:, 0] - scores[:, 1]).mean())
    points = figure(abs(mean), DECIMALS)
    if not float(points):
        return f"{first} and {second} are level, on average over {over}."
    ahead, behind = (first, second) if mean > 0 else (second, first)
    chance = f"more than chance (p at most {LEVEL})" if comparison.p(over)[1] <= LEVEL else "which may be chance"
    return f"{ahead} is ahead of {behind} by {points} points on average over {over}, {chance}."


def _several(comparison: Comparison, over: str, width: int) -> list[str]:
    made, names = comparison.ranks(over), comparison.names
    order = sorted(range(len(names)), key=made.mean.__getitem__)
    best = order[0]
    others = [i for i in order if i != best]
    corrected = dict(zip(others, holm([comparison.p(over, best, i)[1] for i in others]), strict=True))
    rows = [["", "mean rank", "accuracy", f"behind {names[best]}", "p (Wilcoxon, Holm)"]]
    means = comparison.over(over)[1].mean(axis=0)
    for i in order:
        behind = figure(float(means[best] - means[i]), DECIMALS) if i != best else ""
        rank = figure(made.mean[i], DECIMALS)
        rows.append([names[i], rank, figure(float(means[i]), DECIMALS), behind, _p(corrected[i]) if i != best else ""])
    number = len(comparison.over(over)[0])
    sentences = [
        f"Friedman's test over {number} {over} (Iman and Davenport): p {_p(made.p or 0.0, '= ')}.",
        f"Nemenyi's critical difference at {LEVEL}: {figure(made.distance, DECIMALS)} mean ranks.",
    ]
    groups = ["; ".join(", ".join(names[i] for i in group) for group in made.groups)] if made.groups else []
    sentences += [f"Not told apart: {groups[0]}." if groups else "All are told apart."]
    return [*terminal.columns(rows, width), "", *(line for one in sentences for line in wrapped(one, width))]


def _p(value: float, equals: str = "") -> str:
    """Return a p as it is read: "0.25", "0.0031", "< 0.0001"."""
    if value < 1e-4:
        return "< 0.0001"
    return equals + (figure(value, 2) if value >= 0.095 else f"{value:.2g}")
