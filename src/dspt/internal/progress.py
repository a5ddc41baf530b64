"""Telling the user how far long work is: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dspt.internal.names import printable

# Without a terminal a line every so often is enough to see that work goes on.
_QUIET_SECONDS = 15.0

Update = Callable[[float, str], None]


class Reporter:
    """Says lines and shows the progress of tasks; a silent one does neither.

    `wording` is what becomes of a line before it is said: the command line writes its options for settings.
    """

    def __init__(self, silent: bool = False, wording: Callable[[str], str] = str) -> None:
        self.silent = silent
        self._wording = wording
        self._terminal = not silent and sys.stderr.isatty()

    def say(self, line: str) -> None:
        """Print one line."""
        if not self.silent:
            print(printable(self._wording(line)), file=sys.stderr, flush=True)

    @contextmanager
    def task(self, title: str, total: float, done: float = 0, unit: str = "") -> Iterator[Update]:
        """Yield a function `update(done, text)` that shows how far the task is.

        On a terminal the text stands beside the bar; elsewhere each new text is a line of its own, with the time left.
        A `unit`, such as "images", has its rate shown: "31 images/s".

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
        elif self._terminal:
            with self._bar(title, total, done, unit) as update:
                yield update
        else:
            yield self._lines(title, total, done, unit)

    @contextmanager
    def _bar(self, title: str, total: float, done: float, unit: str) -> Iterator[Update]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(printable(title), total=total, text="")
            progress.update(task, completed=done)

            started, first = time.monotonic(), done

            def update(done: float, text: str) -> None:
                text = text or _rate(done - first, time.monotonic() - started, unit)
                progress.update(task, completed=done, text=printable(text))

            yield update

    def _lines(self, title: str, total: float, first: float, unit: str) -> Update:
        started = said = time.monotonic()
        last = ""

        def update(done: float, text: str) -> None:
            nonlocal said, last
            now = time.monotonic()
            new = text != last
            if not new and (now - said < _QUIET_SECONDS or done >= total):
                return
            said, last = now, text
            left = (now - started) * (total - done) / max(done - first, 1e-9)
            text = text or _rate(done - first, now - started, unit)
            parts = [f"{title} {100 * done / total:3.0f} %", text, f"{clock(left)} left"]
            self.say("  ".join(filter(None, parts)))

        return update


def _rate(done: float, seconds: float, unit: str) -> str:
    if not unit or seconds <= 0:
        return ""
    rate = done / seconds
    return f"{rate:.{0 if rate >= 10 else 1}f} {unit}/s"


def clock(seconds: float) -> str:
    """Return a duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
