"""The loop from scratch: like the one of `dspt.train`, but pixels go through a whole network that is learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dspt import methods
from dspt.internal.errors import InputError
from dspt.internal.seeds import Stream
from dspt.methods.method import Epoch, Method
from dspt.scratch import network, pixels
from dspt.scratch.config import ScratchConfig
from dspt.sgd import SGD
from dspt.train import LAST_EPOCHS, Problem, State, batches, means

# Images judged at once: bounds the memory of an evaluation.
_ROWS = 500

# What a method needs that is not here.
_TEXT = "it needs CLIP's comparison of images with text"
_NEEDS = {
    "zero-shot": _TEXT,
    "upl": _TEXT,
    "robust-upl": _TEXT,
    "nlprompt": "it trusts what CLIP knows before training",
    "dspt-auto": _TEXT,
    "joapr": "it blends the features of a frozen CLIP",
}


def usable_method(config: ScratchConfig) -> Method:
    """Return the method, or raise `InputError` if it cannot do without CLIP."""
    method = methods.make(config.method, **config.method_options())
    if config.method in _NEEDS:
        raise _refused(config.method, _NEEDS[config.method])
    return method


def learning_rate(epoch: int, config: ScratchConfig) -> float:
    """Return the rate of an epoch: a tenth after 40 % of the epochs, a hundredth after 70 %."""
    drops = (10 * epoch >= 4 * config.epochs) + (10 * epoch >= 7 * config.epochs)
    return config.lr * 0.1**drops


def start(classes: int, config: ScratchConfig) -> State:
    """Return the state before the first epoch."""
    empty = network.build(config.model, config.stem, classes)
    return State(0, network.initial(empty, config.seed))


def fit(
    problem: Problem,
    config: ScratchConfig,
    state: State,
    device: torch.device,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[State, dict[str, Any]]]:
    """Give, after each epoch, the state to go on from and the record of the epoch.

    The images of `problem` are uint8 (N, H, W, 3). `on_step` hears after each step how many of the
    epoch's steps are done, out of how many.
    """
    method = usable_method(config)
    net = network.build(config.model, config.stem, len(problem.class_names))
    net = network.load(net, state.learnt, device)
    learnt = dict(net.named_parameters())
    optimizer = SGD(learnt, config.momentum, config.weight_decay, state.momentum)
    images = torch.from_numpy(problem.train_x).to(device)
    labels = torch.from_numpy(problem.labels).to(device)
    memory = dict(state.memory)

    for epoch in range(state.epochs_done, config.epochs):
        rate = learning_rate(epoch, config)
        plan = Epoch(
            number=epoch,
            labels=labels,
            logits=partial(logits_of, net, images),
            zero_shot_logits=partial(_no_text, config.method),
            stream=partial(Stream, config.seed, config.method, epoch),
            memory=memory,
        )
        # Batch normalisation makes nothing of a single image.
        phases = [phase for phase in method.plan(plan) if len(phase.samples) > 1]
        if any(phase.mix is not None for phase in phases):
            raise _refused(config.method, "it blends the features of a frozen CLIP")
        crops = pixels.draw(len(labels), config.seed, epoch)
        steps = sum(max(1, len(phase.samples) // config.batch_size) for phase in phases)
        seen, losses, gradients, done = [], [], [], 0
        net.train()
        for number, phase in enumerate(phases):
            shuffle = Stream(config.seed, "shuffle", epoch, number)
            for rows in batches(len(phase.samples), config.batch_size, shuffle):
                samples = phase.samples[rows]
                batch = pixels.cropped(images[torch.from_numpy(samples)], crops[samples])
                logits = net(pixels.normalised(batch)).logits
                logits.retain_grad()
                loss = phase.loss(logits, phase.targets[torch.from_numpy(rows)])
                loss.mean().backward()
                optimizer.step(rate)
                done += 1
                seen.append(samples)
                losses.append(loss.detach())
                gradients.append(len(rows) * logits.grad.abs().sum(1))
                on_step(done, steps)

        state = State(
            epochs_done=epoch + 1,
            learnt={name: value.detach().clone() for name, value in net.state_dict().items()},
            momentum={name: value.clone() for name, value in optimizer.velocity.items()},
            memory=dict(memory),
        )
        if not all(value.isfinite().all() for value in state.learnt.values()):
            raise InputError(
                f"lr = {config.lr}: training diverged in epoch {epoch + 1}; give a lower learning rate"
            )
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": rate, "steps": done}
        record |= means(problem, seen, losses, gradients)
        last = epoch + LAST_EPOCHS >= config.epochs
        if last or (epoch + 1) % config.test_every == 0:
            record["accuracy"] = accuracy(net, problem, device)
        yield state, record


@torch.no_grad()
def logits_of(net: nn.Module, images: Tensor) -> Tensor:
    """Return the logits (N, C) of images (N, H, W, 3) as they are, on the device they are on."""
    net.eval()
    return torch.cat([net(pixels.normalised(part)).logits for part in images.split(_ROWS)])


def accuracy(net: nn.Module, problem: Problem, device: torch.device) -> float:
    """Return the share of right predictions for the test images, in percent."""
    assert problem.test_x is not None
    found = logits_of(net, torch.from_numpy(problem.test_x).to(device)).argmax(1)
    return 100.0 * float((found.cpu().numpy() == problem.test_y).mean())


def _no_text(method: str) -> Tensor:
    raise _refused(method, _TEXT)


def _refused(method: str, reason: str) -> InputError:
    others = ", ".join(name for name in methods.METHODS if name not in _NEEDS)
    return InputError(
        f"method {method}: {reason}, and a network from scratch has no CLIP; give one of {others}"
    )
