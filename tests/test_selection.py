"""What is learnt if nobody says: the posterior's own classifier, and the choice between learners."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import NAMES, QUIET, feature_file, features
from torch.testing import assert_close

import dspt
from dspt import PromptClassifier, learners, selection
from dspt.config import Config
from dspt.data.dataset import Dataset, Split
from dspt.internal.errors import InputError
from dspt.posterior import label_likelihood
from dspt.problem import Problem, Task
from dspt.runs import finished
from dspt.workflows.train import run


def data(n=160, kind="pair", rate=0.3):
    x, y = features(n, 1)
    test_x, test_y = features(200, 2)
    given = np.asarray(dspt.corrupt(y, 4, kind, rate))
    return Dataset("blobs", NAMES, Split(x, given, y), Split(test_x, test_y, test_y))


def named_images(model, n):
    """Return features whose class the fixed prompt of the model tells, and that class."""
    names = learners.make(NAMES, Config(model=str(model), learner="prototypes")).zero_shot.numpy()
    y = np.arange(n) % 4
    x = names[y] + 0.01 * np.random.default_rng(0).standard_normal((n, 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return x, (x @ names.T).argmax(1)


def trained(source, model, out=None, **settings):
    return run(source, Config(model=str(model), epochs=2, device="cpu", **settings), out=out, reporter=QUIET)


class TestThePosteriorAsALearner:
    def test_is_solved_at_once_and_not_fooled(self, text_tower, tmp_path):
        clean = trained(data(rate=0.0), text_tower, tmp_path / "clean", learner="posterior")
        noisy = trained(data(), text_tower, tmp_path / "noisy", learner="posterior")
        assert noisy.epochs == 0
        assert (noisy.learner, noisy.method) == ("posterior", "dspt-auto")
        told = []
        finished.find(tmp_path, told.append)
        assert not [str(why) for why in told]
        assert noisy.accuracy == noisy.last_accuracy > clean.accuracy - 5 > 70
        assert abs(noisy.found["noise_rate"] - 0.3) < 2 * noisy.found["noise_rate_error"]

    def test_computes_what_the_posterior_computes(self, text_tower):
        source = data()
        config = Config(model=str(text_tower), learner="posterior")
        learner = learners.make(NAMES, config)
        x = source.train.items
        solved = learner.solve(x, source.train.labels)
        z = learner.scale * x @ learner.zero_shot.numpy().T
        expected = dspt.label_posterior(x, source.train.labels, z).scores(x, z)
        found = learner.classify(solved.parameters)(torch.from_numpy(x))
        # the softmax does not see a constant that all classes share
        assert_close(found.softmax(1), torch.from_numpy(expected).softmax(1), atol=1e-4, rtol=1e-3)

    def test_the_folder_is_read_back_to_the_bit(self, text_tower, tmp_path):
        source = data()
        result = trained(source, text_tower, tmp_path / "run", learner="posterior")
        loaded = dspt.load(tmp_path / "run")
        right = loaded.predict(source.test.items) == np.array(NAMES)[source.test.labels]
        assert 100 * right.mean() == pytest.approx(result.accuracy)
        again = trained(source, text_tower, tmp_path / "run", learner="posterior")
        assert again.accuracy == result.accuracy

    def test_settings_of_a_prompt_are_refused(self, text_tower):
        with pytest.raises(InputError, match="context_length = 4: learner posterior has no prompt"):
            learners.make(NAMES, Config(model=str(text_tower), learner="posterior", context_length=4))

    def test_cannot_weigh_samples(self, text_tower):
        x, y = features(40)
        with pytest.raises(InputError, match="sample_weight: this learner cannot weigh samples"):
            PromptClassifier(str(text_tower), learner="posterior").fit(x, y, NAMES, sample_weight=np.ones(40))

    def test_of_several_views_the_mean_counts(self, text_tower):
        x, y = features(80)
        learner = learners.make(NAMES, Config(model=str(text_tower), learner="posterior"))
        one, same = learner.solve(x, y), learner.solve(np.stack([x, x], axis=1), y)
        assert_close(one.parameters["weights"], same.parameters["weights"], rtol=1e-3, atol=1e-3)


class TestTheChoice:
    def test_is_a_learner_under_which_held_out_labels_are_most_likely(self, text_tower):
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=2))
        source = data()
        task = Task.of(Problem(NAMES, source.train.items, source.train.labels), config)
        found, choice = selection.chosen(task)
        assert choice.likelihoods[choice.learner] > max(choice.likelihoods.values()) - 0.1
        assert found.config.learner == choice.learner
        assert found.method.name == "dspt-auto"
        assert choice.why.startswith(f"{choice.learner}, since held-out labels are ")
        assert all(f"{name} {value:.3f}" in choice.why for name, value in choice.likelihoods.items())
        assert selection.chosen(task)[1] == choice  # the same again

    def test_looks_at_no_true_label_and_no_test_set(self, text_tower):
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=2))
        source = data()
        x, labels = source.train.items, source.train.labels
        blind = Task.of(Problem(NAMES, x, labels), config)
        told = Task.of(Problem(NAMES, x, labels, source.train.true_labels, x[:40], labels[:40]), config)
        assert selection.chosen(blind)[1] == selection.chosen(told)[1]

    def test_of_few_samples_is_prototypes(self, text_tower):
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=2))
        x, y = features(12)
        _, choice = selection.chosen(Task.of(Problem(NAMES, x, y), config))
        assert choice.learner == "prototypes"
        assert "12 samples are too few" in choice.why

    def test_where_nothing_can_be_told_and_names_tell_nothing_is_prototypes(self, text_tower):
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=2))
        random = np.random.default_rng(0)
        x = random.standard_normal((60, 16)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        _, choice = selection.chosen(Task.of(Problem(NAMES, x, random.integers(0, 4, 60)), config))
        assert choice.learner == "prototypes"
        assert "cannot be told" in choice.why
        assert re.search(r"the class names agree with \d+ % of them, no more than by chance$", choice.why)

    @pytest.mark.parametrize("rate", [0.0, 0.6])
    def test_where_nothing_can_be_told_but_names_agree_with_labels_is_a_prompt(self, text_tower, monkeypatch, rate):
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=2))
        x, y = named_images(text_tower, 160)
        given = np.asarray(dspt.corrupt(y, 4, "symmetric", rate))
        monkeypatch.setattr(selection, "posterior_of", lambda *a: replace(learners.posterior_of(*a), start="none"))
        _, choice = selection.chosen(Task.of(Problem(NAMES, x, given), config))
        assert choice.learner == "prompt"
        assert choice.why == "prompt, since wrong labels cannot be told from right ones, and it learns least"

    @pytest.mark.parametrize(("right", "tried"), [(0.15, False), (0.75, True)])
    def test_a_prompt_is_tried_if_names_tell_more_than_chance_does(self, text_tower, monkeypatch, right, tried):
        """Of four classes, names that know 15 % of the images and guess the others tell more than a quarter."""
        config = selection.provisional(Config(model=str(text_tower), learner="auto", epochs=1))
        x, named = named_images(text_tower, 240)
        guessed = np.arange(240) >= 240 * right
        true = np.where(guessed, np.arange(240) // 4 % 4, named)
        assert (named == true).mean() > 0.3

        def knows(train_x, labels, learner):
            found = learners.posterior_of(train_x, labels, learner)
            return replace(found, probabilities=np.eye(4, dtype=np.float32)[labels], start="labels")

        monkeypatch.setattr(selection, "posterior_of", knows)
        _, choice = selection.chosen(Task.of(Problem(NAMES, x, true), config))
        assert ("prompt" in choice.likelihoods) == tried
        if not tried:
            assert re.search(r"the class names tell [34]\d % of the images, and chance 25 %$", choice.why)

    @pytest.mark.parametrize("learner", ["auto", "posterior"])
    def test_that_another_method_is_taken_is_said(self, text_tower, tmp_path, caplog, learner):
        source = data()
        line = f"method: dspt-auto in place of dspt, since learner {learner} goes with no other"
        assert selection.replaced(Config(learner=learner, method="dspt-auto")) == ""
        with caplog.at_level(logging.WARNING, "dspt"):
            classifier = PromptClassifier(str(text_tower), "dspt", learner=learner, epochs=2)
            classifier.fit(source.train.items, source.train.labels, NAMES)
        assert [record.getMessage() for record in caplog.records] == [line]
        assert (classifier.method, classifier.method_) == ("dspt", "dspt-auto")
        classifier.save(tmp_path / "saved")
        assert dspt.load(tmp_path / "saved").method_ == "dspt-auto"

    def test_nothing_is_said_where_the_method_is_taken(self, text_tower, caplog):
        x, y = features(40)
        with caplog.at_level(logging.WARNING, "dspt"):
            found = PromptClassifier(str(text_tower), "gce", learner="prototypes", epochs=1).fit(x, y, NAMES)
        assert not caplog.records
        assert found.method_ == "gce"

    def test_another_method_is_refused(self, text_tower, tmp_path):
        with pytest.raises(InputError, match="learner = 'auto': it goes with dspt-auto, not with method gce"):
            trained(data(), text_tower, tmp_path / "run", learner="auto", method="gce")

    def test_a_run_has_the_settings_of_what_was_chosen(self, text_tower, tmp_path):
        result = trained(data(), text_tower, tmp_path / "run", learner="auto")
        loaded = dspt.load(tmp_path / "run")
        assert loaded.learner in ("posterior", "prototypes", "prompt")
        assert loaded.method == "dspt-auto"
        assert result.accuracy is not None
        assert result.learner == loaded.learner
        assert result.why.startswith(f"{loaded.learner}, since")

    def test_a_finished_run_is_not_chosen_for_again(self, text_tower, tmp_path, monkeypatch):
        first = trained(data(), text_tower, tmp_path / "run", learner="auto")
        monkeypatch.setattr(selection, "chosen", lambda *_: pytest.fail("it chose again"))
        assert trained(data(), text_tower, tmp_path / "run", learner="auto") == first
        monkeypatch.undo()
        with pytest.raises(InputError, match="it holds another run"):
            trained(data(rate=0.2), text_tower, tmp_path / "run", learner="auto")

    def test_a_run_whose_learner_was_named_is_not_taken_for_a_choice(self, text_tower, tmp_path, monkeypatch):
        trained(data(), text_tower, tmp_path / "run", learner="posterior")
        monkeypatch.setattr(selection, "chosen", lambda *_: pytest.fail("it chooses"))
        with pytest.raises(pytest.fail.Exception, match="it chooses"):
            trained(data(), text_tower, tmp_path / "run", learner="auto")

    def test_settings_of_a_prompt_are_refused(self, text_tower, tmp_path):
        with pytest.raises(InputError, match="context_length = 4: it is of a prompt, and learner 'auto' may choose"):
            trained(data(), text_tower, tmp_path / "run", learner="auto", context_length=4)

    def test_in_python_it_says_what_it_chose_and_is_saved_as_that(self, text_tower, tmp_path):
        source = data()
        classifier = PromptClassifier(str(text_tower), learner="auto", epochs=2)
        classifier.fit(source.train.items, source.train.labels, NAMES)
        assert classifier.choice_.learner in ("posterior", "prototypes", "prompt")
        classifier.save(tmp_path / "saved")
        loaded = dspt.load(tmp_path / "saved")
        assert loaded.learner == classifier.choice_.learner
        np.testing.assert_array_equal(
            loaded.decision_function(source.test.items), classifier.decision_function(source.test.items)
        )

    def test_samples_with_weights_are_given_to_none_that_cannot_weigh(self, text_tower):
        source = data()
        classifier = PromptClassifier(str(text_tower), learner="auto", epochs=2)
        classifier.fit(source.train.items, source.train.labels, NAMES, sample_weight=np.arange(160) + 1.0)
        assert "posterior" not in classifier.choice_.likelihoods

    def test_a_method_of_ones_own_is_refused(self, text_tower):
        source = data()
        classifier = PromptClassifier(str(text_tower), dspt.methods.make("dspt"), learner="auto")
        with pytest.raises(InputError, match="not with a method of one's own"):
            classifier.fit(source.train.items, source.train.labels, NAMES)

    def test_a_second_fit_chooses_anew(self, text_tower):
        source = data()
        classifier = PromptClassifier(str(text_tower), learner="auto", epochs=2)
        for _ in range(2):
            classifier.fit(source.train.items, source.train.labels, NAMES)
            assert classifier.choice_ is not None
        assert classifier.learner == "auto"


def test_the_likelihood_of_labels_is_that_of_the_noise_model():
    """Worked out by hand: two classes, sure predictions, labels right with probability 0.8."""
    transition = np.array([[0.8, 0.2], [0.2, 0.8]])
    logits = np.array([[30.0, 0.0]] * 10)
    labels = [0] * 8 + [1] * 2
    expected = 0.8 * np.log(0.8) + 0.2 * np.log(0.2)
    assert label_likelihood(logits, labels, transition).mean() == pytest.approx(expected, abs=1e-3)


def test_the_command_tells_the_accuracy_of_what_is_solved_at_once(dspt, text_tower, tmp_path):
    source = feature_file(tmp_path / "data.npz")
    status, output, _ = dspt("train", source, "--model", text_tower, "--learner", "posterior", "-q")
    assert status == 0
    assert re.search(r"posterior +\d+\.\d+ %", output)


@pytest.mark.parametrize("method", [(), ("--method", "dspt")])
@pytest.mark.parametrize("learner", ["auto", "posterior"])
def test_the_command_says_with_the_result_what_was_taken_and_why(dspt, text_tower, tmp_path, learner, method):
    source = feature_file(tmp_path / "data.npz")
    asked = ("train", source, "--model", text_tower, "--learner", learner, *method, "--epochs", "1", "-q")
    for _ in range(2):  # also of a run that is there already
        status, output, _ = dspt(*asked, "--out", tmp_path / "run")
        assert status == 0
        assert f"method: dspt-auto in place of dspt, since learner {learner} goes with no other" in output
        said = re.findall(r"^learner: (?:prompt|prototypes|posterior), since .*$", output, re.MULTILINE)
        assert len(said) == (learner == "auto")
