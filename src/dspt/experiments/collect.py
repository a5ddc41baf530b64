"""Run folders as the cells of a table: which runs belong to a cell, and what they say."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspt.config import HARMLESS, NetworkConfig, config_for
from dspt.engine import sweep
from dspt.experiments import catalogue, paper, words
from dspt.experiments.catalogue import NINE, Condition, Experiment, Variant
from dspt.experiments.jobs import is_job
from dspt.internal.errors import InputError
from dspt.internal.names import plain
from dspt.internal.rounding import counted, figure
from dspt.runs import RULES, Finished, NotUsed, Result, Run, find

# Hears of a folder that is not used, and why.
Tell = Callable[[NotUsed], None]

# Settings in which runs of one table may differ: they are the table's axes, or say how a run is done.
MAY_DIFFER = {"model", "method", "option", "seed", "test_every", *HARMLESS}

# The paper prints so many of a percentage; what it marks goes by them, too.
DECIMALS = 2


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
    old_rule: bool  # whether its method has another rule today
    is_job: bool  # whether `dspt reproduce` made it
    text_tower: str = ""  # its size in words; "" in runs of earlier versions

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
    seeds: tuple[int, ...] = ()

    @property
    def mean(self) -> float | None:
        """Return the mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def figure(self) -> str:
        """Return the mean as it is shown: "81.00"; "" if there is none."""
        return "" if self.mean is None else figure(self.mean, DECIMALS)

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
    notes: tuple[str, ...]  # what a reader must know: epochs, seeds, model, versions

    def runs_of(self, condition: Condition, variant: Variant) -> list[TableRun]:
        """Return the runs of a cell, by seed; a run that was done twice counts once."""
        found = {run.seed: run for run in self.runs if _in_cell(run, condition, variant)}
        return [found[seed] for seed in sorted(found)]

    def cell(self, condition: Condition, label: str) -> Cell:
        """Return the cell, an empty one if there is no run."""
        return self.cells.get((condition, label), Cell())

    def ranks(self, condition: Condition) -> dict[str, int]:
        """Return 1 for the best and 2 for the second-best label of a setting; figures shown alike share a rank."""
        means = {
            variant.label: float(shown)
            for variant in self.experiment.variants
            if (shown := self.cell(condition, variant.label).figure)
        }
        best = sorted(set(means.values()), reverse=True)[:2]
        return {label: best.index(mean) + 1 for label, mean in means.items() if mean in best}


def find_runs(folder: Path | str, tell: Tell = lambda why: None) -> list[TableRun]:
    """Return the finished runs below a folder, sorted by path. What cannot be used is passed over; `tell` hears it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs folder {folder}: no such folder", "give `runs`, where the runs are")
    runs = []
    for one in find(folder, tell):
        if one.result.accuracy is None:
            tell(NotUsed(one.run.path, InputError("it has no accuracy, because nothing was tested")))
        else:
            runs.append(_table_run(one))
    for path, reason in sweep.untold(folder).items():
        tell(NotUsed(path, InputError(f"it failed ({reason}); the command that began it tries it again")))
    return runs


def _table_run(found: Finished) -> TableRun:
    """Return a finished run as tables look at it."""
    description, result = found.description, found.result
    settings = asdict(description.settings)
    # a network from scratch is known by its name
    settings["model_fingerprint"] = description.model_fingerprint or settings["model"]
    return TableRun(
        dataset=paper_name(result.data),
        noise=result.noise,
        method=result.method,
        options=description.settings.option,
        seed=result.seed,
        settings=settings,
        result=result,
        class_names=description.class_names,
        run=found.run,
        old_rule=description.method_rule != RULES.get(result.method),
        is_job=is_job(found.run.path, description.data or "", result.noise, description.settings),
        text_tower=description.text_tower or "",
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


def collect(
    experiment: Experiment,
    runs: Sequence[TableRun],
    every_dataset: bool = False,
    tell: Tell = lambda why: None,
) -> Results:
    """Return the results of an experiment from its own runs.

    Only datasets of which there are runs are shown, unless `every_dataset`. Runs that differ in anything but dataset,
    noise, method and seed are never mixed: that is an error, which says in what they differ.

    Parameters
    ----------
    experiment : Experiment
        A table or figure of the paper.
    runs : sequence of TableRun
        Finished runs; only the experiment's own count.
    every_dataset : bool
        Show datasets without runs too.
    tell : callable
        Hears which runs are not used, and why.
    """
    own = own_runs(experiment, runs, tell)
    check_alike(experiment.name, own)
    experiment = _on_datasets_of(own, experiment, every_dataset)
    found = Results(experiment, tuple(own), {}, {}, ())
    cells = {}
    for condition in experiment.conditions:
        for variant in experiment.variants:
            here = found.runs_of(condition, variant)
            printed = paper.accuracy(experiment.name, condition, variant.label)
            values, seeds = tuple(run.accuracy for run in here), tuple(run.seed for run in here)
            cells[condition, variant.label] = Cell(values, printed, seeds)
    zero_shot = {}
    for name in experiment.datasets:
        ours = [run.result.zero_shot for run in own if run.dataset == name and run.result.zero_shot is not None]
        zero_shot[name] = Cell(tuple(ours[:1]), paper.zero_shot(name))
    found = replace(found, cells=cells, zero_shot=zero_shot)
    return replace(found, notes=_notes(found))


def gather(
    experiment: Experiment,
    folder: Path | str,
    only: str | None = None,
    where: str | None = None,
    every_dataset: bool = False,
    tell: Tell = lambda why: None,
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
        Hears which folders are not used, and why; what `only` and `where` leave out is not meant.
    """
    runs = find_runs(folder, tell)
    if where:
        runs = having(runs, where)
    if only:
        experiment, runs = _narrowed(experiment, runs, only, every_dataset, tell)
    results = collect(experiment, runs, every_dataset, tell)
    if not (results.runs or every_dataset):
        name = experiment.name
        raise InputError(f"{name}: no runs of it below {folder}; 'dspt reproduce {name}' makes them")
    return results


def _narrowed(
    experiment: Experiment, runs: Sequence[TableRun], only: str, every_dataset: bool, tell: Tell
) -> tuple[Experiment, list[TableRun]]:
    """Return the part of the experiment that `only` asks for, and its runs; `tell` hears which are not its own.

    The part is looked for among the experiment's own runs; if it is not there, among those on any dataset.
    """

    def part_of(chosen: Sequence[TableRun]) -> Experiment:
        seeds = sorted({run.seed for run in chosen}) or experiment.seeds
        return catalogue.narrowed(_on_datasets_of(chosen, catalogue.with_seeds(experiment, seeds), every_dataset), only)

    not_own: list[NotUsed] = []
    chosen = own_runs(experiment, runs, not_own.append)
    try:
        part = part_of(chosen)
    except InputError:
        chosen = [run for run in runs if not _misfit(run, experiment)]
        part = part_of(chosen) if chosen or every_dataset else experiment
    used = {run.folder for run in chosen}
    for why in not_own:
        if why.folder not in used:
            tell(why)
    return part, [
        run for run in chosen if run.dataset in part.datasets and run.seed in part.seeds and not _misfit(run, part)
    ]


def own_runs(experiment: Experiment, runs: Sequence[TableRun], tell: Tell = lambda why: None) -> list[TableRun]:
    """Return the runs that are an experiment's own: of its methods and noises, on its datasets, with its settings.

    Where there are none on its datasets, those are that `dspt reproduce` made on other data; where none have its
    settings, those with others.

    Parameters
    ----------
    experiment : Experiment
        A table or figure of the paper.
    runs : sequence of TableRun
        Finished runs.
    tell : callable
        Hears which runs are not the experiment's own, and why.
    """
    misfits = {run.folder: _misfit(run, experiment) for run in runs}
    fitting = [run for run in runs if not misfits[run.folder]]
    there = [run for run in fitting if run.dataset in experiment.datasets]
    there = there or [run for run in fitting if run.is_job]
    own = [run for run in there if not _unusual(run, experiment)] or there
    here, used, shown = {run.folder for run in there}, {run.folder for run in own}, {run.dataset for run in own}
    for run in runs:
        if run.folder in used:
            continue
        what, advice = misfits[run.folder], ""
        if run.folder in here:
            setting = _unusual(run, experiment)[0]
            what = f"{experiment.name} is not made with {setting} {run.settings[setting]}"
            advice = f"`where` {setting}={run.settings[setting]} shows it"
        elif not what:
            what = f"{run.dataset} is not one of the datasets of {experiment.name}"
            what += "" if run.is_job else ", and dspt reproduce did not make the run"
            advice = "" if run.dataset in shown else f"`only` dataset={run.dataset} shows it"
        tell(NotUsed(run.folder, InputError(what, advice)))
    return own


def _on_datasets_of(runs: Sequence[TableRun], experiment: Experiment, every_dataset: bool) -> Experiment:
    """Return the experiment on the datasets of these runs; with `every_dataset`, on all of its own too."""
    # The paper's come first, in its order; then others, such as "embedded".
    there = {run.dataset for run in runs}
    shown = [name for name in experiment.datasets if every_dataset or name in there]
    shown += sorted(there - set(experiment.datasets))
    noises = {name: [s.noise for s in experiment.conditions if s.dataset == name] for name in shown}
    conditions = tuple(Condition(name, noise) for name in shown for noise in noises[name] or experiment.made_noises)
    return replace(experiment, conditions=conditions)


def paper_name(dataset: str) -> str:
    """Return a dataset as the paper writes it: a feature file of "stanford_cars" is of StanfordCars."""
    return next((name for name in (*NINE, "CIFAR10", "CIFAR100") if plain(name) == plain(dataset)), dataset)


def _misfit(run: TableRun, experiment: Experiment) -> str:
    """Return why a run cannot be one of the experiment's, on whatever dataset; "" if it can."""
    name = experiment.name
    if (run.settings["learner"] == NetworkConfig.learner) != experiment.from_scratch:
        return f"it learns something else than {name}"
    if not any(_same_variant(run, variant) for variant in experiment.variants):
        return f"its method is not one of {name}"
    if run.old_rule:
        return f"it was made by an earlier version of dspt, whose {run.method} had another rule"
    noises = [condition.noise for condition in experiment.conditions if condition.dataset == run.dataset]
    if run.noise not in (noises or experiment.noises):
        return f"its noise is not one of {name}"
    for setting, value in experiment.config.items():
        if run.settings.get(setting) != value:
            return f"{name} is made with {setting} {value}"
    # a run in which nothing moves shows gradients, not accuracy
    return "" if run.settings["lr"] > 0 or "lr" in experiment.config else "nothing is learnt in it, as lr is 0"


def _unusual(run: TableRun, experiment: Experiment) -> list[str]:
    """Return the settings in which a run is not as the experiment has it, but for those that may differ."""
    usual = {**asdict(config_for(run.settings["learner"])()), **experiment.config}
    return [name for name in usual if name not in MAY_DIFFER and run.settings.get(name) != usual[name]]


def _in_cell(run: TableRun, condition: Condition, variant: Variant) -> bool:
    return run.dataset == condition.dataset and run.noise == condition.noise and _same_variant(run, variant)


def _same_variant(run: TableRun, variant: Variant) -> bool:
    return run.method == variant.method and run.options == variant.options


def check_alike(what: str, runs: Sequence[TableRun]) -> None:
    """Raise `InputError` if runs of one table, or whatever is made of them, have different settings or data."""
    for name in sorted({name for run in runs for name in run.settings} - MAY_DIFFER):
        values = {json.dumps(run.settings.get(name)): run.folder for run in runs}
        if len(values) > 1:
            (one, first), (other, second) = sorted(values.items())[:2]
            raise InputError(
                f"{what}: its runs differ in {name}, {one} in {first} and {other} in {second}",
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
                f"{what}: {other_data.folder} and {run.folder} are both of {run.dataset}, but not of the same data",
                what_to_do,
            )
        if twice.accuracy != run.accuracy:
            raise InputError(
                f"{what}: {twice.folder} and {run.folder} are the same run, but not of the same accuracy, "
                "so data, versions or machines differ",
                what_to_do,
            )


def _may_be_same_data(one: TableRun, other: TableRun) -> bool:
    """Return whether nothing that both know of their data differs."""
    samples = {one.result.samples, other.result.samples} - {None}
    return one.class_names == other.class_names and len(samples) < 2


def _notes(results: Results) -> tuple[str, ...]:
    """Return what the cells depend on, as the runs tell it: epochs, seeds, model, versions, and what is unusual."""
    if not results.runs:
        return ()
    settings = results.runs[0].settings
    # five were averaged before it was written down
    numbers = {run.result.epochs_averaged or min(5, run.result.epochs) for run in results.runs}
    averaged = "of the last" if numbers == {1} else f"averaged over the last {' or '.join(map(str, sorted(numbers)))}"
    models = sorted({Path(str(run.settings["model"])).name for run in results.runs})
    notes = [
        f"{counted(int(settings['epochs']), 'epoch')}, accuracy {averaged}, model {', '.join(models)}",
        f"S{seeds_in_words(results)[1:]}",  # "Seeds"
    ]
    if (views := settings.get("views")) is not None:  # CoOp draws a new crop each time
        notes.append(f"{views} views of each image" if views else "The centre view of each image")
    unusual = [
        f"{name} {settings[name]}"
        for name in _unusual(results.runs[0], results.experiment)
        if name not in ("epochs", "views")
    ]
    if unusual:
        notes.append(f"Not the paper's setting: {', '.join(unusual)}")
    environments = [run.run.environment() for run in results.runs]
    versions = {f"{n} {e[n]}" for e in environments for n in ("dspt", "torch") if n in e}
    return (*notes, ", ".join(sorted(versions))) if versions else tuple(notes)


def seeds_in_words(results: Results) -> str:
    """Return which seeds are in the cells: "seeds 1, 2; CoOp at sym 40 %: seed 1 only".

    Said first are the seeds of most cells, then those of each method that has others, at one noise or at all.
    """
    seeds = {place: cell.seeds for place, cell in results.cells.items() if cell.seeds}
    counted = Counter(seeds.values())
    most = max(counted, key=lambda found: (counted[found], len(found)))
    several = len({condition.dataset for condition, _ in seeds}) > 1
    of_method: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for (condition, label), found in seeds.items():
        of_method.setdefault((condition.dataset, label), set()).add(found)
    others: dict[tuple[int, ...], dict[str, None]] = {}
    for (condition, label), found in seeds.items():
        if found != most:
            alike = len(of_method[condition.dataset, label]) == 1
            where = [*([condition.dataset] if several else []), *([] if alike else [words.short(condition.noise)])]
            others.setdefault(found, {})[f"{label} at {' '.join(where)}" if where else label] = None
    exceptions = [
        f"{', '.join(places)}: {seeds_of(found)}{' only' if len(found) < len(most) else ''}"
        for found, places in others.items()
    ]
    return "; ".join([seeds_of(most), *exceptions])


def seeds_of(seeds: Sequence[int]) -> str:
    """Return seeds in words: "seeds 1, 2"."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
