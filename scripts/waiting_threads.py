"""What a busy neighbour costs, by how long waiting threads spin: `python scripts/waiting_threads.py [ROUNDS]`.

Prints, for each setting of OpenMP, the median seconds of an epoch with the embedded text tower (25 classes, 62 steps)
and of a training step with ViT-B/16's (100 classes), alone and beside a program that keeps a core busy. The settings
are measured in turn, each time in a new process. Nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

SETTINGS = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "300 turns": {"GOMP_SPINCOUNT": "300"},
    "1000 turns": {"GOMP_SPINCOUNT": "1000"},
    "3000 turns": {"GOMP_SPINCOUNT": "3000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}

WORK = """
import time
import numpy as np
import torch
from dspt import learners, train
from dspt.backbone.prompt import initial_context
from dspt.backbone.text import TextTower
from dspt.bench import steps
from dspt.config import Config
from dspt.problem import Problem, Task

names = tuple(f"thing {letter}" for letter in "abcdefghijklmnopqrstuvwxy")
config = Config(model="embedded", epochs=2, device="cpu")
learner = learners.make(names, config)
x = np.random.RandomState(0).randn(2000, learner.tower.feature_dim).astype(np.float32)
x /= np.linalg.norm(x, axis=1, keepdims=True)
epochs = train.fit(Task.of(Problem(names, x, np.arange(2000) % 25), config, learner))
next(epochs)
started = time.perf_counter()
next(epochs)
print(time.perf_counter() - started)

with steps.random_text_tower("vit-b-16") as checkpoint:
    prompts = TextTower(checkpoint).compile(steps.layout(steps.random_suffixes(steps.CASES["100"])))
    context = initial_context(checkpoint, prompts.tower.embeddings, prompts.layout, 1).requires_grad_()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        prompts(context).sum().backward()
        seconds.append(time.perf_counter() - started)
print(sorted(seconds)[2])
"""


def seconds(setting: dict[str, str]) -> list[float]:
    """Return the seconds of both kinds of work in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", WORK], env={**os.environ, **setting}, capture_output=True, text=True, check=True
    )
    return [float(line) for line in done.stdout.split()]


def main(rounds: int) -> None:
    """Print the table."""
    print(f"{'setting':<16}{'epoch':>8}{'step':>8}{'epoch beside':>14}{'step beside':>13}")
    found: dict[str, list[list[float]]] = {name: [] for name in SETTINGS}
    for _ in range(rounds):
        for name, setting in SETTINGS.items():
            alone = seconds(setting)
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                found[name].append([*alone, *seconds(setting)])
            finally:
                busy.kill()
                busy.wait()
    for name, rows in found.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:<16}{medians[0]:>8.2f}{medians[1]:>8.3f}{medians[2]:>14.2f}{medians[3]:>13.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
