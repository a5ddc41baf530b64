"""Judging what was learnt: accuracy on a test set."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dspt import learners, train
from dspt.classifier import load
from dspt.config import GENERIC_TEMPLATE, Config
from dspt.data import Dataset, open_dataset
from dspt.data.dataset import renumbered
from dspt.internal.progress import Reporter
from dspt.runs import Run
from dspt.workflows.train import say_notes, told_skipped


def zero_shot(source: str | Dataset, config: Config, reporter: Reporter, skip_bad: bool = False) -> dict[str, Any]:
    """Return the test accuracy of fixed prompts: the one asked for, the dataset's own and the generic one.

    Parameters
    ----------
    source : str or Dataset
        The data, as `open_dataset` takes them; the test split counts.
    config : Config
        The model, the prompt asked for, and how images are encoded.
    reporter : Reporter
        Says the notes of the data and shows how far encoding is.
    skip_bad : bool
        Leave out what cannot be used, instead of stopping at it.

    Returns
    -------
    dict
        "accuracy" is of the prompt asked for, "templates" has that of each prompt, both in percent; besides "data",
        "model", "noise_rate" and its error where the test labels are not known, the numbers of "samples" and
        "classes", and what `told_skipped` tells.
    """
    dataset = open_dataset(source, skip_bad=skip_bad)
    say_notes(dataset, reporter)
    config = replace(config, model=dataset.model_for(config.model))
    tower = learners.open_text_tower(config)
    encoder = learners.open_encoder(config, tower.checkpoint, reporter, skip_bad=skip_bad)
    features, tested = encoder(dataset.test, "test")
    labels = dataset.test.best_labels[tested]
    found, estimate = {}, {}
    for template in dict.fromkeys([config.template, dataset.template, GENERIC_TEMPLATE]):
        prototypes = learners.zero_shot_prototypes(tower, dataset.class_names, template)
        classify = learners.by_prototypes(prototypes, tower.checkpoint.logit_scale)
        found[template] = train.accuracy(features, labels, classify)
        if template == config.template and not dataset.test.truth_known:
            estimate = train.noise_findings(features, labels, classify)
    return {
        "data": dataset.name,
        "model": config.model,
        "samples": len(labels),
        **told_skipped([*dataset.skipped, *encoder.skipped]),
        "classes": len(dataset.class_names),
        "accuracy": found[config.template],
        "test_labels_known": dataset.test.truth_known,
        **estimate,
        "templates": found,
    }


def evaluate(run: Path, source: str | Dataset, reporter: Reporter, skip_bad: bool = False) -> dict[str, Any]:
    """Return the accuracy of a run on a test set, in all and for each class, in percent.

    Parameters
    ----------
    run : Path
        The folder of a finished run, or of a saved classifier.
    source : str or Dataset
        The data, as `open_dataset` takes them; their classes must be among the run's.
    reporter : Reporter
        Says the notes of the data and shows how far encoding is.
    skip_bad : bool
        Leave out what cannot be used, instead of stopping at it.

    Returns
    -------
    dict
        "accuracy", and "per_class" by name for classes that have samples; besides "run", "data", the number of
        "samples", and what `told_skipped` tells.
    """
    classifier = load(run)
    dataset = open_dataset(source, test_fraction=0, skip_bad=skip_bad)
    say_notes(dataset, reporter)
    labels = renumbered(dataset, classifier.class_names_, f"the {len(classifier.class_names_)} classes of {run}")
    judged, skipped = dataset.judged, list(dataset.skipped)
    features = judged.items
    trained_on = Run(run).description().data
    if judged is dataset.train and trained_on and os.path.realpath(trained_on) == os.path.realpath(dataset.source):
        reporter.warn(
            f"note: {run} has learnt from most of these images; how well it does on new ones is another matter"
        )
    estimate: dict[str, float] = {}
    if not dataset.holds_features:  # else not even the checkpoint is needed
        encoder = classifier.encoder(reporter, skip_bad)
        features, tested = encoder(judged, "test")
        labels, skipped = labels[tested], skipped + encoder.skipped
        if not judged.truth_known:
            config = Config(model=classifier.model, template=classifier.template, device=classifier.device)
            tower = learners.open_text_tower(config)
            prototypes = learners.zero_shot_prototypes(tower, classifier.class_names_, config.template)
            untouched = learners.by_prototypes(prototypes, tower.checkpoint.logit_scale)
            estimate = train.noise_findings(features, labels, untouched)
    right = train.predict(classifier.features(features), classifier.classify()) == labels
    counts = np.bincount(labels, minlength=len(classifier.class_names_))
    hits = np.bincount(labels[right], minlength=len(counts))
    return {
        "run": str(run),
        "data": dataset.name,
        "model": classifier.model,
        "samples": len(labels),
        "test_labels_known": judged.truth_known,
        **estimate,
        "accuracy": 100.0 * float(right.mean()),
        "per_class": {name: 100.0 * hits[c] / counts[c] for c, name in enumerate(classifier.class_names_) if counts[c]},
        **told_skipped(skipped),
    }
