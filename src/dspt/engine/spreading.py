"""Work on parts that a team of workers does, wherever it is: encoding images, passes over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from dspt.engine.team import Team, spread
from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.workers import Spread


@contextmanager
def spreading(team_for: Callable[[], Team], reporter: Reporter | None = None) -> Iterator[Spread]:
    """Yield what has a team work on parts. The team starts with the first part, and ends with the block.

    Parameters
    ----------
    team_for : callable
        Starts the workers.
    reporter : Reporter, optional
        Says that a part is given to another worker, since its own died.
    """
    teams: list[Team] = []

    def end() -> None:
        with uninterrupted():
            while teams:
                teams.pop().end()

    def with_team(work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        rest = iter(parts)
        if (first := next(rest, None)) is None:
            return
        if not teams:
            teams.append(team_for())
        try:
            yield from spread(teams[0], work, chain([first], rest), str, reporter or Reporter(silent=True))
        except BaseException:
            end()  # workers may be at parts that nobody waits for any more
            raise

    try:
        yield with_team
    finally:
        end()
