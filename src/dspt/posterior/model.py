"""The posterior of labels: P(true class | image, given label) for every sample, without a gradient step.

    p = softmax(a1 g1 + a2 g2 + b z)       what image and class names say of the true class (`mixture`)
    Q = p T[., y] / sum                    what the given label adds to it (`transition`)

`evidence` tells how both are found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dspt.internal.checks import as_array, check_unmasked, checked_labels, checked_rows, is_integer
from dspt.internal.errors import InputError
from dspt.internal.passes import passes
from dspt.internal.scratch import scratch
from dspt.internal.shards import BLOCK, Features, Shards
from dspt.internal.workers import Spread
from dspt.posterior.calibration import tempered
from dspt.posterior.evidence import HEIGHT, Evidence
from dspt.posterior.mixture import Mixture, most_likely

# A matrix of as many rows and columns takes 80 GB, and there are several. ImageNet-21K has a fifth of them.
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Posterior:
    """What is known of every label.

    Attributes
    ----------
    probabilities : float32 array of shape (N, C)
        P(true class | image, given label).
    confusion : float32 array of shape (C, C)
        `confusion[t, c]`: how probable c is, to a classifier that has not seen their labels, for images of class t.
    labels : int64 array of shape (N,)
        The given labels.
    noise_rate : float
        The estimated share of wrong labels.
    noise_rate_error : float
        Its standard error: chance, and what the assumptions leave open. Half of everything if nothing can be told.
    transition : float64 array of shape (C, C)
        `T[j, k] = Pr(given = j | true = k)`, as `dspt.corrupt` takes it: columns sum to 1.
    weights, bias : float32 arrays of shape (D, C) and (C,)
        The classifier of features, but for the text's part.
    text_weight : float
        How much the zero-shot logits count; 0 if they are of no use, or not there.
    text : float32 array of shape (D + 1, C), optional
        The zero-shot logits as a linear function of features, the last row being the constant.
    likelihood : float
        Mean log likelihood of the given labels, each judged without itself.
    start : str
        From where the answer was found: "labels", "mixed", "text", "renamed"; "none" if nothing can be told.
    trust : float
        What the log odds of a wrong label were multiplied with, so that `probabilities` are right as often as they say.
    """

    probabilities: np.ndarray = field(repr=False)
    confusion: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    noise_rate: float
    noise_rate_error: float
    transition: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    bias: np.ndarray = field(repr=False)
    text_weight: float
    text: np.ndarray | None = field(repr=False)
    likelihood: float
    start: str
    trust: float = 1.0

    @property
    def label_quality(self) -> np.ndarray:
        """The probability that each given label is right (N,)."""
        quality: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return quality

    @property
    def can_tell(self) -> bool:
        """Whether features or names tell anything about the labels."""
        return self.start != "none"

    def as_found(self) -> np.ndarray:
        """Return the probabilities (N, C) as the rounds left them: surer than they are right, to learn from.

        A classifier averages over samples, so that what is too sure of one is outvoted by others; a label that is
        believed by half keeps its half of every mistake.
        """
        q, labels = torch.from_numpy(self.probabilities), torch.from_numpy(self.labels)
        found = scratch(*self.probabilities.shape)
        for first in range(0, len(found), BLOCK):
            rows = slice(first, first + BLOCK)
            found[rows] = tempered(q[rows], labels[rows], 1 / self.trust).numpy()
        return found

    def findings(self) -> dict[str, float]:
        """Return the noise rate and its error as a run keeps them."""
        return {"noise_rate": self.noise_rate, "noise_rate_error": self.noise_rate_error}

    def scores(self, features: Any, zero_shot_logits: Any = None) -> np.ndarray:
        """Return the logits (n, C) of images whose labels are not known.

        Parameters
        ----------
        features : array of shape (n, D)
            Of shards, and of a memory map, a block of rows is read at a time.
        zero_shot_logits : array of shape (n, C), optional
            Of the same images. CLIP's are linear in the features, so those of the training set tell these, too.
        """
        width, classes = self.weights.shape
        in_parts = isinstance(features, Shards | np.memmap)
        x = checked_rows(features, len(features), "features", "image")
        if x.shape[1] != width:
            raise InputError(f"features: {x.shape[1]} wide, but the posterior was made from features {width} wide")
        z = None
        if self.text_weight and zero_shot_logits is not None:
            z = checked_rows(zero_shot_logits, len(x), "zero_shot_logits", "image")
            if z.shape[1] != classes:
                raise InputError(f"zero_shot_logits: {z.shape[1]} columns for {classes} classes")
        elif self.text_weight and self.text is None:
            raise InputError(
                "zero_shot_logits: needed, since those of the training set are no linear function of its features"
            )
        if not in_parts:
            return self._scores(x, z)
        found = scratch(len(x), classes)
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            found[rows] = self._scores(x[rows], None if z is None else z[rows])
        return found

    def _scores(self, features: Features, zero_shot_logits: Features | None) -> np.ndarray:
        """Return the logits of rows that are all read."""
        x = np.asarray(features, dtype=np.float32)
        found: np.ndarray = x @ self.weights + self.bias
        if not self.text_weight:
            return found
        if zero_shot_logits is not None:
            return np.asarray(found + self.text_weight * np.asarray(zero_shot_logits, dtype=np.float32))
        assert self.text is not None
        return np.asarray(found + self.text_weight * (x @ self.text[:-1] + self.text[-1]))

    def classify(self, features: Any, zero_shot_logits: Any = None) -> np.ndarray:
        """Return the probability of each class (n, C) for images whose labels are not known.

        Parameters
        ----------
        features : array of shape (n, D)
        zero_shot_logits : array of shape (n, C), optional
            Of the same images; see `scores`.
        """
        found = self.scores(features, zero_shot_logits)
        for start in range(0, len(found), BLOCK):  # in their place: no second array of all samples x classes
            rows = slice(start, start + BLOCK)
            found[rows] = torch.from_numpy(found[rows]).softmax(1).numpy()
        return found


def label_posterior(
    features: Any,
    labels: Any,
    zero_shot_logits: Any = None,
    *,
    num_classes: int | None = None,
    known: Any = None,
    seed: int = 1,
    spread: Spread | None = None,
) -> Posterior:
    """Return what image features, given labels and zero-shot logits say about the true labels.

    Parameters
    ----------
    features : float array of shape (N, D)
        What stands for the images: CLIP's features, or any others in which classes are clouds.
    labels : N integers in 0..C-1
        The given labels, some of them wrong.
    zero_shot_logits : array of shape (N, C), optional
        What a text tower says of the images, which no label has touched.
    num_classes : int, optional
        C; the width of the logits or the highest label + 1 if not given.
    known : N integers in -1..C-1, optional
        The true class of each sample that somebody has looked at, which is believed; -1 for the others. The others
        are judged better for it, whichever samples were looked at.
    seed : int
        Seed of the folds; nothing else is random.
    spread : callable, optional
        Has workers make the sums over samples, as `dspt.engine.spreading.spreading` gives it; None is this process.
        The result is the same up to rounding, and the same to the bit for any number of workers.
    """
    given = checked_labels(labels)
    n = len(given)
    x = checked_rows(features, n, "features", "label")
    z = None if zero_shot_logits is None else checked_rows(zero_shot_logits, n, "zero_shot_logits", "label")
    if not n:
        raise InputError("labels: none are given; at least one is needed")
    if not x.shape[1]:
        raise InputError("features: they have no columns; every row must be a feature")
    for name, number in (("num_classes", num_classes), ("seed", seed)):
        if not is_integer(number) and not (name == "num_classes" and number is None):
            raise InputError(f"{name}: expected a whole number, found {number!r}")
    classes = num_classes
    if classes is None:
        classes = z.shape[1] if z is not None else max(2, int(given.max()) + 1)
    if classes < 2:
        raise InputError(f"num_classes: expected 2 or more, found {classes}")
    if classes > _MOST_CLASSES:
        raise InputError(
            f"num_classes: {classes:,}, and what becomes of labels is a matrix of that many rows and columns "
            f"({8 * classes**2 / 1e9:,.0f} GB); expected at most {_MOST_CLASSES:,}: number the labels from 0 on"
        )
    checked_labels(given, classes)
    if z is not None and z.shape[1] != classes:
        raise InputError(f"zero_shot_logits: {z.shape[1]} columns for {classes} classes")
    check_unmasked(known, "known")
    told = np.full(n, -1) if known is None else as_array(known)
    if told.shape != (n,) or told.dtype.kind not in "iu" or told.min() < -1 or told.max() >= classes:
        raise InputError(f"known: expected {n} whole numbers, -1 or 0..{classes - 1}, one for each label")
    with torch.no_grad(), passes(n, spread) as each:
        found = Evidence(each, x, given, z, classes, told.astype(np.int64), seed).answer()
    return Posterior(labels=given, **found._asdict())


def label_likelihood(logits: Any, labels: Any, transition: np.ndarray) -> np.ndarray:
    """Return the log likelihood of each given label under a classifier and a transition, at its best temperature (n,).

    Parameters
    ----------
    logits : array of shape (n, C)
        Of a classifier that has not seen the labels.
    labels : n integers in 0..C-1
        Given labels.
    transition : array of shape (C, C)
        `T[j, k] = Pr(given = j | true = k)`.
    """
    scores = torch.as_tensor(np.asarray(logits, dtype=np.float32))
    likely = torch.from_numpy(np.asarray(transition, dtype=np.float32))[torch.as_tensor(np.asarray(labels))]
    scores = scores - scores.amax(1, keepdim=True)
    height = float(-scores.mean())
    scores *= HEIGHT / height if height > 1e-9 else 1.0
    _, mixture = most_likely([scores], likely, Mixture((0.5,)))
    found: np.ndarray = ((mixture.weights[0] * scores).softmax(1) * likely).sum(1).clamp_min(1e-30).log().numpy()
    return found
