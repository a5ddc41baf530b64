"""Learns from features, or judges their labels, under a limit of memory.

`larger_than_memory.py WHAT DATA MODEL OUT MIB`, WHAT being a learner or "posterior".

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
from dspt.data import Dataset, open_dataset
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


def found(what: str, source: Dataset | str, model: str, out: Path) -> list[object]:
    """Return figures and a digest of what is learnt, or of the posterior."""
    if what == "posterior":
        train = (open_dataset(source) if isinstance(source, str) else source).train
        posterior = dspt.label_posterior(train.items, train.labels)
        return [posterior.noise_rate, posterior.noise_rate_error, digest(posterior.probabilities, posterior.weights)]
    result = run(source, Config(model=model, learner=what, epochs=1, batch_size=256), out=out)
    return [result.accuracy, result.loss, digest(np.fromfile(out / "context.safetensors", np.uint8))]


def main(what: str, data: str, model: str, out: Path, mib: int) -> None:
    found(what, f"{data}-few", model, out / "few")  # so that all that is loaded on the way is there
    ctypes.CDLL(None).malloc_trim(0)  # what is free again is no part of the program
    before = status("VmData")
    if mib:
        most = (before + mib) * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    dataset = open_dataset(data)
    size = dataset.train.items.nbytes // 2**20
    told: dict[str, object] = {"what": what, "mib_of_features": size, "mib_of_the_program": before, "mib_more": mib}
    try:
        whole = np.asarray(dataset.train.items)
        told["fits"] = True
    except MemoryError:
        told["fits"] = False
    if not mib:
        dataset = replace(dataset, train=replace(dataset.train, items=whole))
    told["found"] = found(what, dataset, model, out / "whole")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**told, "mib_private_at_the_end": status("RssAnon"), "mib_resident_at_most": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), int(sys.argv[5]))
