"""CoOp's learner: context vectors in front of the class names, the same for all images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspt.backbone.prompt import initial_context, layout_context
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.names import NO_MODEL
from dspt.learners.learner import Parameters, PrototypicalLearner, Samples


class PromptLearner(PrototypicalLearner):
    """A context, from which the text tower makes the class prototypes."""

    def __init__(self, class_names: Sequence[str], config: Config, tower: TextTower | None = None) -> None:
        super().__init__(class_names, config, tower)
        layout = layout_context(
            self.tower.checkpoint,
            class_names,
            config.context_length,
            config.position,
            class_specific=config.class_specific,
        )
        self.prompts = self.tower.compile(layout)
        self.product = self.prompts.product

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise `InputError` if there is no model: nobody could read a prompt."""
        if config.model == NO_MODEL:
            raise InputError(
                f"learner = {config.learner!r}: a prompt needs a text tower, and model {NO_MODEL} has none",
                "name a `model`, or take the `learner` prototypes, posterior or auto",
            )

    def start(self, samples: Samples | None = None) -> Parameters:
        """Return the context, drawn at random or taken from words.

        Parameters
        ----------
        samples : Samples, optional
            Not looked at.
        """
        context = initial_context(
            self.tower.checkpoint,
            self.tower.embeddings,
            self.prompts.layout,
            seed=self.config.seed,
            words=self.config.context_words,
        )
        return {"context": context}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return what the text tower makes of context and class names."""
        return self.prompts(parameters["context"])
