"""Classes as clouds of one shape: what the features alone say of an image's class.

Each class is a Gaussian around its mean, all with one covariance: the oldest classifier there is, in closed form. All
it needs are sums over the samples, which are made in one pass, in parts if need be, and from which a part can be taken
out again: that is how a sample is judged by a classifier that has not seen its label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Sums over samples: how much of them each class has (C,), of its features (C, D), of all products (D, D)."""

    counts: Tensor
    features: Tensor
    products: Tensor

    def plus(self, part: Sums) -> Sums:
        """Return the sums over these samples and others."""
        return Sums(self.counts + part.counts, self.features + part.features, self.products + part.products)

    def without(self, part: Sums) -> Sums:
        """Return the sums over the others."""
        return Sums(self.counts - part.counts, self.features - part.features, self.products - part.products)


@dataclass(frozen=True)
class Discriminant:
    """A linear classifier of features: scores (n, C) are `x @ weights + bias`."""

    weights: Tensor  # (D, C)
    bias: Tensor  # (C,)


def discriminants(sums: Sums, ridges: Sequence[float]) -> list[Discriminant]:
    """Return the log likelihood of features under each class, up to what all classes share, once for each ridge.

    The covariance is widened by a ridge times the mean variance, and by more the fewer samples there are. A class's
    mean is drawn towards the common one by as much as its samples are few and classes lie close: a class without a
    sample is the common mean, nearer to images of no other class than the other classes are.

    Parameters
    ----------
    sums : Sums
        Over the samples that are learnt from, their features centred.
    ridges : sequence of float
        How much is added to every variance, as a share of their mean.
    """
    counts, products = sums.counts.double(), sums.products.double()
    total, width = counts.sum().clamp_min(1), len(products)
    # A class that has next to nothing of any sample has no mean of its own.
    held = counts > 1e-6
    counts = counts * held
    means = sums.features.double() * (held / counts.clamp_min(1e-6))[:, None]
    # Single precision will do for what lies between classes: a ridge, a tenth of the spread, is added to what is left.
    between = (means * counts[:, None]).float().T @ means.float()
    within = (products - between) / total
    # One sample a class, or copies alone, leave no variance within classes; and features may all be the same.
    spread = torch.maximum(within.diagonal().mean(), 1e-3 * products.diagonal().mean() / total)
    spread = torch.where(spread > 1e-9, spread, torch.ones_like(spread))
    # A ridge keeps it well-conditioned: single precision will do from here on, in half the time.
    within, spread, means = (within / spread).float(), spread.float(), (means / spread.sqrt()).float()
    seen = counts > 0.5
    dimensions = max(1, min(int(seen.sum()) - 1, width))
    found = []
    for ridge in ridges:
        widened = within.clone()
        widened.diagonal().add_(ridge + float(width / total))
        root = torch.linalg.cholesky(widened)
        # Rows that lie beside each other are solved for in half the time of columns.
        whitened = torch.linalg.solve_triangular(root.mT, means, upper=True, left=False)
        directions = torch.linalg.solve_triangular(root, whitened, upper=False, left=False).T
        power = whitened.square().sum(1).double()
        # How far classes lie apart in each direction, in units of the spread within them, chance taken off.
        apart = (power[seen].mean() / dimensions - (1 / counts[seen]).mean()).nan_to_num(0.0).clamp_min(1e-3)
        share = counts * apart / (counts * apart + 1)
        found.append(Discriminant(directions * share.float() / spread.sqrt(), (-0.5 * share**2 * power).float()))
    return found


def combined(parts: Sequence[Discriminant], weights: Sequence[float], prior: Tensor) -> Discriminant:
    """Return the weighted sum of classifiers, with the log of how common each class is (C,) added."""
    found = Discriminant(torch.zeros_like(parts[0].weights), prior)
    for weight, part in zip(weights, parts, strict=True):
        found = Discriminant(found.weights + weight * part.weights, found.bias + weight * part.bias)
    return found
