"""What an experiment would run, as a table by dataset and method, with how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspt.engine.forecast import Forecast
from dspt.experiments import terminal, words
from dspt.experiments.catalogue import Experiment
from dspt.internal.errors import InputError
from dspt.internal.names import wrapped
from dspt.internal.progress import clock
from dspt.internal.rounding import counted


def cells(experiment: Experiment, forecasts: Sequence[Forecast]) -> list[dict[str, Any]]:
    """Return the runs that are done and to go for each dataset and method, with the seconds to go."""
    labels = {(variant.method, variant.options): variant.label for variant in experiment.variants}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in forecasts:
        dataset, method = one.job.source, labels[one.job.config.method, one.job.config.option]
        empty = {"dataset": dataset, "method": method, "done": 0, "to_go": 0, "seconds": 0.0}
        cell = found.setdefault((dataset, method), empty)
        cell["done" if one.done else "to_go"] += 1
        cell["seconds"] += one.seconds
    return list(found.values())


def in_words(
    experiment: Experiment, forecasts: Sequence[Forecast], width: int, wording: Callable[[InputError], str] = str
) -> list[str]:
    """Return the plan as lines for a terminal.

    Parameters
    ----------
    experiment : Experiment
        Whose runs they are.
    forecasts : sequence of Forecast
        One for each run.
    width : int
        Columns of the terminal.
    wording : callable
        Writes why a dataset cannot be used.
    """
    found = cells(experiment, forecasts)
    faults = {one.job.source: one.fault for one in forecasts if one.fault}
    datasets = list(dict.fromkeys(cell["dataset"] for cell in found))
    methods = list(dict.fromkeys(cell["method"] for cell in found))

    def total(name: str, **where: str) -> Any:
        return sum(cell[name] for cell in found if all(cell[key] == value for key, value in where.items()))

    def to_go(**where: str) -> str:
        left, done = total("to_go", **where), total("done", **where)
        return f"{left:,}/{left + done:,}" if left and done else f"{left:,}" if left else "done" if done else ""

    def about(**where: str) -> str:
        return clock(total("seconds", **where)) if total("seconds", **where) else ""

    rows = [["runs to go", *methods, "all", "about"]]
    for name in datasets:
        left = [to_go(dataset=name), "-" if name in faults else about(dataset=name)]
        rows.append([name, *(to_go(dataset=name, method=method) for method in methods), *left])
    if len(datasets) > 1:
        rows.append(["all", *(to_go(method=method) for method in methods), to_go(), about()])
    if about():
        rows.append(["about", *(about(method=method) for method in methods), "", about()])
    noises = ", ".join(map(words.short, experiment.noises))
    seeds = f"{'seeds' if len(experiment.seeds) > 1 else 'seed'} {', '.join(map(str, experiment.seeds))}"
    said = [f"{experiment.name}: {counted(len(forecasts), 'run')}, {total('done'):,} done; {noises}; {seeds}"]
    below = [f"{name} cannot be done: {wording(fault)}" for name, fault in faults.items()]
    if about():
        below.append(
            f"About {about()} in all, by a step timed here and by runs that are done. Encoding images for the first "
            "time comes on top, and for methods without a finished run what is done between epochs."
        )

    def lines(sentences: Sequence[str]) -> list[str]:
        return [line for sentence in sentences for line in wrapped(sentence, width)]

    return [*lines(said), "", *terminal.columns(rows, width, together=2), "", *lines(below)]
