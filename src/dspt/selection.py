"""Which learner to take: the one under which labels that were held out are most likely, noise and all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dspt import learners, methods
from dspt.config import AUTO_LEARNER, Config, Settings
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream
from dspt.learners import ClipLearner, by_prototypes, posterior_of
from dspt.posterior import label_likelihood
from dspt.problem import Problem, Task
from dspt.runs import learn
from dspt.train import logits

# What it is trained with: the method that has no hyper-parameter.
METHOD = "dspt-auto"
# Fewer samples than this say nothing about what would be best.
_FEWEST = 20
# A prompt is made from the class names: it is tried if they tell so many of the images.
_KNOWN_NAMES = 0.25


@dataclass(frozen=True)
class Choice:
    """The learner that was chosen, why, and how likely the held-out labels are under each that was tried."""

    learner: str
    why: str
    likelihoods: dict[str, float]


def is_open(config: Settings) -> bool:
    """Return whether the settings leave it open what is learnt."""
    return config.learner == AUTO_LEARNER


def provisional(config: Settings) -> Settings:
    """Return the settings to pose the task with while it is open what is learnt; others as they are."""
    if not is_open(config):
        return config
    if config.method not in (Settings.method, METHOD):
        raise InputError(
            f"learner = {AUTO_LEARNER!r}: it trains with {METHOD}, not with method {config.method}",
            "leave `method` out, or name a learner",
        )
    return replace(config, learner="prototypes", method=METHOD)


def chosen(task: Task, reporter: Reporter | None = None) -> tuple[Task, Choice]:
    """Return the task with the learner that fits it best, and why.

    A fifth of the samples is held out, the same for all. Each learner is trained on the others, and judged by how
    likely it makes the given labels of the fifth, wrong ones among them, if labels come about as the posterior of the
    others says. No true label is looked at, and no test set. A prompt is not tried where class names tell few images.

    Parameters
    ----------
    task : Task
        Posed with the settings of `provisional`.
    reporter : Reporter, optional
        Shows how far the work is, and says what was chosen.
    """
    reporter = reporter or Reporter(silent=True)
    assert isinstance(task.learner, ClipLearner)
    choice = _choice(task, task.learner, reporter)
    reporter.say(f"learner: {choice.why}")
    if choice.learner == task.config.learner:
        return task, choice
    config = replace(task.config, learner=choice.learner)
    learner = learners.make(task.problem.class_names, config, task.learner.tower)
    return replace(task, config=config, learner=learner, start=learner.start()), choice


def _choice(task: Task, given: ClipLearner, reporter: Reporter) -> Choice:
    problem = task.problem
    n = len(problem.labels)
    if n < _FEWEST:
        return Choice("prototypes", f"prototypes, since {n} samples are too few to hold any out", {})
    order = Stream(task.config.seed, "learner").permutation(n)
    held, kept = np.sort(order[: n // 5]), np.sort(order[n // 5 :])
    part = Problem(problem.class_names, problem.train_x[kept], problem.labels[kept])
    inputs, labels = problem.train_x[held], problem.labels[held]
    if inputs.ndim == 3:  # of several views the first will do
        inputs = inputs[:, 0]
    found = posterior_of(part.train_x, part.labels, given)
    one_view = part.train_x if part.train_x.ndim == 2 else part.train_x[:, 0]
    zero_shot = logits(one_view, by_prototypes(given.zero_shot, given.scale))
    known = float((zero_shot.argmax(1) == found.probabilities.argmax(1)).mean())
    names = ["posterior", "prototypes", *(["prompt"] if known >= _KNOWN_NAMES else [])]
    likelihoods: dict[str, float] = {}
    for name in names:
        config = replace(task.config, learner=name)
        assert isinstance(config, Config)
        learner = learners.make(problem.class_names, config, given.tower)
        tried = Task(part, config, learner, methods.make(METHOD), learner.start(), task.given)
        learnt = learn(tried, reporter=reporter)
        scores = logits(inputs, learner.classify(learnt.parameters), learner.judged_at_once)
        likelihoods[name] = label_likelihood(scores, labels, found.transition)
    best, *others = sorted(likelihoods, key=lambda name: -likelihoods[name])
    told = "; ".join(f"{name} {likelihoods[name]:.3f}" for name in (best, *others))
    why = f"{best}, since held-out labels are most likely under it (mean log likelihood: {told})"
    if "prompt" not in names:
        why += f"; a prompt was not tried, since the class names tell {100 * known:.0f} % of the images"
    return Choice(best, why, likelihoods)
