"""Methods beside each other on feature files, cell by cell: `python scripts/yardstick.py FILE... --model TOWER`.

A cell is a feature file, a state of its class names (intact, shuffled among the classes, replaced by codes), a noise, a
seed, a learner and a method. Its test accuracy, the mean of the last five epochs, is written as one line of JSON to
`--out`; a cell that is there already is not done again, so the script can be stopped and started. At the end a table
with the best of CoOp, GCE, SCE, NLPrompt and DSPT in each cell of the file and how far other methods are from it.

`--draw N` does N cells of each file instead of all, drawn at random before anything is known of them: what takes a day
on prompts is then estimated in an hour, and any beginning of the draw is a fair sample, too.

`--parts N` does N sets that nobody has seen: some classes of a file, with so many images of each at most, the state of
names, the noise and its seed, all drawn at random. They have 10 classes or many, 160 images or thousands. `--seeds` and
`--draw` have no say then.

With `--rates` each method is also trained at multiples of the usual learning rate, on four fifths of the training
set; the accuracy on the other fifth, **judged by its noisy labels**, says which rate is the method's own. At that it is
trained on the whole. The test set has no part in the choice.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from dspt import learners, noise, selection
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.data import Dataset, Split, open_dataset
from dspt.data.dataset import benchmark, few_shot, take
from dspt.internal.seeds import Stream
from dspt.problem import Problem, Task
from dspt.runs import learn
from dspt.train import accuracy, final_accuracies

YARDSTICK = ("coop", "gce", "sce", "nlprompt", "dspt")
NOISES = (
    "none",
    "sym:0.4",
    "sym:0.6",
    "sym:0.8",
    "pair:0.2",
    "pair:0.4",
    "pair:0.8",
    "near:0.2",
    "near:0.4",
    "inst:0.4",
)
NAMES = ("intact", "shuffled", "codes")
# What is drawn of a file for a part of it: so many classes, and at most so many images of each.
PART_CLASSES, PART_IMAGES = (10, 20, 37, 47, 1000), (16, 24, 40, 10_000)


@dataclass(frozen=True)
class Cell:
    """What is trained on what."""

    data: str
    names: str
    noise: str
    seed: int
    learner: str
    method: str
    epochs: int
    rate: float = 1.0  # times the usual learning rate
    held_out: bool = False  # trained on four fifths, judged by the noisy labels of the others
    part: int = 0  # the number of a part of the file, drawn at random; 0 is all of it


def called(names: tuple[str, ...], state: str) -> tuple[str, ...]:
    """Return the class names in one of the states."""
    if state == "shuffled":
        return tuple(names[k] for k in Stream(1, "yardstick", "names").permutation(len(names)))
    return tuple(f"class {k}" for k in range(len(names))) if state == "codes" else names


def part_of(dataset: Dataset, number: int) -> Dataset:
    """Return some classes of a set, with some images of each, as they come with this number; with 0 all of it."""
    if not number:
        return dataset
    random = Stream(number, "yardstick", "part", dataset.name)
    classes = len(dataset.class_names)
    most, images = (values[int(random.integers(1, len(values))[0])] for values in (PART_CLASSES, PART_IMAGES))
    chosen = np.sort(random.permutation(classes)[:most])
    renumbered = np.full(classes, -1)
    renumbered[chosen] = np.arange(len(chosen))

    def of_these(split: Split, images: int) -> Split:
        rows = few_shot(split.best_labels, images, number)
        rows = rows[renumbered[split.best_labels[rows]] >= 0]
        return benchmark(take(split.items, rows), renumbered[split.best_labels[rows]])

    names = tuple(dataset.class_names[k] for k in chosen)
    return replace(
        dataset, class_names=names, train=of_these(dataset.train, images), test=of_these(dataset.test, 10_000)
    )


def given_labels(dataset: Dataset, spec: noise.NoiseSpec, seed: int, tower: TextTower) -> np.ndarray:
    """Return the labels with noise; what it takes for similar is told by the real names, whatever the prompts say."""
    features = dataset.train.items if spec.needs_features else None
    similar = None
    if spec.needs_class_features:
        similar = learners.zero_shot_prototypes(tower, dataset.class_names, Config.template).numpy()
    return spec.apply(dataset.train.best_labels, len(dataset.class_names), seed, features, similar)


def result(cell: Cell, dataset: Dataset, tower: TextTower, model: str) -> dict[str, float | str | None]:
    """Return the figures of a cell."""
    dataset = part_of(dataset, cell.part)
    labels = given_labels(dataset, noise.parse(cell.noise), cell.seed, tower)
    names = called(dataset.class_names, cell.names)
    features = np.asarray(dataset.train.items)
    rows = np.arange(len(labels))
    test_x, test_y = np.asarray(dataset.test.items), dataset.test.best_labels
    if cell.held_out:
        order = Stream(cell.seed, "yardstick", "held out").permutation(len(labels))
        others, rows = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
        test_x, test_y = features[others], labels[others]
    problem = Problem(
        names, features[rows], labels[rows], dataset.train.best_labels[rows], test_x=test_x, test_y=test_y
    )
    config = Config(
        model=model,
        method=cell.method,
        learner=cell.learner,
        seed=cell.seed,
        epochs=cell.epochs,
        lr=Config.lr * cell.rate,
        test_every=1000,
    )
    started = time.monotonic()
    first = selection.provisional(config)
    task = Task.of(problem, first, learners.make(names, first, tower))
    if selection.is_open(config):
        task, _ = selection.chosen(task)
    learnt = learn(task)
    found = final_accuracies(learnt.records, task.learner.warmup)
    last = accuracy(test_x, test_y, task.learner.classify(learnt.parameters)) if not found else sum(found) / len(found)
    return {
        **asdict(cell),
        "accuracy": last,
        "zero_shot": learnt.zero_shot,
        "wrong": float((labels != dataset.train.best_labels).mean()),
        "chosen": task.config.learner,
        "seconds": round(time.monotonic() - started, 2),
        **learnt.found,
    }


def problems(asked: argparse.Namespace) -> list[tuple[int, str, str, str]]:
    """Return seed, file, names and noise of what was asked for: one seed of everything before the next, or a draw."""
    if asked.parts:
        random = Stream(1, "yardstick", "parts")
        choices = (asked.data, asked.names, asked.noises)
        return [
            (number, *(values[int(random.integers(1, len(values))[0])] for values in choices))
            for number in range(1, asked.parts + 1)
        ]
    if not asked.draw:
        return list(product(asked.seeds, asked.data, asked.names, asked.noises))
    drawn = []
    for data in asked.data:
        every = list(product(asked.seeds, [data], asked.names, asked.noises))
        order = Stream(1, "yardstick", "draw", Path(data).stem).permutation(len(every))
        drawn.append([every[k] for k in order[: asked.draw]])
    return [one for turn in zip(*drawn, strict=True) for one in turn]


def cells(asked: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that were asked for, all methods on a problem before the next."""
    for seed, data, names, spec in problems(asked):
        for method in asked.methods:
            part = seed if asked.parts else 0
            cell = Cell(Path(data).stem, names, spec, seed, asked.learner, method, asked.epochs, part=part)
            yield cell
            yield from (replace(cell, rate=rate, held_out=True) for rate in asked.rates)


def at_its_own_rate(cell: Cell, there: dict[str, dict[str, object]], rates: list[float]) -> Cell:
    """Return a cell at the rate under which held-out noisy labels are told best; of several, at the lowest."""
    tried = {rate: there[key(asdict(replace(cell, rate=rate, held_out=True)))]["accuracy"] for rate in sorted(rates)}
    return replace(cell, rate=max(tried, key=lambda rate: float(tried[rate])))  # type: ignore[arg-type]


def key(values: dict[str, object]) -> str:
    """Return what tells cells apart."""
    return json.dumps([values[name] for name in Cell.__dataclass_fields__])


def done(out: Path) -> dict[str, dict[str, object]]:
    """Return the cells that the file has."""
    lines = out.read_text().splitlines() if out.exists() else []
    return {key(one): one for one in ({"part": 0} | json.loads(line) for line in lines)}


def summary(found: list[dict[str, object]]) -> None:
    """Print the best of the yardstick in each cell, the mean over seeds, and how far the others are from it.

    Learners that choose for themselves, or need no steps, are held against the yardstick on prototypes.
    """
    cells: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for one in found:
        if one["rate"] == 1 and not one["held_out"]:
            itself = one["learner"] in ("auto", "posterior")
            learner, name = ("prototypes", one["learner"]) if itself else (one["learner"], one["method"])
            data = f"{one['data']}, part {one['part']}" if one["part"] else one["data"]
            by_method = cells.setdefault((learner, data, one["names"], one["noise"]), {})
            by_method.setdefault(str(name), []).append(float(one["accuracy"]))  # type: ignore[arg-type]
            by_method.setdefault("zero-shot", []).append(float(one["zero_shot"]))  # type: ignore[arg-type]
    others = sorted({name for by_method in cells.values() for name in by_method} - {*YARDSTICK, "zero-shot"})
    print("| learner | data | names | noise | best of five | " + " | ".join(others) + " |")
    print("|---" * (5 + len(others)) + "|")
    regrets: dict[str, list[float]] = {name: [] for name in others}
    below: dict[str, list[float]] = {name: [] for name in others}
    for key_, by_method in cells.items():
        mean = {name: float(np.mean(values)) for name, values in by_method.items()}
        if not set(YARDSTICK) <= mean.keys():
            continue
        best = max(YARDSTICK, key=lambda name: mean[name])
        shown = []
        for name in others:
            shown.append(f"{mean[name]:.1f} ({mean[name] - mean[best]:+.1f})" if name in mean else "")
            if name in mean:
                regrets[name].append(mean[best] - mean[name])
                below[name].append(max(mean["coop"], mean["zero-shot"]) - mean[name])
        print(f"| {' | '.join(map(str, key_))} | {mean[best]:.1f} ({best}) | {' | '.join(shown)} |")
    for name, values in regrets.items():
        if values:
            behind = np.maximum(values, 0).mean()
            print(
                f"{name}: {len(values)} cells, mean regret {behind:.2f}, greatest {max(values):.1f}; "
                f"below the better of CoOp and zero-shot by at most {max(below[name]):.1f}"
            )
    told = [one for one in found if {"noise_rate_error", "wrong"} <= one.keys() and not one["held_out"]]
    covered = sum(abs(one["noise_rate"] - one["wrong"]) <= 2 * one["noise_rate_error"] for one in told)  # type: ignore[operator]
    print(f"the share of wrong labels is within two stated errors in {covered} of {len(told)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, default=Path("yardstick.jsonl"))
    parser.add_argument("--learner", default="prototypes")
    parser.add_argument("--methods", nargs="+", default=list(YARDSTICK))
    parser.add_argument("--noises", nargs="+", default=list(NOISES))
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--rates", type=float, nargs="*", default=[])
    asked = parser.parse_args()
    tower = learners.open_text_tower(Config(model=asked.model))
    opened = {Path(data).stem: open_dataset(data) for data in asked.data}
    there = done(asked.out)

    def do(cell: Cell) -> None:
        if key(asdict(cell)) not in there:
            found = result(cell, opened[cell.data], tower, asked.model)
            there[key(found)] = found
            with asked.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{found['accuracy']:6.2f}  {found['seconds']:6.1f} s  {cell}", file=sys.stderr, flush=True)

    for cell in cells(asked):
        do(cell)
    if asked.rates:
        for cell in (cell for cell in cells(asked) if not cell.held_out):
            own = at_its_own_rate(cell, there, asked.rates)
            do(own)
            usual, best = (there[key(asdict(one))]["accuracy"] for one in (cell, own))
            print(f"| {cell.data}, {cell.noise} | {cell.method} | {usual:.1f} -> {best:.1f} (x{own.rate:g}) |")
    summary(list(there.values()))


if __name__ == "__main__":
    main()
