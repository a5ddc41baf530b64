"""OpenMP's waiting threads are told to sleep before torch is loaded, and only where the user has said nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dspt.internal import threads

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
