"""The house: each room knows the ones before it and nothing after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dspt

HOUSE = Path(dspt.__file__).parent

# In the order of dependence, as CONTRIBUTING.md draws them; those of one line may not know each other.
ORDER = [
    ("internal",),
    ("data",),
    ("config", "losses"),
    ("noise",),
    ("backbone", "theory"),
    ("features", "posterior"),
    ("methods",),
    ("learners",),
    ("problem",),
    ("train",),
    ("runs",),
    ("selection",),
    ("auditing", "plots"),
    ("classifier", "evaluation", "review"),
    ("workflows",),
    ("engine",),
    ("experiments",),
    ("bench",),
    ("cli",),
]
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}


def imports(source: str) -> Iterator[str]:
    """Yield the rooms that a module imports anything from, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            inside = node.module == "dspt"
            names = [f"dspt.{alias.name}" for alias in node.names] if inside else [node.module]
        else:
            continue
        for name in names:
            first, _, rest = (name or "").partition(".")
            if first == "dspt" and rest and not rest.startswith("__"):
                yield rest.partition(".")[0]


def modules() -> list[Path]:
    return [p for p in sorted(HOUSE.rglob("*.py")) if p.name not in ("__main__.py",) and p != HOUSE / "__init__.py"]


def test_every_room_has_its_place():
    rooms = {path.relative_to(HOUSE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms == set(FLOOR)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_a_room_knows_only_the_ones_before_it(path):
    room = path.relative_to(HOUSE).parts[0].removesuffix(".py")
    for other in imports(path.read_text(encoding="utf-8")):
        assert other == room or FLOOR[other] < FLOOR[room], f"{room} imports {other}"


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("from dspt.train import fit", ["train"]),
        ("def f():\n    from dspt import runs, __version__", ["runs"]),
        ("import dspt.cli.common", ["cli"]),
        ("import numpy", []),
    ],
)
def test_an_import_would_be_seen(source, rooms):
    assert list(imports(source)) == rooms


def test_only_the_command_line_knows_option_names():
    """An error below it names the setting; the command line adds its own option."""
    for path in modules():
        if path.relative_to(HOUSE).parts[0] in ("cli", "bench"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = node.value.replace("'", " ").replace("`", " ").split()
                flags = [w for w in words if w.startswith("--") and w[2:3].isalpha()]
                assert not flags, f"{path.relative_to(HOUSE)}:{node.lineno}: {flags[0]}"
