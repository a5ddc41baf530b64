"""From a source to a report about its labels, and from decisions to better ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dspt.auditing import folder, report
from dspt.auditing.audit import Audit
from dspt.auditing.samples import audit_dataset, judged_again
from dspt.data import Dataset
from dspt.data.images import BadImage, open_image
from dspt.internal.errors import InputError
from dspt.internal.files import locked_folder, remove
from dspt.internal.names import AUTO
from dspt.internal.progress import Reporter
from dspt.internal.shards import BLOCK, Features
from dspt.internal.workers import Spread
from dspt.review.decisions import KEEP, REMOVE, Decision, Decisions
from dspt.review.exchange import read_corrections
from dspt.workflows.train import say_notes

# What was seen of images, kept for the next audit into the same folder.
_LOOKS = ".looks.npy"


def audit(
    dataset: Dataset,
    out: Path,
    model: str = AUTO,
    reporter: Reporter | None = None,
    *,
    budget: int | None = None,
    look: bool = True,
    cache: Path | None = None,
    device: str = "auto",
    spread: Spread | None = None,
) -> Audit:
    """Return what was found about the labels of a dataset, after writing the report about it.

    What somebody has decided about an earlier report in the same folder stays, and is believed.

    Parameters
    ----------
    dataset : Dataset
        Opened so that nothing is held out, and bad entries are skipped.
    out : Path
        The report folder; one that is there is made again; images that were seen before are encoded no more.
    model : str
        A CLIP checkpoint, "auto", or "none" for features alone.
    reporter : Reporter, optional
        Shows how far the work is.
    budget : int, optional
        How many labels somebody will look at: the page shows as many, the most doubtful ones.
    look : bool
        Also look at the images themselves: sizes, blur, duplicates.
    cache : Path, optional
        The folder of the feature store.
    device : str
        Where images are encoded.
    spread : Spread, optional
        Has workers encode images and go through the samples; None is this process.
    """
    reporter = reporter or Reporter(silent=True)
    if budget is not None and budget < 1:
        raise InputError(f"budget = {budget}: expected at least 1 look")
    if not len(dataset.train.labels):
        raise InputError(f"{dataset.name}: it has no samples whose labels could be judged")
    out = Path(out)
    folder.check_out(out, dataset.source, _image_folders(dataset))
    say_notes(dataset, reporter)
    with locked_folder(out, f"report folder {out}", "another process is making a report in it"):
        found, _ = audit_dataset(
            dataset,
            model,
            reporter,
            look=look,
            cache=cache,
            device=device,
            memory=out / _LOOKS if look and not dataset.holds_features else None,
            budget=budget or 0,
            spread=spread,
        )

        def picture(row: int) -> Image.Image | None:
            item: Any = found.items[row]
            if isinstance(item, np.ndarray) and item.dtype.kind == "f":
                return None
            try:
                return open_image(item)
            except BadImage:  # it was there a moment ago
                return None

        told = found.audit
        # Samples without names are known by what they are, all of them together.
        content = "" if found.paths else _digest(found.evidence.features)
        _check_decisions(out, told, content)
        if before := decided(out, told, reporter):
            told = _in_light_of(before, told, found.evidence, spread)
        folder.begin(out, told, content)
        report.write_page(told, out, picture, budget, reporter)
        folder.save(told, out, found.evidence, found.paths)
    return told


def _image_folders(dataset: Dataset) -> set[str]:
    """Return the folders in which a report would lie among images: where they are, and above folders of classes.

    A manifest that lies beside its images is in a folder to work in, and a report may be there, too.
    """
    found: set[tuple[str, int]] = set()
    for split in (dataset.train, dataset.test):
        if len(split.labels) and isinstance(split.items[0], str):
            found |= {(os.path.dirname(item), label) for item, label in zip(split.items, split.labels, strict=True)}
    beside = os.path.dirname(os.path.realpath(dataset.source)) if os.path.isfile(dataset.source) else None
    folders = {each for each, _ in found if os.path.realpath(each) != beside}
    above = {os.path.dirname(each) for each, c in found if os.path.basename(each) == dataset.class_names[c]}
    return folders | above


def _digest(features: Features) -> str:
    """Return a digest of all rows."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(features), BLOCK):
        digest.update(np.ascontiguousarray(features[start : start + BLOCK]).data)
    return digest.hexdigest()


def refit(out: Path, decisions: Mapping[int, Decision], audit: Audit | None = None) -> Audit:
    """Return the audit of a report, its labels judged again in the light of what a person has decided.

    Parameters
    ----------
    out : Path
        The report folder; nothing in it changes.
    decisions : dict
        What was decided about each row.
    audit : Audit, optional
        The audit in the folder, if it was read already.
    """
    return _in_light_of(decisions, audit or folder.load(out), folder.load_evidence(out))


def decided(out: Path, audit: Audit, reporter: Reporter | None = None) -> dict[int, Decision]:
    """Return what a person has decided about the rows of a report; the reporter tells of what is not there any more."""
    path = Path(out) / folder.DECISIONS
    if not path.exists():
        return {}
    with Decisions(path, audit.items, audit.class_names) as decisions:
        for fault in decisions.faults() if reporter else ():
            assert reporter is not None
            reporter.warn(f"note: a decision about {fault.name} is left out ({fault.reason})")
        return decisions.current()


def _check_decisions(out: Path, audit: Audit, content: str) -> None:
    """Raise `InputError` if a report folder holds decisions about something else.

    Those that were all taken back hold nobody up; they are removed, as an undo could bring them back.
    """
    path = out / folder.DECISIONS
    if not path.exists():
        return
    try:
        folder.check_same(out, audit, content)
    except InputError:
        with Decisions(path, audit.items, audit.class_names) as decisions:
            if decisions.any_stands():
                raise
        for suffix in ("", "-wal", "-shm"):
            remove(Path(f"{path}{suffix}"))


def take(out: Path, path: Path, audit: Audit) -> int:
    """Return how many corrections of others were taken as decisions, all of them or none.

    Parameters
    ----------
    out : Path
        The report folder.
    path : Path
        A file that `dspt.review.exchange.read_corrections` reads.
    audit : Audit
        The audit in the folder.
    """
    before = decided(out, audit)
    # What was exported may have had proposals that follow from earlier decisions.
    corrections = read_corrections(path, refit(out, before, audit) if before else audit, folder.load_paths(out))
    if corrections:
        with Decisions(out / folder.DECISIONS, audit.items, audit.class_names) as decisions:
            decisions.take(corrections)
    return len(corrections)


def _in_light_of(
    decisions: Mapping[int, Decision], audit: Audit, evidence: folder.Evidence, spread: Spread | None = None
) -> Audit:
    known = np.full(len(audit.labels), -1)
    removed = np.zeros(len(audit.labels), bool)
    for row, decision in decisions.items():
        known[row] = audit.labels[row] if decision.action == KEEP else decision.label
        removed[row] = decision.action == REMOVE
    return judged_again(audit, evidence, known, removed, spread)
