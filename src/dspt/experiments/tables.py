"""Results as the paper's tables: on a terminal, in Markdown, LaTeX or CSV.

Every style draws the same `Layout`, in which each figure already has its place and its rank. Our mean stands first; the
paper's figure and our difference from it stand below. A cell without runs is empty in every style.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspt.errors import InputError
from dspt.experiments import paper
from dspt.experiments.catalogue import EXPERIMENTS, NINE, Experiment, Setting, plain
from dspt.experiments.collect import Cell, Results

STYLES = ("terminal", "markdown", "latex", "csv")
ZERO_SHOT = "zero-shot"
AVERAGE = "AVG"
THEIRS = "paper, diff."  # heads the line below ours
MARKED = "Bold is the best of a setting, underlined the second-best, compared to two decimals."
NOTHING = "No finished runs belong to this table yet."

_KINDS = {"sym": "symmetric", "pair": "pair-flip"}


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


def render(results: Results, style: str, *, colour: bool = False, width: int = 120) -> str:
    """Return the table of an experiment as text in one of `STYLES`.

    `colour` and `width` are for a terminal: best and second-best by ANSI bold and underline instead of by marks, and
    where a table is broken into several that stand below each other.
    """
    if style == "csv":
        return _csv(results)
    if style == "terminal":
        return _terminal(results, colour, width)
    if style == "markdown":
        return _markdown(results)
    if style == "latex":
        return _latex(results)
    raise InputError(f"table style {style!r}: not known; the styles are {', '.join(STYLES)}")


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
    if len(experiment.noises) == 1:
        return "datasets"
    if experiment.from_scratch or len(experiment.noises) == 2:
        return "methods"
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
        return _KINDS.get(kind, kind), f"{100 * float(rate):g} %"
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
    if there < len(declared):
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


def _terminal(results: Results, colour: bool, width: int) -> str:
    experiment = results.experiment
    title = f"{experiment.name}: {experiment.title}"
    if not experiment.settings:
        return f"{title}\n\n{NOTHING}\n"
    table = layout(results)
    style: Callable[[str, str], str] = _ansi if colour else lambda text, _: text
    heads = [_printable(heading) for _, heading in table.columns]
    lefts = [
        *(_printable(block.name) for block in table.blocks),
        *("  " + row.label for row in table.rows),
        *(["  " + THEIRS] if any(row.compared for row in table.rows) else []),
    ]
    left = max(map(len, lefts)) + 1
    widths = [
        1 + max(len(" " + head), *(_wide(row.figures[i]) for row in table.rows))
        for i, head in enumerate(heads)
    ]
    rule = [
        "│" if i and group != table.columns[i - 1][0] else ""
        for i, (group, _) in enumerate(table.columns)
    ]
    lines = [style(title, "1")]

    def line(label: str, cells: Sequence[str], part: range) -> str:
        drawn = (cells[i] if i == part[0] else rule[i] + cells[i] for i in part)
        return label.ljust(left) + "".join(drawn)

    for part in _parts([w + len(r) for w, r in zip(widths, rule, strict=True)], width - left):
        lines.append("")
        if any(group for group, _ in table.columns):
            groups = [
                f" {group}" if i == part[0] or rule[i] else ""
                for i, (group, _) in enumerate(table.columns)
            ]
            lines.append(line("", _padded(groups, widths), part))
        lines.append(line("", _padded([f" {head}" for head in heads], widths), part))
        lines.append(line("", ["─" * w for w in widths], part).replace(" ", "─").replace("│", "┼"))
        for block in table.blocks:
            if block.name:
                lines.append(line(_printable(block.name), _padded([""] * len(heads), widths), part))
            for row in block.rows:
                ours = [
                    _ours_on_terminal(s, w, colour)
                    for s, w in zip(row.figures, widths, strict=True)
                ]
                lines.append(line(f"  {row.label}", ours, part))
                if row.compared:
                    theirs = _padded(list(map(_theirs_on_terminal, row.figures)), widths)
                    lines.append(style(line(f"  {THEIRS}", theirs, part).rstrip(), "2"))
    lines.append("")
    marks = MARKED if colour else "* best of a setting, _ second-best, compared to two decimals."
    for sentence in [marks, *remarks(results, table)]:
        lines += textwrap.wrap(_printable(sentence), width, break_on_hyphens=False)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _padded(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [text.ljust(width) for text, width in zip(texts, widths, strict=True)]


def _parts(widths: Sequence[int], room: int) -> list[range]:
    """The columns in as few parts as fit, of about as many columns each."""
    for number in range(1, len(widths) + 1):
        size = math.ceil(len(widths) / number)
        parts = [
            range(start, min(start + size, len(widths))) for start in range(0, len(widths), size)
        ]
        if all(sum(widths[i] for i in part) <= room for part in parts):
            return parts
    return [range(i, i + 1) for i in range(len(widths))]


def _ours_on_terminal(shown: Shown, width: int, colour: bool) -> str:
    text = _mean_on_terminal(shown.cell)
    if not colour or shown.rank is None:
        return (text + _mark(shown)).ljust(width)
    digits = text.lstrip()  # a blank must not be underlined
    before = len(text) - len(digits)
    return " " * before + _ansi(digits, "1" if shown.rank == 1 else "4") + " " * (width - len(text))


def _mean_on_terminal(cell: Cell) -> str:
    """Our figure with room for 100.0, so that the points of a column stand below each other."""
    if cell.mean is None:
        return ""
    return f"{cell.mean:5.1f}" + (f" ± {spread(cell)}" if spread(cell) else "")


def _theirs_on_terminal(shown: Shown) -> str:
    cell = shown.cell
    if cell.paper is None or cell.difference is None:
        return ""
    return f"{cell.paper:6.2f} {signed(cell.difference, '-')}"


def _mark(shown: Shown) -> str:
    return {1: "*", 2: "_"}.get(shown.rank or 0, "")


def _wide(shown: Shown) -> int:
    ours = len(_mean_on_terminal(shown.cell)) + len(_mark(shown))
    return max(ours, len(_theirs_on_terminal(shown)))


def _ansi(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _printable(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _markdown(results: Results) -> str:
    title = f"**{_in_markdown(results.experiment.title)}**"
    if not results.experiment.settings:
        return f"{title}\n\n{NOTHING}\n"
    table = layout(results)
    named = any(block.name for block in table.blocks)
    noises = results.experiment.noises
    heads = [heading for _, heading in table.columns]
    if any(group for group, _ in table.columns):
        heads = [short_noise(noise) for noise in noises]  # there are no groups of columns
    heads = [*(["Dataset"] if named else []), table.rows_are.capitalize(), *heads]
    left = 2 if named else 1
    lines = [
        _piped([_in_markdown(head) for head in heads]),
        _piped([":--"] * left + ["--:"] * len(table.columns)),
    ]
    for block in table.blocks:
        for number, row in enumerate(block.rows):
            name = [_in_markdown(block.name) if number == 0 else ""] if named else []
            figures = map(_cell_in_markdown, row.figures)
            lines.append(_piped([*name, _in_markdown(row.label), *figures]))
    below = [MARKED, *map(_in_markdown, remarks(results, table))]
    return "\n".join([title, "", *lines, "", *(f"- {sentence}" for sentence in below)]) + "\n"


def _cell_in_markdown(shown: Shown) -> str:
    cell = shown.cell
    if cell.mean is None:
        return ""
    text = f"{cell.mean:.1f}" + (f" ± {spread(cell)}" if spread(cell) else "")
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(shown.rank or 0, text)
    if cell.paper is None or cell.difference is None:
        return text
    return f"{text}<br><sub>{cell.paper:.2f}, {signed(cell.difference)}</sub>"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    text = html.escape(_printable(text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


# A float cannot be broken over pages, and there is no room for more lines of this size on one.
_LINES_OF_A_PAGE = 48


def _latex(results: Results) -> str:
    experiment = results.experiment
    if not experiment.settings:
        return f"% {experiment.name}: {NOTHING}\n"
    table = layout(results)
    caption = " ".join(
        [f"{experiment.title}.", MARKED, *remarks(results, table)],
    )
    tables = []
    for number, blocks in enumerate(_pages(table.blocks)):
        text = f"{experiment.title} (continued)." if number else caption
        # A label of its own for each, or LaTeX would warn.
        label = f"tab:{experiment.name}" + (f"-{number + 1}" if number else "")
        tables.append(_float(replace(table, blocks=tuple(blocks)), text, label))
    return "% needs \\usepackage{booktabs,multirow}\n" + "\n".join(tables)


def _pages(blocks: Sequence[Block]) -> list[list[Block]]:
    """The blocks in as many floats as they need."""
    pages: list[list[Block]] = [[]]
    for block in blocks:
        if pages[-1] and sum(map(_height, [*pages[-1], block])) > _LINES_OF_A_PAGE:
            pages.append([])
        pages[-1].append(block)
    return pages


def _height(block: Block) -> int:
    return sum(2 if row.compared else 1 for row in block.rows)


def _float(table: Layout, caption: str, label: str) -> str:
    named = any(block.name for block in table.blocks)
    left = 2 if named else 1
    lines = [
        r"\begin{table*}[tp]",
        r"\centering",
        rf"\caption{{{_in_latex(caption)}}}",
        rf"\label{{{label}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{{'l' * left}{'c' * len(table.columns)}}}",
        r"\toprule",
    ]
    groups = [group for group, _ in table.columns]
    if any(groups):
        cells, rules, start = [""] * left, [], left + 1
        for group, size in spans(groups):
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{_in_latex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{start}-{start + size - 1}}}" if group else "")
            start += size
        lines += [_ampersands(cells), " ".join(filter(None, rules))]
    heads = [*(["dataset"] if named else []), table.rows_are]
    lines.append(_ampersands([*heads, *(_stacked(heading) for _, heading in table.columns)]))
    for block in table.blocks:
        lines.append(r"\midrule")
        name = rf"\multirow{{{_height(block)}}}{{*}}{{{_in_latex(block.name)}}}"
        for number, row in enumerate(block.rows):
            first = [name if number == 0 else ""] if named else []
            ours = map(_ours_in_latex, row.figures)
            lines.append(_ampersands([*first, _in_latex(row.label), *ours]))
            if row.compared:
                empty = [""] if named else []
                theirs = map(_theirs_in_latex, row.figures)
                lines.append(_ampersands([*empty, rf"{{\tiny {THEIRS}}}", *theirs]))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""]
    return "\n".join(lines)


def _ours_in_latex(shown: Shown) -> str:
    cell = shown.cell
    if cell.mean is None:
        return ""
    text = f"{cell.mean:.1f}"
    text = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(shown.rank or 0, text)
    return text + (rf"{{\tiny$\pm${spread(cell)}}}" if spread(cell) else "")


def _theirs_in_latex(shown: Shown) -> str:
    cell = shown.cell
    if cell.paper is None or cell.difference is None:
        return ""
    return rf"{{\tiny {cell.paper:.2f}, {signed(cell.difference, '$-$')}}}"


def _stacked(heading: str) -> str:
    """A heading that is longer than the figures below it, on two lines: Oxford over Pets."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", heading)
    if len(heading) < 10 or len(words) < 2 or "".join(words) != heading:
        return _in_latex(heading)
    return rf"\shortstack{{{words[0]}\\{''.join(words[1:])}}}"


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "−": r"$-$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in _printable(text))


def _csv(results: Results) -> str:
    """One line for each cell, with all digits."""
    found = rows(results)
    file = io.StringIO()
    lines = csv.DictWriter(file, list(found[0]), lineterminator="\n")
    lines.writeheader()
    lines.writerows(found)
    return file.getvalue()


def rows(results: Results) -> list[dict[str, Any]]:
    """Return one row for each cell, with all digits. Averages are left out: they would be counted twice."""
    found = []

    def add(setting: Setting, method: str, options: str, cell: Cell, rank: int | None) -> None:
        found.append(
            {
                "experiment": results.experiment.name,
                "dataset": setting.dataset,
                "noise": setting.noise,
                "method": method,
                "options": options,
                "seeds": len(cell.values),
                "mean": cell.mean,
                "std": cell.std,
                "paper": cell.paper,
                "difference": cell.difference,
                "rank": rank,
            }
        )

    shown = dict.fromkeys(setting.dataset for setting in results.experiment.settings)
    for dataset in shown if not results.experiment.from_scratch else ():
        add(Setting(dataset, ""), ZERO_SHOT, "", results.zero_shot[dataset], None)
    for setting in results.experiment.settings:
        ranks = results.ranks(setting)
        for entry in results.experiment.entries:
            cell, rank = results.cell(setting, entry.label), ranks.get(entry.label)
            add(setting, entry.label, " ".join(entry.options), cell, rank)
    return found
