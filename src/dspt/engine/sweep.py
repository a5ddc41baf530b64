"""A sweep is many jobs below one folder, with a plan beside their runs that says what is to be done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspt.config import from_dict
from dspt.engine.job import Job, Outcome
from dspt.internal.errors import InputError
from dspt.internal.files import read_json, remove_left, write_json
from dspt.runs import Run, begun

_FILE = "sweep-{}.json"
# Seconds in which a lock that somebody else only tries is free again.
_GLANCE = 0.2


@dataclass(frozen=True)
class Sweep:
    """The jobs of a sweep, and the command that does them; "" where nobody has planned them.

    `untold` has, by folder, why runs failed whose folders cannot tell it. `is_held` is whether the command is at work.
    """

    command: str
    jobs: tuple[Job, ...]
    untold: Mapping[Path, str] = field(default_factory=dict)
    is_held: bool = False


def plan(out: Path, jobs: Sequence[Job], command: str) -> Path:
    """Return the file below `out` in which the plan of a sweep now is: the same jobs have the same file.

    Parameters
    ----------
    out : Path
        The folder below which the run folders are.
    jobs : sequence of Job
        All jobs of the sweep, done or not.
    command : str
        What a user types to do them, or to go on.
    """
    if not_folder := next((path for path in (out, *out.parents) if path.exists() and not path.is_dir()), None):
        raise InputError(f"runs {out}: {not_folder} is not a folder", "give another one with `runs`")
    for folder in {job.folder.parent for job in jobs}:
        remove_left(folder)  # of a command that was killed
    runs = [
        {
            "run": job.title,
            "folder": job.folder.relative_to(out).as_posix(),
            "data": job.source,
            "noise": job.noise,
            "settings": asdict(job.config),
        }
        for job in jobs
    ]
    names = json.dumps([run["folder"] for run in runs])
    path = out / _FILE.format(hashlib.blake2b(names.encode(), digest_size=4).hexdigest())
    write_json(path, {"command": command, "runs": runs})
    return path


def noted(outcomes: Iterable[Outcome], path: Path) -> Iterator[Outcome]:
    """Yield outcomes; in the end the plan says why those failed whose folders do not: they are not a run's, or full.

    Until then the plan is held, by which others know that somebody is at work, whatever the work is. The next
    `plan` of the same jobs forgets these reasons, as the next try of a run removes what its folder tells.

    Parameters
    ----------
    outcomes : iterable of Outcome
        Of the jobs of the plan.
    path : Path
        The plan.
    """
    untold: dict[str, str] = {}
    with _held(path):
        try:
            for outcome in outcomes:
                if outcome.error is not None and not _is_told(outcome.job):
                    untold[outcome.job.folder.relative_to(path.parent).as_posix()] = str(outcome.error)
                yield outcome
        finally:
            if untold:
                with suppress(InputError, OSError):  # where nothing can be written, the command has said it
                    write_json(path, {**read_json(path), "failed": untold})


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a plan, unless another process does."""
    from filelock import FileLock, Timeout

    lock = FileLock(_lock(path), timeout=_GLANCE)
    with suppress(Timeout, OSError):  # nothing that is done depends on it
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_held(path: Path) -> bool:
    from filelock import FileLock, Timeout

    if not _lock(path).is_file():
        return False
    try:
        with FileLock(_lock(path), timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # one who may not write there cannot ask
        return False


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def untold(out: Path) -> dict[Path, str]:
    """Return by folder why runs of the sweeps of a folder failed, where the folders of these runs do not tell it."""
    found: dict[Path, str] = {}
    for path in sorted(out.glob(_FILE.format("*"))):
        with suppress(InputError):
            found |= _read(path).untold
    return {folder: reason for folder, reason in found.items() if not Run(folder).is_begun}


def _is_told(job: Job) -> bool:
    try:
        return Run(job.folder).failure() is not None
    except InputError:
        return False


def find(out: Path) -> list[Sweep]:
    """Return the sweeps of a folder, the one that was started last first, then the runs that are in none of them."""
    if not out.is_dir():
        what = "it is not a folder" if out.exists() else "there is no such folder"
        raise InputError(f"folder {out}: {what}; give that of a sweep, as dspt reproduce names it")
    plans = sorted(out.glob(_FILE.format("*")), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    sweeps = [_read(path) for path in plans]
    planned = {job.folder for sweep in sweeps for job in sweep.jobs}
    others = [_unplanned(folder, out) for folder in begun(out) if folder not in planned]
    if others:
        sweeps.append(Sweep("", tuple(filter(None, others))))
    if not sweeps:
        raise InputError(f"folder {out}: no run has been begun in it; give that of a sweep")
    return sweeps


def _read(path: Path) -> Sweep:
    try:
        found = read_json(path)
        untold = {path.parent / folder: str(reason) for folder, reason in found.get("failed", {}).items()}
        jobs = tuple(_job(run, path.parent) for run in found["runs"])
        return Sweep(str(found["command"]), jobs, untold, _is_held(path))
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: it is not the plan of a sweep; remove it") from None


def _job(run: Mapping[str, Any], out: Path) -> Job:
    config = from_dict(run["settings"])
    return Job(str(run["data"]), str(run["noise"]), config, out / run["folder"], str(run["run"]))


def _unplanned(folder: Path, out: Path) -> Job | None:
    """Return the run of a folder that is in no plan; None if it is no run's."""
    try:
        found = Run(folder).description()
    except InputError:
        return None
    name = folder.relative_to(out).as_posix()
    return Job(found.data or "", found.noise or "none", found.settings, folder, name if name != "." else out.name)
