"""The tally of many runs: what is done, what is to go and how long that takes, in whatever order runs end."""

from types import SimpleNamespace

import pytest
from problems import finished_run

from dspt.config import Config
from dspt.engine import tally
from dspt.engine.job import Job, Outcome
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import Result


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=0.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(tally, "time", found)
    return found


@pytest.fixture
def said():
    """Return a reporter that keeps what it says in `lines`."""
    reporter = Reporter(silent=True)
    reporter.lines = []
    reporter.say = reporter.lines.append
    return reporter


def job(tmp_path, source, method, seed):
    return Job(
        source, "none", Config(method=method, seed=seed), tmp_path / f"{source}{method}{seed}", f"{source} {seed}"
    )


def result(job, seconds, accuracy=80.0):
    where = {"data": job.source, "noise": "none", "method": job.config.method, "seed": job.config.seed}
    return Outcome(job, Result(**where, epochs=1, accuracy=accuracy, seconds=seconds))


def test_a_run_takes_as_long_as_those_most_like_it(tmp_path, clock, said):
    jobs = [job(tmp_path, s, m, seed) for s in ("a", "b") for m in ("mae", "dspt") for seed in (1, 2)]

    def done():
        for seconds, number in ((10.0, 0), (20.0, 2), (40.0, 4)):
            clock.now += seconds
            yield result(jobs[number], seconds)

    list(tally.told(done(), jobs, said))
    # 7 runs like the first; then 10 for the other of its method, 20 for that of the second, and 15 for each of the four
    # of b; then 10, 20 and 3 times 40 on b
    assert [line.split(", ")[1:] for line in said.lines] == [
        ["7 to go", "about 1:10 left"],
        ["6 to go", "about 1:30 left"],
        ["5 to go", "about 2:30 left"],
    ]


def test_an_engine_that_does_several_at_a_time_is_done_sooner(tmp_path, clock, said):
    jobs = [job(tmp_path, "a", "mae", seed) for seed in range(6)]

    def done():
        clock.now = 10.0
        yield result(jobs[3], 10.0)
        yield result(jobs[1], 10.0)

    list(tally.told(done(), jobs, said))
    assert said.lines[-1].endswith("2 done, 4 to go, about 0:20 left")  # 40 seconds of runs, two at a time


def test_failures_are_counted_and_each_reason_is_told_once(tmp_path, clock, said):
    jobs = [job(tmp_path, "a", "mae", seed) for seed in range(4)]
    outcomes = [Outcome(one, error=InputError("a: no such folder")) for one in jobs[:2]]
    clock.now = 5.0
    list(tally.told([*outcomes, result(jobs[2], 5.0, None)], jobs, said))
    assert said.lines == [
        "failed: a 0: a: no such folder",
        "a 2  not tested     0:05  1 done, 2 failed, 1 to go, about 0:00 left",
    ]


def test_nothing_to_do_says_so_once(tmp_path, said):
    one = job(tmp_path, "a", "mae", 1)
    finished_run(one.folder, {"data": "a", "noise": "none", "method": "mae", "seed": 1, "accuracy": 80.0})
    list(tally.told([result(one, 5.0)], [one], said))
    assert said.lines == ["1 of 1 run is done already"]
