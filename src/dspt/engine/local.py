"""Doing the runs of an experiment: those that are not done yet, one after the other, whatever happens to one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspt.config import Settings, from_dict
from dspt.data import Dataset, open_dataset
from dspt.experiments.catalogue import Experiment, RunSpec
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import Result, Run, safe_name, settings_that_count


@dataclass(frozen=True)
class Job:
    """One run with its folder."""

    spec: RunSpec
    config: Settings
    folder: Path

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.folder / "result.json").exists()

    @property
    def title(self) -> str:
        """What a person calls the run: "Caltech101 sym:0.4 DSPT seed 1"."""
        setting = self.spec.setting
        return f"{setting.dataset} {setting.noise} {self.spec.entry.label} seed {self.spec.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its figures, or why there are none."""

    job: Job
    result: Result | None = None
    error: str | None = None


def jobs(experiment: Experiment, out: Path) -> list[Job]:
    """Return the runs of an experiment with their settings checked and their folders below `out`."""
    found = [_job(spec, experiment.from_scratch, out) for spec in experiment.runs()]
    return list({job.folder: job for job in found}.values())  # what is asked for twice is done once


def do(jobs: Sequence[Job], root: Path | None, reporter: Reporter) -> Iterator[Outcome]:
    """Give the outcome of each job in turn; what is done is not done again, and what fails stops nothing else."""
    sources: dict[str, Dataset | InputError] = {}
    told: set[str] = set()

    def outcome(job: Job, number: int) -> Outcome:
        try:
            result = Run(job.folder).result()  # a finished run needs its data no more
            if result is None:
                reporter.say(f"[{number}/{len(jobs)}] {job.title}")
                result = _run(job, opened(job, root, sources), reporter)
            return Outcome(job, result)
        except InputError as error:
            return Outcome(job, error=str(error))
        except Exception as error:  # a fault of ours in one run must not cost the others
            return Outcome(job, error=f"{type(error).__name__}: {error}")

    for number, job in enumerate(jobs, 1):
        found = outcome(job, number)
        if found.error is not None and found.error not in told:
            told.add(found.error)
            reporter.say(f"failed: {job.title}: {found.error}")
        yield found


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """Return why runs failed, each reason once, with how many runs it hit and the first of them."""
    reasons: dict[str, list[Job]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            reasons.setdefault(outcome.error, []).append(outcome.job)
    return [
        f"{found[0].title}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {reason}"
        for reason, found in reasons.items()
    ]


def _job(spec: RunSpec, from_scratch: bool, out: Path) -> Job:
    """A run with its settings. Runs that differ in any setting that counts have different folders."""
    for name in ("method", "option", "seed"):
        if name in spec.config:
            raise InputError(
                f"set {name}={spec.config[name]}: it is part of the experiment; --only and --seeds choose"
            )
    settings = {
        **spec.config,
        "method": spec.entry.method,
        "option": spec.entry.options,
        "seed": spec.seed,
    }
    config = from_dict({**settings, "learner": "network"} if from_scratch else settings)
    counts = settings_that_count(config)
    source = spec.setting.dataset
    # not a name: files of the same name may lie in different folders
    for name, path in (("data", source), ("model", config.model)):
        if os.path.exists(path):
            counts[name] = os.path.realpath(path)
    digest = hashlib.blake2b(json.dumps(counts, sort_keys=True).encode(), digest_size=4)
    entry = (spec.entry.method, *spec.entry.options)
    name = safe_name(*entry, spec.setting.noise, f"seed{spec.seed}", digest.hexdigest())
    return Job(spec, config, out / safe_name(Path(source).stem) / name)


def opened(job: Job, root: Path | None, sources: dict[str, Dataset | InputError]) -> Dataset:
    """Return the dataset of a job, opened once for all of its runs; one that cannot be opened stays so."""
    name = job.spec.setting.dataset
    if name not in sources:
        try:
            sources[name] = open_dataset(name, root=root)
        except InputError as error:
            sources[name] = error
    found = sources[name]
    if isinstance(found, InputError):
        raise found
    return found


def _run(job: Job, dataset: Dataset, reporter: Reporter) -> Result:
    noise = job.spec.setting.noise
    from dspt.workflows import train

    return train.run(dataset, job.config, noise, job.folder, reporter=reporter)
