"""A ResNet trained from scratch on small images, with the losses of the methods: the paper's CIFAR-10 experiment.

No CLIP is in it. It shows what a loss does without the prior knowledge that prompt tuning starts from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspt.scratch.config import ScratchConfig

if TYPE_CHECKING:
    from dspt.scratch.runner import run

__all__ = ["ScratchConfig", "run"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and the settings are read by `dspt --help`
    if name == "run":
        from dspt.scratch.runner import run

        return run
    raise AttributeError(f"module 'dspt.scratch' has no attribute {name!r}")
