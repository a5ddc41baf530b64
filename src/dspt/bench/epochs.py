"""Epochs on cached features, for more and more of them: the cost of a sample must not depend on their number."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from dspt import learners, train
from dspt.config import Config
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream
from dspt.learners import open_text_tower
from dspt.problem import Problem, Task

CLASSES = tuple(
    f"class {word}"
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
)

# Larger than the recipe's, so that a sample's share of the text tower is small.
BATCH = 256

# Prototypes run no tower, so that what else a sample costs shows.
LEARNERS = ("prompt", "prototypes")


def measure(sizes: Sequence[int], rounds: int, reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return, by number of samples, epochs/s and microseconds a sample of each learner, measured in turn."""
    configs = {
        name: Config(model="embedded", learner=name, epochs=1, batch_size=BATCH, device="cpu")
        for name in LEARNERS
    }
    tower = open_text_tower(configs["prompt"])
    made = {name: learners.make(CLASSES, config, tower) for name, config in configs.items()}
    runs = list(product(LEARNERS, sizes))
    seconds: dict[tuple[str, int], list[float]] = {run: [] for run in runs}

    def epoch(name: str, n: int) -> float:
        problem = Problem(CLASSES, x[:n], np.arange(n) % len(CLASSES))
        started = time.perf_counter()
        list(train.fit(Task.of(problem, configs[name], made[name])))
        return time.perf_counter() - started

    with (
        tempfile.TemporaryFile() as file,
        reporter.task("epochs", rounds * len(runs)) as update,
    ):
        x = np.memmap(
            file, np.float32, shape=(max(sizes), tower.feature_dim)
        )  # as stores give them
        x[:] = Stream(0, "bench", "features").uniform(x.size).reshape(x.shape) - 0.5
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        for name in LEARNERS:
            epoch(name, min(sizes))  # warms up
        for number in range(rounds):
            for place, run in enumerate(runs):
                seconds[run].append(epoch(*run))
                update(number * len(runs) + place + 1, "")
    return {
        str(n): {
            f"{name}_{key}": value
            for name in LEARNERS
            for key, value in _summary(n, seconds[name, n]).items()
        }
        for n in sizes
    }


def _summary(n: int, seconds: list[float]) -> dict[str, float]:
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "epochs_per_second": 1 / median,
        "microseconds_per_sample": 1e6 * median / n,
        "microseconds_per_sample_lowest": 1e6 * min(seconds) / n,
        "microseconds_per_sample_highest": 1e6 * max(seconds) / n,
    }
