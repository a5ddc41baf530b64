"""How far many runs are: a line for each that ends, with what is left of the whole. The same for every engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

from dspt.engine.job import Job, Outcome
from dspt.internal.progress import Reporter, clock
from dspt.internal.rounding import figure


def told(outcomes: Iterable[Outcome], jobs: Sequence[Job], reporter: Reporter) -> Iterator[Outcome]:
    """Yield outcomes as an engine gives them, in whatever order, having said each and how much is left.

    Runs that were done before are counted, but not told one by one. What fails many runs is told once.

    Parameters
    ----------
    outcomes : iterable of Outcome
        One for each job.
    jobs : sequence of Job
        All jobs, done or not.
    reporter : Reporter
        Says the lines.
    """
    before = {job.folder for job in jobs if job.done}
    if before:
        reporter.say(f"{len(before):,} of {len(jobs):,} runs are done already")
    width = max((len(job.title) for job in jobs), default=0)
    to_go = {job.folder: job for job in jobs if job.folder not in before}
    pace = _Pace()
    failed: list[str] = []
    for outcome in outcomes:
        job = outcome.job
        now = to_go.pop(job.folder, None) is not None
        if outcome.error is not None:
            if str(outcome.error) not in failed:
                reporter.say(f"failed: {job.title}: {outcome.error.sentence}")
            failed.append(str(outcome.error))
        elif outcome.result is not None:
            seconds, accuracy = outcome.result.seconds, outcome.result.accuracy
            pace.add(job, seconds, now)
            if now:
                what = "not tested" if accuracy is None else f"{figure(accuracy, 2):>6} %"
                counts = [f"{len(jobs) - len(to_go) - len(failed):,} done", f"{len(failed):,} failed" if failed else ""]
                counts += [f"{len(to_go):,} to go"]
                counts += [f"about {clock(pace.left(to_go.values()))} left" if to_go else ""]
                words = [f"{job.title:<{width}}", what, f"{clock(seconds):>7}", ", ".join(filter(None, counts))]
                reporter.say("  ".join(words))
        yield outcome


class _Pace:
    """How long runs take here: seconds by data and method, and how many of them pass in one second on the clock."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._spent: dict[tuple[str, ...], list[float]] = {}
        self._now = 0.0  # seconds of the runs that ended since the start

    def add(self, job: Job, seconds: float, now: bool) -> None:
        for key in _keys(job):
            self._spent.setdefault(key, []).append(seconds)
        self._now += seconds * now

    def left(self, jobs: Iterable[Job]) -> float:
        """Return the seconds on the clock that jobs will take, each as long as those most like it took."""
        expected = sum(statistics.fmean(next(self._spent[k] for k in _keys(job) if k in self._spent)) for job in jobs)
        # start-up and other work between runs is in it, and so are several runs at a time
        share = (time.monotonic() - self._started) / self._now if self._now else 1.0
        return expected * share


def _keys(job: Job) -> list[tuple[str, ...]]:
    """Return the kinds of runs that a job belongs to, the narrowest first."""
    return [(job.source, job.config.method), (job.source,), ()]
