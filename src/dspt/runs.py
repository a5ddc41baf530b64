"""A run is a folder that explains itself. Nobody else opens its files.

    config.json           settings, data, noise, class names, fingerprints: what was asked for
    environment.json      versions and machine
    labels.csv            the labels of the train split after noise: item, label and, where it is known, true label
    skipped.csv           what was left out because it could not be read, if anything: split, item, reason
    metrics.jsonl         one line for each epoch
    state.safetensors     where to go on after an interruption
    context.safetensors   what was learnt: the parameters, and the class prototypes they give
    result.json           the figures of the finished run

Every file is whole or absent at any moment, so a killed run goes on where its last epoch ended. State, context and
result are sealed: they carry a digest of what they hold and of the config.json they belong to, and are refused when
either has changed. torch is imported only where tensors are: tables and reports are made without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspt import __version__, noise
from dspt.config import HARMLESS, Settings, config_for, from_dict
from dspt.data import cifar, featurefile, manifest, nine
from dspt.internal.checks import check_names, check_scale, is_number
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import (
    append_text,
    check_regular,
    parse_json,
    read_json,
    read_text,
    remove_left,
    replacing,
    told,
    uninterrupted,
    write_faults,
    write_json,
)
from dspt.internal.names import AUTO, plain
from dspt.internal.progress import Reporter
from dspt.internal.rounding import figure

if TYPE_CHECKING:
    from torch import Tensor

    from dspt.data import Dataset, Split
    from dspt.learners import Parameters
    from dspt.problem import Task
    from dspt.train import Record, State

# Runs of format 1 have no seals.
FORMAT = 2
_FORMATS = (1, FORMAT)

CONFIG, RESULT, ENVIRONMENT = "config.json", "result.json", "environment.json"
LABELS, SKIPPED, METRICS = "labels.csv", "skipped.csv", "metrics.jsonl"
STATE, LEARNT = "state.safetensors", "context.safetensors"
_FILES = (CONFIG, RESULT, ENVIRONMENT, LABELS, SKIPPED, METRICS, STATE, LEARNT)
# What config.json is renamed to when a run is cleared, which ends the run; whatever is beside it is nobody's any more.
_CLEARED = ".cleared.json"
# The config.json of a classifier that is being saved over another; it counts once what was learnt is sealed to it.
_COMING = ".coming.json"
_SEAL = "seal"

# The parts of a state that are named tensors; a tensor is saved under the name of its part and its own.
_GROUPS = {"parameters": "learnt", "momentum": "momentum", "memory": "memory"}

# What may differ between the beginning of a run and its resumption: how it is done, not what is done. Data are known
# by their fingerprint, wherever they are.
_FREE = {"data", "test", *(f"settings.{name}" for name in HARMLESS)}

# What settings were called in earlier versions.
_FORMERLY = {"limit": "shots"}

# What earlier versions did not write; a run without it may be gone on with.
_LATER = {"tokenizer_fingerprint"}

# The parts of a description that are texts.
_TEXTS = ("data", "data_fingerprint", "test", "noise", "model_fingerprint", "tokenizer_fingerprint")

_ANEW = "start anew with `overwrite`"


@dataclass(frozen=True)
class Description:
    """What a run or a saved classifier is: what was asked for, and what it was made with."""

    settings: Settings
    class_names: tuple[str, ...]
    data: str | None = None
    data_fingerprint: str | None = None
    test: str | None = None  # a test set that was given apart
    noise: str | None = None
    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    logit_scale: float | None = None
    labels: tuple[Any, ...] | None = None  # of a saved classifier: the classes as the user writes them

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it; what is not known is left out."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        return {"format": FORMAT, **known}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Description:
        """Return what JSON says. A setting that came with a later version has its default."""
        if values.get("format", FORMAT) not in _FORMATS:
            raise InputError(f"format {values['format']!r}: not known; it was made by another version of dspt")
        names, settings, labels = values["class_names"], values["settings"], values.get("labels")
        sound = (
            isinstance(settings, dict)
            and _is_list(names, str)
            and all(isinstance(values.get(name), str | None) for name in _TEXTS)
            and (labels is None or (_is_list(labels, str | int | float) and len(labels) == len(names)))
        )
        if not sound:
            raise TypeError("not a description")
        check_names(names, "class_names")
        if (scale := values.get("logit_scale")) is not None:
            check_scale(scale, "logit_scale")
        known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(
            **{
                **known,
                "settings": from_dict({_FORMERLY.get(key, key): value for key, value in settings.items()}),
                "class_names": tuple(names),
                "labels": None if labels is None else tuple(labels),
            }
        )

    def difference(self, other: Description) -> str:
        """Return in what the other is not the same run: "lr is 0.1 there, 0.2 here"; "" if in nothing that counts."""
        ours, theirs = _flat(self.as_dict()), _flat(other.as_dict())
        unknown = _LATER - ours.keys()
        keys = sorted((ours.keys() | theirs.keys()) - _FREE - unknown)
        different = [key for key in keys if ours.get(key) != theirs.get(key)]
        # a setting says more than the fingerprint it changed
        different.sort(key=lambda key: "fingerprint" in key)
        if not different:
            return ""
        key = different[0]
        return f"{key.removeprefix('settings.')} is {ours.get(key)!r} there, {theirs.get(key)!r} here"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of a finished run; accuracies are in percent.

    Attributes
    ----------
    model
        The checkpoint, or the network.
    wrong_labels
        The share of wrong labels among those that were learnt from; None where nobody knows.
    accuracy
        On the test set, averaged over `epochs_averaged` last epochs; None without one.
    last_accuracy
        Of what was learnt and is saved: after the last epoch.
    test_labels_known
        Whether the labels of the test set are known to be right; None if it was not written down.
    found
        What was found out about the labels, by name, such as the noise rate.
    skipped
        How many entries of the source were left out.
    """

    data: str
    noise: str
    model: str | None = None
    wrong_labels: float | None = None
    method: str
    seed: int
    epochs: int
    accuracy: float | None
    epochs_averaged: int | None = None
    last_accuracy: float | None = None
    test_labels_known: bool | None = None
    zero_shot: float | None = None
    loss: float | None = None
    found: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    samples: int | None = None
    skipped: int = 0
    run: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it: what was found stands beside the rest."""
        flat: dict[str, Any] = {}
        for key, value in asdict(self).items():
            flat |= value if key == "found" else {key: value}
        return flat

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return what JSON says; raise ValueError for what no run can have."""
        known = {each.name for each in fields(cls)} - {"found"}
        found = {key: value for key, value in values.items() if key not in known}
        made = cls(**{key: values[key] for key in known if key in values}, found=found)
        odd = [name for name, sound in _SOUND.items() if not sound(getattr(made, name))]
        odd += [name for name, value in found.items() if not is_number(value)]
        if odd:
            raise ValueError(f"{odd[0]}: no run can have {values[odd[0]]!r}")
        return made


def _is_count(value: object) -> bool:
    return type(value) is int and is_number(value, 0)


# What the fields of a result may be.
_SOUND: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("data", "noise", "method", "run"), lambda value: isinstance(value, str)),
    **dict.fromkeys(
        ("accuracy", "last_accuracy", "zero_shot"), lambda value: value is None or is_number(value, 0, 100)
    ),
    "wrong_labels": lambda value: value is None or is_number(value, 0, 1),
    "loss": lambda value: value is None or is_number(value),
    "seconds": lambda value: is_number(value, 0, 1e12),  # 30,000 years
    "seed": lambda value: type(value) is int,
    "epochs": _is_count,
    **dict.fromkeys(("samples", "epochs_averaged"), lambda value: value is None or _is_count(value)),
    "model": lambda value: value is None or isinstance(value, str),
    "test_labels_known": lambda value: value is None or isinstance(value, bool),
    "skipped": _is_count,
}


@dataclass(frozen=True)
class Learnt:
    """What came out of training."""

    parameters: Parameters
    prototypes: Tensor | None  # (C, D), if they are the same for all images
    records: list[Record]
    found: dict[str, float]
    zero_shot: float | None  # test accuracy of the fixed prompt
    seconds: float


class Run:
    """The folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._known: str | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone, and remove the temporary files of those that were killed in it."""
        from filelock import FileLock, Timeout

        with told(f"run folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / ".lock"
            if file.is_symlink():  # a lock would open what it points to
                raise InputError(f"run folder {self.path}: its .lock is a link to another file; remove it")
            lock = FileLock(file, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise InputError(
                    f"run folder {self.path}: another process is training in it; wait for it",
                    "or choose another folder with `out`",
                ) from None
        try:
            remove_left(self.path, everything=True)
            yield
        finally:
            lock.release()

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
                f"choose another folder with `out`, or {_ANEW}",
            )

    def check_ours(self) -> None:
        """Raise `InputError` if there is anything in the folder that dspt did not write."""
        if not self.path.is_dir():
            return
        found = {p.name for p in self.path.iterdir()}
        names = sorted(name for name in found if not name.startswith("."))
        strange = [name for name in names if name not in _FILES]
        if not strange and CONFIG in names:
            described = _read_json(self.path / CONFIG, f"run folder {self.path}")
            if not (isinstance(described, dict) and {"format", "settings", "class_names"} <= described.keys()):
                strange = [CONFIG]
        elif not strange and not found & {_CLEARED, _COMING}:
            # it is written before all that says anything
            strange = [name for name in names if name != ENVIRONMENT]
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
            for name in _FILES:
                (self.path / name).unlink(missing_ok=True)
        cleared.unlink()

    @property
    def is_done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / RESULT).exists() and (self.path / CONFIG).exists()

    @property
    def is_begun(self) -> bool:
        """Whether there is a run of `dspt train` in the folder, finished or not."""
        return self.is_done or (self.path / STATE).exists()

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
        seal = {"identity": self.identity(), "records": _digest(*self._lines())}
        seal["digest"] = _digest(_canonical(seal), _canonical(figures))
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
        self._check_seal(RESULT, seal, digest, lambda: _digest(_canonical(seal), _canonical(figures)))
        return figures, seal

    def identity(self) -> str:
        """Return what tells the run from every other: a digest of all in config.json that counts."""
        if self._known is None:
            there = self._config().exists()
            self._known = _identity(self._described()) if there else ""
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
                f"or {_ANEW}",
            )
        if digest != holds():
            raise self._damaged(name)

    def _described(self) -> Any:
        return _read_json(self._config(), f"run folder {self.path}")

    def _config(self) -> Path:
        """Return config.json, or what would have taken its place, had a kill not come between."""
        coming = self.path / _COMING
        if coming.exists() and _identity(_read_json(coming, f"run folder {self.path}")) == self._learnt_with():
            return coming
        return self.path / CONFIG

    def _learnt_with(self) -> str | None:
        """Return the identity of the run that what was learnt belongs to, if it tells."""
        path = self.path / LEARNT
        return _metadata(path, "np").get("identity") if path.exists() else None

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
        if done and done[1].get("records", _digest(*lines)) != _digest(*lines):
            raise self._damaged(METRICS)
        if len(lines) < (epochs or 0):
            raise InputError(
                f"run folder {self.path}: {METRICS} has {len(lines)} epochs, but {epochs} are done",
                _ANEW,
            )
        try:
            records = [parse_json(line) for line in lines[:epochs]]
            if all(map(_is_record, records)) and [r["epoch"] for r in records] == list(range(1, len(records) + 1)):
                return records
        except InputError:
            pass
        raise self._damaged(METRICS)

    def epochs_recorded(self) -> int:
        """Return how many epochs have a record."""
        return len(self._lines())

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
            "records": _digest(*self._lines()[: state.epochs_done]),
        }
        _save(self.path / STATE, tensors, known)

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
        if not state.parameters or not _all_sound(state.parameters) or state.epochs_done < 0:
            raise self._damaged(STATE)
        lines = self._lines()[: state.epochs_done]
        if len(lines) == state.epochs_done and known.get("records", _digest(*lines)) != _digest(*lines):
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
            self._known = _identity(description.as_dict())
            self.save_learnt(parameters, prototypes)
            os.replace(self.path / _COMING, self.path / CONFIG)

    def save_learnt(self, parameters: Parameters, prototypes: Tensor | None) -> None:
        """Write what was learnt, and the class prototypes it gives, if they are the same for all images."""
        if "prototypes" in parameters:
            raise ValueError("a parameter cannot be called prototypes: what they give is saved under this name")
        fixed = {} if prototypes is None else {"prototypes": prototypes}
        _save(self.path / LEARNT, {**parameters, **fixed}, {"identity": self.identity()})

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
        if not _all_sound(parameters) or (prototypes is not None and not _all_sound({"prototypes": prototypes})):
            raise self._damaged(LEARNT)
        if prototypes is not None and not prototypes.is_floating_point():
            raise self._damaged(LEARNT)
        if prototypes is not None and (prototypes.ndim != 2 or len(prototypes) != len(description.class_names)):
            raise InputError(
                f"run folder {self.path}: {LEARNT} has prototypes of shape {tuple(prototypes.shape)}, and {CONFIG} "
                f"names {len(description.class_names)} classes; remove the folder",
                f"or {_ANEW}",
            )
        return parameters, prototypes

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors of a file and what is known about them, once its seal is whole."""
        path = self.path / name
        tensors, known = _tensors(path), _metadata(path)
        digest = known.pop("digest", None)
        self._check_seal(name, known, digest, lambda: _tensor_digest(tensors, known))
        return tensors, known

    def _damaged(self, name: str) -> InputError:
        return InputError(f"run folder {self.path}: {name} is damaged; remove the folder", f"or {_ANEW}")


@dataclass(frozen=True)
class Finished:
    """A finished run, as its folder tells it."""

    run: Run
    description: Description
    result: Result


class NotUsed(InputError):
    """Why a run folder is not used, by tables or at all: `folder`, and the `reason` without its name."""

    def __init__(self, folder: Path, why: InputError) -> None:
        self.folder = folder
        self.reason = InputError(why.sentence.removeprefix(f"run folder {folder}: "), why.advice)
        super().__init__(f"run folder {folder}: {self.reason.sentence}", why.advice)


def find(folder: Path, tell: Callable[[NotUsed], None] = lambda why: None) -> list[Finished]:
    """Return the finished runs below a folder, sorted by path.

    A run that is not finished, a damaged one, one of another version or with the result of another run is passed over;
    `tell` hears which and why.
    """
    found = []
    for path in sorted(Path(path) for path, *names in os.walk(folder) if {RESULT, STATE} & {*names[0], *names[1]}):
        try:
            found.append(_finished(Run(path)))
        except InputError as why:
            tell(NotUsed(path, why))
    return found


def _finished(run: Run) -> Finished:
    for name in _FILES:
        if (run.path / name).exists() and not (run.path / name).is_file():  # a pipe would be read for ever
            raise InputError(f"run folder {run.path}: {name} is not a regular file; remove it")
    description, result = run.description(), run.result()
    if result is None:
        raise InputError(f"run folder {run.path}: it is not finished; the command that began it goes on with it")
    if difference := _difference(description, result):
        raise InputError(
            f"run folder {run.path}: its {RESULT} belongs to another run ({difference}); remove the folder"
        )
    return Finished(run, description, result)


def _difference(description: Description, result: Result) -> str:
    """Return in what a result is not of the run described: "its seed is 2, not 1"; "" if in nothing."""
    settings, source = description.settings, description.data or ""
    asked = {
        "data": result.data if _may_be_called(source, result.data) else source,
        "noise": description.noise or result.noise,
        "method": settings.method,
        "seed": settings.seed,
        "epochs": settings.epochs if result.epochs else 0,  # zero-shot learns in none
    }
    given = {name: getattr(result, name) for name in asked}
    return next(
        (f"its {name} is {given[name]!r}, not {asked[name]!r}" for name in asked if given[name] != asked[name]), ""
    )


def _may_be_called(source: str, name: str) -> bool:
    """Return whether data of this source may have this name. A folder may be a link to one of any name."""
    if known := _known(source):
        return known is _known(name)
    path = Path(source)
    return path.suffix not in (*manifest.SUFFIXES, *featurefile.SUFFIXES) or plain(path.stem) == plain(name)


def _known(name: str) -> object:
    return nine.find(name) or cifar.find(name)


def learn(task: Task, run: Run | None = None, reporter: Reporter | None = None) -> Learnt:
    """Return what a task gives, after the epochs that the folder of its run does not have yet.

    Parameters
    ----------
    task : Task
        What is learnt from what, by whom and how.
    run : Run, optional
        The folder, in which each epoch is saved as soon as it is done.
    reporter : Reporter, optional
        Shows how far the work is.
    """
    import torch

    from dspt.train import State, findings, fit, zero_shot_accuracy

    reporter = reporter or Reporter(silent=True)
    learner, epochs = task.learner, task.config.epochs
    started = time.monotonic()
    zero_shot = zero_shot_accuracy(task)
    if not task.method.trains:
        return Learnt({}, learner.zero_shot, [], {}, zero_shot, time.monotonic() - started)

    state, before = (run and run.load_state()) or (State(0, task.start), 0.0)
    records = run.records(state.epochs_done) if run else []
    if run:
        run.drop_records(state.epochs_done)
    if records:
        reporter.say(f"going on after epoch {state.epochs_done} of {epochs}")
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


def settings_that_count(settings: Settings) -> dict[str, Any]:
    """Return the settings that make a run another run, where they are not the defaults.

    Defaults are left out, so that a setting which is added one day does not change what is the same today.
    """
    usual = asdict(config_for(settings.learner)())
    if usual["model"] == AUTO:
        usual["model"] = "embedded"  # the default when run folders were first named after their settings
    return {name: value for name, value in asdict(settings).items() if name not in HARMLESS and value != usual[name]}


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


def default_folder(data: str, settings: Settings, noise_spec: str) -> Path:
    """Return runs/DATA-METHOD-NOISE-seedN.

    Parameters
    ----------
    data : str
        The dataset's name or path; of a path the last part counts, without its suffix.
    settings : Settings
        Gives the `name` of the run and the seed.
    noise_spec : str
        The noise, as `str` of a `NoiseSpec` writes it.

    Returns
    -------
    Path
        Relative to the working directory; unusual characters are replaced.
    """
    return Path("runs") / safe_name(Path(data).stem, settings.name, noise_spec, f"seed{settings.seed}")


def safe_name(*parts: str) -> str:
    """Return the parts joined to a name for a folder, anything unusual in them replaced."""
    return "-".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts)


def _save(path: Path, tensors: Mapping[str, Tensor], known: dict[str, str]) -> None:
    """Write tensors and what is known about them, sealed."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    sealed = {**known, "digest": _tensor_digest(tensors, known)}
    with replacing(path) as temporary:
        # one entry, since safetensors writes several in no order
        temporary.write_bytes(save(tensors, {"dspt": _canonical(sealed)}))


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({error})", _ANEW) from None


def _all_sound(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether all are as learners have them: finite, of single precision, or counts."""
    return all(
        str(value.dtype) in ("torch.float32", "torch.int64") and bool(value.isfinite().all())
        for value in tensors.values()
    )


def _metadata(path: Path, framework: str = "pt") -> dict[str, str]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework=framework) as file:
            found: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({error})", _ANEW) from None
    known = parse_json(found["dspt"], str(path)) if "dspt" in found else found
    if isinstance(known, dict) and all(isinstance(value, str) for value in known.values()):
        return known
    raise InputError(f"{path}: cannot be read (its metadata are not dspt's)", _ANEW)


def _tensor_digest(tensors: Mapping[str, Tensor], known: Mapping[str, str]) -> str:
    import torch

    digest = hashlib.sha256(_canonical(known).encode())  # processors have instructions for it: twice as fast as others
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _identity(described: Any) -> str:
    """Return a digest of all in a config.json that counts."""
    return _digest(_canonical({key: value for key, value in _flat(described).items() if key not in _FREE}))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _digest(*texts: str) -> str:
    joined = "\n".join(texts).encode(errors="surrogatepass")
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


def _read_json(path: Path, whose: str) -> Any:
    try:
        return read_json(path, f"{whose}: {path.name}")
    except FileNotFoundError:
        raise InputError(f"{whose}: no {path.name} in it, so it is not a run folder") from None


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat


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
    return isinstance(value, dict) and all(_is_list(value.get(part), int | float) for part in parts)


def _is_list(value: object, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)
