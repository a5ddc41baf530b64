"""Run folders as the cells of a table: which runs belong to a cell, and what they say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspt.config import HARMLESS, NetworkConfig, config_for
from dspt.experiments import catalogue, paper
from dspt.experiments.catalogue import NINE, Condition, Experiment, Variant
from dspt.internal.errors import InputError
from dspt.internal.names import plain
from dspt.runs import Finished, Result, Run, find

# Settings in which runs of one table may differ: they are the table's axes, or say how a run is done.
MAY_DIFFER = {"model", "method", "option", "seed", "test_every", *HARMLESS}


@dataclass(frozen=True)
class TableRun:
    """A finished run, as tables and figures look at it."""

    dataset: str  # as the paper writes it
    noise: str
    method: str
    options: tuple[str, ...]
    seed: int
    settings: dict[str, Any]  # all settings of the run, and the fingerprint of its model
    result: Result
    class_names: tuple[str, ...]
    run: Run

    @property
    def accuracy(self) -> float:
        """The figure of the run."""
        assert self.result.accuracy is not None  # others are in no table
        return self.result.accuracy

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.run.path


@dataclass(frozen=True)
class Cell:
    """What a setting and a variant gave: the accuracies by seed, and what the paper printed."""

    values: tuple[float, ...] = ()
    paper: float | None = None

    @property
    def mean(self) -> float | None:
        """Return the mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Return the standard deviation over seeds (n - 1), from two seeds on."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Return our mean minus the paper's figure."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


@dataclass(frozen=True)
class Results:
    """The runs that belong to an experiment, as cells."""

    experiment: Experiment  # on the datasets there are runs of
    runs: tuple[TableRun, ...]
    cells: dict[tuple[Condition, str], Cell]  # by setting and label of the variant
    zero_shot: dict[str, Cell]  # by dataset
    notes: tuple[str, ...]  # what a reader must know: epochs, model, versions

    def runs_of(self, condition: Condition, variant: Variant) -> list[TableRun]:
        """Return the runs of a cell, by seed; a run that was done twice counts once."""
        found = {run.seed: run for run in self.runs if _in_cell(run, condition, variant)}
        return [found[seed] for seed in sorted(found)]

    def cell(self, condition: Condition, label: str) -> Cell:
        """Return the cell, an empty one if there is no run."""
        return self.cells.get((condition, label), Cell())

    def ranks(self, condition: Condition) -> dict[str, int]:
        """Return 1 for the best and 2 for the second-best label of a setting; equal figures share a rank."""
        means = {
            variant.label: round(mean, 2)
            for variant in self.experiment.variants
            if (mean := self.cell(condition, variant.label).mean) is not None
        }
        best = sorted(set(means.values()), reverse=True)[:2]
        return {label: best.index(mean) + 1 for label, mean in means.items() if mean in best}


def find_runs(folder: Path | str, tell: Callable[[InputError], None] = lambda error: None) -> list[TableRun]:
    """Return the finished runs below a folder, sorted by path. What is no run, or a damaged one, is passed over."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs folder {folder}: no such folder", "give `runs`, where the runs are")
    return [_table_run(one) for one in find(folder, tell) if one.result.accuracy is not None]


def _table_run(found: Finished) -> TableRun:
    """Return a finished run as tables look at it."""
    description, result = found.description, found.result
    settings = asdict(description.settings)
    # a network from scratch is known by its name
    settings["model_fingerprint"] = description.model_fingerprint or settings["model"]
    return TableRun(
        dataset=_paper_name(result.data),
        noise=result.noise,
        method=result.method,
        options=description.settings.option,
        seed=result.seed,
        settings=settings,
        result=result,
        class_names=description.class_names,
        run=found.run,
    )


def having(runs: Sequence[TableRun], conditions: str) -> list[TableRun]:
    """Return the runs whose settings are as in "epochs=20,learner=prompt"."""
    wanted = {}
    for part in conditions.split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not (name and equals):
            raise InputError(f"where {part!r}: expected setting=value, such as epochs=20")
        if runs and not any(name in run.settings for run in runs):
            raise InputError(f"where {name}: no run has such a setting; one is epochs")
        wanted[name] = value

    def fits(run: TableRun) -> bool:
        return all(str(run.settings.get(n)).lower() == v.lower() for n, v in wanted.items())

    return [run for run in runs if fits(run)]


def collect(experiment: Experiment, runs: Sequence[TableRun], every_dataset: bool = False) -> Results:
    """Return the results of an experiment from the runs that belong to it.

    Only datasets of which there are runs are shown, unless `every_dataset`. Runs that differ in anything but dataset,
    noise, method and seed are never mixed: that is an error, which says in what they differ.

    Parameters
    ----------
    experiment : Experiment
        A table or figure of the paper.
    runs : sequence of TableRun
        Finished runs; only those that belong to the experiment count.
    every_dataset : bool
        Show datasets without runs too.
    """
    belonging = [run for run in runs if _belongs(run, experiment)]
    _check_alike(experiment, belonging)
    experiment = on_datasets_of(runs, experiment, every_dataset)
    found = Results(experiment, tuple(belonging), {}, {}, ())
    cells = {
        (condition, variant.label): Cell(
            tuple(run.accuracy for run in found.runs_of(condition, variant)),
            paper.accuracy(experiment.name, condition, variant.label),
        )
        for condition in experiment.conditions
        for variant in experiment.variants
    }
    zero_shot = {}
    for name in experiment.datasets:
        ours = [run.result.zero_shot for run in belonging if run.dataset == name and run.result.zero_shot is not None]
        zero_shot[name] = Cell(tuple(ours[:1]), paper.zero_shot(name))
    return replace(found, cells=cells, zero_shot=zero_shot, notes=_notes(belonging))


def gather(
    experiment: Experiment,
    folder: Path | str,
    only: str | None = None,
    where: str | None = None,
    every_dataset: bool = False,
    tell: Callable[[InputError], None] = lambda error: None,
) -> Results:
    """Return the results of an experiment from the runs below a folder.

    Parameters
    ----------
    experiment : Experiment
    folder : path
    only : str, optional
        A part of the experiment, as `catalogue.narrowed` takes it. It may name any dataset and seed there is a run of.
    where : str, optional
        Take runs with these settings alone, as `having` takes them.
    every_dataset : bool
        Show datasets without runs too.
    tell : callable
        Hears why folders were passed over.
    """
    runs = find_runs(folder, tell)
    if where:
        runs = having(runs, where)
    if only and runs:
        there = on_datasets_of(runs, experiment, every_dataset)
        there = catalogue.with_seeds(there, sorted({run.seed for run in runs}))
        experiment = catalogue.narrowed(there, only)
        datasets, seeds = experiment.datasets, experiment.seeds
        runs = [run for run in runs if run.dataset in datasets and run.seed in seeds]
    results = collect(experiment, runs, every_dataset)
    if not (results.runs or every_dataset):
        name = experiment.name
        raise InputError(f"{name}: no runs of it below {folder}; 'dspt reproduce {name}' makes them")
    return results


def on_datasets_of(runs: Sequence[TableRun], experiment: Experiment, every_dataset: bool = False) -> Experiment:
    """Return the experiment on the datasets that there are runs of; with `every_dataset`, on all of the paper's too.

    Parameters
    ----------
    runs : sequence of TableRun
        Finished runs; only those that belong to the experiment count.
    experiment : Experiment
        A table or figure of the paper.
    every_dataset : bool
        Keep the experiment's datasets without runs too.
    """
    # The paper's come first, in its order; then others, such as "embedded".
    there = {run.dataset for run in runs if _belongs(run, experiment)}
    shown = [name for name in experiment.datasets if every_dataset or name in there]
    shown += sorted(there - set(experiment.datasets))
    noises = {name: [s.noise for s in experiment.conditions if s.dataset == name] for name in shown}
    conditions = tuple(Condition(name, noise) for name in shown for noise in noises[name] or experiment.noises)
    return replace(experiment, conditions=conditions)


def _paper_name(dataset: str) -> str:
    """Return a dataset as the paper writes it: a feature file of "stanford_cars" is of StanfordCars."""
    return next((name for name in (*NINE, "CIFAR10") if plain(name) == plain(dataset)), dataset)


def _belongs(run: TableRun, experiment: Experiment) -> bool:
    """Return whether a run is one of the experiment's, on whatever dataset."""
    return (
        (run.settings["learner"] == NetworkConfig.learner) == experiment.from_scratch
        and any(_same_variant(run, variant) for variant in experiment.variants)
        and run.noise in experiment.noises
        and all(run.settings.get(name) == value for name, value in experiment.config.items())
        # a run in which nothing moves shows gradients, not accuracy
        and (run.settings["lr"] > 0 or "lr" in experiment.config)
    )


def _in_cell(run: TableRun, condition: Condition, variant: Variant) -> bool:
    return run.dataset == condition.dataset and run.noise == condition.noise and _same_variant(run, variant)


def _same_variant(run: TableRun, variant: Variant) -> bool:
    return run.method == variant.method and run.options == variant.options


def _check_alike(experiment: Experiment, runs: Sequence[TableRun]) -> None:
    """Raise `InputError` if runs of one table were made with different settings, or of different data."""
    for name in sorted({name for run in runs for name in run.settings} - MAY_DIFFER):
        values = {json.dumps(run.settings.get(name)): run.folder for run in runs}
        if len(values) > 1:
            (one, first), (other, second) = sorted(values.items())[:2]
            raise InputError(
                f"{experiment.name}: its runs differ in {name}, {one} in {first} and {other} in {second}",
                f"give `where` {name}=VALUE to take one kind, or another `runs`",
            )
    cells: dict[Any, TableRun] = {}
    contents: dict[str, TableRun] = {}
    for run in runs:
        other_data = contents.setdefault(run.dataset, run)
        cell = (run.dataset, run.noise, run.method, run.options, run.seed)
        twice = cells.setdefault(cell, run)
        what_to_do = "move one of them, or give another `runs`"
        if not _may_be_same_data(other_data, run):
            raise InputError(
                f"{experiment.name}: {other_data.folder} and {run.folder} are both of {run.dataset}, but not of the "
                "same data",
                what_to_do,
            )
        if twice.accuracy != run.accuracy:
            raise InputError(
                f"{experiment.name}: {twice.folder} and {run.folder} are the same run, but not of the same accuracy, "
                "so data, versions or machines differ",
                what_to_do,
            )


def _may_be_same_data(one: TableRun, other: TableRun) -> bool:
    """Return whether nothing that both know of their data differs."""
    samples = {one.result.samples, other.result.samples} - {None}
    return one.class_names == other.class_names and len(samples) < 2


def _notes(runs: Sequence[TableRun]) -> tuple[str, ...]:
    """Return what the cells depend on, as the runs tell it: epochs, seeds, model, versions, and what is unusual."""
    if not runs:
        return ()
    settings = runs[0].settings
    seeds = sorted({run.seed for run in runs})
    models = sorted({Path(str(run.settings["model"])).name for run in runs})
    notes = [
        f"{settings['epochs']} epochs, accuracy averaged over the last five, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}, "
        f"model {', '.join(models)}"
    ]
    if (views := settings.get("views")) is not None:  # CoOp draws a new crop each time
        notes.append(f"{views} views of each image" if views else "The centre view of each image")
    usual = asdict(config_for(settings["learner"])())
    said = {*MAY_DIFFER, "epochs", "model_fingerprint", "views"}
    unusual = [
        f"{name} {settings[name]}" for name, value in usual.items() if name not in said and settings.get(name) != value
    ]
    if unusual:
        notes.append(f"Not the paper's setting: {', '.join(unusual)}")
    environments = [run.run.environment() for run in runs]
    versions = {f"{n} {e[n]}" for e in environments for n in ("dspt", "torch") if n in e}
    return (*notes, ", ".join(sorted(versions))) if versions else tuple(notes)
