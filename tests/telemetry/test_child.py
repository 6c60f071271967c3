import os
import signal
import sys
import time
from itertools import pairwise

import pytest

from estimator_utils.telemetry import child as child_module
from estimator_utils.telemetry.child import Child

LONG_S = 60.0  # for a machine that is busy with other work; what is awaited comes at once


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(child_module, "BACKOFF_S", (0.05, 0.05))


def until_failed(child, times=1):
    deadline_s = time.monotonic() + LONG_S
    while child.failures < times and time.monotonic() < deadline_s:
        child.latest(0.1)
    assert child.failures >= times


def test_each_message_is_given_once_and_lines_without_one_are_not():
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    child = Child([sys.executable, "-c", script], lambda line: line.strip() or None, silence_s=LONG_S)
    deadline_s = time.monotonic() + LONG_S
    while child._process is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for text in ("one", "two"):
        before_s = time.monotonic()
        child._process.stdin.write(f"{text}\n\n")
        child._process.stdin.flush()
        t_s, wall_s, message = child.latest(LONG_S)
        assert message == text
        assert before_s <= t_s <= time.monotonic()
        assert wall_s <= time.time()
        assert child.latest(0.0)[2] is None
    child.close()


def test_a_child_that_ends_is_started_again_after_growing_pauses(monkeypatch):
    monkeypatch.setattr(child_module, "BACKOFF_S", (0.1, 0.2))
    lines_s = []
    child = Child(["sh", "-c", "echo here; exit 3"], lambda line: lines_s.append(time.monotonic()), silence_s=LONG_S)
    until_failed(child, 4)
    child.close()
    child.close()
    pauses_s = [b - a for a, b in pairwise(lines_s)]  # the thread that reads a line also waits after it
    assert all(pause_s >= least_s for pause_s, least_s in zip(pauses_s, (0.1, 0.2, 0.2), strict=False))
    assert child.reason == "sh ended"


def test_a_program_that_is_not_there_is_a_failure_with_its_reason(quick):
    child = Child(["no-such-program"], str, silence_s=LONG_S)
    until_failed(child)
    child.close()
    assert child.reason == "cannot start no-such-program: No such file or directory"


def test_a_silent_child_is_ended_and_started_again(quick):
    child = Child(["sh", "-c", "exec sleep 100"], str, silence_s=0.2)
    until_failed(child, 2)
    child.close()
    assert child.reason == "silent for 0.2 s"


def test_a_line_that_was_cut_is_no_message(quick):
    child = Child(["sh", "-c", "printf 71"], str, silence_s=LONG_S)
    until_failed(child, 2)
    child.close()
    assert child.latest(0.0)[2] is None


def test_a_descendant_that_holds_the_pipe_stops_neither_the_watchdog_nor_the_end(quick):
    child = Child(["sh", "-c", "sleep 300 & echo here; exit"], str, silence_s=0.3)
    until_failed(child, 2)
    assert child.reason == "silent for 0.3 s"
    child.latest(1.0)
    begin_s = time.monotonic()
    child.close()
    assert time.monotonic() - begin_s < LONG_S


def test_a_descendant_that_left_the_group_does_not_stop_the_end(monkeypatch):
    monkeypatch.setattr(child_module, "CLOSE_S", 0.2)
    script = "setsid sh -c 'echo $$; exec sleep 300' & exec sleep 100"
    child = Child(["sh", "-c", script], int, silence_s=LONG_S)
    descendant = child.latest(LONG_S)[2]
    begin_s = time.monotonic()
    child.close()
    seconds = time.monotonic() - begin_s
    os.kill(descendant, signal.SIGKILL)  # which also shows that it lived on
    assert seconds < LONG_S


def test_a_parser_that_raises_is_a_failure_with_its_reason(quick):
    child = Child(["sh", "-c", "echo no number; exec sleep 100"], float, silence_s=LONG_S)
    until_failed(child, 2)
    assert child.latest(0.0)[2] is None
    assert child.reason.startswith("its reader failed: ValueError: could not convert string to float")
    child.close()
