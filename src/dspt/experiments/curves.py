"""What runs recorded after each epoch, as arrays to draw. A run that did not record it is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dspt.experiments.collect import Results, TableRun
from dspt.internal.errors import InputError
from dspt.runs import METRICS

SIDES = ("right", "wrong")  # samples whose label is right, and those whose label is wrong


def curve(results: Results, runs: Sequence[TableRun], field: str, epochs: int) -> np.ndarray:
    """Return a field over the first epochs, one row a seed; NaN where there is none.

    Parameters
    ----------
    results : Results
        Names the experiment in an error.
    runs : sequence of TableRun
        The runs to read, at least one.
    field : str
        The field of an epoch's record, such as "accuracy".
    epochs : int
        How many epochs to take at most.

    Returns
    -------
    float array of shape (runs, E)
        E is `epochs`, or what the shortest run has.
    """
    rows = []
    for run in runs:
        values = [record.get(field) for record in _records(results, run, [field])[:epochs]]
        try:
            rows.append(np.array(values, dtype=float))
        except (TypeError, ValueError):
            raise _damaged(results, run) from None
    length = min(map(len, rows))
    return np.stack([row[:length] for row in rows])


def sides(
    results: Results, runs: Sequence[TableRun], field: str, epochs: int, parts: Sequence[str] = SIDES
) -> dict[str, np.ndarray]:
    """Return the curves of two parts of the samples: of right and of wrong labels, unless told otherwise.

    Parameters
    ----------
    results : Results
        Names the experiment in an error.
    runs : sequence of TableRun
        The runs to read, at least one.
    field : str
        The field of an epoch's record without "_right" or "_wrong", such as "loss".
    epochs : int
        How many epochs to take at most.
    parts : sequence of str
        ("right", "wrong") labels, or ("correct", "incorrect") predictions.

    Returns
    -------
    dict of str to float array
        By part, what `curve` returns.
    """
    return {part: curve(results, runs, f"{field}_{part}", epochs) for part in parts}


def histogram(
    results: Results, runs: Sequence[TableRun]
) -> tuple[list[float], dict[str, np.ndarray], dict[str, float]]:
    """Return edges, counts and means of the first epoch's gradients of right and of wrong labels."""
    fields = ("gradient_histogram", *(f"gradient_{side}" for side in SIDES))
    firsts = [_records(results, run, fields)[0] for run in runs]
    found = [first["gradient_histogram"] for first in firsts]
    for run, one in zip(runs, found, strict=True):
        try:
            sound = len(one["edges"]) == len(one["right"]) + 1 == len(one["wrong"]) + 1
            np.array([*one["edges"], *one["right"], *one["wrong"]], dtype=float)
        except (TypeError, ValueError, KeyError):
            sound = False
        if not sound:
            raise _damaged(results, run)
    counts = {side: np.sum([one[side] for one in found], axis=0) for side in SIDES}
    means = {}
    for side in SIDES:
        # weighed by its samples, so that it is the mean of what the histogram shows
        pairs = [(f[f"gradient_{side}"], sum(h[side])) for f, h in zip(firsts, found, strict=True)]
        known = [(mean, samples) for mean, samples in pairs if mean is not None and samples]
        if known:
            means[side] = float(np.average([m for m, _ in known], weights=[n for _, n in known]))
    return found[0]["edges"], counts, means


def largest(runs: Sequence[TableRun], field: str) -> float | None:
    """Return the largest value of a field in all epochs of these runs; None if it was not recorded in all of them."""
    try:
        return max((float(record[field]) for run in runs for record in run.run.records()), default=None)
    except (OSError, InputError, KeyError, TypeError, ValueError):
        return None


def _records(results: Results, run: TableRun, fields: Iterable[str]) -> list[dict[str, Any]]:
    """Return what a run recorded after each epoch, all of these fields among it."""
    try:
        records = run.run.records()
    except (OSError, InputError):
        records = []
    if not records:
        raise _damaged(results, run)
    missing = [field for field in fields if field not in records[0]]
    if not missing:
        return records
    if missing == ["accuracy"]:
        raise InputError(
            f"run folder {run.folder}: it was made without a test set, so there is no accuracy to draw",
            "give another `runs`",
        )
    if "loss_right" not in records[0]:
        raise InputError(
            f"run folder {run.folder}: it does not tell right from wrong labels (no {missing[0]}), "
            "because the true labels were not known",
            "give another `runs`",
        )
    raise InputError(
        f"run folder {run.folder}: it was made by an older version, "
        f"which did not record {missing[0]}; {_again(results)}"
    )


def _damaged(results: Results, run: TableRun) -> InputError:
    return InputError(f"run folder {run.folder}: {METRICS} is missing, empty or damaged; {_again(results)}")


def _again(results: Results) -> str:
    return f"remove the folder and make it again with 'dspt reproduce {results.experiment.name}'"
