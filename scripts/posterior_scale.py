"""How the posterior's cost grows: `python scripts/posterior_scale.py 10000 100000 1000000`.

For each number of samples: 512 features and 100 classes in a memory map, 30 % of the labels wrong; seconds, those of
the processor, the private memory that is needed at most (looked at fifty times a second), and the share of the
machine's own rate of matrix products that is reached, counting the multiplications of the posterior's products alone.
The share goes by the processor's seconds of both, which neighbours on the machine change little. With `--text` there
are zero-shot logits, too, in another map.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import dspt  # before torch, whose threads it has wait without spinning

WIDTH, CLASSES, PART = 512, 100, 50_000


def written(path: Path, shape: tuple[int, int], part: object) -> np.ndarray:
    """Return a memory map that was filled part by part."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for first in range(0, shape[0], PART):
        array[first : first + PART] = part(slice(first, first + PART))  # type: ignore[operator]
    array.flush()
    del array
    return np.load(path, mmap_mode="r")


def product_rate() -> float:
    """Return multiplications and additions a second of a matrix product of the posterior's shape."""
    import torch

    a, b = torch.randn(8192, WIDTH), torch.randn(WIDTH, 2048)
    best = float("inf")
    for _ in range(20):
        started = time.process_time()
        a @ b
        best = min(best, time.process_time() - started)
    return 2 * a.shape[0] * WIDTH * b.shape[1] / best


class Peak:
    """The most private memory that this process has in a block, in MiB, above what it had before."""

    def __enter__(self) -> Peak:
        self._before = self._most = self._now()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.mib = (self._most - self._before) // 1024

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._most = max(self._most, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def measured(n: int, text: bool) -> dict[str, float]:
    """Return the figures of one size."""
    from torch.utils.flop_counter import FlopCounterMode

    random = np.random.default_rng(0)
    means = 0.35 * random.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    true = random.integers(0, CLASSES, n)
    labels = np.asarray(dspt.corrupt(true, CLASSES, "symmetric", 0.3))
    with tempfile.TemporaryDirectory() as folder:

        def sample(rows: slice) -> np.ndarray:
            return means[true[rows]] + random.standard_normal((len(true[rows]), WIDTH), dtype=np.float32)

        x = written(Path(folder) / "x.npy", (n, WIDTH), sample)

        def told(rows: slice) -> np.ndarray:
            return 0.2 * x[rows] @ means.T + 4 * random.standard_normal((len(true[rows]), CLASSES), dtype=np.float32)

        z = written(Path(folder) / "z.npy", (n, CLASSES), told) if text else None
        dspt.label_posterior(x[:500], labels[:500], num_classes=CLASSES)
        rate = product_rate()
        started, computed = time.monotonic(), time.process_time()
        with Peak() as peak:
            found = dspt.label_posterior(x, labels, z)
        seconds, computed = time.monotonic() - started, time.process_time() - computed
        with FlopCounterMode(display=False) as counter:
            dspt.label_posterior(x, labels, z)
    return {
        "samples": n,
        "seconds": round(seconds, 1),
        "processor_seconds": round(computed, 1),
        "mib_beside_the_map": peak.mib,
        "share_of_products": round(counter.get_total_flops() / computed / rate, 2),
        "noise_rate": round(found.noise_rate, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=int, nargs="+")
    parser.add_argument("--text", action="store_true")
    asked = parser.parse_args()
    if len(asked.samples) == 1:
        print(json.dumps(measured(asked.samples[0], asked.text)))
        return
    for n in asked.samples:  # a process each: memory once taken is not given back
        subprocess.run([sys.executable, __file__, str(n), *(["--text"] if asked.text else [])], check=True)


if __name__ == "__main__":
    main()
