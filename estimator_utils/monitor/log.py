"""The monitor's durable log: one SQLite file (WAL) with the tables ``sessions`` and ``samples``.

``pandas.read_sql("select * from sessions", sqlite3.connect(LOG))`` reads it, also while the monitor runs. A poll
and all that follows from it are one transaction: after a kill the log ends with a whole poll, and `resume`
returns what the monitor knew then. Sessions are kept for ever, samples as long as the monitor is told.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from estimator_utils.monitor.sessions import Session
from estimator_utils.telemetry.source import Sample

APPLICATION_ID = 0x464C4F50  # "FLOP": tells this log from other SQLite files
LAYOUT = 2  # PRAGMA user_version; logs of layout 0, which had other names, are read and not written
FORMER_NAMES = {"kind": "record_type", "marks": "anomalies", "equation": "estimator"}
AROUND_POLLS = 20  # are shown before and after a session
PRUNE_POLLS = 1000  # old samples are deleted once in so many polls
DAY_S = 86_400


@dataclass(frozen=True)
class SessionRow(Session):
    """A session as it is logged: what the monitor adds to it.

    Attributes
    ----------
    record_type : {"session", "merged"}
        A merged row repeats its ``parts`` fragments, which are rows of their own.
    estimate_tflop : float or None
        TFLOP, and the slug of the ``estimator`` that gave it.
    note, warning : str
        What there is to say about the estimate; why the calibrations do not belong here.
    idle_check_w : float or None
        Median of the latest idle polls, W.
    device, rail, power_mode, precision : str or None
        Of the readings, reported or declared.
    data : {"recorded", "simulated", None}
    source, calibration_sha256 : str
    """

    record_type: str
    parts: int
    estimate_tflop: float | None
    estimator: str | None
    note: str
    warning: str
    idle_check_w: float | None
    device: str | None
    rail: str | None
    power_mode: str | None
    precision: str | None
    data: str | None
    source: str
    calibration_sha256: str


SAMPLE_COLUMNS = tuple(f.name for f in fields(Sample))
SESSION_COLUMNS = (*(f.name for f in fields(SessionRow)), "sample_id")
_SCHEMA = f"""
CREATE TABLE samples (id INTEGER PRIMARY KEY, {", ".join(SAMPLE_COLUMNS)});
CREATE TABLE sessions (id INTEGER PRIMARY KEY, {", ".join(SESSION_COLUMNS)});
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), content TEXT NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
"""


class LogError(RuntimeError):
    """The log cannot be read or written: says what was found and what to do; nothing in it is changed."""


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = " ".join(str(error).split())
        if "full" in text or "disk I/O" in text:
            advice = "make room on the disk: what is logged is intact, and the monitor goes on from there"
        elif "readonly" in text or "unable to open" in text or isinstance(error, OSError):
            advice = "let the monitor's user write the file and its folder, or give another `log`"
        elif "locked" in text:
            advice = "end the program that holds a write lock on it"
        else:
            advice = f"it was left as it is; move it aside and start again, or rescue it with: sqlite3 {path} .recover"
        raise LogError(f"{path}: {text}; {advice}") from error


def connect(path: str | Path, timeout_s: float = 10.0) -> sqlite3.Connection:
    """Open a log for reading.

    Raises
    ------
    LogError
        Where it is missing, no database, or another program's file.
    """
    path = Path(path)
    if path.is_dir():
        raise LogError(f"{path}: is a folder: give the log's file")
    if not path.is_file():
        raise LogError(f"{path}: there is no such log: the monitor writes one")
    with _translate_errors(path):
        # A log whose making was interrupted is first rolled back, which is writing. One on a read-only disk
        # without a write-ahead log is whole, but SQLite has to be told so.
        mode = "rw" if Path(f"{path}-journal").exists() else "ro"
        still = not Path(f"{path}-wal").exists() and not os.access(path.parent, os.W_OK)
        uri = f"file:{quote(str(path))}?mode={mode}{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(uri, timeout_s, uri=True)
        try:
            tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            if tables and _pragma(connection, "application_id") != APPLICATION_ID:
                raise LogError(f"{path}: an SQLite file, but not a log of this monitor: give another `log`")
        except BaseException:
            connection.close()
            raise
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def check(path: str | Path) -> None:
    """Read a whole log for damage, which takes seconds for weeks of samples; LogError where there is any."""
    with _translate_errors(Path(path)), closing(connect(path)) as connection:
        if (damage := _pragma(connection, "quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(damage)


class SessionLog:
    """A log opened for writing, by one monitor at a time.

    Parameters
    ----------
    path : str or Path
        Made where it does not exist.
    keep_samples : int
        How many of the latest samples are kept.

    Raises
    ------
    LogError
        Where another monitor holds it, it cannot be written, is damaged, or is another program's file.
    """

    def __init__(self, path: str | Path, keep_samples: int = 30 * 57_600) -> None:
        self.path, self._keep, self._polls = Path(path), keep_samples, 0
        self._open()

    def _open(self) -> None:
        self._file: tuple[int, int] | None = None
        with _translate_errors(self.path):
            if self.path.exists() and self.path.stat().st_size:
                check(self.path)
            self._lock = open(f"{self.path}.lock", "w")  # noqa: SIM115 (held until close)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise LogError(f"{self.path}: another monitor writes it: end that one, or give another `log`") from None
            self._db = sqlite3.connect(self.path, timeout=10.0)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
                if (layout := _pragma(self._db, "user_version")) != LAYOUT:
                    raise LogError(
                        f"{self.path}: was written by another release (layout {layout}, this is {LAYOUT}):"
                        " it can be read; give another `log` to write"
                    )
                self._db.execute("BEGIN IMMEDIATE")  # a log that cannot be written is found out here
                self._db.rollback()
                self._file = self._identity()
            except BaseException:
                self.close()
                raise

    def _identity(self) -> tuple[int, int] | None:
        """Return which file lies under the log's name now."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def reopen(self) -> None:
        """Open or make the log again where its file was moved or deleted; the moved one is left whole."""
        if self._file is not None and self._identity() == self._file:
            return
        with suppress(sqlite3.Error):  # it was closed before, or its disk is gone
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close()
        self._open()

    def resume(self) -> dict[str, Any] | None:
        """Return the state of the last logged poll, or None in a new log."""
        with _translate_errors(self.path):
            row = self._db.execute("SELECT content FROM state").fetchone()
        return json.loads(row[0]) if row else None

    def samples_since_last_session(self) -> Iterator[Sample]:
        """Yield the kept samples after those of the last session, oldest first."""
        columns = ", ".join(SAMPLE_COLUMNS)
        last = "SELECT coalesce(max(sample_id), 0) FROM sessions"
        with _translate_errors(self.path):
            for row in self._db.execute(f"SELECT {columns} FROM samples WHERE id > ({last}) ORDER BY id"):
                yield Sample(*row)

    def commit(self, sample: Sample | None, state: Mapping[str, Any], sessions: Sequence[SessionRow] = ()) -> None:
        """Log one poll, the state after it and the sessions that it ended: all of it, or nothing.

        Raises
        ------
        LogError
            Where it cannot be written; the log is then as it was before.
        """
        with _translate_errors(self.path):
            if self._file is None or self._identity() != self._file:  # SQLite would write to a file without a name
                raise LogError(
                    f"{self.path}: was moved or deleted under the monitor, which makes it anew as it goes on"
                )
            if sessions:  # a finished session survives a power cut too, not only a kill
                self._db.execute("PRAGMA synchronous = FULL")
            try:
                with self._db:
                    self._write(sample, state, sessions)
            finally:
                self._db.execute("PRAGMA synchronous = NORMAL")

    def _write(self, sample: Sample | None, state: Mapping[str, Any], sessions: Sequence[SessionRow]) -> None:
        if sample is not None:
            last = self._insert("samples", vars(sample))
        else:
            (last,) = self._db.execute("SELECT max(id) FROM samples").fetchone()
        for session in sessions:
            self._insert("sessions", {**vars(session), "anomalies": "; ".join(session.anomalies), "sample_id": last})
        self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (json.dumps(state),))
        self._polls += 1
        if last is not None and self._polls % PRUNE_POLLS == 0:
            self._db.execute("DELETE FROM samples WHERE id <= ?", (last - self._keep,))

    def _insert(self, table: str, row: Mapping[str, Any]) -> int | None:
        names, places = ", ".join(row), ", ".join("?" * len(row))
        return self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(row.values())).lastrowid

    def close(self) -> None:
        """Close the log; closing again changes nothing."""
        self._db.close()
        self._lock.close()


def read_sessions(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of the table ``sessions``, oldest first, also of a log of an earlier release."""
    with _translate_errors(Path(path)), closing(connect(path)) as connection:
        return _sessions(connection, "ORDER BY id")


def _sessions(connection: sqlite3.Connection, which: str, *parameters: object) -> list[dict[str, Any]]:
    rows = _rows(connection, f"SELECT * FROM sessions {which}", *parameters)
    if _pragma(connection, "user_version") == LAYOUT:
        return rows
    renamed = [{FORMER_NAMES.get(name, name): value for name, value in row.items()} for row in rows]
    return [{**row, "estimator": row["estimator"] and f"eq{row['estimator']}"} for row in renamed]


def _rows(connection: sqlite3.Connection, query: str, *parameters: object) -> list[dict[str, Any]]:
    cursor = connection.execute(query, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def read_session(path: str | Path, session: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of one session, and its logged samples with a few polls before and after it.

    Raises
    ------
    LogError
        Where there is no such session, or its samples are no longer kept.
    """
    with _translate_errors(Path(path)), closing(connect(path)) as connection:
        rows = _sessions(connection, "WHERE id = ?", session)
        if not rows:
            raise LogError(f"{path}: there is no session {session}: list its sessions")
        row = rows[0]
        # The poll that ends a session may come long after its end; times alone repeat where a clock began again.
        # Earlier logs had no sample_id of a session cut short.
        ((last,),) = connection.execute("SELECT coalesce(?, max(id), 0) FROM samples", (row["sample_id"],))
        before = "SELECT max(id) FROM samples WHERE id <= ? AND t_s <= ?"
        ((start,),) = connection.execute(before, (last, row["start_s"]))
        first = min(last - row["polls"], start or last)
        between = "SELECT * FROM samples WHERE id BETWEEN ? AND ? ORDER BY id"
        samples = _rows(connection, between, first - AROUND_POLLS, last + AROUND_POLLS)
    if not samples:
        raise LogError(f"{path}: the samples of session {session} are no longer kept")
    return row, samples


def export_samples(path: str | Path, output: str | Path) -> int:
    """Write all kept samples to a Parquet file; return their number."""
    import pandas as pd

    with _translate_errors(Path(path)), closing(connect(path)) as connection:
        types = dict.fromkeys(SAMPLE_COLUMNS[:-1], float)  # a column without any reading too
        samples = pd.read_sql("SELECT * FROM samples ORDER BY id", connection, dtype=types)
    samples.to_parquet(output, index=False)
    return len(samples)
