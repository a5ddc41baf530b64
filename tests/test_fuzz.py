"""Thousands of damaged files: each is read or told of in one sentence, and nothing else happens.

The files are read in a child process, so that a decoder that dies is seen. Every one is a function
of its kind and number alone: `python tests/test_fuzz.py png 17 > damaged` writes the file that a
failure names.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

# `make soak` tries so many times as many.
TIMES = int(os.environ.get("DSPT_FUZZ", "1"))
# Of each kind.
COUNTS = {"images": 120, "tables": 60, "labels": 60, "runs": 50, "models": 30}
# Seconds. Each is read in a moment: after so long, something is waiting for ever. What it reads is left in the folder
# for temporary files.
HANGS = 600
# A file may say that it is as large as it likes; what is read is bounded by the number of pixels.
MOST_PIXELS, MOST_MEGABYTES = 1_000_000, 100
MOST_MEGABYTES_OF_A_MODEL = 300
LONGEST_SENTENCE = 2_100
SIDE = 16


def picture() -> Image.Image:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(np.kron(blocks, np.ones((6, 6, 1), np.uint8)))


@cache
def image_files() -> dict[str, bytes]:
    """Return a small whole file of each kind."""
    whole, turned = picture(), picture().rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "words"
    exif.get_ifd(0x8769)[0x9286] = b"more words"
    deep = Image.fromarray(np.arange(720, dtype=np.uint16).reshape(24, 30) * 91)
    frames: dict[str, Any] = {"save_all": True, "append_images": [turned.resize(whole.size)]}
    files: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "jpeg": (whole, "JPEG", {}),
        "progressive jpeg": (whole, "JPEG", {"progressive": True}),
        "cmyk jpeg": (whole.convert("CMYK"), "JPEG", {}),
        "exif jpeg": (whole, "JPEG", {"exif": exif}),
        "png": (whole, "PNG", {"exif": exif}),
        "palette png": (whole.convert("P"), "PNG", {"transparency": bytes(range(200))}),
        "16-bit png": (deep, "PNG", {}),
        "animated png": (whole, "PNG", frames),
        "gif": (whole, "GIF", {}),
        "animated gif": (whole, "GIF", {**frames, "loop": 0}),
        "webp": (whole, "WEBP", {"lossless": True, "exif": exif}),
        "animated webp": (whole, "WEBP", frames),
        "bmp": (whole, "BMP", {}),
        "palette bmp": (whole.convert("P"), "BMP", {}),
        "plain tiff": (whole, "TIFF", {"exif": exif}),
        "lzw tiff": (whole, "TIFF", {"compression": "tiff_lzw"}),
        "deflate tiff": (whole, "TIFF", {"compression": "tiff_adobe_deflate"}),
        "packbits tiff": (whole, "TIFF", {"compression": "packbits"}),
        "jpeg tiff": (whole, "TIFF", {"compression": "jpeg"}),
        "fax tiff": (whole.convert("1"), "TIFF", {"compression": "group4"}),
        "ppm": (whole, "PPM", {}),
        "pgm": (whole.convert("L"), "PPM", {}),
    }
    if features.check("avif"):
        files["avif"] = (whole, "AVIF", {})
    return {kind: saved(*how) for kind, how in files.items()}


def saved(image: Image.Image, form: str, options: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


CSV = (
    "path,label,true_label,split\n"
    'a.jpg,dog,dog,train\n"b, c.jpg",cat,dog,train\n'
    "d\\e.jpg,größe,cat,train\nf.jpg,dog,dog,test\n./g.jpg,cat,cat,test\n"
)
NAMES = ["cat", "dog", "größe"]
LABELS = np.array([0, 1, 2, 1, 0, 2], np.int64)


@cache
def table_files() -> dict[str, bytes]:
    """Return a small whole file of each kind that holds a table, features or labels."""
    import openpyxl
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from safetensors.numpy import save

    rows = [line.split(";") for line in ("a;dog;train", "b;cat;train", "c;dog;test", "d;cat;test")]
    columns = dict(zip(("path", "label", "split"), map(list, zip(*rows, strict=True)), strict=True))
    parquet, npz, one, archive, pt, sheet = (io.BytesIO() for _ in range(6))
    book = openpyxl.Workbook()
    for row in [list(columns), *rows]:
        book.active.append(row)
    book.save(sheet)
    pq.write_table(pa.table(columns), parquet, compression="none")
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    arrays = {"train_x": x, "train_y": LABELS, "test_x": x[:3], "test_y": LABELS[:3]}
    np.savez(npz, **arrays, classnames=np.array(NAMES))
    np.save(one, LABELS)
    np.savez(archive, labels=LABELS, clean_label=LABELS)
    torch.save({"labels": LABELS, "more": torch.arange(6), "list": [1, 2]}, pt)
    listed = {
        split: [[f"{split}/{i}.jpg", i % 2, NAMES[i % 2]] for i in range(2)] for split in ("train", "val", "test")
    }
    return {
        "manifest.csv": CSV.encode(),
        "manifest.tsv": CSV.replace(",", "\t").encode(),
        "manifest.jsonl": b"".join(json.dumps(dict(zip(columns, row, strict=True))).encode() + b"\n" for row in rows),
        "manifest.parquet": parquet.getvalue(),
        "manifest.xlsx": sheet.getvalue(),
        "features.npz": npz.getvalue(),
        "features.safetensors": save(arrays, {"classnames": json.dumps(NAMES)}),
        "split_zhou_DescribableTextures.json": json.dumps(listed).encode(),
        "labels.csv": b"index,label\n" + b"".join(b"%d,%d\n" % pair for pair in enumerate(LABELS)),
        "labels.item.csv": b"item,label,true_label\n"
        + b"".join(b"%d.jpg,%s,\n" % (i, NAMES[i % 3].encode()) for i in range(6)),
        "labels.npy": one.getvalue(),
        "labels.npz": archive.getvalue(),
        "labels.pt": pt.getvalue(),
    }


@cache
def folders() -> dict[str, dict[str, bytes]]:
    """Return the files of small whole folders: a run, and a checkpoint in each of the ways it may lie there."""
    from dspt.backbone.checkpoint import EMBEDDED

    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder, "run"))
        run = contents(Path(folder, "run"))
        old = contents(unsealed(Path(folder, "run")))
    model = contents(EMBEDDED)
    described = {name: data for name, data in model.items() if name != "tokenizer.json"}
    weights = described.pop("model.safetensors")
    (size,) = struct.unpack("<Q", weights[:8])
    names = [name for name in json.loads(weights[8 : 8 + size]) if name != "__metadata__"]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
    sharded = {"model-1.safetensors": weights, "model.safetensors.index.json": json.dumps(index).encode()}
    return {"run": run, "old": old, "model": model, "sharded": {**described, **sharded}}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))}


def write_run(folder: Path) -> None:
    """Write a finished run on the embedded model, by hand."""
    import torch

    from dspt.backbone.checkpoint import open_checkpoint
    from dspt.config import Config
    from dspt.data import Dataset, Split
    from dspt.runs import Description, Result, Run
    from dspt.train import State

    run, model = Run(folder), open_checkpoint("embedded")
    run.begin(
        Description(
            settings=Config(model="embedded", epochs=2, context_length=4),
            class_names=("cat", "dog", "größe"),
            data="pets.csv",
            data_fingerprint="0123",
            noise="sym:0.4",
            model_fingerprint=model.fingerprint,
            tokenizer_fingerprint=model.tokenizer_fingerprint,
            logit_scale=model.logit_scale,
        )
    )
    split = Split([f"{i}.jpg" for i in range(6)], LABELS)
    run.save_labels(Dataset("pets", ("cat", "dog", "größe"), split, split), split)
    histogram = {"edges": [0.0, 1.0, 2.0], "right": [3, 1], "wrong": [1, 1]}
    for epoch in (1, 2):
        run.add_record({"epoch": epoch, "lr": 0.1, "steps": 3, "loss": 0.5, "accuracy": 50.0, "loss_wrong": None})
    run.drop_records(1)
    run.add_record({"epoch": 2, "lr": 0.1, "steps": 3, "loss": 0.4, "gradient_histogram": histogram})
    context = torch.ones(4, 96)
    run.save_state(State(2, {"context": context}, {"context": 2 * context}, {"noise_rate": torch.tensor(0.4)}), 1.5)
    run.save_learnt({"context": context}, torch.nn.functional.normalize(torch.eye(3, 64) + 0.1, dim=1))
    run.finish(
        Result(data="pets", noise="sym:0.4", method="dspt", seed=1, epochs=2, accuracy=50.0, run=str(folder.name))
    )


def unsealed(folder: Path) -> Path:
    """Return a run made into one of the first format, in which no checksum keeps damage from being read."""
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "result.json"):
        value = json.loads((folder / name).read_text(encoding="utf-8"))
        value.pop("seal", None)
        (folder / name).write_text(json.dumps(value | ({"format": 1} if name == "config.json" else {})))
    for name, metadata in (("state", {"epochs_done": "2", "seconds": "1.5"}), ("context", {"format": "1"})):
        file = folder / f"{name}.safetensors"
        save_file(load_file(file), file, metadata)
    return folder


# A file of a folder is called FOLDER/FILE. Without tokenizer.json the other two are the tokenizer.
RUN_KINDS = (
    *("run/config.json", "run/result.json", "run/metrics.jsonl", "run/state.safetensors", "run/context.safetensors"),
    *("old/config.json", "old/result.json", "old/metrics.jsonl", "old/state.safetensors", "old/context.safetensors"),
)
MODEL_KINDS = (
    *("model/config.json", "model/preprocessor_config.json", "model/tokenizer.json", "model/model.safetensors"),
    *("sharded/vocab.json", "sharded/merges.txt", "sharded/model.safetensors.index.json"),
)

TOKENS = (
    *(b'"', b"'", b",", b"\n", b"\r", b"\r\n", b"\t", b";", b"\0", b"\\", b"[", b"]", b"{", b"}"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"null", b"true", b"NaN"),
    *(b"-1", b"1e999", b"9" * 30, b"C:\\x", b"../", b"/", b"x" * 3000, b"\xc2\x85", b" "),
)


def damaged(kind: str, number: int) -> bytes:
    """Return the file of this kind with some damage, which is a function of `number`."""
    chance = random.Random(f"{kind} {number}")
    if kind in image_files():
        data = mutated(image_files()[kind], chance)
        # Most damage to a PNG is seen by its checksums; behind them there is more to go wrong.
        return mended(data) if "png" in kind and chance.random() < 0.6 else data
    folder, _, name = kind.rpartition("/")
    whole = folders()[folder][name] if folder else table_files()[kind]
    if kind.endswith((".json", ".jsonl", ".safetensors")) and chance.random() < 0.6:
        return rewritten(whole, kind, chance)
    tokens = TOKENS if kind.endswith(("csv", "tsv", "json", "jsonl", "txt", "safetensors")) else ()
    if kind.endswith(("npz", "pt")) and chance.random() < 0.7:
        return rezipped(whole, chance)
    return mutated(whole, chance, tokens)


def mutated(whole: bytes, chance: random.Random, tokens: tuple[bytes, ...] = ()) -> bytes:
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        # Headers are short, and most of what can go wrong is in them.
        size = min(len(data), 200) if chance.random() < 0.5 else len(data)
        at, run = chance.randrange(size or 1), chance.randrange(1, 40)
        how = chance.randrange(7 if tokens else 6)
        if how == 0:
            for _ in range(chance.choice((1, 2, 8))):
                if data:
                    data[chance.randrange(size or 1)] ^= 1 << chance.randrange(8)
        elif how == 1:
            del data[at:]
        elif how == 2:
            data[at : at + run] = chance.choice((bytes(run), b"\xff" * run, chance.randbytes(run), b""))
        elif how == 3:
            data[at:at] = data[at : at + run]
        elif how == 4:
            code = chance.choice("<>") + chance.choice("HIQ")
            most = 256 ** struct.calcsize(code) - 1
            number = chance.choice((0, 1, 20_000, most // 2, most // 2 + 1, most, most - 7))
            data[at : at + struct.calcsize(code)] = struct.pack(code, min(number, most))
        elif how == 5:
            other = chance.randrange(size or 1)
            data[at : at + run] = data[other : other + run]
        else:
            data[at:at] = chance.choice(tokens)
    return bytes(data)


# What no reader expects where something else should stand. The last two are too deep to be written by Python.
DEEP, DEEPER = "<deep>", "<deeper>"
HOSTILE = (
    *(None, True, 0, 1, -1, 2, 99, 2**31, 2**63, 10**8, 10**400, 0.5, -0.0, 1000.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "\0", "\ud800", "\x1b[31m", "../x", "9" * 30, "x" * 3000),
    *([], {}, [1, 2], ["a", None], [[0]], {"a": 1}, [0.0, 0.0, 0.0], DEEP, DEEPER),
)


def rewritten(whole: bytes, kind: str, chance: random.Random) -> bytes:
    """Return a file whose JSON is good JSON and says something else."""
    head, text, rest = b"", whole, b""
    if kind.endswith("safetensors"):
        (size,) = struct.unpack("<Q", whole[:8])
        head, text, rest = whole[:8], whole[8 : 8 + size], whole[8 + size :]
    lines = text.split(b"\n") if kind.endswith("jsonl") else [text]
    at = chance.randrange(len(lines) - 1) if len(lines) > 1 else 0
    value = [json.loads(lines[at])]
    for _ in range(chance.choice((1, 1, 2))):
        inner: Any = value
        while True:
            key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if not (isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.8):
                break
            inner = inner[key]
        how = chance.randrange(6)
        if how == 0 and inner is not value:
            del inner[key]
        elif how == 1 and isinstance(inner[key], int | float):
            inner[key] = chance.choice((inner[key] + 1, inner[key] - 1, -inner[key], inner[key] * 1000, [inner[key]]))
        elif how == 2:
            inner[key] = [inner[key]] if chance.random() < 0.5 else {"a": inner[key]}
        else:
            inner[key] = deepcopy(chance.choice(HOSTILE))
        if not value or not isinstance(value[0], dict | list) or not value[0]:
            break
    lines[at] = json.dumps(value[0]).encode()
    for mark, depth in ((DEEP, 40), (DEEPER, 100_000)):
        lines[at] = lines[at].replace(json.dumps(mark).encode(), b"[" * depth + b"]" * depth)
    text = b"\n".join(lines)
    return (struct.pack("<Q", len(text)) if head else b"") + text + rest


def mended(png: bytes) -> bytes:
    """Return a PNG whose checksums are right as far as its chunks can be told apart."""
    parts, at = [png[:8]], 8
    while at + 12 <= len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        chunk = png[at + 4 : at + 8 + size]
        parts.append(png[at : at + 4] + chunk + struct.pack(">I", zlib.crc32(chunk)))
        at += 12 + size
    return b"".join(parts)


def rezipped(whole: bytes, chance: random.Random) -> bytes:
    """Return an archive with right checksums and damage inside of one of its files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(stream, "w") as new:
        hit = chance.choice(old.namelist())
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, mutated(data, chance) if name == hit else data)
    return stream.getvalue()


def read_image(kind: str, file: Path) -> None:
    from dspt.backbone.image import Preprocessing
    from dspt.data.images import open_image

    for item in (file, io.BytesIO(file.read_bytes())):
        view = Preprocessing(SIDE, SIDE).test_view(image := open_image(item))
        assert image.mode == "RGB"
        assert (view.shape, view.dtype) == ((SIDE, SIDE, 3), np.uint8)


def read_table(kind: str, file: Path) -> None:
    from dspt import noise
    from dspt.data import Dataset, Split, nine, open_dataset
    from dspt.noise.labelfiles import read_labels

    if kind == "labels.item.csv":
        split = Split([f"/r/{i}.jpg" for i in range(6)], LABELS)
        found = noise.read_split(file, Dataset("x", tuple(NAMES), split, split, root="/r"), pytest.fail)
        assert 0 <= found.labels.min() <= found.labels.max() < 3
        if found.true_labels is not None:  # the name of its column may be damaged, too
            assert -1 <= found.true_labels.min() <= found.true_labels.max() < 3
        return
    if kind.startswith("labels"):
        key = "#labels" if kind.endswith(("npz", "pt")) else ""
        labels = read_labels(f"{file}{key}", 3, 6, LABELS)
        assert (labels.shape, labels.dtype) == ((6,), np.int64)
        assert 0 <= labels.min() <= labels.max() < 3
        return
    if kind.endswith("json"):
        found = nine.list_images(nine.find("dtd"), file.parent.parent)
        assert all(
            0 <= label < len(found.class_names) and len(found.files[split]) == len(labels)
            for split, labels in found.labels.items()
            for label in labels
        )
        return
    for skip_bad in (True, False):
        found = open_dataset(file, skip_bad=skip_bad)
        for split in (found.train, found.test):
            assert len(split.items) == len(split.labels) > 0
            assert 0 <= split.labels.min() <= split.labels.max() < len(found.class_names)
            if found.holds_features:
                np.testing.assert_allclose(np.linalg.norm(split.items, axis=1), 1, atol=1e-4)
        "".join(found.class_names).encode()


def read_run(kind: str, file: Path) -> None:
    """Read a run as tables, a resumption and a prediction do."""
    import dspt
    from dspt.runs import Run, find

    run = Run(file.parent)
    find(file.parent, lambda error: one_sentence(str(error)))
    run.environment()
    run.load_state()
    for record in run.records():
        float(record.get("accuracy") or 0.0)
    run.description().difference(run.description())
    classifier = dspt.load(file.parent, device="cpu")
    predicted = classifier.predict_proba(np.eye(5, 64, dtype=np.float32))
    assert predicted.shape == (5, len(classifier.class_names_))
    np.testing.assert_allclose(predicted.sum(1), 1, atol=1e-4)
    "".join(classifier.class_names_).encode()
    assert run.result() is not None


def read_model(kind: str, file: Path) -> None:
    """Compute the features of a few classes and an image."""
    from dspt.backbone.checkpoint import open_checkpoint
    from dspt.backbone.image import ImageTower
    from dspt.backbone.prompt import initial_context, layout_context
    from dspt.backbone.text import Prompts, TextTower

    checkpoint = open_checkpoint(file.parent)
    text = TextTower(checkpoint)
    layout = layout_context(checkpoint, NAMES, 4)
    prototypes = Prompts(text, layout)(initial_context(checkpoint, text.embeddings, layout, 1)).detach().numpy()
    image = ImageTower(checkpoint)
    features = image(image.preprocessing.test_view(picture())[None])
    assert 0 < checkpoint.logit_scale < 1000
    for found in (prototypes, features):
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4)
    assert len(checkpoint.fingerprint) == len(checkpoint.tokenizer_fingerprint)


def child(which: str) -> None:
    """Read all damaged files and print how often each kind was read, and how often told of."""
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    tables = [kind for kind in table_files() if not kind.startswith(("labels", "split"))]
    read, kinds = {
        "images": (read_image, list(image_files())),
        "tables": (read_table, tables),
        "labels": (read_table, [kind for kind in table_files() if kind not in tables]),
        "runs": (read_run, list(RUN_KINDS)),
        "models": (read_model, list(MODEL_KINDS)),
    }[which]
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            read(kind, placed(folder, kind, None))  # it is good; and imports are done
        before = megabytes()
        for kind in kinds:
            for number in range(COUNTS[which] * TIMES):
                file = placed(folder, kind, damaged(kind, number))
                faulthandler.dump_traceback_later(HANGS, exit=True)
                with watched(kind, number):
                    outcomes[kind][outcome(read, kind, file)] += 1
            placed(folder, kind, None)
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"outcomes": outcomes, "megabytes": megabytes() - before}))


def outcome(read: Callable[[str, Path], None], kind: str, file: Path) -> str:
    from dspt.internal.errors import InputError

    try:
        read(kind, file)
        return "read"
    except InputError as error:
        one_sentence(str(error))
    return "told"


def one_sentence(sentence: str) -> None:
    assert len(sentence.splitlines()) == 1, repr(sentence)
    assert len(sentence) <= LONGEST_SENTENCE, f"{len(sentence)} characters"


def placed(folder: str, kind: str, data: bytes | None) -> Path:
    """Return the file with these data, or whole, and whatever belongs to it around it."""
    around, _, name = kind.rpartition("/")
    if around:
        file = Path(folder, kind)
        if not file.parent.is_dir():
            file.parent.mkdir()
            for other, whole in folders()[around].items():
                file.with_name(other).write_bytes(whole)
    else:
        file = Path(folder, "dtd", kind if "." in kind else "image.jpg")
        file.parent.mkdir(exist_ok=True)
    if data is None:
        data = folders()[around][name] if around else {**image_files(), **table_files()}[kind]
    file.write_bytes(data)
    return file


@contextmanager
def watched(kind: str, number: int) -> Iterator[None]:
    """See to it that the block neither fails nor warns."""
    where = f"damaged({kind!r}, {number})"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            yield
        except BaseException as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    assert not told, f"{where}: {told[0].category.__name__}: {told[0].message}"


def megabytes() -> float:
    """Return the most memory that this process ever had."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1024**2 if sys.platform == "darwin" else 1024)


def run_child(which: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-X", "faulthandler", __file__, which], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_damaged_images_are_read_or_told_of_in_one_sentence():
    told = run_child("images")
    outcomes = told["outcomes"]
    assert sum(sum(one.values()) for one in outcomes.values()) >= 2_000
    # The damage is neither so small nor so great that nothing is learnt from it.
    assert all(one["told"] >= 3 for one in outcomes.values()), outcomes
    assert sum(one.get("read", 0) for one in outcomes.values()) >= 300
    assert told["megabytes"] < MOST_MEGABYTES


@pytest.mark.parametrize("which", ["tables", "labels"])
def test_damaged_tables_features_and_labels_are_read_or_told_of_in_one_sentence(which):
    told = run_child(which)
    outcomes = told["outcomes"]
    assert sum(sum(one.values()) for one in outcomes.values()) >= 300
    assert all(one["told"] >= 3 for one in outcomes.values()), outcomes
    assert sum(one.get("read", 0) for one in outcomes.values()) >= 15
    assert told["megabytes"] < MOST_MEGABYTES


@pytest.mark.parametrize("which", ["runs", "models"])
def test_damaged_runs_and_checkpoints_are_read_or_told_of_in_one_sentence(which):
    told = run_child(which)
    outcomes = told["outcomes"]
    assert sum(sum(one.values()) for one in outcomes.values()) >= 200
    assert sum(one["told"] for one in outcomes.values()) >= 100, outcomes
    assert sum(one.get("read", 0) for one in outcomes.values()) >= 20, outcomes
    assert told["megabytes"] < MOST_MEGABYTES_OF_A_MODEL


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.stdout.buffer.write(damaged(sys.argv[1], int(sys.argv[2])))
    else:
        child(sys.argv[1])
