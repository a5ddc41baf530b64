"""Writing files so that a reader sees the whole of one or none of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspt.internal.errors import InputError


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
    """Put off Ctrl-C until the block has ended, for writes that belong together."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers Ctrl-C to the main thread alone
        return
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def write_text(path: Path | str, text: str) -> None:
    """Put `text` at `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
