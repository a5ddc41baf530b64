"""Judging and using what was learnt: accuracy on a test set, classes of new images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from dspt import train
from dspt.classifier import load
from dspt.config import GENERIC_TEMPLATE, Config
from dspt.data import Dataset, open_dataset
from dspt.data.folder import IMAGE_SUFFIXES
from dspt.errors import InputError
from dspt.pipeline import image_features, open_text_tower
from dspt.progress import Reporter


def zero_shot(source: str, config: Config, reporter: Reporter) -> dict[str, Any]:
    """Return the test accuracy of fixed prompts: the one asked for, the dataset's own and the generic one."""
    dataset = open_dataset(source)
    checkpoint, tower = open_text_tower(config)
    features = image_features(dataset.test.items, checkpoint, config, reporter, "test images")
    found = {}
    for template in dict.fromkeys([config.template, dataset.template, GENERIC_TEMPLATE]):
        prototypes = train.zero_shot_prototypes(tower, dataset.class_names, template)
        found[template] = train.accuracy(features, dataset.test.labels, prototypes)
    return {
        "data": dataset.name,
        "model": config.model,
        "samples": len(dataset.test.labels),
        "classes": len(dataset.class_names),
        "accuracy": found[config.template],
        "templates": found,
    }


def evaluate(run: Path, source: str, reporter: Reporter) -> dict[str, Any]:
    """Return the accuracy of a run on the test set of `source`, in all and for each class, in percent."""
    classifier = load(run)
    classifier.verbose = not reporter.silent
    dataset = open_dataset(source)
    labels = _labels_of_run(dataset, classifier.class_names_, run, source)
    predicted = train.predict(classifier.features(dataset.test.items), classifier.prototypes_)
    right = predicted == labels
    return {
        "run": str(run),
        "data": dataset.name,
        "samples": len(labels),
        "accuracy": 100.0 * float(right.mean()),
        "per_class": {
            name: 100.0 * float(right[labels == c].mean())
            for c, name in enumerate(classifier.class_names_)
            if (labels == c).any()
        },
    }


def predict(run: Path, images: list[str], top: int, reporter: Reporter) -> list[dict[str, Any]]:
    """Return, for each image, its most probable classes."""
    if top < 1:
        raise InputError(f"top = {top}: expected at least 1")
    classifier = load(run)
    classifier.verbose = not reporter.silent
    files = [file for image in images for file in _image_files(image)]
    probability = classifier.predict_proba(files)
    best = np.argsort(-probability, axis=1, kind="stable")[:, :top]
    return [
        {
            "image": file,
            "classes": [
                {"class": classifier.class_names_[c], "probability": float(row[c])} for c in order
            ],
        }
        for file, row, order in zip(files, probability, best, strict=True)
    ]


def _labels_of_run(dataset: Dataset, names: tuple[str, ...], run: Path, source: str) -> np.ndarray:
    """The test labels in the order of the run's classes, which are matched by name."""
    position = {name: c for c, name in enumerate(names)}
    unknown = [name for name in dataset.class_names if name not in position]
    if unknown:
        raise InputError(
            f"data {source}: class {unknown[0]!r} is not one of the {len(names)} classes that {run} knows"
        )
    return np.array([position[name] for name in dataset.class_names])[dataset.test.labels]


def _image_files(path: str) -> list[str]:
    """The image files a path stands for: itself, or those in the folder."""
    if not os.path.isdir(path):
        return [path]
    found = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
    images = [file for file in found if Path(file).suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise InputError(f"folder {path}: no image files in it")
    return images
