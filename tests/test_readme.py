"""What the README shows runs as shown."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_its_commands_and_snippets_run_in_order(tmp_path, monkeypatch):
    """A stranger types the blocks one after the other in one folder; `make` and `git` lines are CI's own way in."""
    monkeypatch.setenv("DSPT_CACHE", str(tmp_path / "cache"))
    ran = 0
    for language, text in BLOCKS:
        if language == "python":
            program = [sys.executable, "-c", text]
            commands = [program]
        elif language == "sh":
            lines = [line.split("  #")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
            commands = [[sys.executable, "-m", *shlex.split(line)] for line in lines if line.startswith("dspt ")]
        else:
            continue
        for command in commands:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 5


def test_its_links_to_files_lead_somewhere():
    for text in (README, *(p.read_text(encoding="utf-8") for p in ROOT.glob("docs/*.md"))):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (ROOT / link).exists() or (ROOT / "docs" / link).exists(), link


def test_a_new_loss_is_ten_lines_as_contributing_promises(text_tower):
    """The block defines a loss and gives it to a classifier; what is left is to fit it."""
    import numpy as np
    from problems import NAMES, features

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)[1]
    lines = [line for line in block.splitlines() if line]
    assert len(lines) <= 10
    names: dict = {}
    exec(block, names)
    clf = names["clf"].set_params(model=text_tower, epochs=2)
    x, y = features(40)
    clf.fit(x, y, class_names=NAMES)
    assert np.isfinite(clf.context_).all()
    assert clf.history_[-1]["steps"] == 1


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"])
def test_what_a_stranger_looks_for_is_there(name):
    assert (ROOT / name).read_text(encoding="utf-8").strip()
