"""Tables on disk, row by row: text with delimiters, a JSON object a line, Parquet, or an Excel sheet.

Lines of a text file and rows of a sheet are counted from 1, the header among them; rows of a Parquet file from 0.
Text is read with csv and not with pyarrow.csv, which leaves blank lines and those inside of quotes
out of its count, and does not say where a quote was opened.
"""

from __future__ import annotations

import csv
import json
import warnings
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dspt.data.dataset import listed
from dspt.internal.checks import is_integer, is_text
from dspt.internal.errors import InputError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
NULL = "there is a null byte in it"
# No line of a table is that long; reading one whole could exhaust the memory.
_LONGEST_LINE = 1 << 20
# What a sheet of Excel can have; columns after these are not looked at.
_MOST_ROWS, _MOST_COLUMNS = 1 << 20, 256
# A sheet of that many rows has less; an archive can promise more than any memory has.
_LARGEST_SHEET = 1 << 29


@dataclass(frozen=True)
class Wanted:
    """Which columns a table must or may have, and what they are called in it.

    Attributes
    ----------
    needed, optional
        The columns.
    numbers
        Those that may hold whole numbers; the others hold text.
    each
        What a row is for, as a sentence says it.
    called
        The name a column has in the table, where it is another one.
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    numbers: tuple[str, ...]
    each: str
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is looked for."""
        return (*self.needed, *self.optional)

    def __str__(self) -> str:
        columns = " and ".join(self.called.get(name, name) for name in self.needed)
        return f"expected a header with the columns {columns}, then a row for {self.each}"


@dataclass
class Table:
    """The rows of a manifest: their number, and the cells of `columns` or what is wrong with it."""

    columns: tuple[str, ...]
    others: list[str]
    unit: str
    rows: Iterator[tuple[int, Sequence[str] | str]]


def open_table(path: Path, wanted: Wanted) -> AbstractContextManager[Table]:
    """Return the table in a file, to be used as a context."""
    kinds = {".parquet": _parquet, ".jsonl": _jsonl, ".xlsx": _sheet}
    return kinds.get(path.suffix.lower(), _text)(path, wanted)


@contextmanager
def _text(path: Path, wanted: Wanted) -> Iterator[Table]:
    """Yield the table in a text file."""
    with _opened(path) as file, _wide_cells():
        odd: list[str] = []
        lines = _lines(file, path, odd)
        above, header = next(((i, line) for i, line in lines if line.strip()), (0, ""))
        if not header:
            raise InputError(f"{path}: it is empty; {wanted}")
        if odd:
            raise InputError(f"{path}: its header cannot be read, {odd[0]}; save it as UTF-8 text")
        delimiter, cells = _header(path, above, header, wanted)
        columns, others = _columns(path, cells, wanted)
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


def _header(path: Path, number: int, line: str, wanted: Wanted) -> tuple[str, list[str]]:
    """Return the delimiter that parts the header into the most wanted columns, and its cells."""
    found: list[tuple[str, list[str]]] = []
    for delimiter in ("\t", ",", ";") if path.suffix.lower() == ".tsv" else (",", ";", "\t"):
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        except csv.Error:
            raise InputError(_too_long(path, number)) from None
        found.append((delimiter, cells))
    names = {_plain(wanted.called.get(name, name)) for name in wanted.all}
    return max(found, key=lambda pair: (sum(_plain(cell) in names for cell in pair[1]), len(pair[1])))


def _plain(name: str) -> str:
    return name.strip().lower()


def _columns(path: Path, header: Sequence[str], wanted: Wanted) -> tuple[dict[str, int], list[str]]:
    """Return the position of each wanted column, and the names of the others."""
    columns: dict[str, int] = {}
    for column in wanted.all:
        name = wanted.called.get(column, column)
        # A column that has exactly the name is meant, even where others differ from it in case alone.
        places = [i for i, cell in enumerate(header) if cell.strip() == name.strip() and column in wanted.called]
        places = places or [i for i, cell in enumerate(header) if _plain(cell) == _plain(name)]
        if len(places) > 1:
            raise InputError(f"{path}: column {name!r} is there twice; keep one of them")
        if places:
            columns[column] = places[0]
    missing = [wanted.called.get(name, name) for name in (*wanted.needed, *wanted.called) if name not in columns]
    if missing:
        missing = list(dict.fromkeys(missing))
        shown = [short(name.strip()) for name in header]
        raise InputError(
            f"{path}: has no column {' and no column '.join(map(repr, missing))}; found {listed(shown, 10)}, {wanted}",
            "say what the columns are called with `columns`, as in path=filename,label=class",
        )
    others = [short(cell.strip()) for i, cell in enumerate(header) if i not in columns.values()]
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
def _parquet(path: Path, wanted: Wanted) -> Iterator[Table]:
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
        columns, others = _columns(path, schema.names, wanted)
        for name, i in columns.items():
            _check_type(path, wanted.called.get(name, name), schema.field(i).type, name in wanted.numbers)
        names = [schema.names[i] for i in columns.values()]
        yield Table(tuple(columns), others, "row", _parquet_rows(path, file, names))
    pyarrow.default_memory_pool().release_unused()  # it would keep what the file took


def _check_type(path: Path, name: str, kind: Any, numbers: bool) -> None:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_null(value)
    if not (is_text or (numbers and types.is_integer(value))):
        expected = "text or whole numbers" if numbers else "text"
        raise InputError(f"{path}: column {name!r} holds {short(str(kind))}; expected {expected}")


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


@contextmanager
def _jsonl(path: Path, wanted: Wanted) -> Iterator[Table]:
    """Yield the table in a file with one JSON object a line; the keys of the first are its columns."""
    with _opened(path) as file:
        odd: list[str] = []
        lines = _lines(file, path, odd)
        above, first = next(((i, line) for i, line in lines if line.strip()), (0, ""))
        if not first:
            raise InputError(f"{path}: it is empty; expected a JSON object a line, one for {wanted.each}")
        found = _object(first) if not odd else odd[0]
        if isinstance(found, str):
            raise InputError(f"{path}: line {above} cannot be read, {found}; expected a JSON object a line")
        columns, others = _columns(path, [key for key, _ in found], wanted)
        names = {wanted.called.get(name, name): name for name in wanted.all}
        header = {name: found[i][0] for name, i in columns.items()}

        def row(line: str) -> Sequence[str] | str:
            pairs = _object(line)
            if isinstance(pairs, str):
                return pairs
            values = dict(pairs)
            if len(values) < len(pairs):
                return "a key is there twice"
            if late := [key for key in values if names.get(key, "") not in (*header, "")]:
                return f"it has {late[0]!r}, which line {above} has not"
            return _cells_of([(name, values.get(key)) for name, key in header.items()], wanted)

        def rows() -> Iterator[tuple[int, Sequence[str] | str]]:
            yield above, row(first)
            for number, line in lines:
                if odd:
                    yield number, odd.pop()
                elif line.strip():
                    yield number, row(line)

        yield Table(tuple(columns), others, "line", rows())


def _object(line: str) -> list[tuple[str, Any]] | str:
    """Return the keys and values of a JSON object, or what is wrong with it."""
    try:
        found = json.loads(line, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return "it is no JSON"
    return found if isinstance(found, _Pairs) else "it is no JSON object"


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, those that are there twice among them."""


def _cells_of(values: Sequence[tuple[str, Any]], wanted: Wanted) -> Sequence[str] | str:
    """Return values that are no text yet as cells, or what is wrong with the first that cannot be one."""
    cells = []
    for name, value in values:
        called = wanted.called.get(name, name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a sheet has no other numbers
        if value is None:
            cells.append("")
        elif isinstance(value, str):
            if not is_text(value):
                return f"its {called} is not text"
            cells.append(value)
        elif is_integer(value) and name in wanted.numbers and abs(value) < 10**18:
            cells.append(str(value))
        else:
            expected = "text or a whole number" if name in wanted.numbers else "text"
            return f"its {called} is {quoted(str(value))} of type {type(value).__name__}, expected {expected}"
    return cells


@contextmanager
def _sheet(path: Path, wanted: Wanted) -> Iterator[Table]:
    """Yield the table in the first sheet of an Excel file: values, never formulas."""
    rows = _sheet_rows(path)
    try:
        _, header = next(rows, (0, []))
        if not header:
            raise InputError(f"{path}: its first sheet is empty; {wanted}")
        titles = ["" if cell.value is None else str(cell.value) for cell in header]
        columns, others = _columns(path, titles, wanted)

        def cells() -> Iterator[tuple[int, Sequence[str] | str]]:
            for number, row in rows:
                chosen = [(name, row[i]) for name, i in columns.items()]
                wrong = [cell.value for _, cell in chosen if cell.data_type == "e"]
                if wrong:
                    yield number, f"a cell in it is the error {wrong[0]}"
                else:
                    yield number, _cells_of([(name, cell.value) for name, cell in chosen], wanted)

        yield Table(tuple(columns), [name for name in others if name], "row", cells())
    finally:
        rows.close()


def _sheet_rows(path: Path) -> Generator[tuple[int, Any]]:
    """Yield the number and the cells of each row of the first sheet that is not blank."""
    try:
        import openpyxl
    except ImportError:
        raise InputError(f"{path}: Excel files need another package: pip install 'dspt[excel]'") from None
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > _LARGEST_SHEET:
            raise InputError(
                f"{path}: it unpacks to {size >> 20} MiB, more than a sheet of images has; save it as .csv"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and links; what matters is an error
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            try:
                # What a sheet says about its own size may be anything.
                cells = book.worksheets[0].iter_rows(1, _MOST_ROWS, 1, _MOST_COLUMNS)
                blank = None
                for number, row in enumerate(cells, 1):
                    # Rows that are not in the file are all one object, and may be a million.
                    if row is not blank and any(cell.value is not None for cell in row):
                        yield number, row
                    else:
                        blank = row
            finally:
                book.close()
    except InputError:
        raise
    except Exception as error:  # zip, XML and openpyxl all speak up here
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise InputError(f"{path}: not a readable .xlsx file ({reason})") from None


def short(text: str, most: int = 60) -> str:
    """Return a text no longer than a sentence can bear."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(text: str) -> str:
    """Return a text as a sentence quotes it."""
    return repr(short(text))
