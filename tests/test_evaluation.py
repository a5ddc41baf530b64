"""dspt eval: figures that were worked out by hand, classes that were never learnt, a page that needs nothing else."""

import html
import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from problems import QUIET, features

from dspt import PromptClassifier, load
from dspt.data import Dataset, Split, open_dataset
from dspt.data.dataset import half
from dspt.evaluation import Evaluation, harmonic_mean, picture
from dspt.internal.errors import InputError
from dspt.workflows.evaluate import evaluate


def judged(labels, probabilities, names=("a", "b", "c"), **more):
    probabilities = np.array(probabilities, float)
    items = tuple(f"{i}.png" for i in range(len(labels)))
    return Evaluation(names, np.array(labels), probabilities, items, **more)


# Labels a a a b; predictions a a b b. No image is c, and none was taken for it.
FOUR = judged([0, 0, 0, 1], [[0.9, 0.1, 0], [0.6, 0.4, 0], [0.2, 0.8, 0], [0.3, 0.7, 0]])


class TestFigures:
    def test_by_class(self):
        a, b, c = FOUR.by_class
        assert a == pytest.approx(
            {"class": "a", "samples": 3, "predicted": 2, "precision": 100, "recall": 200 / 3, "f1": 80}
        )
        assert b == pytest.approx(
            {"class": "b", "samples": 1, "predicted": 2, "precision": 50, "recall": 100, "f1": 200 / 3}
        )
        assert c == {"class": "c", "samples": 0, "predicted": 0, "precision": None, "recall": None, "f1": None}

    def test_a_class_that_is_never_predicted_has_no_precision_and_an_f1_of_0(self):
        row = judged([0, 1], [[0.9, 0.1, 0], [0.8, 0.2, 0]]).by_class[1]
        assert (row["precision"], row["recall"], row["f1"]) == (None, 0, 0)

    def test_means_are_of_classes_that_have_images(self):
        assert FOUR.accuracy == 75
        assert FOUR.mean_of_classes("recall") == pytest.approx((200 / 3 + 100) / 2)
        assert FOUR.mean_of_classes("f1") == pytest.approx((80 + 200 / 3) / 2)

    def test_confusion_has_labels_in_rows(self):
        assert FOUR.confusion.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
        assert FOUR.mistakes == [("a", "b", 1)]

    def test_calibration_error_by_hand(self):
        """Of 15 bins, 0.6 is the end of the 9th, 0.65 is in the 10th, 0.9 and 0.92 are in the 14th."""
        found = judged([0, 0, 1, 0], [[0.6, 0.4, 0], [0.65, 0.35, 0], [0.9, 0.1, 0], [0.92, 0.08, 0]]).calibration
        filled = {i: bin for i, bin in enumerate(found["bins"]) if bin["samples"]}
        assert list(filled) == [8, 9, 13]
        assert filled[13]["samples"] == 2
        assert filled[13]["confidence"] == pytest.approx(91)
        assert filled[13]["accuracy"] == 50
        # a quarter of each gap: 40 and 35 of images that are right, twice 41 of two of which one is
        assert found["ece"] == pytest.approx((40 + 35 + 2 * 41) / 4)
        assert found["confidence"] == pytest.approx((60 + 65 + 90 + 92) / 4)
        assert all(bin["accuracy"] is None for bin in found["bins"] if not bin["samples"])

    def test_sure_and_right_is_calibrated(self):
        assert judged([0, 1], [[1.0, 0, 0], [0, 1.0, 0]]).calibration["ece"] == 0

    def test_the_worst_mistake_has_the_least_probable_label(self):
        found = judged([0, 0, 0, 1], [[0.1, 0.9, 0], [0.9, 0.1, 0], [0.05, 0.5, 0.45], [0.6, 0.4, 0]])
        assert found.worst(10).tolist() == [2, 0, 3]
        assert found.worst(1).tolist() == [2]
        assert found.mistake(2) == {
            "image": "2.png",
            "label": "a",
            "predicted": "b",
            "probability": 0.5,
            "probability_of_label": 0.05,
        }

    def test_nothing_to_judge_by_is_an_error(self):
        with pytest.raises(InputError, match="no images"):
            judged([], np.zeros((0, 3)))


def test_harmonic_mean():
    assert harmonic_mean(80, 60) == pytest.approx(9600 / 140)
    assert harmonic_mean(0, 60) == 0


def dataset_of(classes: int) -> Dataset:
    labels = np.arange(classes)
    split = Split([f"{i}.png" for i in labels], labels, labels)
    return Dataset("d", tuple(f"c{i}" for i in labels), split, split)


@pytest.mark.parametrize(("classes", "base"), [(4, 2), (5, 3), (10, 5), (37, 19), (101, 51)])
def test_base_classes_are_the_first_half_by_label_order_and_the_middle_one(classes, base):
    """CoOp: m = ceil(n / 2), base are the labels below m."""
    assert base == math.ceil(classes / 2)
    for which, kept in (("base", range(base)), ("new", range(base, classes))):
        found = half(dataset_of(classes), which)
        assert found.class_names == tuple(f"c{i}" for i in kept)
        for split in (found.train, found.test):
            assert list(split.items) == [f"{i}.png" for i in kept]
            assert split.labels.tolist() == list(range(len(kept)))


def test_half_of_three_classes_is_too_few():
    with pytest.raises(InputError, match="at least two are needed"):
        half(dataset_of(3), "new")


class TestOtherClasses:
    NEW = ("zebra", "ice cream")

    def test_a_context_that_is_words_gives_the_prompt_of_these_words(self, text_tower):
        import torch
        from transformers import CLIPTextModelWithProjection, CLIPTokenizerFast

        x, y = features(40)
        classifier = PromptClassifier(text_tower, epochs=0, context_length=4, context_words="a photo of a")
        found = classifier.fit(x, y, class_names=["a", "b", "c", "d"]).for_classes(self.NEW)
        texts = CLIPTokenizerFast.from_pretrained(text_tower)(
            [f"a photo of a {name}." for name in self.NEW], padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            expected = CLIPTextModelWithProjection.from_pretrained(text_tower)(**texts).text_embeds
        expected = torch.nn.functional.normalize(expected, dim=1)
        assert torch.allclose(found.prototypes_, expected, atol=1e-5)
        assert found.classes_.tolist() == list(self.NEW)

    @pytest.mark.parametrize("learner", ["prompt", "cocoop"])
    def test_the_logit_of_a_class_is_the_same_among_others(self, text_tower, learner):
        x, y = features(40)
        names = ["cat", "dog", "red panda", "ankle boot"]
        classifier = PromptClassifier(text_tower, epochs=2, learner=learner, context_length=2)
        classifier.fit(x, y, class_names=names)
        other = classifier.for_classes(["zebra", "dog", "cat"])
        before, after = classifier.decision_function(x[:5]), other.decision_function(x[:5])
        np.testing.assert_allclose(after[:, [2, 1]], before[:, [0, 1]], atol=1e-4)
        assert classifier.class_names_ == tuple(names), "the first one stays what it is"

    @pytest.mark.parametrize("settings", [{"learner": "prototypes"}, {"class_specific": True, "context_length": 2}])
    def test_what_was_learnt_for_each_class_goes_with_no_others(self, text_tower, settings):
        x, y = features(40)
        classifier = PromptClassifier(text_tower, epochs=1, **settings).fit(x, y, class_names=["a", "b", "c", "d"])
        with pytest.raises(InputError, match="only a shared context goes with others"):
            classifier.for_classes(self.NEW)

    def test_base_to_new(self, dspt, text_tower, data, tmp_path):
        """Each half is judged among its own classes; zero-shot by another command."""
        dspt("train", data, "--model", text_tower, "--epochs", 3, "--classes", "base", "--out", "run", "-q")
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert config["class_names"] == ["cat", "dog"]
        status, output, errors = dspt("eval", "run", data, "--classes", "base-to-new", "--json", "-q")
        assert status == 0, errors
        found = json.loads(output)
        base, new = found["base"]["accuracy"], found["new"]["accuracy"]
        assert found["accuracy"] == pytest.approx(2 * base * new / (base + new), abs=1e-3)
        assert [list(found[half]["per_class"]) for half in ("base", "new")] == [
            ["cat", "dog"],
            ["red panda", "ankle boot"],
        ]
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        assert base == pytest.approx(result["last_accuracy"])
        assert found["base"]["zero_shot"] == pytest.approx(result["zero_shot"])
        leave = ("--exclude", "cat", "--exclude", "dog")
        _, output, _ = dspt("zeroshot", data, "--model", text_tower, *leave, "--json", "-q")
        assert found["new"]["zero_shot"] == pytest.approx(json.loads(output)["accuracy"])
        same = json.loads(dspt("eval", "run", data, "--classes", "new", "--json", "-q")[1])
        assert same["accuracy"] == new
        output = dspt("eval", "run", data, "--classes", "base-to-new", "-q")[1]
        assert "harmonic mean" in output

    def test_base_to_new_of_a_run_that_has_seen_all_classes_is_refused(self, dspt, text_tower, data):
        dspt("train", data, "--model", text_tower, "--epochs", 1, "--out", "run", "-q")
        status, _, errors = dspt("eval", "run", data, "--classes", "base-to-new")
        assert status == 2
        assert "it has not learnt just the 2 base classes" in errors

    def test_another_dataset(self, dspt, text_tower, data, tmp_path):
        dspt("train", data, "--model", text_tower, "--epochs", 2, "--out", "run", "-q")
        with np.load(data) as file:
            arrays = dict(file)
        arrays["classnames"] = np.array(["zebra", "ice cream", "oak", "moon"])
        np.savez(tmp_path / "other.npz", **arrays)
        status, output, errors = dspt("eval", "run", "other.npz", "--classes", "data", "--json", "-q")
        assert status == 0, errors
        found = json.loads(output)
        assert list(found["per_class"]) == ["zebra", "ice cream", "oak", "moon"]
        expected = load(tmp_path / "run").for_classes(arrays["classnames"].tolist()).predict(arrays["test_x"])
        right = expected == arrays["classnames"][arrays["test_y"]]
        assert found["accuracy"] == pytest.approx(100 * right.mean(), abs=1e-4)

    def test_an_unknown_choice_is_one_sentence(self, dspt, text_tower, data):
        dspt("train", data, "--model", text_tower, "--epochs", 1, "--out", "run", "-q")
        status, _, errors = dspt("eval", "run", data, "--classes", "old")
        assert status == 2
        assert "classes 'old': expected run, data, base, new or base-to-new" in errors


class TestCommand:
    @pytest.fixture
    def run(self, dspt, clip, photos):
        dspt("train", photos, "--model", clip, "--epochs", 1, "--out", "run", "-q")
        return "run"

    def test_what_was_saved_is_what_is_judged(self, dspt, text_tower, data, tmp_path):
        dspt("train", data, "--model", text_tower, "--epochs", 3, "--out", "run", "-q")
        found = evaluate(tmp_path / "run", data, QUIET)
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        assert found["accuracy"] == pytest.approx(result["last_accuracy"])
        assert found["test_labels_known"] is result["test_labels_known"]

    def test_terminal_names_classes_mistakes_and_images(self, dspt, run, photos):
        status, output, _ = dspt("eval", run, photos, "-q")
        assert status == 0
        for words in ("accuracy", "ECE", "precision  recall      F1", "images by label (row)", "worst images"):
            assert words in output
        assert "judged by labels that may be wrong" in output
        assert re.search(r"\w+/\d\.png: label \w+ [\d.]+ %, taken for \w+ [\d.]+ %", output)

    def test_columns_end_below_their_headings(self, dspt, run, photos):
        lines = dspt("eval", "run", photos, "--worst", 0)[1].splitlines()
        for first in ("  class", "  probability"):
            heading, row = (
                lines[(at := next(i for i, line in enumerate(lines) if line.startswith(first)))],
                lines[at + 1],
            )
            ends = [found.end() for found in re.finditer(r"\S+", heading)][1:]
            assert all(row[end - 1].strip() and not row[end : end + 1].strip() for end in ends), (heading, row)

    def test_many_classes_have_no_matrix_on_a_terminal_but_their_mistakes(self, capsys):
        from dspt.cli.evaluation import print_evaluation

        n = 60
        turned = np.eye(n)[(np.arange(n) + 1) % n]
        print_evaluation(judged(np.arange(n), turned, tuple(f"class {i}" for i in range(n))).as_dict(3))
        output = capsys.readouterr().out
        assert "class 0 -> class 1: 1" in output
        assert "and 55 rarer pairs" in output
        assert "and 40 more classes" in output

    @pytest.mark.parametrize("columns", ["", "60", "80"])
    def test_lines_of_the_worst_images_fit_80_columns_or_as_many_as_are_asked_for(self, columns, capsys, monkeypatch):
        from dspt.cli.evaluation import print_evaluation

        monkeypatch.setenv("COLUMNS", columns)
        names = ("a class whose name is long", "another one of such a name")
        items = tuple(f"photos/{'0123456789abcdef' * 2}-{i}.png" for i in range(3))
        found = Evaluation(names, np.array([0, 0, 1]), np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]), items)
        print_evaluation(found.as_dict(3))
        lines = capsys.readouterr().out.partition("worst images")[2].splitlines()[1:]
        assert max(map(len, lines)) <= int(columns or 80)
        assert next(line.strip() for line in lines if line.startswith("  photos/")).startswith(items[0])
        assert "taken for another one of such a name 90.0 %" in " ".join(" ".join(lines).split())

    def test_the_picture_names_its_run_and_its_lines(self, tmp_path, monkeypatch):
        kept = []
        monkeypatch.setattr(picture.plots, "save", lambda figure, path: kept.append(figure))
        for found in ({"run": FOUR}, {"base": FOUR, "new": FOUR}):
            picture.calibration_picture(tmp_path / "a.png", found, "Run dspt-sym on photos.")
            figure = kept.pop()
            assert not figure.legends
            assert figure.get_supxlabel().replace("\n", " ").endswith("Run dspt-sym on photos.")
            upper = figure.axes[len(found) - 1]
            assert sorted(text.get_text() for text in upper.texts) == ["calibrated", "right"]
            assert "ECE" in upper.get_title()
            figure.draw_without_rendering()
            boxes = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
            assert all(one.x1 < other.x0 for one, other in pairwise(boxes))

    def test_the_picture_says_what_the_run_was_made_with(self, dspt, run, photos, monkeypatch):
        kept = []
        monkeypatch.setattr(picture.plots, "save", lambda figure, path: kept.append(figure))
        assert dspt("eval", run, photos, "--picture", "picture.png", "-q")[0] == 0
        said = json.loads((photos.parent / run / "config.json").read_text())
        note = kept[0].get_supxlabel().replace("\n", " ")
        assert note.endswith(f"{said['text_tower']}; learnt: prompt; 1 epoch.")

    def test_the_page_needs_nothing_but_itself(self, dspt, run, photos, tmp_path):
        Image.new("RGB", (9, 9)).save(photos / "cat" / "<script>&.png")
        arguments = ("eval", run, photos, "--page", "page.html", "--picture", "picture.png", "-q", "--json")
        status, output, errors = dspt(*arguments)
        assert status == 0, errors
        assert json.loads(output)["page"] == "page.html"
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<script" not in page
        assert re.findall(r"(?:src|href)=\"(?!data:|#)", page) == []
        assert "default-src 'none'" in html.unescape(page)
        assert page.count('<img src="data:image/') == min(10, len(json.loads(output)["worst"]))
        assert "Judged by labels that may be wrong" in page
        assert "prefers-color-scheme: dark" in page
        assert Image.open(tmp_path / "picture.png").width > 300
        assert dspt(*arguments)[0] == 0, "pages and pictures of our own are made again"

    def test_a_file_of_somebody_else_is_not_replaced(self, dspt, run, photos, tmp_path):
        (tmp_path / "page.html").write_text("mine")
        status, _, errors = dspt("eval", run, photos, "--page", "page.html")
        assert status == 2
        assert "it is there already" in errors
        assert (tmp_path / "page.html").read_text() == "mine"

    def test_right_labels_are_called_right(self, dspt, clip, tmp_path):
        dspt("train", "embedded", "--model", "embedded", "--epochs", 0, "--out", "run", "-q")
        found = evaluate(tmp_path / "run", open_dataset("embedded"), QUIET, page=tmp_path / "page.html", worst=2)
        assert found["test_labels_known"] is True
        assert "are known to be right" in (tmp_path / "page.html").read_text(encoding="utf-8")
        assert len(found["worst"]) == 2
