"""Errors: one sentence, which names settings in Python and options on the command line."""

from __future__ import annotations

import pickle

import pytest

from dspt.cli import common
from dspt.cli.common import in_flags
from dspt.internal.errors import InputError

ERROR = InputError("a.jpg: not an image", "set `skip_bad` to go on without it")


def test_python_users_are_told_the_setting():
    assert str(ERROR) == "a.jpg: not an image; set `skip_bad` to go on without it"


def test_the_command_line_names_its_option():
    assert in_flags(ERROR, {"--skip-bad"}) == "a.jpg: not an image; give --skip-bad to go on without it"


def test_advice_for_which_a_command_has_no_option_is_left_out():
    assert in_flags(ERROR, {"--json"}) == "a.jpg: not an image"


@pytest.mark.parametrize(("command", "has"), [("train", True), ("zeroshot", False), ("data", False)])
def test_the_options_are_those_of_the_command_that_was_called(command, has, monkeypatch):
    monkeypatch.setattr("sys.argv", ["dspt", command, "photos"])
    assert ("--overwrite" in common.options()) == has


def test_an_error_survives_the_way_between_processes():
    again = pickle.loads(pickle.dumps(ERROR))
    assert (again.sentence, again.advice) == (ERROR.sentence, ERROR.advice)


def test_a_line_break_in_a_name_does_not_make_two_lines():
    assert str(InputError("a\nb.jpg: no such file")) == "a\\nb.jpg: no such file"


def test_a_setting_to_leave_out_is_an_option_to_leave_out():
    error = InputError("views = 2: there are no images to crop", "leave `views` out")
    assert in_flags(error, {"--views"}) == "views = 2: there are no images to crop; leave --views out"


def test_what_is_said_on_the_way_names_options_too(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dspt", "train", "photos"])
    common.reporter(quiet=False).say("note: set `class_names` or `no_such_setting`")
    assert capsys.readouterr().err == "note: give --class-names or `no_such_setting`\n"
