"""Completion in the shell: the names there are, without the time that torch takes."""

import os
import shutil
import subprocess
import sys

import pytest

from dspt.cli import completion
from dspt.config import AUTO_LEARNER, Config

PROGRAM = [sys.executable, "-c", "import sys; sys.argv[0] = 'dspt'; from dspt.cli import main; main()"]


@pytest.fixture
def offered(dspt, monkeypatch):
    """Return a function that gives what completes the last of some words."""

    def complete(*words, shell="bash"):
        line = " ".join(("dspt", *words))
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_DSPT_COMPLETE": f"complete_{shell}"}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        _, output, errors = dspt()
        assert errors == ""
        return output.split()

    return complete


class TestNames:
    """The command line knows them by heart; these are who really knows."""

    def test_methods(self):
        from dspt.methods import METHODS

        assert list(completion.METHODS) == list(METHODS), "a method was added: cli/completion.py names it, too"

    def test_learners(self):
        from dspt.learners import LEARNERS

        fitting = [name for name, kind in LEARNERS.items() if issubclass(Config, kind.settings)]
        assert sorted(completion.LEARNERS) == sorted([*fitting, AUTO_LEARNER])

    def test_noises(self):
        from dspt import noise

        for name in completion.NOISES:
            assert noise.parse(name + ("0.4" if name[:-1] not in ("matrix", "file") else "x.npy") * (name[-1] == ":"))

    def test_datasets(self):
        from dspt.data import cifar, nine

        found = [name for name in completion.data("") if "." not in name and "/" not in name]
        assert found[0] == "embedded"
        assert {nine.find(name) or cifar.find(name) for name in found[1:12]} == {*nine.DATASETS, *cifar.DATASETS}


def test_what_is_offered(offered, tmp_path):
    (tmp_path / "eggs").mkdir()
    (tmp_path / "eggs" / "a.csv").touch()
    assert offered("tra") == ["train"]
    assert offered("train", "--method", "dspt") == ["dspt", "dspt-auto"]
    assert offered("train", "--learner", "pro") == ["prompt", "prototypes"]
    assert offered("train", "--precision", "b") == ["bfloat16"]
    assert offered("train", "--noise", "in") == ["inst:", "inst-likely:"]
    assert offered("train", "e") == ["embedded", "eurosat", "eggs/"]
    assert offered("train", "eggs/") == ["eggs/a.csv"]
    assert offered("table", "ext") == ["extreme"]
    assert offered("figure", "loss") == ["loss-curves", "loss-landscape"]
    assert offered("figure", "m") == []  # main and methods are tables
    assert offered("compare", "--experiment", "loss") == offered("table", "loss") == ["loss-curves"]
    assert offered("compare", "e") == ["eggs/"]
    assert offered("compare", "dspt", "ma") == ["mae"]
    assert offered("compare", "--experiment", "ma") == ["main"]
    assert offered("compare", "--over", "") == ["datasets", "settings", "runs"]
    assert offered("eval", "run", "data", "--classes", "base") == ["base", "base-to-new"]
    assert offered("train", "--method", "gc", shell="fish") == ["gce"]
    assert "sym\\\\:" in "".join(offered("train", "x", "--noise", "s", shell="zsh"))


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from dspt.cli import completion\n"
        "for complete in (completion.methods, completion.experiments, completion.data): assert complete('')\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'matplotlib', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="NOT TESTED: needs bash")
def test_in_bash(tmp_path):
    program = tmp_path / "dspt"
    program.write_text(f"#!{sys.executable}\n{PROGRAM[2]}\n")
    program.chmod(0o755)
    script = (
        'eval "$(dspt --show-completion bash)"; COMP_WORDS=(dspt reproduce acc); COMP_CWORD=2; '
        '_dspt_completion dspt; echo "${COMPREPLY[@]}"'
    )
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["accuracy-vs-noise"], done.stderr
