"""Claims about label noise, against Philox words read in plain Python, counts and matrices."""

import hashlib
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dspt import noise
from dspt.internal.errors import InputError

claim = settings(max_examples=60)
kinds = st.sampled_from(["symmetric", "pair"])
samplings = st.sampled_from(["exact", "bernoulli"])
rates = st.floats(0, 1)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[list[int], int]:
    num_classes = draw(st.integers(2, 12))
    return draw(st.lists(st.integers(0, num_classes - 1), max_size=60)), num_classes


def words(n: int, seed: int, kind: str, sampling: str) -> list[int]:
    """The first n words of the noise stream."""
    address = f"dspt\x1f{seed}\x1fnoise\x1f{kind}\x1f{sampling}"
    digest = hashlib.sha256(address.encode()).digest()
    key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
    return np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(n).tolist()


def unit(word: int) -> float:
    return (word >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_symmetric_noise_is_what_the_words_say(seed: int) -> None:
    true = [i % 5 for i in range(30)]
    raw = words(60, seed, "symmetric", "exact")
    wanted = list(true)
    for i in sorted(range(30), key=lambda i: raw[i])[:12]:
        wanted[i] = (true[i] + 1 + int(unit(raw[30 + i]) * 4)) % 5
    assert noise.corrupt(true, 5, "symmetric", 0.4, seed) == wanted


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bernoulli_symmetric_noise_is_what_the_words_say(seed: int) -> None:
    true = [i % 5 for i in range(30)]
    raw = words(60, seed, "symmetric", "bernoulli")
    wanted = [(y + 1 + int(unit(raw[30 + i]) * 4)) % 5 if unit(raw[i]) < 0.4 else y for i, y in enumerate(true)]
    assert noise.corrupt(true, 5, "symmetric", 0.4, seed, "bernoulli") == wanted


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_matrix_noise_is_what_the_words_say(seed: int) -> None:
    transition = [[0.5, 0.0, 0.3], [0.25, 1.0, 0.3], [0.25, 0.0, 0.4]]
    true = [i % 3 for i in range(30)]
    wanted = []
    for word, k in zip(words(30, seed, "matrix", "bernoulli"), true, strict=True):
        total, j = transition[0][k], 0
        while unit(word) >= total:
            j += 1
            total += transition[j][k]
        wanted.append(j)
    assert noise.corrupt(true, 3, "matrix", seed=seed, transition=np.array(transition)) == wanted


def test_noise_for_a_known_seed_never_changes() -> None:
    # Read by hand from the Philox words of seed 1, as the tests above do.
    raw = words(20, 1, "symmetric", "exact")
    chosen = sorted(range(10), key=lambda i: raw[i])[:4]
    by_hand = [(i + 1 + int(unit(raw[10 + i]) * 9)) % 10 if i in chosen else i for i in range(10)]
    assert by_hand == [0, 1, 4, 4, 4, 5, 6, 6, 0, 9]
    assert noise.corrupt(list(range(10)), 10, "symmetric", 0.4, seed=1) == by_hand


@claim
@given(labelled(), kinds, rates, st.integers())
def test_exact_sampling_changes_exactly_the_rate(
    problem: tuple[list[int], int], kind: str, rate: float, seed: int
) -> None:
    true, num_classes = problem
    noisy = noise.corrupt(true, num_classes, kind, rate, seed)
    changed = sum(a != b for a, b in zip(true, noisy, strict=True))
    assert changed == int(rate * len(true))
    assert all(0 <= label < num_classes for label in noisy)


@pytest.mark.parametrize(("rate", "n", "changed"), [(0.29, 100, 28), (0.5, 100, 50), (0.4, 4128, 1651), (0.1, 9, 0)])
def test_a_product_that_binary_rounds_down_is_taken_as_written(rate: float, n: int, changed: int) -> None:
    noisy = noise.corrupt(np.zeros(n, dtype=int), 3, "pair", rate)
    assert noisy.sum() == changed


@claim
@given(labelled(), samplings, rates, st.integers())
def test_pair_noise_moves_to_the_next_class_only(
    problem: tuple[list[int], int], sampling: str, rate: float, seed: int
) -> None:
    true, num_classes = problem
    noisy = noise.corrupt(true, num_classes, "pair", rate, seed, sampling)
    for before, after in zip(true, noisy, strict=True):
        assert after in (before, 0 if before == num_classes - 1 else before + 1)


@claim
@given(labelled(), kinds, samplings, st.tuples(rates, rates), st.integers())
def test_a_lower_rate_makes_some_of_the_mistakes_of_a_higher_one(
    problem: tuple[list[int], int], kind: str, sampling: str, two: tuple[float, float], seed: int
) -> None:
    true, num_classes = problem
    less, more = (noise.corrupt(true, num_classes, kind, rate, seed, sampling) for rate in sorted(two))
    assert all(b in (a, c) for a, b, c in zip(true, less, more, strict=True))


@claim
@given(labelled(), kinds, samplings, st.integers())
def test_rate_zero_changes_nothing_and_rate_one_everything(
    problem: tuple[list[int], int], kind: str, sampling: str, seed: int
) -> None:
    true, num_classes = problem
    assert noise.corrupt(true, num_classes, kind, 0.0, seed, sampling) == true
    noisy = noise.corrupt(true, num_classes, kind, 1.0, seed, sampling)
    assert all(a != b for a, b in zip(true, noisy, strict=True))


def test_noise_depends_on_the_arguments_and_not_on_earlier_calls() -> None:
    true = [i % 7 for i in range(200)]
    first = noise.corrupt(true, 7, "sym", 0.6, seed=3)
    noise.corrupt(true, 7, "pair", 0.2, seed=3)
    np.random.seed(0)
    torch.manual_seed(0)
    assert noise.corrupt(true, 7, "symmetric", 0.6, seed=3) == first
    assert noise.corrupt(true, 7, "symmetric", 0.6, seed=4) != first
    assert noise.corrupt(true, 7, "symmetric", 0.6, seed=3, sampling="bernoulli") != first
    assert true == [i % 7 for i in range(200)]


@pytest.mark.parametrize("sampling", ["exact", "bernoulli"])
def test_symmetric_noise_is_uniform_over_the_other_classes(sampling: str) -> None:
    n, num_classes = 60_000, 6
    true = np.arange(n) % num_classes
    noisy = noise.corrupt(true, num_classes, "symmetric", 0.4, 1, sampling)
    for k in range(num_classes):
        counts = np.bincount(noisy[true == k], minlength=num_classes)
        assert stats.chisquare(np.delete(counts, k)).pvalue > 1e-4
        assert stats.binomtest(int(counts[k]), n // num_classes, 0.6).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_bernoulli_noise_and_its_matrix_have_one_distribution(kind: str) -> None:
    n, num_classes = 50_000, 5
    true = np.arange(n) % num_classes
    transition = noise.transition_matrix(kind, num_classes, 0.3)
    draws = [
        noise.corrupt(true, num_classes, kind, 0.3, 2, "bernoulli"),
        noise.corrupt(true, num_classes, "matrix", seed=2, transition=transition),
    ]
    for noisy in draws:
        for k in range(num_classes):
            counts = np.bincount(noisy[true == k], minlength=num_classes)
            possible = transition[:, k] > 0
            assert counts[~possible].sum() == 0
            wanted = transition[possible, k] * counts.sum()
            assert stats.chisquare(counts[possible], wanted).pvalue > 1e-4


@pytest.mark.parametrize(("word", "drawn"), [(0, 1), (2**64 - 1, 3)])
def test_the_first_and_the_last_word_give_classes_of_the_column(
    monkeypatch: pytest.MonkeyPatch, word: int, drawn: int
) -> None:
    monkeypatch.setattr(noise.corruption.Stream, "raw", lambda self, n: np.full(n, word, dtype=np.uint64))
    transition = np.eye(5)
    transition[:, 0] = [0, 1 / 3, 1 / 3, 1 / 3 - 9e-7, 0]
    assert noise.corrupt([0], 5, "matrix", transition=transition) == [drawn]


def test_transition_matrices_are_those_of_the_paper() -> None:
    np.testing.assert_allclose(
        noise.transition_matrix("sym", 3, 0.4), [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    )
    np.testing.assert_allclose(noise.transition_matrix("pair", 3, 0.4), [[0.6, 0, 0.4], [0.4, 0.6, 0], [0, 0.4, 0.6]])
    np.testing.assert_array_equal(noise.transition_matrix("clean", 3, 0.4), np.eye(3))
    with pytest.raises(InputError, match="has no formula"):
        noise.transition_matrix("matrix", 3, 0.4)


@claim
@given(kinds, st.integers(2, 40), rates)
def test_columns_of_transition_matrices_are_distributions(kind: str, num_classes: int, rate: float) -> None:
    transition = noise.transition_matrix(kind, num_classes, rate)
    assert (transition >= 0).all()
    np.testing.assert_allclose(transition.sum(axis=0), 1)
    np.testing.assert_allclose(transition.diagonal(), 1 - rate)


def test_labels_come_back_in_the_type_they_were_given() -> None:
    true = [0, 1, 2, 3] * 5
    wanted = noise.corrupt(true, 4)
    assert type(wanted) is list
    assert {type(label) for label in wanted} == {int}
    assert noise.corrupt(tuple(true), 4) == tuple(wanted)
    assert noise.corrupt([np.int64(label) for label in true], 4) == wanted
    for dtype in (np.int64, np.int32, np.uint8, np.int8):
        array = noise.corrupt(np.array(true, dtype=dtype), 4)
        assert (array.dtype, array.tolist()) == (dtype, wanted)
    for torch_dtype in (torch.int64, torch.int32, torch.uint8):
        tensor = noise.corrupt(torch.tensor(true, dtype=torch_dtype), 4)
        assert (tensor.dtype, tensor.tolist()) == (torch_dtype, wanted)


def test_a_series_keeps_its_index_and_name() -> None:
    pandas = pytest.importorskip("pandas")
    true = [0, 1, 2, 3] * 5
    for dtype in ("int64", "int8", "Int64"):
        series = pandas.Series(true, index=range(100, 120), name="breed", dtype=dtype)
        noisy = noise.corrupt(series, 4)
        assert noisy.tolist() == noise.corrupt(true, 4)
        assert noisy.index.equals(series.index)
        assert (noisy.name, noisy.dtype) == ("breed", series.dtype)
        assert series.tolist() == true


@pytest.mark.parametrize("labels", [[], (), np.zeros(0, dtype=np.int64), torch.zeros(0).long()])
def test_no_labels_stay_no_labels(labels: object) -> None:
    noisy = noise.corrupt(labels, 3)
    assert type(noisy) is type(labels)
    assert len(noisy) == 0


def test_read_only_labels_are_not_written_to() -> None:
    true = np.arange(10)
    true.setflags(write=False)
    assert (noise.corrupt(true, 10, "pair", 1.0) == (true + 1) % 10).all()
    assert noise.corrupt(true, 10, "none") is not true


def test_a_type_too_narrow_for_the_classes_is_refused() -> None:
    for labels in (np.zeros(500, dtype=np.int8), torch.zeros(500, dtype=torch.int8)):
        with pytest.raises(InputError, match=r"int8 cannot hold class \d+; use int64"):
            noise.corrupt(labels, 500, "symmetric", 0.9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rate": 40}, "noise rate: expected a number in 0..1, found 40; did you mean 0.4?"),
        ({"rate": -0.1}, "noise rate: expected a number in 0..1, found -0.1$"),
        ({"rate": math.nan}, "found nan$"),
        ({"rate": "0.4"}, "found '0.4'$"),
        ({"rate": True}, "found True$"),
        ({"num_classes": 1}, "num_classes: expected 2 or more, found 1"),
        ({"num_classes": 4.0}, "num_classes: expected 2 or more, found 4.0"),
        ({"labels": [0, 1, 4, 9]}, "labels: expected 0..3 for 4 classes, found 4 at row 2"),
        ({"labels": [0, -1]}, "labels: expected 0..3 for 4 classes, found -1 at row 1"),
        ({"labels": [0, 1, 1.5]}, "labels: expected integers, found 1.5 at row 2"),
        ({"labels": (0, "1")}, "labels: expected integers, found '1' at row 1"),
        ({"labels": np.array([0.0, 1.0])}, "labels: expected integers, found 0.0 at row 0"),
        ({"labels": torch.zeros(2, dtype=torch.bfloat16)}, "labels: expected"),
        ({"labels": [True, False]}, "labels: expected integers, found True at row 0"),
        ({"labels": ["cat", "dog"]}, "labels: expected integers, found 'cat' at row 0"),
        ({"labels": [0, None]}, "labels: expected integers, found None at row 1"),
        ({"labels": [[0], [1]]}, r"labels: expected one integer per sample, found shape \(2, 1\)"),
        ({"labels": [[0], [1, 2]]}, "labels: expected one integer per sample"),
        ({"kind": "asym"}, "noise: no kind 'asym'; expected none, sym:0.4"),
        ({"sampling": "poisson"}, "sampling: expected exact or bernoulli, found 'poisson'"),
        ({"kind": 3}, "noise: no kind 3; expected"),
        ({"kind": "matrix"}, "transition: goes with kind 'matrix'"),
        ({"kind": "pair", "transition": np.eye(4)}, "goes with kind 'matrix' and only with it"),
    ],
)
def test_bad_input_is_named_with_its_value(arguments: dict[str, object], sentence: str) -> None:
    given_arguments = {"labels": [0, 1, 2, 3], "num_classes": 4, **arguments}
    with pytest.raises(InputError, match=sentence):
        noise.corrupt(**given_arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transition", "sentence"),
    [
        ([[1.0]], r"expected 2 x 2 for 2 classes, found shape \(1, 1\)"),
        ([[1.1, 0], [-0.1, 1]], "found -0.1 at row 1, column 0"),
        ([[math.nan, 0], [0, 1]], "found nan at row 0, column 0"),
        ([[math.inf, 0], [0, 1]], "column 0 sums to inf"),
        ([[1, 0.5], [0, 0.4]], "column 1 sums to 0.9; T"),
        ([[0.6, 0.4], [0.1, 0.9]], "column 0 sums to 0.7; its rows sum to 1, so transpose it"),
        ([["a", "b"], ["c", "d"]], "expected a matrix of numbers"),
    ],
)
def test_a_matrix_that_is_no_transition_is_refused(transition: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        noise.corrupt([0, 1], 2, "matrix", transition=transition)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("none", noise.NoiseSpec("none")),
        ("clean", noise.NoiseSpec("none")),
        ("sym:0.4", noise.NoiseSpec("symmetric", 0.4)),
        ("symmetric:0.4:exact", noise.NoiseSpec("symmetric", 0.4)),
        ("sym:0.4:bernoulli", noise.NoiseSpec("symmetric", 0.4, sampling="bernoulli")),
        ("pair:0.2", noise.NoiseSpec("pair", 0.2)),
        ("matrix:a/T.npy", noise.NoiseSpec("matrix", path="a/T.npy", sampling="bernoulli")),
        (r"file:C:\labels.csv", noise.NoiseSpec("file", path=r"C:\labels.csv")),
        ("file:a/b.pt#worse_label", noise.NoiseSpec("file", path="a/b.pt#worse_label")),
    ],
)
def test_every_form_is_read_and_written_back(text: str, spec: noise.NoiseSpec) -> None:
    assert noise.parse(text) == spec
    assert noise.parse(str(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


@claim
@given(kinds, rates, samplings)
def test_any_rate_survives_being_written_down(kind: str, rate: float, sampling: str) -> None:
    spec = noise.NoiseSpec(kind, rate, sampling=sampling)
    assert noise.parse(str(spec)) == spec


def test_the_usual_forms_are_written_as_they_are_typed() -> None:
    for text in ("none", "sym:0.4", "pair:0.2", "sym:0.4:bernoulli", "matrix:T.npy", "file:l.csv"):
        assert str(noise.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "noise: no kind ''; expected none, sym:0.4"),
        ("sym40", "noise: no kind 'sym40'"),
        ("symm:0.4", r"noise: no kind 'symm' \(did you mean sym\?\); expected none, sym:0.4"),
        ("sym", "noise 'sym': expected a rate in 0..1, as in sym:0.4"),
        ("pair:", "noise 'pair:': expected a rate in 0..1, as in pair:0.4"),
        ("sym:40", "did you mean 0.4?"),
        ("sym:40%", "noise 'sym:40%': expected a rate"),
        ("sym:nan", "found nan"),
        ("sym:0.4:often", "sampling: expected exact or bernoulli, found 'often'"),
        ("inst:0.3:exact", "noise 'inst:0.3:exact': inst fixes no count of wrong labels; leave ':exact' out"),
        ("none:0.4", "none takes nothing after it"),
        ("matrix:", "matrix needs a file"),
        ("file", "file needs a file"),
    ],
)
def test_a_form_that_is_none_of_them_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        noise.parse(text)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "file"}, "file needs a file"),
        ({"kind": "pair", "path": "T.npy"}, "pair takes no file"),
        ({"kind": "none", "rate": 0.4}, "none takes no rate, found 0.4"),
        ({"kind": "wild"}, "no kind 'wild'"),
    ],
)
def test_a_contradictory_spec_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        noise.NoiseSpec(**fields)  # type: ignore[arg-type]


def test_a_spec_is_applied_as_corrupt_would(tmp_path: Path) -> None:
    true = [0, 1, 2, 3] * 10
    for text in ("sym:0.4", "pair:0.3", "sym:0.4:bernoulli", "none"):
        spec = noise.parse(text)
        found = spec.apply(true, 4, seed=5)
        assert found.dtype == np.int64
        wanted = noise.corrupt(true, 4, spec.kind, spec.rate, 5, spec.sampling)
        assert found.tolist() == wanted
    transition = np.roll(np.eye(4), 1, axis=0)
    np.save(tmp_path / "T.npy", transition)
    np.savetxt(tmp_path / "T.csv", transition, delimiter=",")
    for name in ("T.npy", "T.csv"):
        found = noise.parse(f"matrix:{tmp_path / name}").apply(torch.tensor(true), 4, seed=5)
        assert found.tolist() == [(label + 1) % 4 for label in true]
    noise.write_labels(tmp_path / "given.csv", found)
    again = noise.parse(f"file:{tmp_path / 'given.csv'}").apply(true, 4, seed=9)
    assert again.tolist() == found.tolist()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,0\n0,x\n", "transition: expected numbers, found 0,x at line 2 of"),
        ("1,0\n0\n", "found lines of different lengths"),
        ("", "expected 2 x 2 for 2 classes"),
        ("1,0\n0,0.5\n", "column 1 sums to 0.5"),
    ],
)
def test_a_matrix_file_with_a_mistake_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "T.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        noise.parse(f"matrix:{tmp_path / 'T.csv'}").apply([0, 1], 2, seed=1)


@pytest.mark.parametrize("name", ["labels.csv", "labels.npy", "deeper/labels.CSV"])
def test_labels_are_read_back_as_they_were_written(tmp_path: Path, name: str) -> None:
    labels = [3, 0, 2, 2, 1]
    for given_labels in (labels, np.array(labels, dtype=np.uint8), torch.tensor(labels)):
        noise.write_labels(tmp_path / name, given_labels)
        found = noise.read_labels(tmp_path / name, 4, 5)
        assert (found.dtype, found.tolist()) == (np.int64, labels)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_written_labels_are_plain_files(tmp_path: Path) -> None:
    noise.write_labels(tmp_path / "labels.csv", [3, 0])
    assert (tmp_path / "labels.csv").read_bytes() == b"index,label\n0,3\n1,0\n"
    noise.write_labels(tmp_path / "labels.npy", [3, 0])
    array = np.load(tmp_path / "labels.npy", allow_pickle=False)
    assert (array.dtype, array.tolist()) == (np.int64, [3, 0])


@pytest.mark.parametrize(
    "text",
    [
        "index,label\n1,0\n0,3\n2,2\n",
        "label\n3\n0\n2\n",
        "label\r\n3\r\n0\r\n2\r\n\r\n",
        "\ufeffindex,label\n0,3\n1,0\n2,2",
        'index, label\n0, "3"\n1, 0\n2, 2\n',
    ],
)
def test_label_files_of_other_hands_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode())
    assert noise.read_labels(path, 4, 3).tolist() == [3, 0, 2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected the header item,label or index,label or label, found nothing"),
        ("\n\n", "found nothing"),
        ("3\n0\n2\n", "expected the header item,label or index,label or label, found 3"),
        ("index;label\n0;3\n", "found index;label"),
        ("label\n", "expected 3 labels, found 0"),
        ("label\n3\n0\n", "expected 3 labels, found 2"),
        ("label\n3\n0\n2\n1\n", "expected 3 labels, found 4"),
        ("label\n3\n0\n4\n", "expected 0..3 for 4 classes, found 4 at line 4 of .*labels.csv"),
        ("label\n3\n-1\n2\n", "found -1 at line 3 of .*labels.csv"),
        ("label\n3\n1.0\n2\n", "expected integers label, found 1.0 at line 3"),
        ("label\n3\n1_0\n2\n", "found 1_0 at line 3"),
        (f"label\n3\n{'9' * 30}\n2\n", "found 9+ at line 3"),
        ("index,label\n0,3\n1\n2,2\n", "expected integers index,label, found 1 at line 3"),
        ("index,label\n0,3\n1,\n2,2\n", "found 1, at line 3"),
        ("index,label\n0,3\n0,1\n2,2\n", "index: expected each of 0..2 once, found 0 at line 3"),
        ("index,label\n0,3\n1,1\n3,2\n", "index: expected each of 0..2 once, found 3 at line 4"),
    ],
)
def test_a_label_file_with_a_mistake_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        noise.read_labels(path, 4, 3)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.array([0, 1]), "expected 3 labels, found 2"),
        (np.array([0, 1, 4]), "expected 0..3 for 4 classes, found 4 at row 2 of .*labels.npy"),
        (np.array([0.0, 1.0, 2.0]), r"one array of integers, found float64 of shape \(3,\)"),
        (np.array([[0, 1, 2]]), r"one array of integers, found int64 of shape \(1, 3\)"),
        (np.array([0, 1, None], dtype=object), "not a readable .npy file"),
    ],
)
def test_a_label_array_with_a_mistake_is_refused(tmp_path: Path, array: np.ndarray, sentence: str) -> None:
    path = tmp_path / "labels.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(InputError, match=sentence):
        noise.read_labels(path, 4, 3)


@pytest.mark.parametrize("name", ["labels.csv", "labels.npy"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match=rf"{name}: no such file"):
        noise.read_labels(path, 4, 3)
    path.write_bytes(b"\xff\xfe\x00 not what it says")
    with pytest.raises(InputError, match=rf"{name}: not a readable"):
        noise.read_labels(path, 4, 3)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=rf"{name}: no such file"):
        noise.read_labels(path, 4, 3)


def test_an_archive_or_an_empty_file_is_no_label_array(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    for content in (b"", b"PK\x03\x04 zip", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable"):
            noise.read_labels(path, 4, 3)


def test_other_extensions_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("labels.txt", "labels", "labels.pkl"):
        with pytest.raises(InputError, match=r"expected a \.csv or \.npy file"):
            noise.write_labels(tmp_path / name, [0, 1])
        with pytest.raises(InputError, match=r"expected a \.csv, \.npy, \.npz or \.pt file"):
            noise.read_labels(tmp_path / name, 4, 2)
    with pytest.raises(InputError, match="labels: expected 0 or more, found -1 at row 1"):
        noise.write_labels(tmp_path / "labels.csv", [0, -1])
    assert list(tmp_path.iterdir()) == []


def test_the_module_does_not_wait_for_torch() -> None:
    code = "import sys, dspt.noise; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_transition_alone_is_enough():
    cycle = np.eye(3)[:, [1, 2, 0]].T
    assert noise.corrupt([0, 1, 2], 3, transition=cycle) == [2, 0, 1]
    assert noise.corrupt([0, 1, 2], 3, transition=cycle) == noise.corrupt([0, 1, 2], 3, "matrix", transition=cycle)
