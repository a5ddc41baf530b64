"""Finished runs below a folder, and why other folders are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dspt.data import cifar, featurefile, manifest, nine
from dspt.internal.errors import InputError
from dspt.internal.names import plain
from dspt.runs.description import Description
from dspt.runs.folder import CONFIG, FAILURE, FILES, RESULT, STATE, Run
from dspt.runs.result import Result


@dataclass(frozen=True)
class Finished:
    """A finished run, as its folder tells it."""

    run: Run
    description: Description
    result: Result


class NotUsed(InputError):
    """Why a run folder is not used, by tables or at all: `folder`, and the `reason` without its name."""

    def __init__(self, folder: Path, why: InputError) -> None:
        self.folder = folder
        self.reason = InputError(why.sentence.removeprefix(f"run folder {folder}: "), why.advice)
        super().__init__(f"run folder {folder}: {self.reason.sentence}", why.advice)


def find(folder: Path, tell: Callable[[NotUsed], None] = lambda why: None) -> list[Finished]:
    """Return the finished runs below a folder, sorted by path.

    A run that is not finished, a damaged one, one of another version or with the result of another run is passed over,
    and so is a folder that cannot be read; `tell` hears which and why.
    """

    def unread(error: OSError) -> None:
        tell(NotUsed(Path(error.filename), InputError(f"cannot be read ({error.strerror})")))

    found = []
    walk = os.walk(folder, onerror=unread)
    for path in sorted(Path(path) for path, *names in walk if {RESULT, STATE, FAILURE} & {*names[0], *names[1]}):
        try:
            found.append(_finished(Run(path)))
        except InputError as why:
            tell(NotUsed(path, why))
    return found


def begun(folder: Path) -> list[Path]:
    """Return the folders below a folder in which a run was begun, finished or not, sorted."""
    return sorted(Path(path) for path, _, names in os.walk(folder) if CONFIG in names)


def _finished(run: Run) -> Finished:
    for name in FILES:
        if (run.path / name).exists() and not (run.path / name).is_file():  # a pipe would be read for ever
            raise InputError(f"run folder {run.path}: {name} is not a regular file; remove it")
    if (failure := run.failure()) is not None and not (run.path / RESULT).exists():
        raise InputError(f"run folder {run.path}: it failed ({failure}); the command that began it tries it again")
    description, result = run.description(), run.result()
    if result is None:
        raise InputError(f"run folder {run.path}: it is not finished; the command that began it goes on with it")
    if difference := _difference(description, result):
        raise InputError(
            f"run folder {run.path}: its {RESULT} belongs to another run ({difference}); remove the folder"
        )
    return Finished(run, description, result)


def _difference(description: Description, result: Result) -> str:
    """Return in what a result is not of the run described: "its seed is 2, not 1"; "" if in nothing."""
    settings, source = description.settings, description.data or ""
    asked = {
        "data": result.data if _may_be_called(source, result.data) else source,
        "noise": description.noise or result.noise,
        "method": settings.method,
        "seed": settings.seed,
        "epochs": settings.epochs if result.epochs else 0,  # zero-shot learns in none
    }
    given = {name: getattr(result, name) for name in asked}
    return next(
        (f"its {name} is {given[name]!r}, not {asked[name]!r}" for name in asked if given[name] != asked[name]), ""
    )


def _may_be_called(source: str, name: str) -> bool:
    """Return whether data of this source may have this name. A folder may be a link to one of any name."""
    if known := _known(source):
        return known is _known(name)
    path = Path(source)
    return path.suffix not in (*manifest.SUFFIXES, *featurefile.SUFFIXES) or plain(path.stem) == plain(name)


def _known(name: str) -> object:
    return nine.find(name) or cifar.find(name)
