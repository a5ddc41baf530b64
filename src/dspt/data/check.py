"""What of a source is there, missing, broken or there twice; and which datasets are known by name."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspt.data import cifar, nine, open_dataset
from dspt.data.duplicates import Print, Prints, take_print
from dspt.data.images import BadImage
from dspt.data.nine import SPLITS, USED, Listing, NamedDataset
from dspt.data.survey import MISSING, Duplicates, Sample, Survey, duplicate_lines, duplicate_rows, duplicates, survey
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
    missing_files, broken_files
        Their paths below the folder of images, broken ones with the reason.
    """

    name: str
    used: bool
    expected: int
    listed: int | None = None
    found: int | None = None
    missing: int | None = None
    missing_files: tuple[str, ...] = ()
    broken: int | None = None
    broken_files: tuple[Fault, ...] = ()

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
    duplicates
        Groups of images that are the same; None where none was decoded.
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
    duplicates: tuple[Duplicates, ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether the dataset can be used as it is; the validation split is not needed for that."""
        return not self.problems and all(split.ok for split in self.splits if split.used)

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON can hold it."""
        groups = self.duplicates
        told = {"duplicates": None if groups is None else [group.as_dict() for group in groups]}
        return {"ok": self.ok, **asdict(self), **told}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield what is missing, broken or there twice, in full, as rows of `survey.COLUMNS`."""
        for problem in self.problems:
            yield "problem", "", "", "", "", problem
        for split in self.splits:
            for file in split.missing_files:
                yield "missing", "", split.name, "", file, MISSING
            for fault in split.broken_files:
                yield "broken", "", split.name, "", fault.name, fault.reason
        yield from duplicate_rows(self.duplicates or ())

    def lines(self) -> list[str]:
        """Return what was found as lines of text that fit one screen."""
        return lines(self)


@dataclass(frozen=True)
class Unreadable:
    """A dataset known by name that cannot be read, and why."""

    name: str
    root: str
    problems: tuple[str, ...]
    ok: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON can hold it."""
        return asdict(self)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the problems as rows of `survey.COLUMNS`."""
        for problem in self.problems:
            yield "problem", "", "", "", "", problem

    def lines(self) -> list[str]:
        """Return what was found as lines of text."""
        return [f"{self.name}: not complete", *self.problems]


def look(
    source: str,
    *,
    root: Path | str | None = None,
    exclude: Sequence[str] = (),
    decode: bool = True,
    progress: Progress | None = None,
    **opening: Any,
) -> Inspection | Survey | Unreadable:
    """Return what is in a source of any kind; of a dataset known by name, whether all of it is there.

    Parameters
    ----------
    source
        What `open_dataset` takes.
    root
        The folder in which datasets known by name lie, $DSPT_ROOT by default; for a manifest, where its paths start.
    exclude
        Classes that are left out.
    decode
        Decode every image; otherwise only look whether it is there.
    progress
        Called with the number of images looked at so far and of all.
    **opening
        Passed on to `open_dataset`.

    Raises
    ------
    InputError
        If there is no such source, or nothing in it can be used.
    """
    where = root or os.environ.get("DSPT_ROOT")
    if root is not None or not os.path.exists(source):
        if named := nine.find(source):
            if exclude:
                raise InputError(
                    f"{named.name}: it is compared with the paper's list of files, and no class of it can be excluded"
                )
            if where is None:
                nine.given_root(named, where)  # raises
            return check(named, where or "", decode=decode, progress=progress)
        if tiny := cifar.find(source):
            try:
                found = open_dataset(source, root=root, exclude=exclude)
            except InputError as error:
                if where is None:
                    raise
                return Unreadable(tiny.name.upper(), str(where), (str(error),))
            return survey(found, decode=decode, progress=progress)
    found = open_dataset(source, root=root, exclude=exclude, skip_bad=True, **opening)
    return survey(found, decode=decode, progress=progress)


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
    prints, printed = Prints(), list[Sample]()
    splits = tuple(_splits(dataset, images, listing, decode, progress, prints, printed))
    return Inspection(
        name=dataset.name,
        root=str(root),
        split_files=tuple(Place(str(path), os.path.isfile(path)) for path in nine.split_paths(dataset, base)),
        images=Place(str(images), os.path.isdir(images)),
        classes_expected=dataset.classes,
        classes_found=len(listing.class_names) if listing else None,
        splits=splits,
        problems=tuple(problems),
        image_source=dataset.image_source,
        duplicates=duplicates(prints, printed.__getitem__) if decode else None,
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
    prints: Prints,
    printed: list[Sample],
) -> Iterator[SplitInspection]:
    """Yield what is there of each split; the prints of its images are added to `prints`, in the order of `printed`."""
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
            found = [i for i, file in enumerate(files) if not there.lack(file)]
            looked = in_threads(_look, (os.path.join(images, files[i]) for i in found))
            for i, one in zip(found, looked, strict=True):
                if isinstance(one, Print):
                    prints.add(one)
                    printed.append(Sample(split, listing.class_names[listing.labels[split][i]], files[i]))
                else:
                    broken.append(Fault(files[i], one.reason, split))
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
            missing_files=tuple(missing[split]),
            broken=len(broken) if decode else None,
            broken_files=tuple(broken),
        )


def _look(file: str) -> Print | BadImage:
    try:
        return take_print(file, file)
    except BadImage as error:
        return error


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
    out += duplicate_lines(found.duplicates)
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
        out.append(f"    missing: {', '.join(split.missing_files[:NAMED])}{more}")
    if split.broken:
        out.append(f"    broken: {summary(split.broken_files)}")
    return out


def _cut(line: str) -> str:
    return line if len(line) <= _COLUMNS else line[: _COLUMNS - 1] + "…"


def _left_out(path: str, columns: int) -> str:
    """Return the end of a long path, which tells more than its beginning."""
    return path if len(path) <= columns else "…" + path[1 - columns :]


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
