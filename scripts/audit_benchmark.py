"""Wrong labels found, beside the field: `python scripts/audit_benchmark.py FILE... --model TOWER --out audit.jsonl`.

A cell is a feature file, a noise, a seed and a method; all methods see the same features and the same labels, on one
thread. Each cell is written as one line of JSON to `--out`; one that is there already is not done again, so the script
can be stopped and started. At the end tables of the mean over seeds, and where ours is behind; with `--pictures FOLDER`
two pictures.

- `cleanlab`, `cleanlab-confident`, `cleanlab-both`: probabilities by logistic regression in five folds, stratified. The
  features are centred and brought to a mean variance of 1; C is chosen from a grid for each file and noise, by the log
  loss of the held-out noisy labels of the first seed, and the search is not counted in the seconds.
  `find_label_issues` by prune_by_noise_rate (its default), confident_learning and both; scores by self-confidence,
  normalised margin and confidence-weighted entropy, cleanlab's three rankings.
- `zero-shot`: 1 - P(label) by the class names alone; wrong if another class is likelier.
- `neighbours`: the share of the 10 nearest images with another label; wrong if most of them have another one (the idea
  of SimiFeat's vote).
- `lemon`, `lemon-texts`: LEMoN (ICML 2025), d(image, text) + beta neighbours of the image + gamma neighbours of the
  text, with the fixed values of its authors: 30 neighbours, beta = gamma = 5, tau1 = 0.1, tau2 = 5, cosine distances.
  Labels are compared as same or other, as its authors do for classes, or by the distance of their texts. It has no
  decision of its own: as its authors do with fixed values, **it is told the true share of wrong labels** and flags as
  many. So its F1 has help that no other row has, and on clean labels it flags nothing.
- `gce`: prototypes trained for 20 epochs with GCE; wrong if they predict another class.
- `ours`, `ours-no-text`: `dspt.label_posterior`; wrong if another class is more probable, as `dspt audit` decides.
  Without text: no class names.

Figures: F1 at the method's own decision, AUROC, average precision, of the flagged wrong labels the share whose
proposed label is the true one, the share flagged, seconds of the wall and of the processor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from dspt import label_posterior, learners, noise, plots
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.data import open_dataset
from dspt.experiments import words
from dspt.experiments.collect import paper_name
from dspt.internal.seeds import Stream
from dspt.problem import Problem, Task
from dspt.runs import learn

NOISES = ("none", "sym:0.1", "sym:0.4", "pair:0.4", "near:0.2", "inst:0.4")
OURS = ("ours", "ours-no-text")
BINS = np.linspace(0, 1, 11)
# Of logistic regression, on features of mean variance 1.
STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1)
NEIGHBOURS = 10
LEMON = {"k": 30, "beta": 5.0, "gamma": 5.0, "tau_1": 0.1, "tau_2": 5.0}


@dataclass(frozen=True)
class Audit:
    """What a method is given; only LEMoN is told how many labels are wrong."""

    names: tuple[str, ...]
    x: np.ndarray  # (N, D), of length 1
    given: np.ndarray  # (N,)
    text: np.ndarray  # (C, D), of length 1
    scale: float
    seed: int
    wrong: int
    tower: TextTower
    model: str
    strength: float | None = None  # C of logistic regression, if another seed has chosen it

    @property
    def logits(self) -> np.ndarray:
        found: np.ndarray = self.scale * self.x @ self.text.T
        return found


@dataclass(frozen=True)
class Answer:
    """What a method says of each label."""

    score: np.ndarray  # the higher, the likelier wrong
    flagged: np.ndarray
    proposed: np.ndarray | None = None
    extra: dict[str, Any] | None = None
    before: tuple[float, float] = (0.0, 0.0)  # seconds of wall and processor spent for several methods


class Cleanlab:
    """cleanlab by probabilities that its three rows share."""

    def __init__(self) -> None:
        self.of: Audit | None = None

    def probabilities(self, audit: Audit) -> None:
        """Find held-out probabilities with the best strength, and how long that one took."""
        x = audit.x - audit.x.mean(0)
        x /= x.std()

        def loss(strength: float) -> float:
            p = held_out(x, audit, strength, 1e-3)
            return float(-np.log(p[np.arange(len(p)), audit.given]).mean())

        self.strength = min(STRENGTHS, key=loss) if audit.strength is None else audit.strength
        started = now()
        self.p = held_out(x, audit, self.strength, 1e-4)
        self.of, self.took = audit, since(started)

    def row(self, filter_by: str, ranking: str) -> Callable[[Audit], Answer]:
        def method(audit: Audit) -> Answer:
            started = now()
            if self.of is not audit:
                self.probabilities(audit)
            searched = since(started)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                flagged = find_label_issues(audit.given, self.p, filter_by=filter_by, n_jobs=1)
            score = 1 - get_label_quality_scores(audit.given, self.p, method=ranking)
            spent = (self.took[0] - searched[0], self.took[1] - searched[1])
            return Answer(score, flagged, self.p.argmax(1), {"C": self.strength}, spent)

        return method


def held_out(x: np.ndarray, audit: Audit, strength: float, tolerance: float) -> np.ndarray:
    """Return the probabilities (N, C) by logistic regression on the other folds."""
    p = np.full((len(x), len(audit.names)), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with fewer labels than folds
        for others, own in StratifiedKFold(5, shuffle=True, random_state=audit.seed).split(x, audit.given):
            fitted = LogisticRegression(C=strength, max_iter=500, tol=tolerance).fit(x[others], audit.given[others])
            p[own[:, None], fitted.classes_] = fitted.predict_proba(x[own])
    p = np.maximum(p, 1e-12)
    return np.asarray(p / p.sum(1, keepdims=True))


def zero_shot(audit: Audit) -> Answer:
    return by_logits(audit, audit.logits)


def by_logits(audit: Audit, logits: np.ndarray) -> Answer:
    predicted = logits.argmax(1)
    others = logits.copy()
    others[np.arange(len(logits)), audit.given] = -np.inf
    # 1 - P(label) in logs, in which probabilities near 1 are not all alike
    score = np.logaddexp.reduce(others, 1) - np.logaddexp.reduce(logits, 1)
    return Answer(score, predicted != audit.given, predicted)


def nearest(similarity: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Return the k nearest others of each row (N, k); equally near ones in a random order."""
    np.fill_diagonal(similarity, -np.inf)
    order = Stream(seed, "audit", "ties").permutation(len(similarity))
    found: np.ndarray = order[np.argsort(-similarity[:, order], 1, kind="stable")[:, :k]]
    return found


def neighbours(audit: Audit) -> Answer:
    near = nearest(audit.x @ audit.x.T, NEIGHBOURS, audit.seed)
    votes = np.zeros((len(near), len(audit.names)))
    np.add.at(votes, (np.arange(len(near))[:, None], audit.given[near]), 1)
    score = 1 - votes[np.arange(len(near)), audit.given] / NEIGHBOURS
    # of labels with as many votes the given one, else that of the nearest
    votes[np.arange(len(near)), audit.given] += 0.5
    votes[np.arange(len(near)), audit.given[near[:, 0]]] += 0.25
    majority = votes.argmax(1)
    return Answer(score, majority != audit.given, majority)


def lemon(audit: Audit, by_texts: bool) -> Answer:
    k, tau_1, tau_2 = int(LEMON["k"]), LEMON["tau_1"], LEMON["tau_2"]
    label_text = audit.text[audit.given]
    own = 1 - (audit.x * label_text).sum(1)
    images, texts = audit.x @ audit.x.T, label_text @ label_text.T
    rows = np.arange(len(own))[:, None]
    total = own.copy()
    for weight, near_by, apart in (
        (LEMON["beta"], images, 1 - texts if by_texts else audit.given[:, None] != audit.given),
        (LEMON["gamma"], texts, 1 - images),
    ):
        near = nearest(near_by.copy(), k, audit.seed)
        trust = np.exp(-tau_1 * (1 - near_by[rows, near]) - tau_2 * own[near])
        total += weight * (trust * apart[rows, near]).mean(1)
    flagged = np.zeros(len(own), dtype=bool)
    flagged[np.argsort(-total, kind="stable")[: audit.wrong]] = True
    return Answer(total, flagged)


def gce(audit: Audit) -> Answer:
    problem = Problem(audit.names, audit.x, audit.given, audit.given)
    config = Config(model=audit.model, method="gce", learner="prototypes", seed=audit.seed, epochs=20, test_every=1000)
    task = Task.of(problem, config, learners.make(audit.names, config, audit.tower))
    classify = task.learner.classify(learn(task).parameters)
    return by_logits(audit, classify(torch.from_numpy(audit.x)).numpy())


def ours(audit: Audit, with_text: bool) -> Answer:
    found = label_posterior(
        audit.x, audit.given, audit.logits if with_text else None, num_classes=len(audit.names), seed=1
    )
    doubt = 1 - found.label_quality
    extra = {"rate": found.noise_rate, "error": found.noise_rate_error}
    proposed = found.probabilities.argmax(1)
    return Answer(doubt, proposed != audit.given, proposed, extra)


_cleanlab = Cleanlab()
METHODS: dict[str, Callable[[Audit], Answer]] = {
    "cleanlab": _cleanlab.row("prune_by_noise_rate", "self_confidence"),
    "cleanlab-confident": _cleanlab.row("confident_learning", "normalized_margin"),
    "cleanlab-both": _cleanlab.row("both", "confidence_weighted_entropy"),
    "zero-shot": zero_shot,
    "neighbours": neighbours,
    "lemon": lambda audit: lemon(audit, False),
    "lemon-texts": lambda audit: lemon(audit, True),
    "gce": gce,
    "ours": lambda audit: ours(audit, True),
    "ours-no-text": lambda audit: ours(audit, False),
}


def now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def since(started: tuple[float, float]) -> tuple[float, float]:
    wall, processor = now()
    return wall - started[0], processor - started[1]


def figures(method: str, audit: Audit, true: np.ndarray) -> dict[str, Any]:
    """Return the figures of one method."""
    started = now()
    answer = METHODS[method](audit)
    wall, processor = (took + before for took, before in zip(since(started), answer.before, strict=True))
    wrong, flagged = audit.given != true, np.asarray(answer.flagged, dtype=bool)
    hits = flagged & wrong
    found: dict[str, Any] = {
        "f1": float(2 * hits.sum() / max(1, flagged.sum() + wrong.sum())),
        "precision": float(hits.sum() / max(1, flagged.sum())),
        "recall": float(hits.sum() / max(1, wrong.sum())),
        "auroc": float(roc_auc_score(wrong, answer.score)) if wrong.any() else None,
        "ap": float(average_precision_score(wrong, answer.score)) if wrong.any() else None,
        "proposal": None,
        "flagged": float(flagged.mean()),
        "wrong": float(wrong.mean()),
        "seconds": round(wall, 2),
        "cpu_seconds": round(processor, 2),
        **(answer.extra or {}),
    }
    if answer.proposed is not None and hits.any():
        found["proposal"] = float((answer.proposed == true)[hits].mean())
    if method in OURS:
        bins = np.clip(np.digitize(answer.score, BINS) - 1, 0, len(BINS) - 2)
        for name, weights in (("count", None), ("doubt", answer.score), ("wrong", wrong)):
            found[f"bin_{name}"] = np.bincount(bins, weights, minlength=len(BINS) - 1).tolist()
    return found


def mean(cells: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean over seeds; None where there is no such figure."""
    values = [one[name] for one in cells if one[name] is not None]
    return float(np.mean(values)) if values else None


Cells = dict[tuple[str, str, str], list[dict[str, Any]]]  # by data, noise and method


def tables(cells: Cells, names: list[str], noises: list[str], methods: list[str]) -> None:
    """Print a table of each figure, the best of a column in bold."""
    noisy = [spec for spec in noises if spec != "none"]
    kinds: tuple[tuple[str, str, list[str], str], ...] = (
        ("F1 of wrong labels at the method's own decision", "f1", noisy, ".3f"),
        ("AUROC", "auroc", noisy, ".3f"),
        ("Average precision", "ap", noisy, ".3f"),
        ("Of flagged wrong labels, the share whose proposed label is right", "proposal", noisy, ".3f"),
        ("Share of labels flagged where none is wrong", "flagged", [spec for spec in noises if spec == "none"], ".2%"),
        ("Seconds of one processor", "cpu_seconds", noises, ".1f"),
    )
    for title, figure, columns, form in kinds:
        if not columns:
            continue
        heads = [f"{name} {spec}" if spec != "none" else name for name in names for spec in columns]
        print(f"\n**{title}**\n\n| | {' | '.join(heads)} |\n{'|---' * (1 + len(heads))}|")
        means = {
            (name, spec, method): mean(cells.get((name, spec, method), []), figure)
            for name in names
            for spec in columns
            for method in methods
        }
        for method in methods:
            shown = []
            for name in names:
                for spec in columns:
                    value = means[name, spec, method]
                    best = max((means[name, spec, other] or 0) for other in methods)
                    text = "" if value is None else format(value, form)
                    bold = text and figure in ("f1", "auroc", "ap", "proposal") and text == format(best, form)
                    shown.append(f"**{text}**" if bold else text)
            told = " (told the share)" if method.startswith("lemon") and figure in ("f1", "flagged") else ""
            print(f"| {method}{told} | {' | '.join(shown)} |")


def behind(cells: Cells, names: list[str], noises: list[str], methods: list[str]) -> None:
    """Print in which cells another row is ahead of ours."""
    if "ours" not in methods:
        return
    print("\nOurs is behind, mean over seeds:\n")
    for figure in ("f1", "auroc", "ap"):
        for name in names:
            for spec in noises:
                own = mean(cells.get((name, spec, "ours"), []), figure)
                for method in methods:
                    other = mean(cells.get((name, spec, method), []), figure)
                    if spec != "none" and None not in (own, other) and other > own + 5e-4:  # type: ignore[operator]
                        print(f"- {figure}, {name}, {spec}: {own:.3f}, {method} {other:.3f}")


def binned(own: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many labels are in each bin, the mean of P(wrong) there and the share that is wrong."""
    count, doubt, wrong = (np.sum([one[f"bin_{part}"] for one in own], axis=0) for part in ("count", "doubt", "wrong"))
    return count, doubt / np.maximum(count, 1), wrong / np.maximum(count, 1)


def calibration(cells: Cells, names: list[str], noises: list[str], method: str) -> None:
    """Print P(wrong) against the share that is wrong in each bin, for each set and noise."""
    print(f"\n**{method}: P(wrong) → labels that are wrong (%), of how many; error: mean distance**\n")
    print("| | " + " | ".join(f"{low:.1f}–{low + 0.1:.1f}" for low in BINS[:-1]) + " | error |")
    print("|---" * (len(BINS) + 1) + "|")
    for name in names:
        for spec in (*noises, "all"):
            own = [
                one
                for (data, kind, row), many in cells.items()
                for one in many
                if (data, row) == (name, method) and spec in (kind, "all") and kind in noises
            ]
            if not own:
                continue
            count, doubt, wrong = binned(own)
            error = float((count * abs(doubt - wrong)).sum() / count.sum())
            shown = [
                f"{100 * d:.0f} → {100 * w:.0f} of {int(c)}" if c else ""
                for c, d, w in zip(count, doubt, wrong, strict=True)
            ]
            print(f"| {name} {spec} | {' | '.join(shown)} | {100 * error:.1f} |")


# As a picture names them, from the top.
NAMES = {
    "ours": "ours",
    "ours-no-text": "ours without text",
    "gce": "GCE prototypes",
    "lemon": "LEMoN, told the share",
    "lemon-texts": "LEMoN by texts, told",
    "neighbours": "10 neighbours",
    "zero-shot": "zero-shot",
    "cleanlab-both": "cleanlab, both filters",
    "cleanlab-confident": "cleanlab, confident",
    "cleanlab": "cleanlab",
}


def benchmark_picture(
    cells: Cells, names: list[str], noises: list[str], methods: list[str], path: Path, about: str
) -> None:
    """Draw the F1 of each method: a row of panels for each noise, a column for each set, a line for each method."""
    noisy = [spec for spec in noises if spec != "none"]
    drawn = [method for method in NAMES if method in methods]
    with plots.look():
        figure = plots.blank(plots.TWO_COLUMNS, 0.9 + len(noisy) * (0.25 + 0.135 * len(drawn)))
        axes = figure.subplots(len(noisy), len(names), sharex=True, sharey=True, squeeze=False)
        for (row, spec), (column, name) in product(enumerate(noisy), enumerate(names)):
            axis = axes[row][column]
            for place, method in enumerate(drawn):
                value = mean(cells.get((name, spec, method), []), "f1")
                if value is None:
                    continue
                own = method in OURS
                axis.plot([0, 100 * value], [place, place], color="0.7", linewidth=0.8, zorder=1.5)
                axis.plot(
                    100 * value,
                    place,
                    linestyle="none",
                    marker="o",
                    markersize=5.5 if method == "ours" else 4,
                    color="black" if own else plots.RIGHT,
                    markerfacecolor="white" if method == "ours-no-text" else None,
                )
            axis.set_xlim(0, 104)
            axis.set_xticks([0, 20, 40, 60, 80, 100])
            axis.grid(False, axis="y")
            if not row:
                axis.set_title(plots.caption(paper_name(name)))
            if row == len(noisy) - 1:
                axis.set_xlabel("F1 of wrong labels (%)")
            if not column:
                axis.set_ylabel(words.short(spec))
        axes[0][0].set_yticks(range(len(drawn)), [NAMES[method] for method in drawn], fontsize=8)
        axes[0][0].set_ylim(len(drawn) - 0.4, -0.6)
        plots.note(
            figure, f"Means over seeds, at each method's own decision; LEMoN is told how many labels are wrong. {about}"
        )
        plots.save(figure, path)


def reliability_picture(cells: Cells, names: list[str], noises: list[str], path: Path, about: str) -> None:
    """Draw the share of wrong labels over P(wrong): a panel for each set, all noises thick and each one thin."""
    noisy = [spec for spec in noises if spec != "none"]
    lines = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (7, 2)))
    colours = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
    markers = "s^DvPX"
    with plots.look():
        figure = plots.blank(plots.TWO_COLUMNS, 2.9)
        panels = plots.panels(figure, [None] * len(names), len(names))
        for panel, name in zip(panels, names, strict=True):
            axis = panel.top
            axis.plot([0, 100], [0, 100], color="0.6", linewidth=1, label="_calibrated")
            for k, spec in enumerate(noisy):
                own = cells.get((name, spec, "ours"), [])
                if own:
                    count, doubt, wrong = binned(own)
                    enough = count >= 20
                    look = {"color": colours[k % len(colours)], "linestyle": lines[k % len(lines)], "linewidth": 1}
                    look |= {"marker": markers[k % len(markers)], "markersize": 3}
                    axis.plot(100 * doubt[enough], 100 * wrong[enough], label=words.short(spec), **look)
            own = [one for spec in noises for one in cells.get((name, spec, "ours"), [])]
            if own:
                count, doubt, wrong = binned(own)
                axis.plot(100 * doubt, 100 * wrong, color="black", marker="o", linewidth=2, label="all noises")
            axis.set_title(plots.caption(paper_name(name)))
            axis.set_xlabel("P(label is wrong) (%)")
            axis.set(xlim=(-3, 103), ylim=(-3, 103))
        for panel in panels[1:]:
            panel.hide_y()
        panels[0].top.set_ylabel("labels that are wrong (%)")
        plots.note(figure, f"Grey: calibrated. A point is a tenth of P; of one noise, with 20 labels or more. {about}")
        plots.name_lines(figure, panels[-1:], samples=True)
        plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, default=Path("audit.jsonl"))
    parser.add_argument("--noises", nargs="+", default=list(NOISES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--pictures", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tower = learners.open_text_tower(Config(model=asked.model))
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    there = {(one["data"], one["noise"], one["seed"], one["method"]): one for one in map(json.loads, lines)}
    cells: Cells = {}
    names = []
    with threadpool_limits(1):
        for data in map(open_dataset, asked.data):
            names.append(data.name)
            x, true = np.asarray(data.train.items, dtype=np.float32), data.train.best_labels
            text = learners.zero_shot_prototypes(tower, data.class_names, Config.template).numpy()
            plain = Audit(data.class_names, x, true, text, tower.checkpoint.logit_scale, 1, 0, tower, asked.model)
            for spec in asked.noises:
                for seed in asked.seeds:
                    given = noise.parse(spec).apply(true, len(data.class_names), seed, x, text)
                    chosen = (
                        one["C"]
                        for one in there.values()
                        if (one["data"], one["noise"]) == (data.name, spec) and "C" in one
                    )
                    wrong = int((given != true).sum())
                    audit = replace(plain, given=given, seed=seed, wrong=wrong, strength=next(chosen, None))
                    for method in asked.methods:
                        key = (data.name, spec, seed, method)
                        if key not in there:
                            found = figures(method, audit, true)
                            there[key] = {"data": data.name, "noise": spec, "seed": seed, "method": method, **found}
                            with asked.out.open("a") as file:
                                file.write(json.dumps(there[key]) + "\n")
                            print(f"{found['f1']:.3f}  {found['cpu_seconds']:6.1f} s  {key}", file=sys.stderr)
                        cells.setdefault((data.name, spec, method), []).append(there[key])
    tables(cells, names, asked.noises, asked.methods)
    behind(cells, names, asked.noises, asked.methods)
    for method in OURS:
        if method in asked.methods:
            calibration(cells, names, asked.noises, method)
    if asked.pictures:
        seeds = f"{'seeds' if len(asked.seeds) > 1 else 'seed'} {', '.join(map(str, asked.seeds))}"
        about = f"Text tower: {tower.checkpoint.text_tower}; {seeds}."
        benchmark_picture(cells, names, asked.noises, asked.methods, asked.pictures / "audit-benchmark.png", about)
        if "ours" in asked.methods:
            reliability_picture(cells, names, asked.noises, asked.pictures / "audit-reliability.png", about)


if __name__ == "__main__":
    main()
