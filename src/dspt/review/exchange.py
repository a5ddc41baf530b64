"""To other tools and back: what an audit has found, and the corrections of people who worked on it there.

Names of samples and classes are written as `dspt.data.items.written` writes them, on one line.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.sax.saxutils import quoteattr

import numpy as np

from dspt.auditing.audit import Audit
from dspt.data.dataset import listed
from dspt.data.items import written
from dspt.data.tabular import Wanted, open_table, quoted
from dspt.internal.checks import is_integer, is_text
from dspt.internal.errors import InputError
from dspt.internal.files import check_regular, parse_json, replacing, write_csv, write_json, write_text
from dspt.internal.names import from_spreadsheet_cell, matched, printable
from dspt.review.corrected import (
    ACCEPTED,
    AS_A_COPY,
    GIVEN,
    PERSON,
    check_files,
    check_learnable,
    check_new_folder,
    check_outside,
    counted,
    final_labels,
)
from dspt.review.decisions import KEEP, RELABEL, REMOVE, Decision

# Where Label Studio serves files of its machine: the path below its document root follows.
LOCAL_FILES = "/data/local-files/?d="

# What the labelling page of Label Studio calls the image, the class, and what else becomes of a sample.
_IMAGE, _LABEL, _SAMPLE = "image", "label", "sample"
_NAMED_BY = ("item", "path", "index")

# What its tables have and nobody else's: empty for a task without an annotation.
_ANNOTATION = "annotation_id"

_FORMS = (
    "expected a table with the columns item (or path, or index) and label, the JSON of Label Studio, or FiftyOne's "
    "labels.json"
)


class _Columns(Wanted):
    """The columns of corrections; which of them must be there is not for a table to say."""

    def __str__(self) -> str:
        return _FORMS


_TABLE = _Columns(
    needed=(),
    optional=(*_NAMED_BY, "label", "given_label", "decided_by", _SAMPLE, _ANNOTATION),
    numbers=("label", "given_label", "index", _SAMPLE, _ANNOTATION),
    each="each corrected sample",
)


def export(
    audit: Audit,
    decisions: Mapping[int, Decision],
    out: Path | str,
    kind: str,
    paths: Sequence[str] | None,
    accept: float | None = None,
    address: str = "",
) -> dict[str, int]:
    """Return what was counted, once a folder for another tool is at `out`.

    Parameters
    ----------
    audit, decisions, accept
        See `dspt.review.corrected.final_labels`.
    out : Path or str
        A new or an empty folder.
    kind : str
        One of `KINDS`:

        - "cleanlab": labels.npy, pred_probs.npy, label_issues.csv and class_names.txt, a row a sample, as cleanlab's
          functions take them; labels are the given ones.
        - "fiftyone": labels.json and predictions.json, as FiftyOneImageClassificationDataset has them, by the absolute
          paths of the images; removed samples have no label.
        - "label-studio": tasks.json to import, those first that are most likely wrong, and config.xml for the page of
          the project. What was decided is an annotation, what was found a prediction.
        - "huggingface": a dataset as `save_to_disk` writes it, with the columns image, label, given_label and
          decided_by; removed samples are not in it.
    paths : sequence of str, or None
        The absolute path of each sample's file; None for samples that have none, of which cleanlab alone can be told.
    address : str
        For Label Studio, what the address of an image begins with, before its name as an item: "https://host/photos/".
        "" has it served from the files of its machine, with / as the document root.
    """
    out = Path(out)
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    files = () if kind == "cleanlab" else check_files(audit, paths)
    labels, sources = final_labels(audit, decisions, accept)
    check_new_folder(out)
    check_outside(audit, files or paths or (), out)
    found = _Found(audit, decisions, labels, sources, files, address)
    with replacing(out.absolute()) as whole:
        whole.mkdir()
        KINDS[kind](found, whole)
    return counted(audit, labels, sources)


@dataclass(frozen=True)
class _Found:
    """What there is to write."""

    audit: Audit
    decisions: Mapping[int, Decision]
    labels: np.ndarray
    sources: Sequence[str]
    files: Sequence[str]
    address: str

    @property
    def names(self) -> list[str]:
        return list(map(written, self.audit.class_names))


def _cleanlab(found: _Found, folder: Path) -> None:
    audit = found.audit
    np.save(folder / "labels.npy", audit.labels.astype(np.int64), allow_pickle=False)
    np.save(folder / "pred_probs.npy", audit.probabilities, allow_pickle=False)
    write_text(folder / "class_names.txt", "".join(f"{name}\n" for name in found.names))
    columns = (audit.is_label_issue, audit.label_quality, audit.labels, audit.ranked[0])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    header = ("is_label_issue", "label_quality", "given_label", "predicted_label")
    write_csv(folder / "label_issues.csv", header, (map(str, row) for row in rows))


def _fiftyone(found: _Found, folder: Path) -> None:
    audit, names, quality = found.audit, found.names, found.audit.label_quality
    proposed, _ = audit.ranked
    truth, predictions = {}, {}
    for row, file in enumerate(found.files):
        # Whatever is no absolute path loses its extension there, and a backslash becomes a slash.
        key, label = os.path.abspath(file), int(found.labels[row])
        if not is_text(key):
            raise InputError(f"{printable(key)}: FiftyOne takes no file whose name is no text; rename it", AS_A_COPY)
        about = {"given_label": names[audit.labels[row]], "decided_by": found.sources[row]}
        truth[key] = None if label < 0 else {"label": label, "attributes": about}
        predictions[key] = {
            "label": int(proposed[row]),
            "confidence": float(audit.probabilities[row, proposed[row]]),
            "attributes": {
                "is_label_issue": bool(audit.is_label_issue[row]),
                "label_quality": float(quality[row]),
            },
        }
    (folder / "data").mkdir()  # it is asked for, though no image is looked for in it
    write_json(folder / "labels.json", {"classes": names, "labels": truth})
    write_json(folder / "predictions.json", {"classes": names, "labels": predictions})


def _label_studio(found: _Found, folder: Path) -> None:
    audit, names, quality = found.audit, found.names, found.audit.label_quality
    proposed, _ = audit.ranked

    def choice(name: str, value: str) -> list[dict[str, Any]]:
        return [{"from_name": name, "to_name": _IMAGE, "type": "choices", "value": {"choices": [value]}}]

    def task(row: int) -> dict[str, Any]:
        item, label = audit.items[row], int(found.labels[row])
        local = f"{LOCAL_FILES}{quote(os.fsencode(os.path.abspath(found.files[row])).lstrip(b'/'))}"
        about = {
            _IMAGE: f"{found.address}{quote(item)}" if found.address else local,
            "item": item,
            "given_label": names[audit.labels[row]],
            "label_quality": float(quality[row]),
        }
        score = float(audit.probabilities[row, proposed[row]])
        made = {"model_version": "dspt", "score": score, "result": choice(_LABEL, names[proposed[row]])}
        decided = [{"result": choice(_SAMPLE, REMOVE) if label < 0 else choice(_LABEL, names[label])}]
        return {"data": about, "predictions": [made], "annotations": decided if row in found.decisions else []}

    looks = audit.looks(len(audit.labels))
    decided_last = [*looks.tolist(), *np.setdiff1d(np.arange(len(audit.labels)), looks).tolist()]
    write_json(folder / "tasks.json", [task(row) for row in decided_last])
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in names)
    write_text(
        folder / "config.xml",
        f'<View>\n  <Image name="{_IMAGE}" value="${_IMAGE}"/>\n'
        f'  <Choices name="{_LABEL}" toName="{_IMAGE}" choice="single" showInline="true">\n{choices}  </Choices>\n'
        f'  <Choices name="{_SAMPLE}" toName="{_IMAGE}" choice="single">\n    <Choice value="{REMOVE}"/>\n'
        "  </Choices>\n</View>\n",
    )


def _huggingface(found: _Found, folder: Path) -> None:
    try:
        import datasets
    except ImportError:
        raise InputError("Hugging Face datasets need another package: pip install 'dspt[hub]'") from None
    audit = found.audit
    kept = check_learnable(audit, found.labels).tolist()
    for row in kept:
        if not os.path.isfile(found.files[row]):
            raise InputError(f"{found.files[row]}: no such file; put it back, or audit the data again")
    names = list(audit.class_names)
    text = datasets.Value("string")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=names), "given_label": text, "decided_by": text}
    )

    def part(split: str) -> Any:
        rows = [row for row in kept if audit.splits[row] == split]
        columns = {
            "image": [_stored(found.files[row]) for row in rows],
            "label": found.labels[rows].tolist(),
            "given_label": [names[audit.labels[row]] for row in rows],
            "decided_by": [found.sources[row] for row in rows],
        }
        return datasets.Dataset.from_dict(columns, features=features)

    if "test" in audit.splits:
        data = datasets.DatasetDict({split: part(split) for split in ("train", "test")})
    else:
        data = part("train")
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        data.save_to_disk(str(folder))
    finally:
        if not silent:
            datasets.enable_progress_bars()


def _stored(file: str) -> str | dict[str, Any]:
    """Return a file as datasets takes it: by its path, or its bytes if the path is not text."""
    return file if is_text(file) else {"path": None, "bytes": Path(file).read_bytes()}


KINDS: dict[str, Callable[[_Found, Path], None]] = {
    "cleanlab": _cleanlab,
    "fiftyone": _fiftyone,
    "label-studio": _label_studio,
    "huggingface": _huggingface,
}


@dataclass(frozen=True)
class _Said:
    """What a file says about one sample: its class, or None to remove it; who says so, and what was given before."""

    name: str
    label: str | None
    place: str
    by: str = PERSON
    given: str | None = None


def read_corrections(path: Path | str, audit: Audit, paths: Sequence[str | None] | None = None) -> dict[int, Decision]:
    """Return what people have decided elsewhere, by row of the audit.

    Parameters
    ----------
    path : Path or str
        Known by what is in it:

        - a .csv, .tsv, .jsonl, .parquet or .xlsx table with the columns item or path, and label: a class name; an
          empty one, or "remove" unless a class is called so, removes the sample;
        - such a table with the columns index and label: samples, and classes if they are numbers, are counted from 0;
        - a label file as `dspt.review.corrected.write_labels` writes it: a .csv table with these two columns alone and
          a class for each sample of the train split, in their order. A label in it which is the given one is no
          decision. With any other column it is a table as above;
        - a manifest of corrected labels, which is such a table with the columns given_label and decided_by. It has all
          samples, so that a label is a decision if it says that a person made it, or if it was changed since; samples
          that it does not have are not decided;
        - the JSON, JSON-MIN, CSV or TSV that Label Studio exports; tasks that were skipped or left empty are not
          decided;
        - a labels.json of FiftyOne. It has all samples, so that a label which is the given one is no decision, unless
          it says that a person made it; a sample without a label is removed. Our own predictions.json, which has
          what nobody has decided, is refused.

        A path may have more folders before the item, the same for all.
    audit : Audit
    paths : sequence of str or None, optional
        The absolute path of each sample's file; a sample that is named by it is that one, whatever else it may mean.

    Returns
    -------
    dict
        A `Decision` for each row that somebody has decided about.

    Raises
    ------
    InputError
        If it is none of these, or names a sample or a class that is not there, or two labels for one sample.
    """
    path = Path(path)
    content = _json(path)
    if content is None:
        said, counted_from_0, bare = _table(path)
    else:
        said = list((_tasks if isinstance(content, list) else _labels)(path, content))
        counted_from_0 = bare = False
    if counted_from_0:
        rows, labels = _by_index(path, audit, said)
    else:
        rows = _by_name(path, audit, said, paths or (), stems=isinstance(content, dict))
        labels = _classes(path, audit, said)
    if bare and _is_label_file(audit, rows, labels):
        said = [replace(one, by=GIVEN) for one in said]
    proposed, _ = audit.ranked
    classes = _numbers(audit, [one.given for one in said])
    first: dict[int, int] = {}
    decisions: dict[int, Decision] = {}
    for i, (one, row, label) in enumerate(zip(said, rows, labels, strict=True)):
        before = first.setdefault(row, i)
        if labels[before] != label:
            what = [f"{quoted(said[j].label or REMOVE)} at {said[j].place}" for j in (before, i)]
            raise InputError(f"{path}: {quoted(audit.items[row])} is {what[0]} and {what[1]}; keep one of them")
        given = int(audit.labels[row])
        # What it is if nobody has decided.
        unchanged = int(proposed[row]) if one.by == ACCEPTED else given
        if one.by not in (PERSON, ACCEPTED) and one.given is not None:
            unchanged = label if one.given == one.label else classes[one.given]
        if one.by == PERSON or label != unchanged:
            action = REMOVE if label < 0 else KEEP if label == given else RELABEL
            decisions[row] = Decision(action, label)
    return decisions


def _is_label_file(audit: Audit, rows: Sequence[int], labels: Sequence[int]) -> bool:
    """Return whether a table has a class for each sample of the train split, in their order, as our label file has."""
    train = [row for row, split in enumerate(audit.splits) if split == "train"]
    return list(rows) == train and min(labels, default=-1) >= 0


def _json(path: Path) -> Any:
    """Return the JSON in a file; None if it is a table."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            first = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if first not in (b"[", b"{") or path.suffix.lower() == ".jsonl":
                return None
            file.seek(0)
            return parse_json(file.read().decode("utf-8-sig"), str(path))
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _table(path: Path) -> tuple[list[_Said], bool, bool]:
    """Return what the rows of a table say, whether they count samples instead of naming them, and whether it is bare.

    A bare table has the columns of our label file and no others.
    """
    is_text = path.suffix.lower() not in (".jsonl", ".parquet", ".xlsx")
    said = []
    with open_table(path, _TABLE) as table:
        at = {name: i for i, name in enumerate(table.columns)}
        by = next((name for name in _NAMED_BY if name in at), None)
        of_tasks = _ANNOTATION in at
        labelled = _LABEL in at or (of_tasks and _SAMPLE in at)
        if by is None or not labelled:
            missing = ["item, path or index"] * (by is None) + ["label"] * (not labelled)
            raise InputError(f"{path}: has no column {' and no column '.join(missing)}; {_FORMS}")
        ours = {"given_label", "decided_by"} <= {*at}
        bare = path.suffix.lower() == ".csv" and {*at} in ({"item", _LABEL}, {"index", _LABEL}) and not table.others
        for number, cells in table.rows:
            place = f"{table.unit} {number}"
            if isinstance(cells, str):
                raise InputError(f"{path}: {place} cannot be used, {cells}; correct it")
            if is_text:
                cells = list(map(from_spreadsheet_cell, cells))
            label = cells[at[_LABEL]].strip() if _LABEL in at else ""
            if of_tasks:
                removed = _SAMPLE in at and cells[at[_SAMPLE]].strip() == REMOVE
                if not (label or removed):
                    continue
                label = "" if removed else label
            given = cells[at["given_label"]].strip() if ours else None
            decided_by = cells[at["decided_by"]].strip() if ours else PERSON
            name = cells[at[by]] if by == "index" else written(cells[at[by]])
            said.append(_Said(name, label or None, place, decided_by, given))
    return said, by == "index", bare


def _tasks(path: Path, tasks: Any) -> Iterator[_Said]:
    """Yield what was annotated in the tasks of Label Studio."""
    for number, task in enumerate(tasks):
        task = task if isinstance(task, dict) else {}
        place = f"task {task.get('id', number)}"
        about, annotations = task.get("data"), task.get("annotations", [])
        if about is None and _ANNOTATION in task:  # JSON-MIN: the data, and what was chosen by its name
            chosen = [(name, task[name]) for name in (_LABEL, _SAMPLE) if task.get(name)]
            results = [{"from_name": name, "value": {"choices": [choice]}} for name, choice in chosen]
            about, annotations = task, [{"result": results}]
        if not isinstance(about, dict) or not isinstance(annotations, list):
            raise InputError(f"{path}: {place} is none of Label Studio's; {_FORMS}")
        name = about.get("item") or _served(about.get(_IMAGE))
        if not isinstance(name, str) or not name:
            raise InputError(f"{path}: {place} has neither an item nor an image; export it with its data")
        for annotation in annotations:
            chosen = list(_choices(f"{path}: an annotation of {place}", annotation))
            # Who removes a sample may leave the label that was proposed.
            for label in [None] if (_SAMPLE, REMOVE) in chosen else [label for _, label in chosen]:
                yield _Said(name, label, place)


def _choices(place: str, annotation: Any) -> Iterator[tuple[Any, str]]:
    """Yield the names of what was chosen in an annotation of Label Studio, and the choices."""

    def as_is(value: Any, kind: type) -> Any:
        if not isinstance(value, kind | None):
            raise InputError(f"{place} is none of Label Studio's; {_FORMS}")
        return value or kind()

    made = as_is(annotation, dict)
    for result in as_is(made.get("result"), list) if not made.get("was_cancelled") else ():
        one = as_is(result, dict)
        for choice in as_is(as_is(one.get("value"), dict).get("choices"), list):
            yield one.get("from_name"), str(choice)


def _served(image: Any) -> str:
    """Return the path in the address of an image, which may be a file that Label Studio serves."""
    if not isinstance(image, str):
        return ""
    _, local, below = image.partition("?d=")
    try:
        return written(unquote(below if local else urlsplit(image).path))
    except ValueError:  # no address at all
        return ""


def _labels(path: Path, content: Any) -> Iterator[_Said]:
    """Yield the labels of a labels.json of FiftyOne."""
    labels, classes = content.get("labels"), content.get("classes")
    if not isinstance(labels, dict) or not isinstance(classes, list | None):
        raise InputError(f"{path}: it has no labels of samples; {_FORMS}")
    for name, target in labels.items():
        label, by = target, GIVEN
        if isinstance(target, dict):
            label, about = target.get("label"), target.get("attributes")
            about = about if isinstance(about, dict) else {}
            if "is_label_issue" in about and "decided_by" not in about:
                raise InputError(
                    f"{path}: it has the proposals of an audit, which nobody has decided; import the labels.json that "
                    "was written beside it"
                )
            by = about.get("decided_by", GIVEN)
        if is_integer(label) and classes is not None and 0 <= label < len(classes):
            label = classes[label]
        if not isinstance(label, str | None):
            raise InputError(
                f"{path}: sample {quoted(name)} has {quoted(str(label))}, which is not one class; correct it"
            )
        yield _Said(written(name), label, f"sample {quoted(name)}", by)


def _by_name(path: Path, audit: Audit, said: Sequence[_Said], paths: Sequence[str | None], stems: bool) -> list[int]:
    """Return the row of each sample that is named, with `stems` also by its path without the extension."""
    files = _only_once("" if file is None else written(os.path.abspath(file)) for file in paths)
    known = [_only_once(audit.items)]
    if stems:
        without = [posixpath.splitext(item)[0] for item in audit.items]
        # FiftyOne leaves out folders, too, unless it is told otherwise.
        known += [_only_once(without), _only_once(map(posixpath.basename, without))]
    folders: dict[str, str] = {}
    rows = []
    for one in said:
        if one.name and (row := files.get(one.name, -1)) >= 0:
            rows.append(row)
            continue
        row, folder = next(_found(one.name, known), (-2, ""))
        if row < 0:
            what = "is no sample" if row == -2 else "is more than one sample"
            raise InputError(
                f"{path}: {quoted(one.name)} at {one.place} {what} of {audit.source}; correct it, or leave it out"
            )
        if not audit.items[row].startswith("/"):
            folders.setdefault(folder, one.name)
        rows.append(row)
    if len(folders) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(quoted, list(folders.values())[:2]))} lie below different folders; name all "
            f"samples as {quoted(audit.items[0])} is named"
        )
    return rows


def _only_once(names: Iterable[str]) -> dict[str, int]:
    """Return the row of each name; -1 for one that is there twice."""
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        rows[name] = -1 if name in rows else row
    return rows


def _found(name: str, known: Sequence[Mapping[str, int]]) -> Iterator[tuple[int, str]]:
    """Yield the rows that a name may mean, the likeliest first, and the folders before the item in it."""
    for form, rows in enumerate(known):
        for whole in (name, posixpath.normpath(name)):
            starts = [0, *(slash.end() for slash in re.finditer("/", whole))] if form < 2 else [0]
            yield from ((rows[whole[start:]], whole[:start]) for start in starts if whole[start:] in rows)


def _classes(path: Path, audit: Audit, said: Sequence[_Said]) -> list[int]:
    """Return the class of each sample that is named; -1 to remove it."""
    names = list(map(written, audit.class_names))
    number = _numbers(audit, [one.label for one in said])
    if REMOVE not in names:
        number[REMOVE] = -1
    for one in said:
        if one.label not in (None, REMOVE) and number[one.label] < 0:
            raise InputError(
                f"{path}: label {quoted(one.label)} at {one.place} is no class of {audit.source}; expected "
                f"{listed(names)}, or {REMOVE!r}"
            )
    return [-1 if one.label is None else number[one.label] for one in said]


def _numbers(audit: Audit, labels: Iterable[str | None]) -> dict[str, int]:
    """Return the class that each text means; -2 for one that means none."""
    texts = list(dict.fromkeys(label for label in labels if label is not None))
    found = matched(list(map(written, texts)), list(map(written, audit.class_names)))
    return {text: -2 if number < 0 else number for text, number in zip(texts, found, strict=True)}


def _by_index(path: Path, audit: Audit, said: Sequence[_Said]) -> tuple[list[int], list[int]]:
    """Return the row and the class of each sample that is counted; classes are numbers, or names as elsewhere."""
    n, c = len(audit.items), len(audit.class_names)
    rows = [_whole(one.name) for one in said]
    for one, row in zip(said, rows, strict=True):
        if not 0 <= row < n:
            raise InputError(f"{path}: index: expected 0..{n - 1}, found {quoted(one.name)} at {one.place}; correct it")
    numbers = [-1 if one.label in (None, REMOVE) else _whole(one.label) for one in said]
    if -2 in numbers:
        return rows, _classes(path, audit, said)
    for one, number in zip(said, numbers, strict=True):
        if number >= c:
            raise InputError(f"{path}: label: expected 0..{c - 1}, found {number} at {one.place}; correct it")
        if one.label in audit.class_names and audit.class_names.index(one.label) != number:
            raise InputError(
                f"{path}: label {one.label} at {one.place} is the name of a class and the number of another; name "
                "samples in a column item, where labels are names"
            )
    return rows, numbers


def _whole(text: str) -> int:
    """Return a whole number from 0; -2 for any other text."""
    found = re.fullmatch(r"([0-9]{1,18})(\.0*)?", text.strip())
    return int(found[1]) if found else -2
