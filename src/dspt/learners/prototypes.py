"""A linear probe without a prompt: the class prototypes themselves, from zero-shot on."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.learners.learner import Parameters, PrototypicalLearner

PROMPT_SETTINGS = ("context_length", "position", "class_specific", "context_words")


class PrototypeLearner(PrototypicalLearner):
    """The class prototypes, learnt as they are."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise `InputError` for settings of a prompt."""
        refuse_prompt_settings(config)

    def start(self) -> Parameters:
        """Return the zero-shot prototypes."""
        return {"weights": self.zero_shot}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return the weights, brought to length 1."""
        return F.normalize(parameters["weights"], dim=1)


def refuse_prompt_settings(config: Config) -> None:
    """Raise `InputError` for settings of a prompt, where there is none."""
    for name in PROMPT_SETTINGS:
        if (value := getattr(config, name)) != getattr(Config, name):
            raise InputError(f"{name} = {value!r}: learner {config.learner} has no prompt", f"leave `{name}` out")
