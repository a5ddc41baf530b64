""".safetensors files larger than memory: mapped when they are read, written a block at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dspt.internal.shards import BLOCK, Features

_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES: dict[np.dtype[Any], str] = {np.dtype(kind): name for name, kind in _TYPES.items()}


def mapped(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays of a .safetensors file as read-only memory maps, and its metadata.

    Raises
    ------
    Exception
        Of whatever kind safetensors answers a damaged file with; TypeError for numbers that numpy does not have.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as whole:  # it looks whether offsets, shapes and the file's size agree
        metadata = dict(whole.metadata() or {})
    with open(path, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
        arrays: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in _TYPES:
                raise TypeError(f"{name} is {entry['dtype']}, which numpy does not have")
            kind, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
            if 0 in shape:
                arrays[name] = np.empty(shape, kind)  # nothing cannot be mapped
            else:
                arrays[name] = np.memmap(file, kind, "r", start + entry["data_offsets"][0], shape)
    return arrays, metadata


def write_blocks(path: Path, arrays: Mapping[str, Features]) -> None:
    """Put arrays into a .safetensors file at `path`, never more than a block of one of them in memory."""
    header, place = {}, 0
    # the widest numbers first: each array then begins at a multiple of its own
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    for name in order:
        array = arrays[name]
        offsets = [place, place := place + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            array = arrays[name]
            if array.ndim == 0:
                file.write(np.ascontiguousarray(array).tobytes())
            for start in range(0, len(array) if array.ndim else 0, BLOCK):
                file.write(np.ascontiguousarray(array[start : start + BLOCK]).data)
