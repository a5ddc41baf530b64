"""PromptClassifier: the whole job in five lines of Python, with scikit-learn's conventions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dspt import learners, methods, selection, train
from dspt.auditing.samples import audit
from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.config import GENERIC_TEMPLATE, Config
from dspt.data import Dataset, Split
from dspt.data.dataset import are_features
from dspt.data.given import distinct_labels, given_items, given_labels
from dspt.features import embed
from dspt.internal.checks import check_names
from dspt.internal.device import find_device
from dspt.internal.errors import InputError
from dspt.internal.names import AUTO, NO_MODEL
from dspt.internal.progress import Reporter
from dspt.internal.shards import Features
from dspt.methods import Method
from dspt.problem import pose
from dspt.runs import Description, Run, learn

if TYPE_CHECKING:
    import pandas as pd

# Silent unless the program that uses dspt wants to hear.
_log = logging.getLogger(__name__)

# Requests of no more images than this are not kept on disk: a service would fill it with them.
_FEW = 64

# Parameters of the classifier that are no settings of a run, or are spelled otherwise there.
_OWN = ("method", "options", "class_names", "random_state", "seed", "skip_bad", "cache", "verbose")


class PromptClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A CLIP image classifier whose prompt is learnt from labels that may be wrong.

    Parameters
    ----------
    model : str or None
        CLIP checkpoint: a Hugging Face hub id, a local folder, or "embedded", a miniature to try things out. "auto" is
        the paper's, openai/clip-vit-base-patch16. None, or "none", for features alone: DINO's, your own, anything. The
        learners "prototypes", "posterior" and "auto" go with it, and methods that do not look at class names.
    method : str, Method or callable
        "dspt", "coop", "gce", "nlprompt", ...: the names that `dspt methods` lists. Or a loss of one's own, a function
        `(logits, labels, **hyper-parameters)` that returns one value a sample; or a `dspt.methods.Method`.
    options : dict, optional
        Hyper-parameters of the method.
    class_names : sequence of str, optional
        The name of each class, if `fit` is not given them. Where a tool numbers labels itself, as `cross_val_predict`
        does for probabilities, it numbers them in sorted order, and so the names must be sorted.
    epochs, batch_size, lr, warmup_lr, momentum, weight_decay
        The training recipe; the defaults are the paper's.
    random_state : int
        Seed of everything random; None is 1, too.
    seed : int, optional
        Another name of `random_state`.
    learner : str
        What is learnt: "prompt" (a context), "cocoop" (a context that depends on the image), "prototypes" (the class
        features themselves, without a prompt; without a model they start as class means by the given labels, and
        logits are 100 times the cosine, as CLIP's), "posterior" (a classifier in closed form, in seconds), or "auto"
        (trains with dspt-auto what makes held-out labels most likely; `choice_` says which and why).
    context_length, position, class_specific, context_words
        The prompt: how many context vectors, where the name stands, one context for each class or one for all,
        and words to start from.
    shots : int
        Train on so many images of each class, drawn at random; 0 takes all.
    views : int
        Random crops and flips of each training image; 0 trains on the centre view alone.
    template : str
        Prompt of zero-shot, with {} for the class name.
    text_memory : int
        MiB of activations a step may keep; more classes than fit are processed in chunks.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        Of the towers' products: "float32"; "bfloat16" on a GPU or a CPU that has it; "float16" on a GPU.
    compile : bool
        Have torch compile the image tower: slow to start, faster on many images.
    workers : int
        Processes that decode images ahead of the tower; 0: one a core.
    skip_bad : bool
        Leave out images that cannot be read, instead of stopping at them; `skipped_` lists them.
    cache : str or Path, optional
        Where encoded images are kept; the user's cache folder by default.
    verbose : bool
        Show progress on stderr.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        The labels `predict` returns.
    class_names_ : tuple of str
        The names that stand in the prompts, in the order of `classes_`.
    parameters_ : dict of Tensor
        What was learnt, by name; empty for zero-shot.
    context_ : ndarray
        The learnt context vectors; None if there are none.
    prototypes_ : Tensor of shape (C, D)
        The class features images are compared with; None for "cocoop", where every image has its own.
    method_ : str
        The method it was trained with: the one asked for, but dspt-auto of the learners "posterior" and "auto".
    history_ : list of dict
        One record for each epoch.
    skipped_ : list of str
        The images that `fit` left out, and why.
    choice_ : dspt.selection.Choice
        What `learner="auto"` chose, and why; None otherwise.

    Examples
    --------
    >>> from dspt import PromptClassifier
    >>> clf = PromptClassifier(model="embedded", epochs=5)
    >>> clf = clf.fit(paths, labels, class_names=["coat", "shirt"])  # doctest: +SKIP
    >>> clf.predict(["new.png"])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | None = AUTO,
        method: str | Method | Callable[..., Any] = "dspt",
        *,
        options: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        epochs: int = 50,
        batch_size: int = 32,
        lr: float = 0.002,
        warmup_lr: float = 1e-5,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        random_state: int | None = 1,
        seed: int | None = None,
        learner: str = "prompt",
        context_length: int = 16,
        position: str = "end",
        class_specific: bool = False,
        context_words: str | None = None,
        shots: int = 0,
        views: int = 0,
        template: str = GENERIC_TEMPLATE,
        text_memory: int = 2048,
        device: str = "auto",
        precision: str = "float32",
        compile: bool = False,
        workers: int = 0,
        skip_bad: bool = False,
        cache: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.method = method
        self.options = options
        self.class_names = class_names
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.warmup_lr = warmup_lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.seed = seed
        self.learner = learner
        self.context_length = context_length
        self.position = position
        self.class_specific = class_specific
        self.context_words = context_words
        self.shots = shots
        self.views = views
        self.template = template
        self.text_memory = text_memory
        self.device = device
        self.precision = precision
        self.compile = compile
        self.workers = workers
        self.skip_bad = skip_bad
        self.cache = cache
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        class_names: Sequence[str] | None = None,
        sample_weight: Any = None,
    ) -> PromptClassifier:
        """Learn a prompt and return self.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features
        y : N labels, some of which may be wrong
            Class names, or numbers 0..C-1 that index `class_names`.
        class_names : sequence of str
            The name of each class; needed if `y` holds numbers and there is a model, else the sorted labels in `y`.
        sample_weight : array of N numbers, optional
            How much each sample counts; only their ratios matter.
        """
        items = given_items(X)
        given = self.class_names if class_names is None else class_names
        if given is not None and (isinstance(given, str) or not all(isinstance(name, str) for name in given)):
            raise InputError(f"class_names: expected a list of texts, found {given!r}")
        config = self._config(chosen=False)
        if config.model == NO_MODEL and not are_features(items):
            raise InputError("model: none is given, and images need one; name a CLIP checkpoint, or give features")
        alone = given is None and config.model == NO_MODEL
        names, classes, labels = distinct_labels(y) if alone else given_labels(y, given)
        if len(labels) != len(items):
            raise InputError(f"labels: {len(labels)} of them for {len(items)} samples; they must be as many")
        nobody = Split([], np.empty(0, np.int64))
        self.choice_: selection.Choice | None = None
        if selection.is_open(config) and not isinstance(self.method, str):
            raise InputError(
                f"learner = {config.learner!r}: it trains with {selection.METHOD}, not with a method of one's own"
            )
        if line := selection.replaced(config):
            _log.warning("%s", line)
            self._reporter().say(line)
        task = pose(
            Dataset("X", names, Split(items, labels), nobody),
            selection.provisional(config),
            method=None if isinstance(self.method, str) else self.method,
            weights=_weights(sample_weight, len(items)),
            reporter=self._reporter(),
            cache=self._cache(),
            skip_bad=self.skip_bad,
        )
        if selection.is_open(config):
            task, self.choice_ = selection.chosen(task, self._reporter())
        learnt = learn(task, reporter=self._reporter())
        self._take(learnt.parameters, learnt.prototypes)
        self.history_ = learnt.records
        self.method_ = task.method.name
        self.skipped_ = [f"{fault.name}: {fault.reason}" for fault in task.skipped]
        self.class_names_ = names
        self.classes_ = classes
        assert isinstance(task.learner, learners.ClipLearner)
        opened = task.learner.checkpoint
        self.logit_scale_ = task.learner.scale
        self.model_fingerprint_: str | None = opened.fingerprint if opened else None
        self.tokenizer_fingerprint_: str | None = opened.tokenizer_fingerprint if opened else None
        if opened:
            self._opened = opened
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits, scale * cosine.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features

        Returns
        -------
        ndarray of shape (N, C); of two classes, of shape (N,): the second's logit minus the first's
        """
        found = train.logits(self.features(X), self.classify())
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, softmax(scale * cosine).

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features

        Returns
        -------
        ndarray of shape (N, C), in the order of `classes_`
        """
        return train.probabilities(self.features(X), self.classify())

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each item.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features

        Returns
        -------
        ndarray of shape (N,), classes as they were written in `y`
        """
        found = train.predict(self.features(X), self.classify())
        predicted: np.ndarray = self.classes_[found]
        return predicted

    def classify(self) -> learners.Classify:
        """Return the function from image features (n, D) to logits (n, C)."""
        check_is_fitted(self)
        if self.prototypes_ is not None:
            return learners.by_prototypes(self.prototypes_, self.logit_scale_)
        config = self._config()
        tower = None if config.model == NO_MODEL else learners.open_text_tower(config, self._checkpoint())
        learner = learners.make(self.class_names_, config, tower)
        assert self.n_features_in_ is not None
        one = learners.Samples(np.ones((1, self.n_features_in_), np.float32), np.zeros(1, np.int64))
        learnt, expected = (
            {name: (value.shape, value.dtype) for name, value in parameters.items()}
            for parameters in (self.parameters_, learner.start(one))
        )
        if learnt != expected:
            raise InputError(f"model {self.model}: what was learnt has not the shapes that {self.learner} has with it")
        return learner.classify(self.parameters_)

    def fixed_prompt(self, template: str) -> learners.Classify:
        """Return the function from image features (n, D) to the logits (n, C) that a prompt without training gives."""
        tower = learners.open_text_tower(self._config(), self._checkpoint())
        return learners.by_prototypes(
            learners.zero_shot_prototypes(tower, self.class_names_, template), self.logit_scale_
        )

    def for_classes(self, class_names: Sequence[str]) -> PromptClassifier:
        """Return the classifier of other classes with the same prompt: classes it never saw, or another dataset's.

        A learnt context goes with any names. What was learnt for each class by itself does not, and is refused.

        Parameters
        ----------
        class_names : sequence of str
            The name of each class; `predict` returns these.
        """
        check_is_fitted(self)
        names, config = tuple(class_names), self._config()
        check_names(names, "class_names")
        shared = issubclass(learners.kind_of(config), learners.PromptLearner) and not config.class_specific
        if self.parameters_ and not shared:
            what = "a context for each class" if config.class_specific else f"what learner {config.learner!r} learns"
            raise InputError(f"class_names: {what} belongs to its own classes; only a shared context goes with others")
        tower = learners.open_text_tower(config, self._checkpoint())
        if not self.parameters_:
            prototypes: torch.Tensor | None = learners.zero_shot_prototypes(tower, names, config.template)
        else:
            learner = learners.make(names, config, tower)
            assert isinstance(learner, learners.PromptLearner)
            with torch.no_grad():
                prototypes = learner.prototypes(self.parameters_)
        other = copy(self)
        other.prototypes_, other.class_names_, other.classes_ = prototypes, names, np.array(names)
        return other

    def features(self, X: Any) -> Features:
        """Return the image features that `X` stands for.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features

        Returns
        -------
        float32 array of shape (N, D), or shards, each row of length 1
        """
        check_is_fitted(self)
        items = given_items(X)
        if are_features(items):
            features: Features = items
        elif len(items) <= _FEW:
            features = embed(items, self.image_tower())
        else:
            features = self.encoder(self._reporter()).features(items)
        width = self.n_features_in_
        if features.shape[1] != width:
            raise InputError(f"X: features are {features.shape[1]} wide, but this classifier takes {width}")
        return features

    def audit(self, X: Any, y: Any) -> pd.DataFrame:
        """Return what is to be said of every label, as `dspt.audit` does with this classifier's model and classes.

        The labels are judged by features, names and each other, not by what was learnt: a classifier that has seen a
        wrong label may have learnt it.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features
        y : N labels, some of which may be wrong
            As in `fit`, which need not have been called.
        """
        names: Any = getattr(self, "class_names_", self.class_names)
        return audit(
            X,
            y,
            self.model,
            names,
            template=self.template,
            cache=self.cache,
            device=self.device,
            verbose=self.verbose,
        )

    def encoder(self, reporter: Reporter, skip_bad: bool = False) -> learners.Encoder:
        """Return what turns the images of a split into features for this classifier."""
        check_is_fitted(self)
        return learners.open_encoder(self._config(), self._checkpoint(), reporter, self._cache(), skip_bad)

    def image_tower(self) -> ImageTower:
        """Return the image tower, loaded once for all requests."""
        check_is_fitted(self)
        if not hasattr(self, "_loaded"):
            self._loaded = ImageTower(self._checkpoint(), str(find_device(self.device)))
        return self._loaded

    def save(self, directory: str | Path) -> None:
        """Write the classifier to a folder that `dspt.load` and the command line read.

        Parameters
        ----------
        directory : str or Path
            A new folder, or one that holds a saved classifier, which is replaced.
        """
        check_is_fitted(self)
        description = Description(
            settings=replace(self._config(), method=self.method_),
            class_names=self.class_names_,
            model_fingerprint=self.model_fingerprint_,
            tokenizer_fingerprint=self.tokenizer_fingerprint_,
            logit_scale=self.logit_scale_,
            labels=tuple(self.classes_.tolist()),
        )
        Run(directory).save(description, self.parameters_, self.prototypes_)

    def _config(self, chosen: bool = True) -> Config:
        """Return the settings: of what `fit` has chosen, if it was left open and is not asked for as it was."""
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        settings = {name: value for name, value in parameters.items() if name not in _OWN}
        # the names of a method's own hyper-parameters are its business, also in the record
        named = self.method if isinstance(self.method, str) else methods.make(self.method).name
        if self.options is not None and not isinstance(self.options, Mapping):
            raise InputError(f"options = {self.options!r}: expected a dict of names and values, such as {{'q': 0.7}}")
        options = tuple(f"{name}={value}" for name, value in (self.options or {}).items())
        state, alias = parameters["random_state"], parameters["seed"]
        seed = Config.seed if state is None else state
        if alias is not None and seed not in (Config.seed, alias):
            raise InputError(f"seed = {alias}, random_state = {seed}: they are two names of one setting; give one")
        seed = seed if alias is None else alias
        config = Config(
            **{
                **settings,
                "model": NO_MODEL if self.model is None else str(self.model),
                "method": named,
                "option": options,
                "seed": seed,
            }
        )
        choice = getattr(self, "choice_", None) if chosen else None
        return config if choice is None else replace(config, learner=choice.learner, method=selection.METHOD)

    def _reporter(self) -> Reporter:
        return Reporter(silent=not self.verbose)

    def _cache(self) -> Path | None:
        return None if self.cache is None else Path(self.cache)

    def _take(self, parameters: learners.Parameters, prototypes: torch.Tensor | None) -> None:
        """Be the classifier with these parameters."""
        self.parameters_ = parameters
        self.prototypes_ = prototypes
        context = parameters.get("context")
        self.context_ = None if context is None else context.cpu().numpy()
        width = learners.LEARNERS[self._config().learner].feature_width(parameters)
        self.n_features_in_ = width if prototypes is None else prototypes.shape[1]

    def _checkpoint(self) -> Checkpoint:
        """Return the checkpoint, opened when images have to be encoded and not before."""
        if not hasattr(self, "_opened"):
            if (model := self._config().model) == NO_MODEL:
                raise InputError(
                    f"model {NO_MODEL}: this classifier was made from features alone and knows neither images nor "
                    "names; give it features"
                )
            checkpoint = open_checkpoint(model)
            same = checkpoint.fingerprint == self.model_fingerprint_
            # one that was saved by an earlier version does not know its tokenizer
            if self.tokenizer_fingerprint_ is not None:
                same &= checkpoint.tokenizer_fingerprint == self.tokenizer_fingerprint_
            if not same:
                raise InputError(
                    f"model {self.model}: it is not the checkpoint this classifier was trained with; its files have "
                    "changed since"
                )
            self._opened = checkpoint
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_opened", "_loaded")}


def load(directory: str | Path, device: str = "auto") -> PromptClassifier:
    """Return the classifier in a folder written by `PromptClassifier.save` or `dspt train`.

    Parameters
    ----------
    directory : str or Path
        The folder.
    device : str
        Where it computes, wherever it was trained: "auto", "cpu" or "cuda".

    Returns
    -------
    PromptClassifier
        Fitted. Images need the checkpoint it was trained with; features need nothing.
    """
    run = Run(directory)
    if not run.path.is_dir():
        raise InputError(f"run folder {directory}: no such folder")
    description = run.description()
    config = description.settings
    if not isinstance(config, Config):
        raise InputError(
            f"run folder {directory}: it holds a network from scratch, not a prompt; give a run of dspt train"
        )
    unsaid = description.model_fingerprint is None and config.model != NO_MODEL
    if unsaid or description.logit_scale is None:
        raise InputError(f"run folder {directory}: it does not say what model it was made with")
    parameters, prototypes = run.load_learnt()
    known = set(PromptClassifier().get_params(deep=False))
    settings = {each.name: getattr(config, each.name) for each in fields(config) if each.name in known}
    classifier = PromptClassifier(
        **{
            **settings,
            "device": device,
            "options": config.method_options() or None,
            "seed": None,
            "random_state": config.seed,
        }
    )
    where = find_device(device)
    try:
        classifier._take(
            {name: value.to(where) for name, value in parameters.items()},
            None if prototypes is None else prototypes.to(where),
        )
    except (KeyError, IndexError):
        raise InputError(
            f"run folder {directory}: what was learnt is not of the learner {config.learner!r} in its config.json"
        ) from None
    classifier.class_names_ = description.class_names
    classifier.classes_ = np.array(description.labels or description.class_names)
    classifier.history_ = []
    classifier.method_ = config.method
    classifier.choice_ = None
    classifier.skipped_ = []
    classifier.model_fingerprint_ = description.model_fingerprint
    classifier.tokenizer_fingerprint_ = description.tokenizer_fingerprint
    classifier.logit_scale_ = description.logit_scale
    return classifier


def _plain(value: Any) -> Any:
    """Return a number of numpy's, which a search over an array of settings gives, as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _weights(sample_weight: Any, n: int) -> np.ndarray | None:
    """Return the samples' weights as numbers; None if there are none."""
    if sample_weight is None:
        return None
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight: expected numbers, one for each sample") from None
    if weights.shape != (n,):
        raise InputError(f"sample_weight: expected {n} numbers, one for each sample, found shape {weights.shape}")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any() or not weights.any():
        row = int(np.argmax(bad)) if bad.any() else 0
        raise InputError(
            f"sample_weight: expected finite numbers of 0 or more, not all 0, found {weights[row]} at row {row}"
        )
    return weights
