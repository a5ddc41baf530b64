"""The figures of a benchmark as lines to read and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dspt import plots
from dspt.bench import epochs, neighbour
from dspt.bench.encoding import HEIGHT, WIDTH
from dspt.bench.memory import REFERENCE_CLASSES
from dspt.internal.progress import clock
from dspt.internal.rounding import counted

_TOWERS = {"step": "ViT-B/16", "step_vit_l14": "ViT-L/14"}


def lines(result: dict[str, Any]) -> list[str]:
    """Return the figures in words and small tables."""
    encode, run, startup = result["encode"], result["run"], result["startup"]
    beside = result["neighbour"]
    shown = [_machine(result)]
    for part, tower in _TOWERS.items():
        if part in result:
            shown += ["", *_steps(result[part], tower)]
    return [
        *shown,
        "",
        "encoding images with ViT-B/16",
        f"  tower alone, pixels in memory  {encode['tower']:8.2f} images/s",
        f"  from {WIDTH} x {HEIGHT} JPEG files       {encode['files']:8.2f} images/s",
        f"  fraction of the tower's rate   {encode['fraction']:8.2f}"
        f"  ({encode['lowest']:.2f} to {encode['highest']:.2f})",
        *_low_precision(encode),
        "",
        "a 50-epoch run on Caltech101, images included, put together from these parts",
        f"  reference, a new crop of each image every epoch  {clock(run['reference_seconds']):>9}",
        f"  ours, each image encoded once                    {clock(run['ours_seconds']):>9}: "
        f"{_range(run, 'ratio', '.1f')} times as fast",
        f"  ours with the reference's crops (--views 50)     {clock(run['ours_same_views_seconds']):>9}: "
        f"{run['ratio_same_views']:.1f} times as fast",
        "",
        "memory that training takes, two steps and a test, ViT-B/16's text tower",
        *_memory(result["memory"]),
        "",
        f"an epoch on cached features, embedded text tower, 10 classes, batches of {epochs.BATCH}",
        *_epochs(result["epochs"]),
        "",
        f"the same beside a busy program, {neighbour.SAMPLES:,} samples, batches of {neighbour.BATCH}",
        f"  alone {beside['alone_seconds']:.2f} s, beside it {beside['beside_seconds']:.2f} s: "
        f"{_range(beside, 'ratio')} times as long",
        "",
        "start-up",
        f"  dspt --help {_range(startup, 'help_seconds')} s",
        "  dspt train on cached features, start to end of a first epoch of two steps "
        f"{_range(startup, 'train_seconds')} s",
    ]


def _machine(result: dict[str, Any]) -> str:
    """Return what it was measured on."""
    environment = result["environment"]
    threads = counted(result["threads"], "thread")
    return f"{environment['processor']}, {threads}, torch {environment['torch']}, float32"


def _range(found: dict[str, float], key: str, form: str = ".2f") -> str:
    low, high = found[f"{key}_lowest"], found[f"{key}_highest"]
    if low == high:  # measured once
        return f"{found[key]:{form}}"
    return f"{found[key]:{form}} ({low:{form}} to {high:{form}})"


def _epochs(found: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"  {learner:<11}{int(n):>9,} samples {one[f'{learner}_seconds']:8.2f} s, "
        f"{one[f'{learner}_epochs_per_second']:8.3f} epochs/s, "
        f"{_range(one, f'{learner}_microseconds_per_sample', '.1f')} µs a sample"
        for learner in epochs.LEARNERS
        for n, one in found.items()
    ]


def _low_precision(encode: dict[str, float]) -> list[str]:
    if "bfloat16" not in encode:
        return ["  in bfloat16                    not measured: this processor does not have it"]
    times = _range(encode, "bfloat16_ratio")
    return [f"  tower alone in bfloat16        {encode['bfloat16']:8.2f} images/s, {times} times float32's"]


def _memory(found: dict[str, dict[str, float]]) -> list[str]:
    if not found:
        return ["  not measured: Linux alone lets a process count its peak anew"]
    shown = []
    for key, one in found.items():
        theirs = f", reference {one['reference_mib']:6.0f} MiB" if "reference_mib" in one else ""
        shown.append(
            f"  {key:<9} ours {one['ours_mib']:6.0f} MiB, peak of the process {one['ours_peak_mib']:6.0f} MiB{theirs}"
        )
    if any("reference_mib" in one for one in found.values()):
        shown.append(f"  the reference is measured up to {REFERENCE_CLASSES} classes: it grows with them")
    return shown


def _steps(found: dict[str, dict[str, float]], tower: str) -> list[str]:
    shown = [
        f"one training step, {tower}'s text tower",
        f"  {'classes':<10}{'positions':>14}{'reference s':>13}{'ours s':>8}  {'ratio':<20}{'of GEMM':<21}"
        f"{'GFLOP/s':>7}",
    ]
    for key, one in found.items():
        positions = f"{one['reference_positions']:.0f} -> {one['positions']:.0f}"
        shown.append(
            f"  {key:<10}{positions:>14}{one['reference_seconds']:>13.2f}{one['ours_seconds']:>8.3f}"
            f"  {_range(one, 'ratio', '.1f'):<20}{_range(one, 'gemm_fraction'):<21}"
            f"{one['gemm_gflops']:>7.0f}"
        )
    features, gradient = (max(one[key] for one in found.values()) for key in ("feature_diff", "gradient_diff"))
    shown += [
        f"  class features differ by at most {features:.0e}, the gradient by {gradient:.0e} of its length",
        "  names are as long as EuroSAT's, OxfordPets', Caltech101's (100, 196, 1000), StanfordCars'",
    ]
    scaled = [key for key, one in found.items() if one["reference_classes"] < one["classes"]]
    if scaled:
        most = max(one["reference_classes"] for one in found.values())
        shown.append(
            f"  the reference of {', '.join(scaled)} is measured with {most:.0f} classes and scaled: its work is the "
            "same for each"
        )
    return shown


# What the cases are called in words, by key: classes, and whose names they have.
_CASES = {
    "10": "10\nEuroSAT",
    "37": "37\nOxfordPets",
    "100": "100\nCaltech101",
    "196": "196\nshort names",
    "196-cars": "196\nStanfordCars",
    "1000": "1,000\nshort names",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw how many times as fast a step is, and how near it is to the machine's own matrix products."""
    parts = [part for part in _TOWERS if part in result]
    width = 0.8 / len(parts)
    with plots.look():
        figure = plots.blank(plots.TWO_COLUMNS, 4.9)
        upper, lower = figure.subplots(2, 1)
        for axis, key, digits in ((upper, "ratio", 0), (lower, "gemm_fraction", 2)):
            for number, part in enumerate(parts):
                found = result[part]
                places = np.arange(len(found)) + (number - (len(parts) - 1) / 2) * width
                value, low, high = (
                    np.array([one[f"{key}{end}"] for one in found.values()]) for end in ("", "_lowest", "_highest")
                )
                axis.bar(
                    places,
                    value,
                    width,
                    yerr=[value - low, high - value],
                    label=f"{_TOWERS[part]}'s text tower",
                    color=("#0072B2", "#F0C060")[number],
                    hatch=("", "///")[number],
                    edgecolor="white" if number == 0 else "0.3",
                    linewidth=0.5,
                    error_kw={"linewidth": 0.8, "capsize": 2},
                )
                # the dotted line is at the foot of the upper bars, and above the lower ones
                feet = high if axis is upper else np.zeros(len(found))
                for place, height, foot in zip(places, value, feet, strict=True):
                    axis.annotate(
                        f"{height:.{digits}f}",
                        (place, foot),
                        (0, 3),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        zorder=4,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                    )
            axis.set_xticks(range(len(found)), [_CASES.get(name, name) for name in found])
            axis.grid(axis="x", visible=False)
            axis.margins(y=0.15)
        upper.axhline(1, color="0.3", linestyle=":", linewidth=1.2)
        upper.set_title("One training step: times as fast as CoOp's way (dotted: equally fast)")
        upper.set_ylabel("times as fast")
        lower.axhline(1, color="0.3", linestyle=":", linewidth=1.2)
        lower.set_title(
            "Share of that step which this machine needs for its matrix products alone (dotted: nothing else)"
        )
        lower.set_ylabel("share of the step")
        lower.set_xlabel("classes, and whose names they have")
        lower.set_ylim(0, 1.2)
        upper.legend(loc="upper left", frameon=False)
        plots.note(
            figure,
            "A step is forward and backward to the context. CoOp's way: transformers' text tower over all 77 positions "
            "of every class. Bars: medians; whiskers: lowest and highest. Higher is better in both. "
            f"{_machine(result)}.",
        )
        plots.save(figure, path)
