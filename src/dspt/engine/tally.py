"""How far many runs are: a line for each that ends, with what is left of the whole. The same for every engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from dspt.engine.job import Job, Outcome, Pace
from dspt.internal.progress import Reporter, clock
from dspt.internal.rounding import counted, figure


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
        is_done = "is" if len(jobs) == 1 else "are"
        reporter.say(f"{len(before):,} of {counted(len(jobs), 'run')} {is_done} done already")
    width = max((len(job.title) for job in jobs), default=0)
    to_go = {job.folder: job for job in jobs if job.folder not in before}
    pace, started, spent = Pace(), time.monotonic(), 0.0
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
            pace.add(job, seconds)
            if now:
                spent += seconds
                what = "not tested" if accuracy is None else f"{figure(accuracy, 2):>6} %"
                counts = [f"{len(jobs) - len(to_go) - len(failed):,} done", f"{len(failed):,} failed" if failed else ""]
                counts += [f"{len(to_go):,} to go"]
                # start-up and other work between runs is in it, and so are several runs at a time
                share = (time.monotonic() - started) / spent if spent else 1.0
                counts += [f"about {clock(share * pace.left(to_go.values()))} left" if to_go else ""]
                words = [f"{job.title:<{width}}", what, f"{clock(seconds):>7}", ", ".join(filter(None, counts))]
                reporter.say("  ".join(words))
        yield outcome
