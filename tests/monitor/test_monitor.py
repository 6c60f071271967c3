from __future__ import annotations

import importlib.util
import json
import sqlite3
import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from estimator_utils.datasets import registry
from estimator_utils.estimation.calibration import Calibration, CalibrationMismatchError, Run
from estimator_utils.monitor.integrate import traffic_tb
from estimator_utils.monitor.log import SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.pace import run
from estimator_utils.monitor.sessions import Rule, find_sessions
from estimator_utils.monitor.view import session_line
from estimator_utils.telemetry.jtop import Jtop
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.sysfs import Sysfs
from tests.support import jtop_harness
from tests.support.kill9 import BELONGS, SETTINGS, three_sessions
from tests.support.monitored import EQ1, EQ2, IDLE_W, a_replay, belonging, cut, live_rows, rows_of, set_to
from tests.support.player import MODEL, Board, play

pytestmark = pytest.mark.slow  # starts processes, or dispatches whole training steps

TRUTH_TFLOP, ENERGY_J = 364.20, 4117.0
WHY_NO_NAMESPACES = jtop_harness.why_not()
WHY_NO_JTOP = WHY_NO_NAMESPACES
if importlib.util.find_spec("jtop") is None:
    WHY_NO_JTOP = "jetson-stats is not installed: pip install 'estimator-utils[jetson]'"


def error_percent(row):
    return 100 * (row["estimate_tflop"] / TRUTH_TFLOP - 1)


# the study's ten minutes


@pytest.fixture(scope="session")
def recorded():
    return registry.trace("orin-nano-25w")


@pytest.mark.recorded
@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.6, 0.9, 1.2])
def test_the_recorded_run_replayed(recorded, phase_s):
    source = Replay("recorded", recorded, phase_s=phase_s)
    for settings, percent in ((set_to(EQ1), 1.5), (set_to(EQ2), 3.1)):
        (row,) = rows_of(source, settings)
        assert error_percent(row) == pytest.approx(percent, abs=0.6)
        assert (row["gaps"], row["anomalies"]) == (0, ())


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
        tflop = [EQ1.estimate(run).tflop, EQ1.estimate(replace(run, dram_tb=all_tb)).tflop, EQ2.estimate(run).tflop]
        errors.append([error_percent({"estimate_tflop": value}) for value in tflop])
    off = np.abs(np.array(errors) - (1.5, 1.5, 3.1))
    assert np.mean(off[:375, 0] <= 0.6) >= 0.99
    assert off[:, 0].max() < 0.65
    assert off[:, 1:].max() <= 0.6


def play_to(trace, root, speed, watched):
    """Play a trace once, a monitor on each source in a thread of its own; times come back in the trace's clock."""
    stop, began, found = threading.Event(), [], {name: [] for name in watched}

    def player():
        began.append(play(trace, root, speed))
        time.sleep(6 * 1.5 / speed)  # three idle polls to end on, and slack
        stop.set()

    def watch(name):
        source, settings = watched[name]
        run(Monitor(source, settings), lambda sample, rows: found[name].extend(map(asdict, rows)), speed, stop)

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
    by_sysfs = Sysfs(root), set_to(EQ1, declared={"precision": "fp32"})
    if WHY_NO_JTOP:
        return play_to(trace, root, 60.0, {"sysfs": by_sysfs})
    speed = 25.0
    with jtop_harness.Jtop(root, folder) as harness:
        harness.start()
        with Jtop(interval_s=1.5 / speed, launch=harness.inside) as by_jtop:
            settings = set_to(EQ1, EQ2)
            return play_to(trace, root, speed, {"sysfs": by_sysfs, "jtop": (by_jtop, settings)})


@pytest.mark.recorded
def test_the_recorded_run_played_through_the_sysfs_tree(played):
    (row,) = played["sysfs"]
    assert abs(row["start_s"] - 65.5) <= 1.5
    assert abs(row["end_s"] - 590.4) <= 1.5
    assert row["energy_net_j"] == pytest.approx(ENERGY_J, rel=0.005)
    assert error_percent(row) == pytest.approx(1.5, abs=0.6)
    assert (row["estimator"], row["warning"], row["data"]) == ("eq1", "", None)  # a played tree is no board


@pytest.mark.recorded
@pytest.mark.namespace
@pytest.mark.skipif(WHY_NO_JTOP is not None, reason=str(WHY_NO_JTOP))
def test_the_recorded_run_played_through_the_real_jtop(played):
    (row,) = played["jtop"]
    # One poll, and one interval of jtop's own, which polls the tree itself.
    assert abs(row["start_s"] - 65.5) <= 3.0
    assert abs(row["end_s"] - 590.4) <= 3.0
    assert row["energy_net_j"] == pytest.approx(ENERGY_J, rel=0.005)
    assert (row["estimator"], row["note"]) == ("eq2", "DRAM traffic was missing for Eq. 1: Eq. 2 used")
    assert error_percent(row) == pytest.approx(3.1, abs=0.6)


# estimates


def test_an_estimate_is_the_calibrations_own():
    (first, *_) = rows_of(a_replay(), set_to(EQ1))
    expected = EQ1.estimate(Run(first["energy_net_j"], first["duration_s"], first["dram_tb"])).tflop
    assert (first["estimate_tflop"], first["estimator"], first["note"]) == (expected, "eq1", "")


def test_the_first_calibration_whose_readings_are_there_is_used_and_what_was_missing_is_named():
    trace = three_sessions()
    no_dram = replace(trace, dram_bytes_per_s=(None,) * 400)
    busy_time = Calibration("utilisation-time", {"tflop_per_busy_s": 0.7}, EQ1.identity)
    time_only = Calibration("time", {"tflop_per_s": 0.7}, EQ1.identity)
    missing = "DRAM traffic was missing for Eq. 1"
    for chain, estimator, note in (
        ((EQ1, EQ2), "eq2", f"{missing}: Eq. 2 used"),
        ((EQ2, EQ1), "eq2", ""),
        ((EQ1, time_only, EQ2), "time", f"{missing}: time only used"),
        ((EQ1, busy_time), "utilisation-time", f"{missing}: GPU utilisation x time used"),
        ((EQ1,), None, f"no estimate: {missing}, and no calibration without it was given"),
    ):
        rows = rows_of(a_replay(no_dram), set_to(*chain))
        assert {(row["estimator"], row["note"]) for row in rows} == {(estimator, note)}
        assert all((row["estimate_tflop"] is None) == (estimator is None) for row in rows)
    (row, *_) = rows_of(a_replay(no_dram), set_to(EQ1, time_only))
    assert row["estimate_tflop"] == pytest.approx(0.7 * row["duration_s"])


def test_the_baseline_is_the_calibrations_unless_told_otherwise():
    (row, *_) = rows_of(a_replay(), set_to(EQ1))
    assert row["idle_power_w"] == IDLE_W
    (row, *_) = rows_of(a_replay(), set_to(EQ1, idle_power_w=2.0))
    assert row["idle_power_w"] == 2.0
    assert row["note"].startswith("live idle is 0.6")
    for settings in (set_to(belonging(EQ1, idle_power_w=None)), set_to(EQ1, belonging(EQ2, idle_power_w=0.7))):
        with pytest.raises(CalibrationMismatchError, match="`idle_power_w`"):
            Monitor(a_replay(), settings)


@pytest.mark.parametrize(("name", "other"), [(name, f"another {name}") for name in BELONGS])
def test_a_calibration_from_elsewhere_is_refused_or_forced_and_marked(name, other):
    calibration = belonging(EQ1, **{name: other})
    said = {key: value for key, value in BELONGS.items() if key != "precision"}
    settings = set_to(calibration, declared={"precision": "fp32"})
    with pytest.raises(CalibrationMismatchError, match=f"{name} is .* belongs to 'another {name}'.*`force`"):
        Monitor(a_replay(**said), settings)
    rows = rows_of(a_replay(**said), replace(settings, force=True))
    assert rows
    assert all(f"another {name}" in row["warning"] for row in rows)
    assert rows_of(a_replay(**said), set_to(EQ1, declared={"precision": "fp32"}))[0]["warning"] == ""


def test_what_is_not_said_must_be_declared_and_what_is_said_cannot_be_declared_away():
    with pytest.raises(CalibrationMismatchError, match="declare `device`"):
        Monitor(a_replay(), set_to(EQ1, declared={**BELONGS, "device": None}))
    Monitor(a_replay(), set_to(EQ1))
    with pytest.raises(CalibrationMismatchError, match=f"declared '{MODEL}' but the source says 'Thor'"):
        Monitor(a_replay(device="Thor"), set_to(EQ1))


def test_a_power_mode_that_changes_under_the_monitor_is_marked(tmp_path):
    board = Board(tmp_path / "sys")
    watcher = Monitor(Sysfs(board.root), set_to(EQ1, declared={"precision": "fp32"}))
    found = []
    for k in range(30):
        if k == 5:
            board.put("../var/lib/nvpmodel/status", "pmode:0000")
        board.set(power_w=8.0 if 10 <= k < 20 else 0.64, gpu_util=float(10 <= k < 20), dram_bytes_per_s=3e10)
        found += map(asdict, watcher.poll(replace(watcher.source.read(), t_s=1.5 * k, wall_s=None)))
    (row,) = found
    assert "power_mode is '15W' but the calibration belongs to '25W'" in row["warning"]
    assert "identity changed x1" in row["anomalies"]


def test_fragments_and_the_run_they_are_parts_of_are_both_listed():
    rows = rows_of(a_replay(), SETTINGS)
    assert [(row["record_type"], row["parts"]) for row in rows] == [
        ("session", 1), ("session", 1), ("session", 1), ("merged", 2), ("session", 1),
    ]  # fmt: skip
    first, second, whole = rows[1:4]
    assert (whole["start_s"], whole["end_s"]) == (first["start_s"], second["end_s"])
    for name in ("estimate_tflop", "duration_s", "energy_net_j", "dram_tb"):
        assert whole[name] == first[name] + second[name]
    assert whole["duration_s"] < second["end_s"] - first["start_s"]  # without the idle dip
    assert (whole["estimator"], whole["note"]) == ("eq1", "merged of 2 fragments, which are listed too")


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
    settings = replace(SETTINGS, calibrations=(*SETTINGS.calibrations, belonging(EQ2, idle_power_w=0.642)))
    _, first, second, whole, _ = rows_of(a_replay(replace(trace, dram_bytes_per_s=traffic)), settings)
    assert (first["estimator"], second["estimator"], whole["estimator"]) == ("eq2", "eq1", None)
    assert whole["estimate_tflop"] == first["estimate_tflop"] + second["estimate_tflop"]


def test_the_dram_counter_is_scaled_to_true_bytes():
    (true, *_), (counted, *_) = (rows_of(a_replay(), set_to(EQ1, dram_counter_factor=f)) for f in (1.0, 2.0))
    assert counted["dram_tb"] == pytest.approx(true["dram_tb"] / 2)
    assert counted["estimate_tflop"] > true["estimate_tflop"]


def test_the_studys_edges_are_there_on_request():
    row, study = (rows_of(a_replay(), set_to(EQ1, rule=Rule(edges=e)))[0] for e in ("unbiased", "study"))
    assert (study["start_s"], study["end_s"], study["edges"]) == (row["start_s"], row["end_s"], "study")
    assert study["duration_s"] == row["duration_s"] + 1.5
    assert study["energy_net_j"] < row["energy_net_j"]


# what a live monitor goes through


def test_a_lost_sensor_is_recorded_and_is_not_the_end(tmp_path):
    def happen(k, board, watcher):
        if 35 <= k < 40:
            board.remove(board.load)

    (row,) = live_rows(tmp_path, happen)
    (undisturbed,) = live_rows(tmp_path / "again", lambda *_: None)
    assert (row["gaps"], row["gap_s"]) == (1, 9.0)
    assert "gpu_util lost x1" in row["anomalies"]
    assert {**row, **dict.fromkeys(("gaps", "gap_s", "anomalies", "source"))} == {
        **undisturbed, **dict.fromkeys(("gaps", "gap_s", "anomalies", "source")), "gpu_util": row["gpu_util"]
    }  # fmt: skip


def test_sleep_of_the_machine_is_recorded(tmp_path, monkeypatch):
    real = time.clock_gettime

    def happen(k, board, watcher):
        if k == 40:
            monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 600)

    (row,) = live_rows(tmp_path, happen)
    assert [text for text in row["anomalies"] if "slept" in text] == ["machine slept x1 (+600.0 s)"]
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
    assert row["anomalies"] == ("monitor restarted x1", "power not seen for 24% of the time")
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
    assert ended["anomalies"] == ("machine restarted x1",)
    assert ended["duration_s"] == pytest.approx(9.5 * 1.5)
    assert again["anomalies"] == ()
    assert [row["anomalies"] for row in read_sessions(tmp_path / "log.sqlite")] == ["machine restarted x1", ""]


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
