"""A few hundred things that go wrong: afterwards the same bits, or one sentence, and never another figure.

    DSPT_FAULT_SEED=7 DSPT_FAULTS=20 pytest tests/test_faults.py

takes another sample, of twenty times as many; `make soak` takes five times as many. The commands are declared in
`scenarios`, what happens to each in FAULTS, how files are damaged in DAMAGES. What came of all is told in the summary
at the end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupted import Done, Fault
from PIL import Image
from problems import feature_file, features

import dspt
from dspt.auditing.folder import load as load_report
from dspt.internal.errors import InputError
from dspt.runs import Run

SEED = int(os.environ.get("DSPT_FAULT_SEED", "1"))
TIMES = int(os.environ.get("DSPT_FAULTS", "1"))

# How, of what, and how often to each scenario; where there are no more of them, at each. Kills before a change of a
# file are as many as the scenario says.
FAULTS = (
    ("kill", "changes", 0),
    ("kill", "calls", 4),
    ("ctrl-c", "changes", 4),
    ("ctrl-c", "calls", 3),
    ("ENOSPC", "changes", 5),
    ("EIO", "reads", 4),
)
# Of each scenario and of each kind of damaged folder; so a hundred at least in all.
LEAST = 12


@dataclass(frozen=True)
class Scenario:
    """A command in a folder, what lies there before, and what may be found there afterwards."""

    words: Callable[[Path], list[object]]
    # What can be found by name: for each the old value, the new one, or none, however the command ended.
    found: Callable[[Path], dict[str, Any]]
    before: Callable[[Path], None] = Path.mkdir
    code: str = ""  # Python that runs the command
    again: Callable[[Path], list[object]] | None = None  # the second try, if it is not the same command
    advice: Callable[[Path], list[object]] | None = None  # what one does when the second try says that it cannot
    kills: int = 100
    imports: tuple[str, ...] = ()


Given = dict[str, Any]


@pytest.fixture(scope="module")
def given(tmp_path_factory, victims, clip, text_tower) -> Given:
    """Return what the commands read, and what is overwritten."""
    folder = tmp_path_factory.mktemp("given")
    things: Given = {"clip": clip, "text": text_tower, "data": feature_file(folder / "pets.npz", 48, 40)}
    things["photos"] = folder / "photos"
    chance = np.random.RandomState(0)
    for split, count in (("train", 5), ("test", 4)):
        for c, name in enumerate(("cat", "dog")):
            (things["photos"] / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(chance.randn(20, 24, 3) * 20 + 80 * c, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(things["photos"] / split / name / f"{i}.png")
    x, y = features(40)
    for name, length in (("old", 4), ("new", 8)):
        classifier = dspt.PromptClassifier(model=text_tower, epochs=1, context_length=length)
        classifier.fit(x, y, class_names=["a", "b", "c", "d"]).save(folder / name)
        things[name] = folder / name
    things["run"] = folder / "run"
    done = victims(*trained(things, things["run"], "--seed", 1))
    assert done.status == 0, done
    things["report"] = folder / "report"
    other = feature_file(folder / "others.npz", 60, 40)
    done = victims("audit", other, "--out", things["report"], "-q")
    assert done.status == 0, done
    return things


def trained(given: Given, out: Path, *more: object) -> list[object]:
    words = ["train", given["data"], "--model", given["text"], "--epochs", 2, "--lr", 0.2]
    return [*words, "--noise", "sym:0.4", "--out", out, "--json", "-q", *more]


def figures(run: Path) -> dict[str, Any] | None:
    """Return all that a run tells, its parameters and its labels; None if it is not finished."""
    result = Run(run).result()
    if result is None:
        return None
    told = {key: value for key, value in result.as_dict().items() if key not in ("seconds", "run")}
    files = {name: (run / name).read_bytes() for name in ("context.safetensors", "labels.csv", "metrics.jsonl")}
    return {**told, **files}


def audited(report: Path) -> tuple[object, ...] | None:
    """Return what a report says of every label; None if there is no whole one."""
    try:
        audit = load_report(report)
    except InputError:
        return None
    return audit.source, audit.items, audit.noise_rate, audit.probabilities.tobytes()


def stored(cache: Path) -> dict[str, Any]:
    """Return the feature of each image in a feature store; if it is there twice, the two are the same."""
    found: dict[str, Any] = {}
    for pack in cache.glob("*/[!.]*"):
        for digest, feature in zip(*(np.load(pack / f"{name}.npy") for name in ("digests", "features")), strict=True):
            assert found.setdefault(digest.tobytes().hex(), feature.tobytes()) == feature.tobytes(), pack
    return found


def predicted(folder: Path) -> bytes | None:
    """Return what a saved classifier says; None if there is none."""
    if not (folder / "context.safetensors").exists():
        return None
    return dspt.load(folder).decision_function(features(20, seed=3)[0]).tobytes()


def tree(folder: Path) -> dict[str, bytes] | None:
    """Return the files of a folder; None if it is not there."""
    if not folder.exists():
        return None
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def bytes_of(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


# Small packs, so that there are several and they are joined.
ENCODE = """
from dspt import cli
from dspt.features import packs
packs.SHARD = 3
cli.main()
"""

SAVE = """
try:
    import sys, dspt
    dspt.load(sys.argv[1]).save(sys.argv[2])
except (ValueError, OSError) as error:
    print(f"dspt: {error}", file=sys.stderr)
    sys.exit(1)
except KeyboardInterrupt:
    print("stopped;", file=sys.stderr)
    sys.exit(130)
"""

EXPORT = """
import dspt.data
from dataclasses import replace
from dspt import cli
open_dataset = dspt.data.open_dataset
def open_few(name):
    whole = open_dataset(name)
    return replace(whole, train=whole.train.take([0, 50, 100]), test=whole.test.take([7]))
dspt.data.open_dataset = open_few
cli.main()
"""


def swept(given: Given, place: Path) -> list[object]:
    words = ["reproduce", "unsupervised", "--data", given["data"], "--model", given["text"], "--epochs", 2]
    return [*words, "--seeds", 1, "--set", "lr=0.2", "--runs", place / "runs", "--json", "-q"]


def runs_in(place: Path) -> dict[str, Any]:
    return {run.name: figures(run) for run in sorted(place.glob("runs/*/*")) if run.is_dir()}


def scenarios(given: Given) -> dict[str, Scenario]:
    """Return the commands to which faults happen."""
    noise = ["noise", given["data"], "--noise", "sym:0.4", "--json"]
    split = ["data", "split", given["photos"] / "train", "--json", "-q"]
    corrected = ["review", given["report"], "--format", "labels", "--accept", 0.9, "--json", "-q", "--export"]
    return {
        "encode": Scenario(
            lambda place: [
                *("train", given["photos"], "--model", given["clip"], "--epochs", 1),
                *("--out", place / "run", "--json"),  # and not quietly: features that are made again are told of
            ],
            lambda place: {"run": figures(place / "run"), **stored(place / "cache")},
            code=ENCODE,
            kills=15,
            imports=("transformers.models.clip.modeling_clip",),
        ),
        "encode alone": Scenario(
            lambda place: ["encode", given["photos"], "--model", given["clip"], "--json"],
            lambda place: stored(place / "cache"),
            code=ENCODE,
            kills=8,
            imports=("transformers.models.clip.modeling_clip",),
        ),
        "train": Scenario(
            lambda place: trained(given, place / "run"),
            lambda place: {"run": figures(place / "run")},
        ),
        "overwrite": Scenario(
            lambda place: trained(given, place / "run", "--seed", 2, "--overwrite"),
            lambda place: {"run": figures(place / "run")},
            before=lambda place: shutil.copytree(given["run"], place / "run"),
            # as it is told when it is stopped
            again=lambda place: trained(given, place / "run", "--seed", 2),
            advice=lambda place: trained(given, place / "run", "--seed", 2, "--overwrite"),
        ),
        "audit": Scenario(  # over a report about other data
            lambda place: ["audit", given["data"], "--out", place / "report", "--json", "-q"],
            lambda place: {"report": audited(place / "report")},
            before=lambda place: shutil.copytree(given["report"], place / "report"),
            kills=20,
            imports=("dspt.workflows.audit", "pandas", "pyarrow.parquet"),
        ),
        "corrected": Scenario(
            lambda place: [*corrected, place / "labels.csv"],
            lambda place: {"labels.csv": bytes_of(place / "labels.csv")},
            advice=lambda place: [*corrected, place / "labels.csv", "--overwrite"],
            kills=20,
            imports=("dspt.workflows.audit", "pandas", "pyarrow.parquet"),
        ),
        "save": Scenario(
            lambda place: [given["new"], place / "out"],
            lambda place: {"saved": predicted(place / "out")},
            before=lambda place: shutil.copytree(given["old"], place / "out"),
            code=SAVE,
        ),
        "first save": Scenario(
            lambda place: [given["new"], place / "out"],
            lambda place: {"saved": predicted(place / "out")},
            code=SAVE,
        ),
        "export": Scenario(
            lambda place: ["data", "export", place / "photos"],
            lambda place: {"photos": tree(place / "photos")},
            code=EXPORT,
            kills=30,
            # it is there: then all of it is
            advice=lambda place: ["data", "export", place / "other"],
        ),
        "noise": Scenario(
            lambda place: [*noise, "--out", place / "labels.csv"],
            lambda place: {name: bytes_of(place / name) for name in ("labels.csv", "labels.png")},
            advice=lambda place: [*noise, "--out", place / "labels.csv", "--overwrite"],
            imports=("matplotlib.figure", "matplotlib.backends.backend_agg"),
        ),
        "page": Scenario(
            lambda place: [
                *("eval", given["run"], given["data"], "--json", "-q"),
                *("--page", place / "page.html", "--picture", place / "calibration.png"),
            ],
            lambda place: {name: bytes_of(place / name) for name in ("page.html", "calibration.png")},
            kills=20,
            imports=("matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.calibration"),
        ),
        "split": Scenario(
            lambda place: [*split, "--out", place / "split.csv"],
            lambda place: {"split.csv": bytes_of(place / "split.csv")},
            advice=lambda place: [*split, "--out", place / "split.csv", "--overwrite"],
            kills=20,
        ),
        "sweep": Scenario(lambda place: swept(given, place), runs_in, kills=20),
    }


NAMES = (
    "encode",
    "encode alone",
    "train",
    "overwrite",
    "audit",
    "corrected",
    "save",
    "first save",
    "export",
    "noise",
    "page",
    "split",
    "sweep",
)


@pytest.fixture
def tell(record_property) -> Iterator[Counter[str]]:
    """Return a counter of what came of each fault, for the summary."""
    outcomes: Counter[str] = Counter()
    yield outcomes
    print(f"seed {SEED}, {sum(outcomes.values())} faults: {dict(sorted(outcomes.items()))}")
    record_property("faults", {"seed": SEED, "outcomes": dict(outcomes)})


def sample(count: int, number: int, *words: str) -> list[int]:
    """Return `number` of 1, ..., `count`, which depend on the words and the seed; all of them if there are no more."""
    return sorted(random.Random(f"{SEED} {words}").sample(range(1, count + 1), min(number * TIMES, count)))


def check_told(done: Done, how: str) -> str:
    """Return how a command ended, in a word; it says so in one line, and prints no figures if it has none."""
    assert "Traceback" not in done.err, done.err
    if done.status == 0:
        return "done all the same"
    if how == "kill":
        assert done.killed, done
        return "killed"
    if how == "ctrl-c":
        assert done.status == 130, done
        assert done.err.splitlines()[-1].startswith("stopped;"), done
        return "stopped"
    if how == "ENOSPC":
        assert done.status == 1, done
        assert "No space left on device" in done.err, done
    if done.err.startswith("failed: "):  # a sweep, which goes on with the next run
        assert done.status == 1, done
        assert len(done.err.splitlines()) == json.loads(done.out)["failed"], done
        assert all((run["accuracy"] is None) == bool(run["error"]) for run in json.loads(done.out)["runs"])
        return "one sentence"
    assert done.out == "", done
    assert done.sentence
    return "one sentence"


def left(place: Path) -> list[Path]:
    """Return the temporary files below a folder."""
    return [path for path in place.rglob("*") if path.name.endswith(".tmp") or path.name == ".cleared.json"]


@pytest.mark.parametrize("name", NAMES)
def test_after_any_fault_the_same_bits(victims, given, tmp_path, name, tell):
    scenario = scenarios(given)[name]

    def run(place: Path, words: list[object], fault: Fault | None = None) -> Done:
        return victims(*words, code=scenario.code, fault=fault, cache=place / "cache", imports=scenario.imports)

    def prepared(number: str) -> tuple[Path, dict[str, Any]]:
        place = tmp_path / number
        scenario.before(place)
        return place, scenario.found(place)

    counts: dict[str, int] = {}
    for of in ("changes", "reads", "calls"):
        place, old = prepared(f"whole-{of}")
        done = run(place, scenario.words(place), Fault("none", 0, place, of))
        assert done.status == 0, done
        counts[of], new = done.changes, scenario.found(place)
        assert old != new
    whole = new

    for how, of, number in FAULTS:
        for at in sample(counts[of], number or scenario.kills, name, how, of):
            place, old = prepared(f"{how}-{of}-{at}")
            fault = Fault(how, at, place, of)
            ended = check_told(run(place, scenario.words(place), fault), how)
            found = scenario.found(place)
            for key, value in found.items():
                assert value is None or value in (old.get(key), whole.get(key)) or key not in whole, (fault, key)
            if ended == "done all the same":
                assert found == whole, fault
            again = run(place, (scenario.again or scenario.words)(place))
            if again.status == 0:
                came = "same bits"
            else:
                assert again.sentence
                assert scenario.advice, (fault, again)
                done = run(place, scenario.advice(place))
                assert done.status == 0, (fault, done)
                came = "one sentence, then the same bits"
            assert scenario.found(place) == whole, fault
            assert left(place) == [], fault
            tell[f"{how} {of}: {ended}; again: {came}"] += 1
            shutil.rmtree(place)
    assert sum(tell.values()) >= LEAST


DAMAGES = ("flipped", "cut", "zeroed", "swapped", "gone")


def damage(file: Path, other: Path, how: str, number: int) -> None:
    """Do something to a file; `other` is what another run has under its name."""
    chance, data = random.Random(f"{SEED} {file.name} {how} {number}"), bytearray(file.read_bytes())
    if how == "flipped":
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
    elif how == "cut":
        del data[chance.randrange(len(data)) :]
    elif how == "zeroed":
        start = chance.randrange(len(data)) if number else len(data) // 2
        data[start:] = bytes(len(data) - start)
    elif how == "swapped":
        data[:] = other.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes(data)


def damages(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the name of each file of a folder with each way to damage it; by chance, as often as was asked for."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"):
        for how in DAMAGES:
            for number in range(TIMES if how in ("flipped", "cut", "zeroed") else 1):
                yield str(file.relative_to(folder)), how, number


def told_figures(done: Done) -> dict[str, Any]:
    return {key: value for key, value in json.loads(done.out).items() if key not in ("seconds", "run")}


# A run that is killed when its first epoch is saved.
HALF = """
import os, signal
from dspt import cli, runs
save_state = runs.Run.save_state
def save_and_die(*given):
    save_state(*given)
    os.kill(os.getpid(), signal.SIGKILL)
runs.Run.save_state = save_and_die
cli.main()
"""


@pytest.mark.parametrize("half", [False, True], ids=["finished", "half-done"])
def test_a_damaged_run_never_tells_other_figures(victims, given, tmp_path, half, tell):
    runs = {}
    for seed in (1, 2):
        runs[seed] = tmp_path / f"seed{seed}" / "run"
        done = victims(*trained(given, runs[seed], "--seed", seed), code=HALF if half else "")
        assert done.status == (-9 if half else 0), done
    whole = figures(given["run"])
    judged = victims("eval", given["run"], given["data"], "--json").out
    told = told_figures(victims(*trained(given, given["run"])))
    place = tmp_path / "place" / "run"
    for name, how, number in damages(runs[1]):
        case = f"{name} {how} {number}"
        shutil.copytree(runs[1], place)
        damage(place / name, runs[2] / name, how, number)
        done = victims("eval", place, given["data"], "--json")
        if done.status == 0:
            assert not half, case
            assert done.out.replace(str(place), str(given["run"])) == judged, case
        else:
            assert done.sentence, case
            assert done.out == "", case
        done = victims(*trained(given, place))
        if done.status == 0:
            came = "same figures"
            assert told_figures(done) == told, case
            assert not half or figures(place) == whole, case
        else:
            came = "one sentence, then the same bits"
            assert done.status == 2, (case, done)
            assert done.out == "", case
            if "--overwrite" not in done.sentence:
                assert "give another folder" in done.sentence or "remove" in done.sentence, (case, done.sentence)
                shutil.rmtree(place)
            done = victims(*trained(given, place, "--overwrite"))
            assert done.status == 0, (case, done)
            assert figures(place) == whole, case
        tell[f"{'half-done' if half else 'finished'} run {how}: {came}"] += 1
        shutil.rmtree(place)
    assert sum(tell.values()) >= LEAST


TABLE = ("table", "unsupervised", "--json", "--runs")


def cells(done: Done) -> dict[tuple[str, ...], Any]:
    rows = json.loads(done.out)["cells"]
    return {(row["dataset"], row["noise"], row["method"]): row["mean"] for row in rows}


def check_cells(done: Done, expected: dict[tuple[str, ...], Any], hurt: Path) -> bool:
    """Return whether a table has all figures that it should have; those that it has not are of a folder it names."""
    assert done.status == 0, done
    shown = cells(done)
    assert shown.keys() <= expected.keys()
    assert all(shown[key] in (None, expected[key]) for key in shown)
    if shown == expected:
        return True
    named = [one["folder"] for one in json.loads(done.out)["not_used"]]
    assert any(hurt.is_relative_to(folder) for folder in named), done
    assert all(folder in done.err for folder in named)
    return False


@pytest.fixture(scope="module")
def sweep(victims, given, tmp_path_factory) -> Path:
    """Return a folder with the runs of a table."""
    place = tmp_path_factory.mktemp("sweep")
    assert victims(*swept(given, place)).status == 0
    first, second = runs_in(place).values()
    assert first["loss"] != second["loss"]
    return place


def test_a_folder_that_cannot_be_read_does_not_vanish_from_a_table(victims, sweep, tell):
    expected = cells(victims(*TABLE, sweep / "runs"))
    first = sweep / "runs" / "pets" / next(iter(runs_in(sweep)))
    reads = victims(*TABLE, sweep / "runs", fault=Fault("none", 0, first, "reads")).changes
    for at in range(1, reads + 1):
        done = victims(*TABLE, sweep / "runs", fault=Fault("EIO", at, first, "reads"))
        whole = check_cells(done, expected, first)
        tell[f"EIO in a table: {'same figures' if whole else 'the run is named'}"] += 1
    assert reads >= 3
    assert tell["EIO in a table: the run is named"]


def test_a_damaged_run_never_changes_a_table(victims, given, sweep, tmp_path, tell):
    first, second = runs_in(sweep)
    runs = sweep / "runs" / "pets"
    expected = cells(victims(*TABLE, sweep / "runs"))
    assert None not in expected.values()
    for name, how, number in damages(runs / first):
        case = f"{name} {how} {number}"
        now = tmp_path / "place"
        shutil.copytree(sweep, now)
        hurt = now / "runs" / "pets" / first
        damage(hurt / name, runs / second / name, how, number)
        check_cells(victims(*TABLE, now / "runs"), expected, hurt)
        done = victims(*swept(given, now))
        if done.status == 0:
            came = "same figures"
        else:
            came = "one sentence, then the same bits"
            check_told(done, how)
            assert json.loads(done.out)["failed"] == 1, case
            assert first in done.err, case
            shutil.rmtree(hurt)
            assert victims(*swept(given, now)).status == 0, case
        assert cells(victims(*TABLE, now / "runs")) == expected, case
        tell[f"run in a table {how}: {came}"] += 1
        shutil.rmtree(now)
    assert sum(tell.values()) >= LEAST


def test_damaged_features_are_made_again(victims, given, tmp_path, tell):
    scenario = scenarios(given)["encode"]
    place = tmp_path / "whole"
    place.mkdir()

    def run(place: Path) -> Done:
        return victims(*scenario.words(place), code=scenario.code, cache=place / "cache", imports=scenario.imports)

    assert run(place).status == 0
    whole = scenario.found(place)
    names = [name for name, how, _ in damages(place / "cache") if how == "gone"]
    for name, how, number in damages(place / "cache"):
        case = f"{name} {how} {number}"
        now = tmp_path / "place"
        shutil.copytree(place, now)
        shutil.rmtree(now / "run")
        kin = [other for other in names if Path(other).name == Path(name).name and other != name] or [names[-1]]
        damage(now / "cache" / name, place / "cache" / kin[0], how, number)
        done = run(now)
        assert done.status == 0, (case, done)
        assert "Traceback" not in done.err, done.err
        assert scenario.found(now) == whole, case
        tell[f"features {how}: {'made again and said' if 'damaged' in done.err else 'same features'}"] += 1
        shutil.rmtree(now)
    assert sum(tell.values()) >= LEAST
    assert any("said" in came for came in tell)
