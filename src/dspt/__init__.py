"""Adapt CLIP to a classification task when a good part of the training labels are wrong."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dspt.internal.threads import spare_waiting_threads

__version__ = "0.1.0"

spare_waiting_threads()  # before anything loads torch, which reads it once

if TYPE_CHECKING:
    from dspt import losses, methods, noise, posterior, theory
    from dspt.auditing.samples import audit
    from dspt.classifier import PromptClassifier, load
    from dspt.internal.errors import InputError
    from dspt.losses import double_softmax_cross_entropy
    from dspt.noise import corrupt
    from dspt.posterior import Posterior, label_posterior

__all__ = [
    "InputError",
    "Posterior",
    "PromptClassifier",
    "__version__",
    "audit",
    "corrupt",
    "double_softmax_cross_entropy",
    "label_posterior",
    "load",
    "losses",
    "methods",
    "noise",
    "posterior",
    "theory",
]

# torch takes seconds to import: each name is fetched when it is first used, so `dspt --help` is quick.
_HOMES = {
    "InputError": "dspt.internal.errors",
    "Posterior": "dspt.posterior",
    "PromptClassifier": "dspt.classifier",
    "audit": "dspt.auditing.samples",
    "corrupt": "dspt.noise",
    "double_softmax_cross_entropy": "dspt.losses",
    "label_posterior": "dspt.posterior",
    "load": "dspt.classifier",
}
_MODULES = {"losses", "methods", "noise", "posterior", "theory"}


# What Python users should hear is heard by those who set logging up; the others are not bothered.
logging.getLogger("dspt").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dspt.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dspt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
