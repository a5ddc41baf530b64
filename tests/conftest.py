"""What all tests share: no claim about time, a cache of their own, and the fixtures that many need."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import tiny_clip
from hypothesis import HealthCheck, settings
from interrupted import Victims
from PIL import Image
from problems import feature_file

# Whoever runs the tests in the background may have Ctrl-C ignored, which every process inherits.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however long they take: a busy machine is no failure.
settings.register_profile("dspt", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dspt")


@pytest.fixture(autouse=True)
def no_cache_or_root_of_the_user(tmp_path_factory, monkeypatch) -> None:
    """Encode the embedded images once for all tests, and not in the user's own cache."""
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("DSPT_ROOT", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # of whoever runs the tests, or of their worker


@pytest.fixture(scope="session")
def clip(tmp_path_factory) -> str:
    """Return a checkpoint with both towers."""
    return str(tiny_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="session")
def text_tower(tmp_path_factory) -> str:
    """Return a checkpoint with a text tower alone."""
    return str(tiny_clip(tmp_path_factory.mktemp("text"), text_only=True))


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    """Return a feature file that fits both checkpoints."""
    return str(feature_file(tmp_path_factory.mktemp("data") / "pets.npz"))


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    """Return a function that runs a command line to which something happens at a given step."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("forks its victims, and looks where they write")
    with Victims() as started:
        yield started


@pytest.fixture
def photos(tmp_path) -> Path:
    """Return a folder of class folders, six images a class."""
    random = np.random.RandomState(0)
    for c, name in enumerate(["cat", "red_panda", "dog"]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            pixels = np.clip(random.randn(20, 24, 3) * 20 + 80 * c, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def dspt(monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command line in `tmp_path` and returns its status, output and errors."""
    from dspt import cli

    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dspt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    return call


def pytest_terminal_summary(terminalreporter) -> None:
    """Tell what came of the faults, of all tests together."""
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "faults" and report.when == "teardown"
    ]
    if told:
        outcomes = sum((Counter(one["outcomes"]) for one in told), Counter())
        terminalreporter.write_line(f"{outcomes.total()} faults, seed {told[0]['seed']}:")
        for outcome, count in sorted(outcomes.items()):
            terminalreporter.write_line(f"{count:6}  {outcome}")
