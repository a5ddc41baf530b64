"""What an audit finds, and the folder it is kept in."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from audits import with_findings
from PIL import Image, ImageFilter

import dspt
from dspt import PromptClassifier
from dspt.auditing import folder
from dspt.auditing.audit import COLUMNS, Audit
from dspt.auditing.judge import judge, nearest_examples
from dspt.auditing.pictures import look_at_all
from dspt.auditing.report import write_page
from dspt.auditing.samples import audit_dataset
from dspt.data.dataset import Dataset, Split
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.review.decisions import Decision, Decisions
from dspt.workflows.audit import audit, refit

CLASSES = ("ant", "bee", "cow", "doe")
QUIET = Reporter(silent=True)


def clouds(n=320, apart=3.0, seed=0, classes=4):
    random = np.random.default_rng(seed)
    means = apart * random.standard_normal((classes, 12))
    true = np.arange(n) % classes
    return (means[true] + random.standard_normal((n, 12))).astype(np.float32), true


def noisy(true, rate=0.2, kind="pair", classes=4):
    return np.asarray(dspt.corrupt(true, classes, kind, rate))


def made(probabilities, labels, **facts) -> Audit:
    """Return an audit with these probabilities and nothing else of note."""
    n, classes = np.shape(probabilities)
    usual = {
        "source": "x",
        "class_names": CLASSES[:classes],
        "items": tuple(f"{i}.png" for i in range(n)),
        "splits": ("train",) * n,
        "noise_rate": 0.1,
        "noise_rate_error": 0.02,
        "can_tell": True,
        "class_noise_rates": np.zeros(classes),
        "fits_no_class": np.full(n, 0.5, np.float32),
        "is_outlier": np.zeros(n, bool),
    }
    return Audit(
        **{**usual, **facts}, labels=np.asarray(labels), probabilities=np.asarray(probabilities, dtype=np.float32)
    )


class TestTheTable:
    def test_has_a_row_a_sample_in_order_and_finds_the_wrong_labels(self):
        x, true = clouds()
        labels = noisy(true)
        found = dspt.audit(x, labels, model=None)
        assert found.columns.tolist() == [name for name in COLUMNS if name not in ("item", "split")]
        assert found.index.tolist() == list(range(len(x)))
        wrong = labels != true
        assert (found.is_label_issue.to_numpy() == wrong).mean() > 0.97
        assert (found.given_label == labels).all()
        assert (found.predicted_label == true).mean() > 0.97
        assert abs(found.attrs["noise_rate"] - 0.2) <= 2 * found.attrs["noise_rate_error"]

    def test_labels_come_back_as_they_were_written(self):
        x, true = clouds()
        found = dspt.audit(x, np.array(CLASSES)[noisy(true)], model=None)
        assert set(found.predicted_label) == set(CLASSES)
        assert (found.predicted_label == np.array(CLASSES)[true]).mean() > 0.97

    def test_tells_what_the_probabilities_tell(self):
        """Worked out by hand: sure and right, sure and wrong, undecided."""
        found = made(
            [[0.9, 0.08, 0.02], [0.9, 0.08, 0.02], [0.25, 0.35, 0.4]],
            [0, 1, 2],
            class_noise_rates=np.array([0.1, 0.92, 0.6]),
            duplicate_groups=((0, 2),),
        ).table()
        assert found.is_label_issue.tolist() == [False, True, False]
        np.testing.assert_allclose(found.label_quality, [0.9, 0.08, 0.4])
        assert found.predicted_label.tolist() == ["ant", "ant", "cow"]
        assert found.runner_up.tolist() == ["bee", "bee", "bee"]
        np.testing.assert_allclose(found.runner_up_probability, [0.08, 0.08, 0.35])
        assert found.is_near_boundary.tolist() == [False, False, True]
        assert found.class_noise_rate.tolist() == [0.1, 0.92, 0.6]
        assert found.duplicate_group.tolist() == [0, pd.NA, 0]

    def test_the_best_spent_looks_are_the_most_doubtful_labels(self):
        found = made([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.4, 0.6]], [0, 0, 0, 0])
        assert found.looks(3).tolist() == [1, 3, 2]
        assert found.suspects.tolist() == [1, 3]
        assert found.looks(100).tolist() == [1, 3, 2, 0]

    def test_confusion_is_the_expected_number_of_each_mistake(self):
        found = made([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]], [0, 0, 1], noise_rate=1.4 / 3).confusion()
        np.testing.assert_allclose(found, [[1.1, 0.9], [0.5, 0.5]], rtol=1e-6)

    def test_doubts_add_up_to_the_estimate_by_one_change_of_all_odds(self):
        random = np.random.default_rng(0)
        wrong = random.uniform(0.1, 1, 200) ** 3
        wrong[:5] = [0.99999, 0.5, 1e-3, 1, 0]
        labels = np.zeros(200, np.int64)
        for rate in (0.02, 0.2, 0.6, 0.9):
            found = made(np.stack([1 - wrong, wrong], 1), labels, noise_rate=rate)
            doubts = found.doubts
            assert doubts.sum() == pytest.approx(200 * rate, abs=1e-4)
            assert doubts.sum() == pytest.approx(found.confusion()[0, 1], abs=1e-3)
            odds = doubts[5:] / (1 - doubts[5:]) * (1 - wrong[5:]) / wrong[5:]
            np.testing.assert_allclose(odds, odds[0], rtol=1e-3)
            assert doubts.max() <= 1
            assert doubts[4] == 0

    def test_what_is_decided_is_told_apart_and_not_counted_as_still_wrong(self):
        """Worked out by hand: of ten, one is corrected, one kept, one removed; a third of nine were wrong."""
        after = np.zeros(10, np.int64)
        after[0], after[2] = 1, -1
        p = np.full((10, 2), 0.5)
        p[0], p[1] = [0, 1], [1, 0]
        decided = np.arange(10) < 3
        found = made(p, np.zeros(10, np.int64), noise_rate=1 / 3, decided=decided, corrected=after)
        assert found.settled == {"corrected": 1, "kept": 1, "removed": 1}
        assert found.still_wrong == pytest.approx(2)
        np.testing.assert_allclose(found.doubts, [0, 0, 0, *[2 / 7] * 7])
        np.testing.assert_allclose(found.confusion()[0], [5, 2])
        told = folder.summary(found)
        assert (told["decided"], told["still_wrong"]) == (found.settled, 2)

    def test_calls_nothing_wrong_where_nothing_can_be_told(self):
        random = np.random.default_rng(0)
        found = dspt.audit(random.standard_normal((60, 8)), random.integers(0, 3, 60), model=None)
        assert found.attrs == {"noise_rate": None, "noise_rate_error": None, "can_tell": False}
        assert found.label_quality.isna().all()
        assert found.runner_up.isna().all()
        assert not found.is_label_issue.any()
        assert (found.predicted_label == found.given_label).all()

    def test_with_names_uses_the_text_tower(self, text_tower):
        x, true = clouds()
        x = np.pad(x, ((0, 0), (0, 4)))
        found = dspt.audit(x, noisy(true), str(text_tower), CLASSES)
        assert len(found) == len(x)
        with pytest.raises(InputError, match=r"features: 12 wide, but .* gives class features of width 16"):
            dspt.audit(x[:, :12], noisy(true), str(text_tower), CLASSES)

    def test_names_that_become_one_prompt_are_no_reason_to_stop(self, text_tower):
        x, true = clouds()
        x = np.pad(x, ((0, 0), (0, 4)))
        found = dspt.audit(x, noisy(true), str(text_tower), ("Bag", "coat", "bag", "shoe_"))
        assert (found.predicted_label == true).mean() > 0.95

    def test_the_classifier_audits_with_its_own_model_fitted_or_not(self, text_tower):
        x, true = clouds()
        x = np.pad(x, ((0, 0), (0, 4)))
        expected = dspt.audit(x, noisy(true), str(text_tower), CLASSES)
        found = PromptClassifier(str(text_tower), class_names=CLASSES).audit(x, noisy(true))
        pd.testing.assert_frame_equal(found, expected)

    def test_what_somebody_has_seen_is_believed(self):
        x, true = clouds()
        known = [(c + 2) % 4 if i == 3 else None for i, c in enumerate(true.tolist())]
        found = dspt.audit(x, true, model=None, known=known)
        assert found.predicted_label[3] == known[3]
        names = np.array(CLASSES)
        found = dspt.audit(x, names[true], model=None, known=[None if c is None else CLASSES[c] for c in known])
        assert found.predicted_label[3] == CLASSES[known[3]]
        with pytest.raises(InputError, match="known: 2 labels for 320 samples"):
            dspt.audit(x, true, model=None, known=[1, 2])
        with pytest.raises(InputError, match="known: 9 at row 0 is not one of the labels"):
            dspt.audit(x, true, model=None, known=[9, *known[1:]])

    def test_numbers_without_names_may_be_any(self):
        x, true = clouds()
        found = dspt.audit(x, noisy(true) * 3_000_000 + 7, model=None)
        assert (found.predicted_label == true * 3_000_000 + 7).mean() > 0.97

    def test_no_readable_image_is_told_without_a_setting_that_there_is_not(self, tmp_path, clip):
        paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
        with pytest.raises(InputError, match=r"2 of 2 images cannot be used .*; replace them or leave them out$"):
            dspt.audit(paths, ["cat", "dog"], clip)

    def test_an_image_that_cannot_be_read_has_a_row_of_its_own(self, photos, clip):
        (photos / "cat" / "broken.png").write_bytes(b"no image")
        paths = sorted(map(str, photos.glob("*/*.png")))
        labels = [os.path.basename(os.path.dirname(path)) for path in paths]
        found = dspt.audit(paths, labels, clip)
        bad = next(i for i, path in enumerate(paths) if path.endswith("broken.png"))
        assert found.index.tolist() == list(range(len(paths)))
        assert found.image_issues[bad] == "broken"
        assert found.given_label[bad] == "cat"
        assert pd.isna(found.label_quality[bad])
        assert found.given_label[bad] == "cat"
        assert str(found.is_outlier.dtype) == str(found.is_near_boundary.dtype) == "boolean"
        assert not found[found.is_outlier.fillna(False)].index.isin([bad]).any()
        names = ["cat", "dog", "red_panda"]
        numbers = dspt.audit(paths, [names.index(c) for c in labels], clip, names)
        assert pd.api.types.is_integer_dtype(numbers.given_label)
        assert pd.api.types.is_integer_dtype(numbers.predicted_label)

    @pytest.mark.parametrize(
        ("labels", "options", "sentence"),
        [
            ([0, 1], {}, "labels: 2 of them for 4 samples"),
            ([0, 1, 2, 7], {"class_names": CLASSES}, "y: expected 0..3 for 4 classes, found 7 at row 3"),
            ([0, 1, 2, 3], {"model": "embedded"}, "class_names: needed, since y holds numbers"),
            ([0, 1, -1, 1], {}, "y: -1 at row 2 is below 0, which is no class; leave the sample out"),
            (["a", "a", "a", "a"], {}, "found 1 class; at least two are needed"),
            ([0, 1, 2, 3], {"class_names": ("a", "a", "b", "c")}, "'a' is there twice"),
        ],
    )
    def test_bad_input_is_one_sentence(self, labels, options, sentence):
        with pytest.raises(InputError, match=sentence):
            dspt.audit(np.eye(4, 6), labels, **{"model": None, **options})


def test_the_table_is_written_in_parts_that_are_the_whole(tmp_path, monkeypatch):
    found = with_findings()
    for name in ("whole.csv", "whole.parquet"):
        folder.write_table(found, tmp_path / name)
    parts = [len(part) for part in found.tables(25)]
    assert parts == [25, 25, 10]
    whole = Audit.tables
    monkeypatch.setattr(Audit, "tables", lambda self, most=25: whole(self, most))
    for name in ("parts.csv", "parts.parquet"):
        folder.write_table(found, tmp_path / name)
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "parts.parquet"), found.table())
    pd.testing.assert_frame_equal(pd.concat(list(found.tables(25)), ignore_index=True), found.table())


class TestTheJudge:
    @pytest.mark.parametrize("looked_at", [0, 30])
    def test_class_rates_are_the_mean_doubt_of_the_labels_given_as_a_class(self, looked_at):
        x, true = clouds()
        labels = noisy(true, 0.3)
        known = np.where(np.arange(len(true)) < looked_at, true, -1)
        judged = judge(x, labels, 5, known=known)
        facts = {"class_names": (*CLASSES, "eel"), "noise_rate": judged.posterior.noise_rate}
        seen = {"decided": known >= 0, "corrected": np.where(known >= 0, known, labels)}
        found = made(judged.posterior.probabilities, labels, **facts, **seen)
        wrong = np.where(known >= 0, known != labels, found.doubts)
        for c in range(4):
            assert judged.class_noise_rates[c] == pytest.approx(wrong[labels == c].mean(), rel=1e-5)
        counts = np.bincount(labels, minlength=5)
        assert np.nansum(judged.class_noise_rates * counts) == pytest.approx(len(labels) * facts["noise_rate"])
        assert np.isnan(judged.class_noise_rates[4])

    def test_strangers_fit_no_class(self):
        x, true = clouds()
        strangers = 12 * np.random.default_rng(5).standard_normal((6, 12)).astype(np.float32)
        judged = judge(np.concatenate([x, strangers]), np.concatenate([true, [0, 1, 2, 3, 0, 1]]), 4)
        assert judged.is_outlier[-6:].all()
        assert judged.is_outlier[:-6].mean() < 0.02
        assert judged.fits_no_class[-6:].min() > np.quantile(judged.fits_no_class[:-6], 0.98)
        assert 0.4 < np.median(judged.fits_no_class) < 0.6

    def test_classes_that_are_one_are_told(self):
        x, true = clouds(classes=4)
        coin = np.random.default_rng(1).integers(0, 2, len(x))
        labels = np.where(true == 3, np.where(coin, 3, 4), true)  # what is one class has two names
        pairs = judge(x, labels, 5).inseparable
        assert [pair[:2] for pair in pairs] == [(3, 4)]
        assert judge(x, true, 4).inseparable == ()

    def test_names_that_are_one_word_are_told(self):
        x, true = clouds(classes=4)
        pairs = judge(x, true, 4, names=("cat", "dog", "Cats", "s")).inseparable
        assert [pair[:2] for pair in pairs] == [(0, 2)]
        assert pairs[0][2] < 0.5  # the images can be told apart

    def test_examples_are_the_nearest_surely_right_images_of_both_classes(self):
        x, true = clouds(n=80)
        labels = true.copy()
        labels[7] = (true[7] + 1) % 4
        quality = np.where(np.arange(80) == 7, 0.01, 0.99)
        quality[11] = 0.5  # not sure enough to be shown
        found = nearest_examples(x, labels, true, quality, np.array([7]))
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        for side, c in enumerate((labels[7], true[7])):
            pool = [i for i in range(80) if labels[i] == true[i] == c and i not in (7, 11)]
            expected = sorted(pool, key=lambda i: -float(unit[i] @ unit[7]))[:3]
            assert found[7, side].tolist() == expected
        assert (np.delete(found, 7, axis=0) == -1).all()

    @pytest.mark.parametrize(
        ("x", "labels"),
        [
            (np.zeros((10, 3)), [0, 1] * 5),
            (np.eye(2, 3), [0, 1]),
            (np.random.default_rng(0).standard_normal((5, 200)), [0, 0, 1, 1, 2]),
            (np.ones((6, 2)), [0] * 6),
        ],
    )
    def test_odd_sets_give_numbers(self, x, labels):
        found = judge(x.astype(np.float32), np.array(labels), 3)
        assert np.isfinite(found.fits_no_class).all()
        assert found.fits_no_class.shape == (len(x),)


def picture(kind, size=(96, 96)):
    """Return squares with some noise on them, and something the matter with them."""
    random = np.random.default_rng(len(kind))
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    squares = 60 + 130 * ((x // 24 + y // 24 + len(kind)) % 2)
    pixels = np.clip(squares[..., None] + 20 * random.standard_normal((size[1], size[0], 3)), 0, 255)
    if kind == "light":
        pixels[:] = 255
        pixels[:16, :16] = 0
    levels = {"blank": lambda p: p * 0 + 200, "dark": lambda p: p / 4}
    image = Image.fromarray(levels.get(kind, lambda p: p)(pixels).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(9)) if kind == "blurry" else image


class TestALookAtTheImages:
    @pytest.mark.parametrize("kind", ["", "blank", "dark", "light", "blurry"])
    def test_tells_what_is_the_matter(self, kind):
        usual = [picture(str(i)) for i in range(5)]
        assert look_at_all([*usual, picture(kind)], QUIET).issues == ("",) * 5 + (kind,)

    @pytest.mark.parametrize(
        ("size", "issues"), [((20, 24), "tiny"), ((5, 5), "tiny;odd_size"), ((300, 60), "odd_aspect_ratio")]
    )
    def test_sizes_are_odd_beside_the_others(self, size, issues):
        usual = [picture(str(i)) for i in range(5)]
        assert look_at_all([*usual, picture("", size)], QUIET).issues[-1] == issues

    def test_a_set_of_small_images_has_no_tiny_ones(self):
        assert look_at_all([picture(str(i), (28, 28)) for i in range(5)], QUIET).issues == ("",) * 5

    def test_copies_are_found_the_same_byte_for_byte_first(self, tmp_path):
        one, other = picture("one"), picture("another")
        one.save(tmp_path / "a.png")
        (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
        other.save(tmp_path / "c.png")
        other.resize((80, 80)).save(tmp_path / "d.png")
        found = look_at_all([str(tmp_path / f"{name}.png") for name in "abcd"], QUIET)
        assert found.duplicate_groups == ((0, 1), (2, 3))
        assert found.identical_groups == 1

    def test_copies_of_an_image_that_is_also_there_in_another_size_are_counted_once(self, tmp_path):
        picture("one").save(tmp_path / "a.png")
        (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
        picture("one").resize((80, 80)).save(tmp_path / "c.png")
        found = look_at_all([str(tmp_path / f"{name}.png") for name in "abc"], QUIET)
        assert found.duplicate_groups == ((0, 1, 2),)
        assert found.identical_groups == 0

    def test_what_was_seen_is_not_opened_again(self, tmp_path, monkeypatch):
        files = []
        for i in range(4):
            picture(str(i)).save(tmp_path / f"{i}.png")
            os.utime(tmp_path / f"{i}.png", (1e9, 1e9))
            files.append(str(tmp_path / f"{i}.png"))
        # a file that has just been made may change again within a tick of its clock, and is not remembered
        monkeypatch.setattr("dspt.features.contents.SETTLED", -1.0)
        first = look_at_all(files[:3], QUIET, tmp_path / "looks.npy")
        opened = []
        real = dspt.auditing.pictures._record
        monkeypatch.setattr("dspt.auditing.pictures._record", lambda item: opened.append(item) or real(item))
        again = look_at_all(files, QUIET, tmp_path / "looks.npy")
        assert opened == files[3:]
        assert again.issues[:3] == first.issues
        (tmp_path / "looks.npy").write_bytes(b"damaged")
        look_at_all(files, QUIET, tmp_path / "looks.npy")
        assert len(opened) == 1 + 4


def dataset(n=120, rate=0.2):
    x, true = clouds(n)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    labels = noisy(true, rate)
    cut = 3 * n // 4
    return Dataset(
        "clouds", CLASSES, Split(unit[:cut], labels[:cut]), Split(unit[cut:], labels[cut:]), source="clouds.npz"
    )


class TestTheFolder:
    def test_gives_back_what_was_saved(self, tmp_path):
        found = audit(dataset(), tmp_path / "report", "none")
        again = folder.load(tmp_path / "report")
        pd.testing.assert_frame_equal(again.table(), found.table())
        assert again.splits.count("test") == 30
        assert folder.summary(again) == folder.summary(found)
        np.testing.assert_array_equal(again.examples, found.examples)
        table = pd.read_csv(tmp_path / "report" / "audit.csv")
        assert table.columns.tolist() == list(COLUMNS)
        assert table.is_label_issue.tolist() == found.is_label_issue.tolist()
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "report" / "audit.parquet"), found.table())
        assert (tmp_path / "report" / "index.html").exists()

    def test_summary_says_what_is_true_of_the_set(self, tmp_path):
        audit(dataset(), tmp_path / "report", "none")
        told = json.loads((tmp_path / "report" / "summary.json").read_text())["summary"]
        assert told["samples"] == 120
        assert abs(told["noise_rate"] - 0.2) <= 2 * told["noise_rate_error"]
        assert told["class_noise_rates"].keys() == set(CLASSES)

    def test_unknown_is_null(self):
        random = np.random.default_rng(0)
        x = random.standard_normal((60, 8)).astype(np.float32)
        nobody = Split(x[:0], np.empty(0, np.int64))
        found, _ = audit_dataset(Dataset("x", CLASSES[:3], Split(x, random.integers(0, 3, 60)), nobody), "none")
        told = folder.summary(found.audit)
        assert told["noise_rate"] is told["noise_rate_error"] is told["label_issues"] is None
        assert set(told["class_noise_rates"].values()) == {None}

    def test_a_report_that_was_stopped_is_not_taken_for_whole(self, tmp_path, monkeypatch):
        audit(dataset(), tmp_path / "report", "none")
        monkeypatch.setattr(folder, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            audit(dataset(rate=0.4), tmp_path / "report", "none")
        with pytest.raises(InputError, match=r"report .*: it was not finished; make one with 'dspt audit DATA'"):
            folder.load(tmp_path / "report")

    @pytest.mark.parametrize("name", [folder.EVIDENCE, folder.NAMES, folder.SUMMARY])
    def test_damage_is_one_sentence(self, tmp_path, name):
        audit(dataset(), tmp_path / "report", "none")
        file = tmp_path / "report" / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(InputError, match=f"report {tmp_path / 'report'}: "):
            folder.load(tmp_path / "report")

    def test_files_of_two_reports_are_told_apart(self, tmp_path):
        audit(dataset(), tmp_path / "one", "none")
        audit(dataset(rate=0.4), tmp_path / "two", "none")
        (tmp_path / "one" / folder.EVIDENCE).replace(tmp_path / "two" / folder.EVIDENCE)
        with pytest.raises(InputError, match="its files do not belong together"):
            folder.load(tmp_path / "two")

    def test_is_not_written_over_anything_else_nor_among_the_images(self, tmp_path, photos):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "thesis.docx").write_text("years of work")
        with pytest.raises(InputError, match=r"it has files of something else in it \(thesis.docx\)"):
            folder.check_out(tmp_path / "full")
        with pytest.raises(InputError, match="it is in the folder of the images"):
            folder.check_out(photos / "report", str(photos))
        with pytest.raises(InputError, match="it is a file"):
            folder.check_out(tmp_path / "full" / "thesis.docx")

    @pytest.mark.parametrize(
        "files",
        [
            ["thumbs/cat.webp", "audit.csv"],
            ["index.html"],
            ["thumbs/notes.txt"],
            ["summary.json", "decisions.sqlite"],
            [".about.json"],
            ["index.html", ".about.json"],
        ],
    )
    @pytest.mark.parametrize("content", ["precious", '{"place": "home"}', '{"place": 1, "content": ""}', "[]"])
    def test_files_that_only_have_the_names_of_a_report_stay(self, tmp_path, files, content):
        for name in files:
            (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "own" / name).write_text(content)
        with pytest.raises(InputError, match=r"own: it has files of something else in it \(.*\); give another folder"):
            audit(dataset(), tmp_path / "own", "none")
        found = [path for path in (tmp_path / "own").rglob("*") if path.is_file()]
        assert {str(path.relative_to(tmp_path / "own")) for path in found} == set(files)
        assert {path.read_text() for path in found} == {content}

    @pytest.mark.parametrize("name", ["cat.webp", "0000-holiday.jpg", ".hidden.webp"])
    def test_a_strange_picture_among_the_thumbnails_stays(self, tmp_path, name):
        found = audit(dataset(), tmp_path / "report", "none")
        write_page(found, tmp_path / "report", lambda row: picture(str(row)))
        audit(dataset(), tmp_path / "report", "none")  # its own are no strangers
        (tmp_path / "report" / "thumbs" / name).write_text("precious")
        before = (tmp_path / "report" / "summary.json").read_bytes()
        with pytest.raises(InputError, match=rf"files of something else in it \(thumbs/{name}\)"):
            audit(dataset(), tmp_path / "report", "none")
        assert (tmp_path / "report" / "thumbs" / name).read_text() == "precious"
        assert (tmp_path / "report" / "summary.json").read_bytes() == before

    @pytest.mark.parametrize("stopped", ["report.write_page", "folder.save", "folder.begin"])
    def test_an_audit_that_was_stopped_is_made_again(self, tmp_path, monkeypatch, stopped):
        for out in (tmp_path / "new", tmp_path / "again"):
            if out.name == "again":
                audit(dataset(), out, "none")
            with monkeypatch.context() as patch:
                patch.setattr(f"dspt.auditing.{stopped}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    audit(dataset(rate=0.4), out, "none")
            audit(dataset(rate=0.4), out, "none")
            assert folder.load(out).source == "clouds.npz"

    def test_no_report_is_one_sentence(self, tmp_path):
        with pytest.raises(InputError, match="no report is there"):
            folder.load(tmp_path)
        (tmp_path / "file.csv").touch()
        with pytest.raises(InputError, match="it is a file, and a report is a folder"):
            folder.load(tmp_path / "file.csv")

    def test_decisions_about_other_samples_are_not_taken_for_these(self, tmp_path):
        """Rows without names are known by their content, all together: one dropped, and all would be others."""
        source = dataset()
        found = audit(source, tmp_path / "report", "none")
        with Decisions(tmp_path / "report" / folder.DECISIONS, found.items, found.class_names) as decisions:
            decisions.decide([3], "relabel", 1)
        audit(source, tmp_path / "report", "none")  # the same again is the same
        fewer = replace(source, train=source.train.take(np.arange(1, 90)))
        with pytest.raises(InputError, match="it holds decisions about samples that have changed since"):
            audit(fewer, tmp_path / "report", "none")
        with pytest.raises(InputError, match=r"it holds decisions about other data \(clouds.npz\)"):
            audit(replace(source, source="others.npz"), tmp_path / "report", "none")

    def test_a_list_on_which_nothing_is_decided_keeps_nobody_from_other_data(self, tmp_path):
        found = audit(dataset(), tmp_path / "report", "none")
        with Decisions(tmp_path / "report" / folder.DECISIONS, found.items, found.class_names) as decisions:
            decisions.decide([3], "relabel", 1)
            decisions.undo()
        again = audit(replace(dataset(), source="others.npz"), tmp_path / "report", "none")
        assert folder.load(tmp_path / "report").source == "others.npz"
        with Decisions(tmp_path / "report" / folder.DECISIONS, again.items, again.class_names) as decisions:
            decisions.undo()
            assert decisions.current() == {}, "an undo brings back nothing that was of other data"

    def test_the_estimate_of_what_is_still_wrong_falls_with_what_is_corrected(self, tmp_path):
        before = audit(dataset(), tmp_path / "report", "none")
        seen = before.suspects[:-3].tolist()
        decisions = {row: Decision("relabel", int(before.ranked[0][row])) for row in seen}
        after = refit(tmp_path / "report", decisions)
        assert after.settled == {"corrected": len(seen), "kept": 0, "removed": 0}
        assert before.still_wrong == pytest.approx(before.noise_rate * 120)
        assert after.still_wrong < before.still_wrong - 0.8 * len(seen)
        assert after.doubts.sum() == pytest.approx(after.still_wrong, abs=1e-3)

    def test_a_set_of_which_all_is_removed_is_decided(self, tmp_path):
        found = audit(dataset(), tmp_path / "report", "none")
        after = refit(tmp_path / "report", dict.fromkeys(range(120), Decision("remove", -1)))
        assert after.settled == {"corrected": 0, "kept": 0, "removed": 120}
        assert not after.open.any()
        assert found.open.all()

    def test_looks_are_not_spent_twice(self, tmp_path):
        found = audit(dataset(), tmp_path / "report", "none", budget=5)
        seen = found.looks(5).tolist()
        with Decisions(tmp_path / "report" / folder.DECISIONS, found.items, found.class_names) as decisions:
            decisions.decide(seen, "relabel", found.ranked[0][seen].tolist())
        again = audit(dataset(), tmp_path / "report", "none", budget=5)
        assert not set(again.looks(5).tolist()) & set(seen)
        assert (again.examples[again.looks(5)] >= 0).any()

    def test_a_label_that_is_likely_right_has_examples_of_the_best_other_class(self, tmp_path):
        found = audit(dataset(), tmp_path / "report", "none", budget=100)
        right = [row for row in found.looks(100) if not found.is_label_issue[row]]
        assert len(right) > 50
        for row in right:
            given, other = (found.labels[some[some >= 0]] for some in found.examples[row])
            assert set(given) == {found.labels[row]}
            assert set(other) == {np.where(np.arange(4) == found.labels[row], -1, found.probabilities[row]).argmax()}

    def test_decisions_make_the_rest_better_known(self, tmp_path):
        source = dataset()
        before = audit(source, tmp_path / "report", "none")
        seen = before.suspects[:10].tolist()
        decisions = {row: Decision("relabel", int(before.ranked[0][row])) for row in seen}
        decisions[int(before.looks(200)[-1])] = Decision("remove", -1)
        after = refit(tmp_path / "report", decisions)
        assert not (set(seen) - set(np.flatnonzero(after.is_label_issue).tolist()))  # they are surely wrong now
        np.testing.assert_allclose(1 - after.label_quality[seen], 1)
        assert after.noise_rate_error < before.noise_rate_error
        removed = int(before.looks(200)[-1])
        np.testing.assert_array_equal(after.probabilities[removed], before.probabilities[removed])


class TestTheCommand:
    def test_tells_what_it_found_and_leaves_the_folder_as_it_was(self, dspt, photos, clip, tmp_path):
        (photos / "cat" / "broken.png").write_bytes(b"no image")
        (photos / "dog" / "copy.png").write_bytes((photos / "cat" / "0.png").read_bytes())

        def contents():
            return {
                path: (hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
                for path in photos.rglob("*")
                if path.is_file()
            }

        before = contents()
        status, output, _ = dspt("audit", photos, "--model", clip, "--out", "report", "-q")
        assert status == 0
        assert contents() == before
        assert re.search(r"^  left out      1: \S*cat/broken.png \([^()]*\)$", output, re.MULTILINE)
        assert "1 group, 1 with different labels" in output
        assert "dspt review report" in output
        status, output, _ = dspt("audit", photos, "--model", clip, "--out", "report", "-q", "--json")
        told = json.loads(output)
        assert told["samples"] == 19
        assert told["unusable"] == 1
        assert told["duplicates_with_different_labels"] == 1
        assert (tmp_path / told["table"]).exists()

    def test_a_test_split_is_audited_too_and_leaks_are_told(self, dspt, tmp_path, photos, clip):
        for part in ("train", "test"):
            (tmp_path / "both" / part).mkdir(parents=True)
            for name in ("cat", "dog"):
                (tmp_path / "both" / part / name).mkdir()
        for i, file in enumerate(sorted((photos / "cat").iterdir())):
            (tmp_path / "both" / ("train" if i < 4 else "test") / "cat" / file.name).write_bytes(file.read_bytes())
        for i, file in enumerate(sorted((photos / "dog").iterdir())):
            (tmp_path / "both" / ("train" if i < 4 else "test") / "dog" / file.name).write_bytes(file.read_bytes())
        leak = tmp_path / "both" / "test" / "cat" / "leak.png"
        leak.write_bytes((tmp_path / "both" / "train" / "cat" / "0.png").read_bytes())
        status, output, _ = dspt("audit", "both", "--model", clip, "-q", "--json")
        told = json.loads(output)
        assert status == 0
        assert told["samples"] == 13
        assert told["duplicates_in_train_and_test"] == 1

    def test_a_report_lies_beside_its_manifest_but_not_among_images(self, dspt, photos, clip, tmp_path):
        rows = [f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(photos.glob("*/*.png"))]
        (tmp_path / "photos.csv").write_text("\n".join(["path,label", *rows]))
        assert dspt("audit", "photos.csv", "--model", clip, "-q")[0] == 0
        assert (tmp_path / "report" / "index.html").exists()
        status, _, errors = dspt("audit", "photos", "--model", clip, "-q", "--table", "photos/cat/rows.csv")
        assert status == 2
        assert "photos/cat/rows.csv: it is in the folder of the images" in errors
        assert "report" not in errors

    @pytest.mark.parametrize("out", ["photos/report", "photos/cat/report", "link/report"])
    def test_a_manifest_lets_no_report_in_among_its_images(self, dspt, photos, clip, tmp_path, out):
        rows = [f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(photos.glob("*/*.png"))]
        (tmp_path / "photos.csv").write_text("\n".join(["path,label", *rows]))
        (tmp_path / "link").symlink_to("photos")
        before = sorted(tmp_path.rglob("*"))
        status, _, errors = dspt("audit", "photos.csv", "--model", clip, "-q", "--out", out)
        assert status == 2
        assert "in the folder of the images" in errors
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_manifest_beside_its_images_has_its_report_there(self, dspt, photos, clip, tmp_path):
        rows = []
        for path in sorted(photos.glob("*/*.png")):
            rows.append(f"{path.parent.name}-{path.name},{path.parent.name}")
            path.rename(tmp_path / rows[-1].partition(",")[0])
        (tmp_path / "photos.csv").write_text("\n".join(["path,label", *rows]))
        assert dspt("audit", "photos.csv", "--model", clip, "-q")[0] == 0
        assert (tmp_path / "report" / "index.html").exists()

    def test_features_need_no_test_split(self, dspt, tmp_path):
        x, true = clouds(80)
        np.savez(tmp_path / "dino.npz", train_x=x, train_y=true, classnames=np.array(CLASSES))
        status, output, _ = dspt("audit", "dino.npz", "--json", "-q")
        assert status == 0
        assert json.loads(output)["samples"] == 80

    def test_features_without_a_model(self, dspt, data, tmp_path):
        status, output, _ = dspt("audit", data, "--json", "-q", "--table", "rows.json", "--budget", "5")
        assert status == 0
        assert json.loads(output)["model"] is None
        rows = json.loads((tmp_path / "rows.json").read_text())
        assert len(rows) == json.loads(output)["samples"]
        assert {"is_label_issue", "label_quality"} <= rows[0].keys()

    def test_what_lies_beside_a_table_does_not_matter(self, dspt, data, tmp_path):
        (tmp_path / "report").mkdir()
        (tmp_path / "report" / "thesis.docx").write_text("years of work")
        assert dspt("audit", data, "-q", "--out", "other", "--table", "rows.csv")[0] == 0

    def test_says_how_many_of_the_looks_should_meet_a_wrong_label(self, dspt, tmp_path):
        x, true = clouds()
        np.savez(tmp_path / "dino.npz", train_x=x, train_y=noisy(true), classnames=np.array(CLASSES))
        told = json.loads(dspt("audit", "dino.npz", "--json", "-q", "--budget", "20")[1])
        found = folder.load(tmp_path / "report")
        assert told["looks"] == 20
        assert told["wrong_among_looks"] == pytest.approx(found.doubts[found.looks(20)].sum(), abs=0.01)
        everything = json.loads(dspt("audit", "dino.npz", "--json", "-q", "--budget", str(len(x)))[1])
        assert everything["wrong_among_looks"] == pytest.approx(told["noise_rate"] * len(x), abs=0.01)
        output = dspt("audit", "dino.npz", "-q", "--budget", "20")[1]
        wrong = round(told["wrong_among_looks"])
        assert f"  worth a look  20, listed on the page; about {wrong} of them should be wrong\n" in output
        assert f"about {wrong} of them should be wrong" in (tmp_path / "report" / "index.html").read_text()
        assert "the surest first" not in output
        told = json.loads(dspt("audit", "dino.npz", "--json", "-q")[1])
        assert told["looks"] is told["wrong_among_looks"] is None
        assert "the surest first on the page" in dspt("audit", "dino.npz", "-q")[1]

    def test_where_none_is_called_wrong_none_is_the_surest(self, dspt, tmp_path):
        x, true = clouds()
        np.savez(tmp_path / "clean.npz", train_x=x, train_y=true, classnames=np.array(CLASSES))
        assert "  called wrong  0\n" in dspt("audit", "clean.npz", "-q")[1]

    def test_classes_whose_names_are_one_word_are_not_said_to_look_alike(self, dspt, tmp_path):
        x, true = clouds()
        names = np.array(["bag", "bee", "Bags", "dog"])
        np.savez(tmp_path / "bags.npz", train_x=x, train_y=true, classnames=names)
        output = dspt("audit", "bags.npz", "-q")[1]
        assert "  classes       'bag' and 'Bags' are one word; perhaps they are one class\n" in output
        assert "told apart" not in output
        pairs = json.loads(dspt("audit", "bags.npz", "-q", "--json")[1])["inseparable_classes"]
        assert [(pair["classes"], pair["by"]) for pair in pairs] == [(["bag", "Bags"], "names")]

    def test_of_images_without_splits_none_is_called_a_train_image(self, dspt, photos, clip):
        (photos / "cat" / "broken.png").write_bytes(b"no image")
        errors = dspt("audit", photos, "--model", clip)[2]
        assert "1 labelled image cannot be used and is left out" in errors
        assert "train" not in errors
        assert [fault.split for fault in folder.load("report").unusable] == ["train"]

    def test_a_sample_in_both_splits_is_told_as_one(self, dspt, photos, clip, tmp_path):
        files = sorted(photos.glob("*/*.png"))
        rows = [f"photos/{path.parent.name}/{path.name},{path.parent.name},train" for path in files]
        rows += [f"{row.removesuffix('train')}test" for row in rows[:2]]
        (tmp_path / "photos.csv").write_text("\n".join(["path,label,split", *rows]))
        output = dspt("audit", "photos.csv", "--model", clip, "-q")[1]
        first = f"line {len(files) + 2} (the same path as in line 2, which belongs to another split), and 1 more"
        assert f"  both splits   2: {first}; a sample in train and test is a leak\n" in output
        assert "left out" not in output
        told = json.loads(dspt("audit", "photos.csv", "--model", clip, "-q", "--json")[1])
        assert told["same_path_in_train_and_test"] == 2

    def test_an_empty_folder_is_told_as_one(self, dspt, photos, clip):
        (photos / "unicorn").mkdir()
        output = dspt("audit", photos, "--model", clip, "-q")[1]
        assert re.search(r"^  no images     1: \S*photos/unicorn$", output, re.MULTILINE)
        assert "left out" not in output
        assert json.loads(dspt("audit", photos, "--model", clip, "-q", "--json")[1])["empty_folders"] == 1

    def test_files_of_somebody_else_are_not_replaced(self, dspt, photos, clip, tmp_path):
        (tmp_path / "own" / "thumbs").mkdir(parents=True)
        for name in ("thumbs/cat.webp", "audit.csv"):
            (tmp_path / "own" / name).write_text("precious")
        status, _, errors = dspt("audit", photos, "--model", clip, "--out", "own", "-q")
        assert status == 2
        assert "own: it has files of something else in it (audit.csv); give another folder" in errors
        assert len(errors.strip().splitlines()) == 1
        assert (tmp_path / "own" / "thumbs" / "cat.webp").read_text() == "precious"
        assert sorted(path.name for path in (tmp_path / "own").rglob("*")) == ["audit.csv", "cat.webp", "thumbs"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["nowhere"], "data nowhere: no such file or folder"),
            (["DATA", "--budget", "0"], "budget = 0: expected at least 1 look"),
            (["DATA", "--table", "rows.doc"], "rows.doc: expected a .csv, .parquet or .json file"),
            (["PHOTOS", "--model", "none"], "model none: it goes with features"),
            (["PHOTOS", "--out", "PHOTOS/report"], "it is in the folder of the images"),
        ],
    )
    def test_bad_input_is_one_sentence(self, dspt, data, photos, arguments, sentence):
        arguments = [a.replace("DATA", data).replace("PHOTOS", str(photos)) for a in arguments]
        status, _, errors = dspt("audit", *arguments, "-q")
        assert not os.path.exists("report")
        assert status == 2
        assert sentence in errors
        assert len(errors.strip().splitlines()) == 1
