"""Files written so that a reader sees the whole of one or none of it, and read so that nobody waits or fails."""

from __future__ import annotations

import csv
import json
import os
import signal
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspt.internal.errors import Fault, InputError
from dspt.internal.names import spreadsheet_cell

FAULTS = ("split", "item", "reason")

# No text that is read as a whole is nearly as large: settings, records, tokenizers, lists of images.
_MOST_BYTES = 64 * 2**20
# No such file is nested as deeply; what is, can be read but not worked on.
_DEEPEST = 50


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name beside `path`; what was written there takes its place when the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM until the block has ended, for writes that belong together."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread alone
        return
    came: list[int] = []
    before = {stop: signal.signal(stop, lambda number, _: came.append(number)) for stop in _STOPS}
    try:
        yield
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
    for number in came:
        signal.raise_signal(number)


_STOPS = (signal.SIGINT, signal.SIGTERM)


def write_text(path: Path | str, text: str) -> None:
    """Put `text` at `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path | str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """Put a table for people at `path`, whole or not at all; no spreadsheet calculates its cells.

    Parameters
    ----------
    path : Path or str
    columns : sequence of str
        The first line.
    rows : iterable of iterables of str
        A byte of a file name that is no text is written as it is.
    """
    with (
        replacing(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(map(spreadsheet_cell, row) for row in rows)


def write_faults(path: Path | str, faults: Iterable[Fault]) -> None:
    """Put the list of what was left out at `path`, whole or not at all."""
    write_csv(path, FAULTS, ((fault.split, fault.name, fault.reason) for fault in faults))


def write_json(path: Path | str, value: Any) -> None:
    """Put `value` at `path` as JSON, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A byte of a file name that is no text is written as JSON escapes it.
    write_text(path, text.encode(errors="backslashreplace").decode())


def check_free(path: Path | str, overwrite: bool = False, mark: bytes = b"") -> None:
    """Raise `InputError` if there is something at `path` that nobody asked to replace.

    Parameters
    ----------
    path : Path or str
        Where a file is to be written.
    overwrite : bool
        Whether a file that is there may be replaced.
    mark : bytes
        What a file of our own has in it: it may be replaced, since making it again is the usual way to use it.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: it is a folder and cannot be written as a file; give another name")
    if overwrite or not os.path.lexists(path) or (mark and path.is_file() and mark in path.read_bytes()):
        return
    raise InputError(f"{path}: it is there already; give another name", "or set `overwrite` to replace it")


def check_regular(path: Path | str, name: str = "") -> None:
    """Raise `InputError` unless there is a regular file at `path`; a pipe would be waited for, a device has no end."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{name or path}: cannot be read ({error})") from None
    if not regular:
        raise InputError(f"{name or path}: cannot be read (not a regular file)")


def read_text(path: Path | str, name: str = "") -> str:
    """Return the UTF-8 text of a regular file, called `name` in errors; only that there is none is left to the caller.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    InputError
        It cannot be read, is no text, or is far larger than any such file.
    """
    check_regular(path, name)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{name or path}: larger than {_MOST_BYTES >> 20} MiB")
        return data.decode()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name or path}: cannot be read ({error})") from None


def read_json(path: Path | str, name: str = "") -> Any:
    """Return the value in a JSON file; errors are those of `read_text`, and `InputError` for what is no JSON."""
    return parse_json(read_text(path, name), name or str(path))


def parse_json(text: str, name: str = "") -> Any:
    """Return the value of a JSON text, called `name` in errors; raise `InputError` if it is none."""
    try:
        value = json.loads(text)
        level = [value]
        for _ in range(_DEEPEST):
            nests = [each for each in level if isinstance(each, dict | list)]
            level = [one for nest in nests for one in (nest.values() if isinstance(nest, dict) else nest)]
        if not level:
            return value
        reason = "nested too deeply"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise InputError(f"{name and f'{name}: '}not valid JSON ({reason})")
