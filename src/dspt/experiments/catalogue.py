"""The experiments of the paper: declarations, from which runs, tables and figures are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from types import MappingProxyType
from typing import Any

from dspt.internal.errors import InputError


@dataclass(frozen=True)
class Entry:
    """A way to learn, as a table shows it: a label, a method, and its hyper-parameters if not the defaults."""

    label: str
    method: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A place to learn in: a dataset and a noise."""

    dataset: str  # as in the paper: "Caltech101"
    noise: str  # as `dspt train --noise` takes it: "sym:0.4"


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment."""

    setting: Setting
    entry: Entry
    seed: int
    config: Mapping[str, Any]  # settings of `Config` that are not the defaults


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper: every setting with every entry and every seed."""

    name: str
    kind: str  # "table" or "figure"
    title: str
    settings: tuple[Setting, ...]
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    from_scratch: bool = False  # a ResNet on pixels, no CLIP

    def runs(self) -> Iterator[RunSpec]:
        """Give the runs, dataset by dataset, so that each is encoded before the next."""
        for setting, entry, seed in product(self.settings, self.entries, self.seeds):
            yield RunSpec(setting, entry, seed, self.config)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the datasets, in order."""
        return tuple(dict.fromkeys(setting.dataset for setting in self.settings))

    @property
    def noises(self) -> tuple[str, ...]:
        """The noises, in order."""
        return tuple(dict.fromkeys(setting.noise for setting in self.settings))


def _grid(datasets: Sequence[str], noises: Sequence[str]) -> tuple[Setting, ...]:
    return tuple(Setting(dataset, noise) for dataset, noise in product(datasets, noises))


NINE = (
    *("Caltech101", "FGVCAircraft", "StanfordCars", "DTD", "OxfordPets"),
    *("EuroSAT", "Flowers102", "UCF101", "Food101"),
)

COOP = Entry("CoOp", "coop")
CE = Entry("CE", "coop")  # the same loss, where there is no prompt
SMOOTHING = Entry("Smoothing", "smoothing")
BOOTSTRAP = Entry("Bootstrap", "bootstrap")
LOGITNORM = Entry("LogitNorm", "logitnorm")
LOGITCLIP = Entry("LogitClip", "logitclip")
SQUARE = Entry("Square", "square")
NCE = Entry("NCE", "nce")
NCE_RCE = Entry("NCE+RCE", "nce-rce")
SCE = Entry("SCE", "sce")
HARD_BOOTSTRAP = Entry("Bootstrap, hard", "bootstrap-hard")
JOAPR = Entry("JoAPR", "joapr")
SELECT = Entry("Select", "select")
NLPROMPT = Entry("NLPrompt", "nlprompt")
UPL = Entry("UPL", "upl")
ROBUST_UPL = Entry("Robust-UPL", "robust-upl")
GCE = Entry("GCE", "gce")
MAE = Entry(
    "MAE", "mae"
)  # DSPT's nearest neighbour: beside it in every table, though not in the paper
DSPT = Entry("DSPT", "dspt")
DSPT_AUTO = Entry("DSPT-auto", "dspt-auto")  # ours, not in the paper

# The paper does not say at which values it drew LogitClip.
TAUS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "main",
            "table",
            "Accuracy (%) on nine datasets under symmetric and pair-flip noise",
            _grid(NINE, ("sym:0.4", "sym:0.6", "sym:0.8", "pair:0.2", "pair:0.3", "pair:0.4")),
            (COOP, SMOOTHING, LOGITNORM, NLPROMPT, GCE, MAE, DSPT, DSPT_AUTO),
        ),
        Experiment(
            "extreme",
            "table",
            "Accuracy (%) under extreme noise",
            _grid(("Caltech101", "DTD"), ("sym:0.9", "pair:0.8")),
            (COOP, SMOOTHING, BOOTSTRAP, LOGITNORM, SELECT, NLPROMPT, MAE, DSPT),
        ),
        Experiment(
            "similar",
            "table",
            "Accuracy (%) of similar losses: smoothed, bounded or normalised",
            _grid(("Caltech101", "OxfordPets"), ("sym:0.6", "pair:0.3")),
            (SMOOTHING, LOGITNORM, SQUARE, BOOTSTRAP, NCE, LOGITCLIP, MAE, DSPT),
        ),
        Experiment(
            "unsupervised",
            "table",
            "Accuracy (%) without labels: zero-shot and its own predictions as labels",
            _grid(NINE, ("none",)),
            (UPL, ROBUST_UPL),
        ),
        Experiment(
            "cifar10",
            "table",
            "Accuracy (%) of a ResNet-34 trained from scratch on CIFAR-10",
            _grid(("CIFAR10",), ("sym:0.2", "sym:0.5", "sym:0.8", "pair:0.2", "pair:0.4")),
            (CE, LOGITCLIP, BOOTSTRAP, GCE, SMOOTHING, MAE, DSPT),
            from_scratch=True,
        ),
        Experiment(
            "methods",
            "table",
            "Accuracy (%) of every method, on clean labels and under two kinds of noise",
            _grid(("Caltech101",), ("none", "sym:0.6", "pair:0.4")),
            (
                *(COOP, SMOOTHING, BOOTSTRAP, HARD_BOOTSTRAP, LOGITNORM, LOGITCLIP, SQUARE, SELECT),
                *(NLPROMPT, JOAPR, UPL, ROBUST_UPL, GCE, NCE, SCE, NCE_RCE, MAE, DSPT, DSPT_AUTO),
            ),
            seeds=(1,),
        ),
        Experiment(
            "accuracy-vs-noise",
            "figure",
            "Accuracy over the share of wrong labels",
            _grid(
                ("Caltech101", "OxfordPets", "UCF101", "EuroSAT"),
                (
                    *("none", "sym:0.2", "sym:0.4", "sym:0.6", "sym:0.8"),
                    *("pair:0.1", "pair:0.2", "pair:0.3", "pair:0.4"),
                ),
            ),
            (COOP, MAE, DSPT, DSPT_AUTO),
        ),
        Experiment(
            "gradient-distribution",
            "figure",
            "How strongly each sample pulls at the logits in the first epoch, without updates",
            _grid(("Caltech101",), ("sym:0.6",)),
            (COOP, DSPT),
            seeds=(1,),
            config=MappingProxyType({"epochs": 1, "lr": 0.0, "warmup_lr": 0.0}),
        ),
        Experiment(
            "loss-curves",
            "figure",
            "Mean loss of correctly and wrongly labelled samples over the first 20 epochs",
            _grid(("Caltech101",), ("sym:0.4", "pair:0.4")),
            (COOP, MAE, DSPT),
            seeds=(1,),
        ),
        Experiment(
            "gradient-curves",
            "figure",
            "Mean gradient on the logits of correctly and wrongly labelled samples over 20 epochs",
            _grid(("Caltech101", "DTD"), ("sym:0.6",)),
            (COOP, MAE, DSPT),
            seeds=(1,),
        ),
        Experiment(
            "logitclip-tau",
            "figure",
            "Accuracy of LogitClip over its threshold, against DSPT",
            (
                Setting("DTD", "sym:0.4"),
                Setting("OxfordPets", "pair:0.4"),
                Setting("UCF101", "sym:0.8"),
                Setting("UCF101", "pair:0.4"),
            ),
            (*(Entry(f"LogitClip {tau:g}", "logitclip", (f"tau={tau:g}",)) for tau in TAUS), DSPT),
        ),
        Experiment(
            "early-accuracy",
            "figure",
            "Accuracy in the first epochs under 80 % symmetric noise",
            _grid(("Caltech101",), ("sym:0.8",)),
            (COOP, MAE, DSPT),
            seeds=(1,),
        ),
    )
}


def get(name: str) -> Experiment:
    """Return the experiment called `name`."""
    if name not in EXPERIMENTS:
        near = get_close_matches(name.lower(), EXPERIMENTS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"experiment {name!r}: not known{hint}; the experiments are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def on_data(experiment: Experiment, datasets: Sequence[str]) -> Experiment:
    """Return the experiment on other datasets: the same noises, once for each of them."""
    return replace(experiment, settings=_grid(tuple(dict.fromkeys(datasets)), experiment.noises))


def with_seeds(experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """Return the experiment with other seeds."""
    return replace(experiment, seeds=tuple(seeds))


def with_config(experiment: Experiment, **settings: Any) -> Experiment:
    """Return the experiment with these settings of a run; those that are None stay as they are."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name in experiment.config:
            raise InputError(
                f"{name} = {given[name]}: {experiment.name} is made with {name} = {experiment.config[name]}; "
                "leave it out"
            )
    return replace(experiment, config=MappingProxyType({**experiment.config, **given}))


def plain(name: str) -> str:
    """Return a name as it is compared: "Stanford_Cars" is "stanfordcars"."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def narrowed(experiment: Experiment, only: str) -> Experiment:
    """Return the part of an experiment that fits "dataset=pets,method=dspt,noise=sym:0.4,seed=1".

    A key given several times takes any of its values. Part of a dataset's name is enough.
    """
    wanted: dict[str, list[str]] = {}
    for part in only.split(","):
        key, equals, value = (text.strip() for text in part.partition("="))
        if key not in ("dataset", "method", "noise", "seed") or not equals or not plain(value):
            raise InputError(
                f"only {part!r}: expected dataset=, method=, noise= or seed= with a value, "
                "such as dataset=pets,method=dspt"
            )
        wanted.setdefault(key, []).append(value)

    def chosen(key: str, names: Sequence[str]) -> set[str]:
        """The names that a key asks for; all of them if it is not given."""
        found = set()
        for value in wanted.get(key, []):
            hits = {name for name in names if plain(value) == plain(name)}
            if key == "dataset" and not hits:
                hits = {name for name in names if plain(value) in plain(name)}
            if (
                key == "method" and not hits
            ):  # not as the table is headed: by the name of the method
                hits = {e.label for e in experiment.entries if plain(value) == plain(e.method)}
            if not hits:
                raise InputError(
                    f"only {key}={value}: not in {experiment.name}, which has {', '.join(names)}"
                )
            found |= hits
        return found or set(names)

    datasets = chosen("dataset", experiment.datasets)
    noises = chosen("noise", experiment.noises)
    labels = chosen("method", tuple(entry.label for entry in experiment.entries))
    seeds = chosen("seed", tuple(map(str, experiment.seeds)))
    return replace(
        experiment,
        settings=tuple(
            s for s in experiment.settings if s.dataset in datasets and s.noise in noises
        ),
        entries=tuple(e for e in experiment.entries if e.label in labels),
        seeds=tuple(s for s in experiment.seeds if str(s) in seeds),
    )
