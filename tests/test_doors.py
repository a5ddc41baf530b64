"""Claims about run folders from a stranger: every command that reads one says in a sentence what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import NAMES
from safetensors.torch import load_file, save_file

from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.files import parse_json, read_json
from dspt.runs import Run
from dspt.workflows import train

posix = pytest.mark.skipif(os.name != "posix", reason="needs the pipes of POSIX")
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(text_tower: str, data: str, tmp_path_factory) -> Path:
    """Return a finished run, of the first format, that knows no checksums."""
    folder = tmp_path_factory.mktemp("made") / "run"
    train.run(data, Config(model=text_tower, epochs=2), out=folder)
    rewrite(folder / "config.json", format=1)
    result = json.loads((folder / "result.json").read_text())
    result.pop("seal", None)
    (folder / "result.json").write_text(json.dumps(result))
    for name, metadata in (("state", {"epochs_done": "2", "seconds": "1.5"}), ("context", {})):
        file = folder / f"{name}.safetensors"
        save_file(load_file(file), file, metadata)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def refused(dspt, data):
    """A function that returns the sentence by which a run is refused."""

    def call(run: Path) -> str:
        status, output, errors = dspt("eval", run, data, "-q")
        assert (status, output, errors.count("\n")) == (2, "", 1), errors
        return errors

    return call


def rewrite(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | values), encoding="utf-8")


def test_the_run_is_good(run, data, dspt):
    assert dspt("eval", run, data, "-q")[0] == 0


@pytest.mark.parametrize(
    "values",
    [
        *({"settings": value} for value in (None, [], 3, {"lr": None}, {"lr": 10**400}, {"epochs": "x"})),
        *({"settings": {"learner": value}} for value in ("cocoop", "nobody", None, [])),
        *({"logit_scale": value} for value in (None, 1000, 0, -1, float("nan"), [1, 2], "100", True, 10**400)),
        *(
            {"class_names": value}
            for value in (None, [], "cats", [1, 2, 3, 4], [*NAMES, "more"], ["\ud800", *NAMES[1:]])
        ),
        *({"labels": value} for value in (3, [1], [[1]] * 4, [None] * 4)),
        *({"model_fingerprint": value} for value in (3, [])),
        {"tokenizer_fingerprint": 3},
        {"format": [1]},
    ],
)
def test_a_description_that_is_none_is_refused(run, refused, values):
    rewrite(run / "config.json", **values)
    assert str(run) in refused(run)


def test_a_context_that_no_tower_holds_is_refused(dspt, data, text_tower):
    status, _, errors = dspt("train", data, "--model", text_tower, "--context-length", 100_000_000, "-q")
    assert (status, errors.count("\n")) == (2, 1)
    assert "context length 100000000" in errors


@pytest.mark.parametrize("name", ["lr", "warmup-lr", "weight-decay"])
def test_a_rate_beyond_single_precision_is_refused(dspt, data, text_tower, name):
    status, _, errors = dspt("train", data, "--model", text_tower, f"--{name}", "1e308", "--epochs", 2, "-q")
    assert (status, errors.count("\n")) == (2, 1)
    assert f"{name.replace('-', '_')} = 1e+308: expected a finite number, at least 0 and at most 1e+38" in errors


@pytest.mark.parametrize("text", ["{", DEEP, "", "[]", "null", b"\xff\xfe{}"])
def test_a_config_that_is_no_json_is_refused(run, refused, text):
    (run / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert str(run) in refused(run)


def test_a_folder_in_place_of_config_is_refused(run, refused):
    (run / "config.json").unlink()
    (run / "config.json").mkdir()
    assert "config.json: cannot be read (not a regular file)" in refused(run)


@posix
@pytest.mark.parametrize("file", ["config.json", "context.safetensors"])
def test_nobody_waits_for_a_pipe(run, refused, file):
    (run / file).unlink()
    os.mkfifo(run / file)
    assert "cannot be read (not a regular file)" in refused(run)


@posix
@pytest.mark.parametrize("file", ["result.json", "metrics.jsonl", "state.safetensors"])
def test_nor_for_one_that_tables_and_resumption_read(run, file):
    (run / file).unlink()
    os.mkfifo(run / file)
    read = {"result.json": Run.result, "metrics.jsonl": Run.records, "state.safetensors": Run.load_state}[file]
    with pytest.raises(InputError, match=file):
        read(Run(run))


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        DEEP.encode(),
        b"[]",
        b"3",
        b'{"epoch": "1"}',
        b'{"epoch": 1, "accuracy": "x"}',
        b'{"epoch": 1, "loss": [1]}',
        b'{"epoch": 1, "gradient_histogram": 3}',
        b'{"epoch": 1, "gradient_histogram": {"edges": [1], "right": ["x"], "wrong": []}}',
    ],
)
def test_records_that_are_none_are_refused(run, line):
    (run / "metrics.jsonl").write_bytes(line + b"\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
        Run(run).records()


def test_records_without_a_test_or_of_an_endless_loss_are_read(run):
    (run / "metrics.jsonl").write_text('{"epoch": 1, "loss": null}\n{"epoch": 2, "loss": NaN}\n')
    assert [record["epoch"] for record in Run(run).records()] == [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.flatten(),
        lambda t: t.long(),
        lambda t: t.double(),
        lambda t: t[1:],
        lambda t: t * torch.nan,
    ],
    ids=["one-dimensional", "integers", "double", "of fewer classes", "not numbers"],
)
def test_prototypes_that_are_none_are_refused(run, refused, change):
    file = run / "context.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "prototypes": change(tensors["prototypes"]).clone()}, file)
    assert "context.safetensors" in refused(run)


class TestReader:
    @pytest.mark.parametrize(("depth", "good"), [(50, True), (51, False), (990, False), (100_000, False)])
    def test_what_is_nested_too_deeply_is_refused(self, depth, good):
        text = "[" * (depth - 1) + "1" + "]" * (depth - 1)
        if good:
            assert str(parse_json(text)).count("[") == depth - 1
        else:
            with pytest.raises(InputError, match="nested too deeply"):
                parse_json(text)

    def test_a_number_of_too_many_digits_is_refused(self):
        with pytest.raises(InputError, match="not valid JSON"):
            parse_json("9" * 5000)

    def test_what_is_too_large_is_not_read(self, tmp_path):
        with open(tmp_path / "large.json", "wb") as file:
            file.truncate(2**40)  # takes no room on disk
        with pytest.raises(InputError, match=r"large\.json: larger than 64 MiB"):
            read_json(tmp_path / "large.json")

    def test_that_there_is_no_file_is_left_to_the_caller(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read_json(tmp_path / "none.json")
