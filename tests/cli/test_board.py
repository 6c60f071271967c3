from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from estimator_utils.cli.main import main
from estimator_utils.datasets.dataset import Metadata, write_dataset
from estimator_utils.monitor import log as log_module
from estimator_utils.monitor.log import LogError
from tests.support.kill9 import BELONGS, three_sessions
from tests.support.monitored import EQ1, a_replay, belonging, rows_of, set_to


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


@pytest.mark.slow
def test_the_command_prints_one_json_line_a_session(folder):
    done = subprocess.run(command(folder, "--json", "--speed", "0"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["start_s"] for row in rows] == [30, 210, 355.5, 450]
    needed = {"start_s", "end_s", "duration_s", "energy_net_j", "dram_tb", "estimate_tflop", "estimator", "gaps"}
    assert all(needed <= row.keys() for row in rows)
    assert {row["data"] for row in rows} == {"simulated"}
    listed = subprocess.run(
        [sys.executable, "-m", "estimator_utils", "sessions", folder / "log.sqlite"], capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 4
    assert "TFLOP (Eq. 1)" in listed.stdout


@pytest.mark.slow
def test_sigterm_ends_cleanly_and_keeps_the_open_session(folder):
    process = subprocess.Popen(
        command(folder, "--speed", "20"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = folder / "log.sqlite"
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:  # until the first run is under way
        time.sleep(0.05)
        if log.exists():
            try:
                (last_s,) = log_module.connect(log).execute("SELECT max(t_s) FROM samples").fetchone()
            except (LogError, sqlite3.Error):
                continue
            if last_s and last_s > 60:
                break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    done = subprocess.run(command(folder, "--speed", "0", "--json"), capture_output=True, text=True)
    assert "goes on after" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["anomalies"] for row in rows] == [["monitor restarted x1"], [], [], []]
    reference = rows_of(a_replay(), set_to(EQ1))
    assert [row["energy_net_j"] for row in rows] == pytest.approx([row["energy_net_j"] for row in reference], rel=1e-12)


@pytest.mark.slow
def test_what_is_refused_is_one_line_and_status_1(folder):
    belonging(EQ1, power_mode="15W").save(folder / "eq1.json")
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
        (["--period", "0"], "the numbers of polls must be positive, found --period 0, 2 and 3 polls"),
        (["--speed", "nan"], "--speed must be positive"),
        (["--calibration", "{folder}/none.json"], "none.json: No such file or directory: give another path"),
        (["--log", "{folder}"], "is a folder: give the log's file"),
    ],
)
def test_a_slip_on_the_command_line_is_one_line_and_status_1(folder, capsys, words, expected):
    words = [*command(folder)[3:], *(word.format(folder=folder) for word in words)]
    assert main([str(word) for word in words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err


@pytest.mark.slow
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
