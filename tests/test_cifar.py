"""CIFAR in every form it is found in, and pickles that are read as data and never obeyed."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dspt.data import cifar, unpickle
from dspt.internal.errors import InputError

TEN = replace(cifar.CIFAR10, train_size=10, test_size=3)
HUNDRED = replace(cifar.CIFAR100, train_size=4, test_size=3)


def batch(rows: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels as the official page orders them, and labels."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (rows, 3072), dtype=np.uint8)
    return pixels, generator.integers(0, classes, rows)


def text(value: bytes) -> bytes:
    """The opcode with which Python 2 pickles a str."""
    return b"T" + struct.pack("<i", len(value)) + value


def python2_pickle(pixels: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    """What Python 2 writes for {"data": pixels, key: labels} under protocol 2."""
    shape = b"J" + struct.pack("<i", len(pixels)) + b"J" + struct.pack("<i", 3072) + b"\x86"
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + 2 * minus_one + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01" + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + numbers + b"u."


def python3_pickle(pixels: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    held = {"data": pixels, key.decode(): labels.tolist(), "batch_label": "batch"}
    return pickle.dumps(held, protocol=2)


def raw_bytes(pixels: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    before = b"\x07" if key == b"fine_labels" else b""  # the superclass
    return b"".join(before + bytes([label]) + row.tobytes() for row, label in zip(pixels, labels, strict=True))


def official_files(
    dataset: cifar.Cifar, download: cifar.Download, write: Callable[..., bytes]
) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """The files of a small download, and the pixels and labels of its train split."""
    key, rows = dataset.label_key.encode(), dataset.train_size // len(download.train)
    parts = [batch(rows, len(dataset.class_names), seed) for seed in range(len(download.train))]
    files = {name: write(*part, key) for name, part in zip(download.train, parts, strict=True)}
    files[download.test] = write(*batch(dataset.test_size, len(dataset.class_names), 99), key)
    return files, np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def pack(archive: Path, folder: str, files: dict[str, bytes]) -> Path:
    """An archive whose files come in another order than the official one."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name in reversed(files):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return archive


def image_folder(root: Path, dataset: cifar.Cifar) -> Path:
    for part, size in (("train", dataset.train_size), ("test", dataset.test_size)):
        for i in range(size):
            place = root / part / dataset.class_names[i % len(dataset.class_names)]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32)).save(place / f"{i:02}.png")
    return root


class TestNames:
    @pytest.mark.parametrize("name", ["cifar10", "CIFAR-10", "cifar_10", "Cifar 10"])
    def test_a_name_may_be_written_in_many_ways(self, name):
        assert cifar.find(name) is cifar.CIFAR10
        assert cifar.find(name + "0") is cifar.CIFAR100

    @pytest.mark.parametrize("name", ["cifar", "cifar-20", "", "my-cifar10", "./cifar10"])
    def test_other_names_are_not_cifar(self, name):
        assert cifar.find(name) is None

    def test_sizes_and_names_are_those_of_the_official_page(self):
        for dataset, classes in ((cifar.CIFAR10, 10), (cifar.CIFAR100, 100)):
            assert (dataset.train_size, dataset.test_size) == (50_000, 10_000)
            assert len(set(dataset.class_names)) == classes
            assert list(dataset.class_names) == sorted(dataset.class_names)
            assert dataset.template == "a photo of a {}."
        assert cifar.CIFAR10.class_names[6] == "frog"
        # The first CIFAR-100 train images are labelled 19, 29, 0, 11 and 1.
        assert [cifar.CIFAR100.class_names[label] for label in (19, 29, 0, 11, 1)] == [
            "cattle",
            "dinosaur",
            "apple",
            "boy",
            "aquarium_fish",
        ]


class TestDownloads:
    @pytest.mark.parametrize("dataset", [TEN, HUNDRED], ids=["ten", "hundred"])
    @pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
    @pytest.mark.parametrize("write", [python2_pickle, python3_pickle, raw_bytes])
    def test_every_form_gives_the_images_in_the_official_order(self, tmp_path, dataset, packed, write):
        download = dataset.binary if write is raw_bytes else dataset.python
        files, pixels, labels = official_files(dataset, download, write)
        if packed:
            pack(tmp_path / download.archive, download.folder, files)
        else:
            put(tmp_path / download.folder, files)
        before = sorted(tmp_path.rglob("*"))
        found = cifar.read(dataset, tmp_path)
        assert sorted(tmp_path.rglob("*")) == before
        assert (found.name, found.class_names) == (dataset.name, dataset.class_names)
        assert (found.template, found.notes) == ("a photo of a {}.", ())
        assert found.train.items.dtype == np.uint8
        assert found.train.items.shape == (dataset.train_size, 32, 32, 3)
        assert found.test.items.shape == (dataset.test_size, 32, 32, 3)
        assert found.train.labels.dtype == np.int64
        assert found.train.labels.tolist() == labels.tolist()
        for n, row, column, channel in ((0, 0, 1, 0), (1, 5, 9, 2), (3, 31, 30, 1)):
            flat = channel * 1024 + row * 32 + column
            assert found.train.items[n, row, column, channel] == pixels[n, flat]
        test_pixels, test_labels = batch(dataset.test_size, len(dataset.class_names), 99)
        assert found.test.labels.tolist() == test_labels.tolist()
        assert found.test.items[2, 31, 31, 2] == test_pixels[2, 3071]

    def test_the_python_2_pickle_of_these_tests_is_one(self):
        pixels, labels = batch(2, 10, 0)
        held = pickle.loads(python2_pickle(pixels, labels), encoding="bytes")
        assert (held[b"data"] == pixels).all()
        assert held[b"labels"] == labels.tolist()

    @pytest.mark.parametrize("place", ["", "cifar-10", "cifar10"])
    def test_it_is_looked_for_in_three_places(self, tmp_path, place):
        files, _, labels = official_files(TEN, TEN.python, python3_pickle)
        put(tmp_path / place / TEN.python.folder, files)
        assert cifar.read(TEN, tmp_path).train.labels.tolist() == labels.tolist()

    @pytest.mark.parametrize("download", [HUNDRED.python, HUNDRED.binary])
    def test_the_root_may_be_the_thing_itself(self, tmp_path, download):
        write = raw_bytes if download is HUNDRED.binary else python3_pickle
        files, _, labels = official_files(HUNDRED, download, write)
        archive = pack(tmp_path / download.archive, download.folder, files)
        for root in (archive, put(tmp_path / "renamed", files)):
            assert cifar.read(HUNDRED, root).train.labels.tolist() == labels.tolist()

    def test_nothing_found_says_what_is_looked_for(self, tmp_path):
        (tmp_path / "train").mkdir()
        for root in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(InputError) as caught:
                cifar.read(TEN, root)
            for thing in (
                *("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", "cifar-10-batches-py"),
                *("cifar-10-batches-bin", "train/CLASS", str(root), cifar.HOMEPAGE),
            ):
                assert thing in str(caught.value)

    def test_no_root_is_told(self):
        with pytest.raises(InputError, match="cifar-10: no root is given; set `root`"):
            cifar.read(TEN, None)

    def test_a_missing_batch_is_named(self, tmp_path):
        files, _, _ = official_files(TEN, TEN.python, python3_pickle)
        del files["data_batch_3"]
        put(tmp_path / TEN.python.folder, files)
        with pytest.raises(InputError, match=r"data_batch_3: cannot be read .No such file"):
            cifar.read(TEN, tmp_path)
        archive = pack(tmp_path / "packed" / TEN.python.archive, TEN.python.folder, files)
        with pytest.raises(InputError, match="'data_batch_3' is not in it; download it again"):
            cifar.read(TEN, archive)


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda old: old[:-1], "expected 6146 bytes for 2 images, found 6145; download"),
            (lambda old: old + b"\0", "expected 6146 bytes for 2 images, found more"),
            (lambda old: b"\x0a" + old[1:], "expected 0..9 for 10 classes, found 10 at row 0"),
            (lambda old: b"", "found 0; download it again"),
        ],
    )
    def test_binary_batches(self, tmp_path, change, sentence):
        files, _, _ = official_files(TEN, TEN.binary, raw_bytes)
        files["data_batch_2.bin"] = change(files["data_batch_2.bin"])
        put(tmp_path / TEN.binary.folder, files)
        with pytest.raises(InputError, match=sentence) as error:
            cifar.read(TEN, tmp_path)
        assert "data_batch_2.bin" in str(error.value)

    @pytest.mark.parametrize(
        ("held", "sentence"),
        [
            ({"data": np.zeros((3, 3072), np.uint8), "labels": [0, 0]}, "2 images.*found 3 and 2"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 images.*found 2 and 1"),
            (
                {"data": np.zeros((2, 9), np.uint8), "labels": [0, 0]},
                r"found uint8 of shape \(2, 9",
            ),
            ({"data": np.zeros((2, 3072)), "labels": [0, 0]}, "found float64 of shape"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, "found 10 at row 1"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}, "found -1 at row 1"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 0.5]}, "must be whole numbers"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, [1]]}, "must be whole numbers"),
            ({"fine_labels": [0]}, "expected a dict with data and labels, found 'fine_labels'"),
            ([1, 2], "expected a dict with data and labels, found list"),
            ({"data": np.array([{}]), "labels": []}, "type O8, which is never loaded"),
            ({"data": np.zeros(2, "i4,f4"), "labels": []}, "type V8, which is never loaded"),
        ],
    )
    def test_python_batches(self, tmp_path, held, sentence):
        files, _, _ = official_files(TEN, TEN.python, python3_pickle)
        files["data_batch_2"] = pickle.dumps(held, protocol=2)
        put(tmp_path / TEN.python.folder, files)
        with pytest.raises(InputError, match=sentence) as error:
            cifar.read(TEN, tmp_path)
        assert "data_batch_2" in str(error.value)

    @pytest.mark.parametrize("content", [b"", b"\x80\x02}(", b"no pickle", b"\x80\x02K\x01\x85R."])
    def test_bytes_that_are_no_pickle(self, tmp_path, content):
        files, _, _ = official_files(TEN, TEN.python, python3_pickle)
        files["test_batch"] = content
        put(tmp_path / TEN.python.folder, files)
        with pytest.raises(InputError, match="test_batch: not a readable pickle"):
            cifar.read(TEN, tmp_path)

    @pytest.mark.parametrize("part", ["cut", "overwritten", "one bit", "not an archive", "empty"])
    def test_archives(self, tmp_path, part):
        files, _, _ = official_files(TEN, TEN.binary, raw_bytes)
        archive = pack(tmp_path / TEN.binary.archive, TEN.binary.folder, files)
        content = archive.read_bytes()
        half = len(content) // 2
        damaged = {
            "cut": content[:half],
            "overwritten": content[:half] + b"\xff" * 64 + content[half + 64 :],
            "one bit": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
            "not an archive": gzip.compress(b"hello"),
            "empty": b"",
        }
        archive.write_bytes(damaged[part])
        with pytest.raises(InputError, match=r"binary\.tar\.gz: a damaged archive .*download"):
            cifar.read(TEN, tmp_path)


class TestImageFolders:
    def test_images_are_used_and_their_order_is_said_to_be_another(self, tmp_path):
        image_folder(tmp_path / "cifar10", replace(TEN, test_size=10))
        found = cifar.read(replace(TEN, test_size=10), tmp_path)
        assert found.class_names == cifar.CIFAR10.class_names
        assert found.train.labels.tolist() == list(range(10))
        assert Path(found.train.items[7]).parent.name == "horse"
        assert "human label files cannot be used" in found.notes[0]

    def test_labels_follow_the_official_order_whatever_the_folders_sort_as(self, tmp_path):
        dataset = replace(TEN, test_size=10)
        image_folder(tmp_path, dataset)
        for part in ("train", "test"):
            (tmp_path / part / "airplane").rename(tmp_path / part / "zz")
            (tmp_path / part / "truck").rename(tmp_path / part / "Truck")
            (tmp_path / part / "zz").rename(tmp_path / part / "airplane")
        found = cifar.read(dataset, tmp_path)
        by_folder = {Path(p).parent.name: y for p, y in zip(*split(found.train), strict=True)}
        assert (by_folder["airplane"], by_folder["Truck"], by_folder["ship"]) == (0, 9, 8)

    def test_other_classes_and_other_sizes_are_refused(self, tmp_path):
        dataset = replace(TEN, test_size=10)
        image_folder(tmp_path, dataset)
        with pytest.raises(InputError, match="train: expected the 11 images of cifar-10, found 10"):
            cifar.read(replace(dataset, train_size=11), tmp_path)
        for part in ("train", "test"):
            (tmp_path / part / "frog").rename(tmp_path / part / "toad")
        with pytest.raises(InputError, match="found 10 with 'frog' missing; give the folder"):
            cifar.read(dataset, tmp_path)

    def test_an_empty_class_folder_is_named(self, tmp_path):
        dataset = replace(TEN, test_size=10)
        image_folder(tmp_path, dataset)
        for file in tmp_path.glob("*/cat/*"):
            file.unlink()
        with pytest.raises(InputError, match="cat: no images in it"):
            cifar.read(dataset, tmp_path)


def split(part):
    return part.items, part.labels


class Call:
    """Pickles as a call that unpickling would make."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


class TestUnpickle:
    @pytest.mark.parametrize("protocol", [0, 2, 4])
    @pytest.mark.parametrize("function", ["system", "eval", "exec", "getattr", "nested", "state"])
    def test_a_malicious_pickle_does_nothing(self, tmp_path, function, protocol):
        made = tmp_path / "made"
        code = f"open({str(made)!r}, 'w').close()"
        attacks = {
            "system": (Call(os.system, f"touch {made}"), "system"),
            "eval": (Call(eval, code), "eval"),
            "exec": (Call(exec, code), "exec"),
            "getattr": (Call(getattr, "text", "format"), "getattr"),
            "nested": ({"data": [(Call(Call, Call(eval, code)),)]}, "Call"),
            "state": (Call(np.dtype, Call(eval, code)), "eval"),
        }
        attack, name = attacks[function]
        content = pickle.dumps(attack, protocol=protocol)
        with pytest.raises(InputError, match=rf"a file: the pickle asks for \S*{name}, which"):
            unpickle.load(io.BytesIO(content), "a file")
        assert not made.exists()
        pickle.loads(content)  # the same bytes do their work where they are trusted
        assert made.exists() == (function != "getattr")

    def test_names_within_allowed_modules_are_refused_too(self):
        for module, name in (
            *(
                ("numpy", "load"),
                ("numpy", "ndarray.tofile"),
                ("numpy.core.multiarray", "fromfile"),
            ),
            *(("_codecs", "decode"), ("numpy._core.multiarray", "os"), ("builtins", "bytes")),
        ):
            content = f"c{module}\n{name}\n.".encode()
            with pytest.raises(InputError, match=f"asks for {module}.{name}, which could run code"):
                unpickle.load(io.BytesIO(content), "a file")

    def test_a_codec_that_is_a_program_is_refused(self):
        content = b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00ziptR."
        with pytest.raises(InputError, match="asks for the encoding 'zip'"):
            unpickle.load(io.BytesIO(content), "a file")

    def test_a_dtype_with_fields_in_its_state_is_refused(self):
        content = b"cnumpy\ndtype\n(X\x02\x00\x00\x00i8tR(K\x03X\x01\x00\x00\x00|N(t}I8\nI8\nI0\ntb."
        with pytest.raises(InputError, match="has fields, which are never loaded"):
            unpickle.load(io.BytesIO(content), "a file")

    @pytest.mark.parametrize("dtype", ["?", "u1", ">i2", "<i8", "f4", ">f8", "S3", "<U4"])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("protocol", [0, 2, 3, 4])
    def test_arrays_come_out_as_they_were(self, dtype, order, protocol):
        array = np.arange(12).reshape(3, 4).astype(dtype, order=order)
        for held in (array, {"data": array, "n": [np.int64(5), np.float32(0.5)], "none": None}):
            found = unpickle.load(io.BytesIO(pickle.dumps(held, protocol)), "a file")
            if isinstance(held, dict):
                assert (found["n"], found["none"]) == ([5, 0.5], None)
                found = found["data"]
            assert found.dtype == array.dtype
            assert found.tolist() == array.tolist()

    @pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
    def test_arrays_of_old_and_new_numpy_are_read(self, module):
        content = pickle.dumps(np.arange(3), protocol=2)
        for own in (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"):
            content = content.replace(own, f"c{module}\n".encode())
        assert unpickle.load(io.BytesIO(content), "a file").tolist() == [0, 1, 2]

    def test_what_a_pickle_sets_on_a_function_is_gone_with_it(self):
        content = b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb."
        assert unpickle.load(io.BytesIO(content), "a file").a == 1
        again = unpickle.load(io.BytesIO(b"c_codecs\nencode\n."), "a file")
        assert not hasattr(again, "a")
