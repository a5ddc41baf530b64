"""The figures the paper printed, to stand beside ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from dspt.experiments.catalogue import Setting, plain


@cache
def numbers() -> dict[str, Any]:
    """Return everything in paper.json."""
    return json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))


def accuracy(experiment: str, setting: Setting, label: str) -> float | None:
    """Return the accuracy in percent that the paper prints for a cell, or None if it has no such cell."""
    found = numbers().get(experiment)
    if not isinstance(found, dict):  # an experiment that is not the paper's
        return None
    noise = column(setting.noise)
    if experiment == "main":
        row = _named(found["accuracy"], setting.dataset).get(label)
        columns = found["columns"]
        return row[columns.index(noise)] if row and noise in columns else None
    if experiment == "unsupervised":
        return _named(found.get(label, {}), setting.dataset, None)
    if experiment == "cifar10":
        row = found.get(noise) if plain(setting.dataset) == "cifar10" else None
    else:
        row = _named(found, setting.dataset).get(noise)
    columns = found["columns"]
    return row[columns.index(label)] if row and label in columns else None


def zero_shot(dataset: str) -> float | None:
    """Return the paper's zero-shot accuracy on a dataset, or None."""
    return _named(numbers()["main"]["zero_shot"], dataset, None)


def column(noise: str) -> str:
    """Return a noise as the paper's tables are headed: "sym:0.4" is "sym40"."""
    kind, _, rate = noise.partition(":")
    try:
        return f"{kind}{100 * float(rate):g}"
    except ValueError:
        return noise


def _named(found: dict[str, Any], dataset: str, missing: Any = {}) -> Any:  # noqa: B006
    """The value under a dataset's name, however it is written."""
    return next((v for name, v in found.items() if plain(name) == plain(dataset)), missing)
