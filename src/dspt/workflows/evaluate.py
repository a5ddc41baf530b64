"""Judging what was learnt: accuracy on a test set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.special import softmax

from dspt import learners, train
from dspt.classifier import PromptClassifier, load
from dspt.config import GENERIC_TEMPLATE, Config
from dspt.data import Dataset, open_dataset
from dspt.data.dataset import HALVES, Items, half, renumbered, take
from dspt.data.duplicates import read_picture
from dspt.data.images import BadImage
from dspt.data.items import item_names
from dspt.evaluation import Evaluation, harmonic_mean
from dspt.evaluation.page import Part, write_page
from dspt.evaluation.picture import calibration_picture
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import matched
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted
from dspt.posterior.noise_rate import in_words
from dspt.runs import Run, made_with
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


# The classes that images are told apart in.
CLASSES = ("run", "data", *HALVES, "base-to-new")


def evaluate(
    run: Path,
    source: str | Dataset,
    reporter: Reporter,
    skip_bad: bool = False,
    *,
    classes: str = "run",
    worst: int = 10,
    page: Path | None = None,
    picture: Path | None = None,
) -> dict[str, Any]:
    """Return how well a run does on a test set, in all, by class and by confidence, and where it fails worst.

    Parameters
    ----------
    run : Path
        The folder of a finished run, or of a saved classifier.
    source : str or Dataset
        The data, as `open_dataset` takes them.
    reporter : Reporter
        Says the notes of the data and shows how far encoding is.
    skip_bad : bool
        Leave out what cannot be used, instead of stopping at it.
    classes : {"run", "data", "base", "new", "base-to-new"}
        The classes that images are told apart in: those of the run, among which those of the data must be; those of
        the data, whatever the run has learnt from; one half of the data's, as CoOp halves them; or first the base
        classes, which the run must have learnt, and then the new ones.
    worst : int
        How many of the worst mistakes are listed.
    page, picture : Path, optional
        Where a page with all of it, and a picture of the calibration, are written.

    Returns
    -------
    dict
        "run", "data", "model", "classes" and what `Evaluation.as_dict` has; besides, what `told_skipped` tells. Of
        classes that are not the run's, "zero_shot" has the accuracy of the data's own fixed prompt. Of "base-to-new",
        all of this stands under "base" and "new", and "accuracy" and "zero_shot" are harmonic means.
    """
    if classes not in CLASSES:
        raise InputError(f"classes {classes!r}: expected {', '.join(CLASSES[:-1])} or {CLASSES[-1]}")
    if worst < 0:
        raise InputError(f"worst = {worst}: expected at least 0")
    classifier = load(run)
    dataset = open_dataset(source, test_fraction=0, skip_bad=skip_bad)
    say_notes(dataset, reporter)
    parts = {name: half(dataset, name) for name in HALVES if classes in (name, "base-to-new")} or {classes: dataset}
    if classes == "base-to-new":
        _check_base(classifier, parts["base"], run)
    judged = {
        name: _judged(run, classifier, part, reporter, skip_bad, own=classes == "run") for name, part in parts.items()
    }
    told: dict[str, Any] = {"run": str(run), "data": dataset.name, "model": classifier.model, "classes": classes}
    told |= _harmonic(judged, worst) if classes == "base-to-new" else judged[classes].as_dict(worst)
    if page is not None:
        headings = {"base": "Base classes", "new": "New classes"}
        shown = [one.part(headings.get(name, "")) for name, one in judged.items()]
        write_page(page, f"{run} on {dataset.name}", str(classifier.model), shown, worst)
        told["page"] = str(page)
    if picture is not None:
        made = Run(run).description()
        with_what = made_with([(asdict(made.settings), made.text_tower or "")])
        about = f"Run {Path(run).absolute().name} on {dataset.name}. {with_what}."
        calibration_picture(picture, {name: one.evaluation for name, one in judged.items()}, about)
        told["picture"] = str(picture)
    return told


@dataclass(frozen=True)
class _Judged:
    """What was found on the test set, or on one half of its classes."""

    evaluation: Evaluation
    items: Items
    skipped: list[Fault]
    noise: dict[str, float]  # the estimated share of wrong labels, where they are not known
    zero_shot: float | None = None
    template: str | None = None  # the prompt of zero-shot

    def as_dict(self, worst: int) -> dict[str, Any]:
        compared = {} if self.zero_shot is None else {"zero_shot": self.zero_shot, "template": self.template}
        return {**self.evaluation.as_dict(worst), **compared, **self.noise, **told_skipped(self.skipped)}

    def part(self, heading: str) -> Part:
        """Return it as a page shows it."""
        words = in_words(self.noise) if self.noise else ""
        return Part(heading, self.evaluation, self._picture, self.zero_shot, self.template or "", words)

    def _picture(self, row: int) -> Image.Image | None:
        try:
            return read_picture(self.items[row], self.evaluation.items[row])[1]
        except BadImage:  # it was there a moment ago
            return None


def _judged(
    run: Path, classifier: PromptClassifier, dataset: Dataset, reporter: Reporter, skip_bad: bool, own: bool
) -> _Judged:
    """Return how well a run does on a dataset, in its own classes or in those of the dataset."""
    if not own:
        classifier = classifier.for_classes(dataset.class_names)
    names = classifier.class_names_
    whose = f"the {counted(len(names), 'class', 'classes')} of {run}"
    labels = renumbered(dataset, names, whose, "with `classes` data a prompt is judged in those")
    judged, skipped = dataset.judged, list(dataset.skipped)
    description = Run(run).description()
    learnt_from = description.data and os.path.realpath(description.data) == os.path.realpath(dataset.source)
    if judged is dataset.train and learnt_from and set(names) <= set(description.class_names):
        reporter.warn(
            f"note: {run} has learnt from most of these images; how well it does on new ones is another matter"
        )
    features, rows = judged.items, np.arange(len(labels))
    if not dataset.holds_features:  # else not even the checkpoint is needed
        encoder = classifier.encoder(reporter, skip_bad)
        features, rows = encoder(judged, "test")
        skipped += encoder.skipped
    features, labels = classifier.features(features), labels[rows]
    noise: dict[str, float] = {}
    if not judged.truth_known and not dataset.holds_features:
        noise = train.noise_findings(features, labels, classifier.fixed_prompt(classifier.template))
    compared: dict[str, Any] = {}
    if not own:
        right = train.accuracy(features, labels, classifier.fixed_prompt(dataset.template))
        compared = {"zero_shot": right, "template": dataset.template}
    evaluation = Evaluation(
        class_names=names,
        labels=labels,
        # In double precision no two logits become one probability.
        probabilities=softmax(train.logits(features, classifier.classify()).astype(np.float64), axis=1),
        items=tuple(item_names(take(judged.items, rows), dataset.root)),
        truth_known=judged.truth_known,
    )
    return _Judged(evaluation, take(judged.items, rows), skipped, noise, **compared)


def _check_base(classifier: PromptClassifier, base: Dataset, run: Path) -> None:
    """Raise `InputError` unless a run has learnt the base classes and no others."""
    found = matched(base.class_names, classifier.class_names_)
    if sorted(found) != list(range(len(classifier.class_names_))):
        raise InputError(
            f"run folder {run}: it has not learnt just the {len(base.class_names)} base classes of {base.source}; "
            "train on the base classes first"
        )


def _harmonic(judged: Mapping[str, _Judged], worst: int) -> dict[str, Any]:
    """Return what was found on base and new classes, with the harmonic mean of both."""
    base, new = (judged[name] for name in HALVES)
    assert base.zero_shot is not None
    assert new.zero_shot is not None
    return {
        "accuracy": harmonic_mean(base.evaluation.accuracy, new.evaluation.accuracy),
        "zero_shot": harmonic_mean(base.zero_shot, new.zero_shot),
        **{name: judged[name].as_dict(worst) for name in HALVES},
        **told_skipped(list(dict.fromkeys([*base.skipped, *new.skipped]))),
    }
