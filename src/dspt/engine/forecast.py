"""How long jobs will take, from training steps measured here and now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dspt import learners, selection, train
from dspt.config import Settings
from dspt.data import Dataset
from dspt.engine.job import Job, Sources
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter, clock
from dspt.problem import Problem, Task
from dspt.runs import Run

# Steps that are timed, after one that warms up.
_TIMED = 5


@dataclass(frozen=True)
class Forecast:
    """How long the runs on a dataset that are not done will take, or why they cannot be done."""

    dataset: str
    done: int
    left: int
    seconds: float = 0.0
    fault: InputError | None = None


def forecast(jobs: Sequence[Job], root: Path | None, reporter: Reporter) -> list[Forecast]:
    """Return a forecast for each dataset: the time of a measured step, times the steps that are left.

    Encoding images for the first time is not counted, nor what is done between epochs: tests, and what a method plans.

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
        In the order in which the datasets appear in `jobs`.
    """
    sources = Sources(root)
    found = []
    for name in dict.fromkeys(job.source for job in jobs):
        here = [job for job in jobs if job.source == name]
        left = [job for job in here if not job.done]
        seconds, fault = 0.0, None
        if left:
            reporter.say(f"timing a training step on {name}")
            try:
                dataset = sources.open(name)
                step = _step(left[0].config, dataset)
                seconds = step * sum(_steps(job, dataset) for job in left)
            except InputError as error:
                fault = error
        found.append(Forecast(name, len(here) - len(left), len(left), seconds, fault))
    return found


def lines(forecasts: Sequence[Forecast], wording: Callable[[InputError], str] = str) -> list[str]:
    """Return the forecasts as lines to print, errors as `wording` writes them."""
    width = max(len(one.dataset) for one in forecasts)
    shown = []
    for one in forecasts:
        what = f"cannot be done: {wording(one.fault)}" if one.fault else f"about {clock(one.seconds)}"
        counts = f"{one.done} done, {one.left} to do"
        shown.append(f"{one.dataset:<{width}}  {counts}" + (f"  {what}" if one.left else ""))
    total = clock(sum(one.seconds for one in forecasts))
    return [
        *shown,
        f"about {total} in all; encoding images for the first time, tests and plans come on top",
    ]


def _steps(job: Job, dataset: Dataset) -> int:
    """Return how many steps a run still has."""
    config = job.config
    samples = len(dataset.train.labels)
    if config.shots:
        samples = min(samples, config.shots * len(dataset.class_names))
    epochs = config.epochs - Run(job.folder).epochs_recorded()
    return epochs * max(1, samples // config.batch_size)


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
        x = np.random.default_rng(0).standard_normal((n, learner.tower.feature_dim))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    else:
        one, _ = learner.reader(Reporter(silent=True))(dataset.train.take(np.arange(1)), "train")
        x = np.repeat(one, n, axis=0)
    task = Task.of(Problem(dataset.class_names, x, labels), config, learner)
    list(train.fit(task, on_step=on_step))
    return float(np.median(np.diff(times)))
