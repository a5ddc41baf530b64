"""A training step of ViT-B/16's text tower against the machine's own matrix products.

Run `OMP_NUM_THREADS=1 python scripts/text_step.py`. A step, forward and backward to the context, its matrix products
alone by torch's own function (`dspt.bench.steps.matrix_products`), and these by the tower's, which packs weights where
that is faster, are done in turn, so that a machine which others use is the same for all. Time is the processor's, the
least of several rounds counts, and a share is the median of the rounds with their range. `--plain` leaves weights as
they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from dspt.backbone import layer
from dspt.backbone.layer import Product
from dspt.backbone.prompt import initial_context
from dspt.backbone.text import Prompts, TextTower
from dspt.bench import steps


def taken(work: Callable[[], object]) -> float:
    """Return the processor's seconds."""
    started = time.process_time()
    work()
    return time.process_time() - started


def tower_products(prompts: Prompts, classes: int) -> Callable[[], None]:
    """Return a function that does a step's matrix products as the tower does them, each with a weight of its own."""
    work = [
        (
            torch.randn(rows, inputs),
            torch.randn(rows, outputs),
            Product(torch.randn(outputs, inputs), torch.zeros(outputs)),
        )
        for count, rows, inputs, outputs in steps.products(prompts, classes)
        for _ in range(count)
    ]

    def multiply() -> None:
        for x, gradient, product in work:
            product(x)
            product.back(gradient)

    multiply()  # packs
    return multiply


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(steps.CASES)}; by default five of them")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="weights not packed")
    asked = parser.parse_args()
    if asked.plain:
        layer._is_faster_packed = lambda weight: False
    with steps.random_text_tower("vit-b-16") as checkpoint:
        tower = TextTower(checkpoint)
        for key in asked.cases or ["10", "37", "100", "196", "196-cars"]:
            case = steps.CASES[key]
            prompts = tower.compile(steps.layout(steps.random_suffixes(case)))
            begin = initial_context(checkpoint, tower.embeddings, prompts.layout, 1)
            images = F.normalize(torch.randn(steps.BATCH, tower.feature_dim), dim=1)

            def step(prompts=prompts, begin=begin, images=images) -> None:  # type: ignore[no-untyped-def]
                logits = 100 * images @ prompts(begin.clone().requires_grad_()).T
                torch.autograd.backward(F.cross_entropy(logits, torch.arange(steps.BATCH) % logits.shape[1]))

            products = steps.matrix_products(prompts, case.classes)
            packed = tower_products(prompts, case.classes)
            step()
            rounds = [[taken(work) for work in (step, products, step, packed)] for _ in range(asked.rounds)]
            ours = [(before + after) / 2 for before, _, after, _ in rounds]
            least = min(min(before, after) for before, _, after, _ in rounds)
            print(f"{key:<9}step {1e3 * least:5.0f} ms", end="")
            for name, column in (("torch's products", 1), ("the tower's", 3)):
                alone = [times[column] for times in rounds]
                shares = sorted(part / whole for part, whole in zip(alone, ours, strict=True))
                rate = steps.operations(prompts, case.classes) / min(alone) / 1e9
                print(f"; {name} {1e3 * min(alone):5.0f} ms, {rate:4.0f} GFLOP/s, ", end="")
                print(f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f}) of the step", end="")
            print(flush=True)


if __name__ == "__main__":
    main()
