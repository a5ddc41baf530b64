"""Images opened and cut to what the tower sees, some way ahead of it, in threads or in processes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from queue import Empty, Full, Queue
from typing import Any, TypeVar

import numpy as np

from dspt.backbone.image import Preprocessing
from dspt.data.images import BadImage, open_image
from dspt.features import contents
from dspt.internal.errors import Fault, InputError
from dspt.internal.seeds import Stream
from dspt.internal.threads import cores
from dspt.internal.workers import end_with

# From so many image files on, processes earn back the second that they take to start.
PROCESSES_FROM = 2048
# Images a process is given at once: sending them one by one would cost as much as small images do.
CHUNK = 8
MOST_WORKERS = 16

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What the tower sees of an image: its centre, or a number of random crops."""

    preprocessing: Preprocessing
    views: int = 0
    seed: int = 0

    @property
    def rows(self) -> int:
        """How many views there are of an image."""
        return self.views or 1

    def __repr__(self) -> str:
        # Names the folder of stored features, so it stays what it was when they were stored.
        return f"Look(preprocessing={self.preprocessing!r}, crops={self.views}, seed={self.seed})"

    def __call__(self, image: Any, digest: bytes) -> np.ndarray:
        """Return the views of an image, uint8 (rows, S, S, 3)."""
        if not self.views:
            return self.preprocessing.test_view(image)[None]
        streams = (Stream(self.seed, "view", digest.hex(), v) for v in range(self.views))
        return np.stack([self.preprocessing.train_view(image, stream) for stream in streams])


@dataclass(frozen=True)
class Seen:
    """An image's digest and, if asked for, its views; or what is wrong with it."""

    position: int
    digest: bytes = b""
    pixels: np.ndarray | None = None
    fault: Fault | None = None


class Decoder:
    """Looks at images in the background; used as a context, at whose end its workers are gone."""

    def __init__(self, look: Look, workers: int | None = None, processes: bool = False) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers: expected at least 1, found {workers}")
        self.look = look
        self._workers = workers or min(MOST_WORKERS, cores())
        self._processes = processes
        self._pools: dict[bool, Executor] = {}

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        for in_processes, pool in self._pools.items():
            stop: dict[str, Any] = {"kill_workers": True} if in_processes else {"cancel_futures": True}
            pool.shutdown(**stop)
        self._pools.clear()

    def digests(self, items: Any, positions: Iterable[int]) -> Iterator[Seen]:
        """Return the digest of each image, in order."""
        return _named(items, self._run(((i, items[i]) for i in positions), None, False))

    def views(self, items: Any, positions: Iterable[int]) -> Iterator[Seen]:
        """Return the digest and the views of each image, in order."""
        return _named(items, self._run(((i, items[i]) for i in positions), self.look, self._processes))

    def stream(self, items: Iterable[Any]) -> Iterator[tuple[Any, Seen]]:
        """Return each image with its digest and views, in order, for as many as there prove to be.

        A `Fault` among the items is one that their source has found already, and takes its place in the order.
        """
        entries = enumerate(items)
        yield from self._run(islice(entries, PROCESSES_FROM), self.look, False)
        yield from self._run(entries, self.look, True)

    def _run(
        self, entries: Iterable[tuple[int, Any]], look: Look | None, in_processes: bool
    ) -> Iterator[tuple[Any, Seen]]:
        rest, queue = iter(entries), deque[tuple[list[tuple[int, Any]], Future[list[Seen]]]]()
        size = CHUNK if in_processes else 1
        depth = 2 * self._workers + 64 // (size * self.look.rows)
        while chunk := list(islice(rest, size)):
            queue.append((chunk, self._pool(in_processes).submit(_see, chunk, look)))
            if len(queue) > depth:
                yield from _result(*queue.popleft())
        while queue:
            yield from _result(*queue.popleft())

    def _pool(self, in_processes: bool) -> Executor:
        if in_processes not in self._pools:
            if in_processes:
                # Not multiprocessing's own pool: that runs a user's script again in each worker.
                from loky import ProcessPoolExecutor

                pool: Executor = ProcessPoolExecutor(self._workers, initializer=end_with, initargs=(os.getpid(),))
            else:
                pool = ThreadPoolExecutor(self._workers)
            self._pools[in_processes] = pool
        return self._pools[in_processes]


def use_processes(items: Any) -> bool:
    """Return whether processes are worth their start: for many encoded images, not for arrays."""
    return (
        len(items) >= PROCESSES_FROM
        and not isinstance(items, np.ndarray)
        and isinstance(items[0], (str, bytes, os.PathLike))
    )


def ahead(source: Iterator[T], depth: int) -> Iterator[T]:
    """Yield what `source` gives, which runs in a thread and up to `depth` values ahead."""
    values: Queue[tuple[Callable[[], T] | None, bool]] = Queue(depth)
    stop = threading.Event()

    def put(give: Callable[[], T] | None) -> bool:
        while not stop.is_set():
            try:
                values.put((give, give is None), timeout=0.1)
                return True
            except Full:
                pass
        return False

    def feed() -> None:
        try:
            for value in source:
                if not put(partial(_give, value)):
                    return
            put(None)
        except BaseException as error:  # it belongs to whoever waits for the values
            put(partial(_throw, error))

    thread = threading.Thread(target=feed, name="dspt-ahead", daemon=True)
    thread.start()
    try:
        while True:
            give, over = values.get()
            if over or give is None:
                return
            yield give()
    finally:
        stop.set()
        try:
            while True:
                values.get_nowait()
        except Empty:
            pass
        thread.join()


def _give(value: T) -> T:
    return value


def _throw(error: BaseException) -> Any:
    raise error


def _see(entries: Sequence[tuple[int, Any]], look: Look | None) -> list[Seen]:
    seen = []
    for position, item in entries:
        if isinstance(item, Fault):
            seen.append(Seen(position, fault=item))
            continue
        try:
            digest, source = contents.read(item, position)
            name = contents.item_name(item, position)
            pixels = look(open_image(source, name), digest) if look else None
            seen.append(Seen(position, digest, pixels))
        except BadImage as error:
            seen.append(Seen(position, fault=Fault(error.name, error.reason)))
    return seen


def _name(entry: tuple[int, Any]) -> str:
    return contents.item_name(entry[1], entry[0])


def _named(items: Any, found: Iterable[tuple[Any, Seen]]) -> Iterator[Seen]:
    """Yield what was seen, faults under the names that the source has for its images."""
    for _, seen in found:
        if seen.fault and hasattr(items, "name"):
            seen = replace(seen, fault=replace(seen.fault, name=items.name(seen.position)))
        yield seen


def _result(entries: list[tuple[int, Any]], future: Future[list[Seen]]) -> Iterator[tuple[Any, Seen]]:
    try:
        seen = future.result()
    except BrokenProcessPool:
        raise InputError(
            f"a process that reads images died, perhaps at one of {_name(entries[0])} to {_name(entries[-1])}, for "
            "want of memory or because of a damaged image; remove that image",
            "set `workers` to a smaller number",
        ) from None
    return zip((item for _, item in entries), seen, strict=True)
