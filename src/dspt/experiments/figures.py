"""The paper's figures, drawn from run folders: PDF for print, PNG for the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dspt import plots
from dspt.experiments import curves, words
from dspt.experiments.catalogue import Condition, Variant
from dspt.experiments.collect import Cell, Results, TableRun
from dspt.internal.errors import InputError

# The widths of one and of two columns of a paper, in inches.
ONE_COLUMN, TWO_COLUMNS = 3.25, 6.75
LOSS_EPOCHS = GRADIENT_EPOCHS = 20
EARLY_EPOCHS = 10

_SIDES = {
    "right": {"color": plots.RIGHT, "linestyle": "-", "marker": "o", "label": "correctly labelled"},
    "wrong": {"color": plots.WRONG, "linestyle": "--", "marker": "X", "label": "mislabelled"},
}
_UNCUT = r"nothing is cut: no logits as long as $1/\tau$"
_BOUND = {"color": "0.3", "linewidth": 0.7, "label": "bounds of DSPT's loss"}


def draw(results: Results, path: Path) -> list[Path]:
    """Draw the figure of an experiment and return the two files: `path`.pdf and `path`.png."""
    name = results.experiment.name
    if name not in FIGURES:
        raise InputError(
            f"experiment {name!r}: it is no figure, see `dspt table {name}`; the figures are {', '.join(FIGURES)}"
        )
    if not results.runs:
        raise _nothing(results)
    # A name may hold a dot, so the suffix is added and not put in place of another.
    files = [path.with_name(path.name + suffix) for suffix in (".pdf", ".png")]
    with plots.look():
        figure = FIGURES[name](results)
        for file in files:
            plots.save(figure, file)
    return files


def accuracy_vs_noise(results: Results) -> Any:
    """Return the figure of test accuracy over the share of wrong labels, two panels a dataset."""
    panels = []
    for dataset in results.experiment.datasets:
        for kind in words.KINDS:
            lines = _accuracy_lines(results, dataset, kind)
            if any(share > 0 for points in lines.values() for share in points):
                panels.append((dataset, kind, lines))
    # Two datasets side by side fill the width of a page.
    figure, axes = _panels(results, len(panels), 4 if len({p[0] for p in panels}) > 1 else 2)
    for index, (axis, (dataset, kind, lines)) in enumerate(zip(axes, panels, strict=True)):
        for variant, points in lines.items():
            _points(axis, points, **plots.style(variant.method, variant.label))
        _finish(axis, results, dataset, f"{plots.caption(dataset)}\n{words.KINDS[kind]}")
        axis.set_xlabel("wrong labels (%)")
        shares = _shares(results, dataset, kind)
        axis.set_xticks(shares)
        axis.set_xlim(-0.05 * shares[-1], 1.05 * shares[-1])
        if not _starts_row(axis) and panels[index - 1][0] == dataset:
            axis.tick_params(labelleft=False)
    for dataset in results.experiment.datasets:
        plots.share_y([a for a, panel in zip(axes, panels, strict=True) if panel[0] == dataset])
    plots.legend(figure)
    return figure


def gradient_distribution(results: Results) -> Any:
    """Return the figure of how strongly right and wrong labels pull at the logits at the start."""
    figure, grid = _grid(results, lambda runs: curves.histogram(results, runs))
    softmaxes = {"coop": "single softmax", "dspt": "double softmax"}
    for panel in grid:
        plots.shares(panel.axis, *panel.data)
        if panel.top and panel.variant.method in softmaxes:
            panel.axis.set_title(f"{plots.caption(panel.variant.label)}: {softmaxes[panel.variant.method]}")
        if panel.bottom:
            panel.axis.set_xlabel(f"gradient on the logits, {plots.PULL}")
    _label_rows(grid, "share of samples (%)", one_scale=True)
    plots.legend(figure, columns=4)
    return figure


def loss_curves(results: Results) -> Any:
    """Return the figure of the mean loss of right and wrong labels over the first epochs.

    For DSPT thin lines mark the least and the greatest value its loss can take.
    """
    figure, grid = _grid(results, lambda runs: (runs[0], curves.sides(results, runs, "loss", LOSS_EPOCHS)))
    for panel in grid:
        run, sides = panel.data
        _draw_sides(panel, sides)
        if (panel.variant.method, panel.variant.options) == ("dspt", ()):
            for bound in _bounds(run):
                panel.axis.axhline(bound, **_BOUND)
    # One loss on one dataset can be compared between noises; two losses never can.
    alike: dict[tuple[str, str], list[Any]] = {}
    for panel in grid:
        alike.setdefault((panel.condition.dataset, panel.variant.label), []).append(panel.axis)
    for axes in alike.values():
        plots.share_y(axes)
    _label_rows(grid, "mean loss")
    plots.legend(figure)
    return figure


def gradient_curves(results: Results) -> Any:
    """Return the figure of how strongly right and wrong labels pull over the first epochs."""
    figure, grid = _grid(results, lambda runs: curves.sides(results, runs, "gradient", GRADIENT_EPOCHS))
    for panel in grid:
        _draw_sides(panel, panel.data)
    _label_rows(grid, f"mean {plots.PULL}", one_scale=True)
    plots.legend(figure)
    return figure


def logitclip_tau(results: Results) -> Any:
    """Return the figure of LogitClip's accuracy over its threshold, against CoOp, DSPT and zero-shot."""
    experiment = results.experiment
    thresholds = {v.label: tau for v in experiment.variants if (tau := _tau(v)) is not None}
    panels = []
    for condition in experiment.conditions:
        cells = {tau: results.cell(condition, label) for label, tau in thresholds.items()}
        points = {tau: cell for tau, cell in sorted(cells.items()) if cell.values}
        if points:
            panels.append((condition, points))
    figure, axes = _panels(results, len(panels), min(4, len(panels)))
    for axis, (condition, points) in zip(axes, panels, strict=True):
        axis.set_xscale("log")
        _points(axis, points, **plots.style("logitclip"))
        for variant in experiment.variants:
            cell = results.cell(condition, variant.label)
            if variant.label not in thresholds and cell.mean is not None:
                style = plots.style(variant.method, variant.label) | {"marker": ""}
                axis.axhline(cell.mean, **style)
                if cell.std:
                    low, high = cell.mean - cell.std, cell.mean + cell.std
                    axis.axhspan(low, high, color=style["color"], alpha=0.2, linewidth=0)
        _finish(axis, results, condition.dataset, _title(condition))
        _mark_unclipped(axis, results, condition)
        axis.set_xlabel(r"threshold $\tau$")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: "")
    plots.legend(figure)
    return figure


def early_accuracy(results: Results) -> Any:
    """Return the figure of test accuracy after each of the first epochs."""
    variants = results.experiment.variants
    conditions = [s for s in results.experiment.conditions if any(results.runs_of(s, v) for v in variants)]
    figure, axes = _panels(results, len(conditions), min(3, len(conditions)), height=2.1)
    for axis, condition in zip(axes, conditions, strict=True):
        for variant in variants:
            if runs := results.runs_of(condition, variant):
                values = curves.curve(results, runs, "accuracy", EARLY_EPOCHS)
                _line(axis, values, **plots.style(variant.method, variant.label))
        _finish(axis, results, condition.dataset, _title(condition))
        plots.epochs_axis(axis)
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
    """One panel of a grid whose rows are conditions and whose columns are variants."""

    axis: Any
    condition: Condition
    variant: Variant
    data: Any
    own: str  # what tells its row from the others
    top: bool  # of its column
    bottom: bool


def _panels(results: Results, count: int, columns: int, height: float = 1.9) -> tuple[Any, Any]:
    """Return a figure and its panels, filled row by row."""
    if not count:
        raise _nothing(results)
    columns = min(columns, count)
    rows = -(-count // columns)
    width = ONE_COLUMN if count == 1 else TWO_COLUMNS
    figure = plots.blank(width, rows * height + 0.4)
    spec = figure.add_gridspec(rows, columns)
    return figure, [figure.add_subplot(spec[i // columns, i % columns]) for i in range(count)]


def _grid(results: Results, read: Callable[[list[TableRun]], Any]) -> tuple[Any, list[_Panel]]:
    """Return a figure and its panels in rows of conditions and columns of variants, those that have runs."""
    experiment = results.experiment
    found = {
        (condition, variant): read(runs)
        for condition in experiment.conditions
        for variant in experiment.variants
        if (runs := results.runs_of(condition, variant))
    }
    if not found:
        raise _nothing(results)
    rows = list(dict.fromkeys(condition for condition, _ in found))
    columns = [variant for variant in experiment.variants if any(variant == v for _, v in found)]
    figure = plots.blank(
        ONE_COLUMN if len(columns) == 1 else TWO_COLUMNS,
        len(rows) * (2.1 if len(columns) < 3 else 1.7) + 0.6,
    )
    spec = figure.add_gridspec(len(rows), len(columns))
    common, own = _common(rows)
    if common:
        figure.suptitle(common, fontsize="medium")
    panels = []
    for (condition, variant), data in found.items():
        column = [s for s, v in found if v == variant]
        axis = figure.add_subplot(spec[rows.index(condition), columns.index(variant)])
        panel = _Panel(axis, condition, variant, data, own[condition], condition == column[0], condition == column[-1])
        if panel.top:
            axis.set_title(plots.caption(variant.label))
        panels.append(panel)
    return figure, panels


def _label_rows(grid: Sequence[_Panel], text: str, one_scale: bool = False) -> None:
    """Name the y-axis of each row once, at its left; with `one_scale` the row shares it from 0 on."""
    for _, row in groupby(grid, key=lambda panel: panel.condition):
        first, *others = row
        first.axis.set_ylabel(f"{first.own}\n{text}" if first.own else text)
        if one_scale:
            plots.share_y([first.axis, *(panel.axis for panel in others)])
            first.axis.set_ylim(bottom=0)
            for panel in others:
                panel.axis.tick_params(labelleft=False)


def _common(conditions: Sequence[Condition]) -> tuple[str, dict[Condition, str]]:
    """Return what the conditions have in common in words, and what each has of its own."""
    texts = {c: (plots.caption(c.dataset), plots.caption(words.phrase(c.noise))) for c in conditions}
    shared = {text for text in texts[conditions[0]] if all(text in own for own in texts.values())}
    own = {condition: "\n".join(text for text in found if text not in shared) for condition, found in texts.items()}
    return ", ".join(text for text in texts[conditions[0]] if text in shared), own


def _title(condition: Condition) -> str:
    return f"{plots.caption(condition.dataset)}\n{plots.caption(words.phrase(condition.noise))}"


def _finish(axis: Any, results: Results, dataset: str, title: str) -> None:
    """Add to a panel of accuracies what all of them have: zero-shot, a title, and the name of the y-axis."""
    zero_shot = results.zero_shot.get(dataset, Cell()).mean
    if zero_shot is not None:
        axis.axhline(zero_shot, **plots.ZERO_SHOT)
    axis.set_title(title)
    if _starts_row(axis):
        axis.set_ylabel("test accuracy (%)")


def _starts_row(axis: Any) -> bool:
    found: bool = axis.get_subplotspec().is_first_col()
    return found


def _nothing(results: Results) -> InputError:
    name = results.experiment.name
    return InputError(f"{name}: there are no runs to draw; `dspt reproduce {name}` makes them")


def _accuracy_lines(results: Results, dataset: str, kind: str) -> dict[Variant, dict[float, Cell]]:
    """Return the cells of each variant by the percentage of wrong labels; clean labels are 0 of any kind."""
    lines: dict[Variant, dict[float, Cell]] = {}
    for variant in results.experiment.variants:
        for condition in results.experiment.conditions:
            cell = results.cell(condition, variant.label)
            fits = words.kind(condition.noise) in (kind, "none")
            if condition.dataset == dataset and fits and cell.values:
                lines.setdefault(variant, {})[words.percentage(condition.noise)] = cell
    return {variant: dict(sorted(points.items())) for variant, points in lines.items()}


def _shares(results: Results, dataset: str, kind: str) -> list[float]:
    """Return the percentages of wrong labels of a kind that the experiment has, from 0 on."""
    noises = [s.noise for s in results.experiment.conditions if s.dataset == dataset]
    return sorted({0.0, *(words.percentage(n) for n in noises if words.kind(n) == kind)})


def _draw_sides(panel: _Panel, sides: dict[str, np.ndarray]) -> None:
    for side, values in sides.items():
        if not np.isnan(values).all():
            _line(panel.axis, values, **_SIDES[side])
    plots.epochs_axis(panel.axis)
    if not panel.bottom:
        panel.axis.set_xlabel("")


def _bounds(run: TableRun) -> tuple[float, ...]:
    """Return the least and the greatest value of DSPT's loss."""
    from dspt import theory  # it loads torch, which no other figure needs

    return theory.bounds(len(run.class_names))


def _tau(variant: Variant) -> float | None:
    """Return the threshold of a variant of LogitClip."""
    options = dict(option.split("=", 1) for option in variant.options)
    return float(options["tau"]) if variant.method == "logitclip" and "tau" in options else None


def _mark_unclipped(axis: Any, results: Results, condition: Condition) -> None:
    """Shade the thresholds at which nothing is cut, since no logits of cross-entropy were ever as long as 1 / tau."""
    variants = [variant for variant in results.experiment.variants if variant.method == "coop"]
    runs = [run for variant in variants for run in results.runs_of(condition, variant)]
    longest = curves.largest(runs, "longest_logits")
    if not longest:  # an earlier version did not record it
        return
    left, right = axis.get_xlim()
    left = min(left, 0.5 / longest)
    axis.axvspan(left, 1 / longest, color="0.85", linewidth=0, zorder=0, label=_UNCUT)
    axis.set_xlim(left, right)


def _points(axis: Any, points: dict[float, Cell], **style: Any) -> None:
    """Draw the mean of each cell, with a bar of one standard deviation over seeds either way."""
    means = [cell.mean for cell in points.values()]
    axis.plot(list(points), means, **style)
    stds = [cell.std or 0 for cell in points.values()]
    if any(stds):
        axis.errorbar(list(points), means, stds, fmt="none", ecolor=style["color"], elinewidth=1, capsize=2)


def _line(axis: Any, values: np.ndarray, **style: Any) -> None:
    """Draw the mean over seeds (rows) after each epoch, with a band of one standard deviation."""
    epochs = np.arange(1, values.shape[1] + 1)
    mean = values.mean(axis=0)
    axis.plot(epochs, mean, markevery=max(1, len(epochs) // 10), **style)
    if len(values) > 1:
        std = values.std(axis=0, ddof=1)
        axis.fill_between(epochs, mean - std, mean + std, color=style["color"], alpha=0.2, linewidth=0)
