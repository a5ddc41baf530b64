"""Hugging Face datasets: what `datasets` wrote is what comes out, and no code or network is needed."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

datasets = pytest.importorskip("datasets")

from dspt.data import hub  # noqa: E402
from dspt.data.dataset import Split, hold_out  # noqa: E402
from dspt.internal.errors import InputError  # noqa: E402


@pytest.fixture(autouse=True)
def quiet_and_offline(tmp_path_factory, monkeypatch):
    import huggingface_hub.constants

    datasets.disable_progress_bars()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), shade).save(file, "PNG")
    return file.getvalue()


def shades(items: hub.Images) -> list[int]:
    """The grey of each image, by which it is known."""
    return [Image.open(io.BytesIO(item)).getpixel((0, 0)) for item in items]


def rows(shade_of: range | list[int], label: list[object], kind: object = None, **more: object):
    """Make a dataset of one image of each shade, labels of some kind, and more columns."""
    columns = {"image": [{"bytes": png(s), "path": None} for s in shade_of], "label": label}
    kinds = {"image": datasets.Image(), "label": kind or datasets.ClassLabel(names=["dog", "cat"])}
    for name, (values, feature) in more.items():
        columns[name], kinds[name] = values, feature
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def saved(path: Path, **splits: object) -> str:
    datasets.DatasetDict(splits).save_to_disk(path)
    return f"hf:{path}"


TEXT, WHOLE = datasets.Value("string"), datasets.Value("int64")


class TestRead:
    def test_a_saved_dataset_comes_back_with_its_class_names_in_order(self, tmp_path):
        source = saved(tmp_path / "pets", train=rows(range(3), [1, 0, 1]), test=rows([7, 8], [0, 0]))
        found = hub.read(source)
        assert found.name == "pets"
        assert found.class_names == ("dog", "cat")
        assert shades(found.train.items) == [0, 1, 2]
        assert found.train.labels.tolist() == [1, 0, 1]
        assert found.train.labels.dtype == np.int64
        assert found.train.true_labels is None
        assert shades(found.test.items) == [7, 8]
        assert found.test.labels.tolist() == [0, 0]
        assert found.notes == found.skipped == ()
        assert not found.holds_features

    def test_saved_folders_are_known_and_others_are_not(self, tmp_path):
        saved(tmp_path / "many", train=rows(range(2), [0, 1]))
        rows(range(2), [0, 1]).save_to_disk(tmp_path / "one")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "state.json").touch()
        assert hub.is_saved(tmp_path / "many")
        assert hub.is_saved(tmp_path / "one")
        assert not hub.is_saved(tmp_path / "other")
        assert not hub.is_saved(tmp_path / "none")

    def test_a_saved_selection_in_another_format_gives_its_own_rows(self, tmp_path):
        chosen = rows(range(6), [0, 1, 0, 1, 0, 1]).select([5, 2, 3]).with_format("pandas")
        source = saved(tmp_path / "x", train=chosen, test=rows([9], [1]))
        found = hub.read(source)
        assert shades(found.train.items) == [5, 2, 3]
        assert found.train.labels.tolist() == [1, 0, 1]

    def test_a_folder_of_class_folders_gives_paths(self, tmp_path):
        for name in ("train/ant", "train/bee", "test/bee"):
            (tmp_path / "bugs" / name).mkdir(parents=True)
            (tmp_path / "bugs" / name / "1.png").write_bytes(png(3))
        found = hub.read(f"hf:{tmp_path / 'bugs'}")
        assert found.name == "bugs"
        assert found.class_names == ("ant", "bee")
        assert list(found.train.items) == [str(tmp_path / "bugs" / "train" / name / "1.png") for name in ("ant", "bee")]
        assert found.test.labels.tolist() == [1]

    def test_text_labels_are_trimmed_and_sorted(self, tmp_path):
        source = saved(
            tmp_path / "x",
            train=rows(range(3), ["yak", " ape", "yak"], TEXT),
            test=rows([7], ["ape"], TEXT),
        )
        found = hub.read(source)
        assert found.class_names == ("ape", "yak")
        assert found.train.labels.tolist() == [1, 0, 1]
        assert found.test.labels.tolist() == [0]
        assert found.notes == ()

    def test_numbers_without_names_are_in_order_and_a_note_asks_for_names(self, tmp_path):
        source = saved(
            tmp_path / "x",
            train=rows(range(3), [10, 2, 10], WHOLE),
            test=rows([7], [2], WHOLE),
        )
        found = hub.read(source)
        assert found.class_names == ("2", "10")
        assert found.train.labels.tolist() == [1, 0, 1]
        assert "prompts need real names" in found.notes[0]

    def test_labels_of_a_test_split_are_matched_by_name(self, tmp_path):
        turned = datasets.ClassLabel(names=["cat", "dog"])
        source = saved(tmp_path / "x", train=rows(range(2), [0, 1]), test=rows([7, 8], [0, 1], turned))
        assert hub.read(source).test.labels.tolist() == [1, 0]


class TestSplits:
    def test_a_validation_split_stands_in_for_a_missing_test_split_and_it_says_so(self, tmp_path):
        part = rows(range(2), [0, 1])
        found = hub.read(saved(tmp_path / "x", train=part, validation=rows([7], [1]), extra=part))
        assert shades(found.test.items) == [7]
        assert "validation is used as the test split" in found.notes[0]
        assert "split 'extra'" in found.notes[1]

    def test_splits_can_be_named(self, tmp_path):
        source = saved(
            tmp_path / "x",
            train=rows([1, 2], [0, 1]),
            fit=rows([3, 4], [0, 1]),
            test=rows([5], [0]),
            validation=rows([6], [0]),
        )
        found = hub.read(f"{source}?train=fit&test=validation")
        assert shades(found.train.items) == [3, 4]
        assert shades(found.test.items) == [6]
        assert found.notes == (f"Not used in {source}?train=fit&test=validation: split 'train', 'test'.",)

    def test_without_a_test_split_a_part_of_each_class_is_held_out_and_it_says_so(self, tmp_path):
        labels = np.arange(30) % 2
        rows(range(30), labels.tolist()).save_to_disk(tmp_path / "x")
        found = hub.read(f"hf:{tmp_path / 'x'}", seed=3)
        train, test = hold_out(Split(np.arange(30), labels), ("dog", "cat"), 3, 0.2)
        assert shades(found.train.items) == train.items.tolist()
        assert found.train.labels.tolist() == train.labels.tolist()
        assert shades(found.test.items) == test.items.tolist()
        assert "has no test split: 6 of 30 images" in found.notes[0]
        assert "seed 3" in found.notes[0]

    @pytest.mark.parametrize(
        ("names", "query", "sentence"),
        [
            (("fit", "test"), "", "no train split among 'fit', 'test'; say which with hf:"),
            (("train", "test"), "?test=dev", "no split 'dev'; found 'train', 'test'"),
            (("train", "test"), "?test=train", "'train' cannot be both"),
        ],
    )
    def test_splits_that_are_not_there_are_named(self, tmp_path, names, query, sentence):
        source = saved(tmp_path / "x", **{name: rows(range(2), [0, 1]) for name in names})
        with pytest.raises(InputError, match=sentence):
            hub.read(source + query)


class TestColumns:
    def test_columns_can_be_named_and_true_labels_are_kept_apart(self, tmp_path):
        names = datasets.ClassLabel(names=["dog", "cat"])
        part = rows([1, 2], [0, 1], true=([1, 1], names), coarse=([0, 0], names))
        source = saved(tmp_path / "x", train=part, test=part)
        found = hub.read(f"{source}?image=image&label=label&true_label=true")
        assert found.train.labels.tolist() == [0, 1]
        assert found.train.true_labels.tolist() == [1, 1]
        assert hub.read(f"{source}?label=true").train.labels.tolist() == [1, 1]

    def test_true_labels_that_are_numbers_count_the_names_of_the_labels(self, tmp_path):
        part = rows([1, 2], [0, 1], clean=([1, 0], WHOLE))
        source = saved(tmp_path / "x", train=part, test=part)
        found = hub.read(f"{source}?true_label=clean")
        assert found.class_names == ("dog", "cat")
        assert found.train.true_labels.tolist() == [1, 0]

    def test_bytes_and_paths_can_be_named_as_images(self, tmp_path):
        file = tmp_path / "7.png"
        file.write_bytes(png(7))
        part = datasets.Dataset.from_dict({"raw": [png(5), png(6)], "file": [str(file)] * 2, "label": ["a", "b"]})
        source = saved(tmp_path / "x", train=part, test=part)
        assert shades(hub.read(f"{source}?image=raw").train.items) == [5, 6]
        assert list(hub.read(f"{source}?image=file").train.items) == [str(file)] * 2

    @pytest.mark.parametrize(
        ("more", "query", "sentence"),
        [
            ("image", "", r"'image', 'other' could all be the image column; say which with hf:"),
            ("label", "", r"'label', 'other' could all be the label column; say which with hf:"),
            ("", "?image=x", "no column 'x'; found 'image', 'label', 'other'"),
            ("", "?image=label", "named twice"),
            ("", "?image=other", "'other' does not hold images"),
            ("", "?label=other", "'other' holds .*float.* which are no labels"),
            ("", "?pictures=image", "'pictures' is unknown; say which"),
            ("", "?image=image&image=other", "'image' is there twice"),
            ("", "?image", "cannot be understood"),
        ],
    )
    def test_columns_that_are_not_clear_are_named(self, tmp_path, more, query, sentence):
        other = {
            "image": ([None, None], datasets.Image()),
            "label": ([0, 1], datasets.ClassLabel(names=["dog", "cat"])),
            "": ([0.5, 0.5], datasets.Value("float32")),
        }
        source = saved(tmp_path / "x", train=rows(range(2), [0, 1], other=other[more]))
        with pytest.raises(InputError, match=sentence):
            hub.read(source + query)

    def test_a_dataset_without_images_is_refused(self, tmp_path):
        part = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
        with pytest.raises(InputError, match="none of its columns 'text', 'label' is known as the i"):
            hub.read(saved(tmp_path / "x", train=part))


class TestFaults:
    @pytest.mark.parametrize(
        ("kind", "labels"),
        [
            (None, [0, None, 1, -1]),
            (WHOLE, [4, None, 6, -1]),
            (TEXT, ["a", None, "b", " "]),
        ],
    )
    def test_rows_without_a_label_are_told_or_left_out(self, tmp_path, kind, labels):
        train, test = rows(range(4), labels, kind), rows([9], labels[:1], kind)
        source = saved(tmp_path / "x", train=train, test=test)
        with pytest.raises(InputError, match=r"2 rows .*train row 1: it has no label; train row 3"):
            hub.read(source)
        found = hub.read(source, skip_bad=True)
        assert shades(found.train.items) == [0, 2]
        assert found.train.labels.tolist() == [0, 1]
        assert [(fault.name, fault.split) for fault in found.skipped] == [
            ("train row 1", "train"),
            ("train row 3", "train"),
        ]

    def test_a_split_without_any_label_is_refused(self, tmp_path):
        source = saved(tmp_path / "x", train=rows(range(2), [0, 1]), test=rows([7, 8], [-1, -1]))
        with pytest.raises(InputError, match="no row of its split 'test' has a label; say which"):
            hub.read(source, skip_bad=True)

    def test_a_class_that_is_tested_and_not_trained_is_named(self, tmp_path):
        source = saved(tmp_path / "x", train=rows(range(2), [0, 0]), test=rows([7], [1]))
        with pytest.raises(InputError, match="class 'cat' is in the test split only"):
            hub.read(source)

    def test_a_missing_image_has_no_bytes(self, tmp_path):
        part = rows(range(2), [0, 1])
        part = datasets.Dataset.from_dict(
            {"image": [None, *part.with_format("arrow")["image"].to_pylist()][:2], "label": [0, 1]},
            features=part.features,
        )
        found = hub.read(saved(tmp_path / "x", train=part, test=part))
        assert found.train.items[0] == b""
        assert found.train.items[1] == png(0)


class TestImages:
    @pytest.fixture
    def items(self, tmp_path) -> hub.Images:
        source = saved(tmp_path / "x", train=rows(range(8), [0, 1] * 4), test=rows([9], [0]))
        return hub.read(source).train.items

    def test_it_is_a_sequence_of_encoded_images(self, items):
        assert len(items) == 8
        assert items[3] == png(3)
        assert items[-1] == png(7)
        assert shades(items[1:7:2]) == [1, 3, 5]
        with pytest.raises(IndexError):
            items[8]

    def test_chosen_images_come_in_the_chosen_order_and_can_be_chosen_from_again(self, items):
        chosen = items.take(np.array([6, 1, 4]))
        assert shades(chosen) == [6, 1, 4]
        assert shades(chosen.take(np.array([2, 0]))) == [4, 6]

    def test_a_pickle_names_the_files_instead_of_holding_them(self, items):
        data = pickle.dumps(items.take(np.array([5, 2])))
        assert shades(pickle.loads(data)) == [5, 2]
        assert png(5) not in data


class TestSources:
    def test_a_dataset_that_cannot_be_reached_is_told_in_one_sentence(self):
        for source in ("hf:org/no-such-dataset", "hf:org/no-such-dataset:config"):
            with pytest.raises(InputError, match=rf"{source}: cannot be loaded .*network") as error:
                hub.read(source)
            assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("source", "sentence"),
        [
            ("hf:", "not the name of a dataset"),
            ("hf:a b", "not the name of a dataset"),
            ("hf:a/b/c", "not the name of a dataset"),
            ("hf:/no/such/folder", "no such folder"),
            ("hf:~nobody-of-this-name/x", "no such folder"),
        ],
    )
    def test_what_is_neither_a_name_nor_a_folder_is_refused(self, source, sentence):
        with pytest.raises(InputError, match=sentence):
            hub.read(source)

    def test_code_in_a_folder_is_never_run(self, tmp_path):
        folder = tmp_path / "evil"
        folder.mkdir()
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        with pytest.raises(InputError, match="cannot be loaded"):
            hub.read(f"hf:{folder}")
        assert not (tmp_path / "ran").exists()

    def test_a_damaged_dataset_is_told_in_one_sentence(self, tmp_path):
        source = saved(tmp_path / "x", train=rows(range(2), [0, 1]), test=rows([7], [1]))
        next((tmp_path / "x" / "train").glob("*.arrow")).write_bytes(b"no arrow")
        with pytest.raises(InputError, match="cannot be loaded") as error:
            hub.read(source)
        assert "\n" not in str(error.value)

    def test_a_missing_package_is_told_with_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(InputError, match=r"pip install 'dspt\[hub\]'"):
            hub.read("hf:org/name")

    def test_a_version_that_would_run_code_is_refused(self, monkeypatch):
        monkeypatch.setattr(datasets, "__version__", "3.6.0")
        with pytest.raises(InputError, match=r"datasets 3\.6\.0 could run code"):
            hub.read("hf:org/name")
