"""Results as the paper's tables: on a terminal, in Markdown, LaTeX or CSV.

Markdown and LaTeX are written by hand: pandas' Styler knows neither a second line in a cell nor several floats.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dspt.experiments.collect import Results
from dspt.experiments.grid import FIELDS, MARKED, NOTHING, SHOW, Block, Shown, arrange, remarks, rows, title
from dspt.experiments.latex import latex
from dspt.experiments.terminal import terminal
from dspt.experiments.words import short
from dspt.internal.errors import InputError
from dspt.internal.names import printable, spreadsheet_cell


def style_for(path: Path | None, asked: str | None) -> str:
    """Return the style of a table: the one asked for, else the one that the suffix of its file says.

    Parameters
    ----------
    path : Path, optional
        The file; None is the terminal.
    asked : str, optional
        A key of `STYLES`.
    """
    if path is None:
        return asked or "terminal"
    said = SUFFIXES.get(path.suffix.lower())
    if asked and said and asked != said:
        raise InputError(f"{path}: its suffix says {said}, not {asked}; give another name")
    if not (asked or said):
        raise InputError(f"{path}: expected a {', '.join(SUFFIXES)} file for the table", "or give its `format`")
    return asked or said or ""


def render(results: Results, style: str, *, show: str = "mean", colour: bool = False, width: int = 120) -> str:
    """Return the table of an experiment as text in one of `STYLES`.

    `colour` and `width` are for a terminal: best and second-best by ANSI bold and underline instead of by marks, and
    where a table is broken into several that stand below each other.

    Parameters
    ----------
    results : Results
        What the runs of the experiment gave.
    style : {"terminal", "markdown", "latex", "csv"}
        A key of `STYLES`.
    show : {"mean", "std", "paper"}
        What each cell shows: our mean, as the paper prints it; with ± over seeds; with the paper's figure and the
        difference, too. CSV has all of it.
    colour : bool
        Mark by ANSI codes; for "terminal" alone.
    width : int
        Columns of the terminal; for "terminal" alone.
    """
    if style not in STYLES:
        raise InputError(f"table style {style!r}: not known; the styles are {', '.join(STYLES)}")
    if show not in SHOW:
        raise InputError(f"show {show!r}: not known; a cell shows {', '.join(SHOW)}")
    return terminal(results, show, colour, width) if style == "terminal" else STYLES[style](results, show)


def _markdown(results: Results, show: str) -> str:
    heading = f"**{_in_markdown(title(results))}**"
    if not results.experiment.conditions:
        return f"{heading}\n\n{NOTHING}\n"
    grid = arrange(results, show)
    named = any(block.name for block in grid.blocks)
    heads = [heading for _, heading in grid.columns]
    if grid.groups:  # Markdown has no groups of columns
        heads = [short(noise) for noise in results.experiment.noises]
    heads = [*(["Dataset"] if named else []), grid.rows_are.capitalize(), *heads]
    left = 2 if named else 1
    lines = [
        _piped([_in_markdown(head) for head in heads]),
        _piped([":--"] * left + ["--:"] * len(grid.columns)),
    ]
    for block in grid.blocks:
        for number, row in enumerate(row for row in block.rows if not row.once):
            name = [_name_in_markdown(block) if number == 0 else ""] if named else []
            cells = map(_cell_in_markdown, row.shown)
            lines.append(_piped([*name, _in_markdown(row.label), *cells]))
    below = [MARKED, *map(_in_markdown, remarks(results, grid, show))]
    return "\n".join([heading, "", *lines, "", *(f"- {sentence}" for sentence in below)]) + "\n"


def _name_in_markdown(block: Block) -> str:
    """Return the name of a block, below it what holds for all of its columns: Markdown has no cells so wide."""
    once = [(row.label, row.shown[0]) for row in block.rows if row.once and row.shown[0].mean]
    below = [f"<br>{label} {_cell_in_markdown(shown)}" for label, shown in once]
    return _in_markdown(block.name) + "".join(below)


def _cell_in_markdown(shown: Shown) -> str:
    text = f"{shown.mean} ± {shown.spread}" if shown.spread else shown.mean
    text = shown.marked(text, "**{}**", "<u>{}</u>")
    return f"{text}<br><sub>{shown.paper}, {shown.difference}</sub>" if shown.paper else text


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    text = html.escape(printable(text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def _csv(results: Results, show: str) -> str:
    """Return one line for each cell, with four decimals."""
    file = io.StringIO()
    lines = csv.DictWriter(file, FIELDS, lineterminator="\n")
    lines.writeheader()
    for row in rows(results):
        words = {name: spreadsheet_cell(printable(cell)) for name, cell in row.items() if isinstance(cell, str)}
        lines.writerow(row | words | {"seed_numbers": " ".join(map(str, row["seed_numbers"]))})
    return file.getvalue()


STYLES: dict[str, Callable[[Results, str], str]] = {
    "terminal": terminal,
    "markdown": _markdown,
    "latex": latex,
    "csv": _csv,
}
SUFFIXES = {".txt": "terminal", ".md": "markdown", ".tex": "latex", ".csv": "csv"}
