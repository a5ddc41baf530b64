"""The image side of a checkpoint: cutting a view from an image, and the frozen tower."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dspt.backbone.checkpoint import part
from dspt.backbone.towers import check_tower, functions, sizes
from dspt.internal.checks import is_integer, is_number
from dspt.internal.errors import InputError
from dspt.internal.files import read_json
from dspt.internal.seeds import Stream
from dspt.internal.threads import threads_for

if TYPE_CHECKING:
    import torch

    from dspt.backbone.checkpoint import Checkpoint

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
BICUBIC = 3

# The train view of protocol: share of the image's area, and width over height, of a random crop.
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10

# Longer strips are cut before they are resized: 1 x 20,000 pixels would become 224 x 4,480,000.
LONGEST_RATIO = 32

# No tower sees more, in pixels a side; an image brought to ten times as much fills a machine's memory.
_LARGEST = 4096


@dataclass(frozen=True)
class Preprocessing:
    """How a checkpoint wants its images.

    Attributes
    ----------
    resize
        The shorter side in pixels; or (height, width) for both, whatever the image's shape.
    crop
        Side of the square the tower sees.
    mean, std
        Of each channel, in the scale 0..1.
    resample
        PIL's number of the filter; CLIP's is bicubic.
    """

    resize: int | tuple[int, int]
    crop: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    resample: int = BICUBIC

    @classmethod
    def read(cls, folder: Path | str) -> Preprocessing:
        """Return what `folder` says of itself; CLIP's own values where it says nothing."""
        folder = Path(folder)
        sees = part(_json(folder / "config.json"), "vision_config").get("image_size", 224)
        # transformers 5 may write the image processor inside a whole processor's file.
        given = _json(folder / "preprocessor_config.json")
        given = given or _json(folder / "processor_config.json").get("image_processor") or {}
        try:
            size = given.get("size", sees)
            found = cls(
                _side(size),
                _square(given.get("crop_size", sees) if given.get("do_center_crop", True) else size),
                tuple(map(float, given.get("image_mean", MEAN))),
                tuple(map(float, given.get("image_std", STD))),
                _whole(given.get("resample", BICUBIC)),
            )
            rescale = given.get("rescale_factor", 1 / 255)
            left_out = [step for step in ("do_resize", "do_rescale", "do_normalize") if given.get(step) is False]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{folder}: its image preprocessing cannot be understood ({error!r}); "
                "save it again with transformers' CLIPImageProcessor"
            ) from None
        if found.crop != sees or len(found.mean) != 3 or len(found.std) != 3:
            raise InputError(
                f"{folder}: its image preprocessing gives {found}, but the image tower takes three "
                f"channels of {sees} x {sees} pixels; correct preprocessor_config.json"
            )
        wrong = {
            f"sizes of {found.resize} and {found.crop} pixels": not all(1 <= side <= _LARGEST for side in found._sides),
            # of values between 0 and 1: what is far from that gives numbers without meaning
            f"image_mean {found.mean}": not all(-10 <= mean <= 10 for mean in found.mean),
            f"image_std {found.std}": not all(1e-3 <= std <= 10 for std in found.std),
            f"rescale_factor {rescale}": not (is_number(rescale) and abs(255 * rescale - 1) < 1e-3),
            f"resample {found.resample}": found.resample not in list(Image.Resampling),
            f"{''.join(left_out[:1])} false": bool(left_out),
        }
        if bad := [what for what, is_wrong in wrong.items() if is_wrong]:
            raise InputError(f"{folder}: its image preprocessing has {bad[0]}; correct preprocessor_config.json")
        return found

    @property
    def _sides(self) -> tuple[int, ...]:
        """All sides that images are brought to, in pixels."""
        return (*(self.resize if isinstance(self.resize, tuple) else (self.resize,)), self.crop)

    def test_view(self, image: Image.Image) -> np.ndarray:
        """Return the centre of an opened image as uint8 [S, S, 3]: shorter side to S, then S x S cut."""
        picture = _cut_strip(image)
        width, height = picture.size
        if isinstance(self.resize, tuple):
            high, wide = self.resize
        else:
            short = min(width, height)
            wide, high = int(self.resize * width / short), int(self.resize * height / short)
        picture = picture.resize((wide, high), self.resample)
        left, top = (wide - self.crop) // 2, (high - self.crop) // 2
        return np.array(picture.crop((left, top, left + self.crop, top + self.crop)))

    def train_view(self, image: Image.Image, stream: Stream) -> np.ndarray:
        """Return a random part of an opened image, perhaps mirrored, as uint8 [S, S, 3]."""
        numbers = stream.uniform(2 * TRIES + 3)
        box = _random_box(*image.size, numbers[:-1])
        picture = image.crop(box).resize((self.crop, self.crop), self.resample)
        if numbers[-1] < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(picture)

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return what the tower takes, float32 [B, 3, S, S], of views uint8 [B, S, S, 3].

        Done where the tower runs, since bytes are a quarter of what floats take on the way there.
        """
        scaled = pixels.permute(0, 3, 1, 2).float() / 255
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            scaled[:, channel].sub_(mean).div_(std)
        return scaled


class ImageTower:
    """The frozen image tower of a checkpoint, as a function from pixels to unit features."""

    preprocessing: Preprocessing

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "cpu",
        dtype: str = "float32",
        compiled: bool = False,
    ) -> None:
        if not checkpoint.has_image_tower:
            raise InputError(
                f"model {checkpoint.name} has no image tower: give a feature file, or a full CLIP checkpoint"
            )
        import torch
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        preprocessing = Preprocessing.read(checkpoint.folder)
        check_tower(checkpoint, "image")
        # What decides the result and nothing else: a configuration can name code to run, too.
        config = CLIPVisionConfig(**sizes(checkpoint, "image"), **functions(checkpoint, "image"))
        try:
            with _quiet_transformers():
                model, report = CLIPVisionModelWithProjection.from_pretrained(
                    checkpoint.folder,
                    config=config,
                    dtype=getattr(torch, dtype),
                    use_safetensors=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
            # transformers would go on with random numbers in their place.
            if missing := sorted(report["missing_keys"]):
                raise ValueError(f"{missing[0]} is not in its weights")
        except Exception as error:  # safetensors, torch and transformers each have their own kinds
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"model {checkpoint.name}: its image tower cannot be loaded ({reason}); give a complete CLIP checkpoint"
            ) from None
        checkpoint.check_finite(dict(model.named_parameters()))
        self._hold(model, preprocessing, device, compiled)

    @classmethod
    def of(cls, model: Any, preprocessing: Preprocessing, device: str = "cpu", compiled: bool = False) -> ImageTower:
        """Return the tower of a transformers CLIPVisionModelWithProjection.

        Parameters
        ----------
        model : CLIPVisionModelWithProjection
            Put into evaluation mode, frozen and moved to `device`, itself and not a copy.
        preprocessing : Preprocessing
            How the tower wants its images.
        device : str
            Where the tower runs.
        compiled : bool
            Have torch compile the tower.
        """
        tower = cls.__new__(cls)
        tower._hold(model, preprocessing, device, compiled)
        return tower

    def _hold(self, model: Any, preprocessing: Preprocessing, device: str, compiled: bool) -> None:
        import torch

        self.preprocessing = preprocessing
        self.device = device
        self._model = model.eval().requires_grad_(False).to(device)
        # Of one image: others are decoded at the same time, so a tower that takes no longer needs no second core.
        self._product = self._positions * model.config.hidden_size * model.config.intermediate_size
        self._run = torch.compile(self._model) if compiled else self._model

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Return the features [B, D], float32 and of length 1, of views uint8 [B, S, S, 3]."""
        from dspt.internal.device import sent

        return self.features(sent(pixels, self.device)).cpu().numpy()

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the same of views that are on the device; the result stays there, and nobody waits for it."""
        import torch

        with threads_for(self._product), torch.inference_mode():
            batch = self.preprocessing.normalised(pixels).to(self._model.dtype)
            features = self._run(pixel_values=batch).image_embeds.float()
            return torch.nn.functional.normalize(features, dim=-1)

    @property
    def _positions(self) -> int:
        """The patches of an image and the class token."""
        config = self._model.config
        return int((config.image_size // config.patch_size) ** 2 + 1)

    def batch_size(self, memory: int | None = None) -> int:
        """Return how many views to encode at once: a power of two whose activations fit.

        An eighth of the device's memory is theirs, all of it and not what happens to be free, so
        that a machine always gives the same bits.
        """
        config = self._model.config
        # What a block keeps at once: its input, normed, q, k, v, attended and the wide layer twice.
        width = 6 * config.hidden_size + 2 * config.intermediate_size
        each = self._positions * width * self._model.dtype.itemsize
        fits = (memory or _memory(self.device)) // 8 // each
        return int(max(1, min(most_at_once(self.device), 2 ** int(math.log2(max(1, fits))))))


def most_at_once(device: object) -> int:
    """Return the most views that are encoded at once: a power of two, beyond which a device gains nothing."""
    return 32 if str(device).startswith("cpu") else 256


def _memory(device: str) -> int:
    """Return the memory of a device in bytes."""
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such question on Windows
        return 8 * 1024**3


def _json(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file)
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def _side(size: Any) -> int | tuple[int, int]:
    """Read a size, old style or new: 224, {"shortest_edge": 224}, {"height": 224, "width": 224}."""
    if isinstance(size, dict):
        if "shortest_edge" in size:
            return _whole(size["shortest_edge"])
        return _whole(size["height"]), _whole(size["width"])
    return _whole(size)


def _whole(value: Any) -> int:
    if not is_integer(value):
        raise TypeError(f"{value!r} is no whole number")
    return int(value)


def _square(size: Any) -> int:
    side = _side(size)
    if isinstance(side, tuple):
        if side[0] != side[1]:
            raise ValueError(f"a crop of {side}")
        return side[0]
    return side


def _cut_strip(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    longest = LONGEST_RATIO * min(width, height)
    if max(width, height) <= longest:
        return picture
    left, top = max(0, width - longest) // 2, max(0, height - longest) // 2
    return picture.crop((left, top, width - left, height - top))


def _random_box(width: int, height: int, numbers: np.ndarray) -> tuple[int, int, int, int]:
    """Return the corners of torchvision's RandomResizedCrop, made from uniform `numbers`."""
    for area, shape in numbers[: 2 * TRIES].reshape(TRIES, 2):
        pixels = width * height * (SCALE[0] + (SCALE[1] - SCALE[0]) * area)
        ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** shape
        wide, high = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left = int(numbers[-2] * (width - wide + 1))
            top = int(numbers[-1] * (height - high + 1))
            return left, top, left + wide, top + high
    # No crop fits a very long image: take its centre, as near to the allowed shapes as it goes.
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep transformers from listing the text tower's weights, which are not wanted here."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
