"""Does jobs in worker processes, among which the threads are divided. This process alone prints.

Each worker is a pool of one process, so that it is known whose run ended with a process that was killed, and no other
run with it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

from dspt.engine.attempt import attempt, encoded, failed
from dspt.engine.job import Job, Outcome, Queue, Sources
from dspt.engine.status import Look, look
from dspt.internal import threads
from dspt.internal.errors import InputError
from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.rounding import figure
from dspt.internal.workers import end_with, starting

# A run whose process died is tried so often in all.
_TRIES = 2

_Answer = tuple[Outcome | None, list[str]]


def do(jobs: Sequence[Job], root: Path | None, reporter: Reporter, workers: int) -> Generator[Outcome, None, None]:
    """Yield the outcome of each job as it ends, with up to `workers` of them under way.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not.
    root : Path, optional
        Where named datasets lie.
    reporter : Reporter
        Shows how far all runs together are.
    workers : int
        How many runs at a time.
    """
    sources = Sources(root)
    to_do = []
    for job in jobs:
        outcome = attempt(job, sources, reporter) if job.done else None
        if outcome is None:
            to_do.append(job)
        else:
            yield outcome
    unread = encoded(to_do, sources, reporter)
    yield from (failed(job, error) for job, error in unread.items())
    queue = Queue([job for job in to_do if job not in unread], reporter)
    died: dict[Job, int] = {}
    team = [_Worker(root, workers) for _ in range(min(workers, len(queue)))]
    idle = list(team)
    busy: dict[Future[_Answer], tuple[_Worker, Job]] = {}
    try:
        with reporter.within("all").task("runs", len(jobs), len(jobs) - len(queue)) as update:
            while queue or busy:
                while idle and (following := queue.take()) is not None:
                    worker = idle.pop()
                    busy[worker.give(following)] = worker, following
                done, _ = wait(busy, timeout=queue.REST, return_when=FIRST_COMPLETED)
                if not busy:  # then it did not wait
                    time.sleep(queue.REST)
                for future in done:
                    worker, job = busy.pop(future)
                    idle.append(worker)
                    try:
                        outcome, warnings = future.result()
                    except BrokenProcessPool as death:
                        worker.end()
                        died[job] = died.get(job, 0) + 1
                        if died[job] < _TRIES:
                            reporter.say(f"{job.title}: its worker process died{_how(death)}; it is tried once more")
                            queue.put_first(job)
                        else:
                            yield failed(job, _dead(death))
                        continue
                    except Exception as error:  # what came back could not be read
                        yield failed(job, error)
                        continue
                    for line in warnings:
                        reporter.warn(line)
                    if outcome is None:
                        queue.put_back(job)
                    else:
                        yield outcome
                looks = [look(job) for _, job in busy.values()]
                update(len(jobs) - len(queue) - sum(1 - one.share for one in looks), _shown(looks))
    finally:
        with uninterrupted():
            for worker in team:
                worker.end()


class _Worker:
    """A process that does one job after another, and is replaced when it dies."""

    def __init__(self, root: Path | None, workers: int) -> None:
        self._root = root
        self._workers = workers
        self._pool: Any = None

    def give(self, job: Job) -> Future[_Answer]:
        """Return what the process will answer."""
        # Not multiprocessing's own pool: that runs a user's script again in each worker.
        from loky import ProcessPoolExecutor

        with starting():
            if self._pool is None:
                start = {"initializer": _start, "initargs": (os.getpid(), threads.is_asked())}
                self._pool = ProcessPoolExecutor(1, env=threads.divided(self._workers), **start)
            try:
                found: Future[_Answer] = self._pool.submit(_work, job, self._root)
            except BrokenProcessPool as death:  # while it had nothing to do
                found = Future()
                found.set_exception(death)
            return found

    def end(self) -> None:
        """End the process at once; what it has not saved is done again."""
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)
            self._pool = None


def _how(death: BaseException) -> str:
    """Return by what a process died, as far as is known: " (SIGKILL)"."""
    found = re.search(r"\{(\w+)", str(death))
    return f" ({found[1]})" if found else ""


def _dead(death: BaseException) -> InputError:
    error = InputError(
        f"its worker process died twice{_how(death)}, perhaps for want of memory; close other programs",
        "or give fewer `jobs`",
    )
    error.__cause__ = death
    return error


def _shown(looks: Sequence[Look]) -> str:
    """Return the runs under way in words: "2 running: pets sym:0.4 DSPT seed 1 81.2 %, ..."."""
    accuracies = ["" if one.accuracy is None else f" {figure(one.accuracy, 1)} %" for one in looks]
    runs = [f"{one.job.title}{accuracy}" for one, accuracy in zip(looks, accuracies, strict=True)]
    return f"{len(runs)} running: {', '.join(runs)}" if runs else ""


# Below, what happens in a worker process.


class _Kept(Reporter):
    """Keeps what has to be said, since the first process alone prints."""

    def __init__(self) -> None:
        super().__init__(silent=True)
        self.warnings: list[str] = []

    def warn(self, line: str) -> None:
        self.warnings.append(line)


def _start(parent: int, threads_asked: bool) -> None:
    end_with(parent)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # also for what is not Python
        os.dup2(nowhere, stream)
    threads.take_share(threads_asked)


def _work(job: Job, root: Path | None) -> _Answer:
    kept = _Kept()
    return attempt(job, _sources(root), kept), kept.warnings


@cache
def _sources(root: Path | None) -> Sources:
    return Sources(root)
