"""Kills a monitor with SIGKILL at random moments of a replay and starts it again, until the replay has ended.

As a program: ``python -m tests.support.kill9 FOLDER KILLS SEED``; prints one JSON object. Each start is a fork of
this process, so that a start costs milliseconds. No torch, no pandas.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

from estimator_utils.datasets.dataset import Trace
from estimator_utils.estimation.calibration import Calibration, Identity
from estimator_utils.monitor.log import LogError, SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor, Settings
from estimator_utils.monitor.pace import run
from estimator_utils.telemetry.replay import Replay
from tests.support.player import MODEL

# Of the calibration, and declared of a replay that says nothing.
BELONGS = {"device": MODEL, "rail": "VDD_CPU_GPU_CV", "power_mode": "25W", "precision": "fp32"}
CONSTANTS = {"e_per_tflop_j": 5.6, "e_per_tb_j": 61.5, "p_overhead_w": 1.46}
CALIBRATION = Calibration("eq1", CONSTANTS, Identity(**BELONGS, idle_power_w=0.642))
SETTINGS = Settings((CALIBRATION,), merge_gap_s=20, declared=BELONGS)
SPEED = 3000.0  # half a millisecond a poll
SAME = (
    "record_type",
    "start_s",
    "end_s",
    "duration_s",
    "energy_net_j",
    "dram_tb",
    "estimate_tflop",
    "polls",
    "gaps",
    "parts",
)


def three_sessions(seed=0, polls=400):
    """A trace with three runs, one of them with a dip, and noise on every reading."""
    rng = random.Random(seed)
    busy = [(20, 120), (140, 230), (237, 260), (300, 380)]
    rows = [(1.5 * k, any(a <= k < b for a, b in busy)) for k in range(polls)]
    return Trace(
        tuple(t for t, _ in rows),
        tuple(rng.uniform(7, 9) if up else rng.uniform(0.5, 0.8) for _, up in rows),
        tuple(rng.uniform(0.9, 1) if up else 0.0 for _, up in rows),
        tuple(rng.uniform(3e10, 5e10) if up else 1e9 for _, up in rows),
    )


class Watched(Replay):
    """Says in a file, before each poll, which one is being taken: a kill cannot take that back."""

    def __iter__(self):
        for sample in super().__iter__():
            os.pwrite(self.said, f"{sample.t_s:20.3f}".encode(), 0)
            yield sample


def monitor(path, said, speed):
    source = Watched("replay:made up", three_sessions())
    source.said = said
    log = SessionLog(path)
    run(Monitor(source, SETTINGS, log), lambda sample, rows: None, speed)
    log.close()


def logged(path):
    sessions = [{name: row[name] for name in SAME} for row in read_sessions(path)]
    connection = sqlite3.connect(path)
    times = [t for (t,) in connection.execute("SELECT t_s FROM samples ORDER BY id")]
    connection.close()
    return sessions, times


def main(folder, kills, seed):  # noqa: C901, PLR0915 (one loop of kills, read from top to bottom)
    folder, rng = Path(folder), random.Random(seed)
    said = os.open(folder / "said", os.O_RDWR | os.O_CREAT)
    monitor(folder / "whole.sqlite", said, 0)
    whole = logged(folder / "whole.sqlite")
    done, replays, most_lost, open_kills = 0, 0, 0, 0
    while done < kills:
        path = folder / f"killed{replays}.sqlite"
        while True:
            os.pwrite(said, b" " * 20, 0)
            child = os.fork()
            if child == 0:
                try:
                    monitor(path, said, SPEED)
                finally:
                    os._exit(0)
            if done < kills:
                time.sleep(rng.uniform(0, 0.05))
                os.kill(child, signal.SIGKILL)
            if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
                break  # it had ended by itself: the replay is over
            done += 1
            if not path.exists():
                continue  # killed before it could make its log
            try:
                sessions, times = logged(path)
            except LogError as error:
                if "no such table" not in str(error):
                    raise
                sessions, times = [], []  # killed before it had made its tables
            taken = os.pread(said, 20, 0).strip()
            if taken:
                most_lost = max(most_lost, sum(t > (times or [-1])[-1] for t in whole[1] if t <= float(taken)))
            if times != whole[1][: len(times)]:
                raise SystemExit(f"samples lost or doubled after kill {done}")
            if sessions != whole[0][: len(sessions)]:
                raise SystemExit(f"sessions lost, doubled or changed after kill {done}: {sessions}")
            open_kills += any(s["start_s"] < (times or [0])[-1] < s["end_s"] for s in whole[0])
        if logged(path) != whole:
            raise SystemExit(f"replay {replays} ended otherwise than the one that was not killed: {logged(path)}")
        replays += 1
    print(json.dumps({"kills": done, "replays": replays, "most_polls_lost": most_lost, "inside": open_kills}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
