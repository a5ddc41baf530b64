"""How well a classifier does, by scikit-learn's measures: by class, by pair of classes, by confidence, by image.

Shares are in percent, the probabilities of one image in 0..1. What is not defined is None: the recall of a
class without images, the precision of one that is never predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from dspt.internal.errors import InputError

# Bins of equal width, as in Guo et al. (ICML 2017), "On calibration of modern neural networks".
BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """What a classifier says of some images, held against their labels.

    Attributes
    ----------
    class_names : tuple of C str
        The classes it chooses from.
    labels : integer array of shape (N,)
        What the images are judged by.
    probabilities : array of shape (N, C)
        What the classifier says, each row summing to 1.
    items : sequence of N str
        What the images are called.
    truth_known : bool
        Whether all labels are known to be right; if not, a mistake may be the label's.
    """

    class_names: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray
    items: tuple[str, ...]
    truth_known: bool = False

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise InputError("evaluation: there are no images to judge by; give some")

    @cached_property
    def predicted(self) -> np.ndarray:
        """The most probable class of each image (N,)."""
        return np.asarray(self.probabilities.argmax(1))

    @property
    def accuracy(self) -> float:
        """The share of images whose most probable class is their label."""
        return 100 * float(accuracy_score(self.labels, self.predicted))

    @cached_property
    def confusion(self) -> np.ndarray:
        """How many images of each class (row) were taken for each class (column), (C, C)."""
        return np.asarray(confusion_matrix(self.labels, self.predicted, labels=np.arange(len(self.class_names))))

    @cached_property
    def by_class(self) -> list[dict[str, Any]]:
        """Counts, precision, recall and F1 of each class, in the order of classes."""
        classes = np.arange(len(self.class_names))
        figures = precision_recall_fscore_support(self.labels, self.predicted, labels=classes, zero_division=np.nan)
        precision, recall, f1 = ([None if np.isnan(x) else 100 * float(x) for x in part] for part in figures[:3])
        return [
            {
                "class": name,
                "samples": int(self.confusion[c].sum()),
                "predicted": int(self.confusion[:, c].sum()),
                "precision": precision[c],
                "recall": recall[c],
                "f1": f1[c],
            }
            for c, name in enumerate(self.class_names)
        ]

    def mean_of_classes(self, what: str) -> float:
        """Return the mean of "recall" or "f1" over the classes that have images, each counting alike."""
        return float(np.mean([row[what] for row in self.by_class if row["samples"]]))

    @property
    def mistakes(self) -> list[tuple[str, str, int]]:
        """The pairs of label and another class that was predicted, with their number, the most frequent first."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [(self.class_names[t], self.class_names[p], int(wrong[t, p])) for t, p in pairs]

    @cached_property
    def calibration(self) -> dict[str, Any]:
        """Whether the probabilities can be taken at their word.

        "bins" has, for each range of the probability of the predicted class, the number of images, their mean
        probability ("confidence") and the share of them that is right ("accuracy"), both None in an empty one. "ece" is
        the expected calibration error: how far these two are apart, on average over all images.
        """
        confidence = self.probabilities.max(1).astype(np.float64).clip(0, 1)
        right = self.predicted == self.labels
        edges = np.linspace(0, 1, BINS + 1)
        counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=BINS)
        share, mean = np.full((2, BINS), np.nan)
        share[counts > 0], mean[counts > 0] = calibration_curve(right, confidence, pos_label=True, n_bins=BINS)
        return {
            "ece": 100 * float(np.nansum(counts * np.abs(share - mean)) / len(right)),
            "confidence": 100 * float(confidence.mean()),
            "bins": [
                {
                    "from": 100 * float(edges[i]),
                    "to": 100 * float(edges[i + 1]),
                    "samples": int(counts[i]),
                    "confidence": 100 * float(mean[i]) if counts[i] else None,
                    "accuracy": 100 * float(share[i]) if counts[i] else None,
                }
                for i in range(BINS)
            ],
        }

    def worst(self, most: int) -> np.ndarray:
        """Return the rows of so many mistakes, those first whose label has the smallest probability."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        given = self.probabilities[wrong, self.labels[wrong]]
        return np.asarray(wrong[np.argsort(given, kind="stable")[:most]])

    def mistake(self, row: int) -> dict[str, Any]:
        """Return what was said of an image: its name, its label, the class it was taken for, and how surely."""
        label, predicted = int(self.labels[row]), int(self.predicted[row])
        return {
            "image": self.items[row],
            "label": self.class_names[label],
            "predicted": self.class_names[predicted],
            "probability": float(self.probabilities[row, predicted]),
            "probability_of_label": float(self.probabilities[row, label]),
        }

    def as_dict(self, worst: int) -> dict[str, Any]:
        """Return the figures as JSON holds them, with so many of the worst images."""
        rows = self.by_class
        return {
            "samples": len(self.labels),
            "test_labels_known": self.truth_known,
            "accuracy": self.accuracy,
            "mean_recall": self.mean_of_classes("recall"),
            "mean_f1": self.mean_of_classes("f1"),
            "per_class": {row["class"]: row["recall"] for row in rows if row["samples"]},
            "by_class": rows,
            "confusion": self.confusion.tolist(),
            "calibration": self.calibration,
            "worst": [self.mistake(row) for row in self.worst(worst).tolist()],
        }


def harmonic_mean(base: float, new: float) -> float:
    """Return the harmonic mean of two accuracies, 0 if one is 0: high only if both are."""
    return 2 * base * new / (base + new) if base and new else 0.0
