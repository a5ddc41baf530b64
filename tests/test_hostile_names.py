"""Names from a stranger: whatever a folder, a class or a file is called, no terminal obeys it and nothing breaks."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dspt
from dspt import cli, plots
from dspt.cli import common
from dspt.internal.errors import Fault
from dspt.internal.names import from_spreadsheet_cell, printable, spreadsheet_cell, wrapped
from dspt.internal.progress import Reporter
from dspt.runs import Run

CLASSES = (
    "\x1b]0;owned\x07red",
    "\x9b2J",
    "a\u202eb\u200bc",
    "two\nlines",
    "$x_{$",
    "=1+1",
    "猫🐈",
    "[bold]<b>&",
    "\\$^{",
)
DATA = "ho\x1b[2J\u202est\n$a_{$"


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder of hostile name with hostile classes of four images each, one file of a name that is no text."""
    random = np.random.RandomState(0)
    folder = tmp_path_factory.mktemp("photos") / DATA
    for c, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.clip(random.randn(20, 24, 3) * 20 + 25 * c, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"\x1b[{i}m.png")
    first = os.fsencode(folder / CLASSES[0])
    os.rename(first + b"/\x1b[0m.png", first + b"/\xff\xfe.png")
    (folder / CLASSES[1] / "=bro\x1b[2J\nken.png").write_bytes(b"no image")
    (folder / "notes\x1b[2J.txt").write_text("no image")
    return folder


@pytest.fixture
def shown(dspt):
    """A function that runs a command, and returns what it printed once nothing raw is in it and its status is right."""

    def call(*arguments: object, status: int = 0) -> str:
        found, output, errors = dspt(*arguments)
        assert found == status, output + errors
        assert "Traceback" not in errors
        assert "Warning" not in errors
        raw = {c for c in output + errors if not (c.isprintable() or c == "\n")}
        assert not raw
        return output + errors

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Where the run is that the first test leaves for the others."""
    return tmp_path_factory.mktemp("runs") / "r\x1b[2Jun"


def test_train_eval_predict_zeroshot_and_noise(shown, photos, clip, trained):
    assert r"ho\x1b[2J\u202est\n$a_{$" in shown("train", photos, "--model", clip, status=2)
    said = shown("train", photos, "--model", clip, "--epochs", 2, "--skip-bad", "--out", trained)
    assert r"r\x1b[2Jun" in said
    assert r"\x1b]0;owned\x07red" in shown("eval", trained, photos, "--skip-bad")
    file = Path(os.fsdecode(os.fsencode(photos / CLASSES[0]) + b"/\xff\xfe.png"))
    assert r"\xff\xfe.png: " in shown("predict", trained, file)
    predicted = json.loads(shown("predict", trained, file, "--top", len(CLASSES), "--json", "-q"))
    assert predicted["predictions"][0]["image"] == str(file)
    assert {one["class"] for one in predicted["predictions"][0]["classes"]} == set(CLASSES)
    assert r"bro\x1b[2J\nken.png" in shown("predict", trained, photos / CLASSES[1] / "=bro\x1b[2J\nken.png", status=2)
    assert r"\u202est" in shown("zeroshot", photos, "--model", clip, "--skip-bad", "--template", "\x1b[1m{}")
    said = shown("noise", photos, "--noise", "sym:0.5", "--skip-bad", "--out", trained.parent / "la\x1bbels.csv")
    assert r"la\x1bbels.csv" in said


def test_a_source_whose_name_is_no_text(shown, clip, tmp_path, caplog):
    data = Path(os.fsdecode(os.fsencode(tmp_path) + b"/da\xffta"))
    for c, name in enumerate(("cat", "dog")):
        (data / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((20, 20, 3), 100 * c + i, np.uint8)).save(data / name / f"{i}.png")
    assert r"da\xffta" in shown("train", data, "--model", clip, "--epochs", 1, "--out", "run")
    assert r"da\xffta" in shown("eval", "run", data)
    assert r"da\xffta" in shown("zeroshot", data, "--model", clip)
    shown("noise", data, "--noise", "sym:0.5", "--out", data / "labels.csv")
    shown("report", "--runs", ".")
    assert r"da\xffta has no test folder" in caplog.text, "what Python users hear is printable, too"


def test_what_was_left_out_is_a_table_no_spreadsheet_calculates(tmp_path):
    Run(tmp_path).save_skipped([Fault("=cmd", "@reason")])
    with open(tmp_path / "skipped.csv", newline="") as file:
        assert list(csv.reader(file))[1:] == [["", "'=cmd", "'@reason"]]


def test_tables_figures_and_the_page(shown, photos, clip, tmp_path):
    part = ("--only", "noise=sym:0.4,method=dspt", "--runs", tmp_path / "runs")
    settings = ("--data", photos, "--model", clip, "--epochs", 1, "--seeds", 1)
    (photos / CLASSES[1] / "=bro\x1b[2J\nken.png").rename(tmp_path / "broken")
    try:
        said = shown("reproduce", "accuracy-vs-noise", *settings, *part)
    finally:
        (tmp_path / "broken").rename(photos / CLASSES[1] / "=bro\x1b[2J\nken.png")
    assert r"ho\x1b[2J\u202est\n$a_{$" in said
    for style in ("terminal", "markdown", "csv", "latex"):
        table = shown("table", "main", "--runs", tmp_path / "runs", "--format", style)
        assert "$a_{$" not in table or style in ("terminal", "csv")
    shown("figure", "accuracy-vs-noise", "--runs", tmp_path / "runs", "--out", tmp_path / "fig\x1bures")
    shown("report", "--runs", tmp_path / "runs", "--out", tmp_path / "re\x1bport.html")
    page = (tmp_path / "re\x1bport.html").read_text()
    assert r"ho\x1b[2J\u202est\n$a_{$" in page
    assert not {c for c in page if not (c.isprintable() or c == "\n")}


def test_data_check(shown, photos, tmp_path):
    said = shown("data", "check", photos, "--out", tmp_path / "re\x1bport.csv", status=1)
    assert r"=bro\x1b[2J\nken.png" in said
    assert r"\x9b2J" in shown("data", "check", photos, "--no-decode", "--exclude", CLASSES[1])
    assert r"\x1b" in shown("data", "check", photos, "--exclude", "\x1b[2J", status=2)
    found = json.loads(shown("data", "check", photos, "--json", "-q", status=1))
    assert set(found["sizes"]) == set(CLASSES)
    shown("data", "check", DATA, "--root", photos, status=2)


def test_options_and_commands_that_are_not_there(shown):
    assert r"--\x1b[2J\u202e" in shown("train", "--\x1b[2J\u202e", status=2)
    assert r"\u202e" in shown("tr\u202eain", status=2)
    shown("train", "embedded", "--epochs", "\x1b[2J", status=2)


@pytest.mark.parametrize("module", ["__init__", "learning", "experiments", "data"])
def test_every_command_prints_through_the_door(module):
    source = (Path(dspt.__file__).parent / "cli" / f"{module}.py").read_text()
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "dspt.cli.common"
        for alias in node.names
    }
    assert "print" in imported


def test_printing_breaks_lines_where_it_was_asked_to_and_nowhere_else(capsys):
    common.print("a\nb", "c", sep="\n")
    assert capsys.readouterr().out == "a\\nb\nc\n"
    common.print_table("t\x1b", [("a\x1b", 1.0), ("long name", None)])
    assert capsys.readouterr().out == "t\\x1b\n  a\\x1b        1.00 %\n  long name  -\n"


def test_the_reporter_says_nothing_raw(capsys):
    reporter = Reporter()
    reporter.say("a\x1b[2Jb")
    with reporter.task("t\x1b", 2.0) as update:
        update(1.0, "n\u202e")
    assert {c for c in capsys.readouterr().err if not c.isprintable()} == {"\n"}


def test_a_terminal_of_few_letters_is_no_reason_to_stop(monkeypatch, tmp_path):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["dspt", "data", "export", str(tmp_path / "猫")])
    monkeypatch.setattr("dspt.data.folder.write_image_folder", lambda dataset, folder: folder)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    output.flush()
    assert not stop.value.code
    assert rb"\u732b" in output.buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red panda ñ 猫", "red panda ñ 猫"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b\x7f\x00", r"\x9b\x7f\x00"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", r"\u202a\u202e\u2066\u2069\u200e\u200f\u061c"),
        ("\u200b\u200d\ufeff\u2028\u2029", r"\u200b\u200d\ufeff\u2028\u2029"),
        (os.fsdecode(b"\xff.png"), r"\xff.png"),
        ("\ud800", r"\ud800"),
    ],
)
def test_printable(text, expected):
    assert printable(text) == expected
    assert printable(expected) == expected, "what was escaped once stays as it is"


def test_a_number_stays_with_its_per_cent_sign():
    assert wrapped("taken for coat 55.6 %", 20, "  ") == ["taken for coat", "  55.6 %"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@x", "\tx", "\rx", "'=x", "''-"])
def test_a_cell_is_no_formula_and_can_be_read_back(text):
    assert spreadsheet_cell(text) == "'" + text
    assert from_spreadsheet_cell(spreadsheet_cell(text)) == text


@pytest.mark.parametrize("text", ["cat", "a=b", "'quoted'", "", "1-2"])
def test_other_cells_stay_as_they_are(text):
    assert spreadsheet_cell(text) == text == from_spreadsheet_cell(text)


def test_names_in_pictures_begin_no_formula_and_warn_of_nothing(tmp_path):
    names = ["$x_{$", "$\\frac$", "a$", "猫🐈", "two\nlines", os.fsdecode(b"\xff")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.confusion(tmp_path / "a.png", np.eye(len(names)), names, "$\\nothing_{$ 猫")
        plots.accuracy_over_epochs(tmp_path / "b.png", {"$\\bad_{$": {"$\\worse_{$": [1.0, 2.0]}}, 1.0)


def test_a_name_is_drawn_letter_by_letter():
    from matplotlib.cbook import is_math_text

    for name in ("$x$", "a$b$c$", "\\$x$", "$$"):
        assert not is_math_text(plots.caption(name))
