"""Tables on a terminal: columns below their headings, as many beside each other as there is room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.cells import cell_len

from dspt.experiments.collect import Results
from dspt.experiments.grid import MARKED, NOTHING, THEIRS, Block, Grid, Row, Shown, arrange, remarks, title
from dspt.internal.names import printable, wrapped

_GAP = "  "  # before a column
_BETWEEN_GROUPS, _BETWEEN_BLOCKS = " │", " ║"
_BOLD, _DIM, _UNDERLINED = "1", "2", "4"


def terminal(results: Results, show: str = "mean", colour: bool = False, width: int = 120) -> str:
    """Return the table of an experiment for a terminal of this width, two datasets side by side where they fit.

    Parameters
    ----------
    results : Results
        What the runs of the experiment gave.
    show : {"mean", "std", "paper"}
        What each cell shows.
    colour : bool
        Mark best and second-best by ANSI bold and underline instead of by * and _.
    width : int
        Columns of the terminal. Lines of words are no longer; a table whose single columns do not fit is not cut.
    """
    heading = wrapped(f"{results.experiment.name}: {title(results)}", width)
    lines = [_styled(line, _BOLD, colour) for line in heading]
    if not results.experiment.conditions:
        return "\n".join([*lines, "", NOTHING, ""])
    grid = arrange(results, show)
    for part in _parts(grid, colour, width):
        lines += ["", *(line.rstrip() for line in part)]
    marks = MARKED if colour else "* best of a setting, _ second-best, by the figures shown."
    below = [line for sentence in [marks, *remarks(results, grid, show)] for line in wrapped(sentence, width)]
    return "\n".join([*lines, "", *below, ""])


def columns(rows: Sequence[Sequence[str]], width: int, together: int = 1) -> list[str]:
    """Return rows of texts as lines, the first row their headings: the first column at the left, others at the right.

    Where they are wider than `width`, columns go on below, beside the first one again. The last `together` of them are
    not parted.
    """
    rows = [[printable(text) for text in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    size = len(widths) - 1

    def room(part: range) -> int:
        return widths[0] + sum(len(_GAP) + widths[i] for i in part)

    last = size + 1 - together
    units = [*(range(i, i + 1) for i in range(1, last)), range(last, size + 1)]
    parts = _fewest(units, lambda part: room(part) <= width)
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        for number, row in enumerate(rows):
            cells = [_padded(row[0], widths[0], "<"), *(_padded(row[i], widths[i], ">") for i in part)]
            lines.append(_GAP.join(cells).rstrip())
            if number == 0:
                lines.append("─" * room(part))
    return lines


def _parts(grid: Grid, colour: bool, width: int) -> list[list[str]]:
    """Return the table in as few parts of some columns each as fit, as lines."""
    everything = range(len(grid.columns))
    if len(grid.blocks) > 1 and grid.rows_are == "method":
        beside = _Drawing(grid, everything, colour, beside=2)
        if beside.width <= width:
            return [beside.lines()]

    def fits(part: range) -> bool:
        return _Drawing(grid, part, colour).width <= width

    units: list[range] = []  # what is not torn apart: a group of columns, if there is room for it
    for group, found in groupby(everything, key=lambda i: grid.columns[i][0]):
        here = list(found)
        whole = range(here[0], here[-1] + 1)
        units += [whole] if group and fits(whole) else [range(i, i + 1) for i in whole]
    return [_Drawing(grid, part, colour).lines() for part in _fewest(units, fits)]


def _fewest(units: Sequence[range], fits: Callable[[range], bool]) -> list[range]:
    """Return adjoining units joined to as few ranges as fit, of about as many units each."""
    parts: list[range] = []
    for number in range(1, len(units) + 1):
        size = math.ceil(len(units) / number)
        chunks = [units[i : i + size] for i in range(0, len(units), size)]
        parts = [range(chunk[0].start, chunk[-1].stop) for chunk in chunks]
        if all(map(fits, parts)):
            break
    return parts


class _Drawing:
    """Some columns of a grid, for one block or for two beside each other, with a line between groups.

    Parameters
    ----------
    grid : Grid
        The whole table.
    part : range
        The columns to draw.
    colour : bool
        Mark by ANSI codes.
    beside : int
        How many blocks stand side by side.
    """

    def __init__(self, grid: Grid, part: range, colour: bool, beside: int = 1) -> None:
        self.grid, self.part, self.colour, self.beside = grid, part, colour, beside
        shown = [one for row in grid.rows for one in row.shown]
        # Points stand below each other, with room for 100.00 if there is such a figure.
        self.mean = max(5, *(len(one.mean) for one in shown))
        self.spread = max(len(one.spread) for one in shown)
        self.cell = self.mean + (3 + self.spread if self.spread else 0) + 1
        self.cell = max(self.cell, *(self.mean + 1 + len(one.difference) for one in shown))
        self.heads = [printable(heading) for _, heading in grid.columns]
        self.widths = {i: max(self.cell, cell_len(self.heads[i])) for i in part}
        self.groups = [list(found) for _, found in groupby(part, key=lambda i: grid.columns[i][0])]
        for group in self.groups:
            missing = cell_len(self._group(group)) - self._span(group)
            for i in group:
                self.widths[i] += max(0, math.ceil(missing / len(group)))
        labels = [f"  {row.label}" for row in grid.rows] + [f"  {THEIRS}"] * any(row.compared for row in grid.rows)
        names = [block.name for block in grid.blocks] if beside == 1 else []
        self.left = max(cell_len(printable(label)) for label in [*labels, *names])
        between = len(_BETWEEN_GROUPS) * (len(self.groups) - 1)
        self.block = sum(self._span(group) + len(_GAP) for group in self.groups) + between
        self.width = self.left + beside * self.block + len(_BETWEEN_BLOCKS) * (beside - 1)

    def lines(self) -> list[str]:
        """Return the lines, first those of the heading, then block by block."""
        heads = [[self._head(i) for i in self.part]] * self.beside
        groups = [_padded(self._group(group), self._span(group), "^") for group in self.groups]
        lines = [self._line("", [_BETWEEN_GROUPS.join(_GAP + g for g in groups)] * self.beside)] * any(
            self._group(group) for group in self.groups
        )
        lines += [self._line("", [self._cells(row) for row in heads])]
        rule = ["─┼".join("─" * (self._span(group) + len(_GAP)) for group in self.groups)] * self.beside
        lines += ["─" * self.left + "─╫".join(rule)]
        for start in range(0, len(self.grid.blocks), self.beside):
            lines += self._band(self.grid.blocks[start : start + self.beside], first=start == 0)
        return lines

    def _band(self, blocks: Sequence[Block], first: bool) -> list[str]:
        """Return the lines of blocks that stand beside each other."""
        lines = []
        names = [printable(block.name) for block in blocks]
        if self.beside > 1:
            lines += [] if first else [self._line("", [" " * self.block] * len(blocks))]
            lines.append(self._line("", [_padded(name, self.block, "^") for name in names]))
        elif names[0]:
            lines.append(self._line(names[0], [self._cells([" " * self.widths[i] for i in self.part])]))
        for rows in zip(*(block.rows for block in blocks), strict=True):
            lines.append(self._line(f"  {printable(rows[0].label)}", [self._row(row, self._ours) for row in rows]))
            if any(self._row(row, self._theirs).strip("│ ") for row in rows):
                theirs = self._line(f"  {THEIRS}", [self._row(row, self._theirs) for row in rows])
                lines.append(_styled(theirs, _DIM, self.colour))
        return lines

    def _row(self, row: Row, draw: Callable[[Shown], tuple[str, str]]) -> str:
        if row.once:
            text, style = draw(row.shown[0])
            return _styled_inside(_padded(text, self.block, "^"), text, style if self.colour else "")
        drawn = []
        for i in self.part:
            text, style = draw(row.shown[i])
            whole = _padded(_padded(text, self.cell, "<"), self.widths[i], "^")
            drawn.append(_styled_inside(whole, text, style if self.colour else ""))
        return self._cells(drawn)

    def _ours(self, shown: Shown) -> tuple[str, str]:
        """Return our figure, and how it is marked in colour."""
        digits = f"{shown.mean} ± {shown.spread:>{self.spread}}" if shown.spread else shown.mean
        marked = digits if self.colour else shown.marked(digits, "{}*", "{}_")
        return " " * (self.mean - len(shown.mean)) * bool(digits) + marked, shown.marked("", _BOLD, _UNDERLINED)

    def _theirs(self, shown: Shown) -> tuple[str, str]:
        return f"{shown.paper:>{self.mean}} {shown.difference}".replace("−", "-") if shown.paper else "", ""

    def _head(self, column: int) -> str:
        """Return a heading in the middle above its figures, whose marks do not count."""
        text = self.heads[column]
        return _padded(_padded(_padded(text, self.cell - 1, "^"), self.cell, "<"), self.widths[column], "^")

    def _group(self, group: Sequence[int]) -> str:
        return printable(self.grid.columns[group[0]][0])

    def _span(self, group: Sequence[int]) -> int:
        return sum(self.widths[i] for i in group) + len(_GAP) * (len(group) - 1)

    def _cells(self, cells: Sequence[str]) -> str:
        """Return the cells of a block as one text, with a line between groups."""
        of = dict(zip(self.part, cells, strict=True))
        return _BETWEEN_GROUPS.join("".join(_GAP + of[i] for i in group) for group in self.groups)

    def _line(self, left: str, blocks: Sequence[str]) -> str:
        return _padded(left, self.left, "<") + _BETWEEN_BLOCKS.join(blocks)


def _padded(text: str, width: int, side: str) -> str:
    """Return the text with blanks to this width, at its right ("<"), its left (">") or both sides ("^")."""
    blanks = max(0, width - cell_len(text))
    left = {"<": 0, ">": blanks, "^": blanks // 2}[side]
    return " " * left + text + " " * (blanks - left)


def _styled(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text.strip() else text


def _styled_inside(whole: str, text: str, style: str) -> str:
    """Return a padded text, of which the letters alone are in this style: blanks must not be underlined."""
    letters = text.strip()
    return whole.replace(letters, _styled(letters, style, True), 1) if letters else whole
