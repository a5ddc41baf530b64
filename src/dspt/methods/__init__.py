"""What differs between the methods: which samples, which targets and which loss, epoch by epoch.

A method is one small file with a class. The training loop asks it for a plan at the start of every epoch and knows
nothing else about it.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from dspt.internal.errors import InputError
from dspt.methods.bootstrap import Bootstrap, HardBootstrap
from dspt.methods.coop import CoOp
from dspt.methods.dspt import DSPT
from dspt.methods.dspt_auto import DSPTAuto
from dspt.methods.gce import GCE
from dspt.methods.joapr import JoAPR
from dspt.methods.logitclip import LogitClip
from dspt.methods.logitnorm import LogitNorm
from dspt.methods.mae import MAE
from dspt.methods.method import Method, Mix, Phase
from dspt.methods.nce import NCE
from dspt.methods.nce_rce import NCERCE
from dspt.methods.nlprompt import NLPrompt
from dspt.methods.sce import SCE
from dspt.methods.select import Select
from dspt.methods.smoothing import Smoothing
from dspt.methods.square import Square
from dspt.methods.upl import UPL, RobustUPL
from dspt.methods.zeroshot import ZeroShot

__all__ = ["METHODS", "Method", "Mix", "Phase", "describe", "make"]

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        *(ZeroShot, CoOp, Smoothing, MAE, GCE, NCE, SCE, NCERCE, Bootstrap, HardBootstrap),
        *(LogitNorm, LogitClip, Square, Select, NLPrompt, UPL, RobustUPL, JoAPR, DSPT, DSPTAuto),
    )
}


def make(name: str, **options: Any) -> Method:
    """Return the method called `name` with its hyper-parameters set."""
    if name not in METHODS:
        near = get_close_matches(name.lower(), METHODS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"method {name!r}: not known{hint}; the methods are {', '.join(METHODS)}")
    kind = METHODS[name]
    accepted = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    for option, value in options.items():
        if option not in accepted:
            takes = ", ".join(accepted) or "none"
            raise InputError(f"option {option!r}: method {name} takes {takes}")
        truth = isinstance(accepted[option], bool)
        if isinstance(value, str) or isinstance(value, bool) != truth:
            expected = "true or false" if truth else "a number"
            raise InputError(f"option {option} = {value!r}: expected {expected}")
    return kind(**options)


def describe() -> list[dict[str, Any]]:
    """Return name, formula, what it does, hyper-parameters with their defaults, and source of each."""
    return [
        {
            "name": name,
            "formula": method.formula,
            "what": (method.__doc__ or "").splitlines()[0],
            "options": {field.name: field.default for field in fields(method)},  # type: ignore[arg-type]
            "source": f"({method.source})",
        }
        for name, method in METHODS.items()
    ]
