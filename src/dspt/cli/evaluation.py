"""What an evaluation looks like on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspt.cli.common import print, print_trust, terminal_width
from dspt.internal.names import printable, wrapped
from dspt.internal.rounding import counted, figure

# Longer lists are for --json and --page.
_CLASSES, _MISTAKES, _BAR, _NAME = 20, 5, 20, 24


def print_evaluation(found: Mapping[str, Any]) -> None:
    """Print what `workflows.evaluate` found in one set of classes."""
    calibration = found["calibration"]
    surely = f"mean probability of the predicted class {figure(calibration['confidence'], 2)} %"
    rows = [
        ("accuracy", found["accuracy"], counted(found["samples"], "image")),
        ("mean recall", found["mean_recall"], "every class counts alike"),
        ("mean F1", found["mean_f1"], ""),
        ("ECE", calibration["ece"], surely),
    ]
    if "zero_shot" in found:
        rows.insert(1, ("zero-shot", found["zero_shot"], repr(found["template"])))
    for name, value, words in rows:
        print(f"  {name:<12}{figure(value, 2):>6} %  {words}".rstrip())
    print_trust(found["test_labels_known"], found)
    _print_classes(found["by_class"])
    _print_confusion([row["class"] for row in found["by_class"]], found["confusion"])
    _print_calibration(calibration["bins"])
    if found["worst"]:
        print("", "worst images, the least probable label first", sep="\n")
        for one in found["worst"]:
            text = (
                f"  {one['image']}: label {one['label']} {100 * one['probability_of_label']:.1f} %, "
                f"taken for {one['predicted']} {100 * one['probability']:.1f} %"
            )
            print(*wrapped(text, terminal_width(otherwise=80), "    "), sep="\n")


def _print_classes(rows: list[dict[str, Any]]) -> None:
    """Print the figures of each class, the worst first."""
    order = sorted(rows, key=lambda row: (row["f1"] is None, row["f1"] or 0))
    shown = order[:_CLASSES]
    width = max(5, *(len(_short(row["class"])) for row in shown))
    print("", f"  {'class':<{width}}  precision  recall      F1  images  predicted", sep="\n")
    for row in shown:
        precision, recall, f1 = ("-" if row[x] is None else figure(row[x], 1) for x in ("precision", "recall", "f1"))
        print(
            f"  {_short(row['class']):<{width}}  {precision:>9}  {recall:>6}  {f1:>6}  {row['samples']:>6,}  "
            f"{row['predicted']:>9,}"
        )
    if more := len(order) - len(shown):
        print(f"  and {counted(more, 'more class', 'more classes')}, none of them worse; --json lists them")


def _print_confusion(names: list[str], counts: list[list[int]]) -> None:
    """Print the confusion matrix if it fits, and else the most frequent mistakes."""
    wide = terminal_width(otherwise=100)
    cell = 1 + max(len(str(len(names))), *(len(f"{n}") for row in counts for n in row))
    label = max(len(_short(name)) for name in names)
    number = len(str(len(names)))
    print()
    if 2 + number + 1 + label + 1 + cell * len(names) <= wide:
        print("  images by label (row) and predicted class (column)")
        print(f"  {'':{number + 1 + label}} " + "".join(f"{i:>{cell}}" for i in range(1, len(names) + 1)))
        for i, (name, row) in enumerate(zip(names, counts, strict=True), 1):
            cells = "".join(f"{n or '.':>{cell}}" for n in row)
            print(f"  {i:>{number}} {_short(name):<{label}} {cells}")
        return
    pairs = [(n, t, p) for t, row in enumerate(counts) for p, n in enumerate(row) if n and t != p]
    pairs.sort(key=lambda pair: -pair[0])
    if pairs:
        print("  most frequent mistakes, label -> predicted")
    for n, t, p in pairs[:_MISTAKES]:
        print(f"  {names[t]} -> {names[p]}: {n:,}")
    if (more := len(pairs) - _MISTAKES) > 0:
        print(f"  and {counted(more, 'rarer pair')}; --page and --json have the whole matrix")


def _print_calibration(bins: list[dict[str, Any]]) -> None:
    """Print, for each range of probabilities, what share is right."""
    print("", "  probability    images    mean   right", sep="\n")
    for one in bins:
        if one["samples"]:
            mean, right = one["confidence"], one["accuracy"]
            bar = "=" * round(_BAR * right / 100)
            print(
                f"  {figure(one['from'], 0):>3} to {figure(one['to'], 0):>3} %  {one['samples']:>7,}  "
                f"{figure(mean, 1):>6}  {figure(right, 1):>6}  {bar}".rstrip()
            )


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= _NAME else shown[: _NAME - 1] + "…"
