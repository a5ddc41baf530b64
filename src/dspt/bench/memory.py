"""The memory of training: how far two steps and a test raise the peak of a process that has loaded the tower."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from dspt import train
from dspt.backbone.checkpoint import Checkpoint
from dspt.backbone.text import TextTower
from dspt.bench.steps import (
    BATCH,
    CALTECH,
    Case,
    layout,
    random_suffixes,
    random_text_tower,
    reference,
)
from dspt.config import Config
from dspt.learners import Learner, Parameters, PromptLearner
from dspt.progress import Reporter

# As many classes as ImageNet-21k, with short names.
MANY = Case("21000", 21000, CALTECH)

# The reference is measured up to so many: beyond, it could fill the machine.
_REFERENCE_CLASSES = 100

_CONFIG = Config(epochs=1, batch_size=BATCH)
_TRAIN, _TEST = 2 * BATCH, 1000


def measure(
    cases: Sequence[Case], reporter: Reporter, reference: bool = True
) -> dict[str, dict[str, float]]:
    """Return MiB for each case, ours and the reference's, each measured in a process of its own."""
    found: dict[str, dict[str, float]] = {}
    with reporter.task("memory of training", len(cases)) as update:
        for number, case in enumerate(cases):
            found[case.key] = _in_process(case, "ours")
            if reference and case.classes <= _REFERENCE_CLASSES:
                found[case.key] |= _in_process(case, "reference")
            update(number + 1, "")
    return found


def _in_process(case: Case, kind: str) -> dict[str, float]:
    program = f"from dspt.bench.memory import short_training; short_training({case!r}, {kind!r})"
    program = f"from dspt.bench.steps import Case; {program}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


class _BenchLearner(PromptLearner):
    """A context before the benchmark's names, put through our text tower or the reference's."""

    def __init__(self, case: Case, kind: str, checkpoint: Checkpoint) -> None:
        names = [f"class {c}" for c in range(case.classes)]
        Learner.__init__(self, names, _CONFIG, TextTower(checkpoint))
        suffixes = random_suffixes(case)
        self.prompts = self.tower.compile(layout(suffixes))
        self.features = self.prompts if kind == "ours" else reference(checkpoint, suffixes)

    def prototypes(self, parameters: Parameters) -> Tensor:
        return self.features(parameters["context"])


def short_training(case: Case, kind: str) -> None:
    """Print as JSON how far training raises this process's peak; for ours also the peak itself, in MiB."""
    with random_text_tower("vit-b-16") as checkpoint:
        learner = _BenchLearner(case, kind, checkpoint)
        x = np.random.RandomState(0).randn(_TRAIN + _TEST, learner.tower.feature_dim)
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        y = np.arange(len(x)) % case.classes
        problem = train.Problem(
            learner.class_names,
            *(x[:_TRAIN], y[:_TRAIN], y[:_TRAIN]),
            test_x=x[_TRAIN:],
            test_y=y[_TRAIN:],
        )
        loading = _peak()
        before = _peak(anew=True)
        list(train.fit(problem, _CONFIG, learner, train.start(learner)))
        after = _peak()
    found = {f"{kind}_mib": after - before}
    if kind == "ours":  # with the reference, our tower is loaded, too
        found["ours_peak_mib"] = max(loading, after)
    print(json.dumps(found))


def _peak(anew: bool = False) -> float:
    """The most memory this process has had, in MiB; with `anew`, counted from now on where the system can do that."""
    status = Path("/proc/self/status")
    if status.exists():
        if anew:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) / 2**10  # type: ignore[index]
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10
