"""One try of a job, wherever it is made, and what is done once for all of them before: encoding their images."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from dspt import noise
from dspt.config import Config
from dspt.engine.job import Job, Outcome, Sources
from dspt.internal.errors import BusyError, InputError
from dspt.internal.progress import Reporter
from dspt.problem import encode
from dspt.runs import Result, Run, logs
from dspt.workflows import train


def attempt(job: Job, sources: Sources, reporter: Reporter) -> Outcome | None:
    """Return what became of a job, from its folder if it is done; None if another process is doing it.

    Whatever goes wrong is the outcome, and stands in the folder of the run.

    Parameters
    ----------
    job : Job
        The run to do.
    sources : Sources
        The datasets that are open already.
    reporter : Reporter
        Shows how far the run is.
    """
    try:
        run = Run(job.folder)
        result = run.result()  # a finished run needs its data no more
        if result is None:
            dataset = sources.open(job.source)
            result = train.run(dataset, job.config, job.noise, job.folder, reporter=reporter, log=job.log)
        elif job.log:
            _log(job, run, result, reporter)
        return Outcome(job, result)
    except BusyError:
        return None
    except Exception as error:  # a fault of ours in one run must not cost the others
        return failed(job, error)


def _log(job: Job, run: Run, result: Result, reporter: Reporter) -> None:
    """Write the logs of a run that is done, whatever becomes of them; if another process has it, it does so."""
    try:
        with run.locked():
            logs.complete(job.log, run, result, reporter)
    except BusyError:
        pass
    except InputError as error:
        reporter.warn(f"log {job.log}: {error}")


def failed(job: Job, error: Exception) -> Outcome:
    """Return the outcome of a job that an error has ended, which its folder tells from now on."""
    reason = error if isinstance(error, InputError) else InputError(f"{type(error).__name__}: {error}")
    Run(job.folder).fail(str(reason), "".join(traceback.format_exception(error)))
    return Outcome(job, error=reason)


def encoded(jobs: Sequence[Job], sources: Sources, reporter: Reporter) -> dict[Job, Exception]:
    """Return which jobs have images that cannot be read, and why; those of all others are in the feature store.

    Workers that start after it find every feature there, and none of them encodes what another does, too.

    Parameters
    ----------
    jobs : sequence of Job
        Runs that are to be done.
    sources : Sources
        Opens their datasets.
    reporter : Reporter
        Shows how far the encoding is, and says what was decided for a dataset.
    """
    found: dict[tuple[object, ...], Exception | None] = {}
    told: set[str] = set()
    for job in jobs:
        if (key := _reading(job)) in found:
            continue
        try:
            dataset = sources.open(job.source)
            if job.source not in told:
                train.say_notes(dataset, reporter)
            told.add(job.source)
            encode(dataset, job.config, noise.parse(job.noise), reporter.within(job.source))
            found[key] = None
        except Exception as error:
            found[key] = error
    reasons = {job: found[_reading(job)] for job in jobs}
    return {job: reason for job, reason in reasons.items() if reason is not None}


def _reading(job: Job) -> tuple[object, ...]:
    """Return all of a job by which it is decided which images are read, and how."""
    config = job.config
    if not isinstance(config, Config):
        return (job.source,)
    drawn = config.seed if config.shots or config.views else None
    whole = noise.parse(job.noise).needs_features
    return job.source, config.model, config.precision, config.shots, config.views, drawn, whole
