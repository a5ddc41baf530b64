"""A CLIP checkpoint on disk: finding it, checking it, reading its parts.

Weights are read from safetensors only; a pickle is never opened and remote code is never run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspt.backbone.towers import sizes
from dspt.internal.checks import check_scale
from dspt.internal.errors import InputError
from dspt.internal.files import check_regular, read_json, read_text
from dspt.internal.names import AUTO, NO_MODEL, PAPER_MODEL
from dspt.internal.rounding import counted

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

EMBEDDED = Path(__file__).parent.parent / "assets" / "model"

# A text tower alone carries no logit scale; 100 is where CLIP's own training ends.
DEFAULT_LOGIT_SCALE = 100.0

# What a hub download may fetch. No *.bin, *.pt, *.py: nothing that could run code.
_PATTERNS = ["*.json", "*.txt", "*.safetensors"]

_CONFIG, _INDEX, _TOKENIZER = "config.json", "model.safetensors.index.json", "tokenizer.json"
_PREPROCESSING = ("preprocessor_config.json", "processor_config.json")

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
        return part(self.config, "text_config") if self.has_image_tower else self.config

    @property
    def vision_config(self) -> dict[str, Any]:
        """The image tower's part of config.json."""
        return part(self.config, "vision_config")

    @property
    def location(self) -> str:
        """A name that finds the checkpoint from anywhere: the absolute path of a local folder, else as given."""
        local = self.name != "embedded" and Path(self.name).expanduser().is_dir()
        return str(self.folder.resolve()) if local else self.name

    @property
    def text_tower(self) -> str:
        """The size of its text tower in words."""
        size = sizes(self, "text")
        return f"{counted(size['num_hidden_layers'], 'layer')} of width {size['hidden_size']}"

    @cached_property
    def weight_files(self) -> list[Path]:
        """The safetensors files that are read, in name order."""
        return _weight_files(self.folder, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what the towers compute: configuration, weights and preprocessing, not their path.

        Features are stored under it, so that it must never change for the same towers.
        """
        digest = hashlib.sha256()  # processors have instructions for it: half a second less than others
        described = [self.folder / name for name in (_CONFIG, *_PREPROCESSING)]
        for file in [*described, *sorted(self.folder.glob("*.safetensors"))]:
            if file.exists():
                digest.update(file.name.encode())
                with open(file, "rb") as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
        return digest.hexdigest()[:32]

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """A hash of what decides the ids of a text's tokens, on which no image feature depends."""
        texts = (f"{file.name}\0{read_text(file)}\0" for file in self._tokenizer_files)
        return hashlib.sha256("".join(texts).encode()).hexdigest()[:32]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of floating-point numbers in the weights, which are not read for it."""
        found: dict[str, tuple[int, ...]] = {}
        for file in self.weight_files:
            with self._opened(file) as weights:
                for key in weights.keys():  # noqa: SIM118 - not a dict
                    tensor = weights.get_slice(key)
                    if key in found:
                        raise InputError(f"model {self.name}: tensor {key} stands in two of its files")
                    if tensor.get_dtype().startswith(("F", "BF")):
                        found[key] = tuple(tensor.get_shape())
        return found

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        """Return the weights whose names start with one of `prefixes`, in fp32."""
        found = {}
        for file in self.weight_files:
            with self._opened(file) as weights:
                for key in weights.keys():  # noqa: SIM118 - not a dict
                    if key.startswith(prefixes) and key in self.shapes:
                        found[key] = weights.get_tensor(key).float()
        self.check_finite(found)
        return found

    def check_finite(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise `InputError` if any of the numbers is infinite or none."""
        for name, values in weights.items():
            # The sum is read off in a moment, and is finite but for numbers that are not, or are very large.
            if not values.sum().isfinite() and not values.isfinite().all():
                raise InputError(
                    f"model {self.name}: {name} has values that are not finite numbers; give it whole, "
                    "or load it in another precision"
                )

    @contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as weights:
                yield weights
        except (SafetensorError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"model {self.name}: {file.name} cannot be read ({error})") from None

    @cached_property
    def logit_scale(self) -> float:
        """The factor between cosine similarity and logit, exp(logit_scale) of the checkpoint."""
        shape = self.shapes.get("logit_scale")
        if shape is None and not self.has_image_tower:
            return DEFAULT_LOGIT_SCALE
        if shape is None or math.prod(shape) != 1:
            found = "none" if shape is None else f"shape {shape}"
            raise InputError(f"model {self.name}: logit_scale must be one number, found {found}")
        stored = self.tensors("logit_scale")["logit_scale"].item()
        # what exp cannot hold, and would be too large by far
        scale = math.exp(min(stored, 100.0))
        check_scale(scale, f"model {self.name}")
        return scale

    @property
    def _tokenizer_files(self) -> list[Path]:
        """The files that are the tokenizer."""
        whole = self.folder / _TOKENIZER
        files = [whole] if whole.exists() else [self.folder / name for name in ("vocab.json", "merges.txt")]
        for file in files:
            if not file.exists():
                raise InputError(f"model {self.name}: no tokenizer in it; {_TOKENIZER} or {file.name} is missing")
        return files

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """CLIP's byte-level BPE, without added start and end tokens."""
        from tokenizers import Tokenizer

        files = self._tokenizer_files
        try:
            if len(files) > 1:
                tokenizer = _clip_tokenizer(*files)
            else:
                tokenizer = Tokenizer.from_str(read_text(files[0]))
                # either may have been saved with it, and would change names silently
                tokenizer.no_truncation()
                tokenizer.no_padding()
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"model {self.name}: its tokenizer cannot be read ({error})") from None
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= (known := sizes(self, "text")["vocab_size"]):
            raise InputError(
                f"model {self.name}: its tokenizer gives ids up to {largest}, but the text tower knows {known} tokens; "
                "give the tokenizer that belongs to it"
            )
        return tokenizer

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
    if str(model) == NO_MODEL:
        raise InputError(f"model {NO_MODEL}: images and class names need one here; name a CLIP checkpoint")
    model = PAPER_MODEL if str(model) == AUTO else model
    folder = _locate(model)
    name = str(model)
    for name_read in (_CONFIG, *_PREPROCESSING, _INDEX, _TOKENIZER, "vocab.json", "merges.txt"):
        with suppress(FileNotFoundError):
            check_regular(folder / name_read, f"model {name}: {name_read}")
    try:
        config = read_json(folder / _CONFIG, f"model {name}: {_CONFIG}")
    except FileNotFoundError:
        raise InputError(
            f"model {name}: no config.json in it; give a folder saved by transformers' CLIPModel"
        ) from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind in ("siglip", "siglip2", "siglip_text_model", "siglip2_text_model"):
        raise InputError(
            f"model {name}: SigLIP's text tower is not causal, so a prompt cannot be shared between "
            "classes; give a CLIP checkpoint such as openai/clip-vit-base-patch16"
        )
    if kind not in ("clip", "clip_text_model"):
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
        if (cached / _CONFIG).exists() and _weight_files(cached, name):
            return cached
    except Exception:  # not cached as a whole; the hub library has many error types, all with this meaning
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


def _weight_files(folder: Path, name: str) -> list[Path]:
    """Return the safetensors files that transformers would read too: the whole, or its shards; else all there are."""
    try:
        if (folder / "model.safetensors").exists():
            files = {"model.safetensors"}
        else:
            files = set(read_json(folder / _INDEX, f"model {name}: {_INDEX}")["weight_map"].values())
    except FileNotFoundError:
        files = {file.name for file in folder.glob("*.safetensors")}
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"model {name}: {_INDEX} does not say which file each tensor is in") from None
    for file in sorted(files, key=str):
        # a name alone: an index must not lead out of the folder
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"model {name}: {_INDEX} names {file!r}, which is no .safetensors file beside it")
        try:
            check_regular(folder / file, f"model {name}: {file}")
        except FileNotFoundError:
            raise InputError(f"model {name}: {file} is missing, so its weights are not complete") from None
    return [folder / file for file in sorted(files)]


def part(config: Any, name: str) -> dict[str, Any]:
    """Return a tower's part of a CLIP configuration."""
    # Early OpenAI conversions carry a second dict, which overrides the first.
    parts = [(config.get(key) or {}) for key in (name, f"{name}_dict")]
    if not all(isinstance(each, dict) for each in parts):
        raise InputError(f"{_CONFIG}: {name} is not a set of names and values")
    return parts[0] | parts[1]


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
