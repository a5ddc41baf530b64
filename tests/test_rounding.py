"""One way to round what is shown, and none of the digits that binary sums leave."""

import json

import numpy as np
import pytest

from dspt.cli.common import print_json, print_table
from dspt.internal.rounding import counted, figure


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (79.35, 1, "79.4"),  # the binary number is below it
        (63.75, 1, "63.8"),
        (63.74999999999999, 1, "63.8"),  # a sum that should be 63.75
        (0.125, 2, "0.13"),
        (-14.05, 1, "-14.1"),
        (99.949, 1, "99.9"),
        (100, 2, "100.00"),
        (12.5, 0, "13"),
        (1e12, 1, "1000000000000.0"),
    ],
)
def test_a_half_goes_away_from_zero(value, digits, text):
    assert figure(value, digits) == text


def test_a_sign_is_written_where_it_is_asked_for():
    assert figure(0.25, 1, "+") == "+0.3"


def test_json_has_percentages_to_four_decimals_and_keeps_small_numbers(capsys):
    given = {
        "accuracy": 63.74999999999999,
        "per_class": {"cat": 100 / 3},
        "runs": [{"accuracy": None, "seed": 1}],
        "lr": 1e-5,
        "loss": 2.0794415416798357,  # log 8
        "rate": 0.1 + 0.2,
        "done": True,
    }
    print_json(given)
    assert json.loads(capsys.readouterr().out) == {
        "accuracy": 63.75,
        "per_class": {"cat": 33.3333},
        "runs": [{"accuracy": None, "seed": 1}],
        "lr": 1e-5,
        "loss": 2.07944154168,
        "rate": 0.3,
        "done": True,
    }


def test_a_table_of_percentages_rounds_the_same_way(capsys):
    print_table("title", [("a", 79.345), ("b", None)])
    assert capsys.readouterr().out.splitlines()[1:] == ["  a   79.35 %", "  b  -"]


def test_a_number_of_numpys_is_a_number():
    assert figure(np.float64(63.75), 1) == "63.8"


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (1200, "1,200 classes")]
)
def test_what_is_counted_is_one_or_more(number, words):
    assert counted(number, "class", "classes") == words
    assert counted(number, "image") == words.replace("classes", "images").replace("class", "image")
