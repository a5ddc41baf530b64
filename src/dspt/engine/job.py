"""A run that is to be done, and what became of it. Both can be pickled, so that any process may do the run."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dspt.config import Settings
from dspt.data import Dataset, open_dataset
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import Result, Run


@dataclass(frozen=True)
class Job:
    """One run with its folder.

    Attributes
    ----------
    source : str
        The data, as `open_dataset` takes them.
    noise : str
        As `dspt.noise.parse` takes it.
    config : Settings
        All settings of the run.
    folder : Path
        The run folder.
    title : str
        What a person calls the run: "Caltech101 sym:0.4 DSPT seed 1".
    log : str
        Where its epochs are written besides, as `dspt.runs.logs.names` takes it.
    """

    source: str
    noise: str
    config: Settings
    folder: Path
    title: str
    log: str = ""

    @property
    def done(self) -> bool:
        """Return whether the run is finished."""
        return Run(self.folder).is_done


@dataclass(frozen=True)
class Outcome:
    """What became of a job: the figures of its run, or why there are none."""

    job: Job
    result: Result | None = None
    error: InputError | None = None


def failures(outcomes: Iterable[Outcome], wording: Callable[[InputError], str] = str) -> list[str]:
    """Return why runs failed, each reason once in the `wording` given, with how many runs it hit and the first."""
    reasons: dict[str, list[Job]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            reasons.setdefault(wording(outcome.error), []).append(outcome.job)
    return [
        f"{found[0].title}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {reason}"
        for reason, found in reasons.items()
    ]


class Sources:
    """The datasets of jobs, each opened once. One that cannot be opened is not tried again.

    Parameters
    ----------
    root : Path, optional
        Where named datasets lie.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._found: dict[str, Dataset | InputError] = {}

    def open(self, name: str) -> Dataset:
        """Return the dataset, or raise the `InputError` with which it could not be opened."""
        if name not in self._found:
            try:
                self._found[name] = open_dataset(name, root=self._root)
            except InputError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, InputError):
            raise found
        return found

    def missing(self, jobs: Iterable[Job]) -> dict[str, InputError]:
        """Return why data cannot be opened, by their name, of jobs that are to be done: a finished run needs none.

        Where no job is done and none can be, that is bad input, and an `InputError` is raised.
        """
        jobs = list(jobs)
        to_do = [job for job in jobs if not job.done]
        names = list(dict.fromkeys(job.source for job in to_do))
        faults: dict[str, InputError] = {}
        for name in names:
            try:
                self.open(name)
            except InputError as error:
                faults[name] = error
        if faults and len(to_do) == len(jobs) and len(faults) == len(names):
            first, *others = faults.values()
            if not others:
                raise first
            raise InputError(f"none of {len(faults)} datasets can be opened: {first.sentence}", first.advice)
        return faults


class Queue:
    """Jobs to do, in their order; those that another process is doing are looked at again when no others are left.

    Parameters
    ----------
    jobs : iterable of Job
        All of them.
    reporter : Reporter
        Says that another process is waited for.
    """

    # Seconds until it is looked again whether another process has done a run.
    REST = 1.0

    def __init__(self, jobs: Iterable[Job], reporter: Reporter) -> None:
        self._jobs = deque(jobs)
        self._resting: deque[tuple[float, Job]] = deque()
        self._reporter = reporter
        self._told = False

    def __len__(self) -> int:
        return len(self._jobs) + len(self._resting)

    def take(self) -> Job | None:
        """Return the next job; None if there is none, or another process has but begun with all that are left."""
        if self._jobs:
            return self._jobs.popleft()
        if self._resting and self._resting[0][0] <= time.monotonic():
            return self._resting.popleft()[1]
        return None

    def put_back(self, job: Job) -> None:
        """Have a job that another process is doing looked at again later."""
        if not self._told:
            self._reporter.say(f"{job.title}: another process is doing it; its result is waited for")
        self._told = True
        self._resting.append((time.monotonic() + self.REST, job))


class Pace:
    """How long runs take here, by data and method."""

    def __init__(self) -> None:
        self._spent: dict[tuple[str, ...], list[float]] = {}

    def add(self, job: Job, seconds: float) -> None:
        """Learn how long a run took."""
        for key in _keys(job):
            self._spent.setdefault(key, []).append(seconds)

    def expected(self, job: Job) -> float | None:
        """Return the seconds that a job will take: as long as those most like it took; None if nothing is known."""
        return next((statistics.fmean(self._spent[key]) for key in _keys(job) if key in self._spent), None)

    def left(self, jobs: Iterable[Job]) -> float:
        """Return the seconds that jobs will take, one after another."""
        return sum(self.expected(job) or 0.0 for job in jobs)


def _keys(job: Job) -> list[tuple[str, ...]]:
    """Return the kinds of runs that a job belongs to, the narrowest first."""
    return [(job.source, job.config.method), (job.source,), ()]
