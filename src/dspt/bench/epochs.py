"""Epochs on cached features, for more and more of them: the cost of a sample must not depend on their number."""

from __future__ import annotations

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


def measure(sizes: Sequence[int], reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return seconds of an epoch, epochs/s and microseconds a sample, by number of samples.

    With the embedded text tower, whose step is small, so that what is not the step would show.
    """
    config = Config(model="embedded", epochs=1)
    tower = open_text_tower(config)
    learner = learners.make(CLASSES, config, tower)
    found = {}
    with reporter.task("epochs", sum(sizes)) as update:
        for n in sizes:
            x = Stream(0, "bench", "features").uniform(n * tower.feature_dim).astype(np.float32)
            x = x.reshape(n, -1) - 0.5
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            problem = train.Problem(CLASSES, x, np.arange(n) % len(CLASSES))
            started = time.perf_counter()
            list(train.fit(problem, config, learner, train.start(learner)))
            seconds = time.perf_counter() - started
            found[str(n)] = {
                "seconds": seconds,
                "epochs_per_second": 1 / seconds,
                "microseconds_per_sample": 1e6 * seconds / n,
            }
            update(sum(map(int, found)), "")
    return found
