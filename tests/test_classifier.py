"""PromptClassifier behaves as scikit-learn's estimators do, on features and on images."""

import pickle

import numpy as np
import pytest
import torch
from checkpoints import tiny_clip
from PIL import Image
from problems import NAMES, feature_file, features
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import dspt
from dspt import PromptClassifier
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.workflows.train import run


def classifier(model, **more):
    return PromptClassifier(model=model, **{"epochs": 2, **more})


def test_fit_returns_self_and_predicts_what_the_prototypes_say(text_tower):
    x, y = features(100)
    clf = classifier(text_tower)
    assert clf.fit(x, y, class_names=NAMES) is clf
    logits = 100 * x @ clf.prototypes_.numpy().T
    assert np.array_equal(clf.predict(x), logits.argmax(1))
    expected = torch.from_numpy(logits).softmax(1).numpy()
    assert np.allclose(clf.predict_proba(x), expected, atol=1e-5)
    assert clf.score(x, y) == pytest.approx((logits.argmax(1) == y).mean())
    assert [record["epoch"] for record in clf.history_] == [1, 2]


def test_it_is_the_same_loop_as_dspt_train(text_tower, tmp_path):
    data = feature_file(tmp_path / "pets.npz")
    run(str(data), Config(model=text_tower, epochs=3, seed=5), "none", tmp_path / "run")
    x, y = features(100, 1)
    clf = classifier(text_tower, epochs=3, seed=5).fit(x, y, class_names=NAMES)
    loaded = dspt.load(tmp_path / "run")
    assert np.array_equal(clf.context_, loaded.context_)
    assert torch.equal(clf.prototypes_, loaded.prototypes_)


def test_labels_may_be_names(text_tower):
    x, y = features(60)
    written = np.array(NAMES)[y]
    clf = classifier(text_tower).fit(x, written)
    assert clf.class_names_ == tuple(sorted(NAMES))
    assert set(clf.predict(x)) <= set(NAMES)
    numbers = classifier(text_tower).fit(
        x, np.argsort(np.argsort(NAMES))[y], class_names=sorted(NAMES)
    )
    assert np.array_equal(clf.context_, numbers.context_)


@pytest.mark.parametrize("method", ["dspt", "coop", "mae", "zero-shot"])
def test_saved_and_loaded_it_predicts_the_same(text_tower, tmp_path, method):
    x, y = features(60)
    clf = classifier(text_tower, method=method).fit(x, np.array(NAMES)[y])
    clf.save(tmp_path / "clf")
    loaded = dspt.load(tmp_path / "clf")
    assert np.array_equal(loaded.predict(x), clf.predict(x))
    assert np.array_equal(loaded.predict_proba(x), clf.predict_proba(x))
    assert loaded.get_params() == {**clf.get_params(), "device": "auto"}


def test_images_as_paths_pil_and_arrays_are_the_same_images(clip, tmp_path):
    random = np.random.RandomState(0)
    arrays = random.randint(0, 256, (12, 40, 32, 3), dtype=np.uint8)
    paths = []
    for i, pixels in enumerate(arrays):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        paths.append(tmp_path / f"{i}.png")
    y = np.arange(12) % 3
    clf = classifier(clip, cache=tmp_path / "cache").fit(paths, y, class_names=NAMES[:3])
    expected = clf.predict_proba(paths)
    for same in ([str(p) for p in paths], [Image.open(p) for p in paths], list(arrays), arrays):
        assert np.allclose(clf.predict_proba(same), expected, atol=1e-5)


def test_scikit_learns_tools_work_on_it(text_tower):
    x, y = features(60)
    written = np.array(NAMES)[y]
    clf = classifier(text_tower, epochs=1)
    copy = clone(clf)
    assert copy is not clf
    assert copy.get_params() == clf.get_params()
    assert len(cross_val_score(clf, x, written, cv=3)) == 3
    fitted = clf.set_params(lr=0.01).fit(x, written)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(x), fitted.predict(x))
    with pytest.raises(NotFittedError):
        clone(clf).predict(x)


def test_cross_validated_probabilities_work_with_names_and_with_numbers(text_tower):
    from sklearn.model_selection import cross_val_predict

    x, y = features(60)
    clf = classifier(text_tower, epochs=1, class_names=NAMES)
    for labels in (y, np.array(NAMES)[y]):
        assert cross_val_predict(clf, x, labels, cv=3, method="predict_proba").shape == (60, 4)


def test_classes_are_sorted_as_metrics_expect(text_tower):
    x, y = features(60)
    clf = classifier(text_tower).fit(x, np.array(NAMES)[y], class_names=NAMES[::-1])
    assert clf.classes_.tolist() == sorted(NAMES)
    assert np.array_equal(clf.predict(x), clf.classes_[clf.predict_proba(x).argmax(1)])


def test_a_saved_classifier_needs_no_checkpoint_for_features(text_tower, tmp_path):
    import shutil

    shutil.copytree(text_tower, tmp_path / "clip")
    x, y = features(60)
    clf = classifier(str(tmp_path / "clip"), momentum=0.5, text_memory=77).fit(
        x, y, class_names=NAMES
    )
    clf.save(tmp_path / "clf")
    shutil.rmtree(tmp_path / "clip")
    loaded = dspt.load(tmp_path / "clf", device="cpu")
    assert np.array_equal(loaded.predict(x), clf.predict(x))
    assert (loaded.momentum, loaded.text_memory) == (0.5, 77)


def test_saving_never_destroys_a_run_or_a_checkpoint(text_tower, tmp_path):
    data = feature_file(tmp_path / "pets.npz")
    run(str(data), Config(model=text_tower, epochs=1), "none", tmp_path / "run")
    clf = dspt.load(tmp_path / "run")
    with pytest.raises(InputError, match="it holds a run of dspt train"):
        clf.save(tmp_path / "run")
    with pytest.raises(InputError, match="files of something else"):
        clf.save(text_tower)
    clf.save(tmp_path / "clf")
    clf.save(tmp_path / "clf")  # again is fine


def test_few_images_leave_nothing_on_disk(clip, tmp_path):
    images = np.random.RandomState(0).randint(0, 256, (70, 9, 9), dtype=np.uint8)
    clf = classifier(clip, epochs=1, cache=tmp_path / "cache")
    clf.fit(images, np.arange(70) % 2, class_names=NAMES[:2])
    before = sorted((tmp_path / "cache").rglob("*"))
    for one in (images[:1] + 1, [images[3] // 2], images[:5] // 3):
        clf.predict(one)
    assert sorted((tmp_path / "cache").rglob("*")) == before


def test_features_need_not_be_normalised(text_tower):
    x, y = features(60)
    clf = classifier(text_tower).fit(x, y, class_names=NAMES)
    scaled = classifier(text_tower).fit(
        (x * np.linspace(1, 9, 60)[:, None]).tolist(), y, class_names=NAMES
    )
    assert np.allclose(clf.context_, scaled.context_, atol=1e-4)
    assert np.array_equal(clf.predict(torch.from_numpy(x) * 5), clf.predict(x))


def test_bad_input_is_named(text_tower, tmp_path):
    x, y = features(20)
    cases = [
        ({"X": x, "y": y}, "class_names: needed, since y holds numbers"),
        (
            {"X": x, "y": y + 0.5, "class_names": NAMES},
            "y: expected class names or whole numbers, found float64",
        ),
        ({"X": x, "y": y[:5], "class_names": NAMES}, "labels: 5 of them for 20 samples"),
        (
            {"X": x, "y": y, "class_names": NAMES[:2]},
            "expected 0..1 for 2 classes, found 2 at row 2",
        ),
        ({"X": x, "y": y, "class_names": ["a", "b", "a", "c"]}, "'a' is there twice"),
        (
            {"X": x, "y": ["cow"] * 20, "class_names": NAMES},
            "'cow' at row 0 is not one of class_names",
        ),
        ({"X": [], "y": [], "class_names": NAMES}, "X: it is empty"),
        ({"X": "photos", "y": y, "class_names": NAMES}, "a single path"),
        ({"X": x * np.nan, "y": y, "class_names": NAMES}, "row 0 is zero or not finite"),
        ({"X": x[:, None], "y": y, "class_names": NAMES}, "float array of shape"),
        ({"X": x[:, :3], "y": y, "class_names": NAMES}, "3 wide"),
        ({"X": None, "y": y, "class_names": NAMES}, "expected a list or an array, found NoneType"),
        ({"X": [[], []], "y": [0, 1], "class_names": NAMES}, "features are \\(N, D\\)"),
        ({"X": [[1.0], [1.0, 2.0]], "y": [0, 1], "class_names": NAMES}, "rows differ in length"),
    ]
    for arguments, message in cases:
        with pytest.raises(InputError, match=message):
            classifier(text_tower).fit(**arguments)
    for wrong in ({"epochs": "3"}, {"epochs": 2.5}, {"batch_size": 8.0}, {"seed": None}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} = .*: expected a whole number"):
            classifier(text_tower, **wrong).fit(x, y, class_names=NAMES)
    with pytest.raises(InputError, match="has no image tower"):
        classifier(text_tower, cache=tmp_path).fit(
            [np.zeros((8, 8), np.uint8)] * 2, [0, 1], class_names=NAMES[:2]
        )
    clf = classifier(text_tower).fit(x, y, class_names=NAMES)
    with pytest.raises(InputError, match="features are 3 wide, but this classifier takes 16"):
        clf.predict(x[:, :3])
    with pytest.raises(InputError, match="no such folder"):
        dspt.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a run folder"):
        dspt.load(tmp_path / "empty")


def test_a_changed_checkpoint_is_noticed(clip, tmp_path):
    import shutil

    shutil.copytree(clip, tmp_path / "clip")
    images = [np.full((8, 8), 20 * i, np.uint8) for i in range(6)]
    clf = classifier(str(tmp_path / "clip"), cache=tmp_path / "cache")
    clf.fit(images, [0, 1, 2] * 2, class_names=NAMES[:3]).save(tmp_path / "clf")
    tiny_clip(tmp_path / "clip", seed=7)
    with pytest.raises(InputError, match="not the checkpoint this classifier was trained with"):
        dspt.load(tmp_path / "clf").predict(images)
