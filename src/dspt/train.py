"""The training loop: the same for every method, read from top to bottom.

Both towers are frozen, so training sees features only: those of the images, encoded once, and those of the class names,
computed by the text tower from the context, which is all that is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspt import methods
from dspt.backbone.prompt import initial_context, layout_context, layout_template
from dspt.backbone.text import Prompts, TextTower
from dspt.config import Config
from dspt.errors import InputError
from dspt.methods.method import Epoch, Mix
from dspt.seeds import Stream

# The paper reports the test accuracy averaged over this many last epochs.
LAST_EPOCHS = 5

# Logits computed at once in an evaluation: bounds its memory whatever the number of classes.
_LOGITS = 2**24


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
    context: Tensor
    momentum: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)


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


def compile_prompts(class_names: Sequence[str], config: Config, tower: TextTower) -> Prompts:
    """Return the function from a context to class prototypes for these classes."""
    layout = layout_context(
        tower.checkpoint, class_names, config.context_length, config.position, config.class_specific
    )
    return tower.compile(layout)


def start(prompts: Prompts, config: Config) -> State:
    """Return the state before the first epoch."""
    tower = prompts.tower
    context = initial_context(
        tower.checkpoint, tower.embeddings, prompts.layout, config.seed, config.context_words
    )
    return State(0, context.to(tower.device))


def fit(
    problem: Problem,
    config: Config,
    prompts: Prompts,
    state: State,
    on_step: Callable[[int, int, Tensor], None] = lambda done, total, losses: None,
) -> Iterator[tuple[State, dict[str, Any]]]:
    """Give, after each epoch, the state to go on from and the record of the epoch.

    `on_step` hears after each step how many of the epoch's steps are done, out of how many, and the
    batch's losses, left on the device so that nobody waits for them who does not ask.
    """
    tower = prompts.tower
    check(problem, tower)
    method = methods.make(config.method, **config.method_options())
    scale = tower.checkpoint.logit_scale
    labels = torch.from_numpy(problem.labels).to(tower.device)
    context = state.context.to(tower.device, copy=True).requires_grad_()
    memory = dict(state.memory)
    optimizer = torch.optim.SGD(
        [context], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    if state.momentum is not None:
        optimizer.state[context]["momentum_buffer"] = state.momentum.to(tower.device, copy=True)

    for epoch in range(state.epochs_done, config.epochs):
        rate = optimizer.param_groups[0]["lr"] = learning_rate(epoch, config)
        images = _one_view(problem.train_x, Stream(config.seed, "view", epoch))

        def logits_now(images: Images = images) -> Tensor:
            return logits_of(images, class_features(prompts, context), scale, len(labels))

        def logits_zero_shot(images: Images = images) -> Tensor:
            fixed = zero_shot_prototypes(tower, problem.class_names, config.template)
            return logits_of(images, fixed, scale, len(labels))

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
        seen, losses, done = [], [], 0
        for number, phase in enumerate(phases):
            shuffle = Stream(config.seed, "shuffle", epoch, number)
            for rows in batches(len(phase.samples), config.batch_size, shuffle):
                samples = phase.samples[rows]
                features = images(samples).to(tower.device)
                if phase.mix is not None:
                    features = _blend(features, images, phase.mix, rows)
                logits = scale * features @ prompts(context).T
                loss = phase.loss(logits, phase.targets[torch.from_numpy(rows)])
                optimizer.zero_grad()
                loss.mean().backward()
                optimizer.step()
                done += 1
                seen.append(samples)
                losses.append(loss.detach())
                on_step(done, steps, losses[-1])

        if not torch.isfinite(context).all():
            raise InputError(
                f"lr = {config.lr}: training diverged in epoch {epoch + 1}; give a lower learning rate"
            )
        state = State(
            epochs_done=epoch + 1,
            context=context.detach().clone(),
            momentum=_momentum(optimizer, context),
            memory=dict(memory),
        )
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": rate, "steps": done}
        record |= _mean_losses(problem, seen, losses)
        if problem.test_x is not None and problem.test_y is not None:
            features = class_features(prompts, context)
            record["accuracy"] = accuracy(problem.test_x, problem.test_y, features)
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


def class_features(prompts: Callable[..., Tensor], context: Tensor | None) -> Tensor:
    """Return the class prototypes (C, D), without a gradient."""
    with torch.no_grad():
        return prompts(context)


def zero_shot_prototypes(tower: TextTower, class_names: Sequence[str], template: str) -> Tensor:
    """Return the class prototypes (C, D) of a fixed prompt."""
    prompts = tower.compile(layout_template(tower.checkpoint, class_names, template))
    return class_features(prompts, None)


def predict(features: np.ndarray, prototypes: Tensor) -> np.ndarray:
    """Return the class with the highest logit for each row of image features."""
    parts = [part.argmax(1).cpu() for part in _similarities(features, prototypes)]
    return torch.cat(parts).numpy() if parts else np.empty(0, dtype=np.int64)


def probabilities(features: np.ndarray, prototypes: Tensor, scale: float) -> np.ndarray:
    """Return softmax(scale * cosine) for each row of image features."""
    parts = [(scale * part).softmax(1).cpu() for part in _similarities(features, prototypes)]
    return torch.cat(parts).numpy() if parts else np.empty((0, len(prototypes)), dtype=np.float32)


def accuracy(features: np.ndarray, labels: np.ndarray, prototypes: Tensor) -> float:
    """Return the share of right predictions in percent."""
    return 100.0 * float((predict(features, prototypes) == labels).mean())


def final_accuracy(records: list[dict[str, Any]]) -> float | None:
    """Return the paper's figure: test accuracy averaged over the last five epochs."""
    found = [record["accuracy"] for record in records[-LAST_EPOCHS:] if "accuracy" in record]
    return sum(found) / len(found) if found else None


Images = Callable[[np.ndarray], Tensor]


def logits_of(images: Images, prototypes: Tensor, scale: float, n: int) -> Tensor:
    """Return the logits (n, C) of all samples."""
    rows = max(1, _LOGITS // len(prototypes))
    parts = [
        scale * images(np.arange(first, min(first + rows, n))).to(prototypes.device) @ prototypes.T
        for first in range(0, n, rows)
    ]
    return torch.cat(parts)


def _one_view(train_x: np.ndarray, stream: Stream) -> Images:
    """A function from rows to their features this epoch, one view of each drawn at random."""
    if train_x.ndim == 2:
        return lambda rows: torch.from_numpy(train_x[rows])
    chosen = stream.integers(len(train_x), train_x.shape[1])
    return lambda rows: torch.from_numpy(train_x[rows, chosen[rows]])


def _blend(features: Tensor, images: Images, mix: Mix, rows: np.ndarray) -> Tensor:
    """Features blended with those of their partners, brought back to length 1."""
    weights = mix.weights[torch.from_numpy(rows)].to(features)[:, None]
    partners = images(mix.partners[rows]).to(features)
    return torch.nn.functional.normalize(weights * features + (1 - weights) * partners, dim=1)


def _similarities(features: np.ndarray, prototypes: Tensor) -> Iterator[Tensor]:
    rows = max(1, _LOGITS // len(prototypes))
    for first in range(0, len(features), rows):
        # a copy, because a memory-mapped row must not be handed to torch as if it could be written
        part = torch.from_numpy(np.array(features[first : first + rows], dtype=np.float32))
        yield part.to(prototypes.device) @ prototypes.T


def _momentum(optimizer: torch.optim.Optimizer, context: Tensor) -> Tensor | None:
    buffer = optimizer.state[context].get("momentum_buffer")
    return None if buffer is None else buffer.clone()


def _mean_losses(
    problem: Problem, seen: list[np.ndarray], losses: list[Tensor]
) -> dict[str, float | None]:
    """The epoch's mean loss and, where the truth is known, that of right and of wrong labels apart."""
    if not seen:
        return {"loss": None}
    samples, values = np.concatenate(seen), torch.cat(losses).double().cpu().numpy()
    record: dict[str, float | None] = {"loss": float(values.mean())}
    if problem.true_labels is not None:
        right = problem.labels[samples] == problem.true_labels[samples]
        for name, mask in (("loss_right", right), ("loss_wrong", ~right)):
            record[name] = float(values[mask].mean()) if mask.any() else None
    return record
