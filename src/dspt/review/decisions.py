"""What a person has decided about samples of an audit, durable the moment it is decided."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from dspt.data.items import written
from dspt.internal.errors import Fault, FileError, InputError
from dspt.internal.files import check_regular
from dspt.internal.names import printable

KEEP, RELABEL, REMOVE = "keep", "relabel", "remove"
ACTIONS = (KEEP, RELABEL, REMOVE)

_UNDO = "undo"
# Written into the head of the file: whose it is, and the form of its table.
_APPLICATION, _FORM = 0x64737074, 1
# How long one process waits for another to have written, in seconds: far longer than any write takes.
_PATIENCE = 60.0
# So many rows are looked up one by one; for more, all are read.
_FEW = 1000

# Events are only ever added. An undo is one, too: its batch is the one taken back. A sample that is relabelled as
# nothing is one that nobody has decided about.
_TABLE = f"""
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    row INTEGER NOT NULL,
    item TEXT NOT NULL,
    occurrence INTEGER NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('{KEEP}', '{RELABEL}', '{REMOVE}', '{_UNDO}')),
    label TEXT,
    agreed INTEGER,
    time TEXT NOT NULL,
    request TEXT
);
CREATE INDEX IF NOT EXISTS events_batch ON events (batch);
CREATE INDEX IF NOT EXISTS events_item ON events (item, occurrence);
CREATE INDEX IF NOT EXISTS events_undone ON events (batch) WHERE action = '{_UNDO}';
CREATE INDEX IF NOT EXISTS events_request ON events (request) WHERE request IS NOT NULL;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORM};
"""
_STANDING = f"batch NOT IN (SELECT batch FROM events WHERE action = '{_UNDO}') AND action != '{_UNDO}'"


# Row, item, occurrence, action, class, and whether it was the likeliest one.
_Event = tuple[int, str, int, str, str | None, bool | None]


@dataclass(frozen=True)
class Decision:
    """What was decided about one sample.

    Attributes
    ----------
    action : str
        "keep" the given label, "relabel" it, or "remove" the sample.
    label : int
        The class it has from then on: the given one if it is kept, -1 if it is removed.
    agreed : bool or None
        Whether it is the class that was the likeliest when it was decided; None if that is not known, and for a
        sample that is removed. Two decisions that differ in this alone are the same.
    """

    action: str
    label: int
    agreed: bool | None = field(default=None, compare=False)


class Decisions:
    """All decisions about the samples of a report, in a SQLite file, safe with several threads and processes.

    What a call has returned is on disk. Decisions belong to the names of samples and classes: if the report is made
    again in another order, they are found again.

    Parameters
    ----------
    path : Path or str
        The file, made if it is not there.
    items : sequence of str
        What each sample is called, by row; of a name that is there twice, the first is the first again later.
    class_names : sequence of str
        The classes, in the order in which labels count.

    Raises
    ------
    InputError
        If there is something else at `path`, or it is damaged.
    """

    def __init__(self, path: Path | str, items: Sequence[str], class_names: Sequence[str]) -> None:
        self.path = Path(path)
        self._names = _numbered(items)
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._classes = [written(name) for name in class_names]
        self._labels = {name: label for label, name in enumerate(self._classes)}
        self._lock = threading.RLock()
        with self._told():
            if os.path.lexists(self.path):
                check_regular(self.path)
            self._connection = sqlite3.connect(
                self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
            self._opened = self._there()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._told():
            execute = self._connection.execute
            # In one transaction, as another process may be making the table at this moment.
            execute("BEGIN")
            whose = execute("PRAGMA application_id").fetchone()[0], execute("PRAGMA user_version").fetchone()[0]
            tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            found = execute("PRAGMA quick_check(1)").fetchone()[0] if tables else "ok"
            execute("COMMIT")
            if whose != (_APPLICATION, _FORM) and (tables or whose != (0, 0)):
                newer = whose[0] == _APPLICATION and whose[1] > _FORM
                what = "of a newer version of dspt" if newer else "a database of something else"
                raise InputError(f"{self.path}: {what}, no list of decisions; move it away to begin anew")
            if found != "ok":
                raise sqlite3.DatabaseError(found.splitlines()[-1])
            self._write_ahead()
            execute("PRAGMA synchronous = FULL")
            if whose != (_APPLICATION, _FORM):
                self._connection.executescript(f"BEGIN IMMEDIATE;{_TABLE}COMMIT;")

    def _write_ahead(self) -> None:
        """Have readers and a writer not wait for each other; SQLite does not wait for others to let it do so."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def decide(
        self,
        rows: Sequence[int],
        action: str | Sequence[str],
        label: int | Sequence[int] | None = None,
        request: str | None = None,
        likeliest: Sequence[int] | None = None,
    ) -> int:
        """Return the number of a new batch: one decision about all these rows, which is undone as one.

        Parameters
        ----------
        rows : sequence of int
            The samples.
        action : str or sequence of str
            One of `ACTIONS`, for all or one each.
        label : int or sequence of int, optional
            The class they have from then on, one for all or one each: the given one if they are kept. None if they
            are removed.
        request : str, optional
            A name for this call. One that is made again under the same name, because its answer was lost, changes
            nothing and returns the batch there is.
        likeliest : sequence of int, optional
            The most probable class of each, to tell later how often that was right: who keeps a label that most
            probably is right agrees, too. A removal says nothing about classes.
        """
        return self._add(self._events(rows, action, label, likeliest), request)

    def take(self, decisions: Mapping[int, Decision]) -> int:
        """Return the number of a new batch: many decisions, each its own, which are taken whole and undone as one.

        Parameters
        ----------
        decisions : dict
            What is decided, by row. Where there are none, nothing is written, and the number is 0.
        """
        events = []
        for row, one in decisions.items():
            [event] = self._events([row], one.action, one.label, None)
            events.append((*event[:-1], one.agreed))
        return self._add(events, None) if events else 0

    def _add(self, events: Sequence[_Event], request: str | None) -> int:
        """Return the number of a new batch of these events, or of the one that the same request has made."""
        with self._told(), self._writing() as execute:
            if request is not None:
                made = execute("SELECT batch FROM events WHERE request = ? LIMIT 1", (request,)).fetchone()
                if made:
                    return int(made[0])
            batch = int(execute("SELECT coalesce(max(id), 0) + 1 FROM events").fetchone()[0])
            now = _now()
            self._connection.executemany(
                "INSERT INTO events (batch, row, item, occurrence, action, label, agreed, time, request)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(batch, *event, now, request) for event in events],
            )
            return batch

    def _events(
        self,
        rows: Sequence[int],
        action: str | Sequence[str],
        label: int | Sequence[int] | None,
        likeliest: Sequence[int] | None,
    ) -> list[_Event]:
        if not len(rows):
            raise InputError("rows: none are given, and a decision is about at least one")
        actions = [action] * len(rows) if isinstance(action, str) else list(action)
        for made in dict.fromkeys(actions):
            if made not in ACTIONS:
                raise InputError(f"decision {printable(str(made))}: expected one of {', '.join(ACTIONS)}")
            if made != REMOVE and label is None:
                raise InputError(f"label: none is given, and {made} needs the class that is meant")
        if label is None or {*actions} == {REMOVE}:
            labels = [-1] * len(rows)
        else:
            labels = [int(label)] * len(rows) if isinstance(label, int) else [int(one) for one in label]
        for what, given in (("actions", actions), ("labels", labels)):
            if len(given) != len(rows):
                raise InputError(f"{what}: {len(given)} for {len(rows)} rows")
        events: list[_Event] = []
        for i, (row, made, one) in enumerate(zip(map(int, rows), actions, labels, strict=True)):
            if not 0 <= row < len(self._names):
                raise InputError(f"row {row}: expected 0..{len(self._names) - 1}")
            if made == REMOVE:
                events.append((row, *self._names[row], made, None, None))
                continue
            if not 0 <= one < len(self._classes):
                raise InputError(f"label {one}: expected 0..{len(self._classes) - 1} for {len(self._classes)} classes")
            same = None if likeliest is None else one == likeliest[i]
            events.append((row, *self._names[row], made, self._classes[one], same))
        return events

    def restore(self, rows: Sequence[int], request: str | None = None) -> int:
        """Return the number of a new batch: what was decided before these rows were removed stands again, or nothing.

        Parameters
        ----------
        rows : sequence of int
            The samples.
        request : str, optional
            A name for this call, as in `decide`.
        """
        events: list[_Event] = []
        with self._told(), self._lock:
            for event in self._events(rows, REMOVE, None, None):
                row, item, occurrence = event[:3]
                before = self._connection.execute(
                    f"SELECT action, label, agreed FROM events WHERE item = ? AND occurrence = ? AND {_STANDING}"
                    f" AND action != '{REMOVE}' ORDER BY id DESC LIMIT 1",
                    (item, occurrence),
                ).fetchone()
                events.append((row, item, occurrence, *(before or (RELABEL, None, None))))
            return self._add(events, request)

    def undo(self, request: str | None = None) -> int | None:
        """Return the number of the last batch that stood, after taking it back; None if there was none.

        Parameters
        ----------
        request : str, optional
            A name for this call; one that is made again under the same name takes nothing else back.
        """
        with self._told(), self._writing() as execute:
            if request is not None:
                made = execute("SELECT batch FROM events WHERE request = ? LIMIT 1", (request,)).fetchone()
                if made:
                    return int(made[0])
            batch = execute(f"SELECT max(batch) FROM events WHERE {_STANDING}").fetchone()[0]
            if batch is None:
                return None
            execute(
                "INSERT INTO events (batch, row, item, occurrence, action, label, time, request)"
                " VALUES (?, -1, '', 0, ?, NULL, ?, ?)",
                (batch, _UNDO, _now(), request),
            )
            return int(batch)

    def current(self) -> dict[int, Decision]:
        """Return what is decided now, by row: of each sample, the last decision that was not undone."""
        found = {}
        for item, occurrence, action, label, agreed in self._standing():
            row = self._rows.get((item, occurrence))
            if row is not None and (one := self._decision(action, label, agreed)):
                found[row] = one
        return found

    def of(self, rows: Sequence[int]) -> dict[int, Decision | None]:
        """Return what is decided now about these rows; None where nothing is."""
        if len(rows) > _FEW:
            now = self.current()
            return {row: now.get(row) for row in rows}
        found: dict[int, Decision | None] = {}
        with self._told(), self._lock:
            for row in rows:
                last = self._connection.execute(
                    f"SELECT action, label, agreed FROM events WHERE item = ? AND occurrence = ? AND {_STANDING}"
                    " ORDER BY id DESC LIMIT 1",
                    self._names[row],
                ).fetchone()
                found[row] = self._decision(*last) if last else None
        return found

    def rows(self, batch: int) -> list[int]:
        """Return the rows that a batch is about, as far as they are still among the samples."""
        with self._told(), self._lock:
            named = self._connection.execute(
                f"SELECT item, occurrence FROM events WHERE batch = ? AND action != '{_UNDO}' ORDER BY id", (batch,)
            ).fetchall()
        return [self._rows[name] for name in named if name in self._rows]

    def since(self, event: int) -> tuple[int, dict[int, Decision | None]]:
        """Return the number of the last event, and what is decided now about each row touched after `event`.

        Parameters
        ----------
        event : int
            The number that an earlier call returned; 0 asks for all.

        Returns
        -------
        last : int
            To be given the next time.
        changed : dict of int to Decision or None
            By row; None where a decision was undone and there is none now.
        """
        with self._told(), self._lock:
            self._check_there()
            execute = self._connection.execute
            execute("BEGIN")
            try:
                last = int(execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0])
                if last <= event:
                    return last, {}
                touched = execute(
                    "SELECT DISTINCT item, occurrence FROM events"
                    f" WHERE action != '{_UNDO}' AND batch IN (SELECT batch FROM events WHERE id > ?)",
                    (event,),
                ).fetchall()
                return last, self.of(sorted(self._rows[name] for name in touched if name in self._rows))
            finally:
                execute("COMMIT")

    def any_stands(self) -> bool:
        """Return whether anything is decided, be it about samples and classes that are still there or not."""
        return any(action == REMOVE or label is not None for _, _, action, label, _ in self._standing())

    def faults(self) -> list[Fault]:
        """Return decisions that stand but fit nothing any more: a sample or a class of that name is not there."""
        found = []
        for item, occurrence, action, label, _ in self._standing():
            if action != REMOVE and label is None:
                continue
            if (item, occurrence) not in self._rows:
                found.append(Fault(item, f"decided ({action}), and no longer among the samples"))
            elif label is not None and label not in self._labels:
                found.append(Fault(item, f"decided as {printable(label)!r}, and there is no such class any more"))
        return found

    def _decision(self, action: str, label: str | None, agreed: int | None) -> Decision | None:
        """Return what an event says; None if that is nothing, or its class is not there any more."""
        same = None if agreed is None else bool(agreed)
        if action == REMOVE:
            return Decision(action, -1, same)
        return Decision(action, self._labels[label], same) if label in self._labels else None

    def _standing(self) -> list[tuple[str, int, str, str | None, int | None]]:
        """Return the last decision of each sample that was not undone: name, occurrence, action, class, agreed."""
        with self._told(), self._lock:
            return self._connection.execute(
                "SELECT item, occurrence, action, label, agreed FROM events WHERE id IN"
                f" (SELECT max(id) FROM events WHERE {_STANDING} GROUP BY item, occurrence) ORDER BY id"
            ).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Yield a function that executes the statements of one change; it is on disk when the block has ended."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._check_there()
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def _there(self) -> tuple[int, int] | None:
        """Return by what the system knows the file that is at the path now; None if there is none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _check_there(self) -> None:
        """Raise `FileError` if the file was moved or deleted since it was opened: what is written would be lost."""
        if self._there() != self._opened:
            raise FileError(
                f"{self.path}: the list of decisions is not there any more, it was moved or deleted; "
                "put it back, or start the review anew"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what SQLite says into a sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                then = "another program holds it; close that one and try again"
            elif "full" in reason:
                then = "make room there"
            else:
                then = "choose a place that can be written to"
            raise FileError(f"{self.path}: decisions cannot be read or saved ({reason}); {then}") from None
        except sqlite3.Error as error:
            raise InputError(
                f"{self.path}: not a whole list of decisions ({error}); move it away to begin anew"
            ) from None

    def close(self) -> None:
        """Close the file; nothing can be decided any more."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Decisions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numbered(items: Sequence[str]) -> list[tuple[str, int]]:
    """Return each name with how often it was there before: a manifest may list a file twice."""
    seen: dict[str, int] = {}
    found = []
    for name in map(written, items):
        before = seen.get(name, 0)
        seen[name] = before + 1
        found.append((name, before))
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
