import importlib.util
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from estimator_utils.cli.main import main
from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Metadata, Trace, write_dataset
from estimator_utils.estimation.calibration import Calibration, CalibrationMismatchError
from estimator_utils.monitor import log as session_log
from estimator_utils.monitor import monitor
from estimator_utils.monitor import pace as daemon
from estimator_utils.monitor.integrate import traffic_tb
from estimator_utils.monitor.log import LogError, SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.sessions import Rule, find_sessions
from estimator_utils.monitor.view import plot_session, session_line, view_line
from estimator_utils.telemetry.jtop import Jtop
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.source import Sample
from estimator_utils.telemetry.sysfs import Sysfs
from estimator_utils.telemetry.tegrastats import TegrastatsLog
from tests.support import jtop_harness
from tests.support.kill9 import BELONGS, SETTINGS, three_sessions
from tests.support.player import MODEL, Board, play

IDLE_W = 0.642048  # trial 1 of the study, as are the constants
EQ1 = Calibration(1, 5.6113, 1.4625, 61.468, idle_power_w=IDLE_W, **BELONGS)
EQ2 = Calibration(2, 5.7230, 3.750, idle_power_w=IDLE_W, **BELONGS)
Settings = partial(monitor.Settings, declared=BELONGS)
TRUTH_TFLOP, ENERGY_J = 364.20, 4117.0
WHY_NO_NAMESPACES = jtop_harness.why_not()
WHY_NO_JTOP = WHY_NO_NAMESPACES
if importlib.util.find_spec("jtop") is None:
    WHY_NO_JTOP = "jetson-stats is not installed: pip install 'estimator-utils[jetson]'"


def rows_of(source, settings, log=None, speed=0.0):
    found = []
    daemon.run(Monitor(source, settings, log), lambda sample, rows: found.extend(rows), speed)
    return found


def error_percent(row):
    return 100 * (row["estimate_tflop"] / TRUTH_TFLOP - 1)


def a_replay(trace=None, **metadata):
    about = Metadata(name="made up", **metadata) if metadata else None
    return Replay("replay:made up", trace or three_sessions(), about)


# the study's ten minutes ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def recorded():
    return registry.trace("orin-nano-25w")


@pytest.mark.recorded
@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.6, 0.9, 1.2])
def test_the_recorded_run_replayed(recorded, phase_s):
    source = Replay("recorded", recorded, phase_s=phase_s)
    for settings, percent in ((Settings(EQ1), 1.5), (Settings(EQ2), 3.1)):
        (row,) = rows_of(source, settings)
        assert error_percent(row) == pytest.approx(percent, abs=0.6)
        assert (row["gaps"], row["marks"]) == (0, ())


@pytest.mark.recorded
def test_the_recorded_run_at_each_phase_of_the_poll(recorded):
    """Eq. 1 misses the 0.6 points at a few phases of a thousand, by less than 0.05: noise of the DRAM counter.

    Polls that are 1.5 s apart see one in six readings of the counter, and their integral is a sample of the run's
    traffic: at phases of 1.303 to 1.306 s it is 0.7 % below that of all readings. With the traffic of all readings
    Eq. 1 is within 0.6 points at every phase, as Eq. 2 is, which uses none.
    """
    phases_s = [*np.arange(375) * 0.004, 1.303, 1.304, 1.305, 1.306]
    inside = [row for row in zip(recorded.t_s, recorded.dram_bytes_per_s, strict=True) if 65.5 <= row[0] <= 590.4]
    all_tb = traffic_tb(*zip(*inside, strict=True))
    errors = []
    for phase_s in phases_s:
        (run,) = find_sessions(Replay("recorded", recorded, phase_s=phase_s), IDLE_W)
        assert abs(run.start_s - 65.5) <= 1.5
        assert abs(run.end_s - 590.4) <= 1.5
        assert run.energy_net_j == pytest.approx(ENERGY_J, rel=0.005)
        tflop = [
            EQ1.estimate_tflop(run.energy_net_j, run.duration_s, run.dram_tb),
            EQ1.estimate_tflop(run.energy_net_j, run.duration_s, all_tb),
            EQ2.estimate_tflop(run.energy_net_j, run.duration_s),
        ]
        errors.append([error_percent({"estimate_tflop": value}) for value in tflop])
    off = np.abs(np.array(errors) - (1.5, 1.5, 3.1))
    assert np.mean(off[:375, 0] <= 0.6) >= 0.99
    assert off[:, 0].max() < 0.65
    assert off[:, 1:].max() <= 0.6


def cut(trace, from_s, to_s):
    """The part of a trace that holds its run; the idle minute before it only takes time to play."""
    columns = (trace.t_s, trace.power_w, trace.gpu_util, trace.dram_bytes_per_s)
    rows = [row for row in zip(*columns, strict=True) if from_s <= row[0] <= to_s]
    return Trace(*map(tuple, zip(*rows, strict=True)))


def play_to(trace, root, speed, watched):
    """Play a trace once, a monitor on each source in a thread of its own; times come back in the trace's clock."""
    stop, began, found = threading.Event(), [], {name: [] for name in watched}

    def player():
        began.append(play(trace, root, speed))
        time.sleep(6 * 1.5 / speed)  # three idle polls to end on, and slack
        stop.set()

    def watch(name):
        source, settings = watched[name]
        daemon.run(Monitor(source, settings), lambda sample, rows: found[name].extend(rows), speed, stop)

    threads = [threading.Thread(target=player), *(threading.Thread(target=watch, args=(name,)) for name in watched)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shift_s = began[0] * speed
    return {
        name: [{**row, "start_s": row["start_s"] - shift_s, "end_s": row["end_s"] - shift_s} for row in rows]
        for name, rows in found.items()
    }


@pytest.fixture(scope="module")
def played(recorded, tmp_path_factory):
    """The recorded run played once, watched through sysfs and, where it can be run, through the real jtop."""
    folder = tmp_path_factory.mktemp("played")
    root = Board(folder / "sys").root
    trace = cut(recorded, 55, 596)
    by_sysfs = Sysfs(root), Settings(EQ1, declared={"precision": "fp32"})
    if WHY_NO_JTOP:
        return play_to(trace, root, 60.0, {"sysfs": by_sysfs})
    speed = 25.0
    with jtop_harness.Jtop(root, folder) as harness:
        harness.start()
        with Jtop(interval_s=1.5 / speed, launch=harness.inside) as by_jtop:
            settings = Settings(EQ1, EQ2)
            return play_to(trace, root, speed, {"sysfs": by_sysfs, "jtop": (by_jtop, settings)})


@pytest.mark.recorded
def test_the_recorded_run_played_through_the_sysfs_tree(played):
    (row,) = played["sysfs"]
    assert abs(row["start_s"] - 65.5) <= 1.5
    assert abs(row["end_s"] - 590.4) <= 1.5
    assert row["energy_net_j"] == pytest.approx(ENERGY_J, rel=0.005)
    assert error_percent(row) == pytest.approx(1.5, abs=0.6)
    assert (row["equation"], row["warning"], row["data"]) == (1, "", None)  # a played tree is no board


@pytest.mark.recorded
@pytest.mark.namespace
@pytest.mark.skipif(WHY_NO_JTOP is not None, reason=str(WHY_NO_JTOP))
def test_the_recorded_run_played_through_the_real_jtop(played):
    (row,) = played["jtop"]
    # One poll, and one interval of jtop's own, which polls the tree itself.
    assert abs(row["start_s"] - 65.5) <= 3.0
    assert abs(row["end_s"] - 590.4) <= 3.0
    assert row["energy_net_j"] == pytest.approx(ENERGY_J, rel=0.005)
    assert (row["equation"], row["note"]) == (2, "DRAM traffic was missing: Eq. 2 in place of Eq. 1")
    assert error_percent(row) == pytest.approx(3.1, abs=0.6)


# estimates ------------------------------------------------------------------------------------------


def test_an_estimate_is_the_calibrations_own():
    (first, *_) = rows_of(a_replay(), Settings(EQ1))
    expected = EQ1.estimate_tflop(first["energy_net_j"], first["duration_s"], first["dram_tb"])
    assert (first["estimate_tflop"], first["equation"], first["note"]) == (expected, 1, "")


def test_eq_2_steps_in_where_dram_is_missing_and_says_so():
    blind = replace(three_sessions(), dram_bytes_per_s=(None,) * 400)
    with_fallback, without = (rows_of(a_replay(blind), s) for s in (Settings(EQ1, EQ2), Settings(EQ1)))
    assert {row["equation"] for row in with_fallback} == {2}
    assert {row["note"] for row in with_fallback} == {"DRAM traffic was missing: Eq. 2 in place of Eq. 1"}
    assert {row["estimate_tflop"] for row in without} == {None}
    assert {row["note"] for row in without} == {
        "no estimate: DRAM traffic was missing, and no Eq. 2 calibration was given"
    }


def test_the_baseline_is_the_calibrations_unless_told_otherwise():
    (row, *_) = rows_of(a_replay(), Settings(EQ1))
    assert row["idle_power_w"] == IDLE_W
    (row, *_) = rows_of(a_replay(), Settings(EQ1, idle_power_w=2.0))
    assert row["idle_power_w"] == 2.0
    assert row["note"].startswith("live idle is 0.6")
    for settings in (Settings(replace(EQ1, idle_power_w=None)), Settings(EQ1, replace(EQ2, idle_power_w=0.7))):
        with pytest.raises(CalibrationMismatchError, match="--idle-w"):
            Monitor(a_replay(), settings)


@pytest.mark.parametrize(("name", "other"), [(name, f"another {name}") for name in BELONGS])
def test_a_calibration_from_elsewhere_is_refused_or_forced_and_marked(name, other):
    calibration = replace(EQ1, **{**BELONGS, name: other})
    said = {key: value for key, value in BELONGS.items() if key != "precision"}
    settings = Settings(calibration, declared={"precision": "fp32"})
    with pytest.raises(CalibrationMismatchError, match=f"{name} is .* belongs to 'another {name}'.*--force"):
        Monitor(a_replay(**said), settings)
    rows = rows_of(a_replay(**said), replace(settings, force=True))
    assert rows
    assert all(f"another {name}" in row["warning"] for row in rows)
    assert rows_of(a_replay(**said), Settings(EQ1, declared={"precision": "fp32"}))[0]["warning"] == ""


def test_what_is_not_said_must_be_declared_and_what_is_said_cannot_be_declared_away():
    with pytest.raises(CalibrationMismatchError, match="declare it with --device"):
        Monitor(a_replay(), Settings(EQ1, declared={**BELONGS, "device": None}))
    Monitor(a_replay(), Settings(EQ1))
    with pytest.raises(CalibrationMismatchError, match=f"declared '{MODEL}' but the source says 'Thor'"):
        Monitor(a_replay(device="Thor"), Settings(EQ1))


def test_a_power_mode_that_changes_under_the_monitor_is_marked(tmp_path):
    board = Board(tmp_path / "sys")
    watcher = Monitor(Sysfs(board.root), Settings(EQ1, declared={"precision": "fp32"}))
    found = []
    for k in range(30):
        if k == 5:
            board.put("../var/lib/nvpmodel/status", "pmode:0000")
        board.set(power_w=8.0 if 10 <= k < 20 else 0.64, gpu_util=float(10 <= k < 20), dram_bytes_per_s=3e10)
        found += watcher.poll(replace(watcher.source.read(), t_s=1.5 * k, wall_s=None))
    (row,) = found
    assert "power_mode is '15W' but the calibration belongs to '25W'" in row["warning"]
    assert "identity changed x1" in row["marks"]


def test_fragments_and_the_run_they_are_parts_of_are_both_listed():
    rows = rows_of(a_replay(), SETTINGS)
    assert [(row["kind"], row["parts"]) for row in rows] == [
        ("session", 1), ("session", 1), ("session", 1), ("merged", 2), ("session", 1),
    ]  # fmt: skip
    first, second, whole = rows[1:4]
    assert (whole["start_s"], whole["end_s"]) == (first["start_s"], second["end_s"])
    for name in ("estimate_tflop", "duration_s", "energy_net_j", "dram_tb"):
        assert whole[name] == first[name] + second[name]
    assert whole["duration_s"] < second["end_s"] - first["start_s"]  # without the idle dip
    assert (whole["equation"], whole["note"]) == (1, "merged of 2 fragments, which are listed too")


def test_a_merged_run_has_no_estimate_where_a_fragment_has_none():
    trace = three_sessions()
    power_w = tuple(None if 140 <= k < 229 else w for k, w in enumerate(trace.power_w))
    rows = rows_of(a_replay(replace(trace, power_w=power_w)), SETTINGS)
    first, whole = rows[1], rows[3]
    assert first["estimate_tflop"] is whole["estimate_tflop"] is whole["energy_net_j"] is None
    assert first["note"] == "no estimate: power was missing for most of the time"
    assert whole["note"].endswith("no estimate: a fragment has none")


def test_a_merged_run_of_two_equations_names_none():
    trace = three_sessions()
    traffic = tuple(None if 140 <= k < 230 else b for k, b in enumerate(trace.dram_bytes_per_s))
    settings = replace(SETTINGS, fallback=replace(EQ2, idle_power_w=0.642))
    _, first, second, whole, _ = rows_of(a_replay(replace(trace, dram_bytes_per_s=traffic)), settings)
    assert (first["equation"], second["equation"], whole["equation"]) == (2, 1, None)
    assert whole["estimate_tflop"] == first["estimate_tflop"] + second["estimate_tflop"]


def test_the_dram_counter_is_scaled_to_true_bytes():
    (true, *_), (counted, *_) = (rows_of(a_replay(), Settings(EQ1, dram_counter_factor=f)) for f in (1.0, 2.0))
    assert counted["dram_tb"] == pytest.approx(true["dram_tb"] / 2)
    assert counted["estimate_tflop"] > true["estimate_tflop"]


def test_the_studys_edges_are_there_on_request():
    row, study = (rows_of(a_replay(), Settings(EQ1, rule=Rule(edges=e)))[0] for e in ("unbiased", "study"))
    assert (study["start_s"], study["end_s"], study["edges"]) == (row["start_s"], row["end_s"], "study")
    assert study["duration_s"] == row["duration_s"] + 1.5
    assert study["energy_net_j"] < row["energy_net_j"]


# the pace -------------------------------------------------------------------------------------------


def test_speed_is_the_pace_of_the_monitors_clock():
    trace = three_sessions(polls=200)
    began_s = time.monotonic()
    fast = rows_of(a_replay(trace), Settings(EQ1), speed=300.0)
    assert time.monotonic() - began_s == pytest.approx(300 / 300.0, abs=0.5)
    assert fast == rows_of(a_replay(trace), Settings(EQ1))


def test_a_log_that_is_denser_than_the_polls_is_thinned_to_them():
    dense = Replay("dense", three_sessions(), period_s=0.1)
    polled = []
    daemon.run(Monitor(dense, Settings(EQ1)), lambda sample, rows: polled.append(sample), 0)
    steps = [b.t_s - a.t_s for a, b in pairwise(polled[1:-1])]
    assert steps == pytest.approx([1.5] * len(steps))


def test_a_live_board_cannot_be_read_faster_than_time_passes(tmp_path):
    board = Board(tmp_path / "sys")
    with pytest.raises(ValueError, match="speed"):
        daemon.run(Monitor(Sysfs(board.root), Settings(EQ1)), lambda sample, rows: None, 0)


# what a live monitor goes through -------------------------------------------------------------------


def live_rows(tmp_path, happen, log=None, polls=range(60)):
    """Poll a played board; a run goes from poll 30 to 50. ``happen(k, board, watcher)`` comes before poll k."""
    board = Board(tmp_path / "sys")
    watcher = Monitor(Sysfs(board.root), Settings(EQ1), log)
    found = list(watcher.carried)
    for k in polls:
        board.set(power_w=8.0 if 30 <= k < 50 else 0.64, gpu_util=float(30 <= k < 50), dram_bytes_per_s=3e10)
        happen(k, board, watcher)
        found += watcher.poll(replace(watcher.source.read(), t_s=1.5 * k, wall_s=1e9 + 1.5 * k))
    return found


def test_a_lost_sensor_is_recorded_and_is_not_the_end(tmp_path):
    def happen(k, board, watcher):
        if 35 <= k < 40:
            board.remove(board.load)

    (row,) = live_rows(tmp_path, happen)
    (undisturbed,) = live_rows(tmp_path / "again", lambda *_: None)
    assert (row["gaps"], row["gap_s"]) == (1, 9.0)
    assert "gpu_util lost x1" in row["marks"]
    assert {**row, **dict.fromkeys(("gaps", "gap_s", "marks", "source"))} == {
        **undisturbed, **dict.fromkeys(("gaps", "gap_s", "marks", "source")), "gpu_util": row["gpu_util"]
    }  # fmt: skip


def test_sleep_of_the_machine_is_recorded(tmp_path, monkeypatch):
    real = time.clock_gettime

    def happen(k, board, watcher):
        if k == 40:
            monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 600)

    (row,) = live_rows(tmp_path, happen)
    assert [mark for mark in row["marks"] if "slept" in mark] == ["machine slept x1 (+600.0 s)"]
    assert row["duration_s"] == pytest.approx(30)
    assert session_line(row).startswith("session began 2001-09-0")  # 1e9 s


def test_a_monitor_that_was_away_goes_on_with_the_open_session(tmp_path):
    def happen(k, board, watcher):
        if k == 40:
            raise InterruptedError

    log = SessionLog(tmp_path / "log.sqlite")
    with pytest.raises(InterruptedError):
        live_rows(tmp_path, happen, log)
    log.close()
    log = SessionLog(tmp_path / "log.sqlite")
    (row,) = live_rows(tmp_path, lambda *_: None, log, polls=range(44, 60))
    log.close()
    (undisturbed,) = live_rows(tmp_path / "again", lambda *_: None)
    assert row["marks"] == ("monitor restarted x1", "power not seen for 24% of the time")
    assert (row["gaps"], row["gap_s"]) == (1, 7.5)  # from poll 39 to poll 44
    assert row["energy_net_j"] == pytest.approx(undisturbed["energy_net_j"])
    assert row["duration_s"] == undisturbed["duration_s"]
    assert len(read_sessions(tmp_path / "log.sqlite")) == 1


def test_a_restart_of_the_machine_ends_the_open_session(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    assert live_rows(tmp_path, lambda *_: None, log, polls=range(40)) == []
    log.close()
    database = sqlite3.connect(tmp_path / "log.sqlite")
    with database:
        (state,) = database.execute("SELECT content FROM state").fetchone()
        database.execute("UPDATE state SET content = ?", (json.dumps({**json.loads(state), "boot": "another"}),))
    database.close()
    log = SessionLog(tmp_path / "log.sqlite")
    ended, again = live_rows(tmp_path, lambda *_: None, log)
    log.close()
    assert ended["marks"] == ("machine restarted x1",)
    assert ended["duration_s"] == pytest.approx(9.5 * 1.5)
    assert again["marks"] == ()
    assert [row["marks"] for row in read_sessions(tmp_path / "log.sqlite")] == ["machine restarted x1", ""]


def test_idle_readings_far_from_the_baseline_are_told(tmp_path):
    (near,) = live_rows(tmp_path, lambda *_: None)
    assert near["idle_check_w"] == pytest.approx(0.64, abs=0.04)
    assert near["note"] == ""

    def happen(k, board, watcher):
        if k < 30:
            board.set(power_w=0.9)

    (far,) = live_rows(tmp_path / "far", happen)
    assert far["note"].startswith("live idle is 0.8")
    assert far["energy_net_j"] == pytest.approx(near["energy_net_j"], rel=0.01)  # told, and not taken


# the log --------------------------------------------------------------------------------------------


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
    assert found["live marks"] == ["poll not logged x20", "poll not logged x61", "", ""]
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
            with pytest.raises(LogError, match=r"log\.sqlite.*(move it aside|another --log)"):
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
    assert "poll not logged" in read_sessions(path)[0]["marks"]
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
    with pytest.raises(LogError, match="give another --log"):
        Monitor(Replay("replay:other", three_sessions()), SETTINGS, log)
    log.close()


def test_another_trace_of_the_same_name_is_refused(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(), SETTINGS, log)
    with pytest.raises(LogError, match=r"replaced or rotated.*give another --log"):
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
            settings = Settings(EQ2, rule=Rule(period_s=1.0))
            monitor = Monitor(TegrastatsLog(path), settings, log)
            stop = threading.Event()
            at_end = len(path.read_text().splitlines()) - 1
            daemon.run(
                monitor,
                lambda sample, rows: (found.extend(rows), sample and sample.t_s >= at_end and stop.set()),
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
    with pytest.raises(LogError, match="give another --log"):
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
    assert 300 <= len(samples) < 300 + session_log.PRUNE_POLLS
    assert samples.t_s.iloc[-1] == 1.5 * 2499
    assert len(read_sessions(tmp_path / "log.sqlite")) == 1
    with pytest.raises(LogError, match="no longer kept"):
        session_log.read_session(tmp_path / "log.sqlite", 1)


def test_sessions_are_plotted_and_samples_exported(tmp_path):
    path = tmp_path / "log.sqlite"
    log = SessionLog(path)
    rows = rows_of(a_replay(kind="simulated"), SETTINGS, log)
    log.close()
    row, samples = session_log.read_session(path, 2)
    assert row["energy_net_j"] == rows[1]["energy_net_j"]
    assert samples[0]["t_s"] < rows[1]["start_s"] < rows[1]["end_s"] < samples[-1]["t_s"]
    plot_session(path, 2, tmp_path / "session.png")
    assert (tmp_path / "session.png").read_bytes().startswith(b"\x89PNG")
    assert session_log.export_samples(path, tmp_path / "samples.parquet") == 400
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
    (merged,) = [row for row in read_sessions(tmp_path / "log.sqlite") if row["kind"] == "merged"]
    row, samples = session_log.read_session(tmp_path / "log.sqlite", merged["id"])
    assert samples[0]["t_s"] < row["start_s"] < row["end_s"] < samples[-1]["t_s"]


def test_a_session_that_was_open_at_the_end_of_the_readings_is_plotted(tmp_path):
    log = SessionLog(tmp_path / "log.sqlite")
    rows_of(a_replay(cut(three_sessions(), 0, 150)), SETTINGS, log)
    log.close()
    plot_session(tmp_path / "log.sqlite", 1, tmp_path / "session.png")
    row, samples = session_log.read_session(tmp_path / "log.sqlite", 1)
    assert "readings ended first" in row["marks"]
    database = sqlite3.connect(tmp_path / "log.sqlite")
    with database:
        database.execute("UPDATE sessions SET sample_id = NULL")  # as it was written at first
    database.close()
    assert session_log.read_session(tmp_path / "log.sqlite", 1)[1] == samples
    assert samples[0]["t_s"] < row["start_s"] < row["end_s"] == samples[-1]["t_s"]


# the command ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    metadata = Metadata("toy", kind="simulated", **{k: v for k, v in BELONGS.items() if k != "precision"})
    write_dataset(tmp_path / "toy", metadata, {}, {"trace": three_sessions()})
    EQ1.save(tmp_path / "eq1.json")
    return tmp_path


def command(folder, *more):
    trace = folder / "toy" / "traces" / "trace.csv"
    return [
        sys.executable, "-m", "estimator_utils", "monitor", "--source", f"replay:{trace}", "--precision", "fp32",
        "--log", folder / "log.sqlite", "--calibration", folder / "eq1.json", *more,
    ]  # fmt: skip


def test_the_command_prints_one_json_line_a_session(folder):
    done = subprocess.run(command(folder, "--json", "--speed", "0"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["start_s"] for row in rows] == [30, 210, 355.5, 450]
    needed = {"start_s", "end_s", "duration_s", "energy_net_j", "dram_tb", "estimate_tflop", "equation", "gaps"}
    assert all(needed <= row.keys() for row in rows)
    assert {row["data"] for row in rows} == {"simulated"}
    listed = subprocess.run(
        [sys.executable, "-m", "estimator_utils", "sessions", folder / "log.sqlite"], capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 4
    assert "TFLOP (Eq. 1)" in listed.stdout


def test_sigterm_ends_cleanly_and_keeps_the_open_session(folder):
    process = subprocess.Popen(
        command(folder, "--speed", "100"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = folder / "log.sqlite"
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:  # until the first run is under way
        time.sleep(0.05)
        if log.exists():
            try:
                (last_s,) = session_log.connect(log).execute("SELECT max(t_s) FROM samples").fetchone()
            except (LogError, sqlite3.Error):
                continue
            if last_s and last_s > 60:
                break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "", "")
    done = subprocess.run(command(folder, "--speed", "0", "--json"), capture_output=True, text=True)
    assert "goes on after" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["marks"] for row in rows] == [["monitor restarted x1"], [], [], []]
    reference = rows_of(a_replay(), Settings(EQ1))
    assert [row["energy_net_j"] for row in rows] == pytest.approx([row["energy_net_j"] for row in reference], rel=1e-12)


def test_what_is_refused_is_one_line_and_status_1(folder):
    replace(EQ1, **{**BELONGS, "power_mode": "15W"}).save(folder / "eq1.json")
    done = subprocess.run(command(folder, "--speed", "0"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: calibration refused: power_mode is '25W'")
    forced = subprocess.run(command(folder, "--speed", "0", "--force"), capture_output=True, text=True)
    assert forced.returncode == 0
    assert all("belongs to '15W'" in line for line in forced.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--dram-factor", "0"], "--dram-factor must be a positive number, found 0"),
        (["--dram-factor", "nan"], "--dram-factor"),
        (["--idle-w", "-3"], "--idle-w must be 0 or more, found -3"),
        (["--merge-gap", "-1"], "--merge-gap must be 0 or more, found -1"),
        (["--keep-days", "-1"], "--keep-days must be 0 or more, found -1"),
        (["--period", "0"], "the numbers of polls must be positive, found --period 0 s, 2 and 3 polls"),
        (["--speed", "nan"], "speed must be positive"),
        (["--fallback", "{folder}/eq1.json"], "--fallback must be a calibration of Eq. 2, found Eq. 1"),
        (["--calibration", "{folder}/none.json"], "none.json is not a calibration: "),
        (["--log", "{folder}"], "is a folder: give the log's file"),
    ],
)
def test_a_slip_on_the_command_line_is_one_line_and_status_1(folder, capsys, words, expected):
    words = [*command(folder)[3:], *(word.format(folder=folder) for word in words)]
    assert main([str(word) for word in words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err


def test_the_live_view_is_drawn_in_a_terminal_only(folder):
    master, slave = pty.openpty()
    process = subprocess.Popen(command(folder, "--speed", "0"), stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    while chunk := read_terminal(master):
        shown += chunk
    os.close(master)
    assert process.wait() == 0
    assert shown.count(b"\r\x1b[K") > 400
    assert b"TFLOP so far (Eq. 1)" in shown
    piped = subprocess.run(command(folder, "--speed", "0"), capture_output=True).stdout
    assert b"\x1b" not in piped


def read_terminal(master):
    try:
        return os.read(master, 1 << 16)
    except OSError:  # the other side has closed it
        return b""


def test_the_live_view_shows_readings_and_the_session_so_far():
    watcher = Monitor(a_replay(), Settings(EQ1))
    lines = []
    daemon.run(watcher, lambda sample, rows: sample and lines.append(view_line(watcher, sample)), 0)
    assert lines[0].endswith("waiting for a workload")
    assert "GPU 9" in lines[50]
    assert lines[50].endswith("TFLOP so far (Eq. 1)")
    assert view_line(watcher, Sample(0.0)).startswith("W unknown  GPU % unknown")
