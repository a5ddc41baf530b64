"""The network: transformers' ResNet of basic layers, with weights that depend on the seed alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dspt.internal.seeds import Stream

# Depth and width of each stage. "small" is for trials: it learns a little in seconds.
MODELS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "resnet34": ((3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512)),
    "small": ((1, 1), (16, 32)),
}

# Maps of so many pixels or fewer are convolved by products of matrices. In a ResNet-34 with the ImageNet stem, images
# of 32 x 32 end as 2 x 2 and 1 x 1, where most of a 3 x 3 kernel lies in the padding.
_SMALL_MAP = 4


class Convolution(nn.Conv2d):
    """A convolution that on a small map computes with those weights alone that meet the map."""

    def forward(self, maps: Tensor) -> Tensor:
        """Return what `nn.Conv2d` returns, up to rounding."""
        height, width = maps.shape[2:]
        if self.kernel_size == (1, 1) or height * width > _SMALL_MAP or maps.is_cuda:
            return super().forward(maps)
        rows = self._windows(height)
        columns = self._windows(width)
        # Channels last, as they lie in memory.
        maps, weight = maps.permute(0, 2, 3, 1), self.weight.permute(0, 2, 3, 1)
        outputs = [maps[:, r, c].flatten(1) @ weight[:, k, m].flatten(1).T for r, k in rows for c, m in columns]
        shape = (len(maps), len(rows), len(columns), len(weight))
        return torch.stack(outputs, 1).view(shape).permute(0, 3, 1, 2)

    def _windows(self, size: int) -> list[tuple[slice, slice]]:
        """Return, for each output along a side, the pixels it sees and the part of the kernel it sees them with."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        padding = kernel // 2
        found = []
        for first in range(-padding, size + padding - kernel + 1, stride):
            low, high = max(first, 0), min(first + kernel, size)
            found.append((slice(low, high), slice(low - first, high - first)))
        return found


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
