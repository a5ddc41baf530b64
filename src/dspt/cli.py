"""The command line: parse, call, print. Whatever takes time is imported inside the command that needs it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from dspt import __version__
from dspt.config import GENERIC_TEMPLATE, Config, from_dict
from dspt.errors import InputError

app = typer.Typer(
    name="dspt",
    help="Adapt CLIP to a classification task when many training labels are wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

data_app = typer.Typer(help="Datasets: where they are and what is in them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A folder of class folders, an .npz or .safetensors feature file, or 'embedded'.",
    ),
]
Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A folder made by dspt train or PromptClassifier.save."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout; progress stays on stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Model = Annotated[
    str, typer.Option(help="CLIP checkpoint: a folder, a Hugging Face hub id, or 'embedded'.")
]


def _with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one option for each field of `Config`, gathered in its `config` argument."""
    hints = get_type_hints(Config)
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "config"
    ]
    settings = []
    for field in fields(Config):
        kind = hints[field.name]
        default: Any = field.default
        if field.name == "option":
            kind, default = list[str] | None, None
        flag = "--" + field.name.replace("_", "-")
        option = typer.Option(flag, help=field.metadata["help"])
        settings.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        )

    def wrapped(**values: Any) -> Any:
        asked = {field.name: values.pop(field.name) for field in fields(Config)}
        asked["option"] = tuple(asked["option"] or ())
        return command(**values, config=from_dict(asked))

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + settings
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


@app.command()
@_with_settings
def train(
    data: Data,
    config: Config,
    noise: Annotated[
        str,
        typer.Option(
            help="Labels to make wrong: none, sym:0.4, pair:0.2, sym:0.4:bernoulli, matrix:T.npy, "
            "or given labels from file:labels.csv. Test labels are never touched."
        ),
    ] = "none",
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; an interrupted run goes on there. Default: under runs/."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Start anew if the folder holds another run.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a prompt from labelled images, some of whose labels may be wrong.

    Examples:

        dspt train photos/ --model openai/clip-vit-base-patch16 --out runs/photos

        dspt train embedded --method dspt --noise sym:0.6 --epochs 20 --json

        dspt train features.npz --model path/to/checkpoint --noise pair:0.4 --seed 2
    """
    from dspt.pipeline import run

    try:
        result = run(data, config, noise, out, overwrite, _reporter(quiet))
    except KeyboardInterrupt:
        kept = [argument for argument in sys.argv[1:] if argument != "--overwrite"]
        again = " ".join(["dspt", *_quoted(kept)])
        print(f"\nstopped; finished epochs are saved. To go on: {again}", file=sys.stderr)
        raise typer.Exit(130) from None
    if json_output:
        _print_json(result)
        return
    wrong = (
        f", {100 * result['wrong_labels']:.0f} % of the labels wrong"
        if result["wrong_labels"]
        else ""
    )
    _print_table(
        f"{result['data']}, noise {result['noise']}{wrong}",
        [("zero-shot", result["zero_shot"]), (result["method"], result["accuracy"])],
    )
    print(f"run folder: {result['run']}")


@app.command()
def zeroshot(
    data: Data,
    model: Model = "embedded",
    template: Annotated[
        str, typer.Option(help="Prompt, with {} for the class name.")
    ] = GENERIC_TEMPLATE,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell how well CLIP does on the test set without any training.

    Examples:

        dspt zeroshot photos/ --model openai/clip-vit-base-patch16

        dspt zeroshot embedded --template "a picture of a {}." --json
    """
    from dspt import evaluate

    config = Config(model=model, template=template, device=device, method="zero-shot")
    result = evaluate.zero_shot(data, config, _reporter(quiet))
    if json_output:
        _print_json(result)
        return
    _print_table(
        f"{result['data']}, {result['samples']} test images, {result['classes']} classes",
        [(repr(prompt), value) for prompt, value in result["templates"].items()],
    )


@app.command(name="eval")
def evaluate_run(run: Run, data: Data, json_output: Json = False, quiet: Quiet = False) -> None:
    """Tell how well a learnt prompt does on the test set of DATA, class by class.

    Examples:

        dspt eval runs/photos photos/

        dspt eval runs/photos other_photos/ --json
    """
    from dspt import evaluate

    result = evaluate.evaluate(run, data, _reporter(quiet))
    if json_output:
        _print_json(result)
        return
    rows = [("all classes", result["accuracy"])]
    rows += sorted(result["per_class"].items(), key=lambda row: row[1])
    _print_table(f"{run} on {result['data']}, {result['samples']} test images", rows[:21])
    if len(rows) > 21:
        print(f"and {len(rows) - 21} more classes, all better; --json lists them")


@app.command()
def predict(
    run: Run,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")
    ],
    top: Annotated[int, typer.Option(help="How many classes to name for each image.")] = 1,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Name the class of images.

    Examples:

        dspt predict runs/photos new.jpg

        dspt predict runs/photos inbox/ --top 3 --json
    """
    from dspt import evaluate

    results = evaluate.predict(run, images, top, _reporter(quiet))
    if json_output:
        _print_json({"predictions": results})
        return
    for result in results:
        best = ", ".join(
            f"{one['class']} {100 * one['probability']:.1f} %" for one in result["classes"]
        )
        print(f"{result['image']}: {best}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the plots and run folders go.")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of noise, context and order.")] = 1,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what wrong labels do to CLIP, on the embedded model and images. No network, two minutes.

    Examples:

        dspt demo

        dspt demo --seed 2 --out demo-2 --json
    """
    from dspt.demo import NOISES, run_demo

    result = run_demo(out, epochs, seed, _reporter(quiet))
    if json_output:
        _print_json(result)
        return
    methods = list(result["sym60"])
    print(f"\n{'test accuracy (%)':<42}{'zero-shot':>10}" + "".join(f"{m:>8}" for m in methods))
    for key, title in (("sym60", NOISES["sym60"][1]), ("pair40", NOISES["pair40"][1])):
        values = "".join(f"{result[key][m]:8.1f}" for m in methods)
        print(f"{title:<42}{result['zero_shot']:10.1f}{values}")
    print("\n" + "\n".join(result["plots"]))


@data_app.command(name="export")
def export_data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
) -> None:
    """Write the embedded images as class folders of PNG files, to try things out on real files.

    Examples:

        dspt data export photos
    """
    from dspt.data import open_dataset
    from dspt.data.folder import write_image_folder

    dataset = open_dataset("embedded")
    write_image_folder(dataset, folder)
    count = len(dataset.train.labels) + len(dataset.test.labels)
    print(
        f"{count} images in {len(dataset.class_names)} class folders, train and test, in {folder}"
    )


def _reporter(quiet: bool) -> Any:
    from dspt.progress import Reporter

    return Reporter(silent=quiet)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _print_table(title: str, rows: list[tuple[str, float | None]]) -> None:
    print(title)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {'-' if value is None else f'{value:6.2f} %'}")


def _quoted(arguments: list[str]) -> list[str]:
    import shlex

    return [shlex.quote(argument) for argument in arguments]


def _version(asked: bool) -> None:
    if asked:
        print(f"dspt {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; bad input is one sentence and exit status 2."""
    try:
        app()
    except InputError as error:
        print(f"dspt: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ndspt: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
