"""What an audit has found: one row a sample, and what is true of the whole set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt.data.folder import EMPTY
from dspt.data.manifest import OTHER_SPLIT
from dspt.internal.errors import Fault

if TYPE_CHECKING:
    import pandas as pd

# An image lies near a boundary if its second class is at least half as probable as its first.
BOUNDARY = 0.5
# Two classes cannot be told apart if so much of what is taken for either could as well be the other.
INSEPARABLE = 0.5

# An estimate with such a standard error says nothing.
USELESS_ERROR = 0.25
# Rows that are computed at once.
_ROWS = 65536

# What can be the matter with an image, as CleanVision calls it where it has a name for it.
IMAGE_ISSUES = ("tiny", "odd_size", "odd_aspect_ratio", "blank", "dark", "light", "blurry")

COLUMNS = (
    *("item", "split", "is_label_issue", "label_quality", "given_label", "predicted_label"),
    *("predicted_probability", "runner_up", "runner_up_probability", "class_noise_rate"),
    *("fits_no_class", "is_outlier", "is_near_boundary", "duplicate_group", "image_issues"),
)


@dataclass(frozen=True)
class Audit:
    """What was found out about every sample and about the set.

    Attributes
    ----------
    source : str
        What the user called the data.
    class_names : tuple of str
        The classes, in the order in which labels count.
    items : tuple of str
        What each sample is called: its path below the folder of the data, or its number.
    splits : tuple of str
        "train" or "test" for each sample.
    labels : int64 array of shape (N,)
        The given labels.
    probabilities : float32 array of shape (N, C)
        P(true class | image, given label).
    noise_rate, noise_rate_error : float
        The estimated share of wrong labels and its standard error.
    can_tell : bool
        Whether features or names tell anything about the labels; if not, no label is called wrong.
    class_noise_rates : float64 array of shape (C,)
        Of the labels given as each class, the estimated share that is wrong; NaN for a class nobody was given.
    fits_no_class : float32 array of shape (N,)
        How far an image lies from every class, in 0..1; 0.5 is an ordinary one.
    is_outlier : bool array of shape (N,)
        Whether it lies so far out that it most likely is of no class.
    duplicate_groups : tuple of tuples of int
        Samples that are one image, each group by row; those that are the same byte for byte first.
    identical_groups : int
        How many of them, the first ones, are byte for byte the same; the others are near-identical.
    image_issues : tuple of str
        What is the matter with each image, of `IMAGE_ISSUES`, several joined by ";"; "" for nothing.
    unusable : tuple of Fault
        Images, rows and folders that were left out; they are not among the samples.
    inseparable : tuple of (int, int, float)
        Pairs of classes that cannot be told apart, and how much of them could be either by their images: if that is
        not much, their names are one word.
    examples : int32 array of shape (N, 2, K)
        Rows of the nearest images with surely right labels, of the given class and of `proposed`; -1 for none.
    decided : bool array of shape (N,), optional
        Samples that somebody has decided about already.
    corrected : int64 array of shape (N,), optional
        The label of each sample after what was decided; -1 for one that is removed.
    made_with : dict
        "model", "version", "path" (of the data, absolute) and other facts about how it was made.
    """

    source: str
    class_names: tuple[str, ...]
    items: tuple[str, ...]
    splits: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray = field(repr=False)
    noise_rate: float
    noise_rate_error: float
    can_tell: bool
    class_noise_rates: np.ndarray
    fits_no_class: np.ndarray
    is_outlier: np.ndarray
    duplicate_groups: tuple[tuple[int, ...], ...] = ()
    identical_groups: int = 0
    image_issues: tuple[str, ...] = ()
    unusable: tuple[Fault, ...] = ()
    inseparable: tuple[tuple[int, int, float], ...] = ()
    examples: np.ndarray | None = field(default=None, repr=False)
    decided: np.ndarray | None = field(default=None, repr=False)
    corrected: np.ndarray | None = field(default=None, repr=False)
    made_with: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where the data lie, from whatever folder one looks; what the user called them if they are no file."""
        return str(self.made_with.get("path") or self.source)

    @property
    def tells(self) -> bool:
        """Whether the share of wrong labels is known well enough to be told."""
        return bool(self.can_tell and np.isfinite(self.noise_rate) and self.noise_rate_error < USELESS_ERROR)

    @property
    def label_quality(self) -> np.ndarray:
        """The probability that each given label is right (N,)."""
        quality: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return quality

    @property
    def open(self) -> np.ndarray:
        """Which labels nobody has decided about (N,)."""
        return np.ones(len(self.labels), bool) if self.decided is None else ~self.decided

    @property
    def settled(self) -> dict[str, int]:
        """How many labels were corrected, how many kept, and how many samples removed, by somebody."""
        if self.decided is None or self.corrected is None:
            return {"corrected": 0, "kept": 0, "removed": 0}
        labels, after = self.labels[self.decided], self.corrected[self.decided]
        corrected, removed = int(((after >= 0) & (after != labels)).sum()), int((after < 0).sum())
        return {"corrected": corrected, "kept": len(after) - corrected - removed, "removed": removed}

    @property
    def still_wrong(self) -> float:
        """How many of the labels that nobody has decided about should be wrong."""
        done = self.settled
        wrong = self.noise_rate * (len(self.labels) - done["removed"]) - done["corrected"]
        return float(min(max(wrong, 0.0), self.open.sum()))

    @cached_property
    def doubts(self) -> np.ndarray:
        """How probable it is that each label is wrong, for expected numbers (N,); 0 if somebody has decided about it.

        The probabilities of single labels are tempered, so that they need not add up to `still_wrong`; these do.
        """
        found = np.where(self.open, 1 - self.label_quality.astype(np.float64), 0.0)
        return adding_up(found, self.still_wrong) if self.tells else found

    @cached_property
    def is_label_issue(self) -> np.ndarray:
        """Which labels are called wrong (N,): those of which another class is more probable."""
        return np.asarray((self.ranked[0] != self.labels) & self.can_tell)

    @cached_property
    def ranked(self) -> tuple[np.ndarray, np.ndarray]:
        """The most and the second most probable class of each sample, both (N,)."""
        first, second = (np.empty(len(self.labels), np.int64) for _ in range(2))
        for start in range(0, len(self.labels), _ROWS):
            rows = slice(start, start + _ROWS)
            p, labels = self.probabilities[rows].copy(), self.labels[rows]
            each = np.arange(len(p))
            best = p.argmax(1)
            # Where nothing is known, all classes are as probable as each other, and the label stands.
            first[rows] = best = np.where(p[each, labels] >= p[each, best], labels, best)
            p[each, best] = -1
            second[rows] = p.argmax(1)
        return first, second

    @property
    def proposed(self) -> np.ndarray:
        """The class that is proposed for each sample (N,): the most probable one that is not its label.

        A label that is worth a look may well be right; what could be decided instead is then the best of the others.
        """
        first, second = self.ranked
        return np.where(first == self.labels, second, first)

    @property
    def suspects(self) -> np.ndarray:
        """The rows whose labels are called wrong, the surest first."""
        rows = np.flatnonzero(self.is_label_issue)
        return np.asarray(rows[np.argsort(self.label_quality[rows], kind="stable")])

    def looks(self, budget: int) -> np.ndarray:
        """Return the rows that are worth a look first, as many as asked for: the labels most likely to be wrong.

        Those that somebody has decided about already are not among them.
        """
        order = np.argsort(self.label_quality, kind="stable")
        if self.decided is not None:
            order = order[~self.decided[order]]
        return order[: max(0, budget)]

    @property
    def in_both_splits(self) -> tuple[Fault, ...]:
        """The rows of a manifest that were left out since their image is in the other split, too."""
        return tuple(fault for fault in self.unusable if fault.reason.endswith(OTHER_SPLIT))

    @property
    def empty_folders(self) -> tuple[Fault, ...]:
        """The folders of classes that have no images."""
        return tuple(fault for fault in self.unusable if fault.reason == EMPTY)

    @property
    def groups(self) -> np.ndarray:
        """The number of the duplicate group that each sample is in, from 0 (N,); -1 for none."""
        found = np.full(len(self.labels), -1)
        for number, rows in reversed(list(enumerate(self.duplicate_groups))):
            found[list(rows)] = number
        return found

    def labels_differ(self, group: Sequence[int]) -> bool:
        """Return whether samples that are one image have different labels."""
        return len(set(self.labels[list(group)].tolist())) > 1

    def leaks(self, group: Sequence[int]) -> bool:
        """Return whether samples that are one image are in train and test."""
        return len({self.splits[row] for row in group}) > 1

    def confusion(self) -> np.ndarray:
        """Return how many labels are expected to be which class: given (row) by true (column), (C, C).

        Labels that somebody has decided about are not counted.
        """
        found = np.zeros((len(self.class_names),) * 2)
        before = 1 - self.label_quality.astype(np.float64)
        share = np.divide(self.doubts, before, out=np.zeros(len(before)), where=before > 0)
        for c in range(len(found)):
            rows = np.flatnonzero(self.open & (self.labels == c))
            found[c] = share[rows] @ self.probabilities[rows]
            found[c, c] = (1 - self.doubts[rows]).sum()
        return found

    def table(self) -> pd.DataFrame:
        """Return one row a sample, in order, with cleanlab's names for what it has names for."""
        return next(self.tables(len(self.labels)))

    def tables(self, most: int = _ROWS) -> Iterator[pd.DataFrame]:
        """Yield `table` in parts of so many rows at most, one after another; there is one at least."""
        import pandas as pd

        names = np.array(self.class_names, dtype=object)
        groups = self.groups
        for start in range(0, max(1, len(self.labels)), max(1, most)):
            rows = slice(start, start + most)
            labels, first, second, group = (each[rows] for each in (self.labels, *self.ranked, groups))
            p, each = self.probabilities[rows], np.arange(len(labels))
            p_first, p_second = p[each, first], p[each, second]
            boundary = p_second >= BOUNDARY * p_first
            told = [p[each, labels], p_first, p_second, self.class_noise_rates[labels]]
            next_best = names[second]
            if not self.can_tell:  # what is not known is not told
                told = [np.full(len(labels), np.nan)] * len(told)
                next_best, boundary = np.full(len(labels), None), np.zeros(len(labels), bool)
            quality, p_first, p_second, rates = told
            values = (
                *(self.items[rows], self.splits[rows], self.is_label_issue[rows], quality, names[labels], names[first]),
                *(p_first, next_best, p_second, rates, self.fits_no_class[rows], self.is_outlier[rows], boundary),
                pd.array(np.where(group < 0, 0, group), dtype="Int64"),
                self.image_issues[rows] or ("",) * len(labels),
            )
            table = pd.DataFrame(dict(zip(COLUMNS, values, strict=True)))
            table.loc[group < 0, "duplicate_group"] = pd.NA
            yield table


def by_images(share: float) -> bool:
    """Return whether a pair of classes, so much of which could be either, is inseparable by its images."""
    return bool(share > INSEPARABLE)


def adding_up(probabilities: np.ndarray, total: float) -> np.ndarray:
    """Return probabilities whose odds are all multiplied by one number, so that they add up to a total.

    What is nearly sure stays so, what is 0 stays 0, and none is above 1, whatever the total.
    """
    p = np.minimum(np.asarray(probabilities, dtype=np.float64), 1 - 1e-7)
    if total <= 0 or total >= np.count_nonzero(p):
        return np.where(p > 0, float(total > 0), 0.0)

    def shifted(by: float) -> np.ndarray:
        odds = p * np.exp(by)
        found: np.ndarray = odds / (odds + 1 - p)
        return found

    low, high = -100.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if shifted(middle).sum() < total else (low, middle)
    return shifted(high)
