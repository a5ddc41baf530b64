"""Names as they are compared, the prompt they are put into, and the model's.

A module of its own, because the command line needs it before anything that takes time to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Known = TypeVar("Known")

# CLIP's prompt for a class of which nothing is known but its name.
GENERIC_TEMPLATE = "a photo of a {}."

# The paper's checkpoint, and what stands for "the one that suits the data" in settings.
PAPER_MODEL = "openai/clip-vit-base-patch16"
AUTO = "auto"


def plain(name: str) -> str:
    """Return a name as it is compared: "Stanford_Cars" is "stanfordcars"."""
    return "".join(filter(str.isalnum, name.casefold()))


def lookup(name: str, known: Mapping[str, Known]) -> Known | None:
    """Return what `name` means among `known`, whose keys are plain; None if nothing.

    A name with a slash is a path, as in "./pets", and never known.
    """
    return None if "/" in name or "\\" in name else known.get(plain(name))
