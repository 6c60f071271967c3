"""What the tests of the monitor share: calibrations of the study's board, replays, and a board that is polled."""

from __future__ import annotations

from dataclasses import asdict, replace

from estimator_utils.datasets.dataset import Metadata, Trace
from estimator_utils.monitor.monitor import Monitor, Settings
from estimator_utils.monitor.pace import run
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.sysfs import Sysfs
from tests.support import fits
from tests.support.kill9 import BELONGS, three_sessions
from tests.support.player import Board

IDLE_W = 0.642048  # trial 1 of the study, as are the constants
EQ1 = fits.equation(1, 5.6113, 1.4625, 61.468, idle_power_w=IDLE_W, **BELONGS)
EQ2 = fits.equation(2, 5.7230, 3.750, idle_power_w=IDLE_W, **BELONGS)


def set_to(*calibrations, **more):
    """Return settings of a monitor whose readings are declared to belong to the study's board."""
    return Settings(calibrations, **{"declared": BELONGS, **more})


def belonging(calibration, **identity):
    """Return a calibration that belongs elsewhere."""
    return replace(calibration, identity=replace(calibration.identity, **identity))


def rows_of(source, settings, log=None, speed=0.0):
    found = []
    run(Monitor(source, settings, log), lambda sample, rows: found.extend(map(asdict, rows)), speed)
    return found


def a_replay(trace=None, **metadata):
    about = Metadata(name="made up", **metadata) if metadata else None
    return Replay("replay:made up", trace or three_sessions(), about)


def cut(trace, from_s, to_s):
    """The part of a trace that holds its run; the idle minute before it only takes time to play."""
    columns = (trace.t_s, trace.power_w, trace.gpu_util, trace.dram_bytes_per_s)
    rows = [row for row in zip(*columns, strict=True) if from_s <= row[0] <= to_s]
    return Trace(*map(tuple, zip(*rows, strict=True)))


def live_rows(tmp_path, happen, log=None, polls=range(60)):
    """Poll a played board; a run goes from poll 30 to 50. ``happen(k, board, watcher)`` comes before poll k."""
    board = Board(tmp_path / "sys")
    watcher = Monitor(Sysfs(board.root), set_to(EQ1), log)
    found = [asdict(row) for row in watcher.carried]
    for k in polls:
        board.set(power_w=8.0 if 30 <= k < 50 else 0.64, gpu_util=float(30 <= k < 50), dram_bytes_per_s=3e10)
        happen(k, board, watcher)
        found += map(asdict, watcher.poll(replace(watcher.source.read(), t_s=1.5 * k, wall_s=1e9 + 1.5 * k)))
    return found
