"""Engines: many runs in worker processes, whatever becomes of these, and how far a sweep is."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import QUIET, finished_run, told

from dspt.backbone.image import ImageTower
from dspt.config import Config
from dspt.data import open_dataset
from dspt.engine import attempt, local, many, processes, status, sweep, tally
from dspt.engine.job import Job, Queue
from dspt.engine.spreading import spreading
from dspt.engine.team import Gone
from dspt.features import packs, shards
from dspt.internal import files, threads
from dspt.internal.errors import FileError, InputError
from dspt.internal.files import is_trouble
from dspt.internal.progress import Reporter
from dspt.internal.workers import starting
from dspt.runs import Run
from dspt.workflows import train
from dspt.workflows.encode import encode


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Have two workers take one thread each, on any machine."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)


@pytest.fixture
def todo(data, text_tower, tmp_path) -> list[Job]:
    """Return three jobs of a second or less."""
    return [
        Job(data, "sym:0.4", Config(model=text_tower, method=method, epochs=2), tmp_path / "runs" / method, method)
        for method in ("coop", "mae", "dspt")
    ]


@pytest.fixture
def said():
    """Return a reporter that keeps what it says in `lines`."""
    reporter = many._Kept()
    reporter.lines = []
    reporter.say = reporter.lines.append
    return reporter


def swept(runs: Path) -> dict[str, object]:
    return {path.name: told(path) for path in sorted(runs.glob("*/*")) if path.is_dir()}


def test_two_workers_give_the_bits_of_one_thread_and_print_nothing(victims, tmp_path, capfd):
    words = ["early-accuracy", "--data", "embedded", "--epochs", 2, "--seeds", 1, "--runs"]
    cache = Path(os.environ["DSPT_CACHE"])
    done = victims("reproduce", *words, tmp_path / "one", "-q", cache=cache)  # which has OMP_NUM_THREADS=1
    assert done.status == 0, done
    _, jobs = planned(tmp_path / "one")
    moved = [replace(job, folder=tmp_path / "two" / job.folder.relative_to(tmp_path / "one")) for job in jobs]
    assert sorted(o.job.title for o in local.do(moved, None, QUIET, workers=2)) == sorted(job.title for job in jobs)
    assert swept(tmp_path / "two") == swept(tmp_path / "one")
    assert [Run(job.folder).environment()["threads"] for job in moved] == [1, 1, 1]
    assert capfd.readouterr() == ("", "")


def planned(out: Path) -> tuple[str, tuple[Job, ...]]:
    (found,) = sweep.find(out)
    return found.command, found.jobs


def test_images_are_encoded_before_the_first_worker_starts(photos, clip, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    jobs = [
        Job(str(photos), "near:0.4", Config(model=clip, epochs=1, seed=seed), tmp_path / f"{seed}", f"{seed}")
        for seed in (1, 2)
    ]
    stores, give = [], processes._Worker.give

    def watched(self, *work):
        stores.append(store())
        return give(self, *work)

    def store():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("features.npy")}

    monkeypatch.setattr(processes._Worker, "give", watched)
    assert all(o.error is None for o in local.do(jobs, None, QUIET, workers=2))
    assert sum(len(np.load(path)) for path in stores[0]) == 18  # six images of three classes, trained on or not
    assert [*stores, store()] == [stores[0]] * 3


def test_images_that_cannot_be_read_fail_their_runs_before_a_worker_starts(photos, clip, tmp_path, monkeypatch):
    (photos / "cat" / "3.png").write_bytes(b"no picture")
    monkeypatch.setattr(processes._Worker, "give", lambda *_: pytest.fail("started"))
    jobs = [Job(str(photos), "none", Config(model=clip, seed=seed), tmp_path / f"{seed}", "") for seed in (1, 2)]
    assert ["3.png" in str(outcome.error) for outcome in local.do(jobs, None, QUIET, workers=2)] == [True, True]


def kill(monkeypatch, victim: Job, times: int) -> None:
    """Have the worker that is given a job killed, so many times."""
    give, deaths = processes._Worker.give, iter(range(times))

    def deadly(self, work, job):
        answer = give(self, work, job)
        if job == victim and next(deaths, None) is not None:
            for process in list(self._pool._processes):
                os.kill(process, signal.SIGKILL)
        return answer

    monkeypatch.setattr(processes._Worker, "give", deadly)


def test_a_run_whose_worker_was_killed_is_done_all_the_same(todo, said, monkeypatch):
    kill(monkeypatch, todo[1], times=1)
    outcomes = {o.job: o for o in local.do(todo, None, said, workers=2)}
    assert [outcomes[job].error for job in todo] == [None] * 3
    assert said.lines == ["mae: its worker process died (SIGKILL); it is tried once more"]


def test_a_run_whose_worker_dies_twice_has_failed_and_the_others_are_done(todo, monkeypatch):
    kill(monkeypatch, todo[1], times=2)
    outcomes = {o.job: o for o in local.do(todo, None, QUIET, workers=2)}
    assert [outcomes[job].error is None for job in todo] == [True, False, True]
    assert "its worker process died twice (SIGKILL)" in str(outcomes[todo[1]].error)
    assert "`jobs`" in outcomes[todo[1]].error.advice
    assert "died twice" in Run(todo[1].folder).failure()
    assert "TerminatedWorkerError" in (todo[1].folder / "failure.txt").read_text()


def test_without_a_worker_to_come_the_sweep_ends_in_one_sentence_and_no_run_has_failed(todo):
    class Lost:
        """A team whose first worker answers, and then there is none."""

        size, tries, answers, is_ended = 2, 2, 0, False

        def give(self, work, job):
            return partial(work, job)

        def ended(self, handles, seconds):
            return handles[:1]

        def answer(self, handle):
            self.answers += 1
            if self.answers > 1:
                raise Gone("the machine has ended")
            return handle()

        def end(self):
            self.is_ended = True

    team, outcomes = Lost(), []
    with pytest.raises(Gone, match="the machine has ended") as error:
        outcomes.extend(many.do(todo, None, QUIET, lambda *_: team))
    assert is_trouble(error.value)  # exit status 1, not 2
    assert team.is_ended
    assert [status.look(job).standing for job in todo] == ["done", "to go", "to go"]


def test_progress_shows_what_is_done_failed_to_go_and_running(todo):
    shown = []

    class Watched(Reporter):
        @contextmanager
        def task(self, title, total, done=0, unit=""):
            yield lambda done, text: shown.append((done, text))

    (todo[0].folder).mkdir(parents=True)
    (todo[0].folder / "holiday.jpg").touch()  # so that it fails
    list(
        local.do(
            [*todo, replace(todo[2], folder=todo[2].folder.with_name("last"), title="last")], None, Watched(True), 2
        )
    )
    done, text = shown[-1]
    assert (done, text) == (4, "3 done, 1 failed")
    for done, text in shown:
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (done|failed|to go|running)", text)}
        assert sum(counts.values()) == 4
        assert counts["done"] + counts.get("failed", 0) <= done <= 4


def test_what_a_worker_finds_wrong_is_the_outcome_of_its_run(todo):
    todo[1].folder.mkdir(parents=True)
    (todo[1].folder / "holiday.jpg").write_bytes(b"")
    outcomes = {o.job: o for o in local.do(todo, None, QUIET, workers=2)}
    assert [outcomes[job].error is None for job in todo] == [True, False, True]
    assert "holiday.jpg" in str(outcomes[todo[1]].error)
    # a folder that is not a run's is left as it was
    assert {path.name for path in todo[1].folder.iterdir()} <= {"holiday.jpg", ".lock"}


class TestEncoding:
    """Images are encoded by two workers as one process does it."""

    @pytest.fixture(autouse=True)
    def small_shards(self, photos, monkeypatch):
        monkeypatch.setattr(packs, "SHARD", 4)
        shutil.copy(photos / "cat" / "0.png", photos / "red_panda" / "copy.png")
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as each of the workers has
        yield
        torch.set_num_threads(before)

    @pytest.fixture
    def encoded(self, photos, clip, tmp_path, monkeypatch):
        """Return a function that encodes the photos into a store of its own and returns what it tells."""

        def call(store: str, spread=None) -> dict[str, object]:
            monkeypatch.setenv("DSPT_CACHE", str(tmp_path / store))
            return encode(open_dataset(str(photos)), Config(model=clip), QUIET, spread=spread)

        return call

    def stored(self, store: Path) -> dict[str, bytes]:
        return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("*/*/*")}

    @staticmethod
    def backwards(work, parts):
        """Do work with the last part first, as if each were done elsewhere."""
        for part in reversed(list(parts)):
            yield part, pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(part)))

    def test_with_the_same_bits_even_if_a_worker_is_killed(self, encoded, tmp_path, said, monkeypatch):
        give, deaths = processes._Worker.give, iter([True])

        def deadly(self, work, part):
            answer = give(self, work, part)
            if next(deaths, None):
                for process in list(self._pool._processes):
                    os.kill(process, signal.SIGKILL)
            return answer

        monkeypatch.setattr(processes._Worker, "give", deadly)
        with spreading(lambda: processes.Processes(2), said) as spread:
            assert encoded("two", spread)["encoded"] == 18  # of 19, since one is a copy
        assert said.lines == ["4 images from 0 on: its worker process died (SIGKILL); it is tried once more"]
        assert encoded("one")["encoded"] == 18
        assert self.stored(tmp_path / "two") == self.stored(tmp_path / "one")

    def test_with_the_same_bits_in_any_order_and_after_a_stop(self, encoded, tmp_path, monkeypatch):
        keep, shards = packs.Store.write, iter(range(3))

        def stop(*given):
            if next(shards) == 2:
                raise KeyboardInterrupt
            keep(*given)

        with monkeypatch.context() as patch:
            patch.setattr(packs.Store, "write", stop)
            with pytest.raises(KeyboardInterrupt):
                encoded("two", self.backwards)
        kept = [len(np.load(path)) for path in (tmp_path / "two").rglob("features.npy")]
        assert len(kept) == 2
        assert encoded("two", self.backwards)["encoded"] == 18 - sum(kept)
        assert encoded("one")["encoded"] == 18
        assert self.stored(tmp_path / "two") == self.stored(tmp_path / "one")

    def test_with_the_same_bits_where_many_have_a_part_of_a_shard(self, encoded, tmp_path, monkeypatch):
        parts = []

        def noting(work, given):
            for part, answer in self.backwards(work, given):
                parts.append(len(part.positions))
                yield part, answer

        monkeypatch.setattr(packs, "SHARD", 8)
        monkeypatch.setattr(shards, "most_at_once", lambda device: 2)
        monkeypatch.setattr(ImageTower, "batch_size", lambda self: 2)
        assert encoded("two", noting)["encoded"] == encoded("one")["encoded"] == 18
        assert parts.count(2) >= 8  # of two shards or more
        assert self.stored(tmp_path / "two") == self.stored(tmp_path / "one")

    def test_with_the_same_sentence_about_images_that_cannot_be_read(self, photos, encoded):
        (photos / "cat" / "3.png").write_bytes(b"no picture")
        (photos / "dog" / "2.png").write_bytes(b"no picture either")
        sentences = []
        for spread in (None, self.backwards):
            with pytest.raises(InputError) as error:
                encoded("store", spread)
            sentences.append(str(error.value))
        assert sentences[0] == sentences[1]
        assert "3.png" in sentences[0]

    def test_with_features_there_is_nothing_to_encode(self, dspt, data):
        code, _, errors = dspt("encode", data)
        assert (code, errors) == (2, "dspt: pets: it holds features, not images, so there is nothing to encode\n")


def alive(group: int) -> list[int]:
    """Return the processes of a group that are not dead yet."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if entry.name.isdigit() and fields[0] != "Z" and int(fields[2]) == group:
            found.append(int(entry.name))
    return found


def until(holds, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be put off there")
def test_ctrl_c_while_workers_start_is_heard_here_whichever_thread_takes_it_and_not_there():
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)  # it blocks no signal
    other.start()
    command = [sys.executable, "-c", "import signal; print(sorted(map(int, signal.pthread_sigmask(0, []))))"]
    blocked = []

    def start():
        with starting():
            os.kill(os.getpid(), signal.SIGINT)
            blocked.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        ended.set()
        other.join()
    assert json.loads(blocked[0]) == [signal.SIGINT, signal.SIGTERM]


def test_a_worker_whose_start_was_stopped_is_ended_with_the_others(monkeypatch):
    def stopped(self, *_):
        raise KeyboardInterrupt

    team = processes.Processes(2)
    monkeypatch.setattr(processes._Worker, "give", stopped)
    with pytest.raises(KeyboardInterrupt):
        team.give(print)
    ended = []
    monkeypatch.setattr(processes._Worker, "end", lambda self: ended.append(self))
    team.end()
    assert len(ended) == 1


def test_a_team_starts_no_more_workers_than_there_is_to_do_at_a_time():
    team = processes.Processes(10**9)
    handles = [team.give(os.getpid) for _ in range(2)]
    try:
        for handle in handles:
            until(lambda handle=handle: team.ended([handle], 1))
        assert len({team.answer(handle) for handle in handles}) == 2
        again = team.give(os.getpid)
        until(lambda: team.ended([again], 1))
        assert team.answer(again) in {handle.result() for handle in handles}
    finally:
        team.end()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes there")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_whatever_stops_a_sweep_nothing_runs_on_and_the_same_command_ends_with_the_same_bits(
    victims, data, text_tower, tmp_path, stop
):
    words = ["reproduce", "unsupervised", "--data", data, "--model", text_tower, "--epochs", "40"]
    words += ["--set", "test_every=40", "--set", "lr=0.2", "--seeds", "1", "-q", "--only", "noise=none", "--runs"]
    whole = victims(*words, tmp_path / "whole")
    assert whole.status == 0, whole
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "dspt", *words, str(runs), "--jobs", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: any(path.read_text().count("\n") > 1 for path in runs.rglob("metrics.jsonl")))
    os.kill(driver.pid, stop)  # it alone: its workers end with it
    errors = driver.communicate()[1]
    until(lambda: not alive(driver.pid))
    if stop == signal.SIGINT:
        assert driver.returncode == 130
        assert errors.splitlines()[-1].startswith("stopped; finished epochs are saved. To go on: dspt reproduce")
    looks = [status.look(job) for job in planned(runs)[1]]
    assert {one.standing for one in looks} <= {"done", "to go"}
    again = subprocess.run(command, env=env, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert swept(runs) == swept(tmp_path / "whole")


class TestTwoSweeps:
    """On one folder, a run that another process is doing is neither done twice nor lost."""

    def test_both_end_with_all_runs_each_done_once(self, data, text_tower, tmp_path):
        words = ["reproduce", "unsupervised", "--data", data, "--model", text_tower, "--epochs", "3", "--seeds", "1,2"]
        command = [sys.executable, "-m", "dspt", *words, "--runs", str(tmp_path / "runs"), "--json"]
        # a line in a file for each run that is begun
        script = tmp_path / "sitecustomize.py"
        script.write_text(COUNTED.format(str(tmp_path / "begun")))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        found = [json.loads(one.communicate()[0]) for one in both]
        assert [one.returncode for one in both] == [0, 0]
        accuracies = [{run["folder"]: run["accuracy"] for run in one["runs"]} for one in found]
        assert accuracies[0] == accuracies[1]
        begun = (tmp_path / "begun").read_text().split()
        assert sorted(begun) == sorted(accuracies[0])

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(Queue, "REST", 0.01)

    def test_a_run_that_another_process_does_is_waited_for_after_all_others(self, todo, said):
        with closing(local.do(todo, None, said)) as ended:
            with Run(todo[0].folder).locked():
                others = [next(ended), next(ended)]
            result = train.run(todo[0].source, todo[0].config, todo[0].noise, todo[0].folder)
            when = (todo[0].folder / "result.json").stat().st_mtime_ns
            (last,) = ended
        assert [o.job.title for o in (*others, last)] == ["mae", "dspt", "coop"]
        assert last.result == result
        assert (todo[0].folder / "result.json").stat().st_mtime_ns == when
        assert said.lines[0] == "coop: another process is doing it; its result is waited for"

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_run_that_another_process_gives_up_is_done(self, todo, workers):
        with closing(local.do(todo, None, QUIET, workers)) as ended:
            with Run(todo[0].folder).locked():
                others = {next(ended).job.title, next(ended).job.title}
            (last,) = ended
        assert others == {"mae", "dspt"}
        assert (last.job.title, last.error) == ("coop", None)


# Of a process in which each run whose labels are written is put down.
COUNTED = """
import dspt.runs.folder as folder
save = folder.Run.save_labels
def noted(self, *given):
    with open({!r}, "a") as file:
        file.write(str(self.path) + chr(10))
    save(self, *given)
folder.Run.save_labels = noted
"""


class Doing(str):
    """The title of a job, with something that happens in the worker which takes the job, before it begins."""

    code = "None"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return eval, (f"({self.code}, {str(self)!r})[1]",)


def with_doing(job: Job, code: str) -> Job:
    title = Doing(job.title)
    title.code = code
    return replace(job, title=title)


class TestOneWorker:
    """Something is wrong where one of two workers is: afterwards the same command ends with the same bits."""

    @pytest.fixture
    def whole(self, todo, tmp_path) -> dict[str, object]:
        """Return what the undisturbed runs tell."""
        apart = [replace(job, folder=tmp_path / "whole" / job.title) for job in todo]
        assert all(outcome.error is None for outcome in local.do(apart, None, QUIET))
        return {job.title: told(job.folder) for job in apart}

    def test_its_disk_is_full(self, todo, whole):
        """Nothing can be put into a file there, by a limit of the operating system's own."""
        full = "__import__('resource').setrlimit(__import__('resource').RLIMIT_FSIZE, (0, -1))"
        hurt = [todo[0], with_doing(todo[1], full), todo[2]]
        outcomes = {str(o.job.title): o for o in local.do(hurt, None, QUIET, workers=2)}
        assert outcomes.keys() == whole.keys()
        assert "File too large" in str(outcomes["mae"].error)
        for job in todo:  # those that were given to the same worker afterwards have failed, too
            error = outcomes[job.title].error
            assert error is None or "File too large" in str(error)
            assert Run(job.folder).is_done == (error is None)
        assert [outcome.error for outcome in local.do(todo, None, QUIET)] == [None] * 3
        assert {job.title: told(job.folder) for job in todo} == whole

    def test_its_clock_jumps(self, todo, whole, said, monkeypatch):
        """And so does that of the first process, by years at every look."""
        chance = random.Random(1)

        def jumping() -> float:
            return 1.8e9 + chance.uniform(-1e9, 1e9)

        monkeypatch.setattr(time, "time", jumping)
        years = "setattr(__import__('time'), 'time', lambda: {})"
        hurt = [with_doing(todo[0], years.format(4e9)), with_doing(todo[1], years.format(1)), todo[2]]
        outcomes = list(tally.told(local.do(hurt, None, said, workers=2), hurt, said))
        assert [outcome.error for outcome in outcomes] == [None] * 3
        assert {job.title: told(job.folder) for job in todo} == whole
        assert all(0 < outcome.result.seconds < 3600 for outcome in outcomes)
        assert not any("-" in line for line in said.lines)  # no time left is below zero

    def test_features_were_damaged_on_their_way_to_it(self, photos, clip, tmp_path, monkeypatch):
        monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
        job = Job(str(photos), "none", Config(model=clip, epochs=2), tmp_path / "whole", "whole")
        (whole,) = local.do([job], None, QUIET)
        stored = {path: np.load(path) for path in (tmp_path / "cache").rglob("features.npy")}
        # once the first process has found every feature in its place
        damage = "[p.write_bytes(p.read_bytes()[:-1] + b'!') for p in __import__('pathlib').Path({!r}).rglob('{}')]"
        hurt = with_doing(
            replace(job, folder=tmp_path / "hurt"), damage.format(str(tmp_path / "cache"), "features.npy")
        )
        (outcome,) = local.do([hurt], None, QUIET, workers=2)
        assert outcome.error is None
        assert (outcome.result.accuracy, outcome.result.loss) == pytest.approx(
            (whole.result.accuracy, whole.result.loss)
        )
        for path, features in stored.items():  # made again, perhaps with another number of threads
            np.testing.assert_allclose(np.load(path), features, atol=1e-5)


class TestFailure:
    """A run that fails says why in its folder, until it is tried again."""

    def test_the_traceback_is_in_the_folder_until_the_next_try(self, todo, monkeypatch):
        def boom(*_, **__):
            raise RuntimeError("boom")

        with monkeypatch.context() as patch:
            patch.setattr(train, "learn", boom)
            (outcome,) = local.do(todo[:1], None, QUIET)
        assert str(outcome.error) == "RuntimeError: boom"
        assert Run(todo[0].folder).failure() == "RuntimeError: boom"
        text = (todo[0].folder / "failure.txt").read_text()
        assert "Traceback (most recent call last)" in text
        assert "in boom" in text
        (outcome,) = local.do(todo[:1], None, QUIET)
        assert outcome.error is None
        assert Run(todo[0].folder).failure() is None

    def test_a_failure_before_the_run_has_begun_is_in_its_folder_too(self, todo):
        lost = replace(todo[0], source="nowhere.npz")
        (outcome,) = local.do([lost], None, QUIET)
        assert Run(lost.folder).failure() == str(outcome.error)
        (outcome,) = local.do(todo[:1], None, QUIET)  # the file is there now
        assert outcome.error is None

    def test_a_finished_run_never_has_failed(self, todo):
        list(local.do(todo[:1], None, QUIET))
        attempt.failed(todo[0], RuntimeError("boom"))
        assert Run(todo[0].folder).failure() is None

    def test_a_full_disk_leaves_the_reason_to_be_told(self, todo, monkeypatch):
        monkeypatch.setattr("dspt.runs.folder.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        assert str(attempt.failed(todo[0], RuntimeError("boom")).error) == "RuntimeError: boom"

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_one_that_its_folder_cannot_tell_is_told_by_all_who_look_until_the_next_try(
        self, dspt, data, text_tower, jobs
    ):
        words = ["reproduce", "early-accuracy", "--data", data, "--model", text_tower, "--epochs", 1, "--seeds", 1]
        folder = Path(json.loads(dspt(*words, "--dry-run", "--json")[1])["runs"][0]["folder"])
        folder.mkdir(parents=True)
        (folder / "holiday.jpg").touch()
        code, shown, errors = dspt(*words, "--jobs", jobs)
        assert code == 1
        assert shown.splitlines()[-1] == "dspt status runs names what failed"  # and no failure.txt is promised
        reason = f"run folder {folder}: it has files of something else in it (holiday.jpg); give another folder"
        assert reason in errors
        status_lines = dspt("status")[1].splitlines()
        assert status_lines[1] == "  2 done, 1 failed"
        assert status_lines[2].endswith(reason)
        (found,) = json.loads(dspt("status", "--json")[1])["sweeps"]
        assert [run["error"] for run in found["runs"]].count(reason) == found["failed"] == 1
        (row,) = json.loads(dspt("table", "early-accuracy", "--json")[1])["not_used"]
        assert row["folder"] == str(folder)
        assert row["reason"].startswith(f"it failed ({reason})")
        (folder / "holiday.jpg").unlink()
        assert dspt(*words, "-q")[0] == 0
        assert dspt("status")[1].splitlines()[1] == "  3 done"
        assert json.loads(dspt("table", "early-accuracy", "--json")[1])["not_used"] == []

    def test_where_some_folders_alone_can_tell_it_the_traceback_is_not_promised_of_all(
        self, dspt, data, text_tower, monkeypatch
    ):
        def boom(*_, **__):
            raise RuntimeError("boom")

        monkeypatch.setattr(train, "learn", boom)
        words = ["reproduce", "early-accuracy", "--data", data, "--model", text_tower, "--epochs", 1, "--seeds", 1]
        sentence = "failure.txt in the folder of a run that failed has its traceback{}; dspt status {} names them"
        assert dspt(*words, "--runs", "all")[1].splitlines()[-1] == sentence.format("", "all")
        folder = Path(json.loads(dspt(*words, "--dry-run", "--json")[1])["runs"][0]["folder"])
        folder.mkdir(parents=True)
        (folder / "holiday.jpg").touch()
        assert dspt(*words)[1].splitlines()[-1] == sentence.format(", if it could be put there", "runs")


class TestStatus:
    @pytest.fixture
    def jobs(self, tmp_path) -> list[Job]:
        """Return five jobs of 4 epochs: one done in 8 seconds, two after 1 epoch, one failed, one not begun."""
        out = tmp_path / "runs"
        config = Config(method="mae", epochs=4)
        jobs = [
            Job("pets", "none", replace(config, seed=seed), out / "pets" / f"{seed}", f"s{seed}") for seed in range(5)
        ]
        result = {"data": "pets", "noise": "none", "method": "mae", "seed": 0, "accuracy": 81.25, "seconds": 8.0}
        finished_run(jobs[0].folder, result, {"epochs": 4})
        for job in jobs[1:3]:
            job.folder.mkdir(parents=True)
            (job.folder / "metrics.jsonl").write_text('{"epoch": 1, "accuracy": 60.5}\n{"epoch": 2, "accu')
        Run(jobs[3].folder).fail("RuntimeError: boom", "Traceback")
        sweep.plan(out, jobs, "dspt reproduce x")
        return jobs

    def test_each_run_is_what_its_folder_says(self, jobs):
        with Run(jobs[1].folder).locked():
            looks = [status.look(job) for job in jobs]
        assert [one.standing for one in looks] == ["done", "running", "to go", "failed", "to go"]
        assert [one.epochs for one in looks] == [4, 1, 1, 0, 0]
        assert [one.accuracy for one in looks] == [81.25, 60.5, 60.5, None, None]
        assert looks[3].reason == "RuntimeError: boom"
        assert status.counts(looks) == {"done": 1, "running": 1, "failed": 1, "to go": 2}

    def test_time_left_is_that_of_runs_like_it_divided_by_those_at_a_time(self, jobs):
        # three quarters of 8 seconds for each of two, and 8 seconds for the one not begun
        assert status.seconds_left([status.look(job) for job in jobs]) == 6 + 6 + 8
        with Run(jobs[1].folder).locked(), Run(jobs[2].folder).locked():
            assert status.seconds_left([status.look(job) for job in jobs]) == (6 + 6 + 8) / 2
        shutil.rmtree(jobs[0].folder)
        assert status.seconds_left([status.look(job) for job in jobs]) is None

    def test_the_command_tells_people(self, jobs, dspt):
        with Run(jobs[1].folder).locked():
            code, shown, errors = dspt("status", "runs")
        assert (code, errors) == (0, "")
        assert shown.splitlines() == [
            "dspt reproduce x",
            "  1 done, 1 running, 1 failed, 2 to go, about 0:20 left",
            "  running  s1   60.50 %  epoch 1/4",
            "  failed   s3: RuntimeError: boom",
        ]
        lines = dspt("status", "--all")[1].splitlines()
        assert lines[2:] == [
            "  nobody is at work; the command above goes on",
            "  done     s0   81.25 %",
            "  to go    s1   60.50 %  epoch 1/4",
            "  to go    s2   60.50 %  epoch 1/4",
            "  to go    s4",
            "  failed   s3: RuntimeError: boom",
        ]

    def test_a_command_is_at_work_before_any_run_is(self, jobs, dspt):
        path = sweep.plan(jobs[0].folder.parents[1], jobs, "dspt reproduce x")
        seen = []

        def outcomes():
            for one in (iter(()), sweep.noted((), path)):  # another that does the same runs hinders nobody
                assert list(one) == []
                seen.append((dspt("status")[1].splitlines()[2], json.loads(dspt("status", "--json")[1])["sweeps"]))
            yield from ()

        assert list(sweep.noted(outcomes(), path)) == []
        for line, (found,) in seen:
            assert line == "  at work: starting, or encoding images"
            assert found["at_work"]
        assert dspt("status")[1].splitlines()[2] == "  nobody is at work; the command above goes on"
        (found,) = json.loads(dspt("status", "--json")[1])["sweeps"]
        assert not found["at_work"]
        with Run(jobs[1].folder).locked():
            (found,) = json.loads(dspt("status", "--json")[1])["sweeps"]
        assert found["at_work"]

    def test_a_folder_that_is_damaged_is_named_without_the_options_of_other_commands(self, jobs, dspt):
        (jobs[0].folder / "config.json").write_text("{")
        lines = dspt("status")[1].splitlines()
        assert any(line.endswith("; remove the folder") for line in lines), lines
        assert "`" not in "".join(lines)

    def test_the_command_tells_programs(self, jobs, dspt):
        (found,) = json.loads(dspt("status", "runs", "--json")[1])["sweeps"]
        assert [found[name] for name in ("done", "running", "failed", "to_go", "seconds_left")] == [1, 0, 1, 3, 20.0]
        assert [run["standing"] for run in found["runs"]] == ["done", "to go", "to go", "failed", "to go"]
        assert found["runs"][3]["error"] == "RuntimeError: boom"

    def test_looking_changes_nothing_and_hinders_nobody(self, jobs):
        def there():
            return {str(p): p.stat().st_mtime_ns for p in jobs[0].folder.parent.rglob("*")}

        before = there()
        assert [status.look(job).standing for job in jobs].count("running") == 0
        assert there() == before
        with Run(jobs[4].folder).locked():
            assert Run(jobs[4].folder).is_held

    def test_runs_without_a_plan_are_shown_by_their_folders(self, tmp_path, dspt):
        finished_run(
            tmp_path / "runs" / "mine",
            {"data": "pets", "noise": "none", "method": "mae", "seed": 0, "accuracy": 81.25},
        )
        assert dspt("status", "--all")[1].splitlines() == [
            "runs that are in no sweep",
            "  1 done",
            "  done     mine   81.25 %",
        ]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (None, "folder runs: there is no such folder"),
            ("", "runs/sweep-0.json: not valid JSON"),
            ("[]", "runs/sweep-0.json: it is not the plan of a sweep"),
            ('{"command": "", "runs": [5]}', "runs/sweep-0.json: it is not the plan of a sweep"),
            ('{"command": "", "runs": []}', ""),
        ],
    )
    def test_what_is_no_plan_is_one_sentence(self, tmp_path, dspt, text, sentence):
        if text is not None:
            (tmp_path / "runs").mkdir()
            (tmp_path / "runs" / "sweep-0.json").write_text(text)
        code, _, errors = dspt("status", "runs")
        assert errors.startswith(f"dspt: {sentence}" if sentence else "")
        assert code == (2 if sentence else 0)

    def test_a_file_is_no_folder_of_runs(self, dspt, tmp_path):
        (tmp_path / "file").touch()
        sentence = "dspt: folder file: it is not a folder; give that of a sweep, as dspt reproduce names it\n"
        assert dspt("status", "file") == (2, "", sentence)
        for out in ("file", "file/runs"):
            sentence = f"dspt: runs {out}: file is not a folder; give another one with --runs\n"
            assert dspt("reproduce", "main", "--data", "embedded", "--runs", out) == (2, "", sentence)

    def test_what_a_killed_command_left_among_the_runs_is_removed_by_the_next(self, jobs):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        ours = files.temporary_name(jobs[0].folder.with_name("seen"))
        theirs = ours.with_name(ours.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        ours.touch()
        theirs.touch()
        sweep.plan(jobs[0].folder.parents[1], jobs, "dspt reproduce x")
        assert ours.exists()  # this process is alive
        assert not theirs.exists()

    def test_the_same_jobs_have_one_plan(self, jobs, tmp_path):
        sweep.plan(tmp_path / "runs", jobs, "dspt reproduce x --jobs 2")
        (found,) = sweep.find(tmp_path / "runs")
        assert found == sweep.Sweep("dspt reproduce x --jobs 2", tuple(jobs))


@pytest.mark.parametrize("command", [["reproduce", "main", "--data", "embedded"], ["encode", "embedded"]])
@pytest.mark.parametrize(
    ("jobs", "engine", "sentence"),
    [
        (0, "local", "jobs 0: expected at least 1 at a time"),
        (17, "local", "jobs 17: too many at a time for 2 cores; give at most 16"),
        (17, "ray", "jobs 17: too many at a time for 2 cores; give at most 16"),
        (10**30, "local", f"jobs {10**30}: too many at a time for 2 cores; give at most 16"),
    ],
)
def test_a_number_of_jobs_that_cannot_be_is_refused(dspt, tmp_path, command, jobs, engine, sentence):
    code, _, errors = dspt(*command, "--jobs", jobs, "--engine", engine)
    assert (code, errors) == (2, f"dspt: {sentence}\n")
    assert not (tmp_path / "runs").exists()


def test_errors_travel_between_processes():
    for error in (InputError("a", "set `b`"), FileError("a: cannot be written (full)")):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), back.advice) == (type(error), str(error), error.advice)
