"""File names kept out of memory, and positions drawn from labels."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspt.data.dataset import Split, few_shot, hold_out, take
from dspt.data.paths import Paths
from dspt.internal.errors import InputError

NAMES = st.lists(st.text(st.characters(blacklist_characters="\0", codec="utf-8")), max_size=30)
LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array)


class TestPaths:
    @given(names=NAMES)
    def test_behave_as_the_list_they_were_made_from(self, names):
        paths = Paths(iter(names))
        assert len(paths) == len(names)
        assert list(paths) == names
        assert [paths[i] for i in range(-len(names), len(names))] == names + names
        assert list(paths[1:7:2]) == names[1:7:2]
        assert list(pickle.loads(pickle.dumps(paths))) == names
        with pytest.raises(IndexError):
            paths[len(names)]

    @given(names=NAMES.filter(len), data=st.data())
    def test_can_be_taken_in_any_order_again_and_again(self, names, data):
        positions = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=20))
        taken = Paths(names).take(np.array(positions, int))
        assert list(taken) == [names[i] for i in positions]
        back = taken.take(np.arange(len(taken))[::-1])
        assert list(back) == [names[i] for i in reversed(positions)]

    def test_keep_names_that_are_not_text(self):
        name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
        assert Paths([name, "b"])[0] == name

    def test_leave_no_file_behind(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        paths = Paths(f"{i}.jpg" for i in range(100_000))
        assert paths[99_999] == "99999.jpg"
        assert list(tmp_path.iterdir()) == []


class TestFewShot:
    @given(labels=LABELS, shots=st.integers(1, 5), seed=st.integers(0, 5))
    def test_takes_so_many_of_each_class_or_all_there_are(self, labels, shots, seed):
        chosen = few_shot(labels, shots, seed)
        assert (np.diff(chosen) > 0).all()
        expected = np.minimum(np.bincount(labels, minlength=5), shots)
        np.testing.assert_array_equal(np.bincount(labels[chosen], minlength=5), expected)

    def test_draws_as_coop_does(self):
        """Each class on its own, without putting back: any pair of class 0 here. Of one that has too few, all once."""
        labels = np.array([2, 0, 0, 1, 0, 2])
        drawn = {tuple(few_shot(labels, 2, seed)) for seed in range(50)}
        assert drawn == {(0, 1, 2, 3, 5), (0, 1, 3, 4, 5), (0, 2, 3, 4, 5)}

    @given(labels=LABELS, seed=st.integers(0, 5))
    def test_fewer_shots_are_among_more_shots(self, labels, seed):
        assert set(few_shot(labels, 2, seed)) <= set(few_shot(labels, 3, seed))

    def test_the_seed_decides_which(self):
        labels = np.repeat(np.arange(10), 50)
        np.testing.assert_array_equal(few_shot(labels, 4, 1), few_shot(labels, 4, 1))
        assert set(few_shot(labels, 4, 1)) != set(few_shot(labels, 4, 2))

    def test_every_sample_is_as_likely(self):
        labels = np.array([0, 1] * 5)
        counts = np.zeros(10)
        for seed in range(2000):
            counts[few_shot(labels, 1, seed)] += 1
        # Each is chosen by one seed in five: 400 times, give or take four standard deviations.
        assert (np.abs(counts - 400) < 4 * np.sqrt(2000 * 0.2 * 0.8)).all()

    def test_no_shots_are_refused(self):
        with pytest.raises(InputError, match="shots = 0"):
            few_shot(np.array([0, 1]), 0, 1)


class TestSplit:
    @given(labels=LABELS)
    def test_a_hold_out_keeps_every_sample_once_and_its_label_with_it(self, labels):
        split = Split([f"{i}" for i in range(len(labels))], labels, labels[::-1].copy())
        train, test = hold_out(split, "abcde", 1, 0.3)
        items = [*train.items, *test.items]
        assert sorted(items, key=int) == list(split.items)
        for part in (train, test):
            rows = [int(item) for item in part.items]
            np.testing.assert_array_equal(part.labels, labels[rows])
            np.testing.assert_array_equal(part.true_labels, labels[::-1][rows])
        counts = np.bincount(labels, minlength=5)
        held = np.bincount(test.labels, minlength=5)
        assert ((held >= 1) == (counts >= 2)).all()
        assert (np.abs(held - 0.3 * counts)[counts >= 2] <= 1).all()

    def test_right_labels_are_those_that_are_known_to_be_right(self):
        labels, true = np.array([0, 1]), np.array([1, 1])
        assert Split([], labels).best_labels is labels
        assert Split([], labels, true).best_labels is true

    def test_items_of_every_kind_can_be_taken(self):
        positions = np.array([2, 0])
        assert take(["a", "b", "c"], positions) == ["c", "a"]
        assert take(np.array([1, 2, 3]), positions).tolist() == [3, 1]
        assert list(take(Paths("abc"), positions)) == ["c", "a"]
