"""Times of repeated work: a median and its range."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long `work(*arguments)` takes."""
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def spread(key: str, values: Sequence[float]) -> dict[str, float]:
    """Return the median under `key`, with the range beside it."""
    return {
        key: statistics.median(values),
        f"{key}_lowest": min(values),
        f"{key}_highest": max(values),
    }


def ratios(between: Sequence[float], around: Sequence[float]) -> list[float]:
    """Return each value over the mean of the two that were measured right before and right after it.

    A machine's speed drifts, so only what is measured side by side can be compared.
    """
    means = map(statistics.fmean, pairwise(around))
    return [value / mean for value, mean in zip(between, means, strict=True)]
