"""A monitor whose disk is full and then read-only, on a real small disk. Run inside a user and mount namespace.

As a program: ``python -m tests.support.bad_disk FOLDER``; mounts a tmpfs in it and prints one JSON object.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from estimator_utils.monitor.log import LogError, SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.pace import run
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.sysfs import Sysfs
from tests.support.kill9 import SETTINGS, logged, three_sessions
from tests.support.player import Board


def remount(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def replayed(path):
    """Replay into a log; return the error that ended it, if one did."""
    log = None
    try:
        log = SessionLog(path)
        run(Monitor(Replay("replay:made up", three_sessions()), SETTINGS, log), lambda sample, rows: None, 0)
    except LogError as error:
        return str(error)
    finally:
        if log is not None:
            log.close()
    return None


def live(tree, path, ballast):
    """Poll a live board while the disk is full for a time; return what is logged."""
    board = Board(tree)
    source, log = Sysfs(tree), SessionLog(path)
    monitor = Monitor(source, replace(SETTINGS, merge_gap_s=0.0), log)
    trace = three_sessions()
    for k, t_s in enumerate(trace.t_s):
        if k == 100:  # inside the first run
            with open(ballast, "wb", buffering=0) as file:
                while True:
                    try:
                        file.write(bytes(4096))
                    except OSError:
                        break
        if k == 200:  # inside the second: the first has ended without being logged
            ballast.unlink()
        board.set(trace.power_w[k], trace.gpu_util[k], trace.dram_bytes_per_s[k])
        monitor.poll(replace(source.read(), t_s=t_s, wall_s=1e9 + t_s))
    log.close()
    return logged(path)


def main(folder):
    disk, tree = Path(folder) / "disk", Path(folder) / "sys"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    if error := replayed(disk / "whole.sqlite"):
        raise SystemExit(error)
    whole = logged(disk / "whole.sqlite")
    (disk / "whole.sqlite").unlink()

    path, found = disk / "log.sqlite", {}
    remount(disk, "size=400k")
    found["full"] = replayed(path)
    sessions, times = logged(path)
    found["intact"] = sessions == whole[0][: len(sessions)] and times == whole[1][: len(times)]
    found["polls"] = len(times)
    remount(disk, "size=8m")
    found["goes on"] = replayed(path) is None and logged(path) == whole

    before = path.read_bytes()
    remount(disk, "ro")
    found["read-only"] = replayed(path)
    found["unchanged"] = path.read_bytes() == before
    remount(disk, "rw")

    sessions, times = live(tree, disk / "live.sqlite", disk / "ballast")
    found["live anomalies"] = [row["anomalies"] for row in read_sessions(disk / "live.sqlite")]
    starts = [[s["start_s"] for s in found if s["record_type"] == "session"] for found in (sessions, whole[0])]
    found["live sessions"] = starts[0] == starts[1]
    found["live polls lost"] = len(whole[1]) - len(times)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
