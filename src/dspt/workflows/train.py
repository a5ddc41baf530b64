"""The way of the data, from a source to the figures of a run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspt import learners, methods, noise, train
from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.data import Dataset, Split, few_shot, open_dataset
from dspt.internal.device import find_device
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.runs import RunFolder, describe, safe_name

Epochs = Iterator[tuple[train.State, dict[str, Any]]]
Items = Any  # image paths, PIL images, uint8 arrays, or an (N, D) float array of features


def run(
    source: str | Dataset,
    config: Config,
    noise_spec: str = "none",
    out: Path | str | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    cache: Path | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Return the figures of a training run, from its folder if it is done, else by doing what is left of it.

    Parameters
    ----------
    source : an opened dataset, or what `open_dataset` takes.
    noise_spec : "none", "sym:0.4", "pair:0.2", "inst:0.3", "file:labels.csv", ...
    out : the run folder; named after the settings under runs/ if not given.
    overwrite : start anew in a folder that holds another run.
    skip_bad : leave images out that cannot be read, and list them in the run folder.
    """
    reporter = reporter or Reporter(silent=True)
    methods.make(config.method, **config.method_options())  # a wrong name is found before any work
    spec = noise.parse(noise_spec)
    # A held-out test set does not depend on the run's seed: all runs on a folder share one.
    dataset = open_dataset(source, skip_bad=skip_bad)
    say_notes(dataset, reporter)
    encoder = Encoder(open_checkpoint(config.model), config, reporter, cache, skip_bad)
    # What is wrong with labels, names or words is found here, before images are encoded.
    given = None if spec.needs_features else given_labels(dataset, spec, config.seed)
    tower = open_text_tower(config, encoder.checkpoint)
    learner = learners.make(dataset.class_names, config, tower)
    begin = train.start(learner)
    encoder.check_there(dataset.test)  # the train split, encoded first, looks for its own files
    if given is None:
        given = given_labels(dataset, spec, config.seed, encoder)
    problem = encode_problem(dataset, given, encoder)
    train.check(problem, tower)

    folder = RunFolder(out or default_folder(dataset.name, config, str(spec)))
    with folder.locked():
        if overwrite:
            folder.clear()
        folder.begin(
            describe(
                replace(config, model=encoder.checkpoint.location),
                dataset.class_names,
                encoder.checkpoint,
                data=dataset.source,
                data_fingerprint=fingerprint(problem),
                noise=str(spec),
            )
        )
        result = folder.result()
        if result is not None:
            reporter.say(f"{folder.path}: this run is done; give --overwrite to do it again")
            return result
        noise.write_labels(folder.path / "labels.csv", given)
        skipped = [*dataset.skipped, *encoder.skipped]
        folder.save_skipped(skipped)
        result = _train(problem, config, learner, begin, folder, reporter)
        wrong = float((problem.labels != problem.true_labels).mean())
        result = {
            "data": dataset.name,
            "noise": str(spec),
            "wrong_labels": round(wrong, 6),
            **result,
            "samples": len(problem.labels),
            "skipped": len(skipped),
            "run": str(folder.path),
        }
        folder.finish(result)
    return result


def say_notes(dataset: Dataset, reporter: Reporter) -> None:
    """Tell the user what was decided for a dataset, such as which test split is used."""
    for note in dataset.notes:
        reporter.say(f"note: {note}")


def given_labels(
    dataset: Dataset, spec: noise.NoiseSpec, seed: int, encoder: Encoder | None = None
) -> np.ndarray:
    """Return the labels to learn from: those of the source, or noise made from the right ones.

    The noise is drawn over the whole train split, so that few-shot sampling and images that are
    left out change nobody else's label.
    """
    split, classes = dataset.train, len(dataset.class_names)
    if spec.kind == "none":
        return split.labels
    if encoder is None or not spec.needs_features:
        return spec.apply(split.best_labels, classes, seed)
    found, kept = encoder(split, "train")
    # An image that cannot be read counts as an average one, so that the others keep their draws.
    features = np.broadcast_to(found.mean(0), (len(split.labels), found.shape[1])).copy()
    features[kept] = found
    return spec.apply(split.best_labels, classes, seed, features)


def _train(
    problem: train.Problem,
    config: Config,
    learner: learners.Learner,
    begin: train.State,
    folder: RunFolder,
    reporter: Reporter,
) -> dict[str, Any]:
    """The figures of a run after its remaining epochs, each saved as soon as it is done."""
    started = time.monotonic()
    zero_shot = zero_shot_accuracy(problem, learner)
    method = methods.make(config.method, **config.method_options())
    if not method.trains:
        folder.save_learnt({}, learner.zero_shot())
        seconds = time.monotonic() - started
        return _result(config, zero_shot, zero_shot, [], seconds)

    state, records, seconds = resumed(
        lambda begin, on_step: train.fit(problem, config, learner, begin, on_step),
        begin,
        *(folder, f"{config.method} seed {config.seed}", config.epochs, reporter),
    )
    learnt = {name: value.to(learner.tower.device) for name, value in state.learnt.items()}
    with torch.no_grad():
        folder.save_learnt(learnt, learner.prototypes(learnt))
    return _result(config, zero_shot, train.final_accuracy(records), records, seconds)


def resumed(
    fit: Callable[[train.State, Callable[..., None]], Epochs],
    begin: train.State,
    folder: RunFolder,
    title: str,
    epochs: int,
    reporter: Reporter,
) -> tuple[train.State, list[dict[str, Any]], float]:
    """Return the last state, all records and the seconds of a run, after the epochs that its folder does not have yet.

    `fit` gives state and record after each epoch, from a state on; each is saved as soon as it is there.
    """
    started = time.monotonic()
    begin, before = folder.load_state() or (begin, 0.0)
    state = begin
    records = folder.records(state.epochs_done)
    if records:
        reporter.say(f"going on after epoch {state.epochs_done} of {epochs}")
    with reporter.task(title, epochs, state.epochs_done) as update:
        text = ""

        def on_step(done: int, steps: int, *_: object) -> None:
            update(len(records) + done / steps, text)

        for state, record in fit(begin, on_step):
            with uninterrupted():
                records.append(record)
                folder.add_record(record)
                folder.save_state(state, before + time.monotonic() - started)
            text = epoch_text(record, epochs)
            update(len(records), text)
    return state, records, before + time.monotonic() - started


def _result(
    config: Config,
    zero_shot: float | None,
    accuracy: float | None,
    records: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    last = records[-1] if records else {}
    return {
        "method": config.method,
        "seed": config.seed,
        "epochs": config.epochs if records else 0,
        "accuracy": accuracy,
        "last_accuracy": last.get("accuracy", accuracy),
        "zero_shot": zero_shot,
        "loss": last.get("loss"),
        **{name: last[name] for name in ("noise_rate", "noise_rate_error") if name in last},
        "seconds": round(seconds, 3),
    }


def epoch_text(record: dict[str, Any], epochs: int) -> str:
    """Return a record in words: "epoch 3/50  loss 0.512  accuracy 81.2 %"."""
    text = f"epoch {record['epoch']}/{epochs}"
    if record.get("loss") is not None:
        text += f"  loss {record['loss']:.3f}"
    if "accuracy" in record:
        text += f"  accuracy {record['accuracy']:.1f} %"
    return text


def open_text_tower(config: Config, checkpoint: Checkpoint | None = None) -> TextTower:
    """Return the text tower of the checkpoint on the device the config asks for."""
    # The context's gradient is so small that float16 would lose it; bfloat16 has the range of float32.
    low = config.precision != "float32"
    return TextTower(
        checkpoint or open_checkpoint(config.model),
        _device_for(config),
        config.text_memory * 1024**2,
        torch.bfloat16 if low else torch.float32,
    )


def _device_for(config: Config) -> torch.device:
    """The device the config asks for, if it can compute with the precision that it asks for."""
    device = find_device(config.device)
    if config.precision != "float32" and device.type == "cpu":
        raise InputError(
            f"precision {config.precision}: it is for GPUs; on the CPU leave --precision out"
        )
    return device


def encode_problem(dataset: Dataset, given: np.ndarray, encoder: Encoder) -> train.Problem:
    """Return the training problem of a dataset, its images encoded."""
    config = encoder.config
    if config.views and dataset.holds_features:
        raise InputError(
            f"views = {config.views}: {dataset.name} holds features, not images, so nothing can be cropped; "
            "leave --views out"
        )
    chosen = np.arange(len(given))
    if config.shots:
        chosen = few_shot(dataset.train.best_labels, config.shots, config.seed)
    train_x, kept = encoder(dataset.train.take(chosen), "train", config.views)
    test_x, tested = encoder(dataset.test, "test")
    return train.Problem(
        class_names=dataset.class_names,
        train_x=train_x,
        labels=given[chosen[kept]],
        true_labels=dataset.train.best_labels[chosen[kept]],
        test_x=test_x,
        test_y=dataset.test.best_labels[tested],
    )


class Encoder:
    """Turns the items of a split into features, as a config asks for; keeps what it had to skip."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Config,
        reporter: Reporter,
        cache: Path | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self._reporter = reporter
        self._cache = cache
        self._skip_bad = skip_bad
        self._skipped: dict[Fault, None] = {}

    @property
    def skipped(self) -> list[Fault]:
        """Images that could not be read, each told once."""
        return list(self._skipped)

    def check_there(self, split: Split) -> None:
        """Stop at files that are not there, unless bad images are skipped."""
        from dspt import features

        if not self._skip_bad:
            features.check_there(split.items)

    def __call__(self, split: Split, name: str, views: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of the images that can be used, and their positions in the split."""
        everything = np.arange(len(split.labels))
        title = f"{name} images"
        if not self._skip_bad:
            return self._features(split.items, title, views), everything
        from dspt.features import BadImages

        try:
            return self._features(split.items, title, views, all_bad=True), everything
        except BadImages as error:
            self._skipped |= {replace(fault, split=name): None for fault in error.faults.values()}
            good = np.delete(everything, list(error.faults))
            if not len(good):
                raise
            self._reporter.say(f"note: {len(error.faults)} {title} cannot be used and are left out")
            return self._features(split.take(good).items, title, views), good

    def _features(self, items: Items, title: str, views: int, all_bad: bool = False) -> np.ndarray:
        return image_features(
            items, self.checkpoint, self.config, self._reporter, title, views, self._cache, all_bad
        )


def image_features(
    items: Items,
    checkpoint: Checkpoint,
    config: Config,
    reporter: Reporter,
    title: str = "images",
    views: int = 0,
    cache: Path | None = None,
    all_bad: bool = False,
) -> np.ndarray:
    """Return L2-normalised features of images, encoded once; features pass through."""
    if isinstance(items, np.ndarray) and items.dtype.kind == "f" and items.ndim == 2:
        return items
    from dspt import features

    device = _device_for(config)
    with reporter.task(f"encoding {len(items)} {title}", len(items), unit="images") as update:
        return features.encode(
            items,
            checkpoint,
            view="train" if views else "test",
            views=views or 1,
            seed=config.seed,
            cache=cache,
            progress=lambda done, total: update(done, ""),
            device=str(device),
            dtype=config.precision,
            compiled=config.compile,
            workers=config.workers or None,
            all_bad=all_bad,
        )


def zero_shot_accuracy(problem: train.Problem, learner: learners.Learner) -> float | None:
    """Return the test accuracy of the fixed prompt in percent, or None without a test set."""
    if problem.test_x is None or problem.test_y is None or not len(problem.test_y):
        return None
    classify = learners.by_prototypes(learner.zero_shot(), learner.scale)
    return train.accuracy(problem.test_x, problem.test_y, classify)


def fingerprint(problem: train.Problem) -> str:
    """Return a hash of features and labels, by which a resumed run knows that its data are the same."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (problem.train_x, problem.labels, problem.test_x, problem.test_y):
        if array is not None:
            digest.update(str(array.shape).encode())
            for first in range(0, len(array), 65536):
                digest.update(np.ascontiguousarray(array[first : first + 65536]).data)
    return digest.hexdigest()


def default_folder(data: str, config: Config, spec: str) -> Path:
    """Return runs/DATA-METHOD-NOISE-seedN."""
    return Path("runs") / safe_name(Path(data).stem, config.method, spec, f"seed{config.seed}")
