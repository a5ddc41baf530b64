"""JoAPR: a mixture of two Gaussians parts the samples by their loss; labels are refined, mixed and learnt."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dspt import losses
from dspt.internal.errors import InputError
from dspt.methods.method import Epoch, Method, Mix, Phase

# Epochs over which a sample's loss is averaged; and the Beta distribution of mixup.
AVERAGED, BETA = 5, 0.001


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
    a1: float = 0.1
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
        p = epoch.logits().softmax(1)
        averaged = _averaged(_scaled_loss(p, epoch.labels), epoch.memory)
        threshold = float(epoch.memory.get("noise_rate", torch.tensor(0.5)))
        clean, weight = partition(averaged, threshold, _seed(epoch))
        epoch.memory["noise_rate"] = 1 - clean.float().mean().cpu()
        targets = refined(p, epoch.labels, clean, weight)
        mix, targets = _mixed(targets, epoch)
        return [Phase(everything, targets, partial(_balanced, weight=self.a2), mix)]


def partition(loss: Tensor, threshold: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return which samples are clean, and how likely each is, by a mixture of two Gaussians over their losses.

    Clean is a sample below the point between the two means at which both Gaussians are as likely, or one more
    likely clean than `threshold`.

    Parameters
    ----------
    loss : Tensor of shape (N,)
        The loss of each sample.
    threshold : float in 0..1
        A sample that is more likely clean than this is clean.
    seed : int
        Seed of the fit of the mixture.

    Returns
    -------
    clean : Tensor of shape (N,), bool
    probability : Tensor of shape (N,)
        That a sample belongs to the Gaussian of the lower mean; all 1 for fewer than two samples.
    """
    from sklearn.mixture import GaussianMixture

    if len(loss) < 2:  # nothing to part
        return torch.ones_like(loss, dtype=torch.bool), torch.ones_like(loss)
    values = loss.double().cpu().numpy()[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    likely = mixture.fit(values).predict_proba(values)
    low = int(mixture.means_[:, 0].argmin())
    probability = torch.from_numpy(likely[:, low]).to(loss)
    return (loss < _crossing(mixture, low)) | (probability > threshold), probability


def refined(p: Tensor, labels: Tensor, clean: Tensor, weight: Tensor) -> Tensor:
    """Return target distributions: w y + (1 - w) p for clean samples, p for the others; sharpened.

    Parameters
    ----------
    p : Tensor of shape (N, C)
        The predicted distributions.
    labels : Tensor of shape (N,), int64
        The given labels.
    clean : Tensor of shape (N,), bool
        Which samples are clean.
    weight : Tensor of shape (N,)
        The weight w of each label, in 0..1.

    Returns
    -------
    Tensor of shape (N, C)
        Every row sums to 1.
    """
    one_hot = torch.nn.functional.one_hot(labels, p.shape[1]).to(p)
    share = torch.where(clean, weight, torch.zeros_like(weight))[:, None]
    return _sharpened(share * one_hot + (1 - share) * p)


def _sharpened(p: Tensor) -> Tensor:
    return p.square() / p.square().sum(1, keepdim=True)


def _crossing(mixture: object, low: int) -> float:
    """Return the point between the means where the two weighted densities are equal."""
    order = [low, 1 - low]
    means = mixture.means_[order, 0]  # type: ignore[attr-defined]
    variances = mixture.covariances_[order, 0, 0]  # type: ignore[attr-defined]
    weights = mixture.weights_[order]  # type: ignore[attr-defined]
    # log(w1 N1) - log(w2 N2) is a quadratic in the loss; its root between the means is the point.
    a = 0.5 / variances[1] - 0.5 / variances[0]
    b = means[0] / variances[0] - means[1] / variances[1]
    c = (
        0.5 * means[1] ** 2 / variances[1]
        - 0.5 * means[0] ** 2 / variances[0]
        + math.log(weights[0] / weights[1])
        + 0.5 * math.log(variances[1] / variances[0])
    )
    roots = np.roots([a, b, c]) if abs(a) > 1e-12 else np.roots([b, c])
    between = [root.real for root in roots if abs(root.imag) < 1e-9 and means[0] < root.real < means[1]]
    return float(between[0]) if between else float(means.mean())


def _scaled_loss(p: Tensor, labels: Tensor) -> Tensor:
    """Return cross-entropy plus entropy of each sample, brought to 0..1."""
    log = p.clamp_min(1e-12).log()
    loss = -log.gather(1, labels[:, None])[:, 0] - (p * log).sum(1)
    return (loss - loss.min()) / (loss.max() - loss.min()).clamp_min(1e-12)


def _averaged(loss: Tensor, memory: dict[str, Tensor]) -> Tensor:
    """Return the mean of the last epochs' losses, which are kept in `memory`."""
    before = memory.get("losses", loss.new_zeros((0, len(loss)))).to(loss)
    memory["losses"] = torch.cat([before, loss[None]])[-AVERAGED:]
    return memory["losses"].mean(0)


def _mixed(targets: Tensor, epoch: Epoch) -> tuple[Mix, Tensor]:
    n = len(targets)
    partners = epoch.stream("partners").permutation(n)
    weights = torch.from_numpy(_beta(epoch, n)).to(targets)
    weights = torch.maximum(weights, 1 - weights)
    other = targets[torch.from_numpy(partners).to(targets.device)]
    return Mix(partners, weights), weights[:, None] * targets + (1 - weights[:, None]) * other


def _beta(epoch: Epoch, n: int) -> np.ndarray:
    from scipy.special import betaincinv

    drawn: np.ndarray = betaincinv(BETA, BETA, epoch.stream("mixup").uniform(n))
    return drawn


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
