"""The paper's figures, drawn from run folders: PDF for print, PNG for the screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dspt import plots
from dspt.experiments.catalogue import Entry, Setting
from dspt.experiments.collect import Cell, Results, Run
from dspt.experiments.layout import KINDS
from dspt.internal.errors import InputError

# The widths of one and of two columns of a paper, in inches.
ONE_COLUMN, TWO_COLUMNS = 3.25, 6.75
LOSS_EPOCHS = GRADIENT_EPOCHS = 20
EARLY_EPOCHS = 10

_SIDES = {
    "right": {"color": plots.RIGHT, "linestyle": "-", "marker": "o", "label": "correctly labelled"},
    "wrong": {"color": plots.WRONG, "linestyle": "--", "marker": "X", "label": "mislabelled"},
}
_BOUND = {"color": "0.3", "linewidth": 0.7, "label": "bounds of DSPT's loss"}


def draw(results: Results, path: Path) -> list[Path]:
    """Draw the figure of an experiment and return the two files: `path`.pdf and `path`.png."""
    name = results.experiment.name
    if name not in FIGURES:
        raise InputError(
            f"experiment {name!r}: it is no figure, see `dspt table {name}`; "
            f"the figures are {', '.join(FIGURES)}"
        )
    if not results.runs:
        raise _nothing(results)
    # A name may hold a dot, so the suffix is added and not put in place of another.
    files = [path.with_name(path.name + suffix) for suffix in (".pdf", ".png")]
    with plots.look():
        figure = FIGURES[name](results)
        for file in files:
            try:
                plots.save(figure, file)
            except OSError as error:
                raise InputError(
                    f"figure {file}: cannot be written ({error.strerror}); give another name"
                ) from None
    return files


def accuracy_vs_noise(results: Results) -> Any:
    """Return the figure of test accuracy over the share of wrong labels, two panels a dataset."""
    panels = []
    for dataset in results.experiment.datasets:
        for kind in KINDS:
            lines = _accuracy_lines(results, dataset, kind)
            if any(share > 0 for points in lines.values() for share in points):
                panels.append((dataset, kind, lines))
    # Two datasets side by side fill the width of a page.
    figure, axes = _panels(results, len(panels), 4 if len({p[0] for p in panels}) > 1 else 2)
    for index, (axis, (dataset, kind, lines)) in enumerate(zip(axes, panels, strict=True)):
        for entry in results.experiment.entries:
            if points := lines.get(entry.label):
                _points(axis, points, **plots.STYLES[entry.method] | {"label": entry.label})
        _zero_shot(axis, results, dataset)
        axis.set_title(f"{dataset}\n{KINDS[kind]}")
        axis.set_xlabel("wrong labels (%)")
        shares = _shares(results, dataset, kind)
        axis.set_xticks(shares)
        axis.set_xlim(-0.05 * shares[-1], 1.05 * shares[-1])
        if _starts_row(axis):
            axis.set_ylabel("test accuracy (%)")
        elif panels[index - 1][0] == dataset:
            axis.tick_params(labelleft=False)
    for dataset in results.experiment.datasets:
        plots.share_y([a for a, panel in zip(axes, panels, strict=True) if panel[0] == dataset])
    plots.legend(figure)
    return figure


def gradient_distribution(results: Results) -> Any:
    """Return the figure of how strongly right and wrong labels pull at the logits at the start."""
    figure, grid = _grid(results, lambda runs: _histogram(results, runs))
    softmaxes = {"coop": "single softmax", "dspt": "double softmax"}
    for panel in grid:
        plots.shares(panel.axis, *panel.data)
        if panel.top and panel.entry.method in softmaxes:
            panel.axis.set_title(f"{panel.entry.label}: {softmaxes[panel.entry.method]}")
        if panel.bottom:
            panel.axis.set_xlabel(f"gradient on the logits, {plots.PULL}")
    _label_rows(grid, "share of samples (%)", one_scale=True)
    plots.legend(figure, columns=4)
    return figure


def loss_curves(results: Results) -> Any:
    """Return the figure of the mean loss of right and wrong labels over the first epochs.

    For DSPT thin lines mark the least and the greatest value its loss can take.
    """
    figure, grid = _grid(results, lambda runs: (runs, _sides(results, runs, "loss", LOSS_EPOCHS)))
    for panel in grid:
        runs, sides = panel.data
        _draw_sides(panel, sides)
        is_dspt = (panel.entry.method, panel.entry.options) == ("dspt", ())
        if is_dspt and (classes := _classes(runs[0])):
            from dspt import theory

            for bound in theory.bounds(classes):
                panel.axis.axhline(bound, **_BOUND)
    # One loss on one dataset can be compared between noises; two losses never can.
    alike: dict[tuple[str, str], list[Any]] = {}
    for panel in grid:
        alike.setdefault((panel.setting.dataset, panel.entry.label), []).append(panel.axis)
    for axes in alike.values():
        plots.share_y(axes)
    _label_rows(grid, "mean loss")
    plots.legend(figure)
    return figure


def gradient_curves(results: Results) -> Any:
    """Return the figure of how strongly right and wrong labels pull over the first epochs."""
    figure, grid = _grid(results, lambda runs: _sides(results, runs, "gradient", GRADIENT_EPOCHS))
    for panel in grid:
        _draw_sides(panel, panel.data)
    _label_rows(grid, f"mean {plots.PULL}", one_scale=True)
    plots.legend(figure)
    return figure


def logitclip_tau(results: Results) -> Any:
    """Return the figure of LogitClip's accuracy over its threshold, against DSPT and zero-shot."""
    experiment = results.experiment
    thresholds = {e.label: tau for e in experiment.entries if (tau := _tau(e)) is not None}
    panels = []
    for setting in experiment.settings:
        cells = {tau: results.cell(setting, label) for label, tau in thresholds.items()}
        points = {tau: cell for tau, cell in sorted(cells.items()) if cell.values}
        if points:
            panels.append((setting, points))
    figure, axes = _panels(results, len(panels), min(4, len(panels)))
    for axis, (setting, points) in zip(axes, panels, strict=True):
        axis.set_xscale("log")
        _points(axis, points, **plots.STYLES["logitclip"])
        for entry in experiment.entries:
            cell = results.cell(setting, entry.label)
            if entry.label not in thresholds and cell.mean is not None:
                style = plots.STYLES[entry.method] | {"label": entry.label, "marker": ""}
                axis.axhline(cell.mean, **style)
                if cell.std:
                    low, high = cell.mean - cell.std, cell.mean + cell.std
                    axis.axhspan(low, high, color=style["color"], alpha=0.2, linewidth=0)
        _zero_shot(axis, results, setting.dataset)
        axis.set_title(_words(setting))
        axis.set_xlabel(r"threshold $\tau$")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: "")
        if _starts_row(axis):
            axis.set_ylabel("test accuracy (%)")
    plots.legend(figure)
    return figure


def early_accuracy(results: Results) -> Any:
    """Return the figure of test accuracy after each of the first epochs."""
    experiment = results.experiment
    settings = [
        s for s in experiment.settings if any(results.runs_of(s, e) for e in experiment.entries)
    ]
    figure, axes = _panels(results, len(settings), min(3, len(settings)), height=2.1)
    for axis, setting in zip(axes, settings, strict=True):
        for entry in experiment.entries:
            if runs := results.runs_of(setting, entry):
                values = _curve(results, runs, "accuracy", EARLY_EPOCHS)
                _line(axis, values, **plots.STYLES[entry.method] | {"label": entry.label})
        _zero_shot(axis, results, setting.dataset)
        axis.set_title(_words(setting))
        plots.epochs_axis(axis)
        if _starts_row(axis):
            axis.set_ylabel("test accuracy (%)")
    plots.legend(figure, columns=4)
    return figure


FIGURES: dict[str, Callable[[Results], Any]] = {
    "accuracy-vs-noise": accuracy_vs_noise,
    "gradient-distribution": gradient_distribution,
    "loss-curves": loss_curves,
    "gradient-curves": gradient_curves,
    "logitclip-tau": logitclip_tau,
    "early-accuracy": early_accuracy,
}


@dataclass(frozen=True)
class _Panel:
    """One panel of a grid whose rows are settings and whose columns are entries."""

    axis: Any
    setting: Setting
    entry: Entry
    data: Any
    own: str  # what tells its row from the others
    top: bool  # of its column
    bottom: bool


def _panels(results: Results, count: int, columns: int, height: float = 1.9) -> tuple[Any, Any]:
    """A figure and its panels, filled row by row."""
    if not count:
        raise _nothing(results)
    columns = min(columns, count)
    rows = -(-count // columns)
    width = ONE_COLUMN if count == 1 else TWO_COLUMNS
    figure = plots.blank(width, rows * height + 0.4)
    spec = figure.add_gridspec(rows, columns)
    return figure, [figure.add_subplot(spec[i // columns, i % columns]) for i in range(count)]


def _grid(results: Results, read: Callable[[list[Run]], Any]) -> tuple[Any, list[_Panel]]:
    """A figure and its panels in rows of settings and columns of entries, those that have runs."""
    experiment = results.experiment
    found = {
        (setting, entry): read(runs)
        for setting in experiment.settings
        for entry in experiment.entries
        if (runs := results.runs_of(setting, entry))
    }
    if not found:
        raise _nothing(results)
    rows = list(dict.fromkeys(setting for setting, _ in found))
    columns = [entry for entry in experiment.entries if any(entry == e for _, e in found)]
    figure = plots.blank(
        ONE_COLUMN if len(columns) == 1 else TWO_COLUMNS,
        len(rows) * (2.1 if len(columns) < 3 else 1.7) + 0.6,
    )
    spec = figure.add_gridspec(len(rows), len(columns))
    common, own = _common(rows)
    if common:
        figure.suptitle(common, fontsize="medium")
    panels = []
    for (setting, entry), data in found.items():
        column = [s for s, e in found if e == entry]
        axis = figure.add_subplot(spec[rows.index(setting), columns.index(entry)])
        panel = _Panel(
            axis, setting, entry, data, own[setting], setting == column[0], setting == column[-1]
        )
        if panel.top:
            axis.set_title(entry.label)
        panels.append(panel)
    return figure, panels


def _label_rows(grid: Sequence[_Panel], text: str, one_scale: bool = False) -> None:
    """Name the y-axis of each row once, at its left; with `one_scale` the row shares it from 0 on."""
    for _, row in groupby(grid, key=lambda panel: panel.setting):
        first, *others = row
        first.axis.set_ylabel(f"{first.own}\n{text}" if first.own else text)
        if one_scale:
            plots.share_y([first.axis, *(panel.axis for panel in others)])
            first.axis.set_ylim(bottom=0)
            for panel in others:
                panel.axis.tick_params(labelleft=False)


def _common(settings: Sequence[Setting]) -> tuple[str, dict[Setting, str]]:
    """What the settings have in common in words, and what each has of its own."""
    common, own = [], {setting: [] for setting in settings}  # type: ignore[var-annotated]
    for words in (lambda s: s.dataset, lambda s: _noise(s.noise)):
        if len({words(setting) for setting in settings}) == 1:
            common.append(words(settings[0]))
        else:
            for setting in settings:
                own[setting].append(words(setting))
    return ", ".join(common), {setting: "\n".join(texts) for setting, texts in own.items()}


def _noise(spec: str) -> str:
    """A noise in words: "sym:0.6" is "60 % symmetric"."""
    kind, _, rate = spec.partition(":")
    return f"{_percent(rate):g} % {KINDS[kind]}" if kind in KINDS else "no wrong labels"


def _words(setting: Setting) -> str:
    return f"{setting.dataset}\n{_noise(setting.noise)}"


def _starts_row(axis: Any) -> bool:
    return axis.get_subplotspec().is_first_col()


def _nothing(results: Results) -> InputError:
    name = results.experiment.name
    return InputError(f"{name}: there are no runs to draw; `dspt reproduce {name}` makes them")


def _accuracy_lines(results: Results, dataset: str, kind: str) -> dict[str, dict[float, Cell]]:
    """The cells of each entry by the percentage of wrong labels; clean labels are 0 of any kind."""
    lines: dict[str, dict[float, Cell]] = {}
    for setting in results.experiment.settings:
        found, _, rate = setting.noise.partition(":")
        if setting.dataset != dataset or found not in (kind, "none"):
            continue
        for entry in results.experiment.entries:
            if (cell := results.cell(setting, entry.label)).values:
                lines.setdefault(entry.label, {})[_percent(rate)] = cell
    return {label: dict(sorted(points.items())) for label, points in lines.items()}


def _shares(results: Results, dataset: str, kind: str) -> list[float]:
    """The percentages of wrong labels of a kind that the experiment has, from 0 on."""
    noises = [s.noise.partition(":") for s in results.experiment.settings if s.dataset == dataset]
    return sorted({0.0, *(_percent(rate) for found, _, rate in noises if found == kind)})


def _percent(rate: str) -> float:
    return round(100 * float(rate or 0), 6)


def _records(results: Results, run: Run, fields: Iterable[str]) -> list[dict[str, Any]]:
    """What a run recorded after each epoch, all of these fields among it."""
    try:
        records = run.records()
    except (OSError, InputError):
        records = []
    if not records:
        raise _damaged(results, run)
    missing = [field for field in fields if field not in records[0]]
    if missing == ["accuracy"]:
        raise InputError(
            f"run folder {run.folder}: it was made without a test set, so there is no accuracy to draw; "
            "give another --runs"
        )
    if missing and "loss_right" not in records[0]:
        raise InputError(
            f"run folder {run.folder}: it does not tell right from wrong labels (no {missing[0]}), "
            "because the true labels were not known; give another --runs"
        )
    if missing:
        raise InputError(
            f"run folder {run.folder}: it was made by an older version, "
            f"which did not record {missing[0]}; {_again(results)}"
        )
    return records


def _again(results: Results) -> str:
    return f"remove the folder and make it again with `dspt reproduce {results.experiment.name}`"


def _damaged(results: Results, run: Run) -> InputError:
    return InputError(
        f"run folder {run.folder}: metrics.jsonl is missing, empty or damaged; {_again(results)}"
    )


def _curve(results: Results, runs: Sequence[Run], field: str, epochs: int) -> np.ndarray:
    """A field over the first epochs, one row a seed; NaN where there is none."""
    rows = []
    for run in runs:
        values = [record.get(field) for record in _records(results, run, [field])[:epochs]]
        try:
            rows.append(np.array(values, dtype=float))
        except (TypeError, ValueError):
            raise _damaged(results, run) from None
    length = min(map(len, rows))
    return np.stack([row[:length] for row in rows])


def _sides(results: Results, runs: Sequence[Run], field: str, epochs: int) -> dict[str, np.ndarray]:
    """The curves of right and of wrong labels."""
    return {side: _curve(results, runs, f"{field}_{side}", epochs) for side in _SIDES}


def _draw_sides(panel: _Panel, sides: dict[str, np.ndarray]) -> None:
    for side, values in sides.items():
        if not np.isnan(values).all():
            _line(panel.axis, values, **_SIDES[side])
    plots.epochs_axis(panel.axis)
    if not panel.bottom:
        panel.axis.set_xlabel("")


def _histogram(
    results: Results, runs: Sequence[Run]
) -> tuple[list[float], dict[str, np.ndarray], dict[str, float]]:
    """Edges, counts and means of the first epoch's gradients of right and of wrong labels."""
    fields = ("gradient_histogram", *(f"gradient_{side}" for side in _SIDES))
    firsts = [_records(results, run, fields)[0] for run in runs]
    found = [first["gradient_histogram"] for first in firsts]
    for run, one in zip(runs, found, strict=True):
        try:
            sound = len(one["edges"]) == len(one["right"]) + 1 == len(one["wrong"]) + 1
            np.array([*one["edges"], *one["right"], *one["wrong"]], dtype=float)
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound:
            raise _damaged(results, run)
    counts = {side: np.sum([one[side] for one in found], axis=0) for side in _SIDES}
    means = {}
    for side in _SIDES:
        # weighed by its samples, so that it is the mean of what the histogram shows
        pairs = [(f[f"gradient_{side}"], sum(h[side])) for f, h in zip(firsts, found, strict=True)]
        known = [(mean, samples) for mean, samples in pairs if mean is not None and samples]
        if known:
            means[side] = float(np.average([m for m, _ in known], weights=[n for _, n in known]))
    return found[0]["edges"], counts, means


def _classes(run: Run) -> int | None:
    """How many classes a run had, if its folder tells."""
    try:
        text = (run.folder / "config.json").read_text(encoding="utf-8")
        classes = len(json.loads(text)["class_names"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return classes if classes > 1 else None


def _tau(entry: Entry) -> float | None:
    """The threshold of an entry of LogitClip."""
    options = dict(option.split("=", 1) for option in entry.options)
    return float(options["tau"]) if entry.method == "logitclip" and "tau" in options else None


def _points(axis: Any, points: dict[float, Cell], **style: Any) -> None:
    """Draw the mean of each cell, with a bar of one standard deviation over seeds either way."""
    means = [cell.mean for cell in points.values()]
    axis.plot(list(points), means, **style)
    stds = [cell.std or 0 for cell in points.values()]
    if any(stds):
        axis.errorbar(
            list(points), means, stds, fmt="none", ecolor=style["color"], elinewidth=1, capsize=2
        )


def _line(axis: Any, values: np.ndarray, **style: Any) -> None:
    """Draw the mean over seeds (rows) after each epoch, with a band of one standard deviation."""
    epochs = np.arange(1, values.shape[1] + 1)
    mean = values.mean(axis=0)
    axis.plot(epochs, mean, markevery=max(1, len(epochs) // 10), **style)
    if len(values) > 1:
        std = values.std(axis=0, ddof=1)
        axis.fill_between(
            epochs, mean - std, mean + std, color=style["color"], alpha=0.2, linewidth=0
        )


def _zero_shot(axis: Any, results: Results, dataset: str) -> None:
    cell = results.zero_shot.get(dataset)
    if cell is not None and cell.mean is not None:
        axis.axhline(cell.mean, **plots.ZERO_SHOT)
