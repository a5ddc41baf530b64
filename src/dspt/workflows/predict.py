"""Classes of new images, as they come: any number of images, in memory that does not grow with it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dspt import train
from dspt.classifier import PromptClassifier
from dspt.data.folder import is_image, walk
from dspt.features import BadImages, stream
from dspt.internal.errors import NAMED, Fault, InputError, summary
from dspt.internal.files import check_free, replacing
from dspt.internal.names import spreadsheet_cell
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted

Prediction = dict[str, Any]

# Rows of a Parquet file that are written together.
_ROWS = 8192


class Predictions:
    """The most probable classes of each image, in the order given, a batch of the tower at a time.

    Iterating, once, gives a dict for each image: "image", the file, and "classes", a list of "class" and "probability"
    (0..1, six digits), the most probable first. Of an image that cannot be used: no classes, and "error", the reason.
    `BadImages` is raised at the first of these, if they are not skipped.

    The feature store is left alone. These images are new to it, as a rule: keeping their features would fill the disk
    with what nobody asks for again, and looking for them takes memory for every feature that is stored.

    Parameters
    ----------
    classifier : PromptClassifier
        A fitted one, such as `load` gives.
    images : iterable of str
        Image files, whatever their names; or folders, for all images below them, as `image_files` finds them. An image
        that is given twice is named twice.
    top : int
        How many classes of each image, 1 or more; all of them if there are not so many.
    skip_bad : bool
        Go on after an image that cannot be used, instead of stopping at it.
    reporter : Reporter, optional
        Names each image that cannot be used, and shows how far the writing of a file is.

    Attributes
    ----------
    count : int
        How many images there were so far.
    bad : int
        How many of them cannot be used.
    """

    def __init__(
        self,
        classifier: PromptClassifier,
        images: Iterable[str],
        top: int = 1,
        skip_bad: bool = False,
        reporter: Reporter | None = None,
    ) -> None:
        if top < 1:
            raise InputError(f"top = {top}: expected at least 1")
        self.count = self.bad = 0
        self._classifier = classifier
        self._images = images
        self._top = min(top, len(classifier.class_names_))
        self._skip_bad = skip_bad
        self._reporter = reporter or Reporter(silent=True)
        self._first_bad: list[Fault] = []

    def __iter__(self) -> Iterator[Prediction]:
        classifier = self._classifier
        files, classify = image_files(self._images), classifier.classify()
        for items, faults, features in stream(files, classifier.image_tower(), workers=classifier.workers or None):
            rows = iter(train.probabilities(features, classify) if len(features) else features)
            for item, fault in zip(items, faults, strict=True):
                self.count += 1
                yield self._without_classes(fault) if fault else self._with_classes(item, next(rows))
        if not self.count:
            raise InputError("images: none given, so there is nothing to predict")

    def _with_classes(self, image: str, probability: np.ndarray) -> Prediction:
        names = self._classifier.class_names_
        best = np.argsort(-probability, kind="stable")[: self._top]
        classes = [{"class": names[c], "probability": float(f"{probability[c]:.6g}")} for c in best]
        return {"image": image, "classes": classes}

    def _without_classes(self, fault: Fault) -> Prediction:
        if not self._skip_bad:
            raise BadImages({0: fault}, 1)
        self.bad += 1
        if self.bad <= NAMED:
            self._first_bad.append(fault)
        self._reporter.say(f"cannot be used: {fault.name}: {fault.reason}")
        return {"image": fault.name, "classes": [], "error": fault.reason}

    def bad_in_words(self) -> str:
        """Return how many images could not be used, and the first of them; "" if all could."""
        words = f"{self.bad:,} of {counted(self.count, 'image')} cannot be used ({summary(self._first_bad, self.bad)})"
        return words if self.bad else ""

    def save(self, path: Path, overwrite: bool = False) -> None:
        """Write all predictions to a file as they come; it is there when all of them are.

        A .csv or .parquet file has a row for each image: image, class, probability, then class_2, probability_2 and so
        on, and error. Texts that a spreadsheet would take for a formula have a ' in front in a .csv file. A .jsonl file
        has each prediction as it is, one a line.

        Parameters
        ----------
        path : Path
            A .csv, .jsonl or .parquet file.
        overwrite : bool
            Replace a file that is there.
        """
        write = _FORMATS.get(path.suffix.lower())
        if write is None:
            raise InputError(f"{path}: expected a .csv, .jsonl or .parquet file for the predictions")
        check_free(path, overwrite)
        # What comes in one by one cannot be counted ahead.
        total = sum(1 for _ in image_files(self._images)) if isinstance(self._images, list) else 0
        with replacing(path) as temporary, self._reporter.task("predicting", total, unit="images") as update:

            def shown() -> Iterator[Prediction]:
                for prediction in self:
                    yield prediction
                    update(self.count, "")

            write(shown(), temporary, _columns(self._top))


def image_files(images: Iterable[str]) -> Iterator[str | Fault]:
    """Yield the files that are given and those named like images below the folders that are given.

    Hidden files and folders are passed over, as in training. A folder that cannot be listed, or without any image, is a
    fault.
    """
    for image in images:
        if not os.path.isdir(image):
            yield image
            continue
        empty = True
        for file in walk(image):
            if isinstance(file, Fault) or is_image(file):
                empty = False
                yield file
        if empty:
            yield Fault(image, "no image files in it")


def paths_in(file: BinaryIO) -> Iterator[str]:
    """Yield the paths in a list as it comes: one a line, or a NUL behind each, as `find -print0` writes them."""
    rest, mark = b"", b""
    while block := file.read1(65536):  # type: ignore[attr-defined]
        rest += block
        mark = mark or next((mark for mark in (b"\0", b"\n") if mark in rest), b"")
        if mark:
            *whole, rest = rest.split(mark)
            yield from _paths(whole, mark)
    yield from _paths([rest], mark)


def _paths(entries: list[bytes], mark: bytes) -> Iterator[str]:
    lines = entries if mark == b"\0" else [line.removesuffix(b"\r") for line in entries]
    return map(os.fsdecode, filter(None, lines))


def _columns(top: int) -> list[str]:
    further = [f"{name}_{place}" for place in range(2, top + 1) for name in ("class", "probability")]
    return ["image", "class", "probability", *further, "error"]


def _row(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as a row of a table."""
    row: dict[str, Any] = {key: _text(prediction[key]) for key in ("image", "error") if key in prediction}
    for place, one in enumerate(prediction["classes"], 1):
        ending = f"_{place}" if place > 1 else ""
        row |= {f"class{ending}": one["class"], f"probability{ending}": one["probability"]}
    return row


def _text(name: str) -> str:
    r"""Return a name that every program can read: a byte that is no UTF-8 as \xff."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _write_csv(predictions: Iterable[Prediction], path: Path, columns: list[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        for row in map(_row, predictions):
            table.writerow({key: spreadsheet_cell(v) if isinstance(v, str) else v for key, v in row.items()})


def _write_jsonl(predictions: Iterable[Prediction], path: Path, columns: list[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(prediction)}\n" for prediction in predictions)


def _write_parquet(predictions: Iterable[Prediction], path: Path, columns: list[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {name: pa.float64() if name.startswith("probability") else pa.string() for name in columns}
    rows = map(_row, predictions)
    with parquet.ParquetWriter(path, pa.schema(kinds)) as table:
        while block := list(islice(rows, _ROWS)):
            table.write_table(pa.Table.from_pylist(block, table.schema))


_FORMATS: dict[str, Callable[[Iterable[Prediction], Path, list[str]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
