"""Hugging Face datasets, from the Hub or from a folder.

A source is `hf:org/name`, `hf:org/name:config` or `hf:/a/folder`, and may end with a query that
says which columns and splits are meant: `?image=COLUMN&label=COLUMN&true_label=COLUMN&train=SPLIT&
test=SPLIT`, all in one line. Code that comes with a dataset is never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from dspt.data.dataset import Dataset, Split, listed, make_dataset, unusable
from dspt.data.paths import Rows
from dspt.data.tabular import short
from dspt.internal.checks import out_of_range
from dspt.internal.errors import Fault, InputError
from dspt.internal.rounding import counted

_QUERY = ("image", "label", "true_label", "train", "test")
_SAY = "say which with hf:…?image=COLUMN&label=COLUMN&true_label=COLUMN&train=SPLIT&test=SPLIT"
_VALIDATION = ("validation", "val", "valid")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:.+)?")


class Images(Rows[bytes | str]):
    """The images in a column of a dataset: the encoded bytes of one, or its path, when asked for.

    An image that is missing has no bytes, which whoever decodes it will say. The dataset lies in
    mapped files.
    """

    def __init__(self, data: Any, column: str) -> None:
        from datasets import Image

        # Other columns would be converted too, for every image.
        data = data.with_format(None).select_columns([column])
        self._data = data.cast_column(column, Image(decode=False))
        self._column = column
        self._rows = range(len(data))

    def _read(self, row: int) -> bytes | str:
        image = self._data[row][self._column] or {}
        return image.get("bytes") or image.get("path") or b""

    def name(self, index: int) -> str:
        """Return what to call an image in a sentence: its row in the dataset, or its path."""
        item = self[index]
        return item if isinstance(item, str) else f"row {self._rows[index]}"


def is_saved(path: Path) -> bool:
    """Return whether `path` is a folder that `save_to_disk` wrote."""
    files = ("state.json", "dataset_info.json")
    is_file = os.path.isfile  # unlike Path's, it answers "no" behind a closed folder
    return is_file(path / "dataset_dict.json") or all(is_file(path / f) for f in files)


def read(source: str, *, seed: int = 1, test_fraction: float = 0.2, skip_bad: bool = False) -> Dataset:
    """Return the images and labels of the dataset that `source` names.

    The image column is the one of that kind, and so is the label column; without a ClassLabel it is
    the one called label. Without a test split, a validation split takes its place, or
    `test_fraction` of each class is held out. Rows without a label are faults.

    Parameters
    ----------
    source : str
        "hf:org/name", "hf:org/name:config" or "hf:/a/folder", perhaps with a query: see the top of this module.
    seed : int
        Seed of the draw of held-out images.
    test_fraction : float
        The part of each class that is held out, above 0 and below 1.
    skip_bad : bool
        Leave out rows without a label and list them in `Dataset.skipped`, instead of stopping at them.
    """
    where, query = _parsed(source)
    splits = _load(where, source)
    notes: list[str] = []
    train, test = _splits(splits, query, source, notes)
    parts = {"train": splits[train]} | ({"test": splits[test]} if test else {})
    columns = _columns(parts["train"].features, query, source)
    for split, data in parts.items():
        for column in filter(None, columns):
            if column not in data.features:
                raise InputError(
                    f"{source}: the {split} split has no column {column!r}; found {listed(list(data.features))}, {_SAY}"
                )
    image, label, true_label = columns
    given = {split: _stored(data, label, source) for split, data in parts.items()}
    true = {split: _stored(data, true_label, source) for split, data in parts.items() if true_label}
    names, numbers = _classes([*given.values(), *true.values()], source, notes)
    called = {"train": train, "test": test or ""}
    faults: list[Fault] = []
    found: dict[str, Split] = {}
    for split, data in parts.items():
        labels = _counted(given[split], names, numbers, label, source)
        right = None
        if true_label:
            right = _counted(true[split], names, numbers, true_label, source)
        found[split] = _good(Split(_images(data, image, source), labels, right), split, called[split], faults, source)
    if faults and not skip_bad:
        raise unusable(f"{source}: {counted(len(faults), 'row')}", faults, "label them")
    name = where.partition(":")[0]
    if _is_folder(where):
        name = Path(os.path.expanduser(where)).resolve().name
    return make_dataset(
        name.rpartition("/")[2],
        names,
        found["train"],
        found.get("test"),
        where=source,
        missing="has no test split",
        seed=seed,
        test_fraction=test_fraction,
        notes=notes,
        skipped=faults,
    )


def _parsed(source: str) -> tuple[str, dict[str, str]]:
    """Return the folder or name in `source`, and its query."""
    text = source.removeprefix("hf:")
    if _is_folder(text):
        return text, {}
    where, mark, query = text.partition("?")
    try:
        pairs = parse_qsl(query, strict_parsing=True) if mark else []
    except ValueError:
        raise InputError(f"{source}: its query cannot be understood; {_SAY}") from None
    unknown = [key for key, _ in pairs if key not in _QUERY]
    twice = [key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i])]
    if unknown or twice:
        what = f"{unknown[0]!r} is unknown" if unknown else f"{twice[0]!r} is there twice"
        raise InputError(f"{source}: in its query {what}; {_SAY}")
    return where, dict(pairs)


def _is_folder(where: str) -> bool:
    return os.path.isdir(os.path.expanduser(where))


def _load(where: str, source: str) -> Mapping[str, Any]:
    """Return the splits of a dataset, by name."""
    folder = Path(os.path.expanduser(where))
    if not _is_folder(where) and (where.startswith((".", "~")) or folder.is_absolute()):
        raise InputError(f"{source}: no such folder; give one, or org/name for one on the Hub")
    if not _is_folder(where) and not _NAME.fullmatch(where):
        raise InputError(f"{source}: not the name of a dataset; expected org/name or a folder")
    datasets = _library()
    try:
        if is_saved(folder):
            found = datasets.load_from_disk(str(folder))
        elif _is_folder(where):
            found = datasets.load_dataset(str(folder))
        else:
            name, _, config = where.partition(":")
            found = datasets.load_dataset(name, config or None)
    # No network, no such dataset, a gated one, damaged files: each has its own kind of error.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{source}: cannot be loaded ({short(reason, 300)}); see that the name is right, and that it is on "
            "this machine or the network is there"
        ) from None
    return found if isinstance(found, dict) else {str(found.split or "train"): found}


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError("Hugging Face datasets need another package: pip install 'dspt[hub]'") from None
    if int(datasets.__version__.split(".")[0]) < 4:
        raise InputError(
            f"datasets {datasets.__version__} could run code that comes with a dataset; "
            "update it: pip install 'dspt[hub]'"
        )
    return datasets


def _splits(
    splits: Mapping[str, Any], query: Mapping[str, str], source: str, notes: list[str]
) -> tuple[str, str | None]:
    """Return the names of the train and the test split; None for a missing test split."""
    for key in ("train", "test"):
        if key in query and query[key] not in splits:
            raise InputError(f"{source}: there is no split {query[key]!r}; found {listed(list(splits))}")
    train = query.get("train", "train" if "train" in splits or len(splits) > 1 else next(iter(splits), ""))
    if train not in splits:
        raise InputError(f"{source}: there is no train split among {listed(list(splits))}; {_SAY}")
    tests = [name for name in ("test", *_VALIDATION) if name in splits and name != train]
    test = query.get("test", tests[0] if tests else None)
    if test == train:
        raise InputError(f"{source}: {train!r} cannot be both train and test split; {_SAY}")
    if test in _VALIDATION and "test" not in query:
        notes.append(f"{source} has no test split: {test} is used as the test split.")
    others = [name for name in splits if name not in (train, test)]
    if others:
        notes.append(f"Not used in {source}: split {listed(others)}.")
    return train, test


def _columns(features: Mapping[str, Any], query: Mapping[str, str], source: str) -> tuple[str, str, str | None]:
    """Return the names of the image, the label and the true label column; None without the last."""
    from datasets import ClassLabel, Image

    for key in ("image", "label", "true_label"):
        if key in query and query[key] not in features:
            raise InputError(f"{source}: there is no column {query[key]!r}; found {listed(list(features), 20)}")
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    others = {name: feature for name, feature in features.items() if name != query.get("true_label")}
    labels = [name for name, feature in others.items() if isinstance(feature, ClassLabel)]
    labels = labels or [name for name in others if name.lower() in ("label", "labels")]
    image = _only("image", query.get("image"), images, features, source)
    label = _only("label", query.get("label"), labels, features, source)
    if len({image, label, query.get("true_label")}) < 3:
        raise InputError(f"{source}: a column is named twice in its query; {_SAY}")
    return image, label, query.get("true_label")


def _only(kind: str, named: str | None, found: Sequence[str], features: Mapping[str, Any], source: str) -> str:
    if named is not None:
        return named
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{source}: {listed(found)} could all be the {kind} column; {_SAY}")
    raise InputError(
        f"{source}: none of its columns {listed(list(features), 20)} is known as the {kind} column; {_SAY}"
    )


def _images(data: Any, column: str, source: str) -> Images:
    try:
        return Images(data, column)
    except Exception as error:  # Arrow and datasets have several for a cast that cannot be
        raise InputError(f"{source}: column {column!r} does not hold images ({type(error).__name__}); {_SAY}") from None


@dataclass(frozen=True)
class _Stored:
    """A column of labels: numbers that count `names`, or stand for themselves; -1 for none."""

    numbers: np.ndarray
    names: tuple[str, ...] | None
    is_declared: bool  # whether the names and their order come with the dataset


def _stored(data: Any, column: str, source: str) -> _Stored:
    """Return a column of labels, read a part at a time."""
    import pyarrow
    from datasets import ClassLabel

    feature = data.features[column]
    kind = getattr(feature, "pa_type", None)
    is_text = kind is not None and (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))
    if not is_text and not (kind is not None and pyarrow.types.is_integer(kind)):
        raise InputError(f"{source}: column {column!r} holds {str(feature)[:60]}, which are no labels; {_SAY}")
    texts: dict[str, int] = {}
    parts = [np.zeros(0, np.int64)]
    for table in data.select_columns([column]).with_format("arrow").iter(65536):
        values = table.column(column)
        if is_text:
            values = (str(text or "").strip() for text in values.to_pylist())
            part = [texts.setdefault(text, len(texts)) if text else -1 for text in values]
            parts.append(np.array(part, np.int64))
        else:
            numbers = values.cast(pyarrow.int64()).fill_null(-1).to_numpy()
            parts.append(np.maximum(numbers, -1))
    if isinstance(feature, ClassLabel):
        return _Stored(np.concatenate(parts), tuple(feature.names or ()), True)
    return _Stored(np.concatenate(parts), tuple(texts) if is_text else None, False)


def _classes(columns: Sequence[_Stored], source: str, notes: list[str]) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Return the class names, and the numbers they stand for if no column has names."""
    for column in columns:
        if column.is_declared and column.names is not None:
            return column.names, None
    named = [column.names for column in columns if column.names is not None]
    if len(named) == len(columns):
        return tuple(sorted({name for names in named for name in names})), None
    if named:
        raise InputError(f"{source}: some of its label columns hold names and others numbers; make them alike")
    numbers = np.unique(np.concatenate([column.numbers for column in columns]))
    numbers = numbers[numbers >= 0]
    notes.append(
        f"The labels in {source} are numbers, and prompts need real names: save the dataset with a "
        "column of the kind ClassLabel(names=[...])."
    )
    return tuple(map(str, numbers.tolist())), numbers


def _counted(column: _Stored, names: Sequence[str], numbers: np.ndarray | None, called: str, source: str) -> np.ndarray:
    """Return labels that count `names`; -1 for none."""
    labels = column.numbers
    if numbers is not None:
        return np.where(labels < 0, -1, np.searchsorted(numbers, labels))
    own = names if column.names is None else column.names
    if (wrong := np.flatnonzero(labels >= len(own))).size:
        row = int(wrong[0])
        raise out_of_range(labels[row], len(own), f"row {row} of {source}", f"column {called!r}")
    position = {name: c for c, name in enumerate(names)}
    unknown = [own[i] for i in np.unique(labels[labels >= 0]) if own[i] not in position]
    if unknown:
        raise InputError(
            f"{source}: column {called!r} has {listed(unknown)}, which is not among the classes "
            f"{listed(names)}; all label columns must have the same classes"
        )
    renumber = np.array([*(position.get(name, -1) for name in own), -1], np.int64)
    return np.asarray(renumber[labels])


def _good(split: Split, kind: str, called: str, faults: list[Fault], source: str) -> Split:
    """Return the rows of `split` that have labels; the others are put into `faults`."""
    unlabelled = split.labels < 0
    if len(unlabelled) and unlabelled.all():
        raise InputError(f"{source}: no row of its split {called!r} has a label; {_SAY}")
    true = split.true_labels
    unknown = np.zeros(len(unlabelled), bool)
    if true is not None and (true >= 0).any():
        unknown = ~unlabelled & (true < 0)
    elif true is not None:
        split = Split(split.items, split.labels)
    bad = unlabelled | unknown
    for row in np.flatnonzero(bad):
        reason = "it has no label" if unlabelled[row] else "it has no true label, and others have"
        faults.append(Fault(f"{called} row {row}", reason, kind))
    return split.take(np.flatnonzero(~bad)) if bad.any() else split
