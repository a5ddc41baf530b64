"""A CLIP checkpoint on disk: finding it, checking it, reading its parts.

Weights are read from safetensors only; a pickle is never opened and remote code is never run.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspt.internal.errors import InputError
from dspt.internal.names import AUTO, PAPER_MODEL

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

EMBEDDED = Path(__file__).parent.parent / "assets" / "model"

# A text tower alone carries no logit scale; 100 is where CLIP's own training ends.
DEFAULT_LOGIT_SCALE = 100.0

# What a hub download may fetch. No *.bin, *.pt, *.py: nothing that could run code.
_PATTERNS = ["*.json", "*.txt", "*.safetensors"]

_START, _END = "<|startoftext|>", "<|endoftext|>"
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class Checkpoint:
    """A checked checkpoint folder. Nothing heavy is read until a part is asked for."""

    name: str
    folder: Path
    config: dict[str, Any]
    has_image_tower: bool

    @property
    def text_config(self) -> dict[str, Any]:
        """The text tower's part of config.json."""
        if self.config["model_type"] == "clip_text_model":
            return self.config
        # Early OpenAI conversions carry a second dict, which overrides the first.
        return {
            **(self.config.get("text_config") or {}),
            **(self.config.get("text_config_dict") or {}),
        }

    @property
    def location(self) -> str:
        """A name that finds the checkpoint from anywhere: the absolute path of a local folder, else as given."""
        local = self.name != "embedded" and Path(self.name).expanduser().is_dir()
        return str(self.folder.resolve()) if local else self.name

    @cached_property
    def weight_files(self) -> list[Path]:
        """The safetensors files, in name order."""
        return sorted(self.folder.glob("*.safetensors"))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what the checkpoint computes: configuration, weights and preprocessing, not its path."""
        digest = hashlib.sha256()  # processors have instructions for it: half a second less than others
        described = ["config.json", "preprocessor_config.json", "processor_config.json"]
        for file in [*(self.folder / name for name in described), *self.weight_files]:
            if file.exists():
                digest.update(file.name.encode())
                with open(file, "rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
        return digest.hexdigest()[:32]

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        """Return the weights whose names start with one of `prefixes`, in fp32."""
        from safetensors import SafetensorError, safe_open

        found = {}
        for file in self.weight_files:
            try:
                with safe_open(file, framework="pt") as weights:
                    for key in weights.keys():  # noqa: SIM118 - safe_open is not a dict
                        if key.startswith(prefixes):
                            found[key] = weights.get_tensor(key).float()
            except (SafetensorError, OSError) as error:
                raise InputError(f"model {self.name}: {file.name} cannot be read ({error})") from None
        return found

    @cached_property
    def logit_scale(self) -> float:
        """The factor between cosine similarity and logit, exp(logit_scale) of the checkpoint."""
        stored = self.tensors("logit_scale")
        return math.exp(stored["logit_scale"].item()) if stored else DEFAULT_LOGIT_SCALE

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """CLIP's byte-level BPE, without added start and end tokens."""
        from tokenizers import Tokenizer

        whole = self.folder / "tokenizer.json"
        try:
            if whole.exists():
                tokenizer = Tokenizer.from_file(str(whole))
                # either may have been saved with it, and would change names silently
                tokenizer.no_truncation()
                tokenizer.no_padding()
                return tokenizer
            return _clip_tokenizer(self.folder / "vocab.json", self.folder / "merges.txt")
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"model {self.name}: its tokenizer cannot be read ({error})") from None

    def token_id(self, token: str) -> int:
        """Return the id of a special token such as <|endoftext|>."""
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"model {self.name}: its tokenizer has no {token} token, so it is not CLIP's")
        return found

    @property
    def start_token(self) -> int:
        """The id that opens every text."""
        return self.token_id(_START)

    @property
    def end_token(self) -> int:
        """The id that closes every text, at whose position the feature is read."""
        return self.token_id(_END)


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Return the checkpoint named by a folder, a Hugging Face hub id (`org/name[@revision]`) or "embedded".

    "auto" is the paper's. A hub id that is in the local cache is used without any network access.
    """
    model = PAPER_MODEL if str(model) == AUTO else model
    folder = _locate(model)
    name = str(model)
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"model {name}: no config.json in it; give a folder saved by transformers' CLIPModel"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"model {name}: config.json is not valid JSON ({error})") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind in {"siglip", "siglip2", "siglip_text_model", "siglip2_text_model"}:
        raise InputError(
            f"model {name}: SigLIP's text tower is not causal, so a prompt cannot be shared between "
            "classes; give a CLIP checkpoint such as openai/clip-vit-base-patch16"
        )
    if kind not in {"clip", "clip_text_model"}:
        raise InputError(
            f"model {name}: model_type is {kind!r}; expected 'clip' (both towers) or "
            "'clip_text_model' (text tower alone)"
        )
    checkpoint = Checkpoint(name, folder, config, has_image_tower=kind == "clip")
    if not checkpoint.weight_files:
        raise InputError(
            f"model {name}: no .safetensors weights in it, and other formats are never loaded because "
            "they can run code; save it with safe_serialization=True, or name a revision that has them "
            "(org/name@refs/pr/N)"
        )
    return checkpoint


def _locate(model: str | Path) -> Path:
    """Return the folder a model name stands for, downloading it if it is a hub id that is not cached."""
    if str(model) == "embedded":
        return EMBEDDED
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    name, _, revision = str(model).partition("@")
    if path.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise InputError(
            f"model {model}: no such folder; give a checkpoint folder, a Hugging Face hub id (org/name), or 'embedded'"
        )
    from huggingface_hub import snapshot_download

    def snapshot(local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                allow_patterns=_PATTERNS,
                local_files_only=local_files_only,
            )
        )

    try:
        cached = snapshot(local_files_only=True)
        # Another program may have cached the tokenizer alone.
        if (cached / "config.json").exists() and any(cached.glob("*.safetensors")):
            return cached
    except Exception:  # not cached; the hub library has many error types, all with this meaning
        pass
    try:
        return snapshot(local_files_only=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"model {model}: not a folder, not in the local Hugging Face cache, and not to be had from the hub "
            f"({reason}); fetch it once where there is a network, with 'hf download {name}'",
            "give a local folder as `model`, or try things out with `model` embedded, a miniature",
        ) from None


def _clip_tokenizer(vocab: Path, merges: Path) -> Tokenizer:
    """CLIP's tokenizer from its two original files."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    bpe = models.BPE.from_file(str(vocab), str(merges), end_of_word_suffix="</w>", unk_token=_END)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.add_special_tokens([_START, _END])
    return tokenizer
