"""The embedded model and images: what every other part of the package may take for granted about them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import image_processor
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPModel, CLIPTokenizerFast

import dspt

ASSETS = Path(dspt.__file__).parent / "assets"
MODEL = ASSETS / "model"


@pytest.fixture(scope="module")
def images() -> dict[str, np.ndarray]:
    with np.load(ASSETS / "images.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def model() -> CLIPModel:
    return CLIPModel.from_pretrained(MODEL, local_files_only=True).float().eval()


@pytest.fixture(scope="module")
def tokenizer() -> CLIPTokenizerFast:
    return CLIPTokenizerFast.from_pretrained(MODEL, local_files_only=True)


@pytest.fixture(scope="module")
def plain_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_assets_stay_small_and_hold_no_pickle() -> None:
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8e6
    assert {path.suffix for path in files} <= {
        ".json",
        ".txt",
        ".md",
        ".safetensors",
        ".npz",
        ".py",
    }


def test_licence_and_origin_stand_beside_the_assets() -> None:
    text = (ASSETS / "README.md").read_text(encoding="utf-8")
    for needed in ("MIT License", "Zalando SE", "Permission is hereby granted", "pretrain"):
        assert needed in text


@pytest.mark.parametrize("part", ["train", "test"])
def test_images_are_grey_28_by_28_and_class_balanced(images: dict[str, np.ndarray], part: str) -> None:
    x, y = images[f"{part}_x"], images[f"{part}_y"]
    assert x.dtype == np.uint8
    assert x.shape == (len(y), 28, 28)
    assert y.dtype == np.int64
    counts = np.bincount(y, minlength=len(images["classnames"]))
    assert len(counts) == 10
    assert counts.min() == counts.max() == {"train": 20, "test": 200}[part]


def test_train_and_test_images_share_no_image(images: dict[str, np.ndarray]) -> None:
    train = {image.tobytes() for image in images["train_x"]}
    assert not train & {image.tobytes() for image in images["test_x"]}


def test_class_names_are_fashion_mnists_in_label_order(images: dict[str, np.ndarray]) -> None:
    official = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
    assert images["classnames"].dtype.kind == "U"
    assert [name.lower().replace(" ", "_") for name in images["classnames"]] == official.split()


def test_special_tokens_come_last_and_config_names_them(model: CLIPModel, tokenizer: CLIPTokenizerFast) -> None:
    config = model.config.text_config
    assert config.vocab_size == len(tokenizer) == len(tokenizer.get_vocab())
    assert config.bos_token_id == tokenizer.bos_token_id == len(tokenizer) - 2
    assert config.eos_token_id == tokenizer.eos_token_id == len(tokenizer) - 1
    assert config.pad_token_id == tokenizer.pad_token_id == config.eos_token_id
    assert config.eos_token_id != 2, "transformers reads 2 as a marker of old checkpoints"
    assert config.max_position_embeddings == 77
    assert config.hidden_act == model.config.vision_config.hidden_act == "quick_gelu"


@settings(max_examples=200)
@given(text=st.text(max_size=60))
def test_both_tokenizers_encode_any_text_alike(
    tokenizer: CLIPTokenizerFast, plain_tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids == plain_tokenizer.encode(text).ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == tokenizer.eos_token_id
    if "<|" not in text:
        # Byte-level: no text needs an unknown token, which CLIP spells as the end of text.
        assert not {tokenizer.bos_token_id, tokenizer.eos_token_id} & set(ids[1:-1])


@settings(max_examples=200)
@given(words=st.lists(st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyzäéßжλ漢字"), min_size=1), max_size=8))
def test_words_survive_the_way_to_tokens_and_back(tokenizer: CLIPTokenizerFast, words: list[str]) -> None:
    text = " ".join(words)
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_every_byte_has_a_token_within_and_at_the_end_of_a_word(
    tokenizer: CLIPTokenizerFast,
) -> None:
    vocabulary = tokenizer.get_vocab()
    for byte in ByteLevel.alphabet():
        assert byte in vocabulary
        assert f"{byte}</w>" in vocabulary


def test_vocab_and_merges_files_give_the_same_tokenizer(plain_tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MODEL / name, tmp_path)
    rebuilt = CLIPTokenizerFast.from_pretrained(tmp_path)
    for text in ("A photo of an Ankle Boot.", "T-shirt, size 42", "Übergröße 漢字 🙂"):
        assert rebuilt(text)["input_ids"] == plain_tokenizer.encode(text).ids


def test_random_contexts_are_of_the_size_of_token_embeddings(model: CLIPModel) -> None:
    # Prompt tuning starts from N(0, 0.02): far larger tokens would drown such a context.
    spread = model.text_model.embeddings.token_embedding.weight.std().item()
    assert 0.005 < spread < 0.04


def test_weights_are_fp16_and_the_scale_is_clips() -> None:
    weights = load_file(MODEL / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert weights["logit_scale"].float().exp().item() == pytest.approx(100, rel=0.01)


def test_zero_shot_is_a_strong_but_imperfect_prior(
    model: CLIPModel, tokenizer: CLIPTokenizerFast, images: dict[str, np.ndarray]
) -> None:
    processor = image_processor().from_pretrained(MODEL, local_files_only=True)
    pictures = [Image.fromarray(image).convert("RGB") for image in images["test_x"][:1000]]
    prompts = [f"a photo of a {name}." for name in images["classnames"]]
    with torch.no_grad():
        pixels = torch.as_tensor(np.stack(processor(pictures)["pixel_values"]))
        text = tokenizer(prompts, padding=True, return_tensors="pt")
        output = model(**text, pixel_values=pixels)
    guess = output.logits_per_image.argmax(dim=1).numpy()
    accuracy = 100 * np.mean(guess == images["test_y"][:1000])
    assert 55 < accuracy < 85
