"""Pictures: colour-blind safe, told apart in grey by line style too."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
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
# MAE and DSPT are often one: dashes and open markers lie on top of solid ones, and both are seen.
_CHOSEN: dict[str, dict[str, Any]] = {
    "coop": {"color": "#D55E00", "linestyle": "-.", "marker": "s", "label": "CoOp (cross-entropy)"},
    "mae": {
        "color": "#0072B2",
        "linestyle": "--",
        "marker": "^",
        "markerfacecolor": "white",
        "zorder": 2.5,
        "label": "MAE",
    },
    "dspt": {
        "color": "#009E73",
        "linestyle": "-",
        "marker": "o",
        "markersize": 5,
        "label": "DSPT (double softmax)",
    },
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


def accuracy_over_epochs(path: Path, panels: Mapping[str, Mapping[str, Sequence[float]]], zero_shot: float) -> None:
    """Draw test accuracy after each epoch, one panel for each noise, one line for each method.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    panels : mapping of str to mapping of str to sequence of float
        By title and name of the method: the accuracy in percent, one number an epoch.
    zero_shot : float
        The accuracy of zero-shot in percent, a horizontal line in each panel.
    """
    with look(10):
        figure = blank(4.6 * len(panels), 3.6)
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (title, curves) in zip(axes, panels.items(), strict=True):
            for method, values in curves.items():
                every = max(1, len(values) // 8)
                axis.plot(range(1, len(values) + 1), values, markevery=every, **style(method))
            axis.axhline(zero_shot, **ZERO_SHOT)
            axis.set_title(caption(title))
            epochs_axis(axis)
        axes[0].set_ylabel("test accuracy (%)")
        legend(figure)
        save(figure, path, dpi=150)


def gradient_distribution(path: Path, panels: dict[str, np.ndarray], right: np.ndarray) -> None:
    """Draw how strongly each sample pulls at the logits, right and wrong labels apart.

    `panels` maps a title to the sum of |dL/dz| of each sample; `right` tells which labels are right.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    panels : dict of str to array of shape (N,)
        The totals of all samples, by title.
    right : bool array of shape (N,)
        Which labels are right.
    """
    with look(10):
        figure = blank(4.6 * len(panels), 3.6)
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (title, totals) in zip(axes, panels.items(), strict=True):
            edges = np.linspace(0, max(2.0, float(totals.max())), 41)
            parts = {"right": totals[right], "wrong": totals[~right]}
            counts = {kind: np.histogram(part, edges)[0] for kind, part in parts.items()}
            means = {kind: float(part.mean()) for kind, part in parts.items() if len(part)}
            shares(axis, edges, counts, means)
            axis.set_title(caption(title))
            axis.set_xlabel(f"gradient on the logits, {PULL}")
        axes[0].set_ylabel("share of samples (%)")
        legend(figure)
        save(figure, path, dpi=150)


def shares(
    axis: Any,
    edges: Sequence[float] | np.ndarray,
    counts: Mapping[str, Any],
    means: Mapping[str, float],
) -> None:
    """Draw histograms of "right" and "wrong" samples in percent of each, and their means.

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
    for kind, color, label, hatch in (
        ("right", RIGHT, "correctly labelled", ""),
        ("wrong", WRONG, "mislabelled", "/////"),
    ):
        total = np.sum(counts[kind])
        if not total:
            continue
        share = 100 * np.asarray(counts[kind]) / total
        # The hatching is the mark of wrong labels in grey: no fill may hide it.
        fill = {"facecolor": "none", "hatch": hatch} if hatch else {"facecolor": color + "59"}
        axis.stairs(share, edges, fill=True, edgecolor=color, linewidth=0, **fill)
        axis.stairs(share, edges, color=color, linewidth=0.8)
        axis.fill_between([], [], [], edgecolor=color, linewidth=0.8, label=label, **fill)
        if kind in means:
            style = "--" if hatch else "-"
            axis.axvline(means[kind], color=color, linestyle=style, label=f"mean, {label}")
    axis.set_xlim(edges[0], edges[-1])
    axis.xaxis.get_major_locator().set_params(nbins=5)


def confusion(path: Path, shares: np.ndarray, names: Sequence[str], title: str) -> None:
    """Draw, for each true class (row), which labels it was given (columns), as shares.

    Parameters
    ----------
    path : Path
        The picture, a .png, .pdf or .svg file.
    shares : array of shape (C, C)
        The share, in 0..1, of true class (row) and given label (column).
    names : sequence of C str
        The names of the classes; they are left out for more than 40.
    title : str
        The line above the picture.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import PercentFormatter

    with look(10):
        classes = len(names)
        side = float(np.clip(0.42 * classes, 3.4, 8.5))
        figure = blank(side + 1.6, side, layout="tight")
        axis = figure.subplots()
        # The root makes a few mistakes visible beside a diagonal of many right labels.
        image = axis.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="equal")
        axis.grid(False)
        if classes <= 40:
            whole = map(printable, names)
            short = [caption(name if len(name) <= 18 else name[:17] + "…") for name in whole]
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
        axis.set_title(caption(title), fontsize=10)
        bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03, format=PercentFormatter(1, 0))
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
        bar.set_label("share of the true class")
        save(figure, path, dpi=150, bbox_inches="tight")


def critical_difference(
    path: Path, ranks: Mapping[str, float], distance: float, groups: Sequence[Sequence[str]], over: str
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
        axis.set_ylim(-(below + step * (half + 1)), 1.5)
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
        axis.text((low + high) / 2, -(below + step * half + 0.3), said, ha="center", va="center", color="0.3")
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


def share_y(axes: Sequence[Any]) -> None:
    """Return panels already drawn one y-axis, on which the data of all of them fit."""
    for axis in axes[1:]:
        axis.sharey(axes[0])
    for axis in axes[:1]:
        axis.autoscale(axis="y")


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
