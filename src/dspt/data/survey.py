"""What is in a source of any kind: class sizes, and which images are missing, broken or there more than once."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dspt.data.dataset import Dataset, Split, listed
from dspt.data.duplicates import Print, Prints, take_print
from dspt.data.images import HEIC, BadImage
from dspt.internal.errors import Fault, summary
from dspt.internal.names import plain
from dspt.internal.rounding import counted
from dspt.internal.threads import Progress, in_threads

MISSING = "no such file"
# How many groups of duplicates the text names.
_NAMED = 3
# What folders and labels that are no class are called, as `plain` writes it.
_NO_CLASS = {
    *("background", "backgroundgoogle", "misc", "miscellaneous", "other", "others", "rest", "unknown", "unsorted"),
    *("unlabeled", "unlabelled", "nolabel", "none", "null", "nan", "na", "undefined", "ignore", "junk", "trash"),
    *("macosx", "tmp", "temp", "cache", "train", "test", "val", "valid", "validation", "images", "labels"),
}


@dataclass(frozen=True)
class Sample:
    """An image or a row of a source, with the split and the class it is in."""

    split: str
    label: str
    item: str

    def __str__(self) -> str:
        return f"{self.item} ({self.label}, {self.split})"


@dataclass(frozen=True)
class Duplicates:
    """Samples that are one image: "identical" byte for byte, or "near-identical"."""

    kind: str
    samples: tuple[Sample, ...]

    @property
    def labels_differ(self) -> bool:
        """Whether they are of more than one class."""
        return len({sample.label for sample in self.samples}) > 1

    @property
    def leaks(self) -> bool:
        """Whether some are trained on and others tested with."""
        return {"train", "test"} <= {sample.split for sample in self.samples}

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON can hold it."""
        return {**asdict(self), "labels_differ": self.labels_differ, "train_and_test": self.leaks}


@dataclass(frozen=True)
class Survey:
    """What is in a source.

    Attributes
    ----------
    sizes
        The number of train and of test images of each class.
    missing, broken
        Image files that are not there, and that cannot be decoded; each once.
    unusable
        Folders and rows that are no samples.
    duplicates
        Groups of images that are the same; None where no image was decoded.
    suspicious
        Classes with names that classes seldom have.
    notes
        Sentences about what was decided, and which files were passed over.
    """

    name: str
    source: str
    sizes: dict[str, tuple[int, int]]
    missing: tuple[Fault, ...]
    broken: tuple[Fault, ...]
    unusable: tuple[Fault, ...]
    duplicates: tuple[Duplicates, ...] | None
    suspicious: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it can be used as it is, without leaving anything out."""
        return not (self.missing or self.broken or self.unusable)

    @property
    def train(self) -> int:
        """The number of images to train with."""
        return sum(train for train, _ in self.sizes.values())

    @property
    def test(self) -> int:
        """The number of images to test with."""
        return sum(test for _, test in self.sizes.values())

    def as_dict(self) -> dict[str, Any]:
        """Return what was found, in full, as JSON can hold it."""
        groups = self.duplicates
        return {
            "ok": self.ok,
            **asdict(self),
            "classes": len(self.sizes),
            "train": self.train,
            "test": self.test,
            "sizes": {name: {"train": train, "test": test} for name, (train, test) in self.sizes.items()},
            "duplicates": None if groups is None else [group.as_dict() for group in groups],
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield what was found, in full, as rows of `COLUMNS`."""
        for finding in ("missing", "broken", "unusable"):
            for fault in getattr(self, finding):
                yield finding, "", fault.split, "", fault.name, fault.reason
        yield from duplicate_rows(self.duplicates or ())
        for name in self.suspicious:
            yield "suspicious", "", "", name, "", "a name that classes seldom have"

    def lines(self) -> list[str]:
        """Return what was found as lines of text, the first of each kind by name."""
        total = {name: sum(sizes) for name, sizes in self.sizes.items()}
        least, most = min(total, key=lambda name: total[name]), max(total, key=lambda name: total[name])
        out = [f"{self.name}: {counted(self.train + self.test, 'image')}, {self.train:,} train and {self.test:,} test"]
        span = f"from {counted(total[least], 'image')} ({least!r}) to {total[most]:,} ({most!r})"
        words = f"{len(total)}, {span if total[least] < total[most] else counted(total[least], 'image') + ' each'}"
        out.append(f"  classes      {words}")
        if empty := [name for name, size in total.items() if not size]:
            out.append(f"  empty        class {listed(empty)}")
        kinds = {"missing": self.missing, "broken": self.broken, "unusable": self.unusable}
        out += [f"  {kind:<13}{len(faults):,}: {summary(faults)}" for kind, faults in kinds.items() if faults]
        out += duplicate_lines(self.duplicates)
        if self.suspicious:
            out.append(f"  suspicious   class {listed(self.suspicious)}: is it one? `exclude` leaves it out")
        out += [f"  note         {note}" for note in self.notes]
        if self.duplicates is None:
            out.append("  no image was decoded")
        return out


COLUMNS = ("finding", "group", "split", "class", "item", "reason")


def survey(dataset: Dataset, *, decode: bool = True, progress: Progress | None = None) -> Survey:
    """Return what is in a dataset that was opened with `skip_bad`.

    Parameters
    ----------
    dataset : Dataset
        Of any source.
    decode : bool
        Decode every image; otherwise only look whether it is there.
    progress : callable, optional
        Called with the number of images looked at so far and of all.
    """
    # HEIC images in a folder that cannot be read here stop nobody; a note counts them.
    skipped = [fault for fault in dataset.skipped if fault.reason != HEIC]
    faults: dict[str, Fault] = {}
    prints, printed = Prints(), array("q")
    total = len(dataset.train.labels) + len(dataset.test.labels)
    looked = in_threads(lambda one: _look(*one, decode), _items(dataset))
    for i, found in enumerate(looked):
        if isinstance(found, Print):
            prints.add(found)
            printed.append(i)
        elif found is not None:
            sample = _sample(dataset, i)
            faults.setdefault(sample.item, Fault(sample.item, found.reason, sample.split))
        if progress:
            progress(i + 1, total)
    counts = [np.bincount(split.labels, minlength=len(dataset.class_names)) for _, split in _splits(dataset)]
    return Survey(
        name=dataset.name,
        source=dataset.source,
        sizes={name: (int(a), int(b)) for name, a, b in zip(dataset.class_names, *counts, strict=True)},
        missing=tuple(fault for fault in faults.values() if fault.reason == MISSING),
        broken=tuple(fault for fault in faults.values() if fault.reason != MISSING),
        unusable=tuple(replace(fault, name=relative(fault.name, dataset.root)) for fault in skipped),
        duplicates=duplicates(prints, lambda i: _sample(dataset, printed[i])) if decode else None,
        suspicious=tuple(filter(_is_suspicious, dataset.class_names)),
        notes=dataset.notes,
    )


def _splits(dataset: Dataset) -> tuple[tuple[str, Split], tuple[str, Split]]:
    return ("train", dataset.train), ("test", dataset.test)


def _items(dataset: Dataset) -> Iterator[tuple[Any, int]]:
    for _, split in _splits(dataset):
        for position in range(len(split.labels)):
            yield split.items, position


def _look(items: Any, position: int, decode: bool) -> Print | BadImage | None:
    """Return the print of an item, or what is wrong with it; nothing for one that is there and not decoded."""
    try:
        item = items[position]
        if decode:
            return take_print(item, "image")
        if isinstance(item, str) and not os.path.exists(item):
            return BadImage(item, MISSING)
    except BadImage as error:
        return error
    return None


def _sample(dataset: Dataset, i: int) -> Sample:
    """Return the sample number `i`, counted from the first of the train split on."""
    train = len(dataset.train.labels)
    name, split = _splits(dataset)[i >= train]
    position = i - train if i >= train else i
    items: Any = split.items
    if hasattr(items, "name"):
        called = str(items.name(position))
    elif isinstance(item := items[position], str):
        called = relative(item, dataset.root)
    else:
        called = f"{name} {position}"
    return Sample(name, dataset.class_names[split.labels[position]], called)


def relative(file: str, below: str) -> str:
    """Return the path of a file as seen from a folder that it is below, or as it is."""
    return file.removeprefix(os.path.join(below, "")) if below else file


def duplicates(prints: Prints, sample: Any) -> tuple[Duplicates, ...]:
    """Return the images that are there more than once; `sample(i)` tells what the one printed as number i is."""
    groups = [("identical", group) for group in prints.identical()]
    groups += [("near-identical", group) for group in prints.near()]
    return tuple(Duplicates(kind, tuple(map(sample, group))) for kind, group in groups)


def duplicate_rows(groups: Sequence[Duplicates]) -> Iterator[tuple[str, ...]]:
    """Yield one row of `COLUMNS` for each image that is there more than once."""
    for number, group in enumerate(groups, 1):
        reasons = ["labels differ"] * group.labels_differ + ["in train and test"] * group.leaks
        for sample in group.samples:
            yield group.kind, str(number), sample.split, sample.label, sample.item, ", ".join(reasons)


def duplicate_lines(groups: Sequence[Duplicates] | None) -> Iterator[str]:
    """Yield lines about images that are there more than once: how many, and the worst of them."""
    for kind in ("identical", "near-identical"):
        found = [group for group in groups or () if group.kind == kind]
        if found:
            images = sum(len(group.samples) for group in found)
            differ, leak = sum(group.labels_differ for group in found), sum(group.leaks for group in found)
            yield (
                f"  {kind:<12} {images:,} images in {counted(len(found), 'group')}; groups with different labels: "
                f"{differ:,}, in train and test: {leak:,}"
            )
            found.sort(key=lambda group: (not group.labels_differ, not group.leaks))
            for group in found[:_NAMED]:
                more = f" and {len(group.samples) - _NAMED} more" if len(group.samples) > _NAMED else ""
                yield f"    {' = '.join(map(str, group.samples[:_NAMED]))}{more}"
            if len(found) > _NAMED:
                yield f"    and {len(found) - _NAMED:,} more groups"


def _is_suspicious(name: str) -> bool:
    return plain(name) in _NO_CLASS or name.startswith((".", "_")) or not plain(name)
