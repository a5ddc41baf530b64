"""Claims about Ray: the same runs, tables and features as one process makes, whatever is killed.

The slow ones start clusters of three nodes on this machine and take a few minutes: pytest -m slow tests/test_cluster.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_engine import alive, swept, told, until, with_doing

from dspt.config import Config
from dspt.engine import cluster, local, many, status, sweep
from dspt.engine.cluster import Needs, needs
from dspt.engine.job import Job
from dspt.engine.team import Died, Gone, Unfit
from dspt.internal.errors import InputError
from dspt.runs import Run

try:
    import ray
except ImportError:
    ray = None

on_ray = pytest.mark.skipif(
    ray is None or not os.path.isdir("/proc/self"),
    reason="NOT TESTED: the Ray engine; pip install 'dspt[ray]' (and a system with /proc)",
)


class TestNeeds:
    """What tasks say they need: so many fit at a time, and each fits any node."""

    @pytest.mark.parametrize(
        ("nodes", "tasks", "asked", "expected"),
        [
            ([{"CPU": 8}], None, None, Needs(1, 0, 1, 8)),
            ([{"CPU": 8}], 2, None, Needs(4, 0, 4, 2)),
            ([{"CPU": 8}], 3, None, Needs(2, 0, 2, 3)),
            ([{"CPU": 2}], 4, None, Needs(0.5, 0, 1, 4)),
            ([{"CPU": 8}], None, 4, Needs(4, 0, 4, 2)),
            ([{"CPU": 2}], 2, 4, Needs(1, 0, 4, 2)),  # as many threads as the user says, and all the same two at a time
            ([{"CPU": 4}, {"CPU": 4}, {}], 1, None, Needs(4, 0, 4, 1)),  # no task is larger than a node
            ([{"CPU": 16}, {"CPU": 2}], 2, None, Needs(2, 0, 2, 2)),  # nor than the one that may be left
            ([{"CPU": 8, "GPU": 2}], None, None, Needs(4, 1, 4, 2)),
            ([{"CPU": 8, "GPU": 2}], 8, None, Needs(1, 0.25, 1, 8)),
            ([{"CPU": 8, "GPU": 2}], 3, None, Needs(2, 0.5, 2, 3)),  # two thirds would leave room for two alone
        ],
    )
    def test_shares(self, nodes, tasks, asked, expected):
        assert needs(nodes, tasks, asked, on_gpu=True) == expected

    def test_a_cpu_asked_for_leaves_gpus_alone(self):
        assert needs([{"CPU": 8, "GPU": 2}], None, None, on_gpu=False) == Needs(1, 0, 1, 8)

    def test_no_task_takes_nothing(self):
        most = needs([{"CPU": 2}], 16, None, on_gpu=True)
        assert most.cpus * most.tasks == 2
        assert needs([{"CPU": 200, "GPU": 1}], 1600, None, on_gpu=True).gpus > 0

    @pytest.mark.parametrize("tasks", [17, 100_000])
    def test_more_tasks_than_cpus_can_have_any_use_for_are_refused(self, tasks):
        with pytest.raises(InputError, match=f"jobs {tasks}: too many at a time for 2 cores; give at most 16"):
            needs([{"CPU": 1}, {"CPU": 1}], tasks, None, on_gpu=True)

    def test_a_cluster_without_a_cpu_is_refused(self):
        with pytest.raises(InputError, match="no node of the cluster has a CPU"):
            needs([{"GPU": 1}], None, None, on_gpu=True)


def test_a_node_that_cannot_see_a_folder_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = cluster._marked(tmp_path / "runs")
    place = cluster._Place(tmp_path, {mark: "give `runs` on a file system that all nodes share"}, True)
    place.enter()
    mark.unlink()
    with pytest.raises(Unfit, match=r"runs: node .* cannot see it; give `runs` on a file system"):
        place.enter()
    with pytest.raises(Unfit, match=r"elsewhere: node .* cannot see it"):
        cluster._Place(tmp_path / "elsewhere", {}, True).enter()


NOWHERE = "no Ray cluster answers; give the HOST:PORT of one, or auto on one of its nodes"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "slurm"], "engine 'slurm': not known; expected local or ray"),
        (["--address", "auto"], "address auto: engine local joins no cluster; give --engine ray"),
        (["--engine", "ray", "--jobs", "0"], "jobs 0: expected at least 1 at a time"),
    ],
)
@pytest.mark.parametrize("command", [["reproduce", "main", "--data", "embedded"], ["encode", "embedded"]], ids=" ".join)
def test_an_engine_that_cannot_be_is_one_sentence(dspt, command, words, sentence):
    assert dspt(*command, *words) == (2, "", f"dspt: {sentence}\n")


@on_ray
@pytest.mark.parametrize("address", ["127.0.0.1:0", "somewhere", "a:b", "127.0.0.1:99999999"])
def test_an_address_at_which_nobody_answers_is_one_sentence(address):
    with pytest.raises(InputError) as error:
        cluster.check(address)
    assert str(error.value) == f"address {address}: {NOWHERE}"


@on_ray
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:0"])
@pytest.mark.parametrize("command", [["reproduce", "early-accuracy", "--data"], ["encode"]], ids=" ".join)
def test_a_cluster_that_is_not_there_is_said_before_anything_is_written(dspt, tmp_path, monkeypatch, command, address):
    def none(_):
        raise ConnectionError

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address_or_die", none)
    status, _, errors = dspt(*command, "embedded", "--engine", "ray", "--address", address)
    assert (status, errors) == (2, f"dspt: address {address}: {NOWHERE}\n")
    assert list(tmp_path.iterdir()) == []


def test_without_ray_it_is_said_how_to_get_it(dspt, data, text_tower, monkeypatch):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    command = ("reproduce", "early-accuracy", "--data", data, "--model", text_tower, "--epochs", 1, "-q")
    status, _, errors = dspt(*command, "--engine", "ray")
    assert (status, errors) == (2, "dspt: engine ray: it needs another package: pip install 'dspt[ray]'\n")


@on_ray
@pytest.mark.parametrize(
    ("name", "alive", "expected"),
    [
        ("LocalRayletDiedError", True, Gone),  # nothing reaches the other nodes any more
        ("WorkerCrashedError", False, Gone),
        ("WorkerCrashedError", True, Died),
    ],
)
def test_a_death_after_which_no_worker_can_come_is_the_end_of_all_work(name, alive, expected):
    team = object.__new__(cluster.Nodes)
    team._busy = set()

    def get(handle):
        raise getattr(ray.exceptions, name)

    team._ray = SimpleNamespace(get=get, nodes=lambda: [{"Alive": alive}, {"Alive": False}])
    with pytest.raises(expected):
        team.answer("a handle")


@on_ray
def test_sigterm_while_ray_starts_is_answered_as_the_command_does(monkeypatch):
    """Ray has taken the signal by then, and answers it with an exit of its own."""
    before = signal.getsignal(signal.SIGTERM)

    class Ours(Exception):
        pass

    def ended(*_):
        raise Ours

    def init(*_, **__):
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    signal.signal(signal.SIGTERM, ended)
    try:
        with pytest.raises(Ours):
            cluster._start(None)
        assert signal.getsignal(signal.SIGTERM) is ended
    finally:
        signal.signal(signal.SIGTERM, before)


def dying(mark: Path, work: Callable[[Job], object], job: Job) -> object:
    """Do a job in a worker; the first time, be killed when an epoch of it is saved."""
    if not mark.exists():
        mark.touch()
        save = Run.save_state

        def save_and_die(*given):
            save(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        Run.save_state = save_and_die
    return work(job)


@on_ray
def test_runs_on_ray_have_the_bits_of_one_process_even_if_a_worker_is_killed(
    data, text_tower, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # a worker has to find `dying`
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))

    def jobs(folder: str) -> list[Job]:
        config = Config(model=text_tower, epochs=3)
        return [Job(data, f"sym:{rate}", config, tmp_path / folder / f"{rate}", f"{rate}") for rate in (0.2, 0.4)]

    todo = jobs("ray")
    give = cluster.Nodes.give

    def deadly(self, work, job):
        return give(self, dying, tmp_path / "died", work, job) if job == todo[1] else give(self, work, job)

    monkeypatch.setattr(cluster.Nodes, "give", deadly)
    said = many._Kept()
    lines: list[str] = []
    said.say = lines.append
    outcomes = {outcome.job: outcome.error for outcome in cluster.do(todo, None, said, workers=2)}
    assert outcomes == dict.fromkeys(todo)
    assert lines[0].startswith("Ray: 1 node, 2 runs at a time with ")
    assert lines[1:] == ["0.4: its worker process died; it is tried again"]
    assert capfd.readouterr() == ("", "")  # this process alone prints, and Ray nothing
    assert not under(os.getpid(), "raylet")
    assert not list((tmp_path / "ray").glob(".seen*"))
    one_by_one = one_thread(jobs("local"))
    assert [told(job.folder) for job in todo] == one_by_one


@on_ray
@pytest.mark.slow
class TestOneWorker:
    """Something is wrong where one of two workers of Ray is, as it is tried with processes in test_engine.py."""

    @pytest.fixture
    def todo(self, data, text_tower, tmp_path, monkeypatch) -> list[Job]:
        """Return three jobs of a second or less, done with one thread."""
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        return [
            Job(data, "sym:0.4", Config(model=text_tower, method=method, epochs=2), tmp_path / "runs" / method, method)
            for method in ("coop", "mae", "dspt")
        ]

    @pytest.fixture
    def whole(self, todo, tmp_path) -> list[dict[str, object]]:
        """Return what the undisturbed runs tell."""
        return one_thread([replace(job, folder=tmp_path / "whole" / job.title) for job in todo])

    def test_its_disk_is_full(self, todo, whole):
        full = "__import__('resource').setrlimit(__import__('resource').RLIMIT_FSIZE, (0, -1))"
        hurt = [todo[0], with_doing(todo[1], full), todo[2]]
        outcomes = {str(o.job.title): o for o in cluster.do(hurt, None, many._Kept(), workers=2)}
        assert outcomes.keys() == {job.title for job in todo}
        assert outcomes["mae"].error is not None
        for job in todo:  # those that were given to the same worker afterwards have failed, too
            assert Run(job.folder).is_done == (outcomes[job.title].error is None)
        assert one_thread(todo) == whole

    def test_its_clock_jumps(self, todo, whole):
        years = "setattr(__import__('time'), 'time', lambda: {})"
        hurt = [with_doing(todo[0], years.format(4e9)), with_doing(todo[1], years.format(1)), todo[2]]
        outcomes = list(cluster.do(hurt, None, many._Kept(), workers=2))
        assert [outcome.error for outcome in outcomes] == [None] * 3
        assert all(0 < outcome.result.seconds < 3600 for outcome in outcomes)
        assert [told(job.folder) for job in todo] == whole


def one_thread(jobs: list[Job]) -> list[dict[str, object]]:
    """Return what runs tell that are done here with one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for outcome in local.do(jobs, None, many._Kept()):
            assert outcome.error is None
    finally:
        torch.set_num_threads(before)
    return [told(job.folder) for job in jobs]


def under(parent: int, name: str) -> list[int]:
    """Return the children of a process whose command begins so."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except (OSError, NotADirectoryError):
            continue
        ours = entry.name.isdigit() and fields[0] != "Z" and int(fields[1]) == parent
        if ours and (command.startswith(name) or Path(command).name == name):
            found.append(int(entry.name))
    return found


# Below, whole commands, and what can happen to them.

SWEEP = ["reproduce", "early-accuracy", "--data", "embedded", "--set", "learner=prototypes", "--seeds", "1,2"]
SWEEP += ["--epochs", "150", "--set", "test_every=50"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Return the folder in which commands of this file run, with one feature store for all."""
    return tmp_path_factory.mktemp("place")


def started(place: Path, *words: object) -> subprocess.Popen[str]:
    """Return a command line that runs, with one thread a process, in a group of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DSPT_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "dspt", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=place, start_new_session=True, **pipes)


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a command that ended well said on the way."""
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return errors


def table(place: Path, runs: str) -> dict[str, object]:
    """Return all that a table shows of runs, but for where they are."""
    process = started(place, "table", "early-accuracy", "--runs", runs, "--json")
    shown = json.loads(process.communicate(timeout=600)[0])
    assert shown["not_used"] == []
    return shown


@pytest.fixture(scope="module")
def undisturbed(place) -> tuple[dict[str, object], dict[str, object]]:
    """Return the runs of a sweep that one process does one after another, and their table."""
    ended(started(place, *SWEEP, "--runs", "whole"))
    assert len(swept(place / "whole")) == 6
    return swept(place / "whole"), table(place, "whole")


def check(place: Path, runs: str, undisturbed) -> None:
    """Hold that no run is lost, counted twice, or other than in the undisturbed sweep; and so is the table."""
    assert swept(place / runs) == undisturbed[0]  # records among it, a line for each epoch
    assert table(place, runs) == undisturbed[1]
    (found,) = sweep.find(place / runs)
    assert status.counts([status.look(job) for job in found.jobs])["done"] == len(found.jobs) == 6
    assert not list((place / runs).rglob(".*.tmp"))


def half_done(runs: Path) -> bool:
    """Return whether some run is done and another is under way."""
    begun = {path.parent for path in runs.rglob("metrics.jsonl") if path.read_text().count("\n") > 1}
    return bool(list(runs.rglob("result.json"))) and any(not (run / "result.json").exists() for run in begun)


@contextmanager
def three_nodes() -> Iterator[object]:
    """Yield a cluster of three nodes on this machine, one CPU each."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=options)
    try:
        for _ in range(2):
            found.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        yield found
    finally:
        found.shutdown()


def working(nodes: object) -> object | None:
    """Return a node that is not the head and does a task now."""
    for node in list(nodes.worker_nodes):
        raylet = node.all_processes["raylet"][0].process.pid
        if under(raylet, "ray::"):
            return node
    return None


@on_ray
@pytest.mark.slow
class TestTheSameTables:
    """One sweep, four ways."""

    def test_local_with_two_jobs(self, place, undisturbed):
        ended(started(place, *SWEEP, "--runs", "two", "--jobs", 2))
        check(place, "two", undisturbed)

    def test_ray_on_one_node(self, place, undisturbed):
        ended(started(place, *SWEEP, "--runs", "one", "--engine", "ray"))
        check(place, "one", undisturbed)

    def test_ray_on_three_nodes_of_which_one_is_killed_half_way(self, place, undisturbed):
        with three_nodes() as nodes:
            driver = started(place, *SWEEP, "--runs", "three", "--engine", "ray", "--address", nodes.address)
            until(lambda: half_done(place / "three") and working(nodes), 600)
            nodes.remove_node(working(nodes) or nodes.worker_nodes.copy().pop(), allow_graceful=False)
            said = ended(driver)
        assert "Ray: 3 nodes, 3 runs at a time with 1 CPU each" in said
        check(place, "three", undisturbed)


@on_ray
@pytest.mark.slow
class TestWhateverIsKilled:
    @pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_the_driver_is_and_nothing_runs_on_and_the_same_command_goes_on(self, place, undisturbed, stop):
        runs = f"driver-{stop.name}"
        words = [*SWEEP, "--runs", runs, "--engine", "ray"]
        driver = started(place, *words)
        until(lambda: half_done(place / runs), 600)
        raylets = under(driver.pid, "raylet")
        workers = [one for raylet in raylets for one in under(raylet, "ray::")]
        assert raylets
        os.kill(driver.pid, stop)  # it alone
        _, errors = driver.communicate(timeout=600)
        until(lambda: not any(os.path.exists(f"/proc/{one}") for one in (*raylets, *workers)))
        until(lambda: not alive(driver.pid))
        if stop != signal.SIGKILL:
            assert driver.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[stop]
            assert errors.splitlines()[-1].startswith("stopped; finished epochs are saved. To go on: dspt reproduce")
            assert "Traceback" not in errors
        (found,) = sweep.find(place / runs)
        assert {status.look(job).standing for job in found.jobs} <= {"done", "to go"}
        assert "runs are done already" in ended(started(place, *words))
        check(place, runs, undisturbed)

    def test_the_raylet_is_and_the_same_command_goes_on(self, place, undisturbed):
        words = [*SWEEP, "--runs", "raylet", "--engine", "ray"]
        driver = started(place, *words)
        until(lambda: half_done(place / "raylet"), 600)
        (raylet,) = under(driver.pid, "raylet")
        os.kill(raylet, signal.SIGKILL)
        _, errors = driver.communicate(timeout=600)
        assert (driver.returncode, errors.splitlines()[-1]) == (1, "dspt: Ray has ended; the same command goes on")
        assert "failed" not in errors
        until(lambda: not alive(driver.pid))
        assert not list((place / "raylet").rglob("failure.txt"))
        (found,) = sweep.find(place / "raylet")
        assert {status.look(job).standing for job in found.jobs} <= {"done", "to go"}
        assert "done already" in ended(started(place, *words))
        check(place, "raylet", undisturbed)

    def test_a_feature_shard_is_damaged_half_way(self, place, undisturbed):
        words = [*SWEEP, "--runs", "shard", "--engine", "ray"]
        driver = started(place, *words)
        until(lambda: half_done(place / "shard"), 600)
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate(timeout=600)
        until(lambda: not alive(driver.pid))  # what is mapped by a worker would be changed below its hands
        files = sorted((place / "cache").rglob("features.npy"))
        assert files
        for file in files:
            flipped = bytearray(file.read_bytes())
            flipped[len(flipped) // 2] ^= 64
            file.write_bytes(flipped)
        assert "it is damaged and was removed; its images are encoded again" in ended(started(place, *words))
        check(place, "shard", undisturbed)

    def test_two_sweeps_share_a_folder(self, place, undisturbed):
        words = [*SWEEP, "--runs", "both", "--engine", "ray", "--jobs", 2]
        both = [started(place, *words), started(place, *words)]
        for one in both:
            ended(one)
        check(place, "both", undisturbed)

    def test_a_folder_that_a_node_cannot_see_ends_the_sweep_in_one_sentence(self, place):
        code = "from dspt import cli; from dspt.engine import cluster; mark = cluster._marked\n"
        code += "def unseen(folder):\n    mark(folder).unlink()\n    return mark(folder).with_name('.nowhere')\n"
        code += "cluster._marked = unseen\nimport sys; sys.argv[0] = 'dspt'; cli.main()"
        env = {**os.environ, "DSPT_CACHE": str(place / "cache")}
        command = [sys.executable, "-c", code, *SWEEP, "--runs", "unseen", "--engine", "ray", "-q"]
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"dspt: folder {place}/unseen")
        assert "cannot see it; give --runs on a file system that all nodes share" in done.stderr


@on_ray
@pytest.mark.slow
def test_encoding_on_ray_gives_the_bits_of_one_process(place):
    def features(name: str) -> dict[str, bytes]:
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in (place / name).glob("*/*/*.npy")}

    shown = {}
    for name, words in (("here", []), ("there", ["--engine", "ray", "--jobs", 2])):
        (place / name).mkdir()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "DSPT_CACHE": str(place / name)}
        command = [sys.executable, "-m", "dspt", "encode", "embedded", "--json", "-q", *map(str, words)]
        for again in range(2):
            done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            shown[name, again] = {key: json.loads(done.stdout)[key] for key in ("images", "encoded", "already")}
    assert features("here")
    assert features("there") == features("here")
    for name in ("here", "there"):
        assert shown[name, 0] == {"images": 2200, "encoded": 2200, "already": 0}
        assert shown[name, 1] == {"images": 2200, "encoded": 0, "already": 2200}
