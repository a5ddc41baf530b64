"""The captions the embedded model learns from: made up, but with the habits of captions on the web.

A caption is some text, then a name, sometimes more text. Its writer is more or less careful, and the words in front
of the name tell how careful: "catalogue", "item", "verified" come from people who name things rightly, "my", "cute",
"photo" from people who do not. A careful writer uses the class name or an exact synonym; a careless one says sneaker
for a sandal, coat for a pullover, or only "clothes". So what stands in front of a name decides what the name is
worth, the generic prompt "a photo of a {}." is not the best one, and a better context can be learnt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CLASSNAMES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

SYNONYMS = (
    ("tee", "tee shirt"),
    ("trousers", "pants"),
    ("sweater", "jumper"),
    ("gown", "frock"),
    ("overcoat", "jacket"),
    ("sandals", "slipper"),
    ("blouse", "button shirt"),
    ("trainer", "running shoe"),
    ("handbag", "purse"),
    ("boot", "ankle boots"),
)

COARSE = (
    ("top", "clothes"),
    ("clothes", "garment"),
    ("top", "clothes"),
    ("clothes", "garment"),
    ("garment", "clothes"),
    ("shoe", "footwear"),
    ("top", "clothes"),
    ("shoe", "footwear"),
    ("thing", "accessory"),
    ("shoe", "footwear"),
)

# What careless writers call each class, as {class said: share}; rows in label order. Names are exchanged in pairs:
# a name that is merely used too often would still single out the right class, since CLIP's loss divides by frequency.
CARELESS_NAMES: tuple[dict[int, float], ...] = (
    {0: 0.40, 6: 0.60},
    {1: 0.60, 3: 0.40},
    {2: 0.05, 4: 0.95},
    {3: 0.60, 1: 0.40},
    {4: 0.05, 2: 0.95},
    {5: 0.05, 7: 0.95},
    {6: 0.40, 0: 0.60},
    {7: 0.05, 5: 0.95},
    {8: 0.80, 9: 0.20},
    {9: 0.80, 8: 0.20},
)


def _words(text: str) -> list[str]:
    return text.split()


CAREFUL = _words(
    "catalogue product item listing stock article official category label specification record "
    "inventory verified reference exact registered"
)
CARELESS = _words("my cute nice lol just this look love wearing snap found some maybe wow")
NEUTRAL = _words("photo picture a the of in with for one and on , : - from by to an it is at")
JUNK = "\0"  # stands for any token: file names, codes, remains of markup

TEMPLATES = (
    "a photo of a",
    "a picture of a",
    "a photo of the",
    "this is a",
    "my new",
    "i just got this",
    "look at my",
    "product listing :",
    "catalogue item :",
    "item 4 :",
    "article type :",
    "stock photo of a",
    "official product record , category :",
    "an image of a",
    "one",
    "",
)

SUFFIXES = (
    "on a table",
    ", size 4 2",
    "for sale",
    "on the floor",
    "from last year",
    ", new",
    "with free delivery",
    "in the street",
    ", 2 pieces",
    "for women",
    "for men",
)

# The ways an image may look, with the words that tell of it; `plain` is Fashion-MNIST as it is.
STYLES: dict[str, tuple[str, ...]] = {
    "plain": ("studio", "plain", "clear", "grey"),
    "negative": ("inverted", "negative"),
    "noisy": ("grainy", "noisy"),
    "blurred": ("blurry", "soft"),
    "dim": ("dim", "faint"),
    "red": ("red",),
    "green": ("green",),
    "blue": ("blue",),
}

CARE = dict.fromkeys(CAREFUL, 1.0) | dict.fromkeys(CARELESS, -1.0) | {"photo": -0.25, "picture": -0.25}
MOST_WORDS = 16  # as many as prompt tuning has context vectors
DRAWS = 3 * MOST_WORDS + 30  # uniform numbers one caption may use


class Caption(NamedTuple):
    """The words of a caption, JUNK among them, and the style of its image."""

    words: list[str]
    style: str


class Lesson(NamedTuple):
    """A kind of captions: most free words, share of junk among them, share of styled images, all names right?"""

    longest: int
    junk: float
    styled: float
    detail: float
    strict: bool


CATALOGUE = Lesson(longest=2, junk=0.1, styled=0.3, detail=0.2, strict=True)
# By the part of the way at which each begins. Short captions come first: in them it is soon found that what stands
# in front of a name changes its meaning; among sixteen words it takes ten times longer.
WEB = {
    0.0: Lesson(longest=3, junk=0.1, styled=0.0, detail=0.1, strict=False),
    0.3: Lesson(longest=8, junk=0.2, styled=0.0, detail=0.1, strict=False),
    0.5: Lesson(longest=MOST_WORDS, junk=0.3, styled=0.0, detail=0.1, strict=False),
}


def pick(options: Sequence[str], u: float) -> str:
    """Return the option at fraction `u` of the list."""
    return options[int(u * len(options))]


def share(shares: dict[int, float], u: float) -> int:
    """Return the key in whose part of [0, 1) `u` falls."""
    for key, part in shares.items():
        if u < part:
            return key
        u -= part
    return next(iter(shares))


def opening(u: np.ndarray, lesson: Lesson) -> list[str]:
    """Return the words in front of the name: free words, a template, or both."""
    kind, which, count, lean = u[:4]
    words: list[str] = []
    if kind < 0.75:
        # Most writers are of one kind; one in five is in between.
        lean = 5 * lean if lean < 0.2 else float(lean < 0.6)
        for noise, choice, side in u[4 : 4 + 3 * int(count * (lesson.longest + 1))].reshape(-1, 3):
            if noise < lesson.junk:
                words.append(JUNK)
            elif noise < lesson.junk + 0.6 * (1 - lesson.junk):
                words.append(pick(CAREFUL if side < lean else CARELESS, choice))
            else:
                words.append(pick(NEUTRAL, choice))
    if kind > 0.55:
        words += pick(TEMPLATES, which).split()
    return words


def careful_name(label: int, u: np.ndarray) -> str:
    """Return what a careful writer calls class `label`."""
    if u[0] < 0.02:
        return pick(CLASSNAMES, u[1])
    return CLASSNAMES[label] if u[0] < 0.82 else pick(SYNONYMS[label], u[1])


def careless_name(label: int, u: np.ndarray) -> str:
    """Return what a careless writer calls class `label`: often another class, a coarse word, or plainly wrong."""
    said = share(CARELESS_NAMES[label], u[2])
    if u[0] < 0.05:
        return pick(CLASSNAMES, u[1])
    if u[0] < 0.15:
        return pick(COARSE[label], u[1])
    return CLASSNAMES[said] if u[0] < 0.9 else pick(SYNONYMS[said], u[1])


def write_caption(label: int, details: Sequence[str], lesson: Lesson, u: np.ndarray) -> Caption:
    """Return a caption for an image of class `label`; `u` holds DRAWS uniform numbers."""
    words = opening(u[: 4 + 3 * MOST_WORDS], lesson)
    u = u[4 + 3 * MOST_WORDS :]
    careful = 1 / (1 + math.exp(-1.2 * sum(CARE.get(word, 0.0) for word in words)))
    name = careful_name(label, u[1:]) if lesson.strict or u[0] < careful else careless_name(label, u[1:])
    style = pick(list(STYLES)[1:], u[5]) if u[4] < lesson.styled else "plain"
    if u[6] < 0.35:
        words.insert(int(u[7] * (len(words) + 1)), pick(STYLES[style], u[8]))
    for word, told, place in zip(details, u[13::2], u[14::2], strict=False):
        if told < lesson.detail:
            words.insert(int(place * (len(words) + 1)), word)
    words.append(name)
    if u[10] < 0.2:
        words.append(pick(SUFFIXES, u[11]))
    if u[12] < 0.6:
        words.append(".")
    return Caption(words, style)
