"""CLIP's causal text tower, computing only what a class feature depends on.

The feature of a class is read at its EOT token, and the tower is causal. So nothing behind EOT matters, the prefix that
all classes share is computed once, and the last layer is needed at the EOT positions alone. Each of these is exact: the
result is that of the full-length tower, and so is the gradient with respect to the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from dspt.backbone.blocks import Block, fill_blocks
from dspt.backbone.checkpoint import Checkpoint
from dspt.backbone.layer import ACTIVATIONS, Layer
from dspt.backbone.prompt import Layout
from dspt.backbone.towers import check_tower, functions, sizes
from dspt.internal.errors import InputError

# Numbers of the tower's width that a step holds for each token and layer at its peak, as measured: what autograd keeps
# (norms, fused qkv, attention, the four-wide hidden layer) and what it works on. Used to turn a memory limit into a
# number of tokens.
_KEPT_WIDTHS = 18

# Classes that are computed again in the backward pass are so at most this share of the memory limit at a time.
_AGAIN = 8


@dataclass(frozen=True)
class _Chunk:
    """The suffixes of some classes in blocks of equal size, each row attending to rows of its own block."""

    classes: Tensor  # which classes
    base: Tensor  # (blocks * size, D) token and position embeddings; position alone where a context vector stands
    context_at: Tensor  # rows that take a context vector ...
    context_row: Tensor  # ... and which one
    mask: Tensor  # (blocks, size, size) 0 where a row may look, minus infinity elsewhere
    last: Tensor  # (C,) row of each class's EOT
    # What the first layer makes of the rows never changes while no context vector stands among them.
    first: Tensor | None = None  # (blocks * size, 3 D) their queries, keys and values in it


class TextTower:
    """The frozen text tower of a checkpoint.

    Parameters
    ----------
    memory_limit : bytes of activations one step may keep. Classes beyond that are processed in chunks, each computed
        again in the backward pass, which gives the same gradient for half as much time again for these classes.
    dtype : of the matrix products. Norms, sums and softmax stay in float32, and so do context, features and gradient.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str | torch.device = "cpu",
        memory_limit: int = 2 * 1024**3,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = torch.device(device)
        self.memory_limit = memory_limit
        check_tower(checkpoint, "text")
        size = sizes(checkpoint, "text")
        activation, self._eps = functions(checkpoint, "text").values()
        if activation not in ACTIVATIONS:
            raise InputError(
                f"model {checkpoint.name}: text activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        weights = checkpoint.tensors("text_model.", "text_projection.")

        def under(name: str) -> dict[str, Tensor]:
            """Return the weights whose names begin so, by the rest of their names, and keep them here no longer."""
            keys = [key for key in weights if key.startswith(name)]
            return {key.removeprefix(name): weights.pop(key).to(self.device) for key in keys}

        self._layers = [
            Layer(under(f"text_model.encoder.layers.{i}."), size["num_attention_heads"], activation, self._eps, dtype)
            for i in range(size["num_hidden_layers"])
        ]
        others = under("text_")
        self.embeddings = others["model.embeddings.token_embedding.weight"]
        self._positions = others["model.embeddings.position_embedding.weight"]
        self._final_norm = others["model.final_layer_norm.weight"], others["model.final_layer_norm.bias"]
        self._projection = others["projection.weight"]

    @property
    def width(self) -> int:
        """The width of a token, and so of a context vector."""
        return self.embeddings.shape[1]

    @property
    def hidden_width(self) -> int:
        """The width of the feed-forward part."""
        return self._layers[0].up.outputs

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    @property
    def feature_dim(self) -> int:
        """The width of a class feature, that of the image features."""
        return self._projection.shape[0]

    def compile(self, layout: Layout) -> Prompts:
        """Return the function from a context to class features for this layout."""
        return Prompts(self, layout)

    def prefix_keys_values(self, x: Tensor) -> list[Tensor]:
        """Return each layer's keys and values (n, 2 D) of the prefix, in float32: there chunks sum their gradients."""
        found = []
        for layer in self._layers:
            rows = layer.queries_keys_values(x)
            found.append(rows[:, self.width :].float())
            if layer is not self._layers[-1]:  # nobody reads more of a prefix
                x = layer.feed_forward(x, layer.attend(rows))
        return found

    def features(self, x: Tensor, chunk: _Chunk, past: list[Tensor] | None = None) -> Tensor:
        """Return the features at the chunk's EOT tokens.

        `x` starts with the prefix's rows, and every matrix product of a layer is one over all rows; or it has none of
        them, and the prefix's keys and values are given as `past`.

        Parameters
        ----------
        x : Tensor of shape (prefix + n, width)
            Embeddings: the prefix's rows, if any, then the n rows of the chunk.
        chunk : _Chunk
            The classes' suffixes, as `Prompts` laid them out.
        past : list of Tensor, optional
            For each layer the prefix's keys and values; None if the prefix is in `x`.

        Returns
        -------
        Tensor of shape (classes of the chunk, feature_dim)
            In the order of `chunk.classes`, not normalised.
        """
        of_prefix = len(x) - len(chunk.base)
        for depth, layer in enumerate(self._layers):
            if depth == 0 and chunk.first is not None:
                rows = torch.cat([layer.queries_keys_values(x[:of_prefix]), chunk.first])
            else:
                rows = layer.queries_keys_values(x)
            attended = layer.attend(rows, chunk.mask, None if past is None else past[depth])
            if layer is self._layers[-1]:  # only EOT is read from here on
                x, attended = (values.index_select(0, chunk.last + of_prefix) for values in (x, attended))
            x = layer.feed_forward(x, attended)
        x = F.layer_norm(x, (self.width,), *self._final_norm, self._eps)
        return F.linear(x, self._projection)

    def first_queries_keys_values(self, x: Tensor) -> Tensor:
        """Return the queries, keys and values (n, 3 D) of these rows in the first layer."""
        return self._layers[0].queries_keys_values(x)


class Prompts:
    """The class features as a function of the context, for one layout: `prompts(context) -> (C, D)`.

    `tokens` is the number of positions a step needs (it computes a few more, to fill blocks up), `product` about the
    multiplications of its largest matrix product, `kept_bytes` about what it keeps for its backward pass. With
    `first_layer_kept` the suffixes' part of the first layer's queries, keys and values is not computed: it is constant.
    """

    def __init__(self, tower: TextTower, layout: Layout) -> None:
        self.tower = tower
        self.layout = layout
        self._prefix = self._place(layout.prefix, range(len(layout.prefix)))
        blocks = fill_blocks(layout.suffixes)
        kept = _KEPT_WIDTHS * tower.width * 4 * tower.layers
        largest = max(len(block.entries) for block in blocks)
        together = max(1, tower.memory_limit // (kept * largest))
        rest, part = max(0, len(blocks) - together), -(-together // _AGAIN)
        cuts = [*range(0, rest, part), rest, len(blocks)]
        self._chunks = [self._join(blocks[i:j], alone=not rest) for i, j in pairwise(cuts)]
        self._restore = torch.argsort(torch.cat([chunk.classes for chunk in self._chunks]))
        self.first_layer_kept = self._chunks[0].first is not None
        self.tokens = len(layout.prefix) + sum(len(block.entries) for block in blocks)
        self.product = self.tokens * tower.width * tower.hidden_width
        self.kept_bytes = kept * (len(layout.prefix) + largest * min(together, len(blocks)))

    def __call__(self, context: Tensor | None = None) -> Tensor:
        """Return L2-normalised class features (C, D) in fp32, differentiable in `context`."""
        tower, rows = self.tower, None
        if context is not None:
            expected = (*self.layout.context_shape, tower.width)
            if tuple(context.shape) != expected:
                raise InputError(f"context: expected shape {expected}, found {tuple(context.shape)}")
            rows = context.reshape(-1, tower.width)
        prefix = _insert(*self._prefix, rows)
        if len(self._chunks) == 1:
            chunk = self._chunks[0]
            suffix = _insert(chunk.base, chunk.context_at, chunk.context_row, rows)
            features = tower.features(torch.cat([prefix, suffix]), chunk)
        else:
            past = tower.prefix_keys_values(prefix)
            again = partial(recompute, use_reentrant=False, preserve_rng_state=False)
            # The last chunk is computed once. It comes first in the backward pass, so that what it keeps is gone
            # before any of the others is computed again.
            *twice, once = self._chunks
            parts = [again(self._chunk_features, chunk, rows, past) for chunk in twice]
            features = torch.cat([*parts, self._chunk_features(once, rows, past)])
        return F.normalize(features.index_select(0, self._restore), dim=1)

    def _chunk_features(self, chunk: _Chunk, rows: Tensor | None, past: list[Tensor]) -> Tensor:
        suffix = _insert(chunk.base, chunk.context_at, chunk.context_row, rows)
        return self.tower.features(suffix, chunk, past)

    def _place(self, entries: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the entries, which of them take a context vector, and which one."""
        tower, what = self.tower, np.array(entries)
        tokens, context = np.flatnonzero(what >= 0), np.flatnonzero(what < 0)

        def there(numbers: np.ndarray) -> Tensor:
            return torch.from_numpy(numbers).to(tower.device)

        base = tower._positions[there(np.array(positions))]
        base[there(tokens)] += tower.embeddings[there(what[tokens])]
        return base, there(context), there(-1 - what[context])

    def _join(self, blocks: list[Block], alone: bool) -> _Chunk:
        device = self.tower.device
        size = max(len(block.entries) for block in blocks)
        base = torch.zeros(len(blocks) * size, self.tower.width, device=device)
        mask = torch.full((len(blocks), size, size), float("-inf"))
        mask.diagonal(dim1=1, dim2=2).zero_()  # also of the rows that are there only to fill up
        context_at, context_row, last = [], [], []
        for b, block in enumerate(blocks):
            positions = [len(self.layout.prefix) + len(path) - 1 for path in block.paths]
            embedded, at, which = self._place(block.entries, positions)
            base[b * size : b * size + len(embedded)] = embedded
            context_at.append(at + b * size)
            context_row.append(which)
            last += [row + b * size for row in block.last]
            for i, path in enumerate(block.paths):
                mask[b, i, path] = 0
        first = None
        # Kept only where all classes fit at once: beyond, memory is what is short.
        if alone and not sum(map(len, context_at)):
            first = self.tower.first_queries_keys_values(base)
        return _Chunk(
            classes=torch.tensor([c for block in blocks for c in block.classes], device=device),
            base=base,
            context_at=torch.cat(context_at),
            context_row=torch.cat(context_row),
            mask=mask.to(device),
            last=torch.tensor(last, device=device),
            first=first,
        )


def _insert(base: Tensor, at: Tensor, row: Tensor, rows: Tensor | None) -> Tensor:
    """Return the embeddings with context vectors added where they stand."""
    if not len(at):
        return base
    if rows is None:
        raise InputError("context: these prompts have context positions, so a context must be given")
    return base.index_add(0, at, rows.index_select(0, row))
