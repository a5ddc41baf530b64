"""From features, labels and logits to the posterior: rounds of discriminants, weights and transition.

g1 and g2 are discriminants of the features, with little and with much added to the covariance, fitted on Q of the other
nine tenths of the samples: no label vouches for itself. z are the zero-shot logits. The weights a1, a2 and b make the
given labels most likely under the transition T, which is read off anchor points. Features and names of no use get no
weight. From a start, a few rounds of this; the round and the start that make the labels most likely, each judged
without itself, are the answer. What is computed from rows is in `samples`; what is made of it, here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dspt.internal.errors import InputError
from dspt.internal.passes import Passes, added, all_added, joined
from dspt.internal.scratch import whole_of
from dspt.internal.seeds import Stream
from dspt.internal.shards import Features
from dspt.posterior.calibration import trust
from dspt.posterior.discriminant import Discriminant, Sums, combined, discriminants
from dspt.posterior.hardness import halves, most_in_doubt, sharpened
from dspt.posterior.mixture import SOFT, Mixture, most_likely, probabilities, weighted
from dspt.posterior.naming import TOLD, Naming, disputed, naming
from dspt.posterior.noise_rate import RateEvidence, rate_and_error
from dspt.posterior.samples import Classifiers, ClassSums, Look, Samples, Told, at_once, normalised
from dspt.posterior.transition import (
    ANCHORS,
    Anchors,
    Transition,
    anchor_rows,
    estimate_transition,
    log_shares,
    uniform_transition,
)

# Where rounds begin, and how far the text is believed there.
TEXT_SHARES = {"mixed": 0.5, "text": 1.0}
STARTS = ("labels", *TEXT_SHARES)
FOLDS = 10
ROUNDS = 8
# Rounds without a gain after which a start is left.
PATIENCE = 3
# What is added to the covariance by either discriminant, as shares of the mean variance.
RIDGES = (0.1, 2.0)
# Shares of anchors by which the rate is estimated, too: how far they differ is part of its error.
OTHER_ANCHORS = (0.15, 0.6)
# How far the rates of rounds may lie from the answer's, and by how much more likely labels must be by the first round
# than by a guess for it to be the answer then: later ones have begun to believe themselves.
UNSETTLED = 0.25
BETTER_THAN_A_GUESS = 0.05
# By how much the labels may be less likely, in the mean, if the text gives the groups other names.
RENAMED = 0.05
# Standard errors by which the labels must be more likely than by a guess without a look at the images.
SURE = 2.5
# The share of wrong labels in a set that has next to none, and by how much more likely, in the mean, labels must be if
# some are wrong: less than that, and a softer classifier would explain as much.
NEXT_TO_NONE = 0.01
NOT_MERELY_HARD = 0.03
# The surest images of each predicted class, and how often labels must contradict there, as a share of how often they do
# anywhere, to be called wrong for all that: hard images are not there.
SUREST = 0.1
ABOUT_AS_OFTEN = 0.75
# That holds if they are clear: so sure in the mean. Below the lower one even they are hard, and nothing speaks against
# the others' being so.
CLEAR, UNCLEAR = 0.96, 0.92
# If labels are no more likely than if all are right, contradict more than so many of the surest, and no text is of use,
# nothing can be told: there are no anchors.
NO_ANCHORS = 0.4
# The least weight of a text that is of use.
OF_USE = 0.02
# The fewest images by which a text is judged that is to vouch for classes without a label.
FEWEST_TOLD = 20
# How many times the usual deviation one of a feature may be before all are brought to the same (CLIP's are below 5
# times), and the share of the usual one below which a feature is taken for constant.
OTHER_UNITS = 10.0
LEAST_OF_USUAL = 1e-3
# Times that mistakes are counted again where images are not as hard as labels would have them.
_RATE_ROUNDS = 4
# Samples by which weights are chosen: more do not make them better.
_WEIGHED = 8192
# Samples that are taken together where precision is double.
_AT_ONCE_IN_DOUBLE = 1024
# Numbers beyond this cannot be squared and added in single precision; features that differ by less are all the same.
_LARGEST, _SMALLEST = 1e15, 1e-30
# Zero-shot logits are brought to this height of the highest above the mean, about that of CLIP's own.
HEIGHT = 10.0


class Answer(NamedTuple):
    """What `Evidence` finds, named as in `Posterior`, which says what each is."""

    probabilities: np.ndarray
    confusion: np.ndarray
    noise_rate: float
    noise_rate_error: float
    transition: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    text_weight: float
    text: np.ndarray | None
    likelihood: float
    start: str
    trust: float


class _Part(NamedTuple):
    """What is learnt for the samples of one fold from those of the others."""

    discriminants: list[Discriminant]
    prior: Tensor  # (C,) log of how common each class is


class _Half(NamedTuple):
    """What a judge sees who knows half."""

    axes: Tensor  # (D, R) the directions
    seen: Tensor  # (n, R) along them, the samples that weights are chosen by
    products: list[Tensor]  # (R, R) of each fold


@dataclass(frozen=True)
class _Model:
    """What a round has found out: everything that the probabilities of a sample depend on."""

    likelihood: float
    classifiers: Classifiers
    transition: Transition
    rate: float  # mean probability that a label is wrong
    contradicted: float  # share of labels that are not what the image is predicted as
    most_in_doubt: float = 1.0  # the greatest share of images that may be hard
    start: str = ""


class _Path(NamedTuple):
    """What came of a start."""

    best: _Model
    rates: tuple[float, ...]  # of all its rounds


class Evidence:
    """What all samples together say, by sums over them.

    Parameters
    ----------
    passes : Passes
        Does the work on ranges of rows.
    x : array of shape (N, D)
        Features.
    labels : int64 array of shape (N,)
        Given labels.
    z : array of shape (N, C), optional
        Zero-shot logits.
    classes : int
        C.
    known : int64 array of shape (N,)
        The true class where somebody has looked, -1 elsewhere.
    seed : int
        Of the folds, and of labels that are made up.
    """

    def __init__(
        self,
        passes: Passes,
        x: Features,
        labels: np.ndarray,
        z: Features | None,
        classes: int,
        known: np.ndarray,
        seed: int,
    ) -> None:
        self.passes, self.classes, self.known, self.seed = passes, classes, known, seed
        self.n, self.width = x.shape
        folds = min(FOLDS, self.n)
        order = Stream(seed, "posterior", "folds").permutation(self.n)
        self.fold = np.empty(self.n, dtype=np.uint8)
        self.fold[order] = np.arange(self.n) % folds
        self.folds = folds
        self.weighed = np.sort(order[:_WEIGHED])
        self.place = np.empty_like(order)  # of each sample in a random order
        self.place[order] = np.arange(self.n)
        self.samples = Samples(
            x=passes.keep(x),
            labels=labels,
            known=passes.keep(known),
            fold=passes.keep(self.fold),
            folds=folds,
            classes=classes,
            p=passes.room(self.n, classes),
            at_once=at_once(classes, self.width),
            z=None if z is None else passes.keep(z),
        )
        self._give(labels)
        self.mean, self.scale = self._moments()
        self.text_scale = 0.0 if z is None else self._text_scale(z)
        self.samples = replace(self.samples, mean=self.mean, scale=self.scale, text_scale=self.text_scale)
        self.products = added(passes.each(self.samples.products))

    def _give(self, labels: np.ndarray) -> None:
        """Take these for the given labels."""
        self.labels = labels
        self.samples = replace(self.samples, labels=self.passes.keep(labels))
        for name in ("text_alone", "unheard_of"):
            self.__dict__.pop(name, None)  # it was of others
        by_fold = np.zeros((self.folds, self.classes))
        np.add.at(by_fold, (self.fold, labels), 1.0)
        others = by_fold.sum(0) - (by_fold if self.folds > 1 else np.zeros_like(by_fold))
        # How often each label is given to the samples of the other folds.
        self.given_to_others = torch.from_numpy(others)
        # The log likelihood of each class by how often it is given.
        self._guess = np.log((by_fold.sum(0) + 1) / (self.n + self.classes))

    @property
    def guesses(self) -> np.ndarray:
        """The log likelihood of each label by a guess without a look at the images (N,)."""
        guessed: np.ndarray = self._guess[self.labels]
        return guessed

    def answer(self) -> Answer:
        """Return the best round of the best start, with the rate, its error and a classifier."""
        paths = {name: self.path(name) for name in (STARTS if self.text_scale else STARTS[:1])}
        best = max(paths.values(), key=lambda path: path.best.likelihood)
        by_labels = paths["labels"].best
        names = self.naming(by_labels) if self.text_scale else None
        if names is not None and names.sure:
            renamed = self.renamed(by_labels, names)
            # What the text says against the labels' names is not in their likelihood: as likely is enough.
            if renamed.best.likelihood > best.best.likelihood - RENAMED:
                return self.told(renamed)
        likely = [path.best.rate for path in paths.values() if path.best.likelihood > best.best.likelihood - RENAMED]
        return self.told(best, [*likely, *([] if names is None else [names.rate])])

    # A start, and the rounds from it

    def path(self, start: str) -> _Path:
        """Return what comes of a start."""
        guess = uniform_transition(0.3, self.classes)
        if start in TEXT_SHARES:
            rate, weight = self.text_alone
            return self.climb(self.text_sums(rate, weight, TEXT_SHARES[start]), guess, start)
        by_labels = self.climb(self.label_sums(), guess, "labels")
        names = self.naming(by_labels.best) if start == "renamed" else None
        return by_labels if names is None else self.renamed(by_labels.best, names)

    @property
    def first_mixture(self) -> Mixture:
        """The weights of discriminants and text to begin with."""
        return Mixture((0.05,) * len(RIDGES) + ((0.1,) if self.text_scale else ()), 0.1)

    def climb(self, sums: list[Sums], transition: Tensor, start: str) -> _Path:
        """Return the best round from a start, and the rates that all of them found."""
        mixture = self.first_mixture
        best: _Model | None = None
        first: _Model | None = None
        rates: list[float] = []
        since = 0
        for number in range(ROUNDS):
            parts = self.parts(sums, transition)
            terms, prior = self.terms(parts)
            doubt = self.most_in_doubt(sums)
            for first_look in (True, False) if number == 0 else (False,):  # the first transition is a guess
                mixture = self.mixture(terms, prior, transition, mixture)
                sharper = sharpened(mixture, terms, prior, doubt)
                mixture = sharper or mixture
                found = self.judged(parts, mixture, first_look, count_again=sharper is not None)
                transition = found.transition.matrix
            del terms, prior  # of many classes they are large
            rates.append(found.rate)
            since += 1
            # The first classifier has learnt the start, with mistakes that follow the images: it is not the answer.
            if best is None or number == 1 or found.likelihood > best.likelihood:
                best, since = replace(found, start=start, most_in_doubt=doubt), 0
            elif since >= PATIENCE:
                break
            if number == 0:
                first = best
            sums = self.posterior_sums(found.transition)
        assert best is not None
        unsettled = float(np.sqrt(np.mean(np.square(np.array(rates) - best.rate)))) > UNSETTLED
        if first is not None and unsettled and first.likelihood > float(self.guesses.mean()) + BETTER_THAN_A_GUESS:
            best = first
        return _Path(best, tuple(rates))

    def others(self, sums: list[Sums]) -> Iterator[Sums]:
        """Yield, for each fold, the sums over all samples but its own."""
        total = reduce(Sums.plus, sums)
        for part in sums:
            yield total.without(part) if self.folds > 1 else total

    def mixture(self, terms: list[Tensor], prior: Tensor, transition: Tensor, before: Mixture) -> Mixture:
        """Return the weights of discriminants and text that make the given labels most likely."""
        likely = self.samples.believed(transition.T[self.samples.given(self.weighed)], self.weighed)
        starts = [before]
        if self.text_scale and before.weights[-1] < OF_USE:
            # a weight of 0 is a valley that no small step leaves
            starts.append(before._replace(weights=(*before.weights[:-1], 0.3)))
        return min((most_likely(terms, likely, one, prior, SOFT) for one in starts), key=lambda one: one[0])[1]

    def terms(self, parts: list[_Part]) -> tuple[list[Tensor], Tensor]:
        """Return what discriminants and text say of the samples that weights are chosen by, and the prior (n, C)."""
        rows = self.weighed
        terms = [torch.empty(len(rows), self.classes) for _ in RIDGES]
        prior = torch.stack([part.prior for part in parts])[torch.from_numpy(self.fold[rows]).long()]
        step = self.samples.at_once
        for first in range(0, len(rows), step):
            x, order, folds = self.samples.by_fold(rows[first : first + step])
            for own, part in zip(folds, parts, strict=True):
                for term, one in zip(terms, part.discriminants, strict=True):
                    term[first + order[own]] = torch.addmm(one.bias, x[own], one.weights)
        if (text := self.samples.text(rows)) is not None:
            terms.append(text)
        return terms, prior

    def parts(self, sums: list[Sums], transition: Tensor) -> list[_Part]:
        """Return what is learnt for each fold from the sums of the others."""
        return [
            _Part(discriminants(one, RIDGES), self.prior(given, transition))
            for one, given in zip(self.others(sums), self.given_to_others, strict=True)
        ]

    def prior(self, given: Tensor, transition: Tensor) -> Tensor:
        """Return the log of how common each class is (C,), from how often labels are given to some samples (C,)."""
        shares = log_shares(given, transition)
        return torch.where(self.unheard_of, shares.clamp_max(math.log(0.5 / self.n)), shares)

    @cached_property
    def unheard_of(self) -> Tensor:
        """The classes of which neither a label, nor somebody who has looked, nor the text tells (C,).

        Such a class has no mean of its own, and images that lie between the others would pass for it. The text is
        asked where it says a class that others say, too: if it tells these, it can tell of the rest.
        """
        taken = np.where(self.known < 0, self.labels, self.known)
        never = np.bincount(taken, minlength=self.classes) == 0
        if never.any() and self.text_scale:
            text = self.samples.text(self.weighed)
            assert text is not None
            told, labels = text.argmax(1).numpy(), taken[self.weighed]
            asked = ~never[told]
            told, labels = told[asked], labels[asked]
            shares = [np.bincount(each, minlength=self.classes) / max(1, len(each)) for each in (told, labels)]
            chance = float(shares[0] @ shares[1])
            if len(told) >= FEWEST_TOLD and (told == labels).mean() - chance >= TOLD * (1 - chance):
                never[:] = False
        return torch.from_numpy(never)

    @cached_property
    def halves(self) -> list[_Half]:
        """Two halves of the features; none if one direction holds nearly all of how they vary."""
        found = halves(self.products.sum(0), Stream(self.seed, "posterior", "halves").normal(self.width, self.width))
        seen = [torch.empty(len(self.weighed), half.shape[1]) for half in found]
        for first in range(0, len(self.weighed), self.samples.at_once):
            rows = slice(first, first + self.samples.at_once)
            x = self.samples.features(self.weighed[rows])
            for half, some in zip(found, seen, strict=True):
                some[rows] = x @ half.float()
        products = ([half.T @ own @ half for own in self.products] for half in found)
        return [_Half(*each) for each in zip(found, seen, products, strict=True)]

    def most_in_doubt(self, sums: list[Sums]) -> float:
        """Return the greatest share of images that may be hard, by how many two judges disagree about."""
        said = []
        for half in self.halves:
            own = [Sums(one.counts, one.features @ half.axes, p) for one, p in zip(sums, half.products, strict=True)]
            told = torch.empty(len(self.weighed), dtype=torch.int64)
            for fold, others in enumerate(self.others(own)):
                judge, rows = discriminants(others, RIDGES[:1])[0], self.weighed_of[fold]
                told[rows] = torch.addmm(judge.bias, half.seen[rows], judge.weights).argmax(1)
            said.append(told)
        return most_in_doubt(int((said[0] != said[1]).sum()), len(self.weighed)) if said else 1.0

    @cached_property
    def weighed_of(self) -> list[Tensor]:
        """The places, among the samples that weights are chosen by, of those of each fold."""
        folds = self.fold[self.weighed]
        return [torch.from_numpy(np.flatnonzero(folds == fold)) for fold in range(self.folds)]

    def judged(self, parts: list[_Part], mixture: Mixture, first_look: bool, count_again: bool = False) -> _Model:
        """Return the model with these weights; p of all samples is then by it.

        Parameters
        ----------
        parts : list of _Part
        mixture : Mixture
        first_look : bool
            Whether the classifier knows little yet.
        count_again : bool
            Whether mistakes are more frequent than among the anchors, since labels contradict images that are not hard.
        """
        classifiers = _classifiers(parts, mixture)
        look = self.fill(classifiers)
        transition = estimate_transition(self.anchors(look, ANCHORS), first_look)
        likelihood, rate = self.likelihood(transition)
        for _ in range(_RATE_ROUNDS if count_again else 0):
            transition = transition.raised_to(rate)
            likelihood, rate = self.likelihood(transition)
        contradicted = float((look.predicted != self.labels).mean())
        return _Model(likelihood, classifiers, transition, rate, contradicted)

    def fill(self, by: Classifiers) -> Look:
        """Return what the samples are predicted as, after p is written; rows of the likeness sum to 1."""
        looks: list[tuple[np.ndarray, ...]] = []
        likeness: Tensor | None = None
        for *of_each, alike in self.passes.each(self.samples.fill, by):
            looks.append(tuple(of_each))
            likeness = alike.clone() if likeness is None else likeness.add_(alike)
        assert likeness is not None
        predicted, sureness, given = map(joined, zip(*looks, strict=True))
        return Look(predicted, sureness, given, normalised(likeness.fill_diagonal_(0)))

    def likelihood(self, transition: Transition) -> tuple[float, float]:
        """Return the mean log likelihood of the labels, and the mean probability that a label is wrong."""
        total, wrong = all_added(self.passes.each(self.samples.likelihood, transition))
        return total / self.n, wrong / self.n

    def anchors(self, look: Look, share: float) -> Anchors:
        """Return the surest samples of each predicted class, a share of them."""
        rows = np.sort(self.surest(look, share))
        place, predicted, labels = (torch.from_numpy(each) for each in (rows, look.predicted[rows], self.labels[rows]))
        doubt = torch.from_numpy(look.given[rows]) / torch.from_numpy(look.sureness[rows]).clamp_min(1e-30)
        return Anchors(place, predicted, labels, doubt, look.likeness)

    def surest(self, look: Look, share: float) -> np.ndarray:
        """Return the rows of the surest samples of each predicted class, a share of them."""
        # of those that are equally sure, none is an anchor for its place in the file
        order = np.lexsort((self.place, -look.sureness, look.predicted))
        return anchor_rows(look.predicted, order, share)

    # Sums over the samples, by fold

    def label_sums(self) -> list[Sums]:
        """Return the sums if all given labels are right."""
        return self._sums(self.passes.each(self.samples.label_sums))

    def text_sums(self, rate: float, weight: float, share: float) -> list[Sums]:
        """Return the sums if classes are what text and labels say together, in a share; else the given labels."""
        return self._sums(self.passes.each(self.samples.text_sums, rate, weight, share))

    def posterior_sums(self, transition: Transition, order: Tensor | None = None) -> list[Sums]:
        """Return the sums by the posterior, from p; classes may be given other names."""
        return self._sums(self.passes.each(self.samples.posterior_sums, transition, order))

    def _sums(self, answers: Iterable[ClassSums]) -> list[Sums]:
        return [Sums(*each) for each in zip(*all_added(answers), self.products, strict=True)]

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean of the features (D,) and what brings their mean variance to 1 (D,).

        That is one number for all: how much features differ is part of what they say. But where some are so much
        larger than others that they must be measured in other units, each gets its own.
        """
        mean = added(self.passes.each(self.samples.sums)) / self.n
        deviations = np.sqrt(added(self.passes.each(self.samples.squares, mean)) / self.n)
        deviation = float(np.sqrt(np.square(deviations).mean()))
        size = max(deviation, float(np.abs(mean).max()))
        if size > _LARGEST:
            raise InputError(f"features: they are as large as {size:.3g}; bring them below {_LARGEST:g}")
        scale = np.full(self.width, 1 / deviation if deviation > max(1e-7 * size, _SMALLEST) else 1.0)
        usual = float(np.median(deviations[deviations > 0])) if deviations.any() else 0.0
        if deviations.max() > OTHER_UNITS * usual > max(1e-7 * size, _SMALLEST / LEAST_OF_USUAL):
            scale = 1 / np.maximum(deviations, usual * LEAST_OF_USUAL)
        return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(scale.astype(np.float32))

    def _text_scale(self, z: Features) -> float:
        """Return the factor that brings the logits to CLIP's height; 0 if they say nothing."""
        some = np.asarray(z[self.weighed], dtype=np.float64)
        height = float((some.max(1) - some.mean(1)).mean())
        if height > _LARGEST:
            raise InputError(f"zero_shot_logits: they are as large as {height:.3g}; bring them below {_LARGEST:g}")
        return HEIGHT / height if height > 1e-9 else 0.0

    # The text as a start, and as the name of a group

    @cached_property
    def text_alone(self) -> tuple[float, float]:
        """The noise rate and the text's weight that make the labels most likely, mistakes being anything."""
        text, labels = self.samples.text(self.weighed), self.samples.given(self.weighed)
        assert text is not None
        rate = 0.3
        mixture = Mixture((0.5,))
        for _ in range(15):
            likely = uniform_transition(rate, self.classes)[labels]
            mixture = most_likely([text], likely, mixture)[1]
            q = normalised((mixture.weights[0] * text).softmax(1) * likely)
            rate = min(max(float(1 - q.gather(1, labels[:, None]).mean()), 0.01), 0.98)
        return rate, mixture.weights[0]

    def naming(self, model: _Model) -> Naming | None:
        """Return other names that the text has for the groups which the labels make; p is then theirs."""
        self.fill(model.classifiers)
        return naming(added(self.passes.each(self.samples.named, model.transition)), model.transition.matrix)

    def renamed(self, model: _Model, names: Naming) -> _Path:
        """Return the rounds from the groups that p has, named as the text names them."""
        sums = self.posterior_sums(model.transition, names.order)
        return self.climb(sums, model.transition.matrix[names.order], "renamed")

    # The answer

    def told(self, path: _Path, otherwise: Sequence[float] = ()) -> Answer:
        """Return what the best model says of all samples, how many labels are wrong, and the classifier.

        Parameters
        ----------
        path : _Path
        otherwise : sequence of float
            The share of wrong labels by other readings that cannot be excluded.
        """
        model, transition = path.best, path.best.transition
        rate, error, can_tell = self.rate(path, otherwise)
        by: Classifiers | None = model.classifiers
        number = 1.0
        if can_tell:
            number = self.trust(model)
        else:
            by, transition = None, Transition(torch.eye(self.classes))
        found = Told(*all_added(self.passes.each(self.samples.tell, by, transition, number)))
        sums = self._sums([ClassSums(found.counts, found.features)])
        mixture = model.classifiers.mixture
        prior = self.prior(self.given_to_others.sum(0), transition.matrix)
        parts = discriminants(reduce(Sums.plus, sums), RIDGES)
        whole = combined(parts, mixture.weights[: len(RIDGES)], prior)
        weights = self.scale[:, None] * whole.weights  # of the features as they come, not centred
        text_weight = mixture.weights[-1] * self.text_scale if self.text_scale else 0.0
        return Answer(
            probabilities=whole_of(self.samples.p),
            confusion=normalised(found.confusion).numpy(),
            noise_rate=rate,
            noise_rate_error=error,
            transition=transition.matrix.T.double().numpy(),
            weights=weights.numpy(),
            bias=(whole.bias - self.mean @ weights).numpy(),
            text_weight=text_weight,
            text=self._linear_text(text_weight),
            likelihood=model.likelihood,
            start=model.start if can_tell else "none",
            trust=number,
        )

    def rate(self, path: _Path, otherwise: Sequence[float]) -> tuple[float, float, bool]:
        """Return the share of wrong labels, its error, and whether anything can be told; p is then the best model's."""
        model, transition = path.best, path.best.transition
        look = self.fill(model.classifiers)
        likelihoods = joined(self.passes.each(self.samples.likelihoods, transition))
        others = [estimate_transition(self.anchors(look, share)) for share in OTHER_ANCHORS]
        rates = (*path.rates, *(self.likelihood(other)[1] for other in others))
        disputed = self.disputed(transition) if self.text_scale and path.best.start != "renamed" else 0.0
        can_tell, could_be_hard = self.can_tell(likelihoods), False
        if can_tell:
            could_be_hard, has_anchors = self.could_be_hard(path, look, likelihoods)
            can_tell = has_anchors
            self.fill(model.classifiers)
        assert transition.anchors is not None
        found = RateEvidence(
            model.rate,
            rates,
            model.contradicted,
            len(transition.anchors.rows),
            self.n,
            can_tell,
            unknown=float((self.known < 0).mean()),
            could_be_hard=could_be_hard,
            surely_wrong=float(((self.known >= 0) & (self.known != self.labels)).mean()),
            disputed=disputed,
            otherwise=tuple(otherwise),
        )
        return *rate_and_error(found), can_tell

    def disputed(self, transition: Transition) -> float:
        """Return how many more labels are wrong if groups bear the names that the text has for them; p is theirs."""
        return disputed(added(self.passes.each(self.samples.named, transition)), transition.matrix)

    def trust(self, model: _Model) -> float:
        """Return what log odds are multiplied with to be right for labels that the model makes up.

        Parameters
        ----------
        model : _Model
            Whose p is there, and is lost.
        """
        true, labels = self.made_up(model.transition)
        wrong = true != labels
        del true  # as long as all samples are
        made_up = copy(self)
        made_up._give(labels)
        found = made_up.path(model.start).best
        made_up.fill(found.classifiers)
        log_odds = joined(self.passes.each(made_up.samples.log_odds, found.transition))
        asked = self.known < 0
        return trust(log_odds[asked], wrong[asked])

    def made_up(self, transition: Transition) -> tuple[np.ndarray, np.ndarray]:
        """Return true classes drawn from the posterior by p, and labels drawn from the transition, both (N,)."""
        uniform = self.passes.keep(Stream(self.seed, "posterior", "made up").uniform(2 * self.n).reshape(2, self.n))
        true, labels = zip(*self.passes.each(self.samples.made_up, transition, uniform), strict=True)
        return joined(true), joined(labels)

    def can_tell(self, likelihoods: np.ndarray) -> bool:
        """Return whether labels are surely more likely by the model than by how often each is given."""
        gain = (likelihoods - self.guesses)[self.known < 0]  # of those looked at, more is known than the labels
        several = (self.labels != self.labels[0]).any()
        return not len(gain) or bool(several and _surely_above(gain, max(3 / len(gain), 0.005)))

    def among_the_surest(self, look: Look) -> tuple[float, float, int]:
        """Return how sure the surest predictions are, how often labels contradict them, and how many they are."""
        rows = self.surest(look, SUREST)
        return float(look.sureness[rows].mean()), float((look.predicted[rows] != self.labels[rows]).mean()), len(rows)

    def could_be_hard(self, path: _Path, look: Look, likelihoods: np.ndarray) -> tuple[bool, bool]:
        """Return whether labels are about as likely if all are right and images hard, and whether there are anchors.

        Where the surest images are clear, labels that contradict them as often as any are wrong; and a model without
        wrong labels, as soft as need be, must do clearly worse. Where they are not, rounds make labels more likely by
        believing themselves: by how much, is tried on labels that the other model makes up, all of them right.
        """
        sureness, contradicted, number = self.among_the_surest(look)
        chance = (contradicted * (1 - contradicted) / number) ** 0.5
        anywhere = float((look.predicted != self.labels).mean())
        if sureness >= CLEAR and contradicted - chance > ABOUT_AS_OFTEN * anywhere:
            return False, True
        parts, mixture = self.none_wrong()
        gain = self.gain(likelihoods, parts, mixture)
        if sureness >= CLEAR or not len(gain):
            return len(gain) > 0 and not _surely_above(gain, NOT_MERELY_HARD), True
        self.fill(_classifiers(parts, mixture))
        all_right = copy(self)
        all_right._give(self.made_up(Transition(torch.ones(self.classes, self.classes)))[0])
        found = all_right.path(path.best.start).best
        all_right.fill(found.classifiers)
        likely = joined(all_right.passes.each(all_right.samples.likelihoods, found.transition))
        by_itself = all_right.gain(likely, *all_right.none_wrong())
        chance = (gain.var() / len(gain) + by_itself.var() / len(by_itself)) ** 0.5
        more = float(gain.mean() - by_itself.mean())
        as_likely = more <= SURE * chance
        told_by_text = bool(self.text_scale) and path.best.classifiers.mixture.weights[-1] >= OF_USE
        # That few samples show no difference is not enough here: it must be small, chance and all. And all images that
        # labels contradict may be hard: if most labels are wrong at random, all of them right are explained no worse.
        hard_enough = path.best.contradicted <= path.best.most_in_doubt
        surely = as_likely and hard_enough and more + chance <= NOT_MERELY_HARD
        return as_likely or sureness < UNCLEAR, not (surely and contradicted > NO_ANCHORS) or told_by_text

    def none_wrong(self) -> tuple[list[_Part], Mixture]:
        """Return the discriminants and weights that explain the labels best if next to none is wrong."""
        transition = uniform_transition(NEXT_TO_NONE, self.classes)
        parts = self.parts(self.label_sums(), transition)
        return parts, self.mixture(*self.terms(parts), transition, self.first_mixture)

    def gain(self, likelihoods: np.ndarray, parts: list[_Part], mixture: Mixture) -> np.ndarray:
        """Return by how much labels are more likely than if next to none is wrong, of those that weights are chosen by.

        Parameters
        ----------
        likelihoods : array of shape (N,)
            The log likelihood of each label by the model.
        parts : list of _Part
        mixture : Mixture
            What explains them if none is wrong.
        """
        terms, prior = self.terms(parts)
        p = probabilities(weighted(terms, mixture.weights).add_(prior), mixture.softness)
        transition = uniform_transition(NEXT_TO_NONE, self.classes)
        likely = (p * transition[self.samples.given(self.weighed)]).sum(1).clamp_min(1e-30).log().numpy()
        found: np.ndarray = (likelihoods[self.weighed] - likely)[self.known[self.weighed] < 0]
        return found

    def _linear_text(self, weight: float) -> np.ndarray | None:
        """Return the zero-shot logits as a linear function of features, if they are one."""
        if not weight or self.samples.z is None or len(self.weighed) < 2:
            return None
        # Judged by others: as many numbers as samples fit anything.
        judged = np.arange(len(self.weighed)) % 5 == 0
        learnt = self._text_products(self.weighed[~judged])
        x, z = self._features_and_text(self.weighed[judged])
        rest = np.square(z - x @ _least_squares(*learnt)).sum() / max(1e-12, np.square(z - z.mean(0)).sum())
        if rest >= 1e-3:
            return None
        return _least_squares(learnt[0] + x.T @ x, learnt[1] + x.T @ z).astype(np.float32)

    def _features_and_text(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features of some samples with a column of ones, and their zero-shot logits, in double precision."""
        assert self.samples.z is not None
        x = np.ones((len(rows), self.width + 1))
        x[:, :-1] = self.samples.x[rows]
        return x, np.asarray(self.samples.z[rows], dtype=np.float64)

    def _text_products(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the products of features with each other and with the zero-shot logits, summed over some samples."""
        gram, cross = np.zeros((self.width + 1, self.width + 1)), np.zeros((self.width + 1, self.classes))
        for first in range(0, len(rows), _AT_ONCE_IN_DOUBLE):
            x, z = self._features_and_text(rows[first : first + _AT_ONCE_IN_DOUBLE])
            gram += x.T @ x
            cross += x.T @ z
        return gram, cross


def _classifiers(parts: list[_Part], mixture: Mixture) -> Classifiers:
    """Return the classifier of each fold: its discriminants with these weights."""
    of_folds = [combined(part.discriminants, mixture.weights[: len(RIDGES)], part.prior) for part in parts]
    weights, bias = torch.stack([one.weights for one in of_folds]), torch.stack([one.bias for one in of_folds])
    return Classifiers(weights, bias, mixture)


def _least_squares(gram: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Return the linear function (D, C) of x that is nearest to z, from the products of x with itself and with z."""
    gram = gram + np.diag(np.full(len(gram), 1e-9 * np.trace(gram) / len(gram)))
    found: np.ndarray = np.linalg.solve(gram, cross)
    return found


def _surely_above(gain: np.ndarray, least: float) -> bool:
    """Return whether the mean of independent gains is above `least` and above what chance would give."""
    return bool(gain.mean() > max(SURE * gain.std() / len(gain) ** 0.5, least))
