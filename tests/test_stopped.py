"""A command that is stopped says in one line what is kept and how to go on, and leaves no half-written file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from problems import finished_run

from dspt import plots
from dspt.cli.common import KEPT, app

EPOCHS = "finished epochs are saved. To go on"
IMAGES = "images that were encoded are kept, but for the last thousand at most. To go on"
NOTHING = "no file was left half-written. To begin again"

# A command, a function that it calls in the middle, and what it says when it is stopped there.
COMMANDS = [
    ("train DATA --model CLIP --epochs 2", "dspt.workflows.train.learn", EPOCHS),
    ("scratch embedded --epochs 2", "dspt.data.open_dataset", EPOCHS),
    ("reproduce main --data DATA --model CLIP", "dspt.workflows.train.run", EPOCHS),
    ("reproduce main --data DATA --model CLIP --jobs 2", "dspt.engine.processes.wait", EPOCHS),
    ("status runs", "dspt.engine.sweep.find", NOTHING),
    ("demo --epochs 1", "dspt.workflows.demo.run", EPOCHS),
    (
        "encode embedded",
        "dspt.features.packs.Store.index",
        "whole shards of a thousand images are kept. To go on",
    ),
    ("zeroshot DATA --model CLIP", "dspt.train.accuracy", IMAGES),
    ("eval RUN DATA", "dspt.data.open_dataset", IMAGES),
    ("noise DATA --noise sym:0.4", "dspt.plots.confusion", IMAGES),
    ("audit DATA", "dspt.workflows.audit.audit", IMAGES),
    ("review REPORT", "dspt.auditing.folder.load", "every decision is saved. To go on"),
    ("predict RUN a.png", "dspt.classifier.load", NOTHING),
    ("data check oxford_pets --root .", "dspt.cli.data.reporter", NOTHING),
    ("data split DATA", "dspt.data.open_dataset", NOTHING),
    ("data prepare ucf101 --root .", "dspt.cli.data.reporter", "frames made so far are kept. To go on"),
    ("data export photos", "dspt.data.open_dataset", NOTHING),
    ("bench --quick", "dspt.bench.run_bench", NOTHING),
    ("table main", "dspt.experiments.collect.gather", NOTHING),
    ("figure loss-curves", "dspt.experiments.collect.gather", NOTHING),
    ("report", "dspt.experiments.report.make", NOTHING),
    ("compare dspt mae", "dspt.experiments.compare.compare", NOTHING),
]


def pressed(*_, **__):
    signal.raise_signal(signal.SIGINT)


def ended(*_, **__):
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("command", "function", "told"), COMMANDS, ids=[row[0].split(" --")[0] for row in COMMANDS])
def test_ctrl_c_says_how_to_go_on(dspt, clip, data, monkeypatch, command, function, told):
    monkeypatch.setattr(function, pressed)
    words = [{"DATA": data, "CLIP": clip}.get(word, word) for word in command.split()]
    status, output, errors = dspt(*words)
    assert status == 130, errors
    assert output == ""
    assert errors.splitlines()[-1] == f"stopped; {told}: dspt {' '.join(words)}"
    assert "Traceback" not in errors


def test_every_command_is_tried():
    def names(group, *above):
        for command in group.registered_commands:
            yield " ".join([*above, command.name or command.callback.__name__])
        for one in group.registered_groups:
            yield from names(one.typer_instance, one.name)

    at_once = {"methods", "experiments", "data list"}
    tried = {" ".join(row[0].split()[: 2 if row[0].startswith("data ") else 1]) for row in COMMANDS}
    assert set(names(app)) - at_once == tried
    assert set(KEPT) <= tried


def test_going_on_does_not_start_anew_but_a_file_is_replaced_again(dspt, data, clip, monkeypatch):
    monkeypatch.setattr("dspt.workflows.train.learn", pressed)
    assert "--overwrite" not in dspt("train", data, "--model", clip, "--overwrite", "-q")[2]
    monkeypatch.setattr("dspt.classifier.load", pressed)
    assert dspt("predict", "run", "a.png", "--out", "a.csv", "--overwrite")[2].endswith(" --out a.csv --overwrite\n")


def test_ctrl_c_before_a_command_has_begun_is_told_too(dspt, monkeypatch):
    monkeypatch.setattr("dspt.cli.app", pressed)
    status, _, errors = dspt("demo", "-q")
    assert status == 130
    assert errors == "stopped; finished epochs are saved. To go on: dspt demo -q\n"


def test_sigterm_is_told_like_ctrl_c_with_its_own_status(dspt, monkeypatch):
    monkeypatch.setattr("dspt.workflows.demo.run", ended)
    before = signal.getsignal(signal.SIGTERM)
    try:
        status, _, errors = dspt("demo", "-q")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == 143
    assert errors == "stopped; finished epochs are saved. To go on: dspt demo -q\n"


@pytest.mark.parametrize(
    "command",
    [
        "noise DATA --noise sym:0.4 --out out/labels.csv",
        "noise DATA --noise sym:0.4 --out out/labels.npy",
        "report --runs runs --out out/report.html",
    ],
)
def test_a_file_is_there_as_a_whole_or_not_at_all(dspt, data, tmp_path, monkeypatch, command):
    """Ctrl-C in the last moment, before what was written takes its name."""
    finished_run(
        tmp_path / "runs" / "one",
        {"data": "x", "noise": "none", "method": "dspt", "seed": 1, "accuracy": 50.0},
        {"method": "dspt"},
    )
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "replace", pressed)
    status, _, errors = dspt(*(data if word == "DATA" else word for word in command.split()))
    assert status == 130, errors
    assert list((tmp_path / "out").iterdir()) == []


def test_a_picture_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", pressed)
    with pytest.raises(KeyboardInterrupt):
        plots.accuracy_over_epochs(tmp_path / "a.png", {"x": {"dspt": [1.0, 2.0]}}, 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["methods", "data list", "experiments --json", "--help"])
def test_nobody_who_listens_is_a_quiet_end(command):
    """As behind `| head -1`: what was printed is dropped without a word, when it is printed or at the end."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    unread, written = os.pipe()
    os.close(unread)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dspt", *command.split()], stdout=written, stderr=subprocess.PIPE, text=True, env=env
        )
    finally:
        os.close(written)
    assert (done.returncode, done.stderr) == (1, "")
