"""Where to compute, and the way there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspt.internal.errors import InputError


def find_device(name: str, precision: str = "float32") -> torch.device:
    """Return the device to compute on, if it can with this precision; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r}: not known; give auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r}: torch sees no GPU here; give cpu")
    if precision != "float32" and found.type == "cpu":
        raise InputError(f"precision {precision}: it is for GPUs, and this is the CPU", "leave `precision` out")
    return found


def sent(values: np.ndarray, device: torch.device | str) -> Tensor:
    """Return the values on the device; the host does not wait for a GPU to take them, as they go by pinned memory."""
    tensor = torch.from_numpy(values)
    device = torch.device(device)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
