"""JoAPR: a mixture of two Gaussians parts the samples by their loss; labels are refined, mixed and learnt.

The rules are those of the published code where it says more than the paper, or something else.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import Tensor

from dspt import losses
from dspt.internal.errors import InputError
from dspt.methods.method import Batch, Epoch, Method, Phase, batches

# Epochs over which a sample's loss is averaged; the first threshold; and the Beta distribution of mixup.
AVERAGED, THRESHOLD, BETA = 5, 0.5, 0.001


@dataclass(frozen=True)
class JoAPR(Method):
    """Adaptive partition and label refurbishment, after `warmup` epochs of cross-entropy with a confidence penalty.

    The published constants belong to sixteen shots and differ between datasets. On whole training sets an epoch has
    many more steps, so the shortest of the published warm-ups is the default.
    """

    name = "joapr"
    formula = "CE(z of mixed features, mixed sharpened (w y + (1 - w) p)) + a2 KL(uniform | mean p)"
    source = "Guo and Gu, CVPR 2024"
    needs_clip = "it blends the features of a frozen CLIP"
    weighs_samples = False  # a blend of two samples has no weight of its own

    warmup: float = 1
    a1: float = 0.5
    a2: float = 0.5

    def __post_init__(self) -> None:
        if self.warmup < 0 or not float(self.warmup).is_integer():
            raise InputError(f"warmup = {self.warmup}: expected a whole number of 0 or more")
        for name in ("a1", "a2"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} = {getattr(self, name)}: expected a number of 0 or more")

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase: the given labels in the warm-up, then refined and mixed ones."""
        everything = np.arange(len(epoch.labels))
        if epoch.number < self.warmup:
            return [Phase(everything, epoch.labels, partial(_penalised, weight=self.a1))]
        logits = epoch.logits()
        averaged = _averaged(_scaled_loss(logits, epoch.labels), epoch.memory)
        threshold = float(epoch.memory.get("noise_rate", torch.tensor(THRESHOLD)))
        clean, trust, threshold = partition(averaged, threshold, _seed(epoch))
        epoch.memory["noise_rate"] = torch.tensor(threshold, dtype=torch.float64)
        if epoch.number > self.warmup:
            trust = trust * logits.softmax(1).gather(1, epoch.labels[:, None])[:, 0]
        trust = torch.where(clean, trust, torch.zeros_like(trust))

        def targets(places: Tensor, logits: Tensor) -> Tensor:
            return refined(logits.softmax(1), epoch.labels[places], trust[places])

        return [Phase(everything, targets, partial(_balanced, weight=self.a2), _paired(clean.cpu().numpy(), epoch))]


def partition(loss: Tensor, threshold: float, seed: int) -> tuple[Tensor, Tensor, float]:
    """Return which samples are clean, how likely each is, and the new threshold, by two Gaussians over their losses.

    The new threshold is the share of samples that are no more likely clean than the old one. Clean is a sample that
    is more likely clean than that, or whose loss is below the crossing of the Gaussians.

    Parameters
    ----------
    loss : Tensor of shape (N,)
        The loss of each sample.
    threshold : float in 0..1
        The old threshold.
    seed : int
        Seed of the fit of the mixture.

    Returns
    -------
    clean : Tensor of shape (N,), bool
    probability : Tensor of shape (N,)
        That a sample belongs to the Gaussian of the lower mean; all 1 for fewer than two samples.
    threshold : float
        The estimated noise rate.
    """
    from sklearn.mixture import GaussianMixture

    if len(loss) < 2:  # nothing to part
        return torch.ones_like(loss, dtype=torch.bool), torch.ones_like(loss), 0.0
    values = loss.double().cpu().numpy()[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    likely = mixture.fit(values).predict_proba(values)
    order = mixture.means_[:, 0].argsort()
    probability = torch.from_numpy(likely[:, order[0]]).to(loss)
    threshold = float((probability <= threshold).double().mean())
    below = loss < _crossing(mixture.means_[order, 0], mixture.covariances_[order, 0, 0])
    return below | (probability > threshold), probability, threshold


def refined(p: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return target distributions w y + (1 - w) p, sharpened.

    Parameters
    ----------
    p : Tensor of shape (n, C)
        The predicted distributions.
    labels : Tensor of shape (n,), int64
        The given labels.
    weight : Tensor of shape (n,)
        The weight w of each label, in 0..1; 0 for a sample that is not clean.

    Returns
    -------
    Tensor of shape (n, C)
        Every row sums to 1.
    """
    one_hot = torch.nn.functional.one_hot(labels, p.shape[1]).to(p)
    share = weight.to(p)[:, None]
    squares = (share * one_hot + (1 - share) * p).square()
    return squares / squares.sum(1, keepdim=True)


def _crossing(means: np.ndarray, variances: np.ndarray) -> float:
    """Return the loss below which a sample is clean, by the Gaussians of lower and of higher mean; nan if none.

    As in the published code it is where half the density of the first equals that of the second, without the weights
    of the mixture, and with the variances in the place of standard deviations.
    """
    (low, high), (s, t) = means, variances
    a = t**2 - s**2
    b = 2 * (high * s**2 - low * t**2)
    c = (low * t) ** 2 - (high * s) ** 2 + 2 * (s * t) ** 2 * math.log(2 * s / t + 1e-8)
    square = b**2 - 4 * a * c
    return float((-b + math.sqrt(square)) / (2 * a + 1e-10)) if square >= 0 else math.nan


def _scaled_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return cross-entropy plus entropy of each sample, brought to 0..1."""
    log_p = logits.log_softmax(1)
    loss = -log_p.gather(1, labels[:, None])[:, 0] - (log_p.exp() * log_p).sum(1)
    return (loss - loss.min()) / (loss.max() - loss.min()).clamp_min(1e-12)


def _averaged(loss: Tensor, memory: dict[str, Tensor]) -> Tensor:
    """Return the mean of the last epochs' losses, which are kept in `memory`."""
    before = memory.get("losses", loss.new_zeros((0, len(loss)))).to(loss)
    memory["losses"] = torch.cat([before, loss[None]])[-AVERAGED:]
    return memory["losses"].mean(0)


def _paired(clean: np.ndarray, epoch: Epoch) -> list[Batch]:
    """Return steps of a batch of clean and a batch of other samples, mixed with each other.

    There are as many as the larger part has batches; the smaller part is gone through again and again. Partners and
    the coefficient of mixup are drawn once a step.
    """
    from scipy.special import betaincinv

    parts = {name: np.flatnonzero(part) for name, part in (("clean", clean), ("other", ~clean)) if part.any()}
    drawn = [_endless(part, epoch, name) for name, part in parts.items()]
    steps = max(max(1, len(part) // epoch.batch_size) for part in parts.values())
    coefficients = betaincinv(BETA, BETA, epoch.stream("mixup").uniform(steps))
    planned = []
    for step, coefficient in enumerate(coefficients):
        places = np.concatenate([next(each) for each in drawn])
        partners = epoch.stream("partners", step).permutation(len(places))
        planned.append(Batch(places, partners, float(max(coefficient, 1 - coefficient))))
    return planned


def _endless(part: np.ndarray, epoch: Epoch, name: str) -> Iterator[np.ndarray]:
    """Yield shuffled batches of a part, one pass after the other."""
    for turn in count():
        for places in batches(len(part), epoch.batch_size, epoch.stream(name, turn)):
            yield part[places]


def _seed(epoch: Epoch) -> int:
    return int(epoch.stream("mixture").integers(1, 2**31)[0])


def _penalised(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    p = logits.softmax(1)
    confidence = (p * logits.log_softmax(1)).sum(1)
    return losses.get("ce")(logits, labels, "none", validate=False) + weight * confidence


def _balanced(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    mean = logits.softmax(1).mean(0).clamp_min(1e-12)
    divergence = -mean.log().mean() - math.log(len(mean))  # KL(uniform | mean p)
    return losses.soft_cross_entropy(logits, targets, "none") + weight * divergence
