"""Which learner to take: the least free one under which labels that were held out are most likely, noise and all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dspt import learners, methods
from dspt.config import AUTO_LEARNER, Config, Settings
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream
from dspt.internal.shards import Features, take_rows
from dspt.learners import KNOWN_NAMES, PROMPT_SETTINGS, ClipLearner, names_tell, posterior_of
from dspt.posterior import label_likelihood
from dspt.problem import Problem, Task
from dspt.runs import learn
from dspt.train import logits

# What it is trained with: the method that has no hyper-parameter.
METHOD = "dspt-auto"
# From the one that learns the fewest numbers to the one that learns the most.
BY_FREEDOM = ("prompt", "prototypes", "posterior")
# Fewer samples than this say nothing about what would be best.
_FEWEST = 20
# A fifth of so few says too little: each fifth of them is held out in turn.
_FEW = 500


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
    """Return the settings to pose the task with: a learner, if that is open, and the method that goes with it."""
    if config.learner not in (AUTO_LEARNER, "posterior"):
        return config
    if config.method not in (Settings.method, METHOD):
        raise InputError(
            f"learner = {config.learner!r}: it goes with {METHOD}, not with method {config.method}",
            "leave `method` out, or name another learner",
        )
    if is_open(config):
        for name in PROMPT_SETTINGS:
            if (value := getattr(config, name)) != getattr(Config, name):
                raise InputError(
                    f"{name} = {value!r}: it is of a prompt, and learner {AUTO_LEARNER!r} may choose another",
                    f"leave `{name}` out, or take the learner 'prompt'",
                )
    return replace(config, learner="prototypes" if is_open(config) else config.learner, method=METHOD)


def replaced(config: Settings) -> str:
    """Return in a line what method is taken in place of the one in the settings; "" if that one is."""
    if config.learner not in (AUTO_LEARNER, "posterior") or config.method == METHOD:
        return ""
    return f"method: {METHOD} in place of {config.method}, since learner {config.learner} goes with no other"


def chosen(task: Task, reporter: Reporter | None = None) -> tuple[Task, Choice]:
    """Return the task with the learner that fits it best, and why.

    A fifth of the samples is held out, of few samples each fifth in turn. Each learner is trained on the others, and
    judged by how likely it makes the given labels of the fifth, wrong ones among them, if labels come about as the
    posterior of the others says. Of those that are level within a standard error, the one that learns the fewest
    numbers is taken. No true label is looked at, and no test set. A prompt is not tried where class names tell few
    images, or where there is no model. Where nothing can be told about the labels, it is a prompt if class names agree
    with them more often than chance, else prototypes.

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
    return with_learner(task, choice.learner), choice


def with_learner(task: Task, name: str) -> Task:
    """Return the same task for a learner of another name."""
    if name == task.config.learner:
        return task
    assert isinstance(task.learner, ClipLearner)
    config = replace(task.config, learner=name)
    learner = learners.make(task.problem.class_names, config, task.learner.text)
    return replace(task, config=config, learner=learner, start=learner.start(task.problem.samples))


def _choice(task: Task, given: ClipLearner, reporter: Reporter) -> Choice:
    problem = task.problem
    n = len(problem.labels)
    if n < _FEWEST:
        return Choice("prototypes", f"prototypes, since {n} samples are too few to hold any out", {})
    order = Stream(task.config.seed, "learner").permutation(n)
    found: dict[str, list[np.ndarray]] = {}
    for fold in range(5 if n <= _FEW else 1):
        part = np.arange(n) % 5 == fold
        held, kept = np.sort(order[part]), np.sort(order[~part])
        posterior = posterior_of(take_rows(problem.train_x, kept), problem.labels[kept], given)
        if not posterior.can_tell:
            return _blind(problem, given)
        if not fold:
            predicted = posterior.probabilities.argmax(1)
            known = names_tell(take_rows(problem.train_x, kept), predicted, given)
            names = [name for name in BY_FREEDOM if name != "prompt" or (known and known.kappa >= KNOWN_NAMES)]
            if problem.weights is not None:
                names = [name for name in names if learners.LEARNERS[name].weighs_samples]
        for name in names:
            reporter.say(f"learner: trying {name} without a fifth of the samples")
            config = replace(task.config, learner=name)
            learner = learners.make(problem.class_names, config, given.text)
            weights = None if problem.weights is None else problem.weights[kept]
            others = Problem(
                problem.class_names, take_rows(problem.train_x, kept), problem.labels[kept], weights=weights
            )
            start = learner.start(others.samples)
            tried = Task(others, config, learner, methods.make(METHOD), start, task.given)
            learnt = learn(tried, reporter=reporter)
            scores = logits(_one_view(take_rows(problem.train_x, held)), learner.classify(learnt.parameters))
            found.setdefault(name, []).append(label_likelihood(scores, problem.labels[held], posterior.transition))
    likelihoods = {name: np.concatenate(parts) for name, parts in found.items()}
    best = max(names, key=lambda name: likelihoods[name].mean())
    behind = {name: likelihoods[best] - likelihoods[name] for name in names}
    # What is level with the best and learns less has less to get wrong.
    least_free = next(name for name in names if behind[name].mean() <= behind[name].std() / len(behind[name]) ** 0.5)
    means = {name: float(likelihoods[name].mean()) for name in names}
    told = "; ".join(f"{name} {means[name]:.3f}" for name in sorted(names, key=lambda name: -means[name]))
    reason = "held-out labels are most likely under it"
    if least_free != best:
        reason = "held-out labels are as likely under it as under any, within a standard error, and it learns less"
    why = f"{least_free}, since {reason} (mean log likelihood: {told})"
    if known is None:
        why += "; a prompt was not tried, since there is no model to read it"
    elif "prompt" not in names:
        why += (
            f"; a prompt was not tried, since the class names tell {100 * known.share:.0f} % of the images, "
            f"and chance {100 * known.chance:.0f} %"
        )
    return Choice(least_free, why, means)


def _blind(problem: Problem, given: ClipLearner) -> Choice:
    """Return what to take where wrong labels cannot be told from right ones."""
    why = "wrong labels cannot be told from right ones, and"
    known = names_tell(problem.train_x, problem.labels, given)
    if known is None:
        return Choice("prototypes", f"prototypes, since {why} there is no model to read a prompt", {})
    # However many labels are wrong, names that mean anything agree with some of the others, and a prompt needs few.
    if known.more_than_chance:
        return Choice("prompt", f"prompt, since {why} it learns least", {})
    why += f" the class names agree with {100 * known.share:.0f} % of them, no more than by chance"
    return Choice("prototypes", f"prototypes, since {why}", {})


def _one_view(inputs: Features) -> Features:
    """Return one view of each image, where there are several."""
    return inputs[:, 0] if isinstance(inputs, np.ndarray) and inputs.ndim == 3 else inputs
