"""A run is a folder that explains itself, survives being killed, and is never mixed up with another."""

import dataclasses
import json
import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupted import Fault
from problems import NAMES, feature_file, finished_run, labels_in
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dspt
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.runs import Result, Run, find
from dspt.train import State
from dspt.workflows.train import run


@pytest.fixture(scope="module")
def clip(text_tower):
    return text_tower


def test_a_run_folder_explains_itself(clip, data, tmp_path):
    result = run(data, Config(model=clip, epochs=3), "sym:0.5", tmp_path / "run")
    folder = tmp_path / "run"
    described = json.loads((folder / "config.json").read_text())
    assert described["data"] == data
    assert described["noise"] == "sym:0.5"
    assert described["settings"]["epochs"] == 3
    assert described["class_names"] == ["cat", "dog", "red panda", "ankle boot"]
    environment = json.loads((folder / "environment.json").read_text())
    assert {"torch", "numpy", "python", "dspt", "platform", "threads"} <= environment.keys()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert {"loss", "loss_right", "loss_wrong", "accuracy", "lr"} <= records[0].keys()
    given = labels_in(folder / "labels.csv", NAMES)
    assert (given != np.load(data)["train_y"]).sum() == 50
    learnt = load_file(folder / "context.safetensors")
    assert learnt["context"].shape == (16, 32)
    assert learnt["prototypes"].shape == (4, 16)
    # the first epoch is the warm-up
    assert result.accuracy == pytest.approx(np.mean([record["accuracy"] for record in records[1:]]))
    assert result.epochs_averaged == 2
    assert result.last_accuracy == records[-1]["accuracy"]
    assert result.wrong_labels == 0.5
    written = json.loads((folder / "result.json").read_text())
    assert written.pop("seal").keys() == {"identity", "records", "digest"}
    assert written == result.as_dict()


def test_a_label_file_of_one_run_can_be_given_to_another(clip, data, tmp_path):
    config = Config(model=clip, epochs=2)
    first = run(data, config, "pair:0.4", tmp_path / "a")
    second = run(data, config, f"file:{tmp_path / 'a' / 'labels.csv'}", tmp_path / "b")
    assert second.accuracy == first.accuracy
    ours, theirs = (load_file(tmp_path / name / "context.safetensors") for name in "ab")
    assert {name: value.tobytes() for name, value in ours.items()} == {n: v.tobytes() for n, v in theirs.items()}


def test_a_done_run_is_not_repeated(clip, data, tmp_path):
    config = Config(model=clip, epochs=2)
    first = run(data, config, "none", tmp_path / "run")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    assert run(data, config, "none", tmp_path / "run") == first
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}.items() >= {
        k: v for k, v in before.items() if k != ".lock"
    }.items()


def test_a_folder_with_another_run_is_refused_and_kept(clip, data, tmp_path):
    run(data, Config(model=clip, epochs=1), "none", tmp_path / "run")
    before = (tmp_path / "run" / "context.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"\(seed is 1 there, 2 here\); choose another folder with `out`"):
        run(data, Config(model=clip, epochs=1, seed=2), "none", tmp_path / "run")
    with pytest.raises(InputError, match=r"noise is 'none' there, 'sym:0.2' here"):
        run(data, Config(model=clip, epochs=1), "sym:0.2", tmp_path / "run", overwrite=False)
    assert (tmp_path / "run" / "context.safetensors").read_bytes() == before
    anew = run(data, Config(model=clip, epochs=1, seed=2), "none", tmp_path / "run", overwrite=True)
    assert anew.seed == 2


def test_changed_data_are_noticed(clip, tmp_path):
    data = feature_file(tmp_path / "x.npz")
    run(str(data), Config(model=clip, epochs=1), "none", tmp_path / "run")
    feature_file(data, train=99)
    with pytest.raises(InputError, match="data_fingerprint is"):
        run(str(data), Config(model=clip, epochs=1), "none", tmp_path / "run")


def test_a_folder_of_something_else_is_left_alone(clip, data, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"files of something else in it \(thesis.tex\)"):
        run(data, Config(model=clip, epochs=1), "none", tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_two_processes_cannot_train_in_one_folder(clip, data, tmp_path):
    folder = Run(tmp_path / "run")
    with folder.locked(), pytest.raises(InputError, match="another process is training in it"):
        run(data, Config(model=clip, epochs=1), "none", tmp_path / "run")


def test_an_epoch_whose_state_was_not_saved_is_done_again(clip, data, tmp_path):
    """A kill between the record and the state of an epoch leaves one line too many."""
    config = Config(model=clip, epochs=3)
    whole = run(data, config, "none", tmp_path / "whole")
    run(data, config, "none", tmp_path / "cut")
    cut = tmp_path / "cut"
    (cut / "result.json").unlink()
    with open(cut / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 4, "acc')
    again = run(data, config, "none", cut)
    assert again.accuracy == whole.accuracy
    assert (cut / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_zero_shot_is_a_run_too(clip, data, tmp_path):
    result = run(data, Config(model=clip, method="zero-shot"), "none", tmp_path / "run")
    assert result.accuracy == result.zero_shot
    assert "context" not in load_file(tmp_path / "run" / "context.safetensors")


def test_a_checkpoint_folder_is_never_taken_for_a_run(clip, data, tmp_path):
    shutil.copytree(clip, tmp_path / "model")
    before = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    for overwrite in (False, True):
        with pytest.raises(InputError, match="files of something else"):
            run(data, Config(model=clip, epochs=1), "none", tmp_path / "model", overwrite)
    after = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir() if p.name != ".lock"}
    assert after == before
    only = tmp_path / "only"
    only.mkdir()
    (only / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(InputError, match=r"files of something else in it \(config.json\)"):
        run(data, Config(model=clip, epochs=1), "none", only, overwrite=True)


def test_a_kill_before_anything_was_described_does_no_harm(clip, data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text("{}")
    assert run(data, Config(model=clip, epochs=1), "none", tmp_path / "run").epochs == 1


def test_what_does_not_change_the_result_may_change_on_resuming(clip, data, tmp_path):
    first = run(data, Config(model=clip, epochs=1), "none", tmp_path / "run")
    moved = shutil.copy(data, tmp_path / "moved.npz")
    config = Config(model=clip + "/", epochs=1, text_memory=64, device="cpu")
    assert run(str(moved), config, "none", tmp_path / "run") == first


def test_names_and_words_are_checked_before_the_folder_is_made(clip, data, tmp_path):
    with pytest.raises(InputError, match="give a context length of 4"):
        run(data, Config(model=clip, context_words="a photo of a"), "none", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "state.safetensors"])
def test_a_damaged_file_is_named(clip, data, tmp_path, name):
    config = Config(model=clip, epochs=2)
    run(data, config, "none", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / name).write_text("nonsense\nnonsense\n")
    with pytest.raises(InputError, match=f"{name}.*start anew"):
        run(data, config, "none", tmp_path / "run")


def command(clip, data, out, *more):
    return [
        *("train", data, "--model", clip, "--method", "coop", "--noise", "sym:0.4"),
        *("--epochs", "12", "--out", str(out), "--json", *more),
    ]


def context_bytes(folder: Path) -> bytes:
    return (folder / "context.safetensors").read_bytes()


def test_kill_9_at_any_step_loses_nothing(victims, clip, data, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    done = victims(*command(clip, data, whole))
    assert done.status == 0, done.err
    for number in count(1):  # each goes on from where the one before it was killed, and comes a little further
        done = victims(*command(clip, data, out, "-q"), fault=Fault("kill", number, out))
        if not done.killed:
            break
    assert done.status == 0, done.err
    # before each file of the run was written, and before the record and the state of several epochs
    assert number > 20
    for name in ("context.safetensors", "metrics.jsonl", "labels.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (out, whole))
    assert ours["accuracy"] == theirs["accuracy"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.iterdir())


@pytest.mark.parametrize(("file", "number"), [("metrics.jsonl", 7), (".state.safetensors", 12)])
def test_ctrl_c_saves_and_says_how_to_go_on(victims, clip, data, tmp_path, file, number):
    """Before the record of an epoch is written, and before its state takes its place."""
    out = tmp_path / "run"
    stopped = victims(*command(clip, data, out, "--overwrite"), fault=Fault("ctrl-c", number, out / file))
    assert stopped.status == 130, stopped.err
    assert stopped.out == ""
    assert "Traceback" not in stopped.err
    assert f"To go on: dspt train {data}" in stopped.err
    assert "--overwrite" not in stopped.err, "going on must not start anew"
    epochs = Run(out).load_state()[0].epochs_done
    assert epochs == len((out / "metrics.jsonl").read_text().splitlines()) >= 3
    assert not (out / "result.json").exists()
    done = victims(*command(clip, data, out))
    assert f"going on after epoch {epochs} of 12" in done.err
    assert json.loads(done.out)["epochs"] == 12


def test_a_run_without_an_epoch_has_no_accuracy_of_its_own(clip, data, tmp_path):
    result = run(data, Config(model=clip, epochs=0), "none", tmp_path / "run")
    assert result.accuracy is None
    assert result.zero_shot is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 99}, "made by another version"),
        ({"settings": {"no_such_setting": 1}}, "'no_such_setting': not known"),
        ({"class_names": "ab"}, "not one of dspt's"),
        ({"settings": None}, "not one of dspt's"),
    ],
)
def test_a_folder_that_is_passed_over_is_told(tmp_path, change, reason):
    result = {"data": "x", "noise": "none", "method": "dspt", "seed": 1, "accuracy": 50.0}
    finished_run(tmp_path / "good", result)
    folder = finished_run(tmp_path / "odd", result)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | change))
    told = []
    assert [found.run.path.name for found in find(tmp_path, told.append)] == ["good"]
    assert reason in str(told[0])
    assert "odd" in str(told[0])


RESULT = {"data": "x", "noise": "none", "method": "dspt", "seed": 1, "accuracy": 50.0}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("accuracy", [True, "50", 1e308, -5, 100.1, float("nan"), float("inf"), 10**400, [50.0]]),
        ("last_accuracy", [False, -0.1, 101]),
        ("zero_shot", [1e308, float("nan")]),
        ("wrong_labels", [-0.1, 1.1, True]),
        ("loss", [float("inf"), "x"]),
        ("seconds", [float("inf"), -1.0, None, 1e300]),
        ("seed", ["1", 1.0, True]),
        ("epochs", [-1, 5.0, None, True]),
        ("samples", [-1, 0.5, True]),
        ("skipped", [-1, None, "0"]),
        ("noise_rate", ["x", float("nan"), True, None]),
        ("method", [1, None]),
    ],
)
def test_a_result_that_no_run_can_have_is_refused(field, values):
    for value in values:
        with pytest.raises(ValueError, match=field):
            Result.from_dict({"epochs": 5, **RESULT, field: value})


def test_a_result_at_the_bounds_is_read():
    for values in ({"accuracy": 0}, {"accuracy": 100.0, "wrong_labels": 1}, {"accuracy": None, "noise_rate": -1.5}):
        assert Result.from_dict({"epochs": 5, **RESULT, **values}).epochs == 5


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 2}, "its seed is 2, not 1"),
        ({"method": "coop"}, "its method is 'coop', not 'dspt'"),
        ({"noise": "sym:0.4"}, "its noise is 'sym:0.4', not 'none'"),
        ({"epochs": 6}, "its epochs is 6, not 5"),
        ({"data": "y"}, "its data is 'y', not '/somewhere/x.npz'"),
    ],
)
def test_the_result_of_another_run_is_refused(tmp_path, change, difference):
    folder = finished_run(tmp_path / "run", RESULT)
    described = json.loads((folder / "config.json").read_text()) | {"data": "/somewhere/x.npz"}
    (folder / "config.json").write_text(json.dumps(described))
    assert len(find(tmp_path)) == 1
    (folder / "result.json").write_text(json.dumps({"epochs": 5} | RESULT | change))
    told = []
    assert find(tmp_path, told.append) == []
    assert f"result.json belongs to another run ({difference})" in str(told[0])
    assert told[0].folder == folder


@pytest.mark.parametrize(
    ("source", "name"),
    [("pets", "OxfordPets"), ("cifar10", "cifar-10"), ("some/link", "photos"), (".", "photos"), ("a/b.csv", "b")],
)
def test_data_go_by_the_name_that_their_source_gives_them(tmp_path, source, name):
    folder = finished_run(tmp_path / "run", RESULT | {"data": name})
    described = json.loads((folder / "config.json").read_text()) | {"data": source}
    (folder / "config.json").write_text(json.dumps(described))
    assert len(find(tmp_path)) == 1


def test_a_run_of_zero_shot_has_no_epochs(tmp_path):
    finished_run(tmp_path / "run", RESULT | {"method": "zero-shot", "epochs": 0})
    assert len(find(tmp_path)) == 1


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes with names elsewhere")
@pytest.mark.parametrize("name", ["result.json", "config.json", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_what_is_no_regular_file_is_not_read(tmp_path, name, make):
    folder = finished_run(tmp_path / "run", RESULT)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    told = []
    assert find(tmp_path, told.append) == []
    assert f"{name} is not a regular file" in str(told[0])


def test_a_run_that_is_not_finished_is_told(tmp_path):
    folder = finished_run(tmp_path / "run", RESULT)
    (folder / "result.json").unlink()
    (folder / "state.safetensors").write_bytes(b"")
    told = []
    assert find(tmp_path, told.append) == []
    assert str(told[0]).startswith(f"run folder {folder}: it is not finished")


def test_all_of_a_state_is_saved(tmp_path):
    """Whatever tensors a state has, under whatever names; the number of epochs is beside them."""
    parts = [each.name for each in dataclasses.fields(State) if each.name != "epochs_done"]
    state = State(3, **{part: {"a.b": torch.full((2,), float(i))} for i, part in enumerate(parts)})
    run = Run(tmp_path)
    run.save_state(state, 1.5)
    again, seconds = run.load_state()
    assert seconds == 1.5
    assert again.epochs_done == 3
    for part in parts:
        assert torch.equal(getattr(again, part)["a.b"], getattr(state, part)["a.b"])


def test_a_parameter_is_not_lost_under_the_name_of_the_prototypes(tmp_path):
    with pytest.raises(ValueError, match="cannot be called prototypes"):
        Run(tmp_path).save_learnt({"prototypes": torch.ones(1)}, None)


@pytest.fixture(scope="module")
def finished(clip, data, tmp_path_factory) -> dict[str, Path]:
    """Return two runs that differ in their seed alone."""
    folders = {name: tmp_path_factory.mktemp("finished") / name for name in ("run", "other")}
    for seed, folder in enumerate(folders.values()):
        run(data, Config(model=clip, epochs=3, seed=seed), "none", folder)
    return folders


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """Return a copy of a finished run."""
    return shutil.copytree(finished["run"], tmp_path / "run")


def unfinished(folder: Path) -> Path:
    (folder / "result.json").unlink()
    return folder


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def edit_json(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_metadata(path: Path, change) -> None:
    with safe_open(path, framework="np") as file:
        known = json.loads(file.metadata()["dspt"])
    change(known)
    save_file(load_file(path), path, {"dspt": json.dumps(known)})


def unsealed(folder: Path) -> Path:
    """Return a run folder as it was written before there were seals."""
    edit_json(folder / "config.json", lambda described: described.update(format=1))
    edit_json(folder / "result.json", lambda figures: figures.pop("seal"))
    for name, kept in (("state.safetensors", ("epochs_done", "seconds")), ("context.safetensors", ())):
        with safe_open(folder / name, framework="np") as file:
            known = json.loads(file.metadata()["dspt"])
        metadata = {key: known[key] for key in kept} or {"format": "1"}
        save_file(load_file(folder / name), folder / name, metadata)
    return folder


OTHERS = "{} belongs to another run than config.json, or one of them was changed; remove the folder"
READERS = {"context.safetensors": Run.load_learnt, "state.safetensors": Run.load_state, "result.json": Run.result}


class TestIntegrity:
    """What has changed since it was written, or belongs to another run, is refused in one sentence."""

    @pytest.mark.parametrize("name", ["context.safetensors", "state.safetensors"])
    @pytest.mark.parametrize("place", [0.6, 0.8, 0.999])
    def test_a_flipped_bit(self, folder, name, place):
        flip(folder / name, place)
        with pytest.raises(InputError, match=f"{name} is damaged; remove the folder"):
            READERS[name](Run(folder))

    @pytest.mark.parametrize("name", READERS)
    def test_a_file_of_another_run(self, finished, folder, name):
        shutil.copy(finished["other"] / name, folder / name)
        with pytest.raises(InputError, match=OTHERS.format(name)):
            READERS[name](Run(folder))

    @pytest.mark.parametrize("name", READERS)
    @pytest.mark.parametrize(
        "change",
        [
            lambda described: described["class_names"].reverse(),
            lambda described: described["settings"].update(lr=0.1),
            lambda described: described.update(logit_scale=described["logit_scale"] / 2),
        ],
    )
    def test_a_config_that_was_changed(self, folder, name, change):
        edit_json(folder / "config.json", change)
        with pytest.raises(InputError, match=OTHERS.format(name)):
            READERS[name](Run(folder))
        told = []
        assert find(folder, told.append) == []
        assert len(told) == 1

    @pytest.mark.parametrize("name", ["config.json", "result.json"])
    def test_what_is_nested_deeper_than_anything_of_ours(self, folder, name):
        edit_json(folder / name, lambda value: value.update(deep=0))
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"deep": 0', '"deep": ' + '{"a":' * 900 + "0" + "}" * 900))
        with pytest.raises(InputError, match=r"run: "):
            Run(folder).result()

    def test_what_does_not_count_may_change(self, folder):
        edit_json(folder / "config.json", lambda described: described.update(data="moved.npz"))
        edit_json(folder / "config.json", lambda described: described["settings"].update(device="cpu"))
        for read in READERS.values():
            assert read(Run(folder)) is not None

    @pytest.mark.parametrize("change", [{"epochs_done": "2"}, {"seconds": "0"}, {"records": ""}])
    def test_a_state_that_claims_something_else(self, folder, change):
        edit_metadata(folder / "state.safetensors", lambda known: known.update(change))
        with pytest.raises(InputError, match=r"state.safetensors is damaged"):
            Run(folder).load_state()

    @pytest.mark.parametrize("change", [{"accuracy": 99.0}, {"epochs": 4}, {"noise": "sym:0.2"}, {"new": 1.0}])
    def test_a_figure_that_was_changed(self, folder, change):
        edit_json(folder / "result.json", lambda figures: figures.update(change))
        with pytest.raises(InputError, match=r"result.json is damaged"):
            Run(folder).result()

    def test_a_figure_without_its_seal(self, folder):
        edit_json(folder / "result.json", lambda figures: figures.pop("seal"))
        with pytest.raises(InputError, match=r"result.json is damaged"):
            Run(folder).result()

    @pytest.mark.parametrize("done", [True, False])
    def test_the_record_of_an_epoch_that_was_changed(self, folder, done):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        record = json.loads(lines[1])
        lines[1] = json.dumps(record | {"loss": record["loss"] / 2})
        (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
        with pytest.raises(InputError, match=r"metrics.jsonl is damaged"):
            Run(folder).records() if done else Run(unfinished(folder)).load_state()

    def test_runs_without_seals_are_read_as_before(self, clip, data, finished, folder):
        """Finished and half done."""
        x = np.eye(16, dtype=np.float32)
        expected, judged = Run(folder).result(), dspt.load(folder).decision_function(x)
        old = unsealed(folder)
        assert Run(old).result() == expected
        assert np.array_equal(dspt.load(old).decision_function(x), judged)
        again = run(data, Config(model=clip, epochs=3, seed=0), "none", unfinished(old))
        assert again.accuracy == expected.accuracy
        assert Run(old).result() == again

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda p: np.full_like(p, np.nan), "context.safetensors is damaged"),
            (lambda p: np.where(p == p.max(), np.inf, p), "context.safetensors is damaged"),
            (lambda p: p[:3], r"prototypes of shape \(3, 16\), and config.json names 4 classes"),
            (lambda p: p[0], r"prototypes of shape \(16,\), and config.json names 4 classes"),
        ],
    )
    def test_prototypes_that_make_no_sense(self, folder, change, sentence):
        old = unsealed(folder)
        learnt = load_file(old / "context.safetensors")
        learnt["prototypes"] = np.ascontiguousarray(change(learnt["prototypes"]))
        save_file(learnt, old / "context.safetensors", {"format": "1"})
        with pytest.raises(InputError, match=sentence):
            dspt.load(old)

    @pytest.mark.parametrize("scale", [0, -1.0, 1000.0, float("nan"), float("inf")])
    def test_a_scale_that_clip_cannot_have(self, folder, scale):
        old = unsealed(folder)
        edit_json(old / "config.json", lambda described: described.update(logit_scale=scale))
        with pytest.raises(InputError, match="the logit scale is"):
            dspt.load(old)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_the_files_of_a_run_share_one_mode(finished):
    assert len({path.stat().st_mode for path in finished["run"].iterdir()}) == 1


def test_what_a_killed_run_left_is_removed_by_the_next(clip, data, folder):
    left = [".state.safetensors.0123abcd-17-89abcdef.tmp", f".config.json.{os.getpid()}-89abcdef.tmp"]
    for name in left:
        (folder / name).write_text("half of")
    run(data, Config(model=clip, epochs=3, seed=0), "none", folder)
    assert not [name for name in left if (folder / name).exists()]


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_kept(clip, data, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(InputError, match=r"run: its .lock is a link to another file; remove it"):
        run(data, Config(model=clip, epochs=1), "none", tmp_path / "run")
    assert (tmp_path / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("name", ["labels.csv", "result.json", "metrics.jsonl"])
def test_files_that_are_called_like_those_of_a_run_are_left_alone(clip, data, tmp_path, name):
    (tmp_path / name).write_text("the user's")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=rf"files of something else in it \({name}\)"):
            run(data, Config(model=clip, epochs=1), "none", tmp_path, overwrite)
    assert (tmp_path / name).read_text() == "the user's"
