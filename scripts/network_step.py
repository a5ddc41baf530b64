"""A training step of the network against the machine's own convolutions.

Run `OMP_NUM_THREADS=1 python scripts/network_step.py`. It does three things in turn, so that a machine which others
use is the same for all: steps as `dspt scratch` takes them; the same with torch's own convolutions, channels last; and
these convolutions alone, forward and backward, on tensors of their shapes. Time is the processor's, of which the least
of several rounds counts; a ratio is of one round, and the median is taken. Then the parts of a step by operation.
Images are random, of CIFAR-10's shape.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dspt import train
from dspt.config import NetworkConfig
from dspt.internal.seeds import Stream
from dspt.learners import Parameters, resnet
from dspt.learners.network import NetworkLearner
from dspt.problem import Problem, Task

SIDE, CLASSES, STEPS = 32, 10, 4

PARTS = {
    "convolution": "convolutions by oneDNN",
    "mm": "convolutions as matrix products",
    "batch_norm": "batch normalisation",
    "threshold|relu|clamp": "ReLU",
    "copy|clone|contiguous": "copies",
    "add_|mul_": "SGD",
    "add": "residuals",
    "index|pad": "crops",
    "pool|mean": "pooling",
}


class Usual(NetworkLearner):
    """The same network with torch's own convolutions."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for module in self.network.modules():
            if isinstance(module, resnet.Convolution):
                module.__class__ = nn.Conv2d

    def placed(self, parameters: Parameters) -> Parameters:
        """Return a copy with kernels channels last."""
        form = {True: torch.channels_last, False: torch.preserve_format}
        return {name: value.to(memory_format=form[value.ndim == 4], copy=True) for name, value in parameters.items()}


class Timed(TorchDispatchMode):
    """Adds up the processor's seconds by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.thread_time()
        found = operation(*args, **(kwargs or {}))
        self.seconds[operation.overloadpacket.__name__] += time.thread_time() - started
        return found


def epochs(kind: type[NetworkLearner], config: NetworkConfig) -> Iterator[object]:
    """Return an endless training on random images, an epoch of `STEPS` steps at a time."""
    n = STEPS * config.batch_size
    images = Stream(0, "bench", "images").integers(n * SIDE * SIDE * 3, 256).astype(np.uint8)
    names = tuple(f"class {c}" for c in range(CLASSES))
    problem = Problem(names, images.reshape(n, SIDE, SIDE, 3), np.arange(n) % CLASSES)
    return train.fit(Task.of(problem, config, kind(names, config)))


def convolutions(config: NetworkConfig) -> tuple[Callable[[], None], float]:
    """Return the convolutions of `STEPS` steps alone, and their operations in 10^9, padding included."""
    learner = Usual(tuple(map(str, range(CLASSES))), config)
    network = learner.network.to_empty(device="cpu").to(memory_format=torch.channels_last)
    jobs: list[tuple[Any, ...]] = []

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        x, weight = (torch.randn_like(value) for value in (inputs[0], module.weight.detach()))
        jobs.append((x, weight, torch.randn_like(output), module.stride, module.padding))

    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(seen)
    with torch.no_grad():
        network(torch.randn(config.batch_size, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last))

    def work() -> None:
        for number, (x, weight, gradient, stride, padding) in enumerate(jobs * STEPS):
            torch.conv2d(x, weight, None, stride, padding)
            first = number % len(jobs) == 0  # nobody asks for a gradient of the images
            torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, padding, (1, 1), False, (0, 0), 1, (not first, True, False)
            )

    products = [2 * gradient.numel() * weight[0].numel() for _, weight, gradient, *_ in jobs]
    return work, (3 * sum(products) - products[0]) / 1e9


def part_of(operation: str) -> str:
    """Return the part of a step that an operation belongs to."""
    return next((name for keys, name in PARTS.items() if any(key in operation for key in keys.split("|"))), "all else")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet34", choices=list(resnet.MODELS))
    parser.add_argument("--stem", default="imagenet", choices=["imagenet", "cifar"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    config = NetworkConfig(
        model=asked.model, stem=asked.stem, batch_size=asked.batch_size, method="coop", lr=0.01, epochs=10_000
    )
    ours, usual = epochs(NetworkLearner, config), epochs(Usual, config)
    alone, operations = convolutions(config)
    works = {"ours": lambda: next(ours), "torch's": lambda: next(usual), "convolutions alone": alone}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(asked.rounds + 1):
        for name, work in works.items():
            started = time.process_time()
            work()
            if number:  # the first warms up
                seconds[name].append((time.process_time() - started) / STEPS)
    print(f"{asked.model}, {asked.stem} stem, {SIDE} x {SIDE}, batches of {asked.batch_size}, ", end="")
    print(f"{torch.get_num_threads()} threads, processor time, {asked.rounds} rounds")
    for name, values in seconds.items():
        ratios = sorted(value / own for value, own in zip(values, seconds["ours"], strict=True))
        rate, least = asked.batch_size / min(values), min(values)
        print(f"  {name:<19}{1e3 * least:6.0f} ms {rate:6.0f} images/s, {operations / least:4.0f} GFLOP/s, ", end="")
        print(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) times ours")
    with Timed() as timed:
        for _ in range(asked.rounds):
            next(ours)
    parts: Counter[str] = Counter()
    for operation, spent in timed.seconds.items():
        parts[part_of(operation)] += spent
    print("where a step's time goes, without Python:")
    for part, spent in parts.most_common():
        print(f"  {part:<33}{100 * spent / parts.total():5.1f} %")


if __name__ == "__main__":
    main()
