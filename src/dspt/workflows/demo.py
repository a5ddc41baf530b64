"""The embedded demonstration: real images, a small real CLIP, wrong labels, no network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspt import noise, plots, theory
from dspt.backbone.checkpoint import open_checkpoint
from dspt.config import Config
from dspt.data import Split, open_dataset
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter, clock
from dspt.learners import open_text_tower, zero_shot_prototypes
from dspt.problem import pose
from dspt.runs import Run
from dspt.train import GRADIENT_BINS
from dspt.workflows.audit import audit
from dspt.workflows.train import run

METHODS = ("coop", "mae", "dspt", "dspt-auto")
NOISES = {
    "sym60": ("sym:0.6", "60 % of the labels wrong, at random"),
    "pair40": ("pair:0.4", "40 % of the labels wrong, next class"),
}
# A fifth of the labels moved to one of the three classes with the most similar names: mistakes as people make them.
AUDITED = "near-3:0.2"


def run_demo(out: Path, epochs: int, seed: int, reporter: Reporter) -> dict[str, Any]:
    """Return the test accuracy of each method under each noise, and write two plots to `out`.

    Parameters
    ----------
    out : Path
        The folder of the plots and of the run folders.
    epochs : int
        Epochs of each run, 1 or more.
    seed : int
        Seed of noise and training.
    reporter : Reporter
        Says what is done and shows how far it is.

    Returns
    -------
    dict
        Accuracies in percent: "zero_shot", and by method under each key of `NOISES`; besides "seed", "epochs", "plots"
        (their paths) and "seconds".
    """
    if epochs < 1:
        raise InputError(f"epochs = {epochs}: expected at least 1")
    accuracy_plot, gradient_plot = out / "accuracy.png", out / "gradients.png"
    for plot in (accuracy_plot, gradient_plot):
        plots.check_path(plot)
    started = time.monotonic()
    # Named after the model, so that a new release does not meet the runs of an old one.
    runs = out / f"runs-{open_checkpoint('embedded').fingerprint[:8]}"
    curves: dict[str, dict[str, Sequence[float]]] = {}
    result: dict[str, Any] = {}
    for key, (spec, title) in NOISES.items():
        reporter.say(title)
        result[key], curves[title] = {}, {}
        for method in METHODS:
            config = Config(method=method, epochs=epochs, seed=seed)
            folder = Run(runs / f"{key}-{method}-epochs{epochs}-seed{seed}")
            figures = run("embedded", config, spec, folder.path, reporter=reporter)
            result["zero_shot"] = figures.zero_shot
            result[key][method] = figures.accuracy
            curves[title][method] = [record["accuracy"] for record in folder.records(epochs)]

    about = (
        f"Text tower and images: embedded; {len(open_dataset('embedded').train.labels)} training images; seed {seed}."
    )
    plots.accuracy_over_epochs(accuracy_plot, curves, result["zero_shot"], about)
    totals, right = gradients("embedded", "sym:0.6", Config(seed=seed), reporter)
    pulls = {title: _histogram(total, right) for title, total in totals.items()}
    plots.gradient_distribution(gradient_plot, pulls, f"Before any training, 60 % of the labels wrong. {about}")
    result |= {
        "model": "embedded",
        "seed": seed,
        "epochs": epochs,
        "plots": [str(accuracy_plot), str(gradient_plot)],
        "seconds": round(time.monotonic() - started, 1),
    }
    reporter.say(f"done in {clock(result['seconds'])}")
    return result


def run_audit_demo(out: Path, seed: int, reporter: Reporter) -> dict[str, Any]:
    """Return what an audit of the embedded images finds, held against the truth, and write its report to `out`.

    Parameters
    ----------
    out : Path
        The folder in which the report is made.
    seed : int
        Seed of the noise.
    reporter : Reporter
        Says what is done and shows how far it is.

    Returns
    -------
    dict
        "samples", "wrong" (truly), "called_wrong", "found" (truly wrong ones among these), "proposed_right" (of the
        found, those whose proposal is the truth), "noise_rate" and "noise_rate_error"; besides "noise", "seed" and
        "report".
    """
    images = open_dataset("embedded")
    config = Config(model="embedded")
    prototypes = zero_shot_prototypes(open_text_tower(config), images.class_names, images.template)
    true = np.concatenate([images.train.labels, images.test.labels])
    given = noise.parse(AUDITED).apply(true, len(images.class_names), seed, None, prototypes.numpy())
    items = np.concatenate([images.train.items, images.test.items])
    nobody = images.test.take(np.empty(0, np.int64))
    shown = replace(images, train=Split(items, given), test=nobody, source="embedded images")
    report = out / "report"
    found = audit(shown, report, "embedded", reporter)
    wrong, called, proposed = given != true, found.is_label_issue, found.ranked[0]
    return {
        "samples": len(true),
        "wrong": int(wrong.sum()),
        "called_wrong": int(called.sum()),
        "found": int((called & wrong).sum()),
        "proposed_right": int((called & wrong & (proposed == true)).sum()),
        "noise_rate": found.noise_rate,
        "noise_rate_error": found.noise_rate_error,
        "noise": AUDITED,
        "seed": seed,
        "report": str(report / "index.html"),
    }


def gradients(source: str, spec: str, config: Config, reporter: Reporter) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return each sample's total gradient on its logits before training, and which labels are right.

    This is the paper's gradient distribution: the sum of |dL/dz| under a single and under a double softmax.

    Parameters
    ----------
    source : str
        The data, as `open_dataset` takes them.
    spec : str
        The noise, as `noise.parse` takes it.
    config : Config
        The settings; nothing is trained.
    reporter : Reporter
        Shows how far encoding is.

    Returns
    -------
    totals : dict of str to array of shape (N,)
        By title: of the single and of the double softmax.
    right : bool array of shape (N,)
    """
    task = pose(open_dataset(source), config, noise.parse(spec), reporter=reporter)
    problem = task.problem
    classify = task.learner.classify(task.learner.placed(task.start))
    logits = classify(torch.from_numpy(np.array(problem.train_x))).cpu()
    labels = torch.from_numpy(problem.labels)
    single = 2 * (1 - logits.softmax(1).gather(1, labels[:, None])[:, 0])  # sum_i |p_i - 1{i=y}|
    double = theory.gradient(logits, labels).abs().sum(1)
    return (
        {"CoOp: single softmax": single.numpy(), "DSPT: double softmax": double.numpy()},
        problem.labels == problem.true_labels,
    )


def _histogram(totals: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, float]]:
    """Return edges, counts and means of the totals of right and of wrong labels, as a run records them."""
    parts = {"right": totals[right], "wrong": totals[~right]}
    counts = {side: np.histogram(part, GRADIENT_BINS)[0] for side, part in parts.items()}
    return GRADIENT_BINS, counts, {side: float(part.mean()) for side, part in parts.items() if len(part)}
