"""A network from scratch: the recipe of the paper's CIFAR-10 experiment, and a folder that survives being killed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from problems import labels_in
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from dspt import learners, methods, noise, train
from dspt.config import Config, NetworkConfig
from dspt.data import Dataset, Split, few_shot, open_dataset
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.learners import pixels, resnet
from dspt.methods import Batch, Method
from dspt.problem import Problem, Task
from dspt.runs import Run
from dspt.train import batches
from dspt.workflows.train import run

TINY = NetworkConfig(model="small", method="coop", epochs=3, batch_size=20)


@pytest.fixture(scope="module")
def data() -> Dataset:
    """The embedded images, with fewer to test on."""
    found = open_dataset("embedded")
    return replace(found, test=found.test.take(np.arange(0, 2000, 10)))


def a_problem(n: int = 8, side: int = 10) -> Problem:
    images = Stream(0, "images").integers(n * side * side * 3, 256).astype(np.uint8)
    images = images.reshape(n, side, side, 3)
    labels = np.arange(n) % 2
    return Problem(("cat", "dog"), images, labels, labels, images, labels)


def fit(problem, config):
    return list(train.fit(Task.of(problem, config)))


def start(config, classes=2):
    return learners.make([f"class {c}" for c in range(classes)], config).start()


def loaded(values, model="small", stem="imagenet", classes=2) -> nn.Module:
    """Return a network of torch's own kind with these weights."""
    net = resnet.build(model, stem, classes).to_empty(device="cpu")
    net.load_state_dict(values)
    return net.to(memory_format=torch.channels_last)


def loss_method(name: str, plan) -> Method:
    """Return a method that does with the plan of cross-entropy what `plan(epoch, phase)` says."""

    @dataclass(frozen=True)
    class New(Method):
        formula = source = "-"

        def plan(self, epoch):
            (phase,) = methods.make("coop").plan(epoch)
            return [plan(epoch, phase)]

    New.name = name
    return New()


class TestNetwork:
    @pytest.mark.parametrize(("model", "size"), [("resnet34", 21_797_672), ("resnet18", 11_689_512)])
    def test_has_as_many_parameters_as_the_published_one(self, model, size):
        found = resnet.build(model, "imagenet", 1000)
        assert sum(value.numel() for value in found.parameters()) == size

    @pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
    def test_the_stem_decides_how_large_a_map_the_first_stage_sees(self, stem, side):
        net = resnet.build("small", stem, 10)
        net = loaded(resnet.initial(net, 1), stem=stem, classes=10)
        assert net.resnet.embedder(torch.zeros(1, 3, 32, 32)).shape == (1, 16, side, side)

    def test_starts_with_convolutions_of_variance_two_over_fan_out(self):
        empty = resnet.build("small", "imagenet", 10)
        values = resnet.initial(empty, 1)
        for name, module in empty.named_modules():
            if isinstance(module, nn.Conv2d):
                weight = values[f"{name}.weight"]
                fan_out = weight.shape[0] * weight[0, 0].numel()
                assert weight.std() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        last = values["classifier.1.weight"]
        assert 0.9 * 32**-0.5 < last.abs().max() <= 32**-0.5

    def test_starts_with_a_normalisation_that_does_nothing(self):
        values = resnet.initial(resnet.build("small", "imagenet", 10), 1)
        net = loaded(values, classes=10).eval()
        found = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
        assert found
        for module in found:
            x = torch.randn(2, module.num_features, 3, 3, generator=torch.Generator())
            assert_close(module(x), x, rtol=1e-4, atol=1e-4)

    def test_depends_on_the_seed_alone_and_draws_from_no_global_generator(self):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first, same, other = (resnet.initial(resnet.build("small", "cifar", 3), seed) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not torch.equal(first["classifier.1.weight"], other["classifier.1.weight"])

    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("side", [(1, 1), (2, 2), (4, 4), (4, 2), (1, 4), (3, 3), (4, 3)])
    @pytest.mark.parametrize("kernel", [3, 7])
    def test_a_small_map_is_convolved_as_torch_does(self, kernel, side, stride):
        settings = {"stride": stride, "padding": kernel // 2, "bias": False}
        theirs = nn.Conv2d(5, 7, kernel, **settings).double()
        ours = resnet.Convolution(5, 7, kernel, **settings).double()
        ours.load_state_dict(theirs.state_dict())
        maps = torch.randn(3, 5, *side, dtype=torch.float64, requires_grad=True)
        assert_close(ours(maps), theirs(maps))
        gradients = [torch.autograd.grad(net(maps).pow(2).sum(), [maps, net.weight]) for net in (ours, theirs)]
        assert_close(*gradients)

    @pytest.mark.parametrize(("side", "products"), [(1, 1), (2, 9), (4, 36)])
    def test_a_small_map_takes_as_few_products_as_can_be(self, side, products):
        """m outputs of a kernel of r need m + r - 1 a side (Winograd, 1980); of two pixels, Karatsuba's three."""
        pixels, taps, sums = resnet._way(side, side, 1, torch.float32)
        assert (len(pixels), len(taps), sums.shape[1]) == (products,) * 3

    @pytest.mark.parametrize(("side", "channels"), [(1, 512), (2, 256), (4, 128)])
    def test_a_small_map_is_rounded_as_single_precision_is(self, side, channels):
        ours = resnet.Convolution(channels, 32, 3, padding=1, bias=False)
        maps = torch.randn(4, channels, side, side, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            exact = F.conv2d(maps.double(), ours.weight.double(), padding=1)
            assert (ours(maps) - exact).norm() < 1e-5 * exact.norm()

    def test_weights_are_the_same_wherever_they_are_placed(self):
        learner = learners.make(["cat", "dog"], TINY)
        begin = learner.start()
        found = learner.placed(begin)
        assert all(torch.equal(found[name], value) for name, value in begin.items())
        assert not any(found[name].data_ptr() == value.data_ptr() for name, value in begin.items())


images = st.integers(0, 2**31).map(
    lambda seed: torch.from_numpy(
        Stream(seed, "images").integers(3 * 6 * 5 * 3, 256).astype(np.uint8).reshape(3, 6, 5, 3)
    )
)
places = st.lists(st.integers(0, 2 * pixels.PADDING), min_size=3, max_size=3).map(np.array)
flips = st.lists(st.booleans(), min_size=3, max_size=3).map(np.array)


class TestAugmentation:
    @given(images, places, places, flips)
    @settings(max_examples=40)
    def test_is_a_part_of_the_padded_image_perhaps_mirrored(self, images, top, left, flipped):
        found = pixels.cropped(images, pixels.Crops(top, left, flipped))
        for i in range(3):
            padded = np.pad(images[i].numpy(), ((4, 4), (4, 4), (0, 0)))
            expected = padded[top[i] : top[i] + 6, left[i] : left[i] + 5]
            expected = expected[:, ::-1] if flipped[i] else expected
            assert np.array_equal(found[i].numpy(), expected)

    @given(images, flips)
    @settings(max_examples=20)
    def test_a_flip_undoes_itself(self, images, flipped):
        centre = np.full(3, pixels.PADDING)
        crops = pixels.Crops(centre, centre, flipped)
        assert torch.equal(pixels.cropped(pixels.cropped(images, crops), crops), images)

    def test_is_drawn_from_seed_and_epoch_alone(self):
        first, same = pixels.draw(500, 1, 3), pixels.draw(500, 1, 3)
        for name in ("top", "left", "flipped"):
            assert np.array_equal(getattr(first, name), getattr(same, name))
            for other in (pixels.draw(500, 1, 4), pixels.draw(500, 2, 3)):
                assert not np.array_equal(getattr(first, name), getattr(other, name))
        assert not np.array_equal(first.top, first.left)

    def test_all_places_are_as_likely(self):
        crops = pixels.draw(90_000, 1, 0)
        for places in (crops.top, crops.left):
            assert np.bincount(places, minlength=9) == pytest.approx(np.full(9, 10_000), rel=0.05)
        assert crops.flipped.mean() == pytest.approx(0.5, abs=0.01)

    def test_numbers_are_brought_to_mean_and_deviation_of_the_protocol(self):
        images = torch.tensor([0, 128, 255], dtype=torch.uint8).expand(1, 2, 2, 3)
        expected = [(0 - 0.492) / 0.247, (128 / 255 - 0.482) / 0.244, (1 - 0.446) / 0.262]
        assert_close(pixels.normalised(images)[0, :, 1, 0], torch.tensor(expected))


class TestImages:
    def test_grey_images_are_read_as_three_equal_channels(self, data):
        found = pixels.read(data.test, "test")
        assert found.shape == (200, 28, 28, 3)
        assert all(np.array_equal(found[..., c], data.test.items) for c in range(3))

    def test_files_are_read_as_their_pixels(self, tmp_path):
        expected = a_problem().train_x
        for i, image in enumerate(expected):
            Image.fromarray(image).save(tmp_path / f"{i}.png")
        paths = [str(tmp_path / f"{i}.png") for i in range(8)]
        assert np.array_equal(pixels.read(Split(paths, np.zeros(8)), "train"), expected)

    def test_sizes_that_differ_are_refused_with_the_file_and_both_sizes(self, tmp_path):
        for name, size in (("a.png", (6, 5)), ("b.png", (7, 5))):
            Image.new("RGB", size).save(tmp_path / name)
        paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
        with pytest.raises(InputError, match=r"b\.png: 7 x 5 pixels, but the first image has 6 x 5"):
            pixels.read(Split(paths, np.zeros(2)), "train")

    def test_features_are_refused(self):
        with pytest.raises(InputError, match="train split: it holds features, not images"):
            pixels.read(Split(np.zeros((3, 8), np.float32), np.zeros(3)), "train")


class TestRecipe:
    def test_defaults_are_those_of_the_protocol(self):
        found = NetworkConfig()
        assert (found.model, found.stem) == ("resnet34", "imagenet")
        assert (found.lr, found.momentum, found.weight_decay) == (0.1, 0.9, 5e-4)
        assert (found.epochs, found.batch_size, found.shots) == (200, 128, 0)

    @pytest.mark.parametrize(("epochs", "milestones"), [(200, [80, 140]), (30, [12, 21]), (1, []), (7, [3, 5])])
    def test_the_rate_falls_as_torchs_own_schedule_says(self, epochs, milestones):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
        learner = learners.make(["cat", "dog"], NetworkConfig(epochs=epochs, model="small"))
        for epoch in range(epochs):
            expected = schedule.get_last_lr()[0]
            assert learner.learning_rate(epoch) == pytest.approx(expected, rel=1e-12)
            optimizer.step()
            schedule.step()

    def test_an_epoch_is_steps_of_gradient_weight_decay_and_momentum(self):
        problem = a_problem()
        config = replace(TINY, epochs=1, batch_size=4, weight_decay=0.01)
        begin = start(config)
        ((state, record),) = fit(problem, config)

        net = loaded(begin).train()
        weights = dict(net.named_parameters())
        speed = {name: torch.zeros_like(value) for name, value in weights.items()}
        crops, losses = pixels.draw(8, 1, 0), []
        for rows in batches(8, 4, Stream(1, "shuffle", 0, 0)):
            cut = pixels.cropped(torch.from_numpy(problem.train_x[rows]), crops[rows])
            logits = net(pixels.normalised(cut)).logits
            loss = F.cross_entropy(logits, torch.from_numpy(problem.labels[rows]))
            gradients = torch.autograd.grad(loss, list(weights.values()))
            losses.append(loss.item())
            with torch.no_grad():
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                    speed[name] = 0.9 * speed[name] + gradient + 0.01 * weight
                    weight -= 0.1 * speed[name]
        assert record["steps"] == len(losses) == 2
        assert record["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        for name, value in net.state_dict().items():
            assert_close(state.parameters[name], value, rtol=1e-4, atol=1e-6)
        for name, value in speed.items():
            assert_close(state.momentum[name], value, rtol=1e-4, atol=1e-6)

    def test_each_epoch_steps_with_its_own_rate(self):
        config = replace(TINY, epochs=3, batch_size=8)
        before = start(config)
        for rate, (state, record) in zip((0.1, 0.1, 0.01), fit(a_problem(), config), strict=True):
            assert record["lr"] == pytest.approx(rate)
            for name, speed in state.momentum.items():
                moved = state.parameters[name] - before[name]
                assert_close(moved, -rate * speed, rtol=1e-3, atol=1e-6)
            before = state.parameters

    def test_the_gradient_on_the_logits_is_recorded_for_right_and_wrong_labels_apart(self):
        """Under cross-entropy the total over classes is 2 (1 - p_y), and the loss -log p_y."""
        problem = replace(a_problem(), true_labels=np.array([0, 1, 0, 1, 1, 0, 1, 0]))
        config = replace(TINY, epochs=1, batch_size=8, lr=0.0)
        begin = start(config)
        ((_, record),) = fit(problem, config)
        net = loaded(begin).train()
        cut = pixels.cropped(torch.from_numpy(problem.train_x), pixels.draw(8, 1, 0))
        with torch.no_grad():
            p = net(pixels.normalised(cut)).logits.softmax(1).numpy()[np.arange(8), problem.labels]
        for name, rows in (("right", slice(0, 4)), ("wrong", slice(4, 8))):
            assert record[f"loss_{name}"] == pytest.approx(-np.log(p[rows]).mean(), rel=1e-4)
            assert record[f"gradient_{name}"] == pytest.approx(2 * (1 - p[rows]).mean(), rel=1e-4)

    def test_a_rate_that_makes_it_diverge_is_named(self):
        config = replace(TINY, lr=1e30, batch_size=4)
        with pytest.raises(InputError, match=r"lr = 1e\+30: training diverged in epoch 1"):
            fit(a_problem(), config)

    def test_a_method_that_chooses_one_sample_does_not_stop_the_run(self, monkeypatch):
        def one(epoch, phase):
            return replace(phase, samples=phase.samples[:1], targets=phase.targets[:1])

        monkeypatch.setitem(methods.METHODS, "one", loss_method("one", one))
        ((_, record),) = fit(a_problem(), replace(TINY, method="one", epochs=1))
        assert record["steps"] == 0
        assert record["loss"] is None


REFUSED = ["zero-shot", "upl", "robust-upl", "nlprompt", "joapr", "dspt-auto"]


class TestMethods:
    @pytest.mark.parametrize("name", REFUSED)
    def test_that_need_clip_are_refused_before_any_work(self, name):
        with pytest.raises(InputError, match=f"^method {name}: .* no CLIP; give one of coop, "):
            run("embedded", NetworkConfig(method=name), out="never/made")

    @pytest.mark.parametrize("name", [name for name in methods.METHODS if name not in REFUSED])
    def test_all_others_learn_something(self, name):
        config = replace(TINY, method=name, epochs=1, batch_size=4)
        begin = start(config)
        ((state, record),) = fit(a_problem(), config)
        assert record["steps"] >= 1
        assert any(not torch.equal(state.parameters[key], begin[key]) for key in begin)

    def test_a_new_one_that_asks_for_zero_shot_or_blends_features_is_refused_too(self, monkeypatch):
        def looks(epoch, phase):
            epoch.zero_shot_logits()
            return phase

        def blends(epoch, phase):
            return replace(phase, batches=[Batch(phase.samples, phase.samples, 0.7)])

        for plan, reason in ((looks, "has no CLIP"), (blends, "it blends samples")):
            monkeypatch.setitem(methods.METHODS, "new", loss_method("new", plan))
            with pytest.raises(InputError, match=f"^method.*{reason}"):
                fit(a_problem(), replace(TINY, method="new"))

    def test_see_the_logits_of_the_images_as_they_are(self, monkeypatch):
        seen = []

        def looks(epoch, phase):
            seen.append(epoch.logits())
            return phase

        monkeypatch.setitem(methods.METHODS, "looks", loss_method("looks", looks))
        config, problem = replace(TINY, method="looks", epochs=1), a_problem()
        fit(problem, config)
        net = loaded(start(config)).eval()
        with torch.no_grad():
            expected = net(pixels.normalised(torch.from_numpy(problem.train_x))).logits
        assert_close(seen[0], expected)


class TestRun:
    def test_learns_more_than_chance(self, data, tmp_path):
        result = run(data, replace(TINY, epochs=8), "sym:0.2", tmp_path / "run")
        assert result.accuracy > 30  # of ten classes
        assert result.wrong_labels == 0.2

    def test_the_folder_explains_itself_as_that_of_every_run(self, data, tmp_path):
        result = run(data, TINY, "pair:0.4", tmp_path / "run")
        described = json.loads((tmp_path / "run/config.json").read_text())
        assert described["settings"]["model"] == "small"
        assert described["settings"]["learner"] == "network"
        assert described["class_names"] == list(data.class_names)
        assert described["noise"] == "pair:0.4"
        assert "torch" in json.loads((tmp_path / "run/environment.json").read_text())
        given = labels_in(tmp_path / "run/labels.csv", data.class_names)
        assert np.array_equal(given, noise.corrupt(data.train.labels, 10, "pair", 0.4, seed=1))
        records = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        parts = {f"{what}_{who}" for what in ("loss", "gradient") for who in ("right", "wrong")}
        assert all({"epoch", "lr", "loss", "accuracy"} | parts <= record.keys() for record in records)
        assert result.accuracy == pytest.approx(np.mean([r["accuracy"] for r in records]))
        written = json.loads((tmp_path / "run/result.json").read_text())
        assert {name: value for name, value in written.items() if name != "seal"} == result.as_dict()

    def test_gives_the_keys_of_a_run_with_clip(self, data, tmp_path):
        with_clip = run("embedded", Config(method="zero-shot"), out=tmp_path / "clip")
        result = run(data, replace(TINY, epochs=1), out=tmp_path / "run")
        assert result.as_dict().keys() == with_clip.as_dict().keys()
        assert result.zero_shot is None

    def test_a_killed_run_goes_on_to_the_same_bits(self, data, tmp_path, monkeypatch):
        """The schedule drops and momentum matters after the kill, which comes between record and state."""
        config = replace(TINY, epochs=4)
        whole = run(data, config, "sym:0.4", tmp_path / "whole")
        save = Run.save_state

        def killed(folder, state, seconds):
            if state.epochs_done == 3:
                raise KeyboardInterrupt
            save(folder, state, seconds)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "save_state", killed)
            with pytest.raises(KeyboardInterrupt):
                run(data, config, "sym:0.4", tmp_path / "killed")
        assert len((tmp_path / "killed/metrics.jsonl").read_text().splitlines()) == 3
        resumed = run(data, config, "sym:0.4", tmp_path / "killed")
        assert replace(resumed, seconds=0, run="") == replace(whole, seconds=0, run="")
        one, other = (load_file(tmp_path / name / "state.safetensors") for name in ("whole", "killed"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "killed")]
        assert lines[0] == lines[1]

    def test_a_finished_run_is_not_repeated_and_another_one_is_not_mixed_in(self, data, tmp_path):
        config = replace(TINY, epochs=1)
        result = run(data, config, out=tmp_path)
        assert run(data, config, out=tmp_path) == result
        with pytest.raises(InputError, match=r"it holds another run \(lr is 0.1 there, 0.2 here\)"):
            run(data, replace(config, lr=0.2), out=tmp_path)
        again = run(data, replace(config, lr=0.2), out=tmp_path, overwrite=True)
        assert again.loss != result.loss

    def test_a_limit_takes_so_many_images_of_each_class(self, data, tmp_path):
        config = replace(TINY, epochs=1, shots=3)
        found = run(data, config, "sym:0.4", tmp_path)
        assert found.samples == 30
        settings = json.loads((tmp_path / "config.json").read_text())["settings"]
        assert settings["shots"] == 3
        rows = few_shot(data.train.labels, 3, seed=1)
        assert np.bincount(data.train.labels[rows]).tolist() == [3] * 10
        noisy = noise.corrupt(data.train.labels, 10, "symmetric", 0.4, seed=1)
        wrong = (noisy != data.train.labels)[rows].mean()
        assert found.wrong_labels == pytest.approx(wrong, abs=1e-6)

    def test_noise_that_looks_at_features_is_refused(self):
        with pytest.raises(InputError, match=r"^noise inst:0.3: it looks at CLIP's features"):
            run("embedded", TINY, "inst:0.3", "never/made")


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("model", "resnet50", "resnet34, resnet18 or small"),
        ("stem", "big", "imagenet or cifar"),
        ("epochs", 0, "at least 1"),
        ("epochs", 2.5, "a whole number"),
        ("batch_size", 1, "at least 2"),
        ("shots", -1, "at least 0"),
        ("test_every", 0, "at least 1"),
        ("lr", float("nan"), "a finite number, at least 0 and at most 1e+38"),
        ("lr", "fast", "a number"),
        ("momentum", 1, "below 1"),
    ],
)
def test_a_bad_setting_is_told_with_its_value(setting, value, expected):
    with pytest.raises(InputError) as error:
        NetworkConfig(**{setting: value})
    assert str(error.value) == f"{setting} = {value!r}: expected {expected}"
