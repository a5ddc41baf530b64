"""The command line: JSON last on stdout, progress on stderr, bad input in one sentence with status 2."""

import json
import subprocess
import sys

import numpy as np
import pytest
from problems import NAMES, features


def test_train_prints_the_figures_as_json(dspt, text_tower, data, tmp_path):
    status, output, errors = dspt(
        *("train", data, "--model", text_tower, "--method", "dspt", "--noise", "sym:0.4"),
        *("--epochs", 6, "--seed", 3, "--out", tmp_path / "run", "--json"),
    )
    assert status == 0
    result = json.loads(output)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert result["accuracy"] == pytest.approx(np.mean([r["accuracy"] for r in records[-5:]]))
    assert 0 <= result["zero_shot"] <= 100
    expected = {"method": "dspt", "noise": "sym:0.4", "seed": 3, "epochs": 6}
    assert expected.items() <= result.items()
    assert result["seconds"] >= 0
    assert "epoch 6/6" in errors


def test_train_eval_and_predict_on_a_folder_of_images(dspt, clip, photos, tmp_path):
    status, output, errors = dspt("train", photos, "--model", clip, "--epochs", 2, "--seed", 2, "--json")
    assert status == 0, errors
    assert "held out" in errors, "a split nobody asked for must be said aloud"
    run = json.loads(output)["run"]

    status, output, errors = dspt("eval", run, photos, "--json")
    assert status == 0
    evaluated = json.loads(output)
    assert evaluated["samples"] == 18, "a folder without a split is judged as a whole"
    assert "has learnt from most of these images" in errors
    assert evaluated["model"] == str(clip)
    assert evaluated["test_labels_known"] is False
    assert set(evaluated["per_class"]) == {"cat", "red_panda", "dog"}

    status, output, _ = dspt("predict", run, photos / "cat" / "0.png", photos / "dog", "--top", 2, "--json", "-q")
    predictions = json.loads(output)["predictions"]
    assert len(predictions) == 7
    best = predictions[0]["classes"]
    assert len(best) == 2
    assert best[0]["probability"] >= best[1]["probability"]
    status, output, _ = dspt("predict", run, photos / "cat" / "0.png", "-q")
    assert f"0.png: {best[0]['class']} {100 * best[0]['probability']:.1f} %" in output


def test_zeroshot_is_what_transformers_gives(dspt, text_tower, data):
    import torch
    from transformers import CLIPTextModelWithProjection, CLIPTokenizerFast

    model = CLIPTextModelWithProjection.from_pretrained(text_tower)
    tokenizer = CLIPTokenizerFast.from_pretrained(text_tower)
    texts = tokenizer([f"a picture of a {n}." for n in NAMES], padding=True, return_tensors="pt")
    with torch.no_grad():
        class_features = model(**texts).text_embeds.numpy()
    class_features /= np.linalg.norm(class_features, axis=1, keepdims=True)
    x, y = features(40, 2)
    expected = 100 * ((x @ class_features.T).argmax(1) == y).mean()
    status, output, _ = dspt("zeroshot", data, "--model", text_tower, "--template", "a picture of a {}.", "--json")
    assert status == 0
    assert json.loads(output)["accuracy"] == pytest.approx(expected)


def test_plain_output_is_for_people(dspt, text_tower, data):
    status, output, _ = dspt("train", data, "--model", text_tower, "--noise", "pair:0.4", "--epochs", 1)
    assert status == 0
    assert "40 % of the labels wrong" in output
    assert "zero-shot" in output
    assert "run folder: runs/pets-dspt-pair-0.4-seed1" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere"], "data nowhere: no such file or folder"),
        (["train", "DATA", "--model", "nowhere"], "model nowhere: no such folder"),
        (["train", "DATA", "--method", "copo"], "did you mean coop?"),
        (["train", "DATA", "--noise", "sym:40"], "did you mean 0.4?"),
        (["train", "DATA", "--noise", "sym:1.4"], "noise rate: expected a number in 0..1, found 1.4\n"),
        (["train", "DATA", "--noise", "loud:0.4"], "no kind 'loud'"),
        (["train", "DATA", "--noise", "file:nope.csv"], "nope.csv"),
        (["train", "DATA", "--epochs", "-3"], "epochs = -3"),
        (["train", "DATA", "--option", "q=1"], "method dspt takes s"),
        (["train", "DATA", "--views", "2"], "holds features, not images"),
        (["train", "DATA", "--device", "abacus"], "device 'abacus'"),
        (["train", "DATA", "--template", "{}{}"], "exactly one {}"),
        (["demo", "--epochs", "0"], "epochs = 0: expected at least 1"),
        (["data", "export", "DATA"], "give a new folder"),
        (["eval", "nowhere", "DATA"], "run folder nowhere: no such folder"),
        (["predict", "nowhere", "x.png"], "run folder nowhere: no such folder"),
        (["zeroshot", "DATA", "--template", "no name"], "exactly one {}"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(dspt, text_tower, data, arguments, message):
    arguments = [data if a == "DATA" else a for a in arguments]
    if "--model" not in arguments and arguments[0] in ("train", "zeroshot"):
        arguments += ["--model", text_tower]
    status, output, errors = dspt(*arguments, *(["--json"] if arguments[0] != "data" else []))
    assert status == 2
    assert output == ""
    assert message in errors
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if line.startswith("dspt: ")]) == 1


def test_usage_errors_have_status_2(dspt):
    assert dspt("train")[0] == 2
    assert dspt("train", "x", "--nonsense")[0] == 2
    assert dspt("fly")[0] == 2


def test_eval_matches_classes_by_name_not_by_number(dspt, text_tower, data, tmp_path):
    dspt("train", data, "--model", text_tower, "--epochs", 2, "--out", tmp_path / "run", "-q")
    with np.load(data) as file:
        arrays = dict(file)
    order = np.array([2, 0, 3, 1])
    arrays["classnames"] = arrays["classnames"][order]
    for split in ("train", "test"):
        arrays[f"{split}_y"] = np.argsort(order)[arrays[f"{split}_y"]]
    np.savez(tmp_path / "reordered.npz", **arrays)
    same = [json.loads(dspt("eval", tmp_path / "run", d, "--json", "-q")[1]) for d in (data, "reordered.npz")]
    assert same[0]["accuracy"] == same[1]["accuracy"]
    arrays["classnames"][0] = "zebra"
    np.savez(tmp_path / "other.npz", **arrays)
    status, _, errors = dspt("eval", tmp_path / "run", "other.npz")
    assert status == 2
    assert "class 'zebra' is not among the 4 classes" in errors
    assert "with --classes data a prompt is judged in those" in errors


def test_a_bad_image_is_named(dspt, clip, photos, tmp_path):
    (photos / "cat" / "broken.png").write_bytes(b"\x89PNG nonsense")
    status, _, errors = dspt("train", photos, "--model", clip, "--epochs", 1)
    assert status == 2
    assert "broken.png" in errors
    assert not (tmp_path / "runs").exists()


def test_help_needs_neither_torch_nor_transformers():
    code = (
        "import sys; from dspt.cli import app; sys.argv = ['dspt', 'train', '--help']\n"
        "try: app()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'matplotlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--noise" in done.stdout


def test_every_command_has_examples_in_its_help_each_on_a_line(dspt):
    def commands(*name):
        listed = dspt(*name, "--help")[1].split("Commands:\n")[1].splitlines()
        return [(*name, line.split()[0]) for line in listed]

    for command in [*commands(), *commands("data")]:
        if command == ("data",):
            continue
        status, output, _ = dspt(*command, "--help")
        assert status == 0
        name = " ".join(command)
        lines = output.split("Examples:\n")[1].split("\n\n")[0].splitlines()
        assert any(line.startswith(f"    dspt {name}") for line in lines), output
        assert all(line.startswith("    dspt ") for line in lines), output


def test_the_list_of_commands_has_whole_sentences(dspt):
    for group in ((), ("data",)):
        listed = dspt(*group, "--help")[1].split("Commands:\n")[1].splitlines()
        assert all(line.endswith(".") and not line.endswith("...") for line in listed), listed


def test_methods_are_listed_with_formula_defaults_and_source(dspt):
    status, output, _ = dspt("methods", "--json")
    rows = {row["name"]: row for row in json.loads(output)["methods"]}
    assert status == 0
    assert rows["gce"]["options"] == {"q": 0.7}
    assert rows["gce"]["formula"] == "(1 - p_y^q) / q"
    assert "Zhang and Sabuncu" in rows["gce"]["source"]
    status, output, _ = dspt("methods")
    assert all(f"\n{name} " in f"\n{output}" for name in rows)


def test_training_on_features_does_not_wait_for_torchs_compiler(clip, data, tmp_path):
    arguments = ["dspt", "train", data, "--model", clip, "--epochs", "1", "-q"]
    code = (
        "import sys; from dspt.cli import app\n"
        f"sys.argv = {[*arguments, '--out', str(tmp_path / 'run')]!r}\n"
        "try: app()\nexcept SystemExit: pass\n"
        "assert not {'torch._dynamo', 'sympy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(("asked", "found"), [("72", 72), ("", 120), ("0", 120), ("many", 120)])
def test_columns_are_honoured_where_there_is_no_terminal(asked, found, monkeypatch):
    from dspt.cli.common import terminal_width

    monkeypatch.setenv("COLUMNS", asked)
    assert terminal_width(otherwise=120) == found
