"""The errors a user is meant to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspt.internal.names import printable


class InputError(ValueError):
    """Bad input, told in one sentence: the thing, its value, and what to do.

    The command line prints the sentence and exits with status 2; it never shows a traceback for it.

    Parameters
    ----------
    sentence : str
        What is wrong and what to do about it. It names no setting.
    advice : str
        What a setting would do about it, the setting in backticks: "set `skip_bad` to go on without them". The
        command line writes its own option for the setting, and leaves the advice out where it has none.
    """

    def __init__(self, sentence: str, advice: str = "") -> None:
        super().__init__(sentence, advice)
        self.sentence = sentence
        self.advice = advice

    def __str__(self) -> str:
        return one_line(f"{self.sentence}; {self.advice}" if self.advice else self.sentence)


class BusyError(InputError):
    """What another process holds at this moment: it is free later."""


class FileError(InputError, OSError):
    """What the machine refuses: a full disk, a folder that may not be written to, too many open files.

    Nothing is wrong with what was asked for, so the command line exits with status 1.
    """


def one_line(text: str) -> str:
    """Return the text as one line that can be read: what is not printable escaped, the middle of a long one left out.

    The name of a file may hold a line break, and would make two lines of one sentence; and a cell of a table may be
    longer than anybody reads.
    """
    if len(text) > 2 * _HALF:
        text = f"{text[:_HALF]} … {text[-_HALF:]}"
    return printable(text)


_HALF = 1000


@dataclass(frozen=True)
class Fault:
    """One bad entry among many: an image that cannot be read, a row that makes no sense."""

    name: str  # the file, or the row of a file
    reason: str
    split: str = ""  # "train" or "test", where that is known


# How many faults a sentence names.
NAMED = 5


def summary(faults: Sequence[Fault], total: int | None = None) -> str:
    """Return the first faults in words: "a.jpg: no such file; b.jpg: not an image, and 3 more".

    Parameters
    ----------
    faults : the first of them, or all
    total : how many there are, where these are not all
    """
    named = faults[:NAMED]
    more = (len(faults) if total is None else total) - len(named)
    words = "; ".join(f"{fault.name}: {fault.reason}" for fault in named)
    return words + (f", and {more} more" if more > 0 else "")
