"""Features that are never read whole: a folder of shards gives what the same arrays in memory give."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoints import tiny_clip
from problems import NAMES, features
from safetensors.numpy import load_file, save_file

import dspt
from dspt.auditing import folder as report
from dspt.config import Config
from dspt.data import open_dataset
from dspt.data.items import item_names
from dspt.internal import scratch
from dspt.internal.errors import FileError, InputError
from dspt.internal.shards import Shards, joined, take_rows
from dspt.internal.tensors import mapped, write_blocks
from dspt.posterior import model
from dspt.workflows.audit import audit, refit
from dspt.workflows.train import run

# Rows of the train split in each shard.
CUTS = {1: (), 2: (13,), 7: (1, 20, 21, 60, 61, 99)}
# Private memory that a process may have beside the program, in MiB, where features are ten times as large.
MIB = 320


def samples() -> dict[str, np.ndarray]:
    """Return features of many lengths, in half precision, and some wrong labels."""
    x, y = features(140, 1)
    x = (x * np.linspace(0.5, 3, len(x))[:, None]).astype(np.float16)
    given = np.array(dspt.corrupt(y[:100], 4, "symmetric", 0.3))
    return {"train_x": x[:100], "train_y": given, "test_x": x[100:], "test_y": y[100:]}


def shard(path: Path, names: tuple[str, ...] = NAMES, **arrays: np.ndarray) -> None:
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, {"classnames": json.dumps(names)}
    )


def shards(folder: Path, number: int) -> Path:
    """Return a folder of shards that differ in size, the last with the test split too."""
    folder.mkdir()
    whole = samples()
    parts = zip(np.split(whole["train_x"], CUTS[number]), np.split(whole["train_y"], CUTS[number]), strict=True)
    for i, (x, y) in enumerate(parts):
        test = {name: whole[name] for name in ("test_x", "test_y")} if i == number - 1 else {}
        shard(folder / f"part-{i:02}.safetensors", train_x=x, train_y=y, **test)
    return folder


def in_memory(path: Path) -> Path:
    np.savez(path, **samples(), classnames=np.array(NAMES))
    return path


def sums(folder: Path) -> None:
    """Write SHA256SUMS with the program that people have."""
    with open(folder / "SHA256SUMS", "w") as file:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        subprocess.run(["sha256sum", *names], cwd=folder, stdout=file, check=True)


class TestShards:
    whole = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)

    def cut(self, *places: int) -> Shards:
        return Shards(np.split(self.whole, places))

    @pytest.mark.parametrize("places", [(), (17,), (1, 2, 9, 10, 30, 49)])
    @pytest.mark.parametrize(
        "index",
        [
            *(0, 49, -1, np.int64(17), slice(None), slice(3, 3), slice(16, 18), slice(-9, None), slice(40, 2, -7)),
            *(np.array([4, 4, 49, 0]), np.array([-1, 17]), np.arange(50) % 3 == 0, np.empty(0, np.int64), [5, 1]),
            (np.array([31, 2]),),
        ],
    )
    def test_are_read_as_the_rows_of_one_array_are(self, places, index):
        np.testing.assert_array_equal(self.cut(*places)[index], self.whole[index])

    @pytest.mark.parametrize("index", [50, np.array([3, 50]), np.array([-51]), np.ones(49, bool)])
    def test_a_row_that_is_not_there_is_an_error(self, index):
        with pytest.raises(IndexError):
            self.cut(17)[index]

    def test_taken_rows_and_joined_ones_are_those_of_the_arrays(self):
        some, order = np.array([40, 3, 3, 18, 0]), np.array([4, 0, 2])
        taken = self.cut(17).take(some)
        np.testing.assert_array_equal(taken, self.whole[some])
        np.testing.assert_array_equal(taken.take(order)[1:], self.whole[some][order][1:])
        np.testing.assert_array_equal(list(taken), self.whole[some])
        lengths = np.linspace(1, 2, 50, dtype=np.float32)
        divided = Shards([self.whole[:9], self.whole[9:]], lengths)
        expected = np.concatenate([self.whole[some], self.whole / lengths[:, None], self.whole[:2]])
        both = joined([taken, divided, self.whole[:2]])
        assert isinstance(both, Shards)
        np.testing.assert_array_equal(both, expected)
        np.testing.assert_array_equal(both[np.array([4, 50, 2, 54])], expected[[4, 50, 2, 54]])
        assert (both.shape, both.nbytes) == ((57, 3), 57 * 12)

    def test_rows_of_a_map_are_taken_without_being_read(self, tmp_path):
        np.save(tmp_path / "x.npy", self.whole)
        taken = take_rows(np.load(tmp_path / "x.npy", mmap_mode="r"), np.array([7, 1]))
        assert isinstance(taken, Shards)
        np.testing.assert_array_equal(taken, self.whole[[7, 1]])

    def test_the_system_reads_on_unless_rows_are_scattered(self):
        asked: list[int] = []

        class Part(np.ndarray):
            _mmap = SimpleNamespace(madvise=asked.append)

        rows = Shards([np.zeros((1000, 2), np.float32).view(Part)])
        _ = rows[:10], rows[np.arange(20, 0, -1)], rows[::2]
        assert asked == []  # as the system does it by itself
        _ = rows[np.array([900, 3])], rows[np.array([1, 999])]
        assert asked == [mmap.MADV_RANDOM]
        _ = rows[np.arange(300, 200, -2)]
        assert asked == [mmap.MADV_RANDOM, mmap.MADV_NORMAL]


@pytest.mark.parametrize("number", CUTS)
class TestOfAFolder:
    def test_are_the_feature_file_with_the_same_rows(self, tmp_path, number):
        expected = open_dataset(in_memory(tmp_path / "pets.npz"))
        folder = shards(tmp_path / "pets", number)
        sums(folder)
        found = open_dataset(folder)
        assert (found.name, found.class_names, found.notes) == ("pets", expected.class_names, expected.notes)
        for split in ("train", "test"):
            one, other = getattr(found, split), getattr(expected, split)
            assert isinstance(one.items, Shards)
            assert found.holds_features
            np.testing.assert_array_equal(one.items, other.items)
            np.testing.assert_array_equal(one.labels, other.labels)
            assert list(item_names(one.items)) == list(item_names(other.items))

    def test_give_the_same_posterior_to_the_bit(self, tmp_path, number):
        expected = open_dataset(in_memory(tmp_path / "pets.npz")).train
        found = open_dataset(shards(tmp_path / "pets", number)).train
        one, other = (dspt.label_posterior(split.items, split.labels) for split in (found, expected))
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
        np.testing.assert_array_equal(one.weights, other.weights)
        assert (one.noise_rate, one.noise_rate_error) == (other.noise_rate, other.noise_rate_error)
        # whatever is asked of it is read in parts, too
        np.testing.assert_allclose(one.classify(found.items), other.classify(expected.items), rtol=0, atol=1e-6)


class TestAPosteriorAskedAboutOtherImages:
    @pytest.fixture(params=[False, True], ids=["features alone", "with logits"])
    def found(self, request) -> tuple[dspt.Posterior, np.ndarray, np.ndarray | None]:
        """Return a posterior, and features and logits of 100 images."""
        x, labels = samples()["train_x"].astype(np.float32), samples()["train_y"]
        means = np.stack([x[labels == c].mean(0) for c in range(4)])
        logits = 5 * (x @ means.T) if request.param else None
        posterior = dspt.label_posterior(x, labels, logits, num_classes=4)
        assert bool(posterior.text_weight) == request.param
        return posterior, x, logits

    def test_in_memory_it_is_one_product(self, found):
        posterior, x, logits = found
        expected = x @ posterior.weights + posterior.bias
        if logits is not None:
            expected = expected + posterior.text_weight * logits
        np.testing.assert_array_equal(posterior.scores(x, logits), expected)
        np.testing.assert_array_equal(
            posterior.classify(x, logits), torch.from_numpy(expected.astype(np.float32)).softmax(1).numpy()
        )

    @pytest.mark.parametrize("kind", ["shards", "map"])
    def test_otherwise_a_block_is_read_at_a_time(self, found, kind, tmp_path, monkeypatch):
        posterior, x, logits = found
        expected = posterior.classify(x, logits), posterior.scores(x, logits)
        np.save(tmp_path / "x.npy", x)
        given = Shards([x[:30], x[30:]]) if kind == "shards" else np.load(tmp_path / "x.npy", mmap_mode="r")
        monkeypatch.setattr(model, "BLOCK", 16)
        read: list[int] = []
        compute = dspt.Posterior._scores

        def noted(self, rows, logits):
            read.append(len(rows))
            return compute(self, rows, logits)

        monkeypatch.setattr(dspt.Posterior, "_scores", noted)
        monkeypatch.setattr(Shards, "__array__", lambda *_: pytest.fail("all of it was read"))
        np.testing.assert_allclose(posterior.classify(given, logits), expected[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(posterior.scores(given, logits), expected[1], rtol=0, atol=1e-4)
        assert read == 2 * [16, 16, 16, 16, 16, 16, 4]


@pytest.mark.parametrize(
    ("learner", "method", "noise"),
    [("prompt", "dspt", "none"), ("prototypes", "dspt-auto", "none"), ("prototypes", "nlprompt", "inst:0.3")],
)
def test_training_on_shards_gives_the_bits_of_training_in_memory(tmp_path, text_tower, learner, method, noise):
    config = Config(model=text_tower, learner=learner, method=method, epochs=3)
    sources = {"memory": in_memory(tmp_path / "pets.npz"), "shards": shards(tmp_path / "pets", 7)}
    for name, source in sources.items():
        run(str(source), config, noise, out=tmp_path / name)
    one, other = ((tmp_path / name) for name in sources)
    learnt = [load_file(folder / "context.safetensors") for folder in (one, other)]
    assert learnt[0].keys() == learnt[1].keys()
    for name in learnt[0]:
        np.testing.assert_array_equal(learnt[0][name], learnt[1][name])
    assert (one / "labels.csv").read_text() == (other / "labels.csv").read_text()


def test_an_audit_of_shards_says_what_one_of_arrays_does(tmp_path):
    for source in (in_memory(tmp_path / "pets.npz"), shards(tmp_path / "pets", 7)):
        audit(open_dataset(source, test_fraction=0), tmp_path / f"{source.name}-report", "none")
    one, other = (tmp_path / f"{name}-report" for name in ("pets.npz", "pets"))
    assert (one / "audit.csv").read_text() == (other / "audit.csv").read_text()
    np.testing.assert_array_equal(refit(one, {}).probabilities, refit(other, {}).probabilities)
    # evidence is written a block at a time, in a form that safetensors itself reads
    stored = load_file(other / report.EVIDENCE)
    np.testing.assert_array_equal(stored["features"], report.load_evidence(one).features)


def test_arrays_written_in_blocks_are_read_by_safetensors(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        "a": np.array([True, False, True]),
        "half": random.standard_normal((5000, 3)).astype(np.float16),
        "wide": random.standard_normal((7, 2, 3)),
        "none": np.empty((0, 4), np.int32),
        "one": np.array(3, np.int64),
        "across": random.standard_normal((4, 6)).T,
    }
    write_blocks(tmp_path / "x.safetensors", arrays)
    for found in (load_file(tmp_path / "x.safetensors"), mapped(tmp_path / "x.safetensors")[0]):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


class TestBadShards:
    def spoilt(self, folder: Path, how: str) -> None:
        whole, path = samples(), folder / "part-01.safetensors"
        rows = {"train_x": whole["train_x"][13:], "train_y": whole["train_y"][13:]}
        test = {name: whole[name] for name in ("test_x", "test_y")}
        if how == "column":
            shard(path, train_x=rows["train_x"], **test)
        elif how == "names":
            shard(path, ("cat", "dog", "panda", "ankle boot"), **rows, **test)
        elif how == "classes":
            shard(path, NAMES[:3], **rows | {"train_y": rows["train_y"] % 3}, test_x=test["test_x"][:1], test_y=[0])
        elif how == "no names":
            save_file({**rows, **test}, path)
        elif how == "width":
            shard(path, train_x=rows["train_x"][:, :8], train_y=rows["train_y"], **test)
        elif how == "test width":
            shard(path, **rows, test_x=test["test_x"][:, :8], test_y=test["test_y"])
        elif how == "label":
            rows["train_y"] = rows["train_y"].copy()
            rows["train_y"][5] = 41
            shard(path, **rows, **test)
        elif how == "nan":
            rows["train_x"] = rows["train_x"].copy()
            rows["train_x"][7, 2] = np.nan
            shard(path, **rows, **test)
        elif how == "rows":
            shard(path, train_x=rows["train_x"][:-1], train_y=rows["train_y"], **test)
        elif how == "truncated":
            os.truncate(path, path.stat().st_size - 10)
        elif how == "a bit":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        elif how == "gone":
            path.unlink()
        elif how == "added":
            shard(folder / "part-02.safetensors", **rows)
        elif how == "no test":
            shard(path, **rows)
        elif how == "no train":
            (folder / "part-00.safetensors").unlink()
            shard(path, **test)
        elif how == "sums":
            (folder / "SHA256SUMS").write_text("what is this\n")

    @pytest.mark.parametrize("checked", [False, True])
    @pytest.mark.parametrize(
        ("how", "sentence"),
        [
            ("column", "part-01.safetensors: has no train_y; a feature file holds"),
            (
                "names",
                "part-01.safetensors: its class names are not those of part-00.safetensors .class 2 is 'panda', and",
            ),
            ("no names", "part-01.safetensors: has no classnames"),
            ("width", "part-01.safetensors: train_x of part-00.safetensors has 16 columns and train_x has 8"),
            ("test width", "part-01.safetensors: train_x of part-00.safetensors has 16 columns and test_x has 8"),
            ("label", "train_y: expected 0..3 for 4 classes, found 41 at row 5 of .*part-01.safetensors"),
            ("nan", "part-01.safetensors: train_x has a value that is not a finite number in row 7"),
            ("rows", "part-01.safetensors: train_x has 86 rows and train_y has 87"),
            ("truncated", "part-01.safetensors: not a .safetensors file"),
            ("no test", "pets: no shard has test_x and test_y"),
            ("no train", "pets: no shard has train_x and train_y"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_sentence_that_names_the_shard(self, tmp_path, how, sentence, checked):
        folder = shards(tmp_path / "pets", 2)
        self.spoilt(folder, how)
        if checked:
            sums(folder)
        with pytest.raises(InputError, match=sentence):
            open_dataset(folder)

    @pytest.mark.parametrize(
        ("how", "sentence"),
        [
            ("a bit", "part-01.safetensors: damaged, since it is not what SHA256SUMS says"),
            ("truncated", "part-01.safetensors: damaged, since it is not what SHA256SUMS says"),
            ("gone", "SHA256SUMS: 'part-01.safetensors' is named and not there"),
            ("added", "part-02.safetensors: it is not in SHA256SUMS"),
            ("sums", "SHA256SUMS: line 1 is none of sha256sum"),
        ],
    )
    def test_what_sha256sum_has_written_tells_a_damaged_shard(self, tmp_path, how, sentence):
        folder = shards(tmp_path / "pets", 2)
        sums(folder)
        self.spoilt(folder, how)
        with pytest.raises(InputError, match=sentence):
            open_dataset(folder)

    def test_class_folders_beside_a_safetensors_file_are_classes(self, tmp_path):
        folder = shards(tmp_path / "pets", 1)
        (folder / "cat").mkdir()
        with pytest.raises(InputError, match="cat: no images in it"):
            open_dataset(folder)


class TestScratch:
    def test_a_large_result_lies_in_a_file_and_is_the_same(self, monkeypatch, tmp_path):
        split = open_dataset(in_memory(tmp_path / "pets.npz")).train
        logits = 10 * np.asarray(split.items)[:, :4]
        one = dspt.label_posterior(split.items, split.labels, logits)
        sizes: list[int] = []
        monkeypatch.setattr(scratch, "MOST_IN_MEMORY", 0)
        monkeypatch.setattr(
            os, "posix_fallocate", lambda file, start, size: (sizes.append(size), os.truncate(file, size))
        )
        other = dspt.label_posterior(split.items, split.labels, logits)
        assert sizes == [4 * 100 * 4]  # float32, samples, classes
        np.testing.assert_array_equal(one.probabilities, other.probabilities)

    def test_no_room_for_it_is_one_sentence(self, monkeypatch):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(scratch, "MOST_IN_MEMORY", 0)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(FileError, match=r"folder of temporary files.*No space left"):
            scratch.scratch(3, 4)


@pytest.fixture(scope="module")
def ten_times(tmp_path_factory):
    """Shards of features ten times the limit, a few like them to begin with, and a text tower."""
    folder = tmp_path_factory.mktemp("larger")
    width, parts = 768, 9
    tiny_clip(folder / "clip", text_only=True, projection_dim=width)
    random = np.random.default_rng(0)
    means = 0.05 * random.standard_normal((10, width), dtype=np.float32)
    for name, rows in (("data", 10 * MIB * 2**20 // (4 * width * parts) + 1), ("data-few", 300)):
        (folder / name).mkdir()
        for i in range(parts):
            true = random.integers(0, 10, rows)
            x = means[true] + width**-0.5 * random.standard_normal((rows, width), dtype=np.float32)
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            given = np.where(random.random(rows) < 0.3, random.integers(0, 10, rows), true)
            test = {"test_x": x[:100], "test_y": true[:100]} if i == 0 else {}
            shard(folder / name / f"{i}.safetensors", tuple("abcdefghij"), train_x=x, train_y=given, **test)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits private memory and leaves maps alone")
@pytest.mark.parametrize("what", ["prototypes", "prompt", "posterior"])
def test_features_ten_times_the_memory_that_is_left_give_the_same_as_in_memory(ten_times, tmp_path, what):
    told = []
    for number in (MIB, 0):
        code = Path(__file__).with_name("larger_than_memory.py")
        out = tmp_path / f"out-{number}"
        command = [sys.executable, code, what, ten_times / "data", ten_times / "clip", out, str(number)]
        # One arena: how many of glibc's own there are, each with what it keeps, is chance.
        env = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        told.append(json.loads(done.stdout))
        print(told[-1])
    limited, free = told
    assert limited["mib_of_features"] >= 10 * MIB
    assert (limited["fits"], free["fits"]) == (False, True)
    assert limited["found"] == free["found"]
