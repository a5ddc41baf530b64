"""From items and labels to an audit: encode once, judge, look at the images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt import __version__, learners
from dspt.auditing.audit import Audit
from dspt.auditing.folder import Evidence
from dspt.auditing.judge import Judged, judge, nearest_examples
from dspt.auditing.pictures import Looks, look_at_all
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.prompt import prompted_alike
from dspt.config import Config
from dspt.data import Dataset, Split
from dspt.data.dataset import are_features, take
from dspt.data.given import distinct_labels, given_items, given_labels
from dspt.data.items import item_names
from dspt.features import BadImages, Encoder
from dspt.internal.checks import check_labels, check_names
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import AUTO, GENERIC_TEMPLATE, NO_MODEL
from dspt.internal.progress import Reporter
from dspt.internal.shards import Features, Shards, joined, take_rows
from dspt.internal.workers import Spread

if TYPE_CHECKING:
    import pandas as pd


# What images of a set without a test split are called.
_ALL = "labelled"


@dataclass(frozen=True)
class Audited:
    """An audit, and what it was made from."""

    audit: Audit
    evidence: Evidence
    items: Sequence[Any]  # those that could be read, in the order of the audit

    @property
    def paths(self) -> list[str] | None:
        """The image files; None if the items are no files."""
        return list(map(str, self.items)) if isinstance(self.items[0], str | Path) else None


def audit(
    X: Any,
    y: Any,
    model: str | None = AUTO,
    class_names: Sequence[str] | None = None,
    *,
    template: str = GENERIC_TEMPLATE,
    known: Any = None,
    look: bool = True,
    cache: str | Path | None = None,
    device: str = "auto",
    verbose: bool = False,
    spread: Spread | None = None,
) -> pd.DataFrame:
    """Return what is to be said of every label: one row a sample, in order.

    Parameters
    ----------
    X : image paths, PIL images, uint8 arrays, or a float array (N, D) of features
        Features of any model will do: CLIP's, DINO's, your own.
    y : N labels, some of which may be wrong
        Class names, or numbers 0..C-1; without `class_names` and a model, any whole numbers from 0 on.
    model : str or None
        A CLIP checkpoint: a Hugging Face hub id, a local folder, or "embedded". "auto" is the paper's for images, and
        none for features; None judges features by themselves, without class names.
    class_names : sequence of str, optional
        The name of each class; needed if `y` holds numbers and there is a model.
    template : str
        The prompt that class names are put into, with {} for the name.
    known : N labels, optional
        The right label where somebody has looked, written as in `y`; None (or, among numbers, -1) elsewhere. It is
        believed.
    look : bool
        Also look at the images themselves: sizes, blur, duplicates.
    cache : str or Path, optional
        Where encoded images are kept; the user's cache folder by default.
    device : str
        "auto", "cpu" or "cuda".
    verbose : bool
        Show progress on stderr.
    spread : callable, optional
        Has workers encode images and go through the samples, as `dspt.engine.spreading.spreading` gives it; None is
        this process.

    Returns
    -------
    pandas.DataFrame
        The columns that cleanlab has, under its names: `is_label_issue`, `label_quality` (the probability that the
        label is right), `given_label`, `predicted_label`; and `predicted_probability`, `runner_up`,
        `runner_up_probability`, `class_noise_rate`, `fits_no_class`, `is_outlier`, `is_near_boundary`,
        `duplicate_group`, `image_issues`. `attrs` has the noise rate and its error, None where they cannot be told.
        An image that cannot be read has a row of missing values that says "broken".

    Examples
    --------
    >>> import numpy as np, dspt
    >>> x = np.repeat(np.eye(3, 8), 20, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((60, 8))
    >>> labels = np.repeat([0, 1, 2], 20); labels[5] = 2
    >>> found = dspt.audit(x, labels, model=None)
    >>> found.index[found.is_label_issue].tolist(), found.predicted_label[5]
    ([5], 0)
    """
    items = given_items(X)
    if model in (None, NO_MODEL) and not are_features(items):
        raise InputError("model: none is given, and images need one; name a CLIP checkpoint, or give features")
    if class_names is None and are_features(items) and model in (AUTO, None, NO_MODEL):
        names, classes, labels = distinct_labels(y)
    else:
        names, classes, labels = given_labels(y, class_names)
    if len(labels) != len(items):
        raise InputError(f"labels: {len(labels)} of them for {len(items)} samples; they must be as many")
    check_names(names, "class_names")
    check_labels(labels, len(names), "y")
    if classes.dtype.kind == "i" and (below := classes[labels] < 0).any():
        row = int(below.argmax())
        raise InputError(f"y: {classes[labels[row]]} at row {row} is below 0, which is no class; leave the sample out")
    nobody = Split([], np.empty(0, np.int64))
    dataset = Dataset("X", names, Split(items, labels), nobody, template=template)
    found, kept = audit_dataset(
        dataset,
        NO_MODEL if model is None else model,
        Reporter(silent=not verbose),
        known=None if known is None else _known(known, classes, len(labels)),
        look=look,
        cache=None if cache is None else Path(cache),
        device=device,
        examples=False,
        spread=spread,
    )
    table = found.audit.table().drop(columns=["item", "split"])
    number = {name: c for c, name in enumerate(found.audit.class_names)}
    for column in ("given_label", "predicted_label", "runner_up"):
        if table[column].notna().all():  # nobody comes next where nothing is known
            table[column] = classes[table[column].map(number).to_numpy()]
    if len(kept) < len(labels):
        table = _with_broken(table, kept, classes[labels])
    told = found.audit.tells
    table.attrs = {
        "noise_rate": found.audit.noise_rate if told else None,
        "noise_rate_error": found.audit.noise_rate_error if told else None,
        "can_tell": found.audit.can_tell,
    }
    return table


def _known(known: Any, classes: np.ndarray, n: int) -> np.ndarray:
    """Return the number of the class of each sample that somebody has looked at, -1 for the others."""
    written_so = list(known)
    if len(written_so) != n:
        raise InputError(
            f"known: {len(written_so)} labels for {n} samples; give one for each, None where nobody looked"
        )
    place = {label: c for c, label in enumerate(classes.tolist())}
    found = np.full(n, -1)
    for row, label in enumerate(written_so):
        label = label.item() if isinstance(label, np.generic) else label
        if label is None or label != label or (label == -1 and -1 not in place):
            continue
        if label not in place:
            raise InputError(f"known: {label!r} at row {row} is not one of the labels; give one of them, or None")
        found[row] = place[label]
    return found


def _with_broken(table: pd.DataFrame, kept: np.ndarray, given: np.ndarray) -> pd.DataFrame:
    """Return a table with a row also for those that are not among `kept`, since they could not be read."""
    import pandas as pd

    table.index = kept
    for name in ("is_label_issue", "is_outlier", "is_near_boundary"):
        table[name] = table[name].astype("boolean")
    for name in ("predicted_label", "runner_up"):
        if table[name].dtype.kind in "iu":
            table[name] = table[name].astype("Int64")
    table = table.reindex(range(len(given)))
    table["given_label"] = pd.Series(given, index=table.index)
    table["image_issues"] = table["image_issues"].fillna("broken")
    return table


def audit_dataset(
    dataset: Dataset,
    model: str = AUTO,
    reporter: Reporter | None = None,
    *,
    known: np.ndarray | None = None,
    look: bool = True,
    cache: Path | None = None,
    device: str = "auto",
    memory: Path | None = None,
    budget: int = 0,
    examples: bool = True,
    spread: Spread | None = None,
) -> tuple[Audited, np.ndarray]:
    """Return what was found in a dataset, train and test split alike, and the positions of what could be read.

    Parameters
    ----------
    dataset : Dataset
        Opened so that nothing was held out.
    model : str
        A CLIP checkpoint, "auto" or "none".
    reporter : Reporter, optional
        Shows how far the work is.
    known : integer array, optional
        The true class of each sample that somebody has looked at, -1 elsewhere.
    look : bool
        Also look at the images themselves.
    cache : Path, optional
        The folder of the feature store.
    device : str
        Where images are encoded.
    memory : Path, optional
        The file that keeps what was seen of images.
    budget : int
        How many samples somebody will look at: as many have examples, if they are more than the suspects.
    examples : bool
        Find the nearest surely right images for each suspect.
    spread : Spread, optional
        Has workers encode images and go through the samples; None is this process.
    """
    reporter = reporter or Reporter(silent=True)
    features, kept, skipped, text = _features(dataset, model, reporter, cache, device, spread)
    both = [dataset.train, dataset.test] if len(dataset.test.labels) else [dataset.train]
    labels = np.concatenate([split.labels for split in both])[kept]
    items = _joined([split.items for split in both], kept)
    first = len(dataset.train.labels)
    names = dataset.class_names
    judged = judge(
        features,
        labels,
        len(names),
        prototypes=text.prototypes,
        scale=text.scale,
        known=None if known is None else known[kept],
        names=names,
        spread=spread,
    )
    looks = Looks(("",) * len(labels), (), 0)
    if look:
        looks = look_at_all(items, reporter, memory)
    found = Audit(
        source=dataset.source or dataset.name,
        class_names=names,
        items=tuple(_names(items, dataset)),
        splits=tuple("train" if row < first else "test" for row in kept.tolist()),
        labels=labels,
        **_told(judged),
        duplicate_groups=looks.duplicate_groups,
        identical_groups=looks.identical_groups,
        image_issues=looks.issues,
        unusable=skipped,
        made_with={
            "model": text.model,
            "template": dataset.template if text.model else None,
            "budget": budget or None,
            "version": __version__,
            "path": os.path.realpath(dataset.source) if os.path.exists(dataset.source) else None,
        },
    )
    if examples:
        found = with_examples(found, features, budget)
    return Audited(found, Evidence(features, text.prototypes, text.scale), items), kept


def judged_again(
    before: Audit, evidence: Evidence, known: np.ndarray, removed: np.ndarray, spread: Spread | None = None
) -> Audit:
    """Return an audit with its labels judged again, knowing what somebody has seen.

    Parameters
    ----------
    before : Audit
        What was found without it.
    evidence : Evidence
        What the labels are judged by.
    known : integer array of shape (N,)
        The true class where somebody has looked, -1 elsewhere.
    removed : bool array of shape (N,)
        Samples that do not count any more; what was found about them stays as it was.
    spread : Spread, optional
        Has workers go through the samples; None is this process.
    """
    left = ~removed
    decided = (known >= 0) | removed
    corrected = np.where(removed, -1, np.where(known >= 0, known, before.labels))
    before = replace(before, decided=decided, corrected=corrected)
    if not left.any():
        return before
    judged = judge(
        take_rows(evidence.features, np.flatnonzero(left)),
        before.labels[left],
        len(before.class_names),
        prototypes=evidence.prototypes,
        scale=evidence.scale,
        known=known[left],
        names=before.class_names,
        spread=spread,
    )
    told = _told(judged)
    for name in ("probabilities", "fits_no_class", "is_outlier"):
        whole = getattr(before, name).copy()
        whole[left] = told[name]
        told[name] = whole
    return with_examples(replace(before, **told), evidence.features, before.made_with.get("budget") or 0)


def with_examples(found: Audit, features: Features, budget: int = 0) -> Audit:
    """Return an audit with the nearest surely right images of each suspect, or of as many as will be looked at."""
    rows = np.union1d(found.suspects, found.looks(budget))
    return replace(found, examples=nearest_examples(features, found.labels, found.proposed, found.label_quality, rows))


def _told(judged: Judged) -> dict[str, Any]:
    """Return the part of an audit that features and labels tell."""
    return {
        "probabilities": judged.posterior.probabilities,
        "noise_rate": judged.posterior.noise_rate,
        "noise_rate_error": judged.posterior.noise_rate_error,
        "can_tell": judged.posterior.can_tell,
        "class_noise_rates": judged.class_noise_rates,
        "fits_no_class": judged.fits_no_class,
        "is_outlier": judged.is_outlier,
        "inseparable": judged.inseparable,
    }


@dataclass(frozen=True)
class _Text:
    """The class names as a text tower sees them, if there is one."""

    model: str | None = None
    prototypes: np.ndarray | None = None
    scale: float = 100.0


def _features(
    dataset: Dataset, model: str, reporter: Reporter, cache: Path | None, device: str, spread: Spread | None
) -> tuple[Features, np.ndarray, tuple[Fault, ...], _Text]:
    """Return the features of all samples that can be read, their positions, what could not be read, and the text."""
    both = [dataset.train, dataset.test] if len(dataset.test.labels) else [dataset.train]
    first = len(dataset.train.labels)
    bare = dataset.holds_features
    if model == NO_MODEL or (bare and model == AUTO):
        if not bare:
            raise InputError(
                f"model {NO_MODEL}: it goes with features, and {dataset.source or 'X'} has images",
                "leave `model` out, or name a CLIP checkpoint",
            )
        features = joined([split.items for split in both])  # type: ignore[misc]
        return features, np.arange(len(features)), dataset.skipped, _Text()
    config = Config(model=dataset.model_for(model), device=device, template=dataset.template)
    checkpoint = open_checkpoint(config.model)
    tower = learners.open_text_tower(config, checkpoint)
    # Folders "Bag" and "bag" are what an audit is for: the text says the same of both, and they are told as a pair.
    alike = prompted_alike(checkpoint, dataset.class_names)
    distinct, place = np.unique(alike, return_inverse=True)
    names = [dataset.class_names[k] for k in distinct]
    prototypes = learners.zero_shot_prototypes(tower, names, config.template).float().cpu().numpy()[place]
    text = _Text(config.model, prototypes, float(checkpoint.logit_scale))
    encoder = learners.open_encoder(config, checkpoint, reporter, cache, skip_bad=True, spread=spread)
    # Of what has no splits, nobody is told of train images.
    names_of = {"train": "train", "test": "test"} if len(both) > 1 else {_ALL: "train"}
    parts = [_encoded(encoder, split, name) for split, name in zip(both, names_of, strict=True)]
    features = joined([part for part, _ in parts])
    if features.shape[1] != prototypes.shape[1]:
        raise InputError(
            f"features: {features.shape[1]} wide, but {checkpoint.name} gives class features of width "
            f"{prototypes.shape[1]}; use the checkpoint they were made with",
            f"or set `model` to {NO_MODEL} to judge them by themselves",
        )
    kept = np.concatenate([positions + first * number for number, (_, positions) in enumerate(parts)])
    skipped = (replace(fault, split=names_of[fault.split]) for fault in encoder.skipped)
    return features, kept, (*dataset.skipped, *skipped), text


def _encoded(encoder: Encoder, split: Split, name: str) -> tuple[Features, np.ndarray]:
    """Return what the encoder gives. If no image can be used, no advice to skip them: that has been done."""
    try:
        return encoder(split, name)
    except BadImages as error:
        raise BadImages(error.faults, len(split.labels), can_skip=False) from None


def _joined(parts: Sequence[Any], kept: np.ndarray) -> Any:
    """Return the items of all splits at these positions."""
    if all(isinstance(part, np.ndarray | Shards) for part in parts):
        return take(joined(parts), kept)
    first = len(parts[0])
    return [parts[0][i] if i < first else parts[1][i - first] for i in kept.tolist()]


def _names(items: Any, dataset: Dataset) -> Any:
    return item_names(items, dataset.root) if isinstance(items[0], str | Path | bytes) else map(str, range(len(items)))
