"""What every source of data becomes: items, labels and class names."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np

from dspt.data.paths import Rows
from dspt.internal.checks import check_names
from dspt.internal.errors import Fault, InputError, summary
from dspt.internal.names import AUTO, GENERIC_TEMPLATE, PAPER_MODEL, matched
from dspt.internal.rounding import counted
from dspt.internal.seeds import Stream
from dspt.internal.shards import Shards

Items = Sequence[Any] | np.ndarray | Shards


@dataclass(frozen=True)
class Split:
    """Items and a label for each.

    Attributes
    ----------
    items
        A sequence of image paths or of encoded images (bytes); or uint8 images (N, H, W) or
        (N, H, W, 3); or float32 unit features (N, D), an array or shards.
    labels
        int64 (N,), positions in the dataset's class names, as they come with the data: right in a
        benchmark, partly wrong in real life.
    true_labels
        int64 (N,), if the source knows the right ones: those of a benchmark, or a column of their own; -1 where it
        does not. None if it knows none.
    """

    items: Items
    labels: np.ndarray
    true_labels: np.ndarray | None = None

    @property
    def best_labels(self) -> np.ndarray:
        """The right labels, as far as the source knows; the labels as they come where it does not."""
        if self.true_labels is None:
            return self.labels
        unknown = self.true_labels < 0
        return np.where(unknown, self.labels, self.true_labels) if unknown.any() else self.true_labels

    @property
    def truth_known(self) -> bool:
        """Whether the source knows every right label."""
        return self.true_labels is not None and bool((self.true_labels >= 0).all())

    def take(self, positions: np.ndarray) -> Split:
        """Return the samples at these positions: every item with its own labels."""
        true = None if self.true_labels is None else self.true_labels[positions]
        return Split(take(self.items, positions), self.labels[positions], true)


@dataclass(frozen=True)
class Dataset:
    """A train and a test split over the same classes.

    Attributes
    ----------
    template
        The prompt of zero-shot classification, with {} for the class name.
    model
        The checkpoint to use unless another one is asked for.
    notes
        Sentences that a user should be told, such as that a test split was held out.
    skipped
        Entries of the source that were left out because something is wrong with them.
    source, test_source
        What the user called it, and a test set that was given apart.
    root
        The folder below which its files are named, wherever it lies.
    options
        What else `open_dataset` was asked for, by which it opens the same again.
    held_out
        Whether the test split was held out of a source that has none.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    template: str = GENERIC_TEMPLATE
    notes: tuple[str, ...] = ()
    skipped: tuple[Fault, ...] = ()
    source: str = ""
    model: str = PAPER_MODEL
    root: str = ""
    test_source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    held_out: bool = False

    @property
    def judged(self) -> Split:
        """What a classifier is judged on: the test split, or all samples of a source that has none."""
        return self.test if len(self.test.labels) else self.train

    def tested_on(self, other: Dataset) -> Dataset:
        """Return the dataset with all that `other` is judged on as its test split, whose labels count as right."""
        labels = renumbered(other, self.class_names, f"the classes of {self.source or self.name}")
        test = benchmark(other.judged.items, labels)
        notes, skipped = [*self.notes, *other.notes], (*self.skipped, *other.skipped)
        if common := _in_both(self.train.items, test.items):
            notes.append(
                f"{common} of the {counted(len(labels), 'image')} of the test set {other.source} "
                f"{'is' if common == 1 else 'are'} learnt from, too: the "
                "accuracy says little about new ones."
            )
        return replace(self, test=test, notes=tuple(notes), skipped=skipped, test_source=other.source)

    def model_for(self, asked: str) -> str:
        """Return the checkpoint that is asked for; "auto" asks for the one that suits the data."""
        return self.model if asked == AUTO else asked

    @property
    def holds_features(self) -> bool:
        """Whether the items are features already, so that no image tower is needed."""
        return are_features(self.train.items)


def benchmark(items: Items, labels: np.ndarray) -> Split:
    """Return the split of a benchmark, whose labels count as right."""
    return Split(items, labels, labels)


def renumbered(dataset: Dataset, names: Sequence[str], whose: str, advice: str = "") -> np.ndarray:
    """Return the labels by which a classifier with these class names is judged.

    Classes are matched by name; "ankle_boot" is "ankle boot".

    Parameters
    ----------
    dataset : Dataset
        Whose samples are judged.
    names : sequence of str
        The class names that the labels count.
    whose : str
        What an error calls them: "the classes of runs/photos".
    advice : str
        What a setting would do about classes that are not among them.
    """
    numbers = np.array(matched(dataset.class_names, names), np.int64)
    if unknown := [name for name, c in zip(dataset.class_names, numbers, strict=True) if c < 0]:
        which, their, them = (f"class {listed(unknown)} is", "its", "it")
        if len(unknown) > 1:
            which, their, them = (f"classes {listed(unknown)} are", "their", "them")
        raise InputError(
            f"data {dataset.source or dataset.name}: {which} not among {whose}; leave {their} images out, or rename "
            f"{them}",
            advice,
        )
    return np.asarray(numbers[dataset.judged.best_labels])


def _in_both(some: Items, others: Items) -> int:
    """Return how many of the others are among the first, as far as their paths tell."""
    if not (len(some) and len(others) and isinstance(some[0], str) and isinstance(others[0], str)):
        return 0
    known = {os.path.realpath(str(item)) for item in some}
    return sum(os.path.realpath(str(item)) in known for item in others)


def are_features(items: Any) -> TypeGuard[np.ndarray | Shards]:
    """Return whether these are features already: an array of floating-point numbers, or shards."""
    return isinstance(items, np.ndarray | Shards) and items.dtype.kind == "f"


def take(items: Items, positions: np.ndarray) -> Items:
    """Return the items at these positions, in their order."""
    if isinstance(items, np.ndarray):
        return np.asarray(items[positions])
    if isinstance(items, Rows | Shards):
        return items.take(positions)
    return [items[i] for i in positions]


def few_shot(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Return the sorted positions of `shots` samples of each class, of all where there are fewer.

    Which ones depends on the labels, `shots` and `seed` alone: fewer shots are among more shots,
    and noise is drawn elsewhere.

    Parameters
    ----------
    labels : integer array of shape (N,)
        Classes from 0.
    shots : int
        How many of each class, 1 or more.
    seed : int
        Seed of the draw.
    """
    if shots < 1:
        raise InputError(f"shots = {shots}: expected at least 1")
    order = Stream(seed, "shots").permutation(len(labels))
    # Rank of each sample in the random order of its own class.
    by_class = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[rank < shots])


# What is held out of a source without a test split.
TEST_FRACTION = 0.2


def hold_out(
    split: Split, names: Sequence[str], seed: int, fraction: float, copies: Sequence[np.ndarray] = ()
) -> tuple[Split, Split]:
    """Return train and test: a part of each class, at least one image of each from two images on.

    Which images depends on `seed`, the class name and the number of its images alone, and on which are copies.

    Parameters
    ----------
    split : Split
        The samples to divide.
    names : sequence of str
        The name of each class, in the order of labels.
    seed : int
        Seed of the draw.
    fraction : float
        The part of each class that is held out, above 0 and below 1.
    copies : sequence of integer arrays
        Rows that are one image, by groups, each of which stays on one side: that of train, if its labels differ or it
        is larger than what is held out of its class.

    Returns
    -------
    train, test : Split
        Each in the order of `split`.
    """
    if not 0 < fraction < 1:
        raise InputError(f"test fraction: expected a number between 0 and 1, found {fraction}")
    held = np.zeros(len(split.labels), bool)
    group = {int(row): rows for rows in copies for row in rows}
    order = np.argsort(split.labels, kind="stable")
    counts = np.bincount(split.labels, minlength=len(names))
    for name, rows in zip(names, np.split(order, np.cumsum(counts))[:-1], strict=True):
        count = min(max(1, int(len(rows) * fraction + 0.5)), len(rows) - 1)
        drawn = rows[Stream(seed, "split", name).permutation(len(rows))]
        if not group:
            held[drawn[: max(0, count)]] = True
            continue
        met: set[int] = set()
        for row in drawn.tolist():
            same = group.get(row, np.array([row]))
            if same[0] in met or len(same) > count or (split.labels[same] != split.labels[row]).any():
                continue
            met.add(int(same[0]))
            held[same] = True
            count -= len(same)
    return split.take(np.flatnonzero(~held)), split.take(np.flatnonzero(held))


def make_dataset(
    name: str,
    class_names: Sequence[str],
    train: Split,
    test: Split | None,
    *,
    where: str,
    missing: str,
    seed: int,
    test_fraction: float,
    notes: Sequence[str],
    skipped: Sequence[Fault],
    root: str = "",
) -> Dataset:
    """Return the dataset with these splits; a test split that is None is held out of the train split.

    Parameters
    ----------
    where, missing
        What begins the note that images were held out: the source, and what it does not have.
    seed, test_fraction
        Which images, and how many of each class: see `hold_out`. A fraction of 0 holds none out.

    Raises
    ------
    InputError
        If names are not two or more different ones, a split is empty, or a class is tested and not
        trained.
    """
    names, notes, held_out = tuple(class_names), list(notes), test is None and test_fraction > 0
    check_names(names, where)
    if not len(train.labels):
        raise InputError(f"{where}: no images to train with; it needs a train split")
    if test is None and not test_fraction:
        test = train.take(np.empty(0, np.int64))
    elif test is None:
        train, test = hold_out(train, names, seed, test_fraction)
        notes.append(
            f"{where} {missing}: {len(test.labels)} of {len(test.labels) + len(train.labels)} images, drawn from each "
            f"class with seed {seed}, {'is' if len(test.labels) == 1 else 'are'} held out as the test split."
        )
    if not len(test.labels) and test_fraction:
        raise InputError(f"{where}: no images to test with; add some to each class")
    labelled = np.bincount(train.labels, minlength=len(names)) > 0
    trained = labelled | (np.bincount(train.best_labels, minlength=len(names)) > 0)
    tested = np.bincount(np.concatenate([test.labels, test.best_labels]), minlength=len(names)) > 0
    if alone := [names[c] for c in np.flatnonzero(tested & ~trained)]:
        raise InputError(
            f"{where}: class {listed(alone)} is in the test split only; "
            "test images must belong to a class that is trained"
        )
    if unlabelled := [names[c] for c in np.flatnonzero(~labelled)]:
        notes.append(f"No train image of {where} is labelled {listed(unlabelled)}.")
    return Dataset(name, names, train, test, notes=tuple(notes), skipped=tuple(skipped), root=root, held_out=held_out)


def without(dataset: Dataset, exclude: Sequence[str]) -> Dataset:
    """Return a dataset without some classes and their samples; the splits of the other classes stay as they are."""
    names = dataset.class_names
    found = matched(exclude, names)
    if unknown := [name for name, c in zip(exclude, found, strict=True) if c < 0]:
        raise InputError(f"{dataset.name}: class {listed(unknown)} is not there to be excluded; found {listed(names)}")
    kept = [c for c in range(len(names)) if c not in found]
    rest = _with_classes(dataset, kept, f"{dataset.name} without {listed(exclude)}")
    gone = _size(dataset) - _size(rest)
    note = f"{counted(gone, 'image')} of class {listed(exclude)} {'was' if gone == 1 else 'were'} excluded."
    return replace(rest, notes=(*dataset.notes, note))


# Which classes there are: all of them, or one of CoOp's halves.
HALVES = ("base", "new")
CLASSES = ("all", *HALVES)


def half(dataset: Dataset, which: str) -> Dataset:
    """Return a dataset with the "base" or the "new" classes alone; "all" returns it as it is.

    As in CoOp, base classes are the first half by label order, with the middle one of an odd number.
    """
    if which not in CLASSES:
        raise InputError(f"classes {which!r}: expected {', '.join(CLASSES[:-1])} or {CLASSES[-1]}")
    if which == "all":
        return dataset
    classes = len(dataset.class_names)
    middle = math.ceil(classes / 2)
    kept = range(middle) if which == "base" else range(middle, classes)
    found = _with_classes(dataset, kept, f"the {which} classes of {dataset.name}")
    return replace(found, name=f"{dataset.name}-{which}")


def _with_classes(dataset: Dataset, kept: Sequence[int], where: str) -> Dataset:
    """Return a dataset with some of its classes, by number, and the samples of these."""
    names = dataset.class_names
    check_names([names[c] for c in kept], where)
    renumber = np.full(len(names) + 1, -1)  # the last stands for a true label that is not known
    renumber[list(kept)] = np.arange(len(kept))

    def part(split: Split) -> Split:
        labels, true = renumber[split.labels], split.true_labels
        there = labels >= 0
        if true is not None:
            there &= (true < 0) | (renumber[true] >= 0)
            true = renumber[true]
        return Split(split.items, labels, true).take(np.flatnonzero(there))

    return replace(
        dataset, class_names=tuple(names[c] for c in kept), train=part(dataset.train), test=part(dataset.test)
    )


def _size(dataset: Dataset) -> int:
    return len(dataset.train.labels) + len(dataset.test.labels)


def unusable(what: str, faults: Sequence[Fault], remedy: str, total: int | None = None) -> InputError:
    """Return the error for bad entries of a source, which `skip_bad` would leave out.

    Parameters
    ----------
    what
        Where and how many they are: "pets: 3 of 20 rows".
    remedy
        What else can be done about them.
    total
        How many there are, where `faults` are not all.
    """
    return InputError(
        f"{what} cannot be used ({summary(faults, total)}); {remedy}",
        "set `skip_bad` to go on without them",
    )


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names for a sentence: 'a', 'b' and 7 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
