"""What a lower precision of the image tower gives on this CPU, and what it costs.

Run `OMP_NUM_THREADS=1 python scripts/low_precision.py`. float32, bfloat16 (`--precision bfloat16`) and int8 (torch's
dynamic quantisation of every linear layer, which dspt does not offer) encode the same images in turn, on a random tower
of ViT-B/16's size and on the embedded one; time is the processor's, ratios are medians of the rounds. Then the embedded
images are encoded by each: accuracy of zero-shot and of prototypes learnt with clean and with noisy labels, and the F1
of the labels that the posterior calls wrong.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from dspt import corrupt, label_posterior, learners
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.backbone.text import TextTower
from dspt.bench.encoding import vit_b16
from dspt.config import Config
from dspt.data import open_dataset
from dspt.features.encoder import embed
from dspt.internal.seeds import Stream
from dspt.problem import Problem, Task
from dspt.runs import learn
from dspt.train import accuracy

NOISE, SEEDS = 0.4, (1, 2, 3)


def low(model: torch.nn.Module, precision: str) -> torch.nn.Module:
    """Return a copy of the tower in another precision."""
    if precision != "int8":
        return copy.deepcopy(model).to(getattr(torch, precision))
    torch.backends.quantized.engine = "onednn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to move this elsewhere
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def towers(tower: ImageTower) -> dict[str, ImageTower]:
    """Return the tower in each precision."""
    kinds = ("float32", "bfloat16", "int8")
    return {kind: ImageTower.of(low(tower._model, kind), tower.preprocessing) for kind in kinds}


def speeds(name: str, tower: ImageTower, images: int, rounds: int) -> None:
    """Print images a second of processor time, and how many times float32's that is."""
    side = tower.preprocessing.crop
    pixels = Stream(0, "bench", "pixels").integers(images * side * side * 3, 256).astype(np.uint8)
    views = pixels.reshape(images, side, side, 3)
    works: dict[str, Callable[[np.ndarray], np.ndarray]] = dict(towers(tower))
    seconds: dict[str, list[float]] = {kind: [] for kind in works}
    features = {kind: work(views) for kind, work in works.items()}
    for _ in range(rounds):
        for kind, work in works.items():
            started = time.process_time()
            work(views)
            seconds[kind].append(time.process_time() - started)
    for kind, values in seconds.items():
        ratios = sorted(whole / own for whole, own in zip(seconds["float32"], values, strict=True))
        cosine = (features[kind] * features["float32"]).sum(1).min()
        print(f"{name:<10}{kind:<9}{images / min(values):8.1f} images/s, ", end="")
        print(
            f"{statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f}), lowest cosine {cosine:.5f}"
        )


def costs() -> None:
    """Print accuracies and the F1 of wrong labels on the embedded images."""
    checkpoint, dataset = open_checkpoint("embedded"), open_dataset("embedded")
    names, true = dataset.class_names, dataset.train.best_labels
    text = TextTower(checkpoint)
    for kind, tower in towers(ImageTower(checkpoint)).items():
        train_x, test_x = (embed(split.items, tower) for split in (dataset.train, dataset.test))
        zero_shot = learners.zero_shot_prototypes(text, names, Config.template).numpy()

        clean, noisy, f1 = [], [], []
        for seed in SEEDS:
            given = corrupt(true, len(names), "symmetric", NOISE, seed)
            posterior = label_posterior(train_x, given, checkpoint.logit_scale * train_x @ zero_shot.T, seed=seed)
            flagged, wrong = posterior.label_quality < 0.5, given != true
            f1.append(2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum()))
            for labels, found in ((true, clean), (given, noisy)):
                config = Config(model="embedded", learner="prototypes", method="dspt", seed=seed, test_every=1000)
                task = Task.of(Problem(names, train_x, labels, true), config, learners.make(names, config, text))
                classify = task.learner.classify(learn(task).parameters)
                found.append(accuracy(test_x, dataset.test.best_labels, classify))
        first = 100 * np.mean((test_x @ zero_shot.T).argmax(1) == dataset.test.best_labels)
        print(f"embedded  {kind:<9}zero-shot {first:.2f} %, prototypes {np.mean(clean):.2f} %, ", end="")
        print(f"with sym:{NOISE} {np.mean(noisy):.2f} %; F1 of wrong labels {np.mean(f1):.4f}, seeds {SEEDS}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    speeds("ViT-B/16", vit_b16(), 8, rounds)
    speeds("embedded", ImageTower(open_checkpoint("embedded")), 32, 3 * rounds)
    costs()


if __name__ == "__main__":
    main()
