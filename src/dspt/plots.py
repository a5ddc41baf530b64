"""Pictures: one look, colour-blind safe, told apart in grey by line style too.

`look` is the look, `blank` an empty figure, `save` the file. On a figure, `panel` makes room for one thing, with a
broken y-axis where `cut_below` says so; `fit` gives panels one scale; `name_lines` writes names where lines end, so
that nobody has to look up a legend; `note` says below what a reader must know: text tower, seeds, what a band is.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import numpy as np

from dspt.internal.errors import FileError, InputError
from dspt.internal.files import check_free, replacing
from dspt.internal.names import printable

FORMATS = (".png", ".pdf", ".svg")
# What is in every picture of ours, by which it may be drawn again in its place.
MARK = b"drawn by dspt"
_METADATA = {
    "png": {"Software": MARK.decode()},
    "pdf": {"Creator": MARK.decode(), "CreationDate": None},
    "svg": {"Creator": MARK.decode(), "Date": None},
}

# Okabe and Ito's palette without its yellow, which is pale on white. In grey its colours are alike, so each method has
# its own line and marker too.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
_LINES: tuple[Any, ...] = (
    *("-", "--", "-.", (0, (1, 1)), (0, (7, 2))),
    *((0, (5, 1)), (0, (3, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1))),
)
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*", "<", ">", "p", "h", "d")

# The methods of the paper's figures, chosen so that they differ most from each other.
# MAE and DSPT are often one: thin dashes and open markers lie on top of a broad line, and both are seen.
_CHOSEN: dict[str, dict[str, Any]] = {
    "coop": {"color": "#D55E00", "linestyle": "-.", "marker": "s", "label": "CoOp"},
    "mae": {
        "color": "#0072B2",
        "linestyle": "--",
        "linewidth": 1.1,
        "marker": "^",
        "markerfacecolor": "white",
        "zorder": 2.5,
        "label": "MAE",
    },
    "dspt": {"color": "#009E73", "linestyle": "-", "linewidth": 2.6, "marker": "o", "markersize": 5, "label": "DSPT"},
    "gce": {"color": "#CC79A7", "linestyle": (0, (1, 1)), "marker": "D", "label": "GCE"},
    "dspt-auto": {
        "color": "#000000",
        "linestyle": (0, (7, 2)),
        "marker": "v",
        "label": "DSPT-auto",
    },
    "logitclip": {"color": "#E69F00", "linestyle": (0, (5, 1)), "marker": "P", "label": "LogitClip"},
}
RIGHT, WRONG = "#0072B2", "#D55E00"
ZERO_SHOT: dict[str, Any] = {
    "color": "0.3",
    "linestyle": ":",
    "linewidth": 1.2,
    "label": "zero-shot",
}
ONE_COLUMN, TWO_COLUMNS = 3.25, 6.75  # the widths of a paper's column and of two, in inches
BROKEN = "Where the y-axis is broken, its scale changes."
PULL = r"$\sum_i |\partial L / \partial z_i|$"


def style(method: str, label: str | None = None) -> dict[str, Any]:
    """Return how the line of a method is drawn, as keywords of `Axes.plot`.

    Any name has a style, also that of a method which is not ours, and always the same one.

    Parameters
    ----------
    method : str
        The name of the method.
    label : str, optional
        What the legend calls it.
    """
    found = _CHOSEN.get(method) or _derived(method)
    return found | {"label": caption(label or found["label"])}


def caption(text: str) -> str:
    """Return a text as it is drawn letter by letter: a `$` in a name begins no formula."""
    return printable(text).replace("$", r"\$")


def _derived(method: str) -> dict[str, Any]:
    """Return a style that follows from the name alone."""
    digest = hashlib.blake2b(method.encode("utf-8", "replace"), digest_size=4).digest()
    colour, line, marker, face = digest
    return {
        "color": _COLOURS[colour % len(_COLOURS)],
        "linestyle": _LINES[line % len(_LINES)],
        "marker": _MARKERS[marker % len(_MARKERS)],
        **({"markerfacecolor": "white"} if face % 2 else {}),
        "label": method,
    }


def accuracy_over_epochs(
    path: Path, noises: Mapping[str, Mapping[str, Sequence[float]]], zero_shot: float, about: str = ""
) -> None:
    """Draw test accuracy after each epoch, one panel for each noise, one line for each method.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    noises : mapping of str to mapping of str to sequence of float
        By title and name of the method: the accuracy in percent, one number an epoch.
    zero_shot : float
        The accuracy of zero-shot in percent, a horizontal line in each panel.
    about : str
        What stands below: the model, the seed.
    """
    with look():
        figure = blank(TWO_COLUMNS, 3.4)
        cut = cut_below([value for curves in noises.values() for values in curves.values() for value in values])
        drawn = panels(figure, [cut] * len(noises), len(noises))
        for one, (title, curves) in zip(drawn, noises.items(), strict=True):
            for axis in one.axes:
                for method, values in curves.items():
                    every = max(1, len(values) // 8)
                    axis.plot(range(1, len(values) + 1), values, markevery=every, **style(method))
                axis.axhline(zero_shot, **ZERO_SHOT)
            one.top.set_title(caption(title))
            epochs_axis(one.bottom)
        fit(drawn, cut)
        name_y(drawn[:1], "test accuracy (%)")
        note(figure, about if cut is None else f"{about} {BROKEN}".strip())
        for one in drawn[1:]:
            one.hide_y()
        name_lines(figure, drawn[-1:])
        save(figure, path)


def gradient_distribution(
    path: Path, panels: Mapping[str, tuple[Any, Mapping[str, Any], Mapping[str, float]]], about: str = ""
) -> None:
    """Draw how strongly each sample pulls at the logits, right and wrong labels apart, side by side.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    panels : mapping of str to (edges, counts, means)
        By title, what `shares` takes.
    about : str
        What stands below: the model, the noise.
    """
    with look():
        figure = blank(TWO_COLUMNS, 2.7)
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (title, data) in zip(axes, panels.items(), strict=True):
            shares(axis, *data)
            axis.set_title(caption(title))
            axis.set_xlabel(f"gradient on the logits, {PULL}")
        axes[0].set_ylabel("share of each kind (%)")
        note(figure, about)
        save(figure, path)


def shares(
    axis: Any,
    edges: Sequence[float] | np.ndarray,
    counts: Mapping[str, Any],
    means: Mapping[str, float],
) -> None:
    """Draw histograms of "right" and "wrong" samples in percent of each, and their means with a name at each.

    Parameters
    ----------
    axis : matplotlib Axes
        What is drawn on.
    edges : sequence of B + 1 floats
        The edges of the bins.
    counts : mapping of str to sequence of B numbers
        Under "right" and "wrong", the samples in each bin.
    means : mapping of str to float
        Under "right" and "wrong", where a vertical line is drawn; none for a key that is missing.
    """
    from matplotlib.transforms import offset_copy

    for kind, color, label, hatch, height in (
        ("right", RIGHT, "correctly labelled", "", 0.62),
        ("wrong", WRONG, "mislabelled", "/////", 0.88),
    ):
        total = np.sum(counts[kind])
        if not total:
            continue
        share = 100 * np.asarray(counts[kind]) / total
        # The hatching is the mark of wrong labels in grey: no fill may hide it.
        fill = {"facecolor": "none", "hatch": hatch} if hatch else {"facecolor": color + "59"}
        axis.stairs(share, edges, fill=True, edgecolor=color, linewidth=0, **fill)
        axis.stairs(share, edges, color=color, linewidth=0.8)
        if kind in means:
            mean = means[kind]
            axis.axvline(mean, color=color, linestyle="--" if hatch else "-", label=f"mean, {label}")
            middle = (edges[0] + edges[-1]) / 2
            left = mean < middle
            # beyond both lines if they are on one side, so that no name hides the other's line
            own_side = [one for one in means.values() if (one < middle) == left]
            beyond = max(own_side) if left else min(own_side)
            axis.annotate(
                f"{label},\nmean {mean:.2f}",
                (mean, height),
                (beyond, height),
                xycoords=axis.get_xaxis_transform(),
                textcoords=offset_copy(axis.get_xaxis_transform(), axis.figure, x=11 if left else -11, units="points"),
                ha="left" if left else "right",
                va="center",
                color=color,
                arrowprops={
                    "arrowstyle": "-",
                    "color": color,
                    "linewidth": 0.6,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "relpos": (0 if left else 1, 0.5),
                },
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
    axis.set_xlim(edges[0], edges[-1])
    axis.xaxis.get_major_locator().set_params(nbins=5)


def confusion(
    path: Path,
    shares: np.ndarray,
    names: Sequence[str],
    title: str,
    columns: str = "given label",
    rows: str = "true class",
) -> None:
    """Draw, for each class (row), what it was taken for (columns), as shares: mistakes in colour, the rest framed.

    The scale is linear and ends at the largest mistake, so that few mistakes are seen beside many right labels.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    shares : array of shape (C, C)
        The share, in 0..1, of each row that is in each column.
    names : sequence of C str
        The names of the classes; they are left out, and the numbers, for more than 40.
    title : str
        The line above the picture.
    columns, rows : str
        What the columns and the rows are.
    """
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import PercentFormatter

    with look():
        classes = len(names)
        side = float(np.clip(0.36 * classes, 3.0, 9.0))
        figure = blank(side + 1.6, side, layout="tight")
        axis = figure.subplots()
        off = np.where(np.eye(classes, dtype=bool), np.nan, shares)
        most = max(0.05, float(np.nanmax(off, initial=0)))
        image = axis.imshow(off, cmap="Blues", norm=Normalize(0, most), aspect="equal")
        for place in range(classes):
            frame = Rectangle((place - 0.46, place - 0.46), 0.92, 0.92, fill=False, edgecolor="0.5", linewidth=0.8)
            axis.add_patch(frame)
        axis.grid(False)
        if classes <= 40:
            whole = map(printable, names)
            short = [caption(name if len(name) <= 18 else name[:17] + "…") for name in whole]
            size = 9 if classes <= 20 else 8
            axis.set_xticks(range(classes), short, rotation=90, fontsize=size)
            axis.set_yticks(range(classes), short, fontsize=size)
            for (row, column), share in np.ndenumerate(shares):
                if share >= 0.005:
                    dark = row != column and share > 0.6 * most
                    text = f"{100 * share:.0f}"
                    axis.text(
                        column,
                        row,
                        text,
                        ha="center",
                        va="center",
                        color="white" if dark else "black",
                        weight="bold" if row == column else "normal",
                        fontsize=8 if classes <= 20 else 6,
                    )
        axis.set_xlabel(f"{columns} (% of the {rows}; framed: no mistake)" if classes <= 40 else columns)
        axis.set_ylabel(rows)
        axis.set_title(caption(title))
        bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03, format=PercentFormatter(1, 0))
        bar.set_label(f"mistakes, share of the {rows}")
        save(figure, path, bbox_inches="tight")


def critical_difference(
    path: Path,
    ranks: Mapping[str, float],
    distance: float,
    groups: Sequence[Sequence[str]],
    over: str,
    about: str = "",
) -> None:
    """Draw mean ranks on a line, the best at the left, with a bar over methods that cannot be told apart.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    ranks : mapping of str to float
        The mean rank of each method, 1 the best.
    distance : float
        The critical difference: ranks that are at least so far apart differ.
    groups : sequence of sequence of str
        Methods that cannot be told apart.
    over : str
        What the ranks are means over: "9 datasets".
    about : str
        What else stands below: the text tower, the seeds.
    """
    order = sorted(ranks, key=ranks.__getitem__)
    low, high = 1, len(order)
    half = -(-high // 2)
    step = 0.5  # between two names, or two bars, in units of the height
    below = 0.45 + 0.32 * len(groups)
    with look(9):
        figure = blank(6.75, 0.36 * (half + 3.4 + 0.64 * len(groups)))
        axis = figure.subplots()
        axis.set_axis_off()
        room = 0.34 * (high - low)  # for the names, at either side
        axis.set_xlim(low - room, high + room)
        axis.set_ylim(-(below + step * half), 1.5)
        line = {"color": "black", "linewidth": 0.9, "solid_capstyle": "butt"}
        axis.plot([low, high], [0, 0], **line)
        for rank in range(low, high + 1):
            axis.plot([rank, rank], [0, 0.18], **line)
            axis.text(rank, 0.28, str(rank), ha="center", va="bottom")
        reach = min(distance, high - low + room)  # with few datasets it may be more than all ranks
        axis.plot([low, low + reach], [1.1, 1.1], **line | {"linewidth": 1.6})
        for end in {low, low + distance} if reach == distance else {low}:
            axis.plot([end, end], [1.0, 1.2], **line)
        axis.text(low + reach / 2, 1.2, f"critical difference {distance:.2f}", ha="center", va="bottom")
        said = f"Mean rank over {over}; 1 is best."
        if groups:
            said += " A bar joins what is not told apart (Nemenyi, 0.05)."
        note(figure, f"{said} {about}".strip())
        for number, name in enumerate(order):
            left = number < half
            y = -(below + step * (number if left else high - 1 - number))
            edge = low - 0.04 * room if left else high + 0.04 * room
            axis.plot([ranks[name], ranks[name], edge], [0, y, y], **line | {"linewidth": 0.7})
            text = f"{caption(name)}  {ranks[name]:.2f}" if left else f"{ranks[name]:.2f}  {caption(name)}"
            axis.text(
                edge - 0.02 * room if left else edge + 0.02 * room, y, text, ha="right" if left else "left", va="center"
            )
        for number, group in enumerate(groups):
            ends = [ranks[name] for name in group]
            y = -(0.3 + 0.32 * number)
            axis.plot([min(ends) - 0.02 * room, max(ends) + 0.02 * room], [y, y], **line | {"linewidth": 3})
        save(figure, path)


@contextmanager
def look(font_size: float = 9) -> Iterator[None]:
    """Draw and save in the look of all our pictures, without changing that of the caller's."""
    from matplotlib.style import context

    settings = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": font_size,
        "axes.labelsize": font_size,
        "grid.color": "0.92",
        "grid.linewidth": 0.6,
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
        "font.size": font_size,
        "xtick.labelsize": font_size - 1,
        "ytick.labelsize": font_size - 1,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "legend.fontsize": font_size - 1,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "lines.markersize": 4,
        "hatch.linewidth": 0.7,
        "pdf.fonttype": 42,  # TrueType, which publishers ask for
    }
    # "default" first: a matplotlibrc of the user's does not change the picture
    with context(["default", settings]):
        yield


def blank(width: float, height: float, layout: Literal["constrained", "tight"] = "constrained") -> Any:
    """Return an empty figure of so many inches, whose parts find their room themselves.

    Parameters
    ----------
    width, height : float
        In inches.
    layout : {"constrained", "tight"}
        The layout engine of matplotlib.

    Returns
    -------
    matplotlib Figure
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


@dataclass(frozen=True)
class Panel:
    """Axes that show one thing: one, or two where the y-axis is broken, the upper first."""

    axes: tuple[Any, ...]

    @property
    def top(self) -> Any:
        """The axes that bear the title."""
        return self.axes[0]

    @property
    def bottom(self) -> Any:
        """The axes that bear the x-axis."""
        return self.axes[-1]

    def hide_y(self) -> None:
        """Leave out the numbers of the y-axis, which a panel to the left has."""
        for axis in self.axes:
            axis.tick_params(which="both", labelleft=False)


def cut_below(values: Sequence[float] | np.ndarray) -> float | None:
    """Return where to break the y-axis: below most of the values, if they take less than a quarter of the range.

    What is compared are the best lines; one that falls far below would press them into one. None if nothing is gained.
    The upper part is at least a twelfth of the range, so that chance does not look like a difference, and goes down to
    the next gap if that is near, so that no line is cut that stays with the others.
    """
    found = np.sort(np.asarray(values, dtype=float))
    found = found[np.isfinite(found)]
    if len(found) < 8:
        return None
    low, floor, high = np.quantile(found, (0, 0.35, 1))
    span = high - low
    if span < 5 or high - floor > span / 4:
        return None
    cut = high - max(1.2 * (high - floor), span / 12)
    above = found[1:][np.diff(found) > span / 30]  # values with a gap below them
    near = above[(above > high - span / 6) & (above <= max(cut, floor))]
    return float(np.floor(min(cut, near[-1] - span / 60) if len(near) else cut))


def panel(figure: Any, place: Any, cut: float | None = None) -> Panel:
    """Return new axes at a place of a gridspec: one, or two above each other for a y-axis that is broken.

    Parameters
    ----------
    figure : matplotlib Figure
    place : SubplotSpec
        A cell of `figure.add_gridspec`.
    cut : float, optional
        Where the y-axis is broken, as `cut_below` says. Draw everything on both axes; `fit` sets what they show.
    """
    if cut is None:
        return Panel((figure.add_subplot(place),))
    return _broken(*(figure.add_subplot(part) for part in place.subgridspec(2, 1, hspace=0.0)))


def panels(figure: Any, cuts: Sequence[float | None], columns: int) -> list[Panel]:
    """Return panels in rows of so many columns, all equally wide: one for each cut of a y-axis, None for one unbroken.

    Parameters
    ----------
    figure : matplotlib Figure
    cuts : sequence of float or None
        Where the y-axis of each panel is broken, as `cut_below` says.
    columns : int
        How many panels are side by side.
    """
    # Both parts of a broken panel are places of one grid: a grid within a place would have margins of its own, and so
    # another width than its neighbours.
    spec = figure.add_gridspec(2 * -(-len(cuts) // columns), columns, hspace=0.0)
    found = []
    for number, cut in enumerate(cuts):
        row, column = 2 * (number // columns), number % columns
        if cut is None:
            found.append(Panel((figure.add_subplot(spec[row : row + 2, column]),)))
        else:
            found.append(_broken(*(figure.add_subplot(spec[part, column]) for part in (row, row + 1))))
    return found


def _broken(upper: Any, lower: Any) -> Panel:
    """Return axes above each other as a panel with the marks of a broken y-axis."""
    lower.sharex(upper)
    upper.spines["bottom"].set_visible(False)
    upper.tick_params(bottom=False, labelbottom=False)
    mark = {"marker": [(-1, -0.6), (1, 0.6)], "markersize": 7, "linestyle": "none", "color": "k", "clip_on": False}
    for axis, height in ((upper, 0), (lower, 1)):
        axis.plot([0], [height], transform=axis.transAxes, label="_break", mew=0.8, mec="k", **mark)
    return Panel((upper, lower))


def fit(panels: Sequence[Panel], cut: float | None = None) -> None:
    """Give panels already drawn one y-axis, on which the data of all of them fit, broken at `cut`."""
    boxes = [axis.dataLim for one in panels for axis in one.axes]
    found = [(box.y0, box.y1) for box in boxes if np.isfinite(box.get_points()).all()]
    if not found:
        return
    low, high = min(y0 for y0, _ in found), max(y1 for _, y1 in found)
    edges = [(low, high)] if cut is None else [(cut, high), (min(low, cut - 1), cut)]
    for one in panels:
        for number, (axis, (bottom, top)) in enumerate(zip(one.axes, edges, strict=True)):
            pad = 0.05 * (top - bottom or 1)
            # no room at the break: there the axis goes on
            axis.set_ylim(bottom - (0 if number < len(edges) - 1 else pad), top + (0 if number else pad))
            axis.yaxis.get_major_locator().set_params(nbins=6 if cut is None else 4)
            if cut is not None:
                # no tick on the mark of the break, whose number would be taken for that of both scales
                clear = 0.06 * (top - bottom)
                low, high = axis.get_ylim()
                axis.set_yticks([y for y in axis.get_yticks() if low <= y <= high and abs(y - cut) > clear])
                _mark_between(axis, bottom, top)


def _mark_between(axis: Any, bottom: float, top: float) -> None:
    """Leave out markers that are on the other side of the break, of which a part would still be seen."""
    for line in axis.lines:
        heights = np.asarray(line.get_ydata(), dtype=float)
        if not str(line.get_label()).startswith("_") and len(heights) > 1:
            marked = range(0, len(heights), line.get_markevery() or 1)
            line.set_markevery([i for i in marked if bottom <= heights[i] <= top])


def name_y(panels: Sequence[Panel], text: str) -> None:
    """Name the y-axis of panels once each; where it is broken, at the middle of both parts."""
    for one in panels:
        one.top.set_ylabel(text, y=0.5 if one.top is one.bottom else 0.0)


def name_lines(figure: Any, panels: Sequence[Panel], samples: bool = False) -> None:
    """Write the name of each line where it ends, right of the panel; names that would meet are moved apart.

    All panels make room for names at the right edge, so that they stay equally wide. Call it last: names have their
    place by what was drawn before.

    Parameters
    ----------
    figure : matplotlib Figure
        What is drawn on.
    panels : sequence of Panel
        Those whose lines are named.
    samples : bool
        Put a piece of the line before its name, for lines that end in one place: colour alone does not tell which is
        which in grey.
    """
    figure.draw_without_rendering()
    written = []
    for one in panels:
        for axis in one.axes:
            low, high = axis.get_ylim()
            found = {}
            for line in axis.lines:
                height = np.asarray(line.get_ydata(), dtype=float)
                height = height[np.isfinite(height)]
                named = not str(line.get_label()).startswith("_")
                # at the break a line belongs to the upper part
                if named and len(height) and low <= height[-1] <= high and (height[-1] < high or axis is one.top):
                    found[line.get_label()] = (line, float(height[-1]))
            names = [_name(axis, text, height, line.get_color(), samples) for text, (line, height) in found.items()]
            written.append((axis, names, [line for line, _ in found.values()]))
    _make_room(figure, [(axis, names) for axis, names, _ in written])
    figure.draw_without_rendering()  # the panels may have another height now
    for axis, names, lines in written:
        _spread(axis, names)
        for name, line in zip(names, lines, strict=True) if samples else ():
            figure.add_artist(_sample(axis, name, line))


def _make_room(figure: Any, written: Sequence[tuple[Any, Sequence[Any]]]) -> None:
    """Keep a margin at the right of the figure, as wide as the widest name of a panel that ends there."""
    from matplotlib.text import Text

    right = max((axis.bbox.x1 for axis in figure.axes), default=0.0)
    at_edge = [name for axis, names in written if axis.bbox.x1 > right - 2 for name in names]
    if at_edge:
        start = max(name.get_position()[0] for name in at_edge)
        widest = max(Text.get_window_extent(name).width for name in at_edge) + (start + 2) * figure.dpi / 72
        figure.get_layout_engine().set(rect=(0, 0, 1 - widest / figure.bbox.width, 1))


def _sample(axis: Any, name: Any, line: Any) -> Any:
    """Return a piece of a line that stands before its name."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import Affine2D, ScaledTranslation

    across, up = name.xy
    place = ScaledTranslation(across, up, axis.get_yaxis_transform())
    start, height = name.get_position()
    sample = Line2D([start - _SAMPLE, start - _SAMPLE / 2 - 2, start - 4], [height] * 3)
    sample.update_from(line)
    sample.set(transform=Affine2D().scale(1 / 72) + axis.figure.dpi_scale_trans + place)
    sample.set(markevery=[1], clip_on=False, label="_sample", in_layout=False)
    return sample


_SAMPLE = 36  # points that a piece of a line takes before its name


def _name(axis: Any, text: str, height: float, color: Any, sample: bool) -> Any:
    """Return a name right of the axes at a height, with room for a piece of its line or else tied to it if moved."""
    tie = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
    name = axis.annotate(
        text,
        (1, height),
        (7 + _SAMPLE * sample, 0),
        xycoords=axis.get_yaxis_transform(),
        textcoords="offset points",
        color=color,
        va="center",
        annotation_clip=False,
        arrowprops=None if sample else tie,
    )
    name.set_in_layout(False)  # the room for it is taken from all panels, not from this one
    return name


def _spread(axis: Any, names: Sequence[Any]) -> None:
    """Move names up and down until none meets another, as little as it takes."""
    dots = axis.figure.dpi / 72
    names = sorted(names, key=lambda name: name.xy[1])
    across, bottom = axis.get_xlim()[0], axis.bbox.y0 / dots
    wanted = [axis.transData.transform((across, name.xy[1]))[1] / dots - bottom for name in names]
    sizes = [name.get_fontsize() * (1.1 + 1.2 * name.get_text().count("\n")) for name in names]
    gaps = [(a + b) / 2 for a, b in pairwise(sizes)]
    heights = list(wanted)
    for _ in range(100):  # pushes pairs apart until all is still; a few names need a few rounds
        still = True
        for i, gap in enumerate(gaps):
            missing = gap - (heights[i + 1] - heights[i])
            if missing > 1e-3:
                still = False
                heights[i] -= missing / 2
                heights[i + 1] += missing / 2
        # not above or below the axes, where the next ones are
        over = max(0.0, max(heights, default=0.0) - axis.bbox.height / dots) + min(0.0, min(heights, default=0.0))
        heights = [height - over for height in heights]
        if still:
            break
    for name, at, height in zip(names, wanted, heights, strict=True):
        name.set_position((name.get_position()[0], height - at))


def note(figure: Any, text: str) -> None:
    """Write below all panels what a reader must know of them, in lines that fit the figure's width."""
    if text:
        lines = wrap(caption(text), int(17.5 * (figure.get_figwidth() - 0.4)))  # inches, with room at either end
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8, color="0.3")


def legend(figure: Any, columns: int = 5) -> None:
    """Put one legend for all panels below them, each label once."""
    found: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        columns = columns if figure.get_figwidth() > 5 else 2
        figure.legend(
            found.values(),
            found.keys(),
            loc="outside lower center",
            ncols=min(columns, len(found)),
            handlelength=2.8,
            columnspacing=1.4,
        )


def epochs_axis(axis: Any) -> None:
    """Make the x-axis one of epochs."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axis.set_xlabel("epoch")


def place(out: Path, name: str) -> Path:
    """Return where a figure goes: `out` if its suffix is that of a picture, else `name` in the folder `out`."""
    if out.suffix.lower() in FORMATS:
        return out
    if out.suffix[1:].isalpha() and not out.is_dir():  # nobody means a folder "loss.jpg"
        raise InputError(
            f"{out}: expected a folder or a {', '.join(FORMATS)} file; make the folder first if it is to be one"
        )
    return out / name


def files(path: Path) -> list[Path]:
    """Return the files of a figure: `path` if its suffix is that of a picture, else `path`.pdf and `path`.png."""
    # A name may hold a dot, so the suffix is added and not put in place of another.
    return [path] if path.suffix.lower() in FORMATS else [path.with_name(path.name + kind) for kind in (".pdf", ".png")]


def check_path(path: Path, overwrite: bool = False) -> None:
    """Raise `InputError`, before any work, if no picture can be written there, or another than ours is there."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: expected a {', '.join(FORMATS)} file for the picture")
    # folders that are not there yet are made in the nearest one that is
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise FileError(f"{path}: its folder cannot be written to; choose another place")
    check_free(path, overwrite, MARK)


def save(figure: Any, path: Path, dpi: int = 200, **options: Any) -> None:
    """Write the figure in the format its suffix says; the same figure gives the same bytes.

    Parameters
    ----------
    figure : matplotlib Figure
        What is written.
    path : Path
        The picture, a .png, .pdf or .svg file.
    dpi : int
        Dots an inch, for .png.
    **options
        Passed on to `Figure.savefig`.
    """
    kind = path.suffix.lower().removeprefix(".")
    drawn = io.BytesIO()  # in memory first: a full disk in the middle of a drawing is more than matplotlib can take
    with warnings.catch_warnings():
        # Of letters that the font has not, which are drawn as boxes, and of names too long for their place.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(drawn, format=kind, dpi=dpi, metadata=_METADATA[kind], **options)
    with replacing(path) as temporary:
        temporary.write_bytes(drawn.getbuffer())
