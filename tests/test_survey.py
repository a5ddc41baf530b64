"""dspt data check on any source: sizes, missing and broken files, images that are there twice, and classes left out."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from problems import feature_file

from dspt.data import folder, images, open_dataset
from dspt.data.check import look
from dspt.data.duplicates import Print, Prints, take_print
from dspt.data.images import BadImage, open_image
from dspt.data.survey import survey
from dspt.internal.errors import InputError


def picture(seed: int, width: int = 96, height: int = 72) -> Image.Image:
    """Return a picture of broad shapes, as photographs have them, of its own for each seed."""
    coarse = np.random.RandomState(seed).randint(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of three classes with four images each."""
    for c, name in enumerate(("cat", "dog", "BACKGROUND_Google")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            picture(10 * c + i).save(tmp_path / "photos" / name / f"{i}.jpg", quality=90)
    return tmp_path / "photos"


def groups(found) -> list[tuple[str, set[str]]]:
    return [(group.kind, {sample.item for sample in group.samples}) for group in found.duplicates]


class TestSurvey:
    def test_a_sound_folder_is_ok_and_its_classes_are_counted(self, photos):
        found = look(str(photos))
        assert found.ok
        # A fifth of four images, rounded, is held out: one.
        assert found.sizes == {"BACKGROUND_Google": (3, 1), "cat": (3, 1), "dog": (3, 1)}
        assert (found.train, found.test) == (9, 3)
        assert found.duplicates == found.missing == found.broken == ()

    def test_a_broken_file_is_named_by_its_path_below_the_folder(self, photos):
        whole = (photos / "dog" / "1.jpg").read_bytes()
        (photos / "dog" / "sub").mkdir()
        (photos / "dog" / "sub" / "half.jpg").write_bytes(whole[: len(whole) // 2])
        found = look(str(photos))
        assert [fault.name for fault in found.broken] == ["dog/sub/half.jpg"]
        assert found.missing == ()
        assert not found.ok

    def test_a_missing_file_of_a_manifest_counts_once(self, photos):
        rows = "path,label,split\ncat/0.jpg,cat,train\ndog/0.jpg,dog,train\ncat/1.jpg,cat,test\ngone.jpg,dog,test\n"
        (photos / "labels.csv").write_text(rows)
        for decode in (True, False):
            found = look(str(photos / "labels.csv"), decode=decode)
            assert [(fault.name, fault.split) for fault in found.missing] == [("gone.jpg", "test")]
            assert not found.broken
            assert not found.ok

    def test_rows_that_are_no_samples_are_unusable(self, photos):
        (photos / "labels.csv").write_text(
            "path,label\ncat/0.jpg,cat\ncat/1.jpg,cat\n,dog\ndog/0.jpg,dog\ndog/1.jpg,dog\n"
        )
        found = look(str(photos / "labels.csv"))
        assert [fault.name for fault in found.unusable] == ["line 4"]

    def test_an_image_in_two_classes_is_told_with_both(self, photos):
        shutil.copy(photos / "cat" / "0.jpg", photos / "dog" / "copy.jpg")
        found = look(str(photos))
        (group,) = found.duplicates
        assert group.kind == "identical"
        assert {(sample.label, sample.item) for sample in group.samples} == {
            ("cat", "cat/0.jpg"),
            ("dog", "dog/copy.jpg"),
        }
        assert group.labels_differ
        assert found.ok, "an image can be used twice"

    def test_an_image_saved_again_is_near_identical(self, photos):
        with Image.open(photos / "cat" / "0.jpg") as one:
            one.resize((60, 45)).save(photos / "cat" / "small.jpg", quality=70)
            one.save(photos / "cat" / "lossless.png")
        assert groups(look(str(photos))) == [("near-identical", {"cat/0.jpg", "cat/small.jpg", "cat/lossless.png"})]

    def test_train_and_test_images_that_are_the_same_leak(self, photos, tmp_path):
        for split in ("train", "test"):
            shutil.copytree(photos, tmp_path / "split" / split)
        shutil.rmtree(tmp_path / "split" / "test" / "cat")
        found = look(str(tmp_path / "split"))
        assert len(found.duplicates) == 8  # four of each of two classes
        assert all(group.leaks and not group.labels_differ for group in found.duplicates)

    def test_pictures_of_one_colour_are_the_same_only_byte_for_byte(self, photos):
        for i, colour in enumerate((0, 0, 255)):
            Image.new("RGB", (40, 40), (colour,) * 3).save(photos / "cat" / f"flat{i}.png")
        assert groups(look(str(photos))) == [("identical", {"cat/flat0.png", "cat/flat1.png"})]

    def test_names_that_are_no_class_are_told(self, photos):
        for name in ("_old", "Misc", "other", "animals"):
            shutil.copytree(photos / "cat", photos / name)
        assert set(look(str(photos)).suspicious) == {"BACKGROUND_Google", "_old", "Misc", "other"}

    def test_files_that_were_passed_over_are_counted_by_suffix(self, photos):
        for name in ("a.txt", "b.TXT", "c.db", "d"):
            (photos / "cat" / name).write_text("")
        (note,) = (note for note in look(str(photos)).notes if "left out" in note)
        assert "4 files" in note
        assert "2 .txt, 1 .db, 1 without a suffix" in note

    def test_features_that_are_the_same_are_told(self, tmp_path):
        feature_file(tmp_path / "a.npz")
        with np.load(tmp_path / "a.npz") as held:
            arrays = dict(held)
        arrays["test_x"][3] = arrays["train_x"][5]
        np.savez(tmp_path / "a.npz", **arrays)
        assert groups(look(str(tmp_path / "a.npz"))) == [("identical", {"train 5", "test 3"})]

    def test_the_embedded_images_have_no_duplicates(self):
        assert survey(open_dataset("embedded")).duplicates == ()

    def test_without_decoding_only_presence_is_looked_at(self, photos):
        (photos / "cat" / "0.jpg").write_bytes(b"")
        found = look(str(photos), decode=False)
        assert found.ok
        assert found.duplicates is None
        assert "no image was decoded" in found.lines()[-1]


class TestCommand:
    def test_everything_is_in_the_table_and_in_the_json(self, dspt, photos, tmp_path):
        shutil.copy(photos / "cat" / "0.jpg", photos / "dog" / "copy.jpg")
        for i in range(8):
            (photos / "cat" / f"bad{i}.jpg").write_bytes(b"no image")
        status, output, _ = dspt("data", "check", photos, "--json", "--out", "report.csv", "-q")
        assert status == 1
        found = json.loads(output)
        assert [fault["name"] for fault in found["broken"]] == [f"cat/bad{i}.jpg" for i in range(8)]
        assert found["duplicates"][0]["labels_differ"] is True
        assert found["sizes"]["dog"] == {"train": 4, "test": 1}
        with open(tmp_path / "report.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["item"] for row in rows if row["finding"] == "broken"] == [f"cat/bad{i}.jpg" for i in range(8)]
        assert {(row["class"], row["item"]) for row in rows if row["finding"] == "identical"} == {
            ("cat", "cat/0.jpg"),
            ("dog", "dog/copy.jpg"),
        }

    def test_a_report_replaces_no_file(self, dspt, photos, tmp_path):
        (tmp_path / "mine.csv").write_text("precious")
        status, _, errors = dspt("data", "check", photos, "--out", "mine.csv")
        assert status == 2
        assert "mine.csv" in errors
        assert (tmp_path / "mine.csv").read_text() == "precious"

    def test_a_sound_source_has_status_0_and_a_wrong_one_2(self, dspt, photos):
        status, output, _ = dspt("data", "check", photos)
        assert status == 0
        assert "--exclude leaves it out" in output
        assert dspt("data", "check", "nothing-of-this-name")[0] == 2
        assert dspt("data", "check", "pets")[0] == 2

    def test_cifar_that_is_not_there_has_status_1(self, dspt, tmp_path):
        status, output, _ = dspt("data", "check", "cifar10", "--root", tmp_path)
        assert status == 1
        assert "CIFAR-10: not complete" in output

    @pytest.mark.parametrize("command", ["zeroshot", "noise", "eval"])
    def test_what_a_command_left_out_is_listed_in_full(self, dspt, photos, clip, tmp_path, command):
        for name in ("cat", "dog"):
            for i in range(3):
                (photos / name / f"bad{i}.jpg").write_bytes(b"no image")
        (photos / "empty").mkdir()
        model = () if command == "eval" else ("--model", clip)
        extra = ("--noise", "inst:0.3", "--out", "labels.csv") if command == "noise" else ()
        run = ()
        if command == "eval":
            status, _, errors = dspt("train", photos, "--model", clip, "--epochs", 1, "--skip-bad", "--out", "run")
            assert status == 0, errors
            run = ("run",)
        status, output, errors = dspt(command, *run, photos, *model, *extra, "--skip-bad", "--json", "-q")
        assert status == 0, errors
        found = json.loads(output)
        with open(tmp_path / "skipped.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == found["skipped"] >= 1
        assert [row["item"] for row in rows] == [entry["item"] for entry in found["skipped_entries"]]
        assert str(photos / "empty") in [row["item"] for row in rows]

    def test_another_file_is_not_replaced_by_the_list(self, dspt, photos, clip, tmp_path):
        (tmp_path / "skipped.csv").write_text("mine,own\n")
        status, _, errors = dspt("zeroshot", photos, "--model", clip, "--skip-bad")
        assert status == 2
        assert "skipped.csv: it is there already; give another name" in errors
        assert (tmp_path / "skipped.csv").read_text() == "mine,own\n"

    def test_an_image_that_is_read_twice_is_left_out_once(self, dspt, photos, clip, tmp_path):
        rows = [f"{name}/{i}.jpg,{name},{'test' if i == 3 else 'train'}" for name in ("cat", "dog") for i in range(4)]
        (photos / "labels.csv").write_text("\n".join(["path,label,split", *rows, "gone.jpg,cat,train"]))
        status, output, errors = dspt(
            *("train", photos / "labels.csv", "--model", clip, "--noise", "inst:0.3", "--epochs", 1),
            *("--skip-bad", "--out", "run", "--json"),
        )
        assert status == 0, errors
        assert json.loads(output)["skipped"] == 1
        assert (tmp_path / "run" / "skipped.csv").read_text().count("gone.jpg") == 1

    def test_an_excluded_class_is_neither_trained_nor_judged(self, dspt, photos, clip, tmp_path):
        leave = ("--exclude", "BACKGROUND_Google")
        status, _, errors = dspt("train", photos, "--model", clip, "--epochs", 1, "--out", "run", *leave)
        assert status == 0, errors
        assert json.loads((tmp_path / "run" / "config.json").read_text())["class_names"] == ["cat", "dog"]
        status, output, errors = dspt("eval", "run", photos, "--json", *leave)
        assert status == 0, errors
        assert set(json.loads(output)["per_class"]) <= {"cat", "dog"}


class TestExclude:
    def test_the_other_classes_keep_their_images_and_splits(self, photos):
        whole, part = open_dataset(photos), open_dataset(photos, exclude=["BACKGROUND_Google"])
        assert part.class_names == ("cat", "dog")
        for split in ("train", "test"):
            before, after = getattr(whole, split), getattr(part, split)
            expected = [(item, whole.class_names[c]) for item, c in zip(before.items, before.labels, strict=True) if c]
            found = [(item, part.class_names[c]) for item, c in zip(after.items, after.labels, strict=True)]
            assert found == expected
        assert "4 images of class 'BACKGROUND_Google' were excluded." in part.notes

    def test_a_sample_whose_true_class_is_excluded_goes_too(self, photos):
        rows = ["cat/0.jpg,cat,cat", "cat/1.jpg,cat,dog", "dog/0.jpg,dog,dog", "dog/1.jpg,dog,dog"]
        rows += [f"cat/{i}.jpg,cat," for i in (2, 3)]  # of which nothing is known
        rows += [f"BACKGROUND_Google/{i}.jpg,{label},{true}" for i, label, true in ((0, "x", "x"), (1, "cat", "x"))]
        (photos / "l.csv").write_text("\n".join(["path,label,true_label", *rows]))
        found = open_dataset(photos / "l.csv", exclude=["x"])
        assert found.class_names == ("cat", "dog")
        items = [Path(item).parent.name for split in (found.train, found.test) for item in split.items]
        assert sorted(items) == ["cat"] * 4 + ["dog"] * 2

    def test_a_class_that_is_not_there_is_one_sentence(self, photos):
        with pytest.raises(InputError, match=r"photos: class 'lion' is not there.*'cat'"):
            open_dataset(photos, exclude=["cat", "lion"])

    def test_two_classes_must_be_left(self, photos):
        with pytest.raises(InputError, match="at least two are needed"):
            open_dataset(photos, exclude=["cat", "dog"])


class TestPrints:
    @staticmethod
    def near(*prints: tuple[bytes, bytes]) -> list[list[int]]:
        found = Prints()
        for number, (bits, cells) in enumerate(prints):
            found.add(Print(number.to_bytes(16, "little"), bits, cells))
        return found.near()

    @staticmethod
    def flipped(*positions: int) -> bytes:
        bits = np.zeros(128, np.uint8)
        bits[list(positions)] = 1
        return np.packbits(bits).tobytes()

    @pytest.mark.parametrize("positions", [(0,), (0, 40), (0, 40, 80), (5, 6, 7), (31, 32, 127)])
    def test_up_to_three_bits_may_differ(self, positions):
        cells = bytes(range(81))
        assert self.near((self.flipped(), cells), (self.flipped(*positions), cells)) == [[0, 1]]

    def test_four_bits_are_too_many(self):
        cells = bytes(range(81))
        assert self.near((self.flipped(), cells), (self.flipped(0, 1, 2, 3), cells)) == []

    @pytest.mark.parametrize(("shift", "expected"), [(3, [[0, 1]]), (4, [])])
    def test_cells_must_be_about_as_bright(self, shift, expected):
        cells = np.arange(81, dtype=np.uint8)
        assert self.near((self.flipped(), cells.tobytes()), (self.flipped(), (cells + shift).tobytes())) == expected

    def test_groups_grow_over_pairs_and_take_identical_ones_along(self):
        cells, found = bytes(range(81)), Prints()
        for digest, bits in (
            (0, self.flipped()),
            (1, self.flipped(0, 1, 2)),
            (2, self.flipped(0, 1, 2, 3, 4)),
            (0, b""),
        ):
            found.add(Print(digest.to_bytes(16, "little"), bits or self.flipped(), cells))
        assert found.identical() == [[0, 3]]
        assert found.near() == [[0, 1, 2, 3]]

    def test_nothing_has_no_duplicates(self):
        assert Prints().identical() == Prints().near() == []

    def test_the_hash_says_where_brightness_rises(self):
        ramp = np.tile(np.arange(9, dtype=np.uint8) * 20, (9, 1))  # rises to the right alone
        found = take_print(ramp, "ramp")
        assert np.unpackbits(np.frombuffer(found.bits, np.uint8)).sum() == 64
        assert take_print(ramp[:, ::-1].copy(), "fall").bits == bytes(16)
        assert take_print(np.full((9, 9), 7, np.uint8), "flat").bits == b""


class TestSavedAgain:
    """On images of 28 x 28 pixels with a black ground, of which any two are distinct."""

    @staticmethod
    def near(pictures) -> list[list[int]]:
        found = Prints()
        for each in pictures:
            found.add(take_print(each, "image"))
        return found.near()

    @pytest.fixture
    def distinct(self):
        dataset = open_dataset("embedded")
        return np.concatenate([dataset.train.items, dataset.test.items])

    def test_distinct_images_are_not_taken_for_one(self, distinct):
        assert self.near(distinct) == []

    @pytest.mark.parametrize(("quality", "least"), [(90, 0.9), (75, 0.6)])
    def test_most_copies_are_found(self, distinct, quality, least):
        pictures = [Image.fromarray(image).convert("RGB") for image in distinct[::11]]
        for each in pictures[:]:
            file = io.BytesIO()
            each.save(file, "JPEG", quality=quality)
            pictures.append(Image.open(file))
        half = len(pictures) // 2
        expected = {(i, half + i) for i in range(half)}
        found = set(map(tuple, self.near(pictures)))
        assert found <= expected
        assert len(found) >= least * half


class TestHeic:
    def test_it_is_read_where_the_package_is(self, tmp_path, photos):
        heif = pytest.importorskip("pillow_heif")
        heif.from_pillow(picture(99)).save(photos / "cat" / "phone.HEIC", quality=90)
        read = np.asarray(open_image(photos / "cat" / "phone.HEIC"), np.int16)
        assert np.abs(read - np.asarray(picture(99), np.int16)).mean() < 6
        dataset = open_dataset(photos)
        assert any(item.endswith("phone.HEIC") for split in (dataset.train, dataset.test) for item in split.items)

    def test_without_the_package_their_number_is_said(self, photos, monkeypatch):
        monkeypatch.setattr(folder, "reads_heic", lambda: False)
        for i in range(3):
            (photos / "cat" / f"{i}.heic").write_bytes(b"")
        (note,) = (note for note in open_dataset(photos).notes if "HEIC" in note)
        assert note.startswith("3 of them are HEIC images; pip install 'dspt[heic]'")

    def test_without_the_package_they_are_listed_with_what_to_install(self, photos, monkeypatch):
        monkeypatch.setattr(folder, "reads_heic", lambda: False)
        (photos / "cat" / "phone.HEIC").write_bytes(b"")
        (fault,) = open_dataset(photos, skip_bad=True).skipped
        assert fault.name == str(photos / "cat" / "phone.HEIC")
        assert "pip install 'dspt[heic]'" in fault.reason
        # They stop nobody, so that a check does not complain of them.
        open_dataset(photos)
        assert survey(open_dataset(photos, skip_bad=True)).ok

    def test_without_the_package_an_image_is_refused_with_its_name(self, monkeypatch):
        monkeypatch.setattr(images, "reads_heic", lambda: False)
        with pytest.raises(BadImage, match=r"HEIC image.*pip install 'dspt\[heic\]'"):
            open_image(io.BytesIO(b"\0\0\0\x18ftypheic" + bytes(40)))
