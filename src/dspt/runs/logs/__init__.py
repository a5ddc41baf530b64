"""What a run tells other tools as it goes on: TensorBoard, MLflow. Off unless it is asked for.

A log is made from the records of a run and its result, and holds nothing else. So it can be written again at any
moment, each point once however often a run was killed, and no run depends on it: one that cannot be written is warned
of, and the run goes on.

A log is a file here with a class that has the methods of `Log`, and a row of the table below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from dspt.internal.errors import InputError, one_line
from dspt.internal.progress import Reporter

if TYPE_CHECKING:
    from dspt.runs.folder import Run
    from dspt.runs.result import Result
    from dspt.train import Record

# Logs that could not be written for a finished run by this process.
_AWAY: set[str] = set()

# The packages that each needs; `pip install 'dspt[NAME]'` has them.
NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


class Log(Protocol):
    """Where the records of one run are written. Any method may raise anything, and may be called again then."""

    def epochs(self, records: Sequence[Record]) -> None:
        """Write those of all records so far that are not there yet."""

    def result(self, result: Result) -> None:
        """Write the figures of the run."""

    def close(self, how: str) -> None:
        """Say how the run ended: "finished", "failed" or "stopped"."""


def names(text: str) -> list[str]:
    """Return the logs that "tensorboard,mlflow" names; raise `InputError` unless they are known and installed."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in found:
        if name not in NEEDS:
            raise InputError(f"log {name!r}: not known; expected {' or '.join(NEEDS)}, or both with a comma between")
        if any(find_spec(package) is None for package in NEEDS[name]):
            raise InputError(f"log {name!r}: it needs another package: pip install 'dspt[{name}]'")
    return found


@contextmanager
def opened(text: str, run: Run, reporter: Reporter) -> Iterator[Logs]:
    """Yield the logs of a run, which are told how it ended.

    Parameters
    ----------
    text : str
        Which: "tensorboard", "mlflow", both with a comma between, or "" for none.
    run : Run
        The folder of the run, begun and held by this process.
    reporter : Reporter
        Warns of a log that cannot be written.
    """
    logs = Logs({name: _maker(name, run) for name in names(text)}, reporter)
    how = "failed"
    try:
        yield logs
        how = "finished"
    except (KeyboardInterrupt, GeneratorExit):
        how = "stopped"
        raise
    finally:
        logs.close(how)


def complete(text: str, run: Run, result: Result, reporter: Reporter) -> None:
    """Write the logs of a finished run, as far as they are not there.

    A sweep does so for all that it has done before: a log that fails for one of them is not tried for the others.

    Parameters
    ----------
    text : str
        Which: "tensorboard", "mlflow", both with a comma between, or "" for none.
    run : Run
        The folder, held by this process.
    result : Result
        Its figures.
    reporter : Reporter
        Warns of a log that cannot be written.
    """
    text = ",".join(name for name in names(text) if name not in _AWAY)
    if not text:
        return
    try:
        records = run.records()
    except InputError as error:
        reporter.warn(f"log {text}: {error}")
        return
    with opened(text, run, reporter) as logs:
        logs.result(result, records)
        _AWAY.update(logs.failed)


class Logs:
    """Several logs, none of which can do a run any harm.

    One that has failed is warned of once and left alone until the end, when all that it lacks is tried again: a server
    that was away for an hour has lost nothing.

    Parameters
    ----------
    makers : mapping of str to callable
        What opens each log, by its name.
    reporter : Reporter
        Warns of a log that cannot be written.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Log]], reporter: Reporter) -> None:
        self._makers = makers
        self._reporter = reporter
        self._open: dict[str, Log] = {}
        self.failed: set[str] = set()  # the names of those that could not be written
        self._records: Sequence[Record] = ()

    def epochs(self, records: Sequence[Record]) -> None:
        """Have all records so far in every log."""
        self._records = records
        for name in self._makers:
            if name not in self.failed:
                self._try(name, lambda log: log.epochs(records))

    def result(self, result: Result, records: Sequence[Record] | None = None) -> None:
        """Have all records and the figures in every log, those that have failed before among them."""
        written = self._records if records is None else records

        def write(log: Log) -> None:
            log.epochs(written)
            log.result(result)

        again, self.failed = self.failed, set()
        for name in self._makers:
            self._try(name, write, silent=name in again)

    def close(self, how: str) -> None:
        """Say how the run ended in every log that has been written."""
        for name in list(self._open):
            if name not in self.failed:
                self._try(name, lambda log: log.close(how))

    def _try(self, name: str, work: Callable[[Log], object], silent: bool = False) -> None:
        try:
            if name not in self._open:
                self._open[name] = self._makers[name]()
            work(self._open[name])
        except Exception as error:  # whatever a library raises: the run is worth more than its log
            self._open.pop(name, None)
            self.failed.add(name)
            if not silent:
                reason = one_line(_ADDRESS.sub("", f"{type(error).__name__}: {error}".splitlines()[0]))
                self._reporter.warn(f"log {name}: it cannot be written ({reason}); the run goes on without it")


# Of an object in memory, which is another for every run: the same reason is to be the same words.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return what can be drawn of a record or a result: numbers by name, but for the epoch, which is the axis."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("epoch", "epochs", "seed")
    }


def facts(run: Run) -> dict[str, str]:
    """Return what a run is, by name, as texts: its data, its noise and all its settings."""
    described = run.description()
    settings = vars(described.settings)
    found = {"data": described.data, "noise": described.noise, "classes": len(described.class_names), **settings}
    return {name: " ".join(value) if isinstance(value, tuple) else str(value) for name, value in found.items()}


def _maker(name: str, run: Run) -> Callable[[], Log]:
    def make() -> Log:
        made: Log = import_module(f"dspt.runs.logs.{name}").open_log(run)
        return made

    return make
