"""Workers, wherever they are, and a bounded number of things under way with them. The same for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from dspt.internal.errors import FileError, InputError
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted

Thing = TypeVar("Thing")


class Died(Exception):
    """A worker ended before its work; by what, in words: "SIGKILL"."""


class Unfit(InputError):
    """What a worker lacks for all that it could be given, such as a folder that it cannot see: all work ends."""


class Dead(InputError):
    """What was tried as often as may be, and each time its worker died."""


class Gone(FileError):
    """All workers are gone and none can take their place: all work ends, and none of it has failed."""


class Team(Protocol):
    """Workers that do one thing each at a time.

    Attributes
    ----------
    size : int
        How many things may be under way.
    tries : int
        How often a thing is tried in all whose worker dies.
    """

    size: int
    tries: int

    def give(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a handle of `work(*arguments)`, which some worker does; both can be pickled."""

    def ended(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return those that have ended, waiting so long at most for the first."""

    def answer(self, handle: Any) -> Any:
        """Return what the work of an ended one returned, or raise what it raised.

        `Died` if its worker did, `Gone` if there will be no other.
        """

    def end(self) -> None:
        """End all workers at once."""


def check_size(jobs: int, cores: int) -> None:
    """Raise `InputError` if more are to work at a time than cores can have any use for."""
    if jobs > _MOST * cores:
        raise InputError(f"jobs {jobs}: too many at a time for {counted(cores, 'core')}; give at most {_MOST * cores}")


# Things at a time, for each core: each worker takes memory, and no wait for a disk is worth more of them.
_MOST = 8


class Window(Generic[Thing]):
    """Things under way with a team: as many as it has room for, each tried again if its worker dies.

    Parameters
    ----------
    team : Team
        Does the work.
    work : callable
        What is done with each thing.
    called : callable
        What a person calls a thing.
    reporter : Reporter
        Says that a thing is tried again.
    """

    def __init__(
        self, team: Team, work: Callable[[Thing], Any], called: Callable[[Thing], str], reporter: Reporter
    ) -> None:
        self._team = team
        self._work = work
        self._called = called
        self._reporter = reporter
        self._busy: dict[Any, tuple[Thing, int]] = {}

    @property
    def busy(self) -> list[Thing]:
        """The things under way."""
        return [thing for thing, _ in self._busy.values()]

    @property
    def has_room(self) -> bool:
        """Whether the team can take another thing."""
        return len(self._busy) < self._team.size

    def give(self, thing: Thing, tries: int = 1) -> None:
        """Have a thing done."""
        self._busy[self._team.give(self._work, thing)] = thing, tries

    def ended(self, seconds: float) -> Iterator[tuple[Thing, Any]]:
        """Yield what has ended, having waited so long for the first: each thing with the answer, or an exception."""
        if not self._busy:
            time.sleep(seconds)
        for handle in self._team.ended(list(self._busy), seconds) if self._busy else ():
            thing, tries = self._busy.pop(handle)
            try:
                answer = self._team.answer(handle)
            except (Unfit, Gone):
                raise
            except Died as death:
                how = f" ({death})" if str(death) else ""
                if tries < self._team.tries:
                    again = "once more" if tries == self._team.tries - 1 else "again"
                    self._reporter.say(f"{self._called(thing)}: its worker process died{how}; it is tried {again}")
                    self.give(thing, tries + 1)
                    continue
                answer = _dead(death, how, tries)
            except Exception as error:  # what the work raised, or what came back could not be read
                answer = error
            yield thing, answer


def spread(
    team: Team,
    work: Callable[[Thing], Any],
    things: Iterable[Thing],
    called: Callable[[Thing], str],
    reporter: Reporter,
) -> Iterator[tuple[Thing, Any]]:
    """Yield each thing with what became of it, in whatever order; things are taken as there is room for them.

    Parameters
    ----------
    team : Team
        Does the work.
    work : callable
        What is done with each thing; what it raises is raised here.
    things : iterable
        Any number of them.
    called : callable
        What a person calls a thing.
    reporter : Reporter
        Says that a thing is tried again.
    """
    window = Window(team, work, called, reporter)

    def ended() -> Iterator[tuple[Thing, Any]]:
        for thing, answer in window.ended(_PATIENCE):
            if isinstance(answer, Dead):
                raise InputError(f"{called(thing)}: {answer.sentence}", answer.advice) from answer
            if isinstance(answer, Exception):
                raise answer
            yield thing, answer

    for thing in things:
        while not window.has_room:
            yield from ended()
        window.give(thing)
    while window.busy:
        yield from ended()


# Seconds to wait for a thing to end before it is asked again.
_PATIENCE = 60.0


def _dead(death: Died, how: str, tries: int) -> Dead:
    times = {1: "", 2: " twice"}.get(tries, f" {tries} times")
    error = Dead(
        f"its worker process died{times}{how}, perhaps for want of memory; close other programs",
        "or give fewer `jobs`",
    )
    error.__cause__ = death.__cause__
    return error
