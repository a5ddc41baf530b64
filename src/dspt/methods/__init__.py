"""What differs between the methods: which samples, which targets and which loss, epoch by epoch.

A method that is a loss is a row of the table in `dspt.losses`; one that does more is a file here. The training loop
asks a method for a plan at the start of every epoch and knows nothing else about it.

Other packages add methods without a fork: an entry point of the group "dspt.methods" names a loss, a `Method` or a
class of methods.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from dspt.internal.errors import InputError
from dspt.losses import LOSSES, Loss
from dspt.methods.dspt_auto import DSPTAuto
from dspt.methods.joapr import JoAPR
from dspt.methods.method import Epoch, LossMethod, Method, Mix, Phase
from dspt.methods.nlprompt import NLPrompt
from dspt.methods.select import Select
from dspt.methods.upl import UPL, RobustUPL
from dspt.methods.zeroshot import ZeroShot

__all__ = ["METHODS", "Epoch", "LossMethod", "Method", "Mix", "Phase", "describe", "make"]

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
    theirs = {name: _named(name) for name in sorted(entry_points(group=GROUP).names)}
    return [
        {
            "name": name,
            "formula": method.formula,
            "what": method.what,
            "options": method.options,
            "source": f"({method.source})",
        }
        for name, method in {**theirs, **METHODS}.items()
    ]


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
    near = get_close_matches(name.lower(), known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(f"method {name!r}: not known{hint}; the methods are {', '.join(known)}")


def _as_method(given: Any, name: str = "") -> Method:
    """Return what a user or another package gives as a method: one, a class of them, or a loss."""
    if isinstance(given, type) and issubclass(given, Method):
        given = given()
    if isinstance(given, Method):
        return given
    if isinstance(given, Loss):
        return LossMethod(given)
    if not callable(given):
        raise InputError(f"method {given!r}: expected a name, a Method, or a loss as a function of logits and labels")
    name = name or getattr(given, "__name__", type(given).__name__).strip("<>_").replace("_", "-")
    try:
        return LossMethod(Loss(name, given, f"{name}(z, y)", "the user's own"))
    except (TypeError, ValueError):
        raise InputError(
            f"method {name}: its arguments cannot be told; write it as a function of logits and labels"
        ) from None
