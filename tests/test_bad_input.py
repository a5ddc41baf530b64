"""Bad input from end to end: one sentence and status 2, or left out, listed and no label moved."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import struct
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from problems import labels_in

from dspt import noise
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import Preprocessing
from dspt.config import Config
from dspt.data import Dataset, open_dataset
from dspt.data.images import BadImage, open_image
from dspt.features import Encoder
from dspt.features.decoding import Decoder, Look
from dspt.internal.errors import InputError
from dspt.problem import _read

CLASSES = ("cat", "dog", "red_panda")
posix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and modes of POSIX")


@pytest.fixture
def train(dspt):
    """A function that trains for an epoch in the folder run, on the embedded model."""
    return lambda *arguments: dspt(
        "train", *arguments, "--model", "embedded", "--epochs", 1, "--out", "run", "--json", "-q"
    )


def refused(told: tuple[int, str, str]) -> str:
    """Return the one sentence by which a command that left nothing behind was refused."""
    status, output, errors = told
    assert (status, output) == (2, ""), errors
    assert errors.startswith("dspt: ")
    assert errors.count("\n") == 1
    assert len(errors) < 2_000
    assert not Path("run").exists()
    return errors


def skipped(told: tuple[int, str, str]) -> list[tuple[str, str, str]]:
    """Return split, item and reason of all that a run left out, of which its figures agree."""
    status, output, errors = told
    assert status == 0, errors
    with open("run/skipped.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["split", "item", "reason"]
    assert json.loads(output)["skipped"] == len(rows)
    return [(split, item, reason) for split, item, reason in rows]


def photo(seed: int, width: int = 14, height: int = 12) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def photos(root: Path, train: int = 6, test: int = 2) -> Path:
    """Return `root` with so many different images of each class."""
    for part, count in (("train", train), ("test", test)):
        for c, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                seed = hash((part == "test", c, i))
                photo(seed % 2**32).save(root / part / name / f"{i:02}.png")
    return root


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """Return a PNG made by hand; every row begins with the number of its filter."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def bomb(side: int) -> bytes:
    """Return a small file that holds a white square of so many pixels."""
    return png(side, side, 1, 0, (b"\0" + b"\xff" * ((side + 7) // 8)) * side)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
BAD = {
    "empty.png": (b"", "not an image of a known format"),
    "page.jpg": (b"<html>404 Not Found</html>", "not an image of a known format"),
    "half.jpg": (encoded(photo(0, 90, 90), "JPEG")[:2000], "not a whole image"),
    "half.png": (encoded(photo(0), "PNG")[:300], "not a whole image"),
    "half.webp": (encoded(photo(0, 90, 90), "WEBP")[:900], "not a whole image"),
    "half.gif": (encoded(photo(0, 90, 90), "GIF")[:900], "not a whole image"),
    "half.bmp": (encoded(photo(0), "BMP")[:300], "not a whole image"),
    "half.tif": (encoded(photo(0), "TIFF")[:300], "not a whole image"),
    "bomb.png": (bomb(20_000), "it has more than 89,478,485 pixels"),
    "large.png": (bomb(10_000), "it has more than 89,478,485 pixels"),
    "numbers.tif": (encoded(Image.new("F", (3, 3), 0.5), "TIFF"), "its pixels are floating-point"),
    "program.jpg": (EPS, "not an image of a known format"),
}


def spoil(folder: Path, good: bool = False) -> list[Path]:
    """Put every kind of bad image into `folder`, or good images of their names."""
    for i, (name, (data, _)) in enumerate(BAD.items()):
        (folder / name).write_bytes(encoded(photo(1000 + i), "PNG") if good else data)
    return [folder / name for name in BAD]


class TestBadImages:
    @pytest.mark.parametrize("name", BAD)
    def test_each_kind_is_one_sentence_with_its_path_and_its_reason(self, train, tmp_path, name):
        data, reason = BAD[name]
        root = photos(tmp_path / "photos", 2, 1)
        (root / "train" / "dog" / name).write_bytes(data)
        sentence = refused(train(root))
        assert f"train/dog/{name}: {reason}" in sentence.replace(os.sep, "/")

    def test_the_first_five_are_named_and_all_are_counted(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        bad = sorted(spoil(root / "train" / "dog"))
        sentence = refused(train(root))
        assert f"{len(bad)} of {6 + len(bad)} images cannot be used" in sentence
        assert f", and {len(bad) - 5} more" in sentence
        assert [str(file) in sentence for file in bad] == [True] * 5 + [False] * (len(bad) - 5)

    def test_a_bad_test_image_stops_too(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        (root / "test" / "cat" / "x.png").write_bytes(b"")
        assert "x.png: not an image" in refused(train(root))

    def test_skip_bad_goes_on_and_lists_exactly_the_bad_ones_with_their_split(self, train, tmp_path):
        root = photos(tmp_path / "photos")
        bad = [("train", file) for file in spoil(root / "train" / "dog")]
        bad += [("test", file) for file in spoil(root / "test" / "cat")]
        told = train(root, "--skip-bad")
        rows = skipped(told)
        assert json.loads(told[1])["samples"] == 18
        assert {(split, item) for split, item, _ in rows} == {(s, str(file)) for s, file in bad}
        assert len(rows) == len(bad)
        for _, item, reason in rows:
            assert BAD[os.path.basename(item)][1] in reason

    def test_skip_bad_leaves_every_label_with_its_image_and_the_noise_as_it_was(self, train, tmp_path, monkeypatch):
        problems, labels, kept = [], [], None
        for name, good in (("bad", False), ("good", True)):
            root = photos(tmp_path / name)
            spoil(root / "train" / "cat", good)
            spoil(root / "train" / "dog", good)
            spoil(root / "test" / "dog", good)
            told = train(root, "--skip-bad", "--noise", "sym:0.5", "--seed", 3)
            assert told[0] == 0, told[2]
            labels.append(Path("run/labels.csv").read_bytes())
            shutil.rmtree("run")
            dataset = open_dataset(root, skip_bad=True)
            given = noise.parse("sym:0.5").apply(dataset.train.labels, 3, 3)
            problems.append(problem_of(dataset, given))
            if not good:
                kept = [is_good(dataset.train.items), is_good(dataset.test.items)]
        assert labels[0] == labels[1]
        bad, good = problems
        assert kept is not None
        for mine, all_of_them, rows in (
            (bad.train_x, good.train_x, kept[0]),
            (bad.test_x, good.test_x, kept[1]),
        ):
            np.testing.assert_allclose(mine, all_of_them[rows], atol=1e-5)
            # Nobody else's features are as near, so that a shift would be seen.
            assert (mine @ all_of_them.T).argmax(1).tolist() == np.flatnonzero(rows).tolist()
        np.testing.assert_array_equal(bad.labels, good.labels[kept[0]])
        np.testing.assert_array_equal(bad.true_labels, good.true_labels[kept[0]])
        np.testing.assert_array_equal(bad.test_y, good.test_y[kept[1]])

    def test_bad_images_do_not_change_which_images_are_held_out(self, train, tmp_path):
        held = []
        for good in (False, True):
            root = photos(tmp_path / f"{good}") / "train"
            spoil(root / "dog", good)
            told = train(root, "--skip-bad")
            assert told[0] == 0, told[2]
            if not good:
                rows = skipped(told)
            test = open_dataset(root, skip_bad=True).test.items
            held.append([os.path.relpath(item, root) for item in test])
            shutil.rmtree("run")
        assert held[0] == held[1]
        in_test = {split for split, item, _ in rows if os.path.join("dog", os.path.basename(item)) in held[0]}
        assert in_test == {"test"}
        assert len(rows) == len(BAD)

    def test_a_split_without_any_good_image_stops_even_then(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        for file in (root / "test").glob("*/*"):
            file.write_bytes(b"")
        assert "3 of 3 images cannot be used" in refused(train(root, "--skip-bad"))

    def test_eval_and_zeroshot_do_the_same(self, dspt, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 2)
        assert train(root)[0] == 0
        (root / "test" / "cat" / "x.png").write_bytes(b"")
        for command in (("eval", "run", root), ("zeroshot", root, "--model", "embedded")):
            status, output, errors = dspt(*command, "--json", "-q")
            assert (status, output) == (2, "")
            assert "x.png: not an image" in errors
            status, output, errors = dspt(*command, "--json", "-q", "--skip-bad")
            assert status == 0, errors
            assert json.loads(output)["samples"] == 6

    @posix
    def test_a_pipe_is_not_waited_for(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        os.mkfifo(root / "train" / "cat" / "pipe.png")
        assert "pipe.png: a pipe or a device is no image" in refused(train(root))
        with pytest.raises(BadImage, match="a pipe or a device"):
            open_image(root / "train" / "cat" / "pipe.png")

    def test_a_file_larger_than_any_image_is_not_read(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        with open(root / "train" / "cat" / "disk.png", "wb") as file:
            file.write(encoded(photo(0), "PNG"))
            file.truncate(1 << 40)  # a hole, which takes no room
        assert "disk.png: it has 1,099,511,627,776 bytes" in refused(train(root))

    def test_ghostscript_is_never_started(self, monkeypatch):
        from PIL import EpsImagePlugin

        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *a, **k: pytest.fail("started"))
        with pytest.raises(BadImage, match="not an image of a known format"):
            open_image(io.BytesIO(EPS))


def is_good(items: Any) -> np.ndarray:
    return np.array([os.path.basename(item) not in BAD for item in items])


def problem_of(dataset: Dataset, given: np.ndarray) -> Any:
    checkpoint = open_checkpoint("embedded")
    encoder = Encoder(checkpoint, skip_bad=True)
    return _read(
        dataset, replace(dataset.train, labels=given, true_labels=dataset.train.best_labels), Config(), encoder, None
    )


def turned(stored: np.ndarray, orientation: int) -> np.ndarray:
    """Return how a picture is meant to be seen, as the EXIF standard defines it: `orientation`
    names the sides of the scene on which the first row and the first column of the file lie."""
    transposed = stored.swapaxes(0, 1)
    return {
        1: stored,  # top, left
        2: stored[:, ::-1],  # top, right
        3: stored[::-1, ::-1],  # bottom, right
        4: stored[::-1],  # bottom, left
        5: transposed,  # left, top
        6: transposed[:, ::-1],  # right, top
        7: transposed[::-1, ::-1],  # right, bottom
        8: transposed[::-1],  # left, bottom
    }[orientation]


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


PIXELS = np.asarray(photo(5, 9, 6))
COLOURS = [(200, 10, 30), (0, 90, 255), (7, 7, 7)]


class TestOddImages:
    def opened(self, folder: Path, name: str, data: bytes) -> np.ndarray:
        """Return the pixels of a file, of which nothing was said."""
        (folder / name).write_bytes(data)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pixels = np.asarray(open_image(folder / name))
        assert not said, said[0].message
        return pixels

    def test_ink_becomes_light(self, tmp_path):
        ink = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
        image = Image.frombytes("CMYK", (6, 5), ink.tobytes())
        left = 255 - ink.astype(int)
        expected = left[..., :3] * left[..., 3:] / 255
        found = self.opened(tmp_path, "a.tif", encoded(image, "TIFF"))
        np.testing.assert_allclose(found, expected, atol=1)
        plain = Image.new("CMYK", (16, 16), (0, 128, 255, 51))
        found = self.opened(tmp_path, "a.jpg", encoded(plain, "JPEG", quality=95))
        np.testing.assert_allclose(found, np.broadcast_to([204, 101.6, 0], found.shape), atol=3)

    def test_sixteen_bits_keep_their_upper_eight(self, tmp_path):
        values = np.random.default_rng(0).integers(0, 65536, (4, 5, 3)).astype(">u2")
        rows = b"".join(b"\0" + row.tobytes() for row in values)
        np.testing.assert_array_equal(self.opened(tmp_path, "rgb.png", png(5, 4, 16, 2, rows)), values >> 8)
        grey = values[..., 0]
        rows = b"".join(b"\0" + row.tobytes() for row in grey)
        expected = np.stack([grey >> 8] * 3, 2)
        np.testing.assert_array_equal(self.opened(tmp_path, "grey.png", png(5, 4, 16, 0, rows)), expected)
        tiff = encoded(Image.fromarray(grey.astype("<u2")), "TIFF")
        np.testing.assert_array_equal(self.opened(tmp_path, "grey.tif", tiff), expected)

    def test_sixteen_bits_of_grey_are_turned_upright_too(self, tmp_path):
        values = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
        data = encoded(Image.fromarray(values), "PNG", exif=exif_of(6))
        expected = turned(np.stack([values >> 8] * 3, 2), 6)
        np.testing.assert_array_equal(self.opened(tmp_path, "a.png", data), expected)

    def test_a_palette_with_alpha_gives_its_colours(self, tmp_path):
        index = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
        image = Image.frombytes("P", (3, 2), index.tobytes())
        image.putpalette([value for colour in COLOURS for value in colour])
        for transparency in (bytes([0, 128, 255]), 1):
            data = encoded(image, "PNG", transparency=transparency)
            found = self.opened(tmp_path, "a.png", data)
            np.testing.assert_array_equal(found, np.array(COLOURS, np.uint8)[index])

    @pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
    def test_of_many_frames_the_first_is_taken(self, tmp_path, form):
        frames = [Image.new("RGB", (8, 8), colour) for colour in COLOURS]
        options: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
        if form == "WEBP":
            options["lossless"] = True
        found = self.opened(tmp_path, "a.gif", encoded(frames[0], form, **options))
        assert np.unique(found.reshape(-1, 3), axis=0).tolist() == [list(COLOURS[0])]

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF", "JPEG"])
    def test_pictures_are_turned_as_exif_says_once_and_in_every_view(self, tmp_path, form, orientation):
        options: dict[str, Any] = {"lossless": True} if form == "WEBP" else {}
        stored = Image.fromarray(PIXELS)
        data = encoded(stored, form, exif=exif_of(orientation), **options)
        seen = PIXELS if form != "JPEG" else np.asarray(Image.open(io.BytesIO(encoded(stored, form))))
        expected = turned(seen, orientation)
        np.testing.assert_array_equal(self.opened(tmp_path, "a.jpg", data), expected)
        for look in (Look(Preprocessing(6, 6)), Look(Preprocessing(6, 6), views=2)):
            for item in (str(tmp_path / "a.jpg"), Image.open(tmp_path / "a.jpg")):
                with Decoder(look, 1) as decoder:
                    (view,) = decoder.views([item], [0])
                np.testing.assert_array_equal(view.pixels, look(Image.fromarray(expected), view.digest))

    @pytest.mark.parametrize(
        ("at", "junk"),
        [
            (0, b"JUNK"),  # no header
            (4, b"\xff\xff\xff\xff"),  # a list of tags far behind the end
            (10, b"\xff\xff"),  # an unknown tag
            (14, b"\xff\xff\xff\xff"),  # billions of values
            (18, b"\xff\xff"),  # no orientation
        ],
    )
    def test_damaged_metadata_do_not_spoil_an_image(self, tmp_path, at, junk):
        image = Image.fromarray(PIXELS)
        whole = encoded(image, "JPEG", exif=exif_of(6))
        start = whole.index(b"Exif\0\0") + 6 + at
        found = self.opened(tmp_path, "a.jpg", whole[:start] + junk + whole[start + len(junk) :])
        expected = np.asarray(Image.open(io.BytesIO(encoded(image, "JPEG"))))
        np.testing.assert_array_equal(found, expected)

    def test_a_single_pixel_fills_the_view(self, tmp_path):
        found = self.opened(tmp_path, "a.png", encoded(Image.new("RGB", (1, 1), COLOURS[0]), "PNG"))
        assert found.tolist() == [[list(COLOURS[0])]]
        view = Preprocessing(16, 16).test_view(open_image(tmp_path / "a.png"))
        np.testing.assert_array_equal(view, np.broadcast_to(COLOURS[0], (16, 16, 3)))

    @pytest.mark.parametrize("height", [1, 40])
    def test_twenty_thousand_pixels_in_a_row_give_their_middle(self, tmp_path, height):
        pixels = np.zeros((height, 20_000, 3), np.uint8)
        half = max(height, 32) // 2
        pixels[:, 10_000 - half : 10_000 + half] = COLOURS[1]
        data = encoded(Image.fromarray(pixels), "PNG")
        np.testing.assert_array_equal(self.opened(tmp_path, "a.png", data), pixels)
        view = Preprocessing(8, 8).test_view(open_image(tmp_path / "a.png"))
        np.testing.assert_array_equal(view[:, 2:-2], np.broadcast_to(COLOURS[1], (8, 4, 3)))

    @pytest.mark.parametrize(
        ("form", "name"), [("PNG", "a.jpg"), ("BMP", "a.png"), ("TIFF", "a.gif"), ("PPM", "a.webp")]
    )
    def test_a_wrong_extension_does_not_matter(self, tmp_path, form, name):
        found = self.opened(tmp_path, name, encoded(Image.fromarray(PIXELS), form))
        np.testing.assert_array_equal(found, PIXELS)

    def test_all_of_them_are_trained_on_from_end_to_end(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        odd = {
            "ink.jpg": encoded(photo(0).convert("CMYK"), "JPEG"),
            "deep.png": encoded(Image.fromarray(np.arange(99, dtype=np.uint16)[None] * 600), "PNG"),
            "palette.png": encoded(photo(1).convert("P"), "PNG", transparency=bytes(range(256))),
            "film.gif": encoded(photo(2), "GIF", save_all=True, append_images=[photo(3)]),
            "turned.jpg": encoded(photo(4), "JPEG", exif=exif_of(8)),
            "dot.png": encoded(Image.new("L", (1, 1), 7), "PNG"),
            "wide.png": encoded(Image.new("RGB", (20_000, 3), "red"), "PNG"),
            "png.jpg": encoded(photo(6), "PNG"),
        }
        for name, data in odd.items():
            (root / "train" / "dog" / name).write_bytes(data)
        for more in ((), ("--views", 2, "--overwrite")):
            status, output, errors = train(root, *more)
            assert (status, errors) == (0, "")
            result = json.loads(output)
            assert (result["samples"], result["skipped"]) == (6 + len(odd), 0)


@pytest.fixture
def public(dspt, monkeypatch) -> Iterator[Path]:
    """A folder that any user may enter, with what a run needs; modules were imported before."""
    folder = Path(tempfile.mkdtemp())
    try:
        photos(folder / "photos", 4, 1)
        status, _, errors = dspt(
            *("train", folder / "photos", "--model", "embedded", "--epochs", 1, "--out", folder / "first", "-q")
        )
        assert status == 0, errors
        for name in ("cache", "work"):
            (folder / name).mkdir()
        for place in (folder, folder / "cache", folder / "work"):
            place.chmod(0o777)
        monkeypatch.setenv("DSPT_CACHE", str(folder / "cache"))
        monkeypatch.chdir(folder / "work")
        yield folder
    finally:
        for place in folder.rglob("*"):
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o755)
        shutil.rmtree(folder)


@contextmanager
def as_somebody() -> Iterator[None]:
    """Give up the rights of root, whom no permission stops, for the block."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
class TestUnreadableFolders:
    @pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
    def test_a_class_that_may_not_be_listed_or_entered_is_named_or_left_out(self, train, public, mode):
        closed = public / "photos" / "train" / "dog"
        if mode == 0o444:  # its files could be named, but not opened
            for file in closed.iterdir():
                file.unlink()
            (closed / "inner").mkdir()
            closed = closed / "inner"
            closed.parent.chmod(mode)
        else:
            closed.chmod(mode)
        with as_somebody():
            told = train(public / "photos")
        sentence = refused(told)
        assert f"1 folder cannot be used ({closed}: cannot be listed (Permission denied))" in sentence
        (public / "photos" / "test" / "dog").rename(public / "elsewhere")
        with as_somebody():
            told = train(public / "photos", "--skip-bad")
            rows = skipped(told)
        assert rows == [("train", str(closed), "cannot be listed (Permission denied)")]
        assert json.loads(told[1])["samples"] == 8
        description = json.loads((public / "work" / "run" / "config.json").read_text())
        assert description["class_names"] == ["cat", "red_panda"]

    def test_the_test_images_of_a_class_that_is_left_out_are_left_out_and_listed(self, train, public):
        (public / "photos" / "train" / "dog").chmod(0)
        with as_somebody():
            rows = skipped(train(public / "photos", "--skip-bad"))
        assert [(split, os.path.relpath(item, public / "photos")) for split, item, _ in rows] == [
            ("train", "train/dog"),
            ("test", "test/dog"),
        ]

    def test_a_folder_inside_of_a_class_costs_its_own_images_only(self, train, public):
        inner = public / "photos" / "train" / "dog" / "inner"
        inner.mkdir(0)
        with as_somebody():
            told = train(public / "photos", "--skip-bad")
            assert [item for _, item, _ in skipped(told)] == [str(inner)]
        assert json.loads(told[1])["samples"] == 12

    def test_an_image_that_may_not_be_read_is_a_bad_image(self, train, public):
        closed = public / "photos" / "train" / "dog" / "00.png"
        closed.chmod(0)
        with as_somebody():
            told = train(public / "photos")
            assert f"{closed}: Permission denied" in refused(told)
            rows = skipped(train(public / "photos", "--skip-bad"))
        assert rows == [("train", str(closed), "Permission denied")]

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_a_split_that_may_not_be_listed_stops_with_its_name(self, train, public, part):
        (public / "photos" / part).chmod(0)
        for more in ((), ("--skip-bad",)):
            with as_somebody():
                told = train(public / "photos", *more)
            assert f"{public / 'photos' / part}: cannot be listed (Permission" in refused(told)

    @pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
    def test_the_folder_itself_is_named(self, train, public, mode):
        (public / "photos").chmod(mode)
        with as_somebody():
            told = train(public / "photos")
        assert f"{public / 'photos'}" in refused(told)

    def test_a_folder_behind_a_closed_one_is_named(self, train, public):
        (public / "photos").chmod(0)
        with as_somebody():
            told = train(public / "photos" / "train")
        assert f"{public / 'photos' / 'train'}" in refused(told)


class TestFolders:
    @posix
    def test_links_in_circles_are_followed_once(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        for place, target in (
            ("train/cat/up", root),
            ("train/cat/self", root / "train" / "cat" / "self"),
            ("train/dog/there", root / "train" / "dog" / "here"),
            ("train/dog/here", root / "train" / "dog" / "there"),
            ("train/dog/same", root / "train" / "dog"),
        ):
            (root / place).symlink_to(target)
        status, output, errors = train(root)
        assert status == 0, errors
        assert json.loads(output)["samples"] == 12

    @posix
    def test_a_class_that_is_a_link_to_a_folder_above_has_no_images(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        (root / "train" / "loop").symlink_to(root)
        assert "train/loop: no images in it" in refused(train(root))
        assert [item for _, item, _ in skipped(train(root, "--skip-bad"))] == [str(root / "train" / "loop")]

    @posix
    def test_links_named_like_images_that_lead_nowhere_are_bad_images(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        (root / "train" / "cat" / "gone.png").symlink_to(tmp_path / "gone.png")
        sentence = refused(train(root))
        assert "train/cat/gone.png: no such file" in sentence
        (root / "train" / "cat" / "loop.png").symlink_to(root / "train" / "cat" / "loop.png")
        rows = skipped(train(root, "--skip-bad"))
        assert [(split, os.path.basename(item)) for split, item, _ in rows] == [
            ("train", "gone.png"),
            ("train", "loop.png"),
        ]

    def test_a_class_without_images_is_named_or_left_out(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        for name in ("cow", "eel"):
            (root / "train" / name).mkdir()
        (root / "train" / "eel" / "notes.txt").touch()
        sentence = refused(train(root))
        assert "2 folders cannot be used" in sentence
        assert f"{root / 'train' / 'cow'}: no images in it" in sentence
        rows = skipped(train(root, "--skip-bad"))
        assert rows == [("train", str(root / "train" / name), "no images in it") for name in ("cow", "eel")]
        description = json.loads(Path("run/config.json").read_text())
        assert description["class_names"] == list(CLASSES)
        given = labels_in("run/labels.csv", CLASSES)
        assert given.tolist() == [0] * 4 + [1] * 4 + [2] * 4

    def test_names_that_are_the_same_in_a_prompt_are_named_before_anything_is_encoded(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        shutil.copytree(root / "train" / "cat", root / "train" / "red panda")
        for more in ((), ("--skip-bad",)):
            sentence = refused(train(root, *more))
            assert "'red panda' and 'red_panda': they become the same prompt" in sentence
        assert not (tmp_path / "cache").exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
    def test_a_class_whose_name_is_no_text_is_named_or_left_out(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        strange = os.fsdecode(os.fsencode(root / "train") + b"/caf\xe9")
        shutil.copytree(root / "train" / "cat", strange)
        with pytest.raises(InputError, match="its name is not UTF-8 text"):
            open_dataset(root)
        status, output, errors = train(root, "--skip-bad")
        assert status == 0, errors
        assert json.loads(output)["skipped"] == 1
        assert os.fsencode(strange) in Path("run/skipped.csv").read_bytes()
        description = json.loads(Path("run/config.json").read_text())
        assert description["class_names"] == list(CLASSES)

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
    def test_an_image_whose_name_is_no_text_is_trained_on(self, train, tmp_path):
        root = photos(tmp_path / "photos", 4, 1)
        strange = os.fsdecode(os.fsencode(root / "train" / "cat") + b"/\xe9.png")
        shutil.copy(root / "train" / "cat" / "00.png", strange)
        status, output, errors = train(root)
        assert status == 0, errors
        assert json.loads(output)["samples"] == 13

    @posix
    def test_a_line_break_in_a_name_does_not_break_the_sentence(self, train, tmp_path):
        root = photos(tmp_path / "photos", 2, 1)
        (root / "train" / "cat" / "two\nlines.png").touch()
        assert r"two\nlines.png: not an image" in refused(train(root))

    def test_a_name_too_long_for_any_file_is_told(self, train):
        assert "no such file or folder" in refused(train("x" * 300))


def table(path: Path, rows: list[tuple[str, ...]], encoding: str = "utf-8") -> Path:
    with open(path, "w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return path


class TestManifests:
    @pytest.fixture
    def rows(self, tmp_path) -> list[tuple[str, ...]]:
        """Rows for twelve train and three test images, which are there."""
        root = photos(tmp_path / "photos", 4, 1)
        files = sorted(root.glob("*/*/*.png"))
        return [(file.relative_to(tmp_path).as_posix(), file.parent.name, file.parts[-3]) for file in files]

    @posix
    def test_windows_paths_are_read_and_absolute_ones_named_or_left_out(self, train, tmp_path, rows):
        file = table(tmp_path / "m.csv", [(path.replace("/", "\\"), *more) for path, *more in rows])
        assert json.loads(train(file)[1])["samples"] == 12
        shutil.rmtree("run")
        file = table(file, [*rows, (r"C:\photos\x.png", "dog", "train")])
        assert r"line 17: 'C:\\photos\\x.png' is an absolute Windows path" in refused(train(file))
        assert [item for _, item, _ in skipped(train(file, "--skip-bad"))] == ["line 17"]

    def test_a_byte_order_mark_is_no_part_of_the_first_column(self, train, tmp_path, rows):
        file = table(tmp_path / "m.csv", rows, "utf-8-sig")
        assert file.read_bytes().startswith(b"\xef\xbb\xbf")
        status, output, errors = train(file)
        assert status == 0, errors
        assert json.loads(output)["samples"] == 12

    @pytest.mark.parametrize("column", [0, 1])
    def test_a_cell_of_ten_million_characters_is_named_in_a_short_sentence(self, train, tmp_path, rows, column):
        bad = ["x.png", "dog", "train"]
        bad[column] = "x" * 10_000_000
        file = table(tmp_path / "m.csv", [*rows, tuple(bad)])
        assert "line 17: it is longer than 1048576 characters" in refused(train(file))
        file = tmp_path / "m.parquet"
        columns = zip(*rows, bad, strict=True)
        pq.write_table(pa.table(dict(zip(("path", "label", "split"), columns, strict=True))), file)
        assert "row 15: " in refused(train(file))
        rows_left_out = skipped(train(file, "--skip-bad"))
        assert [item for _, item, _ in rows_left_out] == ["row 15"]
        assert len(rows_left_out[0][2]) < 200

    def test_duplicate_paths_are_named_or_left_out(self, train, tmp_path, rows):
        file = table(tmp_path / "m.csv", [*rows, ("./" + rows[-1][0], "cat", "test")])
        assert "line 17: the same path as in line 16" in refused(train(file))
        assert skipped(train(file, "--skip-bad")) == [
            ("test", "line 17", "the same path as in line 16, which belongs to another split")
        ]
        given = labels_in("run/labels.csv", CLASSES)
        assert given.tolist() == [CLASSES.index(row[1]) for row in rows if row[2] == "train"]

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_missing_files_are_told_before_anything_is_encoded(self, train, tmp_path, rows, split, monkeypatch):
        file = table(tmp_path / "m.csv", [*rows, ("gone.png", "dog", split)])
        with monkeypatch.context() as patch:
            patch.setattr("dspt.features.encoder.ImageTower", lambda *a: pytest.fail("something was encoded"))
            assert f"{tmp_path / 'gone.png'}: no such file" in refused(train(file))
        rows_left_out = skipped(train(file, "--skip-bad"))
        assert rows_left_out == [(split, str(tmp_path / "gone.png"), "no such file")]


class TestFeatureFiles:
    def arrays(self, **changed: Any) -> dict[str, Any]:
        x = np.eye(4, dtype=np.float32)
        y = np.array([0, 1, 0, 1])
        names = np.array(["cat", "dog"])
        whole = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "classnames": names}
        return {**whole, **changed}

    @pytest.mark.parametrize(
        ("changed", "sentence"),
        [
            ({"classnames": np.array([b"cat", b"\xff"])}, "is not text"),
            ({"classnames": np.array(["cat", "\ud800"])}, "is not text"),
            ({"classnames": np.array([1, 2**31 - 1], "u4").view("U1")}, "is not text"),
            ({"classnames": np.array(["cat", "x" * 10_000_000])}, "has 10000000 characters"),
            ({"train_x": np.eye(4) * 1e300}, "not a finite number in row 0 (4 such rows)"),
            ({"train_x": np.full((4, 4), 3e38)}, "not a finite number in row 0 (4 such rows)"),
        ],
    )
    def test_what_is_no_name_or_no_number_is_told_without_a_warning(self, tmp_path, changed, sentence):
        np.savez(tmp_path / "x.npz", **self.arrays(**changed))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(InputError) as error:
                open_dataset(tmp_path / "x.npz")
        assert sentence in str(error.value)
        assert len(str(error.value)) < 300

    def test_a_member_that_is_no_array_is_told(self, tmp_path):
        import zipfile

        np.savez(tmp_path / "x.npz", **self.arrays())
        with zipfile.ZipFile(tmp_path / "x.npz") as whole:
            members = {name: whole.read(name) for name in whole.namelist()}
        for name in members:
            with zipfile.ZipFile(tmp_path / "y.npz", "w") as file:
                for other, data in members.items():
                    file.writestr(other, b"no array" if other == name else data)
            with pytest.raises(InputError, match=r"y\.npz: not a readable \.npz file"):
                open_dataset(tmp_path / "y.npz")
