"""Manifests as they are written: what is read from one again is what was written, or it is not written at all."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dspt.internal.checks import is_text
from dspt.internal.errors import InputError
from dspt.internal.files import replacing
from dspt.internal.names import spreadsheet_cell

MANIFESTS = (".csv", ".jsonl", ".parquet")

_NUMBER = re.compile(r"[+-]?[0-9]+(\.0*)?")
# A path that no spreadsheet takes for a formula, no csv reader trims and nobody takes for one of Windows.
_PLAIN_PATH = re.compile(r"\.\.?/|\w[^:/]*(/|$)")


def check_manifest_name(out: Path) -> None:
    """Raise `InputError` unless a file is named like a manifest that can be written."""
    if out.suffix.lower() not in MANIFESTS:
        raise InputError(f"{out}: expected a name that ends in {', '.join(MANIFESTS[:-1])} or {MANIFESTS[-1]}")


def manifest_labels(names: Sequence[str], labels: np.ndarray, out: Path) -> list[str]:
    """Return the class name of each label, once those in use are read from a manifest as they are written.

    Parameters
    ----------
    names : sequence of str
        The name of each class.
    labels : integer array of shape (N,)
        -1 for a label that is not known, whose cell is empty.
    out : Path
        The manifest.
    """
    kind = out.suffix.lower()
    used = [names[label] for label in np.unique(labels[labels >= 0])]
    if wrong := [name for name in used if name.strip() != name or "\0" in name or not name]:
        raise InputError(f"{out}: class {wrong[0]!r} cannot be a label, which has no blanks around it; rename it")
    if kind == ".csv" and (wrong := [name for name in used if "\n" in name or "\r" in name]):
        raise InputError(f"{out}: class {wrong[0]!r} has a line break, which a .csv file cannot hold; write a .jsonl")
    if kind == ".csv" and (wrong := [name for name in used if spreadsheet_cell(name) != name]):
        raise InputError(f"{out}: a spreadsheet would take class {wrong[0]!r} for a formula; write a .jsonl file")
    # Labels that are all numbers are read as numbers.
    numbers = [name for name in used if _NUMBER.fullmatch(name)]
    if len(numbers) == len(used) and (wrong := [name for name in used if not re.fullmatch("0|[1-9][0-9]*", name)]):
        raise InputError(
            f"{out}: class {wrong[0]!r} would be read as a number and not as a name; write a copy of the folder"
        )
    return ["" if label < 0 else names[label] for label in labels]


def manifest_paths(files: Iterable[str], out: Path) -> list[str]:
    """Return paths as a manifest has them: from its own folder on."""
    # Dots in a path are followed from where the manifest really is.
    start = os.path.realpath(out.parent)
    return [_relative(file, start, out) for file in files]


def _relative(path: str, start: str, out: Path) -> str:
    """Return a path as a manifest in the folder `start` has it."""
    try:
        found = os.path.relpath(path, start)
    except ValueError:  # another drive of Windows
        found = os.path.abspath(path)
    if not is_text(found) or "\0" in found:
        raise InputError(f"{out}: the name of {path} is not UTF-8 text, which a manifest cannot hold; rename the file")
    if out.suffix.lower() == ".csv" and ("\n" in found or "\r" in found):
        raise InputError(f"{out}: the name of {path} has a line break, which a .csv file cannot hold; write a .jsonl")
    found = found.replace(os.sep, "/")
    return found if _PLAIN_PATH.match(found) or os.path.isabs(found) else f"./{found}"


def write_manifest_table(out: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Put a table of texts at `out`, whole or not at all, as its suffix says."""
    kind = out.suffix.lower()
    with replacing(out) as temporary:
        if kind == ".parquet":
            import pyarrow
            from pyarrow import parquet

            text = pyarrow.large_string()
            table = pyarrow.table({name: pyarrow.array(cells, text) for name, cells in columns.items()})
            parquet.write_table(table, temporary)
            return
        rows = zip(*columns.values(), strict=True)
        with open(temporary, "w", encoding="utf-8", newline="") as stream:
            if kind == ".csv":
                lines = csv.writer(stream)
                lines.writerow(columns)
                lines.writerows(rows)
            else:
                keys = tuple(columns)
                for row in rows:
                    stream.write(json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False) + "\n")
