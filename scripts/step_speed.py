"""Measure one training step against the reference way, side by side in one process.

The reference is CoOp's step with nothing held against it: transformers' own text tower in eval mode, frozen, batched
over classes, SDPA attention, all 77 positions of every class, forward and backward to the context. Ours computes the
same function. Weights are random, in the size of CLIP ViT-B/16's text tower, since speed does not depend on them; names
are random words with the token counts of the paper's datasets.

    python scripts/step_speed.py --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import CLIPTextConfig, CLIPTextModelWithProjection
from transformers.utils import logging

from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.prompt import Layout, initial_context
from dspt.backbone.text import TextTower

# name, classes, positions of a step when the prefix is shared and suffixes are packed (SOT, 16 contexts, suffixes)
DATASETS = (
    ("EuroSAT", 10, 61),
    ("OxfordPets", 37, 171),
    ("Caltech101", 100, 364),
    ("FGVCAircraft", 100, 741),
    ("StanfordCars", 196, 2082),
)
CONTEXT, LENGTH = 16, 77


def main() -> None:
    """Print a Markdown table of median seconds and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed steps of each kind (default 5)"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = vit_b_text_tower(Path(folder))
        print(
            f"torch {torch.__version__}, {arguments.threads} threads, {arguments.repeats} repeats, median\n"
        )
        print(
            "| names as in | C | positions, reference | positions, ours | reference s | ours s | ratio "
            "| of GEMM rate | features differ | gradient differs |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for name, classes, positions in DATASETS:
            print(row(checkpoint, name, classes, positions, arguments.repeats), flush=True)


def vit_b_text_tower(folder: Path) -> Checkpoint:
    """Return a random checkpoint in the size of CLIP ViT-B/16's text tower."""
    torch.manual_seed(0)
    config = CLIPTextConfig(bos_token_id=49406, eos_token_id=49407, pad_token_id=49407)
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    return open_checkpoint(folder)


def row(checkpoint: Checkpoint, name: str, classes: int, positions: int, repeats: int) -> str:
    """Return one line of the table."""
    suffixes = random_suffixes(classes, positions - 1 - CONTEXT)
    images = F.normalize(torch.randn(32, 512), dim=1)
    labels = torch.arange(32) % classes

    tower = TextTower(checkpoint)
    prompts = tower.compile(layout(suffixes))
    ours_context = initial_context(checkpoint, tower.embeddings, prompts.layout, 1).requires_grad_()
    their_context = ours_context.detach().clone().requires_grad_()
    class_features = reference(checkpoint, suffixes)

    def step(features: torch.Tensor, context: torch.Tensor) -> None:
        context.grad = None
        F.cross_entropy(100 * images @ features.T, labels).backward()

    seconds: dict[str, list[float]] = {"reference": [], "ours": []}
    for repeat in range(repeats + 1):  # the first one warms up
        for kind, function, context in (
            ("reference", class_features, their_context),
            ("ours", prompts, ours_context),
        ):
            started = time.perf_counter()
            step(function(context), context)
            if repeat:
                seconds[kind].append(time.perf_counter() - started)
    theirs, ours = (statistics.median(seconds[kind]) for kind in ("reference", "ours"))
    with torch.no_grad():
        feature_diff = (prompts(ours_context) - class_features(their_context)).abs().max().item()
    gradient_diff = (
        (ours_context.grad - their_context.grad).norm() / their_context.grad.norm()
    ).item()
    rate = flops(classes, prompts.tokens) / ours / gemm_rate(prompts.tokens)
    return (
        f"| {name} | {classes} | {classes * LENGTH} | {prompts.tokens} | {theirs:.2f} | {ours:.3f} | "
        f"{theirs / ours:.1f} | {rate:.2f} | {feature_diff:.0e} | {gradient_diff:.0e} |"
    )


def random_suffixes(classes: int, total: int) -> list[list[int]]:
    """Return token ids of `classes` suffixes, ended by EOT, that have `total` tokens together."""
    lengths = np.full(classes, total // classes)
    lengths[: total % classes] += 1
    random = np.random.RandomState(0)
    return [[*random.randint(1000, 40000, n - 1).tolist(), 49407] for n in lengths]


def layout(suffixes: list[list[int]]) -> Layout:
    """Return the layout [SOT | 16 contexts | suffix]."""
    prefix = (49406, *(-1 - row for row in range(CONTEXT)))
    return Layout(prefix, tuple(map(tuple, suffixes)), (CONTEXT,))


def reference(checkpoint: Checkpoint, suffixes: list[list[int]]):
    """Return the function context -> class features, by transformers over all 77 positions."""
    model = (
        CLIPTextModelWithProjection.from_pretrained(checkpoint.folder).eval().requires_grad_(False)
    )
    ids = [
        [49406] + [0] * CONTEXT + s + [49407] * (LENGTH - 1 - CONTEXT - len(s)) for s in suffixes
    ]
    table = model.get_input_embeddings()

    def class_features(context: torch.Tensor) -> torch.Tensor:
        def insert(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
            rows = context.expand(len(output), -1, -1)
            return torch.cat([output[:, :1], rows, output[:, 1 + CONTEXT :]], dim=1)

        hook = table.register_forward_hook(insert)
        try:
            return F.normalize(model(input_ids=torch.tensor(ids)).text_embeds, dim=1)
        finally:
            hook.remove()

    return class_features


def flops(classes: int, tokens: int) -> float:
    """Return the operations of the matrix products of a step: 11 whole layers, the last one at EOT only."""
    width = 512
    per_layer = 12 * width * width * 2
    last = tokens * 2 * width * width * 2 + classes * 10 * width * width * 2
    return 2 * (11 * tokens * per_layer + last)  # forward, and backward to the inputs alone


def gemm_rate(tokens: int) -> float:
    """Return the machine's own rate at the widest product of a layer, in operations a second."""
    a, b = torch.randn(tokens, 512), torch.randn(2048, 512)
    best = 0.0
    for _ in range(30):
        started = time.perf_counter()
        F.linear(a, b)
        best = max(best, 2 * a.numel() * 2048 / (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    main()
