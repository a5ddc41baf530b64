"""Progress: a rate that leaves start-up out, and a line every few seconds where there is no terminal."""

import io
import sys
from types import SimpleNamespace

import pytest

from dspt.internal import progress
from dspt.internal.progress import Reporter


@pytest.fixture
def clock(monkeypatch):
    """Return the time as progress sees it: `clock.now` seconds."""
    found = SimpleNamespace(now=1000.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(progress, "time", found)
    return found


def at(clock, seconds, update, *done):
    clock.now = 1000.0 + seconds
    update(*done)


def test_the_time_left_is_reckoned_from_the_first_finished_piece_on(clock, capsys):
    with Reporter().task("work", 11) as update:
        at(clock, 600, update, 1, "one")  # ten minutes of start-up
        at(clock, 620, update, 3, "three")  # then 10 s a piece
    assert capsys.readouterr().err.splitlines() == ["work   9 %  one", "work  27 %  three  1:20 left"]


def test_what_was_done_before_is_not_counted(clock, capsys):
    with Reporter().task("work", 10, done=4, unit="images") as update:
        at(clock, 100, update, 4, "")
        at(clock, 200, update, 6, "")
        at(clock, 210, update, 8, "")
    # 2 in 10 s
    assert capsys.readouterr().err.splitlines()[-1] == "work  80 %  0.2 images/s  0:10 left"


def test_without_a_terminal_a_line_comes_every_five_seconds_and_the_last_one(clock, capsys):
    with Reporter().task("work", 24) as update:
        for epoch in range(1, 25):
            at(clock, epoch, update, epoch - 0.5, f"epoch {epoch - 1}")
            at(clock, epoch, update, epoch, f"epoch {epoch}")
    said = [line.split(" %  ")[1].split("  ")[0] for line in capsys.readouterr().err.splitlines()]
    # the first updates of seconds 5, 10, 15 and 20
    assert said == ["epoch 4", "epoch 9", "epoch 14", "epoch 19", "epoch 24"]


def test_the_last_line_is_that_of_the_last_update(clock, capsys):
    with Reporter().task("work", 2) as update:
        at(clock, 1, update, 1, "epoch 1/2")
        at(clock, 2, update, 2, "epoch 1/2")
        at(clock, 2, update, 2, "epoch 2/2")
    assert capsys.readouterr().err == "work 100 %  epoch 2/2\n"


def test_what_stops_with_an_error_says_nothing_more(clock, capsys):
    def interrupted():
        with Reporter().task("work", 2) as update:
            at(clock, 1, update, 1, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_the_time_left_is_the_same(clock, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with Reporter().task("work", 11) as update:
        at(clock, 600, update, 1, "one")
        at(clock, 620, update, 3, "three")
    assert "three  1:20 left" in terminal.getvalue()
