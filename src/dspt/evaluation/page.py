"""The page of an evaluation, which needs nothing but itself: no network, no script, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from dspt import __version__
from dspt.auditing.report import encoded, mime, thumbnail
from dspt.evaluation.measures import Evaluation, harmonic_mean
from dspt.internal.files import write_text
from dspt.internal.names import printable
from dspt.internal.rounding import counted, figure

# A matrix of more classes cannot be read, nor can a longer list of pairs.
MOST_CLASSES, MOST_PAIRS = 25, 25
# Shades of a cell; each is a class of the style, since the page forbids styles of single elements.
_SHADES = 10


@dataclass(frozen=True)
class Part:
    """What a page shows of one set of classes."""

    heading: str  # "" if there is only one
    evaluation: Evaluation
    picture: Callable[[int], Image.Image | None]  # of an image, by its row
    zero_shot: float | None = None
    template: str = ""  # the prompt of zero-shot
    noise: str = ""  # the estimated share of wrong labels, in words


def write_page(path: Path, title: str, model: str, parts: Sequence[Part], worst: int) -> None:
    """Write an evaluation to an HTML file.

    Parameters
    ----------
    path : Path
        The file.
    title : str
        What was judged, on what.
    model : str
        The checkpoint.
    parts : sequence of Part
        One; or two, those of base and new classes, with the harmonic mean of both above them.
    worst : int
        How many of the worst mistakes are shown in each part.
    """
    style = (resources.files("dspt.evaluation") / "page" / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = _template().render(
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=Markup(style),
        title=title,
        model=model,
        harmonic=_harmonic(*parts) if len(parts) > 1 else {},
        parts=[_shown(part, worst) for part in parts],
        known=all(part.evaluation.truth_known for part in parts),
        version=__version__,
    )
    write_text(path, text)


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        # The name of a file or a class may hold anything.
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, counted=counted)
    return environment.from_string(
        (resources.files("dspt.evaluation") / "page" / "page.html").read_text(encoding="utf-8")
    )


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else figure(value, digits)


def _harmonic(base: Part, new: Part) -> dict[str, float]:
    """Return the harmonic means of base and new classes by what they are of."""
    found = {"harmonic mean of base and new": harmonic_mean(base.evaluation.accuracy, new.evaluation.accuracy)}
    if base.zero_shot is not None and new.zero_shot is not None:
        found["the same of zero-shot"] = harmonic_mean(base.zero_shot, new.zero_shot)
    return found


def _shown(part: Part, worst: int) -> dict[str, Any]:
    """Return what the template shows of a part."""
    one = part.evaluation
    return {
        "heading": part.heading,
        "anchor": part.heading.split(" ")[0].lower() or "all",
        "samples": len(one.labels),
        "classes": len(one.class_names),
        "known": one.truth_known,
        "noise": part.noise,
        "zero_shot": part.zero_shot,
        "template": part.template,
        "accuracy": one.accuracy,
        "mean_recall": one.mean_of_classes("recall"),
        "mean_f1": one.mean_of_classes("f1"),
        "calibration": one.calibration,
        "rows": sorted(one.by_class, key=lambda row: (row["f1"] is None, row["f1"] or 0)),
        "matrix": _matrix(one),
        "mistakes": one.mistakes[:MOST_PAIRS],
        "more_mistakes": max(0, len(one.mistakes) - MOST_PAIRS),
        "wrong": int((one.predicted != one.labels).sum()),
        "worst": [_card(one, row, part.picture(row)) for row in one.worst(worst).tolist()],
    }


def _matrix(one: Evaluation) -> dict[str, Any]:
    """Return the confusion matrix, or that of the classes which are confused most."""
    wrong = one.confusion - np.diag(np.diag(one.confusion))
    involved = wrong.sum(0) + wrong.sum(1)
    kept = np.sort(np.argsort(-involved, kind="stable")[:MOST_CLASSES])
    of_row, names = one.confusion.sum(1), one.class_names
    rows = []
    for number, c in enumerate(kept.tolist(), 1):
        counts = one.confusion[c, kept].tolist()
        shades = [0 if not n else 1 + int((_SHADES - 1) * n / of_row[c]) for n in counts]
        cells = [
            {
                "count": n,
                "shade": shade,
                "same": c == other,
                "title": f"{one.class_names[c]} as {one.class_names[other]}",
            }
            for n, shade, other in zip(counts, shades, kept.tolist(), strict=True)
        ]
        rows.append({"number": number, "name": names[c], "cells": cells})
    return {"rows": rows, "left_out": len(names) - len(kept)}


def _card(one: Evaluation, row: int, picture: Image.Image | None) -> dict[str, Any]:
    """Return a mistake with its picture, if there is one."""
    shown = one.mistake(row) | {"source": None}
    if picture is not None:
        content = encoded(thumbnail(picture))
        shown["source"] = f"data:{mime(content)};base64,{base64.b64encode(content).decode()}"
    return shown
