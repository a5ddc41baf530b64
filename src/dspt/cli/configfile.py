"""The settings of a command from a file: what a run's own config.json says, or a file that somebody wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean

# What was asked for in a run's config.json, besides groups of settings; all else there is what came of it.
_ASKED = ("data", "test", "noise")
_GROUPS = ("settings", "data_options")


def _take(context: typer.Context, path: Path | None) -> Path | None:
    """Have the settings in a file stand in for options that are not given."""
    if path is None or context.resilient_parsing:
        return path
    values = _read(path)
    if "settings" in values:
        values = _of_run(path, values)
    by_name = {
        name.removeprefix("--").replace("-", "_"): parameter
        for parameter in context.command.params
        for name in (*parameter.opts, parameter.name or "")
        if parameter.name != "config_file"
    }
    taken: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            raise InputError(
                f"{path}: setting {key!r} is not known{hint}; 'dspt {context.info_name} --help' lists them"
            )
        if value is not None:
            parameter: Any = by_name[name]
            if parameter.name in taken:  # as batch-size and as batch_size
                raise _twice(path, key)
            # As text, which is read and checked like that of an option: 1.5 epochs are no epoch.
            taken[parameter.name] = _written(path, name, value, parameter.multiple)
    context.default_map = taken
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=_take,
        help="Settings from this .yaml or .json file, by the names of options: data, noise, method, epochs, ...; a "
        "run's own config.json does it again. Options on the command line win.",
    ),
]


def _read(path: Path) -> dict[Any, Any]:
    """Return what a YAML or JSON file says."""
    from dspt.internal.files import parse_json, read_text

    kind = path.suffix.lower()
    if kind not in (".yaml", ".yml", ".json"):
        raise InputError(f"config {path}: expected a .yaml or .json file")
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise InputError(f"config {path}: no such file") from None
    if kind == ".json":
        values = parse_json(text, str(path))
        groups: list[list[str]] = []
        json.loads(text, object_pairs_hook=lambda pairs: groups.append([key for key, _ in pairs]))
    else:
        import yaml

        try:
            values = yaml.safe_load(text)
            top = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
        below = [value for _, value in top.value] if isinstance(top, yaml.MappingNode) else []
        mappings = [node for node in (top, *below) if isinstance(node, yaml.MappingNode)]
        groups = [[str(key.value) for key, _ in node.value] for node in mappings]
    for group in groups:
        for key, times in Counter(group).items():
            if times > 1:
                raise _twice(path, key)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected settings with their values, as in 'epochs: 20'")
    return values


def _twice(path: Path, key: Any) -> InputError:
    return InputError(f"{path}: setting {key!r} is there twice; leave one of them out")


def _of_run(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for in a run's config.json, without the facts that came of it."""
    from dspt.runs import Description

    if not all(isinstance(values.get(name, {}), dict) for name in _GROUPS):
        raise InputError(f"{path}: it is not the config.json of a run; its settings are no group")
    facts = {"format", *(field.name for field in fields(Description))} - {*_ASKED}
    asked = {key: value for key, value in values.items() if key not in facts}
    settings = dict(values["settings"])
    if settings.get("learner") == "network":  # a command of its own
        del settings["learner"]
    return {**asked, **values.get("data_options", {}), **settings}


def _written(path: Path, name: str, value: Any, several: bool) -> str | list[str]:
    """Return a value as one would write it on the command line."""
    if not several:
        if isinstance(value, dict | list):
            raise InputError(f"{path}: {name} = {value!r}: expected one value")
        return str(value)
    if isinstance(value, dict):
        value = [f"{key}={inner}" for key, inner in value.items()]
    return [str(each) for each in (value if isinstance(value, list) else [value])]
