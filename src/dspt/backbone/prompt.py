"""Prompts: which token or context vector stands at which position of which class's text.

A text is `[SOT | context | name . EOT]`. What all classes have in common at its beginning is the *prefix*, computed
once for all; what is left is a class's *suffix*. With the name last the prefix is SOT and the whole context, with the
name in the middle SOT and half of it, with the name in front or with class-specific contexts SOT alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dspt.backbone.checkpoint import Checkpoint
from dspt.errors import InputError
from dspt.seeds import Stream

POSITIONS = ("end", "middle", "front")

# CoOp's own spread for random contexts; CLIP's token embeddings have about the same.
CONTEXT_STD = 0.02


@dataclass(frozen=True)
class Slots:
    """A run of text positions. `token[i]` is a token id, or -1 where row `context[i]` of the context stands."""

    token: np.ndarray
    context: np.ndarray
    position: np.ndarray

    def __len__(self) -> int:
        return len(self.token)

    def entries(self) -> list[int]:
        """Return what stands at each position as one number: the token id, or -1 - row of the context."""
        return np.where(self.token >= 0, self.token, -1 - self.context).tolist()

    def at(self, index: int) -> Slots:
        """Return the one slot at `index`."""
        one = slice(index, index + 1)
        return Slots(self.token[one], self.context[one], self.position[one])

    @staticmethod
    def join(parts: Sequence[Slots]) -> Slots:
        """Return the slots of `parts` one behind the other."""
        return Slots(
            np.concatenate([part.token for part in parts]),
            np.concatenate([part.context for part in parts]),
            np.concatenate([part.position for part in parts]),
        )


@dataclass(frozen=True)
class Layout:
    """The texts of all classes: a shared prefix and one suffix for each class."""

    prefix: Slots
    suffixes: tuple[Slots, ...]
    context_shape: tuple[int, ...]


def tokenize(checkpoint: Checkpoint, text: str) -> list[int]:
    """Return the token ids of `text` without start and end tokens."""
    return checkpoint.tokenizer.encode(text, add_special_tokens=False).ids


def clean_name(name: str) -> str:
    """Return a class name as it stands in a prompt: "_" becomes " " and outer spaces go."""
    return name.replace("_", " ").strip()


def layout_context(
    checkpoint: Checkpoint,
    class_names: Sequence[str],
    length: int = 16,
    position: str = "end",
    class_specific: bool = False,
) -> Layout:
    """Return the layout of `[SOT | context | name . EOT]` for each class, as CoOp writes it.

    Parameters
    ----------
    length : number of context vectors.
    position : where the name stands: "end", "middle" (half of the context on each side) or "front".
    class_specific : one context for each class, shape (C, length, D), instead of one for all.
    """
    if position not in POSITIONS:
        raise InputError(f"class position {position!r}: expected one of {', '.join(POSITIONS)}")
    if length < 1:
        raise InputError(f"context length {length}: expected at least 1")
    before = {"end": length, "middle": length // 2, "front": 0}[position]
    texts = []
    for index, name in enumerate(class_names):
        words, stop = _name_tokens(checkpoint, name)
        first = index * length if class_specific else 0
        context = [-1 - row for row in range(first, first + length)]
        texts.append([*context[:before], *words, *context[before:], *stop])
    shape = (len(class_names), length) if class_specific else (length,)
    shared = 1 + (0 if class_specific else before)
    return _layout(checkpoint, class_names, texts, shared, shape)


def layout_template(
    checkpoint: Checkpoint, class_names: Sequence[str], template: str = "a photo of a {}."
) -> Layout:
    """Return the layout of fixed texts, `template` filled with each name: zero-shot needs no context."""
    if template.count("{}") != 1:
        raise InputError(f"template {template!r}: expected exactly one {{}} for the class name")
    texts = []
    for name in class_names:
        _name_tokens(checkpoint, name)
        texts.append(tokenize(checkpoint, template.format(clean_name(name))))
    # Only what is before the name is surely the same tokens for all.
    shared = 1
    while (
        all(len(text) > shared for text in texts) and len({text[shared - 1] for text in texts}) == 1
    ):
        shared += 1
    return _layout(checkpoint, class_names, texts, shared, (0,))


def initial_context(
    checkpoint: Checkpoint,
    embeddings: torch.Tensor,
    layout: Layout,
    seed: int,
    words: str | None = None,
) -> torch.Tensor:
    """Return the starting context: N(0, 0.02), or the token embeddings of `words`."""
    *classes, length = layout.context_shape
    if words is None:
        drawn = Stream(seed, "context").normal(*layout.context_shape, embeddings.shape[1])
        return torch.from_numpy(drawn * CONTEXT_STD).float()
    ids = tokenize(checkpoint, clean_name(words))
    if len(ids) != length:
        raise InputError(
            f"context words {words!r}: they are {len(ids)} tokens, but the context has {length}; "
            f"give a context length of {len(ids)}"
        )
    return embeddings[ids].cpu().clone().expand(*classes, -1, -1).contiguous()


def _name_tokens(checkpoint: Checkpoint, name: str) -> tuple[list[int], list[int]]:
    """The tokens of the name, and those of the full stop behind it."""
    if not isinstance(name, str) or not clean_name(name):
        raise InputError(
            f"class name {name!r}: it is empty; every class needs a name to be prompted with"
        )
    name = clean_name(name)
    with_stop = tokenize(checkpoint, name + ".")
    if {checkpoint.start_token, checkpoint.end_token} & set(with_stop):
        raise InputError(
            f"class name {name!r}: it holds a token that marks start or end of a text; rename it"
        )
    # As CoOp does: a name that ends in punctuation may share its last token with the stop.
    length = len(tokenize(checkpoint, name))
    return with_stop[:length], with_stop[length:]


def _layout(
    checkpoint: Checkpoint,
    class_names: Sequence[str],
    texts: list[list[int]],
    shared: int,
    context_shape: tuple[int, ...],
) -> Layout:
    """The layout of texts given as token ids, context row r written as -1 - r, split after `shared` positions."""
    if not texts:
        raise InputError("class names: the list is empty; at least one class is needed")
    limit = checkpoint.text_config.get("max_position_embeddings", 77)
    for name, text in zip(class_names, texts, strict=True):
        if len(text) + 2 > limit:
            raise InputError(
                f"class name {name!r}: its prompt is {len(text) + 2} tokens long, but {checkpoint.name} "
                f"takes {limit}; shorten the name or the context"
            )
    whole = [[checkpoint.start_token, *text, checkpoint.end_token] for text in texts]
    prefix = _slots(whole[0][:shared], 0)
    return Layout(prefix, tuple(_slots(text[shared:], shared) for text in whole), context_shape)


def _slots(entries: list[int], first_position: int) -> Slots:
    values = np.array(entries, dtype=np.int64)
    return Slots(
        token=np.where(values >= 0, values, -1),
        context=np.where(values < 0, -1 - values, -1),
        position=np.arange(first_position, first_position + len(values)),
    )
