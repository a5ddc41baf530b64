"""The report folder: its files, and how an audit is read from it again. Nobody else opens them.

    index.html, thumbs/     the page a person reads
    audit.csv, .parquet     one row a sample, for other programs
    summary.json            what is true of the whole set
    evidence.safetensors    features and all that was computed from them, so that the labels can be judged again
    names.parquet           what each sample is called and where its file is
    decisions.sqlite        what a person has decided (see `dspt.review`)
    .about.json             which data it is about; written before all of these, and what a report is known by

summary.json is written last and has a digest of the others' content in it: a report that was stopped half-way is known.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from dspt.auditing.audit import Audit, by_images
from dspt.internal.errors import Fault, InputError
from dspt.internal.files import read_json, replacing, told, write_json
from dspt.internal.shards import Features
from dspt.internal.tensors import mapped, write_blocks

SUMMARY, EVIDENCE, NAMES, DECISIONS = "summary.json", "evidence.safetensors", "names.parquet", "decisions.sqlite"
TABLE, TABLE_PARQUET, PAGE, THUMBS = "audit.csv", "audit.parquet", "index.html", "thumbs"
FILES = (SUMMARY, EVIDENCE, NAMES, TABLE, TABLE_PARQUET, PAGE, THUMBS)
_FORMAT = 1
_TEXTS = {"items": "item", "splits": "split", "image_issues": "image_issues"}
_ARRAYS = (
    *("labels", "probabilities", "class_noise_rates", "fits_no_class", "is_outlier", "examples"),
    *("decided", "corrected"),
)
# What the report is about: decisions in the folder are about the same.
_ABOUT = ".about.json"
# What a page may remove from the folder of its thumbnails, and what its own are called.
_PICTURES, SHEET = (".webp", ".jpg"), re.compile(r"\d{4,}-[0-9a-f]{12}\.(webp|jpg)")


@dataclass(frozen=True)
class Evidence:
    """What labels are judged by: features (N, D), the class names as the text tower sees them (C, D), the scale."""

    features: Features
    prototypes: np.ndarray | None
    scale: float


def check_out(folder: Path | str, source: str = "", images: Iterable[str] = ()) -> None:
    """Raise `InputError` if a report cannot be written there: among the images, or over something else.

    Parameters
    ----------
    folder : Path or str
        Where the report is to be.
    source : str
        The folder of the data; "" if it is none.
    images : iterable of str
        Other folders of images.
    """
    folder = Path(folder)
    check_apart(folder, (source, *images))
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: it is a file, and a report is a folder; give another name")
    if folder.is_dir():
        with told(f"report folder {folder}", "give another folder"):
            _check_ours(folder)


def check_apart(path: Path | str, images: Iterable[str]) -> None:
    """Raise `InputError` if a file or folder that is to be written is in one of the folders of images; "" is none."""
    place = os.path.join(os.path.realpath(path), "")
    for inside in images:
        if inside and os.path.isdir(inside) and place.startswith(os.path.join(os.path.realpath(inside), "")):
            raise InputError(f"{path}: it is in the folder of the images, which is left as it is; give another place")


def _check_ours(folder: Path) -> None:
    """Raise `InputError` if a report would replace or remove what is no part of one."""
    there = {entry.name for entry in folder.iterdir()}
    shown = {name for name in there if not name.startswith(".")}
    ours = {*FILES, DECISIONS, f"{DECISIONS}-wal", f"{DECISIONS}-shm"}
    strange = sorted(shown - ours)
    if not strange and (shown or _ABOUT in there) and not _is_about(folder / _ABOUT):
        strange = sorted(shown) or [_ABOUT]
    if not strange and (folder / THUMBS).is_dir():
        pictures = [entry.name for entry in (folder / THUMBS).iterdir() if entry.suffix in _PICTURES]
        strange = sorted(f"{THUMBS}/{name}" for name in pictures if not SHEET.fullmatch(name))
    if strange:
        raise InputError(f"{folder}: it has files of something else in it ({strange[0]}); give another folder")


def _is_about(path: Path) -> bool:
    """Return whether a file says what a report is about, as `begin` writes it."""
    try:
        found = read_json(path)
    except (InputError, FileNotFoundError):
        return False
    return isinstance(found, dict) and found.keys() == {"place", "content"} and set(map(type, found.values())) == {str}


def check_same(folder: Path | str, audit: Audit, content: str = "") -> None:
    """Raise `InputError` if the folder, in which there are decisions, is about something else.

    Parameters
    ----------
    folder : Path or str
        The report folder.
    audit : Audit
        What the new report is about.
    content : str
        A digest of the samples, where they have no names by which decisions could be told apart.
    """
    folder = Path(folder)
    if not (folder / _ABOUT).exists():
        return
    before = read_json(folder / _ABOUT, f"report {folder}")
    if not isinstance(before, dict) or before != {"place": audit.place, "content": content}:
        other = before.get("place") if isinstance(before, dict) else None
        what = f"other data ({other})" if other != audit.place else "samples that have changed since, and have no names"
        raise InputError(f"report folder {folder}: it holds decisions about {what}; give another folder")


def begin(folder: Path | str, audit: Audit, content: str = "") -> None:
    """Have a report count as unfinished until `save` has ended, and keep what it is about."""
    with told(f"report folder {folder}"):
        (Path(folder) / SUMMARY).unlink(missing_ok=True)
    write_json(Path(folder) / _ABOUT, {"place": audit.place, "content": content})


def save(audit: Audit, folder: Path | str, evidence: Evidence, paths: Sequence[str] | None = None) -> None:
    """Write all of an audit but the page; what was decided about an earlier one stays.

    Parameters
    ----------
    audit : Audit
        What was found.
    folder : Path or str
        The report folder, made if it is not there.
    evidence : Evidence
        What it was found by.
    paths : sequence of str, optional
        The image file of each sample; None if they are no files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    with told(f"report folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
    names: dict[str, Any] = {
        "item": audit.items,
        "split": audit.splits,
        "image_issues": audit.image_issues or ("",) * len(audit.items),
        # a file name is bytes, which may be no text
        "path": [None] * len(audit.items) if paths is None else [os.fsencode(os.path.abspath(path)) for path in paths],
    }
    columns = {name: pa.array(values, pa.binary() if name == "path" else pa.string()) for name, values in names.items()}
    with replacing(folder / NAMES) as temporary:
        pq.write_table(pa.table(columns), temporary)
    arrays: dict[str, Features] = {name: value for name in _ARRAYS if (value := getattr(audit, name)) is not None}
    arrays["features"] = evidence.features
    if evidence.prototypes is not None:
        arrays["prototypes"] = evidence.prototypes
    with replacing(folder / EVIDENCE) as temporary:
        write_blocks(temporary, arrays)
    for name in (TABLE, TABLE_PARQUET):
        write_table(audit, folder / name)
    facts = {
        each.name: getattr(audit, each.name)
        for each in fields(audit)
        if each.name not in (*_ARRAYS, "items", "splits", "image_issues", "unusable")
    }
    write_json(
        folder / SUMMARY,
        {
            "format": _FORMAT,
            **facts,
            "unusable": [asdict(fault) for fault in audit.unusable],
            "scale": evidence.scale,
            "digest": _digest(audit),
            "summary": summary(audit),
        },
    )


def load(folder: Path | str) -> Audit:
    """Return the audit that a report folder holds.

    Raises
    ------
    InputError
        If the folder holds no report, or not the whole of one.
    """
    import pyarrow.parquet as pq

    folder = Path(folder)
    known = _summary(folder)
    try:
        names = pq.read_table(folder / NAMES).to_pydict()
        arrays = _arrays(folder)
        facts: dict[str, Any] = {each.name: known[each.name] for each in fields(Audit) if each.name in known}
        facts |= {name: arrays[name] for name in _ARRAYS if name in arrays}
        facts["class_names"] = tuple(facts["class_names"])
        facts |= {name: tuple(map(tuple, facts[name])) for name in ("duplicate_groups", "inseparable")}
        facts |= {name: tuple(names[column]) for name, column in _TEXTS.items()}
        facts["unusable"] = tuple(Fault(**fault) for fault in known["unusable"])
        audit = Audit(**facts)
        whole = known["digest"] == _digest(audit)
    except InputError:
        raise
    except Exception as error:  # damaged bytes are met with errors of every kind
        raise InputError(f"report {folder}: its files cannot be read ({error}); make the report again") from None
    if not whole:
        raise InputError(f"report {folder}: its files do not belong together; make the report again")
    return audit


def load_evidence(folder: Path | str) -> Evidence:
    """Return what the labels of a report were judged by."""
    folder = Path(folder)
    arrays = _arrays(folder)
    return Evidence(arrays["features"], arrays.get("prototypes"), float(_summary(folder)["scale"]))


def load_paths(folder: Path | str) -> list[str | None]:
    """Return the image file of each sample of a report; None for those that have none."""
    import pyarrow.parquet as pq

    found = pq.read_table(Path(folder) / NAMES, columns=["path"]).to_pydict()["path"]
    return [None if path is None else os.fsdecode(path) for path in found]


def write_table(audit: Audit, path: Path | str) -> None:
    """Put one row a sample at `path`: .csv, .parquet or .json by its suffix, whole or not at all."""
    path = Path(path)
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            _write_parquet(audit, temporary)
        elif path.suffix == ".json":
            audit.table().to_json(temporary, orient="records", indent=1)
        else:
            _write_csv(audit, temporary)


def _write_parquet(audit: Audit, path: Path) -> None:
    """Write the table a part at a time, each a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = audit.tables()
    first = pa.Table.from_pandas(next(parts), preserve_index=False)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(pa.Table.from_pandas(part, first.schema, preserve_index=False))


def _write_csv(audit: Audit, path: Path) -> None:
    """Write the table a part at a time, with cells that no spreadsheet takes for a formula."""
    from dspt.internal.names import spreadsheet_cell

    with open(path, "w", encoding="utf-8", newline="") as file:
        for number, part in enumerate(audit.tables()):
            for name in ("item", "given_label", "predicted_label", "runner_up"):
                part[name] = part[name].map(spreadsheet_cell, na_action="ignore")
            part.to_csv(file, index=False, header=not number, float_format="%.6g")


def summary(audit: Audit) -> dict[str, Any]:
    """Return what is true of the whole set, as JSON can hold it: unknown is null."""
    told_apart = audit.tells
    names = audit.class_names
    first, _ = audit.ranked
    pairs = audit.labels.astype(np.int64) * len(names) + first
    counted = np.unique(pairs[audit.is_label_issue], return_counts=True)
    most = sorted(zip(*(each.tolist() for each in counted), strict=True), key=lambda pair: (-pair[1], pair[0]))[:20]
    differ = [group for group in audit.duplicate_groups if audit.labels_differ(group)]
    leaks = [group for group in audit.duplicate_groups if audit.leaks(group)]
    issues = [issue for told in audit.image_issues for issue in told.split(";") if issue]
    budget = audit.made_with.get("budget")
    looks = None if budget is None else audit.looks(budget)
    wrong = None if looks is None or not told_apart else float(audit.doubts[looks].sum())
    return {
        "data": audit.source,
        "samples": len(audit.labels),
        "classes": len(names),
        "noise_rate": audit.noise_rate if told_apart else None,
        "noise_rate_error": audit.noise_rate_error if told_apart else None,
        "label_issues": int(audit.is_label_issue.sum()) if audit.can_tell else None,
        "decided": audit.settled,
        "still_wrong": round(audit.still_wrong, 2) if told_apart else None,
        "looks": None if looks is None else len(looks),
        "wrong_among_looks": None if wrong is None else round(wrong, 2),
        "class_noise_rates": {
            name: None if not told_apart or np.isnan(rate) else float(rate)
            for name, rate in zip(names, audit.class_noise_rates, strict=True)
        },
        "most_confused": [
            {"given": names[pair // len(names)], "proposed": names[pair % len(names)], "count": count}
            for pair, count in most
        ],
        "outliers": int(audit.is_outlier.sum()),
        "duplicate_groups": len(audit.duplicate_groups),
        "duplicates_with_different_labels": len(differ),
        "duplicates_in_train_and_test": len(leaks),
        "image_issues": {issue: issues.count(issue) for issue in dict.fromkeys(issues)},
        "unusable": len(audit.unusable),
        "same_path_in_train_and_test": len(audit.in_both_splits),
        "empty_folders": len(audit.empty_folders),
        "inseparable_classes": [
            {"classes": [names[a], names[b]], "overlap": share, "by": "images" if by_images(share) else "names"}
            for a, b, share in audit.inseparable
        ],
        **{name: value for name, value in audit.made_with.items() if name != "path"},
    }


def _summary(folder: Path) -> dict[str, Any]:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"report {folder}: it is a file, and a report is a folder; give the folder")
    try:
        found = read_json(folder / SUMMARY, f"report {folder}")
    except FileNotFoundError:
        there = folder.is_dir() and (folder / EVIDENCE).exists()
        what = "it was not finished" if there else "no report is there"
        raise InputError(f"report {folder}: {what}; make one with 'dspt audit DATA'") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise InputError(f"report {folder}: it was not made by this version; make the report again")
    return found


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    try:
        return mapped(folder / EVIDENCE)[0]
    except Exception as error:
        raise InputError(f"report {folder}: its files cannot be read ({error}); make the report again") from None


def _digest(audit: Audit) -> str:
    """Return a digest of what belongs together."""
    parts = hashlib.blake2b(digest_size=16)
    for name in ("labels", "probabilities"):
        parts.update(np.ascontiguousarray(getattr(audit, name)).data)
    parts.update("\0".join([*audit.class_names, "", *audit.items]).encode(errors="surrogatepass"))
    return parts.hexdigest()
