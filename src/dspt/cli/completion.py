"""What the shell offers when Tab is pressed. Names come without what they name: nobody would wait for torch then."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable

from dspt.internal.names import plain

# As `dspt.methods` and `dspt.learners` have them, which import torch; tests/test_completion.py holds that.
METHODS = (
    *("zero-shot", "coop", "smoothing", "mae", "gce", "nce", "sce", "nce-rce", "bootstrap", "bootstrap-hard"),
    *("logitnorm", "logitclip", "square", "dspt", "select", "nlprompt", "upl", "robust-upl", "joapr", "dspt-auto"),
)
LEARNERS = ("prompt", "cocoop", "prototypes", "posterior", "auto")
# A number or a file follows; bash itself would take a word with a colon for two.
NOISES = ("none", "sym:", "pair:", "near:", "near-3:", "inst:", "inst-likely:", "matrix:", "file:")

Complete = Callable[[str], list[str]]


def among(names: Iterable[str]) -> Complete:
    """Return what completes one of these names."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def methods(incomplete: str) -> list[str]:
    """Return the methods that begin so, those of other packages among them."""
    from importlib.metadata import entry_points

    return among((*METHODS, *sorted(entry_points(group="dspt.methods").names)))(incomplete)


def methods_or_paths(incomplete: str) -> list[str]:
    """Return the methods and the paths that begin so."""
    return methods(incomplete) + _paths(incomplete)


def experiments(incomplete: str) -> list[str]:
    """Return the experiments that begin so and have runs."""
    from dspt.experiments.catalogue import EXPERIMENTS

    return among(EXPERIMENTS)(incomplete)


def figures(incomplete: str) -> list[str]:
    """Return the figures that begin so, that from formulas among them."""
    from dspt.experiments.catalogue import EXPERIMENTS, LANDSCAPE

    return among((*(name for name, one in EXPERIMENTS.items() if one.kind == "figure"), LANDSCAPE))(incomplete)


def data(incomplete: str) -> list[str]:
    """Return the datasets and the paths that begin so: a shell offers no files where it is given anything else."""
    from importlib import resources

    nine = json.loads((resources.files("dspt") / "data" / "nine.json").read_text(encoding="utf-8"))
    names = ["embedded", *(plain(one["name"]) for one in nine), "cifar10", "cifar100"]
    spelt = plain(incomplete)
    known = [] if os.sep in incomplete or (incomplete and not spelt) else among(names)(spelt)
    return known + _paths(incomplete)


def _paths(incomplete: str) -> list[str]:
    folder, start = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(start))
    except OSError:
        return []
    shown = [(name, is_folder) for name, is_folder in found if start or not name.startswith(".")]
    return [os.path.join(folder, name) + ("/" if is_folder else "") for name, is_folder in shown]


# What completes a setting of a run, by its name; others have few values, which the setting itself knows, or any.
SETTINGS: dict[str, Complete] = {
    "method": methods,
    "learner": among(LEARNERS),
    "device": among(("auto", "cpu", "cuda")),
}
