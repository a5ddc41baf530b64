"""Results as the paper's tables: on a terminal, in Markdown, LaTeX or CSV.

Markdown and LaTeX are written by hand: pandas' Styler knows neither a second line in a cell nor several floats.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dspt.experiments.collect import Results
from dspt.experiments.grid import (
    FIELDS,
    MARKED,
    NOTHING,
    THEIRS,
    Grid,
    Shown,
    arrange,
    remarks,
    rows,
    title,
)
from dspt.experiments.latex import latex
from dspt.experiments.words import short
from dspt.internal.errors import InputError
from dspt.internal.names import printable, spreadsheet_cell


def render(results: Results, style: str, *, colour: bool = False, width: int = 120) -> str:
    """Return the table of an experiment as text in one of `STYLES`.

    `colour` and `width` are for a terminal: best and second-best by ANSI bold and underline instead of by marks, and
    where a table is broken into several that stand below each other.

    Parameters
    ----------
    results : Results
        What the runs of the experiment gave.
    style : {"terminal", "markdown", "latex", "csv"}
        A key of `STYLES`.
    colour : bool
        Mark by ANSI codes; for "terminal" alone.
    width : int
        Columns of the terminal; for "terminal" alone.
    """
    if style not in STYLES:
        raise InputError(f"table style {style!r}: not known; the styles are {', '.join(STYLES)}")
    return _terminal(results, colour, width) if style == "terminal" else STYLES[style](results)


def _terminal(results: Results, colour: bool, width: int) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=10_000,  # more than any table has: one that does not fit in `width` is not cut
        force_terminal=colour,
        force_jupyter=False,
        color_system="standard" if colour else None,
        no_color=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(printable(f"{results.experiment.name}: {title(results)}"), style="bold")
    if not results.experiment.conditions:
        console.print(f"\n{NOTHING}")
        return file.getvalue()
    grid = arrange(results)
    for part in _parts(grid, colour, console, width):
        console.print()
        console.print(part)
    console.print()
    marks = MARKED if colour else "* best of a setting, _ second-best, by the figures shown."
    for sentence in [marks, *remarks(results, grid)]:
        console.print(printable(sentence), width=width)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _parts(grid: Grid, colour: bool, console: Console, width: int) -> list[Table]:
    """Return the columns in as few tables as fit, of about as many columns each."""
    columns = len(grid.columns)
    parts: list[Table] = []
    for number in range(1, columns + 1):
        size = math.ceil(columns / number)
        ranges = [range(i, min(i + size, columns)) for i in range(0, columns, size)]
        parts = [_part(grid, part, colour) for part in ranges]
        if all(console.measure(part).maximum <= width for part in parts):
            break
    return parts


def _part(grid: Grid, part: range, colour: bool) -> Table:
    """Return some columns of a grid as a table, with a line between groups."""
    table = Table.grid()
    new = [i > part[0] and grid.starts(i) for i in range(len(grid.columns))]

    def add(left: _Cell, cells: Sequence[_Cell], line: str = "│", style: str = "") -> None:
        drawn = [left]
        for i in part:
            drawn += [line, cells[i]] if new[i] else [cells[i]]
        table.add_row(*drawn, style=style)

    heads = [printable(heading) for _, heading in grid.columns]
    if grid.groups:
        groups = [group for group, _ in grid.columns]
        add("", [f" {g}" if new[i] or i == part[0] else "" for i, g in enumerate(groups)])
    add("", [f" {head} " for head in heads])
    add(Rule(style=""), [Rule(style="") for _ in heads], line="┼")
    for block in grid.blocks:
        if block.name:
            add(f"{printable(block.name)} ", [""] * len(heads))
        for row in block.rows:
            add(f"  {printable(row.label)} ", [_ours_on_terminal(shown, colour) for shown in row.shown])
            if row.compared:
                add(f"  {THEIRS} ", list(map(_theirs_on_terminal, row.shown)), style="dim")
    return table


_Cell = str | Text | Rule


def _ours_on_terminal(shown: Shown, colour: bool) -> Text:
    """Return our figure with room for 100.0, so that the points of a column stand below each other."""
    digits = f"{shown.mean} ± {shown.spread}" if shown.spread else shown.mean
    room = " " * (5 - len(shown.mean))  # which must not be underlined
    if colour:
        style = shown.marked("", "bold", "underline")
        return Text.assemble(room, (digits, style), "  " if shown.rank else " ")
    return Text(room + shown.marked(digits, "{}*", "{}_") + " ")


def _theirs_on_terminal(shown: Shown) -> str:
    return f"{shown.paper:>6} {shown.difference} ".replace("−", "-") if shown.paper else ""


def _markdown(results: Results) -> str:
    heading = f"**{_in_markdown(title(results))}**"
    if not results.experiment.conditions:
        return f"{heading}\n\n{NOTHING}\n"
    grid = arrange(results)
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
        for number, row in enumerate(block.rows):
            name = [_in_markdown(block.name) if number == 0 else ""] if named else []
            cells = map(_cell_in_markdown, row.shown)
            lines.append(_piped([*name, _in_markdown(row.label), *cells]))
    below = [MARKED, *map(_in_markdown, remarks(results, grid))]
    return "\n".join([heading, "", *lines, "", *(f"- {sentence}" for sentence in below)]) + "\n"


def _cell_in_markdown(shown: Shown) -> str:
    text = f"{shown.mean} ± {shown.spread}" if shown.spread else shown.mean
    text = shown.marked(text, "**{}**", "<u>{}</u>")
    return f"{text}<br><sub>{shown.paper}, {shown.difference}</sub>" if shown.paper else text


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    text = html.escape(printable(text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def _csv(results: Results) -> str:
    """Return one line for each cell, with four decimals."""
    file = io.StringIO()
    lines = csv.DictWriter(file, FIELDS, lineterminator="\n")
    lines.writeheader()
    for row in rows(results):
        words = {name: spreadsheet_cell(printable(cell)) for name, cell in row.items() if isinstance(cell, str)}
        lines.writerow(row | words | {"seed_numbers": " ".join(map(str, row["seed_numbers"]))})
    return file.getvalue()


STYLES: dict[str, Callable[[Results], str]] = {
    "terminal": partial(_terminal, colour=False, width=120),
    "markdown": _markdown,
    "latex": latex,
    "csv": _csv,
}
