"""Whatever happens while a file is written: the same bits in the end, or one sentence, and never half of anything."""

import json
import os
import shutil
from itertools import chain, count
from pathlib import Path

import numpy as np
import pytest
from interrupted import Fault
from problems import features

import dspt
from dspt.runs import Run


@pytest.fixture(scope="module")
def train(text_tower, data):
    """Return the arguments of a short training run in a folder."""

    def arguments(out: Path, *more: object) -> list[object]:
        return ["train", data, "--model", text_tower, "--epochs", 1, "--out", out, "--json", "-q", *more]

    return arguments


@pytest.fixture(scope="module")
def whole(victims, train, tmp_path_factory) -> dict[int, Path]:
    """Return a finished run for each of two seeds."""
    folders = {seed: tmp_path_factory.mktemp("whole") / "run" for seed in (1, 2)}
    for seed, folder in folders.items():
        assert victims(*train(folder, "--seed", seed)).status == 0
    return folders


def same_run(out: Path, other: Path) -> bool:
    ours, theirs = (Run(folder).result().as_dict() for folder in (out, other))
    for figures in (ours, theirs):
        figures |= {"seconds": 0, "run": ""}
    learnt = ((folder / "context.safetensors").read_bytes() for folder in (out, other))
    return ours == theirs and len(set(learnt)) == 1


def test_a_run_that_is_overwritten_is_never_taken_for_the_new_one(victims, train, whole, tmp_path):
    anew, goes_on = 0, 0
    for number in chain(range(1, 31), count(31, 5)):  # at each step until the new run trains
        out = tmp_path / f"{number}"
        shutil.copytree(whole[1], out)
        done = victims(*train(out, "--seed", 2, "--overwrite"), fault=Fault("kill", number, out))
        if not done.killed:
            break
        # with --overwrite at every other kill, and without it
        again = victims(*train(out, "--seed", 2, *(["--overwrite"] if number % 2 else [])))
        if again.status:
            assert "it holds another run (seed is 1 there, 2 here)" in again.sentence
            assert same_run(out, whole[1])
            goes_on += 1
        else:
            assert same_run(out, whole[2]), number
            assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole[2].iterdir())
            anew += 1
        shutil.rmtree(out)
    assert done.status == 0
    assert same_run(out, whole[2])
    assert anew > 20
    assert goes_on, "before the rename the old run is there as it was"


def test_a_sweep_does_not_take_the_result_of_a_run_that_is_being_cleared(whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(whole[1], out)
    (out / "config.json").rename(out / ".cleared.json")
    assert Run(out).result() is None
    assert not Run(out).is_done


def test_a_full_disk_at_any_step_is_one_sentence_and_loses_nothing(victims, train, whole, tmp_path):
    out = tmp_path / "run"
    for number in count(1):
        done = victims(*train(out), fault=Fault("ENOSPC", number, out))
        if done.status == 0:
            break
        assert done.status == 1
        assert str(out) in done.sentence
        assert "No space left on device" in done.sentence
        assert done.out == ""
    assert number > 15
    assert same_run(out, whole[1])
    assert [p.name for p in out.iterdir() if p.name.endswith(".tmp")] == []


@pytest.fixture(scope="module")
def saved(text_tower, tmp_path_factory) -> dict[str, Path]:
    """Return the folders of two classifiers that differ in settings and parameters."""
    x, y = features(40)
    folders = {}
    for name, length in (("old", 4), ("new", 8)):
        classifier = dspt.PromptClassifier(model=text_tower, epochs=1, context_length=length)
        folders[name] = tmp_path_factory.mktemp("saved") / name
        classifier.fit(x, y, class_names=["a", "b", "c", "d"]).save(folders[name])
    return folders


@pytest.mark.parametrize("how", ["kill", "ENOSPC"])
def test_saving_over_a_classifier_leaves_the_old_or_the_new(victims, saved, tmp_path, how):
    x = features(20, seed=3)[0]
    expected = {4: dspt.load(saved["old"]).decision_function(x), 8: dspt.load(saved["new"]).decision_function(x)}
    out, seen = tmp_path / "out", []
    code = f"import dspt; dspt.load({str(saved['new'])!r}).save({str(out)!r})"
    for number in count(1):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(saved["old"], out)
        done = victims(code=code, fault=Fault(how, number, out))
        found = dspt.load(out)
        assert np.array_equal(found.decision_function(x), expected[found.context_length]), number
        seen.append(found.context_length)
        if done.status == 0:
            break
        if number % 3 == 0:
            assert victims(code=code).status == 0
            assert dspt.load(out).context_length == 8
            assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in saved["old"].iterdir())
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert set(seen) == {4, 8}


def test_a_first_save_that_is_killed_can_be_done_again(victims, saved, tmp_path):
    out = tmp_path / "out"
    code = f"import dspt; dspt.load({str(saved['new'])!r}).save({str(out)!r})"
    for number in count(1):
        if victims(code=code, fault=Fault("kill", number, out)).status == 0:
            break
    assert number > 5
    assert dspt.load(out).context_length == 8


EXPORT = """
import numpy as np
from dspt.data import Dataset, Split, write_image_folder
split = Split(np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3), np.arange(4) % 2)
write_image_folder(Dataset("x", ("a", "b"), split, split), {!r})
"""


@pytest.mark.parametrize("how", ["kill", "ENOSPC"])
def test_half_an_export_is_no_folder_and_a_rerun_finishes_it(victims, tmp_path, how):
    out = tmp_path / "photos"
    for number in count(1):
        done = victims(code=EXPORT.format(str(out)), fault=Fault(how, number, tmp_path))
        if done.status == 0:
            break
        assert not out.exists(), number
        if how == "ENOSPC":
            assert f"FileError: {out}: cannot be written (No space left on device); make room there" in done.err
    assert number > 20
    assert len(list(out.rglob("*.png"))) == 8
    assert os.listdir(tmp_path) == ["photos"], "what killed processes left is gone"


def test_every_command_tells_of_a_full_disk_in_one_sentence(victims, train, data, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    commands = {
        "noise": ["noise", data, "--noise", "sym:0.4", "--out", tmp_path / "labels.csv"],
        "encoding": ["zeroshot", "embedded", "--model", "embedded"],
        "export": ["data", "export", tmp_path / "photos"],
        "report": ["report", "--runs", whole[1].parent, "--out", tmp_path / "report.html"],
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
    assert same_run(tmp_path / "run", whole[1])


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
    assert same_run(tmp_path / "run", whole[1])


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
        ["report", "--runs", whole[1].parent, "--out", below / "report.html"],
    ):
        done = victims(*arguments)
        assert done.status == 1, done
        assert str(below) in done.sentence


def test_results_of_a_damaged_folder_are_never_printed(victims, train, whole, tmp_path):
    """Half of result.json, or a digit of it: a sentence, not another accuracy."""
    out = tmp_path / "run"
    shutil.copytree(whole[1], out)
    text = (out / "result.json").read_text()
    accuracy = json.loads(text)["accuracy"]
    for damaged in (text[: len(text) // 2], text.replace(f'"accuracy": {accuracy}', f'"accuracy": {accuracy + 1}')):
        assert damaged != text
        (out / "result.json").write_text(damaged)
        done = victims(*train(out))
        assert "result.json" in done.sentence
        assert done.out == ""
