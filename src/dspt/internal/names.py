"""Names as they are compared and as they are shown, the prompt they are put into, and the model's.

A module of its own, because the command line needs it before anything that takes time to import.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

Known = TypeVar("Known")

# CLIP's prompt for a class of which nothing is known but its name.
GENERIC_TEMPLATE = "a photo of a {}."

# The paper's checkpoint, and what stands for "the one that suits the data" and for "no towers, features alone" in
# settings.
PAPER_MODEL = "openai/clip-vit-base-patch16"
AUTO = "auto"
NO_MODEL = "none"


def plain(name: str) -> str:
    """Return a name as it is compared: "Stanford_Cars" is "stanfordcars"."""
    return "".join(filter(str.isalnum, name.casefold()))


def lookup(name: str, known: Mapping[str, Known]) -> Known | None:
    """Return what `name` means among `known`, whose keys are plain; None if nothing.

    A name with a slash is a path, as in "./pets", and never known.
    """
    return None if "/" in name or "\\" in name else known.get(plain(name))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that is spelt most alike, " (did you mean coop?)"; "" if none is."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def printable(text: str) -> str:
    r"""Return a text with nothing in it that a terminal would obey or a reader not see, all of that escaped.

    The name of a file or a class may come from a stranger: control characters, line breaks, marks that turn the
    direction of writing and characters without width are shown as Python writes them; a byte that is no UTF-8 as
    itself, \xff.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    # Python reads the byte 0xff of a file name, where it is no text, as U+DCFF.
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else repr(character)[1:-1]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text as lines of at most `width`, broken between words alone; later lines begin with `indent`.

    A number stays with its per cent sign.

    Parameters
    ----------
    text : str
        What is shown; anything in it that a terminal would obey is escaped.
    width : int
        Letters a line; a word that is longer is not broken.
    indent : str
        What later lines begin with.
    """
    joined = printable(text).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(joined, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def matched(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """Return the position of each of some different names among `known`; -1 for one that is not there.

    A name that is not there as it is written may be there in another spelling: "ankle_boot", as folders are called, is
    "ankle boot". No two names are matched with one: of those, only a name that is there as it is written.
    """
    position = {name: c for c, name in enumerate(known)}
    left = sorted(position.keys() - set(names))
    spelt, asked = Counter(map(_spelling, left)), Counter(_spelling(name) for name in names if name not in position)
    other = {_spelling(name): position[name] for name in left if spelt[_spelling(name)] == 1}
    return [
        position[name] if name in position else other.get(spelling, -1) if asked[spelling] == 1 else -1
        for name, spelling in zip(names, map(_spelling, names), strict=True)
    ]


def _spelling(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def spreadsheet_cell(text: str) -> str:
    """Return a text as a cell of a CSV file, which no spreadsheet takes for a formula: "=A1" is "'=A1".

    `from_spreadsheet_cell` returns every text as it was.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_spreadsheet_cell(cell: str) -> str:
    """Return the text of a cell that `spreadsheet_cell` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


# Apostrophes in front are counted in, so that a text which has one of its own comes back with it.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
