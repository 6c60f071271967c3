"""What the monitor costs: memory over a simulated week, time a poll, and streaming beside whole columns in numpy.

The week is 403,200 made-up polls of 1.5 s with three runs a day, gaps and clock steps, as fast as the monitor
takes them, into a log that keeps two days. ``pytest benchmarks --benchmark-only -s`` prints the figures.
"""

import itertools
import json
import sqlite3
import subprocess
import sys
import timeit

import numpy as np
import pytest

from estimator_utils.monitor.integrate import energy_j
from estimator_utils.monitor.log import SessionLog, read_sessions
from estimator_utils.monitor.monitor import Monitor, Settings
from estimator_utils.monitor.sessions import find_sessions
from estimator_utils.telemetry.source import Sample, Source
from tests.support import fits

MEMORY_MAX_MB, GROWTH_MAX_MB = 60.0, 1.0
DAY_POLLS = 57_600
IDLE_W = 0.642048
BELONGS = {"device": "made up", "rail": "made up", "power_mode": "made up", "precision": "fp32"}
SETTINGS = Settings((fits.equation(1, 5.6113, 1.4625, 61.468, idle_power_w=IDLE_W, **BELONGS),), declared=BELONGS)


def week(days=7):
    """Samples of a week: three two-hour runs a day, a gap and a clock step in each, noise on every reading."""
    for k in range(days * DAY_POLLS):
        in_run = k % (DAY_POLLS // 3)
        busy = 4800 <= in_run < 9600
        if 6000 <= in_run < 6010:
            yield Sample(1.5 * k, 1e9 + 1.5 * k)
            continue
        noise = (k * 7919 % 1000) / 1000
        step_s = 3600.0 * (k // (DAY_POLLS // 3))
        yield Sample(
            1.5 * k, 1e9 + 1.5 * k + step_s, (7 if busy else 0.6) + noise, 0.95 * busy, None, 4e10 * busy + 1e9 * noise
        )


WEEK = """
import json, sys
from dataclasses import replace
from benchmarks.test_monitor_cost import *

class Week(Source):
    name, live, missing, trace = "week", False, {}, None
    def identity(self): return {}
    def fingerprint(self): return ""
    def close(self): pass
    def __iter__(self): return week()

def memory_mb():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6

from estimator_utils.monitor import pace as daemon
log = SessionLog(sys.argv[1], keep_samples=2 * DAY_POLLS)
monitor = Monitor(Week(), replace(SETTINGS, merge_gap_s=60), log)
found, polls = [], 0
def report(sample, rows):
    global polls
    polls += 1
    if polls % DAY_POLLS == DAY_POLLS // 2:
        found.append(memory_mb())
daemon.run(monitor, report, 0)
log.close()
print(json.dumps(found))
"""


def test_memory_is_small_and_flat_over_a_week(benchmark, tmp_path):
    path = tmp_path / "log.sqlite"

    def run():
        return subprocess.run([sys.executable, "-c", WEEK, path], capture_output=True, text=True, check=True).stdout

    days_mb = json.loads(benchmark.pedantic(run, rounds=1))
    database = sqlite3.connect(path)
    (sessions,) = database.execute("SELECT count(*) FROM sessions").fetchone()
    (samples,) = database.execute("SELECT count(*) FROM samples").fetchone()
    database.close()
    size_mb = path.stat().st_size / 1e6
    print(
        f"\nMemory on day 1 to 7: {', '.join(f'{mb:.1f}' for mb in days_mb)} MB; {sessions} sessions;"
        f" log of {size_mb:.1f} MB with {samples} samples"
    )
    assert len(days_mb) == 7
    assert max(days_mb) < MEMORY_MAX_MB
    assert days_mb[-1] - days_mb[0] < GROWTH_MAX_MB
    assert sessions == 21
    assert samples < 2 * DAY_POLLS + 2000


class Polls(Source):
    """A source that is polled by hand."""

    name, live, missing = "polls", False, {}

    def identity(self):
        return {}

    def fingerprint(self):
        return ""


@pytest.mark.parametrize("logged", [True, False])
def test_time_of_a_poll(benchmark, tmp_path, logged):
    log = SessionLog(tmp_path / "log.sqlite") if logged else None
    monitor, samples = Monitor(Polls(), SETTINGS, log), itertools.cycle(week())
    benchmark(lambda: monitor.poll(next(samples)))
    if log is not None:
        log.close()


def streamed_j(samples):
    return [session.energy_net_j for session in find_sessions(samples, IDLE_W)]


def whole_columns_j(columns):
    """The competitor: numpy over all polls of a day at once, which must be in memory, and have no gaps."""
    t_s, power_w, util = columns
    edges = np.flatnonzero(np.diff(util > 0.05))
    pairs = edges.reshape(-1, 2)
    return [energy_j(t_s[a : b + 2], power_w[a : b + 2], IDLE_W) for a, b in pairs]


@pytest.mark.parametrize("method", [streamed_j, whole_columns_j])
def test_a_day_streamed_beside_numpy_over_whole_columns(benchmark, method):
    samples = [sample for sample in week(days=1) if sample.power_w is not None]
    columns = np.array([(s.t_s, s.power_w, s.gpu_util) for s in samples]).T
    found_j = benchmark(method, samples if method is streamed_j else columns)
    assert found_j == pytest.approx(whole_columns_j(columns))
    assert len(found_j) == 3


LISTING_MAX_RATIO = 20


def test_listing_a_weeks_sessions_beside_the_bare_query(benchmark, tmp_path):
    path = tmp_path / "log.sqlite"
    log = SessionLog(path)
    monitor = Monitor(Polls(), SETTINGS, log)
    for sample in week():
        monitor.poll(sample)
    log.close()

    def bare():
        database = sqlite3.connect(path)
        rows = database.execute("SELECT * FROM sessions ORDER BY id").fetchall()
        database.close()
        return rows

    assert len(benchmark.pedantic(read_sessions, args=(path,), rounds=50, warmup_rounds=1)) == len(bare()) > 0
    bare_s = min(timeit.repeat(bare, number=1, repeat=50))
    ratio = benchmark.stats.stats.min / bare_s
    print(f"\nListing {len(bare())} sessions in {path.stat().st_size / 1e6:.0f} MB: {ratio:.1f} x the query")
    assert ratio < LISTING_MAX_RATIO
