"""To other tools and back."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_corrected import DROP, NAMES, audit_of, picture, pictures, relabel, state

from dspt.data import open_dataset
from dspt.data.items import written
from dspt.internal.errors import InputError
from dspt.review.corrected import write_labels, write_manifest
from dspt.review.decisions import KEEP, Decision
from dspt.review.exchange import KINDS, export, read_corrections

# Given: cat, cat, dog, dog, red_panda. The second looks like a dog, the last like nothing else.
FOUND = [[0.9, 0.08, 0.02], [0.05, 0.9, 0.05], [0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.01, 0.01, 0.98]]


def found_audit(**kwargs):
    return audit_of([0, 0, 1, 1, 2], FOUND, **kwargs)


# Out: cleanlab


def test_cleanlab_takes_what_was_written_for_it(tmp_path):
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    random = np.random.RandomState(0)
    true = np.repeat([0, 1, 2], 40)
    labels = true.copy()
    labels[[3, 50, 100]] = 1, 2, 0
    probabilities = np.full((120, 3), 0.02) + random.rand(120, 3) * 0.02
    probabilities[np.arange(120), true] += 0.9
    probabilities /= probabilities.sum(1, keepdims=True)
    audit = audit_of(labels, probabilities)
    export(audit, {}, tmp_path / "out", "cleanlab", None)
    given_labels, found = np.load(tmp_path / "out" / "labels.npy"), np.load(tmp_path / "out" / "pred_probs.npy")
    assert np.flatnonzero(find_label_issues(given_labels, found, n_jobs=1)).tolist() == [3, 50, 100]
    with open(tmp_path / "out" / "label_issues.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["is_label_issue", "label_quality", "given_label", "predicted_label"]
    quality = [float(row["label_quality"]) for row in table]
    np.testing.assert_allclose(quality, get_label_quality_scores(given_labels, found), rtol=1e-5)
    assert [i for i, row in enumerate(table) if row["is_label_issue"] == "True"] == [3, 50, 100]
    assert [int(row["predicted_label"]) for row in table] == true.tolist()
    assert [int(row["given_label"]) for row in table] == labels.tolist()
    assert (tmp_path / "out" / "class_names.txt").read_text() == "cat\ndog\nred_panda\n"


def test_label_issues_are_a_table_of_true_and_false(tmp_path):
    import pandas as pd

    export(found_audit(), {}, tmp_path / "out", "cleanlab", None)
    table = pd.read_csv(tmp_path / "out" / "label_issues.csv")
    assert table["is_label_issue"].dtype == bool
    assert table["is_label_issue"].tolist() == [False, True, False, False, False]


# Out: FiftyOne


def fiftyone_reads(folder: Path, labels: str = "labels.json") -> dict[str, tuple[str | None, dict]]:
    """Return the label of each file, as the importer of FiftyOne 1.22.1 finds it when it is told the folder alone.

    It goes on only if there is a folder data/. A key that is an absolute path is the file, to the letter; any other one
    is looked up among the files in data/. classes[target] is a label; None is none.
    """
    assert (folder / "data").is_dir()
    content = json.loads((folder / labels).read_text())
    read = {}
    for key, target in content["labels"].items():
        assert os.path.isabs(key)
        key.encode()  # its database takes no other text
        more = target if isinstance(target, dict) else {}
        read[key] = (None if target is None else content["classes"][target["label"]], more)
    return read


def test_fiftyone_finds_labels_and_predictions_of_every_image(tmp_path):
    audit = found_audit()
    paths = pictures(audit, tmp_path / "photos")
    export(audit, {0: relabel(2), 2: DROP, 4: Decision(KEEP, 2)}, tmp_path / "out", "fiftyone", paths, accept=0.8)
    truth, predictions = (fiftyone_reads(tmp_path / "out", name) for name in ("labels.json", "predictions.json"))
    assert [truth[path][0] for path in paths] == ["red_panda", "dog", None, "dog", "red_panda"]
    assert truth[paths[1]][1]["attributes"] == {"given_label": "cat", "decided_by": "accepted"}
    assert [predictions[path][0] for path in paths] == ["cat", "dog", "dog", "dog", "red_panda"]
    assert [predictions[path][1]["confidence"] for path in paths] == pytest.approx([0.9, 0.9, 0.8, 0.4, 0.98])
    assert predictions[paths[1]][1]["attributes"]["is_label_issue"] is True


@pytest.mark.parametrize(
    "names",
    [
        ["cat/a.png", "cat/a.jpg"],
        ["cat/a.png", "cat/a.png.jpg"],
        ["v1.0", "v1.1"],
        ["photos/cat/a.png", "cat/a.png"],
        ["a, b/50% #1.png", "a, b/50%20?d=x.png"],
        ["cat/tab\tx.png", "cat/a\\b.png"],
        ["/elsewhere/a.png", "cat/a.png"],
    ],
)
def test_fiftyone_is_told_each_image_whatever_it_is_called(tmp_path, names):
    audit = audit_of([0, 1], items=list(map(written, names)))
    paths = [str(tmp_path / "photos" / name) for name in names]
    decided = {0: Decision(KEEP, 0), 1: relabel(2)}
    export(audit, decided, tmp_path / "out", "fiftyone", paths)
    found = fiftyone_reads(tmp_path / "out")
    assert [found[path][0] for path in paths] == ["cat", "red_panda"]
    assert read_corrections(tmp_path / "out" / "labels.json", audit, paths) == decided


# Out: Label Studio


def test_label_studio_has_a_task_for_each_image_the_likeliest_wrong_first(tmp_path):
    audit = found_audit(items=["cat/a b.png", "cat/1.png", "dog/2.png", "dog/3.png", "red_panda/4.png"])
    paths = pictures(audit, tmp_path / "photos")
    export(audit, {0: relabel(1), 2: DROP}, tmp_path / "out", "label-studio", paths)
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [task["data"]["item"] for task in tasks] == [audit.items[row] for row in (1, 3, 2, 0, 4)]
    by_item = {task["data"]["item"]: task for task in tasks}
    first = by_item["cat/1.png"]
    assert first["data"]["given_label"] == "cat"
    assert first["data"]["label_quality"] == pytest.approx(0.05)
    assert first["predictions"][0]["score"] == pytest.approx(0.9)
    assert first["predictions"][0]["result"] == [
        {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["dog"]}}
    ]
    assert first["annotations"] == []
    decided = by_item["cat/a b.png"]
    assert decided["annotations"][0]["result"][0]["value"] == {"choices": ["dog"]}
    address = urlsplit(decided["data"]["image"])
    assert address.path == "/data/local-files/"
    assert "/" + parse_qs(address.query)["d"][0] == paths[0]
    assert by_item["dog/2.png"]["annotations"][0]["result"][0]["from_name"] == "sample"


def test_label_studio_has_a_task_for_what_was_decided_before_the_last_refit_too(tmp_path):
    audit = replace(found_audit(), decided=np.array([True, False, False, False, True]))
    paths = pictures(audit, tmp_path / "photos")
    decided = {0: relabel(1), 4: DROP}
    export(audit, decided, tmp_path / "out", "label-studio", paths, accept=0.8)
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [task["data"]["item"] for task in tasks] == [audit.items[row] for row in (1, 3, 2, 0, 4)]
    assert [bool(task["annotations"]) for task in tasks] == [False, False, False, True, True]
    assert read_corrections(tmp_path / "out" / "tasks.json", audit) == decided


def test_images_of_a_task_can_be_on_a_server(tmp_path):
    audit = audit_of([0, 1], items=["cat/a b.png", "dog/ü.png"])
    export(audit, {}, tmp_path / "out", "label-studio", ["/p/a", "/p/b"], address="https://host/photos/")
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert tasks[0]["data"]["image"] == "https://host/photos/cat/a%20b.png"


def test_the_page_of_label_studio_has_every_class_and_its_names_fit_the_tasks(tmp_path):
    names = ('<b> & "c"', "two\nlines", "=1+1", "猫")
    audit = audit_of([0, 1, 2, 3], names=names, items=["a", "b", "c", "d"])
    export(audit, {}, tmp_path / "out", "label-studio", ["/p/a", "/p/b", "/p/c", "/p/d"])
    view = ElementTree.parse(tmp_path / "out" / "config.xml").getroot()
    controls = {control.get("name"): control for control in view.findall("Choices")}
    offered = [choice.get("value") for choice in controls["label"]]
    assert offered == ['<b> & "c"', "two\\nlines", "=1+1", "猫"]
    assert view.find("Image").attrib == {"name": "image", "value": "$image"}
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    for task in tasks:
        for result in task["predictions"][0]["result"]:
            assert result["from_name"] in controls
            assert controls[result["from_name"]].get("toName") == result["to_name"]
            assert result["value"]["choices"][0] in offered


# Out: Hugging Face


@pytest.mark.parametrize("splits", [None, ["train", "train", "train", "test", "train"]])
def test_a_hugging_face_dataset_opens_with_the_corrected_labels(tmp_path, splits):
    import datasets

    audit = found_audit(splits=splits)
    paths = pictures(audit, tmp_path / "photos")
    export(audit, {0: relabel(2), 4: DROP}, tmp_path / "out", "huggingface", paths, accept=0.8)
    (tmp_path / "photos").rename(tmp_path / "gone")  # the images are in it
    dataset = open_dataset(tmp_path / "out", test_fraction=0)
    assert dataset.class_names == NAMES
    parts = [dataset.train, dataset.test]
    read = {bytes(item): label for part in parts for item, label in zip(part.items, part.labels, strict=True)}
    originals = [(tmp_path / "gone" / item).read_bytes() for item in audit.items]
    assert read == {originals[0]: 2, originals[1]: 1, originals[2]: 1, originals[3]: 1}
    assert len(dataset.test.labels) == (1 if splits else 0)
    saved = datasets.load_from_disk(str(tmp_path / "out"))
    saved = saved["train"] if splits else saved
    assert set(saved.features) == {"image", "label", "given_label", "decided_by"}
    assert saved["given_label"][:3] == ["cat", "cat", "dog"]
    assert saved["decided_by"][:3] == ["person", "accepted", "given"]


def test_without_the_library_of_hugging_face_it_is_one_sentence(tmp_path, monkeypatch):
    audit = found_audit()
    paths = pictures(audit, tmp_path / "photos")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'dspt\[hub\]'"):
        export(audit, {}, tmp_path / "out", "huggingface", paths)
    assert os.listdir(tmp_path) == ["photos"]


def test_an_image_that_is_gone_is_named(tmp_path):
    audit = found_audit()
    paths = pictures(audit, tmp_path / "photos")
    os.unlink(paths[3])
    with pytest.raises(InputError, match=r"dog/3\.png: no such file"):
        export(audit, {}, tmp_path / "out", "huggingface", paths)
    assert os.listdir(tmp_path) == ["photos"]


# Out: all


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_source_is_changed_and_nothing_written_into_it(tmp_path, kind):
    audit = found_audit()
    paths = pictures(audit, tmp_path / "photos")
    before = state(tmp_path / "photos")
    counts = export(audit, {2: DROP}, tmp_path / "out", kind, paths)
    assert counts["removed"] == 1
    with pytest.raises(InputError, match="not an empty folder"):
        export(audit, {}, tmp_path / "out", kind, paths)
    with pytest.raises(InputError, match="are not apart"):
        export(audit, {}, tmp_path / "photos" / "out", kind, paths)
    assert state(tmp_path / "photos") == before


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"cleanlab"}))
def test_samples_without_files_go_to_cleanlab_alone(tmp_path, kind):
    with pytest.raises(InputError, match=r"its samples are no files.*give `export` labels\.csv and `format` labels"):
        export(found_audit(), {}, tmp_path / "out", kind, None)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_name_is_no_text_goes_out_too_where_it_is_taken(tmp_path, kind):
    audit = audit_of([0, 1], items=["cat/0.png", "dog/\\udcff.png"])
    paths = [picture(tmp_path / "photos" / "cat" / "0.png"), picture(tmp_path / "photos" / "dog" / "\udcff.png", 9)]
    if kind == "fiftyone":
        with pytest.raises(
            InputError, match=r"/dog/\\xff\.png: FiftyOne takes no file whose name is no text; rename it"
        ):
            export(audit, {}, tmp_path / "out", kind, paths)
        assert os.listdir(tmp_path) == ["photos"]
        return
    export(audit, {1: Decision(KEEP, 1)}, tmp_path / "out", kind, paths)
    if kind == "huggingface":
        items = open_dataset(tmp_path / "out", test_fraction=0).train.items
        assert [bytes(item) for item in items] == [Path(path).read_bytes() for path in paths]
    elif kind == "label-studio":
        assert read_corrections(tmp_path / "out" / "tasks.json", audit) == {1: Decision(KEEP, 1)}


def test_a_class_that_is_only_tested_is_told_before_a_dataset_is_written(tmp_path):
    audit = found_audit(splits=["train", "train", "train", "train", "test"])
    paths = pictures(audit, tmp_path / "photos")
    with pytest.raises(InputError, match="class 'red_panda' has test images and no train images"):
        export(audit, {}, tmp_path / "out", "huggingface", paths)
    assert os.listdir(tmp_path) == ["photos"]


def test_an_unknown_kind_is_named(tmp_path):
    with pytest.raises(InputError, match="kind 'excel': expected one of cleanlab, fiftyone, label-studio, huggingface"):
        export(found_audit(), {}, tmp_path / "out", "excel", None)


# There and back

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def decided_audits(draw):
    names = draw(st.lists(text, min_size=2, max_size=4, unique_by=lambda name: ascii(name.strip())))
    labels = draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=6))
    stems = draw(st.lists(text, min_size=len(labels), max_size=len(labels), unique=True))
    items = [f"f/{stem.replace('/', '_')}{i}.png" for i, stem in enumerate(stems)]
    to = st.integers(-1, len(names) - 1)
    chosen = draw(st.dictionaries(st.integers(0, len(labels) - 1), to))
    decisions = {
        row: DROP if label < 0 else Decision(KEEP, label) if label == labels[row] else relabel(label)
        for row, label in chosen.items()
    }
    return audit_of(labels, names=names, items=list(map(written, items))), decisions


@pytest.mark.parametrize(("kind", "file"), [("label-studio", "tasks.json"), ("fiftyone", "labels.json")])
@settings(max_examples=60)
@given(case=decided_audits())
def test_what_goes_out_comes_back(tmp_path_factory, kind, file, case):
    audit, decisions = case
    out = tmp_path_factory.mktemp("there") / "out"
    paths = [f"/photos/{row}.png" for row in range(len(audit.items))]
    export(audit, decisions, out, kind, paths)
    assert read_corrections(out / file, audit, paths) == decisions


def test_what_was_accepted_does_not_come_back_as_a_decision(tmp_path):
    audit = found_audit()
    paths = pictures(audit, tmp_path / "photos")
    for kind, file in (("label-studio", "tasks.json"), ("fiftyone", "labels.json")):
        export(audit, {0: relabel(2)}, tmp_path / kind, kind, paths, accept=0.8)
        assert read_corrections(tmp_path / kind / file, audit) == {0: relabel(2)}


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_a_manifest_comes_back(tmp_path, kind):
    audit = found_audit(items=["cat/=1.png", "cat/1.png", "dog/-2.png", "dog/3.png", "red_panda/4.png"])
    paths = pictures(audit, tmp_path / "photos")
    decided = {0: relabel(2), 2: relabel(0), 4: Decision(KEEP, 2)}
    for accept in (None, 0.8):
        write_manifest(audit, decided, tmp_path / f"x{kind}", paths, accept, overwrite=True)
        assert read_corrections(tmp_path / f"x{kind}", audit) == decided


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_a_manifest_with_a_tab_in_a_name_comes_back(tmp_path, kind):
    audit = audit_of([0, 1, 2], items=["cat/a\\tb.png", "dog/1.png", "red_panda/2.png"])
    paths = [str(tmp_path / "photos" / name) for name in ("cat/a\tb.png", "dog/1.png", "red_panda/2.png")]
    decided = {0: Decision(KEEP, 0), 1: relabel(2)}
    write_manifest(audit, decided, tmp_path / f"x{kind}", paths)
    assert read_corrections(tmp_path / f"x{kind}", audit, paths) == decided
    assert read_corrections(tmp_path / f"x{kind}", audit) == decided


@pytest.mark.parametrize("items", [None, list("01234")])
def test_a_label_file_has_no_decisions_but_the_labels_that_changed(tmp_path, items):
    audit = found_audit(items=items)
    path = tmp_path / "labels.csv"
    write_labels(audit, {0: relabel(2), 4: Decision(KEEP, 2)}, path)
    assert read_corrections(path, audit) == {0: relabel(2)}
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # as a spreadsheet saves it
    assert read_corrections(path, audit) == {0: relabel(2)}


def test_a_label_file_has_the_train_split_alone(tmp_path):
    audit = found_audit(splits=["train", "train", "train", "train", "test"])
    write_labels(audit, {1: relabel(1)}, tmp_path / "labels.csv")
    assert read_corrections(tmp_path / "labels.csv", audit) == {1: relabel(1)}


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [lines[0], *reversed(lines[1:])],
        lambda lines: [lines[0] + ",note", *(line + ",seen" for line in lines[1:])],
    ],
)
def test_a_table_that_is_no_label_file_of_ours_says_what_somebody_decided(tmp_path, change):
    audit = found_audit()
    write_labels(audit, {}, tmp_path / "labels.csv")
    lines = change((tmp_path / "labels.csv").read_text().splitlines())
    found = read(tmp_path, "\n".join(lines) + "\n", audit)
    assert len(found) == len(lines) - 1
    assert {one.action for one in found.values()} == {KEEP}


def test_proposals_for_fiftyone_are_no_corrections(tmp_path):
    audit = found_audit()
    export(audit, {}, tmp_path / "out", "fiftyone", pictures(audit, tmp_path / "photos"))
    with pytest.raises(
        InputError, match=r"predictions\.json: it has the proposals of an audit.*import the labels\.json"
    ):
        read_corrections(tmp_path / "out" / "predictions.json", audit)
    assert read_corrections(tmp_path / "out" / "labels.json", audit) == {}


def test_what_was_changed_in_a_manifest_since_is_a_decision(tmp_path):
    lines = [
        "path,label,given_label,decided_by",
        "cat/0.png,dog,cat,given",  # changed
        "cat/1.png,cat,cat,accepted",  # what was accepted is taken back
        "dog/2.png,,dog,given",  # taken out
        "dog/3.png,dog,dog,given",
        "red_panda/4.png,red panda,red_panda,given",  # only spelt otherwise
    ]
    assert read(tmp_path, "\n".join(lines)) == {0: relabel(1), 1: Decision(KEEP, 0), 2: DROP}
    accepted = "path,label,given_label,decided_by\ncat/1.png,{},cat,accepted\n"
    assert read(tmp_path, accepted.format("dog")) == {}
    assert read(tmp_path, accepted.format("red_panda")) == {1: relabel(2)}
    kept = "path,label,given_label,decided_by\ncat/1.png,cat,cat,person\n"
    assert read(tmp_path, kept) == {1: Decision(KEEP, 0)}


def test_a_column_of_given_labels_alone_makes_no_manifest(tmp_path):
    assert read(tmp_path, "item,label,given_label\ncat/0.png,cat,cat\n") == {0: Decision(KEEP, 0)}
    assert read(tmp_path, "item,label,decided_by\ncat/0.png,cat,given\n") == {0: Decision(KEEP, 0)}


# In: tables


def read(tmp_path, content, audit=None, name="corrections.csv"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_corrections(path, audit or found_audit())


def test_a_table_of_items_and_labels(tmp_path):
    table = "item,label,note\ncat/0.png,dog,looks so\ndog/2.png,,\ndog/3.png,remove,\nred_panda/4.png,red panda,\n"
    assert read(tmp_path, table) == {0: relabel(1), 2: DROP, 3: DROP, 4: Decision(KEEP, 2)}


def test_a_table_of_objects(tmp_path):
    lines = '{"item": "cat/0.png", "label": "dog"}\n{"item": "dog/2.png", "label": null}\n'
    assert read(tmp_path, lines, name="x.jsonl") == {0: relabel(1), 2: DROP}


def test_paths_may_have_the_same_folders_before_the_item(tmp_path):
    assert read(tmp_path, "path,label\n/data/photos/cat/0.png,dog\n/data/photos/dog/2.png,cat\n") == {
        0: relabel(1),
        2: relabel(0),
    }
    with pytest.raises(InputError, match=r"'/a/cat/0\.png' and '/b/dog/2\.png' lie below different folders"):
        read(tmp_path, "path,label\n/a/cat/0.png,dog\n/b/dog/2.png,cat\n")


def test_cells_that_look_like_formulas_are_names(tmp_path):
    audit = audit_of([0, 1], names=("=1+1", "@b"), items=["-0.png", "=HYPERLINK(1).png"])
    table = "item,label\n'-0.png,'@b\n=HYPERLINK(1).png,=1+1\n"
    assert read(tmp_path, table, audit) == {0: relabel(1), 1: relabel(0)}


def test_a_class_called_remove_is_a_class(tmp_path):
    audit = audit_of([0, 1], names=("cat", "remove"))
    assert read(tmp_path, "item,label\ncat/0.png,remove\nremove/1.png,\n", audit) == {0: relabel(1), 1: DROP}
    export(audit, {0: relabel(1), 1: DROP}, tmp_path / "out", "label-studio", ["/p/a", "/p/b"])
    assert read_corrections(tmp_path / "out" / "tasks.json", audit) == {0: relabel(1), 1: DROP}


def test_a_list_of_cleanlab_counts_samples_and_classes(tmp_path):
    assert read(tmp_path, "index,label\n0,1\n2,1.0\n4,\n") == {0: relabel(1), 2: Decision(KEEP, 1), 4: DROP}
    assert read(tmp_path, "index,label\n0,dog\n4,remove\n") == {0: relabel(1), 4: DROP}


def test_numbers_that_are_also_names_are_not_guessed(tmp_path):
    audit = audit_of([0, 1, 2], names=("0", "10", "2"))
    assert read(tmp_path, "index,label\n1,2\n", audit) == {1: relabel(2)}
    other = audit_of([0, 1, 2], names=("1", "2", "3"))
    with pytest.raises(InputError, match="label 1 at line 2 is the name of a class and the number of another"):
        read(tmp_path, "index,label\n1,1\n", other)
    assert read(tmp_path, "item,label\n1/0.png,2\n", other) == {0: relabel(1)}


def test_the_same_said_twice_is_said_once(tmp_path):
    assert read(tmp_path, "item,label\ncat/0.png,dog\ncat/0.png,dog\n") == {0: relabel(1)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("item,label\ncat/9.png,dog\n", "'cat/9.png' at line 2 is no sample of photos; correct it, or leave it out"),
        ("item,label\n,dog\n", "'' at line 2 is no sample of photos"),
        ("item,label\ncat/0.png,wolf\n", "label 'wolf' at line 2 is no class of photos; expected 'cat', 'dog'"),
        (
            "item,label\ncat/0.png,dog\n\ncat/0.png,cat\n",
            "'cat/0.png' is 'dog' at line 2 and 'cat' at line 4; keep one of them",
        ),
        ("item,label\ncat/0.png,dog\ncat/0.png,\n", "'cat/0.png' is 'dog' at line 2 and 'remove' at line 3"),
        ("item,label\ncat/0.png\n", "line 2 cannot be used, 1 cells instead of 2; correct it"),
        ("index,label\n5,0\n", "index: expected 0..4, found '5' at line 2; correct it"),
        ("index,label\n-1,0\n", "index: expected 0..4, found '-1' at line 2; correct it"),
        ("index,label\n1,3\n", "label: expected 0..2, found 3 at line 2; correct it"),
        ("index,label\n1,-3\n", "label '-3' at line 2 is no class of photos"),
        ("name,label\ncat/0.png,dog\n", "has no column item, path or index; expected a table"),
        (
            "item,class\ncat/0.png,dog\n",
            "has no column label; expected a table with the columns item (or path, or index) and label",
        ),
        (
            "name,class\ncat/0.png,dog\n",
            "has no column item, path or index and no column label; expected a table with the columns item",
        ),
        ("", "it is empty; expected a table with the columns item (or path, or index) and label"),
        ([{"image": "x", "choice": "cat"}], "task 0 is none of Label Studio's; expected a table"),
        ([1], "task 0 is none of Label Studio's"),
        *(
            (
                [{"id": 7, "data": {"item": "cat/0.png"}, "annotations": [annotation]}],
                "an annotation of task 7 is none of Label Studio's; expected a table",
            )
            for annotation in (
                5,
                {"result": 5},
                {"result": "dog"},
                {"result": [5]},
                {"result": [{"value": 5}]},
                {"result": [{"value": {"choices": 7}}]},
                {"result": [{"value": {"choices": "dog"}}]},
            )
        ),
        ([{"id": 7, "data": {"image": "http://["}}], "task 7 has neither an item nor an image"),
        ([{"id": 7, "data": {}, "annotations": []}], "task 7 has neither an item nor an image"),
        ({"classes": ["cat"]}, "it has no labels of samples"),
        ({"classes": ["cat"], "labels": {"cat/0": 1}}, "'cat/0' has '1', which is not one class"),
        ({"classes": ["cat"], "labels": {"cat/0": [0]}}, "'cat/0' has '[0]', which is not one class"),
        ({"labels": {"cat/0": "wolf"}}, "label 'wolf' at sample 'cat/0' is no class of photos"),
        ({"labels": {"0": "dog", "cat/0": "cat"}}, "'cat/0.png' is 'dog' at sample '0' and 'cat' at sample 'cat/0'"),
        ("[{", "not valid JSON"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_half_read(tmp_path, content, sentence):
    with pytest.raises(InputError) as refusal:
        read(tmp_path, content)
    assert sentence in str(refusal.value)
    assert str(refusal.value).startswith(f"{tmp_path / 'corrections.csv'}: ")


def test_a_name_of_two_samples_is_refused(tmp_path):
    audit = audit_of([0, 1], items=["cat/1.png", "dog/1.png"])
    with pytest.raises(InputError, match="'1' at sample '1' is more than one sample of photos"):
        read(tmp_path, {"labels": {"1": "dog"}}, audit, "labels.json")


@pytest.mark.parametrize("data", [b"[\xff]", b"item,label\n\xff,cat\n"])
def test_what_is_no_text_is_one_sentence(tmp_path, data):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(InputError, match="UTF-8"):
        read_corrections(tmp_path / "x.json", found_audit())


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"x\.csv: cannot be read \(No such file"):
        read_corrections(tmp_path / "x.csv", found_audit())
    with pytest.raises(InputError, match="not a regular file"):
        read_corrections(tmp_path, found_audit())


# In: Label Studio and FiftyOne


def annotation(*choices, name="class", **more):
    return {
        "id": 1,
        "result": [{"from_name": name, "to_name": "img", "value": {"choices": [c]}} for c in choices],
        **more,
    }


def task(image, *annotations):
    return {"id": 3, "data": {"image": image}, "annotations": list(annotations), "predictions": []}


def test_an_export_of_label_studio(tmp_path):
    tasks = [
        task("/data/local-files/?d=my%20photos/cat/0.png", annotation("dog", was_cancelled=False)),
        task("/data/local-files/?d=my%20photos/cat/1.png", annotation("dog", was_cancelled=True)),
        task("/data/local-files/?d=my%20photos/dog/2.png", annotation("remove")),
        task("/data/local-files/?d=my%20photos/dog/3.png"),
        task("/data/local-files/?d=my%20photos/red_panda/4.png", annotation("red panda"), annotation("red panda")),
    ]
    assert read(tmp_path, tasks, name="export.json") == {0: relabel(1), 2: DROP, 4: Decision(KEEP, 2)}


# As Label Studio 1.23.2 exports all tasks, but for skipped ones: one that was labelled, one that removes and keeps what
# was chosen, one that only removes, one that was submitted empty, and one that nobody has seen.
CHOSEN = [
    ("cat/0.png", 10, "dog", ""),
    ("cat/1.png", 11, "cat", "remove"),
    ("dog/2.png", 12, "", "remove"),
    ("dog/3.png", 13, "", ""),
    ("red_panda/4.png", None, "", ""),
]


def about_task(item: str) -> dict:
    image = f"/data/local-files/?d=my%20photos/{item}"
    return {"image": image, "item": item, "given_label": item.partition("/")[0], "label_quality": 0.0687553659081459}


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("columns", [("label", "sample"), ("label",), ("sample",)])
def test_a_table_of_label_studio_removes_nothing_that_nobody_has_seen(tmp_path, columns, separator):
    # A column that nothing was chosen in is not there.
    header = ["annotation_id", "annotator", "given_label", "id", "image", "item", *columns, "lead_time"]
    with open(tmp_path / "theirs.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, header, delimiter=separator, quoting=csv.QUOTE_NONNUMERIC, extrasaction="ignore")
        table.writeheader()
        for item, number, label, sample in CHOSEN:
            shown = "" if number is None else number
            table.writerow({**about_task(item), "id": 58, "annotation_id": shown, "label": label, "sample": sample})
    name = "theirs.csv" if separator == "," else "theirs.tsv"
    (tmp_path / "theirs.csv").rename(tmp_path / name)
    removed = {1: DROP, 2: DROP} if "sample" in columns else {1: Decision(KEEP, 0)}
    expected = removed | ({0: relabel(1)} if "label" in columns else {})
    assert read_corrections(tmp_path / name, found_audit()) == expected


def test_a_short_json_of_label_studio(tmp_path):
    tasks = [
        {**about_task(item), "id": 58, "annotator": 1, "annotation_id": number}
        | ({"label": label} if label else {})
        | ({"sample": sample} if sample else {})
        for item, number, label, sample in CHOSEN
    ]
    assert read(tmp_path, tasks, name="min.json") == {0: relabel(1), 1: DROP, 2: DROP}


def test_two_annotators_who_disagree_are_named(tmp_path):
    tasks = [task("https://host/a/cat/0.png", annotation("dog"), annotation("cat"))]
    with pytest.raises(InputError, match=r"'cat/0\.png' is 'dog' at task 3 and 'cat' at task 3; keep one of them"):
        read(tmp_path, tasks)


def test_who_removes_a_sample_may_leave_its_label(tmp_path):
    both = annotation("dog", name="label")
    both["result"] += annotation("remove", name="sample")["result"]
    assert read(tmp_path, [task("cat/0.png", both)]) == {0: DROP}


def test_a_labels_file_of_fiftyone_has_the_labels_that_changed(tmp_path):
    content = {
        "classes": ["red_panda", "dog", "cat"],
        "labels": {
            "cat/0": 1,
            "1": 2,
            "2": {"label": 0, "confidence": None},
            "dog/3": None,
            "red_panda/4": "red_panda",
        },
    }
    assert read(tmp_path, content, name="labels.json") == {0: relabel(1), 2: relabel(2), 3: DROP}


def test_fiftyone_names_samples_as_it_was_told_to(tmp_path):
    """What FiftyOne 1.22.1 exports with abs_paths, with rel_dir, and with neither."""
    items = ["cat/cat/a b.png", "cat/a b.png", "cat/tab\\tx.png", "cat/n#1.png"]
    audit = audit_of([0, 0, 0, 0], items=items)
    paths = [f"/photos/cat/{name}" for name in ("cat/cat/a b.png", "cat/a b.png", "cat/tab\tx.png", "cat/n#1.png")]
    expected = {1: relabel(1), 2: relabel(2), 3: DROP}
    targets = ["cat", "dog", {"label": "red_panda", "attributes": {"decided_by": "given", "given_label": "cat"}}, None]

    def said(names):
        path = tmp_path / "labels.json"
        path.write_text(json.dumps({"classes": None, "labels": dict(zip(names, targets, strict=True))}))
        return read_corrections(path, audit, paths)

    assert said(paths) == expected
    assert said(["cat/cat/a b", "cat/a b", "cat/tab\tx", "cat/n#1"]) == expected
    with pytest.raises(InputError, match="'a b' at sample 'a b' is more than one sample of photos"):
        said(["a b", "a b-2", "tab\tx", "n#1"])
