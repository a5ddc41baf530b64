"""From a source to the figures of a run and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspt import noise, selection
from dspt.config import Settings
from dspt.data import Dataset, open_dataset
from dspt.internal.errors import Fault, InputError
from dspt.internal.names import NO_MODEL
from dspt.internal.progress import Reporter
from dspt.problem import Task, pose
from dspt.runs import RULES, Description, Learnt, Result, Run, default_folder, learn, logs
from dspt.train import estimated_noise, final_accuracies


def run(
    source: str | Dataset,
    config: Settings,
    noise_spec: str = "none",
    out: Path | str | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    cache: Path | None = None,
    skip_bad: bool = False,
    log: str = "",
) -> Result:
    """Return the figures of a training run, from its folder if it is done, else by doing what is left of it.

    Parameters
    ----------
    source
        An opened dataset, or what `open_dataset` takes.
    config
        A `Config` for what is learnt on CLIP's features, a `NetworkConfig` for a network from scratch.
    noise_spec
        "none", "sym:0.4", "pair:0.2", "near:0.4", "inst:0.3", "file:labels.csv", ...
    out
        The run folder; named after the settings under runs/ if not given.
    overwrite
        Start anew in a folder that holds another run.
    cache
        The folder of the feature store.
    skip_bad
        Leave images out that cannot be read, and list them in the run folder.
    log
        Where epochs are written besides: "tensorboard", "mlflow", or both with a comma between.
    """
    logs.names(log)  # what is not installed is said before anything is done
    reporter = reporter or Reporter(silent=True)
    spec = noise.parse(noise_spec)
    # A held-out test set does not depend on the run's seed: all runs on a folder share one.
    dataset = open_dataset(source, skip_bad=skip_bad)
    say_notes(dataset, reporter)
    if not len(dataset.test.labels):
        raise InputError(f"{dataset.name}: no images to test with; give a test split")
    task = pose(dataset, selection.provisional(config), spec, reporter=reporter, cache=cache, skip_bad=skip_bad)
    why = None
    if selection.is_open(config):
        before = None if overwrite else _chosen_before(task, dataset, spec, out)
        if before is None:
            task, choice = selection.chosen(task, reporter)
            why = choice.why
        else:
            task = before
    config = task.config
    folder = Run(out or default_folder(dataset.name, config, str(spec)))
    with folder.locked():
        folder.begin(_description(task, dataset, spec), overwrite)
        result = folder.result()
        if result is not None:
            reporter.say(f"{folder.path}: this run is done; set `overwrite` to do it again")
            logs.complete(log, folder, result, reporter)
            return replace(result, model=result.model or task.config.model)  # earlier versions did not write it
        folder.save_labels(dataset, task.given)
        folder.save_skipped(task.skipped)
        with logs.opened(log, folder, reporter) as written:
            learnt = learn(task, folder, reporter, written.epochs)
            folder.save_learnt(learnt.parameters, learnt.prototypes)
            result = replace(_result(task, learnt, dataset, spec, folder), learner=config.learner, why=why)
            written.result(result)  # before the run is done: whoever is killed in between writes it again
            folder.finish(result)
    return result


def _chosen_before(task: Task, dataset: Dataset, spec: noise.NoiseSpec, out: Path | str | None) -> Task | None:
    """Return the task as a finished run of it had it, if the learner was chosen there; None if there is no such run."""
    for name in selection.BY_FREEDOM:
        if name == "prompt" and task.config.model == NO_MODEL:
            continue  # it cannot have been chosen
        found = Run(out or default_folder(dataset.name, replace(task.config, learner=name), str(spec)))
        if not found.is_done or found.description().settings.learner != name:
            continue
        candidate = selection.with_learner(task, name)
        result = found.result()
        same = not found.description().difference(_description(candidate, dataset, spec))
        if same and result is not None and result.why:
            return candidate
    return None


def say_notes(dataset: Dataset, reporter: Reporter) -> None:
    """Tell the user what was decided for a dataset, such as which test split is used."""
    for note in dataset.notes:
        reporter.say(f"note: {note}")


def told_skipped(faults: Sequence[Fault]) -> dict[str, Any]:
    """Return what was left out as JSON can hold it: "skipped", the number, and "skipped_entries", all of them."""
    entries = [{"split": fault.split, "item": fault.name, "reason": fault.reason} for fault in faults]
    return {"skipped": len(entries), "skipped_entries": entries}


def _description(task: Task, dataset: Dataset, spec: noise.NoiseSpec) -> Description:
    """Return what the run is, by which its folder knows it again."""
    made_with = dict(task.learner.made_with)
    return Description(
        settings=replace(task.config, model=made_with.pop("model", task.config.model)),
        class_names=dataset.class_names,
        data=dataset.source,
        data_options=dict(dataset.options) or None,
        test=dataset.test_source,
        data_fingerprint=task.problem.fingerprint(),
        noise=str(spec),
        method_rule=RULES.get(task.method.name),
        **made_with,
    )


def _result(task: Task, learnt: Learnt, dataset: Dataset, spec: noise.NoiseSpec, folder: Run) -> Result:
    problem, records = task.problem, learnt.records
    last = records[-1] if records else {}
    accuracies = final_accuracies(records, task.learner.warmup)
    accuracy = sum(accuracies) / len(accuracies) if accuracies else None
    if not task.method.trains:
        accuracy = learnt.zero_shot
    wrong = problem.wrong_share
    return Result(
        data=dataset.name,
        noise=str(spec),
        model=task.config.model,
        wrong_labels=None if wrong is None else round(wrong, 6),
        labels_known=problem.labels_known,
        method=task.config.method,
        seed=task.config.seed,
        epochs=last.get("epoch", 0),  # none for what is solved at once
        accuracy=accuracy,
        epochs_averaged=len(accuracies),
        last_accuracy=last.get("accuracy", accuracy),
        test_labels_known=dataset.test.truth_known,
        zero_shot=learnt.zero_shot,
        loss=last.get("loss"),
        found=learnt.found if "noise_rate" in learnt.found else {**estimated_noise(task), **learnt.found},
        seconds=round(learnt.seconds, 3),
        samples=len(problem.labels),
        skipped=len(task.skipped),
        run=str(folder.path),
    )
