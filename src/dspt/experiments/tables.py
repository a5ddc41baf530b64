"""Results as the paper's tables: on a terminal, in Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence

from dspt.experiments.collect import Cell, Results
from dspt.experiments.latex import latex
from dspt.experiments.layout import (
    FIELDS,
    MARKED,
    NOTHING,
    THEIRS,
    Shown,
    layout,
    printable,
    remarks,
    rows,
    short_noise,
    signed,
    spread,
)
from dspt.internal.errors import InputError

STYLES = ("terminal", "markdown", "latex", "csv")


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
        return latex(results)
    raise InputError(f"table style {style!r}: not known; the styles are {', '.join(STYLES)}")


def _terminal(results: Results, colour: bool, width: int) -> str:
    experiment = results.experiment
    title = f"{experiment.name}: {experiment.title}"
    if not experiment.settings:
        return f"{title}\n\n{NOTHING}\n"
    table = layout(results)
    style: Callable[[str, str], str] = _ansi if colour else lambda text, _: text
    heads = [printable(heading) for _, heading in table.columns]
    lefts = [
        *(printable(block.name) for block in table.blocks),
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
                lines.append(line(printable(block.name), _padded([""] * len(heads), widths), part))
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
        lines += textwrap.wrap(printable(sentence), width, break_on_hyphens=False)
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
    text = html.escape(printable(text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def _csv(results: Results) -> str:
    """One line for each cell, with all digits."""
    file = io.StringIO()
    lines = csv.DictWriter(file, FIELDS, lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows(results))
    return file.getvalue()
