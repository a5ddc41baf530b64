"""Telling the user how far long work is: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from dspt.internal.names import printable

# Without a terminal a line every so often is enough to see that work goes on.
_QUIET_SECONDS = 5.0

Update = Callable[[float, str], None]


class Reporter:
    """Says lines and shows the progress of tasks; a silent one does neither.

    `wording` is what becomes of a line before it is said: the command line writes its options for settings.
    `warns` has warnings printed by one that is silent otherwise.
    """

    def __init__(self, silent: bool = False, wording: Callable[[str], str] = str, warns: bool = False) -> None:
        self.silent = silent
        self._wording = wording
        self._warns = warns or not silent
        self._terminal = not silent and sys.stderr.isatty()
        self._warned: set[str] = set()  # by this one and all that it is split into
        self._piece = ""  # of what all is a part that is shown

    def say(self, line: str) -> None:
        """Print one line."""
        if not self.silent:
            self._print(line)

    def warn(self, line: str) -> None:
        """Print one line that changes what a figure means, once: a command says it even where it shows no progress."""
        if self._warns and line not in self._warned:
            self._warned.add(line)
            self._print(line)

    def within(self, piece: str) -> Reporter:
        """Return a reporter for one of many pieces of work: its tasks are named after it, and leave no last line."""
        found = copy(self)
        found._piece = piece
        return found

    def _print(self, line: str) -> None:
        print(printable(self._wording(line)), file=sys.stderr, flush=True)

    @contextmanager
    def task(self, title: str, total: float, done: float = 0, unit: str = "") -> Iterator[Update]:
        """Yield a function `update(done, text)` that shows how far the task is.

        On a terminal the text stands beside the bar; elsewhere there is a line every few seconds, and a last one. A
        `unit`, such as "images", has its rate shown: "31 images/s".

        Parameters
        ----------
        title : str
            What the task is called.
        total : float
            The amount of work, in any unit.
        done : float
            How much of it is done at the beginning; if all of it, nothing is shown.
        unit : str
            What the amount counts; "" shows no rate.
        """
        if self.silent or total <= done:
            yield lambda done, text: None
        else:
            shown = self._bar if self._terminal else self._lines
            title = f"{self._piece} {title}" if self._piece else title
            with shown(title, total, _Pace(total, done, unit)) as update:
                yield update

    @contextmanager
    def _bar(self, title: str, total: float, pace: _Pace) -> Iterator[Update]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(printable(title), total=total, text="")
            progress.update(task, completed=pace.done)

            def update(done: float, text: str) -> None:
                progress.update(task, completed=done, text=printable(pace.words(done, text)))

            yield update

    @contextmanager
    def _lines(self, title: str, total: float, pace: _Pace) -> Iterator[Update]:
        said, line, last = time.monotonic(), "", ""

        def update(done: float, text: str) -> None:
            nonlocal said, line, last
            line = "  ".join(filter(None, [f"{title} {100 * done / total:3.0f} %", pace.words(done, text)]))
            if time.monotonic() - said >= _QUIET_SECONDS:
                said, last = time.monotonic(), line
                self.say(line)

        yield update
        if line != last and not self._piece:
            self.say(line)


class _Pace:
    """How fast work goes, measured from its first finished piece on: what is before that is start-up.

    Parameters
    ----------
    total : float
        The amount of work.
    done : float
        How much of it is done at the beginning.
    unit : str
        What the amount counts; "" has no rate.
    """

    def __init__(self, total: float, done: float, unit: str) -> None:
        self.total, self.done, self.unit = total, done, unit
        self._started: float | None = None

    def words(self, done: float, text: str) -> str:
        """Return the text, or the rate if there is none, and the time left, as far as they are known."""
        now = time.monotonic()
        if self._started is None:
            if done > self.done:
                self._started, self.done = now, done
            return text
        pieces, seconds = done - self.done, now - self._started
        if pieces <= 0 or seconds <= 0:
            return text
        rate = pieces / seconds
        if self.unit:
            text = text or f"{rate:.{0 if rate >= 10 else 1}f} {self.unit}/s"
        left = f"{clock((self.total - done) / rate)} left" if done < self.total else ""
        return "  ".join(filter(None, [text, left]))


def clock(seconds: float) -> str:
    """Return a duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
