"""Checks at the door: one form of sentence for labels that are no class, and for class names."""

from __future__ import annotations

import numpy as np
import pytest

from dspt.internal.checks import check_labels, check_names
from dspt.internal.errors import InputError


def test_a_label_that_is_no_class_is_named_with_its_row_and_file():
    labels = np.array([0, 36, 41, -1])
    with pytest.raises(InputError) as error:
        check_labels(labels, 37, where="pets.csv", hint="count from 0")
    assert str(error.value) == ("labels: expected 0..36 for 37 classes, found 41 at row 2 of pets.csv; count from 0")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_labels_of_every_integer_type_pass(dtype):
    check_labels(np.array([0, 1, 2], dtype), 3)
    check_labels(np.zeros(0, dtype), 3)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a", " "], "pets: a class has an empty name"),
        (["a", "b", "a"], "pets: class 'a' is there twice"),
        (["a"], "pets: found 1 class; at least two are needed"),
        (["a", "b" * 1001], "pets: a class name has 1001 characters"),
        (["a", "\ud800"], "pets: a class name is not text"),
    ],
)
def test_class_names_are_two_or_more_different_texts(names, sentence):
    with pytest.raises(InputError, match=sentence):
        check_names(names, "pets")
