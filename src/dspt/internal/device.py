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
    if found.type == "cpu" and precision not in precisions_of_the_cpu():
        raise InputError(
            f"precision {precision}: this CPU has no instructions for it, and would be slower than in float32",
            "leave `precision` out",
        )
    return found


def precisions_of_the_cpu() -> tuple[str, ...]:
    """Return the precisions in which this CPU multiplies matrices by instructions of its own."""
    has = torch.cpu.get_capabilities()
    return ("float32", "bfloat16") if has.get("avx512_bf16") or has.get("amx_bf16") else ("float32",)


def sent(values: np.ndarray, device: torch.device | str) -> Tensor:
    """Return the values on the device; the host does not wait for a GPU to take them, as they go by pinned memory."""
    tensor = torch.from_numpy(values)
    device = torch.device(device)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
