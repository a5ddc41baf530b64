"""CLIP's causal text tower, computing only what a class feature depends on.

The feature of a class is read at its EOT token, and the tower is causal. So nothing behind EOT matters, the prefix that
all classes share is computed once, and the last layer is needed at the EOT positions alone. Each of these is exact: the
result is that of the full-length tower, and so is the gradient with respect to the context.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from dspt.backbone.checkpoint import Checkpoint
from dspt.backbone.prompt import Layout, Slots
from dspt.errors import InputError

# quick_gelu(x) = x * sigmoid(1.702 x) = silu(1.702 x) / 1.702: with the factor moved into the weights around it, the
# activation is one fused operation instead of three, forwards and backwards.
_QUICK = 1.702
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

# Numbers of the tower's width that autograd keeps for each token and layer: norms, fused qkv, attention and the
# four-wide hidden layer before and after its activation. Used to turn a memory limit into a number of tokens.
_KEPT_WIDTHS = 26


@dataclass(frozen=True)
class _Block:
    """The frozen weights of one transformer layer."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Chunk:
    """The suffixes of some classes, packed without padding, rows they have in common kept once."""

    classes: Tensor  # which classes, in the order packed
    base: (
        Tensor  # (T, D) token and position embeddings; position alone where a context vector stands
    )
    context_at: Tensor  # packed rows that take a context vector ...
    context_row: Tensor  # ... and which one
    padded: Tensor  # (C, L) packed row at each padded place, for attention only
    packed: Tensor  # (T,) a padded place of each packed row
    last: Tensor  # (C,) packed row of each EOT
    readable: Tensor  # (C, 1, L) true where the EOT may look


class TextTower:
    """The frozen text tower of a checkpoint.

    Parameters
    ----------
    memory_limit : bytes of activations one step may keep. Classes beyond that are processed in chunks, each computed
        again in the backward pass, which gives the same gradient for half as much time again.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str | torch.device = "cpu",
        memory_limit: int = 2 * 1024**3,
    ) -> None:
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.memory_limit = memory_limit
        weights = checkpoint.tensors("text_model.", "text_projection.")
        config = checkpoint.text_config
        activation = config.get("hidden_act", "quick_gelu")
        if activation not in _ACTIVATIONS:
            raise InputError(
                f"model {checkpoint.name}: text activation {activation!r}; expected one of "
                f"{', '.join(_ACTIVATIONS)}"
            )
        self._activation = _ACTIVATIONS[activation]
        self._eps = config.get("layer_norm_eps", 1e-5)
        self.heads = config.get("num_attention_heads", 8)

        def get(name: str) -> Tensor:
            try:
                return weights[name].to(self.device)
            except KeyError:
                raise InputError(
                    f"model {checkpoint.name}: no tensor {name} in its weights, so its text tower is "
                    "not complete"
                ) from None

        def pair(name: str) -> tuple[Tensor, Tensor]:
            return get(f"{name}.weight"), get(f"{name}.bias")

        self.embeddings = get("text_model.embeddings.token_embedding.weight")
        self._positions = get("text_model.embeddings.position_embedding.weight")
        self._final_norm = pair("text_model.final_layer_norm")
        self._projection = get("text_projection.weight")
        layers = {
            int(m[1]) for key in weights if (m := re.search(r"encoder\.layers\.(\d+)\.", key))
        }
        self._blocks = []
        for layer in sorted(layers):
            at = f"text_model.encoder.layers.{layer}."
            query, key, value = (pair(f"{at}self_attn.{name}_proj") for name in "qkv")
            # attention's 1/sqrt(d) goes into the queries' weights
            scale = (self.width // self.heads) ** -0.5
            weight = torch.cat([query[0] * scale, key[0], value[0]])
            bias = torch.cat([query[1] * scale, key[1], value[1]])
            up, down = pair(at + "mlp.fc1"), pair(at + "mlp.fc2")
            if activation == "quick_gelu":
                up, down = (up[0] * _QUICK, up[1] * _QUICK), (down[0] / _QUICK, down[1])
            self._blocks.append(
                _Block(
                    norm1=pair(at + "layer_norm1"),
                    qkv=(weight, bias),
                    out=pair(at + "self_attn.out_proj"),
                    norm2=pair(at + "layer_norm2"),
                    up=up,
                    down=down,
                )
            )
        if self.width % self.heads:
            raise InputError(
                f"model {checkpoint.name}: width {self.width} does not divide into {self.heads} heads"
            )

    @property
    def width(self) -> int:
        """The width of a token, and so of a context vector."""
        return self.embeddings.shape[1]

    @property
    def feature_dim(self) -> int:
        """The width of a class feature, that of the image features."""
        return self._projection.shape[0]

    def compile(self, layout: Layout) -> Prompts:
        """Return the function from a context to class features for this layout."""
        return Prompts(self, layout)

    # The transformer over rows [prefix | packed suffixes], every matrix product over all of them at once.

    def run(
        self,
        x: Tensor,
        prefix_length: int,
        chunk: _Chunk | None,
        past: list[tuple[Tensor, Tensor]] | None,
    ) -> tuple[Tensor | None, list[tuple[Tensor, Tensor]]]:
        """Return the features at the chunk's EOT tokens, and the prefix's keys and values for each layer.

        `x` starts with `prefix_length` rows of prefix; with `past` it holds none, and the keys and values come from
        there instead.
        """
        keys_values = []
        for depth, block in enumerate(self._blocks):
            last = depth == len(self._blocks) - 1
            h = F.layer_norm(x, (self.width,), *block.norm1, self._eps)
            if last and chunk is not None:
                x, h, queries = self._only_last_tokens(x, h, prefix_length, chunk, block)
            else:
                queries, h = F.linear(h, *block.qkv).tensor_split([self.width], dim=1)
            key, value = h[:, : self.width], h[:, self.width :]
            if past is None:
                seen = key[:prefix_length], value[:prefix_length]
                keys_values.append(seen)
            else:
                seen = past[depth]
            attended = []
            if prefix_length and not (last and chunk is not None):
                attended.append(self._attend_prefix(queries[:prefix_length], *seen))
            if chunk is not None:
                own = key[prefix_length:], value[prefix_length:]
                mine = queries if last else queries[prefix_length:]
                attended.append(self._attend_suffix(mine, seen, own, chunk, last))
            elif last:
                return None, keys_values  # the prefix's keys and values are all that anybody reads
            x = x + F.linear(torch.cat(attended) if len(attended) > 1 else attended[0], *block.out)
            h = F.layer_norm(x, (self.width,), *block.norm2, self._eps)
            x = x + F.linear(self._activation(F.linear(h, *block.up)), *block.down)
        x = F.layer_norm(x, (self.width,), *self._final_norm, self._eps)
        return F.linear(x, self._projection), keys_values

    def _only_last_tokens(
        self, x: Tensor, h: Tensor, prefix_length: int, chunk: _Chunk, block: _Block
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The residual and queries of the EOT rows, and the keys and values of all rows."""
        rows = chunk.last + prefix_length
        weight, bias = block.qkv
        queries = F.linear(h.index_select(0, rows), weight[: self.width], bias[: self.width])
        return (
            x.index_select(0, rows),
            F.linear(h, weight[self.width :], bias[self.width :]),
            queries,
        )

    def _attend_prefix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        def by_head(rows: Tensor) -> Tensor:
            return rows.view(1, -1, self.heads, self.width // self.heads).transpose(1, 2)

        q, k, v = map(by_head, (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return attended.transpose(1, 2).reshape(-1, self.width)

    def _attend_suffix(
        self,
        query: Tensor,
        prefix: tuple[Tensor, Tensor],
        own: tuple[Tensor, Tensor],
        chunk: _Chunk,
        last: bool,
    ) -> Tensor:
        """Attention of suffix rows to the whole prefix and, causally, to their own suffix.

        The prefix's keys are never copied for each class: its scores are one product over all rows.
        """
        classes, length = chunk.padded.shape
        heads, size = self.heads, self.width // self.heads

        def by_class(rows: Tensor) -> Tensor:  # (T, D) -> (H, C, L, d)
            if len(chunk.packed) != classes * length:
                rows = rows.index_select(0, chunk.padded.flatten())
            return rows.view(classes, length, heads, size).permute(2, 0, 1, 3)

        def by_head(rows: Tensor) -> Tensor:  # (P, D) -> (H, P, d)
            return rows.view(-1, heads, size).transpose(0, 1)

        prefix_key, prefix_value = map(by_head, prefix)
        own_key, own_value = map(by_class, own)
        q = query.view(classes, 1, heads, size).permute(2, 0, 1, 3) if last else by_class(query)
        flat = q.reshape(heads, -1, size)
        to_prefix = (flat @ prefix_key.transpose(1, 2)).view(
            heads, classes, -1, prefix_key.shape[1]
        )
        to_own = q @ own_key.transpose(2, 3)
        if last:
            to_own = to_own.masked_fill(~chunk.readable, float("-inf"))
        else:
            future = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)
            to_own = to_own.masked_fill(future, float("-inf"))
        weights = torch.cat([to_prefix, to_own], dim=-1).softmax(dim=-1)
        on_prefix, on_own = weights.split([prefix_key.shape[1], length], dim=-1)
        attended = (on_own @ own_value).add(
            (on_prefix.reshape(heads, -1, prefix_key.shape[1]) @ prefix_value).view(
                heads, classes, -1, size
            )
        )
        rows = attended.permute(1, 2, 0, 3).reshape(-1, self.width)
        if last or len(chunk.packed) == classes * length:
            return rows
        return rows.index_select(0, chunk.packed)


class Prompts:
    """The class features as a function of the context, for one layout: `prompts(context) -> (C, D)`.

    `tokens` is the number of positions a step computes.
    """

    def __init__(self, tower: TextTower, layout: Layout) -> None:
        self.tower = tower
        self.layout = layout
        self._prefix = self._place(layout.prefix)
        kept = _KEPT_WIDTHS * tower.width * 4 * len(tower._blocks)
        tokens = max(1, tower.memory_limit // kept)
        # Longest first: neighbours are then of one length and hardly need padding.
        order = sorted(range(len(layout.suffixes)), key=lambda c: -len(layout.suffixes[c]))
        self._chunks = []
        while order:
            fit, total = 0, 0
            while (
                fit < len(order) and (total := total + len(layout.suffixes[order[fit]])) <= tokens
            ):
                fit += 1
            fit = max(fit, 1)
            self._chunks.append(self._pack(order[:fit]))
            order = order[fit:]
        unsort = torch.cat([chunk.classes for chunk in self._chunks])
        self._restore = torch.argsort(unsort)
        self.tokens = len(layout.prefix) + sum(len(chunk.base) for chunk in self._chunks)

    def __call__(self, context: Tensor | None = None) -> Tensor:
        """Return L2-normalised class features (C, D) in fp32, differentiable in `context`."""
        tower, rows = self.tower, None
        if context is not None:
            expected = (*self.layout.context_shape, tower.width)
            if tuple(context.shape) != expected:
                raise InputError(
                    f"context: expected shape {expected}, found {tuple(context.shape)}"
                )
            rows = context.reshape(-1, tower.width)
        prefix = _insert(*self._prefix, rows)
        if len(self._chunks) == 1:
            chunk = self._chunks[0]
            suffix = _insert(chunk.base, chunk.context_at, chunk.context_row, rows)
            features, _ = tower.run(torch.cat([prefix, suffix]), len(prefix), chunk, None)
            assert features is not None
        else:
            _, past = tower.run(prefix, len(prefix), None, None)
            again = partial(recompute, use_reentrant=False, preserve_rng_state=False)
            features = torch.cat(
                [again(self._chunk_features, chunk, rows, past) for chunk in self._chunks]
            )
        return F.normalize(features.index_select(0, self._restore), dim=1)

    def _chunk_features(
        self, chunk: _Chunk, rows: Tensor | None, past: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        suffix = _insert(chunk.base, chunk.context_at, chunk.context_row, rows)
        features, _ = self.tower.run(suffix, 0, chunk, past)
        assert features is not None
        return features

    def _place(self, slots: Slots) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the slots, which rows take a context vector, and which one."""
        tower = self.tower
        token, context = torch.from_numpy(slots.token), torch.from_numpy(slots.context)
        base = tower._positions[torch.from_numpy(slots.position).to(tower.device)].clone()
        fixed = (token >= 0).nonzero().flatten()
        base[fixed.to(tower.device)] += tower.embeddings[token[fixed].to(tower.device)]
        at = (context >= 0).nonzero().flatten()
        return base, at.to(tower.device), context[at].to(tower.device)

    def _pack(self, classes: list[int]) -> _Chunk:
        """The suffixes of `classes`, positions whose whole past is the same shared between them.

        Causal: what a position computes depends on its past alone. So names that begin alike ("2012 BMW X3 SUV",
        "2012 BMW X6 SUV") share the rows of their common beginning.
        """
        device = self.tower.device
        suffixes = [self.layout.suffixes[c] for c in classes]
        length = max(map(len, suffixes))
        row_of: dict[tuple[int, int], int] = {}  # (row before, what stands here) -> row
        first_place: list[int] = []  # the padded place where a row was met first
        padded = torch.zeros(len(classes), length, dtype=torch.long)
        entries = []
        for c, suffix in enumerate(suffixes):
            row = -1
            for i, entry in enumerate(suffix.entries()):
                known = len(row_of)
                row = row_of.setdefault((row, entry), known)
                if row == known:
                    first_place.append(c * length + i)
                    entries.append((c, i))
                padded[c, i] = row
        lengths = torch.tensor([len(suffix) for suffix in suffixes])
        base, context_at, context_row = self._place(
            Slots.join([suffixes[c].at(i) for c, i in entries])
        )
        return _Chunk(
            classes=torch.tensor(classes, device=device),
            base=base,
            context_at=context_at,
            context_row=context_row,
            padded=padded.to(device),
            packed=torch.tensor(first_place, device=device),
            last=padded[torch.arange(len(classes)), lengths - 1].to(device),
            readable=(torch.arange(length) < lengths[:, None])[:, None, :].to(device),
        )


def _insert(base: Tensor, at: Tensor, row: Tensor, rows: Tensor | None) -> Tensor:
    """The embeddings with context vectors added where they stand."""
    if not len(at):
        return base
    if rows is None:
        raise InputError(
            "context: these prompts have context positions, so a context must be given"
        )
    return base.index_add(0, at, rows.index_select(0, row))
