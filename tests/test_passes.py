"""Sums over rows by many workers: the answer of one process, whatever becomes of a worker, and no file left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import NAMES, QUIET, features
from test_engine import alive, until
from test_posterior import CLASSES, clouds

import dspt
from dspt.auditing.judge import judge
from dspt.engine import cluster, many, processes
from dspt.engine.spreading import spreading
from dspt.internal import handover, passes, scratch
from dspt.internal.errors import FileError, InputError
from dspt.internal.files import temporary_name
from dspt.internal.passes import joined
from dspt.internal.shards import Shards
from dspt.posterior import label_posterior
from dspt.posterior.evidence import Evidence

try:
    import ray
except ImportError:
    ray = None


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch) -> None:
    monkeypatch.setattr(passes, "LEAST_ROWS", 100)
    monkeypatch.setattr(passes, "_ALIGNED", 1)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch) -> Iterator[None]:
    """Compute with one thread, here and in each worker."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Return the folder of temporary files, which is empty."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def backwards(work, parts):
    """Do work with the last part first, as if each were done elsewhere."""
    for part in reversed(list(parts)):
        yield part, pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(part)))


def twice(work, parts):
    """Do all work twice, as if each worker had died before it could answer."""
    for part in parts:
        work(part)
        yield part, work(part)


def read_only(work, parts):
    """Do work elsewhere, and answer with arrays that nobody can write to, as Ray does."""
    for part, answer in backwards(work, parts):
        for each in answer if isinstance(answer, tuple) else (answer,):
            if isinstance(each, np.ndarray):
                each.flags.writeable = False
        yield part, answer


def problem(text: bool, looked_at: bool = False):
    """Return features, labels and what else there is of them: a set in which no choice is left to rounding."""
    n = 600
    x, true, z = clouds(n, apart=2.0, seed=1)
    labels = np.asarray(dspt.corrupt(true, CLASSES, rate=0.3))
    more = {"zero_shot_logits": z} if text else {}
    return (x, labels), more | ({"known": np.where(np.arange(n) % 7 == 0, true, -1)} if looked_at else {})


def same_bits(one: dspt.Posterior, other: dspt.Posterior) -> bool:
    arrays = ("probabilities", "confusion", "transition", "weights", "bias")
    numbers = ("noise_rate", "noise_rate_error", "likelihood", "start", "trust", "text_weight")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in numbers
    )


class TestThePosterior:
    @pytest.mark.parametrize("rows", [600, 170, 31])
    @pytest.mark.parametrize(("text", "looked_at"), [(False, False), (True, False), (True, True)])
    def test_of_ranges_is_that_of_all_rows_at_once_up_to_rounding(self, monkeypatch, rows, text, looked_at):
        arrays, more = problem(text, looked_at)
        monkeypatch.setattr(passes, "LEAST_ROWS", len(arrays[0]))
        expected = label_posterior(*arrays, **more)
        monkeypatch.setattr(passes, "LEAST_ROWS", rows)
        found = label_posterior(*arrays, **more, spread=backwards)
        assert same_bits(found, label_posterior(*arrays, **more))  # the same ranges in this process
        np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=0, atol=1e-4)
        np.testing.assert_allclose(found.transition, expected.transition, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.classify(arrays[0], more.get("zero_shot_logits")).sum(1), 1, rtol=1e-5)
        assert found.noise_rate == pytest.approx(expected.noise_rate, abs=1e-5)
        assert found.noise_rate_error == pytest.approx(expected.noise_rate_error, abs=1e-5)

    def test_is_made_from_the_same_sums_up_to_rounding(self, monkeypatch):
        (x, labels), more = problem(text=True)
        nobody = np.full(len(x), -1)
        found = []
        for rows, spread in ((len(x), None), (100, backwards)):
            monkeypatch.setattr(passes, "LEAST_ROWS", rows)
            with passes.passes(len(x), spread) as each:
                one = Evidence(each, x, labels, more["zero_shot_logits"], CLASSES, nobody, 1)
                sums = one.label_sums(), one.text_sums(0.3, 0.5, 0.5)
                of_folds = [part for kind in sums for fold in kind for part in (fold.counts, fold.features)]
                found.append([one.mean, one.products, *of_folds])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    def test_has_the_same_bits_if_all_work_is_done_twice(self):
        arrays, more = problem(text=True, looked_at=True)
        found = label_posterior(*arrays, **more, spread=twice)
        assert same_bits(found, label_posterior(*arrays, **more, spread=backwards))

    @pytest.mark.parametrize("rows", [100, 600])
    def test_has_the_same_bits_if_answers_cannot_be_written_to(self, monkeypatch, rows):
        monkeypatch.setattr(passes, "LEAST_ROWS", rows)  # the sum of a single range is its answer
        arrays, more = problem(text=True, looked_at=True)
        found = label_posterior(*arrays, **more, spread=read_only)
        assert same_bits(found, label_posterior(*arrays, **more))

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_has_the_same_bits_whatever_the_number_of_workers(self, number, capfd, temporary):
        with spreading(lambda: processes.Processes(number)) as spread:
            for text in (False, True):
                arrays, more = problem(text)
                found = label_posterior(*arrays, **more, spread=spread)
                assert same_bits(found, label_posterior(*arrays, **more))
        assert capfd.readouterr() == ("", "")
        assert not list(temporary.iterdir())

    def test_has_the_same_bits_if_a_worker_is_killed(self, monkeypatch):
        arrays, _ = problem(text=False)
        give, given = processes._Worker.give, iter(range(10**6))

        def deadly(self, work, part):
            answer = give(self, work, part)
            if next(given) == 23:
                for process in list(self._pool._processes):
                    os.kill(process, signal.SIGKILL)
            return answer

        monkeypatch.setattr(processes._Worker, "give", deadly)
        said = many._Kept()
        lines: list[str] = []
        said.say = lines.append
        with spreading(lambda: processes.Processes(2), said) as spread:
            found = label_posterior(*arrays, spread=spread)
        assert lines == ["rows 500 to 599: its worker process died (SIGKILL); it is tried once more"]
        assert same_bits(found, label_posterior(*arrays, spread=backwards))

    def test_of_shards_has_the_bits_of_arrays_and_their_files_are_not_copied(self, tmp_path, temporary, monkeypatch):
        (x, labels), _ = problem(text=False)
        np.save(tmp_path / "x.npy", np.vstack([x[200:], x[:200]]))
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        order = np.r_[400:600, :400]
        shards = Shards([mapped[:50], mapped[50:]], np.ones(600, np.float32)).take(order)
        write, written = handover.write, []

        def noted(value, path):
            written.append(max(file.stat().st_size for file in path.parent.iterdir()))
            write(value, path)

        monkeypatch.setattr(handover, "write", noted)
        found = label_posterior(shards, labels, spread=backwards)
        assert max(written) < x.nbytes
        monkeypatch.undo()
        monkeypatch.setattr(passes, "LEAST_ROWS", 100)
        monkeypatch.setattr(passes, "_ALIGNED", 1)
        assert same_bits(found, label_posterior(x, labels, spread=backwards))

    def test_larger_than_memory_outlives_its_file(self, monkeypatch, temporary):
        arrays, more = problem(text=True)
        expected = label_posterior(*arrays, **more, spread=backwards)
        monkeypatch.setattr(scratch, "MOST_IN_MEMORY", 0)
        found = label_posterior(*arrays, **more, spread=backwards)
        assert not list(temporary.iterdir())
        assert isinstance(found.probabilities, np.memmap)
        assert same_bits(found, expected)


@pytest.mark.parametrize("rows", [100, 500])
@pytest.mark.parametrize("text", [False, True])
def test_an_audit_by_workers_says_what_one_process_does(monkeypatch, text, rows):
    monkeypatch.setattr(passes, "LEAST_ROWS", rows)
    x, labels = features(500, 1)
    given = np.asarray(dspt.corrupt(labels, 4, rate=0.3))
    prototypes = np.stack([x[labels == c].mean(0) for c in range(4)]) if text else None
    one, many = (judge(x, given, 4, prototypes=prototypes, scale=10, spread=spread) for spread in (None, read_only))
    np.testing.assert_allclose(many.posterior.probabilities, one.posterior.probabilities, rtol=0, atol=1e-4)
    np.testing.assert_allclose(many.fits_no_class, one.fits_no_class, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(many.is_outlier, one.is_outlier)
    np.testing.assert_allclose(many.class_noise_rates, one.class_noise_rates, rtol=0, atol=1e-4)


class TestFiles:
    def of(self, spread):
        arrays, more = problem(text=False)
        return label_posterior(*arrays, **more, spread=spread)

    def test_are_removed_after_a_failure(self, temporary):
        def failing(work, parts):
            for number, result in enumerate(backwards(work, parts)):
                if number == 3:
                    assert list(temporary.iterdir())
                    raise InputError("enough")
                yield result

        with pytest.raises(InputError, match="enough"):
            self.of(failing)
        assert not list(temporary.iterdir())

    def test_of_a_process_that_was_killed_are_removed_by_the_next(self, temporary):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        left = temporary_name(temporary / "dspt")
        left = left.with_name(left.name.replace(str(os.getpid()), str(dead.pid)))
        left.mkdir()
        self.of(backwards)
        assert not list(temporary.iterdir())

    def test_that_a_worker_cannot_see_are_one_sentence(self, temporary):
        def elsewhere(work, parts):
            for part in parts:
                yield part, work(part._replace(asked=temporary / "other" / "0"))

        with pytest.raises(InputError, match="a worker cannot see it; set TMPDIR to a folder that all workers see"):
            self.of(elsewhere)

    def test_for_which_there_is_no_place_are_one_sentence(self, temporary):
        temporary.rmdir()
        with pytest.raises(FileError, match=r"the folder of temporary files, .*: cannot be written"):
            self.of(backwards)

    @pytest.mark.parametrize("rows", [600, 599])
    def test_of_features_that_are_replaced_in_between_are_one_sentence(self, tmp_path, temporary, rows):
        (x, labels), _ = problem(text=False)
        np.save(tmp_path / "x.npy", x)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        made = count()

        def replacing(work, parts):
            for part, answer in backwards(work, parts):
                if next(made) == 20:
                    (tmp_path / "x.npy").unlink()
                    np.save(tmp_path / "x.npy", x[rows - 1 :: -1])
                passes._opened.cache_clear()  # as if each part were another worker's
                yield part, answer

        with pytest.raises(InputError, match=r"x\.npy: it was changed while it was read; leave it as it is"):
            label_posterior(mapped, labels, spread=replacing)
        assert not list(temporary.iterdir())

    def test_an_error_in_a_worker_is_raised_here_and_the_workers_are_there_for_the_next(self):
        with spreading(lambda: processes.Processes(2)) as spread:
            with pytest.raises(ZeroDivisionError), passes.passes(300, spread) as each:
                list(each.each(failing_work))
            with passes.passes(300, spread) as each:
                np.testing.assert_array_equal(joined(each.each(row_numbers)), np.arange(300))


def test_rows_whose_worker_dies_each_time_are_named(temporary):
    with (
        spreading(lambda: processes.Processes(1)) as spread,
        pytest.raises(InputError, match=r"^rows 0 to 99: its worker process died twice \(SIGKILL\)"),
        passes.passes(100, spread) as each,
    ):
        list(each.each(deadly_work))
    assert not list(temporary.iterdir())


def deadly_work(rows: slice) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failing_work(rows: slice) -> float:
    return 1 / rows.start


def row_numbers(rows: slice) -> np.ndarray:
    return np.arange(rows.start, rows.stop)


class TestHandover:
    whole = np.arange(600, dtype=np.float32).reshape(100, 6)

    @pytest.mark.parametrize("part", [slice(None), slice(10, 20), slice(99, None)])
    def test_an_array_in_a_file_is_mapped_where_it_lies(self, tmp_path, part):
        np.save(tmp_path / "x.npy", self.whole)
        array = np.load(tmp_path / "x.npy", mmap_mode="r")[part]
        handover.write({"plain": np.asarray(array), "map": array}, tmp_path / "handed")
        assert (tmp_path / "handed").stat().st_size < 500
        for found in handover.read(tmp_path / "handed").values():
            assert isinstance(found, np.memmap)
            np.testing.assert_array_equal(found, self.whole[part])
            assert not found.flags.writeable

    def test_what_lies_in_no_file_as_a_whole_is_in_the_file_itself(self, tmp_path):
        np.save(tmp_path / "x.npy", self.whole)
        array = np.load(tmp_path / "x.npy", mmap_mode="r")
        given = [array[::2], array.T, array[:0], self.whole, np.array(3)]
        handover.write(given, tmp_path / "handed")
        for found, expected in zip(handover.read(tmp_path / "handed"), given, strict=True):
            np.testing.assert_array_equal(found, expected)


def audited(folder: Path, n: int = 2000) -> Path:
    x, labels = features(n, 1)
    given = np.asarray(dspt.corrupt(labels, 4, rate=0.3))
    np.savez(folder / "pets.npz", train_x=x, train_y=given, test_x=x[:4], test_y=labels[:4], classnames=np.array(NAMES))
    return folder / "pets.npz"


class TestTheCommand:
    def test_says_with_two_jobs_what_it_says_with_one(self, dspt, tmp_path, temporary):
        data = audited(tmp_path)
        told = []
        for jobs in (1, 2):
            code, output, errors = dspt("audit", data, "--jobs", jobs, "--out", f"report-{jobs}", "--json", "-q")
            assert (code, errors) == (0, "")
            told.append(json.loads(output))
        assert told[0]["label_issues"] == told[1]["label_issues"]
        assert told[0]["noise_rate"] == pytest.approx(told[1]["noise_rate"], abs=1e-5)
        assert not list(temporary.iterdir())

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--jobs", 0], "jobs 0: expected at least 1 at a time"),
            (["--engine", "slurm"], "engine 'slurm': not known; expected local or ray"),
            (["--address", "auto"], "address auto: engine local joins no cluster; give --engine ray"),
        ],
    )
    def test_refuses_what_no_engine_can_do(self, dspt, data, options, sentence):
        code, _, errors = dspt("audit", data, *options)
        assert (code, errors.splitlines()[0]) == (2, f"dspt: {sentence}")

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes there")
    def test_that_is_stopped_leaves_nothing_running_and_no_file(self, tmp_path, temporary):
        words = ["audit", str(audited(tmp_path, 400_000)), "--jobs", "2", "--out", str(tmp_path / "report")]
        env = {**os.environ, "TMPDIR": str(temporary)}
        command = [sys.executable, "-m", "dspt", *words]
        driver = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        until(lambda: len(list(temporary.glob(".dspt*"))) == 2)  # of the audit and of the posterior in it
        os.kill(driver.pid, signal.SIGINT)  # it alone: its workers end with it
        errors = driver.communicate()[1]
        until(lambda: not alive(driver.pid))
        assert driver.returncode == 130
        assert "Traceback" not in errors
        assert not list(temporary.glob(".dspt*"))


@pytest.mark.slow
@pytest.mark.skipif(ray is None, reason="NOT TESTED: the Ray engine; pip install 'dspt[ray]'")
def test_on_ray_the_posterior_has_the_bits_of_worker_processes(temporary):
    arrays, more = problem(text=True)
    with spreading(lambda: cluster.Nodes(None, 2, on_gpu=False), QUIET) as spread:
        found = label_posterior(*arrays, **more, spread=spread)
    assert same_bits(found, label_posterior(*arrays, **more, spread=backwards))
    assert not list(temporary.glob(".dspt*"))
