"""The losses that the paper's argument is about, as curves: a figure for print, and a page to play with.

Nothing here was run: values and gradients are those of `losses.py`, on predictions made up for the purpose.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from dspt import plots
from dspt.experiments.catalogue import LANDSCAPE
from dspt.internal.files import check_free, write_text

TITLE = "Loss and gradient of CE, MAE, GCE, DSPT and its outer-scale family L_s over a prediction, from formulas"
CLASSES = (2, 10, 100)
SCALE = 10.0  # of the member of L_s that is drawn: large enough to differ from DSPT, which is that of 1

PAGE_MARK = b"drawn by dspt"
_HERE = Path(__file__).parent / "page"
# What is drawn, by name of the loss: how it looks, and its hyper-parameters. MAE lies on DSPT's broad line, where in
# grey its dashes would be lost: `_cased` gives them a white edge. L_s is the thin line.
LOSSES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "ce": ({"color": "#D55E00", "linestyle": "-.", "label": "CE"}, {}),
    "gce": ({"color": "#CC79A7", "linestyle": (0, (1, 1)), "linewidth": 1.8, "label": "GCE"}, {"q": 0.7}),
    "dspt": ({"color": "#009E73", "linestyle": "-", "linewidth": 3.8, "label": "DSPT"}, {}),
    "mae": ({"color": "#0072B2", "linestyle": "--", "linewidth": 1.2, "zorder": 2.5, "label": "MAE"}, {}),
    "dspt-scale": (
        {"color": "#000000", "linestyle": "-", "linewidth": 0.9, "label": f"$L_s$, s = {SCALE:g}"},
        {"s": SCALE},
    ),
}


def at_label(p_label: np.ndarray, num_classes: int, gathered: float = 0.0) -> np.ndarray:
    """Return predictions whose label, class 0, has these probabilities.

    Parameters
    ----------
    p_label : array of shape (N,)
        In 0..1.
    num_classes : int
        C, 2 or more.
    gathered : float
        How much of the rest class 1 has beyond an even share: 0 is even, 1 all of it.

    Returns
    -------
    array of shape (N, C)
        Every row sums to 1.
    """
    rest = 1 - p_label
    p = np.repeat((rest * (1 - gathered) / (num_classes - 1))[:, None], num_classes, axis=1)
    p[:, 1] += gathered * rest
    p[:, 0] = p_label
    return p


def contradicting(confidence: np.ndarray, num_classes: int) -> np.ndarray:
    """Return predictions (N, C) that are this confident of class 1, where class 0 is the label; the rest is even."""
    rest = (1 - confidence) / (num_classes - 1)
    p = np.repeat(rest[:, None], num_classes, axis=1)
    p[:, 1] = confidence
    return p


def curves(name: str, p: np.ndarray, **hyper: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a loss of each prediction under label 0, and its total gradient on the logits, `sum_i |dL/dz_i|`.

    Parameters
    ----------
    name : str
        A name of `dspt.losses`.
    p : array of shape (N, C)
        Predictions, every row a distribution without zeros.
    **hyper : float
        Hyper-parameters of the loss.

    Returns
    -------
    loss, total : arrays of shape (N,)
    """
    import torch

    from dspt import losses

    logits = torch.from_numpy(np.log(p)).requires_grad_()
    loss = losses.get(name)(logits, torch.zeros(len(p), dtype=torch.long), "none", validate=True, **hyper)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach().numpy(), gradient.abs().sum(1).numpy()


def figure() -> Any:
    """Return the figure: rows of loss and gradient, over the label's probability and over a contradiction; C across."""
    rows = (
        ("loss above its least", "probability of the label, $p_y$"),
        ("gradient", "probability of the label, $p_y$"),
        ("loss above its least", "confidence in another class"),
        ("gradient", "confidence in another class"),
        ("DSPT minus MAE", "probability of the label, $p_y$"),
    )
    drawn = plots.blank(plots.TWO_COLUMNS, 8.4)
    spec = drawn.add_gridspec(len(rows), len(CLASSES))
    panels = [[plots.panel(drawn, spec[row, column]) for column in range(len(CLASSES))] for row in range(len(rows))]
    for column, classes in enumerate(CLASSES):
        across = np.linspace(1e-4, 1 - 1e-4, 400)
        sure = np.linspace(1 / classes, 1 - 1e-4, 400)
        for start, x, p in ((0, across, at_label(across, classes)), (2, sure, contradicting(sure, classes))):
            for name, (style, hyper) in LOSSES.items():
                loss, total = curves(name, p, **hyper)
                cased = style | ({"path_effects": _cased()} if name == "mae" else {})
                panels[start][column].top.plot(x, loss - _least(name, classes, hyper), **cased)
                panels[start + 1][column].top.plot(x, total, **cased)
        _differences(panels[4][column].top, classes, across)
        panels[0][column].top.set_title(f"C = {classes}")
    for row, (what, over) in enumerate(rows):
        for column, one in enumerate(panels[row]):
            axis = one.top
            axis.set_xlabel(over)
            left = 1 / CLASSES[column] if "confidence" in over else 0.0
            axis.set_xlim(left, 1)
            axis.set_xticks([left, 0.5, 1] if left < 0.4 else [0.5, 0.75, 1])
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            if row < 4:
                axis.set_ylim(0, 2.5 if row in (0, 2) else 2.05)
            if column:
                one.hide_y()
        panels[row][0].top.set_ylabel(what if what != "gradient" else f"gradient, {plots.PULL}")
    plots.fit(panels[4])
    for row in (1, 3):
        for one in panels[row]:
            one.top.set_yticks([0, 0.5, 1, 1.5, 2])
    plots.note(
        drawn,
        "From formulas, nothing was run. In rows 1, 2 and 5 what the label does not have is even over the other "
        "classes; in rows 3 and 4 one other class has the confidence, and the rest is even over the others and the "
        "label. From each loss its least value is subtracted; CE has no greatest one and leaves the panel. GCE: "
        "q = 0.7.",
    )
    # All lines end in one point, where no name could stand: a key in the empty corner beside them.
    panels[0][0].top.legend(loc="upper right", handlelength=2.6, labelspacing=0.2, borderaxespad=0)
    panels[4][2].top.legend(loc="lower right", handlelength=2.6, labelspacing=0.2)
    return drawn


def _cased() -> list[Any]:
    """Return effects that give a line a white edge, so that it is seen on another, in grey too."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=2.6, foreground="white"), Normal()]


def _least(name: str, num_classes: int, hyper: dict[str, float]) -> float:
    """Return the least value of a loss, that of a prediction which is sure and right."""
    loss, _ = curves(name, at_label(np.array([1 - 1e-12]), num_classes), **hyper)
    return float(loss[0])


def _differences(axis: Any, num_classes: int, across: np.ndarray) -> None:
    """Draw what the second softmax adds to MAE, in value and in gradient."""
    p = at_label(across, num_classes)
    dspt, mae = curves("dspt", p), curves("mae", p)
    least = _least("dspt", num_classes, {})
    axis.plot(across, dspt[0] - least - mae[0], color="#009E73", linestyle="-", label="loss")
    axis.plot(across, dspt[1] - mae[1], color="#0072B2", linestyle="--", label="gradient")
    axis.axhline(0, color="0.5", linewidth=0.7)


def page() -> str:
    """Return the interactive page: one HTML file that needs nothing but itself, under a policy that allows no more."""
    parts = {name: (_HERE / f"landscape.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    policy = f"default-src 'none'; style-src {_digest(parts['css'])}; script-src {_digest(parts['js'])}"
    return (
        parts["html"]
        .replace("{{ mark }}", PAGE_MARK.decode())
        .replace("{{ policy }}", f"{policy}; base-uri 'none'; form-action 'none'")
        .replace("{{ css }}", parts["css"])
        .replace("{{ js }}", parts["js"])
    )


def draw(out: Path, overwrite: bool = False) -> list[Path]:
    """Write loss-landscape.pdf, .png and .html to a folder and return them; the name of a file is that one alone."""
    kind = out.suffix.lower()
    pictures = [] if kind == ".html" else plots.files(plots.place(out, LANDSCAPE))
    pages = [out] if kind == ".html" else [] if kind in plots.FORMATS else [out / f"{LANDSCAPE}.html"]
    for path in pictures:
        plots.check_path(path, overwrite)
    for path in pages:
        check_free(path, overwrite, PAGE_MARK)
    if pictures:
        with plots.look():
            drawn = figure()
            for path in pictures:
                plots.save(drawn, path)
    for path in pages:
        write_text(path, page())
    return [*pictures, *pages]


def _digest(text: str) -> str:
    """Return a part of the page as its policy names it, so that nothing else is obeyed."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
