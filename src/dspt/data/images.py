"""Opening images: whatever stands for one becomes an upright RGB picture, or a reason why not."""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from dspt.internal.errors import InputError
from dspt.internal.files import file_error, is_trouble

# More than any image of PIL's limit of pixels takes; what is larger is not read, as it is none.
MOST_BYTES = 1 << 30

# How to set a picture upright that was taken with the camera turned, by the number in its metadata.
# PIL's exif_transpose copies every picture, decodes under our lock and writes damaged metadata anew.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

HEIC_SUFFIXES = {".heic", ".heif", ".hif"}
HEIC = "a HEIC image, which needs another package: pip install 'dspt[heic]'"
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}

_warning_filters = threading.Lock()


class BadImage(InputError):
    """An image that cannot be used: its name, and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}; replace it or leave it out")
        self.name = name
        self.reason = reason
        self.args = (name, reason)  # what it is made from again in another process


def open_image(item: Any, name: str = "image") -> Image.Image:
    """Return `item` as an upright RGB image.

    Parameters
    ----------
    item
        A path, an open binary file, a PIL image, or a uint8 array (H, W), (H, W, 3) or (H, W, 4).
        Transparency is dropped, as CLIP's own preparation does; 16-bit grey is brought to 8 bits.
    name
        What an error calls an item that has no path.

    Raises
    ------
    BadImage
        If it is not a whole image, or so large that decoding it could exhaust the memory.
    """
    if isinstance(item, (str, os.PathLike)):
        name, item = os.fspath(item), io.BytesIO(read_file(item))
    elif isinstance(item, np.ndarray):
        item = _from_array(item, name)
    try:
        with _open(item) as picture:
            upright = _rgb(_upright(picture), name)
            upright.info = {}  # it must not be turned again by whoever opens it next
            return upright
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(name, f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise BadImage(
            name, HEIC if _is_heic(item) and not reads_heic() else "not an image of a known format"
        ) from None
    # Decoders meet broken bytes with errors of every kind, from struct.error to ZeroDivisionError.
    except Exception as error:
        raise BadImage(name, f"not a whole image ({str(error) or type(error).__name__})") from None


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return what is in an image file; nothing is read that has no end or could be no image.

    Raises
    ------
    BadImage
        If it cannot be read, or is not a file of at most `MOST_BYTES`.
    """
    name = os.fspath(path)
    try:
        # Before it is opened, as that would wait for somebody who writes to a pipe.
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise BadImage(name, "a pipe or a device is no image")
        if status.st_size > MOST_BYTES:
            raise BadImage(name, f"it has {status.st_size:,} bytes, and {MOST_BYTES:,} are too many")
        with open(path, "rb") as file:
            return file.read()
    except BadImage:
        raise
    except FileNotFoundError:
        raise BadImage(name, "no such file") from None
    except OSError as error:
        if is_trouble(error):  # the image may be a good one, and must not be left out
            raise file_error(name, error, "read") from None
        raise BadImage(name, error.strerror or "cannot be read") from None
    except ValueError:
        raise BadImage(repr(name), "no file can have this name") from None


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.dtype != np.uint8:
        raise BadImage(name, f"an array of {array.dtype} is no image, only uint8 values 0..255 are")
    if array.size == 0 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,), (4,)):
        raise BadImage(
            name,
            f"an array of shape {array.shape} is no image, only (H, W), (H, W, 3), (H, W, 4) are",
        )
    return Image.fromarray(array)


@contextmanager
def _open(item: Any) -> Iterator[Image.Image]:
    if isinstance(item, Image.Image):
        yield item
        return
    with _quiet_pil():
        try:
            picture = Image.open(item)
        except UnidentifiedImageError:
            if not reads_heic():
                raise
            picture = Image.open(item)
    with picture:
        if picture.format == "EPS":  # a program for Ghostscript, which PIL would start
            raise UnidentifiedImageError
        yield picture


@cache
def reads_heic() -> bool:
    """Return whether HEIC images can be read, and have PIL read them if so."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _is_heic(file: Any) -> bool:
    """Return whether a file says that it is a HEIC image."""
    head = b""
    with suppress(OSError, ValueError, AttributeError):
        file.seek(0)
        head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:] in _HEIC_BRANDS


@contextmanager
def _quiet_pil() -> Iterator[None]:
    """Keep PIL from warning of odd metadata in good images, and make it refuse what is too large.

    Python's warning filters belong to the whole process, hence the lock: under it, threads wait for
    each other, so it is held while metadata are read and not while pixels are decoded.
    """
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _upright(picture: Image.Image) -> Image.Image:
    """Return `picture` decoded, and turned as its metadata say, if they can be read."""
    # PIL reads the metadata of a TIFF while it decodes it.
    with _quiet_pil() if picture.format == "TIFF" else nullcontext():
        picture.load()
    with _quiet_pil():
        try:
            turn = _TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
        except Exception:  # damaged metadata, of every kind, spoil no pixels
            turn = None
    return picture if turn is None else picture.transpose(turn)


def _rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        # PIL itself would turn every value above 255 to white.
        grey = np.asarray(picture).clip(0, 65535) >> 8
        picture = Image.fromarray(grey.astype(np.uint8))
    elif picture.mode == "F":
        raise BadImage(name, "its pixels are floating-point numbers of unknown range")
    elif "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert("RGB")
