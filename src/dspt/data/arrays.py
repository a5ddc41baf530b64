"""Arrays in numpy's own files; a pickle among them is never loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dspt.internal.errors import InputError


def load_npy(path: Path) -> np.ndarray:
    """Return the array in a .npy file."""
    try:
        with open(path, "rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except Exception as error:  # numpy answers damaged headers with errors of many kinds
        raise InputError(f"{path}: not a readable .npy file ({error})") from None


@contextmanager
def open_npz(path: Path, hint: str = "") -> Iterator[tuple[list[str], Callable[[str], np.ndarray]]]:
    """Yield the names of the arrays in an .npz file, and a function that reads one of them.

    Parameters
    ----------
    path : Path
    hint : str
        What to do about an array of objects, which is a pickle.

    Raises
    ------
    InputError
        In the block, if the file or an array that is asked for cannot be read.
    """
    try:
        # Opened here, because numpy leaves a file open that turns out to be none of its own.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:

            def read(name: str) -> np.ndarray:
                array = file[name]
                if not isinstance(array, np.ndarray):
                    raise ValueError  # what does not begin as an array does comes as bytes
                return array

            yield file.files, read
    except InputError:
        raise
    except Exception as error:  # zip, zlib, numpy and the operating system all speak up here
        reason = "not a readable .npz file"
        if "Object arrays" in str(error):
            reason = f"an array in it is a pickle, which could run code and is never loaded{hint}"
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise InputError(f"{path}: {reason} ({what})") from None
