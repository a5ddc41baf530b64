"""A task learnt epoch by epoch, each saved as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dspt.internal.files import uninterrupted
from dspt.internal.progress import Reporter
from dspt.internal.rounding import figure
from dspt.runs.folder import Run

if TYPE_CHECKING:
    from torch import Tensor

    from dspt.learners import Parameters
    from dspt.problem import Task
    from dspt.train import Record


@dataclass(frozen=True)
class Learnt:
    """What came out of training."""

    parameters: Parameters
    prototypes: Tensor | None  # (C, D), if they are the same for all images
    records: list[Record]
    found: dict[str, float]
    zero_shot: float | None  # test accuracy of the fixed prompt
    seconds: float


def learn(
    task: Task,
    run: Run | None = None,
    reporter: Reporter | None = None,
    on_epoch: Callable[[list[Record]], None] = lambda records: None,
) -> Learnt:
    """Return what a task gives, after the epochs that the folder of its run does not have yet.

    Parameters
    ----------
    task : Task
        What is learnt from what, by whom and how.
    run : Run, optional
        The folder, in which each epoch is saved as soon as it is done.
    reporter : Reporter, optional
        Shows how far the work is.
    on_epoch : callable
        Hears all records so far: before the first epoch, and after each once it is saved.
    """
    import torch

    from dspt.train import State, findings, fit, test_accuracy, zero_shot_accuracy

    reporter = reporter or Reporter(silent=True)
    learner, epochs = task.learner, task.config.epochs
    started = time.monotonic()
    zero_shot = zero_shot_accuracy(task)
    if not task.method.trains:
        return Learnt({}, learner.zero_shot, [], {}, zero_shot, time.monotonic() - started)

    if (solved := learner.solve(task.problem.train_x, task.problem.labels)) is not None:
        record: Record = {"epoch": 0, "lr": 0.0, "steps": 0, "loss": None, **solved.found}
        if (accuracy := test_accuracy(task, learner.classify(solved.parameters))) is not None:
            record["accuracy"] = accuracy
        if run:
            run.drop_records(0)
            run.add_record(record)
        seconds = time.monotonic() - started
        on_epoch([record])
        return Learnt(solved.parameters, None, [record], solved.found, zero_shot, seconds)

    state, before = (run and run.load_state()) or (State(0, task.start), 0.0)
    records = run.records(state.epochs_done) if run else []
    if run:
        run.drop_records(state.epochs_done)
    if records:
        reporter.say(f"going on after epoch {state.epochs_done} of {epochs}")

    def tell() -> None:
        nonlocal started
        asked = time.monotonic()
        on_epoch(records)
        started += time.monotonic() - asked  # whoever listens may be slow, and is no part of the work

    tell()
    title = f"{task.config.name} seed {task.config.seed}"
    with reporter.task(title, epochs, state.epochs_done) as update:
        text = ""

        def on_step(done: int, steps: int, *_: object) -> None:
            update(len(records) + done / steps, text)

        for reached, record in fit(task, state, on_step):
            state = reached
            with uninterrupted():
                records.append(record)
                if run:
                    run.add_record(record)
                    run.save_state(state, before + time.monotonic() - started)
            tell()
            text = epoch_text(record, epochs)
            update(len(records), text)
    if run:
        # Nobody goes on from here, and the momentum may be as large as a network.
        run.save_state(replace(state, momentum={}), before + time.monotonic() - started)
    parameters = learner.placed(state.parameters)
    with torch.no_grad():
        prototypes = learner.prototypes(parameters)
    seconds = before + time.monotonic() - started
    return Learnt(parameters, prototypes, records, findings(state), zero_shot, seconds)


def epoch_text(record: Record, epochs: int) -> str:
    """Return a record in words: "epoch 3/50  loss 0.512  accuracy 81.2 %"."""
    text = f"epoch {record['epoch']}/{epochs}"
    if record.get("loss") is not None:
        text += f"  loss {record['loss']:.3f}"
    if "accuracy" in record:
        text += f"  accuracy {figure(record['accuracy'], 1)} %"
    return text
