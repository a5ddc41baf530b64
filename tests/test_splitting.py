"""dspt data split and --test-fraction: a part of every class, the same each time, copies on one side."""

import json
import os
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from dspt.data import Split, open_dataset
from dspt.data.dataset import hold_out


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two classes of ten different images."""
    random = np.random.RandomState(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            image = Image.fromarray(random.randint(0, 256, (6, 6, 3), np.uint8)).resize((90, 90), Image.BICUBIC)
            image.save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_the_manifest_says_what_would_be_held_out_anyway(dspt, folder, tmp_path):
    status, output, errors = dspt("data", "split", folder, "--out", "lists/split.csv", "--json", "-q")
    assert status == 0, errors
    assert json.loads(output) == {"train": 16, "test": 4, "classes": 2, "copies": 0, "file": "lists/split.csv"}
    written, held = open_dataset(tmp_path / "lists" / "split.csv"), open_dataset(folder)
    for part in ("train", "test"):
        files = [{os.path.realpath(item) for item in getattr(one, part).items} for one in (written, held)]
        assert files[0] == files[1]
    assert not written.held_out


@pytest.mark.parametrize(("fraction", "each"), [(0.3, 3), (0.5, 5), (0.01, 1), (0.99, 9)])
def test_every_class_gives_its_part(dspt, folder, tmp_path, fraction, each):
    assert dspt("data", "split", folder, "--test-fraction", fraction, "--no-look", "-q")[0] == 0
    found = open_dataset(tmp_path / "split.csv")
    assert np.bincount(found.test.labels).tolist() == [each, each]
    assert len(open_dataset(folder, test_fraction=fraction).test.labels) == 2 * each


def test_another_seed_draws_others_and_the_same_seed_the_same(dspt, folder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        dspt("data", "split", folder, "--seed", seed, "--out", f"{name}.jsonl", "--no-look", "-q")
    a, b, c = ((tmp_path / f"{name}.jsonl").read_text() for name in "abc")
    assert a == b != c


def test_copies_stay_on_one_side(dspt, folder, tmp_path):
    """Five images are there twice: one half of them byte for byte, the others saved again at another size."""
    for i in range(5):
        image = Image.open(folder / "cat" / f"{i}.png")
        image.resize((72, 72) if i % 2 else image.size, Image.BICUBIC).save(folder / "cat" / f"copy{i}.png")
    for seed in range(1, 6):
        _, output, _ = dspt(
            "data", "split", folder, "--seed", seed, "--test-fraction", 0.4, "--overwrite", "--json", "-q"
        )
        found = json.loads(output)
        assert (found["copies"], found["test"]) == (5, 10), "as many as without copies"
        dataset = open_dataset(tmp_path / "split.csv")
        side = {str(item).rpartition("/")[2]: "test" for item in dataset.test.items if "cat" in str(item)}
        for i in range(5):
            assert side.get(f"{i}.png") == side.get(f"copy{i}.png")


def test_a_group_with_different_labels_is_for_training():
    split = Split(np.arange(8), np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    for seed in range(20):
        _, test = hold_out(split, ["a", "b"], seed, 0.5, [np.array([0, 4]), np.array([1, 2])])
        held = set(test.items.tolist())
        assert not {0, 4} & held
        assert len({1, 2} & held) in (0, 2)
        assert len(held - {1, 2}) + len({1, 2} & held) == len(held) <= 4


def test_a_true_label_stays_beside_its_image(dspt, folder, tmp_path):
    rows = [f"photos/cat/{i}.png,{'dog' if i == 3 else 'cat'},{'' if i == 5 else 'cat'}" for i in range(10)]
    rows += [f"photos/dog/{i}.png,dog,dog" for i in range(10)]
    (tmp_path / "mine.csv").write_text("\n".join(["path,label,true_label", *rows]))
    assert dspt("data", "split", "mine.csv", "-q")[0] == 0
    lines = [line.split(",") for line in (tmp_path / "split.csv").read_text().splitlines()]
    assert lines[0] == ["path", "label", "true_label", "split"]
    assert [",".join(line[:3]) for line in lines[1:]] == rows
    assert Counter(line[3] for line in lines[1:]) == {"train": 16, "test": 4}


class TestRefused:
    def test_what_has_a_test_split(self, dspt, folder):
        dspt("data", "split", folder, "--no-look", "-q")
        status, _, errors = dspt("data", "split", "split.csv", "--out", "again.csv")
        assert status == 2
        assert "it has a test split already" in errors
        for words in (("train",), ("zeroshot",), ("noise", "--noise", "sym:0.2")):
            status, _, errors = dspt(words[0], "split.csv", *words[1:], "--test-fraction", 0.3)
            assert status == 2
            assert "test fraction 0.3: split.csv has a test split of its own; leave it out" in errors

    def test_a_test_set_and_a_fraction(self, dspt, folder):
        status, _, errors = dspt("train", folder, "--test", folder, "--test-fraction", 0.3)
        assert status == 2
        assert "nothing is held out where there is a test set" in errors

    def test_images_that_are_no_files(self, dspt):
        status, _, errors = dspt("data", "split", "embedded")
        assert status == 2
        assert "test split already" in errors

    def test_files_that_would_be_lost(self, dspt, folder, tmp_path):
        (tmp_path / "split.csv").write_text("mine")
        assert "it is there already" in dspt("data", "split", folder)[2]
        assert "is part of" in dspt("data", "split", folder, "--out", folder / "split.csv")[2]
        (tmp_path / "m.csv").write_text("path,label\nphotos/cat/0.png,cat\nphotos/dog/0.png,dog\n")
        assert "is part of m.csv" in dspt("data", "split", "m.csv", "--out", "m.csv", "--overwrite")[2]
        assert (tmp_path / "split.csv").read_text() == "mine"

    @pytest.mark.parametrize("fraction", [0, 1, 1.5, -0.2])
    def test_fractions(self, dspt, folder, tmp_path, fraction):
        status, _, errors = dspt("data", "split", folder, "--test-fraction", fraction, "--no-look", "-q")
        assert status == 2
        assert f"expected a number between 0 and 1, found {float(fraction)}" in errors
        assert not (tmp_path / "split.csv").exists()


def test_a_fraction_is_part_of_what_a_run_is_made_again_from(dspt, clip, folder, tmp_path):
    asked = ("--model", clip, "--epochs", 1, "--test-fraction", 0.5, "--out", "run", "-q", "--json")
    status, output, errors = dspt("train", folder, *asked)
    assert status == 0, errors
    assert json.loads(output)["samples"] == 10
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data_options"] == {"test_fraction": 0.5}
