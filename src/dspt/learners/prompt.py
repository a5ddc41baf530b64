"""CoOp's learner: context vectors in front of the class names, the same for all images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspt.backbone.prompt import initial_context, layout_context
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.learners.learner import Parameters, PrototypicalLearner


class PromptLearner(PrototypicalLearner):
    """A context, from which the text tower makes the class prototypes."""

    def __init__(self, class_names: Sequence[str], config: Config, tower: TextTower | None = None) -> None:
        super().__init__(class_names, config, tower)
        layout = layout_context(
            self.checkpoint,
            class_names,
            config.context_length,
            config.position,
            class_specific=config.class_specific,
        )
        self.prompts = self.tower.compile(layout)
        self.product = self.prompts.product

    def start(self) -> Parameters:
        """Return the context, drawn at random or taken from words."""
        context = initial_context(
            self.checkpoint,
            self.tower.embeddings,
            self.prompts.layout,
            seed=self.config.seed,
            words=self.config.context_words,
        )
        return {"context": context}

    def prototypes(self, parameters: Parameters) -> Tensor:
        """Return what the text tower makes of context and class names."""
        return self.prompts(parameters["context"])
