"""Worker processes: what has them work, how they are started, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dspt.internal.files import uninterrupted

# Does a piece of work with each part, in any process and in any order, and yields the part with what came of it. Work
# and parts can be pickled; the text of a part is what a person calls it.
Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[tuple[Any, Any]]]

# Both go to the whole group of processes; the first one ends its workers itself.
_STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def starting() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM until the block has ended; processes started in it never hear of them.

    One that is still importing would answer with a traceback, and one that is half-started would be nobody's.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with uninterrupted():  # to ignore them would lose one that comes to a thread that does not block it
        _start_trackers()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # what a process inherits
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_trackers() -> None:
    """Start the processes that clean up behind workers: whoever starts them lets signals through again."""
    from multiprocessing import resource_tracker

    from loky.backend import resource_tracker as of_loky

    for tracker in (resource_tracker, of_loky):
        tracker._resource_tracker.ensure_running()


def end_with(parent: int) -> None:
    """Have this process end when its parent does, and only then: whatever stops a command, nothing is left running."""
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End this process when its parent was killed and cannot do it any more."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
