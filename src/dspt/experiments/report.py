"""Everything that was run as one HTML page, which needs nothing but itself: no network, no other file."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dspt import __version__
from dspt.experiments import collect, figures
from dspt.experiments.catalogue import EXPERIMENTS, LANDSCAPE, Experiment
from dspt.experiments.collect import Results, TableRun
from dspt.experiments.grid import MARKED, ZERO_SHOT, Grid, Row, arrange, remarks, title
from dspt.internal.errors import InputError
from dspt.internal.files import write_text
from dspt.internal.names import printable
from dspt.internal.rounding import figure
from dspt.runs import NotUsed, Result

_PNG = b"\x89PNG\r\n\x1a\n"
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    # What a macro made is Markup; everything else may hold the name of a file.
    finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


# By name of the experiment, in the order of the catalogue: why it is not shown, or None if it is.
Contents = dict[str, InputError | None]


@dataclass(frozen=True)
class Report:
    """What a page shows: how many runs; every table and figure, or why it is left out; which folders are not used."""

    runs: int
    contents: Contents
    not_used: list[NotUsed]


def make(folder: Path, path: Path) -> Report:
    """Write the page of all runs below a folder, at any depth, to the HTML file `path`, and return what it shows."""
    not_used: list[NotUsed] = []
    runs = collect.find_runs(folder, not_used.append)
    if not runs:
        first = f"; {not_used[0].sentence}" if not_used else ""
        raise InputError(f"runs folder {folder}: no finished runs below it; 'dspt train' makes one{first}")
    shown = {one.folder for e in EXPERIMENTS.values() for kind in _kinds(runs) for one in collect.own_runs(e, kind)}
    alone = InputError("it belongs to no table or figure, and stands in the list of all runs only")
    not_used += [NotUsed(run.folder, alone) for run in runs if run.folder not in shown]
    contents: Contents = dict.fromkeys(EXPERIMENTS)
    contents[LANDSCAPE] = InputError(f"it is drawn from formulas and shows no runs; 'dspt figure {LANDSCAPE}' draws it")
    with TemporaryDirectory() as drawn:
        pictures = {}
        for experiment in EXPERIMENTS.values():
            if experiment.kind != "figure":
                continue
            try:
                results = collect.collect(experiment, runs)
                if results.runs:
                    (pictures[title(results)],) = figures.draw(results, Path(drawn) / f"{experiment.name}.png")
                else:
                    contents[experiment.name] = _no_runs(experiment)
            except InputError as error:
                contents[experiment.name] = error
        write_report(runs, path, pictures, contents, not_used)
    return Report(len(runs), contents, not_used)


def _no_runs(experiment: Experiment) -> InputError:
    return InputError(f"there are no runs of it; 'dspt reproduce {experiment.name}' makes them")


def write_report(
    runs: Sequence[TableRun],
    path: Path,
    pictures: Mapping[str, Path],
    contents: Contents | None = None,
    not_used: Sequence[NotUsed] = (),
) -> None:
    """Write the page to `path`: a table for each experiment that has runs, the pictures (PNG) by title, and all runs.

    Every table and figure is named on the page, with the reason where it is left out.

    Parameters
    ----------
    runs : sequence of TableRun
        The finished runs.
    path : Path
        The HTML file.
    pictures : mapping of str to Path
        The PNG file of each figure, by its title.
    contents : Contents, optional
        Which figures are left out, and why; tables that are left out are added. None names tables alone.
    not_used : sequence of NotUsed
        Why folders are not used.
    """
    contents = {} if contents is None else contents
    sections = [
        *_tables(runs, contents),
        _Section("figures", "Figures", "picture", [_picture(*one) for one in pictures.items()]),
        _Section("contents", "What is shown, and what is left out", "notes", [in_words(contents)] if runs else []),
        _Section(
            "not-used",
            "Folders not used",
            "notes",
            [[str(InputError(w.sentence)) for w in not_used]] if not_used else [],
        ),
        _Section("runs", "All runs", "list", [_all_runs(runs)] if runs else []),
        _Section("machines", "Versions and machines", "list", [_machines(runs)] if runs else []),
    ]
    text = _TEMPLATES.get_template("report.html").render(
        count=_count(len(runs), "run"),
        facts=_facts(runs),
        sections=[section for section in sections if section.parts],
        version=__version__,
    )
    write_text(path, text)


def kind_of(name: str) -> str:
    """Return whether an experiment is a "table" or a "figure"."""
    return "figure" if name == LANDSCAPE else EXPERIMENTS[name].kind


def in_words(contents: Contents, wording: Callable[[InputError], str] = str) -> list[str]:
    """Return a sentence for each table and figure, in order; `wording` writes why one is left out."""
    sentences = []
    for name, why in contents.items():
        kind = kind_of(name)
        shown = "drawn" if kind == "figure" else "shown"
        said = f"left out, {wording(why).removeprefix(f'{name}: ')}" if why else shown
        sentences.append(f"{kind} {name}: {said}")
    return sentences


@dataclass(frozen=True)
class _Section:
    """A part of the page with a heading. Its kind says which macro of the template shows its parts."""

    anchor: str
    title: str
    kind: str  # "table", "picture", "notes" or "list"
    parts: Sequence[Any]


def _facts(runs: Sequence[TableRun]) -> dict[str, Any]:
    """Return the numbers at the top of the page."""
    if not runs:
        return {}
    minutes = round(sum(run.result.seconds for run in runs) / 60)
    return {
        "finished runs": len(runs),
        "datasets": len({run.dataset for run in runs}),
        "methods": len({(run.method, run.options) for run in runs}),
        "seeds": len({run.seed for run in runs}),
        "time, all runs": f"{minutes // 60} h {minutes % 60} min" if minutes > 59 else f"{minutes} min",
    }


def _tables(runs: Sequence[TableRun], contents: Contents) -> Iterator[_Section]:
    """Yield a section for each table that has runs, with a part for each kind of settings."""
    for experiment in EXPERIMENTS.values():
        if experiment.kind != "table":
            continue
        try:
            kinds = [collect.collect(experiment, kind) for kind in _kinds(runs)]
        except InputError as error:
            contents[experiment.name] = error
            continue
        kinds = [results for results in kinds if results.runs]
        contents[experiment.name] = None if kinds else _no_runs(experiment)
        parts = [_table(*one) for one in zip(kinds, _differences(kinds), strict=True)]
        yield _Section(f"table-{experiment.name}", experiment.title, "table", parts)


def _kinds(runs: Sequence[TableRun]) -> list[list[TableRun]]:
    """Return the runs in groups of the same settings, so that each group may stand in one table."""

    def kind(run: TableRun) -> str:
        return json.dumps({name: run.settings.get(name) for name in names}, sort_keys=True, default=str)

    names = sorted({name for run in runs for name in run.settings} - collect.MAY_DIFFER)
    return [list(group) for _, group in groupby(sorted(runs, key=kind), kind)]


def _differences(kinds: Sequence[Results]) -> list[str]:
    """Return what each of several results of an experiment differs in from the others: "epochs 20, lr 0.002"."""
    found = [results.runs[0].settings for results in kinds]
    names = sorted({name for settings in found for name in settings} - collect.MAY_DIFFER)
    differing = [n for n in names if len({json.dumps(s.get(n), default=str) for s in found}) > 1]
    return [", ".join(_setting(name, settings) for name in differing) for settings in found]


def _setting(name: str, settings: Mapping[str, Any]) -> str:
    value = settings.get(name)
    if name == "model_fingerprint":
        model = Path(str(settings.get("model"))).name
        return f"model {model}" if model == value else f"model {model} ({str(value)[:8]})"
    shown = str(value).lower() if value is None or isinstance(value, bool) else value
    return f"{name.replace('_', ' ')} {shown}"


def _table(results: Results, heading: str) -> dict[str, Any]:
    """Return the table of the results, without the rows and columns that have no runs."""
    full = arrange(results, "paper")
    grid = _pruned(full)
    caption = f"Table {results.experiment.name}, from {_count(len(results.runs), 'run')}: {title(results)}"
    return {
        "heading": heading,
        "grid": grid,
        "caption": f"{caption}, with {heading}" if heading else caption,
        "notes": [MARKED, *remarks(results, grid), *_left_out(full, grid)],
    }


def _pruned(table: Grid) -> Grid:
    """Return the table without rows and columns that hold no run. Zero-shot is in every column and says nothing."""
    learnt = [row for row in table.rows if row.label != ZERO_SHOT]
    kept = [i for i in range(len(table.columns)) if any(row.shown[i].cell.values for row in learnt)]
    blocks = []
    for block in table.blocks:
        rows = [r if r.once else Row(r.label, tuple(r.shown[i] for i in kept)) for r in block.rows]
        rows = [row for row in rows if any(shown.cell.values for shown in row.shown)]
        if any(row.label != ZERO_SHOT for row in rows):
            blocks.append(replace(block, rows=tuple(rows)))
    return replace(table, columns=tuple(table.columns[i] for i in kept), blocks=tuple(blocks))


def _left_out(full: Grid, table: Grid) -> list[str]:
    """Return a sentence that names the rows without runs, and one that names such columns, where there are any."""
    kept = {row.label for row in table.rows}
    rows = dict.fromkeys(row.label for row in full.rows if row.label not in kept)
    columns = [" ".join(filter(None, column)) for column in full.columns if column not in table.columns]
    found = {f"{full.rows_are.capitalize()}s": rows, "Columns": columns}
    return [f"{what} without runs, and so left out: {'; '.join(names)}." for what, names in found.items() if names]


def _picture(title: str, path: Path) -> dict[str, str]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"figure {title}: {path} cannot be read ({error.strerror}); draw it first") from None
    if not data.startswith(_PNG):
        raise InputError(f"figure {title}: {path} is not a PNG; give the PNG of the figure")
    return {"title": title, "data": base64.b64encode(data).decode("ascii")}


_COLUMNS: dict[str, Callable[[TableRun], Any]] = {
    "dataset": lambda run: run.dataset,
    "noise": lambda run: run.noise,
    "method": lambda run: run.method,
    "options": lambda run: " ".join(map(str, run.options)),
    "seed": lambda run: run.seed,
    "epochs": lambda run: run.settings.get("epochs"),
    "accuracy": lambda run: _figure(run.result.accuracy, 2),
    "zero-shot": lambda run: _figure(run.result.zero_shot, 2),
    "wrong labels (%)": lambda run: _wrong(run.result),
    "test labels": lambda run: "right" if run.result.test_labels_known else "may be wrong",
    "seconds": lambda run: _figure(run.result.seconds, 0),
    "folder": lambda run: run.folder.name,
}
_NUMBERS = {"seed", "epochs", "accuracy", "zero-shot", "wrong labels (%)", "seconds"}


def _all_runs(runs: Sequence[TableRun]) -> dict[str, Any]:
    columns = _COLUMNS
    if not any(run.options for run in runs):
        columns = {name: text for name, text in columns.items() if name != "options"}
    rows = [[str(text(run)) for text in columns.values()] for run in runs]
    return _list("Every finished run; a click on a heading sorts.", columns, rows, sortable=True)


def _wrong(result: Result) -> str:
    """Return the share of wrong labels as far as it is known, with the estimate where there is one."""
    # Before it was written down whether labels are known, those without noise were all taken for right.
    trusted = result.test_labels_known is not None or result.noise != "none"
    if result.wrong_labels is not None and trusted:
        part = result.labels_known and result.samples and result.labels_known < result.samples
        return figure(100 * result.wrong_labels, 1) + (f" of {result.labels_known:,} known" if part else "")
    rate, error = result.found.get("noise_rate"), result.found.get("noise_rate_error")
    estimate = "" if rate is None or error is None else f", perhaps {figure(100 * rate, 1)} ± {figure(100 * error, 1)}"
    return f"unknown{estimate}"


def _figure(value: float | None, digits: int, times: float = 1) -> str:
    return "" if value is None else figure(times * value, digits)


def _machines(runs: Sequence[TableRun]) -> dict[str, Any]:
    counted = Counter(json.dumps(run.run.environment()) for run in runs)
    found = [(json.loads(kind), number) for kind, number in counted.items()]
    names = list(dict.fromkeys(name for environment, _ in found for name in environment))
    rows = [[str(number), *("" if e.get(name) is None else str(e[name]) for name in names)] for e, number in found]
    caption = "Versions and machines, with the number of runs made by each."
    return _list(caption, ["runs", *names], rows, sortable=False)


def _list(caption: str, names: Iterable[str], rows: Sequence[Sequence[str]], sortable: bool) -> dict[str, Any]:
    columns = [(n, "number" if n in _NUMBERS else "long" if n in ("folder", "platform") else "word") for n in names]
    return {"caption": caption, "columns": columns, "rows": rows, "sortable": sortable}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
