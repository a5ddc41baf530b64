"""Small training problems for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspt.internal.progress import Reporter

QUIET = Reporter(silent=True)
NAMES = ("cat", "dog", "red panda", "ankle boot")


def features(
    n: int, seed: int = 0, classes: int = 4, dim: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Return unit features (n, dim) around one direction for each class, and their labels."""
    random = np.random.RandomState(seed)
    centres = np.random.RandomState(99).randn(classes, dim)
    labels = np.arange(n) % classes
    x = centres[labels] + 0.8 * random.randn(n, dim)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels.astype(
        np.int64
    )


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
