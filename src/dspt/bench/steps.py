"""One training step, forward and backward to the context: the reference way, ours, and the matrix products alone.

The reference is CoOp's step with nothing held against it: transformers' own text tower in eval mode, frozen, batched
over classes, SDPA attention, all 77 positions of every class. Weights are random, in the size of CLIP's text towers,
since speed does not depend on them; names are random tokens, as long as the datasets' real names, each with a
beginning of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.prompt import Layout, initial_context
from dspt.backbone.text import Prompts, TextTower
from dspt.bench.timing import seconds, spread
from dspt.internal.progress import Reporter

# A context becomes the features of the classes.
ClassFeatures = Callable[[Tensor], Tensor]

SIZES: dict[str, dict[str, int]] = {
    "vit-b-16": {},  # transformers' defaults: width 512, 12 layers, 8 heads
    "vit-l-14": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "projection_dim": 768,
    },
}
CONTEXT, LENGTH, BATCH = 16, 77, 32
START, END = 49406, 49407

# The reference is measured with so many classes at most, all at once as CoOp does, and scaled beyond: its operations
# are the same for each, and with more its memory would outgrow a laptop's. That is to its advantage.
REFERENCE_CLASSES = 100

# A short step of ours is measured this often, with the products alone in between, for each of the reference.
_PAIRS, _SHORT = 3, 100

# The whole run: Caltech101's images, the paper's recipe.
TRAIN, TEST, EPOCHS, TEST_BATCH, TESTS = 4128, 2465, 50, 100, 5


@dataclass(frozen=True)
class Case:
    """Classes with names of a certain length."""

    key: str
    classes: int
    suffixes: dict[int, int]  # tokens of name, full stop and EOT: how many names have so many

    def lengths(self) -> list[int]:
        """Return the number of tokens of each class's suffix; the names are taken again where there are fewer."""
        names = np.repeat(list(self.suffixes), list(self.suffixes.values()))
        lengths = np.resize(np.random.RandomState(0).permutation(names), self.classes)
        return [int(length) for length in lengths]


# By the real names of the datasets; "short" names are as long as Caltech101's.
EUROSAT = {3: 2, 4: 3, 5: 4, 6: 1}
PETS = {3: 9, 4: 16, 5: 9, 6: 3}
CALTECH = {3: 61, 4: 31, 5: 8}
CARS = {9: 55, 10: 74, 11: 30, 12: 11, 13: 8, 14: 10, 15: 6, 16: 1, 18: 1}

CASES = {
    case.key: case
    for case in (
        Case("10", 10, EUROSAT),
        Case("37", 37, PETS),
        Case("100", 100, CALTECH),
        Case("196", 196, CALTECH),
        Case("196-cars", 196, CARS),
        Case("1000", 1000, CALTECH),
    )
}


def measure(
    size: str,
    cases: Sequence[Case],
    repeats: int,
    reporter: Reporter,
    reference_classes: int = REFERENCE_CLASSES,
) -> dict[str, dict[str, float]]:
    """Return, for each case, the medians of `repeats` interleaved measurements.

    Parameters
    ----------
    size : str
        The size of the text tower, a key of `SIZES`.
    cases : sequence of Case
        How many classes, and how long their names are.
    repeats : int
        How often a step of the reference is timed, with ours beside it.
    reporter : Reporter
        Shows how far the work is.
    reference_classes : int
        The most classes the reference is measured with; times of more are scaled up from these.

    Returns
    -------
    dict of str to dict of str to float
        By key of the case. Times are in seconds; "ratio" is the reference's over ours.
    """
    found = {}
    with (
        random_text_tower(size) as checkpoint,
        reporter.task(f"training steps, {size}", len(cases)) as update,
    ):
        for number, case in enumerate(cases):
            found[case.key] = _measure(checkpoint, case, repeats, reference_classes)
            update(number + 1, "")
    return found


def _measure(checkpoint: Checkpoint, case: Case, repeats: int, reference_classes: int) -> dict[str, float]:
    suffixes = random_suffixes(case)
    compared = min(case.classes, reference_classes)
    prompts = TextTower(checkpoint).compile(layout(suffixes))
    theirs = reference(checkpoint, suffixes[:compared])
    begin = initial_context(checkpoint, prompts.tower.embeddings, prompts.layout, 1)
    images = F.normalize(torch.randn(BATCH, prompts.tower.feature_dim), dim=1)

    def step(class_features: ClassFeatures) -> None:
        context = begin.clone().requires_grad_()
        logits = 100 * images @ class_features(context).T
        loss = F.cross_entropy(logits, torch.arange(BATCH) % logits.shape[1])
        torch.autograd.backward(loss)

    @torch.no_grad()
    def forward(class_features: ClassFeatures) -> None:
        class_features(begin)

    feature_diff, gradient_diff = differences(prompts, theirs, begin, compared)  # warms up, too
    ours, scaled, ratios, fractions, alone = [], [], [], [], []
    forwards, scaled_forwards = [], []
    products_alone = matrix_products(prompts, case.classes)
    scale = case.classes / compared
    for _ in range(repeats):
        mine = []
        for _ in range(_PAIRS if case.classes <= _SHORT else 1):
            before, gemm, after = (
                seconds(step, prompts),
                seconds(products_alone),
                seconds(step, prompts),
            )
            mine += [before, after]
            alone.append(gemm)
            fractions.append(gemm / statistics.fmean([before, after]))
        scaled.append(seconds(step, theirs) * scale)
        forwards.append(seconds(forward, prompts))
        scaled_forwards.append(seconds(forward, theirs) * scale)
        ours += mine
        ratios.append(scaled[-1] / statistics.median(mine))
    return {
        "classes": case.classes,
        "reference_classes": compared,
        "positions": prompts.tokens,
        "reference_positions": case.classes * LENGTH,
        **spread("ours_seconds", ours),
        **spread("reference_seconds", scaled),
        "ours_forward_seconds": statistics.median(forwards),
        "reference_forward_seconds": statistics.median(scaled_forwards),
        **spread("ratio", ratios),
        "gemm_seconds": statistics.median(alone),
        "gemm_gflops": operations(prompts, case.classes) / statistics.median(alone) / 1e9,
        **spread("gemm_fraction", fractions),
        "feature_diff": feature_diff,
        "gradient_diff": gradient_diff,
    }


def differences(
    prompts: ClassFeatures,
    theirs: ClassFeatures,
    begin: Tensor,
    compared: int,
) -> tuple[float, float]:
    """Return how far the first class features (absolute) and their gradient (relative) are from the reference's.

    Parameters
    ----------
    prompts : callable
        Ours, from a context to class features (C, D).
    theirs : callable
        The reference, from a context to features of at least the first `compared` classes.
    begin : Tensor
        The context at which both are compared; it is left as it is.
    compared : int
        How many classes are compared, from the first on.

    Returns
    -------
    feature_difference : float
        The largest absolute difference of a number of the features.
    gradient_difference : float
        The norm of the gradients' difference over the norm of the reference's gradient.
    """
    found = []
    for class_features in (prompts, theirs):
        context = begin.clone().requires_grad_()
        features = class_features(context)[:compared]
        weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
        torch.autograd.backward((features * weights).sum())
        assert context.grad is not None
        found.append((features.detach(), context.grad))
    (ours, our_gradient), (other, other_gradient) = found
    gradient_diff = (our_gradient - other_gradient).norm() / other_gradient.norm()
    return (ours - other).abs().max().item(), gradient_diff.item()


def products(prompts: Prompts, classes: int) -> list[tuple[int, int, int, int]]:
    """Return the matrix products of a forward pass as (count, rows, inputs, outputs), without attention's own.

    Each has one in the backward pass, to its inputs; there is none to the weights, which are frozen.
    """
    width, layers = prompts.tower.width, prompts.tower.layers
    hidden = prompts.tower.hidden_width
    rows, prefix = prompts.tokens, len(prompts.layout.prefix)
    return [
        (1, prefix if prompts.first_layer_kept else rows, width, 3 * width),  # first layer
        (layers - 1, rows, width, 3 * width),
        (layers - 1, rows, width, width),
        (layers - 1, rows, width, hidden),
        (layers - 1, rows, hidden, width),
        # in the last layer only EOT goes on
        *((1, classes, inputs, outputs) for inputs, outputs in ((width, width), (width, hidden))),
        (1, classes, hidden, width),
    ]


def operations(prompts: Prompts, classes: int) -> int:
    """Return the floating-point operations of a step's matrix products, forward and backward."""
    return sum(2 * 2 * n * r * i * o for n, r, i, o in products(prompts, classes))


def matrix_products(prompts: Prompts, classes: int) -> Callable[[], None]:
    """Return a function that does the matrix products of a step, and nothing else.

    Each has a weight of its own, as in the tower: together they are many times as large as a processor's cache, and a
    product repeated with the same weight would be faster than any step can be. Results go where they went before, so
    that taking memory from the system is not counted as the products' own time.
    """
    operands = [
        (torch.randn(rows, inputs), torch.randn(rows, outputs), torch.randn(count, outputs, inputs))
        for count, rows, inputs, outputs in products(prompts, classes)
    ]
    results = [(torch.empty_like(gradient), torch.empty_like(x)) for x, gradient, _ in operands]

    def multiply() -> None:
        for (x, gradient, weights), (forward, backward) in zip(operands, results, strict=True):
            for weight in weights:
                torch.mm(x, weight.T, out=forward)
                torch.mm(gradient, weight, out=backward)

    multiply()  # warms up
    return multiply


def whole_run(step: dict[str, float], encode: dict[str, float]) -> dict[str, float]:
    """Return a 50-epoch run on Caltech101, images included, from its measured parts.

    The reference encodes every batch anew, a new crop of each image, and runs the text tower over all positions, at
    every step and for every test batch of the last five epochs. Ours encodes each image once, its centre view, and
    tests after every epoch; with the same views it encodes a crop of each training image for every epoch, as `--views
    50` does. The lowest ratio is that of our slowest step with the reference's fastest, the highest the other way
    round.
    """
    steps = EPOCHS * (TRAIN // BATCH)
    image = 1 / encode["tower"]
    test_batches = -(-TEST // TEST_BATCH)

    def reference(key: str) -> float:
        test = TESTS * (TEST * image + test_batches * step["reference_forward_seconds"])
        return steps * (BATCH * image + step[key]) + test

    def ours(key: str, views: int = 1) -> float:
        encoded = (views * TRAIN + TEST) / encode["files"]
        return encoded + steps * step[key] + EPOCHS * step["ours_forward_seconds"]

    theirs, mine = reference("reference_seconds"), ours("ours_seconds")
    same_views = ours("ours_seconds", views=EPOCHS)
    return {
        "reference_seconds": theirs,
        "ours_seconds": mine,
        "ratio": theirs / mine,
        "ratio_lowest": reference("reference_seconds_lowest") / ours("ours_seconds_highest"),
        "ratio_highest": reference("reference_seconds_highest") / ours("ours_seconds_lowest"),
        "ours_same_views_seconds": same_views,
        "ratio_same_views": theirs / same_views,
    }


@contextmanager
def random_text_tower(size: str) -> Iterator[Checkpoint]:
    """Yield a checkpoint with random weights, in the size of CLIP's text tower."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokens = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": END}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        torch.manual_seed(0)
        config = CLIPTextConfig(**SIZES[size], **tokens)
        CLIPTextModelWithProjection(config).save_pretrained(folder)
        yield open_checkpoint(Path(folder))


def random_suffixes(case: Case) -> list[list[int]]:
    """Return token ids of each class's suffix, ended by EOT. No two begin alike, so that none share a position."""
    random = np.random.RandomState(0)
    firsts = random.permutation(np.arange(1000, 40000)).tolist()
    return [
        [first, *random.randint(1000, 40000, n - 2).tolist(), END]
        for first, n in zip(firsts, case.lengths(), strict=False)
    ]


def layout(suffixes: Sequence[Sequence[int]]) -> Layout:
    """Return the layout [SOT | 16 contexts | suffix]."""
    prefix = (START, *(-1 - row for row in range(CONTEXT)))
    return Layout(prefix, tuple(map(tuple, suffixes)), (CONTEXT,))


def reference(checkpoint: Checkpoint, suffixes: Sequence[Sequence[int]]) -> ClassFeatures:
    """Return the function context -> class features, by transformers over all 77 positions."""
    from transformers import CLIPTextModelWithProjection

    model: Any = CLIPTextModelWithProjection.from_pretrained(checkpoint.folder, attn_implementation="sdpa")
    model.eval().requires_grad_(False)
    ids = torch.tensor(
        [[START, *[0] * CONTEXT, *suffix, *[END] * (LENGTH - 1 - CONTEXT - len(suffix))] for suffix in suffixes]
    )
    table = model.get_input_embeddings()

    def class_features(context: Tensor) -> Tensor:
        def insert(module: object, inputs: object, output: Tensor) -> Tensor:
            rows = context.expand(len(output), -1, -1)
            return torch.cat([output[:, :1], rows, output[:, 1 + CONTEXT :]], dim=1)

        hook = table.register_forward_hook(insert)
        try:
            return F.normalize(model(input_ids=ids).text_embeds, dim=1)
        finally:
            hook.remove()

    return class_features
