"""One frozen layer of the text tower: its weights, and each part forward and backward, written out.

Nobody asks for a gradient of the weights, so a layer keeps little: the rows that its norms saw, attention's operands
and the feed-forward part before its activation. Autograd would keep and copy more, and knows no packed weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten

# Numbers in a weight from which on oneDNN's product pays: a call of it costs some microseconds more than torch's own.
_WORTH_PACKING = 2**16

# An activation and its gradient, from the gradient behind it and what stood before it.
# quick_gelu(x) = x * sigmoid(1.702 x) = silu(1.702 x) / 1.702: with the factor moved into the weights around it, the
# activation is one fused operation instead of three, forwards and backwards.
_QUICK = 1.702
_TANH = partial(F.gelu, approximate="tanh"), partial(_aten.gelu_backward, approximate="tanh")
ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "quick_gelu": (F.silu, _aten.silu_backward),
    "gelu": (F.gelu, _aten.gelu_backward),
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
}


class Product:
    """The function x W^T + b with frozen W and b, and the gradient back through it.

    With AVX-512 oneDNN's products are the faster ones if W lies in memory as they read it. It is packed once: for one
    direction at once, for the other when a gradient is first asked for.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        self._bias = bias
        self._weight = _packed(weight) if _is_faster_packed(weight) else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        return _multiplied(x.to(self.dtype), self._weight, self._bias)

    def back(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to x, given that with respect to the result."""
        return _multiplied(gradient.to(self.dtype), self._transposed)

    @cached_property
    def _transposed(self) -> Tensor:
        return _packed(self._weight.to_dense().T.contiguous()) if self._weight.is_mkldnn else self._weight.T


def _is_faster_packed(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= _WORTH_PACKING
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class Layer:
    """The frozen weights of one transformer layer, and what it makes of rows.

    Parameters
    ----------
    weights : mapping of str to Tensor
        By their names in a checkpoint, behind the layer's own.
    heads : int
        How many heads attention has.
    activation : str
        A key of `ACTIVATIONS`.
    eps : float
        Of the norms.
    dtype : torch.dtype
        Of the matrix products. Norms, sums and softmax are in float32.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], heads: int, activation: str, eps: float, dtype: torch.dtype
    ) -> None:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        def product(weight: Tensor, bias: Tensor) -> Product:
            return Product(weight.to(dtype), bias.to(dtype))

        self.heads, self.eps = heads, eps
        self.activation, self.activation_back = ACTIVATIONS[activation]
        self.norm1, self.norm2 = pair("layer_norm1"), pair("layer_norm2")
        query, key, value = (pair(f"self_attn.{name}_proj") for name in "qkv")
        # attention's 1/sqrt(d) goes into the queries' weights
        scale = (len(query[1]) // heads) ** -0.5
        joined = zip(((part * scale for part in query)), key, value, strict=True)
        self.qkv = product(*map(torch.cat, joined))
        self.out = product(*pair("self_attn.out_proj"))
        up, down = pair("mlp.fc1"), pair("mlp.fc2")
        if activation == "quick_gelu":
            up, down = (up[0] * _QUICK, up[1] * _QUICK), (down[0] / _QUICK, down[1])
        self.up, self.down = product(*up), product(*down)

    def queries_keys_values(self, x: Tensor) -> Tensor:
        """Return the queries, keys and values (n, 3 D) of the rows `x`."""
        return _queries_keys_values(x, self)

    def attend(self, rows: Tensor, mask: Tensor | None = None, past: Tensor | None = None) -> Tensor:
        """Return what rows attend to, as (n, D).

        Parameters
        ----------
        rows : Tensor of shape (prefix + blocks * size, 3 D)
            Queries, keys and values: of the prefix, each row of which sees those before it, then of the blocks, each
            row of which sees all of the prefix and what `mask` shows it of its own block.
        mask : Tensor of shape (blocks, size, size), optional
            0 where a row may look, minus infinity elsewhere; None if all rows are the prefix's.
        past : Tensor of shape (prefix, 2 D), optional
            The prefix's keys and values, if it is not in `rows`.
        """
        mask = rows.new_empty(0, 0, 0) if mask is None else mask
        return _attention(rows, past, mask, self.heads)

    def feed_forward(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the rows behind the layer, given those before it and what they attended to."""
        return _feed_forward(x, attended, self)


class _QueriesKeysValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        h, *moments = torch.native_layer_norm(x, x.shape[1:], *layer.norm1, layer.eps)
        ctx.save_for_backward(x, *moments)
        ctx.layer = layer
        return layer.qkv(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.layer
        return _norm_back(layer.qkv.back(gradient), layer.norm1, *ctx.saved_tensors), None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, layer: Layer) -> Tensor:
        x = x + layer.out(attended)
        h, *moments = torch.native_layer_norm(x, x.shape[1:], *layer.norm2, layer.eps)
        hidden = layer.up(h)
        ctx.save_for_backward(x, *moments, hidden)
        ctx.layer = layer
        return x + layer.down(layer.activation(hidden))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.layer
        *normed, hidden = ctx.saved_tensors
        d_hidden = layer.activation_back(layer.down.back(gradient), hidden)
        d_x = _norm_back(layer.up.back(d_hidden), layer.norm2, *normed).add_(gradient)
        return d_x, layer.out.back(d_x), None


def _norm_back(gradient: Tensor, norm: tuple[Tensor, Tensor], x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the gradient with respect to the rows before a norm."""
    found: tuple[Tensor, ...] = _aten.native_layer_norm_backward(
        gradient.to(x.dtype), x, x.shape[1:], mean, deviation, *norm, [True, False, False]
    )
    return found[0]


class _Attention(torch.autograd.Function):
    """softmax(q k^T) v, of the prefix's rows and of the blocks'; see `Layer.attend`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, past: Tensor | None, mask: Tensor, heads: int) -> Tensor:
        blocks, size, _ = mask.shape
        of_blocks, depth = blocks * size, rows.shape[1] // (3 * heads)
        of_prefix = len(rows) - of_blocks
        prefix, own = rows.view(-1, 3, heads, depth).split([of_prefix, of_blocks])
        attended = rows.new_empty(len(rows), heads, depth)
        kept: list[Tensor] = []
        if of_prefix:
            # a copy, since a view would keep all rows
            q, k, v = prefix.permute(1, 2, 0, 3).contiguous()
            causal = rows.new_full((of_prefix, of_prefix), float("-inf")).triu_(1)
            p = torch.baddbmm(causal, q, k.mT).softmax(-1, dtype=torch.float32).to(rows.dtype)
            attended[:of_prefix] = torch.bmm(p, v).transpose(0, 1)
            kept += [q, k, v, p]
        if of_blocks:
            shared = prefix[:, 1:] if past is None else past.to(rows.dtype).view(-1, 2, heads, depth)
            q, k, v = own.view(blocks, size, 3, heads, depth).permute(2, 3, 0, 1, 4)
            # Each block has the prefix's keys and values before its own: one product for both.
            k, v = (
                torch.cat([before[:, None].expand(-1, blocks, -1, -1), part], dim=2).flatten(0, 1)
                for before, part in zip(shared.permute(1, 2, 0, 3), (k, v), strict=True)
            )
            q = q.flatten(0, 1)
            scores = torch.bmm(q, k.mT).view(heads, blocks, size, -1)
            scores[..., len(shared) :] += mask
            p = scores.softmax(-1, dtype=torch.float32).to(rows.dtype).flatten(0, 1)
            by_block = attended[of_prefix:].view(blocks, size, heads, depth)
            by_block.copy_(torch.bmm(p, v).view(heads, blocks, size, depth).permute(1, 2, 0, 3))
            kept += [q, k, v, p]
        ctx.save_for_backward(*kept)
        ctx.sizes = of_prefix, blocks, size, heads, depth
        return attended.view(len(rows), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_prefix, blocks, size, heads, depth = ctx.sizes
        kept = list(ctx.saved_tensors)
        gradient = gradient.view(-1, heads, depth)
        d_rows = gradient.new_empty(len(gradient), 3, heads, depth)
        d_past = d_shared = None
        if blocks:
            *_, q, k, v, p = kept
            shared = k.shape[1] - size
            d_out = gradient[of_prefix:].view(blocks, size, heads, depth).permute(2, 0, 1, 3).flatten(0, 1)
            d_q, *d_kv = (d.unflatten(0, (heads, blocks)) for d in _attention_back(d_out, q, k, v, p))
            d_own = d_rows[of_prefix:].view(blocks, size, 3, heads, depth).permute(2, 3, 0, 1, 4)
            d_own[0] = d_q
            d_own[1], d_own[2] = (d[:, :, shared:] for d in d_kv)
            d_shared = torch.stack([d[:, :, :shared].sum(1, dtype=torch.float32) for d in d_kv]).permute(2, 0, 1, 3)
            d_past = d_shared.reshape(shared, -1)
        if of_prefix:
            d_prefix = d_rows[:of_prefix].permute(1, 2, 0, 3)
            for part, d in zip(d_prefix, _attention_back(gradient[:of_prefix].transpose(0, 1), *kept[:4]), strict=True):
                part.copy_(d)
            if d_shared is not None:
                d_rows[:of_prefix, 1:] += d_shared
        return d_rows.view(len(d_rows), -1), d_past if ctx.needs_input_grad[1] else None, None, None


def _attention_back(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, given that of p v where p = softmax(q k^T)."""
    d_scores = _aten._softmax_backward_data(torch.bmm(d_out, v.mT), p, -1, p.dtype)
    return torch.bmm(d_scores, k), torch.bmm(d_scores.mT, q), torch.bmm(p.mT, d_out)


# `apply` has no type of its own.
_queries_keys_values: Callable[..., Tensor] = _QueriesKeysValues.apply
_attention: Callable[..., Tensor] = _Attention.apply
_feed_forward: Callable[..., Tensor] = _FeedForward.apply
