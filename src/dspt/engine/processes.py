"""A team of processes on this machine, among which the threads are divided.

Each worker is a pool of one process, so that it is known whose work ended with a process that was killed, and no other
work with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from dspt.engine.team import Died
from dspt.internal import threads
from dspt.internal.workers import end_with, starting


class Processes:
    """So many processes at most, each started when there is something for it and none is idle."""

    tries = 2

    def __init__(self, size: int) -> None:
        self.size = size
        self._idle: list[_Worker] = []
        self._busy: dict[Future[Any], _Worker] = {}

    def give(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return what an idle process will answer."""
        if not self._idle:
            self._idle.append(_Worker(self.size))
        found = self._idle[-1].give(work, *arguments)  # one that is stopped here is still among those to be ended
        self._busy[found] = self._idle.pop()
        return found

    def ended(self, handles: Sequence[Future[Any]], seconds: float) -> Sequence[Future[Any]]:
        """Return those that have ended, waiting so long for the first."""
        done, _ = wait(handles, timeout=seconds, return_when=FIRST_COMPLETED)
        return list(done)

    def answer(self, handle: Future[Any]) -> Any:
        """Return what a process answered; it is idle now, or will be replaced if it has died."""
        worker = self._busy.pop(handle)
        self._idle.append(worker)
        try:
            return handle.result()
        except BrokenProcessPool as death:
            worker.end()
            raise Died(_how(death)) from death

    def end(self) -> None:
        """End all processes at once."""
        for worker in (*self._idle, *self._busy.values()):
            worker.end()


class _Worker:
    """A process that does one thing after another, and is replaced when it dies."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: Any = None

    def give(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return what the process will answer."""
        # Not multiprocessing's own pool: that runs a user's script again in each worker.
        from loky import ProcessPoolExecutor

        with starting():
            if self._pool is None:
                start = {"initializer": _start, "initargs": (os.getpid(), threads.is_asked())}
                self._pool = ProcessPoolExecutor(1, env=threads.divided(self._workers), **start)
            try:
                found: Future[Any] = self._pool.submit(work, *arguments)
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
    """Return by what a process died, as far as is known: "SIGKILL"."""
    found = re.search(r"\{(\w+)", str(death))
    return found[1] if found else ""


def _start(parent: int, threads_asked: bool) -> None:
    """Make a worker of a new process."""
    end_with(parent)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # also for what is not Python
        os.dup2(nowhere, stream)
    threads.take_share(threads_asked)
