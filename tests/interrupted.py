"""Commands that are stopped at a given step: just before they change a file, not after some time.

    python tests/interrupted.py ctrl-c 3 PATH ARGUMENT...   Ctrl-C in `dspt ARGUMENT...` before the third change
    python tests/interrupted.py kill PATH ARGUMENT...       kill -9 before the first change, in what goes on from
                                                            there before its second, and so on to the end

A change is that a file is opened to be written, renamed or removed, or a folder made, whose path begins with PATH.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count


def before_change(place: str, number: int, action: Callable[[str, str], None]) -> None:
    """Have `action(event, path)` done before the `number`-th change in this process."""
    numbers = count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        else:
            changes = event in ("os.rename", "os.remove", "os.mkdir")
        if changes and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(arguments[0])
            if path.startswith(place) and next(numbers) == number:
                action(event, path)

    sys.addaudithook(hook)


def ctrl_c(event: str, path: str) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def kill(event: str, path: str) -> None:
    if event == "os.rename":  # a moment ago not all of it was written yet
        os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def run(arguments: list[str]) -> None:
    from dspt import cli

    sys.argv = ["dspt", *arguments]
    cli.main()


def killed_again_and_again(place: str, arguments: list[str]) -> int:
    """Return how often the command was killed until it came to its end."""
    import dspt.cli
    import dspt.workflows.train  # noqa: F401 - once, and not in every child

    for number in count(1):
        child = os.fork()
        if not child:
            before_change(place, number, kill)
            try:
                run(arguments)
            except SystemExit as stop:
                os._exit(stop.code if isinstance(stop.code, int) else 0)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            break
    assert status == 0, f"exit status {status}"
    return number - 1


if __name__ == "__main__":
    how, *rest = sys.argv[1:]
    if how == "kill":
        print(killed_again_and_again(rest[0], rest[1:]))
    else:
        before_change(rest[1], int(rest[0]), ctrl_c)
        run(rest[2:])
