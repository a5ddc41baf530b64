"""Files written so that a reader sees the whole of one or none of it, and read so that nobody waits or fails.

What the operating system refuses is one sentence.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dspt.internal.errors import BusyError, Fault, FileError, InputError
from dspt.internal.names import spreadsheet_cell

FAULTS = ("split", "item", "reason")

# What the machine refuses whatever was asked for: no fault of a file or of its name.
_TROUBLE = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "close other programs",
    errno.EROFS: "choose a place that can be written to",
}

# Part of the name of a temporary file: a process is known by its number on one machine alone.
_MACHINE = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
_TEMPORARY = re.compile(r"\..+\.(?:([0-9a-f]{8})-)?(\d+)-[0-9a-f]{8}\.tmp")


@contextmanager
def told(path: Path | str, then: str = "choose another place") -> Iterator[None]:
    """Turn an operating system's refusal into a `FileError`: the path, the reason, and what to do `then`."""
    try:
        yield
    except InputError:
        raise  # said already
    except OSError as error:
        raise file_error(path, error, "written", then) from error


def file_error(path: Path | str, error: OSError, done: str, then: str = "choose another place") -> FileError:
    """Return an operating system's refusal as a sentence.

    Parameters
    ----------
    path : Path or str
        What the user calls the file or folder.
    error : OSError
        The refusal.
    done : str
        What could not be done: "read" or "written".
    then : str
        What to do about it, where the reason does not tell.
    """
    what = _TROUBLE.get(error.errno or 0, then)
    return FileError(f"{path}: cannot be {done} ({error.strerror or error}); {what}")


def is_trouble(error: BaseException | None) -> bool:
    """Return whether an error is the machine's trouble: a full disk, too many open files, ..."""
    return isinstance(error, FileError) or _trouble(error) is not None


def in_words(error: Exception) -> str:
    """Return an error of the operating system that nobody has put into words as a sentence."""
    where, reason = getattr(error, "filename", None), getattr(error, "strerror", None) or str(error)
    before = f"{os.fsdecode(where)}: " if isinstance(where, str | bytes) else ""
    what = _TROUBLE.get(_trouble(error) or 0)
    return f"{before}{reason}{f'; {what}' if what else ''}"


def _trouble(error: BaseException | None) -> int | None:
    """Return the errno of the machine's trouble; libraries that are not Python tell it in their text alone."""
    if isinstance(error, OSError) and error.errno:
        return error.errno if error.errno in _TROUBLE else None
    return next((code for code in _TROUBLE if os.strerror(code) in str(error)), None)


# No text that is read as a whole is nearly as large: settings, records, tokenizers, lists of images.
_MOST_BYTES = 64 * 2**20
# No such file is nested as deeply; what is, can be read but not worked on.
_DEEPEST = 50


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name beside `path`; the file or folder made there takes its place when the block ends well.

    A folder can only take the place of an empty one.
    """
    path = Path(path)
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left(path.parent)
        temporary = temporary_name(path)
        try:
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise


def temporary_name(path: Path) -> Path:
    """Return a new name beside `path`, by which `remove_left` knows who made it."""
    # a part of the name will do, and leaves room where names are limited to 255 bytes
    return path.with_name(f".{path.name[:40]}.{_MACHINE}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def remove_left(folder: Path, everything: bool = False, stale: float | None = None) -> None:
    """Remove what killed processes have left under temporary names in a folder.

    Parameters
    ----------
    folder : Path
        Where they are; it need not be there.
    everything : bool
        Remove what living processes have there, too: for who holds the folder for itself.
    stale : float, optional
        The age in seconds at which something of another machine is nobody's any more; None is never.
    """
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if not (found := _TEMPORARY.fullmatch(entry.name)):
                continue
            path, ours = Path(entry.path), found[1] == _MACHINE
            dead = ours and not _is_alive(int(found[2]))
            if everything or dead or (not ours and stale is not None and _age(path) > stale):
                remove(path)


def _age(path: Path) -> float:
    """Return how many seconds ago something was changed, by the clock of its file system: one's own may have jumped."""
    now = temporary_name(path.with_name("now"))
    try:
        now.touch()
        return now.stat().st_mtime - path.stat().st_mtime
    finally:
        remove(now)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as it can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file or folder on disk before what comes next."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked_folder(folder: Path, name: str, busy: str) -> Iterator[None]:
    """Hold a folder, which is made if it is not there, for this process alone.

    Parameters
    ----------
    folder : Path
        What is held, by a file in it.
    name : str
        What errors call it: "run folder runs/x".
    busy : str
        What to say if another process holds it: "another process is training in it".

    Raises
    ------
    BusyError
        Another process holds it.
    """
    from filelock import FileLock, Timeout

    new = not folder.exists()
    with told(name):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _LOCK
        if file.is_symlink():  # a lock would open what it points to
            raise InputError(f"{name}: its .lock is a link to another file; remove it")
        lock = FileLock(file, timeout=_GLANCE)
        try:
            lock.acquire()
        except Timeout:
            raise BusyError(f"{name}: {busy}; wait for it", "or choose another folder with `out`") from None
    try:
        yield
    except BaseException:
        if new and [entry.name for entry in folder.iterdir()] == [file.name]:  # nothing has come of it
            remove(folder)
        raise
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds a folder, this one or another. Nothing is changed there."""
    from filelock import FileLock, Timeout

    file = folder / _LOCK
    if file.is_symlink() or not file.is_file():
        return False
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # one who may not write there cannot ask
        return False


_LOCK = ".lock"
# Seconds in which a lock that somebody else only tries is free again.
_GLANCE = 0.2


def append_text(path: Path, text: str) -> None:
    """Put `text` at the end of a file, which is made if it is not there. A link is not followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with told(path), open(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        file.write(text)


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
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: it is a device or a pipe, which a file would replace; give another name")
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


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # asking is not harmless there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
