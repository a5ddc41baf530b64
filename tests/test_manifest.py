"""Manifests: every row becomes the image and label it names, or is told of with its line."""

from __future__ import annotations

import csv
import json
import os
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dspt.data import manifest, open_dataset
from dspt.data.dataset import Dataset, Split, hold_out
from dspt.internal.errors import InputError

posix = pytest.mark.skipif(os.name == "nt", reason="there a backslash parts folders anyway")


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def pairs(split: Split, root: Path) -> list[tuple[str, int]]:
    """What is in a split: each path as seen from `root`, with its label."""
    names = [os.path.relpath(item, root).replace(os.sep, "/") for item in split.items]
    return list(zip(names, split.labels.tolist(), strict=True))


def names(dataset: Dataset, split: Split) -> dict[str, str]:
    """The class name of each file."""
    classes = [dataset.class_names[label] for label in split.labels]
    return {os.path.basename(item): name for item, name in zip(split.items, classes, strict=True)}


SPLIT = ("path,label,split", "a.jpg,dog,train", "b.jpg,cat,train", "c.jpg,dog,test")


class TestColumns:
    def test_rows_become_paths_beside_the_manifest_and_labels_that_count_sorted_names(self, tmp_path):
        found = manifest.read(write(tmp_path / "pets.csv", *SPLIT))
        assert found.name == "pets"
        assert found.class_names == ("cat", "dog")
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]
        assert pairs(found.test, tmp_path) == [("c.jpg", 1)]
        assert found.train.labels.dtype == np.int64
        assert found.train.true_labels is None
        assert found.notes == found.skipped == ()

    def test_order_case_and_spaces_of_the_header_do_not_matter_and_others_are_noted(self, tmp_path):
        file = write(
            tmp_path / "m.csv",
            "Width, SPLIT ,Label,note,Path",
            "3,Training, dog ,x,a.jpg",
            "3,train,cat,,b.jpg",
            "3,TEST,dog,,c.jpg",
        )
        found = manifest.read(file)
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]
        assert found.notes == (f"Not used in {file}: column 'Width', 'note'.",)

    @pytest.mark.parametrize(
        ("header", "sentence"),
        [
            ("file,label", r"no column 'path'; found 'file', 'label'"),
            ("path,class", r"no column 'label'; found 'path', 'class'"),
            ("x,y", r"no column 'path' and no column 'label'"),
            ("path,label,Path", "'path' is there twice"),
        ],
    )
    def test_missing_or_double_columns_are_named(self, tmp_path, header, sentence):
        with pytest.raises(InputError, match=sentence):
            manifest.read(write(tmp_path / "m.csv", header, "a.jpg,dog,b"))

    def test_true_labels_are_kept_apart_and_may_name_further_classes(self, tmp_path):
        found = manifest.read(
            write(
                tmp_path / "m.csv",
                "path,label,true_label,split",
                "a.jpg,dog,eel,train",
                "b.jpg,cat,cat,train",
                "c.jpg,dog,dog,test",
            )
        )
        assert found.class_names == ("cat", "dog", "eel")
        assert found.train.labels.tolist() == [1, 0]
        assert found.train.true_labels.tolist() == [2, 0]
        assert found.test.true_labels.tolist() == [1]

    def test_true_labels_may_be_given_for_one_split_alone(self, tmp_path):
        lines = ("path,label,true_label,split", "a,x,,train", "b,y,,train", "c,x,y,test")
        found = manifest.read(write(tmp_path / "m.csv", *lines))
        assert found.train.true_labels is None
        assert found.test.true_labels.tolist() == [1]
        assert found.notes == ("No true label is given in the train split.",)

    def test_a_true_label_that_is_not_given_is_unknown_and_that_is_said(self, tmp_path):
        lines = ("path,label,true_label,split", "a,x,y,train", "b,y,y,train", "c,x, ,train")
        found = manifest.read(write(tmp_path / "m.csv", *lines, "d,x,x,test"))
        assert found.train.labels.tolist() == [0, 1, 0]
        assert found.train.true_labels.tolist() == [1, 1, -1]
        assert found.train.best_labels.tolist() == [1, 1, 0]
        assert not found.train.truth_known
        assert found.test.truth_known
        assert found.notes == (
            "1 of 3 images of the train split have no true label: whether theirs is wrong is unknown.",
        )


class TestPaths:
    def test_paths_start_from_the_root_if_one_is_given_and_absolute_ones_stay(self, tmp_path):
        far = tmp_path / "far" / "b.jpg"
        file = write(tmp_path / "m.csv", "path,label,split", f"{far},x,train", "c,y,train", "d,x,test")
        found = manifest.read(file, root=tmp_path / "images")
        assert list(found.train.items) == [str(far), str(tmp_path / "images" / "c")]

    @posix
    def test_backslashes_part_folders_and_it_says_so(self, tmp_path):
        lines = (r"images\dog\1.jpg,dog,train", r"images\cat\1.jpg,cat,train", "t/1.jpg,cat,test")
        found = manifest.read(write(tmp_path / "m.csv", "path,label,split", *lines))
        assert pairs(found.train, tmp_path) == [("images/dog/1.jpg", 1), ("images/cat/1.jpg", 0)]
        assert "Backslashes" in found.notes[0]

    @posix
    def test_backslashes_stay_where_a_file_has_them_in_its_name(self, tmp_path):
        (tmp_path / r"odd\1.jpg").touch()
        lines = (r"odd\1.jpg,dog,train", r"odd\2.jpg,cat,train", "t,cat,test")
        found = manifest.read(write(tmp_path / "m.csv", "path,label,split", *lines))
        assert list(found.train.items) == [
            str(tmp_path / r"odd\1.jpg"),
            str(tmp_path / r"odd\2.jpg"),
        ]
        assert found.notes == ()

    @posix
    @pytest.mark.parametrize("name", [r"C:\data\1.jpg", "d:/data/1.jpg", r"\\server\share\1.jpg"])
    def test_absolute_windows_paths_are_faults(self, tmp_path, name):
        with pytest.raises(InputError, match=r"line 5: .* is an absolute Windows path"):
            manifest.read(write(tmp_path / "m.csv", *SPLIT, f"{name},dog,train"))

    def test_files_are_not_looked_for(self, tmp_path, monkeypatch):
        file = write(tmp_path / "m.csv", *SPLIT)
        asked: list[str] = []
        monkeypatch.setattr(os.path, "lexists", lambda name: asked.append(name) or True)
        manifest.read(file)
        assert asked == []


class TestLabels:
    def test_numbers_are_in_numeric_order_and_a_note_asks_for_names(self, tmp_path):
        lines = ("path,label,split", "a,10,train", "b,2,train", "c,02,train", "d,10.0,test")
        found = manifest.read(write(tmp_path / "m.csv", *lines))
        assert found.class_names == ("2", "10")
        assert found.train.labels.tolist() == [1, 0, 0]
        assert found.test.labels.tolist() == [1]
        assert "as `class_names`" in found.notes[0]

    def test_numbers_among_names_are_names(self, tmp_path):
        lines = ("path,label,split", "a,10,train", "b,2,train", "c,cat,train", "d,2,test")
        found = manifest.read(write(tmp_path / "m.csv", *lines))
        assert found.class_names == ("10", "2", "cat")
        assert found.notes == ()

    def test_numbers_count_the_given_names_from_zero(self, tmp_path):
        names_file = tmp_path / "names.txt"
        names_file.write_bytes(b"\xef\xbb\xbfzebra\r\n yak \r\nt\xc3\xbcr\r\n\r\n")
        lines = ("path,label,split", "a,2,train", "b,0,train", "c,2,test")
        found = manifest.read(write(tmp_path / "m.csv", *lines), class_names=names_file)
        assert found.class_names == ("zebra", "yak", "tür")
        assert found.train.labels.tolist() == [2, 0]
        assert found.notes == (f"No train image of {tmp_path / 'm.csv'} is labelled 'yak'.",)

    def test_names_are_in_the_order_of_the_given_names(self, tmp_path):
        names_file = write(tmp_path / "names.txt", "dog", "cat")
        found = manifest.read(write(tmp_path / "m.csv", *SPLIT), class_names=names_file)
        assert found.class_names == ("dog", "cat")
        assert found.train.labels.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("labels", "sentence"),
        [
            (("1", "2"), r"expected 0\.\.1 for 2 classes, found 2 at line 3 of .* from 0"),
            (("dog", "wolf"), "label 'wolf' at line 3 is not a name in"),
        ],
    )
    def test_labels_that_the_given_names_do_not_have_are_told_with_their_line(self, tmp_path, labels, sentence):
        lines = ("path,label,split", *(f"{i}.jpg,{label},train" for i, label in enumerate(labels)))
        names_file = write(tmp_path / "names.txt", "dog", "cat")
        with pytest.raises(InputError, match=sentence):
            manifest.read(write(tmp_path / "m.csv", *lines), class_names=names_file)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"dog\n\ncat\n", "empty name"),
            (b"dog\ndog\n", "'dog' is there twice"),
            (b"dog\n", "found 1 class"),
            (b"dog\n\xff\n", "not UTF-8 text"),
            (None, "cannot be read"),
        ],
    )
    def test_bad_files_of_names_are_refused(self, tmp_path, content, sentence):
        if content is not None:
            (tmp_path / "names.txt").write_bytes(content)
        with pytest.raises(InputError, match=rf"names\.txt.*{sentence}"):
            manifest.read(write(tmp_path / "m.csv", *SPLIT), class_names=tmp_path / "names.txt")

    def test_numbers_below_zero_are_faults_and_no_class(self, tmp_path):
        lines = ("path,label,split", "a,0,train", "b,-1,train", "c,7,train", "d,7,test")
        file = write(tmp_path / "m.csv", *lines)
        with pytest.raises(InputError, match="line 3: its label is below 0"):
            manifest.read(file)
        found = manifest.read(file, skip_bad=True)
        assert found.class_names == ("0", "7")
        assert pairs(found.train, tmp_path) == [("a", 0), ("c", 1)]

    @pytest.mark.parametrize(
        ("rows", "sentence"),
        [
            (("a,x,train", "b,x,train", "c,x,test"), "found 1 class"),
            (("a,x,train", "b,y,train", "c,z,test"), "class 'z' is in the test split only"),
            (("a,x,test", "b,y,test"), "no images to train with"),
            (("a,x,train", "b,y,train"), "no images to test with"),
        ],
    )
    def test_classes_and_splits_that_cannot_be_used_are_refused(self, tmp_path, rows, sentence):
        with pytest.raises(InputError, match=sentence):
            manifest.read(write(tmp_path / "m.csv", "path,label,split", *rows))


class TestSplits:
    ROWS = tuple(f"{i:03}.jpg,{'ab'[i % 2]}" for i in range(60))

    @pytest.mark.parametrize("name", ["val", "Valid", " validation "])
    def test_validation_rows_stand_in_for_missing_test_rows_and_it_says_so(self, tmp_path, name):
        file = write(tmp_path / "m.csv", *SPLIT[:3], f"c,dog,{name}")
        found = manifest.read(file)
        assert pairs(found.test, tmp_path) == [("c", 1)]
        assert "1 validation row is used as the test split" in found.notes[0]

    def test_validation_rows_are_left_alone_beside_test_rows_and_it_says_so(self, tmp_path):
        found = manifest.read(write(tmp_path / "m.csv", *SPLIT, "a.jpg,wolf,val"))
        assert found.class_names == ("cat", "dog")
        assert len(found.train.items) == 2
        assert len(found.test.items) == 1
        assert "1 validation row" in found.notes[0]

    def test_an_unknown_split_is_told_with_its_line(self, tmp_path):
        with pytest.raises(InputError, match="split is 'dev' at line 5; expected train, test or"):
            manifest.read(write(tmp_path / "m.csv", *SPLIT, "d,dog,dev"))

    @pytest.mark.parametrize(
        ("lines", "why"),
        [
            (("path,label", *ROWS), "has no split column"),
            (("path,label,split", *(f"{row},train" for row in ROWS)), "has no test rows"),
        ],
    )
    def test_without_test_rows_a_part_of_each_class_is_held_out_and_it_says_so(self, tmp_path, lines, why):
        file = write(tmp_path / "m.csv", *lines)
        found = manifest.read(file, seed=4, test_fraction=0.25)
        labels = np.arange(60) % 2
        paths = [f"{i:03}.jpg" for i in range(60)]
        train, test = hold_out(Split(paths, labels), ("a", "b"), 4, 0.25)
        assert pairs(found.train, tmp_path) == list(zip(train.items, train.labels, strict=True))
        assert pairs(found.test, tmp_path) == list(zip(test.items, test.labels, strict=True))
        assert found.notes == (
            f"{file} {why}: 16 of 60 images, drawn from each class with seed 4, are held out as the test split.",
        )


class TestFaults:
    LINES = (
        "path,label,split",
        "a.jpg,dog,train",
        "b.jpg,cat",
        ",cat,train",
        "c.jpg, ,train",
        "d.jpg,cat,train,4",
        "./x/../a.jpg,cat,test",
        "e\0.jpg,cat,train",
        "f.jpg,cat,train",
        "g.jpg,dog,test",
    )

    def test_the_first_five_are_named_in_order_and_the_rest_counted(self, tmp_path):
        with pytest.raises(InputError) as error:
            manifest.read(write(tmp_path / "m.csv", *self.LINES))
        assert str(error.value) == (
            f"{tmp_path / 'm.csv'}: 6 of 9 rows cannot be used "
            "(line 3: 2 cells instead of 3; line 4: the path is empty; "
            "line 5: the label is empty; line 6: 4 cells instead of 3; "
            "line 7: the same path as in line 2, which belongs to another split, and 1 more); "
            "correct them; set `skip_bad` to go on without them"
        )

    def test_they_are_left_out_and_listed_if_asked_and_labels_stay_with_their_images(self, tmp_path):
        found = manifest.read(write(tmp_path / "m.csv", *self.LINES), skip_bad=True)
        assert names(found, found.train) == {"a.jpg": "dog", "f.jpg": "cat"}
        assert names(found, found.test) == {"g.jpg": "dog"}
        assert [fault.name for fault in found.skipped] == [f"line {i}" for i in (3, 4, 5, 6, 7, 8)]
        assert found.skipped[-1].reason == "there is a null byte in it"
        assert found.skipped[4].split == "test"

    def test_of_equal_paths_the_first_stays(self, tmp_path):
        lines = ("path,label", "a,x", "b,y", "a,y", "c,x", "./a,x", "d,y", "b,y")
        found = manifest.read(write(tmp_path / "m.csv", *lines), skip_bad=True)
        both = {**names(found, found.train), **names(found, found.test)}
        assert both == {"a": "x", "b": "y", "c": "x", "d": "y"}
        assert [(fault.name, fault.reason) for fault in found.skipped] == [
            ("line 4", "the same path as in line 2"),
            ("line 6", "the same path as in line 2"),
            ("line 8", "the same path as in line 3"),
        ]

    def test_different_paths_with_the_same_hash_both_stay(self, tmp_path, monkeypatch):
        monkeypatch.setattr(manifest, "hash", lambda name: len(name), raising=False)
        lines = ("path,label", "a,x", "b,y", "c,x", "b,x", "d,y", "long,x", "tall,y")
        found = manifest.read(write(tmp_path / "m.csv", *lines), skip_bad=True)
        assert len(found.train.items) + len(found.test.items) == 6
        assert [fault.reason for fault in found.skipped] == ["the same path as in line 3"]

    def test_a_class_whose_rows_are_all_left_out_is_no_class(self, tmp_path):
        found = manifest.read(write(tmp_path / "m.csv", *SPLIT, "a.jpg,wolf,train"), skip_bad=True)
        assert found.class_names == ("cat", "dog")
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]

    def test_it_stops_if_no_row_is_left(self, tmp_path):
        with pytest.raises(InputError, match=r"2 of 2 rows .* no row is left"):
            manifest.read(write(tmp_path / "m.csv", "path,label", ",x", "a,"), skip_bad=True)


class TestText:
    @pytest.mark.parametrize(
        ("size", "sentence"),
        [
            (200_000, "line 3: a label is longer than 1000 char"),
            (10_000_000, "line 3: it is longer"),
        ],
    )
    def test_an_endless_cell_is_told_with_its_line_or_left_out(self, tmp_path, size, sentence):
        lines = ("path,label", "a,x", "b," + "y" * size, "c,y", "d,x", "e,y")
        file = write(tmp_path / "m.csv", *lines)
        with pytest.raises(InputError, match=sentence):
            manifest.read(file)
        found = manifest.read(file, skip_bad=True)
        assert [fault.name for fault in found.skipped] == ["line 3"]
        assert len(found.train.labels) + len(found.test.labels) == 4

    @pytest.mark.parametrize(("file", "delimiter"), [("m.csv", ","), ("m.csv", ";"), ("m.csv", "\t"), ("m.tsv", "\t")])
    def test_the_delimiter_is_seen_in_the_header(self, tmp_path, file, delimiter):
        lines = [line.replace(",", delimiter) for line in SPLIT]
        found = manifest.read(write(tmp_path / file, *lines))
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]

    def test_what_excel_writes_is_read(self, tmp_path):
        rows = [["path", "label", "split"], ["a, b.jpg", 'big "dog"', "train"]]
        rows += [["größe.jpg", "cat", "train"], [], ["c.jpg", 'big "dog"', "test"]]
        with open(tmp_path / "m.csv", "w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, dialect="excel").writerows(rows)
        assert b"\r\n" in (tmp_path / "m.csv").read_bytes()
        found = manifest.read(tmp_path / "m.csv")
        assert found.class_names == ('big "dog"', "cat")
        assert pairs(found.train, tmp_path) == [("a, b.jpg", 0), ("größe.jpg", 1)]

    def test_blank_lines_count_as_lines_but_not_as_rows(self, tmp_path):
        lines = ("", "path,label,split", "", *SPLIT[1:], "   ", "d.jpg,,train")
        with pytest.raises(InputError, match=r"1 of 4 rows .*line 8: the label is empty"):
            manifest.read(write(tmp_path / "m.csv", *lines))

    def test_other_cells_may_have_line_breaks_and_lines_are_counted_on(self, tmp_path):
        lines = ("path,label,split,note", 'a,x,train,"one', 'two"', "b,y,train,", "c,,test,")
        with pytest.raises(InputError, match="line 5: the label is empty"):
            manifest.read(write(tmp_path / "m.csv", *lines))

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "it is empty"),
            (b"\n \n", "it is empty"),
            (b"path,label\n", "a header and no rows"),
            (b"path,label\na,x\nb,t\xfcr\n", "line 3 is not UTF-8 text"),
            ("path,label\na,x\n".encode("utf-16"), "line 1 is not UTF-8 text"),
            (
                "path,label\na,x\n".encode("utf-16-le"),
                "header cannot be read, there is a null byte",
            ),
            (b'path,label\na,x\n"b,y\nc,x\n', "quotes at line 3 are not closed"),
            (b'path,label\n"b,y\nc,x\n"d",y\n', "quotes at line 2 are not closed"),
            (b'path,label\n"b\nc,x\nd",y\n', "runs from line 2 to line 4"),
            (b"path,label\n" + b"a," * 600_000, "line 2: it is longer than 1048576 char"),
            (b'path,label\na,x\n"' + b"y,\n" * 500_000, "cell at line 3 is longer than 1048576"),
            (b"x" * 2_000_000 + b",label\na,x\n", "header cannot be read, it is longer than"),
        ],
    )
    def test_a_broken_file_is_told_in_one_sentence(self, tmp_path, content, sentence):
        (tmp_path / "m.csv").write_bytes(content)
        for skip_bad in (False, True):
            with pytest.raises(InputError, match=rf"m\.csv: .*{sentence}") as error:
                manifest.read(tmp_path / "m.csv", skip_bad=skip_bad)
            assert len(str(error.value)) < 1000

    @pytest.mark.parametrize("suffix", manifest.SUFFIXES)
    def test_missing_files_and_folders_are_told_in_one_sentence(self, tmp_path, suffix):
        with pytest.raises(InputError, match="none"):
            manifest.read(tmp_path / f"none{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(InputError, match="folder"):
            manifest.read(tmp_path / f"folder{suffix}")


COLUMNS = {
    "label": ["dog", "cat", "dog"],
    "Path": ["a.jpg", "b.jpg", "c.jpg"],
    "width": [1, 2, 3],
    "split": ["train", "train", "test"],
}


class TestParquet:
    def write(self, path: Path, **columns: object) -> Path:
        pq.write_table(pa.table({**COLUMNS, **columns}), path)
        return path

    def test_it_says_the_same_as_text(self, tmp_path):
        file = self.write(tmp_path / "m.parquet")
        found, same = manifest.read(file), manifest.read(write(tmp_path / "m.csv", *SPLIT))
        assert found.name == same.name
        assert found.class_names == same.class_names
        assert pairs(found.train, tmp_path) == pairs(same.train, tmp_path)
        assert pairs(found.test, tmp_path) == pairs(same.test, tmp_path)
        assert found.notes == (f"Not used in {file}: column 'width'.",)

    @pytest.mark.parametrize(
        "label",
        [
            pa.array(["dog", "cat", "dog"]).dictionary_encode(),
            pa.array(["dog", "cat", "dog"], pa.large_string()),
            pa.array([9, 8, 9], pa.uint8()),
            pa.array([9, 8, 9]).dictionary_encode(),
        ],
        ids=lambda label: str(label.type),
    )
    def test_labels_may_be_text_or_numbers_plain_or_in_a_dictionary(self, tmp_path, label):
        found = manifest.read(self.write(tmp_path / "m.parquet", label=label))
        assert found.class_names in (("cat", "dog"), ("8", "9"))
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]

    def test_rows_are_counted_from_zero_over_all_row_groups(self, tmp_path):
        count = 20_000
        labels = [None if i == 19_990 else "xy"[i % 2] for i in range(count)]
        table = pa.table({"path": [f"{i}" for i in range(count)], "label": labels})
        pq.write_table(table, tmp_path / "m.parquet", row_group_size=7_000)
        with pytest.raises(InputError, match=r"1 of 20000 rows .*row 19990: the label is empty"):
            manifest.read(tmp_path / "m.parquet")
        found = manifest.read(tmp_path / "m.parquet", skip_bad=True)
        for item, label in pairs(found.test, tmp_path):
            assert label == int(item) % 2

    @pytest.mark.parametrize(
        ("columns", "sentence"),
        [
            ({"label": [["dog"], ["cat"], []]}, "column 'label' holds list.*text or whole numbers"),
            ({"label": [0.5, 1.5, 2.5]}, "column 'label' holds double"),
            ({"Path": [1, 2, 3]}, "column 'path' holds int64; expected text"),
            ({"Path": [{"path": "a"}] * 3}, "column 'path' holds struct"),
            ({"Path": ["a", "b\0", "c"]}, "row 1: there is a null byte"),
            ({"Path": ["a", None, "c"]}, "row 1: the path is empty"),
        ],
    )
    def test_columns_that_are_no_text_are_refused(self, tmp_path, columns, sentence):
        with pytest.raises(InputError, match=sentence):
            manifest.read(self.write(tmp_path / "m.parquet", **columns))

    @pytest.mark.parametrize("part", ["none", "text", "half", "middle"])
    def test_a_damaged_file_is_told_in_one_sentence(self, tmp_path, part):
        file = self.write(tmp_path / "m.parquet")
        whole = file.read_bytes()
        damaged = {
            "none": b"",
            "text": b"path,label\n",
            "half": whole[: len(whole) // 2],
            "middle": whole[:4] + b"\xff" * 60 + whole[64:],
        }
        file.write_bytes(damaged[part])
        with pytest.raises(InputError, match=r"m\.parquet: not a readable Parquet file") as error:
            manifest.read(file)
        assert "\n" not in str(error.value)


class TestCalledOtherwise:
    """Columns that a table has other names for, in every kind of table."""

    LINES = ("file;class;right;part;path", "a.jpg;dog;cat;train;x", "b.jpg;cat;;train;y", "c.jpg;dog;;test;z")
    COLUMNS = "path=file,label=class,true_label=right,split=part"

    @pytest.mark.parametrize("columns", [COLUMNS, dict(pair.split("=") for pair in COLUMNS.split(","))])
    def test_they_are_read_under_those_names_and_others_are_noted(self, tmp_path, columns):
        found = manifest.read(write(tmp_path / "m.csv", *self.LINES), columns=columns)
        assert pairs(found.train, tmp_path) == [("a.jpg", 1), ("b.jpg", 0)]
        assert pairs(found.test, tmp_path) == [("c.jpg", 1)]
        assert found.train.true_labels[0] == 0
        assert f"Not used in {tmp_path / 'm.csv'}: column 'path'." in found.notes

    def test_the_others_keep_their_names(self, tmp_path):
        found = manifest.read(write(tmp_path / "m.csv", "file,label", "a,x", "b,x", "c,y", "d,y"), columns="path=file")
        assert found.class_names == ("x", "y")

    def test_a_name_that_differs_in_case_alone_is_the_exact_one(self, tmp_path):
        file = write(tmp_path / "m.csv", "File,file,label", "a,b,x", "c,d,x", "e,f,y", "g,h,y")
        found = manifest.read(file, columns="path=file")
        assert sorted(map(os.path.basename, [*found.train.items, *found.test.items])) == ["b", "d", "f", "h"]

    @pytest.mark.parametrize(
        ("columns", "sentence"),
        [
            ("path=nothing,label=class", "has no column 'nothing'; found 'file', 'class'"),
            ("path=file,split=nothing,label=class", "has no column 'nothing'"),
            ("file=path", "columns 'file=path': expected some of path, label, true_label, split"),
            ("path", "columns 'path': expected some of"),
            ("path=file,path=class", "expected some of"),
            ("path=file,label=file", "each with another name"),
        ],
    )
    def test_names_that_mean_nothing_are_refused(self, tmp_path, columns, sentence):
        with pytest.raises(InputError, match=sentence):
            manifest.read(write(tmp_path / "m.csv", *self.LINES), columns=columns)

    def test_without_them_it_is_said_what_to_do(self, tmp_path):
        with pytest.raises(InputError, match="say what the columns are called with `columns`"):
            manifest.read(write(tmp_path / "m.csv", *self.LINES))

    def test_they_go_with_a_manifest(self, tmp_path):
        with pytest.raises(InputError, match="columns path=file: they go with a manifest, and embedded is none"):
            open_dataset("embedded", columns="path=file")


def test_a_label_spelt_as_a_folder_is_the_name_in_the_file_of_names(tmp_path):
    names = write(tmp_path / "names.txt", "ankle boot", "dog")
    file = write(tmp_path / "m.csv", "path,label,split", "a,dog,train", "b,ankle_boot,train", "c,dog,test")
    found = manifest.read(file, class_names=names)
    assert (found.class_names, found.train.labels.tolist()) == (("ankle boot", "dog"), [1, 0])
    write(file, "path,label,split", "a,ankle boot,train", "b,ankle_boot,train", "c,dog,test", "d,dog,train")
    with pytest.raises(InputError, match="label 'ankle_boot' at line 3 is not a name in"):
        manifest.read(file, class_names=names)


def sheet(path: Path, *rows: tuple[object, ...]) -> Path:
    """Write an Excel file with these rows in its first sheet."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("other").append(("nothing", "of interest"))
    book.save(path)
    return path


def objects(path: Path, header: tuple[str, ...], *rows: tuple[object, ...]) -> Path:
    """Write a JSON object a line."""
    return write(path, *(json.dumps(dict(zip(header, row, strict=True))) for row in rows))


HEADER = ("path", "label", "true_label", "split")


class TestJsonLinesAndSheets:
    @pytest.fixture(params=["m.jsonl", "m.xlsx"])
    def table(self, request, tmp_path):
        """Return a function that writes a header and rows."""
        path = tmp_path / request.param
        return lambda header, *rows: (
            sheet(path, header, *rows) if path.suffix == ".xlsx" else objects(path, header, *rows)
        )

    def test_they_say_the_same_as_text(self, table, tmp_path):
        rows = (("a.jpg", "dog", "cat", "train"), ("b.jpg", "cat", None, "train"), ("é.jpg", "dog", "", "test"))
        text = write(tmp_path / "m.csv", ",".join(HEADER), *(",".join(cell or "" for cell in row) for row in rows))
        expected, found = manifest.read(text), manifest.read(table(HEADER, *rows))
        assert found.class_names == expected.class_names
        for ours, theirs in ((found.train, expected.train), (found.test, expected.test)):
            assert pairs(ours, tmp_path) == pairs(theirs, tmp_path)
        assert found.train.true_labels.tolist() == expected.train.true_labels.tolist()

    def test_columns_may_have_other_names_and_labels_be_numbers(self, table, tmp_path):
        rows = [(f"{i}.jpg", i % 2 * 7, "x") for i in range(4)] + [("4.jpg", 7.0, "x")]
        found = manifest.read(table(("file", "class", "more"), *rows), columns="path=file,label=class")
        assert found.class_names == ("0", "7")
        named = {**names(found, found.train), **names(found, found.test)}
        assert named == {"0.jpg": "0", "1.jpg": "7", "2.jpg": "0", "3.jpg": "7", "4.jpg": "7"}
        assert "column 'more'" in found.notes[0]

    @pytest.mark.parametrize(
        ("row", "sentence"),
        [
            (("b", True, None, "train"), "its label is 'True' of type bool, expected text or a whole number"),
            (("b", 1.5, None, "train"), "its label is '1.5' of type float"),
            ((7, "dog", None, "train"), "its path is '7' of type int, expected text"),
            ((None, "dog", None, "train"), "the path is empty"),
            (("b", None, None, "train"), "the label is empty"),
        ],
    )
    def test_odd_cells_are_faults_of_their_row(self, table, row, sentence):
        rows = (("a", "dog", None, "train"), ("c", "cat", None, "train"), row, ("d", "dog", None, "test"))
        file = table(HEADER, *rows)
        place = "row 4" if file.suffix == ".xlsx" else "line 3"
        with pytest.raises(InputError, match=f"1 of 4 rows cannot be used .{place}: {sentence}"):
            manifest.read(file)
        assert len(manifest.read(file, skip_bad=True).train.labels) == 2


class TestJsonLines:
    @pytest.mark.parametrize(
        ("line", "sentence"),
        [
            ("{", "it is no JSON"),
            ("[" * 100_000, "it is no JSON"),
            ("3", "it is no JSON object"),
            ('["a", "b"]', "it is no JSON object"),
            ('{"path": "a", "label": {"x": 1}, "split": "train"}', "its label is"),
            ('{"path": "a", "path": "b", "label": "x", "split": "train"}', "a key is there twice"),
            ('{"path": "a", "label": "x", "split": "train", "true_label": "y"}', "it has 'true_label', which line 1"),
            (r'{"path": "\ud800", "label": "x", "split": "train"}', "its path is not text"),
            (r'{"path": "a\u0000", "label": "x", "split": "train"}', "null byte"),
            ('{"path": "a", "label": ' + "9" * 5000 + ', "split": "train"}', "it is no JSON"),
        ],
    )  # fmt: skip
    def test_a_line_that_is_no_row_is_told_with_its_number(self, tmp_path, line, sentence):
        good = [
            json.dumps({"path": p, "label": c, "split": s}) for p, c, s in (("p", "x", "train"), ("q", "y", "train"))
        ]
        file = write(tmp_path / "m.jsonl", *good, "", line, good[0].replace('"p"', '"r"').replace("train", "test"))
        with pytest.raises(InputError, match=f"line 4: .*{sentence}"):
            manifest.read(file)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ("", "it is empty"),
            ("3\n", "line 1 cannot be read, it is no JSON object"),
            ('{"a": 1}\n', "no column 'path'"),
        ],
    )
    def test_a_file_without_rows_is_refused(self, tmp_path, content, sentence):
        (tmp_path / "m.jsonl").write_text(content)
        with pytest.raises(InputError, match=sentence):
            manifest.read(tmp_path / "m.jsonl")


class TestSheets:
    ROWS = (("path", "label", "split"), ("a", "dog", "train"), ("b", "cat", "train"), ("c", "dog", "test"))

    def test_a_missing_package_is_told_in_one_sentence(self, tmp_path, monkeypatch):
        (tmp_path / "m.xlsx").touch()
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(InputError, match=r"Excel files need another package: pip install 'dspt\[excel\]'"):
            manifest.read(tmp_path / "m.xlsx")

    def test_values_count_and_errors_and_dates_are_faults(self, tmp_path):
        file = sheet(
            tmp_path / "m.xlsx",
            *self.ROWS,
            ("d", "#N/A", "train"),
            ("e", date(2024, 5, 1), "train"),
            ("f", "=1+1", "train"),
        )
        with pytest.raises(InputError) as error:
            manifest.read(file)
        assert "3 of 6 rows" in str(error.value)
        assert "row 5: a cell in it is the error #N/A" in str(error.value)
        assert "row 6: its label is '2024-05-01 00:00:00' of type datetime" in str(error.value)
        assert "row 7: the label is empty" in str(error.value)  # nothing has computed the formula

    def test_blank_rows_count_as_rows(self, tmp_path):
        file = sheet(tmp_path / "m.xlsx", (), *self.ROWS, (), ("", "cat", "train"))
        with pytest.raises(InputError, match="row 7: the path is empty"):
            manifest.read(file)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 zip", b"\xd0\xcf\x11\xe0 an old one", None])
    def test_a_file_that_is_none_is_told_in_one_sentence(self, tmp_path, content):
        file = tmp_path / "m.xlsx"
        if content is None:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("nothing.txt", "")
        else:
            file.write_bytes(content)
        with pytest.raises(InputError, match=r"m\.xlsx: not a readable \.xlsx file"):
            manifest.read(file)

    def rewritten(self, file: Path, change: Callable[[str], str]) -> Path:
        """Return the file with another text for its first sheet."""
        with zipfile.ZipFile(file) as archive:
            parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        name = "xl/worksheets/sheet1.xml"
        parts[name] = change(parts[name].decode()).encode()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for part, content in parts.items():
                archive.writestr(part, content)
        return file

    def test_a_sheet_that_lies_about_its_size_or_place_costs_nothing(self, tmp_path):
        for old, new in (
            ('ref="A1:C4"', 'ref="A1:XFD1048576"'),
            ('r="A4"', 'r="AAAAAA4"'),
            ('<row r="4"', '<row r="99999999999999"'),
        ):
            file = self.rewritten(sheet(tmp_path / "m.xlsx", *self.ROWS), lambda text: text.replace(old, new))  # noqa: B023
            with suppress(InputError):
                manifest.read(file)

    def test_an_archive_without_end_is_refused_before_it_is_unpacked(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dspt.data.tabular._LARGEST_SHEET", 1 << 20)
        file = self.rewritten(sheet(tmp_path / "m.xlsx", *self.ROWS), lambda text: text + " " * (2 << 20))
        monkeypatch.setattr("openpyxl.load_workbook", lambda *a, **k: pytest.fail("it was unpacked"))
        with pytest.raises(InputError, match="it unpacks to 2 MiB, more than a sheet of images has"):
            manifest.read(file)

    def test_entities_that_multiply_are_refused(self, tmp_path):
        laughs = '<!DOCTYPE x [<!ENTITY a "' + "ha" * 1000 + '">' + "".join(
            f'<!ENTITY {new} "{f"&{old};" * 100}">' for old, new in ("ab", "bc", "cd")
        ) + "]>"  # fmt: skip
        file = self.rewritten(
            sheet(tmp_path / "m.xlsx", *self.ROWS),
            lambda text: (
                (laughs if "?>" not in text else text[: text.index("?>") + 2] + laughs)
                + text[text.index("<worksheet") :].replace("<sheetData>", "<sheetData>&d;", 1)
            ),
        )
        with pytest.raises(InputError, match=r"m\.xlsx: not a readable \.xlsx file"):
            manifest.read(file)
