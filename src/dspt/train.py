"""The training loop: the same for every method, read from top to bottom.

Both towers are frozen, so training sees features only: those of the images, encoded once, and what a learner makes of
the class names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspt import methods
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.device import sent
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.learners import Classify, Learner, Parameters, by_prototypes
from dspt.methods.method import Epoch, Mix
from dspt.sgd import SGD

# The paper reports the test accuracy averaged over this many last epochs.
LAST_EPOCHS = 5

# Bytes of features that are kept on a GPU as a whole.
_RESIDENT = 4 * 1024**3

# Images judged at once in an evaluation: bounds its memory whatever their number.
_ROWS = 1024

# Bins of the gradient's distribution. Under cross-entropy a sample's total is below 2, under the double softmax less.
_GRADIENT_BINS = np.linspace(0, 2, 41)


@dataclass(frozen=True)
class Problem:
    """What there is to learn from: image features with given labels, and the names of the classes."""

    class_names: tuple[str, ...]
    train_x: np.ndarray  # (N, D) features, or (N, V, D) of V augmented views; L2-normalised
    labels: np.ndarray  # (N,) given labels, some of them wrong
    true_labels: np.ndarray | None = (
        None  # (N,) if known: used for the record alone, never to learn
    )
    test_x: np.ndarray | None = None
    test_y: np.ndarray | None = None


@dataclass(frozen=True)
class State:
    """Everything the next epoch depends on. No generator is in it: randomness is addressed by epoch."""

    epochs_done: int
    learnt: Parameters
    momentum: Parameters = field(default_factory=dict)  # of the optimizer, for each of them
    memory: dict[str, Tensor] = field(default_factory=dict)  # of the method


def learning_rate(epoch: int, config: Config) -> float:
    """Return the rate of an epoch: a constant first one, then half a cosine from `lr` towards zero."""
    if epoch == 0:
        return config.warmup_lr
    return 0.5 * config.lr * (1 + math.cos(math.pi * (epoch - 1) / config.epochs))


def batches(n: int, size: int, stream: Stream) -> Iterator[np.ndarray]:
    """Give shuffled batches of 0..n-1, leaving out the last short one; fewer than one batch is one batch."""
    order = stream.permutation(n)
    size = min(size, n)
    for start in range(0, n - size + 1, size) if n else ():
        yield order[start : start + size]


def start(learner: Learner) -> State:
    """Return the state before the first epoch."""
    return State(0, learner.start())


def fit(
    problem: Problem,
    config: Config,
    learner: Learner,
    state: State,
    on_step: Callable[[int, int, Tensor], None] = lambda done, total, losses: None,
) -> Iterator[tuple[State, dict[str, Any]]]:
    """Give, after each epoch, the state to go on from and the record of the epoch.

    `on_step` hears after each step how many of the epoch's steps are done, out of how many, and the
    batch's losses, left on the device so that nobody waits for them who does not ask.
    """
    device = learner.tower.device
    check(problem, learner.tower)
    method = methods.make(config.method, **config.method_options())
    labels = torch.from_numpy(problem.labels).to(device)
    train_x = _placed(problem.train_x, device)
    learnt = {
        name: value.to(device, copy=True).requires_grad_() for name, value in state.learnt.items()
    }
    memory = dict(state.memory)
    optimizer = SGD(learnt, config.momentum, config.weight_decay, state.momentum)

    for epoch in range(state.epochs_done, config.epochs):
        rate = learning_rate(epoch, config)
        images = _one_view(train_x, Stream(config.seed, "view", epoch), device)

        def logits_now(images: Images = images) -> Tensor:
            return logits_of(images, learner.classify(learnt), len(labels))

        def logits_zero_shot(images: Images = images) -> Tensor:
            fixed = by_prototypes(learner.zero_shot(), learner.scale)
            return logits_of(images, fixed, len(labels))

        plan = Epoch(
            number=epoch,
            labels=labels,
            logits=logits_now,
            zero_shot_logits=logits_zero_shot,
            stream=partial(Stream, config.seed, config.method, epoch),
            memory=memory,
        )
        phases = method.plan(plan)
        steps = sum(max(1, len(p.samples) // config.batch_size) for p in phases if len(p.samples))
        seen, losses, gradients, done = [], [], [], 0
        for number, phase in enumerate(phases):
            shuffle = Stream(config.seed, "shuffle", epoch, number)
            for rows in batches(len(phase.samples), config.batch_size, shuffle):
                samples = phase.samples[rows]
                features = images(samples)
                if phase.mix is not None:
                    features = _blend(features, images, phase.mix, rows)
                logits = learner.logits(features, learnt)
                logits.retain_grad()
                loss = phase.loss(logits, phase.targets[sent(rows, device)])
                loss.mean().backward()
                optimizer.step(rate)
                done += 1
                seen.append(samples)
                losses.append(loss.detach())
                gradients.append(len(rows) * logits.grad.abs().sum(1))  # type: ignore[union-attr]
                on_step(done, steps, losses[-1])

        if not all(value.isfinite().all() for value in learnt.values()):
            raise InputError(
                f"lr = {config.lr}: training diverged in epoch {epoch + 1}; give a lower learning rate"
            )
        state = State(
            epochs_done=epoch + 1,
            learnt={name: value.detach().clone() for name, value in learnt.items()},
            momentum={name: value.clone() for name, value in optimizer.velocity.items()},
            memory=dict(memory),
        )
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": rate, "steps": done}
        record |= means(problem, seen, losses, gradients)
        # what a method found out about the labels, such as how many are wrong
        record |= {name: float(value) for name, value in memory.items() if value.ndim == 0}
        if epoch == 0 and seen:
            record |= _histogram(problem, seen, gradients)
        if problem.test_x is not None and problem.test_y is not None:
            record["accuracy"] = accuracy(problem.test_x, problem.test_y, learner.classify(learnt))
        yield state, record


def check(problem: Problem, tower: TextTower) -> None:
    """Raise `InputError` where features, labels and names do not fit each other."""
    classes, n = len(problem.class_names), len(problem.labels)
    if n == 0:
        raise InputError("training set: it has no samples; at least one is needed")
    if classes < 2:
        raise InputError(f"class names: {classes} given; a classifier needs at least 2 classes")
    if len(problem.train_x) != n:
        raise InputError(
            f"labels: {n} of them for {len(problem.train_x)} samples; they must be as many"
        )
    for name, features in (("train", problem.train_x), ("test", problem.test_x)):
        if features is not None and features.shape[-1] != tower.feature_dim:
            raise InputError(
                f"{name} features: {features.shape[-1]} wide, but {tower.checkpoint.name} gives class "
                f"features of width {tower.feature_dim}; use the checkpoint they were made with"
            )
    for name, labels in (("labels", problem.labels), ("test labels", problem.test_y)):
        if (
            labels is not None
            and len(labels)
            and not (labels.min() >= 0 and labels.max() < classes)
        ):
            row = int(np.argmax((labels < 0) | (labels >= classes)))
            raise InputError(
                f"{name}: expected 0..{classes - 1} for {classes} classes, found {labels[row]} at row {row}"
            )


def predict(features: np.ndarray, classify: Classify) -> np.ndarray:
    """Return the class with the highest logit for each row of image features."""
    parts = [part.argmax(1).cpu() for part in _logits(features, classify)]
    return torch.cat(parts).numpy() if parts else np.empty(0, dtype=np.int64)


def probabilities(features: np.ndarray, classify: Classify) -> np.ndarray:
    """Return the softmax of the logits for each row of image features."""
    return torch.cat([part.softmax(1).cpu() for part in _logits(features, classify)]).numpy()


def accuracy(features: np.ndarray, labels: np.ndarray, classify: Classify) -> float:
    """Return the share of right predictions in percent."""
    return 100.0 * float((predict(features, classify) == labels).mean())


def final_accuracy(records: list[dict[str, Any]]) -> float | None:
    """Return the paper's figure: test accuracy averaged over the last five epochs."""
    found = [record["accuracy"] for record in records[-LAST_EPOCHS:] if "accuracy" in record]
    return sum(found) / len(found) if found else None


Images = Callable[[np.ndarray], Tensor]


def logits_of(images: Images, classify: Classify, n: int) -> Tensor:
    """Return the logits (n, C) of all samples."""
    parts = [
        classify(images(np.arange(first, min(first + _ROWS, n)))) for first in range(0, n, _ROWS)
    ]
    return torch.cat(parts)


def _placed(train_x: np.ndarray, device: torch.device) -> np.ndarray | Tensor:
    """The features where steps read them: on a GPU as a whole if they are small enough, else where they are."""
    if device.type == "cpu" or train_x.nbytes > _RESIDENT:
        return train_x
    # a copy, because a memory-mapped row must not be handed to torch as if it could be written
    return sent(np.array(train_x), device)


def _one_view(train_x: np.ndarray | Tensor, stream: Stream, device: torch.device) -> Images:
    """A function from rows to their features this epoch, one view of each drawn at random."""
    chosen = stream.integers(len(train_x), train_x.shape[1]) if train_x.ndim == 3 else None

    def images(rows: np.ndarray) -> Tensor:
        if isinstance(train_x, Tensor):
            where = (rows,) if chosen is None else (rows, chosen[rows])
            return train_x[tuple(sent(index, device) for index in where)]
        return sent(train_x[rows] if chosen is None else train_x[rows, chosen[rows]], device)

    return images


def _blend(features: Tensor, images: Images, mix: Mix, rows: np.ndarray) -> Tensor:
    """Features blended with those of their partners, brought back to length 1."""
    weights = mix.weights[sent(rows, mix.weights.device)].to(features)[:, None]
    partners = images(mix.partners[rows])
    return torch.nn.functional.normalize(weights * features + (1 - weights) * partners, dim=1)


def _logits(features: np.ndarray, classify: Classify) -> Iterator[Tensor]:
    for first in range(0, len(features), _ROWS):
        # a copy: see _placed
        yield classify(torch.from_numpy(np.array(features[first : first + _ROWS], np.float32)))


def means(
    problem: Problem, seen: list[np.ndarray], losses: list[Tensor], gradients: list[Tensor]
) -> dict[str, float | None]:
    """Return the epoch's mean loss; where the truth is known, loss and gradient of right and wrong labels apart.

    A sample's gradient is the sum of |dL/dz| over the classes, as in the paper's figures.
    """
    if not seen:
        return {"loss": None}
    loss = torch.cat(losses).double().cpu().numpy()
    record: dict[str, float | None] = {"loss": float(loss.mean())}
    if problem.true_labels is not None:
        right = _right(problem, seen)
        gradient = torch.cat(gradients).double().cpu().numpy()
        for name, mask in (("right", right), ("wrong", ~right)):
            for what, values in (("loss", loss), ("gradient", gradient)):
                record[f"{what}_{name}"] = float(values[mask].mean()) if mask.any() else None
    return record


def _histogram(
    problem: Problem, seen: list[np.ndarray], gradients: list[Tensor]
) -> dict[str, dict[str, list[float]]]:
    """How the samples' gradients are distributed, right and wrong labels apart; the last bin is open."""
    if problem.true_labels is None:
        return {}
    right = _right(problem, seen)
    values = torch.cat(gradients).cpu().numpy().clip(max=_GRADIENT_BINS[-1])
    counts = {
        name: np.histogram(values[mask], _GRADIENT_BINS)[0].tolist()
        for name, mask in (("right", right), ("wrong", ~right))
    }
    return {"gradient_histogram": {"edges": _GRADIENT_BINS.round(6).tolist(), **counts}}


def _right(problem: Problem, seen: list[np.ndarray]) -> np.ndarray:
    """Which of the samples seen have a right label."""
    assert problem.true_labels is not None
    samples = np.concatenate(seen)
    return problem.labels[samples] == problem.true_labels[samples]
