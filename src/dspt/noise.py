"""Label noise: given labels made from true labels, by a rule or from a file.

What is drawn depends on the labels, the number of classes, the kind, the rate, the seed and the
sampling, and on nothing else. For one seed the labels flipped at a lower rate are among those
flipped at a higher one, and to the same classes, so that rates compare on the same mistakes.

torch is not imported here: a tensor can only be given by someone who has imported it.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dspt.errors import InputError
from dspt.files import replacing
from dspt.seeds import Stream

Labels = TypeVar("Labels")

_KINDS = {
    "none": "none",
    "clean": "none",
    "sym": "symmetric",
    "symmetric": "symmetric",
    "pair": "pair",
    "matrix": "matrix",
}
_SAMPLINGS = ("exact", "bernoulli")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_FORMS = "none, sym:0.4, pair:0.2, sym:0.4:bernoulli, matrix:T.npy or file:labels.csv"


def corrupt(
    labels: Labels,
    num_classes: int,
    kind: str = "symmetric",
    rate: float = 0.4,
    seed: int = 1,
    sampling: str = "exact",
    transition: np.ndarray | None = None,
) -> Labels:
    """Return noisy labels in the type of `labels`, which is left as it was.

    Parameters
    ----------
    labels : list, tuple, numpy array, torch tensor or pandas Series of N integers in 0..C-1
        The true labels.
    num_classes : int
        C, 2 or more.
    kind : {"symmetric", "pair", "matrix", "none"}
        "symmetric" ("sym") moves a label to one of the C-1 other classes, each as likely; "pair"
        to `(label + 1) % C`; "matrix" draws from `transition`; "none" ("clean") changes nothing.
    rate : float in 0..1
        How many labels become wrong, for "symmetric" and "pair".
    seed : int
        Any integer. The same arguments give the same labels on every platform.
    sampling : {"exact", "bernoulli"}
        "exact" changes `int(rate * N)` labels, drawn without replacement over the whole set.
        "bernoulli" changes each label independently. A matrix fixes no count, so it is always
        drawn by "bernoulli".
    transition : array of shape (C, C), optional
        `T[j, k] = Pr(noisy = j | true = k)`, so every column sums to 1; makes the kind "matrix".

    Returns
    -------
    The type of `labels`, with the same dtype, device and index.
    """
    _check_classes(num_classes)
    true = _checked_labels(labels, num_classes)
    kind = _known_kind(kind)
    if transition is not None and kind == "symmetric":
        kind = "matrix"  # the default kind: a matrix says all there is to say
    if (transition is not None) != (kind == "matrix"):
        raise InputError(f"transition: goes with kind 'matrix' and only with it, found {kind!r}")
    sampling = _known_sampling(sampling, kind)
    stream = Stream(seed, "noise", kind, sampling)
    if kind == "none":
        noisy = true
    elif transition is not None:
        noisy = _draw(stream, true, checked_transition(transition, num_classes))
    else:
        flipped = _flipped(stream, len(true), _checked_rate(rate), sampling)
        step = 1 if kind == "pair" else 1 + stream.integers(len(true), num_classes - 1)
        noisy = np.where(flipped, (true + step) % num_classes, true)
    return _like(labels, noisy)


def transition_matrix(kind: str, num_classes: int, rate: float) -> np.ndarray:
    """Return the float64 matrix `T[j, k] = Pr(noisy = j | true = k)` of a kind of noise.

    Parameters
    ----------
    kind : {"symmetric", "pair", "none"}
    num_classes : int
        C, 2 or more.
    rate : float in 0..1
        The probability that a label is wrong: every `T[k, k]` is `1 - rate`.
    """
    _check_classes(num_classes)
    kind, rate = _known_kind(kind), _checked_rate(rate)
    same = np.eye(num_classes)
    if kind == "none":
        return same
    if kind == "pair":
        return (1 - rate) * same + rate * np.roll(same, 1, axis=0)
    if kind == "symmetric":
        return (1 - rate) * same + rate / (num_classes - 1) * (1 - same)
    raise InputError("transition_matrix: kind 'matrix' has no formula; its matrix is given")


def checked_transition(transition: np.ndarray, num_classes: int) -> np.ndarray:
    """Return `transition` as float64 of shape (C, C), once its columns are distributions."""
    try:
        matrix = np.asarray(transition, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("transition: expected a matrix of numbers") from None
    if matrix.shape != (num_classes, num_classes):
        expected = f"{num_classes} x {num_classes} for {num_classes} classes"
        raise InputError(f"transition: expected {expected}, found shape {matrix.shape}")
    negative = np.argwhere(~(matrix >= 0))
    if len(negative):
        j, k = negative[0]
        found = f"{matrix[j, k]:g} at row {j}, column {k}"
        raise InputError(f"transition: expected probabilities of 0 or more, found {found}")
    sums = matrix.sum(axis=0)
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= 1e-6))
    if len(wrong):
        by_rows = np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-6)
        hint = "its rows sum to 1, so transpose it" if by_rows else "T[j,k] = Pr(noisy=j | true=k)"
        found = f"column {wrong[0]} sums to {sums[wrong[0]]:g}"
        raise InputError(f"transition: expected columns that sum to 1, but {found}; {hint}")
    return matrix


@dataclass(frozen=True)
class NoiseSpec:
    """Where given labels come from, as one value that can be written down and read back.

    Attributes
    ----------
    kind : {"none", "symmetric", "pair", "matrix", "file"}
    rate : float
        The noise rate of "symmetric" and "pair", else 0.
    path : str, optional
        The matrix or label file (.npy or .csv) of "matrix" and "file".
    sampling : {"exact", "bernoulli"}
        See `corrupt`; "matrix" is always "bernoulli".
    """

    kind: str = "none"
    rate: float = 0.0
    path: str | None = None
    sampling: str = "exact"

    def __post_init__(self) -> None:
        if self.kind not in ("none", "symmetric", "pair", "matrix", "file"):
            raise InputError(f"noise: no kind {self.kind!r}; expected {_FORMS}")
        if (self.kind in ("matrix", "file")) != bool(self.path):
            needs = "takes no file" if self.path else "needs a file"
            raise InputError(f"noise: {self.kind} {needs}; expected {_FORMS}")
        if _checked_rate(self.rate) and self.kind not in ("symmetric", "pair"):
            raise InputError(f"noise: {self.kind} takes no rate, found {self.rate}")
        _known_sampling(self.sampling, self.kind)

    def __str__(self) -> str:
        if self.kind in ("matrix", "file"):
            return f"{self.kind}:{self.path}"
        if self.kind == "none":
            return "none"
        suffix = "" if self.sampling == "exact" else f":{self.sampling}"
        return f"{'sym' if self.kind == 'symmetric' else self.kind}:{float(self.rate)}{suffix}"

    def apply(self, labels: Any, num_classes: int, seed: int) -> np.ndarray:
        """Return the given labels for true `labels`, as an int64 array."""
        _check_classes(num_classes)
        true = _checked_labels(labels, num_classes)
        if self.kind == "file" and self.path:
            return read_labels(self.path, num_classes, len(true))
        matrix = _read_matrix(Path(self.path)) if self.path else None
        return corrupt(true, num_classes, self.kind, self.rate, seed, self.sampling, matrix)


def parse(text: str) -> NoiseSpec:
    """Return the noise that `text` describes.

    Forms: `none`, `sym:RATE`, `pair:RATE`, either with `:exact` or `:bernoulli` after it,
    `matrix:FILE` with a transition matrix (.npy or .csv), `file:FILE` with given labels.
    """
    head, _, rest = text.strip().partition(":")
    if head == "file":
        return NoiseSpec("file", path=rest)
    kind = _known_kind(head)
    if kind == "matrix":
        return NoiseSpec(kind, path=rest, sampling="bernoulli")
    if kind == "none":
        if rest:
            raise InputError(f"noise {text!r}: none takes nothing after it")
        return NoiseSpec()
    written, _, sampling = rest.partition(":")
    try:
        rate = float(written)
    except ValueError:
        raise InputError(f"noise {text!r}: expected a rate in 0..1, as in {head}:0.4") from None
    return NoiseSpec(kind, rate, sampling=sampling or "exact")


def write_labels(path: Path | str, labels: Any) -> None:
    """Put labels at `path`: .npy as int64, .csv with the header `index,label`."""
    path, values = Path(path), _checked_labels(labels)
    extension = _extension(path)
    with replacing(path) as temporary:
        if extension == ".npy":
            # np.save would add its own extension to a name.
            with open(temporary, "wb") as file:
                np.save(file, values, allow_pickle=False)
        else:
            lines = [f"{index},{label}" for index, label in enumerate(values.tolist())]
            temporary.write_text("\n".join(["index,label", *lines, ""]), encoding="utf-8")


def read_labels(path: Path | str, num_classes: int, n: int) -> np.ndarray:
    """Return the `n` labels at `path` as int64, in 0..num_classes-1.

    Parameters
    ----------
    path : path of a .npy file, or of a .csv file
        A .npy file holds one array of n integers. A .csv file has the header `index,label`, with
        every index of 0..n-1 once and in any order, or `label`, with the labels in order.
    num_classes : int
    n : int
        How many labels there must be.
    """
    path = Path(path)
    if _extension(path) == ".npy":
        array = _load_npy(path)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            found = f"{array.dtype} of shape {array.shape}"
            raise InputError(f"{path}: expected one array of integers, found {found}")
        if len(array) != n:
            raise InputError(f"{path}: expected {n} labels, found {len(array)}")
        return _checked_labels(array, num_classes, f" of {path}")
    (_, header), *rows = list(_rows(path)) or [(0, ["nothing"])]
    if header not in (["index", "label"], ["label"]):
        found = ",".join(header)
        raise InputError(f"{path}: expected the header index,label or label, found {found}")
    if len(rows) != n:
        raise InputError(f"{path}: expected {n} labels, found {len(rows)}")
    labels = np.full(n, -1, dtype=np.int64)
    for position, (line, cells) in enumerate(rows):
        where = f"at line {line} of {path}"
        if len(cells) != len(header) or not all(map(_INTEGER.fullmatch, cells)):
            found = ",".join(cells)
            raise InputError(f"labels: expected integers {','.join(header)}, found {found} {where}")
        index, label = position if len(cells) == 1 else int(cells[0]), int(cells[-1])
        if not 0 <= index < n or labels[index] >= 0:
            raise InputError(f"index: expected each of 0..{n - 1} once, found {index} {where}")
        if not 0 <= label < num_classes:
            raise InputError(f"labels: {_expected(num_classes)}, found {label} {where}")
        labels[index] = label
    return labels


def _flipped(stream: Stream, n: int, rate: float, sampling: str) -> np.ndarray:
    """Return which of `n` labels become wrong."""
    if sampling == "bernoulli":
        return stream.uniform(n) < rate
    flipped = np.zeros(n, dtype=bool)
    flipped[stream.permutation(n)[: int(rate * n)]] = True
    return flipped


def _draw(stream: Stream, true: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Return one label from the column of `transition` of each true label."""
    cumulative = transition.cumsum(axis=0)
    # Ends every column at exactly 1, so that no draw falls past the last class it may give.
    cumulative /= cumulative[-1]
    uniform, noisy = stream.uniform(len(true)), np.empty_like(true)
    for k in np.unique(true):
        noisy[true == k] = cumulative[:, k].searchsorted(uniform[true == k], side="right")
    return noisy


def _expected(num_classes: int) -> str:
    return f"expected 0..{num_classes - 1} for {num_classes} classes"


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_classes(num_classes: int) -> None:
    if not _is_integer(num_classes) or num_classes < 2:
        raise InputError(f"num_classes: expected 2 or more, found {num_classes!r}")


def _checked_rate(rate: float) -> float:
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 <= rate <= 1:
        percent = isinstance(rate, Real) and 1 < rate <= 100
        hint = f"; did you mean {float(rate) / 100:g}?" if percent else ""
        raise InputError(f"noise rate: expected a number in 0..1, found {rate!r}{hint}")
    return float(rate)


def _known_kind(kind: str) -> str:
    if kind not in _KINDS:
        raise InputError(f"noise: no kind {kind!r}; expected {_FORMS}")
    return _KINDS[kind]


def _known_sampling(sampling: str, kind: str) -> str:
    if sampling not in _SAMPLINGS:
        raise InputError(f"sampling: expected exact or bernoulli, found {sampling!r}")
    return "bernoulli" if kind == "matrix" else sampling


def _checked_labels(labels: Any, num_classes: int | None = None, where: str = "") -> np.ndarray:
    """Return labels of any accepted type as an int64 array, once they are integers in range."""
    try:
        array = _array(labels)
    except (TypeError, ValueError):
        raise InputError("labels: expected one integer per sample, found none to read") from None
    if array.shape == (0,):
        return array.astype(np.int64)
    if array.ndim != 1:
        raise InputError(f"labels: expected one integer per sample, found shape {array.shape}")
    if array.dtype.kind not in "iu":
        # An array has made all of a list into floats or strings for the sake of one of them.
        values = labels if isinstance(labels, (list, tuple)) else array.tolist()
        row = next((i for i, value in enumerate(values) if not _is_integer(value)), 0)
        raise InputError(f"labels: expected integers, found {values[row]!r} at row {row}{where}")
    wrong = array < 0 if num_classes is None else (array < 0) | (array >= num_classes)
    if wrong.any():
        row = int(wrong.argmax())
        expected = "expected 0 or more" if num_classes is None else _expected(num_classes)
        raise InputError(f"labels: {expected}, found {array[row]} at row {row}{where}")
    return array.astype(np.int64)


def _like(labels: Any, values: np.ndarray) -> Any:
    """Return `values` in the type, dtype, device and index of `labels`."""
    if not hasattr(labels, "dtype"):
        return tuple(values.tolist()) if isinstance(labels, tuple) else values.tolist()
    if _is_tensor(labels):
        result: Any = sys.modules["torch"].as_tensor(values).to(labels)
    elif hasattr(labels, "iloc"):
        result = type(labels)(values, index=labels.index, name=labels.name).astype(labels.dtype)
    else:
        result = values.astype(labels.dtype)
    if not np.array_equal(_array(result), values):
        raise InputError(f"labels: {labels.dtype} cannot hold class {values.max()}; use int64")
    return result


def _array(labels: Any) -> np.ndarray:
    return np.asarray(labels.detach().cpu() if _is_tensor(labels) else labels)


def _is_tensor(labels: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(labels, torch.Tensor)


def _extension(path: Path) -> str:
    extension = path.suffix.lower()
    if extension not in (".csv", ".npy"):
        raise InputError(f"{path}: expected a .csv or .npy file")
    return extension


def _load_npy(path: Path) -> np.ndarray:
    _check_file(path)
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: not a readable .npy file ({error})") from None


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Give the line number and the cells of every row of a .csv file that is not blank."""
    _check_file(path)
    try:
        # A spreadsheet's byte order mark is no part of the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for row in reader:
                if any(cells := [cell.strip() for cell in row]):
                    yield reader.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable .csv file ({error})") from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def _read_matrix(path: Path) -> np.ndarray:
    if _extension(path) == ".npy":
        return _load_npy(path)
    rows = [_numbers(cells, f"line {line} of {path}") for line, cells in _rows(path)]
    if any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{path}: expected a square matrix, found lines of different lengths")
    return np.array(rows)


def _numbers(cells: list[str], where: str) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        found = ",".join(cells)
        raise InputError(f"transition: expected numbers, found {found} at {where}") from None
