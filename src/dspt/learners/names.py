"""How much class names alone tell of the images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dspt.internal.shards import BLOCK, Features
from dspt.learners.learner import ClipLearner, by_prototypes

# Names that tell less than this of what chance leaves open are no place to begin. A share of all images would not do:
# of four classes chance tells a quarter, of two a half.
KNOWN_NAMES = 0.25
# Standard errors by which names must agree with labels more often than chance, and by what share of what chance leaves
# open, where nothing else is known of the labels. Names have the benefit of the doubt: most labels may be wrong.
_MORE_THAN_CHANCE, _NEXT_TO_NOTHING = 1.0, 0.03


class Agreement(NamedTuple):
    """How many of the images class names alone tell, how many they would by chance, and how many images there are."""

    share: float
    chance: float
    images: int

    @property
    def kappa(self) -> float:
        """How much of what chance leaves open the names tell: Cohen's kappa."""
        return (self.share - self.chance) / max(1e-9, 1 - self.chance)

    @property
    def more_than_chance(self) -> bool:
        """Whether names agree with labels, of which any number may be wrong, more often than chance would."""
        error = (self.chance * (1 - self.chance) / self.images) ** 0.5
        return self.share - self.chance > _MORE_THAN_CHANCE * error and self.kappa >= _NEXT_TO_NOTHING

    def known(self, can_tell: bool) -> bool:
        """Return whether names tell enough to begin at: if labels cannot be judged, any agreement will do."""
        return self.kappa >= KNOWN_NAMES if can_tell else self.more_than_chance


def names_tell(train_x: Features, classes: np.ndarray, learner: ClipLearner) -> Agreement | None:
    """Return how many images have the class that their names alone tell; None without a model.

    Parameters
    ----------
    train_x : array of shape (N, D), or (N, V, D) of V views
        Of several views the first counts.
    classes : integer array of shape (N,)
        What the images are taken for.
    learner : ClipLearner
        Has the class names' prototypes, or none.
    """
    if learner.zero_shot is None:
        return None
    classify = by_prototypes(learner.zero_shot, learner.scale)
    told = np.empty(len(classes), dtype=np.int64)
    rows = max(1, min(BLOCK, 2**22 // len(learner.class_names)))  # tens of megabytes
    for first in range(0, len(told), rows):
        x = np.array(train_x[first : first + rows])
        told[first : first + len(x)] = classify(torch.from_numpy(x[:, 0] if x.ndim == 3 else x)).argmax(1).cpu().numpy()
    shares = [np.bincount(each, minlength=len(learner.class_names)) / len(each) for each in (told, classes)]
    return Agreement(float((told == classes).mean()), float(shares[0] @ shares[1]), len(told))
