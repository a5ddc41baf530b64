"""Claims about a checkpoint on disk: what is not whole, or not what its configuration says, is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from problems import NAMES, features
from safetensors.torch import load_file, save_file

from dspt import PromptClassifier, learners, load
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.backbone.prompt import layout_context
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.errors import InputError
from dspt.runs import RULES, Description
from dspt.workflows import train

posix = pytest.mark.skipif(os.name != "posix", reason="needs the pipes of POSIX")
LAYER = "text_model.encoder.layers.2."


@pytest.fixture
def model(clip: str, tmp_path: Path) -> Path:
    """Return a checkpoint that may be changed."""
    return Path(shutil.copytree(clip, tmp_path / "model"))


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")


def reweigh(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def use(folder: Path) -> None:
    """Use all of a checkpoint."""
    checkpoint = open_checkpoint(folder)
    TextTower(checkpoint)
    layout_context(checkpoint, NAMES)
    assert checkpoint.logit_scale
    ImageTower(checkpoint)


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        use(folder)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def swap_two_words(folder: Path) -> None:
    def swap(value: dict[str, Any]) -> None:
        ids = value["model"]["vocab"]
        ids["cat</w>"], ids["dog</w>"] = ids["dog</w>"], ids["cat</w>"]

    rewrite(folder / "tokenizer.json", swap)


class TestTokenizerFingerprint:
    def test_follows_the_ids_and_leaves_the_fingerprint_of_the_towers(self, model):
        before = open_checkpoint(model)
        prints = before.fingerprint, before.tokenizer_fingerprint
        swap_two_words(model)
        after = open_checkpoint(model)
        assert after.fingerprint == prints[0], "stored image features stay good"
        assert after.tokenizer_fingerprint != prints[1]

    @pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
    def test_is_of_the_files_that_are_read(self, model, file):
        first = open_checkpoint(model).tokenizer_fingerprint
        (model / file).write_text((model / file).read_text(encoding="utf-8") + "\n", encoding="utf-8")
        assert open_checkpoint(model).tokenizer_fingerprint == first
        (model / "tokenizer.json").unlink()
        second = open_checkpoint(model).tokenizer_fingerprint
        (model / file).write_text((model / file).read_text(encoding="utf-8") + "\n", encoding="utf-8")
        assert len({first, second, open_checkpoint(model).tokenizer_fingerprint}) == 3

    def test_a_run_is_not_gone_on_with_by_another_tokenizer(self, model, data, tmp_path):
        config = Config(model=str(model), epochs=1)
        train.run(data, config, out=tmp_path / "run")
        swap_two_words(model)
        with pytest.raises(InputError, match=r"it holds another run.*tokenizer_fingerprint"):
            train.run(data, config, out=tmp_path / "run")

    def test_a_run_whose_names_were_read_otherwise_is_not_gone_on_with(self, model, tmp_path):
        for name, mended in (("red panda", None), ("caf\u00e9", None), ("potter\u2019s wheel", True)):
            made = learners.make((name, "dog"), Config(model=str(model))).made_with
            assert made["text_mended"] is mended
        old = Description(Config(), NAMES)
        assert old.difference(replace(old, text_mended=True)) == "text_mended is None there, True here"

    def test_a_run_of_a_rule_that_a_method_no_longer_has_is_not_gone_on_with(self, model, data, tmp_path, monkeypatch):
        train.run(data, Config(model=str(model), epochs=1), out=tmp_path / "run")
        monkeypatch.setitem(RULES, "dspt", 2)
        with pytest.raises(InputError, match=r"it holds another run.*method_rule is None there, 2 here"):
            train.run(data, Config(model=str(model), epochs=1), out=tmp_path / "run")

    def test_a_classifier_refuses_another_tokenizer(self, model, tmp_path):
        x, y = features(40)
        PromptClassifier(model=str(model), epochs=1).fit(x, y, class_names=NAMES).save(tmp_path / "saved")
        image = Image.fromarray(np.zeros((40, 40, 3), np.uint8))
        load(tmp_path / "saved").predict([image])
        swap_two_words(model)
        for _ in range(2):
            with pytest.raises(InputError, match="not the checkpoint this classifier was trained with"):
                load(tmp_path / "saved").predict([image])

    def test_a_run_of_an_earlier_version_goes_on(self):
        new = Description(Config(), NAMES, model_fingerprint="a", tokenizer_fingerprint="b")
        old = replace(new, tokenizer_fingerprint=None)
        assert old.difference(new) == ""
        assert new.difference(replace(new, tokenizer_fingerprint="c")) == "tokenizer_fingerprint is 'b' there, 'c' here"
        assert Description.from_dict(json.loads(json.dumps(old.as_dict()))) == old


class TestTowersAreWhole:
    def test_a_layer_too_few_is_refused(self, model):
        reweigh(model, lambda w: [w.pop(name) for name in list(w) if name.startswith(LAYER)])
        assert "text tower has 2 layers in its weights, but 3 by its config.json" in refused(model)

    def test_a_layer_too_many_is_refused(self, model):
        more = LAYER.replace("2", "3")
        reweigh(model, lambda w: w.update({n.replace(LAYER, more): w[n].clone() for n in list(w) if LAYER in n}))
        assert "text tower has 4 layers in its weights, but 3 by its config.json" in refused(model)

    def test_layers_of_the_image_tower_are_counted_too(self, model):
        rewrite(model / "config.json", lambda c: c["vision_config"].update(num_hidden_layers=1))
        assert "image tower has 2 layers in its weights, but 1 by its config.json" in refused(model)

    @pytest.mark.parametrize(
        "name", ["text_projection.weight", LAYER + "mlp.fc1.bias", "vision_model.post_layernorm.weight"]
    )
    def test_each_tensor_is_there_in_its_shape(self, model, name):
        tensors = load_file(model / "model.safetensors")
        reweigh(model, lambda w: w.update({name: tensors[name][1:].clone()}))
        assert f"tensor {name} has shape" in refused(model)
        reweigh(model, lambda w: w.update({name: tensors[name].int()}))
        assert f"no tensor {name} in its weights" in refused(model)
        reweigh(model, lambda w: w.pop(name))
        assert f"no tensor {name} in its weights" in refused(model)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("name", [LAYER + "mlp.fc1.weight", "vision_model.encoder.layers.1.mlp.fc1.weight"])
    def test_each_number_is_finite(self, model, name, value):
        reweigh(model, lambda w: w[name].view(-1)[7].fill_(value))
        assert f"{name} has values that are not finite numbers" in refused(model)

    def test_very_large_numbers_are_numbers(self, model):
        reweigh(model, lambda w: w["text_projection.weight"].fill_(3e38))
        TextTower(open_checkpoint(model))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("num_attention_heads", value) for value in (0, -4, 5, None, "4", 4.0, True, 10**30)),
            *(("num_hidden_layers", value) for value in (0, 10**8, [3])),
            *(("max_position_embeddings", value) for value in (0, 76, 10**9)),
            *(("hidden_size", value) for value in (0, 64, 10**9)),
            *(("vocab_size", value) for value in (2, 10**6)),
            *(("layer_norm_eps", value) for value in (0, float("nan"), "x")),
            *(("hidden_act", value) for value in (None, [], "swish")),
        ],
    )
    def test_sizes_and_functions_are_those_of_a_tower(self, model, name, value):
        rewrite(model / "config.json", lambda c: c["text_config"].update({name: value}))
        refused(model)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_attention_heads", 0),
            ("image_size", 0),
            ("patch_size", 10**9),
            ("layer_norm_eps", "x"),
            ("hidden_act", 1),
        ],
    )
    def test_so_are_those_of_the_image_tower(self, model, name, value):
        rewrite(model / "config.json", lambda c: c["vision_config"].update({name: value}))
        refused(model)

    @pytest.mark.parametrize("kind", [None, [], {}, 3])
    def test_a_type_of_model_is_a_name(self, model, kind):
        rewrite(model / "config.json", lambda c: c.update(model_type=kind))
        assert f"model_type is {kind!r}" in refused(model)

    @pytest.mark.parametrize("part", ["text_config", "vision_config"])
    def test_a_part_of_the_configuration_is_an_object(self, model, part):
        rewrite(model / "config.json", lambda c: c.update({part: [1]}))
        assert part in refused(model)

    def test_a_configuration_cannot_ask_for_other_code(self, model):
        rewrite(
            model / "config.json", lambda c: c["vision_config"].update(return_dict=False, _attn_implementation="a/b")
        )
        use(model)

    def test_ids_beyond_the_embeddings_are_refused(self, model):
        rewrite(model / "tokenizer.json", lambda t: t["model"]["vocab"].update(cats=100_000))
        assert "its tokenizer gives ids up to 100000, but the text tower knows" in refused(model)

    def test_no_tokenizer_is_said(self, model):
        for name in ("tokenizer.json", "vocab.json"):
            (model / name).unlink()
        assert "no tokenizer in it" in refused(model)


class TestLogitScale:
    @pytest.mark.parametrize(
        "stored", [torch.tensor(1000.0), torch.tensor(7.0), torch.tensor(float("nan")), torch.ones(2), torch.tensor(4)]
    )
    def test_is_one_number_in_range(self, model, stored):
        reweigh(model, lambda w: w.update(logit_scale=stored))
        with pytest.raises(InputError, match=r"logit.scale"):
            assert open_checkpoint(model).logit_scale

    def test_none_in_a_whole_clip_is_refused(self, model):
        reweigh(model, lambda w: w.pop("logit_scale"))
        with pytest.raises(InputError, match="logit_scale must be one number, found none"):
            assert open_checkpoint(model).logit_scale


class TestShards:
    @pytest.fixture
    def sharded(self, model: Path) -> Path:
        weights = load_file(model / "model.safetensors")
        (model / "model.safetensors").unlink()
        where = {name: f"model-{1 + name.startswith('vision')}.safetensors" for name in weights}
        for file in set(where.values()):
            save_file({n: w for n, w in weights.items() if where[n] == file}, model / file, {"format": "pt"})
        (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        return model

    def test_are_read_together(self, sharded, clip):
        use(sharded)
        ours, whole = (ImageTower(open_checkpoint(each))(np.ones((1, 32, 32, 3), np.uint8)) for each in (sharded, clip))
        np.testing.assert_allclose(ours, whole, atol=1e-6)

    @pytest.mark.parametrize("file", ["model-1.safetensors", "model-2.safetensors"])
    def test_a_missing_one_is_named(self, sharded, file):
        (sharded / file).unlink()
        assert f"{file} is missing, so its weights are not complete" in refused(sharded)

    def test_weights_that_are_not_in_their_shard_are_missed(self, sharded):
        weights = load_file(sharded / "model-1.safetensors")
        del weights["text_model.final_layer_norm.bias"]
        save_file(weights, sharded / "model-1.safetensors", {"format": "pt"})
        assert "no tensor text_model.final_layer_norm.bias" in refused(sharded)

    @pytest.mark.parametrize("index", [[], {"weight_map": 3}, {"weight_map": {"a": "../x.safetensors"}}, {}])
    def test_an_index_that_is_none_is_refused(self, sharded, index):
        (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "model.safetensors.index.json" in refused(sharded)

    def test_one_tensor_twice_is_refused(self, sharded):
        index = sharded / "model.safetensors.index.json"
        rewrite(index, lambda value: value["weight_map"].update(more="more.safetensors"))
        save_file({"logit_scale": torch.tensor(1.0)}, sharded / "more.safetensors")
        assert "tensor logit_scale stands in two of its files" in refused(sharded)

    def test_beside_the_whole_another_file_is_not_read(self, model):
        save_file({"logit_scale": torch.tensor(1.0)}, model / "open_clip_model.safetensors")
        use(model)
        assert open_checkpoint(model).logit_scale == pytest.approx(np.exp(2.6592))


FILES = ("config.json", "preprocessor_config.json", "tokenizer.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("depth", [60, 100_000])
def test_json_without_end_is_refused(model, file, depth):
    (model / file).write_text('{"a":' * depth + "1" + "}" * depth)
    assert file.split("_")[0].removesuffix(".json") in refused(model)


@pytest.mark.parametrize("file", [*FILES, "model.safetensors"])
def test_a_folder_in_place_of_a_file_is_refused(model, file):
    (model / file).unlink()
    (model / file).mkdir()
    assert f"{file}: cannot be read (not a regular file)" in refused(model)


@posix
@pytest.mark.parametrize("file", [*FILES, "model.safetensors", "processor_config.json"])
def test_nobody_waits_for_a_pipe(model, file):
    (model / file).unlink(missing_ok=True)
    os.mkfifo(model / file)
    assert f"{file}: cannot be read (not a regular file)" in refused(model)


@pytest.mark.parametrize("length", [75, 100_000_000, 10**30])
@pytest.mark.parametrize("position", ["end", "middle", "front"])
def test_a_context_longer_than_the_tower_is_refused_before_it_is_made(clip, length, position):
    with pytest.raises(InputError, match=f"context length {length}: .* has room for 74 at most"):
        layout_context(open_checkpoint(clip), NAMES, length, position, class_specific=True)
