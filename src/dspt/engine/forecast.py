"""How long jobs will take, from training steps measured here and now."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dspt import learners, methods, selection, train
from dspt.config import Settings
from dspt.data import Dataset
from dspt.engine.job import Job, Sources
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.problem import Problem, Task
from dspt.runs import Result, Run

# Steps that are timed, after one that warms up.
_TIMED = 5


@dataclass(frozen=True)
class Forecast:
    """How long a run will take: nothing if it is done, or if `fault` says why it cannot be."""

    job: Job
    done: bool
    seconds: float = 0.0
    fault: InputError | None = None


def forecast(jobs: Sequence[Job], root: Path | None, reporter: Reporter) -> list[Forecast]:
    """Return a forecast for each job: as long as finished ones of its data and method took, or a step times its steps.

    Encoding images for the first time is not counted. A step is timed once for each dataset, if there is a method that
    has no finished run; what a method does between epochs is not in it, nor are tests.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not.
    root : Path, optional
        Where named datasets lie; None is the default of `open_dataset`.
    reporter : Reporter
        Says which dataset's step is being timed.

    Returns
    -------
    list of Forecast
        In the order of `jobs`.
    """
    sources = Sources(root)
    results = {job.folder: _result(job) for job in jobs}
    spent: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
    for job in jobs:
        if (result := results[job.folder]) is not None:
            spent.setdefault(_kind(job), []).append(result.seconds)
    steps: dict[str, float] = {}
    found = []
    for job in jobs:
        if job.done:
            found.append(Forecast(job, True))
            continue
        try:
            dataset = sources.open(job.source)
            if _kind(job) in spent:
                seconds = statistics.fmean(spent[_kind(job)]) * _epochs(job) / max(1, job.config.epochs)
            else:
                if job.source not in steps:
                    reporter.say(f"timing a training step on {job.source}")
                    steps[job.source] = _step(job.config, dataset)
                seconds = steps[job.source] * _steps(job, dataset)
            found.append(Forecast(job, False, seconds))
        except InputError as error:
            found.append(Forecast(job, False, fault=error))
    return found


def _kind(job: Job) -> tuple[str, str, tuple[str, ...]]:
    return job.source, job.config.method, job.config.option


def _result(job: Job) -> Result | None:
    try:
        return Run(job.folder).result()
    except InputError:  # a damaged one says nothing
        return None


def _steps(job: Job, dataset: Dataset) -> int:
    """Return how many steps a run still has."""
    config = job.config
    samples = len(dataset.train.labels)
    if config.shots:
        samples = min(samples, config.shots * len(dataset.class_names))
    epochs = _epochs(job)
    rates = len(methods.make(config.method, **config.method_options()).multiples)
    if rates > 1 and 1 < config.epochs == epochs:  # not begun: each rate is tried first, as far as labels can be judged
        epochs += rates * train.epochs_tried(samples, config)
    return epochs * max(1, samples // config.batch_size)


def _epochs(job: Job) -> int:
    """Return how many epochs a run still has."""
    return job.config.epochs - Run(job.folder).epochs_recorded()


def _step(config: Settings, dataset: Dataset) -> float:
    """Return the seconds of one training step: the median of a few."""
    n = (_TIMED + 1) * config.batch_size
    labels = np.arange(n) % len(dataset.class_names)
    times: list[float] = []

    def on_step(done: int, steps: int, losses: Any = None) -> None:
        if losses is not None:
            losses.sum().item()  # a GPU has done the step only when it can tell
        times.append(time.perf_counter())

    # What is learnt in them does not matter, so any loss and any inputs will do.
    config = replace(config, epochs=1, method="coop", option=(), shots=0)
    config = selection.provisional(config)
    learner = learners.make(dataset.class_names, config)
    if isinstance(learner, learners.ClipLearner):
        width = learner.text.feature_dim if learner.text else np.asarray(dataset.train.items[:1]).shape[1]
        x = np.random.default_rng(0).standard_normal((n, width))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    else:
        one, _ = learner.reader(Reporter(silent=True))(dataset.train.take(np.arange(1)), "train")
        x = np.repeat(one, n, axis=0)
    task = Task.of(Problem(dataset.class_names, x, labels), config, learner)
    list(train.fit(task, on_step=on_step))
    return float(np.median(np.diff(times)))
