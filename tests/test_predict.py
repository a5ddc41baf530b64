"""Predictions come as they are made, in the order given, from files, folders and lists, to a screen or a file."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from problems import features

from dspt import PromptClassifier, load
from dspt.features import decoding, encoder
from dspt.internal.errors import InputError
from dspt.workflows import predict as workflow
from dspt.workflows.predict import Predictions, image_files, paths_in

NAMES = ["=cat", "dog", "red panda", "ankle boot"]


@pytest.fixture(scope="module")
def run(clip, tmp_path_factory) -> Path:
    """Return the folder of a classifier, one class with the name of a formula."""
    folder = tmp_path_factory.mktemp("run") / "classifier"
    x, y = features(40, 1)
    PromptClassifier(model=clip, epochs=1).fit(x, y, class_names=NAMES).save(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(run) -> PromptClassifier:
    return load(run)


@pytest.fixture
def inbox(tmp_path) -> Path:
    """Return a folder of images, some in folders in it, besides what is none."""
    random = np.random.RandomState(0)
    for name in ("a.png", "b/c.JPG", "b/d/e.png", "f.png", ".hidden.png", "._f.png", ".cache/g.png"):
        path = tmp_path / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.randint(0, 255, (20, 24, 3), np.uint8)).save(path, "PNG")
    (tmp_path / "inbox" / "notes.txt").write_text("no image")
    return tmp_path / "inbox"


FOUND = ["a.png", "b/c.JPG", "b/d/e.png", "f.png"]


def spoil(inbox: Path) -> Path:
    (inbox / "b" / "d" / "e.png").write_bytes(b"\x89PNG nonsense")
    return inbox


def endless(image: Path, seen: list[int]):
    for number in count():
        seen.append(number)
        yield str(image)


def test_they_are_what_the_classifier_says(classifier, inbox):
    paths = [str(inbox / name) for name in FOUND]
    probability = classifier.predict_proba(paths)
    for found, path, row in zip(Predictions(classifier, [str(inbox)], top=9), paths, probability, strict=True):
        assert found["image"] == path
        order = np.argsort(-row)
        assert [one["class"] for one in found["classes"]] == [NAMES[c] for c in order]
        assert [one["probability"] for one in found["classes"]] == pytest.approx(row[order], rel=1e-5)


def test_the_first_come_after_the_first_batch_and_little_is_read_ahead(classifier, inbox, monkeypatch):
    """So memory does not grow with the number of images: of these there is no end."""
    monkeypatch.setattr(decoding, "PROCESSES_FROM", 10**9)
    seen: list[int] = []
    size, workers = classifier.image_tower().batch_size(), 2
    monkeypatch.setattr(classifier, "workers", workers)
    predictions = iter(Predictions(classifier, endless(inbox / "a.png", seen)))
    next(predictions)
    assert len(seen) <= size + 2 * workers + 64 + 1
    assert len(list(islice(predictions, 10 * size))) == 10 * size
    assert len(seen) <= 11 * size + 2 * workers + 64 + 1


def test_nothing_is_put_into_the_feature_store(classifier, inbox, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    assert len(list(Predictions(classifier, [str(inbox)] * 20))) == 80
    assert not (tmp_path / "cache").exists()


def test_processes_take_over_when_there_are_many_and_the_order_stays(classifier, inbox, monkeypatch):
    monkeypatch.setattr(decoding, "PROCESSES_FROM", 6)
    started = []
    pool = decoding.Decoder._pool
    monkeypatch.setattr(decoding.Decoder, "_pool", lambda self, many: started.append(many) or pool(self, many))
    found = list(Predictions(classifier, [str(inbox)] * 3))
    assert [Path(one["image"]).name for one in found] == [Path(name).name for name in FOUND] * 3
    assert started == [False] * 6 + [True]  # one by one, then eight at a time
    assert found[:4] == found[4:8] == found[8:]


def test_hidden_files_and_what_is_no_image_are_passed_over(inbox):
    assert list(image_files([str(inbox)])) == [str(inbox / name) for name in FOUND]


def test_a_folder_without_images_and_one_that_cannot_be_listed_are_bad(dspt, run, inbox, monkeypatch):
    (inbox / "empty").mkdir()
    status, _, errors = dspt("predict", run, inbox / "empty", "-q")
    assert (status, errors) == (
        2,
        f"dspt: {inbox}/empty: no image files in it; replace it or leave it out; give --skip-bad to go on without it\n",
    )
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    status, output, errors = dspt("predict", run, inbox)
    assert status == 2
    assert f"{inbox}/b: cannot be listed (Permission denied)" in errors
    status, output, errors = dspt("predict", run, inbox, "--skip-bad", "--json", "-q")
    assert status == 0
    found = json.loads(output)["predictions"]
    assert [one["image"] for one in found] == [f"{inbox}/{name}" for name in ("a.png", "b", "f.png")]
    assert found[1]["error"] == "cannot be listed (Permission denied)"


def test_a_bad_image_stops_it_and_what_was_printed_stays(dspt, run, inbox, monkeypatch):
    monkeypatch.setattr(encoder.ImageTower, "batch_size", lambda self: 2)
    status, output, errors = dspt("predict", run, spoil(inbox), "-q")
    assert status == 2
    assert [line.split(": ")[0] for line in output.splitlines()] == [f"{inbox}/a.png", f"{inbox}/b/c.JPG"]
    assert errors.startswith(f"dspt: {inbox}/b/d/e.png: not an image")
    assert errors.endswith("give --skip-bad to go on without it\n")


def test_bad_images_are_skipped_named_and_counted(dspt, run, clip, inbox):
    status, output, errors = dspt("predict", run, spoil(inbox), inbox / "gone.png", "--skip-bad")
    assert status == 0
    assert [line.split(": ")[0] for line in output.splitlines()] == [f"{inbox}/{n}" for n in FOUND if "e.png" not in n]
    model, *lines = errors.splitlines()
    assert model == f"model {clip}"
    assert lines[0].startswith(f"cannot be used: {inbox}/b/d/e.png: not an image")
    assert lines[1] == f"cannot be used: {inbox}/gone.png: no such file"
    assert lines[2].startswith(f"2 of 5 images cannot be used ({inbox}/b/d/e.png: not an image")
    assert len(lines) == 3


def test_json_is_one_object_whose_elements_come_one_by_one(dspt, run, clip, inbox, monkeypatch):
    status, output, _ = dspt("predict", run, spoil(inbox), "--skip-bad", "--json", "-q")
    assert status == 0
    whole = json.loads(output)
    assert output.count("\n") == 1
    assert [one["image"] for one in whole["predictions"]] == [f"{inbox}/{name}" for name in FOUND]
    assert whole["predictions"][2]["classes"] == []
    assert "not an image" in whole["predictions"][2]["error"]
    assert (whole["skipped"], whole["model"]) == (1, clip)
    # stopped in the middle, it says so at its end
    monkeypatch.setattr(encoder.ImageTower, "batch_size", lambda self: 2)
    status, output, _ = dspt("predict", run, inbox, "--json")
    assert status == 2
    assert [one["image"] for one in json.loads(output)["predictions"]] == [f"{inbox}/{n}" for n in FOUND[:2]]


@pytest.fixture
def saved(dspt, run, clip, inbox, tmp_path):
    """Return a function that writes predictions to a file of a kind, and gives it with what they are."""
    spoil(inbox)

    def save(kind: str) -> tuple[Path, list[dict]]:
        path = tmp_path / f"classes{kind}"
        status, output, _ = dspt("predict", run, inbox, "--skip-bad", "--top", 2, "--out", path)
        assert (status, output) == (0, f"4 images, model {clip}: {path}\n")
        whole = dspt("predict", run, inbox, "--skip-bad", "--top", 2, "--json", "-q")[1]
        return path, json.loads(whole)["predictions"]

    return save


COLUMNS = ["image", "class", "probability", "class_2", "probability_2", "error"]


def table(predictions: list[dict]) -> list[list]:
    rows = []
    for one in predictions:
        pairs = [[each["class"], each["probability"]] for each in one["classes"]] or [[None, None]] * 2
        rows.append([one["image"], *pairs[0], *pairs[1], one.get("error")])
    return rows


def test_a_csv_file_has_a_row_an_image_and_no_formulas(saved):
    path, predictions = saved(".csv")
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    assert header == COLUMNS
    expected = [["" if cell is None else str(cell) for cell in row] for row in table(predictions)]
    assert any("=cat" in row for row in expected)
    assert rows == [[f"'{cell}" if cell.startswith("=") else cell for cell in row] for row in expected]


def test_a_parquet_file_has_the_same_columns(saved, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(workflow, "_ROWS", 3)
    path, predictions = saved(".parquet")
    file = parquet.ParquetFile(path)
    assert file.num_row_groups == 2
    assert file.schema_arrow.names == COLUMNS
    assert [list(row.values()) for row in file.read().to_pylist()] == table(predictions)


def test_a_json_lines_file_has_each_prediction_as_it_is(saved):
    path, predictions = saved(".jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == predictions


def test_a_file_is_replaced_only_when_asked_for_and_only_by_a_whole_one(dspt, run, inbox, tmp_path):
    out = tmp_path / "classes.csv"
    out.write_text("mine")
    status, _, errors = dspt("predict", run, inbox, "--out", out)
    assert status == 2
    assert errors == f"dspt: {out}: it is there already; give another name; or give --overwrite to replace it\n"
    spoil(inbox)
    assert dspt("predict", run, inbox, "--out", out, "--overwrite")[0] == 2
    assert out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes.csv", "inbox"]
    assert dspt("predict", run, inbox, "--out", out, "--overwrite", "--skip-bad", "--json")[0] == 0
    assert out.read_text().startswith("image,class,probability,error\n")
    status, _, errors = dspt("predict", run, inbox, "--out", tmp_path / "classes.xls")
    assert status == 2
    assert "expected a .csv, .jsonl or .parquet file" in errors


@pytest.mark.parametrize("moment", ["dspt.train.probabilities", "os.replace"])
@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_ctrl_c_leaves_no_part_of_a_file(dspt, run, inbox, tmp_path, monkeypatch, moment, kind):
    """In the middle, and just before the file takes its name."""
    monkeypatch.setattr(moment, lambda *_, **__: signal.raise_signal(signal.SIGINT))
    status, output, errors = dspt("predict", run, inbox, "--out", f"classes{kind}", "-q")
    assert (status, output) == (130, "")
    assert errors.startswith("stopped; no file was left half-written. To begin again: dspt predict ")
    assert list(tmp_path.iterdir()) == [inbox]


class Blocks(io.RawIOBase):
    """Standard input that comes in these pieces."""

    def __init__(self, *blocks: bytes) -> None:
        self._blocks = list(blocks)

    def readable(self) -> bool:
        return True

    def read1(self, size: int) -> bytes:
        return self._blocks.pop(0) if self._blocks else b""


@pytest.mark.parametrize(
    ("blocks", "paths"),
    [
        ([b"a.png\nb c.png\n"], ["a.png", "b c.png"]),
        ([b"a.p", b"ng\r\n\nb.png"], ["a.png", "b.png"]),
        ([b"a\nb.png\0c.p", b"ng\0"], ["a\nb.png", "c.png"]),
        ([b"a.png"], ["a.png"]),
        ([b"\xff.png\n"], [os.fsdecode(b"\xff.png")]),
        ([], []),
    ],
)
def test_a_list_is_read_by_line_or_by_nul(blocks, paths):
    assert list(paths_in(Blocks(*blocks))) == paths


def test_a_list_on_standard_input(dspt, run, inbox, monkeypatch):
    listed = io.TextIOWrapper(io.BytesIO(f"{inbox}/f.png\n{inbox}/b\n".encode()))
    monkeypatch.setattr(sys, "stdin", listed)
    _, output, _ = dspt("predict", run, inbox / "a.png", "-")
    names = [line.split(": ")[0] for line in output.splitlines()]
    assert names == [f"{inbox}/{name}" for name in ("a.png", "f.png", "b/c.JPG", "b/d/e.png")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    status, output, errors = dspt("predict", run, "-", "--json")
    assert (status, output, errors) == (2, "", "dspt: images: none given, so there is nothing to predict\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_a_name_that_is_no_text_is_told_and_written(dspt, run, inbox, tmp_path, kind):
    odd = os.fsdecode(os.fsencode(inbox) + b"/\xff.png")
    os.rename(inbox / "a.png", odd)
    output = dspt("predict", run, odd)[1]
    assert output.startswith(f"{inbox}/\\xff.png: ")
    output = dspt("predict", run, odd, "--json")[1]
    assert json.loads(output)["predictions"][0]["image"] == odd
    out = tmp_path / f"classes{kind}"
    assert dspt("predict", run, odd, "--out", out)[0] == 0
    if kind == ".jsonl":
        assert json.loads(out.read_text())["image"] == odd
    elif kind == ".csv":
        assert f"{inbox}/\\xff.png" in out.read_text()


def test_top_is_checked_before_anything_is_read(classifier):
    with pytest.raises(InputError, match="top = 0: expected at least 1"):
        Predictions(classifier, [], top=0)


def test_json_is_whole_when_a_bad_image_stops_it(dspt, run, photos):
    status, output, errors = dspt("predict", run, photos / "cat" / "0.png", photos / "gone.png", "--json", "-q")
    assert status == 2
    found = json.loads(output)
    assert len(found["predictions"]) == 1
    assert "gone.png: no such file" in found["error"]
    assert "gone.png: no such file" in errors
