"""The memory of one training step: how far it raises the peak of a process that has loaded the tower."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dspt.bench.steps import Case
from dspt.progress import Reporter

# As many classes as ImageNet-21k, with short names.
MANY = Case("21000", "short names", 21000, 73017)

# The reference is measured up to so many: beyond, it could fill the machine.
_REFERENCE_CLASSES = 100


def measure(
    cases: Sequence[Case], reporter: Reporter, reference: bool = True
) -> dict[str, dict[str, float]]:
    """Return MiB for each case, ours and the reference's, each measured in a process of its own."""
    found: dict[str, dict[str, float]] = {}
    with reporter.task("memory of a step", len(cases)) as update:
        for number, case in enumerate(cases):
            found[case.key] = _in_process(case, "ours")
            if reference and case.classes <= _REFERENCE_CLASSES:
                found[case.key] |= _in_process(case, "reference")
            update(number + 1, "")
    return found


def _in_process(case: Case, kind: str) -> dict[str, float]:
    program = f"from dspt.bench.memory import one_step; one_step({case!r}, {kind!r})"
    program = f"from dspt.bench.steps import Case; {program}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def one_step(case: Case, kind: str) -> None:
    """Print as JSON how far a step raises this process's peak, and the peak itself, in MiB."""
    import torch
    import torch.nn.functional as F

    from dspt.backbone.prompt import initial_context
    from dspt.backbone.text import TextTower
    from dspt.bench.steps import layout, random_suffixes, random_text_tower, reference

    with random_text_tower("vit-b-16") as checkpoint:
        suffixes = random_suffixes(case)
        tower = TextTower(checkpoint)
        prompts = tower.compile(layout(suffixes))
        context = initial_context(checkpoint, tower.embeddings, prompts.layout, 1).requires_grad_()
        features = prompts if kind == "ours" else reference(checkpoint, suffixes)
        before = _peak(anew=True)
        logits = 100 * F.normalize(torch.randn(32, tower.feature_dim), dim=1) @ features(context).T
        F.cross_entropy(logits, torch.arange(32) % case.classes).backward()
        after = _peak()
    print(json.dumps({f"{kind}_mib": after - before, f"{kind}_peak_mib": after}))


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
