"""A label file is tied to the images it is for: in any order each keeps its own label, or it is refused."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from problems import NAMES, QUIET, feature_file, finished_run, labels_in

from dspt import noise, plots
from dspt.data import Dataset, Split, open_dataset
from dspt.data.items import item_names
from dspt.internal.errors import InputError
from dspt.internal.names import matched
from dspt.internal.progress import Reporter
from dspt.problem import given_split

CLASSES = ("cat", "dog", "red_panda")
NOBODY = ("no.png", "cat", "")


def photos(root: Path) -> Path:
    """Write eight images of each class, in folders."""
    for c, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (9, 9), (20 * c, 10 * i, 7)).save(root / name / f"{i}.png")
    return root


def shuffled(dataset: Dataset, seed: int = 0) -> Dataset:
    """Return the dataset with its train images in another order."""
    order = np.random.default_rng(seed).permutation(len(dataset.train.labels))
    return replace(dataset, train=dataset.train.take(order))


def rows(path: Path | str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def no_warning(sentence: str) -> None:
    pytest.fail(f"warned: {sentence}")


class TestNames:
    def test_files_are_named_from_their_root_wherever_it_lies_and_whoever_asks(self, tmp_path, monkeypatch):
        root = photos(tmp_path / "photos")
        expected = [os.path.relpath(item, root) for item in open_dataset(root).train.items]
        monkeypatch.chdir(tmp_path)
        for source in (root, "photos", "./photos/", "photos/../photos"):
            dataset = open_dataset(source)
            assert list(item_names(dataset.train.items, dataset.root)) == expected
        monkeypatch.chdir(root)
        dataset = open_dataset(".")
        assert list(item_names(dataset.train.items, dataset.root)) == expected

    def test_a_manifest_names_them_as_it_does_or_in_full_elsewhere(self, tmp_path):
        lines = ["path,label,split", "a/../b.png,x,train", "./c.png,y,train", "/far/d.png,x,train", "e.png,x,test"]
        (tmp_path / "m.csv").write_text("\n".join([*lines, f"{tmp_path}/f.png,y,train"]))
        dataset = open_dataset(tmp_path / "m.csv")
        assert list(item_names(dataset.train.items, dataset.root)) == ["b.png", "c.png", "/far/d.png", "f.png"]

    def test_what_has_no_path_is_named_by_its_content_and_the_same_content_is_counted(self):
        pixels = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
        digests = [f"blake2b:{hashlib.blake2b(p.tobytes(), digest_size=16).hexdigest()}" for p in pixels]
        assert list(item_names(pixels)) == digests
        assert list(item_names(pixels[[2, 0]])) == [digests[2], digests[0]]
        assert list(item_names(pixels[[1, 1, 0, 1]])) == [
            digests[1],
            digests[1] + " (2)",
            digests[0],
            digests[1] + " (3)",
        ]
        assert list(item_names([p.tobytes() for p in pixels])) == digests
        assert list(item_names(pixels[:, :, ::2])) == list(item_names(pixels[:, :, ::2].copy()))

    def test_names_that_no_line_can_hold_are_escaped(self):
        assert list(item_names(["/r/a\nb\x1b.png", "/r/\udcff.png"], "/r")) == [r"a\nb\x1b.png", r"\udcff.png"]


class TestTable:
    def test_a_person_can_read_it(self, tmp_path):
        dataset = open_dataset(photos(tmp_path / "photos"))
        split = given_split(dataset, noise.parse("pair:0.5"), 1, QUIET)
        noise.write_split(tmp_path / "labels.csv", dataset, split)
        found = rows(tmp_path / "labels.csv")
        assert list(found[0]) == ["item", "label", "true_label"]
        assert [row["true_label"] for row in found] == [row["item"].split("/")[0] for row in found]
        expected = noise.corrupt(dataset.train.labels, 3, "pair", 0.5, 1)
        assert [row["label"] for row in found] == [CLASSES[label] for label in expected]

    def test_without_true_labels_there_is_no_such_column_and_an_unknown_one_is_empty(self, tmp_path):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz", 4, 4))
        split = Split(dataset.train.items, dataset.train.labels)
        noise.write_split(tmp_path / "labels.csv", dataset, split)
        assert list(rows(tmp_path / "labels.csv")[0]) == ["item", "label"]
        noise.write_split(tmp_path / "labels.csv", dataset, replace(split, true_labels=np.array([3, -1, 0, -1])))
        assert [row["true_label"] for row in rows(tmp_path / "labels.csv")] == ["ankle boot", "", "cat", ""]

    @pytest.mark.parametrize("kind", ["folder", "features", "pixels"])
    def test_in_another_order_every_image_keeps_its_label(self, tmp_path, kind):
        if kind == "pixels":
            pixels = np.random.default_rng(0).integers(0, 9, (40, 2, 1), np.uint8)  # many of them the same
            split = Split(pixels, np.arange(40) % 3)
            dataset = Dataset("pixels", CLASSES, split, split)
        else:
            source = photos(tmp_path / "photos") if kind == "folder" else feature_file(tmp_path / "pets.npz")
            dataset = open_dataset(source)
        made = given_split(dataset, noise.parse("sym:0.6"), 3, QUIET)
        noise.write_split(tmp_path / "labels.csv", dataset, made)
        other = shuffled(dataset)
        found = noise.read_split(tmp_path / "labels.csv", other, no_warning)
        pairs = [
            sorted(
                (bytes(np.asarray(item).data) if kind != "folder" else item, label)
                for item, label in zip(*both, strict=True)
            )
            for both in ((made.items, made.labels.tolist()), (found.items, found.labels.tolist()))
        ]
        assert pairs[0] == pairs[1]
        assert found.labels.tolist() != made.labels.tolist()
        assert found.true_labels is not None

    def test_a_folder_may_have_moved(self, tmp_path):
        dataset = open_dataset(photos(tmp_path / "here"))
        made = given_split(dataset, noise.parse("sym:0.6"), 3, QUIET)
        noise.write_split(tmp_path / "labels.csv", dataset, made)
        (tmp_path / "here").rename(tmp_path / "there")
        found = noise.read_split(tmp_path / "labels.csv", open_dataset(tmp_path / "there"), no_warning)
        assert found.labels.tolist() == made.labels.tolist()

    def test_names_of_every_kind_come_back(self, tmp_path):
        classes = ("=cat", "'+dog", "a,b", 'c"d', "-", "@x", "e;f", "''=g", "h\ni", " j")
        items = [f"/r/{name.strip()}{i}.png" for i, name in enumerate(classes)] + [
            "/r/ x.png",
            "/r/=1+1.png",
            "/r/é.png",
        ]
        split = Split(items, np.arange(len(items)) % len(classes))
        dataset = Dataset("odd", classes, split, split, root="/r")
        noise.write_split(tmp_path / "labels.csv", dataset, split)
        found = noise.read_split(tmp_path / "labels.csv", shuffled(dataset), no_warning)
        assert dict(zip(found.items, found.labels.tolist(), strict=True)) == dict(
            zip(items, split.labels.tolist(), strict=True)
        )
        with open(tmp_path / "labels.csv", newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert "'=cat" in cells
        for row in rows(tmp_path / "labels.csv"):
            assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())

    def test_what_a_spreadsheet_saves_is_read(self, tmp_path):
        dataset = open_dataset(photos(tmp_path / "photos"))
        names = list(item_names(dataset.train.items, dataset.root))
        lines = ["label;item", *(f"{name.split('/')[0]};{name}" for name in reversed(names)), ""]
        (tmp_path / "labels.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
        found = noise.read_split(tmp_path / "labels.csv", dataset, no_warning)
        assert found.labels.tolist() == dataset.train.labels.tolist()

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda r: r[:-2], "2 of 18 images of .*photos have no row; the first is 'red_panda/"),
            (
                lambda r: [*r, NOBODY, NOBODY],
                "2 of 20 rows are for images that .*photos does not have; .*'no.png' at line 20",
            ),
            (
                lambda r: [*r, r[4]],
                "1 of 19 rows are for an image that has one already; the first is 'cat/.* at line 20",
            ),
            (
                lambda r: [*r[:3], (r[3][0], "catt", "cat"), *r[4:]],
                "1 of 18 rows have a label .*first is 'catt' at line 5",
            ),
            (lambda r: [(item, "0", "") for item, *_ in r], "18 of 18 rows have a label that is no class of .*photos"),
            (lambda r: [*r[:3], (r[3][0], "", "cat"), *r[4:]], "1 of 18 rows have a label that is no class"),
            (lambda r: [(*row[:2], "eel") for row in r], "18 of 18 rows have a true_label that is no class"),
            (lambda r: [*r[:2], r[2][:2], *r[3:]], "line 4 cannot be used, 2 cells instead of 3"),
            (lambda r: [], "18 of 18 images of .*photos have no row"),
        ],
        ids=["less", "more", "twice", "misspelt", "numbers", "empty", "true", "cells", "nothing"],
    )
    def test_what_does_not_fit_is_counted_and_nothing_guessed(self, tmp_path, change, sentence):
        dataset = open_dataset(photos(tmp_path / "photos"))
        made = [(name, name.split("/")[0], "") for name in item_names(dataset.train.items, dataset.root)]
        lines = [("item", "label", "true_label"), *change(made)]
        (tmp_path / "labels.csv").write_text("".join(",".join(line) + "\n" for line in lines))
        with pytest.raises(InputError, match=sentence):
            noise.read_split(tmp_path / "labels.csv", dataset, no_warning)

    def test_true_labels_that_the_data_contradict_are_refused(self, tmp_path):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz", 4, 4))
        noise.write_split(tmp_path / "labels.csv", dataset, replace(dataset.train, true_labels=np.array([0, 1, 2, 3])))
        other = replace(dataset, train=replace(dataset.train, true_labels=np.array([0, 1, 3, -1])))
        with pytest.raises(
            InputError, match=r"1 of 4 true labels are other ones than in .*pets.npz; the first is 'blake2b"
        ):
            noise.read_split(tmp_path / "labels.csv", other, no_warning)
        agreed = replace(dataset, train=replace(dataset.train, true_labels=np.array([0, -1, 2, 3])))
        assert noise.read_split(tmp_path / "labels.csv", agreed, no_warning).true_labels.tolist() == [0, 1, 2, 3]

    def test_numbers_alone_cannot_be_read_from_it(self, tmp_path):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz", 4, 4))
        noise.write_split(tmp_path / "labels.csv", dataset, dataset.train)
        with pytest.raises(InputError, match="it names its images, so its labels can be read only for a dataset"):
            noise.read_labels(tmp_path / "labels.csv", 4, 4)


class TestOrder:
    """Files that name no images are taken in order, and that is said; unless the order is proven."""

    @pytest.mark.parametrize("name", ["labels.csv", "labels.npy", "labels.npz", "labels.pt"])
    def test_it_is_said_that_nothing_ties_the_labels_to_the_images(self, tmp_path, name, caplog, capsys):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz", 4, 4))
        path, labels = tmp_path / name, np.array([3, 2, 1, 0])
        if name == "labels.npz":
            np.savez(path, a=labels)
        elif name == "labels.pt":
            torch.save({"a": labels}, path)
        else:
            noise.write_labels(path, labels)
        with caplog.at_level(logging.WARNING, "dspt"):
            found = given_split(dataset, noise.parse(f"file:{path}"), 1, Reporter())
        assert found.labels.tolist() == [3, 2, 1, 0]
        sentence = f"{path} names no images: its labels are taken in the order of {tmp_path / 'pets.npz'}"
        assert sentence in capsys.readouterr().err
        assert sentence in caplog.text

    @pytest.mark.parametrize("name", ["human.npz", "human.pt"])
    def test_right_labels_that_prove_the_order_make_it_silent(self, tmp_path, name):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz", 4, 4))
        held = {"clean_label": np.array([0, 1, 2, 3]), "worse_label": np.array([3, 1, 2, 3])}
        np.savez(tmp_path / name, **held) if name.endswith("npz") else torch.save(held, tmp_path / name)
        path = f"{tmp_path / name}#worse_label"
        assert noise.read_split(path, dataset, no_warning).labels.tolist() == [3, 1, 2, 3]
        with pytest.raises(InputError, match="clean_label differs from the data's own labels in"):
            noise.read_split(path, shuffled(dataset), no_warning)


class TestCommands:
    def test_labels_made_for_one_order_are_given_to_another(self, dspt, text_tower, tmp_path):
        source = feature_file(tmp_path / "pets.npz")
        assert dspt("noise", source, "--noise", "sym:0.4", "--out", "given.csv", "-q")[0] == 0
        arrays = dict(np.load(source))
        order = np.random.default_rng(0).permutation(100)
        np.savez(
            tmp_path / "other.npz",
            **arrays | {"train_x": arrays["train_x"][order], "train_y": arrays["train_y"][order]},
        )
        options = ("--noise", "file:given.csv", "--model", text_tower, "--epochs", 1)
        status, _, errors = dspt("train", "other.npz", *options, "--out", "run")
        assert status == 0, errors
        assert "names no images" not in errors
        assert labels_in("run/labels.csv", NAMES).tolist() == labels_in("given.csv", NAMES)[order].tolist()
        np.savez(tmp_path / "more.npz", **arrays | {"train_x": arrays["test_x"], "train_y": arrays["test_y"]})
        status, _, errors = dspt("train", "more.npz", *options, "-q")
        assert status == 2
        assert "100 of 100 rows are for images that more.npz does not have" in errors

    def test_true_labels_in_the_file_tell_which_labels_are_wrong(self, dspt, text_tower, tmp_path):
        source = feature_file(tmp_path / "pets.npz")
        assert dspt("noise", source, "--noise", "sym:0.4", "--out", "given.csv", "-q")[0] == 0
        options = ("train", source, "--noise", "file:given.csv", "--model", text_tower, "--epochs", 1, "--json", "-q")
        assert json.loads(dspt(*options, "--out", "a")[1])["wrong_labels"] == 0.4
        lines = Path("given.csv").read_text().splitlines()
        Path("given.csv").write_text("".join(",".join(line.split(",")[:2]) + "\n" for line in lines))
        assert json.loads(dspt(*options, "--out", "b")[1])["wrong_labels"] is None

    def test_a_label_file_in_order_is_taken_with_a_warning(self, dspt, text_tower, tmp_path):
        source = feature_file(tmp_path / "pets.npz", 8, 4)
        (tmp_path / "old.csv").write_text("index,label\n" + "".join(f"{i},{i % 4}\n" for i in range(8)))
        status, _, errors = dspt("train", source, "--noise", "file:old.csv", "--model", text_tower, "--epochs", 1)
        assert status == 0
        assert "note: old.csv names no images: its labels are taken in the order of" in errors


class TestNothingIsOverwritten:
    @pytest.fixture
    def manifest(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.chdir(tmp_path)
        photos(tmp_path / "photos")
        lines = [f"photos/{name}/{i}.png,{name}" for name in CLASSES for i in range(8)]
        path = tmp_path / "labels.csv"
        path.write_text("\n".join(["path,label", *lines, ""]))
        return path

    def test_the_manifest_is_never_replaced(self, dspt, manifest):
        before = manifest.read_bytes()
        for more in ((), ("--overwrite",), ("--out", "photos/../labels.csv", "--overwrite")):
            status, output, errors = dspt("noise", "labels.csv", "--noise", "sym:0.5", *more)
            assert (status, output) == (2, "")
            assert "labels.csv: it is read here, and never replaced; give another name" in errors
        assert manifest.read_bytes() == before
        assert not Path("labels.png").exists()

    @pytest.mark.parametrize("what", ["matrix", "names", "image"])
    def test_nor_is_anything_else_that_is_read(self, dspt, manifest, what):
        noise_spec, out, more = "sym:0.5", "new.csv", []
        if what == "matrix":
            Path("T.csv").write_text("0,1,0\n0,0,1\n1,0,0\n")
            noise_spec, out = "matrix:T.csv", "T.csv"
        elif what == "names":
            Path("names.csv").write_text("\n".join(CLASSES))
            out, more = "names.csv", ["--class-names", "names.csv"]
        else:
            more = ["--picture", "photos/cat/3.png"]
        kept = Path(more[-1] if more else out)
        before = kept.read_bytes()
        status, _, errors = dspt("noise", manifest, "--noise", noise_spec, "--out", out, "--overwrite", *more)
        assert status == 2
        assert "it is read here, and never replaced" in errors
        assert kept.read_bytes() == before

    @pytest.mark.parametrize("there", ["cat.csv", "cat.png"])
    def test_a_file_that_is_there_is_replaced_only_if_asked(self, dspt, manifest, there):
        Path(there).write_bytes(b"mine")
        arguments = ("noise", "photos", "--noise", "sym:0.5", "--out", "cat.csv")
        status, output, errors = dspt(*arguments)
        assert (status, output) == (2, "")
        assert f"{there}: it is there already; give another name; or give --overwrite to replace it" in errors
        assert Path(there).read_bytes() == b"mine"
        assert [p.name for p in Path().glob("cat.*")] == [there]
        assert dspt(*arguments, "--overwrite", "-q")[0] == 0
        assert Path(there).read_bytes() != b"mine"


class TestNoCommandOverwrites:
    @pytest.mark.parametrize(
        ("command", "there"),
        [
            (("table", "main", "--out", "a.txt"), "a.txt"),
            (("figure", "loss-curves", "--out", "."), "loss-curves.pdf"),
            (("figure", "loss-curves", "--out", "."), "loss-curves.png"),
            (("report", "--out", "a.html"), "a.html"),
            (("bench", "--quick", "--picture", "a.png"), "a.png"),
            (("demo", "--out", "."), "gradients.png"),
        ],
    )
    def test_a_file_of_somebody_else(self, dspt, command, there):
        Path(there).write_bytes(b"mine")
        status, output, errors = dspt(*command)
        assert (status, output) == (2, "")
        assert f"{there}: it is there already; give another name" in errors
        assert ("--overwrite" in errors) == (command[0] != "demo")
        assert Path(there).read_bytes() == b"mine"

    @pytest.mark.parametrize("suffix", plots.FORMATS)
    def test_but_a_picture_of_its_own_is_drawn_again(self, tmp_path, suffix):
        path = tmp_path / f"a{suffix}"
        for _ in range(2):
            plots.check_path(path)
            plots.confusion(path, np.eye(2), ["a", "b"], "a picture")
        path.write_bytes(b"mine")
        with pytest.raises(InputError, match="it is there already"):
            plots.check_path(path)
        plots.check_path(path, overwrite=True)

    def test_and_a_page_of_its_own_is_written_again(self, dspt, tmp_path):
        finished_run(tmp_path / "runs/a", {"data": "x", "noise": "none", "method": "dspt", "seed": 1, "accuracy": 50.0})
        for _ in range(2):
            status, _, errors = dspt("report", "--out", "a.html")
            assert status == 0, errors


class TestSpelling:
    @pytest.mark.parametrize(
        ("names", "known", "expected"),
        [
            (["ankle_boot", "dog"], ["dog", "ankle boot"], [1, 0]),
            (["ankle boot"], ["ankle_boot"], [0]),
            (["ankle_boot"], ["ankle boot", "ankle_boot"], [1]),
            (["ankle boot", "ankle_boot"], ["ankle boot", "ankle_boot"], [0, 1]),
            (["ankle boot", "ankle_boot"], ["ankle boot"], [0, -1]),  # they would be one
            (["ankle_boot", "ankle__boot"], ["ankle boot"], [-1, -1]),
            (["ankle__boot"], ["ankle boot", "ankle_boot"], [-1]),  # either could be meant
            (["Dog", "cat"], ["dog"], [-1, -1]),
        ],
    )
    def test_the_same_name_first_then_the_only_one_spelt_so(self, names, known, expected):
        assert matched(names, known) == expected

    def test_a_run_is_judged_by_folders_spelt_otherwise(self, dspt, clip, tmp_path):
        photos(tmp_path / "photos")
        assert dspt("train", "photos", "--model", clip, "--epochs", 1, "--out", "run", "-q")[0] == 0
        (tmp_path / "photos/red_panda").rename(tmp_path / "photos/red panda")
        status, output, errors = dspt("eval", "run", "photos", "--json", "-q")
        assert status == 0, errors
        assert '"red_panda"' in output
        (tmp_path / "photos/dog").rename(tmp_path / "photos/red_panda")
        status, _, errors = dspt("eval", "run", "photos", "-q")
        assert status == 2
        assert "class 'red panda' is not among the 3 classes of run" in errors
