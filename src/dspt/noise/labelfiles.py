"""Files of labels: written by us, by other programs, or by people who labelled a dataset anew.

Ours is a table that a spreadsheet shows: `item,label` and, where it is known, `true_label`, with a row for each sample
in any order. An item is the path of an image below the folder of its dataset, or a digest of its content; labels are
class names. Other files give numbers in the order of the samples, and cannot say of which samples.

torch is imported only to read its own kind of file.
"""

from __future__ import annotations

import csv
import re
import tarfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspt.data import Dataset, Split
from dspt.data.arrays import load_npy, open_npz
from dspt.data.items import item_names, written
from dspt.data.tabular import Wanted, open_table, quoted
from dspt.internal.checks import as_array, check_labels, checked_labels, is_integer, out_of_range
from dspt.internal.errors import InputError
from dspt.internal.files import replacing
from dspt.internal.names import from_spreadsheet_cell, matched, spreadsheet_cell

# What CIFAR-10N and CIFAR-100N call the labels that the people were not shown.
CLEAN = "clean_label"

_COARSE, _COARSE_CLASSES = "noisy_coarse_label", 20
_ONE_ARRAY = (".csv", ".npy")
_NAMED_ARRAYS = (".npz", ".pt")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_TABLE = Wanted(("item", "label"), ("true_label",), numbers=("label", "true_label"), each="each image")
# Cells that are more than one, or less than they were, unless they stand in quotes.
_QUOTED = re.compile(r'[,;"]|^\s|\s$')


def write_split(path: Path | str, dataset: Dataset, split: Split) -> None:
    """Put the labels of a split at `path`: .csv with the item and the class of each; .npy with numbers alone.

    Parameters
    ----------
    path : Path or str
    dataset : Dataset
        What the split is of: it has the names of the classes.
    split : Split
        Where its true labels are not known, their cells are empty.
    """
    path = Path(path)
    if _extension(path, *_ONE_ARRAY) == ".npy":
        write_labels(path, split.labels)
        return
    classes = [*(_cell(written(name)) for name in dataset.class_names), ""]  # the last, -1, is not known
    columns = [split.labels] if split.true_labels is None else [split.labels, split.true_labels]
    names = map(_cell, item_names(split.items, dataset.root))
    rows = zip(names, *(map(classes.__getitem__, column.tolist()) for column in columns), strict=True)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(",".join(_TABLE.all[: 1 + len(columns)]) + "\n")
        file.writelines(",".join(cells) + "\n" for cells in rows)


def read_split(path: Path | str, dataset: Dataset, warn: Callable[[str], None]) -> Split:
    """Return the train split with the labels at `path`, and the right ones as far as file or dataset know them.

    A file with a column `item` must have one row for each sample, in any order, and no others. Any other file is read
    as `read_labels` does; `warn` is told so, unless right labels in the file prove that its order is that of the data.

    Parameters
    ----------
    path : path of a label file, with #KEY after it where one of several arrays is meant
    dataset : Dataset
        Its train split counts.
    warn : callable
        Takes a sentence for the user.
    """
    split, file = dataset.train, label_file(path)
    if _names_items(file):
        given, true = _by_item(file, dataset)
        return Split(split.items, given, true)
    given, proven = _in_order(path, len(dataset.class_names), len(split.labels), split.best_labels)
    if not proven:
        data = dataset.source or dataset.name
        warn(f"{path} names no images: its labels are taken in the order of {data}, and are wrong in any other order.")
    return Split(split.items, given, split.true_labels)


def _cell(text: str) -> str:
    """Return a text as a cell of a .csv file that a spreadsheet shows as it is."""
    text = spreadsheet_cell(text)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _names_items(path: Path) -> bool:
    """Return whether this is a .csv file with a column of items."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            header = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return False  # reading it tells more
    return any(cell.strip(b' "\r\n').lower() == b"item" for cell in re.split(b"[,;\t]", header))


def _by_item(path: Path, dataset: Dataset) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the labels that a table has for the items of the train split, and the right ones; -1 is not known."""
    split, data = dataset.train, dataset.source or dataset.name
    names = list(item_names(split.items, dataset.root))
    position = {name: i for i, name in enumerate(names)}
    lines, rows = [], []
    with open_table(path, _TABLE) as table:
        for line, cells in table.rows:
            if isinstance(cells, str):
                raise InputError(f"{path}: line {line} cannot be used, {cells}; correct it")
            lines.append(line)
            rows.append([from_spreadsheet_cell(cell) for cell in cells])
    items, *columns = list(zip(*rows, strict=True)) or [()] * len(table.columns)

    place = np.array([position.get(item, -1) for item in items], np.int64)
    _refuse(path, place < 0, f"rows are for images that {data} does not have", items, lines)
    again = np.ones(len(place), bool)
    again[np.unique(place, return_index=True)[1]] = False
    _refuse(path, again, "rows are for an image that has one already", items, lines)
    _refuse(path, np.bincount(place, minlength=len(names)) == 0, f"images of {data} have no row", names)
    classes = [written(name) for name in dataset.class_names]
    found = []
    for name, column in zip(table.columns[1:], columns, strict=True):
        texts = list(dict.fromkeys(column))
        number = dict(zip(texts, matched(texts, classes), strict=True))
        labels = np.array([number[text] for text in column], np.int64)
        wrong = labels < 0
        if name in _TABLE.optional:
            wrong &= np.array([text != "" for text in column], bool)
        _refuse(path, wrong, f"rows have a {name} that is no class of {data}", column, lines)
        found.append(np.empty_like(labels))
        found[-1][place] = labels
    given, own = found[0], split.true_labels
    if len(found) == 1:
        return given, own
    true = found[1]
    if own is not None:
        _refuse(path, (true != own) & (true >= 0) & (own >= 0), f"true labels are other ones than in {data}", names)
        true = np.where(true < 0, own, true)
    return given, true


def _refuse(path: Path, wrong: np.ndarray, what: str, texts: Sequence[str], lines: Sequence[int] = ()) -> None:
    """Raise `InputError` with the number of wrong ones and the first of them, if there are any."""
    if wrong.any():
        i = int(wrong.argmax())
        first = quoted(texts[i]) + (f" at line {lines[i]}" if lines else "")
        raise InputError(f"{path}: {np.count_nonzero(wrong)} of {len(wrong)} {what}; the first is {first}")


def write_labels(path: Path | str, labels: Any) -> None:
    """Put labels at `path`: .npy as int64, .csv with the header `index,label`."""
    path, values = Path(path), checked_labels(labels)
    kind = _extension(path, *_ONE_ARRAY)
    with replacing(path) as temporary:
        if kind == ".npy":
            # np.save would add its own extension to a name.
            with open(temporary, "wb") as file:
                np.save(file, values, allow_pickle=False)
        else:
            lines = [f"{index},{label}" for index, label in enumerate(values.tolist())]
            temporary.write_text("\n".join(["index,label", *lines, ""]), encoding="utf-8")


def read_labels(path: Path | str, num_classes: int, n: int, true: np.ndarray | None = None) -> np.ndarray:
    """Return the `n` labels at `path` as int64, in 0..num_classes-1.

    Parameters
    ----------
    path : path of a .csv, .npy, .npz or .pt file, the last two with #KEY after it
        A .csv file has the header `index,label`, with every index of 0..n-1 once and in any order,
        or `label`, with the labels in order. A .npy file holds one array of n integers. An .npz
        file, or a .pt file that torch saved, holds some under names: KEY is one of them, and may be
        left out where there is one only. What else a .pt file may hold is never loaded.
    num_classes : int
    n : int
        How many labels there must be.
    true : int array (n,), optional
        The right labels of the samples in their order. A file that has a `clean_label` of its own
        must agree, else its labels are of other samples.
    """
    return _in_order(path, num_classes, n, true)[0]


def _in_order(path: Path | str, num_classes: int, n: int, true: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """Return the labels at `path`, and whether right labels beside them prove that they are in order."""
    path, key = _split_key(path)
    kind = readable(path, *_ONE_ARRAY, *_NAMED_ARRAYS)
    if key and kind in _ONE_ARRAY:
        raise InputError(f"{path}: a {kind} file holds labels without names; leave out #{key}")
    if kind == ".csv":
        labels = _plain_csv(path, num_classes, n)
        return _careful_csv(path, num_classes, n) if labels is None else labels, False
    if kind == ".npy":
        return _checked_array(load_npy(path), num_classes, n, f"{path}"), False
    key, arrays = _load_npz(path, key) if kind == ".npz" else _load_pt(path, key)
    if key == _COARSE and num_classes != _COARSE_CLASSES:
        raise InputError(
            f"{path}: {_COARSE} tells {_COARSE_CLASSES} groups of classes apart, and the data has "
            f"{num_classes} classes; use #noisy_label"
        )
    checked = _checked_array(arrays[key], num_classes, n, f"{path}#{key}")
    if true is None or CLEAN not in arrays:
        return checked, False
    _check_order(path, arrays[CLEAN], true)
    return checked, True


def readable(path: Path, *kinds: str) -> str:
    """Return the extension of a file that is there, in small letters, once it is one of `kinds`."""
    kind = _extension(path, *kinds)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return kind


def _extension(path: Path, *kinds: str) -> str:
    """Return the extension of `path` in small letters, once it is one of `kinds`."""
    found = path.suffix.lower()
    if found not in kinds:
        raise InputError(f"{path}: expected a {', '.join(kinds[:-1])} or {kinds[-1]} file")
    return found


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row of a .csv file that is not blank."""
    try:
        # A spreadsheet's byte order mark is no part of the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for row in reader:
                if any(cells := [cell.strip() for cell in row]):
                    yield reader.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable .csv file ({error})") from None


# pyarrow.csv takes longer, and reads 0x1f, which is refused here.
_ODD_LINE = {
    b"label": re.compile(rb"\n(?![0-9]{1,18}(?:\n|\Z))"),
    b"index,label": re.compile(rb"\n(?![0-9]{1,18},[0-9]{1,18}(?:\n|\Z))"),
}


def _plain_csv(path: Path, num_classes: int, n: int) -> np.ndarray | None:
    """Return the labels of a .csv file of digits, commas and line ends; None if anything is odd.

    Millions of them are read at once, where `_careful_csv` goes row by row.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return None
    text = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n")
    header, _, body = text.partition(b"\n")
    if not body or header not in _ODD_LINE or _ODD_LINE[header].search(text):
        return None
    numbers = np.fromstring(body.replace(b"\n", b",").decode(), np.int64, sep=",")
    cells = numbers.reshape(-1, 1 + header.count(b","))
    index = np.arange(len(cells)) if header == b"label" else cells[:, 0]
    if not np.array_equal(np.sort(index), np.arange(n)) or cells[:, -1].max() >= num_classes:
        return None
    labels = np.empty(n, np.int64)
    labels[index] = cells[:, -1]
    return labels


def _careful_csv(path: Path, num_classes: int, n: int) -> np.ndarray:
    """Return the labels of a .csv file, or name the first line with a mistake."""
    (_, header), *rows = list(csv_rows(path)) or [(0, ["nothing"])]
    if "item" in map(str.lower, header):
        raise InputError(f"{path}: it names its images, so its labels can be read only for a dataset that has them")
    if header not in (["index", "label"], ["label"]):
        found = ",".join(header)
        raise InputError(f"{path}: expected the header item,label or index,label or label, found {found}")
    if len(rows) != n:
        raise InputError(f"{path}: expected {n} labels, found {len(rows)}")
    labels = np.full(n, -1, dtype=np.int64)
    for position, (line, cells) in enumerate(rows):
        where = f"at line {line} of {path}"
        if len(cells) != len(header) or not all(map(_INTEGER.fullmatch, cells)):
            found = ",".join(cells)
            raise InputError(
                f"labels: expected integers {','.join(header)}, found {found} {where}; class names need a column item "
                "with the image of each"
            )
        index, label = position if len(cells) == 1 else int(cells[0]), int(cells[-1])
        if not 0 <= index < n or labels[index] >= 0:
            raise InputError(f"index: expected each of 0..{n - 1} once, found {index} {where}")
        if not 0 <= label < num_classes:
            raise out_of_range(label, num_classes, f"line {line} of {path}")
        labels[index] = label
    return labels


def _load_npz(path: Path, key: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return the key that is meant and its array, with that of the right labels if there is one."""
    with open_npz(path) as (held, array):
        key = _known_key(path, key, held)
        return key, {name: array(name) for name in held if name in (key, CLEAN)}


def _load_pt(path: Path, key: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return the key that is meant, and the arrays, tensors and lists that torch.save wrote."""
    import torch
    from torch import serialization

    from dspt.data import unpickle

    # A form of old times, from which torch before 2.6 runs code all the same (CVE-2025-32434).
    if tarfile.is_tarfile(path):
        raise InputError(f"{path}: not a file that torch.save writes today; save it again")
    allowed: list[Any] = [*unpickle.stand_ins(), unpickle.Array, unpickle.Dtype]
    before = list(serialization.get_safe_globals())
    try:
        # Nothing but this: what the rest of the program trusts is not asked for here.
        serialization.clear_safe_globals()
        serialization.add_safe_globals(allowed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other protocols; what matters is an error
            content = torch.load(path, map_location="cpu", weights_only=True)
    except unpickle.Refused as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # torch, zip and pickle all speak up here
        asked = re.search(r"GLOBAL (\S+)", str(error))
        if asked is None:
            raise InputError(f"{path}: not a readable .pt file ({type(error).__name__})") from None
        raise InputError(
            f"{path}: it asks for {asked[1]}, which could run code and is never loaded; a label "
            "file is a dict of arrays that torch.save wrote"
        ) from None
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)
    content = unpickle.arrays(content)
    if not isinstance(content, dict):
        content = {"labels": content}
    kinds = (np.ndarray, torch.Tensor, list)
    arrays = {str(name): _plain(held) for name, held in content.items() if isinstance(held, kinds)}
    return _known_key(path, key, list(arrays)), arrays


def _plain(value: Any) -> np.ndarray:
    """Return an array; an empty one of objects for what cannot be labels."""
    try:
        # Lists within lists can be few bytes in a file and without end as an array.
        if not isinstance(value, list) or all(map(is_integer, value)):
            return as_array(value)
    except (TypeError, RuntimeError):  # types of torch that numpy does not have
        pass
    return np.zeros(0, dtype=object)


def label_file(path: Path | str) -> Path:
    """Return the file that a path means, which may have #KEY after it."""
    return _split_key(path)[0]


def _split_key(path: Path | str) -> tuple[Path, str]:
    """Return a path and what stands after # in it, unless there is a file of the whole name."""
    whole, (before, _, key) = Path(path), str(path).rpartition("#")
    known = Path(before).suffix.lower() in (*_ONE_ARRAY, *_NAMED_ARRAYS)
    return (Path(before), key) if known and not whole.is_file() else (whole, "")


def _known_key(path: Path, key: str, held: list[str]) -> str:
    if not held:
        raise InputError(f"{path}: no arrays in it; a label file holds one or more")
    if not key and len(held) == 1:
        return held[0]
    if key in held:
        return key
    more = f" and {len(held) - 10} more" if len(held) > 10 else ""
    there = ", ".join(held[:10]) + more
    if key:
        raise InputError(f"{path}: no array {key!r} in it; give one of {there} after #")
    raise InputError(f"{path}: more than one array in it; give one of {there} after #")


def _checked_array(array: np.ndarray, num_classes: int, n: int, where: str) -> np.ndarray:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{where}: expected one array of integers, found {found}")
    if len(array) != n:
        raise InputError(f"{where}: expected {n} labels, found {len(array)}")
    check_labels(array, num_classes, where=where)
    return array.astype(np.int64)


def _check_order(path: Path, clean: np.ndarray, true: np.ndarray) -> None:
    if clean.shape != true.shape:
        raise InputError(f"{path}: {CLEAN} has shape {clean.shape}, expected {len(true)} labels")
    wrong = int(np.count_nonzero(clean != true))
    if wrong:
        raise InputError(
            f"{path}: {CLEAN} differs from the data's own labels in {wrong} of {len(true)} rows; "
            "the images are not in the order the file was made for"
        )
