"""The monitor's durable log: one SQLite file (WAL) with the tables ``sessions`` and ``samples``.

``pandas.read_sql("select * from sessions", sqlite3.connect(LOG))`` reads it, also while the monitor runs. A poll
and all that follows from it are one transaction: after a kill the log ends with a whole poll, and `resume`
returns what the monitor knew then. Sessions are kept for ever, samples as long as the monitor is told.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from estimator_utils.monitor.sessions import Session
from estimator_utils.telemetry import Sample

APPLICATION_ID = 0x464C4F50  # "FLOP": tells this log from other SQLite files
AROUND_POLLS = 20  # are shown before and after a session
PRUNE_POLLS = 1000  # old samples are deleted once in so many polls
SAMPLE_COLUMNS = tuple(f.name for f in fields(Sample))
SESSION_COLUMNS = (
    "kind", *(f.name for f in fields(Session)), "parts", "estimate_tflop", "equation", "note", "warning",
    "idle_check_w", "device", "rail", "power_mode", "precision", "data", "source",
    "calibration_sha256", "sample_id",
)  # fmt: skip
_SCHEMA = f"""
CREATE TABLE samples (id INTEGER PRIMARY KEY, {", ".join(SAMPLE_COLUMNS)});
CREATE TABLE sessions (id INTEGER PRIMARY KEY, {", ".join(SESSION_COLUMNS)});
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), content TEXT NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
"""


class LogError(RuntimeError):
    """The log cannot be read or written: says what was found and what to do; nothing in it is changed."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = " ".join(str(error).split())
        if "full" in text or "disk I/O" in text:
            advice = "make room on the disk: what is logged is intact, and the monitor goes on from there"
        elif "readonly" in text or "unable to open" in text or isinstance(error, OSError):
            advice = "let the monitor's user write the file and its folder, or give another --log"
        elif "locked" in text:
            advice = "end the program that holds a write lock on it"
        else:
            advice = (
                f"it was left as it is; move it aside and start again, or rescue it with: sqlite3 {path} .recover"
            )
        raise LogError(f"{path}: {text}; {advice}") from error


def connect(path: str | Path, timeout_s: float = 10.0) -> sqlite3.Connection:
    """Open a log for reading.

    Raises
    ------
    LogError
        Where it is missing, damaged, or another program's file.
    """
    path = Path(path)
    if path.is_dir():
        raise LogError(f"{path}: is a folder: give the log's file")
    if not path.is_file():
        raise LogError(f"{path}: there is no such log: the monitor writes one with --log {path}")
    with _explained(path):
        # A log whose making was interrupted is first rolled back, which is writing. One on a read-only disk
        # without a write-ahead log is whole, but SQLite has to be told so.
        mode = "rw" if Path(f"{path}-journal").exists() else "ro"
        still = not Path(f"{path}-wal").exists() and not os.access(path.parent, os.W_OK)
        uri = f"file:{quote(str(path))}?mode={mode}{'&immutable=1' if still else ''}"
        connection = sqlite3.connect(uri, timeout_s, uri=True)
        try:
            if (damage := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(damage)
            tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            if tables and connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise LogError(f"{path}: an SQLite file, but not a log of this monitor: give another --log")
        except BaseException:
            connection.close()
            raise
    return connection


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
        with _explained(self.path):
            if self.path.exists() and self.path.stat().st_size:
                connect(self.path).close()
            self._lock = open(f"{self.path}.lock", "w")  # noqa: SIM115 (held until close)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise LogError(
                    f"{self.path}: another monitor writes it: end that one, or give another --log"
                ) from None
            self._db = sqlite3.connect(self.path, timeout=10.0)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
                self._db.execute("BEGIN IMMEDIATE")  # a log that cannot be written is found out here
                self._db.rollback()
                self._file = self._found()
            except BaseException:
                self.close()
                raise

    def _found(self) -> tuple[int, int] | None:
        """Return what file lies under the log's name now."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def reopen(self) -> None:
        """Open or make the log again where its file was moved or deleted; the moved one is left whole."""
        if self._file is not None and self._found() == self._file:
            return
        with suppress(sqlite3.Error):  # it was closed before, or its disk is gone
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close()
        self._open()

    def resume(self) -> dict[str, Any] | None:
        """Return the state of the last logged poll, or None in a new log."""
        with _explained(self.path):
            row = self._db.execute("SELECT content FROM state").fetchone()
        return json.loads(row[0]) if row else None

    def commit(
        self, sample: Sample | None, state: dict[str, Any], sessions: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Log one poll, the state after it and the sessions that it ended: all of it, or nothing.

        Raises
        ------
        LogError
            Where it cannot be written; the log is then as it was before.
        """
        with _explained(self.path):
            if self._file is None or self._found() != self._file:  # SQLite would write on into a file without name
                raise LogError(
                    f"{self.path}: was moved or deleted under the monitor, which makes it anew as it goes on"
                )
            if sessions:  # a finished session survives a power cut too, not only a kill
                self._db.execute("PRAGMA synchronous = FULL")
            try:
                with self._db:
                    if sample is not None:
                        last = self._insert("samples", vars(sample))
                    else:
                        (last,) = self._db.execute("SELECT max(id) FROM samples").fetchone()
                    for session in sessions:
                        row = {**session, "marks": "; ".join(session["marks"]), "sample_id": last}
                        self._insert("sessions", {name: row[name] for name in SESSION_COLUMNS})
                    self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (json.dumps(state),))
                    self._polls += 1
                    if last is not None and self._polls % PRUNE_POLLS == 0:
                        self._db.execute("DELETE FROM samples WHERE id <= ?", (last - self._keep,))
            finally:
                self._db.execute("PRAGMA synchronous = NORMAL")

    def _insert(self, table: str, row: Mapping[str, Any]) -> int | None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        return self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values())).lastrowid

    def close(self) -> None:
        """Close the log; twice does no harm."""
        self._db.close()
        self._lock.close()


def with_unit(value: float | None, unit: str) -> str:
    """Return a reading as text; a missing one is said to be unknown."""
    return f"{unit} unknown" if value is None else f"{value:.4g} {unit}"


def session_line(row: dict[str, Any]) -> str:
    """Return one line about a session, from its row of the log."""
    estimate = with_unit(row["estimate_tflop"], "TFLOP") + (f" (Eq. {row['equation']})" if row["equation"] else "")
    marks = row["marks"] if isinstance(row["marks"], str) else "; ".join(row["marks"])
    remarks = [
        "simulated" if row["data"] == "simulated" else "",
        f"{row['gaps']} gaps of {row['gap_s']:.0f} s in all" if row["gaps"] else "",
        marks,
        row["note"],
        row["warning"],
    ]
    began = row["start_wall_s"] and f" began {datetime.fromtimestamp(row['start_wall_s']):%Y-%m-%d %H:%M:%S},"
    return (
        f"{row['kind']}{began or ''} {row['start_s']:.1f} to {row['end_s']:.1f} s: {row['duration_s']:.1f} s,"
        f" {with_unit(row['energy_net_j'], 'J')}, {with_unit(row['dram_tb'], 'TB')}, {estimate}"
        + "".join(f"; {remark}" for remark in remarks if remark)
    )


def _query(path: str | Path, text: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    with _explained(Path(path)), closing(connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(text, parameters)]


def read_sessions(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of the table ``sessions``, oldest first."""
    return _query(path, "SELECT * FROM sessions ORDER BY id")


def read_session(path: str | Path, session: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of one session, and its logged samples with a few polls before and after it.

    Raises
    ------
    LogError
        Where there is no such session, or its samples are no longer kept.
    """
    rows = _query(path, "SELECT * FROM sessions WHERE id = ?", (session,))
    if not rows:
        raise LogError(f"{path}: there is no session {session}: list them with: sessions {path}")
    # The poll that ends a session may come long after its end; times alone repeat where a clock began again.
    last_id = "SELECT coalesce(?, max(id), 0) AS id FROM samples"  # earlier logs had none of a session cut short
    last, start_s = _query(path, last_id, (rows[0]["sample_id"],))[0]["id"], rows[0]["start_s"]
    text = "SELECT max(id) AS id FROM samples WHERE id <= ? AND t_s <= ?"
    first = min(last - rows[0]["polls"], _query(path, text, (last, start_s))[0]["id"] or last)
    between = (first - AROUND_POLLS, last + AROUND_POLLS)
    samples = _query(path, "SELECT * FROM samples WHERE id BETWEEN ? AND ? ORDER BY id", between)
    if not samples:
        raise LogError(f"{path}: the samples of session {session} are no longer kept (--keep-days)")
    return rows[0], samples


def export_samples(path: str | Path, output: str | Path) -> int:
    """Write all kept samples to a Parquet file; return their number."""
    import pandas as pd

    with _explained(Path(path)), closing(connect(path)) as connection:
        types = dict.fromkeys(SAMPLE_COLUMNS[:-1], float)  # a column without any reading too
        samples = pd.read_sql("SELECT * FROM samples ORDER BY id", connection, dtype=types)
    samples.to_parquet(output, index=False)
    return len(samples)
