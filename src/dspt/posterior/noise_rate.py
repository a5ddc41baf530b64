"""How many labels are wrong, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

# Labels that contradict the prediction and are held to be right are those of hard images by an assumption alone. With
# half of them in the error, two errors reach the case in which all of them are wrong, that of people who mislabel hard
# images and no others. It is more than half, since some wrong labels agree with predictions that are wrong, too.
DOUBT = 0.7


class RateEvidence(NamedTuple):
    """What the rate and its error are made from."""

    rate: float  # mean probability that a label is wrong
    others: tuple[float, ...]  # the same by other shares of anchors and after other rounds
    contradicted: float  # share of labels that are not what the image is predicted as
    anchors: int
    samples: int
    can_tell: bool
    unknown: float = 1.0  # share of labels that nobody has looked at
    could_be_hard: bool = False  # whether right labels of images that are hard to tell apart explain as much
    surely_wrong: float = 0.0  # share of labels that somebody has seen to be wrong
    disputed: float = 0.0  # how much higher the rate is if groups have those of their labels that the text says
    otherwise: tuple[float, ...] = ()  # the rate by other readings of names and labels that cannot be excluded


def rate_and_error(found: RateEvidence) -> tuple[float, float]:
    """Return the estimated share of wrong labels and its standard error."""
    if not found.can_tell:
        return 0.5, 0.5
    rate = min(max(found.rate, 0.0), 1.0)
    chance = found.unknown * math.sqrt(rate * (1 - rate) / found.anchors) + 1 / found.samples
    choice = math.sqrt(sum((other - rate) ** 2 for other in found.others) / max(1, len(found.others)))
    doubt = DOUBT * abs(found.contradicted - rate)
    error = math.sqrt(chance**2 + choice**2 + doubt**2 + found.disputed**2)
    if found.could_be_hard:  # then none of the others may be wrong
        error = max(error, (rate - found.surely_wrong) / 2)
    error = max(error, *(abs(other - rate) for other in found.otherwise), 0.0)
    return rate, min(0.5, error)


def in_words(found: Mapping[str, float]) -> str:
    """Return the rate and its error, as a run has them among its findings, in words; "" if it has none."""
    if not {"noise_rate", "noise_rate_error"} <= found.keys():
        return ""
    rate, error = 100 * found["noise_rate"], 100 * found["noise_rate_error"]
    if error >= 25:
        return f"estimated share of wrong labels: cannot be told from these images ({rate:.0f} ± {error:.0f} %)"
    return f"estimated share of wrong labels: {rate:.1f} ± {error:.1f} %"
