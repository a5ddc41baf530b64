"""A table in LaTeX, with booktabs and multirow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dspt.experiments.collect import Results
from dspt.experiments.grid import (
    MARKED,
    NOTHING,
    THEIRS,
    Block,
    Grid,
    Shown,
    arrange,
    remarks,
    title,
)
from dspt.internal.names import printable

# A float cannot be broken over pages, and there is no room for more lines of this size on one.
_LINES_OF_A_PAGE = 48


def latex(results: Results) -> str:
    """Return the table of an experiment as one or more LaTeX floats."""
    experiment = results.experiment
    if not experiment.conditions:
        return f"% {experiment.name}: {NOTHING}\n"
    table = arrange(results)
    caption = " ".join([f"{title(results)}.", MARKED, *remarks(results, table)])
    tables = []
    for number, blocks in enumerate(_pages(table.blocks)):
        text = f"{title(results)} (continued)." if number else caption
        # A label of its own for each, or LaTeX would warn.
        label = f"tab:{experiment.name}" + (f"-{number + 1}" if number else "")
        tables.append(_float(replace(table, blocks=tuple(blocks)), text, label))
    return "% needs \\usepackage{booktabs,multirow}\n" + "\n".join(tables)


def _pages(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks in as many floats as they need."""
    pages: list[list[Block]] = [[]]
    for block in blocks:
        if pages[-1] and sum(map(_height, [*pages[-1], block])) > _LINES_OF_A_PAGE:
            pages.append([])
        pages[-1].append(block)
    return pages


def _height(block: Block) -> int:
    return sum(2 if row.compared else 1 for row in block.rows)


def _float(table: Grid, caption: str, label: str) -> str:
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
    if table.groups:
        cells, rules, start = [""] * left, [], left + 1
        for group, size in table.groups:
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
            ours = map(_ours_in_latex, row.shown)
            lines.append(_ampersands([*first, _in_latex(row.label), *ours]))
            if row.compared:
                empty = [""] if named else []
                theirs = map(_theirs_in_latex, row.shown)
                lines.append(_ampersands([*empty, rf"{{\tiny {THEIRS}}}", *theirs]))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""]
    return "\n".join(lines)


def _ours_in_latex(shown: Shown) -> str:
    text = shown.marked(shown.mean, r"\textbf{{{}}}", r"\underline{{{}}}")
    return text + (rf"{{\tiny$\pm${shown.spread}}}" if shown.spread else "")


def _theirs_in_latex(shown: Shown) -> str:
    if not shown.paper:
        return ""
    return rf"{{\tiny {shown.paper}, {_in_latex(shown.difference)}}}"


def _stacked(heading: str) -> str:
    """Return a heading, one that is longer than the figures below it on two lines: Oxford over Pets."""
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
    "[": "{[}",  # behind the end of a line it would begin an option
    "±": r"$\pm$",
    "−": r"$-$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in printable(text))
