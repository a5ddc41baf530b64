"""The memory of training: how far two steps and a test raise the peak of a process that has loaded the tower.

Linux alone lets a process count its peak anew, so it is measured there and nowhere else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from dspt import train
from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.text import TextTower
from dspt.bench import steps
from dspt.bench.steps import BATCH, CALTECH, Case
from dspt.config import Config
from dspt.internal.progress import Reporter
from dspt.learners import ClipLearner, Parameters
from dspt.learners.prompt import PromptLearner
from dspt.problem import Problem, Task

# As many classes as ImageNet-21k, with short names.
MANY = Case("21000", 21000, CALTECH)

# The reference is measured up to so many: beyond, it could fill the machine.
REFERENCE_CLASSES = 100

_STATUS, _COUNT_ANEW = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CONFIG = Config(model="embedded", epochs=1, batch_size=BATCH, device="cpu")
_TRAIN, _TEST = 2 * BATCH, 1000


def measure(cases: Sequence[Case], reporter: Reporter, reference: bool = True) -> dict[str, dict[str, float]]:
    """Return MiB for each case, ours and the reference's, each in a process of its own; nothing but on Linux.

    Parameters
    ----------
    cases : sequence of Case
        How many classes, and how long their names are.
    reporter : Reporter
        Shows how far the work is.
    reference : bool
        Measure the reference too, for cases of at most `REFERENCE_CLASSES` classes.

    Returns
    -------
    dict of str to dict of str to float
        By key of the case: "ours_mib", "ours_peak_mib" and, if measured, "reference_mib"; empty if not on Linux.
    """
    found: dict[str, dict[str, float]] = {}
    if not _COUNT_ANEW.exists():
        return found
    with (
        steps.random_text_tower("vit-b-16") as checkpoint,
        reporter.task("memory of training", len(cases)) as update,
    ):
        for number, case in enumerate(cases):
            found[case.key] = _in_process(case, "ours", checkpoint)
            if reference and case.classes <= REFERENCE_CLASSES:
                found[case.key] |= _in_process(case, "reference", checkpoint)
            update(number + 1, "")
    return found


def _in_process(case: Case, kind: str, checkpoint: Checkpoint) -> dict[str, float]:
    program = (
        "from dspt.bench.memory import short_training; from dspt.bench.steps import Case; "
        f"short_training({case!r}, {kind!r}, {str(checkpoint.folder)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class _BenchLearner(PromptLearner):
    """A context before the benchmark's names, put through our text tower or the reference's."""

    def __init__(self, case: Case, kind: str, checkpoint: Checkpoint) -> None:
        names = [f"class {c}" for c in range(case.classes)]
        ClipLearner.__init__(self, names, _CONFIG, TextTower(checkpoint))
        suffixes = steps.random_suffixes(case)
        self.prompts = self.tower.compile(steps.layout(suffixes))
        self.features = self.prompts if kind == "ours" else steps.reference(checkpoint, suffixes)

    def prototypes(self, parameters: Parameters) -> Tensor:
        return self.features(parameters["context"])


def short_training(case: Case, kind: str, folder: str) -> None:
    """Print as JSON how far training raises this process's peak; for ours also the peak itself, in MiB.

    Parameters
    ----------
    case : Case
        How many classes, and how long their names are.
    kind : {"ours", "reference"}
        Whose text tower is trained with.
    folder : str
        The folder of the checkpoint.
    """
    learner = _BenchLearner(case, kind, open_checkpoint(folder))
    x = np.random.RandomState(0).randn(_TRAIN + _TEST, learner.tower.feature_dim)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    y = np.arange(len(x)) % case.classes
    problem = Problem(
        learner.class_names,
        x[:_TRAIN],
        y[:_TRAIN],
        true_labels=y[:_TRAIN],
        test_x=x[_TRAIN:],
        test_y=y[_TRAIN:],
    )
    loading = _peak()
    _COUNT_ANEW.write_text("5")
    before = _peak()
    list(train.fit(Task.of(problem, _CONFIG, learner)))
    after = _peak()
    found = {f"{kind}_mib": after - before}
    if kind == "ours":  # with the reference, our tower is loaded, too
        found["ours_peak_mib"] = max(loading, after)
    print(json.dumps(found))


def _peak() -> float:
    """Return the most memory this process has had, in MiB, since it was last told to count anew."""
    return int(re.findall(r"VmHWM:\s*(\d+) kB", _STATUS.read_text())[0]) / 2**10
