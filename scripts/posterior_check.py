"""How good the posterior of labels is: `python scripts/posterior_check.py FILE... --model TOWER --out check.jsonl`.

For each feature file, noise and seed: the estimated share of wrong labels with its error against the truth, F1 and
AUROC of the wrong labels found, the share of labels restored, the accuracy of the posterior's own classifier on the
test set, seconds; one line of JSON each, so that the script can be stopped and started. At the end a table, in how many
trials the truth lies within two stated errors, and with `--pictures FOLDER` two pictures: estimated against true rates,
and a reliability diagram. `--no-text` leaves the class names out. `--tail 0.02` makes a long tail of each set: classes,
in an order of the seed, keep from all of their samples down to that share of them, at least one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from dspt import label_posterior, learners, noise, plots
from dspt.config import Config
from dspt.data import open_dataset
from dspt.experiments import words
from dspt.experiments.collect import paper_name
from dspt.internal.seeds import Stream

NOISES = (
    *("none", "sym:0.1", "sym:0.4", "sym:0.8", "pair:0.2", "pair:0.4", "pair:0.8", "near:0.2", "near:0.4"),
    *("near-3:0.3", "inst:0.4", "inst-likely:0.2", "inst-likely:0.4"),
)
# More than half wrong, as what the images look like: nothing but names can tell.
ABOVE_HALF = ("near:0.6", "near:0.8", "near-3:0.7", "inst:0.8", "inst-likely:0.6")
BINS = np.linspace(0, 1, 11)


def long_tail(true: np.ndarray, classes: int, least: float, seed: int) -> np.ndarray:
    """Return the rows that are kept: of each class the fewer, the later it comes in a random order; at least one."""
    random = Stream(seed, "posterior check", "tail")
    kept = []
    for place, k in enumerate(random.permutation(classes)):
        own = np.flatnonzero(true == k)
        share = least ** (place / max(1, classes - 1))
        kept.append(own[random.permutation(len(own))[: max(1, int(share * len(own)))]])
    return np.sort(np.concatenate(kept))


def trial(
    data: Any, text: np.ndarray, scale: float, spec: str, seed: int, with_text: bool, tail: float
) -> dict[str, Any]:
    """Return the figures of one trial."""
    x, true = np.asarray(data.train.items), data.train.best_labels
    if tail < 1:
        rows = long_tail(true, len(text), tail, seed)
        x, true = x[rows], true[rows]
    given = noise.parse(spec).apply(true, len(data.class_names), seed, x, text)
    started = time.monotonic()
    found = label_posterior(x, given, scale * x @ text.T if with_text else None, num_classes=len(text))
    seconds = time.monotonic() - started
    wrong, doubt = given != true, 1 - found.label_quality
    flagged = doubt > 0.5
    bins = np.clip(np.digitize(doubt, BINS) - 1, 0, len(BINS) - 2)
    test = np.asarray(data.test.items)
    predicted = found.scores(test, scale * test @ text.T if with_text else None).argmax(1)
    return {
        "data": data.name,
        "text": with_text,
        "noise": spec,
        "seed": seed,
        "tail": tail,
        "true": float(wrong.mean()),
        "rate": found.noise_rate,
        "error": found.noise_rate_error,
        "f1": float(2 * (flagged & wrong).sum() / max(1, flagged.sum() + wrong.sum())),
        "auroc": float(roc_auc_score(wrong, doubt)) if wrong.any() else None,
        "flagged": float(flagged.mean()),
        "restored": float((found.probabilities.argmax(1) == true).mean()),
        "accuracy": float(100 * (predicted == data.test.best_labels).mean()),
        "start": found.start,
        "text_weight": found.text_weight,
        "seconds": round(seconds, 2),
        "bin_count": np.bincount(bins, minlength=len(BINS) - 1).tolist(),
        "bin_doubt": np.bincount(bins, doubt, minlength=len(BINS) - 1).tolist(),
        "bin_wrong": np.bincount(bins, wrong, minlength=len(BINS) - 1).tolist(),
    }


def table(trials: list[dict[str, Any]]) -> None:
    """Print the mean over seeds of each noise and set, and how often the truth is covered."""
    print("| data | noise | wrong (%) | estimate (%) | F1 | AUROC | restored (%) | own classifier (%) | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for data, spec in dict.fromkeys((one["data"], one["noise"]) for one in trials):
        own = [one for one in trials if (one["data"], one["noise"]) == (data, spec)]

        def mean(name: str, factor: float = 1, own: list[dict[str, Any]] = own) -> float:
            return factor * float(np.mean([one[name] for one in own]))

        clean = own[0]["auroc"] is None
        print(
            f"| {data} | {spec} | {mean('true', 100):.1f} | {mean('rate', 100):.1f} ± {mean('error', 100):.1f} | "
            f"{'flagged ' + format(mean('flagged', 100), '.1f') + ' %' if clean else format(mean('f1'), '.3f')} | "
            f"{'' if clean else format(mean('auroc'), '.3f')} | {mean('restored', 100):.1f} | "
            f"{mean('accuracy'):.1f} | {mean('seconds'):.1f} |"
        )
    covered = sum(abs(one["rate"] - one["true"]) <= 2 * one["error"] for one in trials)
    print(f"\nthe truth is within two stated errors in {covered} of {len(trials)} trials")


def rates_picture(trials: list[dict[str, Any]], path: Path, about: str) -> None:
    """Draw the estimated rate with two errors beside the true one: a panel for each set, a row for each noise."""
    names = list(dict.fromkeys(one["data"] for one in trials))
    noises = list(dict.fromkeys(one["noise"] for one in trials))
    with plots.look():
        figure = plots.blank(plots.TWO_COLUMNS, 1.3 + 0.24 * len(noises))
        axes = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
        for axis, name in zip(axes, names, strict=True):
            for row, spec in enumerate(noises):
                own = [one for one in trials if (one["data"], one["noise"]) == (name, spec)]
                for number, one in enumerate(own):
                    place = row + 0.5 * ((number + 0.5) / len(own) - 0.5)  # seeds below each other
                    rate, reach = 100 * one["rate"], 200 * one["error"]
                    axis.errorbar(
                        rate,
                        place,
                        xerr=[[min(reach, rate)], [min(reach, 100 - rate)]],  # no share is below none or above all
                        fmt="o",
                        color=plots.RIGHT,
                        markersize=3,
                        elinewidth=0.7,
                    )
                if own:
                    truth = 100 * float(np.mean([one["true"] for one in own]))
                    axis.plot([truth, truth], [row - 0.42, row + 0.42], color="black", linewidth=1.6, zorder=1.9)
            axis.set_title(plots.caption(paper_name(name)))
            axis.set_xlabel("wrong labels (%)")
            axis.set_xlim(-3, 103)
            axis.set_xticks([0, 20, 40, 60, 80, 100])
        axes[0].set_yticks(range(len(noises)), [words.short(spec) for spec in noises])
        axes[0].set_ylim(len(noises) - 0.5, -0.5)
        covered = sum(abs(one["rate"] - one["true"]) <= 2 * one["error"] for one in trials)
        said = "Black: the true share. Dots: its estimate, one a seed, with two stated errors, cut at 0 and 100"
        plots.note(figure, f"{said}, which hold the truth in {covered} of {len(trials)} trials. {about}")
        plots.save(figure, path)


def reliability_picture(trials: list[dict[str, Any]], path: Path, about: str) -> None:
    """Draw, over P(label is wrong), how many labels are wrong, a panel for each set, a line for each group of noise."""
    groups = {
        "sym, pair": ("sym", "pair"),
        "near": ("near", "near-3"),
        "inst": ("inst",),
        "inst-likely": ("inst-likely",),
    }
    names = list(dict.fromkeys(one["data"] for one in trials))
    usual = [one for one in trials if one["noise"] not in ABOVE_HALF]
    with plots.look():
        figure = plots.blank(plots.TWO_COLUMNS, 2.9)
        panels = plots.panels(figure, [None] * len(names), len(names))
        for panel, name in zip(panels, names, strict=True):
            axis = panel.top
            axis.plot([0, 100], [0, 100], color="0.6", linewidth=1, label="_calibrated")
            for (group, kinds), like in zip(groups.items(), ("dspt", "coop", "mae", "dspt-auto"), strict=True):
                own = [one for one in usual if one["data"] == name and one["noise"].split(":")[0] in kinds]
                if not own:
                    continue
                count, doubt, wrong = (
                    np.sum([one[f"bin_{part}"] for one in own], axis=0) for part in ("count", "doubt", "wrong")
                )
                enough = count >= 30
                look = plots.style(like, group)
                axis.plot(100 * doubt[enough] / count[enough], 100 * wrong[enough] / count[enough], **look)
            axis.set_title(plots.caption(paper_name(name)))
            axis.set_xlabel("P(label is wrong) (%)")
            axis.set(xlim=(-3, 103), ylim=(-3, 103))
        for panel in panels[1:]:
            panel.hide_y()
        panels[0].top.set_ylabel("labels that are wrong (%)")
        said = (
            "Grey: calibrated. A point is a tenth of P with 30 labels or more; at most half wrong, sym and pair of any."
        )
        plots.note(figure, f"{said} {about}")
        plots.name_lines(figure, panels[-1:], samples=True)
        plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, default=Path("posterior.jsonl"))
    parser.add_argument("--noises", nargs="+", default=[*NOISES, *ABOVE_HALF])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--no-text", action="store_true")
    parser.add_argument("--tail", type=float, default=1.0)
    parser.add_argument("--pictures", type=Path)
    asked = parser.parse_args()
    tower = learners.open_text_tower(Config(model=asked.model))
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    told = ("data", "text", "noise", "seed", "tail")
    there = {tuple(one[name] for name in told): one for one in map(json.loads, lines)}
    trials = []
    for data in map(open_dataset, asked.data):
        text = learners.zero_shot_prototypes(tower, data.class_names, Config.template).numpy()
        for spec in asked.noises:
            for seed in asked.seeds:
                key = (data.name, not asked.no_text, spec, seed, asked.tail)
                if key not in there:
                    scale = tower.checkpoint.logit_scale
                    there[key] = trial(data, text, scale, spec, seed, not asked.no_text, asked.tail)
                    with asked.out.open("a") as file:
                        file.write(json.dumps(there[key]) + "\n")
                trials.append(there[key])
    table(trials)
    if asked.pictures:
        seeds = f"{'seeds' if len(asked.seeds) > 1 else 'seed'} {', '.join(map(str, asked.seeds))}"
        tower_said = "no text tower" if asked.no_text else f"text tower: {tower.checkpoint.text_tower}"
        about = f"Posterior of labels; {tower_said}; {seeds}."
        rates_picture(trials, asked.pictures / "noise-rate.png", about)
        reliability_picture(trials, asked.pictures / "reliability.png", about)


if __name__ == "__main__":
    main()
