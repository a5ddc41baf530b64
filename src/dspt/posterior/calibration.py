"""How sure the posterior may be, judged by labels that it makes up itself.

Rounds that learn from their own answers come to believe them: the more so, the more the mistakes look like what the
images look like. By how much cannot be read off the given labels, whose truth nobody knows. But the model can make
labels of its own: a true class drawn from the posterior of each sample, and a label drawn from the transition. Judged
by the same rounds, these tell how often a probability is right. The log odds of the real labels are then multiplied
with the number that would have made those of the made-up ones right; never with more than 1, since what the model makes
up is at best as hard as what is real.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# The least number that log odds are multiplied with: below it, the made-up labels say that nothing is known.
LEAST = 0.2


def drawn(p: Tensor, first: Tensor, uniform: np.ndarray) -> Tensor:
    """Return a class for each sample (n,), drawn by its probabilities, whatever order the classes are in.

    Parameters
    ----------
    p : Tensor of shape (n, C)
        Not negative; each row has some sum above 0.
    first : int64 Tensor of shape (n,)
        The class that the lowest random numbers stand for; the others follow by how probable they are.
    uniform : float array of shape (n,)
        Random numbers in [0, 1), one for each.
    """
    left = torch.from_numpy(uniform) * p.sum(1, dtype=torch.float64) - p.gather(1, first[:, None])[:, 0]
    other = torch.nonzero(left >= 0)[:, 0]
    rest, order = p[other].scatter(1, first[other, None], -1.0).sort(1, descending=True)
    steps = rest.double().clamp_min(0).cumsum(1)
    place = torch.searchsorted(steps, left[other, None], right=True).clamp_max(p.shape[1] - 2)
    return first.clone().index_copy_(0, other, order.gather(1, place)[:, 0])


def trust(log_odds: np.ndarray, wrong: np.ndarray) -> float:
    """Return the number in LEAST..1 that makes log odds agree best with what is wrong: 1 if they are not too sure.

    Parameters
    ----------
    log_odds : float array of shape (n,)
        Of each label's being wrong.
    wrong : bool array of shape (n,)
        Whether it is.
    """
    from scipy.optimize import minimize_scalar

    sign = np.where(wrong, -1.0, 1.0)

    def loss(number: float) -> float:
        # Few labels in doubt tell little: a factor of two is as improbable beforehand as one standard deviation.
        return float(np.logaddexp(0, number * sign * log_odds).sum()) + 0.5 * float(np.log2(number)) ** 2

    return float(minimize_scalar(loss, bounds=(LEAST, 1), method="bounded").x)


def tempered(q: Tensor, labels: Tensor, number: float) -> Tensor:
    """Return posteriors (n, C) whose log odds of a wrong label are multiplied; other classes keep their proportions.

    Parameters
    ----------
    q : Tensor of shape (n, C)
        Rows sum to 1.
    labels : int64 Tensor of shape (n,)
        The given labels.
    number : float
        In 0..1.
    """
    column = labels[:, None]
    right = q.gather(1, column).double()
    others = q.clone().scatter_(1, column, 0.0)
    wrong = others.sum(1, keepdim=True, dtype=torch.float64)
    left = wrong**number / (wrong**number + right**number).clamp_min(1e-300)
    return others.mul_((left / wrong.clamp_min(1e-300)).float()).scatter_(1, column, (1 - left).float())
