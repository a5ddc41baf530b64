"""Manifests: tables that name an image file and its label in each row.

Columns are `path` and `label`, and may be `true_label` and `split`, in any order. Lines of a text
file are counted from 1, the header among them; rows of a Parquet file from 0.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dspt.data.dataset import Dataset, Split, check_names, hold_out, listed
from dspt.data.paths import Paths
from dspt.errors import NAMED, Fault, InputError, summary

SUFFIXES = (".csv", ".tsv", ".parquet")
# Characters in the name of a class: no prompt has room for more.
LONGEST_NAME = 1_000

_COLUMNS = ("path", "label", "true_label", "split")
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
# No line of a table is that long; reading one whole could exhaust the memory.
_LONGEST_LINE = 1 << 20


def read(
    path: Path,
    *,
    root: Path | None = None,
    class_names: Path | None = None,
    seed: int = 1,
    test_fraction: float = 0.2,
    skip_bad: bool = False,
) -> Dataset:
    """Return the images and labels that the rows of `path` name.

    Relative paths start from `root`, or from the manifest's own folder; whether the files are there
    is seen when they are encoded. Labels are names, or numbers from 0 if all of them are whole
    numbers; `class_names` is a text file with one name a line, in the order of labels. Without test
    rows, validation rows take their place, or `test_fraction` of each class is held out.
    """
    base = path.parent if root is None else root
    with _open(path) as table:
        rows = _read_rows(table, path, base, skip_bad)
    if not rows.seen:
        raise InputError(f"{path}: it has a header and no rows; add a row for each image")
    notes = list(rows.notes)
    if table.others:
        notes.append(f"Not used in {path}: column {listed(table.others)}.")

    used, test_code = _used(rows, path, notes)
    names, labels, true = _classes(rows, path, class_names, used, notes)
    used = _without_faults(rows, path, used, labels, true)
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
    return finished(
        Dataset(path.stem, names, train, train, notes=tuple(notes), skipped=tuple(rows.faults)),
        test,
        where=str(path),
        missing="has no split column" if rows.unsplit else "has no test rows",
        seed=seed,
        test_fraction=test_fraction,
    )


def finished(
    dataset: Dataset,
    test: Split | None,
    *,
    where: str,
    missing: str,
    seed: int,
    test_fraction: float,
) -> Dataset:
    """Return `dataset` with its test split, held out of the train split if it is None.

    `where` and `missing` begin the note that says so. Every class that is tested must be trained.
    """
    names, train, notes = dataset.class_names, dataset.train, list(dataset.notes)
    check_names(names, where)
    if not len(train.labels):
        raise InputError(f"{where}: no images to train with; it needs a train split")
    if test is None:
        train, test = hold_out(train, names, seed, test_fraction)
        notes.append(
            f"{where} {missing}: {len(test.labels)} of {len(test.labels) + len(train.labels)} "
            f"images, drawn from each class with seed {seed}, are held out as the test split."
        )
    if not len(test.labels):
        raise InputError(f"{where}: no images to test with; add some to each class")
    trained = np.zeros(len(names), bool)
    tested = trained.copy()
    trained[train.labels] = True
    untrained = [names[c] for c in np.flatnonzero(~trained)]
    for split, seen in ((train, trained), (test, tested)):
        seen[split.labels] = True
        if split.true_labels is not None:
            seen[split.true_labels] = True
    alone = [names[c] for c in np.flatnonzero(tested & ~trained)]
    if alone:
        raise InputError(
            f"{where}: class {listed(alone)} is in the test split only; "
            "test images must belong to a class that is trained"
        )
    if untrained:
        notes.append(f"No train image of {where} is labelled {listed(untrained)}.")
    return replace(dataset, train=train, test=test, notes=tuple(notes))


@dataclass
class _Table:
    """The rows of a manifest: their number, and the cells of `columns` or what is wrong with it."""

    columns: tuple[str, ...]
    others: list[str]
    unit: str
    rows: Iterator[tuple[int, Sequence[str] | str]]


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


def _read_rows(table: _Table, path: Path, base: Path, keep_all: bool) -> _Rows:
    """Give the rows of `table`, their labels numbered in order of appearance."""
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
    """Give what is wrong with a row, or nothing."""
    if not name or name.isspace():
        return "the path is empty"
    if not label:
        return "the label is empty"
    if "\0" in name or "\0" in label or "\0" in true:
        return _NULL
    if len(name) > _LONGEST_PATH:
        return f"the path has {len(name)} characters, and no path can have so many"
    if max(len(label), len(true)) > LONGEST_NAME:
        return f"a label is longer than {LONGEST_NAME} characters, for which no prompt has room"
    if os.name != "nt" and _WINDOWS_ABSOLUTE.match(name):
        return f"{_quoted(name)} is an absolute Windows path, which leads nowhere on this system"
    return ""


_NULL = "there is a null byte in it"


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
    """Give what two names of the same file have in common."""
    return os.path.normcase(os.path.normpath(name))


def _split_code(written: str, path: Path, place: str) -> int:
    code = _SPLITS.get(written.strip().lower())
    if code is None:
        raise InputError(
            f"{path}: split is {_quoted(written)} at {place}; expected train, test or val"
        )
    return code


def _used(rows: _Rows, path: Path, notes: list[str]) -> tuple[np.ndarray, int | None]:
    """Give the positions of the rows that are used, and the code of the test rows, if any."""
    _, test, validation = np.bincount(rows.codes, minlength=3)
    if validation and not test:
        notes.append(
            f"{path} has no test rows: its {validation} validation rows are used as the test split."
        )
        return np.arange(len(rows.codes)), _VALIDATION
    if validation:
        notes.append(f"Not used in {path}: {validation} validation rows, as there are test rows.")
    return np.flatnonzero(rows.codes != _VALIDATION), _TEST if test else None


def _classes(
    rows: _Rows, path: Path, class_names: Path | None, used: np.ndarray, notes: list[str]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray | None]:
    """Give the class names, and labels that count them; -1 for a number below 0 or none at all."""
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
        position = {name: c for c, name in enumerate(names)}
        for text, row in zip(texts, first, strict=True):
            if text not in position:
                raise InputError(
                    f"{path}: label {_quoted(text)} at {rows.place(row)} is not a name in "
                    f"{class_names}; correct it, or add the name"
                )
        classes = [position[text] for text in texts]
    elif class_names is None:
        numbers = sorted({number for number in numeric if number >= 0})
        names = [str(number) for number in numbers]
        place = {number: c for c, number in enumerate(numbers)}
        classes = [place.get(number, -1) for number in numeric]
        notes.append(
            f"The labels in {path} are numbers, and prompts need real names: give a text file with "
            "one name a line, in the order of the numbers, with --class-names FILE."
        )
    else:
        names = _names_in(class_names)
        for number, row in zip(numeric, first, strict=True):
            if number >= len(names):
                raise InputError(
                    f"{path}: label {number} at {rows.place(row)}: expected 0..{len(names) - 1} "
                    f"for the {len(names)} names in {class_names}; labels count from 0"
                )
        classes = [max(number, -1) for number in numeric]
    renumber = np.full(len(rows.texts) + 1, -1, np.int64)
    renumber[np.flatnonzero(counted[:-1])] = classes
    return tuple(names), renumber[rows.labels], None if rows.true is None else renumber[rows.true]


def _names_in(file: Path) -> list[str]:
    """Give the lines of a file of class names."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text; save the class names as UTF-8") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    names = [line.strip() for line in text.rstrip().split("\n")]
    check_names(names, str(file))
    return names


def _without_faults(
    rows: _Rows, path: Path, used: np.ndarray, labels: np.ndarray, true: np.ndarray | None
) -> np.ndarray:
    """Give the positions in `used` of good rows; the others are added to the faults of `rows`."""
    before = np.full(len(labels), -1)
    for row, first in _duplicates(rows.hashes, rows.items, used):
        before[row] = first
    unknown = np.zeros(len(labels), bool)
    if true is not None:
        for code in np.unique(rows.codes[used]):
            own = used[rows.codes[used] == code]
            unknown[own] = (true[own] < 0) & (true[own] >= 0).any()
    is_bad = (before[used] >= 0) | (labels[used] < 0) | unknown[used]
    bad, good = used[is_bad], used[~is_bad]

    def fault(row: int) -> Fault:
        if before[row] >= 0:
            reason = f"the same path as in {rows.place(rows.numbers[before[row]])}"
            if rows.codes[row] != rows.codes[before[row]]:
                reason += ", which belongs to another split"
        elif labels[row] < 0:
            reason = "its label is below 0, which is no class"
        else:
            reason = "its true label is empty, and those of other rows are not"
        split = "" if rows.unsplit else _SPLIT_NAMES[rows.codes[row]]
        return Fault(rows.place(rows.numbers[row]), reason, split)

    rows.faulty += len(bad)
    rows.faults += [fault(row) for row in (bad if rows.keep_all else bad[:NAMED])]
    rows.faults.sort(key=lambda fault: int(fault.name.rpartition(" ")[2]))
    if rows.faulty and not (rows.keep_all and len(good)):
        named = rows.faults[:NAMED]
        more = f", and {rows.faulty - len(named)} more" if rows.faulty > len(named) else ""
        what = "correct them, or give --skip-bad to go on without them"
        raise InputError(
            f"{path}: {rows.faulty} of {rows.seen} rows cannot be used ({summary(named)}{more}); "
            f"{what if len(good) else 'correct them, as no row is left without them'}"
        )
    return good


def _duplicates(hashes: np.ndarray, items: Paths, used: np.ndarray) -> Iterator[tuple[int, int]]:
    """Give each row whose path stands in a row before, and the first such row."""
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
    """Give the classes that rows left in `used` have, and labels that count those."""
    there = np.zeros(len(names) + 1, bool)
    there[labels[used]] = True
    if true is not None:
        there[true[used]] = True
    renumber = np.append(np.cumsum(there[:-1]) - 1, -1)
    kept = tuple(name for name, is_there in zip(names, there, strict=False) if is_there)
    return kept, renumber[labels], None if true is None else renumber[true]


def _known(split: Split, name: str, notes: list[str]) -> Split:
    """Give `split` without true labels if none of its rows has one."""
    if split.true_labels is None or (split.true_labels >= 0).all():
        return split
    notes.append(f"No true label is given in the {name} split.")
    return Split(split.items, split.labels)


def _open(path: Path) -> AbstractContextManager[_Table]:
    return _parquet(path) if path.suffix.lower() == ".parquet" else _text(path)


@contextmanager
def _text(path: Path) -> Iterator[_Table]:
    """Give the table in a text file."""
    with _opened(path) as file:
        nulls: list[int] = []
        lines = _lines(file, path, nulls)
        above, header = next(((i, line) for i, line in lines if line.strip()), (0, ""))
        if not header:
            raise InputError(f"{path}: it is empty; {_WANTED}")
        if nulls:
            raise InputError(f"{path}: its header has null bytes; save it as UTF-8 text")
        delimiter, cells = _header(path, above, header)
        columns, others = _columns(path, cells)
        rows = _cells(path, lines, above, nulls, delimiter, cells, columns)
        yield _Table(tuple(columns), others, "line", rows)


def _opened(path: Path) -> TextIO:
    try:
        return open(path, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


_WANTED = "expected a header with the columns path and label, then a row for each image"


def _lines(file: TextIO, path: Path, nulls: list[int]) -> Iterator[tuple[int, str]]:
    """Give the lines of `file` and their numbers; those with null bytes are put into `nulls`."""
    number = 0
    try:
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise InputError(
                    f"{path}: line {number} is longer than {_LONGEST_LINE} characters; "
                    "see whether it is a table with a row for each image"
                )
            if "\0" in line:
                nulls.append(number)
                line = line.replace("\0", "")  # some versions of csv stop at them
            yield number, line
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: line {_undecodable(path)} is not UTF-8 text; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _undecodable(path: Path) -> int:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _too_long(path: Path, number: int) -> str:
    return (
        f"{path}: a cell at line {number} is longer than {csv.field_size_limit()} characters; "
        "see whether a quote is not closed there"
    )


def _header(path: Path, number: int, line: str) -> tuple[str, list[str]]:
    """Give the delimiter that parts the header into the most wanted columns, and its cells."""
    found: list[tuple[str, list[str]]] = []
    for delimiter in ("\t", ",", ";") if path.suffix.lower() == ".tsv" else (",", ";", "\t"):
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        except csv.Error:
            raise InputError(_too_long(path, number)) from None
        found.append((delimiter, cells))
    return max(found, key=lambda pair: (_wanted_in(pair[1]), len(pair[1])))


def _wanted_in(header: Sequence[str]) -> int:
    return sum(name.strip().lower() in _COLUMNS for name in header)


def _columns(path: Path, header: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Give the position of each wanted column, and the names of the others."""
    columns: dict[str, int] = {}
    others: list[str] = []
    for i, written in enumerate(header):
        name = written.strip().lower()
        if name in columns:
            raise InputError(f"{path}: column {name!r} is there twice; keep one of them")
        if name in _COLUMNS:
            columns[name] = i
        else:
            others.append(_short(written.strip()))
    missing = [name for name in _COLUMNS[:2] if name not in columns]
    if missing:
        shown = [_short(name.strip()) for name in header]
        raise InputError(
            f"{path}: has no column {' and no column '.join(map(repr, missing))}; "
            f"found {listed(shown, 10)}, {_WANTED}"
        )
    return columns, others


def _cells(
    path: Path,
    lines: Iterator[tuple[int, str]],
    above: int,
    nulls: list[int],
    delimiter: str,
    header: Sequence[str],
    columns: dict[str, int],
) -> Iterator[tuple[int, Sequence[str] | str]]:
    """Give the number of each row that is not blank, and its wanted cells or what is wrong."""
    reader = csv.reader(
        (line for _, line in lines), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    wanted, width, end = list(columns.values()), len(header), above
    while True:
        start = end + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            # What follows a broken quote cannot be told apart, so no row is left out here.
            if "field limit" in str(error):
                raise InputError(_too_long(path, start)) from None
            raise InputError(
                f"{path}: the quotes at line {start} are not closed or not followed by "
                f"{delimiter!r}; write a quote inside of quotes twice"
            ) from None
        end = above + reader.line_num
        if cells is None:
            return
        if nulls:
            nulls.clear()
            yield start, _NULL
        elif len(cells) != width:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, f"{len(cells)} cells instead of {width}"
        else:
            chosen = [cells[i] for i in wanted]
            if end > start and any("\n" in cell or "\r" in cell for cell in chosen):
                raise InputError(
                    f"{path}: a cell runs from line {start} to line {end}; "
                    "see whether a quote is not closed there"
                )
            yield start, chosen


@contextmanager
def _parquet(path: Path) -> Iterator[_Table]:
    """Give the table in a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    try:
        # Read as it is used: whole row groups may be as large as the file.
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16)
        schema = file.schema_arrow
    except Exception as error:  # Arrow, Thrift and the operating system all speak up here
        raise InputError(f"{path}: {_reason(error)}") from None
    with file:
        columns, others = _columns(path, schema.names)
        for name, i in columns.items():
            _check_type(path, name, schema.field(i).type)
        names = [schema.names[i] for i in columns.values()]
        yield _Table(tuple(columns), others, "row", _parquet_rows(path, file, names))
    pyarrow.default_memory_pool().release_unused()  # it would keep what the file took


def _check_type(path: Path, name: str, kind: Any) -> None:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_null(value)
    is_number = types.is_integer(value) and name in ("label", "true_label")
    if not (is_text or is_number):
        wanted = "text or whole numbers" if name in ("label", "true_label") else "text"
        raise InputError(f"{path}: column {name!r} holds {_short(str(kind))}; expected {wanted}")


def _parquet_rows(
    path: Path, file: Any, names: Sequence[str]
) -> Iterator[tuple[int, Sequence[str] | str]]:
    number = 0
    batches = file.iter_batches(batch_size=8192, columns=list(names), use_threads=False)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            parts = [_texts(batch.column(batch.schema.get_field_index(name))) for name in names]
        except Exception as error:  # a damaged page, or text that is not UTF-8
            raise InputError(f"{path}: {_reason(error)}") from None
        for cells in zip(*parts, strict=True):
            yield number, cells
            number += 1


def _texts(column: Any) -> list[str]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return [text or "" for text in column.cast(pyarrow.large_string()).to_pylist()]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.errno:
        return f"cannot be read ({error.strerror})"
    return f"not a readable Parquet file ({_short(' '.join(str(error).split()), 120)})"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _quoted(text: str) -> str:
    return repr(_short(text))
