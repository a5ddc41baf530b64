"""Checks at the door: labels, features and class names from outside are refused in one form of sentence.

torch is not imported here: a tensor can only be given by someone who has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from dspt.internal.errors import InputError
from dspt.internal.rounding import counted
from dspt.internal.shards import BLOCK, Features, Shards

# No prompt has room for more characters.
LONGEST_NAME = 1000

# CLIP's training stops at 100; cosines times this much are no probabilities any more.
_MOST_SCALE = 1000


def out_of_range(found: object, num_classes: int, place: str, name: str = "labels", hint: str = "") -> InputError:
    """Return the error for a label that is no class.

    Parameters
    ----------
    found : the label
    num_classes : int
        C: labels are 0..C-1.
    place : str
        Where it stands, as in "row 3 of labels.npy".
    name : str
        What the labels are called.
    hint : str
        What to do about it.
    """
    expected = f"expected 0..{num_classes - 1} for {num_classes} classes"
    return InputError(f"{name}: {expected}, found {found} at {place}{hint and f'; {hint}'}")


def check_labels(labels: np.ndarray, num_classes: int, name: str = "labels", where: str = "", hint: str = "") -> None:
    """Raise `InputError` for the first of some integers that is not in 0..C-1.

    Parameters
    ----------
    labels : integer array of shape (N,)
    num_classes : int
        C.
    name : str
        What the labels are called.
    where : str
        The file they are from.
    hint : str
        What to do about it.
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        row = int(wrong.argmax())
        place = f"row {row} of {where}" if where else f"row {row}"
        raise out_of_range(labels[row], num_classes, place, name, hint)


def checked_labels(labels: Any, num_classes: int | None = None) -> np.ndarray:
    """Return labels of any accepted type as an int64 array, once they are integers in range.

    Parameters
    ----------
    labels : list, tuple, numpy array, torch tensor or pandas Series of N integers
    num_classes : int, optional
        C, where it is known: labels are 0..C-1, else 0 or more.
    """
    check_unmasked(labels, "labels")
    try:
        array = as_array(labels)
    except (TypeError, ValueError):
        raise InputError("labels: expected one integer per sample, found none to read") from None
    if array.shape == (0,):
        return array.astype(np.int64)
    if array.ndim != 1:
        raise InputError(f"labels: expected one integer per sample, found shape {array.shape}")
    if array.dtype == object and all(map(_is_label, array)):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        # An array has made all of a list into floats or strings for the sake of one of them.
        values = labels if isinstance(labels, (list, tuple)) else array.tolist()
        row = next((i for i, value in enumerate(values) if not _is_label(value)), 0)
        raise InputError(f"labels: expected integers, found {values[row]!r} at row {row}")
    if num_classes is not None:
        check_labels(array, num_classes)
    elif (array < 0).any():
        row = int((array < 0).argmax())
        raise InputError(f"labels: expected 0 or more, found {array[row]} at row {row}")
    return array.astype(np.int64)


def checked_rows(values: Any, n: int, name: str, each: str) -> Features:
    """Return `n` rows of finite numbers as an array or shards, of which no copy is made.

    Parameters
    ----------
    values : array, tensor or shards of shape (n, D)
    n : int
        How many rows there must be.
    name : str
        What they are called.
    each : str
        What each row stands for: "label", "class".
    """
    check_unmasked(values, name)
    try:
        array = values if isinstance(values, Shards) else as_array(values)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected {n} rows of numbers, one for each {each}, found none to read") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or len(array) != n:
        found = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{name}: expected {n} rows of numbers, one for each {each}, found {found}")
    for start in range(0, n, BLOCK):  # no second copy of all of them is ever made
        finite = np.isfinite(array[start : start + BLOCK]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise InputError(f"{name}: expected finite numbers, found another at row {row}")
    return array


def check_names(names: Sequence[str], where: str) -> None:
    """Raise `InputError` unless these are two or more different class names that can be written.

    Parameters
    ----------
    names : sequence of str
    where : str
        What they are the classes of, as an error begins.
    """
    seen: set[str] = set()
    for name in names:
        if not name.strip():
            raise InputError(f"{where}: a class has an empty name; give every class a name")
        if len(name) > LONGEST_NAME:
            raise InputError(
                f"{where}: a class name has {len(name)} characters; no prompt has room for more than {LONGEST_NAME}"
            )
        if not is_text(name):
            raise InputError(f"{where}: a class name is not text; save the names as UTF-8")
        if name in seen:
            raise InputError(f"{where}: class {name!r} is there twice; names must differ")
        seen.add(name)
    if len(names) < 2:
        raise InputError(f"{where}: found {counted(len(names), 'class', 'classes')}; at least two are needed")


def is_text(name: str) -> bool:
    """Return whether a name can be written: no bytes that are no text, no halves of characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unmasked(values: Any, name: str) -> None:
    """Raise `InputError` for a masked array with a mask, of which a plain array would show what is hidden.

    Parameters
    ----------
    values : labels or features of any type
    name : str
        What they are called.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        hidden = int(np.ma.getmaskarray(values).sum())
        verb = "is" if hidden == 1 else "are"
        raise InputError(f"{name}: {counted(hidden, 'value')} {verb} masked; leave these samples out")


def as_array(values: Any) -> np.ndarray:
    """Return labels or features as an array of whatever type they are; bfloat16, which numpy has not, as float32."""
    if is_tensor(values):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def is_tensor(labels: Any) -> bool:
    """Return whether these are a torch tensor, which only someone who imported torch can have."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(labels, torch.Tensor)


def is_integer(value: object) -> bool:
    """Return whether this is a whole number of any type, and not a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_label(value: Any) -> bool:
    return is_integer(value) and abs(value) < 2**63


def is_number(value: object, least: float = -sys.float_info.max, most: float = sys.float_info.max) -> bool:
    """Return whether this is a number of Python's within bounds; NaN is within none, and a truth value is none.

    Parameters
    ----------
    value : object
        What may be a number; a whole one may be too large for a float.
    least, most : float
        The bounds, which are allowed.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_list(value: object, kind: Any) -> bool:
    """Return whether this is a list of nothing but this kind."""
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def check_scale(scale: object, where: str) -> None:
    """Raise `InputError` unless this can be the factor between cosine and logit."""
    if not (is_number(scale) and 0 < scale < _MOST_SCALE):  # type: ignore[operator]
        raise InputError(f"{where}: the logit scale is {scale!r}; expected a number between 0 and {_MOST_SCALE}")
