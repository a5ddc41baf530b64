"""What differs between the methods: which samples, which targets and which loss, epoch by epoch.

A method that is a loss is a row of the table in `dspt.losses`; one that does more is a file here. The training loop
asks a method for a plan at the start of every epoch and knows nothing else about it.

Other packages add methods without a fork: an entry point of the group "dspt.methods" names a loss, a `Method` or a
class of methods.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean
from dspt.losses import LOSSES, Loss
from dspt.methods.dspt_auto import DSPTAuto
from dspt.methods.joapr import JoAPR
from dspt.methods.method import Batch, Epoch, LossMethod, Method, Phase, batches
from dspt.methods.nlprompt import NLPrompt
from dspt.methods.select import Select
from dspt.methods.upl import UPL, RobustUPL
from dspt.methods.zeroshot import ZeroShot

__all__ = ["METHODS", "Batch", "Epoch", "LossMethod", "Method", "Phase", "batches", "describe", "make"]

GROUP = "dspt.methods"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        ZeroShot(),
        *(LossMethod(loss) for loss in LOSSES.values() if loss.method),
        Select(),
        NLPrompt(),
        UPL(),
        RobustUPL(),
        JoAPR(),
        DSPTAuto(),
    )
}


def make(method: str | Method | Callable[..., Any], **options: Any) -> Method:
    """Return a method with its hyper-parameters set.

    Parameters
    ----------
    method
        The name of a method, ours or another package's; a `Method`; or a loss of one's own, a function `(logits,
        labels, **hyper-parameters)` that returns one value a sample.
    **options
        Hyper-parameters; those that are not given have their defaults.
    """
    found = _named(method) if isinstance(method, str) else _as_method(method)
    accepted = found.options
    for option, value in options.items():
        if option not in accepted:
            takes = ", ".join(accepted) or "none"
            raise InputError(f"option {option!r}: method {found.name} takes {takes}")
        truth = isinstance(accepted[option], bool)
        if isinstance(value, str) or isinstance(value, bool) != truth:
            expected = "true or false" if truth else "a number"
            raise InputError(f"option {option} = {value!r}: expected {expected}")
    return found.with_options(**options) if options else found


def describe() -> list[dict[str, Any]]:
    """Return name, formula, what it does, hyper-parameters with their defaults, and source of each method."""
    return [_described(name) for name in (*METHODS, *sorted(entry_points(group=GROUP).names - METHODS.keys()))]


def _described(name: str) -> dict[str, Any]:
    """Return what is known about a method; of another package's that is broken, why it cannot be used."""
    try:
        method = _named(name)
    except InputError as error:
        return {"name": name, "formula": "", "what": str(error), "options": {}, "source": ""}
    return {
        "name": name,
        "formula": method.formula,
        "what": method.what,
        "options": method.options,
        "source": f"({method.source})",
    }


def _named(name: str) -> Method:
    if name in METHODS:
        return METHODS[name]
    theirs = entry_points(group=GROUP)
    for entry in theirs.select(name=name):
        try:
            return _as_method(entry.load(), name)
        except InputError:
            raise
        except Exception as error:  # another package's code may fail in any way
            raise InputError(
                f"method {name!r}: {entry.value} cannot be loaded ({type(error).__name__}: {error})"
            ) from None
    known = [*METHODS, *sorted(theirs.names)]
    raise InputError(f"method {name!r}: not known{did_you_mean(name, known)}; the methods are {', '.join(known)}")


def _as_method(given: Any, name: str = "") -> Method:
    """Return what a user or another package gives as a method: one, a class of them, or a loss."""
    if isinstance(given, type) and issubclass(given, Method):
        try:
            given = given()
        except TypeError as error:
            raise InputError(f"method {given.__name__}: it cannot be made without arguments ({error})") from None
    if isinstance(given, Method):
        unsaid = [what for what in ("name", "formula", "source") if not hasattr(given, what)]
        if unsaid:
            raise InputError(f"method {type(given).__name__}: it has no {unsaid[0]}; set it in the class")
        return given
    if not isinstance(given, Loss):
        if not callable(given):
            raise InputError(
                f"method {given!r}: expected a name, a Method, or a loss as a function of logits and labels"
            )
        called = name or getattr(given, "__name__", type(given).__name__).strip("<>_").replace("_", "-")
        given = Loss(called, given, f"{called}(z, y)", "the user's own")
    found = LossMethod(given)
    _ = found.options  # what cannot be called as a loss is told here, not in the middle of a run
    return found
