"""Does jobs on this machine: in this process one after another, or several at a time in worker processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path

from dspt.engine import many
from dspt.engine.attempt import attempt
from dspt.engine.job import Job, Outcome, Queue, Sources
from dspt.engine.processes import Processes
from dspt.internal.progress import Reporter


def do(
    jobs: Sequence[Job],
    root: Path | None,
    reporter: Reporter,
    workers: int = 1,
    sources: Sources | None = None,
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each job as it ends. What is done is not done again, and what fails stops nothing else.

    A run that another process is doing is waited for after all others, and not done twice.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not.
    root : Path, optional
        Where named datasets lie; None is the default of `open_dataset`.
    reporter : Reporter
        Shows how far a run is.
    workers : int
        How many runs at a time; 1 is in this process.
    sources : Sources, optional
        The datasets below `root` that are open already.
    """
    if workers > 1:
        yield from many.do(jobs, root, reporter, lambda *_: Processes(workers), sources)
        return
    sources, queue = sources or Sources(root), Queue(jobs, reporter)
    number = {job: place for place, job in enumerate(jobs, 1)}
    while queue:
        if (job := queue.take()) is None:
            time.sleep(queue.REST)
            continue
        piece = reporter.within(f"[{number[job]}/{len(jobs)}] {job.source} {job.noise}")
        if (outcome := attempt(job, sources, piece)) is None:
            queue.put_back(job)
        else:
            yield outcome
