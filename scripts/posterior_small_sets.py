"""The posterior on data of other kinds: `python scripts/posterior_small_sets.py`.

The four sets of measurements that come with scikit-learn (2 to 10 classes, 150 to 1,797 samples, no class names), each
clean and with five noises of three seeds. For each set and noise: wrong labels, the estimate with its error, F1 of the
wrong labels found, what is flagged; at the end in how many trials the truth lies within two stated errors.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

import dspt

NOISES = (None, ("symmetric", 0.1), ("symmetric", 0.3), ("symmetric", 0.6), ("pair", 0.2), ("pair", 0.3))


def main() -> None:
    covered = trials = 0
    for load in (load_breast_cancer, load_digits, load_iris, load_wine):
        measured = load()
        x, true = StandardScaler().fit_transform(measured.data), measured.target
        for noise in NOISES:
            figures = []
            for seed in (1, 2, 3):
                labels = dspt.corrupt(true, int(true.max()) + 1, *noise, seed=seed) if noise else true
                found = dspt.label_posterior(x, labels)
                wrong, flagged = labels != true, found.probabilities.argmax(1) != labels
                f1 = 2 * (flagged & wrong).sum() / max(1, flagged.sum() + wrong.sum())
                figures.append((wrong.mean(), found.noise_rate, found.noise_rate_error, f1, flagged.mean()))
                covered += abs(found.noise_rate - wrong.mean()) <= 2 * found.noise_rate_error
                trials += 1
            share, rate, error, f1, flagged = np.mean(figures, axis=0)
            name = load.__name__.removeprefix("load_")
            print(
                f"{name:14} {'clean' if noise is None else f'{noise[0]} {noise[1]:g}':14} wrong {100 * share:5.1f} %  "
                f"estimate {100 * rate:5.1f} ± {100 * error:4.1f} %  F1 {f1:.2f}  flagged {100 * flagged:5.1f} %"
            )
    print(f"the truth is within two stated errors in {covered} of {trials} trials")


if __name__ == "__main__":
    main()
