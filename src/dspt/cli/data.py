"""dspt data: datasets, where they are and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspt.cli.common import Json, Quiet, app, print, print_json, reporter
from dspt.internal.errors import InputError

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
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset of 'dspt data list'.")],
    root: Annotated[Path, typer.Option(envvar="DSPT_ROOT", help="The folder in which datasets lie.")],
    decode: Annotated[bool, typer.Option(help="Decode every image, or only look whether it is there.")] = True,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what is there of a dataset, what is missing or broken. Exit status 1 if it is not complete.

    \b
    Examples:
      dspt data check oxford_pets --root datasets/
      dspt data check food101 --root datasets/ --no-decode --json
    """
    from dspt.data import check, cifar

    if tiny := cifar.find(name):
        found = check.check_cifar(tiny, root)
        sizes = f"{found['train']} train and {found['test']} test images" if found["ok"] else ""
        if json_output:
            print_json(found)
        else:
            print(f"{found['name']}: {'complete, ' if sizes else 'not complete'}{sizes}")
            print(*found["problems"], sep="\n", end="\n" if found["problems"] else "")
        raise typer.Exit(0 if found["ok"] else 1)
    with reporter(quiet).task(f"looking at {name}", 1.0) as update:
        report = check.check(name, root, decode=decode, progress=lambda done, total: update(done / total, ""))
    if json_output:
        print_json(report.as_dict())
    else:
        print(*check.lines(report), sep="\n")
    raise typer.Exit(0 if report.ok else 1)


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
        print(f"{result['frames']} frames in {result['folder']}, {result['written']} of them new")


@data_app.command(name="export")
def export_data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
) -> None:
    """Write the embedded images as class folders of PNG files. To try things out on real files.

    \b
    Examples:
      dspt data export photos
    """
    from dspt.data import open_dataset
    from dspt.data.folder import write_image_folder

    dataset = open_dataset("embedded")
    write_image_folder(dataset, folder)
    count = len(dataset.train.labels) + len(dataset.test.labels)
    print(f"{count} images in {len(dataset.class_names)} class folders, train and test, in {folder}")
