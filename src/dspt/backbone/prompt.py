"""Prompts: which token or context vector stands at which position of which class's text.

A text is `[SOT | context | name . EOT]`. What all classes have in common at its beginning is the *prefix*, computed
once for all; what is left is a class's *suffix*. With the name last the prefix is SOT and the whole context, with the
name in the middle SOT and half of it, with the name in front or with class-specific contexts SOT alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dspt.backbone.checkpoint import Checkpoint
from dspt.backbone.towers import sizes
from dspt.internal.checks import LONGEST_NAME
from dspt.internal.errors import InputError
from dspt.internal.names import GENERIC_TEMPLATE
from dspt.internal.seeds import Stream

POSITIONS = ("end", "middle", "front")

# CoOp's own spread for random contexts; CLIP's token embeddings have about the same.
CONTEXT_STD = 0.02


@dataclass(frozen=True)
class Layout:
    """The texts of all classes: a shared prefix and one suffix for each class.

    An entry is the id of the token that stands there, or -1 - r where row r of the context stands. Suffixes begin at
    the position behind the prefix.
    """

    prefix: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    context_shape: tuple[int, ...]


def tokenize(checkpoint: Checkpoint, text: str) -> list[int]:
    """Return the token ids of `text`, cleaned as CLIP cleans it, without start and end tokens."""
    return checkpoint.tokenizer.encode(cleaned(text), add_special_tokens=False).ids


def cleaned(text: str) -> str:
    """Return a text as CLIP's own tokenizer reads it.

    Broken characters, ligatures and curly quotes are mended, HTML's escapes resolved, and white space is one blank.
    """
    # What is printable ASCII has nothing to mend, and need not wait for ftfy to be loaded.
    if not (text.isascii() and text.isprintable() and "&" not in text):
        import html

        import ftfy

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split())


def is_mended(checkpoint: Checkpoint, text: str) -> bool:
    """Return whether cleaning changes the tokens of a text, as earlier versions had them."""
    if (clean := cleaned(text)) == text:
        return False
    before, after = (checkpoint.tokenizer.encode(each, add_special_tokens=False).ids for each in (text, clean))
    return bool(before != after)


def clean_name(name: str) -> str:
    """Return a class name as it stands in a prompt: "_" becomes " ", as in CoOp.

    Spaces at its end stay: "a+_" and "a+" differ in a prompt, as "+." is one word to the tokenizer.
    """
    return name.replace("_", " ")


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
    # start, end, and a token of the name; looked at before anything is made of that length
    if length > (most := sizes(checkpoint, "text")["max_position_embeddings"] - 3):
        raise InputError(f"context length {length}: {checkpoint.name} has room for {most} at most")
    before = {"end": length, "middle": length // 2, "front": 0}[position]
    texts = []
    _check_names(checkpoint, class_names)
    for index, name in enumerate(class_names):
        words, stop = _name_tokens(checkpoint, name)
        first = index * length if class_specific else 0
        context = [-1 - row for row in range(first, first + length)]
        texts.append([*context[:before], *words, *context[before:], *stop])
    shape = (len(class_names), length) if class_specific else (length,)
    shared = 1 + (0 if class_specific else before)
    return _layout(checkpoint, class_names, texts, shared, shape)


def layout_template(checkpoint: Checkpoint, class_names: Sequence[str], template: str = GENERIC_TEMPLATE) -> Layout:
    """Return the layout of fixed texts, `template` filled with each name: zero-shot needs no context.

    Parameters
    ----------
    checkpoint : Checkpoint
        Gives the tokenizer, the start and end tokens, and the longest text.
    class_names : sequence of str
        The name of each class, in the order of labels.
    template : str
        The text, with exactly one {} for the class name.
    """
    if template.count("{}") != 1:
        raise InputError(f"template {template!r}: expected exactly one {{}} for the class name")
    _check_names(checkpoint, class_names)
    texts = [tokenize(checkpoint, template.replace("{}", clean_name(n))) for n in class_names]
    # Only what is before the name is surely the same tokens for all.
    shared = 1
    while all(len(text) > shared for text in texts) and len({text[shared - 1] for text in texts}) == 1:
        shared += 1
    return _layout(checkpoint, class_names, texts, shared, (0,))


def initial_context(
    checkpoint: Checkpoint,
    embeddings: torch.Tensor,
    layout: Layout,
    seed: int,
    words: str | None = None,
) -> torch.Tensor:
    """Return the starting context: N(0, 0.02), or the token embeddings of `words`.

    Parameters
    ----------
    checkpoint : Checkpoint
        Gives the tokenizer of `words`.
    embeddings : Tensor of shape (V, D)
        The token embeddings of the text tower.
    layout : Layout
        Gives the shape of the context.
    seed : int
        Seed of a random context; not looked at with `words`.
    words : str, optional
        As many tokens as the context has vectors; None draws the context at random.

    Returns
    -------
    Tensor of shape (*layout.context_shape, D), on the CPU
    """
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


def prompted_alike(checkpoint: Checkpoint, class_names: Sequence[str]) -> list[int]:
    """Return for each class the first one whose name becomes the same prompt, which mostly is itself."""
    known: dict[tuple[int, ...], int] = {}
    found = []
    for number, name in enumerate(class_names):
        words, stop = _name_tokens(checkpoint, name)
        found.append(known.setdefault((*words, *stop), number))
    return found


def _check_names(checkpoint: Checkpoint, class_names: Sequence[str]) -> None:
    """Refuse names that are written apart but prompted alike: one of them could never be predicted."""
    for number, first in enumerate(prompted_alike(checkpoint, class_names)):
        if first != number:
            raise InputError(
                f"class names {class_names[first]!r} and {class_names[number]!r}: they become the same prompt; "
                "rename one of them"
            )


def _name_tokens(checkpoint: Checkpoint, name: str) -> tuple[list[int], list[int]]:
    """Return the tokens of the name, and those of the full stop behind it."""
    if isinstance(name, str) and len(name) > LONGEST_NAME:
        raise InputError(
            f"class name {name[:60]!r}...: it has {len(name)} characters; no prompt has room for more "
            f"than {LONGEST_NAME}"
        )
    if not isinstance(name, str) or not cleaned(clean_name(name)):
        raise InputError(f"class name {name!r}: it is empty; every class needs a name to be prompted with")
    name = clean_name(name)
    with_stop = tokenize(checkpoint, name + ".")
    if {checkpoint.start_token, checkpoint.end_token} & set(with_stop):
        raise InputError(f"class name {name!r}: it holds a token that marks start or end of a text; rename it")
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
    """Return the layout of token ids, context row r written as -1 - r, split after `shared` positions."""
    if not texts:
        raise InputError("class names: the list is empty; at least one class is needed")
    limit = sizes(checkpoint, "text")["max_position_embeddings"]
    for name, text in zip(class_names, texts, strict=True):
        if len(text) + 2 > limit:
            raise InputError(
                f"class name {name!r}: its prompt is {len(text) + 2} tokens long, but {checkpoint.name} "
                f"takes {limit}; shorten the name or the context"
            )
    whole = [(checkpoint.start_token, *text, checkpoint.end_token) for text in texts]
    return Layout(whole[0][:shared], tuple(text[shared:] for text in whole), context_shape)
