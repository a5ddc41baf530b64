"""Label files of other people: one array among several, in the right order, and no program."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dspt import noise
from dspt.internal.errors import InputError
from dspt.noise import labelfiles

CLEAN = np.array([0, 1, 2, 3, 4, 0])
WORSE = np.array([0, 2, 2, 4, 4, 1])
HUMAN = {"clean_label": CLEAN, "aggre_label": CLEAN, "worse_label": WORSE}
both_formats = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(path: Path, content: object, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def rename_module(path: Path, module: str) -> None:
    """Make the pickle in `path` name numpy's functions as an older or newer numpy would."""

    def renamed(content: bytes) -> bytes:
        for own in (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"):
            content = content.replace(own, f"c{module}\n".encode())
        return content

    if not zipfile.is_zipfile(path):
        path.write_bytes(renamed(path.read_bytes()))
        return
    with zipfile.ZipFile(path) as file:
        parts = [(entry.filename, renamed(file.read(entry))) for entry in file.infolist()]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts:
            file.writestr(name, content)


class TestNamedArrays:
    @both_formats
    @pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
    def test_arrays_of_old_and_new_numpy_are_read_by_name(self, tmp_path, zipped, module):
        path = save(tmp_path / "human.pt", HUMAN, zipped)
        rename_module(path, module)
        found = noise.read_labels(f"{path}#worse_label", 5, 6)
        assert (found.dtype, found.tolist()) == (np.int64, WORSE.tolist())

    @both_formats
    @pytest.mark.parametrize(
        "labels",
        [
            torch.tensor(WORSE),
            torch.tensor(WORSE, dtype=torch.uint8),
            WORSE.astype(">i4"),
            WORSE.astype(np.uint8),
            WORSE.tolist(),
        ],
    )
    def test_tensors_lists_and_other_integers_are_read(self, tmp_path, zipped, labels):
        path = save(tmp_path / "human.pt", {"a": labels, "about": "six images"}, zipped)
        assert noise.read_labels(path, 5, 6).tolist() == WORSE.tolist()

    def test_an_array_alone_needs_no_name(self, tmp_path):
        path = save(tmp_path / "labels.pt", WORSE)
        assert noise.read_labels(path, 5, 6).tolist() == WORSE.tolist()
        np.savez(tmp_path / "labels.npz", any=WORSE)
        assert noise.read_labels(tmp_path / "labels.npz", 5, 6).tolist() == WORSE.tolist()

    def test_npz_arrays_are_read_by_name(self, tmp_path):
        np.savez(tmp_path / "human.npz", **HUMAN)
        found = noise.read_labels(f"{tmp_path / 'human.npz'}#worse_label", 5, 6)
        assert found.tolist() == WORSE.tolist()

    @pytest.mark.parametrize("name", ["human.pt", "human.npz"])
    def test_a_missing_name_is_answered_with_those_that_are_there(self, tmp_path, name):
        path = tmp_path / name
        save(path, HUMAN) if name.endswith("pt") else np.savez(path, **HUMAN)
        there = "give one of clean_label, aggre_label, worse_label after #"
        with pytest.raises(InputError, match=rf"{name}: no array 'worst' in it; {there}"):
            noise.read_labels(f"{path}#worst", 5, 6)
        for nameless in (path, f"{path}#"):
            with pytest.raises(InputError, match=rf"{name}: more than one array in it; {there}"):
                noise.read_labels(nameless, 5, 6)

    def test_a_name_after_a_file_without_names_is_refused(self, tmp_path):
        noise.write_labels(tmp_path / "labels.csv", WORSE)
        with pytest.raises(InputError, match="labels without names; leave out #worse"):
            noise.read_labels(f"{tmp_path / 'labels.csv'}#worse", 5, 6)

    @pytest.mark.parametrize("name", ["run#3.csv", "labels.pt#worse.csv", "a.npy#b.npy"])
    def test_a_file_with_the_sign_in_its_name_is_itself(self, tmp_path, name):
        noise.write_labels(tmp_path / name, WORSE)
        found = noise.read_labels(tmp_path / name, 5, 6)
        assert found.tolist() == WORSE.tolist()

    def test_a_folder_with_the_sign_in_its_name_is_no_hindrance(self, tmp_path):
        (tmp_path / "a#b").mkdir()
        path = save(tmp_path / "a#b" / "human.pt", HUMAN)
        found = noise.read_labels(f"{path}#worse_label", 5, 6)
        assert found.tolist() == WORSE.tolist()
        with pytest.raises(InputError, match=r"a#b/none\.csv: no such file"):
            noise.read_labels(tmp_path / "a#b" / "none.csv", 5, 6)

    @pytest.mark.parametrize(
        ("labels", "sentence"),
        [
            (WORSE[:5], "human.pt#a: expected 6 labels, found 5"),
            (WORSE + 1, "expected 0..4 for 5 classes, found 5 at row 3 of .*human.pt#a"),
            (WORSE * 0.5, r"expected one array of integers, found float64 of shape \(6,\)"),
            (WORSE[None], r"expected one array of integers, found int64 of shape \(1, 6\)"),
            (torch.zeros(6, dtype=torch.bfloat16), "expected one array of integers"),
            (torch.zeros(6).to_sparse(), "expected one array of integers"),
            (["cat"] * 6, "expected one array of integers"),
            ([[0], [1, 2]], "expected one array of integers"),
        ],
    )
    def test_an_array_with_a_mistake_is_refused(self, tmp_path, labels, sentence):
        path = save(tmp_path / "human.pt", {"a": labels, "b": WORSE})
        with pytest.raises(InputError, match=sentence):
            noise.read_labels(f"{path}#a", 5, 6)

    @pytest.mark.parametrize("name", ["human.pt", "human.npz"])
    @pytest.mark.parametrize("content", [b"", b"\xff\xfe no such thing", b"PK\x03\x04 zip"])
    def test_files_that_cannot_be_read_are_named(self, tmp_path, name, content):
        with pytest.raises(InputError, match=rf"{name}: no such file"):
            noise.read_labels(f"{tmp_path / name}#a", 5, 6)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: not a readable"):
            noise.read_labels(f"{tmp_path / name}#a", 5, 6)

    def test_a_file_without_arrays_is_refused(self, tmp_path):
        for content in ({}, {"about": "nothing"}, "text"):
            with pytest.raises(InputError, match=r"human\.pt: no arrays in it"):
                noise.read_labels(save(tmp_path / "human.pt", content), 5, 6)


class TestOrder:
    @pytest.mark.parametrize("name", ["human.pt", "human.npz"])
    def test_right_labels_that_differ_from_the_data_are_counted(self, tmp_path, name):
        path = tmp_path / name
        save(path, HUMAN) if name.endswith("pt") else np.savez(path, **HUMAN)
        spec = noise.parse(f"file:{path}#worse_label")
        assert spec.apply(CLEAN, 5, seed=1).tolist() == WORSE.tolist()
        other = [0, 1, 2, 3, 0, 4]
        with pytest.raises(InputError) as caught:
            spec.apply(other, 5, seed=1)
        assert "clean_label differs from the data's own labels in 2 of 6 rows" in str(caught.value)
        assert "not in the order the file was made for" in str(caught.value)

    def test_right_labels_of_another_number_are_refused(self, tmp_path):
        path = save(tmp_path / "human.pt", {"clean_label": CLEAN[:5], "a": WORSE})
        with pytest.raises(InputError, match=r"clean_label has shape \(5,\), expected 6 labels"):
            noise.parse(f"file:{path}#a").apply(CLEAN, 5, seed=1)

    def test_a_file_without_right_labels_is_taken_at_its_word(self, tmp_path):
        path = save(tmp_path / "human.pt", {"a": WORSE, "b": WORSE})
        found = noise.parse(f"file:{path}#a").apply([0] * 6, 5, seed=1)
        assert found.tolist() == WORSE.tolist()

    def test_labels_of_groups_of_classes_are_not_taken_for_classes(self, tmp_path):
        held = {"noisy_coarse_label": WORSE, "noisy_label": WORSE}
        path = save(tmp_path / "human.pt", held)
        with pytest.raises(InputError, match=r"20 groups of classes .* use #noisy_label"):
            noise.read_labels(f"{path}#noisy_coarse_label", 100, 6)
        found = noise.read_labels(f"{path}#noisy_coarse_label", 20, 6)
        assert found.tolist() == WORSE.tolist()

    def test_the_name_survives_being_written_down(self):
        text = "file:data/CIFAR-10_human.pt#worse_label"
        assert str(noise.parse(text)) == text


class Call:
    """Pickles as a call that unpickling would make."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def make(name: str) -> None:
    Path(name).touch()


class TestNoProgramIsRun:
    @both_formats
    @pytest.mark.parametrize("function", ["system", "eval", "nested"])
    def test_a_malicious_file_does_nothing(self, tmp_path, zipped, function):
        made = tmp_path / "made"
        code = f"open({str(made)!r}, 'w').close()"
        attack = {
            "system": Call(os.system, f"touch {made}"),
            "eval": Call(eval, code),
            "nested": Call(np.dtype, Call(eval, code)),
        }[function]
        path = save(tmp_path / "human.pt", {**HUMAN, "more": attack}, zipped)
        name = "system" if function == "system" else "eval"
        with pytest.raises(InputError, match=rf"human\.pt: it asks for \S*{name}, which could run"):
            noise.read_labels(f"{path}#worse_label", 5, 6)
        assert not made.exists()
        torch.load(path, weights_only=False)  # the same file does its work where it is trusted
        assert made.exists()

    def test_what_others_have_allowed_is_not_allowed_here_and_stays_allowed_there(self, tmp_path):
        made = tmp_path / "made"
        path = save(tmp_path / "human.pt", {"a": Call(make, str(made))})
        with torch.serialization.safe_globals([make]):
            with pytest.raises(InputError, match=r"human\.pt: it asks for \S*make, which"):
                noise.read_labels(path, 5, 6)
            assert not made.exists()
            torch.load(path, weights_only=True)
            assert made.exists()

    @both_formats
    def test_arrays_of_objects_are_refused(self, tmp_path, zipped):
        path = save(tmp_path / "human.pt", {"a": np.array([0, None])}, zipped)
        with pytest.raises(InputError, match="an array in it has the type O8, which is never"):
            noise.read_labels(path, 5, 2)
        np.savez(tmp_path / "human.npz", a=np.array([0, None]))
        with pytest.raises(InputError, match="an array in it is a pickle, which could run code"):
            noise.read_labels(tmp_path / "human.npz", 5, 2)

    def test_the_form_that_torch_once_loaded_unsafely_is_refused(self, tmp_path):
        path = tmp_path / "human.pt"
        with tarfile.open(path, "w") as file:
            member = tarfile.TarInfo("storages")
            file.addfile(member, io.BytesIO())
        with pytest.raises(InputError, match=r"not a file that torch\.save writes today"):
            noise.read_labels(path, 5, 6)


class TestCsv:
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    @pytest.mark.parametrize("last", [True, False])
    def test_the_quick_way_reads_plain_files(self, tmp_path, end, mark, last):
        path = tmp_path / "labels.csv"
        for lines in (["label", "3", "0", "012"], ["index,label", "2,12", "0,3", "1,0"]):
            path.write_bytes((mark + end.join(lines) + (end if last else "")).encode())
            quick = labelfiles._plain_csv(path, 13, 3)
            assert quick is not None
            assert quick.tolist() == [3, 0, 12]
            assert labelfiles._careful_csv(path, 13, 3).tolist() == [3, 0, 12]

    def test_both_ways_agree_on_files_with_random_changes(self, tmp_path):
        path, signs = tmp_path / "labels.csv", '0129,\n\r -+."x_\t'
        agreed, generator = 0, np.random.default_rng(0)
        for trial in range(400):
            text = ("index,label\n0,3\n1,0\n2,12\n", "label\n3\n0\n12\n")[trial % 2]
            for _ in range(generator.integers(1, 3)):
                at, sign = generator.integers(len(text) + 1), generator.choice(list(signs))
                text = text[:at] + sign + text[at + generator.integers(2) :]
            path.write_bytes(text.encode())
            quick = labelfiles._plain_csv(path, 13, 3)
            if quick is not None:
                assert quick.tolist() == labelfiles._careful_csv(path, 13, 3).tolist()
                agreed += 1
        assert agreed

    def test_numbers_too_long_to_hold_are_left_to_the_careful_way(self, tmp_path):
        path = tmp_path / "labels.csv"
        path.write_text(f"label\n3\n0\n{'0' * 30}\n")
        with pytest.raises(InputError, match=r"expected integers label, found 0+ at line 4"):
            noise.read_labels(path, 13, 3)
