"""Claims about files: whole or not at all."""

import json
import signal
from pathlib import Path

import pytest

from dspt.internal.files import replacing, uninterrupted, write_json, write_text


def test_what_was_written_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent, "a rename across file systems is not atomic"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_before_the_first_byte_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "result.txt"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_keeps_the_file_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")
    with open(path) as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    with replacing(path) as one, replacing(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "é\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "é\n".encode()


def test_json_is_read_back_as_it_was(tmp_path: Path) -> None:
    value = {"class": "Bébé", "accuracy": [0.1, 1e-300], "none": None}
    write_json(tmp_path / "run.json", value)
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "Bébé" in text
    assert text.endswith("}\n")


def test_json_that_cannot_be_written_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, object())
    assert json.loads(path.read_text()) == 1
    assert list(tmp_path.iterdir()) == [path]


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_until_writes_that_belong_together_are_done(stop: signal.Signals) -> None:
    done = []

    def handler(*_: object) -> None:
        raise Stopped

    def write() -> None:
        with uninterrupted():
            signal.raise_signal(stop)
            done.append("both")

    before = signal.signal(stop, handler)
    try:
        with pytest.raises(Stopped):
            write()
        assert done == ["both"]
        assert signal.getsignal(stop) is handler
    finally:
        signal.signal(stop, before)
