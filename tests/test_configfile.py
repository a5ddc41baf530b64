"""--config: every setting from a file; options win; what is not known is one sentence."""

import json
from dataclasses import fields

import pytest

from dspt.runs import Description


@pytest.fixture
def described(dspt, text_tower, data, tmp_path):
    """Return a function that trains, with a config file of this text, and returns what the run folder says."""

    def train(text, *words, name="run.yaml"):
        (tmp_path / name).write_text(text)
        status, _, errors = dspt("train", "--config", name, "--out", "run", "--overwrite", "-q", *words)
        assert status == 0, errors
        return json.loads((tmp_path / "run" / "config.json").read_text())

    return train


def test_every_kind_of_setting(described, text_tower, data):
    """2e-3 is a text for YAML 1.1, and a number for everybody else."""
    text = f"""
data: {data}
model: {text_tower}
method: gce
option: {{q: 0.5}}
epochs: 2
lr: 2e-3
class-specific: true
context_length: 2
context_words: null
noise: pair:0.2
exclude: [cat]
"""
    found = described(text)
    expected = {"method": "gce", "option": ["q=0.5"], "epochs": 2, "lr": 0.002, "class_specific": True}
    assert expected.items() <= found["settings"].items()
    assert found["settings"]["context_words"] is None
    assert found["noise"] == "pair:0.2"
    assert found["class_names"] == ["dog", "red panda", "ankle boot"]
    again = described(text, "--epochs", 1, "--noise", "none", "--option", "q=0.7")
    assert (again["settings"]["epochs"], again["noise"], again["settings"]["option"]) == (1, "none", ["q=0.7"])


def test_json_does_as_well(described, text_tower, data):
    text = json.dumps({"data": data, "model": text_tower, "epochs": 1, "option": ["s=0.5"], "seed": 7})
    assert described(text, name="run.json")["settings"]["seed"] == 7


def test_a_runs_own_config_makes_the_same_run(dspt, text_tower, data, tmp_path):
    """Also what was asked of the data: here which classes, which is no setting of the training."""
    asked = (
        "--noise",
        "sym:0.4",
        "--epochs",
        2,
        "--seed",
        3,
        "--classes",
        "new",
        "--method",
        "gce",
        "--option",
        "q=0.9",
    )
    status, _, errors = dspt("train", data, "--model", text_tower, *asked, "--out", "first", "-q")
    assert status == 0, errors
    status, _, errors = dspt("train", "--config", "first/config.json", "--out", "second", "-q")
    assert status == 0, errors
    first, second = (tmp_path / name for name in ("first", "second"))
    assert (first / "config.json").read_text() == (second / "config.json").read_text()
    assert (first / "labels.csv").read_bytes() == (second / "labels.csv").read_bytes()
    assert (first / "context.safetensors").read_bytes() == (second / "context.safetensors").read_bytes()


def test_what_came_of_a_run_is_not_asked_for_again(dspt, text_tower, data, tmp_path):
    """Every field of a description: a method of a second rule and a mended text have theirs."""
    asked = ("--method", "logitclip", "--option", "tau=0.2", "--epochs", 1)
    status, _, errors = dspt("train", data, "--model", text_tower, *asked, "--out", "first", "-q")
    assert status == 0, errors
    said = json.loads((tmp_path / "first" / "config.json").read_text())
    assert said["method_rule"] == 2
    facts = {field.name: said.get(field.name, True) for field in fields(Description) if field.name != "data_options"}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    status, _, errors = dspt("train", "--config", "config.json", "--test", data, "--out", "second", "-q")
    assert status == 0, errors
    assert json.loads((tmp_path / "second" / "config.json").read_text())["settings"] == said["settings"]


def test_a_network_has_its_own_command(dspt, tmp_path):
    settings = {"model": "small", "method": "gce", "learner": "network", "epochs": 1, "stem": "cifar"}
    (tmp_path / "config.json").write_text(json.dumps({"format": 2, "settings": settings, "data": "nowhere"}))
    assert "data nowhere: no such file or folder" in dspt("scratch", "--config", "config.json")[2]
    assert "setting 'stem' is not known" in dspt("train", "--config", "config.json")[2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epoch: 3", "run.yaml: setting 'epoch' is not known (did you mean epochs?); 'dspt train --help' lists them"),
        ("epochs: [1, 2]", "run.yaml: epochs = [1, 2]: expected one value"),
        ("- epochs", "run.yaml: expected settings with their values, as in 'epochs: 20'"),
        ("a: b: c", "run.yaml: not valid YAML"),
        ("!!python/object/apply:os.system [true]", "run.yaml: not valid YAML"),
        ("settings: 3", "run.yaml: it is not the config.json of a run"),
        ("{data: x, epochs: 1.5}", "'--epochs'"),
        ("config: other.yaml", "setting 'config' is not known"),
        ("data: nowhere", "data nowhere: no such file or folder"),
    ],
)
def test_what_is_wrong_is_one_sentence(dspt, tmp_path, text, sentence):
    (tmp_path / "run.yaml").write_text(text)
    status, output, errors = dspt("train", "--config", "run.yaml")
    assert (status, output) == (2, "")
    assert sentence in errors
    assert "Traceback" not in errors


def test_files_that_cannot_be_read(dspt, tmp_path):
    assert "config run.yaml: no such file" in dspt("train", "--config", "run.yaml")[2]
    (tmp_path / "run.txt").write_text("epochs: 1")
    assert "config run.txt: expected a .yaml or .json file" in dspt("train", "--config", "run.txt")[2]


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("a.yaml", "epochs: 1\nseed: 2\nepochs: 3\n", "epochs"),
        ("a.yaml", "option: {q: 0.5, q: 0.7}\n", "q"),
        ("a.yaml", "batch-size: 4\nbatch_size: 8\n", "batch_size"),
        ("a.json", '{"epochs": 1, "epochs": 3}', "epochs"),
        ("a.json", '{"option": {"q": 0.5, "q": 0.7}}', "q"),
    ],
)
def test_a_setting_that_is_there_twice_is_refused(dspt, data, tmp_path, name, text, key):
    (tmp_path / name).write_text(text)
    status, _, errors = dspt("train", data, "--config", name)
    assert (status, errors) == (2, f"dspt: {name}: setting {key!r} is there twice; leave one of them out\n")
