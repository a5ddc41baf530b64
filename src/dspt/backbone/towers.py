"""What the configuration of a checkpoint says of its towers, and whether the weights are those of such towers.

A tower with a layer too few, or with another's layers, computes something, and nobody would see that it is wrong. And a
configuration may ask for a tower larger than any machine. So both are compared before anything is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspt.internal.checks import is_number
from dspt.internal.errors import InputError

if TYPE_CHECKING:
    from dspt.backbone.checkpoint import Checkpoint

# The sizes of each tower, with what they are where a configuration does not say (transformers' own defaults).
_SIZES = {
    "text": {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "vocab_size": 49408,
        "max_position_embeddings": 77,
    },
    "image": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
}
_FEATURES = "projection_dim"
_MOST = 2**20


def sizes(checkpoint: Checkpoint, tower: str) -> dict[str, int]:
    """Return the sizes of the tower, "text" or "image", by the names that config.json has for them."""
    given = _given(checkpoint, tower)
    # CLIPModel builds its projections from the outer number, whatever the inner ones say.
    asked = {**_SIZES[tower], _FEATURES: 512}
    found = {name: given.get(name, usual) for name, usual in asked.items()}
    found[_FEATURES] = checkpoint.config.get(_FEATURES, 512)
    for name, value in found.items():
        if type(value) is not int or not 1 <= value <= _MOST:
            raise InputError(
                f"model {checkpoint.name}: {name} of its {tower} tower is {value!r}; expected a whole number "
                f"from 1 to {_MOST}"
            )
    if found["hidden_size"] % found["num_attention_heads"]:
        raise InputError(
            f"model {checkpoint.name}: width {found['hidden_size']} of its {tower} tower does not divide into "
            f"{found['num_attention_heads']} heads"
        )
    return found


def functions(checkpoint: Checkpoint, tower: str) -> dict[str, Any]:
    """Return the tower's activation and the epsilon of its norms, by the names that config.json has for them."""
    given = _given(checkpoint, tower)
    found = {"hidden_act": given.get("hidden_act", "quick_gelu"), "layer_norm_eps": given.get("layer_norm_eps", 1e-5)}
    if not isinstance(found["hidden_act"], str):
        raise InputError(f"model {checkpoint.name}: {tower} activation {found['hidden_act']!r}; expected its name")
    if not (is_number(found["layer_norm_eps"]) and 0 < found["layer_norm_eps"] < 1):
        raise InputError(
            f"model {checkpoint.name}: layer_norm_eps of its {tower} tower is {found['layer_norm_eps']!r}; "
            "expected a number between 0 and 1"
        )
    return found


def check_tower(checkpoint: Checkpoint, tower: str) -> None:
    """Raise `InputError` unless the weights are those of the tower that the configuration describes."""
    size, there = sizes(checkpoint, tower), checkpoint.shapes
    expected = size["num_hidden_layers"]
    layer = re.compile(_ROOTS[tower] + r"\.encoder\.layers\.(\d{1,9})\.")
    layers = {int(found[1]) for name in there if (found := layer.match(name))}
    if len(layers) != expected:
        raise InputError(
            f"model {checkpoint.name}: its {tower} tower has {len(layers)} layers in its weights, but {expected} by "
            "its config.json; give a complete checkpoint"
        )
    for name, shape in _tensors(tower, size):
        if name not in there:
            raise InputError(
                f"model {checkpoint.name}: no tensor {name} in its weights, so its {tower} tower is not complete"
            )
        if there[name] != shape:
            raise InputError(
                f"model {checkpoint.name}: tensor {name} has shape {there[name]}, but {shape} by its config.json; "
                "give a complete checkpoint"
            )


_ROOTS = {"text": "text_model", "image": "vision_model"}


def _tensors(tower: str, size: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor of a tower of these sizes."""
    root, width, hidden = _ROOTS[tower], size["hidden_size"], size["intermediate_size"]
    norms: tuple[str, ...]
    if tower == "text":
        yield f"{root}.embeddings.token_embedding.weight", (size["vocab_size"], width)
        positions, norms, projection = size["max_position_embeddings"], ("final_layer_norm",), "text_projection"
    else:
        patch = size["patch_size"]
        yield f"{root}.embeddings.class_embedding", (width,)
        yield f"{root}.embeddings.patch_embedding.weight", (width, size["num_channels"], patch, patch)
        positions = (size["image_size"] // patch) ** 2 + 1
        norms, projection = ("pre_layrnorm", "post_layernorm"), "visual_projection"
    yield f"{root}.embeddings.position_embedding.weight", (positions, width)
    yield f"{projection}.weight", (size[_FEATURES], width)
    for norm in norms:
        yield f"{root}.{norm}.weight", (width,)
        yield f"{root}.{norm}.bias", (width,)
    products = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    products |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
    for number in range(size["num_hidden_layers"]):
        at = f"{root}.encoder.layers.{number}"
        for norm in ("layer_norm1", "layer_norm2"):
            yield f"{at}.{norm}.weight", (width,)
            yield f"{at}.{norm}.bias", (width,)
        for name, shape in products.items():
            yield f"{at}.{name}.weight", shape
            yield f"{at}.{name}.bias", shape[:1]


def _given(checkpoint: Checkpoint, tower: str) -> dict[str, Any]:
    return checkpoint.text_config if tower == "text" else checkpoint.vision_config
