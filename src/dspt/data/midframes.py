"""UCF101 as images: the middle frame of each video."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspt.data import nine
from dspt.internal.errors import Fault, InputError, summary
from dspt.internal.files import replacing
from dspt.internal.threads import Progress, in_threads

if TYPE_CHECKING:
    from PIL import Image

UCF101 = next(dataset for dataset in nine.DATASETS if dataset.name == "UCF101")
QUALITY = 95

# Of two files with the same stem, the one whose suffix comes first here is the video.
_SUFFIXES = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg")


def prepare_ucf101(
    root: Path | str,
    videos: Path | str | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return how many frames were written and how many were there already, and their folder.

    Every image that the split file names is the middle frame of the video with the same stem, in
    whatever case. Frames that are there are kept, so that a broken-off call can be made again.

    Parameters
    ----------
    root
        The folder in which ucf101 lies, with the split file in it.
    videos
        The folder anywhere below which the videos lie; ROOT/ucf101/UCF-101 by default.
    workers
        How many videos are decoded at a time.
    progress
        Called with the number of videos done so far and of all that had no frame.

    Raises
    ------
    InputError
        If videos are missing or cannot be decoded: after all others have been.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers: expected at least 1, found {workers}")
    root = nine.given_root(UCF101, root)
    listing = nine.list_images(UCF101, root)
    if wrong := nine.wrong_sizes(UCF101, root, listing):
        raise InputError(wrong)
    target = nine.image_folder(UCF101, root)
    there = nine.Files(target)
    frames = [file for files in listing.files.values() for file in files]
    wanted = [file for file in frames if there.lack(file)]
    result = {
        "folder": str(target),
        "frames": len(frames),
        "written": 0,
        "kept": len(frames) - len(wanted),
    }
    if not wanted:
        return result
    _av()
    source = root / UCF101.folder / "UCF-101" if videos is None else Path(videos).expanduser()
    by_stem = _videos(source)
    faults: list[Fault] = []
    write = partial(_write, target, by_stem)
    for done, fault in enumerate(in_threads(write, wanted, workers), 1):
        if fault:
            faults.append(fault)
        if progress:
            progress(done, len(wanted))
    result["written"] = len(wanted) - len(faults)
    if faults:
        raise InputError(
            f"{UCF101.name}: {len(faults)} of {len(frames)} videos gave no frame "
            f"({summary(faults)}); put whole videos below {source} and run it again: the "
            f"{len(frames) - len(faults)} frames in {target} are kept"
        )
    return result


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise InputError("videos are decoded with PyAV, which is not installed: pip install 'dspt[video]'") from None
    return av


def _videos(folder: Path) -> dict[str, str]:
    """Return the videos below `folder` by their stem in lower case."""
    if not os.path.isdir(folder):
        raise InputError(
            f"{UCF101.name}: its videos belong in {folder}, which is not there; unpack them there "
            f"(the official homepage is {UCF101.homepage})",
            "set `videos` to the folder in which they are",
        )
    found: dict[str, tuple[int, str]] = {}
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in files:
            stem, suffix = os.path.splitext(file.lower())
            if suffix in _SUFFIXES:
                video = (_SUFFIXES.index(suffix), os.path.join(place, file))
                found[stem] = min(found.get(stem, video), video)
    return {stem: path for stem, (_, path) in found.items()}


def _write(target: Path, videos: dict[str, str], frame: str) -> Fault | None:
    """Write the frame of one video; give back what is wrong with the video, if anything is."""
    stem = os.path.splitext(os.path.basename(frame))[0]
    video = videos.get(stem.lower())
    if video is None:
        return Fault(stem, "no such video")
    try:
        image = middle_frame(video)
    except InputError as error:
        return Fault(video, str(error).removeprefix(f"{video}: "))
    with replacing(target / frame) as file:
        image.save(file, "JPEG", quality=QUALITY)
    return None


def middle_frame(video: str) -> Image.Image:
    """Return frame n // 2 of a video whose decoder gives n frames.

    The number in the container is only a guess: when it proves wrong, the video is decoded again.
    """
    count, image = _decoded(video, None)
    if image is None and count:
        _, image = _decoded(video, count // 2)
    if image is None:
        raise InputError(f"{video}: there are no frames in it")
    return image


def _decoded(video: str, index: int | None) -> tuple[int, Image.Image | None]:
    """Return the number of frames, and the one at `index`.

    Without an index, give the middle one, if the container's own number led to it.
    """
    av = _av()
    try:
        with av.open(video) as container:
            if not container.streams.video:
                raise ValueError("there is no video in it")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # videos are decoded side by side already
            wanted = stream.frames // 2 if index is None else index
            count, kept = 0, None
            for frame in container.decode(stream):
                if count == wanted:
                    kept = frame
                    if index is not None:
                        break
                count += 1
            if kept is None or (index is None and count // 2 != wanted):
                return count, None
            return count, kept.to_image()
    # FFmpeg's errors are of many kinds, some of them ValueError or OSError too.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{video}: cannot be decoded ({reason})") from None
