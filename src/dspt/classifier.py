"""PromptClassifier: the whole job in five lines of Python, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dspt import learners, methods, train
from dspt.backbone.checkpoint import Checkpoint, open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.config import GENERIC_TEMPLATE, Config, from_dict
from dspt.features import embed
from dspt.internal.device import find_device
from dspt.internal.errors import InputError
from dspt.internal.files import write_json
from dspt.internal.progress import Reporter
from dspt.runs import FORMAT, RunFolder, environment
from dspt.workflows.train import Encoder, epoch_text, image_features, open_text_tower

# Requests of no more images than this are not kept on disk: a service would fill it with them.
_FEW = 64


class PromptClassifier(ClassifierMixin, BaseEstimator):
    """A CLIP image classifier whose prompt is learnt from labels that may be wrong.

    Parameters
    ----------
    model : str
        CLIP checkpoint: a Hugging Face hub id, a local folder, or "embedded".
    method : str
        "dspt", "coop", "gce", "nlprompt", ...: the names that `dspt methods` lists.
    options : dict, optional
        Hyper-parameters of the method.
    class_names : sequence of str, optional
        The name of each class, if `fit` is not given them.
    epochs, batch_size, lr, warmup_lr, momentum, weight_decay, seed
        The training recipe; the defaults are the paper's.
    learner : str
        What is learnt: "prompt" (a context), "cocoop" (a context that depends on the image), or "prototypes" (the
        class features themselves, without a prompt).
    context_length, position, class_specific, context_words
        The prompt: how many context vectors, where the name stands, one context for each class or one for all,
        and words to start from.
    views : int
        Random crops and flips of each training image; 0 trains on the centre view alone.
    template : str
        Prompt of zero-shot, with {} for the class name.
    text_memory : int
        MiB of activations a step may keep; more classes than fit are processed in chunks.
    device : str
        "auto", "cpu" or "cuda".
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
    learnt_ : dict of Tensor
        What was learnt, by name; empty for zero-shot.
    context_ : ndarray
        The learnt context vectors; None if there are none.
    prototypes_ : Tensor of shape (C, D)
        The class features images are compared with; None for "cocoop", where every image has its own.
    history_ : list of dict
        One record for each epoch.

    Examples
    --------
    >>> from dspt import PromptClassifier
    >>> clf = PromptClassifier(model="embedded", epochs=5)
    >>> clf = clf.fit(paths, labels, class_names=["coat", "shirt"])  # doctest: +SKIP
    >>> clf.predict(["new.png"])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str = "embedded",
        method: str = "dspt",
        *,
        options: dict[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        epochs: int = 50,
        batch_size: int = 32,
        lr: float = 0.002,
        warmup_lr: float = 1e-5,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        seed: int = 1,
        learner: str = "prompt",
        context_length: int = 16,
        position: str = "end",
        class_specific: bool = False,
        context_words: str | None = None,
        views: int = 0,
        template: str = GENERIC_TEMPLATE,
        text_memory: int = 2048,
        device: str = "auto",
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
        self.seed = seed
        self.learner = learner
        self.context_length = context_length
        self.position = position
        self.class_specific = class_specific
        self.context_words = context_words
        self.views = views
        self.template = template
        self.text_memory = text_memory
        self.device = device
        self.cache = cache
        self.verbose = verbose

    def fit(self, X: Any, y: Any, class_names: Sequence[str] | None = None) -> PromptClassifier:
        """Learn a prompt and return self.

        Parameters
        ----------
        X : image paths, PIL images, uint8 arrays, or a float array (N, D) of CLIP features
        y : N labels, some of which may be wrong
            Class names, or numbers 0..C-1 that index `class_names`.
        class_names : sequence of str
            The name of each class; needed if `y` holds numbers, else the sorted names in `y`.
        """
        config = self._config()
        items = _items(X)
        given = self.class_names if class_names is None else class_names
        names, classes, labels = _names_and_labels(y, given)
        method = methods.make(config.method, **config.method_options())
        tower = open_text_tower(config)
        checkpoint = tower.checkpoint
        learner = learners.make(names, config, tower)
        begin = state = train.start(learner)
        reporter = Reporter(silent=not self.verbose)
        problem = train.Problem(
            names,
            image_features(
                items, checkpoint, config, reporter, "images", config.views, self._cache()
            ),
            labels,
        )
        train.check(problem, tower)
        self.history_: list[dict[str, Any]] = []
        if method.trains:
            with reporter.task(config.method, config.epochs) as update:
                for state, record in train.fit(problem, config, learner, begin):
                    self.history_.append(record)
                    update(state.epochs_done, epoch_text(record, config.epochs))
            with torch.no_grad():
                on_device = {k: value.to(tower.device) for k, value in state.learnt.items()}
                self._take(on_device, learner.prototypes(on_device))
        else:
            self._take({}, learner.zero_shot())
        self.class_names_ = names
        self.classes_ = classes
        self._opened = checkpoint
        self.logit_scale_ = checkpoint.logit_scale
        self.model_fingerprint_ = checkpoint.fingerprint
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, softmax(scale * cosine), of shape (N, C)."""
        check_is_fitted(self)
        return train.probabilities(self.features(X), self.classify())

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each item, as it was written in `y`."""
        check_is_fitted(self)
        return self.classes_[train.predict(self.features(X), self.classify())]

    def classify(self) -> learners.Classify:
        """Return the function from image features (n, D) to logits (n, C)."""
        check_is_fitted(self)
        if self.prototypes_ is not None:
            return learners.by_prototypes(self.prototypes_, self.logit_scale_)
        config = self._config()
        tower = open_text_tower(config, self._checkpoint())
        return learners.make(self.class_names_, config, tower).classify(self.learnt_)

    def features(self, X: Any) -> np.ndarray:
        """Return the L2-normalised image features (N, D) that `X` stands for."""
        check_is_fitted(self)
        items = _items(X)
        if isinstance(items, np.ndarray) and items.dtype.kind == "f":
            features = items
        elif len(items) <= _FEW:
            features = embed(items, self._image_tower())
        else:
            reporter = Reporter(silent=not self.verbose)
            features = image_features(
                items, self._checkpoint(), self._config(), reporter, cache=self._cache()
            )
        width = self.n_features_in_
        if features.shape[1] != width:
            raise InputError(
                f"X: features are {features.shape[1]} wide, but this classifier takes {width}"
            )
        return features

    def encoder(self, reporter: Reporter, skip_bad: bool = False) -> Encoder:
        """Return what turns the images of a split into features for this classifier."""
        check_is_fitted(self)
        return Encoder(self._checkpoint(), self._config(), reporter, self._cache(), skip_bad)

    def save(self, directory: str | Path) -> None:
        """Write the classifier to a folder that `dspt.load` and the command line read."""
        check_is_fitted(self)
        folder = RunFolder(directory)
        if folder.result() is not None or (folder.path / "state.safetensors").exists():
            raise InputError(f"folder {directory}: it holds a run of dspt train; give another one")
        folder.check_ours()
        with folder.locked():
            folder.clear()
            folder.save_learnt(self.learnt_, self.prototypes_)
            write_json(folder.path / "environment.json", environment())
            write_json(
                folder.path / "config.json",
                {
                    "format": FORMAT,
                    "settings": asdict(self._config()),
                    "model_fingerprint": self.model_fingerprint_,
                    "logit_scale": self.logit_scale_,
                    "class_names": list(self.class_names_),
                    "labels": self.classes_.tolist(),
                },
            )

    def _config(self) -> Config:
        options = tuple(f"{name}={value}" for name, value in (self.options or {}).items())
        parameters = self.get_params(deep=False)
        for name in ("options", "class_names", "cache", "verbose"):
            parameters.pop(name)
        return from_dict({**parameters, "model": str(self.model), "option": options})

    def _cache(self) -> Path | None:
        return None if self.cache is None else Path(self.cache)

    def _take(self, learnt: learners.Parameters, prototypes: torch.Tensor | None) -> None:
        """Be the classifier with these parameters."""
        self.learnt_ = learnt
        self.prototypes_ = prototypes
        context = learnt.get("context")
        self.context_ = None if context is None else context.cpu().numpy()
        features = learnt["meta.down.weight"] if prototypes is None else prototypes
        self.n_features_in_ = features.shape[1]

    def _checkpoint(self) -> Checkpoint:
        """The checkpoint, opened when images have to be encoded and not before."""
        if not hasattr(self, "_opened"):
            self._opened = open_checkpoint(self.model)
            if self._opened.fingerprint != self.model_fingerprint_:
                raise InputError(
                    f"model {self.model}: it is not the checkpoint this classifier was trained with; its files have "
                    "changed since"
                )
        return self._opened

    def _image_tower(self) -> ImageTower:
        """The image tower, loaded once for all requests."""
        if not hasattr(self, "_loaded"):
            self._loaded = ImageTower(self._checkpoint(), str(find_device(self.device)))
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_opened", "_loaded")}


def load(directory: str | Path, device: str = "auto") -> PromptClassifier:
    """Return the classifier in a folder written by `PromptClassifier.save` or `dspt train`.

    It computes on `device`, wherever it was trained.
    """
    folder = RunFolder(directory)
    if not folder.path.is_dir():
        raise InputError(f"run folder {directory}: no such folder")
    description = folder.read_description()
    try:
        settings = description["settings"]
        if settings.get("learner") == "network":
            raise InputError(
                f"run folder {directory}: it holds a network from scratch, not a prompt; give a run of dspt train"
            )
        config = from_dict(settings)
        names = tuple(description["class_names"])
        fingerprint, scale = description["model_fingerprint"], description["logit_scale"]
    except (KeyError, TypeError):
        raise InputError(f"run folder {directory}: its config.json is not one of dspt's") from None
    learnt, prototypes = folder.load_learnt()
    parameters = PromptClassifier().get_params(deep=False)
    known = {name: settings[name] for name in parameters if name in settings}
    known["device"] = device
    classifier = PromptClassifier(**known, options=config.method_options() or None)
    where = find_device(device)
    classifier._take(
        {name: value.to(where) for name, value in learnt.items()},
        None if prototypes is None else prototypes.to(where),
    )
    classifier.class_names_ = names
    classifier.classes_ = np.array(description.get("labels", names))
    classifier.history_ = []
    classifier.model_fingerprint_ = fingerprint
    classifier.logit_scale_ = scale
    return classifier


def _items(X: Any) -> Any:
    """X as items to encode, or as a float32 array of L2-normalised features."""
    if isinstance(X, str | Path):
        raise InputError(f"X: a single path ({X}); give a list of them")
    if hasattr(X, "to_numpy"):  # pandas
        X = X.to_numpy()
    if hasattr(X, "detach"):  # torch
        X = X.detach().cpu()
        X = X.float().numpy() if X.is_floating_point() else X.numpy()
    if not isinstance(X, np.ndarray):
        try:
            X = list(X)
        except TypeError:
            raise InputError(f"X: expected a list or an array, found {type(X).__name__}") from None
        if X and np.ndim(X[0]) == 1:  # feature vectors one by one
            try:
                X = np.stack([np.asarray(row, dtype=np.float32) for row in X])
            except (TypeError, ValueError):
                raise InputError(
                    "X: rows differ in length or are not numbers; features are (N, D)"
                ) from None
    if len(X) == 0:
        raise InputError("X: it is empty; at least one sample is needed")
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
        return list(X.ravel())
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        if X.ndim != 2 or not X.shape[1]:
            raise InputError(
                f"X: float array of shape {X.shape}; features are (N, D), and images are uint8 arrays"
            )
        X = X.astype(np.float32, copy=False)
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        bad = ~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0)
        if bad.any():
            raise InputError(
                f"X: row {int(np.argmax(bad))} is zero or not finite; every row must be a feature"
            )
        # unit rows stay as they are, to the bit
        return X if np.allclose(norms, 1, atol=1e-5) else X / norms
    return X


def _names_and_labels(
    y: Any, class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The prompt names, the labels as the user writes them, and y as numbers."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    y = np.asarray(y)
    if y.ndim != 1:
        raise InputError(f"y: expected one label for each sample, found shape {y.shape}")
    if y.dtype == object and all(isinstance(label, int) for label in y):
        y = y.astype(np.int64)
    if y.dtype.kind in "OUS":
        written = [label.decode() if isinstance(label, bytes) else str(label) for label in y]
        # in sorted order, as scikit-learn's metrics expect columns to be
        names = tuple(sorted(set(written) if class_names is None else map(str, class_names)))
        position = {name: c for c, name in enumerate(names)}
        unknown = next((i for i, label in enumerate(written) if label not in position), None)
        if unknown is not None:
            raise InputError(f"y: {written[unknown]!r} at row {unknown} is not one of class_names")
        labels = np.array([position[label] for label in written], dtype=np.int64)
        classes = np.array(names)
    elif y.dtype.kind in "iu":
        if class_names is None:
            raise InputError(
                "class_names: needed, since y holds numbers; class_names[i] is the name of label i"
            )
        names = tuple(map(str, class_names))
        labels = y.astype(np.int64)
        classes = np.arange(len(names))
    else:
        raise InputError(f"y: expected class names or whole numbers, found {y.dtype}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"class_names: {twice!r} is there twice; every class needs a name of its own"
        )
    return names, classes, labels
