"""The image side: views as transformers and torchvision cut them, features as CLIPModel's."""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import image_processor, tiny_clip
from PIL import Image

from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import MEAN, STD, ImageTower, Preprocessing, _random_box
from dspt.data.images import BadImage, open_image
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream


def picture(rng: np.random.Generator, width: int, height: int, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


def normalised(cut: Preprocessing, view: np.ndarray) -> np.ndarray:
    return cut.normalised(torch.from_numpy(view)[None])[0].numpy()


class TestTestView:
    @pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "YCbCr", "1"])
    def test_equals_transformers_bit_for_bit(self, mode):
        rng = np.random.default_rng(0)
        for side in (28, 32, 57):
            theirs = image_processor()(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
            for width, height in rng.integers(1, 300, (10, 2)):
                if max(width, height) > 20 * min(width, height):
                    continue
                image = picture(rng, width, height, mode)
                expected = theirs(image)["pixel_values"][0]
                cut = Preprocessing(side, side)
                found = normalised(cut, cut.test_view(open_image(image)))
                assert found.dtype == np.float32
                np.testing.assert_array_equal(found, expected)

    def test_large_jpegs_are_decoded_in_full(self, tmp_path):
        small = picture(np.random.default_rng(0), 50, 40)
        small.resize((1000, 800), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg")
        side = {"height": 64, "width": 64}
        theirs = image_processor()(size={"shortest_edge": 64}, crop_size=side)
        cut = Preprocessing(64, 64)
        found = normalised(cut, cut.test_view(open_image(tmp_path / "large.jpg")))
        expected = theirs(Image.open(tmp_path / "large.jpg"))["pixel_values"][0]
        np.testing.assert_array_equal(found, expected)

    def test_squashes_and_pads_as_transformers_when_the_checkpoint_says_so(self):
        image = picture(np.random.default_rng(0), 90, 41)
        for size, resize in (({"height": 32, "width": 40}, (32, 40)), ({"shortest_edge": 20}, 20)):
            theirs = image_processor()(size=size, crop_size={"height": 32, "width": 32})
            cut = Preprocessing(resize, 32)
            found = normalised(cut, cut.test_view(open_image(image)))
            np.testing.assert_array_equal(found, theirs(image)["pixel_values"][0])

    def test_a_long_strip_does_not_exhaust_the_memory(self):
        strip = np.zeros((1, 1_000_000), np.uint8)
        strip[0, 500_000 - 16 : 500_000 + 16] = 255
        view = Preprocessing(224, 224).test_view(open_image(strip))
        assert view.shape == (224, 224, 3)
        assert (view == 255).all()


class TestTrainView:
    side = 64

    def boxes(self, width: int, height: int, count: int) -> np.ndarray:
        """Return left, right, top, bottom of `count` crops, read off an image of coordinates."""
        x = np.broadcast_to(np.linspace(0, 255, width), (height, width))
        y = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
        image = np.stack([x, y, 0 * x], 2).round().astype(np.uint8)
        cut = Preprocessing(self.side, self.side)
        views = [cut.train_view(open_image(image), Stream(1, "crop", i)) for i in range(count)]
        share, middle = np.array(views) / 255, self.side // 2
        across, down = share[:, middle, :, 0] * width, share[:, :, middle, 1] * height
        return np.stack([across[:, 0], across[:, -1], down[:, 0], down[:, -1]], 1)

    def test_crops_are_of_the_allowed_areas_and_shapes_and_mirrored_half_of_the_time(self):
        left, right, top, bottom = self.boxes(400, 400, 600).T
        mirrored = left > right
        assert 0.42 < mirrored.mean() < 0.58
        assert (top < bottom).all()
        # The first and last pixel are half a step inside the crop.
        wide = np.abs(right - left) * self.side / (self.side - 1)
        high = (bottom - top) * self.side / (self.side - 1)
        area, ratio = wide * high / 400**2, wide / high
        assert 0.07 < area.min() < 0.13
        assert 0.9 < area.max() < 1.03
        assert 0.73 < ratio.min() < 0.77
        assert 1.30 < ratio.max() < 1.37

    def test_areas_are_uniform_and_shapes_uniform_in_their_logarithm(self):
        numbers = Stream(1, "boxes").uniform(20_000 * 22).reshape(-1, 22)
        # Crops of half of the image or less fit whatever their shape.
        numbers[:, 0] /= 2
        boxes = np.array([_random_box(4000, 4000, row) for row in numbers])
        wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        area, shape = wide * high / 4000**2, np.log(wide / high)
        np.testing.assert_allclose(area.mean(), 0.08 + 0.92 / 4, atol=0.005)
        np.testing.assert_allclose(area.std(), 0.46 / math.sqrt(12), atol=0.005)
        np.testing.assert_allclose(shape.mean(), 0, atol=0.006)
        np.testing.assert_allclose(shape.std(), 2 * math.log(4 / 3) / math.sqrt(12), atol=0.003)

    def test_crops_lie_anywhere_in_the_image(self):
        left, right, top, bottom = self.boxes(400, 200, 300).T
        assert np.minimum(left, right).min() < 8
        assert np.maximum(left, right).max() > 392
        assert top.min() < 4
        assert bottom.max() > 196

    @pytest.mark.parametrize(("width", "height"), [(1000, 20), (20, 1000)])
    def test_an_image_no_crop_fits_gives_its_centre_at_the_nearest_allowed_shape(self, width, height):
        left, right, top, bottom = self.boxes(width, height, 20).T
        long = round(20 * 4 / 3)
        across = np.abs(right - left) if width > height else bottom - top
        middle = (left + right) / 2 if width > height else (top + bottom) / 2
        assert (np.abs(middle - 500) < 5).all()
        assert (np.abs(across - long) < 5).all()

    def test_is_a_function_of_the_stream_alone(self):
        image = picture(np.random.default_rng(0), 50, 40)
        cut = Preprocessing(32, 32)
        one, again, other = (cut.train_view(open_image(image), Stream(1, "v", v)) for v in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_a_single_pixel_has_views(self):
        dot = np.full((1, 1, 3), 9, np.uint8)
        cut = Preprocessing(32, 32)
        expected = np.broadcast_to(cut.test_view(open_image(dot))[:1, :1], (32, 32, 3))
        np.testing.assert_array_equal(cut.train_view(open_image(dot), Stream(1)), expected)


class TestOpenImage:
    def test_pictures_are_turned_upright(self, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 6
        upright = picture(np.random.default_rng(0), 8, 4)
        upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
        np.testing.assert_array_equal(open_image(tmp_path / "a.png"), upright)
        np.testing.assert_array_equal(open_image(Image.open(tmp_path / "a.png")), upright)

    def test_path_picture_and_array_are_the_same_image(self, tmp_path):
        image = picture(np.random.default_rng(0), 8, 4)
        image.save(tmp_path / "a.png")
        for item in (tmp_path / "a.png", str(tmp_path / "a.png"), image, np.asarray(image)):
            np.testing.assert_array_equal(open_image(item), image)

    def test_grey_becomes_three_equal_channels(self):
        grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
        np.testing.assert_array_equal(open_image(grey), np.stack([grey] * 3, 2))

    def test_transparency_is_dropped_without_a_warning(self):
        colours = np.random.default_rng(0).integers(0, 256, (4, 5, 4), dtype=np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(open_image(colours), colours[:, :, :3])
            palette = Image.fromarray(colours[:, :, :3]).convert("P")
            palette.info["transparency"] = bytes(range(256))
            np.testing.assert_array_equal(open_image(palette), np.asarray(palette.convert("RGBA"))[..., :3])

    def test_sixteen_bits_of_grey_keep_their_brightness(self, tmp_path):
        values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
        Image.fromarray(values).save(tmp_path / "a.png")
        assert np.asarray(open_image(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 0, 1, 128, 255]

    def test_the_first_frame_of_an_animation_is_taken(self, tmp_path):
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        assert open_image(tmp_path / "a.gif").getpixel((0, 0)) == (255, 0, 0)

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
    def test_damaged_files_are_one_sentence_with_the_path(self, tmp_path, kind):
        image, whole = picture(np.random.default_rng(0), 60, 60), io.BytesIO()
        image.save(whole, kind)
        whole = whole.getvalue()
        for cut in (0, 1, 10, len(whole) // 2):
            path = tmp_path / f"{cut}.jpg"
            path.write_bytes(whole[:cut])
            with pytest.raises(BadImage, match=rf"{cut}\.jpg: .*; replace it or leave it out"):
                open_image(path)

    @pytest.mark.filterwarnings("ignore:.*:UserWarning")
    def test_random_damage_is_a_picture_or_one_sentence(self, tmp_path):
        rng = np.random.default_rng(0)
        for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP"):
            stream = io.BytesIO()
            picture(rng, 20, 20).save(stream, kind)
            whole = np.frombuffer(stream.getvalue(), np.uint8)
            for _ in range(60):
                damaged = whole.copy()
                damaged[rng.integers(0, len(whole), 5)] = rng.integers(0, 256, 5)
                with suppress(BadImage):
                    assert open_image(io.BytesIO(damaged.tobytes())).mode == "RGB"

    def test_missing_files_folders_and_texts_are_named(self, tmp_path):
        (tmp_path / "text.jpg").write_text("not a picture")
        for path, reason in (
            (tmp_path / "none.jpg", "no such file"),
            (tmp_path, "directory"),
            (tmp_path / "text.jpg", "not an image of a known format"),
        ):
            with pytest.raises(BadImage, match=reason) as error:
                open_image(path)
            assert str(path) in str(error.value)

    def test_a_bad_image_survives_the_way_between_processes(self):
        again = pickle.loads(pickle.dumps(BadImage("a.jpg", "no such file")))
        assert str(again) == "a.jpg: no such file; replace it or leave it out"

    @pytest.mark.parametrize("factor", [1.5, 3])
    def test_decompression_bombs_are_refused_before_they_are_decoded(self, tmp_path, monkeypatch, factor):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        Image.new("L", (10, int(100 * factor))).save(tmp_path / "bomb.png")
        with pytest.raises(BadImage, match=r"bomb\.png: it has more than 1,000 pixels"):
            open_image(tmp_path / "bomb.png")

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((4, 4), np.float32),
            np.zeros((4, 4), bool),
            np.zeros((3, 4, 5), np.uint8),
            np.zeros((4, 4, 1), np.uint8),
            np.zeros((2, 4, 4, 3), np.uint8),
            np.zeros(4, np.uint8),
            np.zeros((0, 4), np.uint8),
        ],
        ids=lambda array: f"{array.dtype}{array.shape}",
    )
    def test_arrays_that_are_no_image_are_refused(self, array):
        with pytest.raises(BadImage, match="is no image, only"):
            open_image(array)


class TestPreprocessing:
    def write(self, folder: Path, name: str, value: object, image_size: int = 48) -> Path:
        (folder / "config.json").write_text(json.dumps({"vision_config": {"image_size": image_size}}))
        (folder / name).write_text(json.dumps(value))
        return folder

    def test_reads_what_transformers_wrote(self, clip):
        assert Preprocessing.read(clip) == Preprocessing(32, 32, MEAN, STD)

    @pytest.mark.parametrize(
        ("size", "crop", "resize"),
        [
            (48, 48, 48),
            (56, {"height": 48, "width": 48}, 56),
            ({"shortest_edge": 48}, 48, 48),
            ({"height": 50, "width": 60}, {"height": 48, "width": 48}, (50, 60)),
        ],
    )
    def test_reads_old_and_new_forms(self, tmp_path, size, crop, resize):
        given = {"size": size, "crop_size": crop, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
        expected = Preprocessing(resize, 48, (0.5,) * 3, (0.2,) * 3)
        self.write(tmp_path, "preprocessor_config.json", given)
        assert Preprocessing.read(tmp_path) == expected
        (tmp_path / "preprocessor_config.json").unlink()
        self.write(tmp_path, "processor_config.json", {"image_processor": given})
        assert Preprocessing.read(tmp_path) == expected

    def test_is_clip_at_the_towers_size_where_nothing_is_said(self, tmp_path):
        self.write(tmp_path, "other.json", {})
        assert Preprocessing.read(tmp_path) == Preprocessing(48, 48, MEAN, STD)

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"crop_size": 32}, "takes three channels of 48 x 48 pixels"),
            ({"crop_size": {"height": 48, "width": 40}}, "cannot be understood"),
            ({"size": {"longest_edge": 48}}, "cannot be understood"),
            ({"image_mean": [0.5]}, "three channels"),
            ({"image_mean": "x"}, "cannot be understood"),
            ({"image_mean": [0.5, 0.5, float("nan")]}, "image_mean"),
            *(({"image_std": [0.2, 0.2, std]}, "image_std") for std in (0, -0.2, float("nan"), float("inf"))),
            ({"image_std": [0.2, 0.2, 10**400]}, "cannot be understood"),
            *(({"resample": number}, "resample") for number in (99, -1)),
            *(({"resample": number}, "cannot be understood") for number in (None, "3", 3.5, True, [3])),
            *(({"size": size}, "pixels") for size in (0, -48, 10**6)),
            *(({"size": size}, "cannot be understood") for size in (None, "48", [48], {"shortest_edge": None})),
            *(({step: False}, f"has {step} false") for step in ("do_resize", "do_rescale", "do_normalize")),
        ],
    )
    def test_what_does_not_fit_the_tower_is_refused(self, tmp_path, given, sentence):
        with pytest.raises(InputError, match=sentence):
            Preprocessing.read(self.write(tmp_path, "preprocessor_config.json", given))

    def test_broken_json_is_one_sentence(self, tmp_path):
        self.write(tmp_path, "preprocessor_config.json", {})
        (tmp_path / "preprocessor_config.json").write_text("{")
        with pytest.raises(InputError, match=r"preprocessor_config\.json: not valid JSON"):
            Preprocessing.read(tmp_path)


class TestImageTower:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)

    def test_equals_the_whole_clip_model(self, clip):
        from transformers import CLIPModel

        model = CLIPModel.from_pretrained(clip).eval()
        scaled = (self.pixels / 255 - np.array(MEAN)) / np.array(STD)
        values = torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32)
        text = torch.tensor([[model.config.text_config.eos_token_id]])
        with torch.no_grad():
            expected = model(input_ids=text, pixel_values=values).image_embeds.numpy()
        found = ImageTower(open_checkpoint(clip))(self.pixels)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_is_frozen(self, clip):
        tower = ImageTower(open_checkpoint(clip))
        assert not any(weight.requires_grad for weight in tower._model.parameters())
        assert not tower._model.training

    def test_takes_as_many_views_at_once_as_an_eighth_of_the_memory_holds(self, clip):
        tower = ImageTower(open_checkpoint(clip))
        config = tower._model.config
        positions = (config.image_size // config.patch_size) ** 2 + 1
        each = 4 * positions * (6 * config.hidden_size + 2 * config.intermediate_size)
        assert tower.batch_size(8 * each) == 1
        assert tower.batch_size(8 * each * 7) == 4
        assert tower.batch_size(8 * each * 16) == 16
        assert tower.batch_size(8 * each * 10_000) == 32
        assert tower.batch_size(1) == 1

    def test_half_precision_gives_unit_float32_features_near_the_full_ones(self, clip):
        checkpoint = open_checkpoint(clip)
        full, half = (ImageTower(checkpoint, dtype=d)(self.pixels) for d in ("float32", "bfloat16"))
        assert half.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, atol=1e-6)
        assert 0 < np.abs(full - half).max() < 0.05

    def test_loads_without_a_word(self, clip, capfd):
        ImageTower(open_checkpoint(clip))
        assert capfd.readouterr() == ("", "")

    def test_a_text_tower_alone_says_what_to_give(self, tmp_path):
        checkpoint = open_checkpoint(tiny_clip(tmp_path, text_only=True))
        with pytest.raises(InputError, match="has no image tower: give a feature file, or a full"):
            ImageTower(checkpoint)

    @pytest.mark.parametrize("damage", ["missing", "shape", "truncated"])
    def test_damaged_weights_are_refused_and_never_replaced_by_random_ones(self, clip, tmp_path, damage):
        from safetensors.numpy import load_file, save_file

        shutil.copytree(clip, tmp_path / "clip")
        file = tmp_path / "clip" / "model.safetensors"
        if damage == "truncated":
            file.write_bytes(file.read_bytes()[:-1000])
        else:
            weights = load_file(file)
            projection = weights.pop("visual_projection.weight")
            if damage == "shape":
                weights["visual_projection.weight"] = projection[:-1]
            save_file(weights, file, {"format": "pt"})
        reason = {"missing": "no tensor visual", "shape": "visual_projection.weight has shape", "truncated": "be read"}
        with pytest.raises(InputError, match=reason[damage]):
            ImageTower(open_checkpoint(tmp_path / "clip"))
