"""dspt review, from a report to corrected labels, as a user calls it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dspt.auditing import folder
from dspt.data import open_dataset
from dspt.review.decisions import Decisions


@pytest.fixture
def report(dspt, photos, clip, tmp_path):
    """Return the report of three classes of six images, three of which somebody has decided about."""
    status, _, errors = dspt("audit", photos, "--model", clip, "--out", "report", "-q")
    assert (status, errors) == (0, "")
    audit = folder.load(tmp_path / "report")
    rows = {item: row for row, item in enumerate(audit.items)}
    with Decisions(tmp_path / "report" / folder.DECISIONS, audit.items, audit.class_names) as decisions:
        decisions.decide([rows["cat/0.png"]], "relabel", audit.class_names.index("dog"))
        decisions.decide([rows["cat/1.png"]], "keep", audit.class_names.index("cat"))
        decisions.decide([rows["dog/2.png"]], "remove")
    return tmp_path / "report"


def labels_of(manifest) -> dict[str, str]:
    found = open_dataset(manifest, test_fraction=0)
    names = ["/".join(str(item).split("/")[-2:]) for item in found.train.items]
    return {name: found.class_names[label] for name, label in zip(names, found.train.labels, strict=True)}


def test_the_corrected_manifest_has_the_decisions_and_opens(dspt, report, tmp_path):
    status, output, _ = dspt("review", report, "--export", "corrected.csv", "--json")
    told = json.loads(output)
    assert status == 0
    assert (told["written"], told["relabelled"], told["removed"], told["person"]) == (17, 1, 1, 3)
    found = labels_of(tmp_path / "corrected.csv")
    assert found["cat/0.png"] == "dog"
    assert found["cat/1.png"] == "cat"
    assert "dog/2.png" not in found
    status, output, _ = dspt("review", report, "--export", "corrected.jsonl")
    assert status == 0
    assert "dspt train corrected.jsonl" in output


def test_a_copy_of_the_folder_has_every_image_in_its_class(dspt, report, photos, tmp_path):
    before = sorted(photos.rglob("*"))
    status, _, _ = dspt("review", report, "--apply", "fixed", "-q")
    assert status == 0
    assert sorted(photos.rglob("*")) == before
    assert sorted(path.name for path in (tmp_path / "fixed" / "dog").iterdir()).count("0.png") == 1
    assert (tmp_path / "fixed" / "dog" / "0 (2).png").read_bytes() == (photos / "cat" / "0.png").read_bytes()
    assert not (tmp_path / "fixed" / "dog" / "2.png").exists()


def test_corrections_of_others_are_taken(dspt, report, tmp_path):
    (tmp_path / "theirs.csv").write_text("item,label\ndog/3.png,cat\ncat/0.png,red_panda\n")
    status, output, _ = dspt("review", report, "--import", "theirs.csv", "--export", "corrected.csv", "--json")
    assert status == 0
    assert json.loads(output)["imported"] == 2
    found = labels_of(tmp_path / "corrected.csv")
    assert (found["dog/3.png"], found["cat/0.png"]) == ("cat", "red_panda")


def test_labels_of_fiftyone_come_back_to_the_file_they_were_given(dspt, photos, clip, tmp_path):
    # The path of cat/0.png ends as the name of the other one, cat/cat/0.png.
    root = tmp_path / "cat"
    photos.rename(root)
    (root / "cat" / "cat").mkdir()
    (root / "dog" / "1.png").rename(root / "cat" / "cat" / "0.png")
    assert dspt("audit", root, "--model", clip, "--out", "report", "-q")[0] == 0
    assert dspt("review", "report", "--export", "out", "--format", "fiftyone")[0] == 0
    content = json.loads((tmp_path / "out" / "labels.json").read_text())
    content["labels"][str(root / "cat" / "0.png")] = content["classes"].index("dog")
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    status, output, errors = dspt("review", "report", "--import", "theirs.json", "--export", "corrected.csv", "--json")
    assert (status, errors, json.loads(output)["imported"]) == (0, "", 1)
    found = open_dataset(tmp_path / "corrected.csv", test_fraction=0)
    labels = dict(zip(map(str, found.train.items), found.train.labels, strict=True))
    changed = [labels[str(root / name)] for name in ("cat/0.png", "cat/cat/0.png")]
    assert [found.class_names[label] for label in changed] == ["dog", "cat"]


def test_proposals_that_are_sure_can_be_taken(dspt, tmp_path):
    random = np.random.default_rng(0)
    true = np.arange(200) % 4
    x = 4 * random.standard_normal((4, 8))[true] + random.standard_normal((200, 8))
    labels = true.copy()
    labels[:10] = (true[:10] + 1) % 4
    names = np.array(list("abcd"))
    np.savez(tmp_path / "x.npz", train_x=x, train_y=labels, test_x=x[:4], test_y=true[:4], classnames=names)
    assert dspt("audit", "x.npz", "-q")[0] == 0
    arguments = ("review", "report", "--export", "labels.csv", "--format", "labels", "--accept", "0.9", "--json")
    status, output, _ = dspt(*arguments)
    assert status == 0
    assert json.loads(output)["accepted"] == 10
    assert "file:" not in output
    status, _, errors = dspt("review", "report", "--export", "manifest.csv")
    assert status == 2
    assert len(errors.strip().splitlines()) == 1
    assert "give --export labels.csv and --format labels" in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "report nowhere: no report is there; make one with 'dspt audit DATA'"),
        (["REPORT", "--export", "x.csv", "--format", "word"], "format 'word': expected one of manifest, labels"),
        (["REPORT", "--export", "x.csv", "--apply", "y"], "export and apply: give one of them at a time"),
        (["REPORT", "--export", "x.csv", "--accept", "0.2"], "accept"),
        (["REPORT", "--export", "x.doc"], "x.doc: expected a name that ends in"),
        (["REPORT", "--import", "missing.csv"], "missing.csv"),
        (
            ["REPORT", "--format", "cleanlab"],
            "format cleanlab: it says what is exported, and nothing",
        ),
        (["REPORT", "--apply", "x", "--format", "labels"], "format labels: it says what is exported, and nothing is"),
        (["REPORT", "--overwrite"], "overwrite: it is for a file that is exported, and nothing is exported"),
        (["REPORT", "--apply", "x", "--overwrite"], "and apply writes a new folder; leave it out"),
        (["REPORT", "--export", "x", "--format", "cleanlab", "--overwrite"], "and cleanlab is a folder; leave it out"),
        (["REPORT", "--export", "x.csv", "--open"], "port and open: they go with the page"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(dspt, report, tmp_path, arguments, sentence):
    before = sorted(tmp_path.iterdir())
    status, _, errors = dspt("review", *(str(report) if a == "REPORT" else a for a in arguments))
    assert status == 2
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_decided_is_believed_by_the_next_report(dspt, report, photos, clip):
    assert dspt("audit", photos, "--model", clip, "--out", report, "-q")[0] == 0
    audit = folder.load(report)
    row = audit.items.index("cat/0.png")
    assert audit.class_names[audit.ranked[0][row]] == "dog"
    with Decisions(report / folder.DECISIONS, audit.items, audit.class_names) as decisions:
        assert len(decisions.current()) == 3
