"""A run is a folder that explains itself. Nobody else opens its files.

    config.json           settings, data, noise, class names, fingerprints: what was asked for
    environment.json      versions and machine
    labels.csv            the labels of the train split after noise: item, label and, where it is known, true label
    skipped.csv           what was left out because it could not be read, if anything: split, item, reason
    metrics.jsonl         one line for each epoch
    state.safetensors     where to go on after an interruption
    context.safetensors   what was learnt: the parameters, and the class prototypes they give
    result.json           the figures of the finished run
    failure.txt           why the last try failed, if it did: the reason in a line, and the traceback
    events.out.tfevents.* the records for TensorBoard, if they were asked for

Every file is whole or absent at any moment, so a killed run goes on where its last epoch ended. State, context and
result are sealed: they carry a digest of what they hold and of the config.json they belong to, and are refused when
either has changed. torch is imported only where tensors are: tables and reports are made without it.
"""

from __future__ import annotations

from dspt.runs.description import FORMAT, RULES, Description, default_folder, made_with, safe_name, settings_that_count
from dspt.runs.finished import Finished, NotUsed, begun, find
from dspt.runs.folder import FAILURE, LABELS, METRICS, SKIPPED, Run, environment
from dspt.runs.learning import Learnt, epoch_text, learn
from dspt.runs.result import Result

__all__ = [
    "FAILURE",
    "FORMAT",
    "LABELS",
    "METRICS",
    "RULES",
    "SKIPPED",
    "Description",
    "Finished",
    "Learnt",
    "NotUsed",
    "Result",
    "Run",
    "begun",
    "default_folder",
    "environment",
    "epoch_text",
    "find",
    "learn",
    "made_with",
    "safe_name",
    "settings_that_count",
]
