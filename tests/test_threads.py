"""OpenMP's waiting threads are told to sleep before torch is loaded, and only where the user has said nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from problems import NAMES, features

from dspt import learners, train
from dspt.config import Config
from dspt.internal import threads
from dspt.problem import Problem, Task

USER_SETTINGS = ["GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY"]


def in_fresh_python(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in USER_SETTINGS}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment | settings,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture
def nothing_is_set(monkeypatch):
    for name in USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def before_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_importing_dspt_sets_it_and_loads_no_torch():
    done = in_fresh_python("import dspt, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)")
    assert done.stdout.split() == [str(threads.SPINS), "False"]


def test_the_command_line_sets_it_before_torch():
    done = in_fresh_python("import dspt.cli, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)")
    assert done.stdout.split() == [str(threads.SPINS), "False"]


def test_torchs_own_runtime_reads_it():
    done = in_fresh_python("import dspt, torch", OMP_DISPLAY_ENV="VERBOSE")
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch's OpenMP is not libgomp here")
    assert f"GOMP_SPINCOUNT = '{threads.SPINS}'" in done.stderr


@pytest.mark.usefixtures("nothing_is_set", "before_torch")
@pytest.mark.parametrize("name", USER_SETTINGS)
def test_what_the_user_has_set_stays(monkeypatch, name):
    monkeypatch.setenv(name, "5")
    threads.spare_waiting_threads()
    assert {n: os.environ[n] for n in USER_SETTINGS if n in os.environ} == {name: "5"}


@pytest.mark.usefixtures("nothing_is_set")
def test_it_is_left_alone_once_torch_is_loaded(monkeypatch):
    """Torch would not read it any more, but every child would."""
    monkeypatch.setitem(sys.modules, "torch", threads)
    threads.spare_waiting_threads()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="a process is tied to a core there")
def test_cores_are_those_that_the_process_may_run_on():
    one = min(os.sched_getaffinity(0))
    done = in_fresh_python(
        f"import os; os.sched_setaffinity(0, [{one}])\nfrom dspt.internal.threads import cores; print(cores())"
    )
    assert done.stdout.split() == ["1"]


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("product", "inside"), [(None, 2), (threads.SMALL_PRODUCT, 1), (threads.SMALL_PRODUCT + 1, 2)])
def test_small_products_have_one_thread_and_others_all(product, inside):
    with threads.threads_for(product):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_users_own_number_of_threads_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with threads.threads_for(1):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_small_tower_trains_with_one_thread():
    """The embedded text tower has 96 x 384 weights in its widest layer, and some hundred positions."""
    task = Task.of(Problem(NAMES, *features(64, dim=64)), Config(model="embedded", epochs=1, device="cpu"))
    seen = []
    for _ in train.fit(task, on_step=lambda *_: seen.append(torch.get_num_threads())):
        assert torch.get_num_threads() == 2
    assert set(seen) == {1}


def test_the_rule_looks_at_positions_times_the_widest_layer():
    """The embedded tower's widest layer is 96 x 384; a shared beginning counts once."""
    learner = learners.make(NAMES, Config(model="embedded", device="cpu"))
    assert learner.product == learner.prompts.tokens * 96 * 384
    assert 17 < learner.prompts.tokens < 17 * len(NAMES)


class TestShare:
    """The threads of several processes that dspt starts."""

    @pytest.mark.parametrize(("cores", "workers", "each"), [(8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 5, 1)])
    def test_cores_are_divided(self, monkeypatch, cores, workers, each):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(threads, "cores", lambda: cores)
        assert threads.divided(workers) == {"OMP_NUM_THREADS": str(each)}

    def test_the_users_own_number_is_that_of_each(self, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert threads.divided(2) == {}

    @pytest.mark.parametrize(("asked", "count"), [(True, 2), (False, 1)])
    def test_small_products_have_one_thread_unless_the_user_has_said(self, two_threads, monkeypatch, asked, count):
        """A worker knows its share by the variable in which a user says a number, too."""
        monkeypatch.setattr(threads, "_shared", False)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        threads.take_share(asked)
        with threads.threads_for(100):
            assert torch.get_num_threads() == count
