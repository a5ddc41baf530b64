"""dspt data: datasets, where they are and what is in them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dspt.cli import completion
from dspt.cli.common import (
    ClassNames,
    Columns,
    Data,
    Exclude,
    Json,
    Quiet,
    Replace,
    Root,
    app,
    flagged,
    options,
    print,
    print_json,
    reporter,
)
from dspt.internal.errors import InputError
from dspt.internal.rounding import counted

data_app = typer.Typer(help="Datasets: where they are and what is in them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command(name="list")
def list_data(json_output: Json = False) -> None:
    """List the datasets known by name. Sizes, template, licence, where they come from.

    \b
    Examples:
      dspt data list
    """
    from dspt.data.check import table

    rows = table()
    if json_output:
        print_json({"datasets": rows})
        return
    print(f"{'name':<13}{'classes':>7}{'train':>7}{'val':>7}{'test':>7}  template")
    for row in rows:
        val = "-" if row["val"] is None else row["val"]
        print(f"{row['name']:<13}{row['classes']:>7}{row['train']:>7}{val:>7}{row['test']:>7}  {row['template']}")
    print("", "licence and official home", sep="\n")
    for row in rows:
        print(f"{row['name']:<13}{row['licence']}", f"{'':13}{row['homepage']}", sep="\n")


@data_app.command(name="check")
def check_data(
    data: Data,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    decode: Annotated[bool, typer.Option(help="Decode every image, or only look whether it is there.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write all that was found to this CSV file.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what is in DATA, missing, broken or there twice. Exit status 1 if anything is missing or cannot be used.

    \b
    Examples:
      dspt data check photos/
      dspt data check photos.csv --out report.csv
      dspt data check oxford_pets --root datasets/ --no-decode --json
    """
    from dspt.data.check import look
    from dspt.data.survey import COLUMNS
    from dspt.internal.files import check_free, write_csv

    if out is not None:
        check_free(out, mark=",".join(COLUMNS).encode())
    with reporter(quiet).task(f"looking at {data}", 1.0) as update:
        found = look(
            data,
            root=root,
            class_names=class_names,
            columns=columns,
            exclude=exclude or (),
            decode=decode,
            progress=lambda done, total: update(done / total, ""),
        )
    if out is not None:
        write_csv(out, COLUMNS, found.rows())
    if json_output:
        print_json(found.as_dict())
    else:
        print(*(flagged(line, options()) for line in found.lines()), sep="\n")
    raise typer.Exit(0 if found.ok else 1)


@data_app.command(name="split")
def split_data(
    data: Data,
    out: Annotated[Path, typer.Option(help="The manifest: a .csv, .jsonl or .parquet file.")] = Path("split.csv"),
    test_fraction: Annotated[float, typer.Option(help="The part of each class that is for the test.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 1,
    look: Annotated[
        bool, typer.Option(help="Look at the images, and keep those that are the same on one side; else only draw.")
    ] = True,
    root: Root = None,
    class_names: ClassNames = None,
    columns: Columns = "",
    exclude: Exclude = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows and folders that cannot be used, instead of stopping.")
    ] = False,
    overwrite: Replace = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Divide DATA into train and test, and write it as a manifest. A part of every class, the same each time.

    For a folder or a manifest without a test split, which itself stays as it is. Images that are there twice, byte for
    byte or saved again in another size or quality, are both in train or both in test.

    \b
    Examples:
      dspt data split photos/ --out photos.csv
      dspt data split photos.csv --out photos-split.csv --test-fraction 0.3 --seed 2
    """
    from dspt.data import open_dataset
    from dspt.data.splitting import check_split, write_split

    check_split(data, out, overwrite)
    dataset = open_dataset(
        data,
        root=root,
        class_names=class_names,
        columns=columns,
        exclude=exclude or (),
        skip_bad=skip_bad,
        test_fraction=0,
    )
    with reporter(quiet).task("looking for copies" if look else "drawing", 1.0) as update:
        result = write_split(dataset, out, test_fraction, seed, look, lambda done, total: update(done / total, ""))
    if json_output:
        print_json(result)
        return
    print(
        f"{counted(result['train'], 'image')} to train with and {result['test']:,} to test with, of "
        f"{counted(result['classes'], 'class', 'classes')}: {out}"
    )
    if result["copies"]:
        print(f"{counted(result['copies'], 'group')} of images that are the same, each on one side")
    print(f"next     dspt train {shlex.quote(str(out))}")


@data_app.command(name="prepare")
def prepare_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ucf101.")],
    root: Annotated[Path, typer.Option(envvar="DSPT_ROOT", help="The folder in which datasets lie.")],
    videos: Annotated[Path | None, typer.Option(help="Where the videos are. Default: ROOT/ucf101/UCF-101.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the images of UCF101, the middle frame of every video. Goes on where it was stopped.

    \b
    Examples:
      dspt data prepare ucf101 --root datasets/
      dspt data prepare ucf101 --root datasets/ --videos ~/downloads/UCF-101
    """
    from dspt.data import midframes, nine

    entry = nine.find(name)
    if entry is None or entry.name != "UCF101":
        raise InputError(f"{name}: there is nothing to prepare; only ucf101 needs it")
    with reporter(quiet).task("taking middle frames", 1.0) as update:
        result = midframes.prepare_ucf101(root, videos, progress=lambda done, total: update(done / total, ""))
    if json_output:
        print_json(result)
    else:
        print(f"{counted(result['frames'], 'frame')} in {result['folder']}, {result['written']} of them new")


@data_app.command(name="export")
def export_data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    kind: Annotated[
        str,
        typer.Option(
            "--noise",
            help="Put train images into wrong folders: sym:0.2, pair:0.4, ...",
            autocompletion=completion.among(("none", "sym:", "pair:")),
        ),
    ] = "none",
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 1,
) -> None:
    """Write the embedded images as class folders of PNG files. To try things out on real files.

    \b
    Examples:
      dspt data export photos
      dspt data export messy --noise sym:0.2
    """
    from dataclasses import replace

    from dspt import noise
    from dspt.data import Split, open_dataset
    from dspt.data.folder import write_image_folder

    dataset = open_dataset("embedded")
    spec = noise.parse(kind)
    if spec.needs_clip or spec.path:
        raise InputError(
            f"noise {kind}: only noise that looks at labels alone can be put into folders; give sym or pair"
        )
    true = dataset.train.labels
    given = spec.apply(true, len(dataset.class_names), seed)
    write_image_folder(replace(dataset, train=Split(dataset.train.items, given)), folder)
    count = len(true) + len(dataset.test.labels)
    folders = counted(len(dataset.class_names), "class folder")
    print(f"{counted(count, 'image')} in {folders}, train and test, in {folder}")
    if wrong := int((given != true).sum()):
        print(f"{wrong} of the {counted(len(true), 'train image')} {'is' if wrong == 1 else 'are'} in the wrong folder")
