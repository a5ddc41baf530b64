"""A benchmark that users run on their own machine: ratios, measured side by side, with medians and spread.

steps.py      one training step, the reference way against ours, and against the machine's own matrix products
encoding.py   images from files against the image tower alone
memory.py     the memory that training takes
epochs.py     epochs on cached features, for more and more of them
neighbour.py  the same beside a busy program
scale.py      many runs and many images: engines with two workers against one process
posterior.py  the posterior of more and more labels
startup.py    how long the command line takes to start
timing.py     seconds, medians, ranges
summary.py    all of it as lines and as a picture
"""

from __future__ import annotations

from typing import Any

from dspt.internal.progress import Reporter


def run_bench(quick: bool, reporter: Reporter) -> dict[str, Any]:
    """Return the measured figures by part; `summary.lines` puts them in words."""
    from dspt.bench import startup

    # first, while this process is small: it takes longer to start another from a large one
    started = startup.measure(1 if quick else 5, reporter)

    import torch

    from dspt.bench import encoding, epochs, memory, neighbour, steps
    from dspt.runs import environment

    cases = steps.CASES
    result: dict[str, Any] = {
        "quick": quick,
        "threads": torch.get_num_threads(),
        "startup": started,
    }
    if quick:
        result["step"] = steps.measure("vit-b-16", [cases["10"], cases["100"]], 1, reporter, reference_classes=20)
        result["encode"] = encoding.measure(1, 8, reporter)
        result["memory"] = memory.measure([cases["100"]], reporter, reference=False)
        result["epochs"] = epochs.measure([10**3, 10**4], 3, reporter)
        result["neighbour"] = neighbour.measure(3, reporter)
    else:
        result["step"] = steps.measure("vit-b-16", list(cases.values()), 5, reporter)
        result["step_vit_l14"] = steps.measure("vit-l-14", list(cases.values()), 3, reporter)
        result["encode"] = encoding.measure(5, 64, reporter)
        result["memory"] = memory.measure(list(cases.values()), reporter)
        result["memory"] |= memory.measure([memory.MANY], reporter, reference=False)
        result["epochs"] = epochs.measure([10**4, 10**5, 10**6], 3, reporter)
        result["neighbour"] = neighbour.measure(20, reporter)
    result["run"] = steps.whole_run(result["step"]["100"], result["encode"])
    result["environment"] = environment()
    return result
