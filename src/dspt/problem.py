"""What there is to learn: a dataset with its given labels, read as the learner takes it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dspt import learners, methods, noise
from dspt.backbone.checkpoint import open_checkpoint
from dspt.config import Config, Settings
from dspt.data import Dataset, Split, few_shot
from dspt.internal.checks import check_labels
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import NO_MODEL, printable
from dspt.internal.progress import Reporter
from dspt.internal.shards import BLOCK, Features
from dspt.learners import Learner, Parameters, Reader, Samples
from dspt.methods import Method

# Silent unless the program that uses dspt wants to hear: the command line says the same itself.
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Inputs with given labels, and the names of the classes."""

    class_names: tuple[str, ...]
    train_x: Features  # (N, D) features, (N, V, D) of V views, or (N, H, W, 3) pixels
    labels: np.ndarray  # (N,) given labels, some of them wrong
    true_labels: np.ndarray | None = None  # (N,) -1 where unknown: for the record alone, never to learn
    test_x: Features | None = None
    test_y: np.ndarray | None = None
    weights: np.ndarray | None = None  # (N,) how much each sample counts, 1 on average

    @property
    def right(self) -> np.ndarray | None:
        """Which labels are right (N,); None if nothing is known of any."""
        return None if self.true_labels is None else self.labels == self.true_labels

    @property
    def wrong(self) -> np.ndarray | None:
        """Which labels are wrong (N,); neither right nor wrong is one of which nothing is known."""
        return None if self.true_labels is None else (self.labels != self.true_labels) & (self.true_labels >= 0)

    @property
    def labels_known(self) -> int:
        """Of how many labels it is known whether they are wrong."""
        return 0 if self.true_labels is None else int((self.true_labels >= 0).sum())

    @property
    def wrong_share(self) -> float | None:
        """The share of wrong labels among those of which it is known; None if of none."""
        return None if self.wrong is None or not self.labels_known else int(self.wrong.sum()) / self.labels_known

    @property
    def samples(self) -> Samples:
        """What a learner may start from."""
        return Samples(self.train_x, self.labels, self.weights)

    @property
    def tested(self) -> bool:
        """Whether there is a test set."""
        return self.test_y is not None and len(self.test_y) > 0

    def fingerprint(self) -> str:
        """Return a hash of inputs and labels, by which a resumed run knows that its data are the same."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.train_x, self.labels, self.test_x, self.test_y):
            if array is not None:
                digest.update(str(array.shape).encode())
                for first in range(0, len(array), BLOCK):
                    digest.update(np.ascontiguousarray(array[first : first + BLOCK]).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Task:
    """A problem, and who is to solve it and how."""

    problem: Problem
    config: Settings
    learner: Learner
    method: Method
    start: Parameters
    given: Split  # the whole train split with the labels it has after noise
    skipped: tuple[Fault, ...] = ()  # what of the source was left out

    @classmethod
    def of(cls, problem: Problem, config: Settings, learner: Learner | None = None) -> Task:
        """Return the task of a problem whose inputs have been read already.

        Parameters
        ----------
        problem : Problem
            The inputs, the given labels and the names of the classes.
        config : Settings
            Names the method, its options and the learner.
        learner : Learner, optional
            None makes the one that the config asks for.
        """
        method = methods.make(config.method, **config.method_options())
        _check_method(method, learners.kind_of(config), problem.weights is not None, config)
        learner = learner or learners.make(problem.class_names, config)
        _check(problem, learner)
        given = Split(problem.train_x, problem.labels, problem.true_labels)
        return cls(problem, config, learner, method, learner.start(problem.samples), given)


def pose(
    dataset: Dataset,
    config: Settings,
    noise_spec: noise.NoiseSpec | None = None,
    *,
    method: str | Method | Callable[..., Any] | None = None,
    weights: np.ndarray | None = None,
    reporter: Reporter | None = None,
    cache: Path | None = None,
    skip_bad: bool = False,
) -> Task:
    """Return the task that a dataset and the settings pose.

    Whatever is wrong with settings, labels, names or words is found before images are encoded.

    Parameters
    ----------
    method
        In place of the one that the config names: a `Method`, or a loss of one's own.
    weights
        How much each sample of the train split counts, if not all the same.
    cache
        The folder of the feature store.
    skip_bad
        Leave out images that cannot be read.
    """
    spec = noise_spec or noise.NoiseSpec()
    config = replace(config, model=dataset.model_for(config.model))
    chosen = methods.make(config.method if method is None else method, **config.method_options())
    kind = learners.kind_of(config)
    _check_method(chosen, kind, weights is not None, config)
    _check_features(dataset, config, spec)
    if spec.needs_clip and not kind.has_clip:
        raise InputError(
            f"noise {spec}: it looks at CLIP's features, and a network from scratch has none; write such "
            "labels to a file with another run and give file:labels.csv"
        )
    if getattr(config, "views", 0) and dataset.holds_features:
        raise InputError(
            f"views = {config.views}: {dataset.name} holds features, not images, so nothing can be cropped",  # type: ignore[attr-defined]
            "leave `views` out",
        )
    reporter = reporter or Reporter(silent=True)
    given = None if spec.needs_clip else given_split(dataset, spec, config.seed, reporter)
    learner = learners.make(dataset.class_names, config)
    start = learner.start()  # words that cannot be read are found here
    reader = learner.reader(reporter, cache, skip_bad)
    if len(dataset.test.labels):
        reader.check_there(dataset.test)  # the train split, read first, looks for its own files
    if given is None:
        prototypes = learner.zero_shot if spec.needs_class_features else None
        given = given_split(dataset, spec, config.seed, reporter, reader, prototypes)
    problem = _read(dataset, given, config, reader, weights)
    _check(problem, learner)
    start = start or learner.start(problem.samples)
    return Task(problem, config, learner, chosen, start, given, (*dataset.skipped, *reader.skipped))


def encode(dataset: Dataset, config: Settings, spec: noise.NoiseSpec, reporter: Reporter) -> None:
    """Have the images that tasks with these settings read in the feature store, if they read any as features.

    Parameters
    ----------
    dataset : Dataset
        Has the images.
    config : Settings
        Its model, views, shots and all that the encoder is made with count.
    spec : NoiseSpec
        May look at images that are not learnt from.
    reporter : Reporter
        Shows how far the work is.
    """
    if dataset.holds_features or not isinstance(config, Config):
        return
    config = replace(config, model=dataset.model_for(config.model))
    reader = learners.open_encoder(config, open_checkpoint(config.model), reporter)
    if len(dataset.test.labels):
        reader.check_there(dataset.test)
    if spec.needs_features:
        reader(dataset.train, "train")
    _read(dataset, dataset.train, config, reader, None)


def given_split(
    dataset: Dataset,
    spec: noise.NoiseSpec,
    seed: int,
    reporter: Reporter,
    reader: Reader | None = None,
    prototypes: Tensor | None = None,
) -> Split:
    """Return the train split with the labels to learn from: those of the source, of a file, or noise made here.

    The noise is drawn over the whole train split, so that few-shot sampling and images that are left out change
    nobody else's label. A `reader` of features is needed for noise that looks at them, class `prototypes` for noise
    between similar classes.

    Parameters
    ----------
    dataset : Dataset
        Its train split counts.
    spec : NoiseSpec
        What noise is made.
    seed : int
        Seed of the noise.
    reporter : Reporter
        Says that labels are taken in order, where a label file does not name its images.
    reader : Reader, optional
        Reads the train images as features; None for noise that does not look at them.
    prototypes : Tensor of shape (C, D), optional
        The zero-shot prototypes of the classes; None for noise that does not look at them.

    Returns
    -------
    Split
        The samples in their order, with the right labels as far as they are known.
    """
    split, classes = dataset.train, len(dataset.class_names)
    if spec.kind == "none":
        return split

    def warn(sentence: str) -> None:
        _log.warning("%s", printable(sentence))
        reporter.warn(f"note: {sentence}")

    if spec.kind == "file" and spec.path:
        return noise.read_split(spec.path, dataset, warn)
    features = None
    if reader is not None and spec.needs_features:
        found, kept = reader(split, "train")
        found = np.asarray(found)  # this noise looks at all features together
        # An image that cannot be read counts as an average one, so that the others keep their draws.
        features = np.broadcast_to(found.mean(0), (len(split.labels), found.shape[1])).copy()
        features[kept] = found
    # Noise that was made here is known for what it is; labels as they come are not, unless source or file tells.
    class_features = None if prototypes is None else prototypes.float().cpu().numpy()
    given = spec.apply(split.best_labels, classes, seed, features, class_features)
    return Split(split.items, given, split.labels if split.true_labels is None else split.true_labels)


def _read(
    dataset: Dataset,
    given: Split,
    config: Settings,
    reader: Reader,
    weights: np.ndarray | None,
) -> Problem:
    """Return the problem with its inputs read: of all samples, or of some shots of each class."""
    chosen = np.arange(len(given.labels))
    if config.shots:
        chosen = few_shot(dataset.train.best_labels, config.shots, config.seed)
    views = config.views if isinstance(config, Config) else 0
    train_x, kept = reader(dataset.train.take(chosen), "train", views)
    test_x = test_y = None
    if len(dataset.test.labels):
        test_x, tested = reader(dataset.test, "test")
        test_y = dataset.test.best_labels[tested]
    used = chosen[kept]
    if weights is not None:
        weights = weights[used]
        if not weights.any():
            raise InputError(
                "sample_weight: all samples that can be learnt from have weight 0; weigh some of them more"
            )
        weights = weights / weights.mean()
    return Problem(
        class_names=dataset.class_names,
        train_x=train_x,
        labels=given.labels[used],
        true_labels=None if given.true_labels is None else given.true_labels[used],
        test_x=test_x,
        test_y=test_y,
        weights=weights,
    )


def _check_features(dataset: Dataset, config: Settings, spec: noise.NoiseSpec) -> None:
    """Raise `InputError` where there is no model, and features alone will not do."""
    if config.model != NO_MODEL:
        return
    if not dataset.holds_features:
        raise InputError(
            f"model {NO_MODEL}: it goes with features, and {dataset.source or dataset.name} has images",
            "leave `model` out, or name a CLIP checkpoint",
        )
    if spec.needs_class_features:
        raise InputError(
            f"noise {spec}: it looks at what a text tower makes of class names, and model {NO_MODEL} has none",
            "name a `model`, or give another `noise`",
        )


def _check_method(method: Method, kind: type[Learner], weighted: bool, config: Settings) -> None:
    """Raise `InputError` for a method that cannot do without what there is not."""
    if method.needs_text and config.model == NO_MODEL:
        others = ", ".join(name for name, one in methods.METHODS.items() if not one.needs_text)
        raise InputError(
            f"method {method.name}: {method.needs_clip}, and model {NO_MODEL} has no text tower; give one of {others}"
        )
    if method.needs_clip and not kind.has_clip:
        others = ", ".join(name for name, one in methods.METHODS.items() if not one.needs_clip)
        raise InputError(
            f"method {method.name}: {method.needs_clip}, and a network from scratch has no CLIP; give one of {others}"
        )
    if weighted and not (method.weighs_samples and method.trains):
        raise InputError(
            f"sample_weight: method {method.name} cannot weigh samples; leave it out, or take another method"
        )
    if weighted and not kind.weighs_samples:
        raise InputError("sample_weight: this learner cannot weigh samples; leave it out, or take another learner")


def _check(problem: Problem, learner: Learner) -> None:
    """Raise `InputError` where inputs, labels and names do not fit each other."""
    classes, n = len(problem.class_names), len(problem.labels)
    if n < learner.smallest_batch:
        raise InputError(
            f"training set: it has {n or 'no'} sample{'' if n == 1 else 's'}; at least {learner.smallest_batch} "
            f"{'are' if learner.smallest_batch > 1 else 'is'} needed"
        )
    if classes < 2:
        raise InputError(f"class names: {classes} given; a classifier needs at least 2 classes")
    if len(problem.train_x) != n:
        raise InputError(f"labels: {n} of them for {len(problem.train_x)} samples; they must be as many")
    for name, inputs in (("train", problem.train_x), ("test", problem.test_x)):
        if inputs is not None:
            learner.check_inputs(inputs, name)
            if inputs.shape[-1] != (width := problem.train_x.shape[-1]):
                raise InputError(
                    f"{name} features: {inputs.shape[-1]} wide, but those to learn from are {width} wide; both must "
                    "come from the same image tower"
                )
    for name, labels in (("labels", problem.labels), ("test labels", problem.test_y)):
        if labels is not None:
            check_labels(labels, classes, name)
