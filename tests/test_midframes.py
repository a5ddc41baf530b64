"""UCF101's frames: the middle one of each video, under the name the split file gives it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dspt.data import midframes
from dspt.data.midframes import middle_frame, prepare_ucf101
from dspt.data.nine import read
from dspt.internal.errors import InputError

av = pytest.importorskip("av")

ROWS = {
    "train": [
        ["Yo_Yo/v_YoYo_g01_c01.jpg", 1, "Yo_Yo"],
        ["Handstand_Pushups/v_HandStandPushups_g01_c01.jpg", 0, "Handstand_Pushups"],
    ],
    "val": [["Yo_Yo/v_YoYo_g01_c02.jpg", 1, "Yo_Yo"]],
    "test": [["Yo_Yo/v_YoYo_g02_c01.jpg", 1, "Yo_Yo"]],
}
STEP = 12


def video(file: Path, frames: int, first: int = 0, codec: str = "mpeg4") -> Path:
    """Make a video whose frame i is all of grey level `first` + 12 i."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        stream.bit_rate = 4_000_000
        for i in range(frames):
            grey = np.full((16, 32, 3), first + STEP * i, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return file


def level(image: Image.Image | Path) -> float:
    picture = image if isinstance(image, Image.Image) else Image.open(image)
    return float(np.asarray(picture.convert("L"), float).mean())


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A root with the split file and four videos, of 4, 5, 6 and 7 frames."""
    small = replace(midframes.UCF101, classes=2, train=2, val=1, test=1)
    monkeypatch.setattr(midframes, "UCF101", small)
    videos = tmp_path / "ucf101" / "UCF-101"
    video(videos / "YoYo" / "v_YoYo_g01_c01.avi", 4)
    video(videos / "HandstandPushups" / "v_HandstandPushups_g01_c01.avi", 5)
    video(videos / "YoYo" / "v_YoYo_g01_c02.avi", 6)
    video(videos / "YoYo" / "v_YoYo_g02_c01.avi", 7)
    (tmp_path / "ucf101" / "split_zhou_UCF101.json").write_text(json.dumps(ROWS))
    return tmp_path


def frame(root: Path, name: str) -> Path:
    return root / "ucf101" / "UCF-101-midframes" / name


class TestMiddleFrame:
    @pytest.mark.parametrize("frames", [1, 2, 3, 8, 9])
    def test_it_is_the_frame_at_half_the_number_of_frames(self, tmp_path, frames):
        image = middle_frame(str(video(tmp_path / "v.avi", frames, first=20)))
        assert image.size == (32, 16)
        assert level(image) == pytest.approx(20 + STEP * (frames // 2), abs=STEP / 3)

    @pytest.mark.parametrize("claimed", [0, 2, 5, 1000])
    def test_a_wrong_number_of_frames_in_the_header_does_not_matter(self, tmp_path, claimed):
        file = video(tmp_path / "v.avi", 8)
        data = bytearray(file.read_bytes())
        for mark, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
            at = data.index(mark) + offset
            assert int.from_bytes(data[at : at + 4], "little") == 8
            data[at : at + 4] = claimed.to_bytes(4, "little")
        file.write_bytes(data)
        assert level(middle_frame(str(file))) == pytest.approx(STEP * 4, abs=STEP / 3)

    def test_a_container_that_keeps_no_number_is_counted(self, tmp_path):
        file = video(tmp_path / "v.mkv", 8)
        with av.open(str(file)) as container:
            assert container.streams.video[0].frames == 0
        assert level(middle_frame(str(file))) == pytest.approx(STEP * 4, abs=STEP / 3)

    def test_what_is_no_video_is_told(self, tmp_path):
        (tmp_path / "v.avi").write_bytes(b"no video" * 100)
        with pytest.raises(InputError, match=r"v.avi: cannot be decoded \("):
            middle_frame(str(tmp_path / "v.avi"))

    def test_sound_alone_is_told(self, tmp_path):
        with av.open(str(tmp_path / "v.avi"), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
            sound.sample_rate = 8000
            container.mux(stream.encode(sound))
            container.mux(stream.encode())
        with pytest.raises(InputError, match="no video in it"):
            middle_frame(str(tmp_path / "v.avi"))


class TestPrepare:
    def test_each_image_of_the_split_is_the_middle_of_its_video(self, root):
        steps: list[tuple[int, int]] = []
        result = prepare_ucf101(root, progress=lambda *step: steps.append(step))
        assert result == {
            "folder": str(root / "ucf101" / "UCF-101-midframes"),
            "frames": 4,
            "written": 4,
            "kept": 0,
        }
        assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
        for name, index in (
            ("Yo_Yo/v_YoYo_g01_c01.jpg", 2),
            ("Handstand_Pushups/v_HandStandPushups_g01_c01.jpg", 2),
            ("Yo_Yo/v_YoYo_g01_c02.jpg", 3),
            ("Yo_Yo/v_YoYo_g02_c01.jpg", 3),
        ):
            assert level(frame(root, name)) == pytest.approx(STEP * index, abs=STEP / 3)

    def test_what_is_written_can_be_read_as_the_dataset(self, root):
        prepare_ucf101(root)
        found = read(midframes.UCF101, root)
        assert found.class_names == ("Handstand_Pushups", "Yo_Yo")
        assert found.train.labels.tolist() == [1, 0]

    def test_frames_are_jpegs_of_quality_95(self, root, tmp_path):
        prepare_ucf101(root)
        Image.new("RGB", (8, 8)).save(tmp_path / "95.jpg", quality=95)
        with (
            Image.open(frame(root, "Yo_Yo/v_YoYo_g01_c01.jpg")) as found,
            Image.open(tmp_path / "95.jpg") as expected,
        ):
            assert found.format == "JPEG"
            assert found.quantization == expected.quantization

    def test_frames_that_are_there_are_kept_and_need_no_video(self, root):
        prepare_ucf101(root)
        kept = frame(root, "Yo_Yo/v_YoYo_g01_c01.jpg")
        kept.write_bytes(b"mine")
        frame(root, "Yo_Yo/v_YoYo_g01_c02.jpg").unlink()
        result = prepare_ucf101(root)
        assert (result["written"], result["kept"]) == (1, 3)
        assert kept.read_bytes() == b"mine"
        (root / "ucf101" / "UCF-101").rename(root / "gone")
        assert prepare_ucf101(root)["kept"] == 4

    def test_videos_are_found_anywhere_below_a_folder_that_is_named(self, root, tmp_path):
        (root / "ucf101" / "UCF-101").rename(tmp_path / "elsewhere")
        assert prepare_ucf101(root, tmp_path / "elsewhere", workers=1)["written"] == 4

    def test_missing_and_broken_videos_are_told_after_all_others_are_done(self, root):
        videos = root / "ucf101" / "UCF-101" / "YoYo"
        (videos / "v_YoYo_g01_c01.avi").unlink()
        (videos / "v_YoYo_g01_c02.avi").write_bytes(b"no video")
        with pytest.raises(InputError) as error:
            prepare_ucf101(root)
        assert "2 of 4 videos gave no frame" in str(error.value)
        assert "v_YoYo_g01_c01: no such video" in str(error.value)
        assert f"{videos / 'v_YoYo_g01_c02.avi'}: cannot be decoded" in str(error.value)
        assert "the 2 frames in" in str(error.value)
        written = [f for _, _, files in os.walk(frame(root, "")) for f in files]
        assert sorted(written) == ["v_HandStandPushups_g01_c01.jpg", "v_YoYo_g02_c01.jpg"]

    def test_a_frame_is_whole_or_not_there(self, root, monkeypatch):
        def half(self, file, *_, **__):
            Path(file).write_bytes(b"\xff\xd8")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Image.Image, "save", half)
        with pytest.raises(InputError, match=r"cannot be written \(.*No space left"):
            prepare_ucf101(root)
        assert [f for _, _, files in os.walk(frame(root, "")) for f in files] == []

    def test_a_missing_folder_of_videos_is_told_with_its_place(self, root):
        (root / "ucf101" / "UCF-101").rename(root / "gone")
        with pytest.raises(InputError, match=r"ucf101/UCF-101, which is not there.*crcv.*`videos`"):
            prepare_ucf101(root)

    def test_a_missing_split_file_is_told_before_any_work(self, root):
        (root / "ucf101" / "split_zhou_UCF101.json").unlink()
        with pytest.raises(InputError, match=r"split_zhou_UCF101.json is not in"):
            prepare_ucf101(root)

    def test_a_missing_decoder_is_told_with_the_way_to_get_it(self, root, monkeypatch):
        monkeypatch.setitem(sys.modules, "av", None)
        with pytest.raises(InputError, match=r"pip install 'dspt\[video\]'"):
            prepare_ucf101(root)

    def test_no_workers_are_refused(self, root):
        with pytest.raises(InputError, match="workers: expected at least 1, found 0"):
            prepare_ucf101(root, workers=0)
