"""The page a person reads: what an audit has found, with pictures, in one file that needs no network.

The same page is served by the review, where it also takes decisions; `page_data` is what both show.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image, features

from dspt.auditing.audit import IMAGE_ISSUES, Audit, by_images
from dspt.auditing.folder import PAGE, SHEET, THUMBS
from dspt.data.folder import EMPTY
from dspt.internal.errors import InputError
from dspt.internal.files import parse_json, read_text, remove, replacing, write_text
from dspt.internal.names import printable
from dspt.internal.progress import Reporter
from dspt.internal.threads import in_threads

OpenPicture = Callable[[int], Image.Image | None]

# The side of a thumbnail, what is left free around it so that no other one is seen beside it when it is drawn smaller,
# and how many of them a sheet has in a row and in a column. page.js knows these numbers, too.
SIDE, MARGIN, ACROSS = 124, 2, 10
CELL = SIDE + 2 * MARGIN
PER_SHEET = ACROSS**2
# So many bytes of sheets are put into the page itself; it stays quick to open. The others lie beside it.
EMBEDDED_BYTES = 6_000_000
# So many images of suspects and of other findings get a thumbnail, and so many suspects have examples beside them: what
# a minute is enough for. The review makes thumbnails when they are looked at, and has examples for more.
MOST_PICTURES, MOST_OTHERS, MOST_EXAMPLES, MOST_SERVED_EXAMPLES = 10_000, 2_000, 1_000, 20_000
# A heat map of more classes cannot be read.
MOST_CONFUSED = 20

PLACES = "index.json"


def write_page(
    audit: Audit,
    out: Path,
    open_picture: OpenPicture,
    budget: int | None = None,
    reporter: Reporter | None = None,
) -> Path:
    """Return the path of the page of an audit, `index.html`, after writing it and its thumbnails.

    Parameters
    ----------
    audit : Audit
        What is shown.
    out : Path
        The folder of the report, made if it is not there.
    open_picture : callable
        Gives the image of a row, or None if there is none to show; called from several threads.
    budget : int, optional
        Show so many labels that are worth a look first, instead of those called wrong.
    reporter : Reporter, optional
        Is told how far the thumbnails are; None says nothing.

    Returns
    -------
    Path
        `out/index.html`, which needs nothing but `out/thumbs`.
    """
    out = Path(out)
    data = page_data(audit, budget, MOST_EXAMPLES)
    rows, own = data["images"]["row"], data["summary"]["images_of_suspects"]
    rows = rows[: min(own, MOST_PICTURES)] + rows[own:][:MOST_OTHERS]
    sheets, places = _sheets(rows, open_picture, reporter or Reporter(silent=True))
    names = _write_sheets(out / THUMBS, sheets, places, audit)
    data["images"]["place"] = [places.get(row, -1) for row in data["images"]["row"]]
    data["sheets"] = []
    room = EMBEDDED_BYTES
    for name, content in zip(names, sheets, strict=True):
        room -= len(content) * 4 // 3
        inside = room >= 0 and f"data:{mime(content)};base64,{base64.b64encode(content).decode()}"
        data["sheets"].append(inside or f"{THUMBS}/{name}")
    write_text(out / PAGE, _page(data, inline=True))
    # Only now, as the page that stood there before needed them.
    for old in (out / THUMBS).glob("*"):
        if old.name not in names and SHEET.fullmatch(old.name):
            remove(old)
    return out / PAGE


def served_page(data: dict[str, Any]) -> str:
    """Return the page as it is served: its style, its script and its data come from the server."""
    return _page(data, inline=False)


@cache
def page_file(name: str) -> str:
    """Return the text of a file of the page: "page.html", "page.css" or "page.js"."""
    return (resources.files("dspt.auditing") / "page" / name).read_text(encoding="utf-8")


def sheet_places(folder: Path, audit: Audit) -> tuple[list[str], dict[int, int]]:
    """Return the names of the sheets of a report and where on them each row is: nothing, if they are not this audit's.

    Parameters
    ----------
    folder : Path
        The folder of the thumbnails.
    audit : Audit
        Whose rows are looked for.
    """
    try:
        found = parse_json(read_text(folder / PLACES), PLACES)
        names, rows = found["sheets"], found["rows"]
        mine = found["items"] == _digest(audit.items) and found["laid_out"] == [SIDE, MARGIN, ACROSS]
        good = all(isinstance(name, str) and Path(name).name == name for name in names)
        if mine and good and len(rows) <= PER_SHEET * len(names):
            return list(names), {int(row): place for place, row in enumerate(rows)}
    except (OSError, InputError, KeyError, TypeError, ValueError):
        pass  # whatever is the matter, thumbnails can be made again
    return [], {}


def thumbnail(picture: Image.Image) -> Image.Image:
    """Return all of a picture as a square thumbnail, with nothing where it is not square, and a margin around it."""
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    small = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    square = Image.new("RGBA", (CELL, CELL))
    square.paste(small.convert("RGB"), ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    return square


def encoded(picture: Image.Image) -> bytes:
    """Return thumbnails as the bytes of a file: WebP, or JPEG on grey where Pillow has no WebP."""
    file = io.BytesIO()
    if features.check("webp"):
        picture.save(file, "WEBP", quality=80, method=3)
    else:
        ground = Image.new("RGB", picture.size, (128, 128, 128))
        ground.paste(picture, mask=picture.getchannel("A"))
        ground.save(file, "JPEG", quality=85)
    return file.getvalue()


def mime(content: bytes) -> str:
    """Return what kind of file thumbnails are that `encoded` has made."""
    return "image/webp" if content[:4] == b"RIFF" else "image/jpeg"


def headline(audit: Audit) -> str:
    """Return how many labels are wrong, as a sentence: "About 91 of 600 labels are wrong (15 %, give or take 3).".

    What somebody has decided is told apart: "91 labels corrected; about 19 of 600 are still wrong (...).".
    """
    done = audit.settled
    number = len(audit.labels) - done["removed"]
    made = [f"{count:,} {what}" for what, count in done.items() if count]
    if made:
        first, _, what = made[0].partition(" ")
        made[0] = f"{first} label{'' if first == '1' else 's'} {what}"
    if made and not audit.open.any():
        return f"{', '.join(made)}; none is left to decide about."
    if not audit.tells:
        if made:
            return f"{', '.join(made)}; how many of the others are wrong cannot be told."
        return f"How many of the {number:,} labels are wrong cannot be told."
    wrong, spread = audit.still_wrong, 2 * audit.noise_rate_error
    share, more_or_less = _percent(wrong / number, spread)
    within = f"give or take {more_or_less}"
    if wrong / number < spread:  # no share is below none
        within = f"at most {_percent(wrong / number + spread, spread)[0]} %"
    if made:
        about = f"about {_three_digits(wrong):,} of {number:,} are" if round(wrong) else f"hardly any of {number:,} is"
        return f"{', '.join(made)}; {about} still wrong ({share} %, {within})."
    if round(wrong) < 1:
        return f"Hardly any of the {number:,} labels is wrong ({share} %, {within})."
    is_are = "label is" if number == 1 else "labels are"
    return f"About {_three_digits(wrong):,} of {number:,} {is_are} wrong ({share} %, {within})."


def _explanation(audit: Audit, count: int, expected: float | None, budget: int | None) -> str:
    """Return what is below the headline: what the figures mean, and what is listed."""
    words = []
    if audit.tells and audit.open.any():
        counted = len(audit.labels) - audit.settled["removed"]
        above_none = audit.still_wrong >= 2 * audit.noise_rate_error * counted
        words.append(
            "Give or take means two standard errors." if above_none else "At most means two standard errors more."
        )
        words.append(
            "If hard images are mislabelled more often than easy ones, the true share is likelier above the estimate "
            "than below it."
        )
    elif audit.tells:
        pass  # nothing is left that could be wrong
    elif not audit.can_tell:
        words.append("Neither the images nor the class names tell enough about the labels.")
    else:
        words.append("The images tell too little about the labels for an estimate that would be worth its name.")
    plural = count != 1
    of_those = "undecided " if any(audit.settled.values()) else ""
    if not audit.can_tell:
        words.append("None is called wrong.")
    elif budget is not None:
        wrong = "" if expected is None else f"; about {_three_digits(expected):,} of them should be wrong"
        words.append(
            f"Below {'are' if plural else 'is'} the {count:,} label{'s' if plural else ''} most worth a look{wrong}."
        )
    elif count:
        words.append(
            f"{count:,} {of_those}label{'s are' if plural else ' is'} more likely wrong than right"
            f"{', listed below, the surest first' if plural else ''}."
        )
    else:
        words.append(f"No {of_those}label is more likely wrong than right.")
    return " ".join(words)


def page_data(
    audit: Audit,
    budget: int | None = None,
    examples: int = MOST_SERVED_EXAMPLES,
    decided: Collection[int] = (),
) -> dict[str, Any]:
    """Return all that the page shows as columns of plain values, ready for JSON.

    Images that are shown are numbered in the order in which they are met; everything else refers to them by that
    number. Names are made printable; what is decided on the page refers to rows and classes by number, never by name.
    What is not known is null: where nothing can be told, no label has a probability, another class or examples.

    Parameters
    ----------
    audit : Audit
        What was found.
    budget : int, optional
        Show so many labels that are worth a look first, instead of those called wrong.
    examples : int
        So many of the suspects, the first ones, have images of either class beside them.
    decided : collection of int
        Rows that somebody has decided about: those that are not listed follow after the others, so that they can be
        found again. "listed" in the summary is how many come before them. Without them, a page that cannot say what
        was decided lists nothing of it.

    Returns
    -------
    dict
        "summary", "classes", "worst", "confusion", "images" (columns "row", "name", "label", "split", and "doubt", how
        probable it is that nobody has decided and the label is wrong), "suspects" (columns "image", "proposed", "p",
        "runner", "q", "other", the best class that is neither given nor proposed, "quality", "examples") and
        "findings".
    """
    rows = audit.suspects if budget is None else audit.looks(budget)
    if not decided:
        rows = rows[audit.open[rows]]
    listed = len(rows)
    rows = np.concatenate([rows, np.setdiff1d(np.array(sorted(decided), np.int64), rows)])
    known = audit.can_tell
    first, second = audit.ranked
    right = first[rows] == audit.labels[rows]
    proposed = audit.proposed[rows]
    runner = np.where(right, first[rows], second[rows])
    images = _Images()
    suspects: dict[str, list[Any]] = {
        "image": [],
        "proposed": proposed.tolist() if known else [None] * len(rows),
        "p": _chances(audit, rows, proposed) if known else [None] * len(rows),
        "runner": runner.tolist() if known else [None] * len(rows),
        "q": _chances(audit, rows, runner) if known else [None] * len(rows),
        "other": _others(audit, rows, proposed, second[rows]) if known else [None] * len(rows),
        "quality": _chances(audit, rows, audit.labels[rows]) if known else [None] * len(rows),
        "examples": [],
    }
    for position, row in enumerate(rows.tolist()):
        suspects["image"].append(images.number(row))
        if known and audit.examples is not None and position < examples:
            both = zip(audit.examples[row][:, :4], (audit.labels[row], proposed[position]), strict=True)
            # An older report may have examples of a class that is not shown.
            suspects["examples"].append(
                [images.numbers(some[(some >= 0) & (audit.labels[some] == c)]) for some, c in both]
            )
    expected, everywhere = (round(float(each.sum()), 2) for each in (audit.doubts[rows[:listed]], audit.doubts))
    own = len(images.rows)
    found = _findings(audit, images)
    order = images.rows
    several = len(set(audit.splits)) > 1
    # A page may be shown to others, whom folders of this machine do not concern.
    made_with = {name: value for name, value in audit.made_with.items() if name != "path"}
    return {
        "source": printable(audit.source),
        "made_with": {printable(str(k)): printable(str(v)) for k, v in made_with.items() if v not in (None, "")},
        "summary": {
            "headline": headline(audit),
            "explanation": _explanation(
                audit, int(audit.open[rows[:listed]].sum()), expected if audit.tells else None, budget
            ),
            "samples": len(audit.labels),
            "decided": sum(audit.settled.values()),
            "can_tell": known,
            "budget": budget,
            "listed": listed,
            "images_of_suspects": own,
            "expected": expected if audit.tells else None,
            "expected_everywhere": everywhere if audit.tells else None,
        },
        "classes": [printable(name) for name in audit.class_names],
        "worst": _worst(audit),
        "confusion": _confusion(audit),
        "images": {
            "row": order,
            "name": [printable(audit.items[row]) for row in order],
            "label": audit.labels[order].tolist() if order else [],
            "split": [audit.splits[row] for row in order] if several else [],
            "doubt": _rounded(audit.doubts[order]) if audit.tells else [],
        },
        "suspects": suspects,
        "findings": found,
    }


def as_json(value: Any) -> str:
    """Return a value as compact JSON that can stand inside an HTML page: no name in it can end a script."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class _Images:
    """The images that a page shows, numbered in the order in which they are met."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._numbers: dict[int, int] = {}

    def number(self, row: int) -> int:
        found = self._numbers.setdefault(row, len(self.rows))
        if found == len(self.rows):
            self.rows.append(row)
        return found

    def numbers(self, rows: Iterable[int]) -> list[int]:
        return [self.number(int(row)) for row in rows]


def _findings(audit: Audit, images: _Images) -> dict[str, Any]:
    """Return what was found besides wrong labels."""
    groups = [
        {
            "images": images.numbers(group),
            "identical": number < audit.identical_groups,
            "differ": audit.labels_differ(group),
            "leak": audit.leaks(group),
        }
        for number, group in enumerate(audit.duplicate_groups)
    ]
    outliers = np.flatnonzero(audit.is_outlier)
    outliers = outliers[np.argsort(-audit.fits_no_class[outliers], kind="stable")]
    issues: dict[str, list[int]] = {issue: [] for issue in IMAGE_ISSUES}
    for row, text in enumerate(audit.image_issues):
        for issue in filter(None, text.split(";")):
            issues.setdefault(issue, []).append(images.number(row))
    return {
        "groups": groups,
        "outliers": images.numbers(outliers),
        "issues": {printable(issue): some for issue, some in issues.items() if some},
        "unusable": [
            [printable(fault.name), printable(fault.reason), fault.split]
            for fault in audit.unusable
            if fault.reason != EMPTY
        ],
        "empty": [printable(fault.name) for fault in audit.empty_folders],
        "inseparable": [[a, b, round(float(share), 4), by_images(share)] for a, b, share in audit.inseparable],
    }


def _worst(audit: Audit) -> list[list[float]]:
    """Return the classes with wrong labels, the worst first: class, share of wrong labels, number of labels.

    Once somebody has decided, they are of the labels that are left to decide about.
    """
    if not audit.tells:
        return []
    classes, labels = len(audit.class_names), audit.labels[audit.open]
    counts = np.bincount(labels, minlength=classes)
    rates = np.nan_to_num(np.asarray(audit.class_noise_rates, dtype=np.float64))
    if any(audit.settled.values()):
        rates = np.bincount(labels, audit.doubts[audit.open], minlength=classes) / np.maximum(counts, 1)
    order = np.lexsort((-counts, -rates))
    return [[int(c), round(float(rates[c]), 4), int(counts[c])] for c in order if rates[c] * counts[c] >= 0.5]


def _confusion(audit: Audit) -> dict[str, Any]:
    """Return how many labels given as one class should be another, for the classes most often confused."""
    if not audit.tells:
        return {"classes": [], "counts": []}
    counts = audit.confusion()
    np.fill_diagonal(counts, 0)
    involved = counts.sum(0) + counts.sum(1)
    most = np.sort(np.argsort(-involved, kind="stable")[:MOST_CONFUSED])
    most = most[involved[most] >= 0.5]
    return {"classes": most.tolist(), "counts": [_rounded(row, 2) for row in counts[np.ix_(most, most)]]}


def _page(data: dict[str, Any], inline: bool) -> str:
    """Return the page, with everything inside it or with addresses of a server."""
    style, script = page_file("page.css"), page_file("page.js")
    policy = (
        f"default-src 'none'; script-src '{_sha(script)}'; style-src '{_sha(style)}'; img-src data: 'self'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(
        inline=inline,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=Markup(as_json(data)) if inline else "",
        source=data["source"],
        summary=data["summary"],
        made_with=data["made_with"],
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(page_file("page.html"))


def _sha(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _sheets(rows: Sequence[int], open_picture: OpenPicture, reporter: Reporter) -> tuple[list[bytes], dict[int, int]]:
    """Return sheets of thumbnails, and the place of each row that has one, counted through all sheets."""

    def small(row: int) -> tuple[int, Image.Image | None]:
        try:
            picture = open_picture(row)
            return row, None if picture is None else thumbnail(picture)
        except InputError:  # it could be read when it was audited, and is shown by its name now
            return row, None

    places: dict[int, int] = {}

    def filled() -> Iterator[Image.Image]:
        sheet = Image.new("RGBA", (0, 0))
        for done, (row, picture) in enumerate(in_threads(small, rows), 1):
            if picture is not None:
                place = len(places) % PER_SHEET
                if place == 0:
                    if places:
                        yield sheet
                    sheet = Image.new("RGBA", (ACROSS * CELL, ACROSS * CELL))
                sheet.paste(picture, (place % ACROSS * CELL, place // ACROSS * CELL))
                places[row] = len(places)
            update(done, "")
        if places:
            yield sheet

    with reporter.task("thumbnails", len(rows), unit="images") as update:
        # A sheet takes several megabytes until it is encoded: few of them wait at a time.
        return list(in_threads(encoded, filled(), workers=2)), places


def _write_sheets(folder: Path, sheets: Sequence[bytes], places: dict[int, int], audit: Audit) -> list[str]:
    """Return the names of the sheets after writing them; a name tells the content, so that none is replaced."""
    names = []
    ending = "webp" if features.check("webp") else "jpg"
    for number, content in enumerate(sheets):
        names.append(f"{number:04d}-{hashlib.blake2b(content, digest_size=6).hexdigest()}.{ending}")
        with replacing(folder / names[-1]) as temporary:
            temporary.write_bytes(content)
    index = {"laid_out": [SIDE, MARGIN, ACROSS], "items": _digest(audit.items), "sheets": names, "rows": list(places)}
    write_text(folder / PLACES, json.dumps(index))
    return names


def _digest(items: Sequence[str]) -> str:
    joined = chain.from_iterable((item.encode(errors="surrogatepass"), b"\n") for item in items)
    digest = hashlib.blake2b(digest_size=16)
    for piece in joined:
        digest.update(piece)
    return digest.hexdigest()


def _percent(share: float, spread: float) -> tuple[str, str]:
    """Return two shares as percentages, with as many digits as the second one justifies."""
    digits = 0 if 100 * spread >= 1 else 1
    return f"{100 * share:.{digits}f}", f"{max(100 * spread, 0.1):.{digits}f}"


def _three_digits(number: float) -> int:
    whole = round(number)
    return whole if whole < 1000 else int(float(f"{whole:.3g}"))


def _chances(audit: Audit, rows: np.ndarray, classes: np.ndarray) -> list[float]:
    """Return how probable a class is for each row, rounded, but to 0 or 1 where somebody has decided alone."""
    found = np.round(audit.probabilities[rows, classes].astype(np.float64), 4)
    chances: list[float] = np.where(audit.open[rows], found.clip(1e-4, 1 - 1e-4), found).tolist()
    return chances


def _others(audit: Audit, rows: np.ndarray, proposed: np.ndarray, second: np.ndarray) -> list[int | None]:
    """Return the most probable class of each row that is neither given nor proposed; None where there are but two."""
    if len(audit.class_names) < 3:
        return [None] * len(rows)
    found = second.copy()
    # The second most probable class is one of the two for most of what is proposed.
    for i in np.flatnonzero((second == proposed) | (second == audit.labels[rows])).tolist():
        p = audit.probabilities[rows[i]].copy()
        p[[audit.labels[rows[i]], proposed[i]]] = -1
        found[i] = p.argmax()
    others: list[int | None] = found.tolist()
    return others


def _rounded(values: np.ndarray, digits: int = 4) -> list[float]:
    found: list[float] = np.round(np.asarray(values, dtype=np.float64), digits).tolist()
    return found
