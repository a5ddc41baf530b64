"""MLflow: one of its runs for each of ours, found again by a tag.

Where it goes is MLflow's own business: `MLFLOW_TRACKING_URI`, or mlflow.db in the working directory, and
`MLFLOW_EXPERIMENT_NAME`, or "dspt".
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dspt.internal.files import replacing
from dspt.runs.folder import Run
from dspt.runs.logs import facts, numbers
from dspt.runs.sealed import digest_of

if TYPE_CHECKING:
    from dspt.runs.result import Result
    from dspt.train import Record

# A run is known again by a digest of what it is and where; the folder is for people.
_KEY, _FOLDER = "dspt.key", "dspt.folder"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}

# Unless the user says otherwise: a run waits seconds for a server that is away, not minutes, and reports to nobody.
_USUAL = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def open_log(run: Run) -> MLflow:
    """Return the log of a run."""
    return MLflow(run)


class MLflow:
    """The run of MLflow that stands for ours: the one it was before it was interrupted, if there is one.

    Parameters
    ----------
    run : Run
        Has the folder.
    """

    def __init__(self, run: Run) -> None:
        for name, value in _USUAL.items():
            os.environ.setdefault(name, value)
        import mlflow

        for name in ("mlflow", "alembic"):  # they tell of every table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        _make_store(mlflow.get_tracking_uri())
        self._client = mlflow.MlflowClient()
        self._experiment = self._find_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "dspt"))
        self._run = run
        folder = str(run.path.absolute())
        self._tags = {_KEY: digest_of(run.identity(), folder), _FOLDER: folder}
        self._id = ""
        self._there: set[tuple[str, int]] = set()

    def epochs(self, records: Sequence[Record]) -> None:
        """Write the numbers of records that are not there yet."""
        if not self._id:
            self._take_up(begun=bool(records))
        self._write([(name, value, record["epoch"]) for record in records for name, value in numbers(record).items()])

    def result(self, result: Result) -> None:
        """Write the figures of the run, each with `final_` before its name: an epoch has an accuracy, too."""
        self._write([(f"final_{name}", value, result.epochs) for name, value in numbers(result.as_dict()).items()])

    def close(self, how: str) -> None:
        """Say how the run ended."""
        if self._id:
            self._client.set_terminated(self._id, _STATUS[how])

    def _find_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another worker was quicker
            if (found := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(found.experiment_id)

    def _take_up(self, begun: bool) -> None:
        """Go on with MLflow's run, if ours has begun before or that one is empty; else begin one."""
        from mlflow.entities import Param

        ours = f"tags.`{_KEY}` = '{self._tags[_KEY]}'"
        found = self._client.search_runs([self._experiment], ours)
        if found and (begun or not found[0].data.metrics):
            taken = found[0]
            self._client.update_run(taken.info.run_id, status="RUNNING")
        else:
            for old in found:  # of a run that was begun anew
                self._client.set_tag(old.info.run_id, _KEY, "replaced")
            taken = self._client.create_run(self._experiment, run_name=self._run.path.name, tags=self._tags)
        self._id = taken.info.run_id
        self._there = self._points(taken.data.metrics)
        missing = {name: value for name, value in facts(self._run).items() if name not in taken.data.params}
        self._client.log_batch(self._id, params=[Param(*each) for each in missing.items()])

    def _points(self, metrics: Mapping[str, Any]) -> set[tuple[str, int]]:
        """Return name and epoch of every number that is there."""
        return {(name, each.step) for name in metrics for each in self._client.get_metric_history(self._id, name)}

    def _write(self, points: list[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [Metric(name, value, now, step) for name, value, step in points if (name, step) not in self._there]
        for first in range(0, len(new), _AT_ONCE):
            part = new[first : first + _AT_ONCE]
            self._client.log_batch(self._id, metrics=part)
            self._there |= {(each.key, each.step) for each in part}


# MLflow takes no more numbers in one request.
_AT_ONCE = 1000


def _make_store(uri: str) -> None:
    """Have the file of an SQLite store there as a whole, if it is not there yet.

    MLflow makes it table by table where it lies: two workers that do so at once, or one that is killed meanwhile, leave
    a store that nobody can open any more.
    """
    import mlflow
    from filelock import FileLock
    from sqlalchemy import make_url

    name = make_url(uri).database if uri.startswith("sqlite") else None
    if not name or name == ":memory:" or _is_made(path := Path(name)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if _is_made(path):  # by another worker, for which this one has waited
            return
        # MLflow keeps the file open in which it makes the tables, so they are copied from there.
        with replacing(path) as temporary, TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            apart = Path(folder) / "mlflow.db"
            mlflow.MlflowClient(f"sqlite:///{apart}").search_experiments(max_results=1)
            with closing(sqlite3.connect(apart)) as made, closing(sqlite3.connect(temporary)) as whole:
                made.backup(whole)


def _is_made(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
