"""What is learnt: a context, one that depends on the image, class prototypes, a discriminant, or a network.

- learner.py: the seam to the training loop
- names.py: how much class names alone tell of the images
- prompt.py, cocoop.py, prototypes.py: learners on top of CLIP; posterior.py: one that needs no steps
- network.py: a network from scratch; resnet.py: its layers and first weights; pixels.py: its images
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspt.backbone.text import TextTower
from dspt.config import AUTO_LEARNER, Settings
from dspt.features import Encoder
from dspt.internal.errors import InputError
from dspt.learners.cocoop import ConditionalPromptLearner
from dspt.learners.learner import (
    Classify,
    ClipLearner,
    Learner,
    Parameters,
    Reader,
    Samples,
    by_prototypes,
    open_encoder,
    open_text_tower,
    zero_shot_prototypes,
)
from dspt.learners.names import KNOWN_NAMES, Agreement, names_tell
from dspt.learners.network import NetworkLearner
from dspt.learners.posterior import PosteriorLearner, posterior_of
from dspt.learners.prompt import PromptLearner
from dspt.learners.prototypes import PROMPT_SETTINGS, PrototypeLearner

__all__ = [
    "KNOWN_NAMES",
    "LEARNERS",
    "PROMPT_SETTINGS",
    "Agreement",
    "Classify",
    "ClipLearner",
    "Encoder",
    "Learner",
    "Parameters",
    "PromptLearner",
    "Reader",
    "Samples",
    "by_prototypes",
    "kind_of",
    "make",
    "names_tell",
    "open_encoder",
    "open_text_tower",
    "posterior_of",
    "zero_shot_prototypes",
]

LEARNERS: dict[str, type[Learner]] = {
    "prompt": PromptLearner,
    "cocoop": ConditionalPromptLearner,
    "prototypes": PrototypeLearner,
    "posterior": PosteriorLearner,
    "network": NetworkLearner,
}


def kind_of(config: Settings) -> type[Learner]:
    """Return the kind of learner the config asks for, once its settings make sense for it."""
    if config.learner == AUTO_LEARNER:
        raise InputError(f"learner = {AUTO_LEARNER!r}: it has to be chosen before anything is learnt")
    fitting = [name for name, kind in LEARNERS.items() if isinstance(config, kind.settings)]
    if config.learner not in fitting:
        if len(fitting) > 1:  # there is something to choose from
            fitting.append(AUTO_LEARNER)
        names = " or ".join(filter(None, [", ".join(fitting[:-1]), fitting[-1]]))
        raise InputError(f"learner = {config.learner!r}: expected {names}")
    kind = LEARNERS[config.learner]
    kind.check(config)
    return kind


def make(class_names: Sequence[str], config: Settings, tower: TextTower | None = None) -> Learner:
    """Return the learner the config asks for; a text tower that is open already may be given.

    Parameters
    ----------
    class_names : sequence of str
        The name of each class, in the order of labels.
    config : Settings
        Its `learner` names the kind.
    tower : TextTower, optional
        For learners on top of CLIP alone; None opens the one that the config asks for, if it asks for a model.
    """
    kind: Any = kind_of(config)
    made: Learner = kind(class_names, config, tower) if tower else kind(class_names, config)
    return made
