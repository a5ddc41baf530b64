"""The encode-once store: right features, encoded once, whatever happens in between."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import tiny_clip
from PIL import Image

from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.image import ImageTower, Preprocessing
from dspt.data.images import open_image
from dspt.features import BadImages, contents, embed, encode
from dspt.features import encoder as features
from dspt.features import packs as store
from dspt.internal.errors import FileError, InputError
from dspt.internal.files import temporary_name
from dspt.internal.seeds import Stream

# Between the features of one image that were computed in different batches.
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def checkpoint(clip: str) -> Checkpoint:
    return open_checkpoint(clip)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return write_images(tmp_path / "images", 20)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every tower call adds its number of rows."""
    rows: list[int] = []
    call = ImageTower.__call__

    def counted(tower: ImageTower, pixels: Any) -> np.ndarray:
        rows.append(len(pixels))
        return call(tower, pixels)

    monkeypatch.setattr(ImageTower, "__call__", counted)
    return rows


def write_images(folder: Path, count: int) -> list[str]:
    """Make `count` different images. Uncompressed, so that all files have the same size."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        write_image(folder / f"{i:03}.bmp", rng)
    return sorted(map(str, folder.iterdir()))


def write_image(path: Path | str, rng: np.random.Generator) -> None:
    Image.fromarray(rng.integers(0, 256, (40, 36, 3), dtype=np.uint8)).save(path)


def packs(cache: Path) -> list[Path]:
    return sorted(path.parent for path in cache.glob("*/[!.]*/features.npy"))


class TestFeatures:
    def test_are_the_towers_of_the_centre_view(self, paths, checkpoint, tmp_path):
        found = encode(paths, checkpoint, cache=tmp_path / "cache", batch_size=7)
        cut = Preprocessing.read(checkpoint.folder)
        expected = ImageTower(checkpoint)(np.stack([cut.test_view(open_image(path)) for path in paths]))
        assert found.shape == (20, 16)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=ROUNDING)

    def test_are_a_memory_map_that_cannot_be_written(self, paths, checkpoint, tmp_path):
        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        assert isinstance(found, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 0

    def test_of_random_views_depend_on_content_number_and_seed_alone(self, paths, checkpoint, tmp_path):
        cut, tower = Preprocessing.read(checkpoint.folder), ImageTower(checkpoint)
        found = encode(paths, checkpoint, views=3, seed=5, cache=tmp_path / "1", batch_size=4)
        assert found.shape == (20, 3, 16)
        digest = contents.read(paths[6], 6)[0].hex()
        views = [cut.train_view(open_image(paths[6]), Stream(5, "view", digest, v)) for v in range(3)]
        np.testing.assert_allclose(found[6], tower(np.stack(views)), atol=ROUNDING)

        turned = [shutil.copy(path, tmp_path) for path in reversed(paths)]
        again = encode(turned, checkpoint, views=3, seed=5, cache=tmp_path / "2")
        np.testing.assert_allclose(again[::-1], found, atol=ROUNDING)
        other = encode(paths, checkpoint, views=3, seed=6, cache=tmp_path / "1")
        assert np.abs(other - found).max() > 0.01

    def test_of_a_single_random_view_keep_their_axis(self, paths, checkpoint, tmp_path):
        found = encode(paths, checkpoint, views=1, cache=tmp_path / "cache")
        assert found.shape == (20, 1, 16)

    def test_of_files_arrays_and_pictures_are_the_same(self, paths, checkpoint, tmp_path):
        pictures = [Image.open(path) for path in paths]
        arrays = np.stack([np.asarray(picture) for picture in pictures])
        found = [encode(x, checkpoint, cache=tmp_path / "cache") for x in (paths, pictures, arrays)]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])

    def test_of_encoded_images_in_memory_are_those_of_their_files(self, paths, checkpoint, tmp_path, encoded):
        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        data = [Path(path).read_bytes() for path in paths]
        np.testing.assert_array_equal(encode(data, checkpoint, cache=tmp_path / "cache"), found)
        assert sum(encoded) == 20

    def test_of_grey_arrays_are_those_of_grey_pictures(self, checkpoint, tmp_path):
        grey = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
        colour = np.stack([grey] * 3, 3)
        np.testing.assert_array_equal(
            encode(grey, checkpoint, cache=tmp_path / "1"),
            encode(colour, checkpoint, cache=tmp_path / "2"),
        )

    def test_agree_to_rounding_whatever_the_batch_and_to_the_bit_for_the_same_call(self, paths, checkpoint, tmp_path):
        one, again, other = (
            encode(paths, checkpoint, cache=tmp_path / str(i), batch_size=size) for i, size in enumerate((8, 8, 3))
        )
        np.testing.assert_array_equal(one, again)
        np.testing.assert_allclose(one, other, atol=ROUNDING)

    def test_in_memory_are_the_same_and_leave_no_trace(self, paths, checkpoint, tmp_path):
        stored = encode(paths, checkpoint, cache=tmp_path / "cache")
        before = sorted((tmp_path / "cache").rglob("*"))
        found = embed(paths, ImageTower(checkpoint))
        np.testing.assert_array_equal(found, stored)
        assert sorted((tmp_path / "cache").rglob("*")) == before
        with pytest.raises(InputError, match=r"none\.bmp"):
            embed([*paths, "none.bmp"], ImageTower(checkpoint))


class TestOnce:
    def test_a_second_call_computes_nothing_and_gives_the_same_bits(self, paths, checkpoint, tmp_path, encoded):
        first = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        assert sum(encoded) == 20
        encoded.clear()
        np.testing.assert_array_equal(encode(paths, checkpoint, cache=tmp_path / "cache"), first)
        assert encoded == []

    def test_a_second_call_does_not_even_read_the_images(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(contents, "SETTLED", -1e9)
        first = encode(paths, checkpoint, cache=tmp_path / "cache")
        monkeypatch.setattr(contents, "read", lambda *_: pytest.fail("an image was read"))
        np.testing.assert_array_equal(encode(paths, checkpoint, cache=tmp_path / "cache"), first)

    def test_images_written_a_moment_ago_are_read_again(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(contents, "SETTLED", 1e9)  # a moment, however slow the machine is
        encode(paths, checkpoint, cache=tmp_path / "cache")
        monkeypatch.setattr(contents, "read", lambda *_: pytest.fail("an image was read"))
        with pytest.raises(pytest.fail.Exception):
            encode(paths, checkpoint, cache=tmp_path / "cache")

    def test_another_order_a_part_and_duplicates_are_taken_from_what_is_there(
        self, paths, checkpoint, tmp_path, encoded, monkeypatch
    ):
        monkeypatch.setattr(store, "SHARD", 6)
        whole = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        encoded.clear()
        for order in ([*range(19, -1, -1)], [3, 1, 8], [5, 5, 0, 5]):
            part = encode([paths[i] for i in order], checkpoint, cache=tmp_path / "cache")
            np.testing.assert_array_equal(part, whole[order])
        assert encoded == []

    def test_only_new_images_are_encoded(self, paths, checkpoint, tmp_path, encoded):
        first = np.array(encode(paths[:15], checkpoint, cache=tmp_path / "cache"))
        encoded.clear()
        whole = encode(paths, checkpoint, cache=tmp_path / "cache")
        np.testing.assert_array_equal(whole[:15], first)
        assert sum(encoded) == 5

    def test_the_same_content_is_encoded_once_wherever_it_lies(self, paths, checkpoint, tmp_path, encoded, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        copies = [shutil.copy(path, tmp_path / f"copy{i}") for i, path in enumerate(paths)]
        found = encode([*paths, *copies], checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 20
        np.testing.assert_array_equal(found[:20], found[20:])

    def test_arrays_are_told_apart_by_every_pixel_and_by_their_shape(self, checkpoint, tmp_path, encoded):
        array = np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8)
        changed = array.copy()
        changed[-1, -1] ^= 1
        encode([array, changed, array.reshape(9, 16), array], checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 3

    def test_a_changed_image_changes_its_row_and_is_the_only_one_encoded(
        self, paths, checkpoint, tmp_path, encoded, monkeypatch
    ):
        monkeypatch.setattr(contents, "SETTLED", -1e9)
        before = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        encoded.clear()
        status = os.stat(paths[4])
        write_image(paths[4], np.random.default_rng(99))
        after = status
        while after.st_ctime_ns == status.st_ctime_ns:  # the tick may be the same on a fast machine
            os.utime(paths[4], ns=(status.st_atime_ns, status.st_mtime_ns))
            after = os.stat(paths[4])
        assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)

        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        assert encoded == [1]
        changed = np.flatnonzero((found != before).any(axis=1))
        assert changed.tolist() == [4]
        np.testing.assert_allclose(found[4], embed([paths[4]], ImageTower(checkpoint))[0])

    def test_an_image_that_changes_while_it_is_encoded_never_takes_anothers_place(
        self, paths, checkpoint, tmp_path, monkeypatch
    ):
        old = Path(paths[4]).read_bytes()
        write_image(paths[4], np.random.default_rng(99))
        new = Path(paths[4]).read_bytes()
        expected = {
            content: embed([Path(paths[4]).write_bytes(content) and paths[4]], ImageTower(checkpoint))
            for content in (new, old)
        }
        read = contents.read

        def read_then_change(item: Any, position: int) -> tuple[bytes, Any]:
            outcome = read(item, position)
            if item == paths[4]:
                Path(item).write_bytes(new)
            return outcome

        with monkeypatch.context() as patch:
            patch.setattr(contents, "read", read_then_change)
            found = encode(paths, checkpoint, cache=tmp_path / "cache")
        np.testing.assert_allclose(found[4], expected[new][0], atol=ROUNDING)
        Path(paths[4]).write_bytes(old)
        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        np.testing.assert_allclose(found[4], expected[old][0], atol=ROUNDING)

    def test_an_image_that_never_rests_is_given_up(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(features, "ROUNDS", 3)
        read, rng = contents.read, np.random.default_rng(7)

        def read_then_change(item: Any, position: int) -> tuple[bytes, Any]:
            outcome = read(item, position)
            if item == paths[4]:
                write_image(item, rng)
            return outcome

        monkeypatch.setattr(contents, "read", read_then_change)
        with pytest.raises(InputError, match="the images keep changing"):
            encode(paths, checkpoint, cache=tmp_path / "cache")

    def test_views_seeds_precisions_preprocessings_and_checkpoints_do_not_mix(self, paths, clip, checkpoint, tmp_path):
        shutil.copytree(clip, tmp_path / "mean")
        file = tmp_path / "mean" / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "image_mean": [0.5] * 3}))
        tiny_clip(tmp_path / "other", seed=1)
        calls: list[tuple[Checkpoint, dict[str, Any]]] = [
            (checkpoint, {}),
            (checkpoint, {"views": 1}),
            (checkpoint, {"views": 1, "seed": 2}),
            (checkpoint, {"views": 2}),
            (checkpoint, {"dtype": "bfloat16"}),
            (open_checkpoint(tmp_path / "mean"), {}),
            (open_checkpoint(tmp_path / "other"), {}),
        ]
        alone = [
            np.array(encode(paths, c, cache=tmp_path / "alone" / str(i), **options))
            for i, (c, options) in enumerate(calls)
        ]
        for _ in range(2):
            for (c, options), expected in zip(calls, alone, strict=True):
                found = encode(paths, c, cache=tmp_path / "shared", **options)
                np.testing.assert_array_equal(found, expected)
        flat = [features.reshape(20, -1)[:, :16] for features in alone]
        for i, one in enumerate(flat):
            for j, other in enumerate(flat[:i]):
                # The first of two crops is the same crop as the only one.
                assert (i, j) == (3, 1) or not np.allclose(one, other, atol=1e-4)

    def test_the_seed_is_nothing_to_the_test_view(self, paths, checkpoint, tmp_path, encoded):
        for seed in (1, 2):
            encode(paths, checkpoint, seed=seed, cache=tmp_path / "cache")
        assert sum(encoded) == 20

    def test_shards_are_gone_when_the_whole_is_there(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        encode(paths, checkpoint, cache=tmp_path / "cache")
        assert len(packs(tmp_path / "cache")) == 1
        assert not list((tmp_path / "cache").glob("*/.*"))

    def test_views_are_committed_by_the_row(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        written: list[int] = []
        write = store.Store.write
        monkeypatch.setattr(
            store.Store,
            "write",
            lambda store, digests, f: (written.append(len(digests)), write(store, digests, f))[1],
        )
        encode(paths, checkpoint, views=3, cache=tmp_path / "cache")
        assert written == [2] * 10


class TestDamage:
    @pytest.mark.parametrize("name", ["features.npy", "digests.npy"])
    @pytest.mark.parametrize("how", ["shorter", "empty", "junk", "gone"])
    def test_a_damaged_pack_is_encoded_again(self, paths, checkpoint, tmp_path, encoded, name, how):
        first = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        encoded.clear()
        (pack,) = packs(tmp_path / "cache")
        content = (pack / name).read_bytes()
        if how == "gone":
            (pack / name).unlink()
        else:
            damaged = {"shorter": content[:-1], "empty": b"", "junk": b"x" * len(content)}[how]
            (pack / name).write_bytes(damaged)
        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        np.testing.assert_array_equal(found, first)
        assert sum(encoded) == 20

    @pytest.mark.parametrize("how", ["one bit", "half of it zero", "another row", "another pack's", "no checksum"])
    def test_features_that_have_changed_are_made_again_and_it_is_told(
        self, paths, checkpoint, tmp_path, encoded, caplog, how
    ):
        cache = tmp_path / "cache"
        first = np.array(encode(paths, checkpoint, cache=cache))
        (pack,) = packs(cache)
        values = np.load(pack / "features.npy")
        if how == "one bit":
            values.view(np.uint32)[7, 0, 3] ^= 1
        elif how == "another row":
            values[[0, 1]] = values[[1, 0]]
        elif how == "another pack's":
            encode(paths[::-1], checkpoint, cache=tmp_path / "other")
            (other,) = packs(tmp_path / "other")
            shutil.copy(other / "checksum", pack)
            values = np.load(other / "features.npy")
        else:
            values[10:] = 0
        if how == "no checksum":  # from before there were any
            (pack / "checksum").unlink()
        np.save(pack / "features.npy", values)
        encoded.clear()
        told = []
        found = encode(paths, checkpoint, cache=cache, tell=told.append)
        np.testing.assert_array_equal(found, first)
        assert sum(encoded) == 20
        sentence = f"feature store {pack}: it is damaged and was removed; its images are encoded again"
        assert told == [f"note: {sentence}"]
        assert caplog.messages == [sentence]

    def test_a_damaged_part_is_not_joined(self, paths, checkpoint, tmp_path, encoded):
        cache = tmp_path / "cache"
        encode(paths[:8], checkpoint, cache=cache)
        (part,) = packs(cache)
        values = np.load(part / "features.npy")
        values[3:] = 0
        np.save(part / "features.npy", values)
        encoded.clear()
        found = encode(paths, checkpoint, cache=cache)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        assert sum(encoded) == 20

    def test_a_pack_from_before_there_were_checksums_is_taken(self, paths, checkpoint, tmp_path, encoded):
        first = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        (pack,) = packs(tmp_path / "cache")
        (pack / "checksum").unlink()
        store._SOUND.clear()
        encoded.clear()
        np.testing.assert_array_equal(encode(paths, checkpoint, cache=tmp_path / "cache"), first)
        assert encoded == []

    def test_a_process_computes_a_checksum_once(self, paths, checkpoint, tmp_path, monkeypatch):
        encode(paths, checkpoint, cache=tmp_path / "cache")
        monkeypatch.setattr(store.Store, "_start", lambda path: pytest.fail("computed again"))
        encode(paths, checkpoint, cache=tmp_path / "cache")

    def test_what_killed_processes_left_is_removed(self, paths, checkpoint, tmp_path):
        encode(paths, checkpoint, cache=tmp_path / "cache")
        (pack,) = packs(tmp_path / "cache")
        with subprocess.Popen([sys.executable, "-c", ""]) as dead:
            dead.wait()
        left = temporary_name(pack)
        left = left.with_name(left.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        left.mkdir()
        encode(paths, checkpoint, cache=tmp_path / "cache")
        assert os.listdir(pack.parent) == [pack.name]

    def test_too_few_file_handles_make_no_bad_image(self, paths, checkpoint, tmp_path, monkeypatch):
        """Else an image would be left out because the machine was busy."""

        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr("dspt.data.images.open", refused, raising=False)
        with pytest.raises(FileError, match=r"000.bmp: cannot be read \(Too many open files\); raise the limit"):
            encode(paths, checkpoint, cache=tmp_path / "cache", all_bad=True)

    def test_digests_of_other_images_are_noticed(self, paths, checkpoint, tmp_path, encoded):
        first = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        encoded.clear()
        (pack,) = packs(tmp_path / "cache")
        np.save(pack / "digests.npy", np.load(pack / "digests.npy")[::-1])
        np.testing.assert_array_equal(encode(paths, checkpoint, cache=tmp_path / "cache"), first)
        assert sum(encoded) == 20

    @pytest.mark.parametrize("content", [b"", b"junk", None])
    def test_a_damaged_memory_of_digests_is_ignored(self, paths, checkpoint, tmp_path, encoded, monkeypatch, content):
        monkeypatch.setattr(contents, "SETTLED", -1e9)
        first = np.array(encode(paths, checkpoint, cache=tmp_path / "cache"))
        memory = tmp_path / "cache" / "digests.npy"
        if content is None:
            np.save(memory, np.zeros(3))
        else:
            memory.write_bytes(content)
        np.testing.assert_array_equal(encode(paths, checkpoint, cache=tmp_path / "cache"), first)
        assert sum(encoded) == 20
        monkeypatch.setattr(contents, "read", lambda *_: pytest.fail("an image was read"))
        encode(paths, checkpoint, cache=tmp_path / "cache")

    def test_the_memory_of_digests_keeps_to_its_size(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(contents, "SETTLED", -1e9)
        monkeypatch.setattr(contents, "MOST_REMEMBERED", 12)
        for part in (paths[:10], paths[10:]):
            encode(part, checkpoint, cache=tmp_path / "cache")
            assert len(np.load(tmp_path / "cache" / "digests.npy")) == 10

    def test_packs_that_another_process_joined_and_dropped_are_found_again(
        self, paths, checkpoint, tmp_path, encoded, monkeypatch
    ):
        monkeypatch.setattr(store, "SHARD", 6)
        copy, others = store.Store._copy, []

        def copy_too_late(store: Any, digests: np.ndarray, *arguments: Any) -> None:
            if not others:
                others.append("another process, with another order")
                store.join(digests[::-1])
            copy(store, digests, *arguments)

        monkeypatch.setattr(store.Store, "_copy", copy_too_late)
        found = encode(paths, checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 20
        expected = embed(paths, ImageTower(checkpoint))
        np.testing.assert_allclose(found, expected, atol=ROUNDING)

    def test_what_another_machine_left_is_removed_after_a_day_whatever_the_clock_says(
        self, paths, checkpoint, tmp_path, monkeypatch
    ):
        encode(paths, checkpoint, cache=tmp_path / "cache")
        folder = packs(tmp_path / "cache")[0].parent
        living = temporary_name(folder / "pack")  # of this process, which is slow
        old, young = (living.with_name(f".{name}.00000000-7-00000000.tmp") for name in ("old", "young"))
        for path, age in ((old, 25), (young, 1), (living, 99)):
            path.mkdir()
            (path / "features.npy").touch()
            os.utime(path, (time.time() - 3600 * age,) * 2)
        clock = time.time
        for jump in (-2, 2):
            monkeypatch.setattr(time, "time", lambda jump=jump: clock() + 86400 * jump)
            encode(paths, checkpoint, cache=tmp_path / "cache")
            assert [path.exists() for path in (old, young, living)] == [False, True, True]


class TestBadImages:
    def test_are_told_with_their_number_and_the_good_ones_are_kept(
        self, paths, checkpoint, tmp_path, encoded, monkeypatch
    ):
        monkeypatch.setattr(store, "SHARD", 6)
        Path(paths[3]).write_bytes(b"")
        Path(paths[10]).write_bytes(Path(paths[10]).read_bytes()[:100])
        Path(paths[17]).write_text("no image")
        with pytest.raises(BadImages, match=r"3 of 20 images cannot be used") as error:
            encode(paths, checkpoint, cache=tmp_path / "cache")
        assert list(error.value.faults) == [3, 10, 17]
        for i, reason in ((3, "known format"), (10, "not a whole image"), (17, "known format")):
            assert f"{paths[i]}: {reason}" in str(error.value).replace("not an image of a ", "")
        assert sum(encoded) == 17
        for i in (3, 10, 17):
            write_image(paths[i], np.random.default_rng(i))
        encode(paths, checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 20

    def test_one_alone_is_told_as_it_is(self, paths, checkpoint, tmp_path):
        Path(paths[3]).write_bytes(b"")
        with pytest.raises(InputError, match=r"003\.bmp: not an image .*; replace it or leave it"):
            encode(paths, checkpoint, cache=tmp_path / "cache")

    def test_are_not_all_waited_for_when_there_are_many(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        monkeypatch.setattr(features, "MOST_BAD", 8)
        for i, path in enumerate(paths):
            Path(path).write_text(f"no image {i}")
        with pytest.raises(InputError, match=r"at least \d+ of 20 .*, and \d+ more"):
            encode(paths, checkpoint, cache=tmp_path / "cache")
        for path in paths:
            Path(path).write_bytes(b"")
        with pytest.raises(InputError, match=r"\(?20 of 20 .*, and 15 more"):
            encode(paths, checkpoint, cache=tmp_path / "cache", all_bad=True)

    def test_that_are_not_there_are_told_before_anything_is_encoded(self, paths, checkpoint, tmp_path, encoded):
        for i in (5, 19):
            Path(paths[i]).unlink()
        with pytest.raises(BadImages, match=r"2 of 20 .*005\.bmp: no such file; .*019\.bmp") as error:
            encode(paths, checkpoint, cache=tmp_path / "cache")
        assert list(error.value.faults) == [5, 19]
        assert encoded == []

    def test_all_of_them_are_found_on_request_and_the_good_ones_are_kept(self, paths, checkpoint, tmp_path, encoded):
        Path(paths[0]).unlink()
        Path(paths[7]).write_bytes(b"")
        with pytest.raises(BadImages, match=r"2 of 20 images") as error:
            encode(paths, checkpoint, cache=tmp_path / "cache", all_bad=True)
        assert list(error.value.faults) == [0, 7]
        good = [path for i, path in enumerate(paths) if i not in error.value.faults]
        encode(good, checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 18

    def test_in_memory_are_named_by_their_place(self, checkpoint, tmp_path):
        items = [np.zeros((9, 9), np.uint8), np.zeros((9, 9), np.float32)]
        with pytest.raises(InputError, match="image 1: an array of float32 is no image"):
            encode(items, checkpoint, cache=tmp_path / "cache")


class TestCall:
    def test_progress_rises_to_the_number_of_images(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        seen: list[tuple[int, int]] = []
        encode(
            paths,
            checkpoint,
            cache=tmp_path / "cache",
            batch_size=4,
            progress=lambda *call: seen.append(call),
        )
        assert seen == sorted(seen)
        assert seen[0] == (4, 20)
        assert seen[-1] == (20, 20)

    def test_progress_counts_what_was_there_already(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)
        encode(paths[10:], checkpoint, cache=tmp_path / "cache")
        seen: list[tuple[int, int]] = []
        encode(paths, checkpoint, cache=tmp_path / "cache", progress=lambda *call: seen.append(call))
        assert seen == sorted(seen)
        assert seen[0][0] >= 6
        assert seen[-1] == (20, 20)

    def test_an_interrupt_loses_no_more_than_a_shard(self, paths, checkpoint, tmp_path, encoded, monkeypatch):
        monkeypatch.setattr(store, "SHARD", 6)

        def interrupt(done: int, total: int) -> None:
            if done > 12:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode(paths, checkpoint, cache=tmp_path / "cache", progress=interrupt)
        encoded.clear()
        encode(paths, checkpoint, cache=tmp_path / "cache")
        assert sum(encoded) == 8

    def test_the_store_is_where_the_environment_says(self, paths, checkpoint, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.delenv("DSPT_CACHE", raising=False)
        assert features.default_cache() == tmp_path / "xdg" / "dspt" / "features"
        monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "here"))
        encode(paths, checkpoint)
        assert len(packs(tmp_path / "here")) == 1
        assert not (tmp_path / "xdg").exists()

    def test_a_store_that_cannot_be_written_is_named(self, paths, checkpoint, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"feature store .*file: cannot be written .*DSPT_CACHE"):
            encode(paths, checkpoint, cache=tmp_path / "file")

    def test_a_full_disk_is_one_sentence(self, paths, checkpoint, tmp_path, monkeypatch):
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "save", full)
        with pytest.raises(InputError, match="No space left on device"):
            encode(paths, checkpoint, cache=tmp_path / "cache")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"views": -1}, "views: expected 0 or more, found -1"),
            ({"batch_size": 0}, "batch size: expected at least 1, found 0"),
        ],
    )
    def test_wrong_options_are_refused(self, paths, checkpoint, tmp_path, options, sentence):
        with pytest.raises(InputError, match=sentence):
            encode(paths, checkpoint, cache=tmp_path / "cache", **options)

    def test_no_images_and_no_image_tower_are_refused(self, paths, checkpoint, tmp_path):
        with pytest.raises(InputError, match="none given"):
            encode([], checkpoint, cache=tmp_path / "cache")
        text = open_checkpoint(tiny_clip(tmp_path / "text", text_only=True))
        with pytest.raises(InputError, match="has no image tower"):
            encode(paths, text, cache=tmp_path / "cache")


@pytest.fixture(scope="module")
def told(clip: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what `hurt_encoders` saw; in its own process, as it forks while torch has no threads."""
    if os.name != "posix":
        pytest.skip("forks its victims")
    folder = tmp_path_factory.mktemp("processes")
    code = "import sys, test_features; test_features.hurt_encoders(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(clip), str(folder)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestProcesses:
    def test_a_kill_at_any_step_leaves_only_whole_packs(self, told):
        assert told["steps"] > 30
        assert told["packs seen after kills"] > 20
        assert told["broken packs"] == []

    def test_a_kill_at_any_step_changes_no_bit_of_the_end_result(self, told):
        assert told["different after a kill"] == []

    def test_kills_one_after_another_change_no_bit_of_the_end_result(self, told):
        assert told["killed in a row"] >= 5
        assert told["same after kills in a row"]

    def test_processes_at_once_on_one_store_all_succeed_with_the_same_result(self, told):
        assert told["failed together"] == 0
        assert told["different together"] == 0

    def test_processes_at_once_with_other_orders_all_succeed(self, told):
        assert told["failed in other orders"] == 0
        assert told["different in other orders"] == 0


def hurt_encoders(clip: str, folder: str) -> None:
    """Print as JSON what becomes of encoders that are killed, or run side by side."""
    import torch

    torch.set_num_threads(1)
    checkpoint = open_checkpoint(clip)
    # Loaded once, before the forks: what takes long in an encoder is not what is hurt here.
    tower = ImageTower(checkpoint)
    features.ImageTower = lambda *_: tower
    root = Path(folder)
    paths = write_images(root / "images", 20)
    store.SHARD = 8
    told: dict[str, Any] = {}

    def run(cache: str, order: range = range(20), die_at: int = 0) -> int:
        """Start an encoder that saves its result beside its cache, or dies before a step of it."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            die_before(die_at)
            found = encode([paths[i] for i in order], checkpoint, cache=root / cache, batch_size=4)
            target = root / f"{cache}-{os.getpid()}"
            np.save(target, found[np.argsort(order)])
            status = 0
        finally:
            os._exit(status)

    def result(pid: int, cache: str) -> np.ndarray | None:
        """Wait for an encoder; None if it did not end well."""
        if os.waitpid(pid, 0)[1]:
            return None
        file = root / f"{cache}-{pid}.npy"
        found = np.load(file)
        file.unlink()
        return found

    expected = result(run("reference"), "reference")
    assert expected is not None
    (whole,) = packs(root / "reference")
    rows = {digest.tobytes(): row for digest, row in zip(np.load(whole / "digests.npy"), expected, strict=True)}

    def is_whole(pack: Path) -> bool:
        try:
            digests, found = np.load(pack / "digests.npy"), np.load(pack / "features.npy")
        except (OSError, ValueError):
            return False
        known = np.stack([rows[digest.tobytes()] for digest in digests])
        return np.array_equal(found[:, 0], known)

    seen, broken, different, step = 0, [], [], 0
    while True:
        step += 1
        assert step < 1000, "it never comes to its end"
        cache = f"step{step}"
        finished = result(run(cache, die_at=step), cache)
        if finished is not None:
            break
        for pack in packs(root / cache):
            seen += 1
            if not is_whole(pack):
                broken.append(f"{step}: {pack}")
        # Every third is enough: the others differ by what is in a temporary folder.
        if step % 3 == 0 and not same(result(run(cache), cache), expected):
            different.append(step)
        shutil.rmtree(root / cache, ignore_errors=True)
    told |= {"steps": step, "packs seen after kills": seen, "broken packs": broken}
    told["different after a kill"] = different

    # Each goes on from where the one before it was killed, and comes a little further.
    killed = 0
    while (finished := result(run("row", die_at=killed + 1), "row")) is None:
        killed += 1
        assert killed < 1000, "it never comes to its end"
    told |= {"killed in a row": killed, "same after kills in a row": same(finished, expected)}

    for name, orders in (
        ("together", [range(20)] * 3),
        ("in other orders", [range(20), range(19, -1, -1), range(20)]),
    ):
        failed, wrong = 0, 0
        for _ in range(3):
            cache = name.replace(" ", "-")
            pids = [run(cache, order) for order in orders]
            for found in [result(pid, cache) for pid in pids]:
                failed += found is None
                wrong += found is not None and not (
                    same(found, expected) if name == "together" else np.allclose(found, expected, atol=ROUNDING)
                )
            shutil.rmtree(root / cache, ignore_errors=True)
        told |= {f"failed {name}": failed, f"different {name}": wrong}
    print(json.dumps(told))


def same(found: np.ndarray | None, expected: np.ndarray) -> bool:
    return found is not None and np.array_equal(found, expected)


def die_before(step: int) -> None:
    """Have this process killed when it comes to the given step that writes, renames or computes."""
    steps: Iterator[int] = iter(range(1, 10**9))

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for owner, name in (
        (np, "save"),
        (os, "fsync"),
        (os, "replace"),
        (Path, "mkdir"),
        (Path, "rename"),
        (shutil, "rmtree"),
        (ImageTower, "__call__"),
    ):
        setattr(owner, name, deadly(getattr(owner, name)))
