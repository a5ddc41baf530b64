"""The way of the data, from a source to the figures of a run."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspt import methods, noise, train
from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.text import Prompts, TextTower
from dspt.config import GENERIC_TEMPLATE, Config
from dspt.data import Dataset, open_dataset
from dspt.errors import InputError
from dspt.files import uninterrupted
from dspt.progress import Reporter
from dspt.runs import RunFolder, describe

Items = Any  # image paths, PIL images, uint8 arrays, or an (N, D) float array of features


def run(
    source: str,
    config: Config,
    noise_spec: str = "none",
    out: Path | str | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Return the figures of a training run, from its folder if it is done, else by doing what is left of it.

    Parameters
    ----------
    source : a folder of class folders, a feature file, or "embedded".
    noise_spec : "none", "sym:0.4", "pair:0.2", "file:labels.csv", ...
    out : the run folder; named after the settings under runs/ if not given.
    overwrite : start anew in a folder that holds another run.
    """
    reporter = reporter or Reporter(silent=True)
    methods.make(config.method, **config.method_options())  # a wrong name is found before any work
    spec = noise.parse(noise_spec)
    # A held-out test set does not depend on the run's seed: all runs on a folder share one.
    dataset = open_dataset(source)
    for note in dataset.notes:
        reporter.say(f"note: {note}")
    given = spec.apply(dataset.train.labels, len(dataset.class_names), config.seed)
    checkpoint, tower = open_text_tower(config)
    # Names or words that cannot be prompted are found here, before images are encoded.
    prompts = train.compile_prompts(dataset.class_names, config, tower)
    begin = train.start(prompts, config)
    problem = encode_problem(dataset, given, checkpoint, config, reporter, cache)
    train.check(problem, tower)

    folder = RunFolder(out or default_folder(dataset.name, config, str(spec)))
    with folder.locked():
        if overwrite:
            folder.clear()
        folder.begin(
            describe(
                replace(config, model=checkpoint.location),
                dataset.class_names,
                checkpoint,
                data=str(source),
                data_fingerprint=fingerprint(problem),
                noise=str(spec),
            )
        )
        result = folder.result()
        if result is not None:
            reporter.say(f"{folder.path}: this run is done; give --overwrite to do it again")
            return result
        noise.write_labels(folder.path / "labels.csv", given)
        result = _train(problem, config, prompts, begin, folder, reporter)
        wrong = float((given != dataset.train.labels).mean())
        result = {
            "data": dataset.name,
            "noise": str(spec),
            "wrong_labels": round(wrong, 6),
            **result,
            "run": str(folder.path),
        }
        folder.finish(result)
    return result


def _train(
    problem: train.Problem,
    config: Config,
    prompts: Prompts,
    begin: train.State,
    folder: RunFolder,
    reporter: Reporter,
) -> dict[str, Any]:
    """The figures of a run after its remaining epochs, each saved as soon as it is done."""
    started, tower = time.monotonic(), prompts.tower
    zero_shot = zero_shot_accuracy(problem, tower, config.template)
    method = methods.make(config.method, **config.method_options())
    if not method.trains:
        prototypes = train.zero_shot_prototypes(tower, problem.class_names, config.template)
        folder.save_context(None, prototypes)
        seconds = time.monotonic() - started
        return _result(config, zero_shot, zero_shot, [], seconds)

    saved = folder.load_state()
    begin, before = saved or (begin, 0.0)
    state = begin
    records = folder.records(state.epochs_done)
    if records:
        reporter.say(f"going on after epoch {state.epochs_done} of {config.epochs}")
    title = f"{config.method} seed {config.seed}"
    with reporter.task(title, config.epochs, state.epochs_done) as update:
        text = ""

        def on_step(done: int, steps: int, losses: torch.Tensor) -> None:
            update(len(records) + done / steps, text)

        for state, record in train.fit(problem, config, prompts, begin, on_step):
            with uninterrupted():
                records.append(record)
                folder.add_record(record)
                folder.save_state(state, before + time.monotonic() - started)
            text = _epoch_text(record, config.epochs)
            update(len(records), text)
    prototypes = train.class_features(prompts, state.context.to(tower.device))
    folder.save_context(state.context, prototypes)
    seconds = before + time.monotonic() - started
    return _result(config, zero_shot, train.final_accuracy(records), records, seconds)


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
        "seconds": round(seconds, 3),
    }


def _epoch_text(record: dict[str, Any], epochs: int) -> str:
    text = f"epoch {record['epoch']}/{epochs}"
    if record.get("loss") is not None:
        text += f"  loss {record['loss']:.3f}"
    if "accuracy" in record:
        text += f"  accuracy {record['accuracy']:.1f} %"
    return text


def open_text_tower(config: Config) -> tuple[Checkpoint, TextTower]:
    """Return the checkpoint and its text tower on the device the config asks for."""
    checkpoint = open_checkpoint(config.model)
    return checkpoint, TextTower(
        checkpoint, find_device(config.device), config.text_memory * 1024**2
    )


def find_device(name: str) -> torch.device:
    """Return the device to compute on; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r}: not known; give auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r}: torch sees no GPU here; give cpu")
    return found


def encode_problem(
    dataset: Dataset,
    given: np.ndarray,
    checkpoint: Checkpoint,
    config: Config,
    reporter: Reporter,
    cache: Path | None = None,
) -> train.Problem:
    """Return the training problem of a dataset, its images encoded."""
    if config.views and dataset.holds_features:
        raise InputError(
            f"views = {config.views}: {dataset.name} holds features, not images, so nothing can be cropped; "
            "leave --views out"
        )
    train_x = image_features(
        dataset.train.items, checkpoint, config, reporter, "train images", config.views, cache
    )
    test_x = image_features(
        dataset.test.items, checkpoint, config, reporter, "test images", 0, cache
    )
    return train.Problem(
        class_names=dataset.class_names,
        train_x=train_x,
        labels=given,
        true_labels=dataset.train.labels,
        test_x=test_x,
        test_y=dataset.test.labels,
    )


def image_features(
    items: Items,
    checkpoint: Checkpoint,
    config: Config,
    reporter: Reporter,
    title: str = "images",
    views: int = 0,
    cache: Path | None = None,
) -> np.ndarray:
    """Return L2-normalised features of images, encoded once; features pass through."""
    if isinstance(items, np.ndarray) and items.dtype.kind == "f" and items.ndim == 2:
        return items
    from dspt import features

    with reporter.task(f"encoding {len(items)} {title}", len(items)) as update:
        return features.encode(
            items,
            checkpoint,
            view="train" if views else "test",
            views=views or 1,
            seed=config.seed,
            cache=cache,
            progress=lambda done, total: update(done, ""),
            device=str(find_device(config.device)),
        )


def zero_shot_accuracy(
    problem: train.Problem, tower: TextTower, template: str = GENERIC_TEMPLATE
) -> float | None:
    """Return the test accuracy of a fixed prompt in percent, or None without a test set."""
    if problem.test_x is None or problem.test_y is None or not len(problem.test_y):
        return None
    prototypes = train.zero_shot_prototypes(tower, problem.class_names, template)
    return train.accuracy(problem.test_x, problem.test_y, prototypes)


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
    parts = [Path(data).stem, config.method, spec, f"seed{config.seed}"]
    safe = ["".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts]
    return Path("runs") / "-".join(safe)
