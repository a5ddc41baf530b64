"""What millions of images would take: `python scripts/scale_simulation.py`, `--check` for a real small run beside it.

A discrete-event simulation of the way of the data in docs/scale.md: shards of images are read, decoded, encoded and
stored by stations with several servers each, a bounded number of shards under way; then the posterior reads all
features once a pass, shard by shard, and nobody begins a pass before the last one of the pass before has ended. Servers
may be slow at times (a log-normal time of service) and may die (a shard begins again elsewhere). Rates are measured on
this machine first, prices and the rates of machines that are not here are assumptions, all of them in ASSUMED.

`--check` holds it against dspt itself, on a machine that has nothing else to do. One worker process tells its rates:
reading and digesting a file, decoding it, encoding its view, and what a shard costs the first process to store. From
these it is predicted what `dspt encode` takes for a folder of JPEG files with one and with two workers, and then they
do it. The posterior is predicted for four times as many samples as its rate was measured with, by the time that a core
was at work; "its own tasks" are its own number of passes.
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
from functools import partial
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

    torch.set_num_threads(1)
    tower = vit_b16()
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(Path(folder), 32)
        views, decoding = _worked(lambda: np.stack([tower.preprocessing.test_view(open_image(f)) for f in files]))
    _, encoding = _worked(lambda: tower(views))
    passes, seconds, _ = a_pass(40_000, 160_000)
    return {
        "decode_seconds": decoding / len(files),
        "tower_seconds": encoding / len(files),
        "passes": passes,
        "pass_seconds": seconds,  # a sample, of 512 features and 100 classes
    }


def a_pass(few: int, more: int) -> tuple[float, float, float]:
    """Return the passes of the posterior of `more` samples, the seconds of one for a sample, and the fixed ones."""
    (first, start), (passes, end) = posterior(few), posterior(more)
    seconds = (end - start) / (passes * more - first * few)
    return passes, seconds, start - seconds * first * few


def posterior(n: int) -> tuple[float, float]:
    """Return how many passes over all features the posterior of n samples makes, and the seconds of a core it takes.

    The few thousand rows by which weights are chosen, however many there are, are no pass.
    """
    from dspt.posterior import label_posterior, samples

    random = np.random.default_rng(0)
    classes, width = 100, 512
    means = 0.35 * random.standard_normal((classes, width), dtype=np.float32)
    labels = random.integers(0, classes, n)
    x = means[labels] + random.standard_normal((n, width), dtype=np.float32)
    given = np.where(random.random(n) < 0.3, random.integers(0, classes, n), labels)
    rows, calls = [0], 2  # it is worked twice
    by_fold = samples.Samples.by_fold

    def noted(self: samples.Samples, part: slice | np.ndarray) -> Any:
        if isinstance(part, slice):
            rows[0] += len(range(*part.indices(n)))
        return by_fold(self, part)

    samples.Samples.by_fold = noted  # type: ignore[method-assign]
    _, seconds = _worked(lambda: label_posterior(x, given))
    samples.Samples.by_fold = by_fold  # type: ignore[method-assign]
    return rows[0] / calls / n + 2, seconds  # and those for mean and scale, which look at the rows themselves


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


# The check against a real run: `dspt encode`, its workers and its store.

IMAGES, WARM, SHARD_OF_THE_CHECK = 512, 128, 128


def _timed(work: Callable[[Any], Any], part: Any) -> tuple[Any, float]:
    """Return what a worker answers, and how long it took."""
    started = time.perf_counter()
    answer = work(part)
    return answer, time.perf_counter() - started


def _rates(files: Sequence[str]) -> dict[str, float]:
    """Return the seconds an image of each station, as one worker has them; the second time, when all is warm."""
    from dspt.backbone.checkpoint import open_checkpoint
    from dspt.backbone.image import ImageTower
    from dspt.data.images import open_image
    from dspt.features import shards
    from dspt.features.decoding import Look

    tower = ImageTower(open_checkpoint("embedded"))
    part = shards.Part(list(range(len(files))), list(files), 0)
    batch, found = tower.batch_size(), {}
    for _ in range(2):
        _, found["read"] = _timed(lambda part: shards._digest(Look(tower.preprocessing), part), part)
        views, found["decode"] = _timed(
            lambda files: np.stack([tower.preprocessing.test_view(open_image(file)) for file in files]), files
        )
        _, found["encode"] = _timed(
            lambda views: [tower(views[i : i + batch]) for i in range(0, len(views), batch)], views
        )
    return {name: seconds / len(files) for name, seconds in found.items()}


@dataclass
class Took:
    """What encoding took: in all, finding all of it stored, each thing that a worker did, and storing each shard."""

    seconds: float
    find: float
    read: list[float]
    encode: list[float]
    store: list[float]


def encoding(folder: Path, workers: int) -> Took:
    """Return what `dspt encode` takes for a folder of images with so many workers, once these have begun."""
    from dspt.config import Config
    from dspt.data import open_dataset
    from dspt.engine.processes import Processes
    from dspt.engine.spreading import spreading
    from dspt.features import packs
    from dspt.internal.progress import Reporter
    from dspt.workflows.encode import encode

    found = Took(0, 0, [], [], [])
    write = packs.Store.write

    def noted(*given: Any) -> None:
        found.store.append(_timed(lambda given: write(*given), given)[1])

    quiet, config = Reporter(silent=True), Config(model="embedded")
    with tempfile.TemporaryDirectory() as cache, spreading(lambda: Processes(workers), quiet) as team:

        def spread(work: Any, parts: Any) -> Any:
            for part, (answer, seconds) in team(partial(_timed, work), parts):
                getattr(found, "encode" if "encode" in work.func.__name__ else "read").append(seconds)
                yield part, answer

        os.environ["DSPT_CACHE"] = cache
        packs.SHARD = SHARD_OF_THE_CHECK
        packs.Store.write = noted  # type: ignore[method-assign, assignment]
        try:
            encode(open_dataset(folder / "warm", test_fraction=0), config, quiet, spread=spread)
            for each in (found.read, found.encode, found.store):
                each.clear()
            dataset = open_dataset(folder / "real", test_fraction=0)
            started = time.perf_counter()
            assert encode(dataset, config, quiet, spread=spread)["encoded"] == IMAGES
            found.seconds = time.perf_counter() - started
            _, found.find = _timed(lambda dataset: encode(dataset, config, quiet, spread=spread), dataset)
        finally:
            packs.Store.write = write  # type: ignore[method-assign]
    return found


def predicted(workers: int, read: float, part: float, store: float, parts: int) -> float:
    """Return the seconds of encoding: all files are read and digested first, then workers encode and one stores.

    Parameters
    ----------
    workers : int
        How many worker processes.
    read, store : float
        Seconds of a shard.
    part : float
        Seconds of what a worker is sent at a time.
    parts : int
        How many of them there are.
    """
    shards = IMAGES // SHARD_OF_THE_CHECK
    first, _ = simulate([Station("read", workers, read)], shards, workers, 0, 0)
    # the first process stores a shard between two answers: a part's share of it is a station with one server
    line = [Station("decode and encode", workers, part), Station("store", 1, store * shards / parts)]
    return first + simulate(line, parts, workers + 1, 0, 0)[0]


def check() -> None:
    """Print what is predicted from the rates of one worker, and what one and two workers then take.

    Beside it what is predicted from the times that the tasks of the very run took: where only this is right, it is the
    rate that was another, as on a machine with other work, and not the queues.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    from dspt.bench.encoding import photographs
    from dspt.engine.processes import Processes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, first, count in (("warm", 0, WARM), ("real", WARM, IMAGES)):
            for half in range(2):  # two classes
                (folder / part / "ab"[half]).mkdir(parents=True)
                photographs(folder / part / "ab"[half], count // 2, first + half * count // 2)
        team = Processes(1)
        handle = team.give(_rates, [str(path) for path in sorted((folder / "warm").rglob("*.jpg"))])
        while not team.ended([handle], 60):
            pass
        rates = team.answer(handle)
        team.end()
        before = encoding(folder, 1)
        store = float(np.mean(before.store))
        told = ", ".join(f"{station} {1000 * seconds:.2f} ms" for station, seconds in rates.items())
        print(f"one worker, an image: {told}", end="; ")
        print(
            f"the first process: {before.find:.2f} s, and {1000 * store:.1f} ms a shard of {SHARD_OF_THE_CHECK}",
            flush=True,
        )
        for workers in (1, 2):
            took = encoding(folder, workers)
            parts = len(took.encode)
            part = (rates["decode"] + rates["encode"]) * IMAGES / parts
            ahead = predicted(workers, rates["read"] * SHARD_OF_THE_CHECK, part, store, parts)
            own = predicted(workers, *(float(np.mean(one)) for one in (took.read, took.encode, took.store)), parts)
            name = f"{counted(workers, 'worker')}, {IMAGES} images"
            _tell(name, took.seconds, before.find + ahead, took.find + own)
    few, more, many = 10_000, 40_000, 160_000
    (passes, rate, rest), (own_passes, real) = a_pass(few, more), posterior(many)
    ahead, own = (rest + rate * made * many for made in (passes, own_passes))
    _tell(f"posterior of {many:,} samples", real, ahead, own)


def _tell(name: str, seconds: float, ahead: float, own: float) -> None:
    shares = [f"{one:.2f} s ({100 * (one / seconds - 1):+.0f} %)" for one in (ahead, own)]
    print(f"{name}: measured {seconds:.2f} s; predicted {shares[0]}, from its own tasks {shares[1]}", flush=True)


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
