"""The labels after the decisions: a manifest, a label file, or a copy of the folder.

The source itself is never changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dspt.auditing.audit import Audit
from dspt.data.dataset import Dataset, Split, listed
from dspt.data.folder import is_image
from dspt.data.writing import check_manifest_name, manifest_labels, manifest_paths, write_manifest_table
from dspt.internal.errors import InputError
from dspt.internal.files import check_free, check_regular, file_error, replacing, write_csv
from dspt.internal.names import spreadsheet_cell
from dspt.internal.progress import Reporter
from dspt.noise import labelfiles
from dspt.review.decisions import ACTIONS, KEEP, REMOVE, Decision

PERSON, ACCEPTED, GIVEN = "person", "accepted", "given"
# What was changed, in the folder of a copy: no image, so that the copy is read without it.
CHANGES = "changes.csv"

# What can be done where a file has a name that another tool cannot hold.
AS_A_COPY = "or give `apply` a new folder, which will have a copy of the images, whatever their names"

_SPLITS = ("train", "test", "val", "valid", "validation")


def final_labels(
    audit: Audit, decisions: Mapping[int, Decision], accept: float | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the labels after the decisions, and where each is from.

    Parameters
    ----------
    audit : Audit
    decisions : dict
        What a person has decided, by row; it counts before anything else. A label that is kept is the given one.
    accept : float, optional
        Proposals of at least this probability, above 0.5 and at most 1, are taken for labels that are called wrong.
        None takes none. Not for an image that fits no class: of what it is, the classes' probabilities say nothing.

    Returns
    -------
    labels : int64 array of shape (N,)
        -1 for a sample that is removed.
    sources : tuple of str
        "person", "accepted" or "given" for each.
    """
    labels = np.array(audit.labels, np.int64)
    n, c = len(labels), len(audit.class_names)
    source = np.full(n, GIVEN, dtype=object)
    if accept is not None:
        if not 0.5 < accept <= 1:
            raise InputError(f"accept = {accept}: expected a probability above 0.5 and at most 1")
        proposed = audit.ranked[0]
        sure = audit.probabilities[np.arange(n), proposed] >= accept
        taken = audit.is_label_issue & sure & ~audit.is_outlier
        labels[taken], source[taken] = proposed[taken], ACCEPTED
    for row, decision in decisions.items():
        if not 0 <= row < n:
            raise InputError(f"decisions: expected rows 0..{n - 1}, found {row}; they are of another audit")
        label = {REMOVE: -1, KEEP: int(audit.labels[row])}.get(decision.action, decision.label)
        if decision.action not in ACTIONS or not (label == -1 if decision.action == REMOVE else 0 <= label < c):
            raise InputError(
                f"decisions: {decision.action!r} with class {decision.label} of {c} at row {row} makes no sense; "
                "they are of another audit"
            )
        labels[row], source[row] = label, PERSON
    return labels, tuple(source.tolist())


def write_manifest(
    audit: Audit,
    decisions: Mapping[int, Decision],
    out: Path | str,
    paths: Sequence[str] | None,
    accept: float | None = None,
    overwrite: bool = False,
) -> dict[str, int]:
    """Return what was counted, once a manifest with the corrected labels is at `out`.

    Its columns are path, label, split (if there are test samples), given_label and decided_by. Paths are relative to
    its own folder. Removed samples and images that could not be read are not in it.

    Parameters
    ----------
    audit, decisions, accept
        See `final_labels`.
    out : Path or str
        A .csv, .jsonl or .parquet file.
    paths : sequence of str, or None
        The absolute path of each sample's file; None for samples that have none.
    overwrite : bool
        Whether a file that is there may be replaced; one of the source never is.

    Returns
    -------
    dict
        "written", "relabelled", "removed", "person", "accepted" and "empty_classes".
    """
    out = Path(out)
    check_manifest_name(out)
    files = check_files(audit, paths)
    labels, sources = final_labels(audit, decisions, accept)
    kept = check_learnable(audit, labels)
    check_free(out, overwrite)
    _check_apart(audit, out, files)
    try:
        written = manifest_paths((files[row] for row in kept.tolist()), out)
    except InputError as error:
        raise InputError(error.sentence, AS_A_COPY) from None
    columns = {"path": written, "label": manifest_labels(audit.class_names, labels[kept], out)}
    if "test" in audit.splits:
        columns["split"] = [audit.splits[row] for row in kept]
    given = [audit.class_names[label] for label in audit.labels[kept]]
    columns["given_label"] = list(map(spreadsheet_cell, given)) if out.suffix.lower() == ".csv" else given
    columns["decided_by"] = [sources[row] for row in kept]
    write_manifest_table(out, columns)
    return counted(audit, labels, sources)


def write_labels(
    audit: Audit,
    decisions: Mapping[int, Decision],
    out: Path | str,
    accept: float | None = None,
    overwrite: bool = False,
) -> dict[str, int]:
    """Return what was counted, once the corrected labels of the train split are in a label file at `out`.

    It is one that the noise `file:` takes, so that it has a label for every sample of the train split: samples cannot
    be removed by it. Samples that have no names are counted: `index,label`.

    Parameters
    ----------
    audit, decisions, accept, overwrite
        See `write_manifest`.
    out : Path or str
        A .csv file, or .npy with numbers alone.
    """
    out = Path(out)
    labels, sources = final_labels(audit, decisions, accept)
    train = np.flatnonzero(np.array(audit.splits) == "train")
    if removed := np.count_nonzero(labels[train] < 0):
        raise InputError(
            f"{out}: {removed} {'sample is' if removed == 1 else 'samples are'} to be removed, "
            "which a label file cannot say; keep or relabel them, or "
            "write a manifest where the samples are files"
        )
    check_free(out, overwrite)
    _check_apart(audit, out, ())
    items = [audit.items[row] for row in train]
    if items == [str(number) for number in range(len(items))]:
        labelfiles.write_labels(out, labels[train])
    else:
        split = Split(items, labels[train])
        # Items are names below the folder of the data; below any folder they are the same names.
        dataset = Dataset(audit.source, audit.class_names, split, split, root=os.getcwd())
        labelfiles.write_split(out, dataset, split)
    return counted(audit, labels, sources, train)


def apply_to_copy(
    audit: Audit,
    decisions: Mapping[int, Decision],
    paths: Sequence[str] | None,
    out: Path | str,
    accept: float | None = None,
    reporter: Reporter | None = None,
) -> dict[str, int]:
    """Return what was counted, once a copy of the images lies at `out`, each in the folder of its corrected class.

    There are train and test folders above the classes if there are test samples. Names of files are kept; where two
    meet, the one that came anew is called "name (2).jpg". Removed samples are left out. `changes.csv` in the copy has
    a row for every sample that was changed or removed: from, to, given_label, label, decided_by. The originals are
    only read, and nothing is at `out` before all of it is.

    Parameters
    ----------
    audit, decisions, accept, paths
        See `write_manifest`.
    out : Path or str
        A new or an empty folder, outside of the source.
    reporter : Reporter, optional
        Shows how far it is.
    """
    out, reporter = Path(out), reporter or Reporter(silent=True)
    files = check_files(audit, paths)
    labels, sources = final_labels(audit, decisions, accept)
    kept = check_learnable(audit, labels)
    check_new_folder(out)
    _check_folder_names([audit.class_names[label] for label in np.unique(labels[kept])])
    check_outside(audit, files, out)
    for row in kept.tolist():
        if not is_image(files[row]) or os.path.basename(files[row]).startswith("."):
            raise InputError(f"{files[row]}: in a folder its name is not that of an image; write a manifest")
    with_test = "test" in audit.splits
    # Those that stay where they are keep their names: they come first.
    order = kept[np.argsort(labels[kept] != audit.labels[kept], kind="stable")]
    went: dict[int, str] = {}
    last: dict[str, int] = {}
    with (
        replacing(out.absolute()) as whole,
        reporter.task("copying", len(order), unit="images") as update,
    ):
        whole.mkdir()
        for done, row in enumerate(order.tolist(), 1):
            folder = os.path.join(audit.splits[row] if with_test else "", audit.class_names[labels[row]])
            _, tail = _class_folder(files[row], audit.items[row], audit.class_names[audit.labels[row]])
            to = _free_name(whole, os.path.join(folder, tail), last)
            _copy(files[row], whole / to)
            went[row] = to.replace(os.sep, "/")
            update(done, "")
        names = [*audit.class_names, ""]  # the last, -1, is removed
        write_csv(
            whole / CHANGES,
            ("from", "to", "given_label", "label", "decided_by"),
            (
                (files[row], went.get(row, ""), names[audit.labels[row]], names[labels[row]], sources[row])
                for row in np.flatnonzero(labels != audit.labels).tolist()
            ),
        )
    return counted(audit, labels, sources)


def counted(audit: Audit, labels: np.ndarray, sources: Sequence[str], rows: np.ndarray | None = None) -> dict[str, int]:
    """Return how many samples were written, relabelled and removed, by whom, and how many classes have none left."""
    rows = np.arange(len(labels)) if rows is None else rows
    found, given, by = labels[rows], audit.labels[rows], [sources[row] for row in rows.tolist()]
    there = np.bincount(found[found >= 0], minlength=len(audit.class_names)) > 0
    return {
        "written": int((found >= 0).sum()),
        "relabelled": int(((found >= 0) & (found != given)).sum()),
        "removed": int((found < 0).sum()),
        PERSON: by.count(PERSON),
        ACCEPTED: by.count(ACCEPTED),
        "empty_classes": int((~there).sum()),
    }


def check_files(audit: Audit, paths: Sequence[str] | None) -> Sequence[str]:
    """Return the files of the samples, or raise `InputError` if they are none."""
    if paths is None:
        raise InputError(
            f"{audit.source}: its samples are no files, which a manifest or a folder could name; write the corrected "
            "labels alone, to a label file as the noise file:labels.csv reads it",
            "give `export` labels.csv and `format` labels",
        )
    if len(paths) != len(audit.items):
        raise InputError(f"paths: expected one for each of {len(audit.items)} samples, found {len(paths)}")
    return paths


def check_learnable(audit: Audit, labels: np.ndarray) -> np.ndarray:
    """Return the rows that are not removed, or raise `InputError` if nothing could be learnt from them."""
    kept = np.flatnonzero(labels >= 0)
    test = np.array(audit.splits, dtype=object)[kept] == "test"
    trained, tested = np.unique(labels[kept][~test]), np.unique(labels[kept][test])
    if len(trained) < 2:
        raise InputError(
            f"{audit.source}: {len(trained)} classes have train images after these decisions, and at least two are "
            "needed; keep some of those that are removed or relabelled"
        )
    if alone := [audit.class_names[label] for label in np.setdiff1d(tested, trained)]:
        raise InputError(
            f"{audit.source}: class {listed(alone)} has test images and no train images after these decisions; "
            "remove its test images, or keep a train image"
        )
    return kept


def check_new_folder(out: Path) -> None:
    """Raise `InputError` unless `out` is free for a folder, or an empty one."""
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: it is there and not an empty folder; give a new folder")
    if os.path.realpath(out) == os.path.realpath(os.getcwd()):
        raise InputError(f"{out}: it is the working directory, which stays as it is; give a new folder")


def check_outside(audit: Audit, files: Sequence[str], out: Path) -> None:
    """Raise `InputError` if the folder `out` lies in one of the source, or the other way round."""
    rows = zip(files, audit.items, audit.labels.tolist(), strict=False)
    sources = {_class_folder(file, item, audit.class_names[label])[0] for file, item, label in rows}
    if os.path.isdir(audit.place):
        sources.add(audit.place)
    real = os.path.realpath(out)
    for source in map(os.path.realpath, sources):
        if source in (real, *_above(real)) or real in _above(source):
            raise InputError(f"{out}: it and the source {source} are not apart; give a folder outside of it")


def _check_apart(audit: Audit, out: Path, files: Sequence[str]) -> None:
    """Raise `InputError` if a file would be written over one of the source, or into its folder."""
    real, place = os.path.realpath(out), os.path.realpath(audit.place)
    if real == place or (out.exists() and any(os.path.realpath(file) == real for file in files)):
        raise InputError(f"{out}: it is part of the source, which stays as it is; give another name")
    if os.path.isdir(place) and place in _above(real):
        raise InputError(f"{out}: it lies in the source {place}, which stays as it is; give a name outside of it")


def _check_folder_names(names: Sequence[str]) -> None:
    """Raise `InputError` for the first class name that cannot be the name of a folder."""
    banned = set('/\\\0<>:"|?*') if os.name == "nt" else set("/\\\0")
    for name in names:
        # Hidden folders are passed over where class folders are read.
        if not name or name.startswith(".") or set(name) & banned or len(os.fsencode(name)) > 255:
            raise InputError(f"class {name!r} cannot be the name of a folder; rename it, or write a manifest")


def _class_folder(file: str, item: str, class_name: str) -> tuple[str, str]:
    """Return the folder that a file's class folder lies in, and what the file is called below its class folder.

    Where the folders that the item names are no class folders, its own folder and its name.
    """
    *above, name = os.path.abspath(file).split(os.sep)
    first, folder = len(above) - (0 if item.startswith("/") else item.count("/")), len(above)
    if class_name not in above[first:]:
        return os.path.dirname(os.path.abspath(file)), name
    folder -= 1 + above[::-1].index(class_name)
    tail = os.path.join(*above[folder + 1 :], name)
    folder -= folder > first and above[folder - 1] in _SPLITS
    return os.sep.join(above[:folder]) or os.sep, tail


def _above(folder: str) -> Iterator[str]:
    """Yield the folders above a folder."""
    while (parent := os.path.dirname(folder)) != folder:
        yield parent
        folder = parent


def _free_name(folder: Path, wanted: str, last: dict[str, int]) -> str:
    """Return the name, or with a number after it if there is such a file already; `last` has the last numbers."""
    before, suffix = os.path.splitext(wanted)
    name, number = wanted, last.get(wanted, 1)
    while os.path.lexists(folder / name):
        number += 1
        name = f"{before} ({number}){suffix}"
    last[wanted] = number
    return name


def _copy(file: str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_regular(file)
        source = open(file, "rb")  # noqa: SIM115 - what cannot be read is told apart from what cannot be written
    except OSError as error:
        if isinstance(error, InputError):
            raise
        raise file_error(file, error, "read", "put it back, or audit the data again") from error
    with source, open(to, "xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    shutil.copystat(file, to)
