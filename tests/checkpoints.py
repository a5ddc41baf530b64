"""Tiny random checkpoints, written by transformers itself, for tests that need a real folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("a", "photo", "of", "cat", "dog", "red", "panda", "type", "ankle", "boot")


def tiny_clip(folder: Path | str, seed: int = 0, text_only: bool = False, **text: Any) -> Path:
    """Return `folder` with a tiny random CLIP checkpoint in it; `text` overrides the text config.

    As in many published checkpoints, `projection_dim` inside the two tower configs (512) is not the
    one that counts (16, at the top): a reader must not trust it.
    """
    import torch
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig
    from transformers import CLIPTextModelWithProjection as TextModel

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    size = write_tokenizer(folder)
    text = {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 77,
        "bos_token_id": size - 2,
        "eos_token_id": size - 1,
        "pad_token_id": size - 1,
        **text,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if text_only:
            model = TextModel(CLIPTextConfig(**{"projection_dim": 16, **text}))
        else:
            config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
            model = CLIPModel(config)
    model.save_pretrained(folder)
    if not text_only:
        crop = {"height": 32, "width": 32}
        image_processor()(size={"shortest_edge": 32}, crop_size=crop).save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> int:
    """Return the size of a CLIP tokenizer put in `folder`; `WORDS` are whole tokens."""
    from transformers import CLIPTokenizerFast

    letters = byte_letters()
    vocabulary = [*letters, *(letter + "</w>" for letter in letters)]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left = word[0]
        for i, letter in enumerate(word[1:], start=2):
            pair = (left, letter + ("</w>" if i == len(word) else ""))
            left = "".join(pair)
            if pair not in merges:
                merges.append(pair)
                vocabulary.append(left)
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    ids = {token: i for i, token in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *map(" ".join, merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = CLIPTokenizerFast.from_pretrained(folder, model_max_length=77)
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


def image_processor() -> Any:
    """Return transformers' class that prepares images by Pillow, under the name it has in this release."""
    import transformers

    # Where there are two, the other computes with torchvision.
    return getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor


def byte_letters() -> list[str]:
    """Return the 256 characters by which byte-level BPE spells bytes, in CLIP's order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
