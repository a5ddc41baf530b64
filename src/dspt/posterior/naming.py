"""Whether the groups that labels make of the images bear the right names: only the text can tell.

If more than half of the labels of a class are wrong in one way, its images are found as a group under a wrong label.
The text is believed against the labels if it calls most groups by other names, and if these are the names that some
labels of the groups have: where class names are mixed up, or mean nothing, that happens by chance alone, and for how
many groups chance would do it can be counted. With two to four classes it cannot be told from chance; then both
readings stand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# What chance may bring about in one of so many sets is not believed.
BY_CHANCE = 0.01
# The least share of images, of those called otherwise than by their labels, whose group has labels with that name.
HELD = 0.25
# Names that tell fewer of the images are no witnesses.
TOLD = 0.25
# Below this many wrong labels in a hundred of a group, none of them says anything about its name.
_FEW = 0.04


class Naming(NamedTuple):
    """What the text calls the groups that the labels make."""

    order: Tensor  # (C,) the group that is called c
    rate: float  # the share of wrong labels if the text is right
    sure: bool  # whether it is more than chance; if not, either may be right


def naming(named: Tensor, matrix: Tensor) -> Naming | None:
    """Return other names for the groups, if the text has any that may be right.

    Parameters
    ----------
    named : float64 Tensor of shape (C, C)
        How many images of each group the text calls each class.
    matrix : Tensor of shape (C, C)
        `matrix[g, y]` is the probability of the label y in group g.
    """
    classes = len(named)
    size = named.sum(1)
    told = named.argmax(1)  # by the text alone: a name that was chosen for its labels would be no witness of them
    moved = told != torch.arange(classes)
    moved &= size > 0
    if float(size[moved].sum()) < 0.5 * float(size.sum()):
        return None
    held = _held(matrix)
    by_text = held.gather(1, told[:, None])[:, 0]
    share = float(size[moved & by_text].sum() / size[moved].sum())
    groups, names = _one_to_one(named, matrix)
    agreed = float(named[groups, names].sum())
    order = torch.empty_like(groups)
    order[names] = groups
    rate = 1 - float((size * matrix.double()[groups, names]).sum() / size.sum())
    if share < HELD or agreed < TOLD * float(size.sum()) or float(named.diagonal().sum()) > 0.5 * agreed:
        return None
    chance = held[moved].double().sum(1) / (classes - 1)
    if _at_least(chance.numpy(), int(by_text[moved].sum())) < BY_CHANCE:
        return Naming(order, rate, sure=True)
    # It may be chance. Where names mean something to the text, each group has a name of its own.
    own = len(torch.unique(told)) == classes
    return Naming(order, rate, sure=False) if own and share > 0.5 and agreed > 0.5 * float(size.sum()) else None


def disputed(named: Tensor, matrix: Tensor) -> float:
    """Return by how much the share of wrong labels is higher if groups have those of their labels that the text says.

    A group that looks to the text like what some of its labels say, though most say another class, may be one whose
    labels are mostly wrong: the rather, the more labels are wrong at all. Names that tell few of the images by any of
    the group's labels, more than chance would, are no witnesses.

    Parameters
    ----------
    named : float64 Tensor of shape (C, C)
        How many images of each group the text calls each class.
    matrix : Tensor of shape (C, C)
        `matrix[g, y]` is the probability of the label y in group g.
    """
    possible = _held(matrix).fill_diagonal_(True)
    size = named.sum(1)
    total = float(size.sum())
    told = float(named[possible].sum()) / total
    chance = float((size * possible.double().mean(1)).sum()) / total
    if told - chance < TOLD * (1 - chance):
        return 0.0
    name = torch.where(possible, named, -1.0).argmax(1)
    shares = matrix.double()
    higher = shares.diagonal() - shares.gather(1, name[:, None])[:, 0]
    wrong = float((size * (1 - shares.diagonal())).sum()) / total
    return min(1.0, 2 * wrong) * float((size * higher).sum()) / total


def _held(matrix: Tensor) -> Tensor:
    """Return whether a group has each of the other labels, more often than mistakes that are spread over all (C, C)."""
    classes = len(matrix)
    wrong = (1 - matrix.diagonal())[:, None]
    held = (matrix >= wrong * min(3 / (classes - 1), 0.5)) & (matrix >= _FEW)
    return held.fill_diagonal_(False)


def _one_to_one(named: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return groups and their names, each once.

    A name has to fit twice: images of the group look like it, and some of the group's labels are it, many or few.
    """
    from scipy.optimize import linear_sum_assignment

    looks = named / named.sum(1, keepdim=True).clamp_min(1)
    fit = (looks + 0.01).log() + (matrix.double().clamp_max(0.05) + 0.002).log()
    groups, names = (torch.from_numpy(each) for each in linear_sum_assignment(-fit.numpy()))
    return groups, names


def _at_least(chances: np.ndarray, count: int) -> float:
    """Return how probable it is that at least so many of independent events happen, each with its own chance."""
    several = np.zeros(len(chances) + 1)
    several[0] = 1.0
    for chance in chances:
        several[1:] = several[1:] * (1 - chance) + several[:-1] * chance
        several[0] *= 1 - chance
    return float(several[count:].sum())
