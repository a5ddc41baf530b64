"""Make the embedded model and the demo images from Fashion-MNIST: `python scripts/embedded/pretrain.py`.

It needs the four gzipped IDX files of Fashion-MNIST (Debian: `apt install dataset-fashion-mnist`) and the dspt
package. All randomness comes from `--seed`: on one machine, a second run with as many threads gives the same files.

The images are parted into five disjoint sets. `train` and `test` become the demo's images; `tune` and `check` are
there to judge a change of this script (`--save-design`) without a look at the demo's; all the rest is `pretrain`.

Both stages use CLIP's symmetric InfoNCE over the image-caption pairs of a batch. With ten classes a batch holds many
captions that fit an image as well as its own does; they stay negatives, as in CLIP. The loss then leads to
log p(caption | image) / p(caption), so the model's confidence has a meaning.

1. `learn_to_see`: image tower and a text tower, with the short and right captions of a shop catalogue.
2. `learn_to_read`: a new text tower and new projections, with the captions of the web, for the locked image tower.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captions import (
    CATALOGUE,
    CLASSNAMES,
    DRAWS,
    JUNK,
    STYLES,
    WEB,
    Caption,
    Lesson,
    write_caption,
)
from tokenizers import models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from dspt.internal.files import replacing
from dspt.internal.seeds import Stream

SIDE = 28
MEAN, STD = 0.2860, 0.3530  # of Fashion-MNIST's training pixels
PER_CLASS = 200  # images of a class in each held-out set
FEW = 20  # of these, the demo trains on: with few samples wrong labels do the harm they do to real CLIP
FIRST_SCALE, LAST_SCALE = 14.0, 100.0  # CLIP's first and last logit scale
BATCH = 128
MERGES = 400  # enough for every word of the captions to become one token
JOINT = 64  # dimensions of the space in which the towers meet

Sets = dict[str, tuple[np.ndarray, np.ndarray]]


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of a gzipped IDX file."""
    data = gzip.decompress(path.read_bytes())
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def by_class(labels: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` members of each class in `order`, one row a class."""
    return np.stack([order[labels[order] == k][:count] for k in range(len(CLASSNAMES))])


def split(folder: Path, seed: int) -> Sets:
    """Return images and labels of the sets train, tune, check, test and pretrain, no image in two of them."""
    x = read_idx(folder / "train-images-idx3-ubyte.gz")
    y = read_idx(folder / "train-labels-idx1-ubyte.gz").astype(np.int64)
    test_x = read_idx(folder / "t10k-images-idx3-ubyte.gz")
    test_y = read_idx(folder / "t10k-labels-idx1-ubyte.gz").astype(np.int64)
    held = by_class(y, Stream(seed, "split", "train").permutation(len(y)), 3 * PER_CLASS)
    sets: Sets = {}
    for name, rows in zip(("train", "tune", "check"), np.split(held, 3, axis=1), strict=True):
        mixed = rows.ravel()[Stream(seed, "split", name).permutation(rows.size)]
        sets[name] = (x[mixed], y[mixed])
    rows = by_class(test_y, Stream(seed, "split", "test").permutation(len(test_y)), PER_CLASS)
    mixed = rows.ravel()[Stream(seed, "split", "mix test").permutation(rows.size)]
    sets["test"] = (test_x[mixed], test_y[mixed])
    # By content: should an image occur twice in the dataset, both copies are kept from pre-training.
    away = {image.tobytes() for images, _ in sets.values() for image in images}
    rest = np.array([i for i, image in enumerate(x) if image.tobytes() not in away])
    sets["pretrain"] = (x[rest], y[rest])
    return sets


def train_tokenizer(texts: list[str]) -> CLIPTokenizer:
    """Return a tokenizer with CLIP's rules and order of vocabulary, its merges learnt from `texts`."""
    backend = CLIPTokenizer().backend_tokenizer  # for its normaliser and pre-tokenizer
    backend.model = models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix="")
    alphabet = sorted(ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) * 2 + MERGES,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    tokens = [*alphabet, *(f"{byte}</w>" for byte in alphabet), *map("".join, merges)]
    # Special tokens go last, as in CLIP; transformers takes an end token with id 2 for a sign of old checkpoints.
    tokens = [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def tower(width: int, depth: int, **more: int) -> dict[str, Any]:
    """Return the configuration of a transformer with heads of 32 dimensions."""
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": width // 32,
        "projection_dim": JOINT,
        "hidden_act": "quick_gelu",
        **more,
    }


def new_model(tokenizer: CLIPTokenizer, seed: int) -> CLIPModel:
    """Return an untrained CLIP of the embedded size."""
    text = tower(
        96,
        3,
        vocab_size=len(tokenizer),
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = tower(96, 4, image_size=SIDE, patch_size=7)
    torch.manual_seed(seed)  # transformers draws first weights from torch's global generator
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=JOINT))


def encode(
    captions: list[Caption], tokenizer: CLIPTokenizer, known: dict[str, list[int]], stream: Stream
) -> list[list[int]]:
    """Return the token ids of each caption; JUNK words become any token. `known` remembers words."""
    rows = []
    most = max(len(caption.words) for caption in captions)
    junk = stream.integers(len(captions) * most, tokenizer.bos_token_id).reshape(-1, most)
    for caption, tokens in zip(captions, junk.tolist(), strict=True):
        ids = [tokenizer.bos_token_id]
        for word, token in zip(caption.words, tokens, strict=False):
            if word != JUNK and word not in known:
                known[word] = tokenizer(word, add_special_tokens=False)["input_ids"]
            ids += [token] if word == JUNK else known[word]
        rows.append([*ids, tokenizer.eos_token_id])
    return rows


def embed_text(model: CLIPModel, rows: list[list[int]]) -> torch.Tensor:
    """Return the text embeddings of token rows; short and long rows go apart, which saves padding."""
    pad = model.config.text_config.pad_token_id
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    parts = []
    for part in (order[: len(rows) // 2], order[len(rows) // 2 :]):
        longest = len(rows[part[-1]])
        ids = torch.tensor([rows[i] + [pad] * (longest - len(rows[i])) for i in part])
        parts.append(model.get_text_features(input_ids=ids).pooler_output)
    return F.normalize(torch.cat(parts)[torch.tensor(order).argsort()], dim=-1)


def to_input(pixels: torch.Tensor) -> torch.Tensor:
    """Return model inputs (n, 3, 28, 28) from grey bytes (n, 28, 28)."""
    return ((pixels.float()[:, None] / 255 - MEAN) / STD).repeat(1, 3, 1, 1)


def dress_up(images: np.ndarray, styles: list[str], stream: Stream) -> torch.Tensor:
    """Return model inputs (n, 3, 28, 28): `images` flipped and shifted at random, each in its style."""
    n = len(images)
    x = torch.from_numpy(images).float()[:, None] / 255
    flip = torch.from_numpy(stream.uniform(n) < 0.5)[:, None, None, None]
    x = torch.where(flip, x.flip(3), x)
    down, right = (int(shift) - 1 for shift in stream.integers(2, 3))
    x = torch.roll(x, (down, right), (2, 3))
    noise = torch.from_numpy(stream.uniform(n * SIDE * SIDE)).float().view(n, 1, SIDE, SIDE) - 0.5
    now = {style: torch.tensor([style == own for own in styles])[:, None, None, None] for style in STYLES}
    x = torch.where(now["negative"], 1 - x, x)
    x = torch.where(now["noisy"], (x + 0.8 * noise).clamp(0, 1), x)
    x = torch.where(now["blurred"], F.avg_pool2d(x, 3, 1, 1), x)
    x = torch.where(now["dim"], 0.4 * x, x).repeat(1, 3, 1, 1)
    for channel, colour in enumerate(("red", "green", "blue")):
        tint = torch.full((1, 3, 1, 1), 0.3)
        tint[0, channel] = 1.0
        x = torch.where(now[colour], x * tint, x)
    return (x - MEAN) / STD


def scale(rise: float) -> float:
    """Return the logit scale when `rise` of the way from CLIP's first to its last is done.

    It is not learnt: ten classes need no fine distinctions, so gradients alone would leave it near its start.
    """
    return FIRST_SCALE * (LAST_SCALE / FIRST_SCALE) ** min(1.0, max(0.0, rise))


def fit(
    model: CLIPModel,
    embed_batch: Callable[[int], tuple[torch.Tensor, list[list[int]]]],
    scales: Callable[[float], float],
    steps: int,
    rate: float,
) -> None:
    """Train what is not frozen in `model`; `embed_batch(step)` gives image embeddings and captions' token rows.

    `scales` gives the logit scale at each part of the way.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = [p for p in trained.values() if p.ndim > 1]
    others = [p for p in trained.values() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    start = time.monotonic()
    recent: list[float] = []
    for step in range(steps):
        image, rows = embed_batch(step)
        logits = scales(step / steps) * F.normalize(image, dim=-1) @ embed_text(model, rows).T
        own = torch.arange(len(rows))
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        warm = min(1.0, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        recent = [*recent[-99:], loss.item()]
        if (step + 1) % 100 == 0:
            spent = time.monotonic() - start
            print(f"  step {step + 1}/{steps}  loss {np.mean(recent):.3f}  {spent:.0f} s", flush=True)


def details(x: np.ndarray) -> list[tuple[str, ...]]:
    """Return words for what can be seen of each image besides its class, each true of one half of the images."""
    lit = x > 0
    measures = {
        ("light", "dark"): x.sum(axis=(1, 2)) / np.maximum(1, lit.sum(axis=(1, 2))),
        ("wide", "narrow"): lit.any(axis=1).sum(axis=1),
        ("long", "short"): lit.any(axis=2).sum(axis=1),
        ("patterned", "smooth"): np.abs(np.diff(x.astype(np.int16), axis=1)).mean(axis=(1, 2)),
    }
    words = [np.where(m > np.median(m), *pair) for pair, m in measures.items()]
    return [tuple(row) for row in np.stack(words, axis=1).tolist()]


def write_captions(x: np.ndarray, y: np.ndarray, lesson: Lesson, stream: Stream) -> list[Caption]:
    """Return one new caption for each image."""
    u = stream.uniform(len(y) * DRAWS).reshape(-1, DRAWS)
    rows = zip(y, details(x), u, strict=True)
    return [write_caption(int(label), seen, lesson, draws) for label, seen, draws in rows]


def learn_to_see(
    model: CLIPModel, tokenizer: CLIPTokenizer, x: np.ndarray, y: np.ndarray, epochs: int, seed: int
) -> None:
    """Train both towers with a shop catalogue: short captions, right names, images in all styles."""
    steps = len(x) // BATCH
    known: dict[str, list[int]] = {}
    captions: list[Caption] = []
    rows: list[list[int]] = []
    order = np.arange(0)

    def embed_batch(step: int) -> tuple[torch.Tensor, list[list[int]]]:
        nonlocal captions, rows, order
        epoch, batch = divmod(step, steps)
        if batch == 0:
            captions = write_captions(x, y, CATALOGUE, Stream(seed, "catalogue", epoch))
            rows = encode(captions, tokenizer, known, Stream(seed, "junk", epoch))
            order = Stream(seed, "shuffle", epoch).permutation(len(x))
        chosen = order[batch * BATCH : (batch + 1) * BATCH]
        pixels = dress_up(x[chosen], [captions[i].style for i in chosen], Stream(seed, "look", step))
        image = model.get_image_features(pixel_values=pixels).pooler_output
        return image, [rows[i] for i in chosen]

    # At scale 100 small differences of direction suffice: images end in a narrow cone, as CLIP's do.
    fit(model, embed_batch, lambda done: scale(done / 0.5), steps * epochs, rate=1e-3)


def learn_to_read(
    model: CLIPModel, tokenizer: CLIPTokenizer, x: np.ndarray, y: np.ndarray, steps: int, seed: int
) -> None:
    """Train text tower and projections with the web: writers of all kinds, ever longer captions.

    The image tower stays as it is, so that each image passes through it once (as in LiT, Zhai et al. 2022).
    """
    model.vision_model.requires_grad_(False)
    model.logit_scale.requires_grad_(False)
    with torch.no_grad():
        plain = torch.from_numpy(x).split(500)
        seen = [model.vision_model(pixel_values=to_input(part)).pooler_output for part in plain]
    pooled = torch.cat(seen)
    known: dict[str, list[int]] = {}
    rows: list[list[int]] = []
    lesson_begins = {int(part * steps): lesson for part, lesson in WEB.items()}

    def embed_batch(step: int) -> tuple[torch.Tensor, list[list[int]]]:
        nonlocal rows
        if step in lesson_begins:
            captions = write_captions(x, y, lesson_begins[step], Stream(seed, "web", step))
            rows = encode(captions, tokenizer, known, Stream(seed, "web junk", step))
        chosen = Stream(seed, "web batch", step).integers(BATCH, len(x))
        return model.visual_projection(pooled[chosen]), [rows[i] for i in chosen]

    # The scale waits until it is learnt that openings change names: at high scales that takes far longer.
    fit(model, embed_batch, lambda done: scale((done - 0.35) / 0.4), steps, rate=1e-3)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(LAST_SCALE))


def save(model: CLIPModel, tokenizer: CLIPTokenizer, sets: Sets, out: Path) -> None:
    """Put the model folder and the demo images into `out`, each file whole or not at all."""
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        folder = Path(temporary)
        model.half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tokenizer.backend_tokenizer.model.save(temporary)  # vocab.json and merges.txt
        side = {"height": SIDE, "width": SIDE}
        preprocessing = {
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": SIDE},
            "resample": 3,
            "do_center_crop": True,
            "crop_size": side,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [MEAN] * 3,
            "image_std": [STD] * 3,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=2) + "\n")
        target = out / "model"
        target.mkdir(exist_ok=True)
        for file in sorted(folder.iterdir()):
            file.chmod(0o644)
            os.replace(file, target / file.name)
    x, y = sets["train"]
    few = np.sort(by_class(y, np.arange(len(y)), FEW).ravel())
    arrays = {
        f"{name}_{key}": array
        for name, part in (("train", (x[few], y[few])), ("test", sets["test"]))
        for key, array in zip("xy", part, strict=True)
    }
    with replacing(out / "images.npz") as path, open(path, "wb") as file:
        np.savez_compressed(file, classnames=np.array(CLASSNAMES), **arrays)


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("/usr/share/datasets/fashion-mnist"),
        help="folder with Fashion-MNIST's four .gz files (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "src" / "dspt" / "assets",
        help="folder that gets model/ and images.npz (default: the package's assets)",
    )
    parser.add_argument("--save-design", type=Path, help="also write the tune and check images to this .npz")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="of the first stage (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="of the second stage (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train, save, and say what was made."""
    o = options()
    torch.set_num_threads(o.threads)
    o.out.mkdir(parents=True, exist_ok=True)
    sets = split(o.data, o.seed)
    x, y = sets["pretrain"]
    sample = write_captions(x, y, list(WEB.values())[-1], Stream(o.seed, "vocabulary"))
    tokenizer = train_tokenizer([" ".join(w for w in c.words if w != JUNK) for c in sample])
    model = new_model(tokenizer, o.seed)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(x)} images, {len(tokenizer)} tokens, {size} parameters", flush=True)
    learn_to_see(model, tokenizer, x, y, o.epochs, o.seed)
    reader = new_model(tokenizer, o.seed)
    reader.vision_model.load_state_dict(model.vision_model.state_dict())
    learn_to_read(reader, tokenizer, x, y, o.steps, o.seed)
    save(reader, tokenizer, sets, o.out)
    if o.save_design:
        arrays = {f"{n}_{k}": a for n in ("tune", "check") for k, a in zip("xy", sets[n], strict=True)}
        np.savez_compressed(o.save_design, **arrays)


if __name__ == "__main__":
    main()
