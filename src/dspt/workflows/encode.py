"""Having the images of a source in the feature store, so that whatever reads them later need not wait."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from dspt import learners
from dspt.backbone.checkpoint import open_checkpoint
from dspt.config import Config
from dspt.data import Dataset
from dspt.features import default_cache
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.internal.workers import Spread
from dspt.workflows.train import say_notes, told_skipped


def encode(
    dataset: Dataset, config: Config, reporter: Reporter, skip_bad: bool = False, spread: Spread | None = None
) -> dict[str, Any]:
    """Return how many images of a dataset were encoded, and how many were in the feature store already.

    Parameters
    ----------
    dataset : Dataset
        Has the images: of the train split and of the test split.
    config : Config
        The model, and how images are encoded.
    reporter : Reporter
        Says the notes of the data and shows how far encoding is.
    skip_bad : bool
        Leave out what cannot be used, instead of stopping at it.
    spread : Spread, optional
        Has workers encode; None is this process.

    Returns
    -------
    dict
        "images" of the dataset, how many were "encoded" now and how many are "already" there, copies among them;
        "dimensions" of a feature; besides "data", "model", the folder of the "store", "seconds", and what
        `told_skipped` tells.
    """
    if dataset.holds_features:
        raise InputError(f"{dataset.name}: it holds features, not images, so there is nothing to encode")
    say_notes(dataset, reporter)
    start = time.perf_counter()
    config = replace(config, model=dataset.model_for(config.model))
    checkpoint = open_checkpoint(config.model)
    encoder = learners.open_encoder(config, checkpoint, reporter, skip_bad=skip_bad, spread=spread)
    splits = {name: split for name, split in (("train", dataset.train), ("test", dataset.test)) if len(split.labels)}
    for split in splits.values():
        encoder.check_there(split)
    found = [encoder(split, name)[0] for name, split in splits.items()]
    images = sum(map(len, found))
    return {
        "data": dataset.name,
        "model": config.model,
        "images": images,
        "encoded": encoder.encoded,
        "already": images - encoder.encoded,
        "dimensions": found[0].shape[1],
        "store": str(default_cache()),
        "seconds": time.perf_counter() - start,
        **told_skipped([*dataset.skipped, *encoder.skipped]),
    }
