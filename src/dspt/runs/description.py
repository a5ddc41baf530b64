"""What a run is: what was asked for and what it was made with, by which it is known again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dspt.config import HARMLESS, NetworkConfig, Settings, config_for, from_dict
from dspt.internal.checks import check_names, check_scale, is_list
from dspt.internal.errors import InputError
from dspt.internal.names import AUTO
from dspt.internal.rounding import counted
from dspt.runs.sealed import canonical, digest_of

# Runs of format 1 have no seals.
FORMAT = 2
_FORMATS = (1, FORMAT)

# What may differ between the beginning of a run and its resumption: how it is done, not what is done. Data are known
# by their fingerprint, wherever they are.
_FREE = {"data", "data_options", "test", "text_tower", *(f"settings.{name}" for name in HARMLESS)}

# What settings were called in earlier versions.
_FORMERLY = {"limit": "shots"}

# What earlier versions did not write; a run without it may be gone on with.
_LATER = {"tokenizer_fingerprint"}

# Methods whose rule is not that of earlier versions, by its number: a run of the old rule is another run.
RULES = {"dspt-auto": 3, "joapr": 2, "logitclip": 2}

# The parts of a description that are texts.
_TEXTS = ("data", "data_fingerprint", "test", "noise", "model_fingerprint", "tokenizer_fingerprint", "text_tower")


@dataclass(frozen=True)
class Description:
    """What a run or a saved classifier is: what was asked for, and what it was made with."""

    settings: Settings
    class_names: tuple[str, ...]
    data: str | None = None
    data_options: Mapping[str, Any] | None = None  # what else was asked of the data: where they lie, which classes
    data_fingerprint: str | None = None
    test: str | None = None  # a test set that was given apart
    noise: str | None = None
    method_rule: int | None = None  # see RULES
    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    text_tower: str | None = None  # its size in words, for readers; the fingerprint says which it is
    text_mended: bool | None = None  # True where a prompt has other tokens than in versions without CLIP's cleaning
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
            and is_list(names, str)
            and all(isinstance(values.get(name), str | None) for name in _TEXTS)
            and isinstance(values.get("data_options"), dict | None)
            and isinstance(values.get("method_rule"), int | None)
            and isinstance(values.get("text_mended"), bool | None)
            and (labels is None or (is_list(labels, str | int | float) and len(labels) == len(names)))
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
        keys = sorted((ours.keys() | theirs.keys()) - unknown)
        different = [key for key in keys if _counts(key) and ours.get(key) != theirs.get(key)]
        # a setting says more than the fingerprint it changed
        different.sort(key=lambda key: "fingerprint" in key)
        if not different:
            return ""
        key = different[0]
        return f"{key.removeprefix('settings.')} is {ours.get(key)!r} there, {theirs.get(key)!r} here"


def identity(described: Any) -> str:
    """Return a digest of all in a config.json that counts."""
    return digest_of(canonical({key: value for key, value in _flat(described).items() if _counts(key)}))


def _counts(key: str) -> bool:
    """Return whether two runs differ if they differ in this, "settings.lr" or "data_options.root"."""
    return key not in _FREE and key.partition(".")[0] not in _FREE


def settings_that_count(settings: Settings) -> dict[str, Any]:
    """Return the settings that make a run another run, where they are not the defaults.

    Defaults are left out, so that a setting which is added one day does not change what is the same today.
    """
    usual = asdict(config_for(settings.learner)())
    if usual["model"] == AUTO:
        usual["model"] = "embedded"  # the default when run folders were first named after their settings
    return {name: value for name, value in asdict(settings).items() if name not in HARMLESS and value != usual[name]}


def made_with(runs: Iterable[tuple[Mapping[str, Any], str]]) -> str:
    """Return in words what the settings and text towers of runs are: "Text tower: A; learnt: prompt; 20 epochs"."""
    known = list(runs)
    learners = " and ".join(sorted({settings["learner"] for settings, _ in known}))
    epochs = sorted({int(settings["epochs"]) for settings, _ in known})
    models = " and ".join(sorted({_tower(str(settings["model"]), size) for settings, size in known}))
    length = " or ".join(counted(number, "epoch") for number in epochs)
    if learners == NetworkConfig.learner:
        return f"Network: {models}; {length}"
    if all(settings["lr"] == 0 for settings, _ in known):
        return f"Text tower: {models}; {learners} as it starts, nothing learnt: one pass over the training samples"
    return f"Text tower: {models}; learnt: {learners}; {length}"


def _tower(model: str, size: str) -> str:
    """Return what a text tower was: its size, and its name where that says more than where it lay."""
    if not os.path.isabs(model):
        return ", ".join(filter(None, [model, size]))  # from the hub, or the embedded one
    return size or f"the one in a folder {Path(model).name}"


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


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat
