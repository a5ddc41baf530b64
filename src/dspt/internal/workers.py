"""What every worker process does when it starts."""

from __future__ import annotations

import os
import signal
import threading
import time


def end_with(parent: int) -> None:
    """Have this process end when its parent does, and only then: whatever stops a command, nothing is left running."""
    # Both go to the whole group; the parent ends its workers itself.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End this process when its parent was killed and cannot do it any more."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
