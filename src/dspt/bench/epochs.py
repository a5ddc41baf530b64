"""Epochs on cached features, for more and more of them: the cost of a sample must not depend on their number."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from dspt import learners, train
from dspt.config import Config
from dspt.pipeline import open_text_tower
from dspt.progress import Reporter
from dspt.seeds import Stream

CLASSES = tuple(
    f"class {word}"
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
)

# Larger than the recipe's, so that a sample's share of the text tower is small, and what else it costs would show.
BATCH = 256


def measure(sizes: Sequence[int], rounds: int, reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return seconds of an epoch, epochs/s and microseconds a sample, by number of samples, measured in turn."""
    config = Config(model="embedded", epochs=1, batch_size=BATCH)
    tower = open_text_tower(config)
    learner = learners.make(CLASSES, config, tower)
    seconds: dict[int, list[float]] = {n: [] for n in sizes}
    x = Stream(0, "bench", "features").uniform(max(sizes) * tower.feature_dim).astype(np.float32)
    x = x.reshape(max(sizes), -1) - 0.5
    x /= np.linalg.norm(x, axis=1, keepdims=True)

    def epoch(n: int) -> float:
        problem = train.Problem(CLASSES, x[:n], np.arange(n) % len(CLASSES))
        started = time.perf_counter()
        list(train.fit(problem, config, learner, train.start(learner)))
        return time.perf_counter() - started

    epoch(min(sizes))  # warms up
    with reporter.task("epochs", rounds * len(sizes)) as update:
        for _ in range(rounds):
            for n in sizes:
                seconds[n].append(epoch(n))
                update(sum(map(len, seconds.values())), "")
    return {str(n): _summary(n, measured) for n, measured in seconds.items()}


def _summary(n: int, seconds: list[float]) -> dict[str, float]:
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "epochs_per_second": 1 / median,
        "microseconds_per_sample": 1e6 * median / n,
        "microseconds_per_sample_lowest": 1e6 * min(seconds) / n,
        "microseconds_per_sample_highest": 1e6 * max(seconds) / n,
    }
