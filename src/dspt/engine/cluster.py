"""Does jobs on Ray: on this machine, or on a cluster whose nodes share folders with it.

Ray decides where a task runs, from the CPUs and the part of a GPU that it says it needs; here it is only decided how
many are submitted at a time.
"""

from __future__ import annotations

import math
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dspt.config import Config
from dspt.engine import many
from dspt.engine.job import Job, Outcome, Sources
from dspt.engine.team import Died, Gone, Unfit, check_size
from dspt.features import default_cache
from dspt.internal import threads
from dspt.internal.errors import InputError
from dspt.internal.files import remove, remove_left, temporary_name, told, uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.rounding import counted

# Ray's room for what tasks are given and return, on a machine where we start it: outcomes and shards of features.
_OBJECTS = 256 * 2**20

# Seconds in which a cluster has to answer.
_ANSWER = 10.0

# Seconds after which it is looked whether the user wants all of it to end.
_PATIENCE = 0.5

# What Ray would otherwise do besides: report to its makers, change what a worker sees of a machine without a GPU, warn.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


@dataclass(frozen=True)
class Needs:
    """What each of several tasks at a time takes."""

    cpus: float
    gpus: float
    threads: int
    tasks: int  # at a time


def needs(nodes: Sequence[Mapping[str, float]], tasks: int | None, threads_asked: int | None, on_gpu: bool) -> Needs:
    """Return what each task may take, so that so many fit at a time and each fits any node that is left.

    Parameters
    ----------
    nodes : sequence of mappings
        The resources of each node, as Ray names them: CPU and GPU.
    tasks : int, optional
        How many at a time; None is one a GPU, or one a CPU where there is none.
    threads_asked : int, optional
        With how many threads the user has each compute; None is a share of the CPUs.
    on_gpu : bool
        Whether tasks take a GPU where there is one.
    """
    cpus = [node["CPU"] for node in nodes if node.get("CPU", 0) >= 1]
    if not cpus:
        raise InputError("Ray: no node of the cluster has a CPU to give; start nodes with at least one")
    gpus = sum(node.get("GPU", 0) for node in nodes) if on_gpu else 0
    total, smallest = sum(cpus), min(cpus)
    if tasks is None:
        tasks = int(gpus) or max(1, int(total) // (threads_asked or 1))
    check_size(tasks, max(int(total), int(gpus)))
    own = threads_asked or max(1, min(int(total) // tasks, int(smallest)))
    share = min(own, smallest, total / tasks)
    return Needs(
        cpus=int(share) if share >= 1 else math.floor(share * 1000) / 1000,
        gpus=max(1, math.floor(1000 / math.ceil(tasks / gpus))) / 1000 if gpus else 0,
        threads=own,
        tasks=tasks,
    )


def do(
    jobs: Sequence[Job],
    root: Path | None,
    reporter: Reporter,
    workers: int | None = None,
    address: str | None = None,
    sources: Sources | None = None,
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each job as it ends. What is done is not done again, and what fails stops nothing else.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, done or not; all nodes see their folders, their data and the feature store under the same paths.
    root : Path, optional
        Where named datasets lie.
    reporter : Reporter
        Shows how far all runs together are.
    workers : int, optional
        How many runs at a time; None is as many as there are GPUs, or else CPUs.
    address : str, optional
        Of a cluster, as `ray.init` takes it; None starts Ray on this machine for as long as it is needed.
    sources : Sources, optional
        The datasets below `root` that are open already.
    """

    def team_for(to_do: Sequence[Job], sources: Sources) -> Nodes:
        runs = Path(os.path.commonpath([job.folder.absolute().parent for job in to_do]))
        shared = {runs: "give `runs` on a file system that all nodes share"}
        if any(isinstance(job.config, Config) and not sources.open(job.source).holds_features for job in to_do):
            shared[default_cache().absolute()] = "set DSPT_CACHE to a folder that all nodes share"
        on_gpu = any(job.config.device != "cpu" for job in to_do)
        team = Nodes(address, workers, on_gpu=on_gpu, shared=shared)
        reporter.say(f"Ray: {team.in_words('run')}")
        return team

    check(address)  # before images are encoded, which may take hours
    yield from many.do(jobs, root, reporter, team_for, sources)


def check(address: str | None) -> None:
    """Raise `InputError` if there is no Ray, or no cluster that answers: Ray itself would try for minutes."""
    if not find_spec("ray"):
        raise InputError("engine ray: it needs another package: pip install 'dspt[ray]'")
    if address is None:
        return
    if address.startswith("ray://"):
        raise InputError(f"address {address}: start the command on a node of the cluster and give auto instead")
    host, _, port = (_of_this_node() if address == "auto" else address).rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _nowhere(address) from error


class Nodes:
    """Workers on the nodes of a Ray cluster; one that is started here ends with them.

    Parameters
    ----------
    address : str, optional
        Of the cluster; None starts one on this machine.
    tasks : int, optional
        How many at a time; None is as many as there are GPUs, or else CPUs.
    on_gpu : bool
        Whether tasks take a GPU where there is one.
    shared : mapping of Path to str
        Folders that every node has to see, and what to do about it.
    """

    tries = 4  # nodes of a cluster come and go

    def __init__(
        self, address: str | None, tasks: int | None, on_gpu: bool = True, shared: Mapping[Path, str] | None = None
    ) -> None:
        check(address)
        self._ray = ray = _imported()
        self._busy: set[Any] = set()
        self._marks: dict[Path, str] = {}
        try:
            for folder, advice in (shared or {}).items():
                self._marks[_marked(folder)] = advice
            self.nodes = _start(address)
            self._needs = needs(self.nodes, tasks, threads.asked(), on_gpu)
            self._place = _Place(Path.cwd(), self._marks, threads.is_asked())
            self._task = ray.remote(_do).options(
                num_cpus=self._needs.cpus,
                num_gpus=self._needs.gpus,
                max_retries=0,  # what died is told and counted here, as for every team
                runtime_env={"env_vars": _environment(self._needs.threads)},
            )
        except BaseException:
            self.end()
            raise
        self.size = self._needs.tasks

    def in_words(self, thing: str) -> str:
        """Return what there is and what each task takes: "3 nodes, 6 runs at a time with 1 CPU each"."""
        takes = f"{self._needs.cpus:g} CPU{'' if self._needs.cpus <= 1 else 's'}"
        takes += f" and {self._needs.gpus:g} GPU" if self._needs.gpus else ""
        return f"{counted(len(self.nodes), 'node')}, {counted(self.size, thing)} at a time with {takes} each"

    def give(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return a reference to what a worker will answer."""
        found = self._task.remote(self._place, work, *arguments)
        self._busy.add(found)
        return found

    def ended(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return those that have ended, waiting so long at most for the first."""
        with uninterrupted():  # Ray would take SIGTERM for Ctrl-C
            done: list[Any] = self._ray.wait(list(handles), num_returns=1, timeout=min(seconds, _PATIENCE))[0]
        return done

    def answer(self, handle: Any) -> Any:
        """Return what a worker answered."""
        from ray import exceptions

        self._busy.discard(handle)
        try:
            return self._ray.get(handle)
        except exceptions.RayTaskError as error:
            raise error.cause or error from None
        except exceptions.RayError as error:
            if isinstance(error, exceptions.LocalRayletDiedError) or not self._is_alive():
                raise Gone("Ray has ended; the same command goes on") from error
            if isinstance(error, exceptions.OutOfMemoryError):
                raise Died("its node had no memory left") from error
            raise Died("with its node" if isinstance(error, exceptions.NodeDiedError) else "") from error

    def _is_alive(self) -> bool:
        """Return whether a node is left."""
        try:
            return any(node["Alive"] for node in self._ray.nodes())
        except Exception:  # whatever it is with which Ray does not answer
            return False

    def end(self) -> None:
        """Have nothing running any more: not the tasks, nor what was started here."""
        for handle in self._busy:
            with suppress(Exception):
                self._ray.cancel(handle, force=True)
        self._busy.clear()
        self._ray.shutdown()
        for mark in self._marks:
            remove(mark)


def _imported() -> Any:
    """Return Ray, which is to do nothing besides."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def _start(address: str | None) -> list[dict[str, float]]:
    """Return the resources of each node of a cluster that is joined, or started here."""
    import ray

    # What happens to workers and nodes Ray prints on standard output, where our JSON goes; it has no other switch.
    ray._private.worker._worker_logs_enabled = False
    before = _handlers()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address, **options)
        else:
            ray.init(
                "local",
                num_cpus=threads.cores(),
                include_dashboard=False,
                object_store_memory=_OBJECTS,
                **options,
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise
        raise _nowhere(address) from error
    except SystemExit:  # Ray takes SIGTERM for itself while it starts
        if hasattr(signal, "alarm"):
            signal.alarm(0)  # of its C++ part, which would abort the process seconds later
        if callable(ours := before.get(signal.SIGTERM)):
            ours(signal.SIGTERM, None)
        raise
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {stop: signal.getsignal(stop) for stop in (signal.SIGINT, signal.SIGTERM)}


def _of_this_node() -> str:
    """Return the HOST:PORT of the cluster that auto means; Ray looks for it in no other way."""
    try:
        return str(_imported()._private.services.canonicalize_bootstrap_address_or_die("auto"))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nowhere("auto") from error


def _nowhere(address: str) -> InputError:
    return InputError(
        f"address {address}: no Ray cluster answers; give the HOST:PORT of one, or auto on one of its nodes"
    )


def _marked(folder: Path) -> Path:
    """Return a file in a folder, by which a worker knows that it sees this folder and not one of the same name."""
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_left(folder)
        mark = temporary_name(folder / "seen")
        mark.touch()
    return mark


def _environment(own: int) -> dict[str, str]:
    """Return what a worker has to find in its environment before it begins, as threads and folders are here."""
    found = {name: value for name, value in os.environ.items() if name.startswith(("DSPT_", "HF_", "MLFLOW_"))}
    return {**found, "DSPT_CACHE": str(default_cache().absolute()), **threads.environment(own)}


# Below, what happens in a worker.


@dataclass(frozen=True)
class _Place:
    """Where a worker has to find itself: as the first process does."""

    folder: Path  # relative paths start there
    marks: Mapping[Path, str]
    threads_asked: bool

    def enter(self) -> None:
        """Be there, or raise `Unfit`."""
        node = platform.node()
        try:
            os.chdir(self.folder)
        except OSError:
            raise Unfit(f"folder {self.folder}: node {node} cannot see it; start in one that all nodes share") from None
        for mark, advice in self.marks.items():
            if not mark.exists():
                raise Unfit(f"folder {mark.parent}: node {node} cannot see it", advice)
        threads.take_share(self.threads_asked)


def _do(place: _Place, work: Callable[..., Any], *arguments: Any) -> Any:
    place.enter()
    return work(*arguments)
