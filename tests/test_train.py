"""The training loop follows the recipe to the letter, and gives the same bits every time."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import NAMES, features

from dspt import learners, methods, theory, train
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.methods.method import Method, Phase
from dspt.noise import corrupt
from dspt.problem import Problem, Task


@pytest.fixture(scope="module")
def tower(text_tower):
    return TextTower(open_checkpoint(text_tower))


def problem(n=100, rate=0.4, views=None):
    x, y = features(n, 1)
    if views:
        x = np.stack([features(n, 10 + v)[0] for v in range(views)], axis=1)
    test_x, test_y = features(60, 2)
    return Problem(NAMES, x, np.asarray(corrupt(y, 4, "symmetric", rate)), y, test_x, test_y)


def task(problem, config, tower):
    return Task.of(problem, config, learners.make(problem.class_names, config, tower))


def fit(problem, config, tower, state=None):
    return list(train.fit(task(problem, config, tower), state))


def start(config, tower):
    return learners.make(NAMES, config, tower).start()


def classify(state, config, tower):
    return learners.make(NAMES, config, tower).classify(state.parameters)


def test_learning_rates_are_the_papers(tower):
    learner = learners.make(NAMES, Config(epochs=50), tower)
    rates = [learner.learning_rate(epoch) for epoch in range(50)]
    assert rates[0] == 1e-5
    assert rates[1] == pytest.approx(2.0e-3)
    assert rates[2] == pytest.approx(1.998e-3, abs=5e-7)
    assert rates[49] == pytest.approx(7.885e-6, abs=5e-10)


@pytest.mark.parametrize("epochs", [1, 2, 20, 50, 200])
def test_learning_rates_are_torchs_cosine_one_epoch_later(tower, epochs):
    learner = learners.make(NAMES, Config(epochs=epochs), tower)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.002)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(1, epochs):
        expected = schedule.get_last_lr()[0]
        assert learner.learning_rate(epoch) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        schedule.step()


def test_batches_are_shuffled_whole_and_drop_the_last_short_one():
    got = list(train.batches(100, 32, Stream(1, "x")))
    assert [len(b) for b in got] == [32, 32, 32]
    assert len(set(np.concatenate(got))) == 96
    assert not np.array_equal(np.concatenate(got), np.arange(96))
    assert [len(b) for b in train.batches(64, 32, Stream(1, "x"))] == [32, 32]
    assert [len(b) for b in train.batches(5, 32, Stream(1, "x"))] == [5]
    assert list(train.batches(0, 32, Stream(1, "x"))) == []


@pytest.mark.parametrize("method", ["coop", "mae", "dspt"])
def test_training_equals_a_plain_loop_over_transformers_full_forward(tower, method):
    """Three epochs against CoOp written the obvious way: 77 tokens a class, autograd, torch's SGD."""
    from transformers import CLIPTextModelWithProjection, CLIPTokenizerFast

    folder = tower.checkpoint.folder
    model = CLIPTextModelWithProjection.from_pretrained(folder).eval().requires_grad_(False)
    tokenizer = CLIPTokenizerFast.from_pretrained(folder)
    ids = torch.tensor(
        [tokenizer(" ".join(["x"] * 16 + [n]) + ".", padding="max_length", max_length=77).input_ids for n in NAMES]
    )
    table = model.get_input_embeddings()

    def class_features(context):
        # the embedding layer puts the context at positions 1..16, where the x stand
        def insert(module, inputs, output):
            return torch.cat([output[:, :1], context.expand(len(NAMES), -1, -1), output[:, 17:]], 1)

        hook = table.register_forward_hook(insert)
        embeds = model(input_ids=ids).text_embeds
        hook.remove()
        return F.normalize(embeds, dim=1)

    def loss_of(logits, labels):
        p = logits.softmax(1)
        return {
            "coop": lambda: F.cross_entropy(logits, labels),
            "mae": lambda: (1 - p.gather(1, labels[:, None])).mean(),
            "dspt": lambda: F.cross_entropy(p, labels),
        }[method]()

    data = problem()
    config = Config(method=method, epochs=3, lr=0.05)
    context = start(config, tower)["context"].clone().requires_grad_()
    optimizer = torch.optim.SGD([context], lr=1, momentum=0.9, weight_decay=5e-4)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.labels)
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = [1e-5, 0.05, 0.025 * (1 + math.cos(math.pi / 3))][epoch]
        for rows in train.batches(100, 32, Stream(1, "shuffle", epoch, 0)):
            logits = 100 * x[rows] @ class_features(context).T
            optimizer.zero_grad()
            loss_of(logits, y[rows]).backward()
            optimizer.step()
    ours = fit(data, config, tower)[-1][0].parameters["context"]
    begin = start(config, tower)["context"]
    assert (context - begin).norm() > 0.01, "the comparison would be empty if nothing moved"
    assert (ours - context).norm() <= 2e-3 * (context - begin).norm()


def test_same_seed_same_bits_other_seed_other_bits(tower):
    data = problem()
    runs = [fit(data, Config(epochs=3, seed=seed), tower)[-1] for seed in (1, 1, 2)]
    assert torch.equal(runs[0][0].parameters["context"], runs[1][0].parameters["context"])
    assert runs[0][1] == runs[1][1]
    assert not torch.equal(runs[0][0].parameters["context"], runs[2][0].parameters["context"])


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_going_on_from_a_state_gives_the_same_bits(tower, stop):
    data, config = problem(), Config(method="coop", epochs=5)
    whole = fit(data, config, tower)
    rest = fit(data, config, tower, state=whole[stop - 1][0])
    assert torch.equal(whole[-1][0].parameters["context"], rest[-1][0].parameters["context"])
    assert [record for _, record in rest] == [record for _, record in whole[stop:]]


def test_losses_are_recorded_for_right_and_wrong_labels_apart(tower):
    data = problem(n=96, rate=0.5)
    config = Config(method="coop", epochs=1, warmup_lr=0.0)  # nothing moves: the loss can be computed apart
    ((state, record),) = fit(data, config, tower)
    logits = classify(state, config, tower)(torch.from_numpy(data.train_x))
    losses = F.cross_entropy(logits, torch.from_numpy(data.labels), reduction="none").numpy()
    right = data.labels == data.true_labels
    assert record["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert record["loss_right"] == pytest.approx(losses[right].mean(), rel=1e-5)
    assert record["loss_wrong"] == pytest.approx(losses[~right].mean(), rel=1e-5)
    assert record["loss_right"] != pytest.approx(record["loss_wrong"], rel=1e-2)


def test_losses_are_recorded_for_correct_and_incorrect_predictions_apart(tower):
    data = problem(n=96, rate=0.5)
    config = Config(method="coop", epochs=1, warmup_lr=0.0)
    ((state, record),) = fit(data, config, tower)
    logits = classify(state, config, tower)(torch.from_numpy(data.train_x))
    losses = F.cross_entropy(logits, torch.from_numpy(data.labels), reduction="none").numpy()
    correct = logits.argmax(1).numpy() == data.true_labels  # the truth, not the given label
    assert 0 < correct.sum() < 96
    assert (correct != (data.labels == data.true_labels)).any()
    assert record["loss_correct"] == pytest.approx(losses[correct].mean(), rel=1e-5)
    assert record["loss_incorrect"] == pytest.approx(losses[~correct].mean(), rel=1e-5)


@pytest.mark.parametrize("method", ["coop", "dspt"])
def test_gradients_on_the_logits_are_recorded_for_right_and_wrong_labels_apart(tower, method):
    data = problem(n=96, rate=0.5)
    config = Config(method=method, epochs=2, lr=0.0, warmup_lr=0.0)
    (state, record), (_, second) = fit(data, config, tower)
    logits = classify(state, config, tower)(torch.from_numpy(data.train_x))
    labels = torch.from_numpy(data.labels)
    expected = {
        "coop": lambda: 2 * (1 - logits.softmax(1).gather(1, labels[:, None])[:, 0]),
        "dspt": lambda: theory.gradient(logits, labels).abs().sum(1),  # Proposition 3.1
    }[method]().numpy()
    right = data.labels == data.true_labels
    assert record["gradient_right"] == pytest.approx(expected[right].mean(), rel=1e-4)
    assert record["gradient_wrong"] == pytest.approx(expected[~right].mean(), rel=1e-4)
    histogram = record["gradient_histogram"]
    assert histogram["edges"] == pytest.approx(np.linspace(0, 2, 41))
    assert histogram["wrong"] == np.histogram(expected[~right], np.linspace(0, 2, 41))[0].tolist()
    assert sum(histogram["right"]) == right.sum()
    assert "gradient_histogram" not in second


def test_accuracy_is_that_of_the_context_after_the_epoch(tower):
    data, config = problem(), Config(epochs=2)
    for state, record in fit(data, config, tower):
        guess = classify(state, config, tower)(torch.from_numpy(data.test_x)).argmax(1).numpy()
        assert record["accuracy"] == pytest.approx(100 * (guess == data.test_y).mean())


@pytest.mark.parametrize(
    ("epochs", "warmup", "counted"),
    [(7, 1, [2, 3, 4, 5, 6]), (5, 1, [1, 2, 3, 4]), (5, 0, [0, 1, 2, 3, 4]), (2, 1, [1]), (1, 1, [0]), (0, 1, [])],
)
def test_reported_are_the_last_five_epochs_and_of_the_warm_up_only_what_nothing_follows(epochs, warmup, counted):
    records = [{"accuracy": float(a)} for a in range(epochs)]
    assert train.final_accuracies(records, warmup) == counted


def test_epochs_that_were_not_tested_do_not_count():
    assert train.final_accuracies([{"accuracy": 1.0}, {}, {"accuracy": 3.0}], 1) == [3.0]


def test_training_on_clean_labels_learns():
    # A trained tower: with random weights, one context for all classes can learn in some draws and not in others.
    tower = TextTower(open_checkpoint("embedded"))
    (x, y), (test_x, test_y) = (features(n, n, dim=tower.feature_dim) for n in (160, 60))
    data = train.Problem(NAMES, x, y, y, test_x, test_y)
    records = [record for _, record in fit(data, Config(method="coop", epochs=15), tower)]
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert records[-1]["accuracy"] > records[0]["accuracy"] + 10


def test_a_method_decides_samples_targets_and_loss(tower, monkeypatch):
    """A method with two phases, soft targets and a memory runs through the same loop."""
    seen = []

    @dataclass(frozen=True)
    class Picky(Method):
        strength: float = 1.0
        name = "picky"
        formula = "-"

        def plan(self, epoch):
            epoch.memory["count"] = epoch.memory.get("count", torch.zeros(())) + 1
            logits = epoch.logits()
            assert epoch.zero_shot_logits().shape == logits.shape
            assert not torch.equal(epoch.zero_shot_logits(), logits)
            assert epoch.stream("x").uniform(1) == epoch.stream("x").uniform(1)
            seen.append((epoch.number, float(epoch.memory["count"]), tuple(logits.shape), self.strength))
            hard = Phase(
                np.arange(0, 40),
                epoch.labels[:40],
                lambda z, y: F.cross_entropy(z, y, reduction="none"),
            )
            soft = torch.full((40, 4), 0.25)
            return [
                hard,
                Phase(np.arange(40, 80), soft, lambda z, t: -(t * z.log_softmax(1)).sum(1)),
            ]

    monkeypatch.setitem(methods.METHODS, "picky", Picky())
    data = problem()
    config = Config(method="picky", option=("strength=2",), epochs=2, batch_size=20)
    results = fit(data, config, tower)
    assert seen == [(0, 1.0, (100, 4), 2.0), (1, 2.0, (100, 4), 2.0)]
    assert [record["steps"] for _, record in results] == [4, 4]
    # the memory is part of the state: going on from epoch 1 counts on
    fit(data, config, tower, state=results[0][0])
    assert seen[-1][:2] == (1, 2.0)


def test_each_epoch_draws_one_view_of_each_image(tower):
    data, config = problem(views=3), Config(method="coop", epochs=2, warmup_lr=0.0, lr=0.0)
    flat = Problem(NAMES, data.train_x[:, 0], data.labels)
    first, second = [record["loss"] for _, record in fit(data, config, tower)]
    assert first != second
    assert first != fit(flat, config, tower)[0][1]["loss"]


def test_zero_shot_plans_nothing():
    assert not methods.make("zero-shot").trains


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs = -1: expected at least 0"),
        ({"batch_size": 0}, "batch_size = 0: expected at least 1"),
        ({"lr": float("nan")}, "lr = nan: expected a finite number"),
        ({"momentum": 1.0}, "momentum = 1.0: expected below 1"),
        ({"position": "left"}, "position = 'left': expected end, middle or front"),
        ({"template": "a photo"}, "template = 'a photo': expected a text with exactly one"),
        ({"option": ("q",)}, "option 'q': expected name=value"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        Config(**settings)


def test_unknown_methods_and_options_are_named():
    with pytest.raises(InputError, match=r"method 'dsp': not known \(did you mean dspt\?\)"):
        methods.make("dsp")
    with pytest.raises(InputError, match="option 'q': method dspt takes s"):
        methods.make("dspt", q=0.5)


def test_data_that_do_not_fit_are_named(tower):
    x, y = features(20)
    cases = [
        (Problem(NAMES, x[:, :8], y), "train features: 8 wide, but .* width 16"),
        (Problem(NAMES, x, y + 1), "labels: expected 0..3 for 4 classes, found 4 at row 3"),
        (Problem(NAMES, x[:5], y), "labels: 20 of them for 5 samples"),
        (Problem(NAMES[:1], x, y * 0), "1 given; a classifier needs at least 2"),
        (Problem(NAMES, x[:0], y[:0]), "it has no samples"),
    ]
    for bad, message in cases:
        with pytest.raises(InputError, match=message):
            task(bad, Config(), tower)


def test_divergence_is_told_not_saved(tower):
    with pytest.raises(InputError, match="training diverged in epoch"):
        fit(problem(), Config(method="coop", epochs=5, lr=1e38, warmup_lr=1e38), tower)


@given(
    seed=st.integers(0, 1000),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 5e-4, 0.1]),
)
def test_steps_are_those_of_torchs_optimizer_to_the_bit(seed, momentum, weight_decay):
    random = torch.Generator().manual_seed(seed)
    begin = {name: torch.randn(3, 4, generator=random) for name in ("a", "b", "unused")}
    ours = {name: value.clone().requires_grad_() for name, value in begin.items()}
    theirs = {name: value.clone().requires_grad_() for name, value in begin.items()}
    buffers = [None] * len(ours)
    reference = torch.optim.SGD(theirs.values(), lr=1.0, momentum=momentum, weight_decay=weight_decay)
    for step in range(6):
        rate = reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        for name in ("a", "b"):
            gradient = torch.randn(3, 4, generator=random)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        train._step(ours, buffers, rate, momentum, weight_decay)
        reference.step()
        for name in begin:
            assert torch.equal(ours[name], theirs[name])
            assert ours[name].grad is None


def test_tests_may_be_fewer_but_the_last_five_epochs_are_always_tested(tower):
    records = [record for _, record in fit(problem(), Config(epochs=8, test_every=2), tower)]
    assert [r["epoch"] for r in records if "accuracy" in r] == [2, 4, 5, 6, 7, 8]


class TestWeights:
    def test_equal_weights_change_no_bit(self, tower):
        data, config = problem(), Config(method="coop", epochs=2)
        same = replace(data, weights=np.ones(100))
        plain, weighted = (fit(one, config, tower)[-1][0] for one in (data, same))
        assert torch.equal(plain.parameters["context"], weighted.parameters["context"])

    def test_a_sample_without_weight_is_not_learnt_from(self, tower):
        """Its label may be any: the same context comes out."""
        data, config = problem(), Config(method="coop", epochs=2, lr=0.05)
        weights = np.where(np.arange(100) < 50, 0.0, 2.0)
        changed = np.where(np.arange(100) < 50, (data.labels + 1) % 4, data.labels)
        first, second, unweighted = (
            fit(replace(data, labels=labels, weights=given), config, tower)[-1][0]
            for labels, given in ((data.labels, weights), (changed, weights), (changed, None))
        )
        assert torch.equal(first.parameters["context"], second.parameters["context"])
        assert not torch.equal(first.parameters["context"], unweighted.parameters["context"])

    def test_a_method_that_cannot_weigh_samples_says_so(self, tower):
        data = replace(problem(), weights=np.ones(100))
        with pytest.raises(InputError, match="sample_weight: method joapr cannot weigh samples"):
            task(data, Config(method="joapr"), tower)


def test_what_a_method_remembers_cannot_take_the_place_of_a_column(tower, monkeypatch):
    class Liar(Method):
        name, formula, source = "liar", "-", "-"

        def plan(self, epoch):
            epoch.memory["loss"] = torch.tensor(-5.0)
            return methods.make("coop").plan(epoch)

    monkeypatch.setitem(methods.METHODS, "liar", Liar())
    with pytest.raises(InputError, match="method liar: 'loss' is a column of the record"):
        fit(problem(), Config(method="liar", epochs=1), tower)


@dataclass(frozen=True)
class Rates(Method):
    """Cross-entropy at a learning rate that is left open."""

    name, formula, source = "rates", "-", "-"
    multiples: tuple[float, ...] = (1.0,)

    def plan(self, epoch):
        return methods.make("coop").plan(epoch)

    def lr_multiples(self, epoch):
        return self.multiples


class TestMultiplesOfTheLearningRate:
    def fit(self, tower, multiples, data=None, state=None, on_step=lambda *_: None, **settings):
        asked = Config(**{"method": "coop", "epochs": 4} | settings)
        posed = replace(task(data or problem(), asked, tower), method=Rates(multiples))
        return list(train.fit(posed, state, on_step))

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_the_one_with_the_least_loss_after_the_warm_up_is_taken(self, tower, seed):
        """Each rate by itself, as a run of its own, tells which that is; and the whole run is the one at that rate."""
        multiples = (1.0, 8.0, 64.0, 4096.0)
        alone = [self.fit(tower, (1.0,), seed=seed, lr=0.002 * multiple) for multiple in multiples]
        best = min(range(4), key=lambda k: alone[k][1][1]["loss"])
        assert 0 < best < 3, "the comparison would be empty at either end"
        found = self.fit(tower, multiples, seed=seed)
        assert found[0][1].get("lr_multiple") is None
        assert [record["lr_multiple"] for _, record in found[1:]] == [multiples[best]] * 3
        assert [record["lr"] for _, record in found] == pytest.approx([record["lr"] for _, record in alone[best]])
        moved = alone[best][-1][0].parameters["context"] - start(Config(seed=seed), tower)["context"]
        apart = found[-1][0].parameters["context"] - alone[best][-1][0].parameters["context"]
        assert apart.norm() <= 1e-4 * moved.norm()

    @pytest.mark.parametrize("stop", [1, 2, 3])
    def test_going_on_gives_the_same_bits(self, tower, stop):
        whole = self.fit(tower, (1.0, 10.0))
        rest = self.fit(tower, (1.0, 10.0), state=whole[stop - 1][0])
        assert torch.equal(whole[-1][0].parameters["context"], rest[-1][0].parameters["context"])
        assert [record for _, record in rest] == [record for _, record in whole[stop:]]

    def test_one_under_which_training_diverges_is_left(self, tower):
        found = self.fit(tower, (1e38, 3.0), lr=1.0)
        assert found[-1][1]["lr_multiple"] == 3.0
        assert found[-1][0].parameters["context"].isfinite().all()

    def test_of_equals_the_first_is_taken(self, tower):
        assert self.fit(tower, (1.0, 30.0), lr=0.0)[-1][1]["lr_multiple"] == 1.0

    def test_no_test_image_has_a_say(self, tower, monkeypatch):
        asked = []
        monkeypatch.setattr(train, "test_accuracy", lambda task, classify: asked.append(1) or 50.0)
        self.fit(tower, (1.0, 3.0, 10.0))
        assert len(asked) == 4, "once an epoch of the run, never in a trial"

    def test_a_run_whose_warm_up_never_ends_tries_none(self, tower):
        assert "lr_multiple" not in self.fit(tower, (1.0, 3.0), epochs=1)[-1][1]

    def test_progress_goes_through_trials_and_epoch_without_going_back(self, tower):
        heard = []
        self.fit(tower, (1.0, 3.0, 10.0), epochs=2, on_step=lambda done, steps, _: heard.append((done, steps)))
        assert heard[:3] == [(1, 3), (2, 3), (3, 3)]
        assert heard[3:] == [(k, 12) for k in range(1, 13)]

    def test_where_an_epoch_has_few_steps_several_are_tried_up_to_a_twentieth_of_the_run(self, tower):
        heard = []
        self.fit(tower, (1.0, 3.0), epochs=60, on_step=lambda done, steps, _: heard.append(steps))
        assert heard[3] == 2 * 3 * 3 + 3
