"""Noise between classes that are alike, against exact fractions, softmax and Philox words read in plain Python."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import NAMES, feature_file, labels_in
from scipy import special, stats
from test_noise import unit, words

from dspt import corrupt, learners, noise
from dspt.config import Config, NetworkConfig
from dspt.data import open_dataset
from dspt.internal.errors import InputError
from dspt.noise import similar
from dspt.noise.similar import nearest_classes, unit_rows
from dspt.workflows.train import run

claim = settings(max_examples=60)
samplings = st.sampled_from(["exact", "bernoulli"])
rates = st.floats(0, 1)


@st.composite
def described(draw: st.DrawFn) -> tuple[list[int], np.ndarray, int]:
    """Labels, whole numbers that describe their classes, and K."""
    classes, dim = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    row = st.lists(st.integers(-3, 3), min_size=dim, max_size=dim)
    features = draw(st.lists(row, min_size=classes, max_size=classes))
    labels = draw(st.lists(st.integers(0, classes - 1), max_size=40))
    return labels, np.array(features), draw(st.integers(1, classes - 1))


def by_fractions(features: np.ndarray, k: int) -> list[int]:
    """Return the other classes by falling cosine with class `k`, from exact numbers."""

    def nearness(j: int) -> Fraction:
        # The cosine, squared with its sign, but for the length of k, which is the same for all.
        dot, length = int(features[k] @ features[j]), int(features[j] @ features[j])
        return Fraction(dot * abs(dot), length) if length else Fraction(0)

    others = [j for j in range(len(features)) if j != k]
    return sorted(others, key=lambda j: (-nearness(j), j))


def classes(n: int = 6, dim: int = 8) -> np.ndarray:
    """Return features of classes that are not all alike and not all apart: cosines within some hundredths."""
    return 5 + np.random.default_rng(3).normal(size=(n, dim))


@claim
@given(described())
def test_the_nearest_classes_are_those_of_exact_arithmetic_ties_by_index(
    problem: tuple[list[int], np.ndarray, int],
) -> None:
    _, features, k = problem
    order, likely = nearest_classes(features, len(features), k)
    assert order.tolist() == [by_fractions(features, c)[:k] for c in range(len(features))]
    np.testing.assert_allclose(likely.sum(axis=1), 1)
    assert (np.diff(likely, axis=1) <= 0).all()


@claim
@given(described(), samplings, rates, st.integers())
def test_a_wrong_label_is_the_nearest_class(
    problem: tuple[list[int], np.ndarray, int], sampling: str, rate: float, seed: int
) -> None:
    true, features, _ = problem
    noisy = corrupt(true, len(features), "near", rate, seed, sampling, class_features=features)
    for before, after in zip(true, noisy, strict=True):
        assert after in (before, by_fractions(features, before)[0])
    assert corrupt(true, len(features), "near-1", rate, seed, sampling, class_features=features) == noisy


@claim
@given(described(), samplings, st.tuples(rates, rates), st.integers())
def test_rates_are_exact_and_nested_and_all_k_flip_the_same_labels(
    problem: tuple[list[int], np.ndarray, int], sampling: str, two: tuple[float, float], seed: int
) -> None:
    true, features, k = problem

    def noisy(kind: str, rate: float) -> list[int]:
        return corrupt(true, len(features), kind, rate, seed, sampling, class_features=features)

    less, more = (noisy(f"near-{k}", rate) for rate in sorted(two))
    assert all(b in (a, c) for a, b, c in zip(true, less, more, strict=True))
    flipped = [a != b for a, b in zip(true, more, strict=True)]
    assert flipped == [a != b for a, b in zip(true, noisy("near", max(two)), strict=True)]
    assert sampling == "bernoulli" or sum(flipped) == int(max(two) * len(true))
    assert all(b in (a, *by_fractions(features, a)[:k]) for a, b in zip(true, more, strict=True))


@pytest.mark.parametrize("sampling", ["exact", "bernoulli"])
def test_what_is_drawn_is_what_the_words_say(sampling: str) -> None:
    features, true = classes(), [i % 6 for i in range(30)]
    raw = words(60, 7, "near", sampling)
    chosen = sorted(range(30), key=lambda i: raw[i])[:12]
    wanted = list(true)
    for i in chosen if sampling == "exact" else [i for i in range(30) if unit(raw[i]) < 0.4]:
        cosines = {
            j: features[true[i]] @ features[j] / np.linalg.norm(features[true[i]]) / np.linalg.norm(features[j])
            for j in range(6)
            if j != true[i]
        }
        three = sorted(cosines, key=lambda j: -cosines[j])[:3]
        shares = special.softmax([100 * cosines[j] for j in three])
        wanted[i] = three[int(np.searchsorted(shares.cumsum(), unit(raw[30 + i]), side="right"))]
    assert corrupt(true, 6, "near-3", 0.4, 7, sampling, class_features=features) == wanted


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_matrix_is_a_softmax_over_the_nearest_and_the_draws_follow_it(k: int) -> None:
    features, n = classes(), 60_000
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    expected = 0.7 * np.eye(6)
    for true in range(6):
        near = np.argsort(-cosines[true])[:k]
        expected[near, true] += 0.3 * special.softmax(100 * cosines[true, near])
    transition = noise.transition_matrix(f"near-{k}", 6, 0.3, class_features=features)
    np.testing.assert_allclose(transition, expected, atol=1e-6)
    assert k == 1 or np.sort(transition[:, 0])[-k:].min() > 0.005, "a case that can tell one share from another"
    true = np.arange(n) % 6
    noisy = corrupt(true, 6, f"near-{k}", 0.3, 2, "bernoulli", class_features=features)
    for c in range(6):
        counts, possible = np.bincount(noisy[true == c], minlength=6), expected[:, c] > 0
        assert counts[~possible].sum() == 0
        assert stats.chisquare(counts[possible], expected[possible, c] * counts.sum()).pvalue > 1e-4


def test_only_the_directions_of_the_class_features_matter() -> None:
    features, true = classes(), np.arange(300) % 6
    noisy = corrupt(true, 6, "near-3", 0.5, class_features=features)
    for scale in (1e-300, 1e-3, 1e300):
        np.testing.assert_array_equal(corrupt(true, 6, "near-3", 0.5, class_features=scale * features), noisy)
    lengths = 2.0 ** np.arange(6)[:, None]
    np.testing.assert_array_equal(corrupt(true, 6, "near-3", 0.5, class_features=lengths * features), noisy)
    np.testing.assert_array_equal(corrupt(true, 6, "near-3", 0.5, class_features=torch.tensor(features)), noisy)
    assert (corrupt(true, 6, "near-3", 0.5, class_features=features[::-1]) != noisy).any()
    assert (corrupt(true, 6, "near-3", 0.5, seed=2, class_features=features) != noisy).any()


@pytest.mark.parametrize("seed", range(8))
def test_directions_that_differ_by_rounding_alone_are_a_tie(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=100) * rng.uniform(0.1, 10, (40, 1))
    order, likely = nearest_classes(features, 40, 2)
    assert order.tolist() == [[1, 2], [0, 2], *([[0, 1]] * 38)]
    assert (likely == 0.5).all()


def test_rows_have_length_one_however_large_or_small_they_are() -> None:
    rows = np.array([[3.0, 4.0], [3e200, 4e200], [3e-310, 4e-310], [0, 0]])
    np.testing.assert_allclose(unit_rows(rows), [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0, 0]], rtol=1e-9)
    np.testing.assert_allclose(unit_rows(np.array([[3, 4]], dtype=np.int8)), [[0.6, 0.8]])


def test_many_classes_are_looked_at_some_at_a_time(monkeypatch) -> None:
    features = np.random.default_rng(0).normal(size=(20, 4))
    whole = nearest_classes(features, 20, 4)
    monkeypatch.setattr(similar, "_MOST", 60)  # three rows of twenty
    for one, other in zip(nearest_classes(features, 20, 4), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "^class_features: go with kind 'near' and only with it, found 'near' without them$"),
        ({"kind": "pair", "class_features": np.eye(4)}, "class_features: go with kind 'near' .* found 'pair'$"),
        ({"kind": "none", "class_features": np.eye(4)}, "found 'none'$"),
        (
            {"class_features": np.eye(3)},
            "class_features: expected 4 rows of numbers, one for each class, found float64",
        ),
        ({"class_features": np.zeros(4)}, r"found float64 of shape \(4,\)"),
        ({"class_features": [["a"]] * 4}, "rows of numbers"),
        ({"class_features": [[1], [1, 2], [3], [4]]}, "rows of numbers"),
        ({"class_features": np.array([[0.0], [1], [np.inf], [1]])}, "class_features: .* found another at row 2"),
        (
            {"kind": "near-4", "class_features": np.eye(4)},
            "^noise near-4: 4 classes .*; give near or near-1 to near-3$",
        ),
        ({"kind": "near-0", "class_features": np.eye(4)}, "^noise near-0: expected 1 or more nearest classes"),
        (
            {"kind": "near--1", "class_features": np.eye(4)},
            "no kind 'near--1' .*; expected none, .* near-3:0.4",
        ),
        ({"kind": "near-all", "class_features": np.eye(4)}, "no kind 'near-all'"),
        ({"kind": "near", "features": np.eye(4), "class_features": np.eye(4)}, "^features: go with kind 'instance'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        corrupt([0, 1, 2, 3], 4, **{"kind": "near", **arguments})  # type: ignore[arg-type]


def test_a_matrix_needs_the_class_features_too() -> None:
    with pytest.raises(InputError, match=r"class_features: go with kind 'near' .* 'near-2' without them"):
        noise.transition_matrix("near-2", 3, 0.4)
    with pytest.raises(InputError, match=r"class_features: go with kind 'near' .* found 'pair'"):
        noise.transition_matrix("pair", 3, 0.4, np.eye(3))
    with pytest.raises(InputError, match=r"kind 'instance-likely' has no formula; those that have are .*pair, near$"):
        noise.transition_matrix("inst-likely", 3, 0.4)


@pytest.mark.parametrize(
    ("text", "spec", "written"),
    [
        ("near:0.4", noise.NoiseSpec("near", 0.4), "near:0.4"),
        ("near-1:0.4", noise.NoiseSpec("near", 0.4), "near:0.4"),
        ("near-03:0.4:exact", noise.NoiseSpec("near-3", 0.4), "near-3:0.4"),
        ("near-3:0.4:bernoulli", noise.NoiseSpec("near-3", 0.4, sampling="bernoulli"), "near-3:0.4:bernoulli"),
    ],
)
def test_the_written_forms_come_back(text: str, spec: noise.NoiseSpec, written: str) -> None:
    assert noise.parse(text) == spec == noise.parse(written)
    assert str(noise.parse(text)) == written
    assert spec.needs_class_features
    assert spec.needs_clip
    assert not spec.needs_features
    assert noise.NoiseSpec("near-1", 0.4) == noise.NoiseSpec("near", 0.4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("near", "noise 'near': expected a rate in 0..1, as in near:0.4"),
        ("near-0:0.4", "noise near-0: expected 1 or more"),
        ("near3:0.4", "no kind 'near3'"),
        ("near-3:0.4:often", "sampling: expected exact or bernoulli"),
    ],
)
def test_a_form_that_is_none_of_them_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        noise.parse(text)


def test_a_spec_is_applied_as_corrupt_would() -> None:
    true, features = [0, 1, 2, 3] * 10, classes(4)
    found = noise.parse("near-2:0.4").apply(true, 4, seed=5, features=np.ones((40, 1)), class_features=features)
    assert found.tolist() == corrupt(true, 4, "near-2", 0.4, 5, class_features=features)
    assert noise.parse("pair:0.4").apply(true, 4, 5, class_features=features).tolist() == corrupt(
        true, 4, "pair", 0.4, 5
    )


class TestInARun:
    def expected(self, model: str, names: tuple[str, ...], template: str = "a photo of a {}.", seed: int = 4):
        tower = learners.open_text_tower(Config(model=model))
        features = learners.zero_shot_prototypes(tower, names, template).numpy()
        return lambda true, kind: corrupt(true, len(names), kind, 0.3, seed, class_features=features)

    @pytest.mark.parametrize("learner", ["prompt", "prototypes"])
    def test_similar_are_classes_whose_names_are_to_the_text_tower(self, text_tower, tmp_path, learner):
        dataset = open_dataset(feature_file(tmp_path / "pets.npz"))
        config = Config(model=text_tower, epochs=1, seed=4, learner=learner, template="a type of {}")
        result = run(dataset, config, "near-2:0.3", tmp_path / "run")
        given_labels = labels_in(tmp_path / "run/labels.csv", NAMES)
        expected = self.expected(text_tower, NAMES, "a type of {}")(dataset.train.labels, "near-2")
        np.testing.assert_array_equal(given_labels, expected)
        assert (result.noise, result.wrong_labels) == ("near-2:0.3", 0.3)

    def test_a_label_file_is_made_without_an_image_tower(self, dspt, text_tower, photos):
        status, output, errors = dspt(
            *(
                "noise",
                photos,
                "--noise",
                "near:0.3",
                "--model",
                text_tower,
                "--seed",
                4,
                "--out",
                "given.csv",
                "--json",
            )
        )
        assert status == 0, errors
        told, dataset = json.loads(output), open_dataset(photos)
        expected = self.expected(text_tower, dataset.class_names)(dataset.train.labels, "near")
        np.testing.assert_array_equal(labels_in("given.csv", ("cat", "dog", "red_panda")), expected)
        assert (told["noise"], told["model"]) == ("near:0.3", text_tower)
        assert told["wrong"] == int(0.3 * len(expected))

    def test_a_run_and_a_label_file_have_the_same_labels_by_default(self, dspt, data, text_tower):
        for arguments in (("noise", data, "--out", "given.csv"), ("train", data, "--epochs", 1, "--out", "run")):
            status, _, errors = dspt(*arguments, "--noise", "near-3:0.4", "--model", text_tower, "-q")
            assert status == 0, errors
        np.testing.assert_array_equal(labels_in("given.csv", NAMES), labels_in("run/labels.csv", NAMES))

    def test_folders_are_named_after_it(self, dspt, data, text_tower, tmp_path):
        options = ("--model", text_tower, "--epochs", 1, "-q")
        assert dspt("train", data, "--noise", "near-3:0.40", *options)[0] == 0
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["pets-dspt-near-3-0.4-seed1"]

    def test_more_neighbours_than_classes_are_refused_before_anything_is_written(
        self, dspt, data, text_tower, tmp_path
    ):
        for command in ("noise", "train"):
            status, output, errors = dspt(command, data, "--noise", "near-4:0.4", "--model", text_tower, "-q")
            assert (status, output) == (2, "")
            assert errors == "dspt: noise near-4: 4 classes have no 4 others each; give near or near-1 to near-3\n"
        assert list(tmp_path.iterdir()) == []

    def test_a_network_from_scratch_has_no_text_tower(self):
        with pytest.raises(InputError, match=r"^noise near:0.3: it looks at CLIP's features, .* give file:labels.csv"):
            run("embedded", NetworkConfig(epochs=1), "near:0.3", "never/made")
