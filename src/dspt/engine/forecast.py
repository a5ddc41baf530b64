"""How long the runs of an experiment will take, from training steps measured here and now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dspt.config import Config
from dspt.data import Dataset
from dspt.engine.local import Job, opened
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter, clock
from dspt.runs import RunFolder
from dspt.scratch.config import ScratchConfig

# Steps that are timed, after one that warms up.
_TIMED = 5


@dataclass(frozen=True)
class Estimate:
    """How long the runs on a dataset that are not done will take, or why they cannot be done."""

    dataset: str
    done: int
    left: int
    seconds: float = 0.0
    fault: str = ""


def estimate(jobs: Sequence[Job], root: Path | None, reporter: Reporter) -> list[Estimate]:
    """Return an estimate for each dataset: the time of a measured step, times the steps that are left.

    Encoding images for the first time is not counted, nor what is done between epochs: tests, and what a method plans.
    """
    sources: dict[str, Dataset | InputError] = {}
    found = []
    for name in dict.fromkeys(job.spec.setting.dataset for job in jobs):
        here = [job for job in jobs if job.spec.setting.dataset == name]
        left = [job for job in here if not job.done]
        seconds, fault = 0.0, ""
        if left:
            reporter.say(f"timing a training step on {name}")
            try:
                dataset = opened(left[0], root, sources)
                step = _step(left[0].config, dataset)
                seconds = step * sum(_steps(job, dataset) for job in left)
            except InputError as error:
                fault = str(error)
        found.append(Estimate(name, len(here) - len(left), len(left), seconds, fault))
    return found


def lines(estimates: Sequence[Estimate]) -> list[str]:
    """Return the estimates as lines to print."""
    width = max(len(one.dataset) for one in estimates)
    shown = []
    for one in estimates:
        what = f"cannot be done: {one.fault}" if one.fault else f"about {clock(one.seconds)}"
        counts = f"{one.done} done, {one.left} to do"
        shown.append(f"{one.dataset:<{width}}  {counts}" + (f"  {what}" if one.left else ""))
    total = clock(sum(one.seconds for one in estimates))
    return [
        *shown,
        f"about {total} in all; encoding images for the first time, tests and plans come on top",
    ]


def _steps(job: Job, dataset: Dataset) -> int:
    """How many steps a run still has."""
    config = job.config
    samples = len(dataset.train.labels)
    few = config.limit if isinstance(config, ScratchConfig) else config.shots
    if few:
        samples = min(samples, few * len(dataset.class_names))
    epochs = config.epochs - RunFolder(job.folder).epochs_recorded()
    return epochs * max(1, samples // config.batch_size)


def _step(config: Config | ScratchConfig, dataset: Dataset) -> float:
    """The seconds of one training step: the median of a few."""
    n = (_TIMED + 1) * config.batch_size
    labels = np.arange(n) % len(dataset.class_names)
    times: list[float] = []

    def on_step(done: int, steps: int, losses: Any = None) -> None:
        if losses is not None:
            losses.sum().item()  # a GPU has done the step only when it can tell
        times.append(time.perf_counter())

    # What is learnt in them does not matter, so any loss and any images will do.
    if isinstance(config, ScratchConfig):
        _network_steps(
            replace(config, epochs=1, method="coop", option=()), dataset, labels, on_step
        )
    else:
        _prompt_steps(replace(config, epochs=1, method="coop", option=()), dataset, labels, on_step)
    return float(np.median(np.diff(times)))


def _prompt_steps(config: Config, dataset: Dataset, labels: np.ndarray, on_step: Any) -> None:
    from dspt import learners, train
    from dspt.workflows.train import open_text_tower

    learner = learners.make(dataset.class_names, config, open_text_tower(config))
    x = np.random.default_rng(0).standard_normal((len(labels), learner.tower.feature_dim))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    problem = train.Problem(dataset.class_names, x, labels)
    list(train.fit(problem, config, learner, train.start(learner), on_step))


def _network_steps(
    config: ScratchConfig, dataset: Dataset, labels: np.ndarray, on_step: Any
) -> None:
    from dspt.internal.device import find_device
    from dspt.scratch import loop, pixels
    from dspt.train import Problem

    one = pixels.read(dataset.train.take(np.arange(1)), "train")
    x = np.repeat(one, len(labels), axis=0)
    problem = Problem(dataset.class_names, x, labels, labels, x[:1], labels[:1])
    begin = loop.start(len(dataset.class_names), config)
    list(loop.fit(problem, config, begin, find_device(config.device), on_step))
