"""PromptClassifier behaves as scikit-learn's estimators do, on features and on images."""

import dataclasses
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoints import tiny_clip
from PIL import Image
from problems import NAMES, feature_file, features
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import dspt
from dspt import PromptClassifier, methods
from dspt.config import Config
from dspt.data import few_shot
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
    numbers = classifier(text_tower).fit(x, np.argsort(np.argsort(NAMES))[y], class_names=sorted(NAMES))
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
    names = sorted(NAMES)  # as scikit-learn numbers labels that are texts
    clf = classifier(text_tower, epochs=1, class_names=names)
    numbers, texts = (
        cross_val_predict(clf, x, labels, cv=3, method="predict_proba") for labels in (y, np.array(names)[y])
    )
    assert numbers.shape == (60, 4)
    assert np.array_equal(numbers, texts)


def test_logits_are_what_probabilities_are_made_of(text_tower):
    x, y = features(60)
    clf = classifier(text_tower).fit(x, y, class_names=NAMES)
    expected = torch.from_numpy(clf.decision_function(x)).softmax(1).numpy()
    assert np.allclose(clf.predict_proba(x), expected, atol=1e-6)
    two = classifier(text_tower).fit(x, y % 2, class_names=NAMES[:2])
    assert np.array_equal(two.decision_function(x) > 0, two.predict(x) == 1)


def test_random_state_and_seed_are_one_setting(text_tower):
    x, y = features(60)
    fitted = [
        classifier(text_tower, **given).fit(x, y, class_names=NAMES).context_
        for given in ({"seed": 3}, {"random_state": 3}, {"random_state": np.int64(3)}, {})
    ]
    assert np.array_equal(fitted[0], fitted[1])
    assert np.array_equal(fitted[0], fitted[2])
    assert not np.array_equal(fitted[0], fitted[3])
    with pytest.raises(InputError, match="seed = 3, random_state = 2: they are two names"):
        classifier(text_tower, seed=3, random_state=2).fit(x, y, class_names=NAMES)


class Nameless(methods.Method):
    """A method that forgot to say what it is called."""

    def plan(self, epoch):
        return []


class TestOwnMethods:
    def test_arguments_that_are_no_numbers_keep_their_defaults(self, text_tower):
        x, y = features(60)
        own = partial(F.cross_entropy, reduction="none")
        for loss in (own, lambda z, y, kind="a", weight=None, **more: own(z, y)):
            clf = classifier(text_tower, method=loss).fit(x, y, class_names=NAMES)
            coop = classifier(text_tower, method="coop").fit(x, y, class_names=NAMES)
            assert np.array_equal(clf.context_, coop.context_)

    def test_a_method_need_not_be_a_dataclass(self, text_tower):
        class Plain(methods.Method):
            name, formula, source = "plain", "-log p_y", "here"

            def plan(self, epoch):
                return methods.make("coop").plan(epoch)

        x, y = features(60)
        clf = classifier(text_tower, method=Plain()).fit(x, y, class_names=NAMES)
        assert clf.history_[0]["steps"] > 0

    @pytest.mark.parametrize("name", methods.METHODS)
    def test_all_methods_can_be_pickled_and_be_keys(self, name):
        method = methods.METHODS[name]
        assert pickle.loads(pickle.dumps(method)).options == method.options
        assert {method: 1}[method] == 1

    def test_ten_lines_are_a_loss(self, text_tower):
        """What CONTRIBUTING promises: a function, given to the classifier, with its hyper-parameters."""
        x, y = features(60)

        def tempered(logits, labels, t=2.0):
            log_p = (logits / t).log_softmax(1)
            return -log_p.gather(1, labels[:, None])[:, 0]

        own = classifier(text_tower, method=tempered, options={"t": 1.0})
        coop = classifier(text_tower, method="coop")
        own, coop = (clf.fit(x, y, class_names=NAMES) for clf in (own, coop))
        assert np.allclose(own.context_, coop.context_, atol=1e-6)
        assert not np.allclose(
            classifier(text_tower, method=tempered).fit(x, y, class_names=NAMES).context_,
            coop.context_,
            atol=1e-6,
        )

    def test_a_method_instance_is_taken_as_it_is(self, text_tower):
        x, y = features(60)
        given, named = (
            classifier(text_tower, method=method, options=options).fit(x, y, class_names=NAMES)
            for method, options in ((methods.make("gce", q=0.3), None), ("gce", {"q": 0.3}))
        )
        assert np.array_equal(given.context_, named.context_)

    def test_it_is_saved_and_loaded_without_the_function(self, text_tower, tmp_path):
        x, y = features(60)
        clf = classifier(text_tower, method=lambda z, y: -z.log_softmax(1).gather(1, y[:, None])[:, 0])
        clf.fit(x, y, class_names=NAMES).save(tmp_path / "clf")
        assert np.array_equal(dspt.load(tmp_path / "clf").predict(x), clf.predict(x))

    @pytest.mark.parametrize(
        ("method", "sentence"),
        [
            (
                lambda logits, labels: logits.sum(),
                r"expected one value a sample, .* found shape \(\)",
            ),
            (lambda logits, labels: 0.0, "expected one value a sample, .* found float"),
            (3, "method 3: expected a name, a Method, or a loss"),
            (lambda logits: logits, "expected the arguments logits, labels and defaults, but it takes 1"),
            (lambda logits, labels, t: logits, "but t has no default"),
            (Nameless, "method Nameless: it has no name"),
            (methods.LossMethod, "method LossMethod: it cannot be made without arguments"),
        ],
    )
    def test_what_is_no_method_is_told(self, text_tower, method, sentence):
        x, y = features(60)
        with pytest.raises(InputError, match=sentence):
            classifier(text_tower, method=method).fit(x, y, class_names=NAMES)


def test_other_packages_add_methods_by_an_entry_point(text_tower, tmp_path, monkeypatch):
    (tmp_path / "robust_zoo.py").write_text(
        "def lazy(logits, labels, q=0.5):\n"
        '    """A tenth of MAE."""\n'
        "    return q * (1 - logits.softmax(1).gather(1, labels[:, None])[:, 0])\n"
    )
    info = tmp_path / "robust_zoo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: robust-zoo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dspt.methods]\nlazy = robust_zoo:lazy\nbroken = robust_zoo:gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    x, y = features(60)
    theirs, mae = (
        classifier(text_tower, method=method, options=options).fit(x, y, class_names=NAMES)
        for method, options in (("lazy", {"q": 1.0}), ("mae", None))
    )
    assert np.array_equal(theirs.context_, mae.context_)
    with pytest.raises(InputError, match="method 'broken': robust_zoo:gone cannot be loaded"):
        methods.make("broken")
    rows = {row["name"]: row["what"] for row in methods.describe()}
    assert rows["lazy"] == "A tenth of MAE."
    assert "cannot be loaded" in rows["broken"], "one that is broken hides no other"
    with pytest.raises(InputError, match=r"method 'lasy': not known \(did you mean lazy\?\)"):
        methods.make("lasy")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["cat", None, "dog"], r"the label at row 1 is missing \(None\)"),
        ([float("nan"), "cat", "dog"], r"the label at row 0 is missing \(nan\)"),
        (("cat", np.nan, "dog"), r"the label at row 1 is missing \(nan\)"),
        (np.array(["cat", np.nan, "dog"], object), r"the label at row 1 is missing \(nan\)"),
        (["cat", "", "dog"], "the label at row 1 is empty"),
        ([0, "cat", 1], "found int, str"),
        ([True, False, True], "found bool"),
        ([1.0, 2.0, 1.0], "found float"),
    ],
)
def test_labels_that_are_missing_or_no_labels_are_refused(text_tower, labels, sentence):
    x, _ = features(3)
    with pytest.raises(InputError, match=sentence):
        classifier(text_tower).fit(x, labels)


def test_a_missing_label_of_pandas_is_refused(text_tower):
    pandas = pytest.importorskip("pandas")
    x, _ = features(3)
    with pytest.raises(InputError, match="the label at row 1 is missing"):
        classifier(text_tower).fit(x, pandas.Series(["cat", pandas.NA, "dog"], dtype=object))


def test_settings_of_numpys_types_are_numbers_too(text_tower):
    x, y = features(20)
    settings = {"epochs": np.int64(1), "lr": np.float32(0.25), "class_specific": np.bool_(False)}
    assert len(classifier(text_tower, **settings).fit(x, y, class_names=NAMES).history_) == 1


@pytest.mark.parametrize("names", ["ab", ["a", None], ["a", 3]])
def test_class_names_that_are_no_texts_are_refused(text_tower, names):
    x, y = features(20)
    with pytest.raises(InputError, match="class_names: expected a list of texts"):
        classifier(text_tower).fit(x, y % 2, class_names=names)


class TestSampleWeight:
    def test_weights_of_which_none_is_left_are_told(self, text_tower):
        """Of each class one shot is drawn; the only sample with a weight is none of them."""
        x, y = features(60)
        drawn = few_shot(y, 1, seed=1)
        other = next(row for row in range(60) if row not in drawn)
        with pytest.raises(InputError, match="all samples that can be learnt from have weight 0"):
            classifier(text_tower, shots=1).fit(x, y, class_names=NAMES, sample_weight=np.eye(60)[other])

    def test_only_ratios_matter(self, text_tower):
        x, y = features(60)
        ones, threes, none = (
            classifier(text_tower).fit(x, y, class_names=NAMES, sample_weight=weight).context_
            for weight in (np.ones(60), [3] * 60, None)
        )
        assert np.array_equal(ones, none)
        assert np.array_equal(ones, threes)

    @pytest.mark.parametrize("weight", [[1.0] * 5, [-1.0] * 60, [0.0] * 60, ["a"] * 60])
    def test_what_is_no_weight_is_told(self, text_tower, weight):
        x, y = features(60)
        with pytest.raises(InputError, match=r"^sample_weight: expected"):
            classifier(text_tower).fit(x, y, class_names=NAMES, sample_weight=weight)


def test_settings_of_a_run_can_be_reached(clip, tmp_path):
    """Bad images are left out and named; shots are drawn from each class."""
    images = [np.full((8, 8), 20 * i, np.uint8) for i in range(12)]
    files = []
    for i, image in enumerate(images):
        files.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(image).save(files[-1])
    (tmp_path / "3.png").write_bytes(b"broken")
    labels = np.arange(12) % 2
    clf = classifier(clip, cache=tmp_path / "cache", skip_bad=True, workers=1, shots=5)
    clf.fit(files, labels, class_names=NAMES[:2])
    assert all("3.png: not an image" in told for told in clf.skipped_)
    with pytest.raises(InputError, match="set `skip_bad` to go on without it"):
        classifier(clip, cache=tmp_path / "cache").fit(files, labels, class_names=NAMES[:2])


def test_classes_are_sorted_as_metrics_expect(text_tower):
    x, y = features(60)
    clf = classifier(text_tower).fit(x, np.array(NAMES)[y], class_names=NAMES[::-1])
    assert clf.classes_.tolist() == sorted(NAMES)
    assert np.array_equal(clf.predict(x), clf.classes_[clf.predict_proba(x).argmax(1)])


def test_a_saved_classifier_needs_no_checkpoint_for_features(text_tower, tmp_path):
    import shutil

    shutil.copytree(text_tower, tmp_path / "clip")
    x, y = features(60)
    clf = classifier(str(tmp_path / "clip"), momentum=0.5, text_memory=77).fit(x, y, class_names=NAMES)
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
    scaled = classifier(text_tower).fit((x * np.linspace(1, 9, 60)[:, None]).tolist(), y, class_names=NAMES)
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
    for wrong in ({"epochs": "3"}, {"epochs": 2.5}, {"batch_size": 8.0}, {"seed": 1.5}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} = .*: expected a whole number"):
            classifier(text_tower, **wrong).fit(x, y, class_names=NAMES)
    with pytest.raises(InputError, match="has no image tower"):
        classifier(text_tower, cache=tmp_path).fit([np.zeros((8, 8), np.uint8)] * 2, [0, 1], class_names=NAMES[:2])
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


def test_every_setting_of_a_run_is_a_parameter():
    """Or is the classifier's own affair: options are a dict, the seed has two names, and there is no test set."""
    names = {each.name for each in dataclasses.fields(Config)}
    assert names - set(PromptClassifier().get_params()) == {"option", "test_every"}
