"""What is not known is not told: which labels are wrong, and what an accuracy is worth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from problems import QUIET

from dspt import noise
from dspt.config import Config, NetworkConfig
from dspt.data import open_dataset
from dspt.data.dataset import Dataset, Split
from dspt.internal.errors import InputError
from dspt.internal.names import PAPER_MODEL
from dspt.learners import open_text_tower
from dspt.problem import pose
from dspt.runs import Run
from dspt.workflows.evaluate import evaluate, zero_shot
from dspt.workflows.train import run

SIDES = {
    *("loss_right", "loss_wrong", "gradient_right", "gradient_wrong", "gradient_histogram"),
    *("loss_correct", "loss_incorrect"),
}


def trained(source, text_tower, out, spec="none", **settings):
    """Return the result of two epochs."""
    config = Config(model=str(text_tower), epochs=2, device="cpu", **settings)
    return run(source, config, spec, out, reporter=QUIET)


class TestLabelsOfWhichNothingIsKnown:
    def test_nothing_says_how_many_are_wrong(self, data, text_tower, tmp_path):
        result = trained(data, text_tower, tmp_path / "run")
        assert result.wrong_labels is None
        assert result.test_labels_known is False
        assert json.loads((tmp_path / "run" / "result.json").read_text())["wrong_labels"] is None
        for record in Run(tmp_path / "run").records():
            assert not SIDES & record.keys()

    @pytest.mark.parametrize("method", ["coop", "gce", "dspt-auto", "zero-shot"])
    def test_an_estimate_stands_beside_the_accuracy_of_every_method(self, data, text_tower, tmp_path, method):
        result = trained(data, text_tower, tmp_path / "run", method=method)
        assert 0 <= result.found["noise_rate"] <= 1
        assert 0 <= result.found["noise_rate_error"] <= 1

    def test_the_estimate_is_the_same_whoever_asks(self, data, text_tower, tmp_path):
        one = trained(data, text_tower, tmp_path / "a", method="coop")
        other = trained(data, text_tower, tmp_path / "b", method="dspt-auto")
        estimate = {name: other.found[name] for name in ("noise_rate", "noise_rate_error")}  # beside its learning rate
        assert one.found == pytest.approx(estimate, abs=1e-6)

    def test_a_network_from_scratch_cannot_estimate_and_does_not_pretend(self, tmp_path):
        x, y = np.zeros((8, 32, 32, 3), np.uint8), np.arange(8) % 2
        images = Dataset("images", ("cat", "dog"), Split(x, y), Split(x, y))
        result = run(images, NetworkConfig(model="small", epochs=1, batch_size=4, device="cpu"), out=tmp_path / "run")
        assert result.wrong_labels is None
        assert result.found == {}

    def test_the_command_says_so(self, dspt, data, text_tower):
        status, output, _ = dspt("train", data, "--model", text_tower, "--epochs", 3, "-q")
        assert status == 0
        assert "share of wrong labels unknown" in output
        assert "judged by labels that may be wrong" in output
        assert "estimated share of wrong labels: " in output


class TestLabelsOfWhichTheTruthIsKnown:
    def test_noise_that_was_made_here_is_known(self, data, text_tower, tmp_path):
        result = trained(data, text_tower, tmp_path / "run", "sym:0.4")
        assert result.wrong_labels == 0.4
        assert "noise_rate" not in result.found
        assert result.test_labels_known is False, "noise says nothing about the labels of the test set"
        assert Run(tmp_path / "run").records()[0].keys() >= SIDES

    def test_a_benchmark_is_right_by_definition(self):
        embedded = open_dataset("embedded")
        assert embedded.train.truth_known
        assert embedded.test.truth_known
        task = pose(embedded, Config(device="cpu", shots=1), noise.NoiseSpec())
        assert task.problem.wrong_share == 0.0

    def test_a_column_of_true_labels_is_believed_and_its_gaps_are_not_filled(self, clip, tmp_path):
        rows = ["path,label,true_label,split"]
        # four wrong of six that are known; two more of which nothing is known
        true = ["dog", "dog", "dog", "cat", "cat", "dog", "", ""]
        for i, (given, right) in enumerate(
            zip(["cat", "cat", "dog", "dog", "dog", "dog", "cat", "dog"], true, strict=True)
        ):
            Image.new("RGB", (32, 32), (30 * i, 0, 0)).save(tmp_path / f"{i}.png")
            rows.append(f"{i}.png,{given},{right},train")
            rows.append(f"{i}-test.png,{given},,test")
            Image.new("RGB", (32, 32), (0, 30 * i, 0)).save(tmp_path / f"{i}-test.png")
        (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
        result = run(str(tmp_path / "m.csv"), Config(model=str(clip), epochs=1, device="cpu"), out=tmp_path / "run")
        assert result.wrong_labels == pytest.approx(4 / 6, abs=1e-6)
        histogram = Run(tmp_path / "run").records()[0]["gradient_histogram"]
        assert (sum(histogram["right"]), sum(histogram["wrong"])) == (2, 4)


class TestATrustedTestSet:
    def test_all_of_the_source_is_learnt_from_and_all_of_the_test_set_judged(self, dspt, clip, photos, tmp_path):
        status, output, errors = dspt(
            *("train", photos, "--test", photos, "--model", clip, "--epochs", 2, "--out", "run", "--json")
        )
        assert status == 0, errors
        assert "held out" not in errors
        result = json.loads(output)
        assert result["samples"] == 18
        assert result["test_labels_known"] is True
        assert result["wrong_labels"] is None, "a trusted test set says nothing about the labels that are learnt"
        judged = evaluate(tmp_path / "run", str(photos), QUIET)
        assert judged["samples"] == 18
        assert judged["accuracy"] == pytest.approx(result["last_accuracy"])
        assert json.loads((tmp_path / "run" / "config.json").read_text())["test"] == str(photos)

    def test_its_classes_are_matched_by_name(self):
        x = np.eye(4, dtype=np.float32)
        source = Dataset("source", ("cat", "dog"), Split(x, np.array([0, 1, 0, 1])), Split(x[:1], np.array([0])))
        other = Dataset("other", ("dog", "cat"), Split(x, np.array([0, 1, 1, 1])), Split(x[:0], np.empty(0, np.int64)))
        test = source.tested_on(other).test
        assert test.labels.tolist() == [1, 0, 0, 0]
        assert test.truth_known

    def test_a_class_that_is_not_trained_is_named(self):
        x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
        source = Dataset("source", ("cat", "dog"), Split(x, y), Split(x, y))
        with pytest.raises(InputError, match="class 'cow' is not among the classes of source"):
            source.tested_on(Dataset("other", ("cat", "cow"), Split(x, y), Split(x, y)))


class TestTheModel:
    def test_embedded_data_have_their_own_and_all_others_the_papers(self, data, photos):
        assert open_dataset("embedded").model_for("auto") == "embedded"
        for source in (data, photos):
            assert open_dataset(source).model_for("auto") == PAPER_MODEL
        assert open_dataset(data).model_for("embedded") == "embedded"

    def test_where_the_papers_cannot_be_had_one_sentence_says_what_to_do(self, dspt, photos, monkeypatch, tmp_path):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr("huggingface_hub.snapshot_download", _nothing_there)
        for command in (("train", photos), ("zeroshot", photos), ("noise", photos, "--noise", "inst:0.3")):
            status, _, errors = dspt(*command, "-q")
            assert status == 2
            assert f"model {PAPER_MODEL}: " in errors
            assert f"hf download {PAPER_MODEL}" in errors
            assert "a local folder as --model" in errors
            assert "--model embedded" in errors

    def test_every_result_names_it(self, dspt, clip, photos, tmp_path):
        status, output, _ = dspt("train", photos, "--model", clip, "--epochs", 2, "--out", "run", "-q")
        assert status == 0
        assert f"model {clip}" in output
        assert json.loads((tmp_path / "run" / "result.json").read_text())["model"] == str(clip)
        assert f"model {clip}" in dspt("eval", "run", photos, "-q")[1]
        assert f"model {clip}" in dspt("zeroshot", photos, "--model", clip, "-q")[1]
        assert zero_shot("embedded", Config(device="cpu"), QUIET)["model"] == "embedded"

    def test_settings_without_data_mean_the_papers(self, monkeypatch):
        monkeypatch.setattr("huggingface_hub.snapshot_download", _nothing_there)
        with pytest.raises(InputError, match=f"model {PAPER_MODEL}: "):
            open_text_tower(Config())


def _nothing_there(*_: object, **__: object) -> Path:
    raise FileNotFoundError("not cached")


class TestTheHeadline:
    def test_it_says_over_which_epochs_it_is_a_mean_and_what_the_saved_model_has(
        self, dspt, data, text_tower, tmp_path
    ):
        _, output, _ = dspt("train", data, "--model", text_tower, "--epochs", 4, "--out", "run", "-q")
        accuracies = [record["accuracy"] for record in Run(tmp_path / "run").records()]
        lines = {line.rsplit("  ", 1)[0].strip(): line for line in output.splitlines()}
        assert f"{np.mean(accuracies[1:]):.2f} %" in lines["dspt, mean of the last 3 epochs"]
        assert f"{accuracies[-1]:.2f} %" in lines["dspt, as saved after epoch 4"]
        judged = evaluate(tmp_path / "run", str(data), QUIET)
        assert judged["accuracy"] == pytest.approx(accuracies[-1])


class TestTheReport:
    def test_a_run_whose_labels_nobody_knows_is_not_called_clean(self, dspt, data, text_tower, tmp_path):
        dspt("train", data, "--model", text_tower, "--epochs", 2, "--method", "coop", "--out", "runs/plain", "-q")
        dspt("train", data, "--model", text_tower, "--epochs", 2, "--noise", "sym:0.4", "--out", "runs/noisy", "-q")
        status, _, errors = dspt("report", "--runs", "runs", "--out", "page.html")
        assert status == 0, errors
        page = (tmp_path / "page.html").read_text()
        assert "unknown, perhaps " in page
        assert ">40.0<" in page
        assert "may be wrong" in page
        assert "clean" not in page


class TestTruthThatIsKnownInPart:
    """Eight train images: of two nobody knows whether their label is wrong, of the others four are."""

    @pytest.fixture
    def manifest(self, tmp_path):
        rows = ["path,label,true_label,split"]
        true = ["dog", "dog", "dog", "cat", "cat", "dog", "", ""]
        labels = ["cat", "cat", "dog", "dog", "dog", "dog", "cat", "dog"]
        for i, (given, right) in enumerate(zip(labels, true, strict=True)):
            for split in ("train", "test"):
                Image.new("RGB", (32, 32), (30 * i, 9 * len(split), 0)).save(tmp_path / f"{i}-{split}.png")
                rows.append(f"{i}-{split}.png,{given},{right if split == 'train' else ''},{split}")
        path = tmp_path / "m.csv"
        path.write_text("\n".join(rows) + "\n")
        return path

    def test_the_share_says_of_how_many_it_is(self, dspt, clip, manifest):
        status, output, errors = dspt("train", manifest, "--model", clip, "--epochs", 1, "--out", "run", "-q")
        assert status == 0, errors
        assert "67 % of the 6 of 8 labels that are known wrong" in output
        assert "estimated share of wrong labels: " in output

    def test_noise_does_not_make_it_known(self, dspt, manifest, tmp_path):
        status, _, errors = dspt("noise", manifest, "--noise", "sym:0.5", "--out", "made.csv", "-q")
        assert status == 0, errors
        rows = [line.split(",") for line in (tmp_path / "made.csv").read_text().splitlines()[1:]]
        assert [true for _, _, true in rows] == ["dog", "dog", "dog", "cat", "cat", "dog", "", ""]


class TestJudgingOthers:
    def test_an_estimate_stands_beside_what_eval_and_zeroshot_say(self, dspt, clip, photos):
        dspt("train", photos, "--model", clip, "--epochs", 1, "--out", "run", "-q")
        for command in (("eval", "run", photos), ("zeroshot", photos, "--model", clip)):
            found = json.loads(dspt(*command, "--json", "-q")[1])
            assert 0 <= found["noise_rate"] <= 1
            assert "estimated share of wrong labels: " in dspt(*command, "-q")[1]

    def test_test_images_that_are_learnt_from_are_counted(self, dspt, clip, photos):
        _, _, errors = dspt("train", photos, "--test", photos, "--model", clip, "--epochs", 1, "--out", "run")
        assert "18 of the 18 images of the test set" in errors
        assert "are learnt from, too" in errors
