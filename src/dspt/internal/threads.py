"""Threads: how those of OpenMP wait, and work on many items in order, a few ahead."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Progress = Callable[[int, int], None]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Turns of its loop that a waiting thread of libgomp takes before it sleeps, 25 µs where it was measured; libgomp's own
# default is 300,000, or 8 ms. What other numbers cost is in docs/performance.md.
SPINS = 1000

# Multiplications of a matrix product, 0.4 ms of one core where it was measured, up to which further threads are not
# worth their waiting. ViT-B/16's text tower has more with two classes, the embedded one with about a hundred.
SMALL_PRODUCT = 2**24

# Any of these is the user's own word on how threads wait.
_WAITING = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY")


def spare_waiting_threads() -> None:
    """Have OpenMP's threads sleep soon when they wait for each other, which changes no result.

    Threads that spin take the cores from the very threads they wait for as soon as another program runs. The runtime
    reads the setting when it is loaded, so this does nothing once torch is, nor where the user has set any of it.
    Processes that are started later inherit it.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _WAITING):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


@contextmanager
def threads_for(product: int | None) -> Iterator[None]:
    """Have torch compute with one thread in the block if its matrix products are small.

    Threads then wait for each other longer than they work, and longest beside another program. The rule looks at the
    work alone, never at the machine, so that a machine always gives the same bits.

    Parameters
    ----------
    product : int or None
        Multiplications of a typical matrix product of the block; None leaves the threads as they are, as does a user
        who has set OMP_NUM_THREADS.
    """
    import torch

    if product is None or product > SMALL_PRODUCT or is_asked():
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Return the number of cores that this process may run on, which can be fewer than the machine has."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_asked() -> bool:
    """Return whether the user has said how many threads there are to be, for every process that dspt starts."""
    return _COUNT in os.environ and not _shared


def divided(workers: int) -> dict[str, str]:
    """Return the environment that gives each of several processes its share of the cores, unless the user has said.

    A library counts its threads when it is loaded, so this must be there before the process begins.
    """
    return {} if is_asked() else environment(max(1, cores() // workers))


def environment(number: int) -> dict[str, str]:
    """Return the environment in which a process computes with so many threads."""
    return {_COUNT: str(number)}


def asked() -> int | None:
    """Return how many threads the user has said there are to be; None if nothing that counts."""
    first = os.environ.get(_COUNT, "").partition(",")[0].strip()
    return int(first) if is_asked() and first.isdecimal() and int(first) else None


def take_share(asked: bool) -> None:
    """Have this process know whether the number of its threads was asked for by the user, or is its share."""
    global _shared
    _shared = not asked


_COUNT = "OMP_NUM_THREADS"
_shared = False


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], workers: int | None = None
) -> Iterator[_Result]:
    """Yield `work(item)` for each item, in their order, with a few of them under way at a time.

    Parameters
    ----------
    work : callable
        What is done with an item, in some thread; what it raises is raised here.
    items : iterable
        Taken as they are needed, at most four a thread ahead.
    workers : int, optional
        How many threads; None is one a core, 8 at most.
    """
    # Not above: `import dspt` comes here, and this import takes as long as all the others of `dspt --help`.
    from concurrent.futures import ThreadPoolExecutor

    workers = workers or min(8, cores())
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
