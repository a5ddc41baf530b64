"""The command line: parse, call, print. Whatever takes time is imported inside the command that needs it."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from dspt import __version__

# isort: off
# Each adds its commands to the app, in the order in which the help shows them.
from dspt.cli import learning, audit, experiments, data  # noqa: F401

# isort: on
from dspt.cli.common import Stopped, Terminated, app, in_flags, options, print, say_stopped
from dspt.internal.errors import InputError
from dspt.internal.files import in_words, is_trouble
from dspt.internal.names import printable

# Of click, or of the copy of it that comes with typer.
_UsageError: Any = typer.BadParameter.__base__


def _version(asked: bool) -> None:
    if asked:
        print(f"dspt {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; bad input is one sentence and exit status 2, the machine's trouble one and status 1."""
    signal.signal(signal.SIGTERM, _terminated)
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may know fewer letters than names have
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            status = app(standalone_mode=False)
            if status == 130:  # typer was stopped, before the command had begun
                raise Stopped
            sys.exit(status)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here and not at exit, where Python itself would complain
    except _UsageError as error:  # it quotes what was given
        error.message = printable(error.message)
        error.show()
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt, typer.Abort) as stop:
        sys.exit(say_stopped(stop.__cause__ or stop))
    except InputError as error:
        print(f"dspt: {in_flags(error, options())}", file=sys.stderr)
        # a file that could not be read for want of file handles is no bad input
        sys.exit(1 if is_trouble(error) or is_trouble(error.__context__) else 2)
    except Exception as error:
        if not (isinstance(error, OSError) or is_trouble(error)):
            raise  # a fault of ours, which its traceback tells best
        if not isinstance(error, BrokenPipeError):  # nobody listens any more, as behind "| head -1"
            print(f"dspt: {in_words(error)}", file=sys.stderr)
        _drop_output()
        sys.exit(1)


def _terminated(*_: object) -> None:
    raise Terminated


def _drop_output() -> None:
    """Have Python not try again, at exit, to write what could not be written."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
