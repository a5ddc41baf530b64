"""Small training problems for tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dspt.internal.progress import Reporter
from dspt.runs import Run
from dspt.runs.description import RULES

QUIET = Reporter(silent=True)
NAMES = ("cat", "dog", "red panda", "ankle boot")


def features(n: int, seed: int = 0, classes: int = 4, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return unit features (n, dim) around one direction for each class, and their labels."""
    random = np.random.RandomState(seed)
    centres = np.random.RandomState(99).randn(classes, dim)
    labels = np.arange(n) % classes
    x = centres[labels] + 0.8 * random.randn(n, dim)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels.astype(np.int64)


def feature_file(path: Path, train: int = 100, test: int = 40) -> Path:
    """Return `path` with a feature file in it."""
    train_x, train_y = features(train, 1)
    test_x, test_y = features(test, 2)
    np.savez(
        path,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classnames=np.array(NAMES),
    )
    return path


def labels_in(path: Path | str, class_names: Sequence[str]) -> np.ndarray:
    """Return the labels of a file that dspt wrote, as numbers in the order of its rows."""
    with open(path, encoding="utf-8", newline="") as file:
        return np.array([list(class_names).index(row["label"]) for row in csv.DictReader(file)])


def finished_run(
    folder: Path,
    result: dict,
    settings: dict | None = None,
    class_names: Sequence[str] = NAMES,
    records: Iterable[dict] = (),
    environment: dict | None = None,
) -> Path:
    """Return `folder` with a finished run in it, as `dspt train` leaves it as far as tables and figures look."""
    folder.mkdir(parents=True)
    asked = {"method": result["method"], "seed": result["seed"], "epochs": 5} | (settings or {})
    described = {"format": 1, "settings": asked, "class_names": list(class_names)}
    described |= {"data": result["data"], "noise": result["noise"]}
    if rule := RULES.get(asked["method"]):
        described["method_rule"] = rule
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "result.json").write_text(json.dumps({"epochs": asked["epochs"], **result}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def told(folder: Path) -> dict[str, object]:
    """Return all that a finished run tells but for its place and time: figures, parameters, labels, records."""
    figures = {key: value for key, value in Run(folder).result().as_dict().items() if key not in ("seconds", "run")}
    files = ("context.safetensors", "labels.csv", "metrics.jsonl")
    return figures | {name: (folder / name).read_bytes() for name in files}
