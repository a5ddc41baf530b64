"""dspt audit and dspt review: find wrong labels, look at them, fix them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dspt.cli import completion
from dspt.cli.common import (
    Address,
    ClassNames,
    Columns,
    Data,
    Engine,
    Exclude,
    Jobs,
    Json,
    Quiet,
    Replace,
    Root,
    app,
    check_engine,
    print,
    print_json,
    reporter,
    workers,
)
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import AUTO, printable
from dspt.internal.rounding import counted

Report = Annotated[Path, typer.Argument(metavar="REPORT", help="A folder made by dspt audit.")]

# The first of these is the one that is written if none is named.
_FILES = ("manifest", "labels")
_FORMATS = (*_FILES, "cleanlab", "fiftyone", "label-studio", "huggingface")


@app.command(name="audit")
def audit_labels(
    data: Data,
    out: Annotated[Path, typer.Option(help="The report folder; a report that is there is made again.")] = Path(
        "report"
    ),
    model: Annotated[
        str,
        typer.Option(
            help="CLIP checkpoint: a Hugging Face hub id, a local folder, or 'embedded'. 'none' judges features by "
            "themselves: DINO's, your own, anything. Default: the paper's for images, none for a feature file."
        ),
    ] = AUTO,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    template: Annotated[
        str | None, typer.Option(help="The prompt that class names are put into, with {} for the name.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="How many labels you will look at: the page shows the best spent looks.")
    ] = None,
    look: Annotated[
        bool, typer.Option(help="Also look at the images themselves: duplicates, tiny, blank, blurred ones.")
    ] = True,
    table: Annotated[
        Path | None, typer.Option(help="Also write one row a sample to this .csv, .parquet or .json file.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Where encoded images are kept.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    engine: Engine = "local",
    address: Address = None,
    jobs: Jobs = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the labels of DATA that are wrong, and write a report. Nothing in DATA changes.

    One row a sample in audit.csv and audit.parquet, what is true of the whole set in summary.json, and index.html to
    look at. Given again, only new images are encoded and judged by what they look like; of those that the page shows,
    thumbnails are made again.

    With --jobs, or on Ray, workers encode images and go through the samples; the result is the same up to rounding.

    \b
    Examples:
      dspt audit photos/
      dspt audit photos.csv --out report --budget 500
      dspt audit features.npz --model none --json
      dspt audit shards/ --model none --jobs 4
    """
    from dataclasses import replace

    from dspt.auditing.folder import check_apart, check_out, summary, write_table
    from dspt.data import open_dataset
    from dspt.internal.files import check_free
    from dspt.workflows.audit import audit

    check_engine(engine, jobs, address)
    if table is not None:
        if table.suffix not in (".csv", ".parquet", ".json"):
            raise InputError(f"{table}: expected a .csv, .parquet or .json file for the table")
        check_free(table, mark=b"is_label_issue")
        check_apart(table, [data])
    check_out(out, data)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        exclude=exclude or (),
        test_fraction=0,
        skip_bad=True,
    )
    if template is not None:
        dataset = replace(dataset, template=template)
    say = reporter(quiet)
    on_gpu = device != "cpu" and not dataset.holds_features
    with workers(engine, jobs, address, on_gpu, "part", say) as spread:
        found = audit(dataset, out, model, say, budget=budget, look=look, cache=cache, device=device, spread=spread)
    if table is not None:
        write_table(found, table)
    told = summary(found)
    if json_output:
        print_json(
            {**told, "report": str(out), "page": str(out / "index.html"), "table": str(table or out / "audit.csv")}
        )
        return
    print(*_lines(found, told), sep="\n")
    print()
    print(f"report   {out / 'index.html'}   open it in a browser")
    print(f"table    {table or out / 'audit.csv'}")
    print(f"next     dspt review {_quoted(out)}")


def _lines(found: Any, told: dict[str, Any]) -> list[str]:
    """Return what an audit has found, for a terminal."""
    from dspt.auditing.report import headline

    lines = [
        f"{printable(found.source)}: {counted(told['samples'], 'sample')}, "
        f"{counted(told['classes'], 'class', 'classes')}",
        headline(found),
    ]

    def add(name: str, text: str) -> None:
        lines.append(f"  {name:<14}{text}")

    if found.tells:
        called = int((found.is_label_issue & found.open).sum())
        listed = ", the surest first on the page" if told["looks"] is None and called > 1 else ""
        add("called wrong", f"{called:,}{listed}")
        most = [f"{pair['given']} -> {pair['proposed']} {pair['count']:,}" for pair in told["most_confused"][:3]]
        if most:
            add("most often", ", ".join(most))
    if told["looks"] is not None and found.can_tell:
        wrong = told["wrong_among_looks"]
        # as many digits as in the estimate for all labels
        share = "" if wrong is None else f"; about {round(float(f'{wrong:.3g}')):,} of them should be wrong"
        add("worth a look", f"{told['looks']:,}, listed on the page{share}")
    if found.in_both_splits:
        add("both splits", f"{_first_of(found.in_both_splits)}; a sample in train and test is a leak")
    if told["duplicate_groups"]:
        differ, leaks = told["duplicates_with_different_labels"], told["duplicates_in_train_and_test"]
        more = [f"{differ:,} with different labels"] * bool(differ) + [f"{leaks:,} in train and test"] * bool(leaks)
        add("duplicates", ", ".join([counted(told["duplicate_groups"], "group"), *more]))
    if told["outliers"]:
        add("fits no class", f"{told['outliers']:,}")
    if told["image_issues"]:
        add("images", ", ".join(f"{count:,} {name}" for name, count in told["image_issues"].items()))
    if found.empty_folders:
        add("no images", _first_of(found.empty_folders, reasons=False))
    told_already = {*found.in_both_splits, *found.empty_folders}
    if others := [fault for fault in found.unusable if fault not in told_already]:
        add("left out", _first_of(others))
    for pair in told["inseparable_classes"][:3]:
        one, other = pair["classes"]
        told_so = "cannot be told apart" if pair["by"] == "images" else "are one word; perhaps they are one class"
        add("classes", f"{one!r} and {other!r} {told_so}")
    return lines


def _first_of(faults: Sequence[Fault], reasons: bool = True) -> str:
    """Return how many faults there are, and the first: "3: cat/1.png (no such file), and 2 more"."""
    why = f" ({faults[0].reason})" if reasons else ""
    more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
    return f"{len(faults):,}: {faults[0].name}{why}{more}"


@app.command(name="review")
def review_labels(
    report: Report,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the corrected labels here and end: a .csv, .jsonl or .parquet manifest, or a folder."),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--format",
            help=f"What --export writes: {', '.join(_FORMATS)}.",
            autocompletion=completion.among(_FORMATS),
        ),
    ] = "manifest",
    apply: Annotated[
        Path | None,
        typer.Option(help="Copy the images to this new folder, each to its corrected class, and end."),
    ] = None,
    take: Annotated[
        Path | None,
        typer.Option(
            "--import",
            help="Take corrections from this file: a table with item and label, Label Studio's or FiftyOne's JSON.",
        ),
    ] = None,
    accept: Annotated[
        float | None,
        typer.Option(help="Besides your decisions, take proposals that are at least so probable, such as 0.95."),
    ] = None,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fix the labels of a report in the browser. Then write what came of it.

    Without --export, --apply or --import the page is served on this machine alone until Ctrl-C; every decision is
    saved the moment it is made. The images themselves are never changed.

    \b
    Examples:
      dspt review report/
      dspt review report/ --export corrected.csv
      dspt review report/ --export corrected.csv --accept 0.95
      dspt review report/ --apply corrected_photos/
      dspt review report/ --import corrections.csv
      dspt review report/ --export for_label_studio/ --format label-studio
    """
    from dspt.auditing import folder

    if to not in _FORMATS:
        raise InputError(f"format {to!r}: expected one of {', '.join(_FORMATS)}")
    if export is not None and apply is not None:
        raise InputError("export and apply: give one of them at a time")
    if accept is not None and export is None and apply is None:
        raise InputError("accept: it goes with export or apply, where proposals are written as labels")
    if to != _FORMATS[0] and export is None:
        raise InputError(f"format {to}: it says what is exported, and nothing is", "give `export`, too")
    if overwrite and (export is None or to not in _FILES):
        what = "apply writes a new folder" if apply else f"{to} is a folder" if export else "nothing is exported"
        raise InputError(f"overwrite: it is for a file that is exported, and {what}; leave it out")
    if (port or open_browser) and (export is not None or apply is not None or take is not None):
        raise InputError("port and open: they go with the page, which is not served with export, apply or import")
    audit = folder.load(report)
    told: dict[str, Any] = {"report": str(report)}
    if take is not None:
        from dspt.workflows.audit import take as take_corrections

        told["imported"] = take_corrections(report, take, audit)
    if export is not None or apply is not None:
        told |= _written(report, audit, export, apply, to, accept, overwrite, reporter(quiet))
    if take is None and export is None and apply is None:
        _serve(report, port, open_browser, audit.made_with.get("budget"))
        return
    if json_output:
        print_json(told)
        return
    if "imported" in told:
        taken = told["imported"]
        print(f"{counted(taken, 'correction')} {'was' if taken == 1 else 'were'} taken from {take}")
    if (where := export or apply) is not None:
        print(
            f"{counted(told['written'], 'sample')}, {told['relabelled']:,} with another label, "
            f"{told['removed']:,} removed; {told['person']:,} decided by a person, "
            f"{told['accepted']:,} accepted: {where}"
        )
        if export is not None and to == "manifest":
            model = audit.made_with.get("model")
            chosen = f" --model {shlex.quote(model)}" if model else ""
            print(f"next     dspt train {_quoted(export)}{chosen} --out runs/corrected")


def _written(
    report: Path,
    audit: Any,
    export: Path | None,
    apply: Path | None,
    to: str,
    accept: float | None,
    overwrite: bool,
    progress: Any,
) -> dict[str, Any]:
    """Return what was counted when the corrected labels were written."""
    from dspt.auditing import folder
    from dspt.review import corrected, exchange
    from dspt.workflows.audit import decided, refit

    decisions = decided(report, audit, progress)
    if accept is not None and (decisions or not audit.open.all()):
        audit = refit(report, decisions, audit)  # what was decided, or taken back, changes the proposals
    paths = folder.load_paths(report)
    files = None if any(path is None for path in paths) else [path for path in paths if path is not None]
    if apply is not None:
        return {**corrected.apply_to_copy(audit, decisions, files, apply, accept, progress), "folder": str(apply)}
    assert export is not None
    if to == "manifest":
        counts = corrected.write_manifest(audit, decisions, export, files, accept, overwrite)
    elif to == "labels":
        counts = corrected.write_labels(audit, decisions, export, accept, overwrite)
    else:
        counts = exchange.export(audit, decisions, export, to, files, accept)
    return {**counts, "file": str(export)}


def _serve(report: Path, port: int, open_browser: bool, budget: int | None) -> None:
    from dspt.review.server import serve
    from dspt.workflows.audit import refit

    serve(report, port=port, say=print, open_browser=open_browser, refit=refit, budget=budget)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
