"""Claims about files: whole or not at all."""

import errno
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dspt.internal.errors import FileError, InputError
from dspt.internal.files import (
    append_text,
    check_free,
    is_trouble,
    replacing,
    temporary_name,
    told,
    uninterrupted,
    write_json,
    write_text,
)


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


def dead_process() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    left = temporary_name(path)
    of_dead = left.with_name(left.name.replace(f"-{os.getpid()}-", f"-{dead_process()}-"))
    elsewhere = of_dead.with_name(".result.txt.00000000-" + of_dead.name.split("-", 1)[1])
    users = tmp_path / ".notes.tmp"
    for one in (left, elsewhere, users):
        one.write_text("x")
    (of_dead / "folder").mkdir(parents=True)
    write_text(path, "new")
    assert not of_dead.exists()
    assert {left, elsewhere, users, path} == set(tmp_path.iterdir()), "a living process, another machine, a user"


def test_a_refusal_names_the_path_the_reason_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "result.txt"
    with pytest.raises(FileError) as refused:
        write_text(path, "x")
    assert str(refused.value).startswith(f"{path}: cannot be written (")
    assert str(refused.value).endswith("; choose another place")
    assert isinstance(refused.value, InputError)
    assert isinstance(refused.value, OSError)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), str(again)) == (FileError, str(refused.value))


@pytest.mark.parametrize(
    ("code", "what"), [(errno.ENOSPC, "make room there"), (errno.EMFILE, "ulimit -n"), (errno.EFBIG, "ulimit -f")]
)
def test_each_kind_of_trouble_has_its_advice(code: int, what: str) -> None:
    with pytest.raises(FileError, match=rf"x: cannot be written \({os.strerror(code)}\); .*{what}"), told("x"):
        raise OSError(code, os.strerror(code))


def test_trouble_is_known_in_the_text_of_libraries_too() -> None:
    assert is_trouble(RuntimeError("cannot open <x>: Too many open files (24)"))
    assert is_trouble(OSError(errno.ENOSPC, "x"))
    assert not is_trouble(FileNotFoundError(errno.ENOENT, "No such file"))
    assert not is_trouble(RuntimeError("no"))
    assert not is_trouble(None)


def test_a_folder_takes_its_place_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with replacing(path) as temporary:
        (temporary / "a").mkdir(parents=True)
        assert not path.exists()
    assert [p.name for p in path.iterdir()] == ["a"]

    def fail() -> None:
        with replacing(tmp_path / "other") as temporary:
            (temporary / "a").mkdir(parents=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == [path]


def test_a_long_name_leaves_room_for_the_temporary_one(tmp_path: Path) -> None:
    write_text(tmp_path / ("x" * 250), "new")
    assert len(list(tmp_path.iterdir())) == 1


def test_appending_makes_a_file_and_follows_no_link(tmp_path: Path) -> None:
    append_text(tmp_path / "log", "a\n")
    append_text(tmp_path / "log", "b\n")
    assert (tmp_path / "log").read_text() == "a\nb\n"
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(FileError, match="link: cannot be written"):
        append_text(tmp_path / "link", "c\n")
    assert (tmp_path / "log").read_text() == "a\nb\n"


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_files_have_the_mode_that_the_user_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "text", "x")
        append_text(tmp_path / "log", "x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("text", "log")] == [0o640, 0o640]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_not_replaced_even_where_files_may_be(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a device or a pipe"):
        check_free(tmp_path / "pipe", overwrite=True)
