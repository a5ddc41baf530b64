"""Wrong labels made to order: a label file, and a picture of what was taken for what."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspt import noise, plots
from dspt.backbone.checkpoint import open_checkpoint
from dspt.config import Config
from dspt.data import Dataset
from dspt.internal.errors import InputError
from dspt.internal.files import check_free
from dspt.internal.progress import Reporter
from dspt.internal.shards import Shards
from dspt.learners import open_encoder, open_text_tower, zero_shot_prototypes
from dspt.noise.labelfiles import label_file
from dspt.problem import given_split
from dspt.workflows.train import say_notes, told_skipped

# Classes a picture has room for; of more, those with the most wrong labels are drawn.
MOST_DRAWN = 500


def mislabel(
    dataset: Dataset,
    kind: str,
    out: Path,
    picture: Path | None,
    seed: int,
    model: str,
    reporter: Reporter,
    skip_bad: bool = False,
    overwrite: bool = False,
    inputs: Sequence[Path | str | None] = (),
) -> dict[str, Any]:
    """Return how many labels became wrong and how, having written the labels and the picture.

    Parameters
    ----------
    dataset : Dataset
        Its train split counts.
    kind : str
        The noise, as `noise.parse` takes it.
    out : Path
        The label file, .csv or .npy.
    picture : Path, optional
        The picture, a .png, .pdf or .svg file; None is `out` with the suffix .png.
    seed : int
        Seed of the noise.
    model : str
        The CLIP checkpoint whose features of images or class names the noise looks at; not opened for noise that looks
        at none.
    reporter : Reporter
        Says the notes of the data and shows how far encoding is.
    skip_bad : bool
        Do not stop at images that cannot be read.
    overwrite : bool
        Replace files that are there, but never one that was read.
    inputs : sequence of paths
        Files that were read, besides the dataset and the file that the noise names.

    Returns
    -------
    dict
        "labels" and "wrong" are numbers of labels, "rate" is the share of wrong ones in 0..1, "most_common" the ten
        most common mistakes; besides "data", "noise", "seed", "file", "picture", and what `told_skipped` tells.
    """
    spec = noise.parse(kind)
    picture = picture or out.with_suffix(".png")
    if out.suffix.lower() not in (".csv", ".npy"):
        raise InputError(f"{out}: expected a .csv or .npy file for the labels")
    for file in (out, picture):
        _check_unread(file, dataset, [*inputs, spec.path and label_file(spec.path)])
        check_free(file, overwrite)
    plots.check_path(picture, overwrite)
    true, names = dataset.train.best_labels, dataset.class_names
    say_notes(dataset, reporter)
    encoder = prototypes = None
    config = Config(model=dataset.model_for(model))
    if spec.needs_features:
        encoder = open_encoder(config, open_checkpoint(config.model), reporter, skip_bad=skip_bad)
    if spec.needs_class_features:
        prototypes = zero_shot_prototypes(open_text_tower(config), names, config.template)
    split = given_split(dataset, spec, seed, reporter, encoder, prototypes)
    given = split.labels
    pairs, counts = np.unique(true * len(names) + given, return_counts=True)
    wrong = pairs // len(names) != pairs % len(names)
    order = np.flatnonzero(wrong)[np.argsort(-counts[wrong], kind="stable")]
    drawn = _most_wrong(true, given, len(names))
    total = int((true != given).sum())
    title = f"{spec}, seed {seed}: {total:,} of {len(true):,} labels wrong ({total / len(true):.1%})"
    plots.confusion(picture, _shares(true, given, drawn), [names[c] for c in drawn], title)
    # Last: a picture of our own may be replaced, so that the command can be given again after Ctrl-C.
    noise.write_split(out, dataset, split)
    return {
        "data": dataset.name,
        "noise": str(spec),
        "model": config.model if spec.needs_clip else None,
        "seed": seed,
        "labels": len(true),
        "wrong": total,
        "rate": total / len(true),
        "most_common": [
            {
                "true": names[pairs[i] // len(names)],
                "given": names[pairs[i] % len(names)],
                "count": int(counts[i]),
            }
            for i in order[:10]
        ],
        **told_skipped([*dataset.skipped, *(encoder.skipped if encoder else ())]),
        "file": str(out),
        "picture": str(picture),
    }


def _check_unread(file: Path, dataset: Dataset, inputs: Sequence[Path | str | None]) -> None:
    """Raise `InputError` if this is a file that was read: it is never replaced."""
    if not file.exists():
        return
    read = [dataset.source, *(os.fspath(path) for path in inputs if path)]
    for split in (dataset.train, dataset.test):
        if not isinstance(split.items, np.ndarray | Shards):
            read += [item for item in split.items if isinstance(item, str) and os.path.basename(item) == file.name]
    if any(os.path.exists(other) and os.path.samefile(file, other) for other in read):
        raise InputError(f"{file}: it is read here, and never replaced; give another name for what is written")


def _most_wrong(true: np.ndarray, given: np.ndarray, classes: int) -> np.ndarray:
    """Return the classes to draw, in label order."""
    if classes <= MOST_DRAWN:
        return np.arange(classes)
    wrong = np.bincount(true[true != given], minlength=classes)
    return np.sort(np.argsort(-wrong, kind="stable")[:MOST_DRAWN])


def _shares(true: np.ndarray, given: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return, for each true class (row), the share of each given label (column)."""
    place = np.full(max(true.max(), given.max(), drawn.max()) + 1, -1)
    place[drawn] = np.arange(len(drawn))
    rows, columns = place[true], place[given]
    totals = np.bincount(rows[rows >= 0], minlength=len(drawn))
    both = (rows >= 0) & (columns >= 0)
    counts = np.zeros((len(drawn), len(drawn)))
    np.add.at(counts, (rows[both], columns[both]), 1)
    return counts / np.maximum(totals, 1)[:, None]
