"""Does jobs in this process: those that are not done yet, one after another, whatever happens to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dspt.engine.job import Job, Outcome, Sources
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import Run
from dspt.workflows import train


def do(jobs: Sequence[Job], root: Path | None, reporter: Reporter) -> Iterator[Outcome]:
    """Yield the outcome of each job in turn. What is done is not done again, and what fails stops nothing else.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not.
    root : Path, optional
        Where named datasets lie; None is the default of `open_dataset`.
    reporter : Reporter
        Shows how far a run is.
    """
    sources = Sources(root)
    for number, job in enumerate(jobs, 1):
        yield _outcome(job, sources, reporter.within(f"[{number}/{len(jobs)}] {job.source} {job.noise}"))


def _outcome(job: Job, sources: Sources, reporter: Reporter) -> Outcome:
    try:
        result = Run(job.folder).result()  # a finished run needs its data no more
        if result is None:
            dataset = sources.open(job.source)
            result = train.run(dataset, job.config, job.noise, job.folder, reporter=reporter)
        return Outcome(job, result)
    except InputError as error:
        return Outcome(job, error=error)
    except Exception as error:  # a fault of ours in one run must not cost the others
        return Outcome(job, error=InputError(f"{type(error).__name__}: {error}"))
