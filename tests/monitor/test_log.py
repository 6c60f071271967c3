from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from dataclasses import asdict

import pandas as pd
import pytest

from estimator_utils.datasets.dataset import Trace
from estimator_utils.monitor import log as log_module
from estimator_utils.monitor.log import LogError, SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.pace import run
from estimator_utils.monitor.sessions import Rule
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.tegrastats import TegrastatsLog
from tests.support import jtop_harness
from tests.support.kill9 import SETTINGS, three_sessions
from tests.support.monitored import EQ2, a_replay, live_rows, rows_of, set_to

pytestmark = pytest.mark.slow  # starts processes, or dispatches whole training steps

WHY_NO_NAMESPACES = jtop_harness.why_not()


def test_the_log_is_read_by_pandas_in_one_line(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows = rows_of(a_replay(), SETTINGS, log)
    sessions = pd.read_sql("select * from sessions", sqlite3.connect(tmp_path / "log.sqlite"))  # while it is open
    samples = pd.read_sql("select * from samples", sqlite3.connect(tmp_path / "log.sqlite"))
    log.close()
    assert sessions.estimate_tflop.tolist() == [row["estimate_tflop"] for row in rows]
    assert samples.t_s.tolist() == [1.5 * k for k in range(400)]
    assert samples.gpu_clock_hz.isna().all()
    assert json.loads(json.dumps(rows))[0]["energy_net_j"] == sessions.energy_net_j[0]


def test_a_replay_that_is_logged_already_is_not_logged_again(tmp_path):
    for _ in range(2):
        log = SessionLog(tmp_path / "log.sqlite")
        rows = rows_of(a_replay(), SETTINGS, log)
        log.close()
    assert rows == []
    assert len(read_sessions(tmp_path / "log.sqlite")) == 5


def test_200_kills_lose_at_most_one_poll_and_no_session(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kill9", tmp_path, "200", "0"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == 200
    assert found["most_polls_lost"] <= 1
    assert found["inside"] > 50


@pytest.mark.namespace
@pytest.mark.skipif(WHY_NO_NAMESPACES is not None, reason=str(WHY_NO_NAMESPACES))
def test_a_full_or_read_only_disk_is_told_and_destroys_nothing(tmp_path):
    done = subprocess.run(
        ["unshare", "-Urm", "--propagation", "private", sys.executable, "-m", "tests.support.bad_disk", tmp_path],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "disk is full; make room on the disk: what is logged is intact" in found["full"]
    assert found["intact"]
    assert 0 < found["polls"] < 400
    assert found["goes on"]
    assert "Read-only file system" in found["read-only"]
    assert found["unchanged"]
    # With a live board the monitor goes on: the session that ended meanwhile is logged later, and marked.
    assert found["live sessions"]
    assert found["live anomalies"] == ["poll not logged x20", "poll not logged x61", "", ""]
    assert found["live polls lost"] == 100
    assert done.stderr.count("disk is full") == 1
    assert "can be written again" in done.stderr


def damaged_logs(path):
    log = SessionLog(path)
    rows_of(a_replay(), SETTINGS, log)
    log.close()
    whole = path.read_bytes()
    middle = len(whole) // 2
    yield "garbage", b"not a database" * 1000
    yield "cut", whole[:middle]
    yield "overwritten", whole[:8192] + b"\xa5" * middle + whole[8192 + middle :]
    database = sqlite3.connect(path.with_name("other.sqlite"))
    database.execute("CREATE TABLE sessions (a)")
    database.commit()
    database.close()
    yield "another program's", path.with_name("other.sqlite").read_bytes()


def test_a_damaged_log_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "log.sqlite"
    for kind, content in damaged_logs(path):
        path.write_bytes(content)
        for use in (SessionLog, read_sessions):
            with pytest.raises(LogError, match=r"log\.sqlite.*(move it aside|another `log`)"):
                use(path)
            assert path.read_bytes() == content, kind


def test_two_monitors_cannot_write_one_log(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    with pytest.raises(LogError, match="another monitor"):
        SessionLog(tmp_path / "log.sqlite")
    log.close()
    SessionLog(tmp_path / "log.sqlite").close()


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced", "folder moved"])
def test_a_log_that_is_lost_under_a_live_monitor_is_made_anew(tmp_path, fate, caplog):
    path, away = tmp_path / "logs" / "log.sqlite", tmp_path / "logs" / "away.sqlite"
    path.parent.mkdir()
    log = SessionLog(path)

    def happen(k, board, watcher):
        if k == 40:
            if fate == "deleted":
                path.unlink()
            elif fate == "folder moved":
                path.parent.rename(tmp_path / "elsewhere")
            else:
                path.rename(away)
            if fate == "replaced":
                path.touch()
        if k == 58 and fate == "folder moved":  # the session has ended meanwhile
            path.parent.mkdir()

    (row,) = live_rows(tmp_path, happen, log)
    log.close()
    assert [logged["energy_net_j"] for logged in read_sessions(path)] == [row["energy_net_j"]]
    assert "poll not logged" in read_sessions(path)[0]["anomalies"]
    assert any("was moved or deleted" in message for message in caplog.messages)
    assert any("can be written again" in message for message in caplog.messages)
    if fate == "moved":
        connection = sqlite3.connect(away)
        assert connection.execute("SELECT count(*) FROM samples").fetchone() == (40,)
        connection.close()


def test_a_log_that_is_lost_under_a_replay_ends_it(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    (tmp_path / "log.sqlite").unlink()
    with pytest.raises(LogError, match="was moved or deleted"):
        rows_of(a_replay(), SETTINGS, log)
    log.close()


def test_a_log_belongs_to_one_source(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(), SETTINGS, log)
    with pytest.raises(LogError, match="give another `log`"):
        Monitor(Replay("replay:other", three_sessions()), SETTINGS, log)
    log.close()


def test_another_trace_of_the_same_name_is_refused(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(), SETTINGS, log)
    with pytest.raises(LogError, match=r"replaced or rotated.*give another `log`"):
        Monitor(a_replay(three_sessions(seed=1)), SETTINGS, log)
    log.close()


def test_a_log_that_grows_goes_on_and_a_rotated_one_is_refused(tmp_path):
    line = "{} RAM 2147/7620MB (lfb 4x4MB) CPU [1%@729] GR3D_FREQ {}% VDD_CPU_GPU_CV {}mW/600mW\n"
    lines = [
        line.format(f"01-02-2026 03:{k // 60:02}:{k % 60:02}", 99 * busy, 8000 if busy else 640)
        for k, busy in enumerate(30 <= k < 90 for k in range(150))
    ]
    path, found = tmp_path / "tegrastats.log", []

    def watch():
        log = SessionLog(tmp_path / "log.sqlite")
        try:
            settings = set_to(EQ2, rule=Rule(period_s=1.0))
            monitor = Monitor(TegrastatsLog(path), settings, log)
            stop = threading.Event()
            at_end = len(path.read_text().splitlines()) - 1
            run(
                monitor,
                lambda sample, rows: (found.extend(map(asdict, rows)), sample and sample.t_s >= at_end and stop.set()),
                0,
                stop,
            )
        finally:
            log.close()

    for n in (1, 60, 150):  # as far as it had been written when it was looked at
        path.write_text("".join(lines[:n]))
        watch()
    (row,) = found
    assert (row["start_s"], row["end_s"]) == (30, 90)
    path.write_text("".join(lines[20:]))
    with pytest.raises(LogError, match="replaced or rotated"):
        watch()


def test_a_folder_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(LogError, match="give another `log`"):
        SessionLog(tmp_path / "nowhere" / "log.sqlite")
    with pytest.raises(LogError, match="no such log"):
        read_sessions(tmp_path / "log.sqlite")


def test_old_samples_are_pruned_and_sessions_stay(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite", keep_samples=300)
    busy = [200 <= k < 400 for k in range(2500)]
    trace = Trace(
        tuple(1.5 * k for k in range(2500)),
        tuple(8.0 if b else 0.6 for b in busy),
        tuple(map(float, busy)),
        (3e10,) * 2500,
    )
    rows_of(a_replay(trace), SETTINGS, log)
    log.close()
    samples = pd.read_sql("select * from samples", sqlite3.connect(tmp_path / "log.sqlite"))
    assert 300 <= len(samples) < 300 + log_module.PRUNE_POLLS
    assert samples.t_s.iloc[-1] == 1.5 * 2499
    assert len(read_sessions(tmp_path / "log.sqlite")) == 1
    with pytest.raises(LogError, match="no longer kept"):
        log_module.read_session(tmp_path / "log.sqlite", 1)
