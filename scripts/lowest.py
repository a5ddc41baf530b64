"""Print the lowest version of each dependency that pyproject.toml allows, as constraints for pip.

`make test-lowest` installs these and runs the tests with them. A bound that does not exist, or that another
dependency forbids, fails there too.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(project: dict) -> list[str]:
    """Return `name==version` for each dependency of the package and of its extras."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pins = []
    for requirement in (requirement for group in groups for requirement in group):
        if requirement.startswith(f"{project['name']}["):
            continue
        bounded = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
        if bounded is None:
            sys.exit(f"pyproject.toml: {requirement!r} has no lower bound: write name>=version")
        pins.append(f"{bounded[1]}=={bounded[2]}")
    return pins


if __name__ == "__main__":
    print(*lowest(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]), sep="\n")
