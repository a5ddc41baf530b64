"""A run that is to be done, and what became of it. Both can be pickled, so that any process may do the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dspt.config import Settings
from dspt.data import Dataset, open_dataset
from dspt.internal.errors import InputError
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
    """

    source: str
    noise: str
    config: Settings
    folder: Path
    title: str

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
