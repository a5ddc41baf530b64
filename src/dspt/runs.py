"""A run is a folder that explains itself, and all that later tools need to know about it.

    config.json           settings, data, noise, class names, fingerprints: what was asked for
    environment.json      versions and machine
    labels.csv            the labels of the train split after noise, in the order of the source
    skipped.csv           what --skip-bad left out, if anything: split, item, reason
    metrics.jsonl         one line for each epoch
    state.safetensors     where to go on after an interruption
    context.safetensors   what was learnt: the context and the class prototypes
    result.json           the figures of the finished run

Every file is whole or absent at any moment, so a killed run goes on where its last epoch ended.
"""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspt import __version__
from dspt.backbone.checkpoint import Checkpoint
from dspt.config import HARMLESS, Config
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import replacing, write_json
from dspt.train import State

FORMAT = 1

# config.json first: without it the folder is no run any more, so a kill leaves nothing that could be taken for one.
_FILES = (
    "config.json",
    "result.json",
    "environment.json",
    "labels.csv",
    "skipped.csv",
    "metrics.jsonl",
    "state.safetensors",
    "context.safetensors",
)

# The parts of a state that are named tensors; a tensor is saved under the name of its part and its own.
_GROUPS = ("learnt", "momentum", "memory")

# What may differ between the beginning of a run and its resumption: how it is done, not what is done. Data are known
# by their fingerprint, wherever they are.
_FREE = {"data", *(f"settings.{name}" for name in HARMLESS)}


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115 - closed below, held meanwhile
        except OSError as error:
            raise InputError(
                f"run folder {self.path}: cannot be written ({error.strerror})"
            ) from None
        with lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:
                pass  # no such locks on Windows; the files are whole all the same
            except OSError:
                raise InputError(
                    f"run folder {self.path}: another process is training in it; wait for it or give another --out"
                ) from None
            yield

    def begin(self, description: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        """Write what the run is, or check that the folder holds the same run.

        `defaults` are those of its settings, which an older folder may not know; those of `Config` if not given.
        """
        self.check_ours()
        if not (self.path / "config.json").exists():
            write_json(self.path / "environment.json", environment())
            write_json(self.path / "config.json", description)
            return
        # A setting that came with a later version had its default before.
        usual = asdict(Config()) if defaults is None else dict(defaults)
        flat = _flat({"settings": usual}) | _flat(self.read_description())
        asked = _flat(json.loads(json.dumps(description)))
        keys = sorted(flat.keys() | asked.keys())
        different = [key for key in keys if key not in _FREE and flat.get(key) != asked.get(key)]
        # a setting says more than the fingerprint it changed
        different.sort(key=lambda key: "fingerprint" in key)
        if different:
            key = different[0]
            raise InputError(
                f"run folder {self.path}: it holds another run ({key.removeprefix('settings.')} is {flat.get(key)!r} "
                f"there, {asked.get(key)!r} here); give another --out, or --overwrite to start anew"
            )

    def check_ours(self) -> None:
        """Raise `InputError` if there is anything in the folder that dspt did not write."""
        if not self.path.is_dir():
            return
        names = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
        strange = [name for name in names if name not in _FILES]
        if not strange and "config.json" in names:
            found = self.read_description()
            if not (
                isinstance(found, dict) and {"format", "settings", "class_names"} <= found.keys()
            ):
                strange = ["config.json"]
        if strange:
            raise InputError(
                f"run folder {self.path}: it has files of something else in it ({strange[0]}); give another folder"
            )

    def clear(self) -> None:
        """Remove the files of the run, if all that is there is one."""
        self.check_ours()
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def read_description(self) -> dict[str, Any]:
        """Return config.json."""
        return _read_json(self.path / "config.json", f"run folder {self.path}")

    def result(self) -> dict[str, Any] | None:
        """Return the figures of the finished run, or None."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        found = _read_json(path, f"run folder {self.path}")
        if not (isinstance(found, dict) and "accuracy" in found):
            raise self._damaged(path.name)
        return found

    def finish(self, result: dict[str, Any]) -> None:
        """Write the figures of the finished run."""
        write_json(self.path / "result.json", result)

    def save_skipped(self, faults: Sequence[Fault]) -> None:
        """Write what was left out, if anything was."""
        if not faults:
            return
        with (
            replacing(self.path / "skipped.csv") as temporary,
            open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            rows = csv.writer(file)
            rows.writerow(["split", "item", "reason"])
            rows.writerows([fault.split, fault.name, fault.reason] for fault in faults)

    # One line for each epoch. The state is written after the line, so there may be a line too many, never one too few.

    def records(self, epochs_done: int) -> list[dict[str, Any]]:
        """Return the records of the first `epochs_done` epochs, dropping any later line from the file."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = lines[:epochs_done]
        if len(kept) < epochs_done:
            raise InputError(
                f"run folder {self.path}: metrics.jsonl has {len(kept)} epochs, but {epochs_done} are done; "
                "give --overwrite to start anew"
            )
        if kept != lines:
            with replacing(path) as temporary:
                temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        try:
            records = [json.loads(line) for line in kept]
            if [record["epoch"] for record in records] == list(range(1, epochs_done + 1)):
                return records
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
            pass
        raise self._damaged("metrics.jsonl")

    def epochs_recorded(self) -> int:
        """Return how many epochs have a record."""
        path = self.path / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def add_record(self, record: dict[str, Any]) -> None:
        """Append the record of an epoch."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def save_state(self, state: State, seconds: float) -> None:
        """Write where to go on from."""
        tensors = {
            f"{group}.{name}": value
            for group in _GROUPS
            for name, value in getattr(state, group).items()
        }
        _save(
            self.path / "state.safetensors",
            tensors,
            {"epochs_done": str(state.epochs_done), "seconds": repr(seconds)},
        )

    def load_state(self) -> tuple[State, float] | None:
        """Return where to go on from and the seconds spent so far, or None."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        tensors, metadata = _load(path)
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            if group not in groups:
                raise self._damaged(path.name)
            groups[group][name] = value
        if not ({"epochs_done", "seconds"} <= metadata.keys() and groups["learnt"]):
            raise self._damaged(path.name)
        return State(int(metadata["epochs_done"]), **groups), float(metadata["seconds"])

    def save_learnt(self, learnt: dict[str, Tensor], prototypes: Tensor | None) -> None:
        """Write what was learnt, and the class prototypes it gives, if they are the same for all images."""
        fixed = {} if prototypes is None else {"prototypes": prototypes}
        _save(self.path / "context.safetensors", {**learnt, **fixed}, {"format": str(FORMAT)})

    def load_learnt(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return what was learnt (nothing for zero-shot), and the class prototypes."""
        path = self.path / "context.safetensors"
        if not path.exists():
            raise InputError(
                f"run folder {self.path}: no context.safetensors in it, so nothing has been learnt yet; "
                "give a folder that dspt train or PromptClassifier.save has finished"
            )
        learnt = _load(path)[0]
        prototypes = learnt.pop("prototypes", None)
        if prototypes is None and "meta.down.weight" not in learnt:  # only CoCoOp has none
            raise self._damaged(path.name)
        return learnt, prototypes

    def _damaged(self, name: str) -> InputError:
        return InputError(
            f"run folder {self.path}: {name} is damaged; remove the folder, or give --overwrite, to start anew"
        )


def environment() -> dict[str, Any]:
    """Return the versions and the machine a result depends on."""
    import numpy

    return {
        "dspt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def describe(
    config: Config, class_names: tuple[str, ...], checkpoint: Checkpoint, **more: Any
) -> dict[str, Any]:
    """Return what config.json says of a run or a saved classifier."""
    return {
        "format": FORMAT,
        **more,
        "settings": asdict(config),
        "model_fingerprint": checkpoint.fingerprint,
        "logit_scale": checkpoint.logit_scale,
        "class_names": list(class_names),
    }


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    with replacing(path) as temporary:
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, metadata
        )


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); give --overwrite to start anew"
        ) from None


def _read_json(path: Path, whose: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{whose}: no {path.name} in it, so it is not a run folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{whose}: {path.name} cannot be read ({error})") from None
    return value


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat


def safe_name(*parts: str) -> str:
    """Return the parts joined to a name for a folder, anything unusual in them replaced."""
    return "-".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts)
