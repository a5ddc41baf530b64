"""Images encoded by a team of workers, a shard each at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from dspt.engine.team import Team, spread
from dspt.features import Spread
from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted


@contextmanager
def spreading(team_for: Callable[[], Team], reporter: Reporter) -> Iterator[Spread]:
    """Yield what has a team encode, which starts with the first image to encode and ends with the block.

    Parameters
    ----------
    team_for : callable
        Starts the workers.
    reporter : Reporter
        Says that images are given to another worker, since theirs died.
    """
    teams: list[Team] = []

    def with_team(work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        rest = iter(parts)
        if (first := next(rest, None)) is None:
            return
        if not teams:
            teams.append(team_for())
        yield from spread(teams[0], work, chain([first], rest), _called, reporter)

    try:
        yield with_team
    finally:
        with uninterrupted():
            for team in teams:
                team.end()


def _called(part: Any) -> str:
    return f"{counted(len(part.positions), 'image')} from {part.positions[0]} on"
