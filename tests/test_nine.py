"""The nine datasets: sizes and labels are the paper's, and what is missing is told, not made up."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dspt.data import check as checking
from dspt.data import nine, open_dataset
from dspt.data.check import check, table
from dspt.data.nine import NamedDataset, find, read
from dspt.data.paths import Paths
from dspt.internal.errors import InputError

# Section 4 of the protocol: folder / images, split files, classes, train / val / test, template.
PROTOCOL = """
Caltech101 | caltech-101/101_ObjectCategories | split_zhou_Caltech101.json | 100 | 4128/1649/2465 | a photo of a {}.
OxfordPets | oxford_pets/images | split_zhou_OxfordPets.json | 37 | 2944/736/3669 | a photo of a {}, a type of pet.
StanfordCars | stanford_cars | split_zhou_StanfordCars.json | 196 | 6509/1635/8041 | a photo of a {}.
Flowers102 | oxford_flowers/jpg | split_zhou_OxfordFlowers.json | 102 | 4093/1633/2463 | a photo of a {}, a type of flower.
Food101 | food-101/images | split_zhou_Food101.json | 101 | 50500/20200/30300 | a photo of {}, a type of food.
FGVCAircraft | fgvc_aircraft/images | variants.txt images_variant_train.txt images_variant_val.txt images_variant_test.txt | 100 | 3334/3333/3333 | a photo of a {}, a type of aircraft.
DTD | dtd/images | split_zhou_DescribableTextures.json | 47 | 2820/1128/1692 | {} texture.
EuroSAT | eurosat/2750 | split_zhou_EuroSAT.json | 10 | 13500/5400/8100 | a centered satellite photo of {}.
UCF101 | ucf101/UCF-101-midframes | split_zhou_UCF101.json | 101 | 7639/1898/3783 | a photo of a person doing {}.
"""  # noqa: E501

# Labels are not in the order of names, nor of rows.
ROWS: dict[str, list[list[Any]]] = {
    "train": [["b/1.png", 2, "red_panda"], ["a/1.png", 0, "Yak"], ["a/2.png", 1, "ant"]],
    "val": [["a/v.png", 0, "Yak"]],
    "test": [["b/2.png", 1, "ant"], ["b/3.png", 2, "red_panda"]],
}
SMALL = NamedDataset(
    name="Zoo",
    folder="zoo",
    images="pictures",
    split_files=("split.json",),
    classes=3,
    train=3,
    val=1,
    test=2,
    template="a {} in a zoo.",
    licence="none",
    homepage="https://zoo.example",
)
PLANES = replace(
    SMALL,
    name="Planes",
    split_files=("variants.txt", *(f"images_variant_{s}.txt" for s in ("train", "val", "test"))),
    classes=2,
    train=2,
    val=1,
    test=1,
)


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(file)


def zoo(root: Path, rows: Any = ROWS, images: str = "pictures") -> Path:
    """Make the small dataset in `root`."""
    (root / "zoo").mkdir(parents=True)
    for split in ROWS:
        for path, *_ in ROWS[split]:
            picture(root / "zoo" / images / path)
    (root / "zoo" / "split.json").write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return root


def planes(root: Path, **lists: str) -> Path:
    """Make the small dataset of lists in `root`."""
    given = {
        "variants": "F/A-18\n707 320\n",
        "images_variant_train": "0012 707 320\n0013 F/A-18\n",
        "images_variant_val": "0014 F/A-18\n",
        "images_variant_test": "0015 707 320\r\n",
        **lists,
    }
    for image in ("0012", "0013", "0014", "0015"):
        picture(root / "zoo" / "pictures" / f"{image}.jpg")
    for name, text in given.items():
        (root / "zoo" / f"{name}.txt").write_text(text)
    return root


def changed(split: str, row: int, value: Any) -> dict[str, list[Any]]:
    """Give the rows with one of them replaced."""
    rows: dict[str, list[Any]] = json.loads(json.dumps(ROWS))
    rows[split][row] = value
    return rows


class TestTable:
    def test_the_nine_datasets_are_those_of_the_protocol(self):
        expected = [line.split(" | ") for line in PROTOCOL.strip().splitlines()]
        found = [
            [
                dataset.name,
                f"{dataset.folder}/{dataset.images}".rstrip("/"),
                " ".join(dataset.split_files),
                str(dataset.classes),
                f"{dataset.train}/{dataset.val}/{dataset.test}",
                dataset.template,
            ]
            for dataset in nine.DATASETS
        ]
        assert found == expected

    @pytest.mark.parametrize(
        ("aliases", "name"),
        [
            ("Caltech101 caltech-101 CALTECH", "Caltech101"),
            ("OxfordPets pets oxford_pets Oxford-IIIT-Pet", "OxfordPets"),
            ("StanfordCars cars stanford_cars", "StanfordCars"),
            ("Flowers102 flowers oxford_flowers flowers-102", "Flowers102"),
            ("Food101 food food-101", "Food101"),
            ("FGVCAircraft aircraft fgvc_aircraft FGVC-Aircraft", "FGVCAircraft"),
            ("DTD dtd describable_textures DescribableTextures", "DTD"),
            ("EuroSAT eurosat euro_sat", "EuroSAT"),
            ("UCF101 ucf ucf-101", "UCF101"),
        ],
    )
    def test_a_dataset_is_found_by_its_usual_names_in_any_case(self, aliases, name):
        for alias in aliases.split():
            dataset = find(alias)
            assert dataset is not None
            assert dataset.name == name

    @pytest.mark.parametrize("name", ["", "imagenet", "101", "pets.csv", "./pets", "data\\pets"])
    def test_other_names_and_paths_are_no_dataset(self, name):
        assert find(name) is None

    def test_the_list_for_users_has_the_nine_and_both_cifars(self):
        rows = table()
        assert [row["name"] for row in rows[:9]] == [dataset.name for dataset in nine.DATASETS]
        assert rows[1] == {
            "name": "OxfordPets",
            "classes": 37,
            "train": 2944,
            "val": 736,
            "test": 3669,
            "template": "a photo of a {}, a type of pet.",
            "licence": "CC BY-SA 4.0",
            "homepage": "https://www.robots.ox.ac.uk/~vgg/data/pets/",
        }
        assert [(r["name"], r["classes"], r["train"], r["val"], r["test"]) for r in rows[9:]] == [
            ("CIFAR-10", 10, 50000, None, 10000),
            ("CIFAR-100", 100, 50000, None, 10000),
        ]


class TestRead:
    def test_images_and_labels_are_the_split_files_in_its_order(self, tmp_path):
        found = read(SMALL, zoo(tmp_path))
        base = tmp_path / "zoo" / "pictures"
        assert list(found.train.items) == [str(base / f) for f in ("b/1.png", "a/1.png", "a/2.png")]
        assert found.train.labels.tolist() == [2, 0, 1]
        assert list(found.test.items) == [str(base / f) for f in ("b/2.png", "b/3.png")]
        assert found.test.labels.tolist() == [1, 2]
        assert found.train.labels.dtype == found.test.labels.dtype == np.int64
        assert (found.name, found.template, found.skipped) == ("Zoo", "a {} in a zoo.", ())

    def test_class_names_follow_labels_and_keep_their_underscores(self, tmp_path):
        assert read(SMALL, zoo(tmp_path)).class_names == ("Yak", "ant", "red_panda")

    def test_file_names_are_kept_out_of_memory(self, tmp_path):
        found = read(SMALL, zoo(tmp_path))
        assert isinstance(found.train.items, Paths)
        assert isinstance(found.test.items, Paths)

    def test_paths_start_from_the_dataset_itself_where_it_has_no_images_folder(self, tmp_path):
        found = read(replace(SMALL, images=""), zoo(tmp_path, images=""))
        assert found.train.items[0] == str(tmp_path / "zoo" / "b" / "1.png")

    def test_lists_of_variants_give_labels_in_their_order_and_names_may_have_spaces(self, tmp_path):
        found = read(PLANES, planes(tmp_path))
        assert found.class_names == ("F/A-18", "707 320")
        assert [os.path.basename(item) for item in found.train.items] == ["0012.jpg", "0013.jpg"]
        assert found.train.labels.tolist() == [1, 0]
        assert [os.path.basename(item) for item in found.test.items] == ["0015.jpg"]
        assert found.test.labels.tolist() == [1]

    def test_validation_images_need_not_be_there(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures" / "a" / "v.png").unlink()
        assert len(read(SMALL, tmp_path).train.items) == 3

    def test_each_folder_of_images_is_listed_once(self, tmp_path, monkeypatch):
        zoo(tmp_path)
        listed: list[str] = []
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), scandir(path))[1])
        read(SMALL, tmp_path)
        assert sorted(map(os.path.basename, listed)) == ["a", "b"]

    @pytest.mark.parametrize("size", ["train", "val", "test", "classes"])
    def test_another_size_than_the_papers_is_refused_with_both(self, tmp_path, size):
        dataset = replace(SMALL, **{size: 9})
        wanted = f"{dataset.train} train, {dataset.val} val and {dataset.test} test images of "
        with pytest.raises(InputError) as error:
            read(dataset, zoo(tmp_path))
        assert "found 3 train, 1 val and 2 test images of 3 classes" in str(error.value)
        assert f"expected {wanted}{dataset.classes} classes" in str(error.value)

    def test_no_split_is_made_up_in_place_of_a_missing_one(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "split.json").unlink()
        with pytest.raises(InputError) as error:
            read(SMALL, tmp_path)
        assert f"split.json is not in {tmp_path / 'zoo'}" in str(error.value)
        assert "no random split is made" in str(error.value)

    def test_missing_lists_are_all_named(self, tmp_path):
        planes(tmp_path)
        for name in ("variants.txt", "images_variant_val.txt"):
            (tmp_path / "zoo" / name).unlink()
        with pytest.raises(InputError, match=r"variants.txt, images_variant_val.txt are not in"):
            read(PLANES, tmp_path)

    def test_a_missing_folder_of_images_is_told_with_its_place_and_the_homepage(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures").rename(tmp_path / "elsewhere")
        with pytest.raises(InputError) as error:
            read(SMALL, tmp_path, skip_bad=True)
        assert str(tmp_path / "zoo" / "pictures") in str(error.value)
        assert "https://zoo.example" in str(error.value)

    def test_missing_images_are_counted_and_named(self, tmp_path):
        base = zoo(tmp_path) / "zoo" / "pictures"
        (base / "a" / "1.png").unlink()
        (base / "b" / "2.png").unlink()
        (base / "b" / "2.png").symlink_to("nowhere")
        with pytest.raises(InputError) as error:
            read(SMALL, tmp_path)
        assert "2 of 5 train and test images" in str(error.value)
        assert f"{base}/a/1.png: no such file; {base}/b/2.png: no such file" in str(error.value)

    def test_missing_images_keep_their_place_on_demand_so_that_noise_counts_as_ever(self, tmp_path):
        whole = read(SMALL, zoo(tmp_path))
        (tmp_path / "zoo" / "pictures" / "a" / "1.png").unlink()
        found = read(SMALL, tmp_path, skip_bad=True)
        assert list(found.train.items) == list(whole.train.items)
        assert found.train.labels.tolist() == whole.train.labels.tolist()

    def test_the_folder_of_a_dataset_is_known_by_its_split_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(nine, "DATASETS", (SMALL,))
        folder = zoo(tmp_path) / "zoo"
        assert nine.at(folder) is SMALL
        assert open_dataset(folder).class_names == ("Yak", "ant", "red_panda")
        assert nine.at(tmp_path) is None

    def test_a_split_without_any_image_is_refused_even_then(self, tmp_path):
        zoo(tmp_path)
        for name in ("2.png", "3.png"):
            (tmp_path / "zoo" / "pictures" / "b" / name).unlink()
        with pytest.raises(InputError, match="none of the test images"):
            read(SMALL, tmp_path, skip_bad=True)

    def test_a_root_that_is_not_given_or_not_there_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"Zoo: no root is given.*`root`.*zoo"):
            read(SMALL, None)
        with pytest.raises(InputError, match=r"nowhere: no such folder"):
            read(SMALL, tmp_path / "nowhere")
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"file: not a folder"):
            read(SMALL, tmp_path / "file")


BROKEN_SPLITS: list[tuple[str, Any, str]] = [
    ("cut off", '{"train": [', r"not valid JSON \("),
    ("nested without end", "[" * 100_000, r"not valid JSON \("),
    ("a list", [], "no list 'train'"),
    ("no val", {"train": ROWS["train"], "test": ROWS["test"]}, "no list 'val'"),
    ("val is a dict", {**ROWS, "val": {}}, "no list 'val'"),
    ("row too short", changed("test", 1, ["b/3.png", 2]), r"test row 1 is \['b/3.png', 2\]"),
    ("row is text", changed("val", 0, "abc"), "val row 0 is 'abc'"),
    ("label is text", changed("train", 0, ["b/1.png", "2", "red_panda"]), "train row 0"),
    ("label is a fraction", changed("train", 0, ["b/1.png", 2.0, "red_panda"]), "train row 0"),
    ("label is true", changed("train", 2, ["a/2.png", True, "ant"]), "train row 2"),
    ("label is negative", changed("train", 2, ["a/2.png", -1, "ant"]), "train row 2"),
    ("path is null", changed("train", 1, [None, 0, "Yak"]), "train row 1"),
    ("name is a number", changed("train", 1, ["a/1.png", 0, 7]), "train row 1"),
    ("no such text", changed("train", 1, ["a/\ud800.png", 0, "Yak"]), "train row 1"),
    ("NUL", changed("train", 1, ["a/\0.png", 0, "Yak"]), "train row 1"),
    (
        "two names",
        changed("test", 0, ["b/2.png", 1, "bee"]),
        r"label 1 is called both 'ant' and 'bee' \(in test row 0\)",
    ),
    ("one name twice", changed("train", 1, ["a/1.png", 3, "ant"]), "class 'ant' is there twice"),
    ("a gap", changed("train", 1, ["a/1.png", 10**30, "cat"]), "no image has label 3"),
    ("an empty name", changed("train", 1, ["a/1.png", 3, " "]), "a class has an empty name"),
    ("absolute", changed("train", 1, ["/etc/1.png", 0, "Yak"]), "'/etc/1.png' is not a path below"),
    ("a drive", changed("train", 1, ["C:1.png", 0, "Yak"]), "'C:1.png' is not a path below"),
    ("above", changed("train", 1, ["a/../../1.png", 0, "Yak"]), "is not a path below"),
    ("above in Windows", changed("train", 1, ["..\\1.png", 0, "Yak"]), "is not a path below"),
    ("nothing", changed("train", 1, ["", 0, "Yak"]), "'' is not a path below"),
    (
        "trained and tested",
        changed("test", 0, ["a/2.png", 1, "ant"]),
        "'a/2.png' is listed twice, in train and test",
    ),
]


class TestMalformedSplits:
    @pytest.mark.parametrize(
        ("rows", "sentence"),
        [broken[1:] for broken in BROKEN_SPLITS],
        ids=[broken[0] for broken in BROKEN_SPLITS],
    )
    def test_a_malformed_json_file_is_refused_in_one_sentence(self, tmp_path, rows, sentence):
        with pytest.raises(InputError, match=sentence) as error:
            read(SMALL, zoo(tmp_path, rows))
        assert str(error.value).startswith(str(tmp_path / "zoo" / "split.json"))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_a_byte_order_mark_is_told(self, tmp_path, encoding):
        (zoo(tmp_path) / "zoo" / "split.json").write_text(json.dumps(ROWS), encoding=encoding)
        with pytest.raises(InputError, match="byte-order mark"):
            read(SMALL, tmp_path)
        text = "F/A-18\n707 320\n"
        (planes(tmp_path) / "zoo" / "variants.txt").write_text(text, encoding=encoding)
        with pytest.raises(InputError, match="byte-order mark"):
            read(PLANES, tmp_path)

    def test_what_is_no_text_or_no_file_is_told(self, tmp_path):
        split = zoo(tmp_path) / "zoo" / "split.json"
        split.write_bytes(b'{"train": "\xff"}')
        with pytest.raises(InputError, match=r"not UTF-8 text \(at byte 11\)"):
            read(SMALL, tmp_path)
        split.unlink()
        split.mkdir()
        with pytest.raises(InputError, match="cannot be read"):
            read(SMALL, tmp_path)

    @pytest.mark.parametrize(
        ("name", "text", "sentence"),
        [
            ("images_variant_train", "0012 747\n", "train.txt: line 1 is '0012 747'"),
            ("images_variant_test", "\n0015\n", "test.txt: line 2 is '0015'"),
            ("images_variant_test", "0012 F/A-18\n", "'0012.jpg' is listed twice"),
            ("images_variant_test", "../0012 F/A-18\n", "is not a path below"),
            ("variants", "F/A-18\n707 320\nF/A-18\n", "class 'F/A-18' is there twice"),
            ("variants", "F/A-18\n707 320\n747\n", "of 3 classes, expected"),
        ],
    )
    def test_malformed_lists_are_refused_in_one_sentence(self, tmp_path, name, text, sentence):
        with pytest.raises(InputError, match=sentence):
            read(PLANES, planes(tmp_path, **{name: text}))


class TestCheck:
    def test_a_whole_dataset_is_ok_and_all_its_images_are_decoded(self, tmp_path):
        steps: list[tuple[int, int]] = []
        report = check(SMALL, zoo(tmp_path), progress=lambda *step: steps.append(step))
        assert report.ok
        assert report.problems == ()
        assert steps == [(i, 6) for i in range(1, 7)]
        assert [(s.name, s.used, s.expected, s.found, s.missing, s.broken) for s in report.splits] == [
            ("train", True, 3, 3, 0, 0),
            ("val", False, 1, 1, 0, 0),
            ("test", True, 2, 2, 0, 0),
        ]
        assert "Zoo: complete" in report.lines()[0]

    def test_missing_and_broken_images_are_counted_and_named(self, tmp_path):
        base = zoo(tmp_path) / "zoo" / "pictures"
        (base / "a" / "1.png").unlink()
        noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(base / "b" / "3.png")
        whole = (base / "b" / "3.png").read_bytes()
        (base / "b" / "3.png").write_bytes(whole[: len(whole) // 2])
        report = check(SMALL, tmp_path)
        train, _, test = report.splits
        assert (train.found, train.missing, train.missing_files) == (2, 1, ("a/1.png",))
        assert (test.found, test.broken) == (2, 1)
        assert test.broken_files[0].name == "b/3.png"
        assert not report.ok
        shown = "\n".join(report.lines())
        assert "Zoo: not complete" in shown
        assert "missing: a/1.png" in shown
        assert "broken: b/3.png: not" in shown
        assert "https://zoo.example" in shown

    def test_without_decoding_only_presence_is_looked_at(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures" / "a" / "1.png").write_bytes(b"")
        report = check(SMALL, tmp_path, decode=False)
        assert report.ok
        assert [split.broken for split in report.splits] == [None] * 3
        assert "no image was decoded" in report.lines()[0]

    def test_a_validation_split_that_is_missing_is_reported_but_not_needed(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures" / "a" / "v.png").unlink()
        report = check(SMALL, tmp_path)
        assert report.splits[1].missing == 1
        assert report.ok

    def test_ok_says_whether_the_dataset_can_be_read(self, tmp_path):
        for gone in (["split.json"], ["pictures"], ["split.json", "pictures"]):
            root = zoo(tmp_path / "-".join(gone))
            for name in gone:
                (root / "zoo" / name).rename(root / name)
            assert not check(SMALL, root).ok
            with pytest.raises(InputError):
                read(SMALL, root)

    def test_images_without_a_split_file_are_reported_as_such(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "split.json").unlink()
        report = check(SMALL, tmp_path)
        assert report.images.found
        assert [place.found for place in report.split_files] == [False]
        assert report.classes_found is None
        assert report.splits[0].found is None
        assert "split.json is not in" in report.problems[0]

    def test_a_split_file_without_images_is_reported_as_such(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures").rename(tmp_path / "elsewhere")
        report = check(SMALL, tmp_path)
        assert [place.found for place in report.split_files] == [True]
        assert not report.images.found
        assert [split.missing for split in report.splits] == [3, 1, 2]

    def test_a_split_of_another_size_is_reported_with_what_it_lists(self, tmp_path):
        report = check(replace(SMALL, train=4), zoo(tmp_path))
        assert not report.ok
        assert (report.splits[0].expected, report.splits[0].listed) == (4, 3)
        assert "expected 4 train" in report.problems[0]

    def test_a_root_that_is_not_there_is_reported(self, tmp_path):
        report = check("pets", tmp_path / "nowhere")
        assert not report.ok
        assert report.problems == (
            f"root {tmp_path / 'nowhere'}: no such folder; give the folder in which oxford_pets lies for OxfordPets",
        )

    def test_an_unknown_name_is_refused_with_the_known_ones(self, tmp_path):
        with pytest.raises(InputError, match=r"imagenet: .*OxfordPets"):
            check("imagenet", tmp_path)

    def test_the_report_is_json(self, tmp_path):
        (zoo(tmp_path) / "zoo" / "pictures" / "a" / "1.png").write_bytes(b"no image")
        found = json.loads(json.dumps(check(SMALL, tmp_path).as_dict()))
        assert found["ok"] is False
        assert found["splits"][0]["broken"] == 1
        assert found["splits"][0]["broken_files"][0]["reason"] == "not an image of a known format"
        assert found["split_files"] == [{"path": str(tmp_path / "zoo" / "split.json"), "found": True}]

    def test_the_worst_report_fits_one_screen(self, tmp_path):
        root = tmp_path.joinpath(*["deep" * 50] * 5)
        rows = {split: [[f"{'x' * 60}\n{split}{i}.png", 0, "a"] for i in range(20)] for split in ROWS}
        rows["train"].append(["y.png", 1, "b"])
        zoo(root, rows)
        for split in ROWS:
            for path, *_ in rows[split][:10]:
                (root / "zoo" / "pictures" / path).write_bytes(b"no image")
        for report in (
            check(SMALL, root),
            check("aircraft", root),
            check("aircraft", root / ("no" * 100)),
        ):
            shown = report.lines()
            assert len(shown) <= 24
            assert max(map(len, shown)) <= 100
            assert all(line.isprintable() for line in shown)

    def test_few_images_are_under_way_at_a_time(self):
        started: list[int] = []
        results = checking.in_threads(lambda i: (started.append(i), i)[1], iter(range(1000)), 2)
        assert next(results) == 0
        assert len(started) <= 8
        assert list(results) == list(range(1, 1000))
