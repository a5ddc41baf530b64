"""Pickles read as data: arrays and plain containers come out, and nothing they name is called.

A pickle names functions to be called with arguments of its own. The few names that numpy arrays
need get functions of this module instead of numpy's, because numpy trusts the state it is given and
can be led to write where it should not. Every other name is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from dspt.internal.errors import InputError

_CODE = re.compile(r"b1|[iu][1248]|f[248]|[SU][0-9]{1,6}")


class Refused(ValueError):
    """Something in a pickle that is never loaded; the rest of a sentence that begins with a file."""


def load(file: BinaryIO, where: str) -> Any:
    """Return what was pickled, texts of Python 2 as bytes; a dict has arrays in place of stand-ins.

    Raises
    ------
    InputError
        If the pickle asks for anything but arrays and plain containers, or cannot be read.
    """
    try:
        value = _Unpickler(file, encoding="bytes").load()
    except Refused as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:  # what bytes that are no pickle may raise is anybody's guess
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise InputError(f"{where}: not a readable pickle ({reason}); get it anew") from None
    return arrays(value)


def arrays(value: Any) -> Any:
    """Return `value`, or the dict that it is, with arrays in place of their stand-ins.

    No deeper: lists within lists can be few bytes in a pickle and without end to walk through.
    """
    if isinstance(value, dict):
        return {key: each.value if isinstance(each, Array) else each for key, each in value.items()}
    return value.value if isinstance(value, Array) else value


def stand_ins() -> list[Callable[..., Any]]:
    """Return a harmless function for each name that arrays need in a pickle, and under that name.

    They are made anew, because a pickle can set attributes of the functions it is given.
    """
    return [_named(module, name, call) for (module, name), call in _STAND_INS.items()]


class Dtype:
    """The stand-in for a dtype: a number or a text, never objects or fields."""

    __slots__ = ("dtype",)

    def __init__(self, code: str | bytes, *_: object) -> None:
        if not _CODE.fullmatch(_text(code)):
            raise Refused(f"an array in it has the type {_text(code)}, which is never loaded")
        self.dtype = np.dtype(_text(code))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *fields = state[:5]
        if any(field is not None for field in fields):
            raise Refused("an array in it has fields, which are never loaded")
        self.dtype = self.dtype.newbyteorder(_text(order))  # type: ignore[arg-type]


class Array:
    """The stand-in for an array."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value = np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *_, shape, dtype, by_columns, raw = state
        if not isinstance(raw, bytes):
            raise Refused("an array in it is made of objects, which are never loaded")
        flat = np.frombuffer(raw, dtype.dtype)
        self.value = flat.reshape(shape, order="F" if by_columns else "C")


def _scalar(dtype: Dtype, raw: bytes) -> Any:
    return np.frombuffer(raw, dtype.dtype, count=1)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # How Python 3 writes bytes for Python 2. Other encodings may be programs, such as zip.
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"it asks for the encoding {encoding!r}, which arrays do not need")
    return text.encode(encoding)


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("_codecs", "encode"): _encode,
}


def _named(module: str, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(*arguments: Any) -> Any:
        return call(*arguments)

    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = module, name, name
    return stand_in


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        for call in stand_ins():
            if (call.__module__, call.__name__) == (module, name):
                return call
        raise Refused(
            f"the pickle asks for {module}.{name}, which could run code and is never loaded; get "
            "the file from its original source"
        )


def _text(code: str | bytes) -> str:
    return code.decode("latin1") if isinstance(code, bytes) else str(code)
