"""What differs between the methods: which samples, which targets and which loss, epoch by epoch.

A method is one small file with a class. The training loop asks it for a plan at the start of every epoch and knows
nothing else about it.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from dspt.errors import InputError
from dspt.methods.coop import CoOp
from dspt.methods.dspt import DSPT
from dspt.methods.mae import MAE
from dspt.methods.method import Method, Phase
from dspt.methods.zeroshot import ZeroShot

__all__ = ["METHODS", "Method", "Phase", "make"]

METHODS: dict[str, type[Method]] = {method.name: method for method in (ZeroShot, CoOp, MAE, DSPT)}


def make(name: str, **options: Any) -> Method:
    """Return the method called `name` with its hyper-parameters set."""
    if name not in METHODS:
        near = get_close_matches(name.lower(), METHODS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"method {name!r}: not known{hint}; the methods are {', '.join(METHODS)}")
    kind = METHODS[name]
    accepted = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in accepted:
            takes = ", ".join(accepted) or "none"
            raise InputError(f"option {option!r}: method {name} takes {takes}")
    return kind(**options)
