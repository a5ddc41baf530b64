"""The package says the same about itself wherever it does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dspt

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(line)
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in group
    if not line.startswith("dspt[")
]


def test_the_version_has_one_home_and_the_citation_agrees():
    assert "version" in PROJECT["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [dspt.__version__]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_the_version_the_tests_run_with_is_pinned_and_allowed(requirement):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    (pin,) = (pin for pin in pins if pin.name.lower() == requirement.name.lower())
    (exact,) = pin.specifier
    assert exact.operator == "=="
    assert exact.version in requirement.specifier
