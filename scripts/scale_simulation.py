"""What millions of images would take: `python scripts/scale_simulation.py`, `--check` for a real small run beside it.

A discrete-event simulation of the way of the data in docs/scale.md: shards of images are read, decoded, encoded and
stored by stations with several servers each, a bounded number of shards under way; then the posterior reads all
features once a pass, shard by shard, and nobody begins a pass before the last one of the pass before has ended. Servers
may be slow at times (a log-normal time of service) and may die (a shard begins again elsewhere). Rates are measured on
this machine first, prices and the rates of machines that are not here are assumptions, all of them in ASSUMED.

`--check` measures the rates with one worker process, predicts encoding and the passes of the posterior for one and two
workers, and then has one and two workers do it.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspt.internal.progress import clock
from dspt.internal.rounding import counted

# Not measured and not looked up: change them to your own.
ASSUMED = {
    "gpu_flops": 100e12,  # of a tower in bfloat16, reached, not promised
    "gpu_hour": 2.0,  # $
    "core_hour": 0.04,  # $
    "terabyte_month": 20.0,  # $, kept
    "link": 1.25e9,  # bytes/s of a node from the store of images
    "image_bytes": 110e3,  # a photograph of 500 x 375
    "cores_per_gpu": 16,
    "wrong": 0.05,  # of the labels
    "review_seconds": 2.0,  # of a person, a label
    "review_hour": 20.0,  # $
    "deaths": 1e-3,  # of shards that have to begin again
    "unsteady": 0.3,  # standard deviation of a time of service over its mean
}
FLOPS = {"ViT-B/16": 2 * 17.6e9, "ViT-L/14": 2 * 81.1e9}  # an image of 224 x 224
WIDTHS = {"ViT-B/16": 512, "ViT-L/14": 768}
SETS = {"ImageNet-21k": (14.2e6, 21_841), "10^9 images": (1e9, 21_841)}
GPUS = {"ImageNet-21k": 8, "10^9 images": 64}
SHARD = 10_000


@dataclass(frozen=True)
class Station:
    """Servers that do the same to one shard after another; seconds are the mean of a shard."""

    name: str
    servers: int
    seconds: float


def simulate(
    stations: Sequence[Station], shards: int, window: int, unsteady: float, deaths: float, seed: int = 1
) -> tuple[float, dict[str, float]]:
    """Return the seconds until the last shard has left the last station, and how busy each station's servers were.

    Parameters
    ----------
    stations : sequence of Station
        In the order in which a shard passes them.
    shards : int
        How many there are, all at hand at the beginning.
    window : int
        How many are under way at most.
    unsteady : float
        Standard deviation of a time of service over its mean.
    deaths : float
        The share of services that are begun again once they are half-way.
    seed : int
        Of times and deaths.
    """
    random = np.random.default_rng(seed)
    sigma = math.sqrt(math.log1p(unsteady**2))
    queues: list[deque[int]] = [deque() for _ in stations]
    idle, spent = [station.servers for station in stations], [0.0] * len(stations)
    events: list[tuple[float, int, int, int]] = []  # when, number, station, shard
    now, waiting, under_way, left, number = 0.0, shards, 0, shards, 0
    while left:
        while waiting and under_way < window:
            queues[0].append(shards - waiting)
            waiting, under_way = waiting - 1, under_way + 1
        for place, station in enumerate(stations):
            while idle[place] and queues[place]:
                seconds = station.seconds * random.lognormal(-(sigma**2) / 2, sigma)
                while random.random() < deaths:
                    seconds += seconds / 2
                idle[place] -= 1
                spent[place] += seconds
                number += 1
                heapq.heappush(events, (now + seconds, number, place, queues[place].popleft()))
        now, _, place, shard = heapq.heappop(events)
        idle[place] += 1
        if place + 1 < len(stations):
            queues[place + 1].append(shard)
        else:
            under_way, left = under_way - 1, left - 1
    busy = {one.name: part / (now * one.servers) for one, part in zip(stations, spent, strict=True)}
    return now, busy


def check_simulation() -> None:
    """Hold the simulation against what is known without one: a steady line, and several servers alike."""
    line = [Station("a", 1, 2.0), Station("b", 1, 5.0), Station("c", 1, 3.0)]
    seconds, busy = simulate(line, 100, 1000, 0, 0)
    assert math.isclose(seconds, 2 + 5 + 3 + 99 * 5), seconds
    assert math.isclose(busy["b"], 500 / seconds)
    seconds, _ = simulate([Station("a", 7, 2.0)], 100, 1000, 0, 0)
    assert math.isclose(seconds, 2 * math.ceil(100 / 7))
    seconds, _ = simulate(line, 100, 1, 0, 0)  # one under way
    assert math.isclose(seconds, 100 * 10)
    means = [simulate([Station("a", 1, 1.0)], 2000, 9, 0.5, 0.1, seed)[0] / 2000 for seed in range(20)]
    # each death adds half of what has been spent: 1 / (1 - p) times as many tries, 1.5 times as long each
    assert abs(np.mean(means) - 0.9 / (1 - 0.15)) < 0.01, np.mean(means)


def measured() -> dict[str, float]:
    """Return seconds of one core of this machine, by the time that it worked: others may be at work, too."""
    import torch

    from dspt.bench.encoding import photographs, vit_b16
    from dspt.data.images import open_image
    from dspt.posterior import evidence, label_posterior

    torch.set_num_threads(1)
    tower = vit_b16()
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(Path(folder), 32)
        views, decoding = _worked(lambda: np.stack([tower.preprocessing.test_view(open_image(f)) for f in files]))
    _, encoding = _worked(lambda: tower(views))
    random = np.random.default_rng(0)
    n, classes, width = 20_000, 100, 512
    means = 0.35 * random.standard_normal((classes, width), dtype=np.float32)
    labels = random.integers(0, classes, n)
    x = means[labels] + random.standard_normal((n, width), dtype=np.float32)
    given = np.where(random.random(n) < 0.3, random.integers(0, classes, n), labels)
    rows, calls = [0], 2  # it is worked twice
    features = evidence.Evidence.features

    def noted(self: evidence.Evidence, part: slice | np.ndarray) -> torch.Tensor:
        found = features(self, part)
        rows[0] += len(found)
        return found

    evidence.Evidence.features = noted  # type: ignore[method-assign]
    _, seconds = _worked(lambda: label_posterior(x, given))
    evidence.Evidence.features = features  # type: ignore[method-assign]
    passes = rows[0] / calls / n + 1  # and one for mean and scale, which looks at the rows themselves
    return {
        "decode_seconds": decoding / len(files),
        "tower_seconds": encoding / len(files),
        "passes": passes,
        "pass_seconds": seconds / passes / n,  # a sample, of 512 features and 100 classes
    }


def _worked(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what work gives, and how long a core was at it; the second time, when all is warm."""
    work()
    started = time.process_time()
    found = work()
    return found, time.process_time() - started


def plan(name: str, model: str, rates: dict[str, float]) -> dict[str, object]:
    """Return what a set takes with so many GPUs and their cores: the simulated hours, the money, what is busiest."""
    images, classes = SETS[name]
    gpus, a = GPUS[name], ASSUMED
    cores, nodes = int(gpus * a["cores_per_gpu"]), max(1, gpus // 8)
    width = WIDTHS[model]
    shards = math.ceil(images / SHARD)
    line = [
        Station("read", nodes, SHARD * a["image_bytes"] / a["link"]),
        Station("decode", cores, SHARD * rates["decode_seconds"]),
        Station("encode", gpus, SHARD * FLOPS[model] / a["gpu_flops"]),
        Station("store", nodes, SHARD * 4 * width / a["link"]),
    ]
    window = 4 * (cores + gpus + nodes)
    seconds, busy = simulate(line, shards, window, a["unsteady"], a["deaths"])
    # A pass on a core is products of samples x features x classes: more of both cost in proportion.
    factor = width / 512 * classes / 100
    one, _ = simulate(
        [Station("pass", cores, SHARD * rates["pass_seconds"] * factor)], shards, 10**9, a["unsteady"], a["deaths"]
    )
    passes = rates["passes"] * one
    pass_flops = 2 * images * width * classes  # one product: what each sample is, or the sums by that
    suspects = a["wrong"] * images
    hours = seconds / 3600
    return {
        "images_tb": images * a["image_bytes"] / 1e12,
        "features_gb": images * 4 * width / 1e9,
        "probabilities_tb": images * 4 * classes / 1e12,
        "encode_flop": images * FLOPS[model],
        "passes": rates["passes"],
        "pass_flop": pass_flops,
        "passes_read_tb": rates["passes"] * images * 4 * width / 1e12,
        "gpus": gpus,
        "cores": cores,
        "encode_hours": hours,
        "busy": {station: round(share, 2) for station, share in busy.items()},
        "passes_hours_cpu": passes / 3600,
        "passes_hours_gpu": rates["passes"] * pass_flops / (gpus * a["gpu_flops"]) / 3600,
        "encode_dollars": hours * (gpus * a["gpu_hour"] + cores * a["core_hour"]),
        "passes_dollars_cpu": passes / 3600 * cores * a["core_hour"],
        "store_dollars_month": (images * (a["image_bytes"] + 4 * width)) / 1e12 * a["terabyte_month"],
        "review_hours": suspects * a["review_seconds"] / 3600,
        "review_dollars": suspects * a["review_seconds"] / 3600 * a["review_hour"],
    }


# The check against a real run. Each task is done by a worker process with one thread.

IMAGES, PART, ROWS, PASSES, _SHARDS = 24, 2, 20_000, 4, 12


def _start() -> None:
    import torch

    from dspt.bench.encoding import vit_b16

    torch.set_num_threads(1)
    _kept["tower"] = vit_b16()
    random = np.random.default_rng(os.getpid())
    _kept["x"] = torch.from_numpy(random.standard_normal((ROWS, 512), dtype=np.float32))
    _kept["w"] = torch.from_numpy(random.standard_normal((512, 100), dtype=np.float32))


_kept: dict[str, object] = {}


def _encode(part: Sequence[np.ndarray]) -> float:
    from dspt.features import embed

    started = time.perf_counter()
    embed(list(part), _kept["tower"])
    return time.perf_counter() - started


def _pass(_: int) -> float:
    """A pass of the posterior over a shard: what each sample is, and the sums by that."""
    started = time.perf_counter()
    x, w = _kept["x"], _kept["w"]
    (x @ w).softmax(1).T @ x  # type: ignore[operator]
    return time.perf_counter() - started


def _nothing(_: int) -> None:
    """What giving a task to a worker and taking its answer costs, and nothing else."""


def work(workers: int) -> tuple[float, float, list[float], list[float]]:
    """Return the seconds of encoding and of all passes by so many workers, and of each task and giving it."""
    from loky import ProcessPoolExecutor

    from dspt.data import open_dataset

    images = list(open_dataset("embedded").train.items[:IMAGES])
    parts = [images[i : i + PART] for i in range(0, IMAGES, PART)]
    pool = ProcessPoolExecutor(workers, initializer=_start, env={"OMP_NUM_THREADS": "1"})
    list(pool.map(_pass, range(4 * workers)))  # all have started, and are warm
    list(pool.map(_encode, [images[:1]] * (2 * workers)))
    started = time.perf_counter()
    list(pool.map(_nothing, range(48)))
    giving = (time.perf_counter() - started) / 48
    started = time.perf_counter()
    encoded = list(pool.map(_encode, parts))
    middle = time.perf_counter()
    passed = [one for _ in range(PASSES) for one in pool.map(_pass, range(_SHARDS))]
    ended = time.perf_counter()
    pool.shutdown(kill_workers=True)
    return middle - started, ended - middle, [one + giving for one in encoded], [one + giving for one in passed]


def check() -> None:
    """Print what is predicted from the tasks of one worker, and what one and two workers then take.

    Beside it what is predicted from the times that the tasks of the very run took: where only this is right, it is the
    rate that was another, as on a machine with other work, and not the queues.
    """
    before = work(1)[2:]
    for workers in (1, 2):
        *real, encoded, passed = work(workers)
        for name, seconds, rounds, rates in (
            ("encode", real[0], 1, (before[0], encoded)),
            ("passes", real[1], PASSES, (before[1], passed)),
        ):
            shards = len(encoded) if name == "encode" else _SHARDS
            first, own = (
                rounds * simulate([Station(name, workers, float(np.mean(one)))], shards, 99, 0, 0)[0] for one in rates
            )
            print(
                f"{counted(workers, 'worker')}, {name}: measured {seconds:.1f} s; predicted {first:.1f} s "
                f"({100 * (first / seconds - 1):+.0f} %), from its own tasks {own:.1f} s "
                f"({100 * (own / seconds - 1):+.0f} %)",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="predict a small run, and do it")
    asked = parser.parse_args()
    check_simulation()
    if asked.check:
        check()
        return
    rates = measured()
    print("measured here, one core:", {name: float(f"{value:.3g}") for name, value in rates.items()})
    for name in SETS:
        for model in FLOPS:
            print(f"\n{name}, {model}")
            for key, value in plan(name, model, rates).items():
                shown = f"{value:,.3g}" if isinstance(value, float) else value
                told = f"  ({clock(3600 * value)})" if "hours" in key and isinstance(value, float) else ""
                print(f"  {key:<20} {shown}{told}")


if __name__ == "__main__":
    # By its name: worker processes can import it, and keep what they have begun with.
    import scale_simulation

    scale_simulation.main()
