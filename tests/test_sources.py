"""From every source to training with one command, and labels that stay with their images."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from problems import NAMES, feature_file, labels_in

from dspt import corrupt
from dspt.config import Config
from dspt.data import few_shot, nine, open_dataset
from dspt.workflows.train import run

CLASSES = ("cat", "dog", "red_panda")


def photo(path: Path, shade: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shade)
    Image.fromarray(rng.integers(0, 256, (12, 14, 3), dtype=np.uint8)).save(path)
    return str(path)


def manifest(folder: Path) -> Path:
    """Write 24 train and 6 test images; every third train image has a wrong label."""
    rows = [("path", "label", "true_label", "split")]
    for i in range(30):
        photo(folder / "images" / f"{i:02}.png", i)
        true, split = CLASSES[i % 3], "train" if i < 24 else "test"
        given = CLASSES[(i + 1) % 3] if i % 9 == 0 else true
        rows.append((f"images/{i:02}.png", given, true, split))
    with open(folder / "photos.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "photos.csv"


class TestManifest:
    def test_trains_on_the_labels_as_given_and_knows_the_wrong_ones(self, dspt, clip, tmp_path):
        source = manifest(tmp_path)
        status, output, errors = dspt("train", source, "--model", clip, "--epochs", 1, "--out", "run", "--json", "-q")
        assert status == 0, errors
        result = json.loads(output)
        assert result["wrong_labels"] == pytest.approx(3 / 24)
        assert (result["samples"], result["skipped"]) == (24, 0)
        given = labels_in("run/labels.csv", CLASSES)
        np.testing.assert_array_equal(given, open_dataset(source).train.labels)

    def test_noise_is_made_from_the_right_labels(self, clip, tmp_path):
        dataset = open_dataset(manifest(tmp_path))
        run(
            dataset,
            Config(model=clip, epochs=1),
            "pair:0.5",
            tmp_path / "run",
            cache=tmp_path / "c",
        )
        given = labels_in(tmp_path / "run/labels.csv", CLASSES)
        expected = corrupt(dataset.train.true_labels, 3, "pair", 0.5, 1)
        np.testing.assert_array_equal(given, expected)

    def test_the_test_set_is_judged_by_the_right_labels(self, dspt, clip, tmp_path):
        rows = manifest(tmp_path).read_text().splitlines()
        wrong = [row.replace(",cat,cat,test", ",dog,cat,test") for row in rows]
        assert wrong != rows
        (tmp_path / "wrong.csv").write_text("\n".join(wrong))
        found = [
            json.loads(dspt("zeroshot", name, "--model", clip, "--json", "-q")[1])["accuracy"]
            for name in ("photos.csv", "wrong.csv")
        ]
        assert found[0] == found[1]


class TestShots:
    def test_noise_is_drawn_before_and_stays_with_its_image(self, text_tower, tmp_path):
        source = feature_file(tmp_path / "pets.npz")
        config = Config(model=text_tower, epochs=1, shots=3, seed=2)
        result = run(str(source), config, "sym:0.5", tmp_path / "run")
        assert result.samples == 12
        true = np.load(source)["train_y"]
        given = labels_in(tmp_path / "run/labels.csv", NAMES)
        np.testing.assert_array_equal(given, corrupt(true, 4, "symmetric", 0.5, 2))
        chosen = few_shot(true, 3, 2)
        wrong = (given != true)[chosen].mean()
        assert result.wrong_labels == pytest.approx(wrong, abs=1e-6)

    def test_another_number_of_shots_is_another_run(self, text_tower, tmp_path):
        source = str(feature_file(tmp_path / "pets.npz"))
        run(source, Config(model=text_tower, epochs=1, shots=3), "none", tmp_path / "run")
        with pytest.raises(ValueError, match="shots is 3 there, 4 here"):
            run(source, Config(model=text_tower, epochs=1, shots=4), "none", tmp_path / "run")


class TestNamedDatasets:
    @pytest.fixture
    def pets(self, tmp_path, monkeypatch) -> Path:
        """Return a root with a miniature of OxfordPets, of which the table knows."""
        small = replace(nine.find("pets"), classes=3, train=6, val=3, test=3)
        monkeypatch.setattr(nine, "find", lambda name: small if "pets" in name else None)
        split = {
            part: [[f"{part}_{i}.jpg", i % 3, CLASSES[i % 3]] for i in range(getattr(small, part))]
            for part in ("train", "val", "test")
        }
        root = tmp_path / "root"
        for rows in split.values():
            for name, label, _ in rows:
                photo(root / "oxford_pets" / "images" / name, label)
        (root / "oxford_pets" / "split_zhou_OxfordPets.json").write_text(json.dumps(split))
        return root

    def test_are_trained_on_by_name(self, dspt, clip, pets):
        status, output, errors = dspt(
            "train", "oxford_pets", "--root", pets, "--model", clip, "--epochs", 1, "--json", "-q"
        )
        assert status == 0, errors
        assert json.loads(output)["samples"] == 6

    def test_the_root_may_come_from_the_environment(self, dspt, clip, pets, monkeypatch):
        monkeypatch.setenv("DSPT_ROOT", str(pets))
        status, output, errors = dspt("zeroshot", "pets", "--model", clip, "--json", "-q")
        assert status == 0, errors
        # Both prompts: the dataset's own and the generic one.
        assert set(json.loads(output)["templates"]) == {
            "a photo of a {}, a type of pet.",
            "a photo of a {}.",
        }

    def test_are_checked_in_one_screen(self, dspt, pets):
        status, output, errors = dspt("data", "check", "pets", "--root", pets, "-q")
        assert status == 0, errors
        assert "complete" in output
        (pets / "oxford_pets" / "images" / "train_2.jpg").unlink()
        (pets / "oxford_pets" / "images" / "test_1.jpg").write_bytes(b"")
        status, output, _ = dspt("data", "check", "pets", "--root", pets, "-q")
        assert status == 1
        assert "train_2.jpg" in output
        assert "test_1.jpg" in output
        assert len(output.splitlines()) <= 24
        status, output, _ = dspt("data", "check", "pets", "--root", pets, "--json", "-q")
        assert (status, json.loads(output)["ok"]) == (1, False)

    def test_a_missing_image_stops_and_skip_bad_goes_on(self, dspt, clip, pets):
        (pets / "oxford_pets" / "images" / "train_2.jpg").unlink()
        options = ("--root", pets, "--model", clip, "--epochs", 1, "--out", "run", "-q")
        status, output, errors = dspt("train", "pets", *options)
        assert (status, output) == (2, "")
        assert "train_2.jpg" in errors
        assert errors.count("\n") == 1
        assert not Path("run").exists()
        status, output, errors = dspt("train", "pets", *options, "--skip-bad", "--json")
        assert status == 0, errors
        assert (json.loads(output)["samples"], json.loads(output)["skipped"]) == (5, 1)
        with open("run/skipped.csv") as file:
            rows = list(csv.DictReader(file))
        assert [row["split"] for row in rows] == ["train"]
        assert rows[0]["item"].endswith("train_2.jpg")

    def test_an_image_that_is_left_out_changes_nobody_elses_label(self, dspt, clip, pets):
        options = ("--root", pets, "--model", clip, "--epochs", 1, "--skip-bad", "--json", "-q")
        labels = {}
        for kind in ("sym:0.5", "near:0.5", "inst:0.5"):
            for out in ("whole", "less"):
                if out == "less":
                    (pets / "oxford_pets" / "images" / "train_2.jpg").unlink()
                folder = f"{kind[:3]}-{out}"
                status, _, errors = dspt("train", "pets", *options, "--noise", kind, "--out", folder)
                assert status == 0, errors
                labels[folder] = labels_in(f"{folder}/labels.csv", CLASSES)
            photo(pets / "oxford_pets" / "images" / "train_2.jpg", 2)
        np.testing.assert_array_equal(labels["sym-whole"], labels["sym-less"])
        np.testing.assert_array_equal(labels["nea-whole"], labels["nea-less"])
        # The flips are the same; what an image is taken for is measured against the others.
        flipped = [labels[name] != np.arange(6) % 3 for name in ("ins-whole", "ins-less")]
        np.testing.assert_array_equal(*flipped)

    def test_the_root_of_the_environment_is_nothing_to_a_manifest(self, dspt, clip, pets, tmp_path, monkeypatch):
        monkeypatch.setenv("DSPT_ROOT", str(pets))
        status, _, errors = dspt("zeroshot", manifest(tmp_path), "--model", clip, "--json", "-q")
        assert status == 0, errors

    def test_class_names_go_with_a_manifest_alone(self, dspt, pets):
        status, _, errors = dspt("train", "pets", "--root", pets, "--class-names", "names.txt")
        assert status == 2
        assert "class names names.txt: they go with a manifest" in errors

    def test_only_ucf101_needs_preparing(self, dspt, pets):
        status, _, errors = dspt("data", "prepare", "pets", "--root", pets)
        assert (status, errors) == (
            2,
            "dspt: pets: there is nothing to prepare; only ucf101 needs it\n",
        )


def test_cifar_is_checked_too(dspt, tmp_path):
    status, output, _ = dspt("data", "check", "cifar10", "--root", tmp_path)
    assert status == 1
    assert "cifar-10-python.tar.gz" in output
    told = json.loads(dspt("data", "check", "cifar10", "--root", tmp_path, "--json")[1])
    assert (told["ok"], told["name"]) == (False, "CIFAR-10")


def test_the_list_names_every_dataset_of_the_paper_and_cifar(dspt):
    status, output, _ = dspt("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(output)["datasets"]}
    assert status == 0
    assert list(rows) == [
        *("Caltech101", "OxfordPets", "StanfordCars", "Flowers102", "Food101", "FGVCAircraft"),
        *("DTD", "EuroSAT", "UCF101", "CIFAR-10", "CIFAR-100"),
    ]
    assert rows["EuroSAT"]["train"] == 13500
    assert all(row["licence"] and row["homepage"].startswith("https://") for row in rows.values())
    text = dspt("data", "list")[1]
    assert all(name in text for name in rows)
    assert max(map(len, text.splitlines())) <= 100


class TestNoise:
    def test_a_written_label_file_gives_the_run_the_same_labels(self, dspt, text_tower, tmp_path):
        source = feature_file(tmp_path / "pets.npz")
        status, output, errors = dspt(
            "noise", source, "--noise", "sym:0.4", "--seed", 3, "--out", "given.csv", "--json", "-q"
        )
        assert status == 0, errors
        told = json.loads(output)
        assert (told["wrong"], told["labels"], told["rate"]) == (40, 100, 0.4)
        assert sum(one["count"] for one in told["most_common"]) <= 40
        with Image.open("given.png") as picture:
            assert picture.format == "PNG"
        true, given = np.load(source)["train_y"], labels_in("given.csv", NAMES)
        names = [str(name) for name in np.load(source)["classnames"]]
        first = told["most_common"][0]
        pair = (true == names.index(first["true"])) & (given == names.index(first["given"]))
        assert pair.sum() == first["count"]
        options = ("--model", text_tower, "--epochs", 1, "--seed", 3, "--json", "-q")
        losses = [
            json.loads(dspt("train", source, "--noise", kind, *options)[1])["loss"]
            for kind in ("sym:0.4", "file:given.csv")
        ]
        assert losses[0] == losses[1]

    def test_none_writes_the_labels_as_they_come_and_makes_the_folder(self, dspt, tmp_path):
        source = manifest(tmp_path)
        assert dspt("noise", source, "--noise", "none", "--out", "new/given.csv", "-q")[0] == 0
        assert (tmp_path / "new/given.png").exists()
        given = labels_in("new/given.csv", CLASSES)
        np.testing.assert_array_equal(given, open_dataset(source).train.labels)

    @pytest.mark.parametrize("kind", ["inst", "inst-likely"])
    def test_of_instances_looks_at_the_features_of_the_images(self, text_tower, tmp_path, kind):
        source = feature_file(tmp_path / "pets.npz")
        dataset = open_dataset(source)
        run(dataset, Config(model=text_tower, epochs=1, seed=4), f"{kind}:0.3", tmp_path / "run")
        given = labels_in(tmp_path / "run/labels.csv", NAMES)
        expected = corrupt(dataset.train.labels, 4, kind, 0.3, 4, features=dataset.train.items)
        np.testing.assert_array_equal(given, expected)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("--noise", "sym:40"), "did you mean 0.4?"),
            (("--noise", "sym:0.4", "--out", "labels.txt"), "expected a .csv or .npy file"),
            (("--noise", "sym:0.4", "--picture", "x.doc"), "expected a .png, .pdf, .svg file"),
        ],
    )
    def test_wrong_asking_writes_nothing(self, dspt, tmp_path, arguments, sentence):
        status, output, errors = dspt("noise", "embedded", *arguments)
        assert (status, output) == (2, "")
        assert sentence in errors
        assert list(tmp_path.iterdir()) == []


def test_half_precision_is_refused_on_the_cpu(dspt, clip, tmp_path):
    status, _, errors = dspt(
        *("train", manifest(tmp_path), "--model", clip, "--device", "cpu"),
        *("--precision", "float16"),
    )
    assert status == 2
    assert "precision float16: this CPU has no instructions for it" in errors


@pytest.mark.slow
def test_a_compiled_tower_gives_the_same_features(clip, tmp_path):
    dataset = open_dataset(manifest(tmp_path))
    plain, compiled = (
        run(
            dataset,
            Config(model=clip, epochs=1, compile=choice),
            "none",
            tmp_path / str(choice),
            cache=tmp_path / f"cache-{choice}",
        )
        for choice in (False, True)
    )
    assert compiled["loss"] == pytest.approx(plain["loss"], abs=1e-4)
