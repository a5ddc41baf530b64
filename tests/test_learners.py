"""What is learnt: contexts, image-conditioned contexts, prototypes; every method works with each."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import NAMES, feature_file, features
from torch.testing import assert_close

import dspt
from dspt import learners, methods, train
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.learners import LEARNERS, cocoop, open_text_tower
from dspt.methods import Batch, Method, Phase
from dspt.noise import corrupt
from dspt.problem import Problem, Task
from dspt.workflows.train import run

ON_CLIP = [name for name, kind in LEARNERS.items() if kind.has_clip]


@pytest.fixture
def model(text_tower):
    return text_tower


def make(model, learner, **settings):
    config = Config(model=model, learner=learner, **settings)
    return learners.make(NAMES, config, open_text_tower(config))


def problem(n=64):
    x, y = features(n, 1)
    given = np.asarray(corrupt(y, 4, "symmetric", 0.4))
    return Problem(NAMES, x, given, y, *features(40, 2))


def fit(learner, data, state=None):
    return list(train.fit(Task.of(data, learner.config, learner), state))


class TestPrototypes:
    def test_start_at_zero_shot(self, model):
        learner = make(model, "prototypes")
        x = torch.from_numpy(features(10)[0])
        assert_close(learner.classify(learner.start())(x), 100 * x @ learner.zero_shot.T)

    def test_are_learnt_as_a_plain_loop_learns_them(self, model):
        learner, data = make(model, "prototypes", method="gce", epochs=2, lr=0.01), problem()
        weights = learner.zero_shot.clone().requires_grad_()
        optimizer = torch.optim.SGD([weights], lr=1, momentum=0.9, weight_decay=5e-4)
        x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.labels)
        for epoch, rate in enumerate((1e-5, 0.01)):
            optimizer.param_groups[0]["lr"] = rate
            for rows in train.batches(64, 32, train.Stream(1, "shuffle", epoch, 0)):
                p = (100 * x[rows] @ F.normalize(weights).T).softmax(1)
                right = p.gather(1, y[rows][:, None])
                optimizer.zero_grad()
                ((1 - right**0.7) / 0.7).mean().backward()
                optimizer.step()
        learnt = fit(learner, data)[-1][0].parameters["weights"]
        assert (learnt - learner.zero_shot).norm() > 0.01
        assert_close(learnt, weights.detach(), rtol=1e-4, atol=1e-6)

    def test_are_learnt_in_planned_batches_with_targets_of_the_step_and_mixup(self, model, monkeypatch):
        planned = [Batch(np.array([0, 3, 5]), np.array([2, 0, 1]), 0.7), Batch(np.array([3, 1])), Batch(np.array([9]))]

        @dataclass(frozen=True)
        class Planned(Method):
            name, formula, source = "planned", "-", "-"

            def plan(self, epoch):
                def targets(places, logits):
                    return (logits.softmax(1) + F.one_hot(epoch.labels[places], 4)) / 2

                return [Phase(np.arange(len(epoch.labels)), targets, soft_cross_entropy, planned)]

        soft_cross_entropy = partial(F.cross_entropy, reduction="none")
        monkeypatch.setitem(methods.METHODS, "planned", Planned())
        learner, data = (
            make(model, "prototypes", method="planned", epochs=1, warmup_lr=0.01, weight_decay=0.0),
            problem(),
        )
        weights = learner.zero_shot.clone().requires_grad_()
        optimizer = torch.optim.SGD([weights], lr=0.01, momentum=0.9)
        x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.labels)
        for rows, others in (([0, 3, 5], [5, 0, 3]), ([3, 1], None), ([9], None)):
            p, one_hot = (100 * x @ F.normalize(weights).T).softmax(1).detach(), F.one_hot(y, 4)
            target, inputs = (p[rows] + one_hot[rows]) / 2, x[rows]
            if others:
                target = 0.7 * target + 0.3 * (p[others] + one_hot[others]) / 2
                inputs = F.normalize(0.7 * x[rows] + 0.3 * x[others])
            optimizer.zero_grad()
            F.cross_entropy(100 * inputs @ F.normalize(weights).T, target).backward()
            optimizer.step()
        ((state, record),) = fit(learner, data)
        assert record["steps"] == 3
        assert (state.parameters["weights"] - learner.zero_shot).norm() > 0.01
        assert_close(state.parameters["weights"], weights.detach(), rtol=1e-4, atol=1e-6)

    def test_are_saved_with_length_1(self, model, tmp_path):
        data = feature_file(tmp_path / "data.npz")
        run(str(data), Config(model=model, learner="prototypes", epochs=2), out=tmp_path / "run")
        assert_close(dspt.load(tmp_path / "run").prototypes_.norm(dim=1), torch.ones(4))


class TestCoCoOp:
    def test_every_image_has_the_prompt_that_its_shift_makes(self, model):
        learner = make(model, "cocoop")
        learnt, x = learner.start(), torch.from_numpy(features(5)[0])
        net = torch.nn.Sequential(torch.nn.Linear(16, 1), torch.nn.ReLU(), torch.nn.Linear(1, 32))
        names = {"0": "meta.down", "2": "meta.up"}
        net.load_state_dict({f"{n}.{p}": learnt[f"{m}.{p}"] for n, m in names.items() for p in ("weight", "bias")})
        prompt = make(model, "prompt")
        rows = [100 * image @ prompt.prototypes({"context": learnt["context"] + net(image)}).T for image in x]
        assert_close(learner.logits(x, learnt), torch.stack(rows), rtol=1e-4, atol=1e-4)

    def test_without_a_shift_it_is_coop(self, model):
        learner, prompt = make(model, "cocoop"), make(model, "prompt")
        learnt, x = learner.start(), torch.from_numpy(features(5)[0])
        learnt["meta.up.weight"].zero_()
        learnt["meta.up.bias"].zero_()
        assert_close(learner.classify(learnt)(x), prompt.classify(prompt.start())(x), rtol=1e-5, atol=1e-4)

    def test_a_memory_limit_changes_nothing_but_memory(self, model):
        x, y = (torch.from_numpy(values) for values in features(6))
        gradients = []
        for limit in (2**31, 1):
            learner = make(model, "cocoop")
            learner.tower.memory_limit = limit
            learnt = {name: value.requires_grad_() for name, value in learner.start().items()}
            F.cross_entropy(learner.logits(x, learnt), y).backward()
            gradients.append({name: value.grad for name, value in learnt.items()})
        for name, gradient in gradients[0].items():
            assert_close(gradients[1][name], gradient)

    def test_learns_the_context_and_the_network(self, model):
        learner = make(model, "cocoop", epochs=3, method="coop", lr=0.02)
        begin = learner.start()
        end = fit(learner, problem())[-1][0].parameters
        assert begin.keys() == end.keys()
        assert all(not torch.equal(begin[name], end[name]) for name in begin)

    def test_has_the_published_bottleneck(self, model):
        sizes = {name: tuple(v.shape) for name, v in cocoop._linear("a", 512, 32, 1).items()}
        assert sizes == {"a.weight": (32, 512), "a.bias": (32,)}
        assert make(model, "cocoop").start()["meta.down.weight"].shape == (16 // 16, 16)

    def test_starts_within_torchs_bounds(self):
        drawn = cocoop._linear("a", 64, 512, 1)["a.weight"]
        assert drawn.abs().max() <= 1 / 8
        assert drawn.abs().max() > 0.99 / 8
        assert drawn.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)


class TestEveryLearner:
    @pytest.mark.parametrize("learner", ON_CLIP)
    @pytest.mark.parametrize("method", ["coop", "nlprompt", "joapr"])
    def test_ends_at_the_same_bits_across_an_interruption(self, learner, method, model):
        learner = make(model, learner, method=method, epochs=3)
        states = [state for state, _ in fit(learner, problem(40))]
        again = [state for state, _ in fit(learner, problem(40), states[0])]
        for name, value in states[-1].parameters.items():
            assert torch.equal(value, again[-1].parameters[name])

    @pytest.mark.parametrize("learner", ON_CLIP)
    def test_a_run_resumes_and_is_loaded(self, learner, model, tmp_path):
        data = str(feature_file(tmp_path / "data.npz", train=40))
        settings = {"model": model, "learner": learner, "epochs": 3}
        whole = run(data, Config(**settings), "sym:0.4", tmp_path / "run")
        loaded = dspt.load(tmp_path / "run")
        x, y = features(40, 2)
        assert 100 * loaded.score(x, np.array(NAMES)[y]) == pytest.approx(whole.last_accuracy)
        clf = dspt.PromptClassifier(**settings).fit(x, y, class_names=NAMES)
        clf.save(tmp_path / "saved")
        assert np.array_equal(dspt.load(tmp_path / "saved").predict(x), clf.predict(x))
        assert_close(dspt.load(tmp_path / "saved").predict_proba(x), clf.predict_proba(x))

    @pytest.mark.parametrize("setting", [{"class_specific": True}, {"context_words": "a photo"}])
    def test_prototypes_have_no_context(self, setting):
        with pytest.raises(InputError, match="learner prototypes has no prompt"):
            learners.kind_of(Config(learner="prototypes", **setting))

    def test_an_epoch_without_samples_is_no_error(self, model):
        # no prediction of the first prompt is as labelled, so `select` keeps no sample
        x = features(8)[0]
        learner = make(model, "prompt")
        guess = learner.classify(learner.start())(torch.from_numpy(x)).argmax(1).numpy()
        clf = dspt.PromptClassifier(model, "select", epochs=1, verbose=True)
        clf.fit(x, (guess + 1) % 4, class_names=NAMES)
        assert clf.history_[0]["loss"] is None

    def test_another_name_is_refused(self):
        expected = "learner = 'maple': expected prompt, cocoop, prototypes, posterior or auto"
        with pytest.raises(InputError, match=expected):
            learners.kind_of(Config(learner="maple"))
