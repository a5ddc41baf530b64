"""How long the command line takes: to show its help, and from its start to the end of a first short epoch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from dspt.bench import timing
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
    short = ("--model", "embedded", "--epochs", "1", "--device", "cpu", "-q")
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
    return timing.spread("help_seconds", helps) | timing.spread("train_seconds", trains)


def _seconds(*arguments: str) -> float:
    command = [sys.executable, "-m", "dspt", *arguments]
    return timing.seconds(lambda: subprocess.run(command, check=True, capture_output=True))
