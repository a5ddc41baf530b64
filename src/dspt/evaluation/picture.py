"""The picture of the calibration: what share is right of the images that are classified so surely."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dspt import plots
from dspt.evaluation.measures import Evaluation
from dspt.internal.rounding import counted, figure


def calibration_picture(path: Path, found: Mapping[str, Evaluation], about: str) -> None:
    """Draw, over the probability of the predicted class, the share of images that is right and how many there are.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    found : mapping of str to Evaluation
        By title; each has a panel.
    about : str
        What stands below: the run, the data.
    """
    with plots.look():
        drawing = plots.blank(plots.TWO_COLUMNS if len(found) > 1 else 4.4, 3.9)
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
            )
            upper.plot([0, 100], [0, 100], color="0.3", linestyle=":", linewidth=1.2, label="calibrated")
            upper.plot(
                [row["confidence"] for row in bins],
                [row["accuracy"] for row in bins],
                color=plots.RIGHT,
                marker="o",
                label="right",
                clip_on=False,
            )
            upper.set(xlim=(0, 100), ylim=(0, 100))
            words = f"ECE {figure(one.calibration['ece'], 1)} %, {counted(len(one.labels), 'image')}"
            upper.set_title(plots.caption(words) if len(found) == 1 else f"{plots.caption(title)} classes\n{words}")
            lower.bar(starts, [row["samples"] for row in bins], width, align="edge", color=plots.RIGHT)
            lower.set_xlabel("probability of the predicted class (%)")
        axes[0][0].set_ylabel("images classified right (%)")
        axes[1][0].set_ylabel("images")
        known = "" if all(one.truth_known for one in found.values()) else " Judged by labels that may be wrong."
        plots.note(drawing, f"Hatched: the gap between how sure and how often right.{known} {about}")
        plots.name_lines(drawing, [plots.Panel((axes[0][-1],))])
        plots.save(drawing, path)
