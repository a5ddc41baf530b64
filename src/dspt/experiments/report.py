"""Everything that was run as one HTML page, which needs nothing but itself: no network, no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from dspt import __version__
from dspt.experiments import collect, figures, layout
from dspt.experiments.catalogue import EXPERIMENTS
from dspt.experiments.collect import Results, Run
from dspt.experiments.layout import Layout, Row, Shown
from dspt.internal.errors import InputError
from dspt.internal.files import write_text

_PNG = b"\x89PNG\r\n\x1a\n"


def make(folder: Path, path: Path) -> dict[str, Any]:
    """Write the page of all runs below a folder to `path`, and return what it shows."""
    runs = collect.find_runs(folder)
    if not runs:
        raise InputError(f"runs folder {folder}: no finished runs below it; dspt train makes one")
    left_out: dict[str, str] = {}
    with TemporaryDirectory() as drawn:
        pictures = {}
        for experiment in EXPERIMENTS.values():
            if experiment.kind != "figure":
                continue
            try:
                results = collect.collect(experiment, runs)
                if results.runs:
                    files = figures.draw(results, Path(drawn) / experiment.name)
                    pictures[experiment.name] = files[-1]
            except InputError as error:
                left_out[experiment.name] = str(error)
        write_report(runs, path, pictures, left_out)
    return {"runs": len(runs), "figures": list(pictures), "left_out": left_out}


def write_report(
    runs: Sequence[Run],
    path: Path,
    pictures: Mapping[str, Path],
    left_out: dict[str, str] | None = None,
) -> None:
    """Write the page to `path`: a table for each experiment that has runs, the pictures (PNG) by name, and all runs.

    What cannot be shown is said on the page, with the reason; tables that cannot are added to `left_out`.
    """
    left_out = {} if left_out is None else left_out
    tables = list(_tables(runs, left_out))
    pictured = list(_figures(pictures))
    sections = [*tables, *pictured, *_missing(left_out), *_all_runs(runs), *_machines(runs)]
    links = "".join(
        f'<li><a href="#{name}">{name.replace("-", " ", 1).capitalize()}</a></li>'
        for name, _, _ in sections
    )
    body = [
        "<header>",
        "<h1>Learning from wrong labels: all results</h1>",
        '<p class="lead">Every table, figure and run, as the run folders tell them.</p>',
        _summary(runs),
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if sections else "",
        "</header>",
        "<main>",
        *(
            f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{text}\n</section>'
            for name, title, text in sections
        ),
        "</main>",
        f"<footer>Written by dspt {escape(__version__)}.</footer>",
    ]
    page = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    text = page.substitute(title=f"dspt report: {_count(len(runs), 'run')}", body="\n".join(body))
    # The name of a file may hold bytes that are no UTF-8.
    write_text(path, text.encode("utf-8", "replace").decode("utf-8"))


# A section is an anchor, a heading and what stands below it, the last two as HTML.
_Section = tuple[str, str, str]


def _summary(runs: Sequence[Run]) -> str:
    if not runs:
        return "<p>There are no finished runs yet.</p>"
    hours, minutes = divmod(round(sum(map(_seconds, runs)) / 60), 60)
    facts = {
        "finished runs": len(runs),
        "datasets": len({run.dataset for run in runs}),
        "methods": len({(run.method, run.options) for run in runs}),
        "seeds": len({run.seed for run in runs}),
        "time, all runs": f"{hours} h {minutes} min" if hours else f"{minutes} min",
    }
    items = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<dl class="summary">{"".join(items)}</dl>'


def _seconds(run: Run) -> float:
    seconds = run.result.get("seconds")
    return seconds if isinstance(seconds, (int, float)) else 0.0


def _missing(left_out: Mapping[str, str]) -> Iterator[_Section]:
    if left_out:
        items = "".join(
            f"<li>{name}: {escape(why.removeprefix(f'{name}: '))}</li>"
            for name, why in left_out.items()
        )
        yield "left-out", "Left out", f'<ul class="notes">{items}</ul>'


def _tables(runs: Sequence[Run], left_out: dict[str, str]) -> Iterator[_Section]:
    for experiment in EXPERIMENTS.values():
        if experiment.kind != "table":
            continue
        try:
            kinds = [collect.collect(experiment, kind) for kind in _kinds(runs)]
        except InputError as error:
            left_out[experiment.name] = str(error)
            continue
        kinds = [results for results in kinds if results.runs]
        if not kinds:
            continue
        headings = _differences(kinds)
        parts = []
        for results, heading in zip(kinds, headings, strict=True):
            if heading:
                parts.append(f"<h3>{escape(heading)}</h3>")
            parts.append(_table(results, heading))
        yield f"table-{experiment.name}", escape(experiment.title), "\n".join(parts)


def _kinds(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups of the same settings, so that each group may stand in one table."""

    def kind(run: Run) -> str:
        return json.dumps(
            {name: run.settings.get(name) for name in names}, sort_keys=True, default=str
        )

    names = sorted({name for run in runs for name in run.settings} - collect.MAY_DIFFER)
    return [list(group) for _, group in groupby(sorted(runs, key=kind), kind)]


def _differences(kinds: Sequence[Results]) -> list[str]:
    """What each of several results of an experiment differs in from the others: "epochs 20, lr 0.002"."""
    found = [results.runs[0].settings for results in kinds]
    names = sorted({name for settings in found for name in settings} - collect.MAY_DIFFER)
    differing = [n for n in names if len({json.dumps(s.get(n), default=str) for s in found}) > 1]
    return [", ".join(_setting(name, settings) for name in differing) for settings in found]


def _setting(name: str, settings: Mapping[str, Any]) -> str:
    value = settings.get(name)
    if name == "model_fingerprint":
        model = Path(str(settings.get("model"))).name
        return f"model {model}" if model == value else f"model {model} ({str(value)[:8]})"
    shown = (
        "none"
        if value is None
        else str(value).lower()
        if value is True or value is False
        else value
    )
    return f"{name.replace('_', ' ')} {shown}"


def _table(results: Results, heading: str) -> str:
    """The table of the results as HTML, without the rows and columns that have no runs."""
    full = layout.layout(results)
    table = _pruned(full)
    width = 1 + len(table.columns)
    groups = [group for group, _ in table.columns]
    starts = [i > 0 and groups[i] != groups[i - 1] for i in range(len(groups))]
    lines = []
    if any(groups):
        cells = [
            f'<th scope="colgroup" colspan="{size}" class="group{_starts(number > 0)}">'
            f"{escape(group)}</th>"
            for number, (group, size) in enumerate(layout.spans(groups))
        ]
        lines.append(f"<tr><td></td>{''.join(cells)}</tr>")
    heads = "".join(
        f'<th scope="col" class="column{_starts(start)}">{escape(head)}</th>'
        for (_, head), start in zip(table.columns, starts, strict=True)
    )
    lines.append(f'<tr><th scope="col">{escape(table.rows_are)}</th>{heads}</tr>')
    bodies = []
    for block in table.blocks:
        rows = []
        if block.name:
            rows.append(
                f'<tr class="block"><th scope="rowgroup" colspan="{width}">{escape(block.name)}</th></tr>'
            )
        for row in block.rows:
            cells = [
                f'<td class="figure{_starts(start)}">{_cell(shown)}</td>'
                for shown, start in zip(row.figures, starts, strict=True)
            ]
            rows.append(f'<tr><th scope="row">{escape(row.label)}</th>{"".join(cells)}</tr>')
        bodies.append("<tbody>" + "\n".join(rows) + "</tbody>")
    made = f"Table {results.experiment.name}, from {_count(len(results.runs), 'run')}"
    caption = escape(f"{made} with {heading}" if heading else made)
    sentences = [layout.MARKED, *layout.remarks(results, table), *_left_out(full, table)]
    notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n'
        f'<table class="results"><caption>{caption}</caption>\n<thead>{"".join(lines)}</thead>\n'
        + "\n".join(bodies)
        + f'</table></div>\n<ul class="notes">{notes}</ul>'
    )


def _starts(start: bool) -> str:
    return " starts" if start else ""


def _cell(shown: Shown) -> str:
    cell = shown.cell
    if cell.mean is None:
        return ""
    text = f"{cell.mean:.1f}"
    text = {1: f"<b>{text}</b>", 2: f"<u>{text}</u>"}.get(shown.rank or 0, text)
    if cell.std is not None:
        text += f' <span class="spread">± {layout.spread(cell)}</span>'
    if cell.paper is not None and cell.difference is not None:
        text += f"<small>{cell.paper:.2f}, {layout.signed(cell.difference)}</small>"
    return text


def _pruned(table: Layout) -> Layout:
    """The table without rows and columns that hold no run. Zero-shot is in every column and says nothing."""
    kept = [
        i
        for i in range(len(table.columns))
        if any(r.figures[i].cell.values for r in table.rows if r.label != layout.ZERO_SHOT)
    ]
    blocks = []
    for block in table.blocks:
        rows = [Row(row.label, tuple(row.figures[i] for i in kept)) for row in block.rows]
        rows = [row for row in rows if any(shown.cell.values for shown in row.figures)]
        if any(row.label != layout.ZERO_SHOT for row in rows):
            blocks.append(replace(block, rows=tuple(rows)))
    return replace(table, columns=tuple(table.columns[i] for i in kept), blocks=tuple(blocks))


def _left_out(full: Layout, table: Layout) -> list[str]:
    """A sentence that names the rows and columns without runs, if there are any."""
    rows = {row.label for row in table.rows}
    names = [row.label for row in full.rows if row.label not in rows]
    names += [" ".join(filter(None, c)) for c in full.columns if c not in table.columns]
    return [f"Without runs, and so left out: {', '.join(dict.fromkeys(names))}."] if names else []


def _figures(figures: Mapping[str, Path]) -> Iterator[_Section]:
    if not figures:
        return
    parts = []
    for name, path in figures.items():
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(
                f"figure {name}: {path} cannot be read ({error.strerror}); draw it first"
            ) from None
        if not data.startswith(_PNG):
            raise InputError(f"figure {name}: {path} is not a PNG; give the PNG of the figure")
        title = escape(EXPERIMENTS[name].title if name in EXPERIMENTS else name)
        source = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
        parts.append(
            f'<figure><img src="{source}" alt="Figure: {title}"><figcaption>{title}</figcaption></figure>'
        )
    yield "figures", "Figures", "\n".join(parts)


_COLUMNS: dict[str, Callable[[Run], Any]] = {
    "dataset": lambda run: run.dataset,
    "noise": lambda run: run.noise,
    "method": lambda run: run.method,
    "options": lambda run: " ".join(map(str, run.options)),
    "seed": lambda run: run.seed,
    "epochs": lambda run: run.settings.get("epochs"),
    "accuracy": lambda run: _figure(run.result.get("accuracy"), ".2f"),
    "zero-shot": lambda run: _figure(run.result.get("zero_shot"), ".2f"),
    "wrong labels (%)": lambda run: _figure(run.result.get("wrong_labels"), ".1f", 100),
    "seconds": lambda run: _figure(run.result.get("seconds"), ".0f"),
    "folder": lambda run: run.folder.name,
}
_NUMBERS = {"seed", "epochs", "accuracy", "zero-shot", "wrong labels (%)", "seconds"}


def _all_runs(runs: Sequence[Run]) -> Iterator[_Section]:
    if not runs:
        return
    rows = [[str(value(run)) for value in _COLUMNS.values()] for run in runs]
    shown = [i for i, name in enumerate(_COLUMNS) if name != "options" or any(r[i] for r in rows)]
    names = list(_COLUMNS)
    table = _list(
        "Every finished run; a click on a heading sorts.",
        [names[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        "list sortable",
    )
    yield "runs", "All runs", table


def _figure(value: Any, spec: str, times: float = 1) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return format(times * value, spec) if number else ""


def _machines(runs: Sequence[Run]) -> Iterator[_Section]:
    if not runs:
        return
    counted: dict[str, int] = {}
    for run in runs:
        kind = json.dumps(_environment(run))
        counted[kind] = counted.get(kind, 0) + 1
    found = [(json.loads(kind), number) for kind, number in counted.items()]
    names = list(dict.fromkeys(name for environment, _ in found for name in environment))
    rows = [
        [str(number), *("" if e.get(name) is None else str(e[name]) for name in names)]
        for e, number in found
    ]
    caption = "Versions and machines, with the number of runs made by each."
    yield "machines", "Versions and machines", _list(caption, ["runs", *names], rows, "list")


def _environment(run: Run) -> dict[str, Any]:
    try:
        found = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _list(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    classes = [
        "number" if name in _NUMBERS else "long" if name in ("folder", "platform") else "word"
        for name in names
    ]
    heads = "".join(
        f'<th scope="col" class="{c}">{escape(name)}</th>'
        for name, c in zip(names, classes, strict=True)
    )
    lines = (
        "<tr>"
        + "".join(
            f'<td class="{c}">{escape(text)}</td>' for text, c in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">\n'
        f'<table class="{kind}"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>" + "\n".join(lines) + "</tbody></table></div>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
