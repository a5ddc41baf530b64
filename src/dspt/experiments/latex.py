r"""A table in LaTeX as the paper prints it, with booktabs and multirow.

Rules, sizes and headings are the paper's, but for its dashed lines and `\makecell`, which would take two more packages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dspt.experiments.collect import Cell, Results
from dspt.experiments.grid import MARKED, NOTHING, THEIRS, ZERO_SHOT, Block, Grid, Row, Shown, arrange, remarks, title
from dspt.internal.names import printable

# A float cannot be broken over pages, and there is no room for more lines on one.
_LINES_OF_A_PAGE = 48

# What the paper writes above its noises.
_PRINTED = {"symmetric": "Noise Type: sym", "pair-flip": "Noise Type: pair"}


@dataclass(frozen=True)
class _Tabular:
    """A table without its caption: the form of its columns, the lines of its heading, and those of its bands."""

    form: str
    head: list[str]
    bands: list[list[str]]  # a band is not broken over pages
    gap: str = "4pt"  # at each side of a column


def latex(results: Results, show: str = "mean") -> str:
    """Return the table of an experiment as one or more LaTeX floats; `show` is what each cell shows."""
    experiment = results.experiment
    if not experiment.conditions:
        return f"% {experiment.name}: {NOTHING}\n"
    grid = arrange(results, show)
    if grid.rows_are == "noise":
        table = _methods_beside(grid)
    elif grid.blocks[0].name:
        # Two blocks fill the width of a page; with ± or two lines a cell, one does.
        table = _noises_beside(grid, 2 if show == "mean" and len(grid.blocks) > 1 and len(grid.columns) < 7 else 1)
    else:
        table = _datasets_beside(grid)
    caption = " ".join([f"{title(results)}.", MARKED, *remarks(results, grid, show)])
    size = r"\small" if show == "mean" else r"\scriptsize"
    floats = []
    for number, bands in enumerate(_pages(table.bands)):
        text = f"{title(results)} (continued)." if number else caption
        # A label of its own for each, and not the paper's, or LaTeX would warn.
        label = f"tab:{experiment.name}-ours" + (f"-{number + 1}" if number else "")
        floats.append(_float(replace(table, bands=bands), text, label, size))
    return "% needs \\usepackage{booktabs,multirow}\n" + "\n".join(floats)


def _pages(bands: Sequence[list[str]]) -> list[list[list[str]]]:
    """Return the bands in as many floats as they need."""
    pages: list[list[list[str]]] = [[]]
    for band in bands:
        if pages[-1] and sum(map(len, [*pages[-1], band])) > _LINES_OF_A_PAGE:
            pages.append([])
        pages[-1].append(band)
    return pages


def _float(table: _Tabular, caption: str, label: str, size: str) -> str:
    body = []
    for band in table.bands:
        body += [r"\hline", *band]
    lines = [
        r"\begin{table*}[t!]",
        r"\centering",
        # no gaps in the vertical rules
        r"\aboverulesep=0pt\belowrulesep=0pt",
        rf"\setlength{{\tabcolsep}}{{{table.gap}}}",
        # `article` puts nothing between a caption and what is below it
        r"\setlength{\belowcaptionskip}{3pt}",
        r"\renewcommand{\arraystretch}{1.05}",
        rf"\caption{{{_in_latex(caption)}}}",
        rf"\label{{{label}}}",
        rf"{size}\scshape",
        rf"\begin{{tabular}}{{{table.form}}}",
        r"\toprule",
        *table.head,
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _noises_beside(grid: Grid, beside: int) -> _Tabular:
    """Return a row for each method, and the blocks of so many datasets side by side."""
    groups = [(_PRINTED.get(group, group), size) for group, size in grid.groups]
    form = "@{}l|" + "|".join(["c|" + "|".join("c" * size for _, size in groups)] * beside) + "@{}"
    above, below = [_tall("Method")], [""]
    for block in range(beside):
        above.append(_tall("Dataset"))
        for number, (group, size) in enumerate(groups):
            above.append(_wide(_in_latex(group), size, number == len(groups) - 1 and block == beside - 1))
        below += ["", *(_heading(heading) for _, heading in grid.columns)]
    empty = Block("", tuple(replace(row, shown=(_NONE,) * len(row.shown)) for row in grid.blocks[0].rows))
    blocks = [*grid.blocks, *[empty] * (-len(grid.blocks) % beside)]
    bands = [_band(blocks[i : i + beside], len(grid.columns)) for i in range(0, len(blocks), beside)]
    return _Tabular(form, [_ampersands(above), _ampersands(below)], bands, "2pt" if beside > 1 else "4pt")


def _methods_beside(grid: Grid) -> _Tabular:
    """Return a row for each noise of each dataset, and the methods side by side."""
    head = _ampersands(["Dataset", "Noise Type", *(_heading(heading) for _, heading in grid.columns)])
    bands = [_band([block], len(grid.columns), name_first=True) for block in grid.blocks]
    return _Tabular("@{}c|c|" + "c" * len(grid.columns) + "@{}", [head], bands)


def _datasets_beside(grid: Grid) -> _Tabular:
    """Return a row for each method, and datasets side by side, in two bands if they are many."""
    size = len(grid.columns) if len(grid.columns) < 7 else -(-len(grid.columns) // 2)
    bands = []
    for first in range(0, len(grid.columns), size):
        part = range(first, min(first + size, len(grid.columns)))
        missing = size - len(part)
        names = ["Dataset", *(_heading(grid.columns[i][1]) for i in part), *[""] * missing]
        rows = [Row(row.label, (*(row.shown[i] for i in part), *[_NONE] * missing)) for row in grid.rows]
        bands.append([_ampersands(names), r"\hline", *_band([Block("", tuple(rows))], size)])
    return _Tabular("@{}c|" + "c" * size + "@{}", bands[0][:1], [bands[0][2:], *bands[1:]])


def _band(blocks: Sequence[Block], size: int, name_first: bool = False) -> list[str]:
    """Return the lines of blocks of so many columns that stand side by side, each behind its name if they have names.

    Parameters
    ----------
    blocks : sequence of Block
        With the same rows; one without a name and figures is an empty place.
    size : int
        How many columns a block has.
    name_first : bool
        Put the name of the first block before the label of the row.
    """
    named = any(block.name for block in blocks)
    rows = list(zip(*(block.rows for block in blocks), strict=True))
    height = sum(2 if any(row.compared for row in beside) else 1 for beside in rows)
    lines = []
    for number, beside in enumerate(rows):
        ours, theirs = [_heading(beside[0].label.replace(ZERO_SHOT, "Zero-shot"))], [rf"{{\tiny {THEIRS}}}"]
        rules = []
        for place, (block, row) in enumerate(zip(blocks, beside, strict=True)):
            if named:
                here = number == 0 and block.name
                ours.append(rf"\multirow{{{height}}}{{*}}{{{_stacked(block.name)}}}" if here else "")
                theirs.append("")
            if row.once and block.name:
                first = 3 + place * (1 + size)  # behind the label, the names and the blocks before it
                rules.append(rf"\cline{{{first}-{first + size - 1}}}")
            for line, draw in ((ours, _ours_in_latex), (theirs, _theirs_in_latex)):
                line += [_wide(draw(row.shown[0]), size, block is blocks[-1])] if row.once else map(draw, row.shown)
        if name_first:
            ours[:2], theirs[:2] = ours[1::-1], theirs[1::-1]
        lines.append(_ampersands(ours))
        if any(row.compared for row in beside):
            lines.append(_ampersands(theirs))
        lines[-1] = " ".join([lines[-1], *rules])
    return lines


def _ours_in_latex(shown: Shown) -> str:
    text = shown.marked(shown.mean, r"\textbf{{{}}}", r"\underline{{{}}}")
    return text + (rf"{{\tiny$\pm${shown.spread}}}" if shown.spread else "")


def _theirs_in_latex(shown: Shown) -> str:
    if not shown.paper:
        return ""
    return rf"{{\tiny {shown.paper}, {_in_latex(shown.difference)}}}"


def _tall(text: str) -> str:
    """Return a heading that is two lines high."""
    return rf"\multirow{{2}}{{*}}{{{text}}}"


def _wide(text: str, size: int, last: bool) -> str:
    """Return a cell over so many columns, with a rule at its right unless it is the last of its line."""
    return rf"\multicolumn{{{size}}}{{c{'' if last else '|'}}}{{{text}}}"


def _heading(text: str) -> str:
    """Return a heading or a label as the paper writes it: 40%."""
    return _in_latex(text.replace(" %", "%"))


def _stacked(name: str) -> str:
    """Return the name of a dataset, a long one on two lines: Oxford over Pets."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", name)
    if len(name) < 9 or len(words) < 2 or "".join(words) != name:
        return _in_latex(name)
    return rf"\shortstack{{{words[0]}\\{''.join(words[1:])}}}"


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


_NONE = Shown(Cell())
_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "[": "{[}",  # behind the end of a line it would begin an option
    "±": r"$\pm$",
    "−": r"$-$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in printable(text))
