"""Run folders as the cells of a table: which runs belong to a cell, and what they say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspt.config import Config
from dspt.errors import InputError
from dspt.experiments import paper
from dspt.experiments.catalogue import Entry, Experiment, Setting, plain

# Settings in which runs of one table may differ: they are the table's axes, or change no result.
_AXES = {"model", "method", "option", "seed"}
_FREE = {"device", "text_memory", "workers", "compile"}


@dataclass(frozen=True)
class Run:
    """A finished run, as its folder tells it."""

    folder: Path
    dataset: str
    noise: str
    method: str
    options: tuple[str, ...]
    seed: int
    settings: dict[str, Any]  # all settings of the run
    result: dict[str, Any]

    def records(self) -> list[dict[str, Any]]:
        """Return what was recorded after each epoch."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Cell:
    """What a setting and an entry gave: the accuracies by seed, and what the paper printed."""

    values: tuple[float, ...] = ()
    paper: float | None = None

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (n - 1), from two seeds on."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's figure."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


@dataclass(frozen=True)
class Results:
    """The runs that belong to an experiment, as cells."""

    experiment: Experiment  # on the datasets there are runs of
    runs: tuple[Run, ...]
    cells: dict[tuple[Setting, str], Cell]  # by setting and label of the entry
    zero_shot: dict[str, Cell]  # by dataset
    notes: tuple[str, ...]  # what a reader must know: epochs, model, versions

    def cell(self, setting: Setting, label: str) -> Cell:
        """Return the cell, an empty one if there is no run."""
        return self.cells.get((setting, label), Cell())

    def ranks(self, setting: Setting) -> dict[str, int]:
        """Return 1 for the best and 2 for the second-best label of a setting; equal figures share a rank."""
        means = {
            entry.label: round(mean, 2)
            for entry in self.experiment.entries
            if (mean := self.cell(setting, entry.label).mean) is not None
        }
        best = sorted(set(means.values()), reverse=True)[:2]
        return {label: best.index(mean) + 1 for label, mean in means.items() if mean in best}


def find_runs(folder: Path | str) -> list[Run]:
    """Return the finished runs below a folder, sorted by path. What is no run is passed over."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs folder {folder}: no such folder; give --runs, where the runs are")
    runs = []
    for path in sorted(folder.rglob("result.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            description = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
            settings = {**asdict(Config()), **description["settings"]}
            settings["model_fingerprint"] = description.get("model_fingerprint")
            runs.append(
                Run(
                    folder=path.parent,
                    dataset=result["data"],
                    noise=result["noise"],
                    method=result["method"],
                    options=tuple(settings["option"]),
                    seed=result["seed"],
                    settings=settings,
                    result=result,
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return runs


def collect(experiment: Experiment, runs: Sequence[Run], every_dataset: bool = False) -> Results:
    """Return the results of an experiment from the runs that belong to it.

    Only datasets of which there are runs are shown, unless `every_dataset`. Runs that differ in anything but dataset,
    noise, method and seed are never mixed: that is an error, which says in what they differ.
    """
    belonging = [run for run in runs if _belongs(run, experiment)]
    _check_alike(experiment, belonging)
    # The paper's datasets come first, in its order; then others, such as "embedded".
    declared = {plain(name): name for name in experiment.datasets}
    there = {run.dataset: declared.get(plain(run.dataset)) for run in belonging}
    shown = [n for n in experiment.datasets if every_dataset or n in there.values()]
    shown += sorted(name for name, known in there.items() if known is None)
    noises = {name: [s.noise for s in experiment.settings if s.dataset == name] for name in shown}
    settings = tuple(
        Setting(name, noise) for name in shown for noise in noises[name] or experiment.noises
    )

    cells = {}
    for setting in settings:
        for entry in experiment.entries:
            values = {
                run.seed: run.result["accuracy"]
                for run in belonging
                if _in_cell(run, setting, entry) and run.result.get("accuracy") is not None
            }
            printed = paper.accuracy(experiment.name, setting, entry.label)
            ordered = tuple(values[seed] for seed in sorted(values))
            cells[setting, entry.label] = Cell(ordered, printed)
    zero_shot = {}
    for name in shown:
        found = [
            run.result["zero_shot"]
            for run in belonging
            if plain(run.dataset) == plain(name) and run.result.get("zero_shot") is not None
        ]
        zero_shot[name] = Cell(tuple(found[:1]), paper.zero_shot(name))
    from dataclasses import replace

    return Results(
        replace(experiment, settings=settings),
        tuple(belonging),
        cells,
        zero_shot,
        _notes(belonging),
    )


def _belongs(run: Run, experiment: Experiment) -> bool:
    """Whether a run is one of the experiment's, on whatever dataset."""
    return (
        any(_same_entry(run, entry) for entry in experiment.entries)
        and run.noise in experiment.noises
        and all(run.settings.get(name) == value for name, value in experiment.config.items())
    )


def _in_cell(run: Run, setting: Setting, entry: Entry) -> bool:
    return (
        plain(run.dataset) == plain(setting.dataset)
        and run.noise == setting.noise
        and _same_entry(run, entry)
    )


def _same_entry(run: Run, entry: Entry) -> bool:
    return run.method == entry.method and run.options == entry.options


def _check_alike(experiment: Experiment, runs: Sequence[Run]) -> None:
    """Raise `InputError` if runs of one table were made with different settings."""
    for name in sorted({name for run in runs for name in run.settings} - _AXES - _FREE):
        values = {json.dumps(run.settings.get(name)): run.folder for run in runs}
        if len(values) > 1:
            (one, first), (other, second) = sorted(values.items())[:2]
            raise InputError(
                f"{experiment.name}: its runs differ in {name}, {one} in {first} and {other} in {second}; "
                f"give --where {name}=VALUE to take one kind, or another --runs"
            )


def _notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the figures depend on, from the folders of the runs."""
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
    return tuple(notes)
