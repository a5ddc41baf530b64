"""Manifests: tables that name an image file and its label in each row.

Columns are `path` and `label`, and may be `true_label` and `split`, in any order; a table may call them otherwise.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dspt.data.dataset import Dataset, Split, listed, make_dataset, unusable
from dspt.data.paths import Paths
from dspt.data.tabular import NULL, Table, Wanted, open_table, quoted, short
from dspt.data.tabular import SUFFIXES as SUFFIXES
from dspt.internal.checks import LONGEST_NAME, check_names, out_of_range
from dspt.internal.errors import NAMED, Fault, InputError, summary
from dspt.internal.names import matched
from dspt.internal.rounding import counted

_WANTED = Wanted(("path", "label"), ("true_label", "split"), numbers=("label", "true_label"), each="each image")
# What is added to the reason of a row whose path is there already: the same sample is in train and test.
OTHER_SPLIT = ", which belongs to another split"
_TRAIN, _TEST, _VALIDATION = range(3)
_SPLITS = {
    **{"train": _TRAIN, "training": _TRAIN, "test": _TEST},
    **dict.fromkeys(("val", "valid", "validation"), _VALIDATION),
}
_SPLIT_NAMES = ("train", "test", "test")  # a validation row that is used is used for tests
# Spreadsheets and pandas write a column of numbers with gaps as 3.0; longer ones are names.
_NUMBER = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
_WINDOWS_ABSOLUTE = re.compile(r"[A-Za-z]:[\\/]|\\")
# No system knows longer ones.
_LONGEST_PATH = 32_767


def read(
    path: Path,
    *,
    root: Path | None = None,
    class_names: Path | None = None,
    columns: Mapping[str, str] | str = "",
    seed: int = 1,
    test_fraction: float = 0.2,
    skip_bad: bool = False,
) -> Dataset:
    """Return the images and labels that the rows of `path` name.

    Relative paths start from `root`, or from the manifest's own folder; whether the files are there
    is seen when they are encoded. Labels are names, or numbers from 0 if all of them are whole
    numbers; `class_names` is a text file with one name a line, in the order of labels. Without test
    rows, validation rows take their place, or `test_fraction` of each class is held out.

    Parameters
    ----------
    path : Path
        The table: see the top of this module for its columns.
    root : Path, optional
        What relative paths start from; None is the manifest's own folder.
    class_names : Path, optional
        The file of class names; None takes the names, or the numbers, that stand in the rows. "ankle_boot" in a row is
        "ankle boot" in the file.
    columns : dict or str
        What the table calls its columns, where it is something else: {"path": "filename", "label": "class"}, or in
        one text "path=filename,label=class".
    seed : int
        Seed of the draw of held-out images.
    test_fraction : float
        The part of each class that is held out, above 0 and below 1.
    skip_bad : bool
        Leave out rows that cannot be used and list them in `Dataset.skipped`, instead of stopping at them.
    """
    base = path.parent if root is None else root
    with open_table(path, replace(_WANTED, called=_called(columns))) as table:
        rows = _read_rows(table, path, base, skip_bad)
    if not rows.seen:
        raise InputError(f"{path}: it has a header and no rows; add a row for each image")
    notes = list(rows.notes)
    if table.others:
        notes.append(f"Not used in {path}: column {listed(table.others)}.")

    used, test_code = _used(rows, path, notes)
    names, labels, true = _classes(rows, path, class_names, used, notes)
    used = _without_faults(rows, path, used, labels)
    if class_names is None:
        names, labels, true = _present(names, labels, true, used)
    if true is not None:
        true = true[used]
    everything = Split(rows.items.take(used), labels[used], true)
    code = rows.codes[used]
    train = _known(everything.take(np.flatnonzero(code == _TRAIN)), "train", notes)
    test = None
    if test_code is not None:
        test = _known(everything.take(np.flatnonzero(code == test_code)), "test", notes)
    return make_dataset(
        path.stem,
        names,
        train,
        test,
        where=str(path),
        root=str(base),
        missing="has no split column" if rows.unsplit else "has no test rows",
        seed=seed,
        test_fraction=test_fraction,
        notes=notes,
        skipped=rows.faults,
    )


def _called(columns: Mapping[str, str] | str) -> dict[str, str]:
    """Return the name that a table has for each of some columns."""
    pairs = [pair.partition("=")[::2] for pair in columns.split(",")] if isinstance(columns, str) else columns.items()
    if isinstance(columns, str) and not columns.strip():
        return {}
    called: dict[str, str] = {}
    for column, name in pairs:
        column, name = column.strip(), name.strip()
        if column not in _WANTED.all or not name or column in called or name in called.values():
            raise InputError(
                f"columns {short(str(columns))!r}: expected some of {', '.join(_WANTED.all)}, each with another name "
                "that the table has for it, as in path=filename,label=class"
            )
        called[column] = name
    return called


@dataclass
class _Rows:
    """What was read: an entry for each good row, and the faults of the others."""

    unit: str
    unsplit: bool
    keep_all: bool  # all faults, or the few that an error names
    items: Paths = field(default_factory=Paths)
    seen: int = 0
    numbers: Any = field(default_factory=lambda: array("q"))
    hashes: Any = field(default_factory=lambda: array("q"))
    labels: Any = field(default_factory=lambda: array("i"))
    true: Any = None  # -1 where the cell is empty
    codes: Any = field(default_factory=lambda: array("b"))
    texts: dict[str, int] = field(default_factory=dict)  # every label, in order of appearance
    first: list[int] = field(default_factory=list)  # the row in which it appears first
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    faulty: int = 0

    def place(self, number: int) -> str:
        return f"{self.unit} {number}"

    def fault(self, number: int, reason: str) -> None:
        self.faulty += 1
        if self.keep_all or self.faulty <= NAMED:
            self.faults.append(Fault(self.place(number), reason))


def _read_rows(table: Table, path: Path, base: Path, keep_all: bool) -> _Rows:
    """Yield the rows of `table`, their labels numbered in order of appearance."""
    found = _Rows(table.unit, "split" not in table.columns, keep_all)
    at = {name: i for i, name in enumerate(table.columns)}
    path_at, label_at = at["path"], at["label"]
    true_at, split_at = at.get("true_label"), at.get("split")
    found.true = None if true_at is None else array("i")
    folder = os.path.join(base, "")
    slashes = _Slashes(folder)
    codes: dict[str, int] = {}
    texts, first = found.texts, found.first

    def number_of(text: str, row: int) -> int:
        number = texts.setdefault(text, len(first))
        if number == len(first):
            first.append(row)
        return number

    def names() -> Iterator[str]:
        for row, cells in table.rows:
            found.seen += 1
            if isinstance(cells, str):
                found.fault(row, cells)
                continue
            name, label = cells[path_at], cells[label_at].strip()
            true = None if true_at is None else cells[true_at].strip()
            reason = _fault(name, label, true or "")
            if reason:
                found.fault(row, reason)
                continue
            code = _TRAIN
            if split_at is not None:
                written = cells[split_at]
                if written not in codes:
                    codes[written] = _split_code(written, path, found.place(row))
                code = codes[written]
            if "\\" in name:
                name = slashes.turned(name)
            name = os.path.join(folder, name)
            found.numbers.append(row)
            found.codes.append(code)
            found.hashes.append(hash(_key(name)))
            found.labels.append(number_of(label, row))
            if true is not None:
                found.true.append(number_of(true, row) if true else -1)
            yield name

    found.items = Paths(names())
    for array_name in ("numbers", "hashes", "labels", "true", "codes"):
        values = getattr(found, array_name)
        if values is not None:
            setattr(found, array_name, np.asarray(values))
    if slashes.turn:
        found.notes.append(f"Backslashes in the paths of {path} are read as slashes.")
    return found


def _fault(name: str, label: str, true: str) -> str:
    """Return what is wrong with a row, or nothing."""
    if not name or name.isspace():
        return "the path is empty"
    if not label:
        return "the label is empty"
    if "\0" in name or "\0" in label or "\0" in true:
        return NULL
    if len(name) > _LONGEST_PATH:
        return f"the path has {len(name)} characters, and no path can have so many"
    if max(len(label), len(true)) > LONGEST_NAME:
        return f"a label is longer than {LONGEST_NAME} characters, for which no prompt has room"
    if os.name != "nt" and _WINDOWS_ABSOLUTE.match(name):
        return f"{quoted(name)} is an absolute Windows path, which leads nowhere on this system"
    return ""


class _Slashes:
    """Whether backslashes part folders, decided once by the first path that has any."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.turn: bool | None = False if os.name == "nt" else None

    def turned(self, name: str) -> str:
        if self.turn is None:
            self.turn = not os.path.lexists(os.path.join(self._folder, name))
        return name.replace("\\", "/") if self.turn else name


def _key(name: str) -> str:
    """Return what two names of the same file have in common."""
    return os.path.normcase(os.path.normpath(name))


def _split_code(written: str, path: Path, place: str) -> int:
    code = _SPLITS.get(written.strip().lower())
    if code is None:
        raise InputError(f"{path}: split is {quoted(written)} at {place}; expected train, test or val")
    return code


def _used(rows: _Rows, path: Path, notes: list[str]) -> tuple[np.ndarray, int | None]:
    """Return the positions of the rows that are used, and the code of the test rows, if any."""
    _, test, validation = np.bincount(rows.codes, minlength=3)
    is_are = "is" if validation == 1 else "are"
    if validation and not test:
        notes.append(
            f"{path} has no test rows: its {counted(validation, 'validation row')} {is_are} used as the test split."
        )
        return np.arange(len(rows.codes)), _VALIDATION
    if validation:
        notes.append(f"Not used in {path}: {counted(validation, 'validation row')}, as there are test rows.")
    return np.flatnonzero(rows.codes != _VALIDATION), _TEST if test else None


def _classes(
    rows: _Rows, path: Path, class_names: Path | None, used: np.ndarray, notes: list[str]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray | None]:
    """Return the class names, and labels that count them; -1 for a number below 0 or none at all."""
    seen = [rows.labels[used]] + ([] if rows.true is None else [rows.true[used]])
    counted = np.zeros(len(rows.texts) + 1, bool)
    for numbers in seen:
        counted[numbers] = True  # -1 is the last, which stands for none
    texts = [text for i, text in enumerate(rows.texts) if counted[i]]
    first = [rows.first[i] for i in range(len(rows.texts)) if counted[i]]
    matches = [_NUMBER.fullmatch(text) for text in texts]
    numeric = [int(match[1]) for match in matches if match]
    names: Sequence[str]
    if len(numeric) < len(texts):
        names = sorted(texts) if class_names is None else _names_in(class_names)
        classes = matched(texts, names)
        if -1 in classes:
            i = classes.index(-1)
            raise InputError(
                f"{path}: label {quoted(texts[i])} at {rows.place(first[i])} is not a name in "
                f"{class_names}; correct it, or add the name"
            )
    elif class_names is None:
        numbers = sorted({number for number in numeric if number >= 0})
        names = [str(number) for number in numbers]
        place = {number: c for c, number in enumerate(numbers)}
        classes = [place.get(number, -1) for number in numeric]
        notes.append(
            f"The labels in {path} are numbers, and prompts need real names: give a text file with "
            "one name a line, in the order of the numbers, as `class_names`."
        )
    else:
        names = _names_in(class_names)
        for number, row in zip(numeric, first, strict=True):
            if number >= len(names):
                raise out_of_range(
                    number,
                    len(names),
                    f"{rows.place(row)} of {path}",
                    hint=f"they count the names in {class_names} from 0",
                )
        classes = [max(number, -1) for number in numeric]
    renumber = np.full(len(rows.texts) + 1, -1, np.int64)
    renumber[np.flatnonzero(counted[:-1])] = classes
    return tuple(names), renumber[rows.labels], None if rows.true is None else renumber[rows.true]


def _names_in(file: Path) -> list[str]:
    """Return the lines of a file of class names."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text; save the class names as UTF-8") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    names = [line.strip() for line in text.rstrip().split("\n")]
    check_names(names, str(file))
    return names


def _without_faults(rows: _Rows, path: Path, used: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the positions in `used` of good rows; the others are added to the faults of `rows`."""
    before = np.full(len(labels), -1)
    for row, first in _duplicates(rows.hashes, rows.items, used):
        before[row] = first
    is_bad = (before[used] >= 0) | (labels[used] < 0)
    bad: np.ndarray = used[is_bad]
    good: np.ndarray = used[~is_bad]

    def fault(row: int) -> Fault:
        if before[row] >= 0:
            reason = f"the same path as in {rows.place(rows.numbers[before[row]])}"
            if rows.codes[row] != rows.codes[before[row]]:
                reason += OTHER_SPLIT
        else:
            reason = "its label is below 0, which is no class"
        split = "" if rows.unsplit else _SPLIT_NAMES[rows.codes[row]]
        return Fault(rows.place(rows.numbers[row]), reason, split)

    rows.faulty += len(bad)
    rows.faults += [fault(row) for row in (bad if rows.keep_all else bad[:NAMED])]
    rows.faults.sort(key=lambda fault: int(fault.name.rpartition(" ")[2]))
    if rows.faulty and not (rows.keep_all and len(good)):
        what = f"{path}: {rows.faulty} of {rows.seen} rows"
        if len(good):
            raise unusable(what, rows.faults, "correct them", rows.faulty)
        raise InputError(
            f"{what} cannot be used ({summary(rows.faults, rows.faulty)}); correct them, as no row is left without them"
        )
    return good


def _duplicates(hashes: np.ndarray, items: Paths, used: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield each row whose path stands in a row before, and the first such row."""
    order = used[np.argsort(hashes[used], kind="stable")]
    ordered = hashes[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    first: dict[str, int] = {}
    last = -1
    for i in again.tolist():
        if i - 1 != last:  # a hash that was not met yet
            first = {_key(items[order[i - 1]]): order[i - 1]}
        # Different paths may have the same hash.
        before = first.setdefault(_key(items[order[i]]), order[i])
        if before != order[i]:
            yield order[i], before
        last = i


def _present(
    names: tuple[str, ...], labels: np.ndarray, true: np.ndarray | None, used: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray | None]:
    """Return the classes that rows left in `used` have, and labels that count those."""
    there = np.zeros(len(names) + 1, bool)
    there[labels[used]] = True
    if true is not None:
        there[true[used]] = True
    renumber = np.append(np.cumsum(there[:-1]) - 1, -1)
    kept = tuple(name for name, is_there in zip(names, there, strict=False) if is_there)
    return kept, renumber[labels], None if true is None else renumber[true]


def _known(split: Split, name: str, notes: list[str]) -> Split:
    """Return `split`, without true labels if none is known; the user is told of those that are not."""
    if split.true_labels is None or (known := split.true_labels >= 0).all():
        return split
    if not known.any():
        notes.append(f"No true label is given in the {name} split.")
        return Split(split.items, split.labels)
    notes.append(
        f"{(~known).sum()} of {len(known)} images of the {name} split have no true label: whether theirs is wrong is "
        "unknown."
    )
    return split
