"""How long the command line takes: to show its help, and from its start to the end of a first short epoch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dspt.internal.progress import Reporter


def measure(repeats: int, reporter: Reporter) -> dict[str, float]:
    """Return seconds of `dspt --help`, and of `dspt train` on cached features with one epoch of two steps.

    The model is the embedded one: a large checkpoint is read in addition, at the speed of the disk.
    """
    helps = [_seconds("--help") for _ in range(1 + repeats)][1:]  # the first reads the files

    from dspt.bench.epochs import CLASSES
    from dspt.config import Config
    from dspt.learners import open_text_tower

    dim = open_text_tower(Config(model="embedded")).feature_dim
    features = np.random.RandomState(0).randn(74, dim).astype(np.float32)
    labels = np.arange(74) % len(CLASSES)
    short = ("--epochs", "1", "--device", "cpu", "-q")
    trains = []
    with (
        tempfile.TemporaryDirectory() as folder,
        reporter.task("start-up", repeats) as update,
    ):
        data = Path(folder) / "features.npz"
        np.savez(
            data,
            train_x=features[:64],
            train_y=labels[:64],
            test_x=features[64:],
            test_y=labels[64:],
            classnames=np.array(CLASSES),
        )
        for number in range(repeats):
            trains.append(_seconds("train", str(data), *short, "--out", f"{folder}/{number}"))
            update(number + 1, "")
    found = {}
    for name, seconds in (("help_seconds", helps), ("train_seconds", trains)):
        found[name] = statistics.median(seconds)
        found[f"{name}_lowest"], found[f"{name}_highest"] = min(seconds), max(seconds)
    return found


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dspt", *arguments], check=True, capture_output=True)
    return time.perf_counter() - started
