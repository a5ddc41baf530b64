"""The picture of the calibration: what share is right of the images that are classified so surely."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dspt import plots
from dspt.evaluation.measures import Evaluation
from dspt.internal.rounding import counted, figure


def calibration_picture(path: Path, found: Mapping[str, Evaluation]) -> None:
    """Draw, over the probability of the predicted class, the share of images that is right and how many there are.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    found : mapping of str to Evaluation
        By title; each has a panel.
    """
    with plots.look(10):
        drawing = plots.blank(4.2 * len(found), 4.6)
        axes = drawing.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
        for (upper, lower), (title, one) in zip(axes.T, found.items(), strict=True):
            bins = [row for row in one.calibration["bins"] if row["samples"]]
            width = bins[0]["to"] - bins[0]["from"]
            starts = [row["from"] for row in bins]
            # A hatched gap is what the figure is about, and is seen in grey, too.
            upper.bar(
                starts,
                [row["accuracy"] - row["confidence"] for row in bins],
                width,
                [row["confidence"] for row in bins],
                align="edge",
                facecolor="none",
                edgecolor=plots.WRONG,
                hatch="/////",
                linewidth=0,
                label="gap",
            )
            upper.plot([0, 100], [0, 100], color="0.3", linestyle=":", linewidth=1.2, label="calibrated")
            upper.plot(
                [row["confidence"] for row in bins],
                [row["accuracy"] for row in bins],
                color=plots.RIGHT,
                marker="o",
                label="share that is right",
                clip_on=False,
            )
            upper.set(xlim=(0, 100), ylim=(0, 100))
            known = "" if one.truth_known else "; labels may be wrong"
            words = f"ECE {figure(one.calibration['ece'], 1)} %, {counted(len(one.labels), 'image')}{known}"
            upper.set_title(plots.caption(words if len(found) == 1 else f"{title} classes: {words}"), fontsize=9)
            lower.bar(starts, [row["samples"] for row in bins], width, align="edge", color=plots.RIGHT)
            lower.set_xlabel("probability of the predicted class (%)")
        axes[0][0].set_ylabel("right (%)")
        axes[1][0].set_ylabel("images")
        plots.legend(drawing)
        plots.save(drawing, path, dpi=150)
