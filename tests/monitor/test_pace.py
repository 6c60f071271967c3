from __future__ import annotations

import time
from itertools import pairwise

import pytest

from estimator_utils.monitor.monitor import Monitor
from estimator_utils.monitor.pace import run
from estimator_utils.telemetry.replay import Replay
from estimator_utils.telemetry.sysfs import Sysfs
from tests.support.kill9 import three_sessions
from tests.support.monitored import EQ1, a_replay, rows_of, set_to
from tests.support.player import Board


def test_speed_is_the_pace_of_the_monitors_clock():
    trace = three_sessions(polls=200)
    began_s = time.monotonic()
    fast = rows_of(a_replay(trace), set_to(EQ1), speed=300.0)
    assert time.monotonic() - began_s == pytest.approx(300 / 300.0, abs=0.5)
    assert fast == rows_of(a_replay(trace), set_to(EQ1))


def test_a_log_that_is_denser_than_the_polls_is_thinned_to_them():
    dense = Replay("dense", three_sessions(), period_s=0.1)
    polled = []
    run(Monitor(dense, set_to(EQ1)), lambda sample, rows: polled.append(sample), 0)
    steps = [b.t_s - a.t_s for a, b in pairwise(polled[1:-1])]
    assert steps == pytest.approx([1.5] * len(steps))


def test_a_live_board_cannot_be_read_faster_than_time_passes(tmp_path):
    board = Board(tmp_path / "sys")
    with pytest.raises(ValueError, match="speed"):
        run(Monitor(Sysfs(board.root), set_to(EQ1)), lambda sample, rows: None, 0)
