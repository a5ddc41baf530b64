"""Losses of logits and labels: the double softmax, and those it is compared with.

A loss is one plain function `(logits, labels, **hyper-parameters) -> per-sample loss` and a row of the table at the
end, which says all that is known of it and, with `method`, makes it a method, too. It may rely on float32 or float64
logits of shape (N, C) and int64 labels of shape (N,): `Loss` checks the input at the door, raises half precision to
float32 and reduces.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from numbers import Real
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dspt.internal.checks import out_of_range
from dspt.internal.errors import InputError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda losses: losses,
    "mean": torch.mean,
    "sum": torch.sum,
}


class Range(NamedTuple):
    """What a hyper-parameter may be: in words, and as an interval with or without its ends."""

    words: str
    low: float = -math.inf
    high: float = math.inf
    with_low: bool = True
    with_high: bool = True

    def holds(self, value: float) -> bool:
        """Return whether a value is in the interval."""
        above = value >= self.low if self.with_low else value > self.low
        return above and (value <= self.high if self.with_high else value < self.high)


ANY = Range("a finite number")
TRUTH = Range("True or False")
ABOVE_0 = Range("a number above 0", 0, with_low=False)
FROM_0 = Range("a number of 0 or more", 0)
WITHIN_0_1 = Range("between 0 and 1", 0, 1)
ABOVE_0_TO_1 = Range("above 0 and at most 1", 0, 1, with_low=False)
FROM_0_BELOW_1 = Range("at least 0 and below 1", 0, 1, with_high=False)


@dataclass(frozen=True)
class Loss:
    """A loss by name.

    Attributes
    ----------
    rule
        The function itself; its further arguments are the hyper-parameters, with their defaults.
    formula, source
        What `dspt methods` shows.
    ranges
        What each hyper-parameter may be.
    method
        The name under which it is a method of its own; "" if it is none.
    """

    name: str
    rule: Callable[..., Tensor]
    formula: str = ""
    source: str = ""
    ranges: Mapping[str, Range] = field(default_factory=dict, hash=False)
    method: str = ""

    @cached_property
    def defaults(self) -> dict[str, float]:
        """The default of each hyper-parameter: of those arguments whose default is a number or a truth value."""
        try:
            given = list(inspect.signature(self.rule).parameters.values())
        except (TypeError, ValueError):
            raise InputError(f"loss {self.name}: its arguments cannot be told; write it as a function") from None
        open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [argument for argument in given if argument.kind not in open_ended]
        needed = [argument.name for argument in named[2:] if argument.default is argument.empty]
        if len(named) < 2 or needed:
            wrong = f"{needed[0]} has no default" if needed else f"it takes {len(named)} of them"
            raise InputError(f"loss {self.name}: expected the arguments logits, labels and defaults, but {wrong}")
        return {argument.name: argument.default for argument in named[2:] if isinstance(argument.default, int | float)}

    @property
    def what(self) -> str:
        """The rule in one sentence."""
        return (inspect.getdoc(self.rule) or "A loss.").splitlines()[0]

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        reduction: str = "mean",
        *,
        validate: bool = True,
        **hyper: float,
    ) -> Tensor:
        """Return the loss of `logits` under `labels`.

        Parameters
        ----------
        logits : Tensor of shape (N, C), float16, bfloat16, float32 or float64
            Scores before any softmax, scaled as the model scales them (CLIP: 100 times the cosine).
        labels : Tensor of shape (N,), any integer dtype
            Classes in 0..C-1.
        reduction : {"mean", "sum", "none"}
            Whether to return the mean of the N losses, their sum, or each of them.
        validate : bool
            Whether to look for labels out of range and for logits that are not finite. Both cost
            a pass over the data, so a loop that has checked its labels may go without.
        **hyper : float
            Hyper-parameters of this loss; `defaults` lists them.

        Returns
        -------
        Tensor
            A scalar, or shape (N,) for "none"; float64 for float64 logits, float32 for all others.
        """
        self.check(**hyper)
        logits, labels = _checked(logits, labels, reduction)
        if validate:
            check_values(logits, labels)
        losses = self.rule(logits, labels, **hyper)
        shape = getattr(losses, "shape", None)
        if shape != labels.shape:
            found = type(losses).__name__ if shape is None else f"shape {tuple(shape)}"
            expected = f"one value a sample, shape {tuple(labels.shape)}"
            raise InputError(f"loss {self.name}: expected {expected}, found {found}")
        return _REDUCTIONS[reduction](losses)

    def check(self, **hyper: float) -> None:
        """Raise `InputError` for a hyper-parameter it does not take or outside its range."""
        for key, value in hyper.items():
            if key not in self.defaults:
                takes = ", ".join(self.defaults) or "none"
                raise InputError(f"loss {self.name}: no hyper-parameter {key!r}; it takes {takes}")
            allowed = self.ranges.get(key, ANY)
            right_type = isinstance(value, bool) == isinstance(self.defaults[key], bool)
            finite = isinstance(value, Real) and math.isfinite(value)
            if not (right_type and finite and allowed.holds(value)):
                raise InputError(f"loss {self.name}: {key} must be {allowed.words}, not {value!r}")


def get(name: str) -> Loss:
    """Return the loss called `name`.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    Loss
        To be called as `get("gce")(logits, labels, reduction="mean", q=0.7)`.
    """
    if name not in LOSSES:
        near = get_close_matches(str(name).lower().replace("_", "-"), LOSSES, n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise InputError(f"loss: no {name!r}{hint}; the losses are {', '.join(LOSSES)}")
    return LOSSES[name]


def names() -> tuple[str, ...]:
    """Return the names `get` knows."""
    return tuple(LOSSES)


def double_softmax_cross_entropy(
    logits: Tensor, labels: Tensor, reduction: str = "mean", *, validate: bool = True
) -> Tensor:
    """Return the DSPT loss, `-log softmax(softmax(logits))[label]`.

    Parameters
    ----------
    logits : Tensor of shape (N, C), float16, bfloat16, float32 or float64
        Scores before any softmax. The loss is inert on bare cosines: scale them as CLIP does.
    labels : Tensor of shape (N,), any integer dtype
        Classes in 0..C-1.
    reduction : {"mean", "sum", "none"}
        Whether to return the mean of the N losses, their sum, or each of them.
    validate : bool
        Whether to look for labels out of range and for logits that are not finite.

    Returns
    -------
    Tensor
        A scalar, or shape (N,) for "none"; float64 for float64 logits, float32 for all others.
    """
    return LOSSES["dspt"](logits, labels, reduction, validate=validate)


def soft_cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of `logits` (N, C) under target distributions of the same shape.

    Parameters
    ----------
    logits : Tensor of shape (N, C), float16, bfloat16, float32 or float64
        Scores before any softmax.
    targets : Tensor of shape (N, C)
        The target distribution of each row; not checked to sum to 1.
    reduction : {"mean", "sum", "none"}
        Whether to return the mean of the N losses, their sum, or each of them.

    Returns
    -------
    Tensor
        A scalar, or shape (N,) for "none"; float64 for float64 logits, float32 for all others.
    """
    if targets.shape != logits.shape:
        found = f"{tuple(targets.shape)} for logits {tuple(logits.shape)}"
        raise InputError(f"targets: expected one distribution a row of logits, found {found}")
    logits, _ = _checked(logits, targets.new_empty(len(logits), dtype=torch.long), reduction)
    log_p = logits.log_softmax(1)
    return _REDUCTIONS[reduction](-(targets.to(log_p.dtype) * log_p).sum(1))


def _checked(logits: Tensor, labels: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Return logits in at least float32 and labels in int64, once types and shapes are right."""
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise InputError(f"{name}: expected a torch tensor, found {type(value).__name__}")
    if logits.dtype not in _FLOATS:
        raise InputError(f"logits: expected floating point, found {logits.dtype}; use .float()")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise InputError(f"labels: expected integers, found {labels.dtype}; use .long()")
    if logits.ndim != 2 or logits.shape[1] < 2:
        shape = tuple(logits.shape)
        raise InputError(f"logits: expected shape (N, C) with 2 or more classes, found {shape}")
    if labels.shape != logits.shape[:1]:
        expected, found = tuple(logits.shape[:1]), tuple(labels.shape)
        raise InputError(f"labels: expected shape {expected}, one a row of logits, found {found}")
    if labels.device != logits.device:
        raise InputError(f"labels: expected on {logits.device} with logits, not {labels.device}")
    if reduction not in _REDUCTIONS:
        raise InputError(f"reduction: expected {', '.join(_REDUCTIONS)}, found {reduction!r}")
    if reduction == "mean" and len(logits) == 0:
        raise InputError("logits: 0 rows have no mean loss; skip empty batches or use 'sum'")
    return (logits if logits.dtype == torch.float64 else logits.float()), labels.long()


def check_values(logits: Tensor, labels: Tensor) -> None:
    """Raise `InputError` for the first label out of range or the first logit that is not finite."""
    if len(labels) == 0:
        return
    classes = logits.shape[1]
    low, high = labels.aminmax()
    if low < 0 or high >= classes:
        row = int(((labels < 0) | (labels >= classes)).nonzero()[0])
        raise out_of_range(int(labels[row]), classes, f"row {row}")
    # A sum needs no memory and is finite only if all its terms are; it may overflow, so look again.
    if not logits.detach().sum().isfinite() and not logits.isfinite().all():
        row, column = (~logits.isfinite()).nonzero()[0].tolist()
        found = f"{logits[row, column].item()} at row {row}, class {column}"
        raise InputError(f"logits: expected finite numbers, found {found}; lower the learning rate")


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's value at its label."""
    return values.gather(1, labels[:, None]).squeeze(1)


def _ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy on every sample with its given label."""
    return F.cross_entropy(logits, labels, reduction="none")


def _smoothing(logits: Tensor, labels: Tensor, eps: float = 0.2) -> Tensor:
    """Cross-entropy with smoothed labels."""
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=eps)


def _mae(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean absolute error on every sample with its given label."""
    return 1 - _of_label(logits.softmax(1), labels)


def _gce(logits: Tensor, labels: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy on every sample with its given label."""
    # p**q has an infinite slope at p = 0, exp(q log p) has none; expm1 keeps small q exact.
    return -torch.expm1(q * _of_label(logits.log_softmax(1), labels)) / q


def _nce(logits: Tensor, labels: Tensor, scale: float = 1.0) -> Tensor:
    """Normalised cross-entropy on every sample with its given label."""
    log_p = logits.log_softmax(1)
    return scale * _of_label(log_p, labels) / log_p.sum(1)


def _rce(logits: Tensor, labels: Tensor) -> Tensor:
    """Reverse cross-entropy: the prediction is the truth, and the label predicts it."""
    # -sum_k p_k log(one-hot_k): log 1 = 0 at the label, log 0 taken as log 1e-4 everywhere else.
    return -math.log(1e-4) * _mae(logits, labels)


def _sce(logits: Tensor, labels: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """Symmetric cross-entropy on every sample with its given label."""
    return alpha * _ce(logits, labels) + beta * _rce(logits, labels)


def _nce_rce(logits: Tensor, labels: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """Normalised plus reverse cross-entropy on every sample with its given label."""
    return alpha * _nce(logits, labels) + beta * _rce(logits, labels)


def _nce_mae(logits: Tensor, labels: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """Normalised cross-entropy plus mean absolute error."""
    return alpha * _nce(logits, labels) + beta * _mae(logits, labels)


def _bootstrap(logits: Tensor, labels: Tensor, b: float = 0.95) -> Tensor:
    """Soft bootstrapping: the rest of the target is the prediction."""
    log_p = logits.log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    return -b * _of_label(log_p, labels) + (1 - b) * entropy


def _bootstrap_hard(logits: Tensor, labels: Tensor, b: float = 0.8) -> Tensor:
    """Hard bootstrapping: the rest of the target is the predicted class."""
    return b * _ce(logits, labels) + (1 - b) * _ce(logits, logits.argmax(1))


def _logitnorm(logits: Tensor, labels: Tensor, t: float = 1.0) -> Tensor:
    """Cross-entropy of logits of one length."""
    norm = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
    return _ce(logits / (norm + 1e-7) / t, labels)


def _logitclip(logits: Tensor, labels: Tensor, tau: float = 0.1, reciprocal: bool = True) -> Tensor:
    """Cross-entropy of logits no longer than 1/tau, as in its public code; reciprocal=false: no longer than tau."""
    longest = 1 / tau if reciprocal else tau
    norm = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
    return _ce(logits * (longest / norm.clamp(min=longest)), labels)


def _square(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the squares of normalised logits."""
    # The squares of a unit vector sum to 1: a softmax's place is taken, and CE follows as in DSPT.
    return _ce(F.normalize(logits, dim=1).square(), labels)


def _dspt(logits: Tensor, labels: Tensor) -> Tensor:
    """Double-softmax cross-entropy, as the paper has it."""
    p = logits.softmax(1)
    return p.logsumexp(1) - _of_label(p, labels)


def _dspt_scale(logits: Tensor, labels: Tensor, s: float = 1.0) -> Tensor:
    """Double-softmax cross-entropy; s scales the outer softmax: 1 is the paper's, towards 0 it is MAE."""
    # The value grows as log(C)/s while s falls; the gradient tends to that of MAE.
    p = s * logits.softmax(1)
    return (p.logsumexp(1) - _of_label(p, labels)) / s


_TABLE = (
    Loss("ce", _ce, "-log p_y", "Zhou et al., IJCV 2022", method="coop"),
    Loss(
        "smoothing",
        _smoothing,
        "-(1 - eps) log p_y - eps/C sum_k log p_k",
        "Szegedy et al., CVPR 2016",
        {"eps": FROM_0_BELOW_1},
        method="smoothing",
    ),
    Loss("mae", _mae, "1 - p_y", "Ghosh et al., AAAI 2017", method="mae"),
    Loss(
        "gce",
        _gce,
        "(1 - p_y^q) / q",
        "Zhang and Sabuncu, NeurIPS 2018",
        {"q": ABOVE_0_TO_1},
        method="gce",
    ),
    Loss(
        "nce",
        _nce,
        "scale * log p_y / sum_k log p_k",
        "Ma et al., ICML 2020",
        {"scale": ABOVE_0},
        method="nce",
    ),
    Loss("rce", _rce, "-log(1e-4) (1 - p_y)", "Wang et al., ICCV 2019"),
    Loss(
        "sce",
        _sce,
        "alpha CE + beta RCE",
        "Wang et al., ICCV 2019",
        {"alpha": FROM_0, "beta": FROM_0},
        method="sce",
    ),
    Loss(
        "nce-rce",
        _nce_rce,
        "alpha NCE + beta RCE",
        "Ma et al., ICML 2020",
        {"alpha": FROM_0, "beta": FROM_0},
        method="nce-rce",
    ),
    Loss(
        "nce-mae",
        _nce_mae,
        "alpha NCE + beta MAE",
        "Ma et al., ICML 2020",
        {"alpha": FROM_0, "beta": FROM_0},
    ),
    Loss(
        "bootstrap",
        _bootstrap,
        "b CE - (1 - b) sum_k p_k log p_k",
        "Reed et al., ICLR 2015 workshop",
        {"b": WITHIN_0_1},
        method="bootstrap",
    ),
    Loss(
        "bootstrap-hard",
        _bootstrap_hard,
        "b CE - (1 - b) log p_argmax",
        "Reed et al., ICLR 2015 workshop",
        {"b": WITHIN_0_1},
        method="bootstrap-hard",
    ),
    Loss(
        "logitnorm",
        _logitnorm,
        "CE(z / |z| / t)",
        "Wei et al., ICML 2022",
        {"t": ABOVE_0},
        method="logitnorm",
    ),
    Loss(
        "logitclip",
        _logitclip,
        "CE(z min(1, 1 / (tau |z|)))",
        "Wei et al., ICML 2023",
        {"tau": ABOVE_0, "reciprocal": TRUTH},
        method="logitclip",
    ),
    Loss("square", _square, "CE(u * u), u = z / |z|", "the DSPT paper, ICML 2026", method="square"),
    Loss("dspt", _dspt, "logsumexp(p) - p_y", "the DSPT paper, ICML 2026"),
    Loss(
        "dspt-scale",
        _dspt_scale,
        "(logsumexp(s p) - s p_y) / s",
        "the DSPT paper, ICML 2026",
        {"s": ABOVE_0},
        method="dspt",
    ),
)

LOSSES = {loss.name: loss for loss in _TABLE}
