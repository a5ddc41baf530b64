"""What of a dataset is there, what is missing and what is broken; and which datasets are known."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspt.data import cifar, nine
from dspt.data.images import BadImage, open_image
from dspt.data.nine import SPLITS, USED, Listing, NamedDataset
from dspt.internal.errors import NAMED, Fault, InputError, summary
from dspt.internal.names import printable
from dspt.internal.threads import Progress, in_threads

# What one screen of a terminal shows.
_LINES, _COLUMNS = 24, 100


@dataclass(frozen=True)
class Place:
    """A file or folder that belongs somewhere, and whether it is there."""

    path: str
    found: bool


@dataclass(frozen=True)
class SplitInspection:
    """The images of one split.

    Attributes
    ----------
    used
        Whether it is trained on or tested with.
    expected
        How many images the paper's split has.
    listed, found, missing
        How many the split file names, and how many of these are there and are not; None where no
        split file could be read.
    broken
        How many of those found cannot be decoded; None where none was decoded.
    first_missing, first_broken
        The first few, broken ones with the reason.
    """

    name: str
    used: bool
    expected: int
    listed: int | None = None
    found: int | None = None
    missing: int | None = None
    first_missing: tuple[str, ...] = ()
    broken: int | None = None
    first_broken: tuple[Fault, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every image the paper's split has is there, and none is known to be broken."""
        return self.listed == self.found == self.expected and not self.broken


@dataclass(frozen=True)
class Inspection:
    """What of a dataset is there.

    Attributes
    ----------
    classes_found
        None where no split file could be read.
    problems
        Sentences about what is wrong with the root, the split files and the folder of images.
    """

    name: str
    root: str
    split_files: tuple[Place, ...]
    images: Place
    classes_expected: int
    classes_found: int | None
    splits: tuple[SplitInspection, ...]
    problems: tuple[str, ...]
    image_source: str

    @property
    def ok(self) -> bool:
        """Whether the dataset can be used as it is; the validation split is not needed for that."""
        return not self.problems and all(split.ok for split in self.splits if split.used)

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON can hold it."""
        return {"ok": self.ok, **asdict(self)}


def check(
    named: str | NamedDataset,
    root: Path | str,
    *,
    decode: bool = True,
    progress: Progress | None = None,
) -> Inspection:
    """Return what of a dataset is there, missing and broken.

    Parameters
    ----------
    named
        A dataset of CoOp's layout, or its name.
    root
        The folder in which the dataset's folder belongs.
    decode
        Decode every image that is there; otherwise only look whether it is there.
    progress
        Called with the number of images decoded so far and of all to be decoded.

    Raises
    ------
    InputError
        If no dataset has this name. Whatever is missing is reported, not raised.
    """
    dataset = _known(named)
    problems: list[str] = []
    listing: Listing | None = None
    base = Path(root).expanduser()
    images = nine.image_folder(dataset, base)
    try:
        nine.given_root(dataset, root)
        listing = nine.list_images(dataset, base)
        if wrong := nine.wrong_sizes(dataset, base, listing):
            problems.append(wrong)
    except InputError as error:
        problems.append(str(error))
    if os.path.isdir(base) and not os.path.isdir(images):
        problems.append(nine.no_images(dataset, base))
    return Inspection(
        name=dataset.name,
        root=str(root),
        split_files=tuple(Place(str(path), os.path.isfile(path)) for path in nine.split_paths(dataset, base)),
        images=Place(str(images), os.path.isdir(images)),
        classes_expected=dataset.classes,
        classes_found=len(listing.class_names) if listing else None,
        splits=tuple(_splits(dataset, images, listing, decode, progress)),
        problems=tuple(problems),
        image_source=dataset.image_source,
    )


def _known(named: str | NamedDataset) -> NamedDataset:
    dataset = named if isinstance(named, NamedDataset) else nine.find(named)
    if dataset is None:
        known = ", ".join(dataset.name for dataset in nine.DATASETS)
        raise InputError(f"dataset {named}: not one of those that can be checked; give {known}")
    return dataset


def _splits(
    dataset: NamedDataset,
    images: Path,
    listing: Listing | None,
    decode: bool,
    progress: Progress | None,
) -> Iterator[SplitInspection]:
    expected = dict(zip(SPLITS, dataset.sizes, strict=False))
    if listing is None:
        for split in SPLITS:
            yield SplitInspection(split, split in USED, expected[split])
        return
    there = nine.Files(images)
    missing = {s: [file for file in listing.files[s] if there.lack(file)] for s in SPLITS}
    total = sum(listing.sizes[:3]) - sum(map(len, missing.values()))
    done = 0
    for split in SPLITS:
        files, broken = listing.files[split], []
        if decode:
            found = (os.path.join(images, file) for file in files if not there.lack(file))
            for fault in in_threads(_broken, found):
                if fault:
                    broken.append(fault)
                done += 1
                if progress:
                    progress(done, total)
        yield SplitInspection(
            split,
            split in USED,
            expected[split],
            listed=len(files),
            found=len(files) - len(missing[split]),
            missing=len(missing[split]),
            first_missing=tuple(missing[split][:NAMED]),
            broken=len(broken) if decode else None,
            first_broken=tuple(broken[:NAMED]),
        )


def _broken(file: str) -> Fault | None:
    try:
        open_image(file)
    except BadImage as error:
        return Fault(file, error.reason)
    return None


def lines(found: Inspection) -> list[str]:
    """Return what was found as lines of text that fit one screen."""
    state = "complete" if found.ok else "not complete"
    if found.ok and any(split.broken is None for split in found.splits):
        state += ", but no image was decoded"
    out = [f"{found.name}: {state}"]
    out += [
        f"  {'found' if place.found else 'MISSING':9}{_left_out(place.path, _COLUMNS - 11)}"
        for place in (*found.split_files, found.images)
    ]
    classes = "?" if found.classes_found is None else found.classes_found
    out.append(f"  classes  {classes} of {found.classes_expected}")
    for split in found.splits:
        out += _split_lines(split)
    missing = any(split.missing for split in found.splits if split.used)
    advice = list(found.problems)
    if missing and found.images.found:
        advice.append(f"Missing images: {found.image_source}")
    for sentence in advice:
        room = _LINES - len(out)
        if room > 0:
            out += textwrap.wrap(
                printable(sentence),
                _COLUMNS,
                initial_indent="- ",
                subsequent_indent="  ",
                max_lines=min(room, 4),
                placeholder=" …",
            )
    return [_cut(printable(line)) for line in out]


def _split_lines(split: SplitInspection) -> list[str]:
    if split.listed is None:
        words = f"? of {split.expected} images, since no split file could be read"
    else:
        words = f"{split.found} of {split.expected} images"
        if split.listed != split.expected:
            words += f", though {split.listed} are listed"
        if split.missing:
            words += f", {split.missing} missing"
        if split.broken is not None:
            words += f", {split.broken or 'none'} broken"
    out = [f"  {split.name:9}{words}{'' if split.used else ' (not used)'}"]
    if split.missing:
        more = f", and {split.missing - NAMED} more" if split.missing > NAMED else ""
        out.append(f"    missing: {', '.join(split.first_missing)}{more}")
    if split.broken:
        faults = [Fault(os.path.basename(f.name), f.reason) for f in split.first_broken]
        out.append(f"    broken: {summary(faults, split.broken)}")
    return out


def _cut(line: str) -> str:
    return line if len(line) <= _COLUMNS else line[: _COLUMNS - 1] + "…"


def _left_out(path: str, columns: int) -> str:
    """Return the end of a long path, which tells more than its beginning."""
    return path if len(path) <= columns else "…" + path[1 - columns :]


def check_cifar(dataset: cifar.Cifar, root: Path | str) -> dict[str, Any]:
    """Return whether CIFAR can be read below `root`, its sizes, and what is wrong with it."""
    told = {"ok": False, "name": dataset.name.upper(), "root": str(root), "problems": []}
    try:
        found = cifar.read(dataset, root)
    except InputError as error:
        return told | {"problems": [str(error)]}
    return told | {
        "ok": True,
        "classes": len(found.class_names),
        "train": len(found.train.labels),
        "test": len(found.test.labels),
    }


def table() -> list[dict[str, Any]]:
    """Return what is known about each named dataset: sizes, template, licence and homepage."""
    columns = ("name", "classes", *SPLITS, "template", "licence", "homepage")
    return [
        *({column: getattr(dataset, column) for column in columns} for dataset in nine.DATASETS),
        *(
            {
                "name": dataset.name.upper(),
                "classes": len(dataset.class_names),
                "train": dataset.train_size,
                "val": None,
                "test": dataset.test_size,
                "template": dataset.template,
                "licence": "none stated",
                "homepage": cifar.HOMEPAGE,
            }
            for dataset in cifar.DATASETS
        ),
    ]
