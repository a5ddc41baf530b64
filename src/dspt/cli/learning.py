"""Commands about one task: train, judge, predict, and what goes with them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspt.cli import completion
from dspt.cli.common import (
    SKIPPED,
    Address,
    ClassNames,
    Columns,
    Data,
    Engine,
    Exclude,
    Jobs,
    Json,
    Log,
    Model,
    Out,
    Overwrite,
    Quiet,
    Replace,
    Root,
    Run,
    SkipBad,
    Skipped,
    Test,
    TestFraction,
    app,
    check_engine,
    check_skipped,
    in_flags,
    left_out,
    options,
    print,
    print_entry,
    print_json,
    print_skipped,
    print_table,
    print_trust,
    reporter,
    with_settings,
    workers,
    write_skipped,
)
from dspt.cli.configfile import ConfigFile
from dspt.cli.evaluation import print_evaluation
from dspt.config import GENERIC_TEMPLATE, Config, NetworkConfig
from dspt.internal.errors import InputError
from dspt.internal.names import AUTO, NO_MODEL
from dspt.internal.rounding import counted, figure

if TYPE_CHECKING:
    from dspt.runs import Result


@app.command()
@with_settings(Config)
def train(
    data: Data,
    config: Config,
    noise: Annotated[
        str,
        typer.Option(
            autocompletion=completion.among(completion.NOISES),
            help="Labels to make wrong: none, sym:0.4, pair:0.2, near:0.4 (the class of the most similar name), "
            "near-3:0.4 (one of the three most similar), sym:0.4:bernoulli, inst:0.3 (depends on the image), "
            "inst-likely:0.3 (the class that the image looks most like), matrix:T.npy, or given labels from "
            "file:labels.csv or file:CIFAR-10_human.pt#worse_label. Test labels are never touched.",
        ),
    ] = "none",
    config_file: ConfigFile = None,
    test: Test = None,
    test_fraction: TestFraction = None,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    classes: Annotated[
        str,
        typer.Option(
            autocompletion=completion.among(("all", "base", "new")),
            help="Classes to learn: all; or base or new, the first or the second half by label order, as in CoOp.",
        ),
    ] = "all",
    skip_bad: SkipBad = False,
    out: Out = None,
    overwrite: Overwrite = False,
    log: Log = "",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a prompt from images whose labels may be wrong.

    \b
    Examples:
      dspt train photos/ --out runs/photos
      dspt train photos/ --test checked_photos/ --model path/to/checkpoint
      dspt train embedded --method dspt --noise sym:0.6 --epochs 20 --json
      dspt train photos.csv --skip-bad
      dspt train photos.xlsx --columns path=filename,label=class
      dspt train oxford_pets --root datasets/ --shots 16 --noise pair:0.4
      dspt train oxford_pets --root datasets/ --classes base --out runs/pets-base
      dspt train features.npz --model path/to/checkpoint --noise pair:0.4 --seed 2
      dspt train features.npz --model none --learner auto
      dspt train --config run.yaml --seed 2
    """
    from dspt.data import open_dataset
    from dspt.methods import make
    from dspt.runs import SKIPPED, logs
    from dspt.selection import replaced
    from dspt.workflows.train import run

    logs.names(log)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        skip_bad=skip_bad,
        exclude=exclude or (),
        classes=classes,
        test=test,
        test_fraction=test_fraction,
    )
    result = run(dataset, config, noise, out, overwrite, reporter(quiet), skip_bad=skip_bad, log=log)
    if json_output:
        print_json(result.as_dict())
        return
    print_table(
        f"{result.data}, noise {result.noise}{_wrong(result)}, model {result.model}",
        [*([] if result.model == NO_MODEL else [("zero-shot", result.zero_shot)]), *_accuracies(result)],
    )
    if line := replaced(config):
        print(line)
    if result.why:
        print(f"learner: {result.why}")
    print_trust(result.test_labels_known)
    if words := make(config.method).words(result.found):
        print(words)
    if result.skipped:
        print(f"{left_out(result.skipped)}: {Path(result.run) / SKIPPED}")
    print(f"run folder: {result.run}")


@app.command()
@with_settings(NetworkConfig)
def scratch(
    data: Data,
    config: NetworkConfig,
    noise: Annotated[
        str,
        typer.Option(
            help="Labels to make wrong: none, sym:0.5, ...", autocompletion=completion.among(completion.NOISES)
        ),
    ] = "none",
    config_file: ConfigFile = None,
    test: Test = None,
    test_fraction: TestFraction = None,
    root: Root = None,
    columns: Columns = "",
    out: Out = None,
    overwrite: Overwrite = False,
    log: Log = "",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a ResNet from scratch, without CLIP. Shows what a loss does without prior knowledge.

    \b
    Examples:
      dspt scratch cifar10 --root datasets/ --method gce --noise sym:0.5
      dspt scratch cifar10 --root datasets/ --stem cifar --shots 500 --epochs 20 --json
    """
    from dspt.data import open_dataset
    from dspt.runs import logs
    from dspt.workflows.train import run

    logs.names(log)
    dataset = open_dataset(data, root=root, columns=columns, test=test, test_fraction=test_fraction)
    result = run(dataset, config, noise, out, overwrite, reporter(quiet), log=log)
    if json_output:
        print_json(result.as_dict())
        return
    print_table(
        f"{result.data}, noise {result.noise}{_wrong(result)}, {config.model} from scratch", _accuracies(result)
    )
    print_trust(result.test_labels_known)
    print(f"run folder: {result.run}")


@app.command()
def encode(
    data: Data,
    model: Model = AUTO,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="Of the image tower: float32; bfloat16 on a GPU or a CPU that has it; float16 on a GPU. A run finds "
            "features of its own precision alone.",
            autocompletion=completion.among(("float32", "bfloat16", "float16")),
        ),
    ] = "float32",
    engine: Engine = "local",
    address: Address = None,
    jobs: Jobs = None,
    test_fraction: TestFraction = None,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    skip_bad: SkipBad = False,
    skipped: Skipped = SKIPPED,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Encode images ahead of all that will read them, once. What is encoded already is not encoded again.

    \b
    Examples:
      dspt encode photos/ --model path/to/checkpoint
      dspt encode photos/ --jobs 2
      dspt encode imagenet --root datasets/ --engine ray --address auto
    """
    from dspt.data import open_dataset
    from dspt.workflows import encode as encoding

    check_engine(engine, jobs, address)
    check_skipped(skipped, skip_bad)
    config = Config(model=model, device=device, precision=precision)
    say = reporter(quiet)

    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        skip_bad=skip_bad,
        exclude=exclude or (),
        test_fraction=test_fraction,
    )
    with workers(engine, jobs, address, device != "cpu", "shard", say) as spread:
        result = encoding.encode(dataset, config, say, skip_bad, spread)
    write_skipped(result["skipped_entries"], skipped)
    if json_output:
        print_json(result)
        return
    print(
        f"{result['data']}, {counted(result['images'], 'image')}, model {result['model']}: "
        f"{result['encoded']:,} encoded, {result['already']:,} were there already, in {result['store']}"
    )
    print_skipped(result["skipped_entries"], skipped)


@app.command()
def zeroshot(
    data: Data,
    model: Model = AUTO,
    template: Annotated[str, typer.Option(help="Prompt, with {} for the class name.")] = GENERIC_TEMPLATE,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    test_fraction: TestFraction = None,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    skip_bad: SkipBad = False,
    skipped: Skipped = SKIPPED,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell how well CLIP does on the test set without training.

    \b
    Examples:
      dspt zeroshot photos/
      dspt zeroshot embedded --template "a picture of a {}." --json
      dspt zeroshot dtd --root datasets/ --model path/to/checkpoint
    """
    from dspt.data import open_dataset
    from dspt.workflows import evaluate

    config = Config(model=model, template=template, device=device, method="zero-shot")
    check_skipped(skipped, skip_bad)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        skip_bad=skip_bad,
        exclude=exclude or (),
        test_fraction=test_fraction,
    )
    result = evaluate.zero_shot(dataset, config, reporter(quiet), skip_bad)
    write_skipped(result["skipped_entries"], skipped)
    if json_output:
        print_json(result)
        return
    print_table(
        f"{result['data']}, {counted(result['samples'], 'test image')}, "
        f"{counted(result['classes'], 'class', 'classes')}, model {result['model']}",
        [(repr(prompt), value) for prompt, value in result["templates"].items()],
    )
    print_trust(result["test_labels_known"], result)
    print_skipped(result["skipped_entries"], skipped)


@app.command(name="eval")
def evaluate_run(
    run: Run,
    data: Data,
    classes: Annotated[
        str,
        typer.Option(
            autocompletion=completion.among(("run", "data", "base", "new", "base-to-new")),
            help="Classes that images are told apart in: run, its own; data, those of DATA, such as another dataset's; "
            "base or new, one half of these by label order; base-to-new, both halves and their harmonic mean, for a "
            "run of train --classes base.",
        ),
    ] = "run",
    worst: Annotated[int, typer.Option(help="How many of the worst images to list.")] = 10,
    page: Annotated[Path | None, typer.Option(help="Write all of it to this .html file, with the images.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the calibration (reliability diagram): a .png, .pdf or .svg file.")
    ] = None,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    skip_bad: SkipBad = False,
    skipped: Skipped = SKIPPED,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell how well a learnt prompt does. By class, by confidence, and where it fails worst.

    On the test split of DATA, or on all of it. A prompt can also be judged on classes that it has not learnt.

    \b
    Examples:
      dspt eval runs/photos photos/
      dspt eval runs/photos other_photos/ --page evaluation.html --json
      dspt eval runs/photos other_photos/ --classes data
      dspt eval runs/pets-base oxford_pets --root datasets/ --classes base-to-new
    """
    from dspt.data import open_dataset
    from dspt.internal.files import check_free
    from dspt.plots import check_path
    from dspt.workflows import evaluate

    check_skipped(skipped, skip_bad)
    if page is not None:
        if page.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"{page}: expected an .html file for the page")
        check_free(page, overwrite, b"made by dspt")
    if picture is not None:
        check_path(picture, overwrite)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        skip_bad=skip_bad,
        exclude=exclude or (),
        test_fraction=0,
    )
    result = evaluate.evaluate(
        run, dataset, reporter(quiet), skip_bad, classes=classes, worst=worst, page=page, picture=picture
    )
    write_skipped(result["skipped_entries"], skipped)
    if json_output:
        print_json(result)
        return
    title = f"{run} on {result['data']}, model {result['model']}"
    if classes != "base-to-new":
        print(title)
        print_evaluation(result)
    else:
        for half in ("base", "new"):
            print(f"{title}: {half} classes")
            print_evaluation(result[half])
            print()
        rows = [(half, result[half]["accuracy"], result[half]["zero_shot"]) for half in ("base", "new")]
        print(f"{'accuracy (%)':<16}{'learnt':>10}{'zero-shot':>11}")
        for name, learnt, fixed in [*rows, ("harmonic mean", result["accuracy"], result["zero_shot"])]:
            print(f"  {name:<14}{figure(learnt, 2):>10}{figure(fixed, 2):>11}")
    for what in ("page", "picture"):
        if what in result:
            print(f"{what:<9}{result[what]}")
    print_skipped(result["skipped_entries"], skipped)


@app.command()
def predict(
    run: Run,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Image files; folders, for all images below them; - for a list of these on standard input, one a line "
            "or ended by NUL.",
        ),
    ],
    top: Annotated[int, typer.Option(help="How many classes to name for each image.")] = 1,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Go on after an image that cannot be used; it is named, with the reason."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this file, .csv, .jsonl or .parquet, which is there when all is done."),
    ] = None,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Name the class of images. Each is told as soon as it is known, in the order given.

    \b
    Examples:
      dspt predict runs/photos new.jpg
      dspt predict runs/photos inbox/ --top 3 --json
      dspt predict runs/photos inbox/ --skip-bad --out classes.csv
      dspt predict runs/photos - < list.txt
    """
    from dspt.classifier import load
    from dspt.workflows.predict import Predictions, paths_in

    def with_list() -> Iterator[str]:
        for image in images:
            yield from paths_in(sys.stdin.buffer) if image == "-" else [image]

    given = with_list() if "-" in images else images
    classifier = load(run)
    predictions = Predictions(classifier, given, top, skip_bad, reporter(quiet))
    if out is not None:
        predictions.save(out, overwrite)
        if json_output:
            counts = {"images": predictions.count, "skipped": predictions.bad}
            print_json({"file": str(out), "model": classifier.model, **counts})
        else:
            print(f"{counted(predictions.count, 'image')}, model {classifier.model}: {out}")
    elif json_output:
        before = '{"predictions": ['
        error: InputError | None = None
        try:
            for one in predictions:
                print(before + json.dumps(one), end="")
                sys.stdout.flush()
                before = ", "
        except InputError as found:
            if before.startswith("{"):
                raise
            error = found  # what was printed is made whole, and says that it is not all
        end: dict[str, object] = {"skipped": predictions.bad, "model": classifier.model}
        if error is not None:
            end["error"] = in_flags(error, options())
        print(f"], {json.dumps(end)[1:]}")
        if error is not None:
            raise error
    else:
        reporter(quiet).say(f"model {classifier.model}")
        for one in predictions:
            if classes := ", ".join(f"{each['class']} {100 * each['probability']:.1f} %" for each in one["classes"]):
                print(f"{one['image']}: {classes}")
                sys.stdout.flush()
    if bad := predictions.bad_in_words():
        print(bad, file=sys.stderr)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the plots and run folders go.")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of noise, context and order.")] = 1,
    audit: Annotated[
        bool, typer.Option("--audit", help="The second act: find the wrong labels instead of learning from them.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what wrong labels do to CLIP, in a minute. Embedded model and images, no network.

    \b
    Examples:
      dspt demo
      dspt demo --audit
      dspt demo --seed 2 --out demo-2 --json
    """
    from dspt.workflows.demo import NOISES, run_audit_demo, run_demo

    if audit:
        found = run_audit_demo(out, seed, reporter(quiet))
        print_json(found) if json_output else _print_audit(found)
        return
    result = run_demo(out, epochs, seed, reporter(quiet))
    if json_output:
        print_json(result)
        return
    widths = [(method, max(8, len(method) + 2)) for method in result["sym60"]]
    print()
    print(f"{'test accuracy (%)':<42}{'zero-shot':>10}" + "".join(f"{m:>{width}}" for m, width in widths))
    for key, title in (("sym60", NOISES["sym60"][1]), ("pair40", NOISES["pair40"][1])):
        values = "".join(f"{figure(result[key][m], 1):>{width}}" for m, width in widths)
        print(f"{title:<42}{figure(result['zero_shot'], 1):>10}{values}")
    shown = f"means of the last {min(5, epochs - 1)} epochs" if epochs > 2 else "of one epoch"
    print("", f"{shown}, model {result['model']}, seed {seed}", *result["plots"], sep="\n")


def _print_audit(found: dict[str, Any]) -> None:
    """Print what the audit of the demonstration found, held against the truth."""
    wrong, called, hits = found["wrong"], found["called_wrong"], found["found"]
    rate, error = 100 * found["noise_rate"], 200 * found["noise_rate_error"]
    print(f"{found['samples']:,} images; {wrong:,} of their labels were made wrong ({found['noise']})")
    truth = figure(100 * wrong / found["samples"], 1)
    print(f"  estimated      {figure(rate, 1)} %, give or take {figure(error, 1)}; in truth {truth} %")
    print(f"  called wrong   {called:,}, of which {hits:,} are ({100 * hits / max(1, called):.0f} %)")
    print(f"  found          {hits:,} of {wrong:,} ({100 * hits / max(1, wrong):.0f} %)")
    print(f"  right proposal {found['proposed_right']:,} of {hits:,}")
    print()
    print(f"report   {found['report']}   open it in a browser")
    print(f"next     dspt review {shlex.quote(str(Path(found['report']).parent))}")


@app.command(name="noise")
def make_noise(
    data: Data,
    kind: Annotated[
        str,
        typer.Option(
            "--noise",
            autocompletion=completion.among(completion.NOISES),
            help="sym:0.4, pair:0.2, near:0.4, near-3:0.4, sym:0.4:bernoulli, inst:0.3, inst-likely:0.3, "
            "matrix:T.npy, ...",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The label file for --noise file:LABELS: .csv with the image and the class of each row; or .npy, "
            "which cannot say of which images its labels are."
        ),
    ] = Path("labels.csv"),
    picture: Annotated[
        Path | None,
        typer.Option(help="Picture of the confusion, .png or .pdf. Default: beside the labels."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 1,
    model: Annotated[
        str,
        typer.Option(
            help="The checkpoint whose features of images (inst:, inst-likely:) or of class names (near:) are looked "
            "at; not used otherwise."
        ),
    ] = AUTO,
    test_fraction: TestFraction = None,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    skip_bad: SkipBad = False,
    skipped: Skipped = SKIPPED,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make wrong labels. Writes a label file for DATA, and a picture of what was taken for what.

    \b
    Examples:
      dspt noise embedded --noise pair:0.4 --out labels.csv
      dspt noise photos/ --noise near:0.3 --out labels.csv
      dspt noise photos/ --noise inst-likely:0.3 --out labels.csv
      dspt train photos/ --noise file:labels.csv
    """
    from dspt.data import open_dataset
    from dspt.workflows.mislabel import mislabel

    check_skipped(skipped, skip_bad)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        skip_bad=skip_bad,
        exclude=exclude or (),
        test_fraction=test_fraction,
    )
    result = mislabel(
        dataset, kind, out, picture, seed, model, reporter(quiet), skip_bad, overwrite, inputs=[class_names]
    )
    write_skipped(result["skipped_entries"], skipped)
    if json_output:
        print_json(result)
        return
    print(f"{result['wrong']:,} of {result['labels']:,} labels wrong ({100 * result['rate']:.1f} %): {result['file']}")
    for one in result["most_common"][:5]:
        print(f"  {one['true']} -> {one['given']}: {one['count']}")
    print(f"picture: {result['picture']}")
    if result["model"]:
        print(f"features of {result['model']}")
    print_skipped(result["skipped_entries"], skipped)


@app.command(name="methods")
def list_methods(json_output: Json = False) -> None:
    """List the methods. Formula, hyper-parameters with their defaults, where each comes from.

    \b
    Examples:
      dspt methods
      dspt train embedded --method gce --option q=0.5
    """
    from dspt.methods import describe

    rows = describe()
    if json_output:
        print_json({"methods": rows})
        return
    for row in rows:
        options = ", ".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else f'{value:g}'}"
            for name, value in row["options"].items()
        )
        print_entry(f"{row['name']:<15}{row['formula']}{f'   [{options}]' if options else ''}", indent=15)
        print_entry(f"{'':15}{row['what']} {row['source']}", indent=15)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="In a minute, less exact.")] = False,
    scale: Annotated[
        bool, typer.Option("--scale", help="Instead: many runs and many images, with two workers; the posterior.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="With --scale: the posterior of a million samples, too.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the training steps: a .png or .pdf file.")] = None,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how fast this machine is. Training steps against the reference way, encoding, memory, start-up.

    Ratios come from measurements side by side, in turn. The whole of it takes about 45 minutes on two cores, with
    --scale half an hour.

    \b
    Examples:
      dspt bench --quick
      dspt bench --picture bench.png --json
      dspt bench --scale --full
    """
    from dspt.bench import run_bench, summary
    from dspt.plots import check_path

    if full and not scale:
        raise InputError("full: it adds the largest size to another measurement", "give `scale`, too")
    if scale and picture is not None:
        raise InputError(f"picture {picture}: there is none of many runs; leave it out")
    if scale:
        from dspt.bench import scale as many

        found = many.measure(quick, full, reporter(quiet))
        print_json(found) if json_output else print(*many.in_words(found), sep="\n")
        return

    if picture is not None:
        check_path(picture, overwrite)
    result = run_bench(quick, reporter(quiet))
    if json_output:
        print_json(result)
    else:
        print(*summary.lines(result), sep="\n")
    if picture is not None:
        summary.draw(result, picture)
        reporter(quiet).say(str(picture))


def _wrong(result: Result) -> str:
    """Return the share of wrong labels in words, as far as it is known."""
    if result.wrong_labels is None:
        return ", share of wrong labels unknown"
    if result.samples and result.labels_known and result.labels_known < result.samples:
        known = f"{result.labels_known:,} of {result.samples:,} labels"
        return f", {100 * result.wrong_labels:.0f} % of the {known} that are known wrong"
    return f", {100 * result.wrong_labels:.0f} % of the labels wrong" if result.wrong_labels else ""


def _accuracies(result: Result) -> list[tuple[str, float | None]]:
    """Return what a run reached, said as what it is: the paper's mean over epochs, and what was saved."""
    if result.learner == "posterior":
        return [("posterior", result.accuracy)]
    if result.method == "zero-shot" or not result.epochs:
        return []
    saved = (f"{result.method}, as saved after epoch {result.epochs}", result.last_accuracy)
    if result.epochs_averaged in (0, 1):
        return [saved]
    epochs = "epochs" if result.epochs_averaged is None else counted(result.epochs_averaged, "epoch")
    return [(f"{result.method}, mean of the last {epochs}", result.accuracy), saved]
