"""Run folders as the cells of a table: which runs belong to a cell, and what they say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspt.config import Config
from dspt.errors import InputError
from dspt.experiments import paper
from dspt.experiments.catalogue import NINE, Entry, Experiment, Setting, plain

# Settings in which runs of one table may differ: they are the table's axes, or change no result.
MAY_DIFFER = {
    *("model", "method", "option", "seed"),
    *("device", "text_memory", "workers", "compile", "test_every"),
}


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

    def runs_of(self, setting: Setting, entry: Entry) -> list[Run]:
        """Return the runs of a cell, by seed; of two with the same seed the last."""
        found = {run.seed: run for run in self.runs if _in_cell(run, setting, entry)}
        return [found[seed] for seed in sorted(found)]

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
            if not isinstance(result["accuracy"], int | float):  # there was no test set
                continue
            runs.append(
                Run(
                    folder=path.parent,
                    dataset=_paper_name(result["data"]),
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


def where(runs: Sequence[Run], conditions: str) -> list[Run]:
    """Return the runs whose settings are as in "epochs=20,learner=prompt"."""
    wanted = {}
    for part in conditions.split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not (name and equals):
            raise InputError(f"where {part!r}: expected setting=value, such as epochs=20")
        if runs and not any(name in run.settings for run in runs):
            raise InputError(f"where {name}: no run has such a setting; one is epochs")
        wanted[name] = value

    def fits(run: Run) -> bool:
        return all(str(run.settings.get(n)).lower() == v.lower() for n, v in wanted.items())

    return [run for run in runs if fits(run)]


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

    found = Results(replace(experiment, settings=settings), tuple(belonging), {}, {}, ())
    cells = {
        (setting, entry.label): Cell(
            tuple(run.result["accuracy"] for run in found.runs_of(setting, entry)),
            paper.accuracy(experiment.name, setting, entry.label),
        )
        for setting in settings
        for entry in experiment.entries
    }
    zero_shot = {}
    for name in shown:
        ours = [
            run.result["zero_shot"]
            for run in belonging
            if plain(run.dataset) == plain(name) and run.result.get("zero_shot") is not None
        ]
        zero_shot[name] = Cell(tuple(ours[:1]), paper.zero_shot(name))
    return replace(found, cells=cells, zero_shot=zero_shot, notes=_notes(belonging))


def _paper_name(dataset: str) -> str:
    """A dataset as the paper writes it: a feature file of "stanford_cars" is of StanfordCars."""
    return next((name for name in NINE if plain(name) == plain(dataset)), dataset)


def _belongs(run: Run, experiment: Experiment) -> bool:
    """Whether a run is one of the experiment's, on whatever dataset."""
    return (
        (run.settings["learner"] == "network") == experiment.from_scratch
        and any(_same_entry(run, entry) for entry in experiment.entries)
        and run.noise in experiment.noises
        and all(run.settings.get(name) == value for name, value in experiment.config.items())
        # a run in which nothing moves shows gradients, not accuracy
        and (run.settings["lr"] > 0 or "lr" in experiment.config)
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
    for name in sorted({name for run in runs for name in run.settings} - MAY_DIFFER):
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
