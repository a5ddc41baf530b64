"""Sources of data: what a user names on the command line becomes items, labels and class names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspt.data import cifar, embedded, featurefile, folder, hub, manifest, nine
from dspt.data.dataset import TEST_FRACTION, Dataset, Split, few_shot, half, without
from dspt.data.folder import write_image_folder
from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean, plain, printable

__all__ = ["Dataset", "Split", "few_shot", "open_dataset", "write_image_folder"]

# Silent unless the program that uses dspt wants to hear: the command line tells the notes itself.
_log = logging.getLogger(__name__)

_FORMS = (
    "give a folder of class folders, a .csv, .tsv, .jsonl, .parquet or .xlsx manifest, an .npz or .safetensors feature "
    "file, a folder of .safetensors shards, the name of a dataset with `root` ('dspt data list' names them), hf:NAME "
    "for a Hugging Face dataset, or 'embedded'"
)


def open_dataset(
    source: str | Path | Dataset,
    *,
    root: Path | str | None = None,
    class_names: Path | str | None = None,
    columns: Mapping[str, str] | str = "",
    seed: int = 1,
    test_fraction: float | None = None,
    skip_bad: bool = False,
    test: str | Path | None = None,
    exclude: Sequence[str] = (),
    classes: str = "all",
) -> Dataset:
    """Return the dataset that `source` names.

    Its notes are logged as warnings of the logger "dspt.data" too.

    Parameters
    ----------
    source
        A folder of class folders, a .csv, .tsv, .jsonl, .parquet or .xlsx manifest, an .npz or .safetensors feature
        file, a folder of .safetensors files that are its shards, the name of one of the paper's datasets or CIFAR,
        "hf:NAME" for a Hugging Face dataset, or "embedded". A folder of that name is "./embedded".
    root
        Where named datasets lie, in CoOp's layout, $DSPT_ROOT by default; and what relative paths
        in a manifest start from, if not from the manifest's own folder.
    class_names
        A text file with one class name a line, in the order of labels, for a manifest.
    columns
        What a manifest calls its columns path, label, true_label and split, where it is something else:
        {"path": "filename"}, or in one text "path=filename,label=class".
    seed, test_fraction
        Which part of a source without a test split is held out: a fifth if None, nothing if 0. Any other fraction is
        refused for a source that has a test split.
    skip_bad
        Leave bad entries out and list them in `Dataset.skipped`, instead of stopping at them.
    test
        A source whose labels can be trusted, to test with in place of a test split of its own: all of it, or its
        test split if it has one. Nothing is held out then.
    exclude
        Names of classes that are left out with all their images.
    classes
        "all" of them, the "base" or the "new" ones, as CoOp halves them by label order.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        If there is no such source or something in it is wrong.
    """
    if isinstance(source, Dataset):
        return source
    if test is not None and test_fraction:
        raise InputError(
            f"test fraction {test_fraction}: nothing is held out where there is a test set; give one of both"
        )
    fraction = 0 if test else TEST_FRACTION if test_fraction is None else test_fraction
    found = _open(str(source), root, class_names, columns, seed, fraction, skip_bad)
    if test_fraction and not found.held_out:
        raise InputError(f"test fraction {test_fraction}: {source} has a test split of its own; leave it out")
    if exclude:
        found = without(found, exclude)
    found = half(found, classes)
    for note in found.notes:
        _log.warning("%s", printable(note))
    asked = {
        "root": root and str(root),
        "class_names": class_names and str(class_names),
        "columns": columns if isinstance(columns, str) else ",".join(f"{key}={name}" for key, name in columns.items()),
        "exclude": list(exclude),
        "classes": "" if classes == "all" else classes,
        "test_fraction": test_fraction,
        "skip_bad": skip_bad,
    }
    found = replace(found, source=str(source), options={name: value for name, value in asked.items() if value})
    if test is None:
        return found
    columns = columns if Path(test).suffix.lower() in manifest.SUFFIXES else ""
    trusted = open_dataset(test, root=root, columns=columns, test_fraction=0, skip_bad=skip_bad)
    there = [name for name in exclude if name in trusted.class_names]
    trusted = without(trusted, there) if there else trusted
    return found.tested_on(half(trusted, classes))


def _open(
    source: str,
    root: Path | str | None,
    class_names: Path | str | None,
    columns: Mapping[str, str] | str,
    seed: int,
    test_fraction: float,
    skip_bad: bool,
) -> Dataset:
    # os.path answers "no" where a Path raises: behind closed folders, for impossible names.
    drawn: dict[str, Any] = {"seed": seed, "test_fraction": test_fraction, "skip_bad": skip_bad}
    path = Path(source).expanduser()
    suffix = path.suffix.lower()
    if class_names is not None and suffix not in manifest.SUFFIXES:
        raise InputError(f"class names {class_names}: they go with a manifest, and {source} is none")
    if columns and suffix not in manifest.SUFFIXES:
        raise InputError(f"columns {columns}: they go with a manifest, and {source} is none")
    if source == "embedded":
        return embedded.read()
    if source.startswith("hf:"):
        return hub.read(source, **drawn)
    # With a root a name is meant, even where a folder of that name is at hand.
    if root is not None or not os.path.exists(path):
        where = root or os.environ.get("DSPT_ROOT")
        if paper := nine.find(source):
            return nine.read(paper, where, skip_bad=skip_bad)
        if tiny := cifar.find(source):
            return cifar.read(tiny, where)
    if paper := nine.at(path):  # its folders are not classes, and its split is not a random one
        return nine.read(paper, path.resolve().parent, skip_bad=skip_bad)
    if hub.is_saved(path):
        return hub.read(f"hf:{path}", **drawn)
    if featurefile.is_shards(path):
        return featurefile.read_shards(path, needs_test=test_fraction > 0)
    if os.path.isdir(path):
        return folder.read(path, **drawn)
    if os.path.isfile(path) and suffix in manifest.SUFFIXES:
        return manifest.read(path, root=_path(root), class_names=_path(class_names), columns=columns, **drawn)
    if os.path.isfile(path) and suffix in featurefile.SUFFIXES:
        return featurefile.read(path, needs_test=test_fraction > 0)
    names = [*(one.name for one in nine.DATASETS), *(one.name for one in cifar.DATASETS)]
    missing = f"no such file or folder{did_you_mean(source, ['embedded', *map(plain, names)])}"
    what = "not a kind of file that can be read" if os.path.exists(path) else missing
    raise InputError(f"data {source}: {what}", _FORMS)


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given).expanduser()
