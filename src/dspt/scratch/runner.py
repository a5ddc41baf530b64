"""The way of the data from scratch: from a source of images to the figures of a run and its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dspt import noise
from dspt.data import Dataset, few_shot, open_dataset
from dspt.internal.device import find_device
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import FORMAT, RunFolder, safe_name
from dspt.scratch import loop, pixels
from dspt.scratch.config import ScratchConfig
from dspt.train import Problem, State, final_accuracy
from dspt.workflows.train import fingerprint, given_labels, resumed, say_notes


def run(
    source: str | Dataset,
    config: ScratchConfig,
    noise_spec: str = "none",
    out: Path | str | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Return the figures of a run from scratch, from its folder if it is done, else by doing what is left of it.

    Parameters
    ----------
    source : an opened dataset, or what `open_dataset` takes; its images must be of one size.
    noise_spec : "none", "sym:0.4", "pair:0.2", "file:labels.csv", ...
    out : the run folder; named after the settings under runs/ if not given.
    overwrite : start anew in a folder that holds another run.
    """
    reporter = reporter or Reporter(silent=True)
    loop.usable_method(config)  # a method that cannot be used is found before any work
    device = find_device(config.device)
    spec = noise.parse(noise_spec)
    if spec.needs_features:
        raise InputError(
            f"noise {spec}: it looks at CLIP's features, and a network from scratch has none; write such "
            "labels to a file with another run and give file:labels.csv"
        )
    dataset = open_dataset(source)
    say_notes(dataset, reporter)
    given = given_labels(dataset, spec, config.seed)
    problem = read_problem(dataset, given, config)

    folder = RunFolder(out or default_folder(dataset.name, config, str(spec)))
    with folder.locked():
        if overwrite:
            folder.clear()
        folder.begin(
            {
                "format": FORMAT,
                "data": dataset.source,
                "data_fingerprint": fingerprint(problem),
                "noise": str(spec),
                "settings": {**asdict(config), "learner": "network"},
                "class_names": list(dataset.class_names),
            },
            defaults=asdict(ScratchConfig()),
        )
        result = folder.result()
        if result is not None:
            reporter.say(f"{folder.path}: this run is done; give --overwrite to do it again")
            return result
        noise.write_labels(folder.path / "labels.csv", given)
        folder.save_skipped(dataset.skipped)
        records, seconds = _train(problem, config, folder, reporter, device)
        last = records[-1]
        result = {
            "data": dataset.name,
            "noise": str(spec),
            "wrong_labels": round(float((problem.labels != problem.true_labels).mean()), 6),
            "method": config.method,
            "seed": config.seed,
            "epochs": config.epochs,
            "accuracy": final_accuracy(records),
            "last_accuracy": last["accuracy"],
            "zero_shot": None,
            "loss": last["loss"],
            "seconds": round(seconds, 3),
            "samples": len(problem.labels),
            "skipped": len(dataset.skipped),
            "run": str(folder.path),
        }
        folder.finish(result)
    return result


def read_problem(dataset: Dataset, given: np.ndarray, config: ScratchConfig) -> Problem:
    """Return the training problem of a dataset: its images as bytes, all or `limit` of each class."""
    chosen = np.arange(len(given))
    if config.limit:
        chosen = few_shot(dataset.train.best_labels, config.limit, config.seed)
    train_x = pixels.read(dataset.train.take(chosen), "train")
    test_x = pixels.read(dataset.test, "test")
    if len(train_x) < 2:
        raise InputError(
            f"{dataset.name}: {len(train_x)} images to train with; 2 or more are needed"
        )
    if not len(test_x):
        raise InputError(f"{dataset.name}: no images to test with; give a test split")
    return Problem(
        class_names=dataset.class_names,
        train_x=train_x,
        labels=given[chosen],
        true_labels=dataset.train.best_labels[chosen],
        test_x=test_x,
        test_y=dataset.test.best_labels,
    )


def default_folder(data: str, config: ScratchConfig, spec: str) -> Path:
    """Return runs/DATA-MODEL-METHOD-NOISE-seedN."""
    name = safe_name(Path(data).stem, config.model, config.method, spec, f"seed{config.seed}")
    return Path("runs") / name


def _train(
    problem: Problem, config: ScratchConfig, folder: RunFolder, reporter: Reporter, device: Any
) -> tuple[list[dict[str, Any]], float]:
    """The records of all epochs and the seconds they took; each is saved as soon as it is done."""
    state, records, seconds = resumed(
        lambda begin, on_step: loop.fit(problem, config, begin, device, on_step),
        loop.start(len(problem.class_names), config),
        *(folder, f"{config.model} {config.method} seed {config.seed}", config.epochs, reporter),
    )
    # Nobody goes on from here, and the momentum is as large as the network.
    folder.save_state(State(state.epochs_done, state.learnt, memory=state.memory), seconds)
    return records, seconds
