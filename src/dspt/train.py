"""The training loop: the same for every method and every learner, read from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from dspt.config import Settings
from dspt.internal.device import sent
from dspt.internal.errors import InputError
from dspt.internal.names import NO_MODEL
from dspt.internal.seeds import Stream
from dspt.internal.shards import Features, take_rows
from dspt.internal.threads import threads_for
from dspt.learners import Classify, Parameters, by_prototypes, posterior_of
from dspt.learners.learner import Fetch, Inputs
from dspt.methods import Batch, Epoch, Phase, batches
from dspt.posterior import Posterior, label_posterior
from dspt.problem import Problem, Task

# The paper reports the test accuracy averaged over this many last epochs.
LAST_EPOCHS = 5

# Bins of the gradient's distribution. Under cross-entropy a sample's total is below 2, under the double softmax less.
GRADIENT_BINS = np.linspace(0, 2, 41)

# Samples, and samples times classes, that an estimate of the noise looks at: its error is not of their number then.
_ESTIMATED, _ESTIMATED_ENTRIES = 50_000, 10_000_000

# Under this name a method's memory has by what the learning rate is multiplied, if that was left open.
LR_MULTIPLE = "lr_multiple"

# Each rate is tried for an epoch; where that has fewer steps than this, for more, of the run at most this share.
_STEPS_TRIED, _SHARE_TRIED = 100, 0.05

Record = dict[str, Any]  # what is written down of an epoch

# Columns of a record that a method's findings cannot be called.
RESERVED = frozenset({"epoch", "lr", "steps", "loss", "longest_logits", "accuracy", "seconds"})


class Diverged(InputError):
    """Parameters that are no numbers any more."""


@dataclass(frozen=True)
class State:
    """Everything the next epoch depends on. No generator is in it: randomness is addressed by epoch."""

    epochs_done: int
    parameters: Parameters
    momentum: Parameters = field(default_factory=dict)  # of the optimizer, for each of them
    memory: dict[str, Tensor] = field(default_factory=dict)  # of the method


def fit(
    task: Task,
    state: State | None = None,
    on_step: Callable[[int, int, Tensor], None] = lambda done, total, losses: None,
) -> Iterator[tuple[State, Record]]:
    """Yield, after each epoch, the state to go on from and the record of the epoch.

    Parameters
    ----------
    task : Task
        What is learnt from what, by whom and how.
    state : State, optional
        Where to go on from; the beginning if not given.
    on_step : callable
        Hears after each step how many of the epoch's steps are done, out of how many, and the batch's losses, left
        on the device so that nobody waits for them who does not ask. Steps by which rates are compared are among them.
    """
    shared = _Shared(task.learner.inputs(task.problem.train_x), cache(partial(_posterior, task)))
    epochs = _epochs(task, shared, state or State(0, task.start), on_step)
    while True:
        with threads_for(task.learner.product):  # not around the yield: whoever takes the epochs has threads of its own
            done = next(epochs, None)
        if done is None:
            return
        yield done


class _Shared(NamedTuple):
    """What epochs need whatever the state: made once, also where several learning rates are tried."""

    inputs_of: Callable[[int], Inputs]  # the training set in an epoch
    posterior: Callable[[], Posterior]


def _epochs(
    task: Task, shared: _Shared, state: State, on_step: Callable[[int, int, Tensor], None]
) -> Iterator[tuple[State, Record]]:
    problem, config, learner, method = task.problem, task.config, task.learner, task.method
    device = learner.device
    labels = torch.from_numpy(problem.labels).to(device)
    weights = None if problem.weights is None else sent(problem.weights.astype(np.float32), device)
    begun = _begun(task, shared) if state.parameters is task.start else None
    parameters = learner.placed(begun or state.parameters)
    learnt = {name: value for name, value in parameters.items() if name not in learner.buffers}
    momentum: list[Tensor | None] = []
    for name, value in learnt.items():
        value.requires_grad_()
        before = state.momentum.get(name)
        momentum.append(None if before is None else torch.empty_like(value).copy_(before))
    memory = dict(state.memory)

    for epoch in range(state.epochs_done, config.epochs):
        inputs = shared.inputs_of(epoch)
        judged = partial(_judge, inputs.judge, len(labels), learner.judged_at_once)
        plan = Epoch(
            number=epoch,
            batch_size=config.batch_size,
            labels=labels,
            logits=partial(judged, partial(learner.classify, parameters)),
            zero_shot_logits=partial(judged, partial(_fixed_prompt, task)),
            posterior=shared.posterior,
            stream=partial(Stream, config.seed, method.name, epoch),
            memory=memory,
        )
        tried = 0
        if epoch == learner.warmup and LR_MULTIPLE not in memory and len(multiples := method.lr_multiples(plan)) > 1:
            memory[LR_MULTIPLE], tried = _best_multiple(task, shared, state, multiples, on_step)
        rate = learner.learning_rate(epoch) * float(memory.get(LR_MULTIPLE, 1.0))
        phases = [
            (phase, _batches(phase, config.batch_size, Stream(config.seed, "shuffle", epoch, number)))
            for number, phase in enumerate(method.plan(plan))
            if len(phase.samples) >= learner.smallest_batch
        ]
        steps = sum(len(planned) for _, planned in phases)
        seen, losses, gradients, predictions, norms, done = [], [], [], [], [], 0
        for phase, planned in phases:
            for batch in planned:
                samples, places = phase.samples[batch.places], sent(batch.places, device)
                x = inputs.learn(samples)
                logits = learner.logits(x, parameters)
                given = phase.targets
                targets = given[places] if isinstance(given, Tensor) else given(places, logits.detach())
                if batch.partners is not None and batch.share < 1:
                    partners = sent(batch.partners, device)
                    logits = learner.logits(learner.blend(x, x[partners], batch.share), parameters)
                    targets = batch.share * targets + (1 - batch.share) * targets[partners]
                logits.retain_grad()
                loss = phase.loss(logits, targets)
                if weights is not None:
                    loss = loss * weights[sent(samples, device)]
                loss.mean().backward()
                _step(learnt, momentum, rate, config.momentum, config.weight_decay)
                done += 1
                seen.append(samples)
                losses.append(loss.detach())
                norms.append(logits.detach().norm(dim=1).max())
                gradients.append(len(samples) * logits.grad.abs().sum(1))  # type: ignore[union-attr]
                predictions.append(logits.detach().argmax(1))
                on_step(tried + done, tried + steps, losses[-1])

        state = State(
            epochs_done=epoch + 1,
            parameters={name: value.detach().clone() for name, value in parameters.items()},
            momentum={name: value.clone() for name, value in zip(learnt, momentum, strict=True) if value is not None},
            memory=dict(memory),
        )
        if not all(value.isfinite().all() for value in state.parameters.values()):
            setting = f"warmup_lr = {rate}" if epoch < learner.warmup else f"lr = {config.lr}"
            if (multiple := float(memory.get(LR_MULTIPLE, 1.0))) != 1:
                setting += f", of which {method.name} takes {multiple:g} times as much"
            raise Diverged(f"{setting}: training diverged in epoch {epoch + 1}; give a lower learning rate")
        record: Record = {"epoch": epoch + 1, "lr": rate, "steps": done}
        record |= _means(problem, seen, losses, gradients, predictions)
        if norms:
            record["longest_logits"] = float(torch.stack(norms).max())
        found = findings(state)
        if taken := sorted(found.keys() & RESERVED):
            raise InputError(f"method {method.name}: {taken[0]!r} is a column of the record; call its memory otherwise")
        record |= found
        if epoch == 0 and seen:
            record |= _histogram(problem, seen, gradients)
        last = epoch + LAST_EPOCHS >= config.epochs
        if problem.tested and (last or (epoch + 1) % config.test_every == 0):
            record["accuracy"] = test_accuracy(task, learner.classify(parameters))
        yield state, record


def findings(state: State) -> dict[str, float]:
    """Return what a method found out about the labels, such as how many are wrong: the numbers of its memory."""
    return {name: float(value) for name, value in state.memory.items() if value.ndim == 0}


def predict(inputs: Features, classify: Classify, rows: int = 1024) -> np.ndarray:
    """Return the class with the highest logit for each row of inputs.

    Parameters
    ----------
    inputs : array of shape (N, ...)
        What `classify` takes.
    classify : callable
        From inputs to logits.
    rows : int
        How many rows are computed at a time.

    Returns
    -------
    int64 array of shape (N,)
    """
    parts = [part.argmax(1).cpu() for part in _logits(inputs, classify, rows)]
    return torch.cat(parts).numpy() if parts else np.empty(0, dtype=np.int64)


def logits(inputs: Features, classify: Classify, rows: int = 1024) -> np.ndarray:
    """Return the logits of each row of inputs, computed so many rows at a time.

    Parameters
    ----------
    inputs : array of shape (N, ...)
        What `classify` takes; N is 1 or more.
    classify : callable
        From inputs to logits.
    rows : int
        How many rows are computed at a time.

    Returns
    -------
    array of shape (N, C)
    """
    return torch.cat([part.cpu() for part in _logits(inputs, classify, rows)]).numpy()


def probabilities(inputs: Features, classify: Classify, rows: int = 1024) -> np.ndarray:
    """Return the softmax of the logits for each row of inputs.

    Parameters
    ----------
    inputs : array of shape (N, ...)
        What `classify` takes; N is 1 or more.
    classify : callable
        From inputs to logits.
    rows : int
        How many rows are computed at a time.

    Returns
    -------
    array of shape (N, C)
        Every row sums to 1.
    """
    return torch.cat([part.softmax(1).cpu() for part in _logits(inputs, classify, rows)]).numpy()


def accuracy(inputs: Features, labels: np.ndarray, classify: Classify, rows: int = 1024) -> float:
    """Return the share of right predictions in percent.

    Parameters
    ----------
    inputs : array of shape (N, ...)
        What `classify` takes.
    labels : integer array of shape (N,)
        The right classes.
    classify : callable
        From inputs to logits.
    rows : int
        How many rows are computed at a time.
    """
    return 100.0 * float((predict(inputs, classify, rows) == labels).mean())


def test_accuracy(task: Task, classify: Classify) -> float | None:
    """Return the share of the test set that a classifier gets right, in percent; None without a test set."""
    problem = task.problem
    if not problem.tested or problem.test_x is None or problem.test_y is None:
        return None
    return accuracy(problem.test_x, problem.test_y, classify, task.learner.judged_at_once)


def zero_shot_accuracy(task: Task) -> float | None:
    """Return the test accuracy of the fixed prompt in percent; None without a test set or without a text tower."""
    return None if task.learner.zero_shot is None else test_accuracy(task, _fixed_prompt(task))


def estimated_noise(task: Task) -> dict[str, float]:
    """Return the estimated share of wrong labels and its error, where it is not known of all and features can tell."""
    problem, learner = task.problem, task.learner
    if problem.labels_known == len(problem.labels) or not learner.has_clip:
        return {}
    # Evenly spread ones of a very large set are enough, and their error says so.
    most = min(_ESTIMATED, len(problem.labels), max(1, _ESTIMATED_ENTRIES // len(problem.class_names)))
    rows = np.linspace(0, len(problem.labels) - 1, most).astype(np.int64)
    return posterior_of(take_rows(problem.train_x, rows), problem.labels[rows], learner).findings()


def noise_findings(features: Features, labels: np.ndarray, classify: Classify) -> dict[str, float]:
    """Return the estimated share of wrong labels and its error.

    Parameters
    ----------
    features : array of shape (N, D)
        Image features.
    labels : integer array of shape (N,)
        The labels in question.
    classify : callable
        From features to logits that no label has touched.
    """
    return label_posterior(features, labels, logits(features, classify)).findings()


def final_accuracies(records: list[Record], warmup: int) -> list[float]:
    """Return the test accuracies of the last five epochs, whose mean is the paper's figure.

    Of fewer epochs than that, those of the warm-up do not count, unless there are no others.

    Parameters
    ----------
    records : list of dict
        One for each epoch.
    warmup : int
        Epochs of warm-up, at whose rate next to nothing is learnt.
    """
    return [record["accuracy"] for record in (records[warmup:] or records)[-LAST_EPOCHS:] if "accuracy" in record]


def epochs_tried(samples: int, config: Settings) -> int:
    """Return for how many epochs each learning rate is tried, of a method that leaves it open."""
    steps = max(1, samples // config.batch_size)
    return max(1, min(-(-_STEPS_TRIED // steps), int(_SHARE_TRIED * config.epochs)))


def _begun(task: Task, shared: _Shared) -> Parameters | None:
    """Return where the posterior would have training begin, if the method reads it and the learner is better off."""
    if not task.method.starts_by_posterior:
        return None
    return task.learner.start_by(shared.posterior(), task.problem.samples)


def _best_multiple(
    task: Task,
    shared: _Shared,
    state: State,
    multiples: Sequence[float],
    on_step: Callable[[int, int, Tensor], None],
) -> tuple[Tensor, int]:
    """Return the multiple of the learning rate under which the next samples are told best, and the steps it took.

    Each is tried from the same state on the same batches. A sample's loss is taken before the step that learns it, so
    in the first epoch after the warm-up it is that of a sample held out; where that is too short to tell, those that
    follow count as well. Of equals the first is taken.
    """
    epochs = epochs_tried(len(task.problem.labels), task.config)
    untested = replace(task, problem=replace(task.problem, test_x=None, test_y=None))
    losses, tried = [], 0
    for multiple in multiples:
        memory = {**state.memory, LR_MULTIPLE: torch.tensor(multiple, dtype=torch.float64)}

        def heard(done: int, total: int, losses: Tensor) -> None:
            nonlocal tried
            tried += 1
            on_step(tried, (len(multiples) * epochs + 1) * total, losses)

        try:
            trial = islice(_epochs(untested, shared, replace(state, memory=memory), heard), epochs)
            found = sum(math.inf if record["loss"] is None else record["loss"] for _, record in trial)
        except Diverged:
            found = math.inf
        losses.append(math.inf if math.isnan(found) else found)
    best = min(range(len(multiples)), key=losses.__getitem__)
    return torch.tensor(multiples[best], dtype=torch.float64), tried


def _posterior(task: Task) -> Posterior:
    if not task.learner.has_clip:
        raise InputError(f"method {task.method.name}: it reads the posterior of labels, and a network has no features")
    return posterior_of(task.problem.train_x, task.problem.labels, task.learner)


def _fixed_prompt(task: Task) -> Classify:
    learner = task.learner
    if learner.zero_shot is None:
        without = f"model {NO_MODEL} has no text tower" if learner.has_clip else "a network from scratch has no CLIP"
        raise InputError(f"method {task.method.name}: it looks at zero-shot logits, and {without}")
    return by_prototypes(learner.zero_shot, learner.scale)


def _batches(phase: Phase, size: int, shuffle: Stream) -> Sequence[Batch]:
    """Return the steps of a phase: those that the method planned, or shuffled ones."""
    if phase.batches is not None:
        return phase.batches
    return [Batch(places) for places in batches(len(phase.samples), size, shuffle)]


def _judge(inputs: Fetch, n: int, at_once: int, classifier: Callable[[], Classify]) -> Tensor:
    """Return the logits (n, C) of all samples by the classifier as it is now."""
    classify = classifier()
    starts = range(0, n, at_once)
    return torch.cat([classify(inputs(np.arange(i, min(i + at_once, n)))) for i in starts])


def _logits(inputs: Features, classify: Classify, rows: int) -> Iterator[Tensor]:
    for first in range(0, len(inputs), rows):
        # a copy, because a memory-mapped row must not be handed to torch as if it could be written
        yield classify(torch.from_numpy(np.array(inputs[first : first + rows])))


@torch.no_grad()
def _step(learnt: Parameters, momentum: list[Tensor | None], rate: float, factor: float, weight_decay: float) -> None:
    """Take a step of SGD with each parameter that has a gradient, and drop the gradient.

    `momentum` has an entry for each parameter, None before its first step; `factor` is how much of it stays. torch's
    functional form is used, since its optimizers load torch's compiler, which takes longer than a first epoch.
    """
    values = list(learnt.values())
    moved = [i for i, value in enumerate(values) if value.grad is not None]
    kept = [momentum[i] for i in moved]
    gradients: list[Tensor] = [values[i].grad for i in moved]  # type: ignore[misc]
    if weight_decay:
        for i, gradient in zip(moved, gradients, strict=True):
            gradient.add_(values[i], alpha=weight_decay)  # torch would make a copy, as large as the network
    sgd(
        [values[i] for i in moved],
        gradients,
        kept,
        foreach=False,
        weight_decay=0.0,
        momentum=factor,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
    for i, buffer in zip(moved, kept, strict=True):
        momentum[i] = buffer
        values[i].grad = None


def _means(
    problem: Problem,
    seen: list[np.ndarray],
    losses: list[Tensor],
    gradients: list[Tensor],
    predictions: list[Tensor],
) -> dict[str, float | None]:
    """Return the epoch's mean loss; where the truth is known, loss and gradient of right and wrong labels apart.

    A sample's gradient is the sum of |dL/dz| over the classes, as in the paper's figures. The loss is also given of
    samples whose true class was predicted ("correct") and of others ("incorrect"), before the step that they are in.
    """
    if not seen:
        return {"loss": None}
    loss = torch.cat(losses).double().cpu().numpy()
    record: dict[str, float | None] = {"loss": float(loss.mean())}
    if (sides := _sides(problem, seen)) is not None:
        gradient = torch.cat(gradients).double().cpu().numpy()
        for name, mask in sides.items():
            for what, values in (("loss", loss), ("gradient", gradient)):
                record[f"{what}_{name}"] = float(values[mask].mean()) if mask.any() else None
        truth = problem.true_labels[np.concatenate(seen)]  # type: ignore[index]  # known where sides are
        hit = torch.cat(predictions).cpu().numpy() == truth
        for name, mask in (("correct", hit), ("incorrect", ~hit & (truth >= 0))):
            record[f"loss_{name}"] = float(loss[mask].mean()) if mask.any() else None
    return record


def _histogram(problem: Problem, seen: list[np.ndarray], gradients: list[Tensor]) -> dict[str, dict[str, list[float]]]:
    """Return how the samples' gradients are distributed, right and wrong labels apart; the last bin is open."""
    if (sides := _sides(problem, seen)) is None:
        return {}
    values = torch.cat(gradients).cpu().numpy().clip(max=GRADIENT_BINS[-1])
    counts = {name: np.histogram(values[mask], GRADIENT_BINS)[0].tolist() for name, mask in sides.items()}
    return {"gradient_histogram": {"edges": GRADIENT_BINS.round(6).tolist(), **counts}}


def _sides(problem: Problem, seen: list[np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return which of the samples seen have a right label and which a wrong one; None where nobody knows."""
    if problem.right is None or problem.wrong is None:
        return None
    samples = np.concatenate(seen)
    return {"right": problem.right[samples], "wrong": problem.wrong[samples]}
