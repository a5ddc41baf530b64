"""The posterior of labels: P(true class | image, given label) for every sample, without a gradient step.

    p = softmax(a1 g1 + a2 g2 + b z)       what image and class names say of the true class
    Q = p T[., y] / sum                    what the given label adds to it

g1 and g2 are discriminants of the features, with little and with much added to the covariance, fitted on Q of the other
nine tenths of the samples: no label vouches for itself. z are the zero-shot logits. The weights a1, a2 and b make the
given labels most likely under the transition T, which is read off anchor points (`transition`). Features and names of
no use get no weight. From a start, a few rounds of this; the round and the start that make the labels most likely, each
judged by the transition of other samples, are the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dspt.internal.checks import checked_labels, checked_rows, is_integer
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.posterior.discriminant import Discriminant, Sums, combined, discriminants
from dspt.posterior.noise_rate import RateEvidence, rate_and_error
from dspt.posterior.transition import ANCHORS, PARTS, Transition, estimate_transition, log_shares, uniform_transition

FOLDS = 10
ROUNDS = 8
# Rounds without a gain after which a start is left.
PATIENCE = 3
# What is added to the covariance by either discriminant, as shares of the mean variance.
RIDGES = (0.1, 2.0)
# Shares of anchors by which the rate is estimated, too: how far they differ is part of its error.
OTHER_ANCHORS = (0.15, 0.6)
# By how much the labels may be less likely, in the mean, if the text gives the groups other names.
RENAMED = 0.05
# Standard errors by which the labels must be more likely than by a guess without a look at the images.
SURE = 2.5
# The share of wrong labels in a set that has next to none.
NEXT_TO_NONE = 0.01
# Samples by which weights are chosen: more do not make them better.
_WEIGHED = 8192
# Entries of (rows, classes) that are computed at once.
_ENTRIES = 2**22
# Numbers beyond this cannot be squared and added in single precision.
_LARGEST = 1e15
# Zero-shot logits are brought to this height of the highest above the mean, about that of CLIP's own.
_HEIGHT = 10.0


@dataclass(frozen=True)
class Posterior:
    """What is known of every label.

    Attributes
    ----------
    probabilities : float32 array of shape (N, C)
        P(true class | image, given label).
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
    """

    probabilities: np.ndarray = field(repr=False)
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

    @property
    def label_quality(self) -> np.ndarray:
        """The probability that each given label is right (N,)."""
        quality: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return quality

    @property
    def can_tell(self) -> bool:
        """Whether features or names tell anything about the labels."""
        return self.start != "none"

    def findings(self) -> dict[str, float]:
        """Return the noise rate and its error as a run keeps them."""
        return {"noise_rate": self.noise_rate, "noise_rate_error": self.noise_rate_error}

    def scores(self, features: Any, zero_shot_logits: Any = None) -> np.ndarray:
        """Return the logits (n, C) of images whose labels are not known.

        Parameters
        ----------
        features : array of shape (n, D)
        zero_shot_logits : array of shape (n, C), optional
            Of the same images. CLIP's are linear in the features, so those of the training set tell these, too.
        """
        width, classes = self.weights.shape
        x = np.asarray(checked_rows(features, len(features), "features", "image"), dtype=np.float32)
        if x.shape[1] != width:
            raise InputError(f"features: {x.shape[1]} wide, but the posterior was made from features {width} wide")
        found: np.ndarray = x @ self.weights + self.bias
        if not self.text_weight:
            return found
        if zero_shot_logits is not None:
            z = np.asarray(checked_rows(zero_shot_logits, len(x), "zero_shot_logits", "image"), dtype=np.float32)
            if z.shape[1] != classes:
                raise InputError(f"zero_shot_logits: {z.shape[1]} columns for {classes} classes")
            return np.asarray(found + self.text_weight * z)
        if self.text is None:
            raise InputError(
                "zero_shot_logits: needed, since those of the training set are no linear function of its features"
            )
        told: np.ndarray = found + self.text_weight * (x @ self.text[:-1] + self.text[-1])
        return told

    def classify(self, features: Any, zero_shot_logits: Any = None) -> np.ndarray:
        """Return the probability of each class (n, C) for images whose labels are not known.

        Parameters
        ----------
        features : array of shape (n, D)
        zero_shot_logits : array of shape (n, C), optional
            Of the same images; see `scores`.
        """
        probabilities: np.ndarray = torch.from_numpy(self.scores(features, zero_shot_logits)).softmax(1).numpy()
        return probabilities


def label_posterior(
    features: Any,
    labels: Any,
    zero_shot_logits: Any = None,
    *,
    num_classes: int | None = None,
    known: Any = None,
    seed: int = 1,
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
    """
    given = checked_labels(labels)
    n = len(given)
    x = checked_rows(features, n, "features", "label")
    z = None if zero_shot_logits is None else checked_rows(zero_shot_logits, n, "zero_shot_logits", "label")
    if not n:
        raise InputError("labels: none are given; at least one is needed")
    if not x.shape[1]:
        raise InputError("features: they have no columns; every row must be a feature")
    if num_classes is not None and not is_integer(num_classes):
        raise InputError(f"num_classes: expected a whole number, found {num_classes!r}")
    classes = num_classes or (z.shape[1] if z is not None else max(2, int(given.max()) + 1))
    if classes < 2:
        raise InputError(f"num_classes: expected 2 or more, found {classes}")
    checked_labels(given, classes)
    if z is not None and z.shape[1] != classes:
        raise InputError(f"zero_shot_logits: {z.shape[1]} columns for {classes} classes")
    told = np.full(n, -1) if known is None else np.asarray(known)
    if told.shape != (n,) or told.dtype.kind not in "iu" or told.min() < -1 or told.max() >= classes:
        raise InputError(f"known: expected {n} whole numbers, -1 or 0..{classes - 1}, one for each label")
    with torch.no_grad():
        return _Evidence(x, given, z, classes, told.astype(np.int64), seed).posterior()


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
    scores *= _HEIGHT / height if height > 1e-9 else 1.0
    _, (weight,) = _most_likely([scores], likely, (0.5,))
    found: np.ndarray = ((weight * scores).softmax(1) * likely).sum(1).clamp_min(1e-30).log().numpy()
    return found


class _Part(NamedTuple):
    """What is learnt for the samples of one fold from those of the others."""

    discriminants: list[Discriminant]
    prior: Tensor  # (C,) log of how common each class is


@dataclass(frozen=True)
class _Model:
    """What a round has found out: everything that the probabilities of a sample depend on."""

    likelihood: float
    weights: Tensor  # (FOLDS, D, C), for the samples of each fold
    bias: Tensor  # (FOLDS, C)
    mixture: tuple[float, ...]  # the weights of the discriminants and of the text
    transition: Transition
    rate: float  # mean probability that a label is wrong
    contradicted: float  # share of labels that are not what the image is predicted as
    start: str = ""


class _Path(NamedTuple):
    """What came of a start."""

    best: _Model
    rates: tuple[float, ...]  # of all its rounds


class _Evidence:
    """Features, given labels and zero-shot logits, read in parts; all sums over them are made here."""

    def __init__(
        self, x: np.ndarray, labels: np.ndarray, z: np.ndarray | None, classes: int, known: np.ndarray, seed: int
    ) -> None:
        self.x, self.labels, self.classes, self.known = x, labels, classes, known
        self.n, self.width = x.shape
        folds = min(FOLDS, self.n)
        order = Stream(seed, "posterior", "folds").permutation(self.n)
        self.fold = np.empty(self.n, dtype=np.int64)
        self.fold[order] = np.arange(self.n) % folds
        self.folds = folds
        self.part = self.fold % PARTS
        self.weighed = np.sort(order[:_WEIGHED])
        self.place = np.argsort(order)  # of each sample in a random order
        by_fold = np.zeros((folds, classes))
        np.add.at(by_fold, (self.fold, labels), 1.0)
        # How often each label is given to the samples of the other folds.
        self.given_to_others = torch.from_numpy(by_fold.sum(0) - (by_fold if folds > 1 else np.zeros_like(by_fold)))
        # One array of probabilities is all that grows with samples times classes.
        self.buffer = torch.empty(self.n, classes)
        self.mean, self.scale = self._moments()
        self.z, self.text_scale = z, 0.0
        if z is not None:
            self.text_scale = self._text_scale(z)
        self.products = self._products()

    def rows(self) -> Iterator[slice]:
        """Yield slices of the samples, as many as are computed at once."""
        step = max(1, _ENTRIES // max(self.classes, self.width))
        for first in range(0, self.n, step):
            yield slice(first, min(first + step, self.n))

    def features(self, rows: slice | np.ndarray) -> Tensor:
        """Return some samples' features, centred and brought to a mean variance of 1."""
        return (torch.from_numpy(np.array(self.x[rows], dtype=np.float32)) - self.mean) * self.scale

    def text(self, rows: slice | np.ndarray) -> Tensor | None:
        """Return some samples' zero-shot logits, at CLIP's height; None if there are none of use."""
        if self.z is None or not self.text_scale:
            return None
        logits = torch.from_numpy(np.array(self.z[rows], dtype=np.float32))
        return (logits - logits.amax(1, keepdim=True)) * self.text_scale

    def posterior(self) -> Posterior:
        """Return the answer: the best round of the best start."""
        guess = uniform_transition(0.3, self.classes)
        by_labels = best = self.climb(self.label_sums(), guess, "labels")
        if self.text_scale:
            rate, weight = self.text_alone()
            for name, share in (("mixed", 0.5), ("text", 1.0)):
                other = self.climb(self.text_sums(rate, weight, share), guess, name)
                best = max(best, other, key=lambda path: path.best.likelihood)
            renamed = self.renamed(by_labels.best)
            # What the text says against the labels' names is not in their likelihood: as likely is enough.
            if renamed is not None and renamed.best.likelihood > best.best.likelihood - RENAMED:
                best = renamed
        return self.answer(best)

    # A start, and the rounds from it

    @property
    def first_mixture(self) -> tuple[float, ...]:
        """The weights of discriminants and text to begin with."""
        return tuple([0.05] * len(RIDGES) + ([0.1] if self.text_scale else []))

    def climb(self, sums: list[Sums], transition: Tensor, start: str) -> _Path:
        """Return the best round from a start, and the rates that all of them found."""
        mixture = self.first_mixture
        best: _Model | None = None
        rates: list[float] = []
        since = 0
        for number in range(ROUNDS):
            parts = self.parts(sums, transition)
            for _ in range(2 if number == 0 else 1):  # the first transition is a guess
                mixture = self.mixture(parts, transition, mixture)
                found = self.judged(parts, mixture)
                transition = found.transition.matrix
            rates.append(found.rate)
            since += 1
            if best is None or found.likelihood > best.likelihood:
                best, since = replace(found, start=start), 0
            elif since >= PATIENCE:
                break
            sums = self.posterior_sums(transition)
        assert best is not None
        return _Path(best, tuple(rates))

    def others(self, sums: list[Sums]) -> Iterator[Sums]:
        """Yield, for each fold, the sums over all samples but its own."""
        total = _added(sums)
        for part in sums:
            yield total.without(part) if self.folds > 1 else total

    def mixture(self, parts: list[_Part], transition: Tensor, before: tuple[float, ...]) -> tuple[float, ...]:
        """Return the weights, 0 or more, of discriminants and text that make the given labels most likely."""
        terms, prior = self.terms(parts)
        likely = self.believed(transition.T[torch.from_numpy(self.labels[self.weighed])], self.weighed)
        starts = [before]
        if self.text_scale and before[-1] < 0.02:
            starts.append((*before[:-1], 0.3))  # a weight of 0 is a valley that no small step leaves
        return min((_most_likely(terms, likely, start, prior) for start in starts), key=lambda one: one[0])[1]

    def terms(self, parts: list[_Part]) -> tuple[list[Tensor], Tensor]:
        """Return what discriminants and text say of the samples that weights are chosen by, and the prior (n, C)."""
        rows = self.weighed
        x, fold = self.features(rows), self.fold[rows]
        terms = [torch.empty(len(rows), self.classes) for _ in RIDGES]
        prior = torch.stack([part.prior for part in parts])[torch.from_numpy(fold)]
        for k, part in enumerate(parts):
            own = torch.from_numpy(np.flatnonzero(fold == k))
            for term, one in zip(terms, part.discriminants, strict=True):
                term[own] = torch.addmm(one.bias, x[own], one.weights)
        if (text := self.text(rows)) is not None:
            terms.append(text)
        return terms, prior

    def parts(self, sums: list[Sums], transition: Tensor) -> list[_Part]:
        """Return what is learnt for each fold from the sums of the others."""
        return [
            _Part(discriminants(one, RIDGES), log_shares(given, transition))
            for one, given in zip(self.others(sums), self.given_to_others, strict=True)
        ]

    def judged(self, parts: list[_Part], mixture: tuple[float, ...]) -> _Model:
        """Return the model with these weights; the buffer then has the probabilities p of all samples."""
        joined = [combined(part.discriminants, mixture[: len(RIDGES)], part.prior) for part in parts]
        weights, bias = torch.stack([one.weights for one in joined]), torch.stack([one.bias for one in joined])
        predicted, sureness = self.fill(weights, bias, mixture)
        transition, by_part = self.transition(predicted, sureness, ANCHORS)
        likelihood, rate = self.likelihoods(transition.matrix, by_part)
        contradicted = float((predicted != self.labels).mean())
        return _Model(likelihood, weights, bias, mixture, transition, rate, contradicted)

    def transition(self, predicted: np.ndarray, sureness: np.ndarray, share: float) -> tuple[Transition, list[Tensor]]:
        """Return the transition that the anchors show, and that of the other parts for each part."""
        # of those that are equally sure, none is an anchor for its place in the file
        order = np.lexsort((self.place, -sureness, predicted))
        return estimate_transition(predicted, order, self.labels, self.part, self.classes, share)

    def fill(self, weights: Tensor, bias: Tensor, mixture: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the class each sample is predicted as and how surely, after p is written to the buffer."""
        predicted, sureness = np.empty(self.n, dtype=np.int64), np.empty(self.n, dtype=np.float32)
        for rows in self.rows():
            x, fold = self.features(rows), self.fold[rows]
            p = self.buffer[rows]
            for k in range(self.folds):
                own = torch.from_numpy(np.flatnonzero(fold == k))
                p[own] = torch.addmm(bias[k], x[own], weights[k])
            if (text := self.text(rows)) is not None:
                p.add_(text, alpha=mixture[-1])
            p.copy_(self.believed(p.softmax(1), rows))
            top, which = p.max(1)
            predicted[rows], sureness[rows] = which.numpy(), top.numpy()
        return predicted, sureness

    def believed(self, p: Tensor, rows: slice | np.ndarray) -> Tensor:
        """Return p (n, C) with nothing left of what is known not to be so: how probable, and nothing but, the truth is.

        A sample that somebody has looked at counts in all sums by its true class from here on, and where an anchor is
        sought it is as sure as the classifier was of that class: those looked at are no fair sample of the others.
        """
        told = torch.from_numpy(np.flatnonzero(self.known[rows] >= 0))
        if len(told):
            true = torch.from_numpy(self.known[rows])[told].long()[:, None]
            left = p[told].gather(1, true).clamp_min(1e-12)
            p[told] = torch.zeros(len(told), self.classes).scatter_(1, true, left)
        return p

    def likelihoods(self, matrix: Tensor, by_part: list[Tensor]) -> tuple[float, float]:
        """Return the mean log likelihood of labels by the other parts' transitions, and the mean P(label is wrong)."""
        total, wrong = 0.0, 0.0
        columns, columns_by_part = matrix.T.contiguous(), [each.T.contiguous() for each in by_part]
        for rows in self.rows():
            p, labels = self.buffer[rows], torch.from_numpy(self.labels[rows])
            part = self.part[rows]
            for k, column in enumerate(columns_by_part):
                own = torch.from_numpy(np.flatnonzero(part == k))
                total += float((p[own] * column[labels[own]]).sum(1).clamp_min(1e-30).log().sum())
            right = p.gather(1, labels[:, None])[:, 0] * matrix.diagonal()[labels]
            wrong += float((1 - right / (p * columns[labels]).sum(1).clamp_min(1e-30)).sum())
        return total / self.n, wrong / self.n

    # Sums over the samples, by fold

    def label_sums(self) -> list[Sums]:
        """Return the sums if all given labels are right."""
        labels = np.where(self.known < 0, self.labels, self.known)
        return self._sums(lambda rows: torch.from_numpy(labels[rows]))

    def text_sums(self, rate: float, weight: float, share: float) -> list[Sums]:
        """Return the sums if classes are what text and labels say together, in a share; else the given labels."""
        columns = uniform_transition(rate, self.classes)  # symmetric

        def responsibility(rows: slice) -> Tensor:
            labels, text = torch.from_numpy(self.labels[rows]), self.text(rows)
            assert text is not None
            q = _normalised((weight * text).softmax(1) * columns[labels])
            q = q.mul_(share).scatter_add_(1, labels[:, None], torch.full((len(q), 1), 1 - share))
            return _normalised(self.believed(q, rows))

        return self._sums(responsibility)

    def posterior_sums(self, matrix: Tensor, order: Tensor | None = None) -> list[Sums]:
        """Return the sums by the posterior, from the p in the buffer; classes may be given other names."""
        columns = matrix.T.contiguous()

        def responsibility(rows: slice) -> Tensor:
            q = _normalised(self.buffer[rows] * columns[torch.from_numpy(self.labels[rows])])
            return q if order is None else q[:, order]

        return self._sums(responsibility)

    def _sums(self, responsibility: Callable[[slice], Tensor]) -> list[Sums]:
        counts = torch.zeros(self.folds, self.classes, dtype=torch.float64)
        features = torch.zeros(self.folds, self.classes, self.width, dtype=torch.float64)
        for rows in self.rows():
            x, fold, q = self.features(rows), self.fold[rows], responsibility(rows)
            for k in range(self.folds):
                own = torch.from_numpy(np.flatnonzero(fold == k))
                if q.ndim == 1:
                    counts[k] += torch.bincount(q[own], minlength=self.classes)
                    features[k].index_add_(0, q[own], x[own].double())
                else:
                    counts[k] += q[own].sum(0, dtype=torch.float64)
                    features[k] += q[own].T @ x[own]
        return [Sums(*each) for each in zip(counts, features, self.products, strict=True)]

    def _products(self) -> Tensor:
        products = torch.zeros(self.folds, self.width, self.width, dtype=torch.float64)
        for rows in self.rows():
            x, fold = self.features(rows), self.fold[rows]
            for k in range(self.folds):
                own = x[torch.from_numpy(np.flatnonzero(fold == k))]
                products[k] += own.T @ own
        return products

    def _moments(self) -> tuple[Tensor, float]:
        """Return the mean of the features and what brings their mean variance to 1."""
        mean = np.zeros(self.width)
        for rows in self.rows():
            mean += np.asarray(self.x[rows], dtype=np.float64).sum(0)
        mean /= self.n
        squares = sum(float(np.square(np.asarray(self.x[rows], dtype=np.float64) - mean).sum()) for rows in self.rows())
        deviation = (squares / (self.n * self.width)) ** 0.5
        size = max(deviation, float(np.abs(mean).max()))
        if size > _LARGEST:
            raise InputError(f"features: they are as large as {size:.3g}; bring them below {_LARGEST:g}")
        varied = deviation > 1e-7 * size
        return torch.from_numpy(mean.astype(np.float32)), 1 / deviation if varied else 1.0

    def _text_scale(self, z: np.ndarray) -> float:
        """Return the factor that brings the logits to CLIP's height; 0 if they say nothing."""
        some = np.asarray(z[self.weighed], dtype=np.float64)
        height = float((some.max(1) - some.mean(1)).mean())
        if height > _LARGEST:
            raise InputError(f"zero_shot_logits: they are as large as {height:.3g}; bring them below {_LARGEST:g}")
        return _HEIGHT / height if height > 1e-9 else 0.0

    # The text as a start, and as the name of a group

    def text_alone(self) -> tuple[float, float]:
        """Return the noise rate and the text's weight that make the labels most likely, mistakes being anything."""
        text, labels = self.text(self.weighed), torch.from_numpy(self.labels[self.weighed])
        assert text is not None
        rate = 0.3
        mixture: tuple[float, ...] = (0.5,)
        for _ in range(15):
            likely = uniform_transition(rate, self.classes)[labels]
            mixture = _most_likely([text], likely, mixture)[1]
            q = _normalised((mixture[0] * text).softmax(1) * likely)
            rate = min(max(float(1 - q.gather(1, labels[:, None]).mean()), 0.01), 0.98)
        return rate, mixture[0]

    def renamed(self, model: _Model) -> _Path | None:
        """Return the rounds from the groups that the labels give, named as the text names them; None if it does not.

        If more than half of the labels of a class are wrong in one way, its images are found as a group under a wrong
        label. Only the text knows better. It is asked if it contradicts the labels' names for the most part, and if
        most groups have the label it names, more often than any wrong label by chance: where the class names themselves
        are mixed up, they have not.
        """
        from scipy.optimize import linear_sum_assignment

        self.fill(model.weights, model.bias, model.mixture)
        matrix = model.transition.matrix
        columns = matrix.T.contiguous()
        named = torch.zeros(self.classes, self.classes, dtype=torch.float64)
        for rows in self.rows():
            q = _normalised(self.buffer[rows] * columns[torch.from_numpy(self.labels[rows])])
            text = self.text(rows)
            assert text is not None
            named.index_add_(1, text.argmax(1), q.T.double())
        # A name has to fit twice: images of the group look like it, and some of the group's labels are it, many or few.
        looks = named / named.sum(1, keepdim=True).clamp_min(1)
        fit = (looks + 0.01).log() + (matrix.double().clamp_max(0.05) + 0.002).log()
        groups, names = (torch.from_numpy(each) for each in linear_sum_assignment(-fit.numpy()))
        moved = groups != names
        agreed = float(named[groups, names].sum())
        # Names that tell few images of anything are no witnesses.
        if not moved.any() or agreed < 0.25 * self.n or float(named.diagonal().sum()) > 0.5 * agreed:
            return None
        held = matrix[groups[moved], names[moved]]
        by_chance = 3 * (1 - matrix.diagonal()[moved]) / (self.classes - 1)
        size = named.sum(1)[moved]
        if float(size[held >= by_chance.clamp_min(0.04)].sum()) < 0.5 * float(size.sum()):
            return None
        order = torch.empty_like(groups)
        order[names] = groups  # column c of the renamed is the group that is called c
        sums = self.posterior_sums(matrix, order)
        return self.climb(sums, matrix[order], "renamed")

    # The answer

    def answer(self, path: _Path) -> Posterior:
        """Return the posterior of the best model, the rate with its error and the classifier of all samples."""
        model = path.best
        predicted, sureness = self.fill(model.weights, model.bias, model.mixture)
        likelihoods = self.label_likelihoods(predicted, sureness)
        can_tell = self.can_tell(likelihoods)
        hard = can_tell and self.could_be_hard(likelihoods)
        rates = list(path.rates)
        for share in OTHER_ANCHORS:
            other, by_part = self.transition(predicted, sureness, share)
            rates.append(self.likelihoods(other.matrix, by_part)[1])
        matrix = model.transition.matrix
        if not can_tell:
            matrix = torch.eye(self.classes)
            self.buffer.fill_(1.0)
        columns = matrix.T.contiguous()
        for rows in self.rows():
            p = self.buffer[rows]
            p.copy_(_normalised(self.believed(p * columns[torch.from_numpy(self.labels[rows])], rows)))
        sums = _added(self._sums(lambda rows: self.buffer[rows]))
        parts = discriminants(sums, RIDGES)
        whole = combined(parts, model.mixture[: len(RIDGES)], log_shares(self.given_to_others.sum(0), matrix))
        weights = self.scale * whole.weights  # of the features as they come, not centred
        text_weight = model.mixture[-1] * self.text_scale if self.text_scale else 0.0
        rate, error = rate_and_error(
            RateEvidence(
                model.rate,
                tuple(rates),
                model.contradicted,
                model.transition.anchors,
                self.n,
                can_tell,
                unknown=float((self.known < 0).mean()),
                could_be_hard=hard,
                surely_wrong=float(((self.known >= 0) & (self.known != self.labels)).mean()),
            )
        )
        return Posterior(
            probabilities=self.buffer.numpy(),
            labels=self.labels,
            noise_rate=rate,
            noise_rate_error=error,
            transition=matrix.T.double().numpy(),
            weights=weights.numpy(),
            bias=(whole.bias - self.mean @ weights).numpy(),
            text_weight=text_weight,
            text=self._linear_text(text_weight),
            likelihood=model.likelihood,
            start=model.start if can_tell else "none",
        )

    def label_likelihoods(self, predicted: np.ndarray, sureness: np.ndarray) -> np.ndarray:
        """Return the log likelihood of each label under the p in the buffer and the other parts' transition (n,)."""
        _, by_part = self.transition(predicted, sureness, ANCHORS)
        found = np.empty(self.n)
        for rows in self.rows():
            p, labels = self.buffer[rows], torch.from_numpy(self.labels[rows])
            for k, matrix in enumerate(by_part):
                own = np.flatnonzero(self.part[rows] == k)
                likely = p[own] * matrix.T[labels[own]]
                found[rows.start + own] = likely.sum(1).clamp_min(1e-30).log().numpy()
        return found

    def can_tell(self, likelihoods: np.ndarray) -> bool:
        """Return whether labels are surely more likely by the model than by how often each is given."""
        counts = np.bincount(self.labels, minlength=self.classes)
        gain = likelihoods - np.log((counts + 1) / (self.n + self.classes))[self.labels]
        gain = gain[self.known < 0]  # of those looked at, more is known than the labels
        return not len(gain) or bool((counts > 0).sum() > 1 and _surely_above(gain, max(3 / len(gain), 0.005)))

    def could_be_hard(self, likelihoods: np.ndarray) -> bool:
        """Return whether the labels are about as likely if they are right and the images hard to tell apart.

        The same discriminants, made from the labels as they are and as soft as need be, with next to no wrong labels,
        stand against the model. Where classes overlap, they do as well, and nothing can tell which of the two it is.
        """
        transition = uniform_transition(NEXT_TO_NONE, self.classes)
        parts = self.parts(self.label_sums(), transition)
        weights = self.mixture(parts, transition, self.first_mixture)
        terms, prior = self.terms(parts)
        p = _weighted(terms, np.array(weights)).add_(prior).softmax(1)
        likely = (p * transition[torch.from_numpy(self.labels[self.weighed])]).sum(1).clamp_min(1e-30).log().numpy()
        gain = (likelihoods[self.weighed] - likely)[self.known[self.weighed] < 0]
        return len(gain) > 0 and not _surely_above(gain, 0.0)

    def _linear_text(self, weight: float) -> np.ndarray | None:
        """Return the zero-shot logits as a linear function of features, if they are one."""
        if not weight or self.z is None:
            return None
        rows = self.weighed
        x = np.column_stack([np.asarray(self.x[rows], dtype=np.float64), np.ones(len(rows))])
        z = np.asarray(self.z[rows], dtype=np.float64)
        learnt = np.arange(len(rows)) % 5 > 0
        found = _least_squares(x[learnt], z[learnt])
        # Judged by others: as many numbers as samples fit anything.
        rest = np.square(z - x @ found)[~learnt].sum() / max(1e-12, np.square(z - z.mean(0))[~learnt].sum())
        return _least_squares(x, z).astype(np.float32) if rest < 1e-3 else None


def _least_squares(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the linear function of x (n, D) that is nearest to z (n, C)."""
    gram = x.T @ x
    gram.flat[:: len(gram) + 1] += 1e-9 * np.trace(gram) / len(gram)
    found: np.ndarray = np.linalg.solve(gram, x.T @ z)
    return found


def _added(sums: list[Sums]) -> Sums:
    return Sums(*(torch.stack([getattr(one, name) for one in sums]).sum(0) for name in Sums.__dataclass_fields__))


def _surely_above(gain: np.ndarray, least: float) -> bool:
    """Return whether the mean of independent gains is above `least` and above what chance would give."""
    return bool(gain.mean() > max(SURE * gain.std() / len(gain) ** 0.5, least))


def _normalised(q: Tensor) -> Tensor:
    return q / q.sum(1, keepdim=True).clamp_min(1e-30)


def _most_likely(
    terms: list[Tensor], likely: Tensor, start: tuple[float, ...], prior: Tensor | None = None
) -> tuple[float, tuple[float, ...]]:
    """Return the least mean negative log likelihood, and the weights of the terms, 0 or more, that have it.

    Parameters
    ----------
    terms : list of Tensor of shape (n, C)
        Their weighted sum are the logits of the true class.
    likely : Tensor of shape (n, C)
        The probability of each sample's given label under each true class.
    start : tuple of float
        Weights to begin with.
    prior : Tensor of shape (n, C), optional
        Added to the weighted sum as it is.
    """
    from scipy.optimize import minimize

    def value_and_slope(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = _weighted(terms, weights)
        p = (logits if prior is None else logits.add_(prior)).softmax(1)
        q = p * likely
        sums = q.sum(1, keepdim=True).clamp_min(1e-30)
        q = q.div_(sums).sub_(p)
        slopes = [-float((q * term).sum(dtype=torch.float64)) / len(q) for term in terms]
        return -float(sums.log().mean(dtype=torch.float64)), np.array(slopes)

    found = minimize(
        value_and_slope,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, 3)] * len(terms),
        options={"maxiter": 25, "ftol": 1e-6},
    )
    return float(found.fun), tuple(float(each) for each in found.x)


def _weighted(terms: list[Tensor], weights: np.ndarray) -> Tensor:
    total = terms[0] * float(weights[0])
    for term, weight in zip(terms[1:], weights[1:], strict=True):
        total.add_(term, alpha=float(weight))
    return total
