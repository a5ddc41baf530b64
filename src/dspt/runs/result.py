"""The figures of a finished run, and which figures a run can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dspt.internal.checks import is_number


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of a finished run; accuracies are in percent.

    Attributes
    ----------
    model
        The checkpoint, or the network.
    wrong_labels, labels_known
        The share of wrong labels among those that were learnt from and of which it is known, and how many these are;
        None where nobody knows.
    accuracy
        On the test set, averaged over `epochs_averaged` last epochs; None without one.
    last_accuracy
        Of what was learnt and is saved: after the last epoch.
    test_labels_known
        Whether the labels of the test set are known to be right; None if it was not written down.
    found
        What was found out about the labels, by name, such as the noise rate.
    skipped
        How many entries of the source were left out.
    learner, why
        What was learnt, and why, where that was left open.
    """

    data: str
    noise: str
    model: str | None = None
    wrong_labels: float | None = None
    labels_known: int | None = None
    method: str
    seed: int
    epochs: int
    accuracy: float | None
    epochs_averaged: int | None = None
    last_accuracy: float | None = None
    test_labels_known: bool | None = None
    zero_shot: float | None = None
    loss: float | None = None
    found: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    samples: int | None = None
    skipped: int = 0
    run: str = ""
    learner: str | None = None
    why: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it: what was found stands beside the rest."""
        flat: dict[str, Any] = {}
        for key, value in asdict(self).items():
            flat |= value if key == "found" else {key: value}
        return flat

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return what JSON says; raise ValueError for what no run can have."""
        known = {each.name for each in fields(cls)} - {"found"}
        found = {key: value for key, value in values.items() if key not in known}
        made = cls(**{key: values[key] for key in known if key in values}, found=found)
        odd = [name for name, sound in _SOUND.items() if not sound(getattr(made, name))]
        odd += [name for name, value in found.items() if not is_number(value)]
        if odd:
            raise ValueError(f"{odd[0]}: no run can have {values[odd[0]]!r}")
        return made


def _is_count(value: object) -> bool:
    return type(value) is int and is_number(value, 0)


# What the fields of a result may be.
_SOUND: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("data", "noise", "method", "run"), lambda value: isinstance(value, str)),
    **dict.fromkeys(
        ("accuracy", "last_accuracy", "zero_shot"), lambda value: value is None or is_number(value, 0, 100)
    ),
    "wrong_labels": lambda value: value is None or is_number(value, 0, 1),
    "loss": lambda value: value is None or is_number(value),
    "seconds": lambda value: is_number(value, 0, 1e12),  # 30,000 years
    "seed": lambda value: type(value) is int,
    "epochs": _is_count,
    **dict.fromkeys(("samples", "epochs_averaged", "labels_known"), lambda value: value is None or _is_count(value)),
    **dict.fromkeys(("model", "learner", "why"), lambda value: value is None or isinstance(value, str)),
    "test_labels_known": lambda value: value is None or isinstance(value, bool),
    "skipped": _is_count,
}
