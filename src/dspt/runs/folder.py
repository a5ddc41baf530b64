"""The folder of one run: its files, its lock, its seals. Nobody else opens its files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt import __version__, noise
from dspt.internal.checks import is_list
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import (
    append_text,
    is_locked,
    locked_folder,
    parse_json,
    read_json,
    read_text,
    remove_left,
    replacing,
    told,
    write_faults,
    write_json,
    write_text,
)
from dspt.runs.description import FORMAT, Description, identity
from dspt.runs.result import Result
from dspt.runs.sealed import (
    ANEW,
    all_sound,
    canonical,
    digest_of,
    load_known,
    load_tensors,
    save_tensors,
    tensor_digest,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dspt.data import Dataset, Split
    from dspt.learners import Parameters
    from dspt.train import Record, State

CONFIG, RESULT, ENVIRONMENT = "config.json", "result.json", "environment.json"
LABELS, SKIPPED, METRICS = "labels.csv", "skipped.csv", "metrics.jsonl"
STATE, LEARNT = "state.safetensors", "context.safetensors"
FAILURE = "failure.txt"
FILES = (CONFIG, RESULT, ENVIRONMENT, LABELS, SKIPPED, METRICS, STATE, LEARNT, FAILURE)
# How TensorBoard's files begin, if the run is logged there (runs/logs).
EVENTS = "events.out.tfevents."
# What config.json is renamed to when a run is cleared, which ends the run; whatever is beside it is nobody's any more.
_CLEARED = ".cleared.json"
# The config.json of a classifier that is being saved over another; it counts once what was learnt is sealed to it.
_COMING = ".coming.json"
_SEAL = "seal"

# The parts of a state that are named tensors; a tensor is saved under the name of its part and its own.
_GROUPS = {"parameters": "learnt", "momentum": "momentum", "memory": "memory"}


class Run:
    """The folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._known: str | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone, and remove the temporary files of those that were killed in it."""
        with locked_folder(self.path, f"run folder {self.path}", "another process is training in it"):
            remove_left(self.path, everything=True)
            yield

    def begin(self, description: Description, overwrite: bool = False) -> None:
        """Write what the run is, or check that the folder holds the same run."""
        if overwrite:
            self.clear()
        with told(f"run folder {self.path}"):
            self._remove_cleared()
        self.check_ours()
        self._known = None
        if not self._config().exists():
            write_json(self.path / ENVIRONMENT, environment())
            write_json(self.path / CONFIG, description.as_dict())
        elif difference := self.description().difference(description):
            raise InputError(
                f"run folder {self.path}: it holds another run ({difference})",
                f"choose another folder with `out`, or {ANEW}",
            )
        with told(f"run folder {self.path}"):
            (self.path / FAILURE).unlink(missing_ok=True)

    def check_ours(self) -> None:
        """Raise `InputError` if there is anything in the folder that dspt did not write."""
        if not self.path.is_dir():
            return
        found = {p.name for p in self.path.iterdir()}
        names = sorted(name for name in found if not name.startswith("."))
        strange = [name for name in names if name not in FILES and not name.startswith(EVENTS)]
        if not strange and CONFIG in names:
            described = _read_json(self.path / CONFIG, f"run folder {self.path}")
            if not (isinstance(described, dict) and {"format", "settings", "class_names"} <= described.keys()):
                strange = [CONFIG]
        elif not strange and not found & {_CLEARED, _COMING}:
            # they are written before all that says anything
            strange = [name for name in names if name not in (ENVIRONMENT, FAILURE)]
        if strange:
            raise InputError(
                f"run folder {self.path}: it has files of something else in it ({strange[0]}); give another folder"
            )

    def clear(self) -> None:
        """Remove the files of the run, if all that is there is one. A kill leaves all of it or no run."""
        with told(f"run folder {self.path}"):
            self._remove_cleared()
            self.check_ours()
            if (self.path / CONFIG).exists():
                os.replace(self.path / CONFIG, self.path / _CLEARED)
                self._remove_cleared()
            (self.path / _COMING).unlink(missing_ok=True)
        self._known = None

    def _remove_cleared(self) -> None:
        """Remove what is left of a run that was cleared, if one was."""
        cleared = self.path / _CLEARED
        if not cleared.exists():
            return
        if not (self.path / CONFIG).exists():
            for path in (*(self.path / name for name in FILES), *self.path.glob(f"{EVENTS}*")):
                path.unlink(missing_ok=True)
        cleared.unlink()

    @property
    def is_done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / RESULT).exists() and (self.path / CONFIG).exists()

    @property
    def is_begun(self) -> bool:
        """Whether there is a run of `dspt train` in the folder, finished or not."""
        return self.is_done or (self.path / STATE).exists()

    @property
    def is_held(self) -> bool:
        """Whether a process is at work in the folder at this moment."""
        return is_locked(self.path)

    def fail(self, reason: str, details: str) -> None:
        """Write why the run failed, in one line, and the details, a traceback; the next try removes it.

        Nothing is written where the run is finished, where another process is at work, or where the folder is not a
        run's; nor where nothing can be: the reason is told anyway.
        """
        with suppress(InputError, OSError), self.locked():
            self.check_ours()
            if not self.is_done:
                write_text(self.path / FAILURE, f"{reason}\n\n{details}")

    def failure(self) -> str | None:
        """Return why the last try of the run failed, in one line; None if it did not."""
        try:
            return read_text(self.path / FAILURE).partition("\n")[0]
        except FileNotFoundError:
            return None

    def seconds_spent(self) -> float:
        """Return the seconds that the epochs took whose state is saved; 0 if that is not known."""
        try:
            return float(load_known(self.path / STATE, "np")["seconds"]) if (self.path / STATE).exists() else 0.0
        except (InputError, KeyError, ValueError):
            return 0.0

    def description(self) -> Description:
        """Return what the run is."""
        found = self._described()
        try:
            return Description.from_dict(found)
        except InputError as error:
            raise InputError(f"run folder {self.path}: {error}") from None
        except (KeyError, TypeError, AttributeError):
            raise InputError(f"run folder {self.path}: its {CONFIG} is not one of dspt's") from None

    def result(self) -> Result | None:
        """Return the figures of the finished run, or None."""
        found = self._read_result()
        if found is None:
            return None
        try:
            return Result.from_dict(found[0])
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self._damaged(RESULT) from None

    def finish(self, result: Result) -> None:
        """Write the figures of the finished run."""
        figures = result.as_dict()
        seal = {"identity": self.identity(), "records": digest_of(*self._lines())}
        seal["digest"] = digest_of(canonical(seal), canonical(figures))
        write_json(self.path / RESULT, {**figures, _SEAL: seal})

    def _read_result(self) -> tuple[Any, Mapping[str, str]] | None:
        """Return the figures and their seal, which is empty for runs of format 1; None if the run is not finished."""
        if not self.is_done:
            return None
        figures = _read_json(self.path / RESULT, f"run folder {self.path}")
        seal = figures.pop(_SEAL, {}) if isinstance(figures, dict) else {}
        if not isinstance(seal, dict):
            raise self._damaged(RESULT)
        digest = seal.pop("digest", None)
        self._check_seal(RESULT, seal, digest, lambda: digest_of(canonical(seal), canonical(figures)))
        return figures, seal

    def identity(self) -> str:
        """Return what tells the run from every other: a digest of all in config.json that counts."""
        if self._known is None:
            there = self._config().exists()
            self._known = identity(self._described()) if there else ""
        return self._known

    def _check_seal(self, name: str, seal: Mapping[str, Any], digest: object, holds: Callable[[], str]) -> None:
        """Raise `InputError` unless a file is as it was written, and beside the config.json that it belongs to."""
        if digest is None and "identity" not in seal:
            described = self._described() if self._config().exists() else {}
            if isinstance(described, dict) and described.get("format") == FORMAT:
                raise self._damaged(name)
            return  # there were no seals yet
        if seal.get("identity") != self.identity():
            raise InputError(
                f"run folder {self.path}: {name} belongs to another run than {CONFIG}, or one of them was changed; "
                "remove the folder",
                f"or {ANEW}",
            )
        if digest != holds():
            raise self._damaged(name)

    def _described(self) -> Any:
        return _read_json(self._config(), f"run folder {self.path}")

    def _config(self) -> Path:
        """Return config.json, or what would have taken its place, had a kill not come between."""
        coming = self.path / _COMING
        if coming.exists() and identity(_read_json(coming, f"run folder {self.path}")) == self._learnt_with():
            return coming
        return self.path / CONFIG

    def _learnt_with(self) -> str | None:
        """Return the identity of the run that what was learnt belongs to, if it tells."""
        path = self.path / LEARNT
        return load_known(path, "np").get("identity") if path.exists() else None

    def environment(self) -> dict[str, Any]:
        """Return the versions and the machine of the run; nothing if they are not known."""
        try:
            found = _read_json(self.path / ENVIRONMENT, f"run folder {self.path}")
        except InputError:
            return {}
        return found if isinstance(found, dict) else {}

    def save_labels(self, dataset: Dataset, given: Split) -> None:
        """Write the labels of the train split after noise, each with its item."""
        noise.write_split(self.path / LABELS, dataset, given)

    def save_skipped(self, faults: Sequence[Fault]) -> None:
        """Write what was left out, if anything was."""
        if not faults:
            return
        write_faults(self.path / SKIPPED, faults)

    # One line for each epoch. The state is written after the line, so there may be a line too many, never one too few.

    def records(self, epochs: int | None = None) -> list[Record]:
        """Return the records of the first `epochs` epochs, or of all that have one."""
        lines = self._lines()
        done = self._read_result()
        if done and done[1].get("records", digest_of(*lines)) != digest_of(*lines):
            raise self._damaged(METRICS)
        if len(lines) < (epochs or 0):
            raise InputError(
                f"run folder {self.path}: {METRICS} has {len(lines)} epochs, but {epochs} are done",
                ANEW,
            )
        try:
            records = [parse_json(line) for line in lines[:epochs]]
            if all(map(_is_record, records)):
                numbers = [record["epoch"] for record in records]
                if numbers in ([0], list(range(1, len(records) + 1))):  # 0 is what was solved at once
                    return records
        except InputError:
            pass
        raise self._damaged(METRICS)

    def epochs_recorded(self) -> int:
        """Return how many epochs have a record."""
        return len(self._lines())

    def reached(self) -> tuple[int, float | None]:
        """Return how many epochs have a record, and the last test accuracy so far; a run under way may be asked."""
        epochs, accuracy = 0, None
        for line in self._lines():
            try:
                record = parse_json(line)
            except InputError:  # but half-written
                break
            epochs, accuracy = epochs + 1, record.get("accuracy", accuracy) if _is_record(record) else accuracy
        return epochs, accuracy

    def _lines(self) -> list[str]:
        try:
            return read_text(self.path / METRICS).splitlines()
        except FileNotFoundError:
            return []
        except InputError:
            raise self._damaged(METRICS) from None

    def drop_records(self, epochs_done: int) -> None:
        """Remove the lines of epochs whose state was not saved any more."""
        lines = self._lines()
        if len(lines) > epochs_done:
            with replacing(self.path / METRICS) as temporary:
                kept = "".join(line + "\n" for line in lines[:epochs_done])
                temporary.write_text(kept, encoding="utf-8")

    def add_record(self, record: Record) -> None:
        """Append the record of an epoch."""
        append_text(self.path / METRICS, json.dumps(record) + "\n")

    def save_state(self, state: State, seconds: float) -> None:
        """Write where to go on from."""
        tensors = {
            f"{group}.{name}": value for part, group in _GROUPS.items() for name, value in getattr(state, part).items()
        }
        known = {
            "identity": self.identity(),
            "epochs_done": str(state.epochs_done),
            "seconds": repr(seconds),
            "records": digest_of(*self._lines()[: state.epochs_done]),
        }
        save_tensors(self.path / STATE, tensors, known)

    def load_state(self) -> tuple[State, float] | None:
        """Return where to go on from and the seconds spent so far, or None."""
        from dspt.train import State

        if not (self.path / STATE).exists():
            return None
        tensors, known = self._load(STATE)
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in _GROUPS}
        of_group = {group: part for part, group in _GROUPS.items()}
        try:
            for key, value in tensors.items():
                group, _, name = key.partition(".")
                parts[of_group[group]][name] = value
            state, seconds = State(int(known["epochs_done"]), **parts), float(known["seconds"])
        except (KeyError, ValueError):
            raise self._damaged(STATE) from None
        if not state.parameters or not all_sound(state.parameters) or state.epochs_done < 0:
            raise self._damaged(STATE)
        lines = self._lines()[: state.epochs_done]
        if len(lines) == state.epochs_done and known.get("records", digest_of(*lines)) != digest_of(*lines):
            raise self._damaged(METRICS)
        return state, seconds

    def save(self, description: Description, parameters: Parameters, prototypes: Tensor | None) -> None:
        """Write a classifier that is no run, in place of another if there is one.

        A kill leaves the one or the other, since a single rename makes the difference: that of what was learnt, which
        is sealed to its description.

        Parameters
        ----------
        description : Description
            What the classifier is.
        parameters : dict of str to Tensor
            What was learnt.
        prototypes : Tensor of shape (C, D), optional
            What it gives, if that is the same for all images.
        """
        self.check_ours()
        with self.locked(), told(f"run folder {self.path}"):
            self._remove_cleared()
            if self.is_begun:
                raise InputError(f"folder {self.path}: it holds a run of dspt train; give another one")
            if (current := self._config()) != self.path / CONFIG:
                os.replace(current, self.path / CONFIG)
            write_json(self.path / ENVIRONMENT, environment())
            write_json(self.path / _COMING, description.as_dict())
            self._known = identity(description.as_dict())
            self.save_learnt(parameters, prototypes)
            os.replace(self.path / _COMING, self.path / CONFIG)

    def save_learnt(self, parameters: Parameters, prototypes: Tensor | None) -> None:
        """Write what was learnt, and the class prototypes it gives, if they are the same for all images."""
        if "prototypes" in parameters:
            raise ValueError("a parameter cannot be called prototypes: what they give is saved under this name")
        fixed = {} if prototypes is None else {"prototypes": prototypes}
        save_tensors(self.path / LEARNT, {**parameters, **fixed}, {"identity": self.identity()})

    def load_learnt(self) -> tuple[Parameters, Tensor | None]:
        """Return what was learnt (nothing for zero-shot), and the class prototypes if there are any."""
        from dspt.learners import LEARNERS

        if not (self.path / LEARNT).exists():
            raise InputError(
                f"run folder {self.path}: no {LEARNT} in it, so nothing has been learnt yet; "
                "give a folder that dspt train or PromptClassifier.save has finished"
            )
        parameters = self._load(LEARNT)[0]
        prototypes = parameters.pop("prototypes", None)
        description = self.description()
        kind = LEARNERS.get(description.settings.learner)
        if prototypes is None and kind is not None and kind.has_prototypes:
            raise self._damaged(LEARNT)
        if not all_sound(parameters) or (prototypes is not None and not all_sound({"prototypes": prototypes})):
            raise self._damaged(LEARNT)
        if prototypes is not None and not prototypes.is_floating_point():
            raise self._damaged(LEARNT)
        if prototypes is not None and (prototypes.ndim != 2 or len(prototypes) != len(description.class_names)):
            raise InputError(
                f"run folder {self.path}: {LEARNT} has prototypes of shape {tuple(prototypes.shape)}, and {CONFIG} "
                f"names {len(description.class_names)} classes; remove the folder",
                f"or {ANEW}",
            )
        return parameters, prototypes

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors of a file and what is known about them, once its seal is whole."""
        path = self.path / name
        tensors, known = load_tensors(path), load_known(path)
        digest = known.pop("digest", None)
        self._check_seal(name, known, digest, lambda: tensor_digest(tensors, known))
        return tensors, known

    def _damaged(self, name: str) -> InputError:
        return InputError(f"run folder {self.path}: {name} is damaged; remove the folder", f"or {ANEW}")


def environment() -> dict[str, Any]:
    """Return the versions and the machine a result depends on."""
    import torch

    return {
        "dspt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def _read_json(path: Path, whose: str) -> Any:
    try:
        return read_json(path, f"{whose}: {path.name}")
    except FileNotFoundError:
        raise InputError(f"{whose}: no {path.name} in it, so it is not a run folder") from None
    except InputError as error:
        if isinstance(error.__context__, OSError):
            raise  # nothing is known about what is in it
        raise InputError(f"{error.sentence}; remove the folder", "or choose another one with `out`") from None


def _is_record(value: object) -> bool:
    """Return whether this is the record of an epoch: a number under each name, but for the histogram."""
    return (
        isinstance(value, dict)
        and "epoch" in value
        and all(
            _is_histogram(found) if name == "gradient_histogram" else found is None or isinstance(found, int | float)
            for name, found in value.items()
        )
    )


def _is_histogram(value: object) -> bool:
    parts = ("edges", "right", "wrong")
    return isinstance(value, dict) and all(is_list(value.get(part), int | float) for part in parts)
