"""The experiments, the paper's and some of our own: declarations, from which runs, tables and figures are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from dspt.internal.errors import InputError
from dspt.internal.names import did_you_mean, plain


@dataclass(frozen=True)
class Variant:
    """A way to learn, as a table shows it: a label, a method, and its hyper-parameters if not the defaults."""

    label: str
    method: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A place to learn in: a dataset and a noise."""

    dataset: str  # as in the paper: "Caltech101"
    noise: str  # as `dspt train --noise` takes it: "sym:0.4"


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment."""

    condition: Condition
    variant: Variant
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper: every setting with every variant and every seed."""

    name: str
    kind: str  # "table" or "figure"
    title: str
    conditions: tuple[Condition, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    config: Mapping[str, Any] = field(default_factory=dict)  # settings of a run, if not the defaults
    from_scratch: bool = False  # a ResNet on pixels, no CLIP

    def runs(self) -> Iterator[RunSpec]:
        """Yield the runs, dataset by dataset, so that each is encoded before the next."""
        for condition, variant, seed in product(self.conditions, self.variants, self.seeds):
            yield RunSpec(condition, variant, seed)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Return the names of the datasets, in order."""
        return tuple(dict.fromkeys(condition.dataset for condition in self.conditions))

    @property
    def noises(self) -> tuple[str, ...]:
        """Return the noises, in order."""
        return tuple(dict.fromkeys(condition.noise for condition in self.conditions))

    @property
    def made_noises(self) -> tuple[str, ...]:
        """Return the noises that any dataset can be given: labels in a file belong to their own images."""
        return tuple(noise for noise in self.noises if not noise.startswith("file:"))


def _every(datasets: Sequence[str], noises: Sequence[str]) -> tuple[Condition, ...]:
    """Return each dataset with each noise."""
    return tuple(Condition(dataset, noise) for dataset, noise in product(datasets, noises))


MODEL = "openai/clip-vit-base-patch16"  # the paper's ViT-B/16
NINE = (
    *("Caltech101", "FGVCAircraft", "StanfordCars", "DTD", "OxfordPets"),
    *("EuroSAT", "Flowers102", "UCF101", "Food101"),
)

COOP = Variant("CoOp", "coop")
CE = Variant("CE", "coop")  # the same loss, where there is no prompt
SMOOTHING = Variant("Smoothing", "smoothing")
BOOTSTRAP = Variant("Bootstrap", "bootstrap")
LOGITNORM = Variant("LogitNorm", "logitnorm")
LOGITCLIP = Variant("LogitClip", "logitclip")
SQUARE = Variant("Square", "square")
NCE = Variant("NCE", "nce")
NCE_RCE = Variant("NCE+RCE", "nce-rce")
SCE = Variant("SCE", "sce")
HARD_BOOTSTRAP = Variant("Bootstrap, hard", "bootstrap-hard")
JOAPR = Variant("JoAPR", "joapr")
SELECT = Variant("Select", "select")
NLPROMPT = Variant("NLPrompt", "nlprompt")
UPL = Variant("UPL", "upl")
ROBUST_UPL = Variant("Robust-UPL", "robust-upl")
GCE = Variant("GCE", "gce")
# DSPT's nearest neighbour: beside it in every table, though not in the paper.
MAE = Variant("MAE", "mae")
DSPT = Variant("DSPT", "dspt")
DSPT_AUTO = Variant("DSPT-auto", "dspt-auto")  # ours, not in the paper

# A figure of formulas, which has no runs: `landscape` draws it.
LANDSCAPE = "loss-landscape"

# The paper does not say at which values it drew LogitClip. Logits are cut to length 1 / tau.
TAUS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "main",
            "table",
            "Accuracy (%) under symmetric and pair-flip noise",
            _every(NINE, ("sym:0.4", "sym:0.6", "sym:0.8", "pair:0.2", "pair:0.3", "pair:0.4")),
            (COOP, SMOOTHING, LOGITNORM, NLPROMPT, GCE, MAE, DSPT, DSPT_AUTO),
        ),
        Experiment(
            "extreme",
            "table",
            "Accuracy (%) under extreme noise",
            _every(("Caltech101", "DTD"), ("sym:0.9", "pair:0.8")),
            (COOP, SMOOTHING, BOOTSTRAP, LOGITNORM, SELECT, NLPROMPT, MAE, DSPT),
        ),
        Experiment(
            "similar",
            "table",
            "Accuracy (%) of similar losses: smoothed, bounded or normalised",
            _every(("Caltech101", "OxfordPets"), ("sym:0.6", "pair:0.3")),
            (SMOOTHING, LOGITNORM, SQUARE, BOOTSTRAP, NCE, LOGITCLIP, MAE, DSPT),
        ),
        Experiment(
            "unsupervised",
            "table",
            "Accuracy (%) without labels: zero-shot and its own predictions as labels",
            _every(NINE, ("none",)),
            (UPL, ROBUST_UPL),
        ),
        Experiment(
            "cifar10",
            "table",
            "Accuracy (%) of a network trained from scratch",
            _every(("CIFAR10",), ("sym:0.2", "sym:0.5", "sym:0.8", "pair:0.2", "pair:0.4")),
            (CE, LOGITCLIP, BOOTSTRAP, GCE, SMOOTHING, MAE, DSPT),
            from_scratch=True,
        ),
        Experiment(
            "methods",
            "table",
            "Accuracy (%) of every method, on clean labels and under two kinds of noise",
            _every(("Caltech101",), ("none", "sym:0.6", "pair:0.4")),
            (
                *(COOP, SMOOTHING, BOOTSTRAP, HARD_BOOTSTRAP, LOGITNORM, LOGITCLIP, SQUARE, SELECT),
                *(NLPROMPT, JOAPR, UPL, ROBUST_UPL, GCE, NCE, SCE, NCE_RCE, MAE, DSPT, DSPT_AUTO),
            ),
            seeds=(1,),
        ),
        Experiment(
            "realistic",
            "table",
            "Accuracy (%) under noise that depends on what looks alike: classes, and images",
            (
                *_every(
                    ("Caltech101", "UCF101", "DTD"), ("near:0.2", "near:0.4", "inst:0.2", "inst:0.4", "inst-likely:0.4")
                ),
                # Mistakes that people made, in CIFAR-N's own files: 9 %, 40 % and 40 % of the labels.
                *_every(("CIFAR10",), [f"file:CIFAR-10_human.pt#{which}_label" for which in ("aggre", "worse")]),
                Condition("CIFAR100", "file:CIFAR-100_human.pt#noisy_label"),
            ),
            (COOP, GCE, SCE, NLPROMPT, MAE, DSPT, DSPT_AUTO),
        ),
        Experiment(
            "accuracy-vs-noise",
            "figure",
            "Accuracy over the share of wrong labels",
            _every(
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
            _every(("Caltech101",), ("sym:0.6",)),
            (COOP, DSPT),
            seeds=(1,),
            config={"epochs": 1, "lr": 0.0, "warmup_lr": 0.0},
        ),
        Experiment(
            "loss-curves",
            "figure",
            "Mean loss of correctly and wrongly labelled samples over the first epochs",
            _every(("Caltech101",), ("sym:0.4", "pair:0.4")),
            (COOP, MAE, DSPT),
        ),
        Experiment(
            "gradient-curves",
            "figure",
            "Mean gradient on the logits of correctly and wrongly labelled samples over the first epochs",
            _every(("Caltech101", "DTD"), ("sym:0.6",)),
            (COOP, MAE, DSPT),
        ),
        Experiment(
            "logitclip-tau",
            "figure",
            "Accuracy of LogitClip over its threshold, against CoOp and DSPT",
            (
                Condition("DTD", "sym:0.4"),
                Condition("OxfordPets", "pair:0.4"),
                Condition("UCF101", "sym:0.8"),
                Condition("UCF101", "pair:0.4"),
            ),
            (
                *(Variant(f"LogitClip {tau:g}", "logitclip", (f"tau={tau:g}",)) for tau in TAUS),
                *(COOP, DSPT),
            ),
        ),
        Experiment(
            "early-accuracy",
            "figure",
            "Accuracy, and loss of correct and incorrect predictions, in the first epochs under 80 % symmetric noise",
            _every(("Caltech101",), ("sym:0.8",)),
            (COOP, MAE, DSPT),
        ),
    )
}


def get(name: str) -> Experiment:
    """Return the experiment called `name`."""
    if name == LANDSCAPE:
        raise InputError(f"experiment {name!r}: it is drawn from formulas and has no runs, see 'dspt figure {name}'")
    if name not in EXPERIMENTS:
        known = [*EXPERIMENTS, LANDSCAPE]
        hint = did_you_mean(name, known)
        raise InputError(f"experiment {name!r}: not known{hint}; the experiments are {', '.join(known)}")
    return EXPERIMENTS[name]


def on_data(experiment: Experiment, datasets: Sequence[str]) -> Experiment:
    """Return the experiment on other datasets: the same noises, once for each of them, but for label files."""
    return replace(experiment, conditions=_every(tuple(dict.fromkeys(datasets)), experiment.made_noises))


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
    return replace(experiment, config={**experiment.config, **given})


def usual_model(experiment: Experiment) -> str | None:
    """Return the checkpoint an experiment is made with if none is asked for; None for a network from scratch."""
    if experiment.from_scratch:
        return None
    if "embedded" not in experiment.datasets:
        return MODEL
    if experiment.datasets != ("embedded",):
        raise InputError("data: embedded and others need different models", "set `model`, or do one at a time")
    return "embedded"


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

    def hits(key: str, value: str, names: Sequence[str]) -> set[str]:
        found = {name for name in names if plain(value) == plain(name)}
        if key == "dataset" and not found:
            found = {name for name in names if plain(value) in plain(name)}
        if key == "method" and not found:  # not by its heading, by the name of the method
            found = {v.label for v in experiment.variants if plain(value) == plain(v.method)}
        if not found:
            raise InputError(f"only {key}={value}: not in {experiment.name}, which has {', '.join(names)}")
        return found

    def chosen(key: str, names: Sequence[str]) -> set[str]:
        """Return the names that a key asks for; all of them if it is not given."""
        return set().union(*(hits(key, value, names) for value in wanted.get(key, names)))

    datasets = chosen("dataset", experiment.datasets)
    noises = chosen("noise", experiment.noises)
    labels = chosen("method", [variant.label for variant in experiment.variants])
    seeds = chosen("seed", [str(seed) for seed in experiment.seeds])
    return replace(
        experiment,
        conditions=tuple(s for s in experiment.conditions if s.dataset in datasets and s.noise in noises),
        variants=tuple(v for v in experiment.variants if v.label in labels),
        seeds=tuple(s for s in experiment.seeds if str(s) in seeds),
    )
