"""Results in the places the paper gives them: every figure with its row, its column and its rank.

Each way to show a table draws the same `Layout`. Our mean stands first; the paper's figure and our difference from it
stand below. A cell without runs is empty.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspt.experiments import paper
from dspt.experiments.catalogue import EXPERIMENTS, NINE, Experiment, Setting, plain
from dspt.experiments.collect import Cell, Results

ZERO_SHOT = "zero-shot"
AVERAGE = "AVG"
THEIRS = "paper, diff."  # heads the line below ours
MARKED = "Bold is the best of a setting, underlined the second-best, compared to two decimals."
NOTHING = "No finished runs belong to this table yet."
FIELDS = (
    *("experiment", "dataset", "noise", "method", "options"),
    *("seeds", "mean", "std", "paper", "difference", "rank"),
)
KINDS = {"sym": "symmetric", "pair": "pair-flip"}


@dataclass(frozen=True)
class Shown:
    """A cell in its place, with its rank in its setting: 1, 2 or None."""

    cell: Cell
    rank: int | None = None


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    label: str
    figures: tuple[Shown, ...]

    @property
    def compared(self) -> bool:
        """Whether there is a figure of the paper beside any of ours."""
        return any(shown.cell.difference is not None for shown in self.figures)


@dataclass(frozen=True)
class Block:
    """The rows that belong to one dataset; without a name if there is only one block."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Layout:
    """A table as it is read: columns with the group each belongs to ("" if none), and blocks of rows."""

    rows_are: str  # "method" or "noise"
    columns: tuple[tuple[str, str], ...]
    blocks: tuple[Block, ...]

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, block by block."""
        return (row for block in self.blocks for row in block.rows)


def layout(results: Results) -> Layout:
    """Return the figures in the places the paper gives them.

    What stands side by side follows from the noises: one only, and it is the datasets; a few, and it is the methods;
    more, and it is the noises, with a block of methods for each dataset.
    """
    experiment = results.experiment
    figures = _figures(results)
    methods = (None, *(entry.label for entry in experiment.entries))
    averaged = any(key[0] is None and shown.cell.values for key, shown in figures.items())
    datasets = (*experiment.datasets, None) if averaged else experiment.datasets

    def row(label: str, keys: Sequence[tuple[str | None, str, str | None]]) -> Row:
        return Row(label, tuple(figures.get(key, Shown(Cell())) for key in keys))

    across = _across(experiment)
    if across == "datasets":
        noise = experiment.noises[0]
        rows = tuple(row(m or ZERO_SHOT, [(d, noise, m) for d in datasets]) for m in methods)
        return Layout("method", tuple(("", d or AVERAGE) for d in datasets), (Block("", rows),))
    if across == "noises":
        noises = experiment.noises
        blocks = tuple(
            Block(
                d or AVERAGE,
                tuple(row(m or ZERO_SHOT, [(d, n, m) for n in noises]) for m in methods),
            )
            for d in datasets
        )
        return Layout("method", tuple(map(noise_label, noises)), blocks)
    blocks = tuple(
        Block(
            d,
            tuple(
                row(short_noise(s.noise), [(d, s.noise, m) for m in methods[1:]])
                for s in experiment.settings
                if s.dataset == d
            ),
        )
        for d in experiment.datasets
    )
    return Layout("noise", tuple(("", m or "") for m in methods[1:]), blocks)


def _across(experiment: Experiment) -> str:
    if experiment.from_scratch or len(experiment.noises) == 2:
        return "methods"
    if len(experiment.noises) == 1:
        return "datasets"
    return "noises"


def _figures(results: Results) -> dict[tuple[str | None, str, str | None], Shown]:
    """Every figure by dataset (None: their average), noise and label (None: zero-shot)."""
    experiment = results.experiment
    datasets = experiment.datasets
    labels = [entry.label for entry in experiment.entries]
    figures: dict[tuple[str | None, str, str | None], Shown] = {}
    for setting in experiment.settings:
        ranks = results.ranks(setting)
        for label in labels:
            shown = Shown(results.cell(setting, label), ranks.get(label))
            figures[setting.dataset, setting.noise, label] = shown
        zero_shot = results.zero_shot.get(setting.dataset, Cell())
        figures[setting.dataset, setting.noise, None] = Shown(zero_shot)
    if len(datasets) < 2:
        return figures

    # The paper's average is of its nine datasets, so it says nothing beside an average of others.
    all_nine = set(map(plain, datasets)) == set(map(plain, NINE))
    for noise in experiment.noises:
        setting = Setting(AVERAGE, noise)
        cells = {}
        for label in labels:
            printed = paper.accuracy(experiment.name, setting, label) if all_nine else None
            parts = [results.cell(Setting(dataset, noise), label) for dataset in datasets]
            cells[setting, label] = _average(parts, printed)
        ranks = replace(results, cells=cells).ranks(setting)
        for label in labels:
            figures[None, noise, label] = Shown(cells[setting, label], ranks.get(label))
        parts = [results.zero_shot.get(dataset, Cell()) for dataset in datasets]
        printed = paper.zero_shot(AVERAGE) if all_nine else None
        figures[None, noise, None] = Shown(_average(parts, printed))
    return figures


def _average(cells: Sequence[Cell], printed: float | None) -> Cell:
    """The mean of the means, or an empty cell if any dataset has none."""
    means = [cell.mean for cell in cells if cell.mean is not None]
    return Cell((statistics.fmean(means),) if len(means) == len(cells) else (), printed)


def noise_label(noise: str) -> tuple[str, str]:
    """Return the group and the heading of a noise: "sym:0.4" is ("symmetric", "40 %")."""
    kind, _, rate = noise.partition(":")
    try:
        return KINDS.get(kind, kind), f"{100 * float(rate):g} %"
    except ValueError:
        return "", "clean" if noise == "none" else noise


def short_noise(noise: str) -> str:
    """Return a noise in one or two words: "sym:0.4" is "sym 40 %"."""
    group, heading = noise_label(noise)
    return f"{noise.partition(':')[0]} {heading}" if group else heading


def spread(cell: Cell) -> str:
    """Return the standard deviation over seeds, "" with one seed or none."""
    return "" if cell.std is None else f"{cell.std:.1f}"


def signed(difference: float, minus: str = "−") -> str:
    """Return a difference with its sign, and none if it rounds to zero."""
    text = f"{difference:+.1f}"
    return "0.0" if text[1:] == "0.0" else text.replace("-", minus)


def spans(values: Sequence[str]) -> list[tuple[str, int]]:
    """Return the values with how many of each stand side by side."""
    runs: list[tuple[str, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return runs


def remarks(results: Results, table: Layout) -> list[str]:
    """Return the sentences below a table: what the figures are, and what they depend on."""
    figures = [shown.cell for row in table.rows for shown in row.figures]
    sentences = []
    if any(cell.std is not None for cell in figures):
        sentences.append(
            "± is the standard deviation over seeds; a method without it was run with one seed."
        )
    compared = any(row.compared for row in table.rows)
    if compared:
        sentences.append("Below ours: the paper's figure, and ours minus it.")
    if any(block.name == AVERAGE for block in table.blocks) or ("", AVERAGE) in table.columns:
        sentences.append(
            f"{AVERAGE} is the mean over the datasets shown, where all of them have runs, without ±."
        )
    declared = EXPERIMENTS.get(results.experiment.name, results.experiment).datasets
    there = len(set(declared) & set(results.experiment.datasets))
    if 0 < there < len(declared):
        sentences.append(f"Datasets of the paper's table shown here: {there} of {len(declared)}.")
    sentences += [note if note.endswith(".") else f"{note}." for note in results.notes]
    if compared:
        whose = (
            "a ResNet-34 trained for 200 epochs"
            if results.experiment.from_scratch
            else "ViT-B/16 with 50 epochs"
        )
        sentences.append(
            f"The paper's figures are of {whose}: where ours are of another model or other epochs, "
            "a difference is no error by itself."
        )
    return sentences


def rows(results: Results) -> list[dict[str, Any]]:
    """Return one row for each cell, with all digits. Averages are left out: they would be counted twice."""
    found = []

    def add(setting: Setting, method: str, options: str, cell: Cell, rank: int | None) -> None:
        place = (results.experiment.name, setting.dataset, setting.noise, method, options)
        numbers = (len(cell.values), cell.mean, cell.std, cell.paper, cell.difference, rank)
        found.append(dict(zip(FIELDS, (*place, *numbers), strict=True)))

    shown = dict.fromkeys(setting.dataset for setting in results.experiment.settings)
    for dataset in shown if not results.experiment.from_scratch else ():
        add(Setting(dataset, ""), ZERO_SHOT, "", results.zero_shot[dataset], None)
    for setting in results.experiment.settings:
        ranks = results.ranks(setting)
        for entry in results.experiment.entries:
            cell, rank = results.cell(setting, entry.label), ranks.get(entry.label)
            add(setting, entry.label, " ".join(entry.options), cell, rank)
    return found


def printable(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
