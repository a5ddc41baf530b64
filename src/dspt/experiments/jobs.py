"""The runs of an experiment as jobs: their settings checked, each with the folder it belongs in."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from dspt.config import NetworkConfig, Settings, from_dict
from dspt.engine.job import Job
from dspt.experiments.catalogue import Experiment, RunSpec
from dspt.internal.errors import InputError
from dspt.runs import safe_name, settings_that_count


def jobs(experiment: Experiment, out: Path) -> list[Job]:
    """Return the runs of an experiment as jobs with folders below `out`."""
    fixed = ("method", "option", "seed", *(["learner"] if experiment.from_scratch else []))
    for name in fixed:
        if name in experiment.config:
            raise InputError(
                f"set {name}={experiment.config[name]}: it is part of the experiment",
                "`only` and `seeds` choose",
            )
    found = [_job(spec, experiment, out) for spec in experiment.runs()]
    return list({job.folder: job for job in found}.values())  # what is asked for twice is done once


def _job(spec: RunSpec, experiment: Experiment, out: Path) -> Job:
    source, noise, variant = spec.condition.dataset, spec.condition.noise, spec.variant
    settings = {
        **experiment.config,
        **({"learner": NetworkConfig.learner} if experiment.from_scratch else {}),
        "method": variant.method,
        "option": variant.options,
        "seed": spec.seed,
    }
    config = from_dict(settings)
    title = f"{source} {noise} {variant.label} seed {spec.seed}"
    return Job(source, noise, config, out / f"{_place(source, noise, config)}-{_digest(config, source)}", title)


def is_job(folder: Path, source: str, noise: str, config: Settings) -> bool:
    """Return whether a run folder is named as that of a job, and so was made for an experiment.

    Parameters
    ----------
    folder : Path
        The run folder.
    source : str
        The data of the run, as the user wrote it.
    noise : str
        The noise of the run.
    config : Settings
        All settings of the run.
    """
    name, _, digest = folder.name.rpartition("-")
    place = Path(folder.absolute().parent.name, name)
    return place == _place(source, noise, config) and re.fullmatch("[0-9a-f]{8}", digest) is not None


def _place(source: str, noise: str, config: Settings) -> Path:
    name = safe_name(config.method, *config.option, noise, f"seed{config.seed}")
    return Path(safe_name(Path(source).stem)) / name


def _digest(config: Settings, source: str) -> str:
    """Return eight digits that differ between runs which differ in any setting that counts."""
    counts = settings_that_count(config)
    # Files of one name may lie in different folders.
    for name, path in (("data", source), ("model", config.model)):
        if os.path.exists(path):
            counts[name] = os.path.realpath(path)
    text = json.dumps(counts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
