"""The paper's figures, drawn from run folders: PDF for print, PNG for the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dspt import plots
from dspt.experiments import curves, words
from dspt.experiments.catalogue import LANDSCAPE, Condition, Variant
from dspt.experiments.collect import Cell, Results, TableRun, seeds_in_words
from dspt.internal.errors import InputError
from dspt.runs import made_with

LOSS_EPOCHS = GRADIENT_EPOCHS = 20
EARLY_EPOCHS = 10

# What is drawn apart: by the label, and by the prediction.
_SIDES = {
    "right": {"color": plots.RIGHT, "linestyle": "-", "marker": "o", "label": "correctly\nlabelled"},
    "wrong": {"color": plots.WRONG, "linestyle": "--", "marker": "X", "label": "mislabelled"},
    "correct": {"color": plots.RIGHT, "linestyle": "-", "marker": "o", "label": "correctly\npredicted"},
    "incorrect": {"color": plots.WRONG, "linestyle": "--", "marker": "X", "label": "incorrectly\npredicted"},
}
_UNCUT = "Shaded: nothing is cut, since no logits are as long as 1/τ."
_BOUND = {"color": "0.3", "linewidth": 0.7}
_BAND = "Bands: from the lowest to the highest seed."


def draw(results: Results, path: Path) -> list[Path]:
    """Draw the figure of an experiment and return its files: `path`.pdf and .png, or a picture's `path` itself."""
    name = results.experiment.name
    if name not in FIGURES:
        raise InputError(
            f"experiment {name!r}: it is no figure, see 'dspt table {name}'; the figures are "
            f"{', '.join((*FIGURES, LANDSCAPE))}"
        )
    if not results.runs:
        raise _nothing(results)
    files = plots.files(path)
    with plots.look():
        figure = FIGURES[name](results)
        for file in files:
            plots.save(figure, file)
    return files


def accuracy_vs_noise(results: Results) -> Any:
    """Return the figure of test accuracy over the share of wrong labels, two panels a dataset."""
    found = []
    for dataset in results.experiment.datasets:
        for kind in words.KINDS:
            lines = _accuracy_lines(results, dataset, kind)
            if any(share > 0 for points in lines.values() for share in points):
                found.append((dataset, kind, lines))
    cuts = {
        dataset: plots.cut_below(_means(lines for one, _, lines in found if one == dataset)) for dataset, *_ in found
    }
    # Two datasets side by side fill the width of a page.
    figure, panels = _panels(results, [cuts[dataset] for dataset, *_ in found], 4 if len(cuts) > 1 else 2)
    for panel, (dataset, kind, lines) in zip(panels, found, strict=True):
        for axis in panel.axes:
            for variant, points in lines.items():
                _points(axis, points, **plots.style(variant.method, variant.label))
        _finish(panel, results, dataset, f"{plots.caption(dataset)}\n{words.KINDS[kind]}")
        panel.bottom.set_xlabel("wrong labels (%)")
        shares = _shares(results, dataset, kind)
        panel.bottom.set_xticks(shares)
        panel.bottom.set_xlim(-0.05 * shares[-1], 1.05 * shares[-1])
    scales = _share_scales(panels, [dataset for dataset, *_ in found], cuts)
    furthest = {words.KINDS[kind]: _shares(results, dataset, kind)[-1] for dataset, kind, _ in found}
    if len(set(furthest.values())) > 1:
        reach = ", ".join(f"to {share:g} % {kind}" for kind, share in furthest.items())
        scales.append(f"The x-axes differ: {reach}.")
    return _named(figure, results, _ends_of_rows(panels), _BAND, *scales)


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
    _label_rows(grid, "share of each kind (%)", one_scale=True)
    return _named(figure, results, [])


def loss_curves(results: Results) -> Any:
    """Return the figure of the mean loss of right and wrong labels over the first epochs.

    For DSPT thin lines mark the least and the greatest value its loss can take.
    """
    figure, grid = _grid(results, lambda runs: (runs[0], curves.sides(results, runs, "loss", LOSS_EPOCHS)))
    for panel in grid:
        run, sides = panel.data
        _draw_sides(panel.axis, sides)
        if (panel.variant.method, panel.variant.options) == ("dspt", ()):
            for bound, name in zip(_bounds(run), ("lower bound", "upper bound"), strict=True):
                panel.axis.axhline(bound, label=name, **_BOUND)
    # One loss on one dataset can be compared between noises; two losses never can.
    alike: dict[tuple[str, str], list[plots.Panel]] = {}
    for panel in grid:
        alike.setdefault((panel.condition.dataset, panel.variant.label), []).append(plots.Panel((panel.axis,)))
    for panels in alike.values():
        plots.fit(panels)
    _label_rows(grid, "mean loss")
    return _named(
        figure, results, _last_of_rows(grid), _BAND, "Each loss has its own scale, the same under every noise."
    )


def gradient_curves(results: Results) -> Any:
    """Return the figure of how strongly right and wrong labels pull over the first epochs."""
    figure, grid = _grid(results, lambda runs: curves.sides(results, runs, "gradient", GRADIENT_EPOCHS))
    for panel in grid:
        # Its parts differ by a factor of a hundred: on a linear axis all but cross-entropy would be zero.
        panel.axis.set_yscale("log", subs=[2, 5])
        for which in (panel.axis.yaxis.set_major_formatter, panel.axis.yaxis.set_minor_formatter):
            which(lambda value, _: f"{value:g}")
        _draw_sides(panel.axis, panel.data)
    _label_rows(grid, f"mean {plots.PULL}", one_scale=True)
    return _named(figure, results, _last_of_rows(grid), _BAND, "Logarithmic scale, the same in a row.")


def logitclip_tau(results: Results) -> Any:
    """Return the figure of LogitClip's accuracy over its threshold, against CoOp, DSPT and zero-shot."""
    experiment = results.experiment
    thresholds = {v.label: tau for v in experiment.variants if (tau := _tau(v)) is not None}
    found = []
    for condition in experiment.conditions:
        cells = {tau: results.cell(condition, label) for label, tau in thresholds.items()}
        points = {tau: cell for tau, cell in sorted(cells.items()) if cell.values}
        if points:
            found.append((condition, points))
    figure, panels = _panels(results, [None] * len(found), min(4, len(found)))
    shaded = False
    for panel, (condition, points) in zip(panels, found, strict=True):
        axis = panel.top
        axis.set_xscale("log")
        _points(
            axis, points, **plots.style("logitclip"), zorder=2.6
        )  # it is often as good as DSPT, whose line is broad
        for variant in experiment.variants:
            cell = results.cell(condition, variant.label)
            if variant.label not in thresholds and cell.mean is not None:
                style = plots.style(variant.method, variant.label) | {"marker": ""}
                axis.axhline(cell.mean, **style)
                if len(cell.values) > 1:
                    axis.axhspan(min(cell.values), max(cell.values), color=style["color"], alpha=0.2, linewidth=0)
        _finish(panel, results, condition.dataset, _title(condition))
        shaded |= _mark_unclipped(axis, results, condition)
        axis.set_xlabel(r"threshold $\tau$")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: "")
    scales = _share_scales(panels, [condition.dataset for condition, _ in found])
    return _named(figure, results, panels[-1:], _BAND, *([_UNCUT] if shaded else []), *scales)


def early_accuracy(results: Results) -> Any:
    """Return the figure of the first epochs: test accuracy, and the losses of correct and incorrect predictions.

    The paper's text speaks of the losses, its caption of the accuracy.
    """
    experiment = results.experiment
    found = {
        condition: runs
        for condition in experiment.conditions
        if (runs := {v: some for v in experiment.variants if (some := results.runs_of(condition, v))})
    }
    if not found:
        raise _nothing(results)
    figure = plots.blank(plots.TWO_COLUMNS, 4.4 * len(found))
    spec = figure.add_gridspec(2 * len(found), len(experiment.variants), height_ratios=[1.3, 1] * len(found))
    named, broken = [], False
    for row, (condition, runs) in enumerate(found.items()):
        values = {v: curves.curve(results, some, "accuracy", EARLY_EPOCHS) for v, some in runs.items()}
        cut = plots.cut_below(np.concatenate([one.mean(axis=0) for one in values.values()]))
        panel = plots.panel(figure, spec[2 * row, :], cut)
        broken |= cut is not None
        for axis in panel.axes:
            for variant, one in values.items():
                _line(axis, one, **plots.style(variant.method, variant.label))
        _finish(panel, results, condition.dataset, _title(condition).replace("\n", ", "))
        plots.epochs_axis(panel.bottom)
        plots.fit([panel], cut)
        named.append(panel)
        for column, variant in enumerate(runs):
            axis = figure.add_subplot(spec[2 * row + 1, column])
            losses = curves.sides(results, runs[variant], "loss", EARLY_EPOCHS, ("correct", "incorrect"))
            _draw_sides(axis, losses)
            axis.set_title(plots.caption(variant.label))
            if not column:
                axis.set_ylabel("mean training loss")
        named.append(plots.Panel((axis,)))
    scales = ["Each loss has its own scale.", *([plots.BROKEN] if broken else [])]
    return _named(figure, results, named, _BAND, *scales)


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


def _panels(
    results: Results, cuts: Sequence[float | None], columns: int, height: float = 1.9
) -> tuple[Any, list[plots.Panel]]:
    """Return a figure and its panels, filled row by row: one for each cut of a y-axis, None for one in one piece."""
    if not cuts:
        raise _nothing(results)
    columns = min(columns, len(cuts))
    rows = -(-len(cuts) // columns)
    if any(cut is not None for cut in cuts):
        height += 0.7
    width = plots.ONE_COLUMN if len(cuts) == 1 else plots.TWO_COLUMNS
    figure = plots.blank(width, rows * height + 0.4)
    return figure, plots.panels(figure, cuts, columns)


def _share_scales(
    panels: Sequence[plots.Panel], datasets: Sequence[str], cuts: Mapping[str, float | None] | None = None
) -> list[str]:
    """Give the panels of a dataset one y-axis, whose numbers stand once, and return what is to be said of it."""
    for dataset in dict.fromkeys(datasets):
        own = [panel for panel, one in zip(panels, datasets, strict=True) if one == dataset]
        plots.fit(own, cuts[dataset] if cuts else None)
    for (before, dataset), panel in zip(pairwise(datasets), panels[1:], strict=True):
        if before == dataset and not _starts_row(panel):
            panel.hide_y()
    said = ["Each dataset has its own scale."] if len(set(datasets)) > 1 else []
    return said + ([plots.BROKEN] if any(cut is not None for cut in (cuts or {}).values()) else [])


def _named(figure: Any, results: Results, panels: Sequence[plots.Panel], *sentences: str) -> Any:
    """Return the figure with what it was made with below it, and names at the lines of these panels."""
    made = made_with((run.settings, run.text_tower) for run in results.runs)
    several = any(len(cell.values) > 1 for cell in results.cells.values())
    told = [sentence for sentence in sentences if several or sentence != _BAND]
    plots.note(figure, " ".join([f"{made}; {seeds_in_words(results)}.", *told]))
    plots.name_lines(figure, panels)
    return figure


def _ends_of_rows(panels: Sequence[plots.Panel]) -> list[plots.Panel]:
    """Return the panels at which a row ends."""
    return [a for a, b in zip(panels, [*panels[1:], None], strict=True) if b is None or _starts_row(b)]


def _last_of_rows(grid: Sequence[_Panel]) -> list[plots.Panel]:
    """Return the last panel of each row of a grid."""
    return [plots.Panel((list(row)[-1].axis,)) for _, row in groupby(grid, key=lambda panel: panel.condition)]


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
        plots.ONE_COLUMN if len(columns) == 1 else plots.TWO_COLUMNS,
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
    """Name the y-axis of each row once, at its left; with `one_scale` the row shares it."""
    for _, row in groupby(grid, key=lambda panel: panel.condition):
        first, *others = row
        first.axis.set_ylabel(f"{first.own}\n{text}" if first.own else text)
        if one_scale:
            for panel in others:
                panel.axis.sharey(first.axis)
                panel.axis.tick_params(which="both", labelleft=False)
            first.axis.autoscale(axis="y")
            if first.axis.get_yscale() == "linear":
                first.axis.set_ylim(bottom=0)


def _common(conditions: Sequence[Condition]) -> tuple[str, dict[Condition, str]]:
    """Return what the conditions have in common in words, and what each has of its own."""
    texts = {c: (plots.caption(c.dataset), plots.caption(words.phrase(c.noise))) for c in conditions}
    shared = {text for text in texts[conditions[0]] if all(text in own for own in texts.values())}
    own = {condition: "\n".join(text for text in found if text not in shared) for condition, found in texts.items()}
    return ", ".join(text for text in texts[conditions[0]] if text in shared), own


def _title(condition: Condition) -> str:
    return f"{plots.caption(condition.dataset)}\n{plots.caption(words.phrase(condition.noise))}"


def _finish(panel: plots.Panel, results: Results, dataset: str, title: str) -> None:
    """Add to a panel of accuracies what all of them have: zero-shot, a title, and the name of the y-axis."""
    zero_shot = results.zero_shot.get(dataset, Cell()).mean
    if zero_shot is not None:
        for axis in panel.axes:
            axis.axhline(zero_shot, **plots.ZERO_SHOT)
    panel.top.set_title(title)
    if _starts_row(panel):
        plots.name_y([panel], "test accuracy (%)")


def _starts_row(panel: plots.Panel) -> bool:
    found: bool = panel.top.get_subplotspec().get_topmost_subplotspec().is_first_col()
    return found


def _nothing(results: Results) -> InputError:
    name = results.experiment.name
    return InputError(f"{name}: there are no runs to draw; 'dspt reproduce {name}' makes them")


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


def _draw_sides(axis: Any, sides: dict[str, np.ndarray]) -> None:
    for side, values in sides.items():
        if not np.isnan(values).all():
            _line(axis, values, **_SIDES[side])
    plots.epochs_axis(axis)


def _bounds(run: TableRun) -> tuple[float, ...]:
    """Return the least and the greatest value of DSPT's loss."""
    from dspt import theory  # it loads torch, which no other figure needs

    return theory.bounds(len(run.class_names))


def _tau(variant: Variant) -> float | None:
    """Return the threshold of a variant of LogitClip."""
    options = dict(option.split("=", 1) for option in variant.options)
    return float(options["tau"]) if variant.method == "logitclip" and "tau" in options else None


def _mark_unclipped(axis: Any, results: Results, condition: Condition) -> bool:
    """Return whether thresholds are shaded: those at which no logits of cross-entropy were ever as long as 1 / tau."""
    variants = [variant for variant in results.experiment.variants if variant.method == "coop"]
    runs = [run for variant in variants for run in results.runs_of(condition, variant)]
    longest = curves.largest(runs, "longest_logits")
    if not longest:  # an earlier version did not record it
        return False
    left, right = axis.get_xlim()
    left = min(left, 0.5 / longest)
    axis.axvspan(left, 1 / longest, color="0.85", linewidth=0, zorder=0)
    axis.set_xlim(left, right)
    return True


def _means(panels: Iterable[dict[Variant, dict[float, Cell]]]) -> list[float]:
    """Return the mean of every cell of some panels."""
    return [
        cell.mean for lines in panels for points in lines.values() for cell in points.values() if cell.mean is not None
    ]


def _points(axis: Any, points: dict[float, Cell], **style: Any) -> None:
    """Draw the mean of each cell, with a band from its lowest to its highest seed."""
    means = np.array([cell.mean for cell in points.values()], dtype=float)
    axis.plot(list(points), means, **style)
    if any(len(cell.values) > 1 for cell in points.values()):
        low, high = ([edge(cell.values) for cell in points.values()] for edge in (min, max))
        axis.fill_between(list(points), low, high, color=style["color"], alpha=0.2, linewidth=0)


def _line(axis: Any, values: np.ndarray, **style: Any) -> None:
    """Draw the mean over seeds (rows) after each epoch, with a band from the lowest to the highest."""
    epochs = np.arange(1, values.shape[1] + 1)
    axis.plot(epochs, values.mean(axis=0), markevery=max(1, len(epochs) // 10), **style)
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axis.fill_between(epochs, low, high, color=style["color"], alpha=0.2, linewidth=0)
