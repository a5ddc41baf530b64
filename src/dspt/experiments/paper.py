"""The figures the paper printed, to stand beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dspt.experiments.catalogue import Condition
from dspt.internal.files import read_json
from dspt.internal.names import plain


def accuracy(experiment: str, condition: Condition, label: str) -> float | None:
    """Return the accuracy in percent that the paper prints for a cell, or None if it has no such cell.

    Parameters
    ----------
    experiment : str
        The name of the table or figure.
    condition : Condition
        The dataset, however its name is written, and the noise.
    label : str
        The label of the variant: the method's name in the table.
    """
    noises = _of(_numbers()["accuracy"].get(experiment, {}), condition.dataset) or {}
    found: float | None = noises.get(condition.noise, {}).get(label)
    return found


def zero_shot(dataset: str) -> float | None:
    """Return the paper's zero-shot accuracy on a dataset, or None."""
    found: float | None = _of(_numbers()["zero_shot"], dataset)
    return found


@cache
def _numbers() -> dict[str, Any]:
    """Return paper.json: "accuracy" by experiment, dataset, noise and label; "zero_shot" by dataset."""
    found: dict[str, Any] = read_json(Path(__file__).with_name("paper.json"))
    return found


def _of(found: Mapping[str, Any], dataset: str) -> Any:
    """Return the value under a dataset's name, however it is written; None if there is none."""
    return next((value for name, value in found.items() if plain(name) == plain(dataset)), None)
