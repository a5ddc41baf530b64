"""Features without a model: no text tower, no class names, and all that goes without them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import NAMES, QUIET, feature_file, features, told
from torch.testing import assert_close

import dspt as package
from dspt import PromptClassifier, learners, methods
from dspt.config import Config
from dspt.data import Dataset, Split
from dspt.internal.errors import InputError
from dspt.learners import Samples
from dspt.learners.prototypes import class_means
from dspt.problem import Problem, Task
from dspt.runs import learning
from dspt.train import State, Stream, batches, fit
from dspt.workflows.train import run

ALONE = ["prototypes", "posterior", "auto"]


def noisy(n=200, rate=0.4):
    x, true = features(n, 1)
    return x, np.asarray(package.corrupt(true, 4, "symmetric", rate)), *features(200, 2)


def prototypes(**settings):
    return learners.make(NAMES, Config(model="none", learner="prototypes", **settings))


class TestTheStart:
    def test_is_the_mean_of_each_class_by_given_labels(self):
        x, y, _, _ = noisy()
        means = np.stack([x[y == c].mean(0) for c in range(4)])
        expected = means / np.linalg.norm(means, axis=1, keepdims=True)
        found = prototypes().start(Samples(x, y))["weights"]
        assert_close(found, torch.from_numpy(expected.astype(np.float32)))

    def test_counts_samples_by_their_weight(self):
        x, y, _, _ = noisy()
        weights = np.where(np.arange(len(y)) < 100, 1.0, 0.0)
        found = prototypes().start(Samples(x, y, weights))["weights"]
        assert_close(found, prototypes().start(Samples(x[:100], y[:100]))["weights"])

    def test_of_a_class_without_samples_is_next_to_nobody(self):
        x, y = features(90, 1, classes=3)
        weights = prototypes().start(Samples(x, y))["weights"]
        assert_close(weights.norm(dim=1), torch.ones(4))
        predicted = prototypes().classify({"weights": weights})(torch.from_numpy(x)).argmax(1)
        assert not (predicted == 3).any()

    def test_of_features_that_cancel_out_can_be_learnt_from(self):
        x = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
        learner = learners.make(("a", "b"), Config(model="none", learner="prototypes", epochs=2))
        task = Task.of(Problem(("a", "b"), x, np.array([0, 0, 1, 1])), learner.config, learner)
        assert_close(task.start["weights"].norm(dim=1), torch.ones(2))
        assert learning.learn(task).parameters["weights"].isfinite().all()


class TestTheStartByThePosterior:
    """Where names tell next to nothing, `dspt-auto` has prototypes begin at class means by the posterior."""

    def means(self, x, shares):
        sums = shares.T.astype(np.float64) @ x
        return torch.from_numpy((sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32))

    def named(self, rows, monkeypatch, **settings):
        """Return a learner whose class names have these prototypes."""
        learner = prototypes(**settings)
        monkeypatch.setattr(type(learner), "zero_shot", F.normalize(torch.from_numpy(rows), dim=1), raising=False)
        return learner

    @pytest.mark.parametrize("views", [1, 3])
    def test_is_the_mean_by_the_share_that_each_class_has_of_a_sample(self, views):
        x, y, _, _ = noisy()
        found = package.label_posterior(x, y)
        random = np.random.default_rng(0)
        away = random.standard_normal((len(x), views, x.shape[1])) if views > 1 else np.zeros((len(x), 1, x.shape[1]))
        several = (x[:, None] + away - away.mean(1, keepdims=True)).astype(np.float32)
        begun = prototypes().start_by(found, Samples(several if views > 1 else x, y))
        assert_close(begun["weights"], self.means(x, found.as_found()), rtol=1e-4, atol=1e-6)

    def test_a_sample_counts_by_its_weight(self):
        x, y, _, _ = noisy()
        found = package.label_posterior(x, y)
        weights = np.random.default_rng(0).uniform(0, 2, len(y))
        begun = prototypes().start_by(found, Samples(x, y, weights))
        assert_close(begun["weights"], self.means(x, weights[:, None] * found.as_found()), rtol=1e-4, atol=1e-6)

    def test_of_a_class_that_no_sample_has_is_next_to_nobody(self):
        x, y = features(90, 1, classes=3)
        found = package.label_posterior(x, y, num_classes=4)
        weights = prototypes().start_by(found, Samples(x, y))["weights"]
        predicted = prototypes().classify({"weights": weights})(torch.from_numpy(x)).argmax(1)
        assert not (predicted == 3).any()

    @pytest.mark.parametrize(("tell", "moved"), [("all", False), ("half", False), ("none", True), ("others", True)])
    def test_is_taken_only_where_names_tell_less_than_a_quarter_of_what_chance_leaves_open(
        self, monkeypatch, tell, moved
    ):
        x, true = features(200, 1)
        own = np.stack([x[true == c].mean(0) for c in range(4)])
        told = {
            "all": own,
            "half": own[[0, 1, 3, 2]],
            "none": np.repeat(own[:1], 4, 0),
            "others": own[[1, 2, 3, 0]],
        }[tell].astype(np.float32)
        learner = self.named(told, monkeypatch)
        assert (learner.start_by(package.label_posterior(x, true), Samples(x, true)) is not None) == moved

    @pytest.mark.parametrize(("method", "moved"), [("dspt-auto", True), ("coop", False)])
    def test_is_where_training_begins_with_the_method_that_reads_the_posterior(self, method, moved):
        x, y, _, _ = noisy()
        settings = {"method": method, "epochs": 2, "lr": 0.0, "warmup_lr": 0.0, "weight_decay": 0.0}
        task = Task.of(Problem(NAMES, x, y), Config(model="none", learner="prototypes", **settings))
        left = learning.learn(task).parameters["weights"]
        by_posterior = self.means(x, package.label_posterior(x, y).as_found())
        assert_close(left, by_posterior if moved else task.start["weights"], rtol=1e-4, atol=1e-6)
        assert (by_posterior - task.start["weights"]).norm() > 0.05, "the comparison would be empty"

    def test_where_nothing_can_be_told_is_that_of_the_given_labels(self):
        random = np.random.default_rng(0)
        x, y = random.standard_normal((60, 16)).astype(np.float32), random.integers(0, 4, 60)
        assert not package.label_posterior(x, y).can_tell
        settings = {"method": "dspt-auto", "epochs": 1, "lr": 0.0, "warmup_lr": 0.0, "weight_decay": 0.0}
        task = Task.of(Problem(NAMES, x, y), Config(model="none", learner="prototypes", **settings))
        assert_close(learning.learn(task).parameters["weights"], task.start["weights"])

    @pytest.mark.parametrize(
        ("wrong", "tell", "moved"),
        [(0.0, "all", False), (0.6, "all", False), (0.0, "others", True), (0.6, "others", True), (0.6, "one", True)],
    )
    def test_where_nothing_can_be_told_names_need_agree_with_labels_but_more_than_by_chance(
        self, monkeypatch, wrong, tell, moved
    ):
        """Labels of which most are wrong agree with good names seldom, and with names of others by chance alone."""
        x, true = features(400, 1)
        own = np.stack([x[true == c].mean(0) for c in range(4)])
        told = {"all": own, "others": own[[1, 2, 3, 0]], "one": np.repeat(own[:1], 4, 0)}[tell].astype(np.float32)
        y = np.asarray(package.corrupt(true, 4, "symmetric", wrong)) if wrong else true
        nothing = replace(package.label_posterior(x, y), probabilities=np.eye(4, dtype=np.float32)[y], start="none")
        assert not nothing.can_tell
        begun = self.named(told, monkeypatch).start_by(nothing, Samples(x, y))
        assert (begun is not None) == moved
        if begun is not None:
            assert_close(begun["weights"], class_means(Samples(x, y), 4))

    @pytest.mark.parametrize(("share", "images", "more"), [(0.13, 200, True), (0.11, 200, False), (0.105, 9**5, False)])
    def test_more_than_chance_is_a_standard_error_and_something_to_speak_of(self, share, images, more):
        """Ten even classes: the standard error is 0.021 for 200 images, 0.001 for sixty thousand."""
        assert learners.Agreement(share, 0.1, images).more_than_chance == more

    def test_is_not_taken_where_the_caller_says_where_to_begin(self):
        x, y, _, _ = noisy()
        settings = {"method": "dspt-auto", "epochs": 1, "lr": 0.0, "warmup_lr": 0.0, "weight_decay": 0.0}
        task = Task.of(Problem(NAMES, x, y), Config(model="none", learner="prototypes", **settings))
        own = {"weights": torch.eye(4, 16)}
        ((state, _),) = fit(task, State(0, own))
        assert_close(state.parameters["weights"], own["weights"])

    @pytest.mark.parametrize("stop", [1, 2])
    def test_going_on_gives_the_same_bits(self, stop):
        x, y, _, _ = noisy()
        task = Task.of(Problem(NAMES, x, y), Config(model="none", learner="prototypes", method="dspt-auto", epochs=3))
        whole = list(fit(task))
        rest = list(fit(task, whole[stop - 1][0]))
        assert torch.equal(whole[-1][0].parameters["weights"], rest[-1][0].parameters["weights"])


class TestWhatIsLearnt:
    @pytest.mark.parametrize("method", [name for name, one in methods.METHODS.items() if not one.needs_text])
    def test_by_each_method_that_looks_at_no_names(self, method):
        x, y, test_x, test_y = noisy(rate=0.2)
        found = PromptClassifier(None, method, learner="prototypes", epochs=3).fit(x, y)
        assert found.score(test_x, test_y) > 0.7  # chance has 0.25

    def test_as_a_plain_loop_learns_it_from_the_class_means_at_a_scale_of_100(self):
        x, y, _, _ = noisy(64)
        weights = prototypes().start(Samples(x, y))["weights"].requires_grad_()
        optimizer = torch.optim.SGD([weights], lr=1, momentum=0.9, weight_decay=5e-4)
        for epoch, rate in enumerate((1e-5, 0.01)):
            optimizer.param_groups[0]["lr"] = rate
            for rows in batches(64, 32, Stream(1, "shuffle", epoch, 0)):
                optimizer.zero_grad()
                F.cross_entropy(
                    100 * torch.from_numpy(x[rows]) @ F.normalize(weights).T, torch.from_numpy(y[rows])
                ).backward()
                optimizer.step()
        found = PromptClassifier(None, "coop", learner="prototypes", epochs=2, lr=0.01).fit(x, y)
        assert_close(found.parameters_["weights"], weights.detach(), rtol=1e-4, atol=1e-6)

    def test_the_posterior_is_the_one_of_features_and_labels(self):
        x, y, test_x, _ = noisy()
        found = PromptClassifier("none", learner="posterior").fit(x, y)
        expected = package.label_posterior(x, y).classify(test_x)
        np.testing.assert_allclose(found.predict_proba(test_x), expected, atol=1e-5)

    def test_auto_tries_no_prompt_and_says_so(self):
        x, y, test_x, test_y = noisy()
        found = PromptClassifier(None, learner="auto", epochs=2).fit(x, y)
        assert found.choice_.learner in ("prototypes", "posterior")
        assert set(found.choice_.likelihoods) == {"prototypes", "posterior"}
        assert found.choice_.why.endswith("; a prompt was not tried, since there is no model to read it")
        assert found.score(test_x, test_y) > 0.9

    def test_auto_where_nothing_can_be_told_is_prototypes(self):
        random = np.random.default_rng(0)
        found = PromptClassifier(None, learner="auto", epochs=2)
        found.fit(random.standard_normal((60, 16)), random.integers(0, 4, 60))
        assert found.choice_.learner == "prototypes"
        assert "there is no model to read a prompt" in found.choice_.why

    @pytest.mark.parametrize("learner", ALONE)
    @pytest.mark.parametrize("values", [[3, 7, 20, 21], ["d", "c", "b", "a"]])
    def test_classes_are_the_labels_own_values_also_after_saving(self, tmp_path, learner, values):
        x, y, test_x, test_y = noisy()
        own = np.array(values)
        found = PromptClassifier(None, learner=learner, epochs=2).fit(x, own[y])
        assert found.classes_.tolist() == sorted(values)
        assert found.score(test_x, own[test_y]) > 0.9
        found.save(tmp_path / "saved")
        for again in (package.load(tmp_path / "saved"), pickle.loads(pickle.dumps(found))):
            np.testing.assert_array_equal(again.predict(test_x), found.predict(test_x))
            np.testing.assert_array_equal(again.decision_function(test_x), found.decision_function(test_x))

    def test_class_names_may_be_given(self):
        x, y, _, _ = noisy()
        found = PromptClassifier(None, learner="posterior").fit(x, y % 3, class_names=NAMES)
        assert found.class_names_ == NAMES
        assert found.predict_proba(x).shape == (200, 4)

    def test_an_audit_needs_no_model_either(self):
        x, y, _, _ = noisy()
        found = PromptClassifier(None, learner="posterior").fit(x, y).audit(x, y)
        assert 0.2 < found.is_label_issue.mean() < 0.6


class TestRefused:
    @pytest.mark.parametrize("learner", ["prompt", "cocoop"])
    def test_a_prompt(self, learner):
        x, y, _, _ = noisy()
        sentence = f"learner = '{learner}': a prompt needs a text tower, and model none has none; name a `model`, or"
        with pytest.raises(InputError, match=sentence):
            PromptClassifier(None, learner=learner).fit(x, y)

    @pytest.mark.parametrize("method", ["upl", "robust-upl", "zero-shot", "nlprompt"])
    def test_methods_that_look_at_names(self, method):
        x, y, _, _ = noisy()
        with pytest.raises(InputError, match=rf"method {method}: it .*, and model none has no text tower; give one of"):
            PromptClassifier(None, method, learner="prototypes").fit(x, y)

    def test_a_method_of_ones_own_that_looks_at_them_after_all(self):
        class Own(methods.Method):
            name, formula, source = "own", "-", "-"

            def plan(self, epoch):
                return [epoch.zero_shot_logits()]

        x, y, _, _ = noisy()
        with pytest.raises(InputError, match="method own: it looks at zero-shot logits, and model none has no text"):
            PromptClassifier(None, Own(), learner="prototypes").fit(x, y)

    def test_images(self, tmp_path):
        x, y, _, _ = noisy()
        pixels = np.zeros((200, 8, 8, 3), np.uint8)
        with pytest.raises(InputError, match="model: none is given, and images need one; name a CLIP checkpoint"):
            PromptClassifier(None, learner="prototypes").fit(pixels, y)
        fitted = PromptClassifier(None, learner="posterior").fit(x, y)
        with pytest.raises(InputError, match="model none: this classifier was made from features alone"):
            fitted.predict(pixels)

    def test_images_in_one_split(self):
        x, y, _, _ = noisy()
        mixed = Dataset("mixed", NAMES, Split(x, y), Split(["a.png"], np.array([0])))
        with pytest.raises(InputError, match="model none: it goes with features, and the test split has images"):
            run(mixed, Config(model="none", learner="prototypes"), reporter=QUIET)

    def test_noise_that_looks_at_names(self, tmp_path):
        data = str(feature_file(tmp_path / "data.npz"))
        config = Config(model="none", learner="prototypes", epochs=1)
        with pytest.raises(InputError, match=r"noise near:0\.4: it looks at what a text tower makes of class names"):
            run(data, config, "near:0.4", reporter=QUIET)
        assert run(data, config, "inst:0.4", tmp_path / "run", reporter=QUIET).wrong_labels > 0.2

    def test_a_test_set_of_another_width(self):
        x, y, _, _ = noisy()
        other, labels = features(40, 2, dim=12)
        data = Dataset("two", NAMES, Split(x, y), Split(other, labels))
        with pytest.raises(InputError, match="test features: 12 wide, but those to learn from are 16 wide"):
            run(data, Config(model="none", learner="prototypes"), reporter=QUIET)


class TestTheCommands:
    @pytest.mark.parametrize("learner", ALONE)
    def test_train_and_eval(self, dspt, tmp_path, learner):
        data, out = feature_file(tmp_path / "data.npz"), tmp_path / "run"
        asked = ("--model", "none", "--learner", learner, "--epochs", "2", "--noise", "sym:0.3", "--out", out)
        status, output, error = dspt("train", data, *asked)
        assert status == 0, error
        assert "zero-shot" not in output
        assert "model none" in output
        status, output, _ = dspt("train", data, *asked, "--json")
        result = json.loads(output)
        assert (result["model"], result["zero_shot"]) == ("none", None)
        assert result["accuracy"] > 70  # chance has 25
        status, output, _ = dspt("eval", out, data, "--json", "--page", tmp_path / "page.html")
        assert status == 0
        assert json.loads(output)["accuracy"] == pytest.approx(result["last_accuracy"], abs=1e-3)
        assert package.load(out).predict(features(5, 2)[0]).tolist()[0] in NAMES

    def test_no_epoch_and_no_model_is_a_run_without_figures(self, dspt, tmp_path):
        data = feature_file(tmp_path / "f.npz")
        arguments = ["--model", "none", "--learner", "prototypes", "--method", "coop", "--epochs", "0"]
        status, output, error = dspt("train", data, *arguments, "--out", tmp_path / "run")
        assert status == 0, error
        assert "run folder:" in output

    def test_predict_of_images_is_one_sentence(self, dspt, tmp_path):
        data, out = feature_file(tmp_path / "data.npz"), tmp_path / "run"
        dspt("train", data, "--model", "none", "--learner", "posterior", "--out", out)
        status, _, error = dspt("predict", out, "a.png", "-q")
        assert status == 2
        assert "model none: this classifier was made from features alone" in error
        assert error.count("\n") == 1

    @pytest.mark.parametrize("command", ["train", "zeroshot", "encode"])
    def test_images_are_one_sentence(self, dspt, command):
        learner = ("--learner", "prototypes") if command == "train" else ()
        status, _, error = dspt(command, "embedded", "--model", "none", *learner)
        assert status == 2
        assert "model none: " in error
        assert error.count("\n") == 1

    def test_an_interrupted_run_goes_on_to_the_same_end(self, tmp_path, monkeypatch):
        data = str(feature_file(tmp_path / "data.npz"))
        config = Config(model="none", learner="prototypes", epochs=4)
        run(data, config, "sym:0.3", tmp_path / "whole", reporter=QUIET)

        def stop(records):
            if len(records) == 2:
                raise KeyboardInterrupt

        whole = learning.learn
        monkeypatch.setattr("dspt.workflows.train.learn", lambda task, folder, *_: whole(task, folder, on_epoch=stop))
        with pytest.raises(KeyboardInterrupt):
            run(data, config, "sym:0.3", tmp_path / "parts", reporter=QUIET)
        monkeypatch.undo()
        run(data, config, "sym:0.3", tmp_path / "parts", reporter=QUIET)
        assert told(tmp_path / "parts") == told(tmp_path / "whole")
        with pytest.raises(InputError, match="it holds another run"):
            run(data, Config(model="none", learner="auto", epochs=4), "sym:0.3", tmp_path / "parts", reporter=QUIET)
