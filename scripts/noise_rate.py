"""How well the noise rate is estimated: `python scripts/noise_rate.py DATA --model MODEL [--blur 0.1]`.

For each noise, the estimate of `dspt.posterior` from the zero-shot prediction, against the truth. `--blur` adds
Gaussian noise of that size to the image features, so that zero-shot becomes worse: what is left of the estimate then?
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from dspt import learners, noise
from dspt.config import Config
from dspt.data import open_dataset
from dspt.internal.progress import Reporter
from dspt.posterior import noise_rate

NOISES = ("none", "sym:0.2", "sym:0.4", "sym:0.6", "sym:0.8", "pair:0.2", "pair:0.3", "pair:0.4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--blur", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()

    config = Config(model=asked.model)
    dataset = open_dataset(asked.data)
    tower = learners.open_text_tower(config)
    features, kept = learners.open_encoder(config, tower.checkpoint, Reporter())(dataset.train, "train")
    blur = np.random.default_rng(0).standard_normal(features.shape)
    features = features + asked.blur * blur
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    prototypes = learners.zero_shot_prototypes(tower, dataset.class_names, config.template)
    classify = learners.by_prototypes(prototypes, tower.checkpoint.logit_scale)
    logits = classify(torch.from_numpy(features.astype(np.float32)))
    true = dataset.train.best_labels[kept]
    right = 100 * (logits.argmax(1).numpy() == true).mean()
    print(f"{dataset.name}: {len(true)} images, zero-shot right on {right:.0f} % of them")
    print("| noise | wrong labels (%) | estimate (%) | standard error | greatest mistake |")
    print("|---|---|---|---|---|")
    for spec in map(noise.parse, NOISES):
        given = [spec.apply(dataset.train.best_labels, len(dataset.class_names), seed)[kept] for seed in asked.seeds]
        wrong = [100 * float((labels != true).mean()) for labels in given]
        found = [noise_rate.estimate_noise_rate(logits, torch.from_numpy(labels)) for labels in given]
        rates = [100 * one.rate for one in found]
        worst = max(abs(rate - truth) for rate, truth in zip(rates, wrong, strict=True))
        error = 100 * np.mean([one.error for one in found])
        print(f"| {spec} | {np.mean(wrong):.1f} | {np.mean(rates):.1f} | {error:.1f} | {worst:.1f} |")


if __name__ == "__main__":
    main()
