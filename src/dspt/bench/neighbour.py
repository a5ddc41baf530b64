"""Training beside a busy program: what a shared machine costs, as a ratio to the same work alone.

Two threads and a busy program on two cores have two thirds of a core each, so that work takes half as long again. What
is beyond that is lost to waiting. On a machine that others use at the same time nothing is alone, and the ratio says
little: the seconds do.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dspt.bench.epochs import epochs_on
from dspt.bench.timing import ratios, spread
from dspt.internal.progress import Reporter

# The recipe's batches. The embedded tower's products are small: threads wait for each other all the time.
SAMPLES, BATCH = 1024, 32

# It ends by itself when its parent was killed and cannot end it any more.
_SPIN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""


def measure(rounds: int, reporter: Reporter) -> dict[str, float]:
    """Return the seconds of a prompt's epoch alone and beside a busy program, in turn, and the ratio of the two."""
    with (
        epochs_on(SAMPLES, BATCH) as epoch,
        reporter.task("beside a busy program", rounds) as update,
    ):
        epoch("prompt", SAMPLES)  # warms up
        alone, beside = [epoch("prompt", SAMPLES)], []
        for number in range(rounds):
            with busy_neighbour():
                beside.append(epoch("prompt", SAMPLES))
            alone.append(epoch("prompt", SAMPLES))
            update(number + 1, "")
    return {
        "alone_seconds": statistics.median(alone),
        "beside_seconds": statistics.median(beside),
        **spread("ratio", ratios(beside, alone)),
    }


@contextmanager
def busy_neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that keeps one core busy; it is gone at the end."""
    command = [sys.executable, "-I", "-S", "-c", _SPIN]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it runs
            yield process
        finally:
            process.kill()
