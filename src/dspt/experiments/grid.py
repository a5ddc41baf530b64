"""Results in the places the paper gives them: every cell with its row, its column and its rank.

Each way to show a table draws the same `Grid`. A cell without runs is empty. What a cell shows is one of `SHOW`: our
mean alone, as the paper prints it; with ± over seeds; or with the paper's figure and our difference from it below.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from dspt.experiments import paper, words
from dspt.experiments.catalogue import EXPERIMENTS, NINE, Condition
from dspt.experiments.collect import DECIMALS, Cell, Results
from dspt.internal.names import plain
from dspt.internal.rounding import figure

ZERO_SHOT = "zero-shot"
AVERAGE = "AVG"
THEIRS = "paper, diff."  # heads the line below ours
MARKED = "Bold is the best of a setting, underlined the second-best, by the figures shown."
NOTHING = "No finished runs belong to this table yet."
SHOW = ("mean", "std", "paper")
FIELDS = (
    *("experiment", "dataset", "noise", "method", "options"),
    *("seeds", "seed_numbers", "mean", "std", "paper", "difference", "rank"),
)


@dataclass(frozen=True)
class Shown:
    """A cell in its place, with its rank in its setting: 1, 2 or None. Its texts are empty where it has no number.

    `show` is what is shown of it, one of `SHOW`.
    """

    cell: Cell
    rank: int | None = None
    show: str = "mean"

    @property
    def mean(self) -> str:
        """Return our mean: "81.00"."""
        return self.cell.figure

    @property
    def spread(self) -> str:
        """Return the standard deviation over seeds: "1.41"."""
        return "" if self.cell.std is None or self.show == "mean" else figure(self.cell.std, DECIMALS)

    @property
    def paper(self) -> str:
        """Return the paper's figure, if there is one of ours to compare with it: "95.07"."""
        compared = self.cell.difference is not None and self.show == "paper"
        return figure(self.cell.paper, DECIMALS) if compared and self.cell.paper is not None else ""

    @property
    def difference(self) -> str:
        """Return ours minus the paper's, without a sign if that rounds to zero: "−14.07"."""
        if self.cell.difference is None or self.show != "paper":
            return ""
        text = figure(self.cell.difference, DECIMALS, "+")
        return text.replace("-", "−") if float(text) else text[1:]

    def marked(self, text: str, best: str, second: str) -> str:
        """Return the text in `best` or `second` ("**{}**") if it has that rank, else as it is.

        Parameters
        ----------
        text : str
            What is marked.
        best : str
            The form of rank 1, with {} for the text.
        second : str
            The form of rank 2, with {} for the text.
        """
        return {1: best, 2: second}.get(self.rank or 0, "{}").format(text)


@dataclass(frozen=True)
class Row:
    """A line of a table: a cell for each column, or, if `once`, a single one that holds for all columns."""

    label: str
    shown: tuple[Shown, ...]
    once: bool = False

    @property
    def compared(self) -> bool:
        """Return whether there is a figure of the paper beside any of ours."""
        return any(shown.paper for shown in self.shown)


@dataclass(frozen=True)
class Block:
    """The rows that belong to one dataset; without a name if there is only one block."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Grid:
    """A table as it is read: columns with the group each belongs to ("" if none), and blocks of rows."""

    rows_are: str  # "method" or "noise"
    columns: tuple[tuple[str, str], ...]
    blocks: tuple[Block, ...]

    @property
    def rows(self) -> Iterator[Row]:
        """Return all rows, block by block."""
        return (row for block in self.blocks for row in block.rows)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Return the groups of columns, each with how many columns it spans; none if no column has one."""
        found = [(group, len(list(c))) for group, c in groupby(group for group, _ in self.columns)]
        return found if any(group for group, _ in found) else []

    def starts(self, column: int) -> bool:
        """Return whether a column is the first of its group, and not of the table."""
        return column > 0 and self.columns[column][0] != self.columns[column - 1][0]


def title(results: Results) -> str:
    """Return the title of a table or figure, which says on how many of the experiment's datasets it is."""
    experiment = results.experiment
    own = EXPERIMENTS.get(experiment.name, experiment).datasets
    there = {run.dataset for run in results.runs}
    if not there:
        return experiment.title
    others = sorted(there - set(own))
    shown = len(there) - len(others)
    every = own[0] if len(own) == 1 else f"its {len(own)} datasets"
    where = []
    if shown:
        where.append(every if len(own) == 1 else f"{'all' if shown == len(own) else shown} of {every}")
    if others:
        where.append(", ".join(others) if len(others) < 4 else f"{len(others)} other datasets")
    return f"{experiment.title}, on {' and on '.join(where)}" + ("" if shown else f" instead of {every}")


def arrange(results: Results, show: str = "mean") -> Grid:
    """Return the results in the places the paper gives them; `show`, one of `SHOW`, is what each cell shows.

    What stands side by side follows from the noises: one only, and it is the datasets; two, and it is the methods;
    more, and it is the noises, with a block of methods for each dataset, below its zero-shot accuracy. A network from
    scratch has methods side by side, as it has no zero-shot accuracy to stand above them.
    """
    experiment = results.experiment
    every = {key: replace(shown, show=show) for key, shown in _every(results).items()}
    noises = experiment.noises
    methods = (None, *(variant.label for variant in experiment.variants))
    averaged = any(dataset is None and shown.mean for (dataset, _, _), shown in every.items())
    datasets = (*experiment.datasets, None) if averaged else experiment.datasets

    def row(label: str, keys: Sequence[_Key]) -> Row:
        return Row(label, tuple(every.get(key, Shown(Cell())) for key in keys))

    if experiment.from_scratch or len(noises) == 2:
        blocks = tuple(
            Block(
                d,
                tuple(
                    row(words.short(s.noise), [(d, s.noise, m) for m in methods[1:]])
                    for s in experiment.conditions
                    if s.dataset == d
                ),
            )
            for d in experiment.datasets
        )
        return Grid("noise", tuple(("", m or "") for m in methods[1:]), blocks)
    if len(noises) == 1:
        rows = tuple(row(m or ZERO_SHOT, [(d, noises[0], m) for d in datasets]) for m in methods)
        return Grid("method", tuple(("", d or AVERAGE) for d in datasets), (Block("", rows),))

    def zero_shot(dataset: str | None) -> Row:
        there = [key for key in every if key[0] == dataset and key[2] is None]  # the same for every noise
        return replace(row(ZERO_SHOT, there[:1]), once=True)

    blocks = tuple(
        Block(d or AVERAGE, (zero_shot(d), *(row(m, [(d, n, m) for n in noises]) for m in methods[1:] if m)))
        for d in datasets
    )
    return Grid("method", tuple(map(words.heading, noises)), blocks)


# Dataset (None: their average), noise and label (None: zero-shot).
_Key = tuple[str | None, str, str | None]


def _every(results: Results) -> dict[_Key, Shown]:
    """Return every cell of the results, and the averages over datasets."""
    experiment = results.experiment
    datasets = experiment.datasets
    labels = [variant.label for variant in experiment.variants]
    every: dict[_Key, Shown] = {}
    for condition in experiment.conditions:
        ranks = results.ranks(condition)
        for label in labels:
            shown = Shown(results.cell(condition, label), ranks.get(label))
            every[condition.dataset, condition.noise, label] = shown
        zero_shot = results.zero_shot.get(condition.dataset, Cell())
        every[condition.dataset, condition.noise, None] = Shown(zero_shot)
    if len(datasets) < 2:
        return every

    # The paper's average is of its nine datasets, so it says nothing beside an average of others.
    all_nine = set(map(plain, datasets)) == set(map(plain, NINE))
    for noise in experiment.noises:
        condition = Condition(AVERAGE, noise)
        cells = {}
        for label in labels:
            printed = paper.accuracy(experiment.name, condition, label) if all_nine else None
            parts = [results.cell(Condition(dataset, noise), label) for dataset in datasets]
            cells[condition, label] = _average(parts, printed)
        ranks = replace(results, cells=cells).ranks(condition)
        for label in labels:
            every[None, noise, label] = Shown(cells[condition, label], ranks.get(label))
        parts = [results.zero_shot.get(dataset, Cell()) for dataset in datasets]
        printed = paper.zero_shot(AVERAGE) if all_nine else None
        every[None, noise, None] = Shown(_average(parts, printed))
    return every


def _average(cells: Sequence[Cell], printed: float | None) -> Cell:
    """Return the mean of the means, or an empty cell if any dataset has none."""
    means = [cell.mean for cell in cells if cell.mean is not None]
    return Cell((statistics.fmean(means),) if len(means) == len(cells) else (), printed)


def remarks(results: Results, table: Grid, show: str = "mean") -> list[str]:
    """Return the sentences below a table: what the figures are, what they depend on, and what `show` could not show."""
    sentences = []
    spread = any(shown.spread for row in table.rows for shown in row.shown)
    if spread:
        sentences.append("± is the standard deviation over seeds; a method without it was run with one seed.")
    compared = any(row.compared for row in table.rows)
    if compared:
        sentences.append("Below ours: the paper's figure, and ours minus it.")
    elif show == "paper":
        sentences.append("The paper has no figures on these data, noises and methods, so none stand below ours.")
    if any(block.name == AVERAGE for block in table.blocks) or ("", AVERAGE) in table.columns:
        where = "where all of them have runs" + (", without ±" if spread else "")
        sentences.append(f"{AVERAGE} is the mean over the datasets shown, {where}.")
    sentences += [note if note.endswith(".") else f"{note}." for note in results.notes]
    if compared:
        whose = "a ResNet-34 trained for 200 epochs" if results.experiment.from_scratch else "ViT-B/16 with 50 epochs"
        sentences.append(
            f"The paper's figures are of {whose}: where ours are of another model or other epochs, "
            "a difference is no error by itself."
        )
    return sentences


def rows(results: Results) -> list[dict[str, Any]]:
    """Return one row for each cell, with four decimals. Averages are left out: they would be counted twice."""
    found = []

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 4)

    def add(condition: Condition, method: str, options: str, cell: Cell, rank: int | None) -> None:
        place = (results.experiment.name, condition.dataset, condition.noise, method, options)
        seeds = (len(cell.values), list(cell.seeds))
        figures = map(rounded, (cell.mean, cell.std, cell.paper, cell.difference))
        found.append(dict(zip(FIELDS, (*place, *seeds, *figures, rank), strict=True)))

    if not results.experiment.from_scratch:
        for dataset in results.experiment.datasets:
            add(Condition(dataset, ""), ZERO_SHOT, "", results.zero_shot[dataset], None)
    for condition in results.experiment.conditions:
        ranks = results.ranks(condition)
        for variant in results.experiment.variants:
            cell, rank = results.cell(condition, variant.label), ranks.get(variant.label)
            add(condition, variant.label, " ".join(variant.options), cell, rank)
    return found
