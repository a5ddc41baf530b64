"""The posterior of labels, for more and more samples: seconds and memory, against the machine's own matrix products.

Features lie in a memory map, as stores give them: 512 of them, 100 classes, 30 % of the labels wrong. Memory is the
private memory of the process, which pages of a map are not part of; Linux alone tells it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from dspt.bench.timing import seconds
from dspt.engine.processes import Processes
from dspt.engine.spreading import spreading
from dspt.internal.progress import Reporter
from dspt.noise import corrupt
from dspt.posterior import label_posterior

WIDTH, CLASSES = 512, 100
WORKERS = 2
# Fewer samples than these are two ranges or one, and workers would have nothing to share.
SPREAD = 100_000

# Rows that are made at a time; products that are timed.
_PART, _PRODUCTS = 50_000, 20


def measure(sizes: Sequence[int], reporter: Reporter, text: bool = False) -> dict[str, dict[str, float]]:
    """Return the figures of `short_posterior` by number of samples, as text, each from a process of its own.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of samples.
    reporter : Reporter
        Shows how far the work is.
    text : bool
        Give zero-shot logits, too, in another map.
    """
    found: dict[str, dict[str, float]] = {}
    with reporter.task("posterior", sum(sizes)) as update:
        for n in sizes:  # memory once taken is not given back
            program = f"from dspt.bench.posterior import tell; tell({n}, {text})"
            done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
            found[str(n)] = json.loads(done.stdout.splitlines()[-1])
            update(sum(map(int, found)), "")
    return found


def tell(n: int, text: bool) -> None:
    """Print the figures of `short_posterior` as JSON."""
    print(json.dumps(short_posterior(n, text)))


def short_posterior(n: int, text: bool = False) -> dict[str, float]:
    """Return what the posterior of `n` labels takes in this process, which should have done nothing before.

    Parameters
    ----------
    n : int
        The number of samples.
    text : bool
        Give zero-shot logits, too.

    Returns
    -------
    dict of str to float
        "seconds" and "processor_seconds"; "mib", by which private memory rises at most (not a number but on Linux);
        "gflop" of its products; "share", which part of the processor's seconds these alone would take at the rate of
        one large product, and which a busy neighbour changes little; the "noise_rate" that it finds; and from
        `SPREAD` samples on "workers_speedup", how many times as fast `WORKERS` processes are, their start included.
    """
    from torch.utils.flop_counter import FlopCounterMode

    random = np.random.default_rng(0)
    means = 0.35 * random.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    true = random.integers(0, CLASSES, n)
    labels = np.asarray(corrupt(true, CLASSES, "symmetric", 0.3))
    with tempfile.TemporaryDirectory() as folder:

        def sample(rows: slice) -> np.ndarray:
            found: np.ndarray = means[true[rows]]
            found += random.standard_normal(found.shape, dtype=np.float32)
            return found

        x = _written(Path(folder) / "x.npy", (n, WIDTH), sample)

        def told(rows: slice) -> np.ndarray:
            found: np.ndarray = 0.2 * x[rows] @ means.T
            found += 4 * random.standard_normal(found.shape, dtype=np.float32)
            return found

        z = _written(Path(folder) / "z.npy", (n, CLASSES), told) if text else None
        label_posterior(x[:500], labels[:500], num_classes=CLASSES)  # warms up
        rate = _product_rate()
        computed = time.process_time()
        with _Peak() as peak:
            spent = seconds(lambda: label_posterior(x, labels, z))
        computed = time.process_time() - computed
        by_workers = seconds(lambda: _by_workers(x, labels, z)) if n >= SPREAD else None
        with FlopCounterMode(display=False) as counter:
            found = label_posterior(x, labels, z)
    operations = counter.get_total_flops()
    return {
        "seconds": spent,
        "processor_seconds": computed,
        "mib": peak.mib,
        "gflop": operations / 1e9,
        "share": operations / computed / rate,
        "noise_rate": found.noise_rate,
        **({} if by_workers is None else {"workers_speedup": spent / by_workers}),
    }


def _by_workers(x: np.ndarray, labels: np.ndarray, z: np.ndarray | None) -> None:
    with spreading(lambda: Processes(WORKERS)) as spread:
        label_posterior(x, labels, z, spread=spread)


def _written(path: Path, shape: tuple[int, int], part: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Return a memory map that was filled part by part."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for first in range(0, shape[0], _PART):
        array[first : first + _PART] = part(slice(first, first + _PART))
    array.flush()
    del array
    read: np.ndarray = np.load(path, mmap_mode="r")
    return read


def _product_rate() -> float:
    """Return multiplications and additions a processor second of a matrix product of the posterior's shape."""
    a, b = torch.randn(8192, WIDTH), torch.randn(WIDTH, 2048)
    spent = []
    for _ in range(_PRODUCTS):
        started = time.process_time()
        a @ b
        spent.append(time.process_time() - started)
    return 2 * a.shape[0] * WIDTH * b.shape[1] / min(spent)


class _Peak:
    """By how many MiB the private memory of this process rises at most in a block, looked at fifty times a second."""

    def __enter__(self) -> _Peak:
        self._before = self._most = _private()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.mib = self._most - self._before

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._most = max(self._most, _private())


def _private() -> float:
    """Return the private memory of this process in MiB, or not a number if the system does not tell it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), float("nan"))
