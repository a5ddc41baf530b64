"""Sources of data: what a user names on the command line becomes items, labels and class names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dspt.errors import InputError

__all__ = ["Dataset", "Split", "open_dataset", "write_image_folder"]


@dataclass(frozen=True)
class Split:
    """Items and the true label of each.

    Attributes
    ----------
    items
        Image paths; or uint8 images (N, H, W) or (N, H, W, 3); or float32 unit features (N, D).
    labels
        int64 (N,), positions in the dataset's class names.
    """

    items: list[str] | np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """A train and a test split over the same classes.

    Attributes
    ----------
    template
        The prompt of zero-shot classification, with {} for the class name.
    notes
        Sentences that a user should be told, such as that a test split was held out.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    template: str = "a photo of a {}."
    notes: tuple[str, ...] = ()

    @property
    def holds_features(self) -> bool:
        """Whether the items are features already, so that no image tower is needed."""
        return isinstance(self.train.items, np.ndarray) and self.train.items.dtype.kind == "f"


# Here, because each of these needs the classes above.
from dspt.data import embedded, featurefile, folder  # noqa: E402
from dspt.data.folder import write_image_folder  # noqa: E402


def open_dataset(source: str | Path, *, seed: int = 1, test_fraction: float = 0.2) -> Dataset:
    """Return the dataset that `source` names.

    Parameters
    ----------
    source
        A folder of class folders, an .npz or .safetensors feature file, or "embedded".
        A folder of that name is "./embedded".
    seed, test_fraction
        Which part of a folder without a test folder is held out.

    Raises
    ------
    InputError
        If there is no such source or something in it is wrong.
    """
    if str(source) == "embedded":
        return embedded.read()
    path = Path(source).expanduser()
    if path.is_dir():
        return folder.read(path, seed=seed, test_fraction=test_fraction)
    if path.suffix.lower() in featurefile.SUFFIXES and path.exists():
        return featurefile.read(path)
    what = "neither a folder nor a feature file" if path.exists() else "no such file or folder"
    raise InputError(
        f"data {source}: {what}; give a folder of class folders, an .npz or .safetensors feature "
        "file, or 'embedded'"
    )
