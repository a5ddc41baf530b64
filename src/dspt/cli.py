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
        help="A folder of class folders; a .csv or .parquet manifest (path,label[,true_label][,split]); "
        "the name of a dataset with --root (see 'dspt data list'); an .npz or .safetensors feature "
        "file; hf:NAME for a Hugging Face dataset; or 'embedded'.",
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
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out images and rows that cannot be used, instead of stopping; a run folder lists them.",
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
            help="Labels to make wrong: none, sym:0.4, pair:0.2, sym:0.4:bernoulli, inst:0.3 (depends on "
            "the image), matrix:T.npy, or given labels from file:labels.csv or "
            "file:CIFAR-10_human.pt#worse_label. Test labels are never touched."
        ),
    ] = "none",
    root: Root = None,
    class_names: ClassNames = None,
    skip_bad: SkipBad = False,
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

        dspt train photos.csv --model openai/clip-vit-base-patch16 --skip-bad

        dspt train oxford_pets --root datasets/ --shots 16 --noise pair:0.4

        dspt train features.npz --model path/to/checkpoint --noise pair:0.4 --seed 2
    """
    from dspt.data import open_dataset
    from dspt.pipeline import run

    try:
        dataset = open_dataset(data, root=root, class_names=class_names, skip_bad=skip_bad)
        result = run(dataset, config, noise, out, overwrite, _reporter(quiet), skip_bad=skip_bad)
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
    if result.get("skipped"):
        print(f"{result['skipped']} bad entries were left out: {result['run']}/skipped.csv")
    print(f"run folder: {result['run']}")


@app.command()
def zeroshot(
    data: Data,
    model: Model = "embedded",
    template: Annotated[
        str, typer.Option(help="Prompt, with {} for the class name.")
    ] = GENERIC_TEMPLATE,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    root: Root = None,
    class_names: ClassNames = None,
    skip_bad: SkipBad = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell how well CLIP does on the test set without any training.

    Examples:

        dspt zeroshot photos/ --model openai/clip-vit-base-patch16

        dspt zeroshot embedded --template "a picture of a {}." --json

        dspt zeroshot dtd --root datasets/ --model openai/clip-vit-base-patch16
    """
    from dspt import evaluate
    from dspt.data import open_dataset

    config = Config(model=model, template=template, device=device, method="zero-shot")
    dataset = open_dataset(data, root=root, class_names=class_names, skip_bad=skip_bad)
    result = evaluate.zero_shot(dataset, config, _reporter(quiet), skip_bad)
    if json_output:
        _print_json(result)
        return
    _print_table(
        f"{result['data']}, {result['samples']} test images, {result['classes']} classes",
        [(repr(prompt), value) for prompt, value in result["templates"].items()],
    )
    if result["skipped"]:
        print(f"{result['skipped']} bad entries were left out")


@app.command(name="eval")
def evaluate_run(
    run: Run,
    data: Data,
    root: Root = None,
    class_names: ClassNames = None,
    skip_bad: SkipBad = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell how well a learnt prompt does on the test set of DATA, class by class.

    Examples:

        dspt eval runs/photos photos/

        dspt eval runs/photos other_photos/ --json
    """
    from dspt import evaluate
    from dspt.data import open_dataset

    dataset = open_dataset(data, root=root, class_names=class_names, skip_bad=skip_bad)
    result = evaluate.evaluate(run, dataset, _reporter(quiet), skip_bad)
    if json_output:
        _print_json(result)
        return
    rows = [("all classes", result["accuracy"])]
    rows += sorted(result["per_class"].items(), key=lambda row: row[1])
    _print_table(f"{run} on {result['data']}, {result['samples']} test images", rows[:21])
    if len(rows) > 21:
        print(f"and {len(rows) - 21} more classes, all better; --json lists them")
    if result["skipped"]:
        print(f"{result['skipped']} bad entries were left out")


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


@app.command(name="noise")
def make_noise(
    data: Data,
    kind: Annotated[
        str,
        typer.Option(
            "--noise", help="sym:0.4, pair:0.2, sym:0.4:bernoulli, inst:0.3, matrix:T.npy, ..."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The label file, .csv or .npy, for --noise file:LABELS.")
    ] = Path("labels.csv"),
    picture: Annotated[
        Path | None,
        typer.Option(help="Picture of the confusion, .png or .pdf. Default: beside the labels."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 1,
    model: Annotated[
        str, typer.Option(help="The checkpoint whose features inst: looks at; not used otherwise.")
    ] = "embedded",
    root: Root = None,
    class_names: ClassNames = None,
    skip_bad: SkipBad = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make wrong labels for DATA: a label file, and a picture of what was taken for what.

    Examples:

        dspt noise embedded --noise pair:0.4 --out labels.csv

        dspt noise photos/ --noise inst:0.3 --model openai/clip-vit-base-patch16 --out labels.npy

        dspt train photos/ --noise file:labels.npy
    """
    from dspt.confusion import mislabel
    from dspt.data import open_dataset

    dataset = open_dataset(data, root=root, class_names=class_names, skip_bad=skip_bad)
    result = mislabel(dataset, kind, out, picture, seed, model, _reporter(quiet), skip_bad)
    if json_output:
        _print_json(result)
        return
    print(
        f"{result['wrong']:,} of {result['labels']:,} labels wrong "
        f"({100 * result['rate']:.1f} %): {result['file']}"
    )
    for one in result["most_common"][:5]:
        print(f"  {one['true']} -> {one['given']}: {one['count']}")
    print(f"picture: {result['picture']}")
    if result["skipped"]:
        print(f"{result['skipped']} bad entries were left out")


@app.command(name="methods")
def list_methods(json_output: Json = False) -> None:
    """List the methods: formula, hyper-parameters with their defaults, where each comes from.

    Examples:

        dspt methods

        dspt train embedded --method gce --option q=0.5
    """
    from dspt.methods import describe

    rows = describe()
    if json_output:
        _print_json({"methods": rows})
        return
    for row in rows:
        options = ", ".join(f"{name}={value:g}" for name, value in row["options"].items())
        print(f"{row['name']:<15}{row['formula']}{f'   [{options}]' if options else ''}")
        print(f"{'':15}{row['what']} {row['source']}")


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute, less exact.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast this machine encodes images: from JPEG files against the tower alone.

    Examples:

        dspt bench

        dspt bench --quick --json
    """
    from dspt.bench import run_bench

    result = run_bench(quick, _reporter(quiet))
    if json_output:
        _print_json(result)
        return
    for line in result["lines"]:
        print(line)


@data_app.command(name="list")
def list_data(json_output: Json = False) -> None:
    """List the datasets that are known by name: sizes, template, licence, where they come from.

    Examples:

        dspt data list
    """
    from dspt.check import table

    rows = table()
    if json_output:
        _print_json({"datasets": rows})
        return
    print(f"{'name':<13}{'classes':>7}{'train':>7}{'val':>7}{'test':>7}  template")
    for row in rows:
        val = "-" if row["val"] is None else row["val"]
        print(
            f"{row['name']:<13}{row['classes']:>7}{row['train']:>7}{val:>7}{row['test']:>7}"
            f"  {row['template']}"
        )
    print("\nlicence and official home")
    for row in rows:
        print(f"{row['name']:<13}{row['licence']}\n{'':13}{row['homepage']}")


@data_app.command(name="check")
def check_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset of 'dspt data list'.")],
    root: Annotated[
        Path, typer.Option(envvar="DSPT_ROOT", help="The folder in which datasets lie.")
    ],
    decode: Annotated[
        bool, typer.Option(help="Decode every image, or only look whether it is there.")
    ] = True,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what of a dataset is there, what is missing and what is broken. Exit status 1 if it is not complete.

    Examples:

        dspt data check oxford_pets --root datasets/

        dspt data check food101 --root datasets/ --no-decode --json
    """
    from dspt import check
    from dspt.data import cifar

    if tiny := cifar.find(name):
        found = check.check_cifar(tiny, root)
        sizes = f"{found['train']} train and {found['test']} test images" if found["ok"] else ""
        if json_output:
            _print_json(found)
        else:
            print(f"{found['name']}: {'complete, ' if sizes else 'not complete'}{sizes}")
            print(*found["problems"], sep="\n", end="\n" if found["problems"] else "")
        raise typer.Exit(0 if found["ok"] else 1)
    with _reporter(quiet).task(f"looking at {name}", 1.0) as update:
        report = check.check(
            name, root, decode=decode, progress=lambda done, total: update(done / total, "")
        )
    if json_output:
        _print_json(report.as_dict())
    else:
        print(*check.lines(report), sep="\n")
    raise typer.Exit(0 if report.ok else 1)


@data_app.command(name="prepare")
def prepare_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ucf101.")],
    root: Annotated[
        Path, typer.Option(envvar="DSPT_ROOT", help="The folder in which datasets lie.")
    ],
    videos: Annotated[
        Path | None, typer.Option(help="Where the videos are. Default: ROOT/ucf101/UCF-101.")
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the images of UCF101: the middle frame of every video. Goes on where it was stopped.

    Examples:

        dspt data prepare ucf101 --root datasets/

        dspt data prepare ucf101 --root datasets/ --videos ~/downloads/UCF-101
    """
    from dspt.data import coop, midframes

    entry = coop.find(name)
    if entry is None or entry.name != "UCF101":
        raise InputError(f"{name}: there is nothing to prepare; only ucf101 needs it")
    with _reporter(quiet).task("taking middle frames", 1.0) as update:
        result = midframes.prepare_ucf101(
            root, videos, progress=lambda done, total: update(done / total, "")
        )
    if json_output:
        _print_json(result)
    else:
        print(f"{result['frames']} frames in {result['folder']}, {result['written']} of them new")


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
