"""Pictures: colour-blind safe, told apart in grey by line style too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspt.files import replacing

# Okabe and Ito's palette, with a line style of its own for each method.
STYLES: dict[str, dict[str, Any]] = {
    "coop": {"color": "#D55E00", "linestyle": "-", "marker": "s", "label": "CoOp (cross-entropy)"},
    "mae": {"color": "#0072B2", "linestyle": "--", "marker": "^", "label": "MAE"},
    "dspt": {"color": "#009E73", "linestyle": "-", "marker": "o", "label": "DSPT (double softmax)"},
}
RIGHT, WRONG = "#0072B2", "#D55E00"


def accuracy_over_epochs(
    path: Path, panels: dict[str, dict[str, Sequence[float]]], zero_shot: float
) -> None:
    """Draw test accuracy after each epoch, one panel for each noise, one line for each method."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.6), sharey=True)
    for axis, (title, curves) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        for method, values in curves.items():
            epochs = np.arange(1, len(values) + 1)
            every = max(1, len(values) // 8)
            axis.plot(epochs, values, markersize=4, markevery=every, **STYLES[method])
        axis.axhline(zero_shot, color="0.35", linestyle=":", linewidth=1.2, label="zero-shot")
        axis.set_title(title)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("test accuracy (%)")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncols=len(labels),
        frameon=False,
        bbox_to_anchor=(0.5, -0.07),
    )
    _save(figure, path)


def gradient_distribution(path: Path, panels: dict[str, np.ndarray], right: np.ndarray) -> None:
    """Draw how strongly each sample pulls at the logits, right and wrong labels apart.

    `panels` maps a title to the sum of |dL/dz| of each sample; `right` tells which labels are right.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.4), sharey=True)
    for axis, (title, totals) in zip(axes, panels.items(), strict=True):
        bins = np.linspace(0, max(2.0, float(totals.max())), 41)
        for mask, color, label, hatch in (
            (right, RIGHT, "correctly labelled", ""),
            (~right, WRONG, "mislabelled", "///"),
        ):
            share = np.full(int(mask.sum()), 100 / max(1, int(mask.sum())))
            axis.hist(
                totals[mask],
                bins=bins,
                weights=share,
                color=color,
                alpha=0.55,
                hatch=hatch,
                label=label,
            )
            axis.axvline(totals[mask].mean(), color=color, linewidth=1.5, linestyle="--")
        axis.set_title(title)
        axis.set_xlabel(r"gradient on the logits, $\sum_i |\partial L / \partial z_i|$")
    axes[0].set_ylabel("share of samples (%)")
    axes[-1].legend(frameon=False, loc="upper right", title="dashed: their mean")
    _save(figure, path)


def confusion(path: Path, shares: np.ndarray, names: Sequence[str], title: str) -> None:
    """Draw, for each true class (row), which labels it was given (columns), as shares."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import PercentFormatter

    plt = _pyplot()
    classes = len(names)
    side = float(np.clip(0.42 * classes, 3.4, 8.5))
    figure, axis = plt.subplots(figsize=(side + 1.6, side))
    # The root makes a few mistakes visible beside a diagonal of many right labels.
    image = axis.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="equal")
    axis.grid(False)
    if classes <= 40:
        short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
        size = 10 if classes <= 20 else 6.5
        axis.set_xticks(range(classes), short, rotation=90, fontsize=size)
        axis.set_yticks(range(classes), short, fontsize=size)
    if classes <= 16:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.005:
                color = "white" if share > 0.35 else "black"
                axis.text(
                    column,
                    row,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    color=color,
                    fontsize=8,
                )
    axis.set_xlabel("given label")
    axis.set_ylabel("true class")
    axis.set_title(title, fontsize=10)
    bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03, format=PercentFormatter(1, 0))
    bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
    bar.set_label("share of the true class")
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "0.92",
            "axes.axisbelow": True,
            "font.size": 10,
            "axes.titlesize": 11,
        }
    )
    return plt


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(
            temporary, format=path.suffix.removeprefix("."), dpi=150, bbox_inches="tight"
        )
    plt.close(figure)
