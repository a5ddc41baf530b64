"""What a worker costs besides its work, on Ray and as a process of this machine: start-up, and each thing it is given.

    OMP_NUM_THREADS=1 python scripts/engine_overhead.py

Both in turn, minima over rounds; needs pip install 'dspt[ray]'.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspt.config import Config
from dspt.engine import cluster, local
from dspt.engine.cluster import Nodes
from dspt.engine.job import Job
from dspt.engine.processes import Processes
from dspt.engine.team import Team, spread
from dspt.internal.progress import Reporter

QUIET = Reporter(silent=True)
ROUNDS, THINGS, RUNS = 3, 300, 12
TEAMS: dict[str, Callable[[], Team]] = {"processes": lambda: Processes(2), "ray": lambda: Nodes(None, 2)}
ENGINES: dict[str, Callable[..., Any]] = {"processes": local.do, "ray": cluster.do}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def team_costs(name: str) -> dict[str, float]:
    """Return the seconds until a team of two has answered, those of each further thing, and those of its end."""
    teams: list[Team] = []

    def first() -> None:
        teams.append(TEAMS[name]())
        list(spread(teams[0], abs, range(2), str, QUIET))

    costs = {"start": seconds(first)}
    costs["thing"] = seconds(lambda: list(spread(teams[0], abs, range(THINGS), str, QUIET))) / THINGS
    costs["end"] = seconds(teams[0].end)
    return costs


def sweep(name: str, out: Path) -> float:
    """Return the seconds of some runs, two at a time, on features that are encoded already."""
    config = Config(model="embedded", learner="prototypes", epochs=30, test_every=30)
    jobs = [Job("embedded", "sym:0.4", replace(config, seed=i), out / name / f"{i}", f"{i}") for i in range(RUNS)]
    shutil.rmtree(out / name, ignore_errors=True)
    return seconds(lambda: [o for o in ENGINES[name](jobs, None, QUIET, 2) if o.error])


def main() -> None:
    found: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name in TEAMS:
                costs = team_costs(name) | {"sweep": sweep(name, Path(folder))}
                for what, value in costs.items():
                    found[what, name] = min(value, found.get((what, name), float("inf")))
    for what, label in (
        ("start", "until two workers have answered"),
        ("thing", "for each thing given, without its work"),
        ("end", "until nothing runs any more"),
        ("sweep", f"{RUNS} short runs, two at a time, start-up and end included"),
    ):
        here, there = found[what, "processes"], found[what, "ray"]
        print(f"{label}: processes {here:.4g} s, ray {there:.4g} s, ratio {there / here:.2f}")


if __name__ == "__main__":
    main()
