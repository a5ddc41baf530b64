"""Epochs on cached features, for more and more of them: the cost of a sample must not depend on their number."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

import numpy as np

from dspt import learners, train
from dspt.bench import timing
from dspt.config import Config
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream
from dspt.learners import open_text_tower
from dspt.problem import Problem, Task

CLASSES = tuple(
    f"class {word}" for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
)

# Larger than the recipe's, so that a sample's share of the text tower is small.
BATCH = 256

# Prototypes run no tower, so that what else a sample costs shows.
LEARNERS = ("prompt", "prototypes")

# An epoch of a learner on so many samples; its seconds.
Epoch = Callable[[str, int], float]


def measure(sizes: Sequence[int], rounds: int, reporter: Reporter) -> dict[str, dict[str, float]]:
    """Return, by number of samples, epochs/s and microseconds a sample of each learner, measured in turn.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of samples.
    rounds : int
        How often each learner is timed with each size.
    reporter : Reporter
        Shows how far the work is.

    Returns
    -------
    dict of str to dict of str to float
        By number of samples, as text: median "seconds", "epochs_per_second" and "microseconds_per_sample", the last
        with its lowest and highest, each key begun with the learner's name.
    """
    runs = list(product(LEARNERS, sizes))
    seconds: dict[tuple[str, int], list[float]] = {run: [] for run in runs}
    with (
        epochs_on(max(sizes), BATCH) as epoch,
        reporter.task("epochs", rounds * len(runs)) as update,
    ):
        for name in LEARNERS:
            epoch(name, min(sizes))  # warms up
        for number in range(rounds):
            for place, run in enumerate(runs):
                seconds[run].append(epoch(*run))
                update(number * len(runs) + place + 1, "")
    return {
        str(n): {f"{name}_{key}": value for name in LEARNERS for key, value in _summary(n, seconds[name, n]).items()}
        for n in sizes
    }


@contextmanager
def epochs_on(samples: int, batch_size: int) -> Iterator[Epoch]:
    """Yield a function that trains a learner for one epoch on up to `samples` features and returns the seconds."""
    configs = {
        name: Config(model="embedded", learner=name, epochs=1, batch_size=batch_size, device="cpu") for name in LEARNERS
    }
    tower = open_text_tower(configs["prompt"])
    made = {name: learners.make(CLASSES, config, tower) for name, config in configs.items()}
    with tempfile.TemporaryFile() as file:
        # as stores give them
        x = np.memmap(file, np.float32, shape=(samples, tower.feature_dim))
        x[:] = Stream(0, "bench", "features").uniform(x.size).reshape(x.shape) - 0.5
        x /= np.linalg.norm(x, axis=1, keepdims=True)

        def epoch(name: str, n: int) -> float:
            problem = Problem(CLASSES, x[:n], np.arange(n) % len(CLASSES))
            task = Task.of(problem, configs[name], made[name])
            return timing.seconds(lambda: list(train.fit(task)))

        yield epoch


def _summary(n: int, seconds: list[float]) -> dict[str, float]:
    per_sample = [1e6 * s / n for s in seconds]
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "epochs_per_second": 1 / median,
        **timing.spread("microseconds_per_sample", per_sample),
    }
