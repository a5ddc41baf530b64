"""Sources of data: what is on disk is what comes out, and what is wrong is told in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from dspt.data import Dataset, Split, embedded, open_dataset, write_image_folder
from dspt.internal.errors import InputError


def images(root: Path, **counts: int) -> Path:
    """Make `root` with so many images in each named folder, double underscores standing for /."""
    for name, count in counts.items():
        place = root / name.replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("L", (3, 3), i).save(place / f"{i:03}.png")
    return root


def names(items: list[str] | np.ndarray, root: Path) -> list[str]:
    return [os.path.relpath(item, root) for item in items]


class TestFolder:
    def test_train_and_test_folders_are_kept_apart_and_labels_follow_sorted_names(self, tmp_path):
        images(tmp_path, train__zebra=2, train__Yak=1, train__red_panda=1, test__zebra=1)
        found = open_dataset(tmp_path)
        assert found.class_names == ("Yak", "red_panda", "zebra")
        assert names(found.train.items, tmp_path) == [
            "train/Yak/000.png",
            "train/red_panda/000.png",
            "train/zebra/000.png",
            "train/zebra/001.png",
        ]
        assert found.train.labels.tolist() == [0, 1, 2, 2]
        assert found.train.labels.dtype == np.int64
        assert names(found.test.items, tmp_path) == ["test/zebra/000.png"]
        assert found.test.labels.tolist() == [2]
        assert found.notes == ()
        assert not found.holds_features

    @pytest.mark.parametrize("name", ["val", "valid"])
    def test_validation_folder_stands_in_for_a_missing_test_folder_and_says_so(self, tmp_path, name):
        images(tmp_path, train__a=1, train__b=1, **{f"{name}__a": 1})
        found = open_dataset(tmp_path)
        assert names(found.test.items, tmp_path) == [f"{name}/a/000.png"]
        assert f"{name} is used as the test split" in " ".join(found.notes)

    def test_validation_folder_is_left_alone_beside_a_test_folder_and_says_so(self, tmp_path):
        images(tmp_path, train__a=1, train__b=1, test__b=1, val__a=1)
        found = open_dataset(tmp_path)
        assert names(found.test.items, tmp_path) == ["test/b/000.png"]
        assert "'val'" in " ".join(found.notes)

    def test_without_a_test_folder_a_fifth_of_each_class_is_held_out_and_it_says_so(self, tmp_path):
        images(tmp_path, a=50, b=10, c=2, d=1)
        found = open_dataset(tmp_path)
        assert np.bincount(found.test.labels, minlength=4).tolist() == [10, 2, 1, 0]
        assert np.bincount(found.train.labels, minlength=4).tolist() == [40, 8, 1, 1]
        everything = [*found.train.items, *found.test.items]
        assert len(set(everything)) == len(everything) == 63
        assert "13 of 63 images" in found.notes[0]
        assert "seed 1" in found.notes[0]

    def test_held_out_images_depend_on_the_seed_and_on_no_other_class(self, tmp_path):
        images(tmp_path / "one", a=30, b=30)
        images(tmp_path / "two", a=30, b=30, c=7)

        def held(root: Path, seed: int) -> list[str]:
            test = open_dataset(root, seed=seed).test
            return [name for name in names(test.items, root) if name < "c"]

        assert held(tmp_path / "one", 1) == held(tmp_path / "two", 1)
        assert held(tmp_path / "one", 1) != held(tmp_path / "one", 2)

    def test_test_fraction_is_honoured_and_checked(self, tmp_path):
        images(tmp_path, a=10, b=10)
        assert len(open_dataset(tmp_path, test_fraction=0.5).test.items) == 10
        assert len(open_dataset(tmp_path, test_fraction=0.999).train.items) == 2
        with pytest.raises(InputError, match="between 0 and 1, found 1"):
            open_dataset(tmp_path, test_fraction=1)

    def test_nested_folders_belong_to_their_class_and_hidden_or_other_files_do_not(self, tmp_path):
        images(tmp_path, a__deep__er=1, a=1, b=2, **{".hidden": 1})
        (tmp_path / "a" / ".thumb.png").touch()
        (tmp_path / "a" / "notes.txt").touch()
        (tmp_path / "README.md").touch()
        (tmp_path / "a" / "UPPER.JPG").touch()
        found = open_dataset(tmp_path, test_fraction=0.01)
        assert found.class_names == ("a", "b")
        everything = sorted(names([*found.train.items, *found.test.items], tmp_path))
        assert everything == [
            *("a/000.png", "a/UPPER.JPG", "a/deep/er/000.png"),
            *("b/000.png", "b/001.png"),
        ]
        assert "2 files were left out" in " ".join(found.notes)

    def test_links_in_circles_end_and_bring_no_other_class_in(self, tmp_path):
        images(tmp_path, a=2, b=2, b__inner=1)
        (tmp_path / "a" / "up").symlink_to(tmp_path)
        (tmp_path / "b" / "inner" / "again").symlink_to(tmp_path / "b")
        (tmp_path / "b" / "self").symlink_to(tmp_path / "b" / "self")
        found = open_dataset(tmp_path)
        everything = sorted(names([*found.train.items, *found.test.items], tmp_path))
        assert everything == [
            *("a/000.png", "a/001.png"),
            *("b/000.png", "b/001.png", "b/inner/000.png"),
        ]

    def test_a_class_may_be_called_train(self, tmp_path):
        images(tmp_path, bus=2, train=2)
        assert open_dataset(tmp_path).class_names == ("bus", "train")

    def test_a_train_folder_that_could_be_a_class_is_refused(self, tmp_path):
        images(tmp_path, bus=2, train__steam=2)
        with pytest.raises(InputError, match=r"'bus'.*not clear"):
            open_dataset(tmp_path)

    def test_test_classes_that_are_not_trained_are_named(self, tmp_path):
        images(tmp_path, train__a=1, train__b=1, test__a=1, test__c=1)
        with pytest.raises(InputError, match="'c' has no images in"):
            open_dataset(tmp_path)

    @pytest.mark.parametrize(
        ("counts", "sentence"),
        [
            ({}, "found 0 class folders"),
            ({"a": 3}, "found 1 class folder;"),
            (
                {"a": 3, "b": 0, "c": 0},
                "2 folders cannot be used .*b: no images in it; .*c: no images in it",
            ),
            ({"a": 1, "b": 1}, "no images to test with"),
            ({"train__a": 1, "train__b": 1, "test__a": 0}, "no images to test with"),
        ],
    )
    def test_too_few_classes_or_images_are_refused(self, tmp_path, counts, sentence):
        with pytest.raises(InputError, match=sentence):
            open_dataset(images(tmp_path, **counts))

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may list everything")
    def test_a_folder_that_may_not_be_listed_is_named(self, tmp_path):
        images(tmp_path, a=1, b=1)
        (tmp_path / "b").chmod(0)
        with pytest.raises(InputError, match="b: cannot be listed"):
            open_dataset(tmp_path)

    def test_each_folder_is_listed_once_or_twice_however_many_files_it_has(self, tmp_path, monkeypatch):
        images(tmp_path, train__a=40, train__b=40, test__a=40)
        listed: list[str] = []
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), scandir(path))[1])
        open_dataset(tmp_path)
        assert len(listed) <= 2 * 6


class TestWriteImageFolder:
    def dataset(self, *class_names: str) -> Dataset:
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (8, 5, 4), dtype=np.uint8)
        labels = np.array([0, 1, 1, 0, 1], np.int64)
        return Dataset("x", class_names, Split(pixels[:5], labels), Split(pixels[5:], labels[:3]))

    def test_what_is_written_reads_back_pixel_for_pixel(self, tmp_path):
        given = self.dataset("ankle boot", "coat")
        found = open_dataset(write_image_folder(given, tmp_path / "out"))
        assert found.class_names == given.class_names
        for before, after in ((given.train, found.train), (given.test, found.test)):
            order = np.argsort(before.labels, kind="stable")
            assert after.labels.tolist() == before.labels[order].tolist()
            pixels = [np.asarray(Image.open(item)) for item in after.items]
            np.testing.assert_array_equal(pixels, np.asarray(before.items)[order])

    def test_names_that_are_no_folder_and_folders_in_use_are_refused(self, tmp_path):
        with pytest.raises(InputError, match="'T-shirt/top' cannot be the name of a folder"):
            write_image_folder(self.dataset("T-shirt/top", "coat"), tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match="not an empty folder"):
            write_image_folder(self.dataset("a", "b"), tmp_path)


class TestFeatureFile:
    @pytest.fixture
    def arrays(self) -> dict[str, np.ndarray]:
        x = np.random.default_rng(0).normal(size=(9, 4))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        return {
            "train_x": x[:6],
            "train_y": np.array([0, 1, 2, 2, 1, 0]),
            "test_x": x[6:],
            "test_y": np.array([2, 1, 0], np.uint8),
            "classnames": np.array(["cat", "dog", "größe"]),
        }

    def write(self, path: Path, arrays: dict[str, np.ndarray]) -> Path:
        np.savez(path, **arrays)
        return path

    def test_unit_features_come_back_bit_for_bit(self, tmp_path, arrays):
        found = open_dataset(self.write(tmp_path / "pets.npz", arrays))
        assert found.name == "pets"
        assert found.class_names == ("cat", "dog", "größe")
        assert found.holds_features
        np.testing.assert_array_equal(found.train.items, arrays["train_x"])
        np.testing.assert_array_equal(found.test.items, arrays["test_x"])
        assert found.train.labels.tolist() == [0, 1, 2, 2, 1, 0]
        assert found.test.labels.dtype == np.int64
        assert found.notes == ()

    @pytest.mark.parametrize("place", ["metadata", "tensor"])
    def test_safetensors_says_the_same_as_npz(self, tmp_path, arrays, place):
        text = json.dumps(arrays.pop("classnames").tolist())
        if place == "tensor":
            arrays["classnames"] = np.frombuffer(text.encode(), np.uint8)
        metadata = {"classnames": text} if place == "metadata" else None
        save_file(arrays, tmp_path / "pets.safetensors", metadata)
        found = open_dataset(tmp_path / "pets.safetensors")
        assert found.class_names == ("cat", "dog", "größe")
        np.testing.assert_array_equal(found.train.items, arrays["train_x"])
        assert found.test.labels.tolist() == [2, 1, 0]

    def test_longer_features_are_brought_to_length_one_and_it_says_so(self, tmp_path, arrays):
        unit = arrays["train_x"]
        arrays["train_x"] = unit * np.linspace(0.5, 20, len(unit))[:, None]
        found = open_dataset(self.write(tmp_path / "x.npz", arrays))
        np.testing.assert_allclose(found.train.items, unit, atol=1e-6)
        assert found.train.items.dtype == np.float32
        assert found.notes == ("train_x: features had lengths 0.5 to 20; each was divided by its length.",)

    def test_half_precision_is_brought_to_length_one_without_a_word(self, tmp_path, arrays):
        arrays["test_x"] = arrays["test_x"].astype(np.float16)
        found = open_dataset(self.write(tmp_path / "x.npz", arrays))
        np.testing.assert_allclose(np.linalg.norm(found.test.items, axis=1), 1, atol=1e-6)
        assert found.notes == ()

    @pytest.mark.parametrize(
        ("name", "change", "sentence"),
        [
            ("train_x", None, "has no train_x; a feature file holds"),
            ("classnames", None, "has no classnames"),
            ("train_y", lambda a: a[:4], "train_x has 6 rows and train_y has 4"),
            ("test_x", lambda a: a[:, :3], "train_x has 4 columns and test_x has 3"),
            ("test_x", lambda a: a[:0], r"test_x must hold .* at least one row.*\(0, 4\)"),
            ("train_x", lambda a: a[0], r"train_x must hold .*\(4,\)"),
            ("train_x", lambda a: (a * 255).astype(np.uint8), "train_x must hold .*uint8"),
            ("train_x", lambda a: put(a, 3, np.nan), r"train_x has a value .* in row 3 \(1 such"),
            ("train_x", lambda a: put(a, 2, -np.inf), "train_x has a value .* in row 2"),
            ("test_x", lambda a: put(a, 1, 0), "test_x has only zeros in row 1"),
            ("train_y", lambda a: put(a, 4, 3), "expected 0..2 for 3 classes, found 3 at row 4"),
            ("train_y", lambda a: put(a, 5, -1), "expected 0..2 for 3 classes, found -1 at row 5"),
            ("train_y", lambda a: a + 0.5, "train_y must hold whole numbers"),
            ("classnames", lambda a: a[:2], "expected 0..1 for 2 classes, found 2 at row 2"),
            ("classnames", lambda a: a[:1], "at least two are needed"),
            ("classnames", lambda a: a[[0, 1, 0]], "'cat' is there twice"),
            ("classnames", lambda a: np.array(["a", "b", " "]), "an empty name"),
            ("classnames", lambda a: np.arange(3), "must be a list of texts"),
            ("classnames", lambda a: a.astype(object), "pickle.*dtype=str"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, arrays, name, change, sentence):
        if change is None:
            del arrays[name]
        else:
            arrays[name] = change(arrays[name])
        with pytest.raises(InputError, match=sentence) as error:
            open_dataset(self.write(tmp_path / "x.npz", arrays))
        assert "x.npz" in str(error.value)

    def test_a_pickle_in_the_file_is_never_run(self, tmp_path, arrays):
        class Trap:
            def __reduce__(self) -> tuple[object, ...]:
                return (Path.touch, (tmp_path / "sprung",))

        arrays["train_x"] = np.array([Trap()] * 6, object)
        with pytest.raises(InputError, match="pickle"):
            open_dataset(self.write(tmp_path / "x.npz", arrays))
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
    @pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04" + bytes(40)])
    def test_a_broken_file_is_one_sentence(self, tmp_path, suffix, content):
        (tmp_path / f"x{suffix}").write_bytes(content)
        with pytest.raises(InputError, match=f"x{suffix}: not a "):
            open_dataset(tmp_path / f"x{suffix}")

    def test_a_truncated_file_is_one_sentence(self, tmp_path, arrays):
        path = self.write(tmp_path / "x.npz", arrays)
        path.write_bytes(path.read_bytes()[:-300])
        with pytest.raises(InputError, match="not a readable"):
            open_dataset(path)

    @pytest.mark.parametrize("text", ["not json", '{"a": 1}', "[1, 2, 3]"])
    def test_class_names_in_safetensors_must_be_a_list_of_texts(self, tmp_path, arrays, text):
        del arrays["classnames"]
        save_file(arrays, tmp_path / "x.safetensors", {"classnames": text})
        with pytest.raises(InputError, match="classnames must be a JSON list of texts"):
            open_dataset(tmp_path / "x.safetensors")


def put(array: np.ndarray, row: int, value: float) -> np.ndarray:
    array = array.copy()
    array[row] = value
    return array


class TestOpenDataset:
    def test_notes_are_logged_for_those_who_listen(self, tmp_path, caplog):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / name).mkdir(parents=True)
            for i in range(3):
                (tmp_path / "pets" / name / f"{i}.png").touch()
        found = open_dataset(tmp_path / "pets")
        assert len(found.notes) == 1
        assert [(record.name, record.getMessage()) for record in caplog.records] == [("dspt.data", found.notes[0])]

    def test_notes_are_not_printed_where_nobody_listens(self, tmp_path):
        (tmp_path / "m.csv").write_text("path,label\na,x\nb,x\nc,y\nd,y\n")
        code = "import sys; from dspt.data import open_dataset; open_dataset(sys.argv[1])"
        command = [sys.executable, "-c", code, tmp_path / "m.csv"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", "")

    def test_embedded_is_the_embedded_set_even_beside_a_folder_of_that_name(self, tmp_path, monkeypatch):
        pixels = np.zeros((2, 28, 28), np.uint8)
        labels = np.array([0, 1], np.uint8)
        x = {"train_x": pixels, "train_y": labels, "test_x": pixels, "test_y": labels}
        np.savez(tmp_path / "images.npz", classnames=np.array(["coat", "bag"]), **x)
        monkeypatch.setattr(embedded, "IMAGES", tmp_path / "images.npz")
        images(tmp_path / "embedded", a=2, b=2)
        monkeypatch.chdir(tmp_path)

        found = open_dataset("embedded")
        assert found.name == "embedded"
        assert found.class_names == ("coat", "bag")
        assert found.train.items.dtype == np.uint8
        assert found.train.labels.dtype == np.int64
        assert not found.holds_features
        assert open_dataset("./embedded").class_names == ("a", "b")

    def test_a_missing_source_is_told_from_a_wrong_one_and_both_say_what_may_be_given(self, tmp_path):
        (tmp_path / "movie.mp4").touch()
        for name, what in (
            ("nowhere", "no such file or folder"),
            ("nowhere.npz", "no such file or folder"),
            ("movie.mp4", "not a kind of file that can be read"),
        ):
            with pytest.raises(InputError, match=what) as error:
                open_dataset(tmp_path / name)
            assert name in str(error.value)
            assert "a folder of class folders, a .csv, .tsv, .jsonl, .parquet or .xlsx manifest" in str(error.value)

    @pytest.mark.parametrize(("wrong", "right"), [("embeded", "embedded"), ("caltech11", "caltech101")])
    def test_a_name_that_is_misspelt_is_met_with_the_one_that_was_meant(self, wrong, right):
        with pytest.raises(InputError, match=rf"data {wrong}: no such file or folder \(did you mean {right}\?\); give"):
            open_dataset(wrong)

    def test_looking_at_data_costs_no_import_of_torch(self):
        code = (
            "import sys, dspt.data, dspt.data.folder, dspt.data.featurefile, dspt.data.embedded, "
            "dspt.features\n"
            "print({'torch', 'transformers', 'sklearn', 'matplotlib'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "set()", done.stderr
