"""What the machine refuses is one sentence, from every command: no room, no handles, no permission."""

import shutil
from pathlib import Path

import pytest
from interrupted import Fault

from dspt.runs import Run


@pytest.fixture(scope="module")
def train(text_tower, data):
    """Return the arguments of a short training run in a folder."""

    def arguments(out: Path, *more: object) -> list[object]:
        return ["train", data, "--model", text_tower, "--epochs", 1, "--out", out, "--json", "-q", *more]

    return arguments


@pytest.fixture(scope="module")
def whole(victims, train, tmp_path_factory) -> Path:
    """Return a finished run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert victims(*train(folder)).status == 0
    return folder


def same_run(out: Path, other: Path) -> bool:
    ours, theirs = (Run(folder).result().as_dict() for folder in (out, other))
    for figures in (ours, theirs):
        figures |= {"seconds": 0, "run": ""}
    learnt = ((folder / "context.safetensors").read_bytes() for folder in (out, other))
    return ours == theirs and len(set(learnt)) == 1


def test_a_sweep_does_not_take_the_result_of_a_run_that_is_being_cleared(whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "config.json").rename(out / ".cleared.json")
    assert Run(out).result() is None
    assert not Run(out).is_done


def test_every_command_tells_of_a_full_disk_in_one_sentence(victims, train, data, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    commands = {
        "noise": ["noise", data, "--noise", "sym:0.4", "--out", tmp_path / "labels.csv"],
        "encoding": ["zeroshot", "embedded", "--model", "embedded"],
        "export": ["data", "export", tmp_path / "photos"],
        "report": ["report", "--runs", whole.parent, "--out", tmp_path / "report.html"],
        "demo": ["demo", "--epochs", 1, "--out", tmp_path / "demo", "-q"],
    }
    for name, arguments in commands.items():
        done = victims(*arguments, fault=Fault("ENOSPC", 3, tmp_path))
        assert done.status == 1, name
        assert str(tmp_path) in done.sentence, name
        assert "No space left on device" in done.sentence, name


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.{}, ({}, {}))
from dspt import cli
sys.argv = {!r}
cli.main()
"""


def limited(victims, what: str, limit: int, *arguments: object):
    argv = ["dspt", *map(str, arguments)]
    return victims(code=LIMITED.format(what, limit, limit, argv))


def test_a_limit_on_the_size_of_files_is_one_sentence(victims, train, whole, data, tmp_path):
    for limit in (600, 1500):
        done = limited(victims, "RLIMIT_FSIZE", limit, *train(tmp_path / "run"))
        assert done.status == 1
        assert "File too large" in done.sentence
        assert str(tmp_path / "run") in done.sentence
    assert victims(*train(tmp_path / "run")).status == 0
    assert same_run(tmp_path / "run", whole)


def test_too_few_file_handles_are_one_sentence(victims, train, whole, tmp_path):
    ended = []
    for limit in range(4, 24, 2):
        done = limited(victims, "RLIMIT_NOFILE", limit, *train(tmp_path / "run"))
        if done.status:
            assert done.status == 1
            assert "Too many open files" in done.sentence
        ended.append(done.status)
    assert ended[0] == 1
    assert victims(*train(tmp_path / "run")).status == 0
    assert same_run(tmp_path / "run", whole)


def test_output_that_cannot_be_written_is_one_sentence(victims):
    code = "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nfrom dspt import cli\n"
    done = victims(code=code + "sys.argv = ['dspt', 'methods']\ncli.main()")
    assert done.status == 1
    assert done.sentence == "dspt: No space left on device; make room there"


def test_a_place_that_cannot_be_written_is_one_sentence_and_status_1(victims, train, data, whole, tmp_path):
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "x"
    for arguments in (
        train(below),
        ["noise", data, "--noise", "sym:0.4", "--out", below / "labels.csv"],
        ["data", "export", below],
        ["report", "--runs", whole.parent, "--out", below / "report.html"],
    ):
        done = victims(*arguments)
        assert done.status == 1, done
        assert str(below) in done.sentence
