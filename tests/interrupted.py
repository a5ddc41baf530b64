"""Commands to which something happens at a given step: before they change a file, or at any moment, by count.

    with Victims() as dspt:
        done = dspt("train", data, "--out", out, fault=Fault("kill", 3, out))

runs `dspt train ...` in a process that is killed before its third change of a file whose path begins with `out`. A
change is that a file is opened to be written, written to, synced, renamed or removed, or a folder made or removed.
Instead of a kill it may be Ctrl-C, or an error of the operating system such as ENOSPC: that change fails, and so does
every later one that needs room. Instead of changes, what is counted may be reads (a file opened or a folder listed), or
calls of functions, by which a command is struck in the midst of anything; by Ctrl-C at the next call of one of dspt's.

Each command is forked from one process in which everything is imported already, so that a hundred of them are quick;
one without threads, which would not live on in the fork.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import importlib
import io
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """What happens, before which change, of files whose path begins with what."""

    how: str  # "kill", "ctrl-c", or the name of an errno
    number: int  # from 1; 0 is never, and tells how many there are
    place: str | Path
    of: str = "changes"  # or "reads"; or "calls", wherever they are


@dataclass(frozen=True)
class Done:
    """What became of a command."""

    status: int  # as `subprocess` tells it: -9 after a kill
    out: str
    err: str
    changes: int  # or what else the fault counts

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def sentence(self) -> str:
        """The one sentence in which a command says why it stopped; fails if it says anything else."""
        lines = [line for line in self.err.splitlines() if line.startswith("dspt: ")]
        assert self.status in (1, 2), self
        assert len(lines) == 1, self
        assert "Traceback" not in self.err, self.err
        return lines[0]


class Victims:
    """A process that forks commands, and things happen to them."""

    def __enter__(self) -> Victims:
        here = Path(__file__)
        path = os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, str(here)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(
        self,
        *arguments: object,
        fault: Fault | None = None,
        code: str = "",
        cache: Path | None = None,
        imports: Sequence[str] = (),
    ) -> Done:
        """Return what became of `dspt ARGUMENTS...`, or of a piece of Python that finds them as its own.

        `imports` are modules that take long and are imported once, and not in every command.
        """
        asked = {
            "arguments": [str(argument) for argument in arguments],
            "code": code,
            "fault": fault and {**asdict(fault), "place": str(fault.place)},
            "imports": list(imports),
            "cache": str(cache or os.environ.get("DSPT_CACHE") or ""),
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))


# Below, what happens in the process.

_NEED_ROOM = ("open", "write", "fsync", "mkdir")
_EVENTS = {
    "os.rename": ("rename", 2),
    "os.remove": ("remove", 1),
    "os.mkdir": ("mkdir", 2),
    "os.rmdir": ("rmdir", 1),
}
_LISTS = ("os.listdir", "os.scandir")


def hurt(fault: Fault, counter: mmap.mmap) -> None:
    """Have the fault happen in this process; `counter` tells the changes, reads or calls so far."""
    struck = False

    def before(operation: str, path: str) -> None:
        nonlocal struck
        if not path.startswith(str(fault.place)) or (operation == "read") != (fault.of == "reads"):
            return
        number = int.from_bytes(counter[:8], "little") + 1
        counter[:8] = number.to_bytes(8, "little")
        now = number == fault.number
        if now and fault.how == "kill":
            if operation == "rename" and path.endswith(".tmp") and os.path.isfile(path):
                os.truncate(path, os.path.getsize(path) // 2)  # a moment ago not all of it was written yet
            os.kill(os.getpid(), signal.SIGKILL)
        elif now and fault.how == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        elif fault.how not in ("kill", "ctrl-c") and (now or (struck and operation in _NEED_ROOM)):
            struck = True
            code = getattr(errno, fault.how)
            raise OSError(code, os.strerror(code), path)

    if fault.of == "calls":
        calls, fires = 0, fault.number > 0

        def call(frame: Any, event: str, _: object) -> None:
            nonlocal calls, fires
            calls += 1
            if fires and calls >= fault.number:
                # Libraries that call Python from other languages make errors of their own of Ctrl-C.
                ours = event == "call" and f"{os.sep}dspt{os.sep}" in frame.f_code.co_filename
                if fault.how == "kill" or ours:
                    fires = False
                    counter[:8] = (fault.number - 1).to_bytes(8, "little")
                    before("call", str(fault.place))
            elif calls % 1000 == 0:  # they are many, and counted by the thousand
                counter[:8] = calls.to_bytes(8, "little")

        sys.setprofile(call)
        return

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(arguments[2], int):
                before("open" if arguments[2] & (os.O_WRONLY | os.O_RDWR) else "read", _path(arguments[0]))
        elif event in _LISTS:
            before("read", _path(arguments[0] or "."))
        elif event in _EVENTS:
            name, folder = _EVENTS[event]
            before(name, _path(arguments[0], arguments[folder]))

    class Watched(io.FileIO):
        def write(self, data: Any) -> int | None:
            before("write", _path(self.name))
            return super().write(data)

        def fileno(self) -> int:
            raise io.UnsupportedOperation  # so that numpy and PIL do not write past us

    real_open, real_fsync = io.open, os.fsync

    def watched_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+") or not _path(file).startswith(str(fault.place)):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Watched(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

    def watched_fsync(descriptor: int) -> None:
        before("fsync", _path(descriptor))
        real_fsync(descriptor)

    builtins.open = io.open = watched_open
    os.fsync = watched_fsync
    sys.addaudithook(hook)


def _path(name: Any, folder: Any = None) -> str:
    """Return the path of a name, which may be relative to a descriptor, or one itself."""
    if isinstance(name, int):
        return os.readlink(f"/proc/self/fd/{name}")
    path = os.fsdecode(name)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        path = os.path.join(_path(folder), path)
    return path


def serve() -> None:
    import filelock  # noqa: F401
    import torch

    import dspt.cli
    import dspt.experiments.figures
    import dspt.experiments.grid
    import dspt.experiments.tables
    import dspt.workflows.evaluate
    import dspt.workflows.mislabel
    import dspt.workflows.train  # once, and not in every child

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        dspt.cli.app(["methods", "--json"])  # its parser imports more when it is first used
    gc.freeze()  # else each child looks through all that was imported
    for line in sys.stdin:
        asked = json.loads(line)
        for name in asked["imports"]:
            importlib.import_module(name)
        counter = mmap.mmap(-1, 8)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if not child:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                status = 1
                try:
                    status = victim(asked, counter)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            err.seek(0)
            changes = int.from_bytes(counter[:8], "little")
            answer = {"status": status, "out": out.read(), "err": err.read(), "changes": changes}
        print(json.dumps(answer), flush=True)


def victim(asked: dict[str, Any], counter: mmap.mmap) -> int:
    if asked["cache"]:
        os.environ["DSPT_CACHE"] = asked["cache"]
    # open files of their own: what is left in the parent's buffers is not theirs
    sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    from dspt import cli

    sys.argv = ["dspt", *asked["arguments"]]
    if asked["fault"]:
        hurt(Fault(**asked["fault"]), counter)
    try:
        if asked["code"]:
            exec(asked["code"], {})
        else:
            cli.main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    finally:
        sys.setprofile(None)
    return 0


if __name__ == "__main__":
    serve()
