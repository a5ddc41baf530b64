"""Label noise: given labels made from true labels, by a rule or from a file.

What is drawn depends on the labels, the number of classes, the kind, the rate, the seed and the
sampling, and on nothing else; instance-dependent noise depends on the features of the images too,
similar-class noise on those of the classes. For one seed the labels that symmetric, pair and
similar-class noise flip at a lower rate are among those flipped at a higher one, and to the same
classes, so that rates compare on the same mistakes.

torch is not imported here: a tensor can only be given by someone who has imported it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from dspt.data.arrays import load_npy
from dspt.internal.checks import as_array, checked_labels, is_integer, is_tensor
from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean
from dspt.internal.seeds import Stream
from dspt.noise.instance import instance_noise
from dspt.noise.labelfiles import csv_rows, read_labels, readable
from dspt.noise.similar import nearest_classes

Labels = TypeVar("Labels")


class Rule(NamedTuple):
    """A kind of noise that moves a share of the labels, whatever the image.

    Attributes
    ----------
    step
        From a stream, the true labels and C: by how many classes each label goes on if it becomes wrong.
    wrong
        From the identity matrix (C, C) and the rate: the part of the transition matrix beside its diagonal.
    """

    step: Callable[[Stream, np.ndarray, int], np.ndarray | int]
    wrong: Callable[[np.ndarray, float], np.ndarray]


# A new kind is a row here, and its form below. "near" is made from the features of the classes, by `_near`.
_RULES = {
    "symmetric": Rule(
        lambda stream, true, classes: 1 + stream.integers(len(true), classes - 1),
        lambda same, rate: rate / (len(same) - 1) * (1 - same),
    ),
    "pair": Rule(lambda stream, true, classes: 1, lambda same, rate: rate * np.roll(same, 1, axis=0)),
}
_FORMS = (
    "none, sym:0.4, pair:0.2, near:0.4, near-3:0.4, sym:0.4:bernoulli, inst:0.3, inst-likely:0.3, matrix:T.npy "
    "or file:labels.csv"
)
_RULED = (*_RULES, "near")
_BY_IMAGE = ("instance", "instance-likely")
_FROM_FILES = ("matrix", "file")
_RATED = (*_RULED, *_BY_IMAGE)
_KINDS = ("none", *_RATED, *_FROM_FILES)
# The argument of `corrupt` that a kind looks at besides the labels.
_LOOKS_AT = {"matrix": "transition", "near": "class_features"} | dict.fromkeys(_BY_IMAGE, "features")
_SHORT = {"symmetric": "sym", "instance": "inst", "instance-likely": "inst-likely"}
_OTHER_NAMES = {"clean": "none"} | {short: kind for kind, short in _SHORT.items()}
_SAMPLINGS = ("exact", "bernoulli")


def corrupt(
    labels: Labels,
    num_classes: int,
    kind: str = "symmetric",
    rate: float = 0.4,
    seed: int = 1,
    sampling: str = "exact",
    transition: np.ndarray | None = None,
    features: np.ndarray | None = None,
    class_features: np.ndarray | None = None,
) -> Labels:
    """Return noisy labels in the type of `labels`, which is left as it was.

    Parameters
    ----------
    labels : list, tuple, numpy array, torch tensor or pandas Series of N integers in 0..C-1
        The true labels.
    num_classes : int
        C, 2 or more.
    kind : {"symmetric", "pair", "near", "near-K", "instance", "instance-likely", "matrix", "none"}
        "symmetric" ("sym") moves a label to one of the C-1 other classes, each as likely; "pair"
        to `(label + 1) % C`; "near" to the class whose `class_features` have the highest cosine
        with those of the true class; "near-3" to one of the three nearest, in proportion to the
        softmax of 100 times the cosine; "instance" ("inst") to a class that a random projection
        of the image's `features` names; "instance-likely" ("inst-likely") to the other class whose
        mean feature has the highest cosine with the image's, of the classes that have images;
        "matrix" draws from `transition`; "none" ("clean") changes nothing.
    rate : float in 0..1
        How many labels become wrong, for all kinds but "matrix" and "none".
    seed : int
        Any integer. The same arguments give the same labels on every platform.
    sampling : {"exact", "bernoulli"}
        "exact" changes `int(rate * N)` labels, drawn without replacement over the whole set.
        "bernoulli" changes each label independently. A matrix, "instance" and "instance-likely" fix
        no count, so they are always drawn by "bernoulli".
    transition : array of shape (C, C), optional
        `T[j, k] = Pr(noisy = j | true = k)`, so every column sums to 1; makes the kind "matrix".
    features : array of shape (N, D), optional
        What "instance" and "instance-likely" noise look at: a description of each image, such as
        its CLIP features.
    class_features : array of shape (C, D), optional
        What "near" noise looks at: a description of each class, such as CLIP's features of its
        name. Any finite numbers; their lengths do not matter. Of classes that are as near, the one
        of lower index counts as nearer.

    Returns
    -------
    The type of `labels`, with the same dtype, device and index.
    """
    _check_classes(num_classes)
    true = checked_labels(labels, num_classes)
    kind = _known_kind(kind)
    if transition is not None and kind == "symmetric":
        kind = "matrix"  # the default kind: a matrix says all there is to say
    _check_looked_at(kind, transition=transition, features=features, class_features=class_features)
    sampling = _known_sampling(sampling, kind)
    # Of one family: near-3 flips the labels that near flips.
    stream = Stream(seed, "noise", _family(kind), sampling)
    if kind == "none":
        noisy = true
    elif transition is not None:
        noisy = _draw(stream, true, checked_transition(transition, num_classes))
    elif features is not None:
        noisy = instance_noise(true, num_classes, _checked_rate(rate), seed, features, kind == "instance-likely")
    else:
        flipped = _flipped(stream, len(true), _checked_rate(rate), sampling)
        step = _rule(kind, num_classes, class_features).step(stream, true, num_classes)
        noisy = np.where(flipped, (true + step) % num_classes, true)
    return cast(Labels, _like(labels, noisy))


def transition_matrix(kind: str, num_classes: int, rate: float, class_features: np.ndarray | None = None) -> np.ndarray:
    """Return the float64 matrix `T[j, k] = Pr(noisy = j | true = k)` of a kind of noise.

    Parameters
    ----------
    kind : {"symmetric", "pair", "near", "near-K", "none"}
    num_classes : int
        C, 2 or more.
    rate : float in 0..1
        The probability that a label is wrong: every `T[k, k]` is `1 - rate`.
    class_features : array of shape (C, D), optional
        A description of each class, for "near" and only for it.
    """
    _check_classes(num_classes)
    kind, rate = _known_kind(kind), _checked_rate(rate)
    same = np.eye(num_classes)
    if kind != "none" and _family(kind) not in _RULED:
        raise InputError(f"transition_matrix: kind {kind!r} has no formula; those that have are {', '.join(_RULED)}")
    _check_looked_at(kind, class_features=class_features)
    if kind == "none":
        return same
    matrix: np.ndarray = (1 - rate) * same + _rule(kind, num_classes, class_features).wrong(same, rate)
    return matrix


def checked_transition(transition: np.ndarray, num_classes: int) -> np.ndarray:
    """Return `transition` as float64 of shape (C, C), once its columns are distributions."""
    try:
        matrix = np.asarray(transition, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("transition: expected a matrix of numbers") from None
    if matrix.shape != (num_classes, num_classes):
        expected = f"{num_classes} x {num_classes} for {num_classes} classes"
        raise InputError(f"transition: expected {expected}, found shape {matrix.shape}")
    negative = np.argwhere(~(matrix >= 0))
    if len(negative):
        j, k = negative[0]
        found = f"{matrix[j, k]:g} at row {j}, column {k}"
        raise InputError(f"transition: expected probabilities of 0 or more, found {found}")
    sums = matrix.sum(axis=0)
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= 1e-6))
    if len(wrong):
        by_rows = np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-6)
        hint = "its rows sum to 1, so transpose it" if by_rows else "T[j,k] = Pr(noisy=j | true=k)"
        found = f"column {wrong[0]} sums to {sums[wrong[0]]:g}"
        raise InputError(f"transition: expected columns that sum to 1, but {found}; {hint}")
    return matrix


@dataclass(frozen=True)
class NoiseSpec:
    """Where given labels come from, as one value that can be written down and read back.

    Attributes
    ----------
    kind : {"none", "symmetric", "pair", "near", "near-K", "instance", "instance-likely", "matrix", "file"}
        "near-1" becomes "near".
    rate : float
        The noise rate; 0 for "none", "matrix" and "file".
    path : str, optional
        The matrix file (.npy or .csv) of "matrix"; the label file of "file", with #KEY after it
        where one of several arrays is meant.
    sampling : {"exact", "bernoulli"}
        See `corrupt`; "matrix", "instance" and "instance-likely" are always "bernoulli".
    """

    kind: str = "none"
    rate: float = 0.0
    path: str | None = None
    sampling: str = "exact"

    def __post_init__(self) -> None:
        if _family(self.kind) not in _KINDS:
            raise InputError(f"noise: no kind {self.kind!r}; expected {_FORMS}")
        object.__setattr__(self, "kind", _plain_kind(self.kind))
        if (self.kind in _FROM_FILES) != bool(self.path):
            needs = "takes no file" if self.path else "needs a file"
            raise InputError(f"noise: {self.kind} {needs}; expected {_FORMS}")
        if _checked_rate(self.rate) and _family(self.kind) not in _RATED:
            raise InputError(f"noise: {self.kind} takes no rate, found {self.rate}")
        object.__setattr__(self, "sampling", _known_sampling(self.sampling, self.kind))

    @property
    def needs_features(self) -> bool:
        """Whether the images have to be encoded before their labels are made."""
        return self.kind in _BY_IMAGE

    @property
    def needs_class_features(self) -> bool:
        """Whether the names of the classes have to be encoded before labels are made."""
        return _family(self.kind) == "near"

    @property
    def needs_clip(self) -> bool:
        """Whether labels cannot be made without a tower of CLIP, be it of images or of texts."""
        return self.needs_features or self.needs_class_features

    def __str__(self) -> str:
        if self.kind in _FROM_FILES:
            return f"{self.kind}:{self.path}"
        if self.kind == "none":
            return "none"
        drawn = self.sampling == "bernoulli" and not self.needs_features
        name = _SHORT.get(self.kind, self.kind)
        return f"{name}:{float(self.rate)}{':bernoulli' if drawn else ''}"

    def apply(
        self,
        labels: Any,
        num_classes: int,
        seed: int,
        features: np.ndarray | None = None,
        class_features: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the given labels for true `labels`, as an int64 array.

        A label file that holds true labels too must have the same ones. `features` are needed if
        `needs_features`, `class_features` if `needs_class_features`; they are not looked at otherwise.

        Parameters
        ----------
        labels : list, tuple, numpy array, torch tensor or pandas Series of N integers in 0..C-1
            The true labels.
        num_classes : int
            C, 2 or more.
        seed : int
            Seed of what is drawn; a label file and "none" draw nothing.
        features : array of shape (N, D), optional
            A description of each image, such as its CLIP features.
        class_features : array of shape (C, D), optional
            A description of each class, such as CLIP's features of its name.
        """
        _check_classes(num_classes)
        true = checked_labels(labels, num_classes)
        if self.kind == "file" and self.path:
            return read_labels(self.path, num_classes, len(true), true)
        matrix = _read_matrix(Path(self.path)) if self.path else None
        features = features if self.needs_features else None
        class_features = class_features if self.needs_class_features else None
        return corrupt(true, num_classes, self.kind, self.rate, seed, self.sampling, matrix, features, class_features)


def parse(text: str) -> NoiseSpec:
    """Return the noise that `text` describes.

    Forms: `none`; `sym:RATE`, `pair:RATE`, `near:RATE`, `near-K:RATE`, each with `:exact` or
    `:bernoulli` after it if that is wanted; `inst:RATE`, `inst-likely:RATE`;
    `matrix:FILE` with a transition matrix (.npy or .csv), `file:FILE` with given labels (.csv or
    .npy), `file:FILE#KEY` with one of the arrays of given labels in a file (.npz or .pt).
    """
    head, _, rest = text.strip().partition(":")
    if head == "file":
        return NoiseSpec("file", path=rest)
    kind = _known_kind(head)
    if kind == "matrix":
        return NoiseSpec(kind, path=rest, sampling="bernoulli")
    if kind == "none":
        if rest:
            raise InputError(f"noise {text!r}: none takes nothing after it")
        return NoiseSpec()
    written, _, sampling = rest.partition(":")
    try:
        rate = float(written)
    except ValueError:
        raise InputError(f"noise {text!r}: expected a rate in 0..1, as in {head}:0.4") from None
    if sampling == "exact" and kind in _BY_IMAGE:
        raise InputError(f"noise {text!r}: {head} fixes no count of wrong labels; leave ':exact' out")
    return NoiseSpec(kind, rate, sampling=sampling or "exact")


def _rule(kind: str, num_classes: int, class_features: np.ndarray | None) -> Rule:
    """Return how labels of this kind become wrong."""
    return _RULES[kind] if class_features is None else _near(class_features, num_classes, _nearest(kind) or 1)


def _near(class_features: np.ndarray, num_classes: int, k: int) -> Rule:
    """Return the rule by which a label becomes one of the `k` nearest classes."""
    others, likely = nearest_classes(class_features, num_classes, k)

    def step(stream: Stream, true: np.ndarray, classes: int) -> np.ndarray:
        found: np.ndarray = others[true, _draw(stream, true, likely.T)] - true
        return found

    def wrong(same: np.ndarray, rate: float) -> np.ndarray:
        matrix = np.zeros_like(same)
        matrix[others.T, np.arange(len(same))] = rate * likely.T
        return matrix

    return Rule(step, wrong)


def _flipped(stream: Stream, n: int, rate: float, sampling: str) -> np.ndarray:
    """Return which of `n` labels become wrong."""
    if sampling == "bernoulli":
        return stream.uniform(n) < rate
    flipped = np.zeros(n, dtype=bool)
    flipped[stream.permutation(n)[: int(rate * n)]] = True
    return flipped


def _draw(stream: Stream, true: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Return, for each true label, the number of a row drawn from its column of `transition`."""
    cumulative = transition.cumsum(axis=0)
    # Ends every column at exactly 1, so that no draw falls past the last class it may give.
    cumulative /= cumulative[-1]
    uniform, noisy = stream.uniform(len(true)), np.empty_like(true)
    for k in np.unique(true):
        noisy[true == k] = cumulative[:, k].searchsorted(uniform[true == k], side="right")
    return noisy


def _check_classes(num_classes: int) -> None:
    if not is_integer(num_classes) or num_classes < 2:
        raise InputError(f"num_classes: expected 2 or more, found {num_classes!r}")


def _checked_rate(rate: float) -> float:
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 <= rate <= 1:
        # 40 is meant as a percentage; 1.4 is as likely a slip of 0.4 or 0.14, and nobody can tell.
        percent = isinstance(rate, Real) and 2 <= rate <= 100
        hint = f"; did you mean {float(rate) / 100:g}?" if percent else ""
        raise InputError(f"noise rate: expected a number in 0..1, found {rate!r}{hint}")
    return float(rate)


def _check_looked_at(kind: str, **given: np.ndarray | None) -> None:
    """Raise `InputError` if what a kind looks at is missing, or something is given that it does not look at."""
    for name, value in given.items():
        kinds = [one for one, what in _LOOKS_AT.items() if what == name]
        if (value is not None) != (_family(kind) in kinds):
            go, them = ("goes", "it") if name == "transition" else ("go", "them")
            named = " or ".join(map(repr, kinds))
            without = f" without {them}" if value is None else ""
            raise InputError(f"{name}: {go} with kind {named} and only with it, found {kind!r}{without}")


def _known_kind(kind: str) -> str:
    if not isinstance(kind, str):
        raise InputError(f"noise: no kind {kind!r}; expected {_FORMS}")
    found = _OTHER_NAMES.get(kind, kind)
    if _family(found) not in _KINDS or found == "file":
        # "asym" is elsewhere a name of pair noise, and spelt like "sym"
        hint = "" if kind.startswith("asym") else did_you_mean(kind, (*_OTHER_NAMES, *_KINDS))
        raise InputError(f"noise: no kind {kind!r}{hint}; expected {_FORMS}")
    return _plain_kind(found)


def _family(kind: str) -> str:
    """Return the kind, of which "near-3" is "near"."""
    return kind if _nearest(kind) is None else "near"


def _plain_kind(kind: str) -> str:
    """Return the one name of a kind: "near-1" is "near"."""
    k = _nearest(kind)
    if k == 0:
        raise InputError(f"noise {kind}: expected 1 or more nearest classes, as in near-3")
    return kind if k is None else "near" if k == 1 else f"near-{k}"


def _nearest(kind: str) -> int | None:
    """Return K of "near-K", which is 1 of "near"; None for other kinds."""
    found = re.fullmatch("near(?:-([0-9]{1,9}))?", kind)
    return int(found[1] or 1) if found else None


def _known_sampling(sampling: str, kind: str) -> str:
    if sampling not in _SAMPLINGS:
        raise InputError(f"sampling: expected exact or bernoulli, found {sampling!r}")
    return "bernoulli" if kind in ("matrix", *_BY_IMAGE) else sampling


def _like(labels: Any, values: np.ndarray) -> Any:
    """Return `values` in the type, dtype, device and index of `labels`."""
    if not hasattr(labels, "dtype"):
        return tuple(values.tolist()) if isinstance(labels, tuple) else values.tolist()
    if is_tensor(labels):
        result: Any = sys.modules["torch"].as_tensor(values).to(labels)
    elif hasattr(labels, "iloc"):
        result = type(labels)(values, index=labels.index, name=labels.name).astype(labels.dtype)
    else:
        result = values.astype(labels.dtype)
    if not np.array_equal(as_array(result), values):
        raise InputError(f"labels: {labels.dtype} cannot hold class {values.max()}; use int64")
    return result


def _read_matrix(path: Path) -> np.ndarray:
    if readable(path, ".csv", ".npy") == ".npy":
        return load_npy(path)
    rows = [_numbers(cells, f"line {line} of {path}") for line, cells in csv_rows(path)]
    if any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{path}: expected a square matrix, found lines of different lengths")
    return np.array(rows)


def _numbers(cells: list[str], where: str) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        found = ",".join(cells)
        raise InputError(f"transition: expected numbers, found {found} at {where}") from None
