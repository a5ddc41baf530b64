"""Work on many items in threads, in order, a few ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Progress = Callable[[int, int], None]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], workers: int | None = None
) -> Iterator[_Result]:
    """Give `work(item)` for each item, in their order, with a few of them under way at a time."""
    workers = workers or min(8, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers)
    ahead: deque[Future[_Result]] = deque()
    try:
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) >= 4 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
