"""Logs: what a run tells TensorBoard and MLflow, held against the run's own records by reading it with their libraries.

Both are tried where they are installed: `pip install 'dspt[tensorboard,mlflow]'`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from problems import QUIET, told

from dspt.config import Config
from dspt.engine import local, many
from dspt.engine.job import Job
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.runs import Run, logs
from dspt.workflows import train

Points = dict[str, list[tuple[int, float]]]


def recorded(run: Path) -> Points:
    """Return the numbers of a run's own records by name, each with its epoch."""
    found: Points = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            if isinstance(value, int | float) and name != "epoch":
                found.setdefault(name, []).append((record["epoch"], value))
    return found


def in_tensorboard(run: Path) -> Points:
    """Return what TensorBoard shows of a folder."""
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="NOT TRIED: tensorboard is not installed"
    )
    found = events.EventAccumulator(str(run)).Reload()
    names = found.Tags()["scalars"]
    return {name: [(point.step, point.value) for point in found.Scalars(name)] for name in names}


def in_mlflow(run: Path) -> Points:
    """Return what MLflow has of the one finished run that stands for a folder, but for its final figures."""
    (found,) = mlflow_runs(run)
    assert found.info.status == "FINISHED"
    client = mlflow_client()
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    figures = {name: value for name, value in found.data.metrics.items() if name.startswith("final_")}
    result = Run(run).result().as_dict()
    assert figures["final_accuracy"] == result["accuracy"]
    assert all(value == result[name.removeprefix("final_")] for name, value in figures.items())
    assert all(len(histories.pop(name)) == 1 for name in figures)
    return {name: [(point.step, point.value) for point in history] for name, history in histories.items()}


def mlflow_client():
    return pytest.importorskip("mlflow").MlflowClient()


def mlflow_runs(run: Path):
    client = mlflow_client()
    experiment = client.get_experiment_by_name("dspt")
    return client.search_runs([experiment.experiment_id], f"tags.`dspt.folder` = '{run.absolute()}'")


SHOWN: dict[str, Callable[[Path], Points]] = {"tensorboard": in_tensorboard, "mlflow": in_mlflow}


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    """Return where MLflow writes: one SQLite file for all tests, since it takes seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(params=SHOWN)
def name(request, database, monkeypatch) -> str:
    """Return the name of a log whose library is installed."""
    missing = [package for package in logs.NEEDS[request.param] if not logs.find_spec(package)]
    if missing:
        pytest.skip(f"NOT TRIED: {', '.join(missing)} not installed; pip install 'dspt[{request.param}]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return request.param


@pytest.fixture
def config(text_tower) -> Config:
    return Config(model=text_tower, epochs=4, lr=0.2)


@pytest.fixture
def todo(data, text_tower, tmp_path) -> list[Job]:
    """Return three jobs of a second or less."""
    config = Config(model=text_tower, epochs=2)
    return [Job(data, "none", replace(config, seed=seed), tmp_path / f"{seed}", f"{seed}") for seed in range(3)]


# Killed at its second epoch, once that is saved: before the log has it, or after.
KILLED = """
import os, signal
from dspt import cli
from dspt.runs import logs
os.environ["MLFLOW_TRACKING_URI"] = {database!r}
epochs = logs.Logs.epochs
def struck(self, records):
    if {after} or len(records) < 2:
        epochs(self, records)
    if len(records) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
logs.Logs.epochs = struck
cli.main()
"""


class TestReal:
    """Against the libraries themselves."""

    def test_every_number_of_every_epoch_is_there_once(self, name, data, config, tmp_path):
        train.run(data, config, "sym:0.4", tmp_path / "run", log=name)
        expected = recorded(tmp_path / "run")
        assert {"loss", "accuracy", "gradient_wrong"} <= expected.keys()
        assert matches(SHOWN[name](tmp_path / "run"), expected)
        train.run(data, config, "sym:0.4", tmp_path / "run", log=name)  # it is done, and is not logged twice
        assert matches(SHOWN[name](tmp_path / "run"), expected)

    @pytest.mark.parametrize("after", [False, True])
    def test_after_a_kill_no_point_is_lost_or_doubled(self, name, data, config, tmp_path, victims, database, after):
        words = ["train", data, "--model", config.model, "--epochs", 4, "--lr", 0.2, "--log", name, "-q"]
        code = KILLED.format(database=database, after=after)
        killed = victims(*words, "--out", tmp_path / "run", code=code)
        assert killed.killed, killed
        assert Run(tmp_path / "run").epochs_recorded() == 2
        train.run(data, config, out=tmp_path / "run", log=name)
        train.run(data, config, out=tmp_path / "whole")
        expected = recorded(tmp_path / "whole")
        assert [epoch for epoch, _ in expected["loss"]] == [1, 2, 3, 4]
        assert matches(SHOWN[name](tmp_path / "run"), expected)

    def test_a_run_that_begins_anew_has_none_of_the_old_points(self, name, data, config, tmp_path):
        train.run(data, replace(config, epochs=3, lr=0.1), out=tmp_path / "run", log=name)
        train.run(data, replace(config, epochs=2), out=tmp_path / "run", log=name, overwrite=True)
        if name == "mlflow":  # which keeps the old run beside the new one
            newest, older = mlflow_runs(tmp_path / "run")
            assert (newest.data.params["lr"], older.data.params["lr"]) == ("0.2", "0.1")
            return
        assert matches(SHOWN[name](tmp_path / "run"), recorded(tmp_path / "run"))

    def test_a_finished_sweep_is_logged_by_the_same_command(self, name, todo):
        assert all(outcome.error is None for outcome in local.do(todo[:2], None, QUIET))
        logged = [replace(job, log=name) for job in todo]
        outcomes = list(local.do(logged, None, QUIET, workers=2))
        assert [outcome.error for outcome in outcomes] == [None] * 3
        for job in todo:
            assert matches(SHOWN[name](job.folder), recorded(job.folder))

    def test_two_workers_that_find_no_store_have_every_run_in_it(self, name, todo, tmp_path, monkeypatch):
        if name != "mlflow":
            pytest.skip("TensorBoard has no store")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/mlflow.db")
        heard = many._Kept()
        outcomes = list(local.do([replace(job, log=name) for job in todo], None, heard, workers=2))
        assert [outcome.error for outcome in outcomes] == [None] * 3
        assert heard.warnings == []
        for job in todo:
            assert matches(in_mlflow(job.folder), recorded(job.folder))

    def test_a_store_that_could_not_be_made_is_not_there_and_the_next_run_makes_it(
        self, name, data, config, tmp_path, monkeypatch
    ):
        if name != "mlflow":
            pytest.skip("TensorBoard has no store")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/mlflow.db")
        heard = Heard()
        with monkeypatch.context() as patch:
            patch.setattr("alembic.command.upgrade", full)  # once the first tables are made
            train.run(data, config, out=tmp_path / "first", log=name, reporter=heard)
        assert len(heard.lines) == 1
        assert [path.name for path in (tmp_path / "new").iterdir() if path.suffix != ".lock"] == []
        train.run(data, config, out=tmp_path / "second", log=name)
        assert matches(in_mlflow(tmp_path / "second"), recorded(tmp_path / "second"))

    def test_what_a_run_that_failed_was_is_told(self, name, data, config, tmp_path):
        if name != "mlflow":
            pytest.skip("TensorBoard does not ask how a run ended")
        with pytest.raises(InputError, match="diverged"):
            train.run(data, replace(config, lr=1e38), out=tmp_path / "run", log=name)
        (found,) = mlflow_runs(tmp_path / "run")
        assert found.info.status == "FAILED"

    def test_a_place_that_cannot_be_written_costs_a_warning_alone(self, name, data, config, tmp_path, monkeypatch):
        heard = Heard()
        if name == "mlflow":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # where nobody listens
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        else:
            monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.EventFileWriter.flush", full)
        train.run(data, config, out=tmp_path / "run", log=name, reporter=heard)
        train.run(data, config, out=tmp_path / "plain")
        assert told(tmp_path / "run") == told(tmp_path / "plain")
        (line,) = heard.lines
        assert line.startswith(f"log {name}: it cannot be written (")
        assert line.endswith("); the run goes on without it")


def matches(shown: Points, expected: Points) -> bool:
    """Return whether the points are the same, in single precision, which TensorBoard keeps."""
    assert shown == {
        name: [(step, pytest.approx(value, rel=1e-6)) for step, value in line] for name, line in expected.items()
    }
    return True


def full(*_: object) -> None:
    raise OSError(28, os.strerror(28))


class Heard(Reporter):
    """Keeps the warnings that would be printed."""

    def __init__(self) -> None:
        super().__init__(silent=True, warns=True)
        self.lines: list[str] = []

    def _print(self, line: str) -> None:
        self.lines.append(line)


class Away:
    """A log on a server that is away for the first calls, so many; `there` is what it has in the end."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.there: list[int] = []
        self.ended: list[str] = []

    def open(self) -> Away:
        self._answer()
        return self

    def epochs(self, records) -> None:
        self._answer()
        self.there += [record["epoch"] for record in records if record["epoch"] not in self.there]

    def result(self, result) -> None:
        self._answer()

    def close(self, how: str) -> None:
        self.ended.append(how)

    def _answer(self) -> None:
        self.calls -= 1
        if self.calls >= 0:
            raise ConnectionError("away at 0x7f00")


class TestSeam:
    """Whatever a log does, without any library."""

    @pytest.fixture
    def away(self, monkeypatch) -> Callable[[int], Away]:
        monkeypatch.setattr(logs, "find_spec", lambda package: True)

        def make(calls: int) -> Away:
            log = Away(calls)
            monkeypatch.setattr(logs, "_maker", lambda name, run: log.open)
            return log

        return make

    @pytest.mark.parametrize(("calls", "there"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (10**6, [])])
    def test_a_server_that_comes_back_has_lost_nothing(self, data, config, tmp_path, away, calls, there):
        log, heard = away(calls), Heard()
        train.run(data, config, out=tmp_path / "run", log="mlflow", reporter=heard)
        assert log.there == there
        assert log.ended == (["finished"] if there else [])
        sentence = "log mlflow: it cannot be written (ConnectionError: away); the run goes on without it"
        assert heard.lines == ([sentence] if calls else [])

    def test_a_sweep_warns_once(self, todo, away):
        away(10**6)
        heard = Heard()
        assert all(o.error is None for o in local.do([replace(job, log="mlflow") for job in todo], None, heard))
        assert len(heard.lines) == 1

    def test_a_run_that_is_stopped_says_so_and_goes_on(self, data, config, tmp_path, away, monkeypatch):
        log = away(0)
        with monkeypatch.context() as patch:
            patch.setattr(Run, "save_learnt", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train.run(data, config, out=tmp_path / "run", log="mlflow")
        assert log.ended == ["stopped"]
        train.run(data, config, out=tmp_path / "run", log="mlflow")
        assert (log.there, log.ended) == ([1, 2, 3, 4], ["stopped", "finished"])

    def test_time_that_a_log_takes_is_not_the_run_s(self, data, config, tmp_path, away, monkeypatch):
        log, clock, hours = away(0), time.monotonic, []
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600 * len(hours))
        monkeypatch.setattr(log, "epochs", hours.append)
        assert train.run(data, config, out=tmp_path / "run", log="mlflow").seconds < 3600

    @pytest.mark.parametrize("command", [["train"], ["scratch"], ["reproduce", "main", "--data"]])
    def test_what_is_not_installed_is_one_sentence_before_any_work(self, dspt, monkeypatch, data, tmp_path, command):
        monkeypatch.setattr(logs, "find_spec", lambda package: None)
        for asked, sentence in (
            ("mlflow", "log 'mlflow': it needs another package: pip install 'dspt[mlflow]'"),
            ("wandb", "log 'wandb': not known; expected tensorboard or mlflow, or both with a comma between"),
        ):
            assert dspt(*command, data, "--log", asked) == (2, "", f"dspt: {sentence}\n")
        assert not (tmp_path / "runs").exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
