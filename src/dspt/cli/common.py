"""What the commands have in common: the app, options that mean the same everywhere, and how things are printed."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_type_hints

import typer
from typer.core import TyperGroup

from dspt.cli import completion
from dspt.config import MODEL_HELP
from dspt.internal.errors import InputError
from dspt.internal.names import printable, wrapped
from dspt.internal.rounding import counted, figure

if TYPE_CHECKING:
    from dspt.engine.team import Team
    from dspt.internal.progress import Reporter
    from dspt.internal.workers import Spread


class Terminated(KeyboardInterrupt):
    """SIGTERM, which stops a command as Ctrl-C does: everything open is closed, and it says how to go on."""


class Stopped(Exception):
    """A command was stopped, by what is its cause; typer would end in silence after a KeyboardInterrupt."""


class Commands(TyperGroup):
    """The commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was called."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped from stop


app = typer.Typer(
    name="dspt",
    cls=Commands,
    help="Adapt CLIP to a classification task when many training labels are wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # drawing the help with rich takes longer than all else that it does
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        autocompletion=completion.data,
        help="A folder of class folders; a .csv, .tsv, .jsonl, .parquet or .xlsx manifest "
        "(path,label[,true_label][,split]); "
        "the name of a dataset with --root (see 'dspt data list'); an .npz or .safetensors feature "
        "file, or a folder of .safetensors files that are shards of one; hf:NAME for a Hugging Face dataset; "
        "or 'embedded'.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        help="Where named datasets lie, in CoOp's layout (default: $DSPT_ROOT); for a manifest, where its "
        "relative paths start.",
    ),
]
ClassNames = Annotated[
    Path | None,
    typer.Option(help="For a manifest: a text file with one class name a line, in label order."),
]
Columns = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="For a manifest: what it calls its columns path, label, true_label and split, as in "
        "path=filename,label=class.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="A class to leave out with all its images; may be repeated."),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out images and rows that cannot be used, instead of stopping; skipped.csv lists them.",
    ),
]
Skipped = Annotated[Path, typer.Option(help="With --skip-bad: the CSV file that lists what was left out.")]
SKIPPED = Path("skipped.csv")
Out = Annotated[
    Path | None,
    typer.Option(help="Run folder; an interrupted run goes on there. Default: under runs/."),
]
Overwrite = Annotated[bool, typer.Option(help="Start anew if the folder holds another run.")]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A folder made by dspt train or PromptClassifier.save."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress stays on stderr.")]
Log = Annotated[
    str,
    typer.Option(
        autocompletion=completion.among(("tensorboard", "mlflow")),
        help="Write epochs to these, too: tensorboard, mlflow, or both with a comma between.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Model = Annotated[str, typer.Option(help=MODEL_HELP)]
ENGINES = ("local", "ray")
Engine = Annotated[
    str,
    typer.Option(
        help="Who does it: local, this machine; ray, Ray on this machine or on a cluster.",
        autocompletion=completion.among(ENGINES),
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: the cluster to join, as HOST:PORT or auto. Default: Ray is started on this machine.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        help="How many at a time, each in a process with its share of the threads. Default: 1, in this process; on "
        "Ray as many as there are GPUs, or else CPUs.",
        show_default=False,
    ),
]
Test = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        autocompletion=completion.data,
        help="A test set whose labels can be trusted: any DATA with the same classes. All of DATA is trained on then.",
    ),
]

TestFraction = Annotated[
    float | None,
    typer.Option(
        help="For DATA without a test split: the part of each class that is held out for the test; default 0.2.",
        show_default=False,
    ),
]


def with_settings(kind: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: one option for each field of `kind`, gathered in the command's `config` argument."""
    return lambda command: _with_settings(command, kind)


def _with_settings(command: Callable[..., Any], settings_of: Any) -> Callable[..., Any]:
    hints = get_type_hints(settings_of)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "config"]
    settings = []
    offered = [field for field in fields(settings_of) if field.init]
    for field in offered:
        kind = hints[field.name]
        default: Any = field.default
        if field.name == "option":
            kind, default = list[str] | None, None
        flag = "--" + field.name.replace("_", "-")
        complete = completion.SETTINGS.get(field.name) or completion.among(field.metadata.get("among") or ())
        option = typer.Option(flag, help=field.metadata["help"], autocompletion=complete)
        settings.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        )

    def wrapped(**values: Any) -> Any:
        asked = {field.name: values.pop(field.name) for field in offered}
        asked["option"] = tuple(asked["option"] or ())
        return command(**values, config=settings_of(**asked))

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + settings
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def reporter(quiet: bool) -> Any:
    """Return what tells the user how far work is."""
    from dspt.internal.progress import Reporter

    known = options()
    return Reporter(quiet, lambda line: flagged(line, known), warns=True)


def in_flags(error: InputError, known: Collection[str]) -> str:
    """Return the sentence of an error, its advice with the options `known` ("--skip-bad") in place of settings.

    Advice about a setting for which there is no option would be of no use, and is left out.
    """
    needed = {_flag(name) for name in _SETTING.findall(error.advice)}
    advice = flagged(error.advice, known) if needed <= set(known) else ""
    return str(InputError(error.sentence, advice))


def flagged(text: str, known: Collection[str]) -> str:
    """Return a text with the options `known` in place of the settings that it names in backticks."""
    text = re.sub(r"\bset (?=`)", "give ", text)
    return _SETTING.sub(lambda found: _flag(found[1]) if _flag(found[1]) in known else found[0], text)


_SETTING = re.compile(r"`(\w+)`")


def _flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def options() -> set[str]:
    """Return the options of the command that was called."""
    return {flag for parameter in _called()[1].params for flag in parameter.opts}


def _called() -> tuple[str, Any]:
    """Return the command that was called: its name, "data check", and what it is."""
    names, command = [], typer.main.get_command(app)
    for word in sys.argv[1:]:
        if word in (known := getattr(command, "commands", {})):
            command = known[word]
            names.append(word)
    return " ".join(names), command


def say_stopped(stop: BaseException) -> int:
    """Return the exit status of a command that was stopped, having said what is kept of it."""
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has shown ^C
    print(_stopped(), file=sys.stderr)
    return 143 if isinstance(stop, Terminated) else 130


def _stopped() -> str:
    """Return what is kept of the command that was stopped, and how to go on with it."""
    name, _ = _called()
    words = [word for word in sys.argv[1:] if word != "--overwrite" or KEPT.get(name) != _EPOCHS]
    again = shlex.join(["dspt", *words])
    if name in KEPT:
        return f"stopped; {KEPT[name]}. To go on: {again}"
    return f"stopped; no file was left half-written. To begin again: {again}"


_EPOCHS = "finished epochs are saved"
_IMAGES = "images that were encoded are kept, but for the last thousand at most"
# What the same command goes on from after it was stopped; others have to begin again.
KEPT = {
    **dict.fromkeys(["train", "scratch", "reproduce", "demo"], _EPOCHS),
    **dict.fromkeys(["zeroshot", "eval", "noise", "audit"], _IMAGES),
    "encode": "whole shards of a thousand images are kept",
    "review": "every decision is saved",
    "data prepare": "frames made so far are kept",
}


def print(*texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None) -> None:
    """Print texts as Python does, but with nothing in them that a terminal would obey.

    Every command prints with it, since any text may hold a name that comes from a stranger. A line is broken by `sep`
    and `end` alone.

    Parameters
    ----------
    *texts : object
        What is printed.
    sep, end : str
        What is between the texts and behind them, printed as it is.
    file : text file, optional
        Where to: standard output if None.
    """
    builtins.print(*(printable(str(text)) for text in texts), sep=sep, end=end, file=file)


def print_entry(text: str, indent: int) -> None:
    """Print an entry of a list, on a terminal in lines that fit it, the later ones so far from the left."""
    width = terminal_width(otherwise=0)
    print(*(wrapped(text, width, " " * indent) if width > indent + 20 else [text]), sep="\n")


def terminal_width(otherwise: int) -> int:
    """Return the columns that a command may fill: of its terminal, or as COLUMNS says; else `otherwise`."""
    asked = os.environ.get("COLUMNS", "")
    piped = int(asked) if asked.isdecimal() and int(asked) else otherwise
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else piped


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on a line, in ASCII: names stay as they are, whatever is in them.

    Numbers are without the digits that binary sums leave: 63.75 for 63.74999999999999.
    """
    print(json.dumps(_rounded(value)))


# What is in percent, as it is or by class, prompt or method.
_PERCENT = {
    *("accuracy", "last_accuracy", "zero_shot", "per_class", "templates", "sym60", "pair40"),
    *("by_class", "mean_recall", "mean_f1", "calibration"),
}


def _rounded(value: Any, percent: bool = False) -> Any:
    """Return JSON with percentages to four decimals and all other numbers to twelve digits, wherever the point is."""
    if isinstance(value, dict):
        return {key: _rounded(inner, percent or key in _PERCENT) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner, percent) for inner in value]
    if not isinstance(value, float):
        return value
    return round(value, 4) if percent else float(f"{value:.12g}")


def print_table(title: str, rows: list[tuple[str, float | None]]) -> None:
    """Print names with figures in percent under a title."""
    print(title)
    names = [printable(name) for name, _ in rows]
    width = max(map(len, names), default=0)
    for name, (_, value) in zip(names, rows, strict=True):
        print(f"  {name:<{width}}  {'-' if value is None else f'{figure(value, 2):>6} %'}")


def print_trust(known: bool | None, found: Mapping[str, Any] | None = None) -> None:
    """Say what an accuracy is worth if the labels it was judged by may be wrong, and how many of them may be."""
    if not known:
        print("judged by labels that may be wrong" if known is False else "judged by labels of which nothing is known")
    if found is not None and "noise_rate" in found:
        from dspt.posterior.noise_rate import in_words

        print(in_words(found))


def check_engine(engine: str, jobs: int | None, address: str | None) -> None:
    """Raise `InputError` for an engine that is not known, or for what it cannot use."""
    if engine not in ENGINES:
        raise InputError(f"engine {engine!r}: not known; expected {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs {jobs}: expected at least 1 at a time")
    if jobs is not None and address is None:  # how many cores a cluster has is known once it is joined
        from dspt.engine.team import check_size
        from dspt.internal import threads

        check_size(jobs, threads.cores())
    if engine == "ray":
        from dspt.engine import cluster

        cluster.check(address)
    if address is not None and engine != "ray":
        raise InputError(f"address {address}: engine {engine} joins no cluster", "give `engine` ray")


@contextmanager
def workers(
    engine: str, jobs: int | None, address: str | None, on_gpu: bool, thing: str, say: Reporter
) -> Iterator[Spread | None]:
    """Yield what has workers do a command's work, which end with the block; None if this process does it.

    Parameters
    ----------
    engine, jobs, address
        As the options are given, and checked.
    on_gpu : bool
        Whether work takes a GPU where there is one.
    thing : str
        What each worker does at a time: "shard".
    say : Reporter
        Says what there is on Ray, and that work is given to another worker.
    """
    if engine == "local" and (jobs or 1) == 1:
        yield None
        return
    from dspt.engine.spreading import spreading

    def team() -> Team:
        if engine == "local":
            from dspt.engine.processes import Processes

            return Processes(jobs or 1)
        from dspt.engine.cluster import Nodes

        nodes = Nodes(address, jobs, on_gpu=on_gpu)
        say.say(f"Ray: {nodes.in_words(thing)}")
        return nodes

    with spreading(team, say) as spread:
        yield spread


def check_skipped(path: Path, skip_bad: bool) -> None:
    """Raise `InputError`, before any work, if the list of what is left out would replace another file."""
    from dspt.internal.files import FAULTS, check_free

    if skip_bad:
        check_free(path, mark=",".join(FAULTS).encode())


def write_skipped(entries: list[dict[str, str]], path: Path) -> None:
    """Write the list of what a command left out, if it did."""
    from dspt.internal.files import FAULTS, write_csv

    if entries:
        write_csv(path, FAULTS, ([entry[column] for column in FAULTS] for entry in entries))


def print_skipped(entries: list[dict[str, str]], path: Path) -> None:
    """Say how many entries a command left out, and where they are listed."""
    if entries:
        print(f"{left_out(len(entries))}: {path}")


def left_out(number: int) -> str:
    """Return how many bad entries were left out, in words."""
    return f"{counted(number, 'bad entry', 'bad entries')} {'was' if number == 1 else 'were'} left out"
