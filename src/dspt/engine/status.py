"""How far runs are, asked of their folders: lock, result and failure outlive whoever made them.

The plan of a sweep tells the failures that a folder could not keep.

So anybody can look, from any process, and nobody has to be told that a sweep was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspt.engine.job import Job, Pace
from dspt.internal.errors import InputError
from dspt.internal.progress import clock
from dspt.internal.rounding import figure
from dspt.runs import Run

# What a run can be, in the order in which they are counted.
DONE, RUNNING, FAILED, TO_GO = STANDINGS = ("done", "running", "failed", "to go")


@dataclass(frozen=True)
class Look:
    """How far a run is at this moment.

    Attributes
    ----------
    job : Job
        The run.
    standing : str
        One of `STANDINGS`.
    epochs : int
        How many are done.
    accuracy : float, optional
        In percent: of the finished run, or after its last epoch so far.
    seconds : float
        How long its epochs took.
    reason : str
        Why it failed.
    """

    job: Job
    standing: str
    epochs: int = 0
    accuracy: float | None = None
    seconds: float = 0.0
    reason: str = ""

    @property
    def share(self) -> float:
        """Which share of the run is done."""
        return 1.0 if self.standing == DONE else min(1.0, self.epochs / max(1, self.job.config.epochs))


def look(job: Job, untold: str = "") -> Look:
    """Return how far a run is, whatever is the matter with it.

    Parameters
    ----------
    job : Job
        The run.
    untold : str
        Why its last try failed, where its folder cannot tell it.
    """
    run = Run(job.folder)
    try:
        held = run.is_held  # asked first: a run that ends in between is found done
        if (result := run.result()) is not None:
            return Look(job, DONE, result.epochs, result.accuracy, result.seconds)
        reason = run.failure()
        if not held and (reason is not None or untold):
            return Look(job, FAILED, run.epochs_recorded(), reason=untold if reason is None else reason)
        epochs, accuracy = run.reached()
        return Look(job, RUNNING if held else TO_GO, epochs, accuracy, run.seconds_spent())
    except InputError as error:
        return Look(job, FAILED, reason=error.sentence)  # its advice is for who does the run


def counts(looks: Sequence[Look]) -> dict[str, int]:
    """Return how many runs there are of each standing."""
    found = Counter(one.standing for one in looks)
    return {standing: found[standing] for standing in STANDINGS}


def seconds_left(looks: Sequence[Look]) -> float | None:
    """Return how long what is left will take, with as many runs at a time as there are now; None if nobody knows.

    A run takes as long as those most like it took, or would take at the pace of their epochs so far.
    """
    pace = Pace()
    for one in looks:
        if one.share and one.seconds:
            pace.add(one.job, one.seconds / one.share)
    left = [one for one in looks if one.standing in (RUNNING, TO_GO)]
    expected = [pace.expected(one.job) for one in left]
    if not left or None in expected:
        return None if left else 0.0
    work = sum((seconds or 0.0) * (1 - one.share) for one, seconds in zip(left, expected, strict=True))
    return work / max(1, counts(looks)[RUNNING])


def as_json(command: str, looks: Sequence[Look], is_held: bool = False) -> dict[str, Any]:
    """Return a sweep as JSON tells it; the arguments are those of `in_words`."""
    return {
        "command": command or None,
        "at_work": is_held or bool(counts(looks)[RUNNING]),
        **{standing.replace(" ", "_"): number for standing, number in counts(looks).items()},
        "seconds_left": seconds_left(looks),
        "runs": [
            {
                "run": one.job.title,
                "folder": str(one.job.folder),
                "standing": one.standing,
                "epochs": one.epochs,
                "of_epochs": one.job.config.epochs,
                "accuracy": one.accuracy,
                "error": one.reason or None,
            }
            for one in looks
        ],
    }


def in_words(command: str, looks: Sequence[Look], is_held: bool = False, every_run: bool = False) -> list[str]:
    """Return a sweep as lines: the command, how many runs are what, and each that is running or has failed.

    Parameters
    ----------
    command : str
        What does the runs; "" where nobody has planned them.
    looks : sequence of Look
        One for each run.
    is_held : bool
        Whether a process is at work on the whole of them.
    every_run : bool
        Name those that are done or to go, too.
    """
    found, left = counts(looks), seconds_left(looks)
    summary = ", ".join(f"{number:,} {standing}" for standing, number in found.items() if number or standing == DONE)
    if left:
        summary += f", about {clock(left)} left" if found[RUNNING] else f", about {clock(left)} of work, one by one"
    lines = [command or "runs that are in no sweep", f"  {summary}"]
    if command and found[TO_GO] and not found[RUNNING]:
        at_work = "at work: starting, or encoding images"
        lines.append(f"  {at_work if is_held else 'nobody is at work; the command above goes on'}")
    shown = [one for one in looks if one.standing == RUNNING or (every_run and one.standing != FAILED)]
    width = max((len(one.job.title) for one in shown), default=0)
    for one in sorted(shown, key=lambda one: STANDINGS.index(one.standing)):
        what = "" if one.accuracy is None else f"{figure(one.accuracy, 2):>6} %"
        begun = one.epochs and one.standing != DONE
        epochs = f"epoch {one.epochs}/{one.job.config.epochs}" if begun else ""
        lines.append(f"  {one.standing:<7}  {one.job.title:<{width}}  {what:>8}  {epochs}".rstrip())
    reasons: dict[str, list[Look]] = {}
    for one in looks:
        if one.standing == FAILED:
            reasons.setdefault(one.reason, []).append(one)
    for reason, those in reasons.items():
        more = f" and {len(those) - 1:,} more" if len(those) > 1 else ""
        lines.append(f"  failed   {those[0].job.title}{more}: {reason}")
    return lines
