"""Commands about many runs: the paper's experiments, their tables and figures, and a page with everything."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspt.cli import completion
from dspt.cli.common import (
    Address,
    Engine,
    Jobs,
    Json,
    Log,
    Quiet,
    Replace,
    Root,
    app,
    check_engine,
    in_flags,
    options,
    print,
    print_entry,
    print_json,
    reporter,
    terminal_width,
)
from dspt.internal.errors import NAMED, InputError, one_line
from dspt.internal.rounding import counted

if TYPE_CHECKING:
    from dspt.engine.job import Job
    from dspt.experiments.catalogue import Experiment
    from dspt.experiments.collect import Results
    from dspt.runs import NotUsed

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="An experiment; 'dspt experiments' lists them.", autocompletion=completion.experiments
    ),
]
Runs = Annotated[Path, typer.Option(help="The folder below which the run folders are.")]
Only = Annotated[
    str | None,
    typer.Option(help="A part of it: dataset=pets,method=dspt,noise=sym:0.4,seed=1."),
]
Where = Annotated[
    str | None,
    typer.Option(help="Take runs with these settings alone: epochs=20,learner=prompt."),
]


@app.command(name="experiments")
def list_experiments(json_output: Json = False) -> None:
    """List the experiments of the paper. Tables and figures, and how many runs each is made of.

    \b
    Examples:
      dspt experiments
    """
    from dspt.experiments import landscape
    from dspt.experiments.catalogue import EXPERIMENTS, LANDSCAPE

    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "kind": one.kind,
            "title": one.title,
            "datasets": list(one.datasets),
            "noises": list(one.noises),
            "methods": [variant.label for variant in one.variants],
            "seeds": list(one.seeds),
            "runs": len(list(one.runs())),
        }
        for one in EXPERIMENTS.values()
    ]
    nothing: dict[str, Any] = {"datasets": [], "noises": [], "methods": [], "seeds": [], "runs": 0}
    rows.append({"name": LANDSCAPE, "kind": "figure", "title": landscape.TITLE} | nothing)
    if json_output:
        print_json({"experiments": rows})
        return
    for row in rows:
        runs = counted(row["runs"], "run")
        print_entry(f"{row['name']:<22}{row['kind']:<7}{runs:>10}  {row['title']}", indent=41)


@app.command()
def reproduce(
    name: Name,
    root: Root = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completion.data,
            help="Another source than the paper's datasets: 'embedded', a folder, a feature file; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="CLIP checkpoint; for cifar10 the network: resnet34, resnet18 or small. "
            "Default: the paper's ViT-B/16 from the hub, 'embedded' for embedded data."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the paper's.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, instead of the experiment's own: 1,2,3.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting of a run, as name=value; may be repeated: shots=16."),
    ] = None,
    only: Only = None,
    runs: Runs = Path("runs"),
    workers: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    log: Log = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and how long it would take.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do the runs of an experiment of the paper. Runs that are done are not repeated; one that breaks stops no other.

    \b
    Examples:
      dspt reproduce main --root datasets/ --dry-run
      dspt reproduce main --root datasets/ --only dataset=pets,method=dspt
      dspt reproduce main --root datasets/ --jobs 4
      dspt reproduce main --root datasets/ --engine ray --address auto
      dspt reproduce main --data embedded --epochs 5 --seeds 1
      dspt reproduce similar --data features.npz --model path/to/checkpoint --set learner=prototypes
    """
    from dspt.engine import sweep, tally
    from dspt.engine.job import Outcome, Sources
    from dspt.engine.job import failures as failures_of
    from dspt.experiments.jobs import jobs
    from dspt.runs import FAILURE, logs

    logs.names(log)
    check_engine(engine, workers, address)
    experiment = _experiment(name, data, seeds, only)
    asked = _with_settings(experiment, model, epochs, setting or [])
    todo = [replace(job, log=log) for job in jobs(asked, runs)]
    if dry_run:
        _forecast(experiment, todo, root, quiet, json_output)
        return
    say = reporter(quiet)
    wording = partial(in_flags, known=options())
    sources = Sources(root)
    missing = sources.missing(todo)  # before any folder is made
    for source, fault in missing.items():
        say.say(f"{source} is left out: {wording(fault)}")
    left_out = {job.folder: job for job in todo if job.source in missing and not job.done}
    possible = [job for job in todo if job.folder not in left_out]
    if engine == "ray":
        from dspt.engine import cluster

        started = cluster.do(possible, root, say, workers, address, sources)
    else:
        from dspt.engine import local

        started = local.do(possible, root, say, workers or 1, sources)
    path = sweep.plan(runs, todo, shlex.join(["dspt", *sys.argv[1:]]))
    with closing(started) as ended:  # whatever happens, no worker goes on
        outcomes = list(sweep.noted(tally.told(ended, possible, say), path))
    broken = [outcome for outcome in outcomes if outcome.error is not None]
    outcomes += [Outcome(job, error=missing[job.source]) for job in left_out.values()]
    failures = failures_of(outcomes, wording)
    if json_output:
        print_json(
            {
                "experiment": name,
                "runs": [
                    {
                        "dataset": o.job.source,
                        "noise": o.job.noise,
                        "method": o.job.config.method,
                        "options": list(o.job.config.option),
                        "seed": o.job.config.seed,
                        "folder": str(o.job.folder),
                        "accuracy": o.result.accuracy if o.result else None,
                        "error": o.error and wording(o.error),
                    }
                    for o in outcomes
                ],
                "failed": sum(o.error is not None for o in outcomes),
            }
        )
    else:
        done = sum(o.error is None for o in outcomes)
        print(f"{done} of {counted(len(outcomes), 'run')} {'is' if len(outcomes) == 1 else 'are'} done, in {runs}")
        where = ["--runs", str(runs)] if runs != Path("runs") else []
        if done:
            print("next: " + shlex.join(["dspt", experiment.kind, name, *where]))
        if broken:
            told = [(outcome.job.folder / FAILURE).exists() for outcome in broken]
            unless = "" if all(told) else ", if it could be put there"
            found = f"{FAILURE} in the folder of a run that failed has its traceback{unless}; " if any(told) else ""
            print(f"{found}dspt status {runs} names {'them' if any(told) else 'what failed'}")
    for line in failures:
        print(f"failed: {line}", file=sys.stderr)
    raise typer.Exit(1 if failures else 0)


@app.command(name="status")
def show_status(
    out: Annotated[Path, typer.Argument(metavar="[OUT]", help="The folder below which the run folders are.")] = Path(
        "runs"
    ),
    every_run: Annotated[bool, typer.Option("--all", help="Show runs that are done or to go, too.")] = False,
    json_output: Json = False,
) -> None:
    """Tell how far the runs of an experiment are.

    Which are done, running, failed and to go, from another terminal or after a kill.

    \b
    Examples:
      dspt status
      dspt status runs --all
      dspt status runs --json
    """
    from dspt.engine import status, sweep

    looked = [
        (one.command, [status.look(job, one.untold.get(job.folder, "")) for job in one.jobs], one.is_held)
        for one in sweep.find(out)
    ]
    if json_output:
        print_json({"sweeps": [status.as_json(*one) for one in looked]})
        return
    for number, one in enumerate(looked):
        print(*([""] if number else []), *status.in_words(*one, every_run), sep="\n")


@app.command()
def table(
    name: Name,
    runs: Runs = Path("runs"),
    style: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="terminal, markdown, latex or csv. Default: what the suffix of --out says, else terminal.",
            autocompletion=completion.among(("terminal", "markdown", "latex", "csv")),
        ),
    ] = None,
    show: Annotated[
        str,
        typer.Option(
            help="What a cell shows: mean, as the paper prints it; std, with ± over seeds; paper, with the paper's "
            "figure and the difference below.",
            autocompletion=completion.among(("mean", "std", "paper")),
        ),
    ] = "mean",
    every_dataset: Annotated[bool, typer.Option("--all", help="Show datasets without runs too.")] = False,
    only: Only = None,
    where: Where = None,
    out: Annotated[Path | None, typer.Option(help="Write to this .txt, .md, .tex or .csv file.")] = None,
    overwrite: Replace = False,
    json_output: Json = False,
) -> None:
    """Show a table of the paper, made from run folders. As the paper prints it, or beside the paper's own figures.

    \b
    Examples:
      dspt table main
      dspt table main --show paper
      dspt table extreme --runs runs --out extreme.tex
    """
    from dspt.experiments import grid, tables
    from dspt.internal.files import check_free, write_text

    if out is not None:
        check_free(out, overwrite)
    style = tables.style_for(out, style)
    results, not_used = _results(name, runs, only, where, every_dataset)
    if json_output:
        about = {"experiment": name, "title": grid.title(results), "notes": results.notes}
        print_json(about | {"cells": grid.rows(results), "not_used": not_used})
        return
    colour = out is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    text = tables.render(results, style, show=show, colour=colour, width=120 if out else terminal_width(otherwise=120))
    if out is not None:
        write_text(out, text)
        print(out)
        return
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.write(text)


@app.command()
def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A B]...",
            help="Methods, or folders of runs; two or more. None: the methods that have the most runs in common.",
            autocompletion=completion.methods_or_paths,
        ),
    ] = None,
    runs: Runs = Path("runs"),
    experiment: Annotated[
        str | None,
        typer.Option(help="Take the runs of this table or figure alone.", autocompletion=completion.experiments),
    ] = None,
    only: Only = None,
    where: Where = None,
    over: Annotated[
        str | None,
        typer.Option(
            help="What counts as one: datasets; settings (a dataset with a noise); or runs. "
            "Default: datasets, if there are several.",
            autocompletion=completion.among(("datasets", "settings", "runs")),
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw a critical-difference diagram: a .png, .pdf or .svg file.")
    ] = None,
    overwrite: Replace = False,
    json_output: Json = False,
) -> None:
    """Say whether a method is ahead of another by more than chance. Paired over data, noise and seed.

    Wilcoxon's signed-rank test of two; mean ranks with Friedman's and Nemenyi's tests of more.

    \b
    Examples:
      dspt compare dspt mae
      dspt compare dspt nlprompt coop gce --experiment main --picture ranks.pdf
      dspt compare runs/prompt runs/prototypes --over settings
    """
    from dspt import plots
    from dspt.experiments import compare as comparing

    if over is not None and over not in comparing.OVER:
        raise InputError(f"over {over!r}: not known; expected {', '.join(comparing.OVER)}")
    if picture is not None:
        plots.check_path(picture, overwrite)
    not_used: list[NotUsed] = []
    try:
        found = comparing.compare(sides or [], runs, experiment, only, where, not_used.append)
    finally:
        unused = _say_not_used(not_used)
    over = over or comparing.usual(found)
    if picture is not None:
        made = found.ranks(over)
        names = found.names
        groups = [[names[i] for i in group] for group in made.groups]
        units = f"{len(found.over(over)[0])} {over}"
        mean = dict(zip(names, made.mean, strict=True))
        plots.critical_difference(picture, mean, made.distance, groups, units, f"{found.made_with}.")
    if json_output:
        print_json(comparing.as_json(found, over) | {"file": picture and str(picture), "not_used": unused})
        return
    print(*comparing.in_words(found, over, terminal_width(otherwise=120)), sep="\n")
    if picture is not None:
        print(picture)


@app.command()
def figure(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A figure; 'dspt experiments' lists them.", autocompletion=completion.figures
        ),
    ],
    runs: Runs = Path("runs"),
    out: Annotated[
        Path,
        typer.Option(
            help="The folder for NAME.pdf and NAME.png, or a .pdf, .png or .svg file; for loss-landscape also .html."
        ),
    ] = Path("figures"),
    only: Only = None,
    where: Where = None,
    overwrite: Replace = False,
    json_output: Json = False,
) -> None:
    """Draw a figure of the paper from run folders, as PDF and PNG. Figures that dspt drew there are replaced.

    loss-landscape is drawn from formulas and needs no runs: the losses and their gradients, also as an HTML page with
    sliders, for teaching.

    \b
    Examples:
      dspt figure accuracy-vs-noise
      dspt figure loss-curves --runs runs --out paper/figures
      dspt figure loss-curves --out paper/losses.pdf
      dspt figure loss-landscape --out landscape.html
    """
    from dspt import plots
    from dspt.experiments import figures, grid, landscape
    from dspt.experiments.catalogue import LANDSCAPE

    if name == LANDSCAPE:
        if only or where:
            raise InputError(f"{name}: it is drawn from formulas, so there are no runs to choose from")
        files = landscape.draw(out, overwrite)
        if json_output:
            print_json({"files": [str(file) for file in files], "title": landscape.TITLE, "not_used": []})
            return
        print(*files, sep="\n")
        return
    if out.suffix.lower() == ".html":
        raise InputError(f"{out}: only {LANDSCAPE} has a page; give a folder for the picture")
    path = plots.place(out, name)
    for file in plots.files(path):
        plots.check_path(file, overwrite)
    results, not_used = _results(name, runs, only, where)
    files = figures.draw(results, path)
    if json_output:
        print_json({"files": [str(file) for file in files], "title": grid.title(results), "not_used": not_used})
        return
    print(*files, sep="\n")


@app.command()
def report(
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    overwrite: Replace = False,
    json_output: Json = False,
) -> None:
    """Write one HTML page with everything that was run. Self-contained: tables, figures, runs, versions.

    A page that dspt wrote there is replaced.

    \b
    Examples:
      dspt report
      dspt report --runs runs --out results.html
    """
    from dspt.experiments import report as page
    from dspt.internal.files import check_free

    check_free(out, overwrite, b"made by dspt")
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: expected an .html file for the page")
    shown = page.make(runs, out)
    wording = partial(in_flags, known={"--runs"})
    not_used = _say_not_used(shown.not_used)
    if json_output:
        kinds = {
            f"{kind}s": [name for name, why in shown.contents.items() if not why and page.kind_of(name) == kind]
            for kind in ("table", "figure")
        }
        left_out = {name: wording(why) for name, why in shown.contents.items() if why}
        print_json({"file": str(out), "runs": shown.runs, **kinds, "left_out": left_out, "not_used": not_used})
        return
    print(out)
    print(*page.in_words(shown.contents, wording), sep="\n", file=sys.stderr)


def _experiment(name: str, data: list[str] | None, seeds: str | None, only: str | None) -> Experiment:
    """Return the experiment asked for: on these data, with these seeds, or a part of it."""
    from dspt.experiments import catalogue

    experiment = catalogue.get(name)
    if data:
        experiment = catalogue.on_data(experiment, data)
    if seeds is not None:
        try:
            numbers = [int(seed) for seed in seeds.split(",")]
        except ValueError:
            raise InputError(f"seeds {seeds!r}: expected whole numbers, such as 1,2,3") from None
        experiment = catalogue.with_seeds(experiment, numbers)
    return catalogue.narrowed(experiment, only) if only else experiment


def _with_settings(experiment: Experiment, model: str | None, epochs: int | None, pairs: list[str]) -> Experiment:
    """Return the experiment with these settings of a run; those that it declares itself stay."""
    from dspt.experiments import catalogue

    settings: dict[str, Any] = {"epochs": epochs, "model": model}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"set {pair!r}: expected name=value, such as shots=16")
        settings[key.replace("-", "_")] = _value(value)
    if settings["model"] is None:
        settings["model"] = catalogue.usual_model(experiment)
    return catalogue.with_config(experiment, **settings)


def _value(text: str) -> int | float | bool | str:
    """Return a setting as it was meant: a whole number, a number, a truth value or a text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _forecast(experiment: Experiment, jobs: list[Job], root: Path | None, quiet: bool, json_output: bool) -> None:
    from dspt.engine.forecast import forecast
    from dspt.experiments import plan

    wording = partial(in_flags, known=options())
    found = forecast(jobs, root, reporter(quiet))
    if json_output:
        faults = {one.job.source: wording(one.fault) for one in found if one.fault}
        runs = [{"run": one.job.title, "folder": str(one.job.folder), "done": one.done} for one in found]
        print_json({"cells": plan.cells(experiment, found), "faults": faults, "runs": runs})
        return
    print(*plan.in_words(experiment, found, terminal_width(otherwise=120), wording), sep="\n")


def _results(
    name: str, runs: Path, only: str | None, where: str | None, every_dataset: bool = False
) -> tuple[Results, list[dict[str, str]]]:
    """Return the results of an experiment, and the folders that are not used; these are told on stderr too."""
    from dspt.experiments import catalogue, collect

    not_used: list[NotUsed] = []
    try:
        results = collect.gather(catalogue.get(name), runs, only, where, every_dataset, not_used.append)
    finally:
        rows = _say_not_used(not_used)
    return results, rows


def _say_not_used(not_used: Sequence[NotUsed]) -> list[dict[str, str]]:
    """Tell which folders are not used, those of one reason on one line, and return them as rows."""
    # Advice on doing a run again is not for the options of a command that shows runs.
    rows = [{"folder": str(why.folder), "reason": in_flags(why.reason, ())} for why in not_used]
    folders: dict[str, list[str]] = {}
    for row in rows:
        folders.setdefault(row["reason"], []).append(row["folder"])
    for reason, found in folders.items():
        few = len(found) <= NAMED  # many are those of other experiments, as a rule
        named = ", ".join(found) if few else f"{len(found)} folders, as {found[0]} (--json names all)"
        print(f"not used: {one_line(named)}: {reason}", file=sys.stderr)
    return rows
