"""Learns from features and judges their labels under a limit of memory: `larger_than_memory.py DATA MODEL OUT MIB`.

What the program itself takes (Python, torch, all that is loaded before data are) is there first. From then on the
process may have MIB more of private memory, which the system enforces: RLIMIT_DATA counts what is allocated, whether
it is used or not, and no pages of mapped files, which the system can drop at any time. With 0 there is no limit, and
all features are in memory. Prints what was found, by which both can be compared.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import dspt
from dspt.config import Config
from dspt.data import open_dataset
from dspt.workflows.train import run


def status(name: str) -> int:
    """Return a figure of this process in MiB: VmData, RssAnon, RssFile."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


def digest(*arrays: np.ndarray) -> str:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def main(data: str, model: str, out: Path, mib: int) -> None:
    configs = {name: Config(model=model, learner=name, epochs=1, batch_size=256) for name in ("prototypes", "prompt")}
    for name, config in configs.items():  # so that all that is loaded on the way is there
        run(f"{data}-few", config, out=out / f"{name}-few")
    few = open_dataset(f"{data}-few").train
    dspt.label_posterior(few.items, few.labels)
    ctypes.CDLL(None).malloc_trim(0)  # what is free again is no part of the program
    before = status("VmData")
    if mib:
        most = (before + mib) * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    dataset = open_dataset(data)
    size = dataset.train.items.nbytes // 2**20
    told: dict[str, object] = {"mib_of_features": size, "mib_of_the_program": before, "mib_more": mib}
    try:
        whole = np.asarray(dataset.train.items)
        told["fits"] = True
    except MemoryError:
        told["fits"] = False
    if not mib:
        dataset = replace(dataset, train=replace(dataset.train, items=whole))
    for name, config in configs.items():
        result = run(dataset, config, out=out / name)
        told[name] = [result.accuracy, result.loss, digest(np.fromfile(out / name / "context.safetensors", np.uint8))]
    found = dspt.label_posterior(dataset.train.items, dataset.train.labels)
    told["posterior"] = [found.noise_rate, found.noise_rate_error, digest(found.probabilities, found.weights)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**told, "mib_private_at_the_end": status("RssAnon"), "mib_resident_at_most": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
