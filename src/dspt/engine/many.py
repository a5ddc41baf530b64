"""Does several jobs at a time with a team of workers, wherever they are. This process alone prints."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from pathlib import Path

from dspt.engine.attempt import attempt, encoded, failed
from dspt.engine.job import Job, Outcome, Queue, Sources
from dspt.engine.status import Look, look
from dspt.engine.team import Team, Window
from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.rounding import figure


def do(
    jobs: Sequence[Job],
    root: Path | None,
    reporter: Reporter,
    team_for: Callable[[Sequence[Job], Sources], Team],
    sources: Sources | None = None,
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each job as it ends, with as many of them under way as the team has room for.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not.
    root : Path, optional
        Where named datasets lie.
    reporter : Reporter
        Shows how far all runs together are.
    team_for : callable
        Starts the workers for jobs that are to be done; it is called when their images are encoded, if there are any.
    sources : Sources, optional
        The datasets below `root` that are open already.
    """
    sources = sources or Sources(root)
    to_do = []
    for job in jobs:
        outcome = attempt(job, sources, reporter) if job.done else None
        if outcome is None:
            to_do.append(job)
        else:
            yield outcome
    unread = encoded(to_do, sources, reporter)
    yield from (failed(job, error) for job, error in unread.items())
    to_do = [job for job in to_do if job not in unread]
    if not to_do:
        return
    queue, lost = Queue(to_do, reporter), len(unread)
    team = team_for(to_do, sources)
    try:
        window = Window(team, partial(_work, root=root), lambda job: job.title, reporter)
        with reporter.within("all").task("runs", len(jobs), len(jobs) - len(queue)) as update:
            while queue or window.busy:
                while window.has_room and (following := queue.take()) is not None:
                    window.give(following)
                for job, answer in window.ended(queue.REST):
                    if isinstance(answer, Exception):
                        lost += 1
                        yield failed(job, answer)
                        continue
                    outcome, warnings = answer
                    for line in warnings:
                        reporter.warn(line)
                    if outcome is None:
                        queue.put_back(job)
                    else:
                        lost += outcome.error is not None
                        yield outcome
                looks = [look(job) for job in window.busy]
                ended = len(jobs) - len(queue) - len(looks)
                update(ended + sum(one.share for one in looks), _shown(looks, ended - lost, lost, len(queue)))
    finally:
        with uninterrupted():
            team.end()


def _shown(looks: Sequence[Look], done: int, lost: int, to_go: int) -> str:
    """Return how far all are: "3 done, 1 failed, 4 to go, 2 running: pets sym:0.4 DSPT seed 1 81.2 %, ..."."""
    accuracies = ["" if one.accuracy is None else f" {figure(one.accuracy, 1)} %" for one in looks]
    runs = ", ".join(f"{one.job.title}{accuracy}" for one, accuracy in zip(looks, accuracies, strict=True))
    words = [f"{done:,} done", f"{lost:,} failed" if lost else "", f"{to_go:,} to go" if to_go else ""]
    words += [f"{len(looks)} running: {runs}" if runs else ""]
    return ", ".join(filter(None, words))


# Below, what happens in a worker.


class _Kept(Reporter):
    """Keeps what has to be said, since the first process alone prints."""

    def __init__(self) -> None:
        super().__init__(silent=True)
        self.warnings: list[str] = []

    def warn(self, line: str) -> None:
        self.warnings.append(line)


def _work(job: Job, root: Path | None) -> tuple[Outcome | None, list[str]]:
    kept = _Kept()
    return attempt(job, _sources(root), kept), kept.warnings


@cache
def _sources(root: Path | None) -> Sources:
    return Sources(root)
