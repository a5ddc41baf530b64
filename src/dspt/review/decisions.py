"""What a person has decided about samples of an audit, durable the moment it is decided."""

from __future__ import annotations

from dataclasses import dataclass

KEEP, RELABEL, REMOVE = "keep", "relabel", "remove"
ACTIONS = (KEEP, RELABEL, REMOVE)


@dataclass(frozen=True)
class Decision:
    """What was decided about one sample.

    Attributes
    ----------
    action : str
        "keep" the given label, "relabel" it, or "remove" the sample.
    label : int
        The class it has from then on: the given one if it is kept, -1 if it is removed.
    """

    action: str
    label: int
