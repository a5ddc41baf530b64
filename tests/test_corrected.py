"""What comes of decisions: the labels, a manifest, a label file, a copy of the folder."""

from __future__ import annotations

import csv
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dspt.auditing.audit import Audit
from dspt.data import Dataset, open_dataset
from dspt.internal.errors import FileError, InputError
from dspt.internal.progress import Reporter
from dspt.noise.labelfiles import read_split
from dspt.review.corrected import apply_to_copy, final_labels, write_labels, write_manifest
from dspt.review.decisions import KEEP, RELABEL, REMOVE, Decision

NAMES = ("cat", "dog", "red_panda")


def audit_of(
    labels, probabilities=None, names=NAMES, items=None, splits=None, source="photos", made_with=None
) -> Audit:
    """Return an audit that has been told all but what follows from it."""
    labels = np.array(labels, np.int64)
    n, c = len(labels), len(names)
    if probabilities is None:
        probabilities = np.full((n, c), 0.1 / (c - 1))
        probabilities[np.arange(n), labels] = 0.9
    return Audit(
        source=str(source),
        class_names=tuple(names),
        items=tuple(items or (f"{names[label]}/{i}.png" for i, label in enumerate(labels))),
        splits=tuple(splits or ["train"] * n),
        labels=labels,
        probabilities=np.array(probabilities, np.float32),
        noise_rate=0.1,
        noise_rate_error=0.01,
        can_tell=True,
        class_noise_rates=np.full(c, 0.1),
        fits_no_class=np.full(n, 0.5, np.float32),
        is_outlier=np.zeros(n, bool),
        made_with=made_with or {},
    )


def picture(path: Path | str, value: int = 0) -> str:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (value % 256, value // 256 % 256, 7)).save(path)
    return str(path)


def pictures(audit: Audit, root: Path) -> list[str]:
    """Return the files of an audit, each of another colour."""
    return [picture(root / item, i) for i, item in enumerate(audit.items)]


def labelled(dataset: Dataset) -> dict[tuple[str, str], str]:
    """Return the class of each file, by split and real path."""
    return {
        (part, os.path.realpath(item)): dataset.class_names[label]
        for part, split in (("train", dataset.train), ("test", dataset.test))
        for item, label in zip(split.items, split.labels, strict=True)
    }


def state(folder: Path) -> list[tuple[str, str, int]]:
    """Return every file below a folder with its digest and time."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(p), hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files]


def relabel(label: int) -> Decision:
    return Decision(RELABEL, label)


DROP = Decision(REMOVE, -1)


# The labels


def test_a_person_counts_before_a_proposal_and_a_proposal_before_the_given_label():
    sure = [0.02, 0.95, 0.03]
    audit = audit_of([0, 0, 0, 0, 1, 0], [sure, sure, sure, [0.3, 0.6, 0.1], sure, sure])
    decided = {1: Decision(KEEP, 0), 2: relabel(2), 5: DROP}
    labels, sources = final_labels(audit, decided, accept=0.9)
    assert labels.tolist() == [1, 0, 2, 0, 1, -1]
    assert sources == ("accepted", "person", "person", "given", "given", "person")
    assert labels.dtype == np.int64


def test_a_proposal_of_just_the_probability_asked_for_is_taken():
    audit = audit_of([0, 0], [[0.1, 0.9, 0], [0.11, 0.89, 0]])
    assert final_labels(audit, {}, accept=0.9)[0].tolist() == [1, 0]


@pytest.mark.parametrize("label", [0, 2, 7, -1])
def test_a_label_that_is_kept_is_the_given_one_whatever_else_was_written_down(label):
    labels, sources = final_labels(audit_of([0, 1]), {1: Decision(KEEP, label)})
    assert labels.tolist() == [0, 1]
    assert sources == ("given", "person")


def test_nothing_is_accepted_where_nothing_can_be_told():
    audit = audit_of([0, 1], [[0.1, 0.9, 0], [0.9, 0.1, 0]])
    blind = Audit(**{**vars(audit), "can_tell": False})
    assert final_labels(blind, {}, accept=0.6)[1] == ("given", "given")


def test_no_class_is_accepted_for_an_image_that_fits_none():
    audit = audit_of([0, 0], [[0.1, 0.9, 0], [0.1, 0.9, 0]])
    strange = Audit(**{**vars(audit), "is_outlier": np.array([True, False])})
    assert final_labels(strange, {}, accept=0.6)[1] == ("given", "accepted")
    assert final_labels(strange, {0: relabel(1)}, accept=0.6)[1] == ("person", "accepted")


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_without_decisions_labels_are_the_given_ones(labels):
    found, sources = final_labels(audit_of(labels), {})
    assert found.tolist() == labels
    assert set(sources) == {"given"}


@pytest.mark.parametrize("accept", [0.5, 0, 1.1, float("nan")])
def test_accept_is_a_probability_above_a_half(accept):
    with pytest.raises(InputError, match=r"accept = .*: expected a probability above 0\.5 and at most 1"):
        final_labels(audit_of([0, 1]), {}, accept=accept)


@pytest.mark.parametrize("decided", [{2: DROP}, {-1: DROP}, {0: relabel(3)}, {0: relabel(-1)}, {0: Decision("no", 1)}])
def test_decisions_of_another_audit_are_refused(decided):
    with pytest.raises(InputError, match="of another audit"):
        final_labels(audit_of([0, 1]), decided)


def test_final_labels_leaves_the_audit_alone():
    audit = audit_of([0, 1])
    final_labels(audit, {0: DROP})
    assert audit.labels.tolist() == [0, 1]


# A manifest


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_a_manifest_opens_with_exactly_the_corrected_labels(tmp_path, kind):
    audit = audit_of([0, 0, 1, 1, 2, 2, 0, 1], splits=["train"] * 6 + ["test"] * 2)
    paths = pictures(audit, tmp_path / "photos")
    decided = {0: relabel(2), 3: DROP, 6: relabel(1), 5: Decision(KEEP, 2)}
    out = tmp_path / "elsewhere" / f"fixed{kind}"
    counts = write_manifest(audit, decided, out, paths)
    assert labelled(open_dataset(out)) == {
        ("train", paths[0]): "red_panda",
        ("train", paths[1]): "cat",
        ("train", paths[2]): "dog",
        ("train", paths[4]): "red_panda",
        ("train", paths[5]): "red_panda",
        ("test", paths[6]): "dog",
        ("test", paths[7]): "dog",
    }
    assert counts == {
        **{"written": 7, "relabelled": 2, "removed": 1},
        **{"person": 4, "accepted": 0, "empty_classes": 0},
    }


def test_a_manifest_says_what_was_given_and_who_decided(tmp_path):
    audit = audit_of([0, 1, 0], [[0.1, 0.9, 0], [0.1, 0.9, 0], [0.9, 0.1, 0]])
    paths = pictures(audit, tmp_path / "photos")
    write_manifest(audit, {2: Decision(KEEP, 0)}, tmp_path / "fixed.csv", paths, accept=0.8)
    assert (tmp_path / "fixed.csv").read_text().splitlines() == [
        "path,label,given_label,decided_by",
        "photos/cat/0.png,dog,cat,accepted",
        "photos/dog/1.png,dog,dog,given",
        "photos/cat/2.png,cat,cat,person",
    ]


def test_a_manifest_moves_with_its_images(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "here" / "photos")
    write_manifest(audit, {}, tmp_path / "here" / "fixed.csv", paths)
    (tmp_path / "here").rename(tmp_path / "there")
    dataset = open_dataset(tmp_path / "there" / "fixed.csv", test_fraction=0)
    assert all(os.path.isfile(item) for item in dataset.train.items)


def test_a_manifest_behind_a_link_leads_to_the_images(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "deeper")
    write_manifest(audit, {}, tmp_path / "link" / "fixed.csv", paths)
    dataset = open_dataset(tmp_path / "link" / "fixed.csv", test_fraction=0)
    assert sorted(map(os.path.realpath, dataset.train.items)) == sorted(paths)


HOSTILE = [
    "=1+1.png",
    " blank .png",
    "-x.png",
    "@a,b;c.png",
    'quo"te.png',
    "ümläut 猫.png",
    "c:/d.png",
    "'x.png",
    "a\\b.png",
]


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_files_of_any_name_are_found_again(tmp_path, kind):
    names = HOSTILE + (["two\nlines.png"] if kind != ".csv" else [])
    audit = audit_of([i % 3 for i in range(len(names))], items=names)
    paths = pictures(audit, tmp_path)
    write_manifest(audit, {}, tmp_path / f"fixed{kind}", paths)
    found = labelled(open_dataset(tmp_path / f"fixed{kind}", test_fraction=0))
    assert found == {("train", path): NAMES[i % 3] for i, path in enumerate(paths)}


def test_no_cell_of_a_manifest_begins_like_a_formula(tmp_path):
    audit = audit_of([0, 1, 2, 0], names=("=1+1", "b", "c"), items=["=1.png", "-2.png", "3.png", "4.png"])
    paths = pictures(audit, tmp_path)
    write_manifest(audit, {0: relabel(1), 3: relabel(2)}, tmp_path / "fixed.csv", paths)
    with open(tmp_path / "fixed.csv", newline="") as file:
        assert not [cell for row in csv.reader(file) for cell in row if cell[:1] in tuple("=+-@\t\r\n")]


name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    names=st.lists(name, min_size=2, max_size=4, unique=True),
    kind=st.sampled_from([".csv", ".jsonl", ".parquet"]),
    data=st.data(),
)
def test_a_manifest_is_read_as_it_is_meant_or_refused(tmp_path, names, kind, data):
    labels = [*range(len(names)), *data.draw(st.lists(st.integers(0, len(names) - 1), max_size=5))]
    audit = audit_of(labels, names=names, items=[f"{i}.png" for i in range(len(labels))])
    out = tmp_path / f"fixed{kind}"
    try:
        write_manifest(audit, {}, out, [str(tmp_path / item) for item in audit.items], overwrite=True)
    except InputError:
        return
    found = labelled(open_dataset(out, test_fraction=0))
    assert found == {("train", str(tmp_path / f"{i}.png")): names[label] for i, label in enumerate(labels)}


@pytest.mark.parametrize(
    ("names", "kind", "reason"),
    [
        (("=1+1", "b"), ".csv", "for a formula"),
        (("two\nlines", "b"), ".csv", "line break"),
        ((" blank", "b"), ".jsonl", "no blanks around it"),
        (("01", "1"), ".parquet", "read as a number"),
    ],
)
def test_a_class_that_would_be_read_otherwise_is_refused(tmp_path, names, kind, reason):
    audit = audit_of([0, 1], names=names, items=["a.png", "b.png"])
    with pytest.raises(InputError, match=reason):
        write_manifest(audit, {}, tmp_path / f"x{kind}", [str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_classes_like_formulas_go_into_other_kinds(tmp_path, kind):
    audit = audit_of([0, 1], names=("=1+1", "two\nlines"), items=["a.png", "b.png"])
    write_manifest(audit, {}, tmp_path / f"x{kind}", pictures(audit, tmp_path))
    assert open_dataset(tmp_path / f"x{kind}", test_fraction=0).class_names == ("=1+1", "two\nlines")


def test_a_file_of_the_source_is_never_written_over(tmp_path):
    source = tmp_path / "photos.csv"
    audit = audit_of([0, 1, 2], source=source)
    paths = pictures(audit, tmp_path)
    source.write_text("path,label\n")
    with pytest.raises(InputError, match="part of the source"):
        write_manifest(audit, {}, source, paths, overwrite=True)
    odd = tmp_path / "image.csv"
    os.replace(paths[0], odd)
    with pytest.raises(InputError, match="part of the source"):
        write_manifest(audit, {}, odd, [str(odd), *paths[1:]], overwrite=True)
    assert source.read_text() == "path,label\n"


def test_the_source_is_known_from_whatever_folder_one_looks(tmp_path, monkeypatch):
    source = tmp_path / "a" / "data.csv"
    audit = audit_of([0, 1, 2], source="data.csv", made_with={"path": str(source)})
    paths = pictures(audit, tmp_path / "a")
    source.write_text("path,label\n")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(InputError, match="part of the source"):
        write_manifest(audit, {}, Path("../a/data.csv"), paths, overwrite=True)
    with pytest.raises(InputError, match="part of the source"):
        write_labels(audit, {}, Path("../a/data.csv"), overwrite=True)
    assert source.read_text() == "path,label\n"
    write_manifest(audit, {}, Path("data.csv"), paths)
    assert (tmp_path / "b" / "data.csv").exists()


@pytest.mark.parametrize("where", ["corrected.csv", "cat/corrected.csv", "../link/corrected.csv"])
def test_nothing_is_written_into_a_folder_of_images(tmp_path, monkeypatch, where):
    audit = audit_of([0, 1, 2], source="photos", made_with={"path": str(tmp_path / "photos")})
    paths = pictures(audit, tmp_path / "photos")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    before = state(tmp_path / "photos")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    for write in (
        lambda out: write_manifest(audit, {}, out, paths, overwrite=True),
        lambda out: write_labels(audit, {}, out, overwrite=True),
    ):
        with pytest.raises(InputError, match=r"it lies in the source .*; give a name outside of it"):
            write(Path("../photos") / where)
    assert state(tmp_path / "photos") == before
    write_manifest(audit, {}, tmp_path / "photos.csv", paths)


def test_a_copy_stays_out_of_the_source_from_whatever_folder_one_looks(tmp_path, monkeypatch):
    items = ["x/a.png", "y/b.png", "z/c.png"]
    audit = audit_of([0, 1, 2], items=items, source="photos", made_with={"path": str(tmp_path / "photos")})
    paths = pictures(audit, tmp_path / "photos")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    with pytest.raises(InputError, match="are not apart"):
        apply_to_copy(audit, {}, paths, Path("../photos/copy"))


def test_a_file_that_is_there_is_replaced_only_if_asked_for(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    out = tmp_path / "x.csv"
    out.write_text("mine")
    with pytest.raises(InputError, match="there already"):
        write_manifest(audit, {}, out, paths)
    assert out.read_text() == "mine"
    write_manifest(audit, {}, out, paths, overwrite=True)
    assert out.read_text().startswith("path,label")


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"ends in \.csv, \.jsonl or \.parquet"):
        write_manifest(audit_of([0, 1]), {}, tmp_path / "x.xlsx", ["/a", "/b"])


def test_samples_without_files_are_told_what_to_do(tmp_path):
    for write in (
        lambda: write_manifest(audit_of([0, 1]), {}, tmp_path / "x.csv", None),
        lambda: apply_to_copy(audit_of([0, 1]), {}, None, tmp_path / "x"),
    ):
        with pytest.raises(InputError, match=r"no files.*label file as the noise file:labels\.csv"):
            write()


@pytest.mark.parametrize(
    ("decided", "reason"),
    [({0: DROP, 1: DROP}, "1 classes have train images"), ({0: DROP}, "class 'cat' has test images and no train")],
)
def test_what_could_not_be_learnt_from_is_refused(tmp_path, decided, reason):
    audit = audit_of([0, 1, 2, 0], splits=["train", "train", "train", "test"])
    paths = pictures(audit, tmp_path / "photos")
    for write in (
        lambda: write_manifest(audit, decided, tmp_path / "x.csv", paths),
        lambda: apply_to_copy(audit, decided, paths, tmp_path / "copy"),
    ):
        with pytest.raises(InputError, match=reason):
            write()
    assert os.listdir(tmp_path) == ["photos"]


# A label file


def test_a_label_file_is_one_that_noise_reads(tmp_path, photos):
    dataset = open_dataset(photos, test_fraction=0)
    items = [os.path.relpath(item, photos) for item in dataset.train.items]
    audit = audit_of(dataset.train.labels, names=dataset.class_names, items=items, source=photos)
    counts = write_labels(audit, {0: relabel(2), 7: relabel(0)}, tmp_path / "labels.csv")
    found = read_split(tmp_path / "labels.csv", dataset, pytest.fail)
    expected = dataset.train.labels.copy()
    expected[[0, 7]] = 2, 0
    assert found.labels.tolist() == expected.tolist()
    assert counts["relabelled"] == 2


def test_samples_without_names_are_counted(tmp_path):
    audit = audit_of([0, 1, 2, 0], items=["0", "1", "2", "0"], splits=["train"] * 3 + ["test"])
    write_labels(audit, {1: relabel(2)}, tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text() == "index,label\n0,0\n1,2\n2,2\n"


def test_a_label_file_cannot_remove(tmp_path):
    with pytest.raises(InputError, match="1 sample is to be removed, which a label file cannot say"):
        write_labels(audit_of([0, 1]), {0: DROP}, tmp_path / "labels.csv")
    assert not list(tmp_path.iterdir())


# A copy of the folder


def test_each_image_is_in_the_folder_of_its_corrected_class(tmp_path):
    audit = audit_of([0, 0, 1, 1, 2], items=["cat/a.png", "cat/b.png", "dog/a.png", "dog/c.png", "red_panda/d.png"])
    paths = pictures(audit, tmp_path / "photos")
    before = state(tmp_path / "photos")
    counts = apply_to_copy(audit, {0: relabel(1), 3: DROP}, paths, tmp_path / "copy")
    found = {p.relative_to(tmp_path / "copy").as_posix(): p for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert set(found) == {"cat/b.png", "dog/a.png", "dog/a (2).png", "red_panda/d.png", "changes.csv"}
    origin = {"cat/b.png": 1, "dog/a.png": 2, "dog/a (2).png": 0, "red_panda/d.png": 4}
    assert all(found[to].read_bytes() == Path(paths[row]).read_bytes() for to, row in origin.items())
    assert (tmp_path / "copy" / "changes.csv").read_text().splitlines() == [
        "from,to,given_label,label,decided_by",
        f"{paths[0]},dog/a (2).png,cat,dog,person",
        f"{paths[3]},,dog,,person",
    ]
    assert state(tmp_path / "photos") == before
    assert counts["written"] == 4
    assert counts["removed"] == 1


def test_a_copy_opens_with_the_corrected_labels(tmp_path):
    items = [f"{part}/{NAMES[i % 3]}/{i}.png" for part in ("train", "test") for i in range(6)]
    audit = audit_of([i % 3 for i in range(12)], items=items, splits=["train"] * 6 + ["test"] * 6)
    paths = pictures(audit, tmp_path / "photos")
    apply_to_copy(audit, {0: relabel(2), 7: relabel(0), 8: DROP}, paths, tmp_path / "copy")
    found = labelled(open_dataset(tmp_path / "copy"))
    below = {(part, os.path.relpath(path, tmp_path / "copy")): name for (part, path), name in found.items()}
    expected = {}
    for row in set(range(12)) - {8}:
        c = {0: 2, 7: 0}.get(row, row % 3)
        part = audit.splits[row]
        expected[part, f"{part}/{NAMES[c]}/{row % 6}.png"] = NAMES[c]
    assert below == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(decided=st.dictionaries(st.integers(3, 11), st.integers(-1, 2)))
def test_a_copy_is_the_manifest_in_folders(tmp_path_factory, decided):
    folder = tmp_path_factory.mktemp("copy")
    audit = audit_of([i % 3 for i in range(12)])
    paths = pictures(audit, folder / "photos")
    decisions = {row: DROP if label < 0 else relabel(label) for row, label in decided.items()}
    apply_to_copy(audit, decisions, paths, folder / "copy")
    write_manifest(audit, decisions, folder / "x.csv", paths)

    def by_content(source):
        found = labelled(open_dataset(source, test_fraction=0))
        return sorted((Path(path).read_bytes(), name) for (_, path), name in found.items())

    assert by_content(folder / "copy") == by_content(folder / "x.csv")


def test_every_one_of_many_of_a_name_has_its_own_number(tmp_path):
    audit = audit_of([0, 1, 1, 1, 1], items=["0/a.png", "1/a.png", "2/a.png", "3/a.png", "4/a.png"])
    paths = pictures(audit, tmp_path / "photos")
    apply_to_copy(audit, {4: relabel(0)}, paths, tmp_path / "copy")
    found = {p.relative_to(tmp_path / "copy").as_posix(): p.read_bytes() for p in (tmp_path / "copy").rglob("*.png")}
    expected = ["cat/a.png", "dog/a.png", "dog/a (2).png", "dog/a (3).png", "cat/a (2).png"]
    assert found == {to: Path(path).read_bytes() for to, path in zip(expected, paths, strict=True)}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_copied_and_no_manifest_can_hold_it(tmp_path):
    audit = audit_of([0, 1, 1], items=["cat/0.png", "dog/\\udcff.png", "dog/2.png"])
    paths = [str(tmp_path / "photos" / item) for item in ("cat/0.png", "dog/\udcff.png", "dog/2.png")]
    for path in paths:
        picture(path)
    for kind in (".csv", ".jsonl", ".parquet"):
        with pytest.raises(InputError, match=r"is not UTF-8 text, which a manifest cannot hold.*or give `apply`"):
            write_manifest(audit, {}, tmp_path / f"x{kind}", paths)
    apply_to_copy(audit, {1: relabel(0)}, paths, tmp_path / "copy")
    assert sorted(os.listdir(os.fsencode(tmp_path / "copy" / "cat"))) == [b"0.png", b"\xff.png"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_of_two_lines_is_copied_and_no_csv_can_hold_it(tmp_path):
    items = ["cat/0.png", "dog/two\nlines.png", "dog/2.png"]
    audit, paths = audit_of([0, 1, 1], items=items), [str(tmp_path / "photos" / item) for item in items]
    for path in paths:
        picture(path)
    with pytest.raises(InputError, match=r"has a line break, which a .csv file cannot hold.*or give `apply`"):
        write_manifest(audit, {}, tmp_path / "x.csv", paths)
    apply_to_copy(audit, {1: relabel(0)}, paths, tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy" / "cat")) == ["0.png", "two\nlines.png"]


def test_folders_below_a_class_stay(tmp_path):
    audit = audit_of([0, 0, 1], items=["cat/mon/a.png", "cat/tue/a.png", "dog/a.png"])
    apply_to_copy(audit, {1: relabel(1)}, pictures(audit, tmp_path / "photos"), tmp_path / "copy")
    found = sorted(p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*.png"))
    assert found == ["cat/mon/a.png", "dog/a.png", "dog/tue/a.png"]


def test_a_class_called_like_a_folder_far_above_changes_nothing(tmp_path):
    """The images of a manifest lie below a folder that is called like a class by chance."""
    audit = audit_of([0, 1], names=("cat", "dog"), items=["a/1.png", "a/2.png"])
    paths = pictures(audit, tmp_path / "cat" / "x")
    apply_to_copy(audit, {}, paths, tmp_path / "cat" / "copy")
    found = sorted(
        p.relative_to(tmp_path / "cat" / "copy").as_posix() for p in (tmp_path / "cat" / "copy").rglob("*.*")
    )
    assert found == ["cat/1.png", "changes.csv", "dog/2.png"]


@pytest.mark.parametrize("where", ["photos/copy", "photos/cat/copy", "photos/train/copy"])
def test_a_copy_lies_outside_of_the_source(tmp_path, where):
    audit = audit_of([0, 1, 2], items=["train/cat/a.png", "train/dog/a.png", "train/red_panda/a.png"], source="gone")
    paths = pictures(audit, tmp_path / "photos")
    before = state(tmp_path)
    with pytest.raises(InputError, match="are not apart"):
        apply_to_copy(audit, {}, paths, tmp_path / where)
    assert state(tmp_path) == before


def test_a_link_into_the_source_is_seen(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    with pytest.raises(InputError, match="are not apart"):
        apply_to_copy(audit, {}, paths, tmp_path / "link" / "copy")


def test_a_folder_that_has_something_in_it_is_left_alone(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("mine")
    with pytest.raises(InputError, match="not an empty folder"):
        apply_to_copy(audit, {}, paths, tmp_path / "copy")
    assert os.listdir(tmp_path / "copy") == ["mine"]
    (tmp_path / "copy" / "mine").unlink()
    apply_to_copy(audit, {}, paths, tmp_path / "copy")
    assert len(open_dataset(tmp_path / "copy", test_fraction=0).train.labels) == 3


@pytest.mark.parametrize("hostile", ["a/b", "..", "", "a\0b", "../../up", ".hidden", "x" * 256, "\\b"])
def test_a_class_that_cannot_be_a_folder_is_one_sentence(tmp_path, hostile):
    audit = audit_of([0, 1], names=(hostile, "b"), items=["1.png", "2.png"])
    paths = pictures(audit, tmp_path / "photos")
    with pytest.raises(InputError, match="cannot be the name of a folder; rename it, or write a manifest"):
        apply_to_copy(audit, {}, paths, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize("odd", ["=1+1", "猫 ü", "two\nlines", " blank ", "-x"])
def test_a_class_of_any_other_name_is_a_folder(tmp_path, odd):
    audit = audit_of([0, 1, 1], names=(odd, "b"), items=["1.png", "2.png", "3.png"])
    apply_to_copy(audit, {1: relabel(0)}, pictures(audit, tmp_path / "photos"), tmp_path / "copy")
    assert set(open_dataset(tmp_path / "copy", test_fraction=0).class_names) == {odd, "b"}
    with open(tmp_path / "copy" / "changes.csv", newline="") as file:
        assert not [cell for row in csv.reader(file) for cell in row if cell[:1] in tuple("=+-@\t\r\n")]


def test_a_file_that_is_gone_is_named_and_nothing_is_left(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    os.unlink(paths[2])
    with pytest.raises(FileError, match=r"red_panda/2\.png: cannot be read \(No such file.*\); put it back"):
        apply_to_copy(audit, {}, paths, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["photos"]


def test_a_file_that_no_folder_shows_is_named(tmp_path):
    audit = audit_of([0, 1], items=["a.png", "b"])
    paths = [picture(tmp_path / "photos" / "a.png"), str(tmp_path / "photos" / "b")]
    with pytest.raises(InputError, match="not that of an image; write a manifest"):
        apply_to_copy(audit, {}, paths, tmp_path / "copy")


def test_the_progress_of_a_copy_is_told(tmp_path, capsys):
    audit = audit_of([0, 1, 2])
    apply_to_copy(audit, {}, pictures(audit, tmp_path / "photos"), tmp_path / "copy", reporter=Reporter())
    assert "copying 100 %" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_corrected as t
from dspt.review import corrected
copy, done = corrected._copy, []
def copy_two(file, to):
    copy(file, to)
    done.append(to)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
corrected._copy = copy_two
audit = t.audit_of([0, 1, 2])
root = Path({root!r})
corrected.apply_to_copy(audit, {{}}, [str(root / "photos" / item) for item in audit.items], root / "copy")
"""


@pytest.mark.skipif(os.name != "posix", reason="kills itself")
def test_a_killed_copy_leaves_nothing_that_looks_whole_and_is_cleared_away(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    before = state(tmp_path / "photos")
    script = KILLED.format(tests=os.path.dirname(__file__), root=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "copy").exists()
    assert next(name for name in os.listdir(tmp_path) if name != "photos").startswith(".copy.")
    apply_to_copy(audit, {}, paths, tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == ["copy", "photos"]
    assert state(tmp_path / "photos") == before


def test_a_copy_can_be_changed_without_the_original(tmp_path):
    audit = audit_of([0, 1, 2])
    paths = pictures(audit, tmp_path / "photos")
    before = state(tmp_path / "photos")
    apply_to_copy(audit, {}, paths, tmp_path / "copy")
    for copied in (tmp_path / "copy").rglob("*.png"):
        copied.write_bytes(b"")
    assert state(tmp_path / "photos") == before
