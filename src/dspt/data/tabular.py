"""Tables on disk, row by row: text with delimiters, or Parquet.

Lines of a text file are counted from 1, the header among them; rows of a Parquet file from 0.
Text is read with csv and not with pyarrow.csv, which leaves blank lines and those inside of quotes
out of its count, and does not say where a quote was opened.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dspt.data.dataset import listed
from dspt.internal.errors import InputError

SUFFIXES = (".csv", ".tsv", ".parquet")
COLUMNS = ("path", "label", "true_label", "split")
NULL = "there is a null byte in it"
# No line of a table is that long; reading one whole could exhaust the memory.
_LONGEST_LINE = 1 << 20


@dataclass
class Table:
    """The rows of a manifest: their number, and the cells of `columns` or what is wrong with it."""

    columns: tuple[str, ...]
    others: list[str]
    unit: str
    rows: Iterator[tuple[int, Sequence[str] | str]]


def open_table(path: Path) -> AbstractContextManager[Table]:
    """Return the table in a file, to be used as a context."""
    return _parquet(path) if path.suffix.lower() == ".parquet" else _text(path)


@contextmanager
def _text(path: Path) -> Iterator[Table]:
    """Yield the table in a text file."""
    with _opened(path) as file, _wide_cells():
        odd: list[str] = []
        lines = _lines(file, path, odd)
        above, header = next(((i, line) for i, line in lines if line.strip()), (0, ""))
        if not header:
            raise InputError(f"{path}: it is empty; {_WANTED}")
        if odd:
            raise InputError(f"{path}: its header cannot be read, {odd[0]}; save it as UTF-8 text")
        delimiter, cells = _header(path, above, header)
        columns, others = _columns(path, cells)
        rows = _cells(path, lines, above, odd, delimiter, cells, columns)
        yield Table(tuple(columns), others, "line", rows)


@contextmanager
def _wide_cells() -> Iterator[None]:
    """Let csv read cells as long as lines may be: what is too long in them is told by the row."""
    before = csv.field_size_limit(_LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _opened(path: Path) -> TextIO:
    try:
        return open(path, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


_WANTED = "expected a header with the columns path and label, then a row for each image"


def _lines(file: TextIO, path: Path, odd: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of `file` and their numbers; what is wrong with one is put into `odd`."""
    number = 0
    try:
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                odd.append(f"it is longer than {_LONGEST_LINE} characters")
                while line and not line.endswith("\n"):
                    line = file.readline(_LONGEST_LINE)
                line = "\n"
            if "\0" in line:
                odd.append(NULL)
                line = line.replace("\0", "")  # some versions of csv stop at them
            yield number, line
    except UnicodeDecodeError:
        raise InputError(f"{path}: line {_undecodable(path)} is not UTF-8 text; save the file as UTF-8") from None
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
    """Return the delimiter that parts the header into the most wanted columns, and its cells."""
    found: list[tuple[str, list[str]]] = []
    for delimiter in ("\t", ",", ";") if path.suffix.lower() == ".tsv" else (",", ";", "\t"):
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        except csv.Error:
            raise InputError(_too_long(path, number)) from None
        found.append((delimiter, cells))
    return max(found, key=lambda pair: (_wanted_in(pair[1]), len(pair[1])))


def _wanted_in(header: Sequence[str]) -> int:
    return sum(name.strip().lower() in COLUMNS for name in header)


def _columns(path: Path, header: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the position of each wanted column, and the names of the others."""
    columns: dict[str, int] = {}
    others: list[str] = []
    for i, written in enumerate(header):
        name = written.strip().lower()
        if name in columns:
            raise InputError(f"{path}: column {name!r} is there twice; keep one of them")
        if name in COLUMNS:
            columns[name] = i
        else:
            others.append(short(written.strip()))
    missing = [name for name in COLUMNS[:2] if name not in columns]
    if missing:
        shown = [short(name.strip()) for name in header]
        raise InputError(
            f"{path}: has no column {' and no column '.join(map(repr, missing))}; found {listed(shown, 10)}, {_WANTED}"
        )
    return columns, others


def _cells(
    path: Path,
    lines: Iterator[tuple[int, str]],
    above: int,
    odd: list[str],
    delimiter: str,
    header: Sequence[str],
    columns: dict[str, int],
) -> Iterator[tuple[int, Sequence[str] | str]]:
    """Yield the number of each row that is not blank, and its wanted cells or what is wrong."""
    reader = csv.reader((line for _, line in lines), delimiter=delimiter, skipinitialspace=True, strict=True)
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
        if odd:
            yield start, odd[0]
            odd.clear()
        elif len(cells) != width:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, f"{len(cells)} cells instead of {width}"
        else:
            chosen = [cells[i] for i in wanted]
            if end > start and any("\n" in cell or "\r" in cell for cell in chosen):
                raise InputError(
                    f"{path}: a cell runs from line {start} to line {end}; see whether a quote is not closed there"
                )
            yield start, chosen


@contextmanager
def _parquet(path: Path) -> Iterator[Table]:
    """Yield the table in a Parquet file."""
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
        yield Table(tuple(columns), others, "row", _parquet_rows(path, file, names))
    pyarrow.default_memory_pool().release_unused()  # it would keep what the file took


def _check_type(path: Path, name: str, kind: Any) -> None:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_null(value)
    is_number = types.is_integer(value) and name in ("label", "true_label")
    if not (is_text or is_number):
        wanted = "text or whole numbers" if name in ("label", "true_label") else "text"
        raise InputError(f"{path}: column {name!r} holds {short(str(kind))}; expected {wanted}")


def _parquet_rows(path: Path, file: Any, names: Sequence[str]) -> Iterator[tuple[int, Sequence[str] | str]]:
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
    return f"not a readable Parquet file ({short(' '.join(str(error).split()), 120)})"


def short(text: str, most: int = 60) -> str:
    """Return a text no longer than a sentence can bear."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(text: str) -> str:
    """Return a text as a sentence quotes it."""
    return repr(short(text))
