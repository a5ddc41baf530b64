"""CLIP's causal text tower, computing only what a class feature depends on.

The feature of a class is read at its EOT token, and the tower is causal. So nothing behind EOT matters, the prefix that
all classes share is computed once, and the last layer is needed at the EOT positions alone. Each of these is exact: the
result is that of the full-length tower, and so is the gradient with respect to the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint as recompute

from dspt.backbone.checkpoint import Checkpoint
from dspt.backbone.prompt import Layout
from dspt.backbone.towers import check_tower, functions, sizes
from dspt.internal.errors import InputError

# quick_gelu(x) = x * sigmoid(1.702 x) = silu(1.702 x) / 1.702: with the factor moved into the weights around it, the
# activation is one fused operation instead of three, forwards and backwards.
_QUICK = 1.702
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

# Numbers of the tower's width that a step holds for each token and layer at its peak, as measured: what autograd keeps
# (norms, fused qkv, attention, the four-wide hidden layer) and what it works on. Used to turn a memory limit into a
# number of tokens.
_KEPT_WIDTHS = 18

# Classes that are computed again in the backward pass are so at most this share of the memory limit at a time.
_AGAIN = 8

# Rows of suffixes computed together in attention. Fewer make products too small to be fast, more waste work on
# pairs of rows that do not see each other.
_BLOCK_ROWS = 48


@dataclass(frozen=True)
class _Layer:
    """The frozen weights of one transformer layer."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Chunk:
    """The suffixes of some classes in blocks of equal size, each row attending to rows of its own block.

    A block holds the suffixes of several classes. That wastes a few products on pairs of rows that do not see each
    other, but a few products of a good size are much faster than many tiny ones.
    """

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
        self.heads = sizes(checkpoint, "text")["num_attention_heads"]
        activation, self._eps = functions(checkpoint, "text").values()
        if activation not in _ACTIVATIONS:
            raise InputError(
                f"model {checkpoint.name}: text activation {activation!r}; expected one of {', '.join(_ACTIVATIONS)}"
            )
        self._activation = _ACTIVATIONS[activation]
        weights = checkpoint.tensors("text_model.", "text_projection.")

        def get(name: str) -> Tensor:
            return weights[name].to(self.device)

        def pair(name: str) -> tuple[Tensor, Tensor]:
            return get(f"{name}.weight"), get(f"{name}.bias")

        def low(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            return weight.to(dtype), bias.to(dtype)

        self.embeddings = get("text_model.embeddings.token_embedding.weight")
        self._positions = get("text_model.embeddings.position_embedding.weight")
        self._final_norm = pair("text_model.final_layer_norm")
        self._projection = get("text_projection.weight")
        self._layers = []
        for layer in range(sizes(checkpoint, "text")["num_hidden_layers"]):
            at = f"text_model.encoder.layers.{layer}."
            query, key, value = (pair(f"{at}self_attn.{name}_proj") for name in "qkv")
            # attention's 1/sqrt(d) goes into the queries' weights
            scale = (self.width // self.heads) ** -0.5
            weight = torch.cat([query[0] * scale, key[0], value[0]])
            bias = torch.cat([query[1] * scale, key[1], value[1]])
            up, down = pair(at + "mlp.fc1"), pair(at + "mlp.fc2")
            if activation == "quick_gelu":
                up, down = (up[0] * _QUICK, up[1] * _QUICK), (down[0] / _QUICK, down[1])
            self._layers.append(
                _Layer(
                    norm1=pair(at + "layer_norm1"),
                    qkv=low(weight, bias),
                    out=low(*pair(at + "self_attn.out_proj")),
                    norm2=pair(at + "layer_norm2"),
                    up=low(*up),
                    down=low(*down),
                )
            )

    @property
    def width(self) -> int:
        """The width of a token, and so of a context vector."""
        return self.embeddings.shape[1]

    @property
    def hidden_width(self) -> int:
        """The width of the feed-forward part."""
        return self._layers[0].up[0].shape[0]

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

    def prefix_keys_values(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the prefix's keys and values in each layer, in float32: all chunks' gradients are summed there."""
        found = []
        for layer in self._layers:
            queries, keys, values = self._queries_keys_values(x, layer).chunk(3, dim=1)
            found.append((keys.float(), values.float()))
            if layer is not self._layers[-1]:  # nobody reads more of a prefix
                x = self._feed_forward(x, self._attend_prefix(queries, keys, values), layer)
        return found

    def features(
        self,
        x: Tensor,
        chunk: _Chunk,
        prefix_length: int = 0,
        past: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Return the features at the chunk's EOT tokens.

        `x` starts with `prefix_length` rows of prefix, and every matrix product of a layer is one over all rows; or it
        has none of them, and the prefix's keys and values are given as `past`.

        Parameters
        ----------
        x : Tensor of shape (prefix_length + n, width)
            Embeddings: the prefix's rows, if any, then the n rows of the chunk.
        chunk : _Chunk
            The classes' suffixes, as `Prompts` laid them out.
        prefix_length : int
            How many rows of `x` are the prefix's; 0 with `past`.
        past : list of (Tensor, Tensor), optional
            For each layer the prefix's keys and values; None if the prefix is in `x`.

        Returns
        -------
        Tensor of shape (classes of the chunk, feature_dim)
            In the order of `chunk.classes`, not normalised.
        """
        for depth, layer in enumerate(self._layers):
            if depth == 0 and chunk.first is not None:
                prefix, own = self._queries_keys_values(x[:prefix_length], layer), chunk.first
            else:
                both = self._queries_keys_values(x, layer)
                prefix, own = both.split([prefix_length, len(x) - prefix_length])
            queries, keys, values = prefix.chunk(3, dim=1)
            if past is not None:
                keys, values = past[depth]
            attended: Tensor = _suffix_attention(own, keys, values, chunk.mask, self.heads)
            if layer is self._layers[-1]:  # only EOT is read from here on
                attended = attended.index_select(0, chunk.last)
                x = x.index_select(0, chunk.last + prefix_length)
            elif prefix_length:
                attended = torch.cat([self._attend_prefix(queries, keys, values), attended])
            x = self._feed_forward(x, attended, layer)
        x = F.layer_norm(x, (self.width,), *self._final_norm, self._eps)
        return F.linear(x, self._projection)

    def _feed_forward(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        """Return the rows behind a layer, given what they attended to in it."""
        x = x + F.linear(attended, *layer.out)
        h = F.layer_norm(x, (self.width,), *layer.norm2, self._eps).to(self.dtype)
        return x + F.linear(self._activation(F.linear(h, *layer.up)), *layer.down)

    def _queries_keys_values(self, x: Tensor, layer: _Layer) -> Tensor:
        h = F.layer_norm(x, (self.width,), *layer.norm1, self._eps).to(self.dtype)
        return F.linear(h, *layer.qkv)

    def first_queries_keys_values(self, x: Tensor) -> Tensor:
        """Return the queries, keys and values (n, 3 D) of these rows in the first layer."""
        return self._queries_keys_values(x, self._layers[0])

    def _attend_prefix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (_by_head(rows, self.heads)[None] for rows in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return attended[0].transpose(0, 1).reshape(-1, self.width)


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """Return rows (n, D) as (heads, n, D / heads)."""
    return rows.view(len(rows), heads, rows.shape[1] // heads).transpose(0, 1)


class _SuffixAttention(torch.autograd.Function):
    """softmax(q k^T) v, where every row sees the whole prefix and some rows of its own block.

    Forward and backward are written out because autograd would copy scores, probabilities and their gradients once
    more each, and keep them.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, key: Tensor, value: Tensor, mask: Tensor, heads: int) -> Tensor:
        blocks, size, _ = mask.shape
        key, value = key.to(own.dtype), value.to(own.dtype)
        shared, depth = len(key), own.shape[1] // (3 * heads)
        q, k, v = own.view(blocks, size, 3, heads, depth).permute(2, 3, 0, 1, 4)
        q = q.reshape(heads * blocks, size, depth)
        # Each block has the prefix's keys and values before its own: one product for both.
        k, v = (
            torch.cat([_by_head(prefix, heads)[:, None].expand(-1, blocks, -1, -1), rows], dim=2)
            for prefix, rows in ((key, k), (value, v))
        )
        k, v = k.flatten(0, 1), v.flatten(0, 1)
        scores = (q @ k.mT).view(heads, blocks, size, -1)
        scores[..., shared:] += mask
        p = scores.softmax(-1, dtype=torch.float32).to(own.dtype).flatten(0, 1)
        ctx.save_for_backward(q, k, v, p)
        ctx.shape = heads, blocks, shared
        attended: Tensor = (p @ v).view(heads, blocks, size, depth).permute(1, 2, 0, 3)
        return attended.reshape(len(own), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = ctx.saved_tensors
        heads, blocks, shared = ctx.shape
        size, depth = q.shape[1:]
        d_out = gradient.reshape(blocks, size, heads, depth).permute(2, 0, 1, 3).reshape(q.shape)
        d_scores = torch.ops.aten._softmax_backward_data(d_out @ v.mT, p, -1, p.dtype)
        d_k, d_v = ((a.mT @ b).unflatten(0, (heads, blocks)) for a, b in ((d_scores, q), (p, d_out)))
        d_key, d_value = (
            d[:, :, :shared].sum(1, dtype=torch.float32).transpose(0, 1).reshape(shared, -1) for d in (d_k, d_v)
        )
        if not ctx.needs_input_grad[0]:  # the first layer's rows never change
            return None, d_key, d_value, None, None
        d_own = gradient.new_empty(blocks, size, 3, heads, depth)
        d_rows = d_own.permute(2, 3, 0, 1, 4)
        d_rows[0] = (d_scores @ k).unflatten(0, (heads, blocks))
        d_rows[1], d_rows[2] = d_k[:, :, shared:], d_v[:, :, shared:]
        return d_own.view(blocks * size, -1), d_key, d_value, None, None


_suffix_attention: Callable[..., Tensor] = _SuffixAttention.apply


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
        # Neighbours in this order begin alike, and so share rows.
        order = sorted(range(len(layout.suffixes)), key=lambda c: layout.suffixes[c])
        blocks = self._fill_blocks(order)
        kept = _KEPT_WIDTHS * tower.width * 4 * len(tower._layers)
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
            features = tower.features(torch.cat([prefix, suffix]), chunk, len(prefix))
        else:
            past = tower.prefix_keys_values(prefix)
            again = partial(recompute, use_reentrant=False, preserve_rng_state=False)
            # The last chunk is computed once. It comes first in the backward pass, so that what it keeps is gone
            # before any of the others is computed again.
            *twice, once = self._chunks
            parts = [again(self._chunk_features, chunk, rows, past) for chunk in twice]
            features = torch.cat([*parts, self._chunk_features(once, rows, past)])
        return F.normalize(features.index_select(0, self._restore), dim=1)

    def _chunk_features(self, chunk: _Chunk, rows: Tensor | None, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        suffix = _insert(chunk.base, chunk.context_at, chunk.context_row, rows)
        return self.tower.features(suffix, chunk, past=past)

    def _place(self, entries: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the entries, which of them take a context vector, and which one."""
        tower, what = self.tower, np.array(entries)
        tokens, context = np.flatnonzero(what >= 0), np.flatnonzero(what < 0)

        def there(numbers: np.ndarray) -> Tensor:
            return torch.from_numpy(numbers).to(tower.device)

        base = tower._positions[there(np.array(positions))]
        base[there(tokens)] += tower.embeddings[there(what[tokens])]
        return base, there(context), there(-1 - what[context])

    def _fill_blocks(self, order: list[int]) -> list[_Block]:
        """Return the classes in blocks of bounded size, positions whose whole past is the same shared within a block.

        Causal: what a position computes depends on its past alone. So names that begin alike ("2012 BMW X3 SUV",
        "2012 BMW X6 SUV") share the rows of their common beginning.
        """
        longest = max(map(len, self.layout.suffixes))
        best: list[_Block] = []
        # Each block is as large as the largest, so some limits leave fewer rows that only fill up than others.
        for limit in range(max(_BLOCK_ROWS, longest), max(_BLOCK_ROWS // 2, longest) - 1, -1):
            blocks = self._filled(order, limit)
            if not best or _rows(blocks) < _rows(best):
                best = blocks
            if _rows(best) <= 1.01 * sum(len(block.entries) for block in best):
                break
        return best

    def _filled(self, order: list[int], limit: int) -> list[_Block]:
        pieces: list[_Block] = []  # classes that begin alike
        for c in order:
            suffix = self.layout.suffixes[c]
            alike = pieces and pieces[-1].entries[0] == suffix[0]
            if not (alike and pieces[-1].add(c, suffix, limit)):
                pieces.append(_Block())
                pieces[-1].add(c, suffix, limit)
        return _packed(pieces, limit)

    def _join(self, blocks: list[_Block], alone: bool) -> _Chunk:
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


class _Block:
    """Suffixes that are computed together: a small tree of positions, each behind the one it follows."""

    def __init__(self) -> None:
        self.classes: list[int] = []
        self.entries: list[int] = []  # what stands at each row
        self.paths: list[list[int]] = []  # the rows each row may see: those before it, and itself
        self.last: list[int] = []  # the row of each class's EOT
        self._row_of: dict[tuple[int, int], int] = {}  # (row before, what stands here) -> row

    def add(self, c: int, suffix: tuple[int, ...], limit: int) -> bool:
        """Take in a class; or, if there would be more than `limit` rows, leave everything and return False."""
        row, known = -1, 0
        while known < len(suffix) and (row, suffix[known]) in self._row_of:
            row = self._row_of[row, suffix[known]]
            known += 1
        if len(self.entries) + len(suffix) - known > limit:
            return False
        for entry in suffix[known:]:
            path = self.paths[row] if row >= 0 else []
            before, row = row, len(self.entries)
            self._row_of[before, entry] = row
            self.entries.append(entry)
            self.paths.append([*path, row])
        self.classes.append(c)
        self.last.append(row)
        return True

    def take(self, other: _Block) -> None:
        """Take in all classes of another block, sharing nothing with them."""
        shift = len(self.entries)
        self.classes += other.classes
        self.entries += other.entries
        self.paths += [[shift + row for row in path] for path in other.paths]
        self.last += [shift + row for row in other.last]


def _rows(blocks: list[_Block]) -> int:
    """Return how many rows the blocks have when all are as large as the largest."""
    return len(blocks) * max(len(block.entries) for block in blocks)


def _packed(pieces: list[_Block], limit: int) -> list[_Block]:
    """Return the pieces in few blocks of at most `limit` rows: the largest first, each where it leaves least room."""
    blocks: list[_Block] = []
    with_room: list[list[_Block]] = [[] for _ in range(limit + 1)]
    for piece in sorted(pieces, key=lambda piece: -len(piece.entries)):
        size = len(piece.entries)
        room = next((room for room in range(size, limit + 1) if with_room[room]), limit)
        if not with_room[room]:
            blocks.append(_Block())
            with_room[room].append(blocks[-1])
        block = with_room[room].pop()
        block.take(piece)
        with_room[room - size].append(block)
    return blocks


def _insert(base: Tensor, at: Tensor, row: Tensor, rows: Tensor | None) -> Tensor:
    """Return the embeddings with context vectors added where they stand."""
    if not len(at):
        return base
    if rows is None:
        raise InputError("context: these prompts have context positions, so a context must be given")
    return base.index_add(0, at, rows.index_select(0, row))
