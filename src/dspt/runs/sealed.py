"""Tensors in a file that carries a digest of what it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspt.internal.errors import InputError
from dspt.internal.files import check_regular, parse_json, replacing

if TYPE_CHECKING:
    from torch import Tensor

ANEW = "start anew with `overwrite`"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], known: dict[str, str]) -> None:
    """Write tensors and what is known about them, with a digest of both.

    Parameters
    ----------
    path : Path
        The file, replaced when all of it is written.
    tensors : dict of str to Tensor
        What is saved, wherever it is.
    known : dict of str to str
        What belongs to them, such as the identity of the run.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    sealed = {**known, "digest": tensor_digest(tensors, known)}
    with replacing(path) as temporary:
        # one entry, since safetensors writes several in no order
        temporary.write_bytes(save(tensors, {"dspt": canonical(sealed)}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, whatever its seal says."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({error})", ANEW) from None


def load_known(path: Path, framework: str = "pt") -> dict[str, str]:
    """Return what a file says about its tensors, its digest among it; `framework` numpy does without torch."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework=framework) as file:
            found: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({error})", ANEW) from None
    known = parse_json(found["dspt"], str(path)) if "dspt" in found else found
    if isinstance(known, dict) and all(isinstance(value, str) for value in known.values()):
        return known
    raise InputError(f"{path}: cannot be read (its metadata are not dspt's)", ANEW)


def tensor_digest(tensors: Mapping[str, Tensor], known: Mapping[str, str]) -> str:
    """Return a digest of tensors, their names and what is known about them."""
    import torch

    digest = hashlib.sha256(canonical(known).encode())  # processors have instructions for it: twice as fast as others
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def all_sound(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether all are as learners have them: finite, of single precision, or counts."""
    return all(
        str(value.dtype) in ("torch.float32", "torch.int64") and bool(value.isfinite().all())
        for value in tensors.values()
    )


def canonical(value: Any) -> str:
    """Return a value as JSON that is the same for the same value."""
    return json.dumps(value, sort_keys=True)


def digest_of(*texts: str) -> str:
    """Return a digest of texts."""
    joined = "\n".join(texts).encode(errors="surrogatepass")
    return hashlib.blake2b(joined, digest_size=16).hexdigest()
