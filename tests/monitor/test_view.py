from __future__ import annotations

import sqlite3
from dataclasses import replace

import pandas as pd
import pytest

from estimator_utils.monitor import log as log_module
from estimator_utils.monitor.log import LogError, SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.pace import run
from estimator_utils.monitor.view import plot_session, session_line, view_line
from estimator_utils.telemetry.source import Sample
from tests.support.kill9 import SETTINGS, three_sessions
from tests.support.monitored import EQ1, a_replay, cut, rows_of, set_to

pytestmark = pytest.mark.slow  # starts processes, or dispatches whole training steps


def test_sessions_are_plotted_and_samples_exported(tmp_path):
    path = tmp_path / "log.sqlite"
    log = SessionLog(path)
    rows = rows_of(a_replay(kind="simulated"), SETTINGS, log)
    log.close()
    row, samples = log_module.read_session(path, 2)
    assert row["energy_net_j"] == rows[1]["energy_net_j"]
    assert samples[0]["t_s"] < rows[1]["start_s"] < rows[1]["end_s"] < samples[-1]["t_s"]
    plot_session(path, 2, tmp_path / "session.png")
    assert (tmp_path / "session.png").read_bytes().startswith(b"\x89PNG")
    assert log_module.export_samples(path, tmp_path / "samples.parquet") == 400
    exported = pd.read_parquet(tmp_path / "samples.parquet")
    pd.testing.assert_frame_equal(
        exported[["t_s", "power_w", "gpu_util"]],
        pd.read_sql("select t_s, power_w, gpu_util from samples", sqlite3.connect(path)),
    )
    assert exported.gpu_clock_hz.isna().all()
    with pytest.raises(LogError, match="no session 9"):
        plot_session(path, 9, tmp_path / "none.png")
    assert all("simulated" in session_line(row) for row in rows)


def test_a_merged_session_is_plotted_from_its_start(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(three_sessions(polls=500)), replace(SETTINGS, merge_gap_s=65.0), log)
    log.close()
    (merged,) = [row for row in read_sessions(tmp_path / "log.sqlite") if row["record_type"] == "merged"]
    row, samples = log_module.read_session(tmp_path / "log.sqlite", merged["id"])
    assert samples[0]["t_s"] < row["start_s"] < row["end_s"] < samples[-1]["t_s"]


def test_a_session_that_was_open_at_the_end_of_the_readings_is_plotted(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(cut(three_sessions(), 0, 150)), SETTINGS, log)
    log.close()
    plot_session(tmp_path / "log.sqlite", 1, tmp_path / "session.png")
    row, samples = log_module.read_session(tmp_path / "log.sqlite", 1)
    assert "readings ended first" in row["anomalies"]
    database = sqlite3.connect(tmp_path / "log.sqlite")
    with database:
        database.execute("UPDATE sessions SET sample_id = NULL")  # as it was written at first
    database.close()
    assert log_module.read_session(tmp_path / "log.sqlite", 1)[1] == samples
    assert samples[0]["t_s"] < row["start_s"] < row["end_s"] == samples[-1]["t_s"]


def test_the_live_view_shows_readings_and_the_session_so_far():
    watcher = Monitor(a_replay(), set_to(EQ1))
    lines = []
    run(watcher, lambda sample, rows: sample and lines.append(view_line(watcher, sample)), 0)
    assert lines[0].endswith("waiting for a workload")
    assert "GPU 9" in lines[50]
    assert lines[50].endswith("TFLOP so far (Eq. 1)")
    assert view_line(watcher, Sample(0.0)).startswith("W unknown  GPU % unknown")
