"""TensorBoard: one event file in the run folder, so that TensorBoard on a folder of runs names each by its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dspt.runs.folder import EVENTS, Run
from dspt.runs.logs import facts, numbers

if TYPE_CHECKING:
    from dspt.runs.result import Result
    from dspt.train import Record


def open_log(run: Run) -> TensorBoard:
    """Return the log of a run."""
    return TensorBoard(run)


class TensorBoard:
    """The event file of a run, begun anew whenever the run goes on: its records are few, and none is there twice then.

    Parameters
    ----------
    run : Run
        Has the folder.
    """

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        before = list(run.path.glob(f"{EVENTS}*"))
        # The first thing in it has whoever is looking forget what an earlier file said.
        self._writer = SummaryWriter(str(run.path), purge_step=0)
        self._writer.add_text("run", _listed(facts(run)))
        self._written = 0
        for path in before:
            with suppress(FileNotFoundError):
                path.unlink()

    def epochs(self, records: Sequence[Record]) -> None:
        """Write the records that are not there yet."""
        for record in records[self._written :]:
            for name, value in numbers(record).items():
                self._writer.add_scalar(name, value, record["epoch"])
            self._written += 1
        self._writer.flush()

    def result(self, result: Result) -> None:
        """Write the figures of the run, as a text."""
        self._writer.add_text("result", _listed(result.as_dict()))
        self._writer.flush()

    def close(self, how: str) -> None:
        """Close the file; TensorBoard does not ask how a run ended."""
        self._writer.close()


def _listed(values: Mapping[str, object]) -> str:
    """Return values by name as a list in Markdown."""
    return "\n".join(f"- {name}: `{value}`" for name, value in values.items() if value not in (None, ""))
