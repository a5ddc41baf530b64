"""A test split for a source that has none, written down once and for all as a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from dspt.data.dataset import TEST_FRACTION, Dataset, Split, hold_out
from dspt.data.duplicates import copies
from dspt.data.writing import check_manifest_name, manifest_labels, manifest_paths, write_manifest_table
from dspt.internal.errors import InputError
from dspt.internal.files import check_free
from dspt.internal.threads import Progress


def check_split(source: str, out: Path, overwrite: bool = False) -> None:
    """Raise `InputError`, before any work, if the split of a source cannot be written there."""
    check_manifest_name(out)
    check_free(out, overwrite)
    real, place = os.path.realpath(out), os.path.realpath(source)
    if real == place or real.startswith(os.path.join(place, "")):
        raise InputError(f"{out}: it is part of {source}, which stays as it is; give a name outside of it")


def write_split(
    dataset: Dataset,
    out: Path,
    fraction: float = TEST_FRACTION,
    seed: int = 1,
    look: bool = True,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Return what was counted, once a manifest that says which images are for the test is at `out`.

    Its columns are path, label, true_label where some are known, and split. Without copies among the images, the test
    split is the one that is held out of the source by default.

    Parameters
    ----------
    dataset : Dataset
        Opened without holding anything out.
    out : Path
        A .csv, .jsonl or .parquet file.
    fraction : float
        The part of each class that is for the test, above 0 and below 1.
    seed : int
        Seed of the draw.
    look : bool
        Look at the images for copies, which stay on one side.
    progress : callable
        Is told how many images were looked at, and of how many.

    Returns
    -------
    dict
        "train", "test", "classes", "copies" (groups of images that are the same, None if nobody looked) and "file".
    """
    if len(dataset.test.labels):
        raise InputError(f"{dataset.source or dataset.name}: it has a test split already; train on it as it is")
    whole = dataset.train
    if not len(whole.items) or not isinstance(whole.items[0], str):
        raise InputError(f"{dataset.source or dataset.name}: its images are no files, which a manifest could name")
    found = copies(whole.items, progress) if look else []
    # The rows take the place of the items, so that they tell which are held out.
    rows = np.arange(len(whole.labels))
    _, test = hold_out(Split(rows, whole.labels), dataset.class_names, seed, fraction, found)
    if not len(test.items):
        raise InputError(f"{dataset.source or dataset.name}: no image can be held out; add some to each class")
    held = np.isin(rows, test.items)
    columns = {
        "path": manifest_paths(map(os.path.abspath, whole.items), out),
        "label": manifest_labels(dataset.class_names, whole.labels, out),
    }
    if whole.true_labels is not None:
        columns["true_label"] = manifest_labels(dataset.class_names, whole.true_labels, out)
    columns["split"] = np.where(held, "test", "train").tolist()
    write_manifest_table(out, columns)
    return {
        "train": int((~held).sum()),
        "test": int(held.sum()),
        "classes": len(dataset.class_names),
        "copies": len(found) if look else None,
        "file": str(out),
    }
