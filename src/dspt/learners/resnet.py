"""The network: transformers' ResNet of basic layers, with weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dspt.internal.seeds import Stream

# Depth and width of each stage. "small" is for trials: it learns a little in seconds.
MODELS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "resnet34": ((3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512)),
    "small": ((1, 1), (16, 32)),
}


class Way(NamedTuple):
    """How a row of pixels, a zero before and after it, meets three weights by few products.

    The outputs are sums @ ((pixels @ row) * (taps @ weights)).
    """

    pixels: np.ndarray  # (products, pixels)
    taps: np.ndarray  # (products, 3)
    sums: np.ndarray  # (outputs, products)


def _plain(size: int, stride: int) -> Way:
    """Return the way with a product for each meeting of a pixel and a weight: none is spent on the zeros."""
    outputs = -(-size // stride)
    met = [(o, stride * o + k - 1, k) for o in range(outputs) for k in range(3) if 0 <= stride * o + k - 1 < size]
    output, pixel, tap = map(list, zip(*met, strict=True))
    return Way(np.eye(size)[pixel], np.eye(3)[tap], np.eye(outputs)[:, output])


def _toom_cook(size: int, points: Sequence[float]) -> Way:
    """Return the way with size + 2 products, for stride 1.

    Polynomials are multiplied by multiplying their values, here at size + 1 points and at infinity, where the value
    is the highest coefficient. A convolution is such a product transposed (Winograd, 1980).
    """

    def values(length: int) -> np.ndarray:
        return np.vstack([np.vander(points, length, increasing=True), np.eye(length)[-1]])

    return Way(np.linalg.inv(values(size + 2)).T[:, 1:-1], values(3), values(size).T)


# By pixels and stride. The way for two pixels is Karatsuba's. Of the points for four, these rounded least among some
# that were tried: the error is six times that of a plain sum.
_WAYS = {
    (1, 1): _plain(1, 1),
    (1, 2): _plain(1, 2),
    (2, 1): Way(
        pixels=np.array([[1, 1], [0, 1], [1, 0]]),
        taps=np.array([[0, 1, 0], [0, -1, 1], [1, -1, 0]]),
        sums=np.array([[1, 1, 0], [1, 0, 1]]),
    ),
    (2, 2): _plain(2, 2),
    (4, 1): _toom_cook(4, (0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)),
    (4, 2): _plain(4, 2),
}


class Convolution(nn.Conv2d):
    """A convolution that on a small map takes a quarter of the multiplications or fewer, with stride 2 two thirds.

    In a ResNet-34 with the ImageNet stem, images of 32 x 32 become 4 x 4, 2 x 2 and 1 x 1, where a 3 x 3 kernel lies
    in the padding by a third to eight ninths.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Return what `nn.Conv2d` returns, up to rounding."""
        n, channels, height, width = maps.shape
        stride = self.stride[0]
        known = {(height, stride), (width, stride)} <= _WAYS.keys()
        if not known or self.kernel_size != (3, 3) or maps.device.type != "cpu":
            return super().forward(maps)
        pixels, taps, sums = _way(height, width, stride, maps.dtype)
        weights = (taps @ self.weight.permute(2, 3, 1, 0).reshape(9, -1)).view(len(taps), channels, -1)
        rows = pixels @ maps.permute(0, 2, 3, 1).reshape(n, -1, channels)
        products = rows.transpose(0, 1) @ weights  # one for each product of the way
        outputs = sums @ products.transpose(0, 1)
        return outputs.view(n, -(-height // stride), -1, self.out_channels).permute(0, 3, 1, 2)


@cache
def _way(height: int, width: int, stride: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the way for a map: pixels, weights and outputs are those of its rows one after the other."""
    both = zip(_WAYS[height, stride], _WAYS[width, stride], strict=True)
    return tuple(torch.from_numpy(np.kron(down, across)).to(dtype) for down, across in both)


def build(model: str, stem: str, classes: int) -> nn.Module:
    """Return the network without weights, on the meta device: it is called with those to use.

    Parameters
    ----------
    model : str
        A key of `MODELS`.
    stem : {"imagenet", "cifar"}
        The first layer: 7 x 7 with stride 2, then pooled; or 3 x 3 with stride 1.
    classes : int
        How many logits it gives.
    """
    from transformers import ResNetConfig, ResNetForImageClassification

    depths, widths = MODELS[model]
    config = ResNetConfig(
        embedding_size=widths[0],
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_type="basic",
        num_labels=classes,
    )
    with torch.device("meta"):
        network: nn.Module = ResNetForImageClassification(config)
        if stem == "cifar":
            # An image of 32 x 32 reaches the first stage as it is, not as 8 x 8.
            embedder: Any = network.get_submodule("resnet.embedder")
            embedder.embedder.convolution = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
            embedder.pooler = nn.Identity()
    for module in network.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = Convolution  # the same weights under the same names
    return network


def initial(network: nn.Module, seed: int) -> dict[str, Tensor]:
    """Return all parameters and buffers of a network before training.

    Convolutions are normal with variance 2 / fan-out (He et al., 2015), the last layer is uniform within
    1/sqrt(inputs), and batch normalisation does nothing yet.
    """
    values: dict[str, Tensor] = {}
    for place, module in network.named_modules():
        own = {
            **dict(module.named_parameters(recurse=False)),
            **dict(module.named_buffers(recurse=False)),
        }
        for part, tensor in own.items():
            name = f"{place}.{part}"
            stream = Stream(seed, "network", name)
            if isinstance(module, nn.Conv2d):
                fan_out = tensor.shape[0] * tensor.shape[2] * tensor.shape[3]
                drawn = stream.normal(*tensor.shape) * (2 / fan_out) ** 0.5
                values[name] = torch.from_numpy(drawn).float()
            elif isinstance(module, nn.Linear):
                drawn = (2 * stream.uniform(tensor.numel()) - 1) * module.in_features**-0.5
                values[name] = torch.from_numpy(drawn.reshape(tensor.shape)).float()
            else:
                ones = part in ("weight", "running_var")
                values[name] = torch.full(tensor.shape, int(ones), dtype=tensor.dtype)
    return values


def placed(value: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a parameter on the device, a kernel as its convolution reads it in one go.

    On the processor a kernel becomes matrices (inputs x outputs), one for each of its places; a GPU takes it with
    channels last.
    """
    if value.ndim != 4:
        return value.to(device, copy=True)
    if device.type != "cpu":
        return value.to(device, copy=True, memory_format=torch.channels_last)
    copy = value.to(device).permute(2, 3, 1, 0).clone(memory_format=torch.contiguous_format)
    return copy.permute(3, 2, 0, 1)
