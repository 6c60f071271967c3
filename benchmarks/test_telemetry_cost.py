"""What a poll costs: our sysfs source beside the real jtop, service and client, on the same tree.

Both poll at the same rate over the same seconds, each is charged with the CPU time of all its processes, and
what they need to start is left out. ``pytest benchmarks --benchmark-only -s`` prints the figures.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_utils.telemetry.factories import open_source
from tests.support import jtop_harness
from tests.support.player import Board

POLLS = 100
INTERVAL_S = 0.1
TARGET = 20.0  # times less CPU time than jtop
MEMORY_MAX_MB = 60.0

JTOP_CLIENT = """
from jtop import jtop
with jtop(interval={interval_s}) as client:
    while client.ok():
        client.power, client.gpu, client.memory
"""
SYSFS_CLIENT = """
import time
from estimator_utils.telemetry.factories import open_source
next_s = time.monotonic()
with open_source("sysfs") as source:
    while True:
        source.read()
        next_s += {interval_s}
        time.sleep(max(0.0, next_s - time.monotonic()))
"""
OURS = """
import sys
from estimator_utils.telemetry.factories import open_source
source = open_source(sys.argv[1])
source.read()
print("ready", flush=True)
sys.stdin.readline()
"""


def cpu_s(pids):
    """Return the CPU time that processes have used so far, to the nanosecond."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


def memory_mb(pid):
    """Return the resident memory of a process."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def cpu_s_per_poll(service):
    """Return it for jtop and for us, measured over the same seconds, and jtop's number of processes."""
    started = [
        subprocess.Popen([*service.inside, sys.executable, "-c", code.format(interval_s=INTERVAL_S)])
        for code in (JTOP_CLIENT, SYSFS_CLIENT)
    ]
    try:
        time.sleep(5.0)  # jtop's client looks for libraries first
        sides = [*service.processes(), started[0].pid], [started[1].pid]
        before_s, begin_s = [cpu_s(pids) for pids in sides], time.monotonic()
        time.sleep(POLLS * INTERVAL_S)
        polls = (time.monotonic() - begin_s) / INTERVAL_S
        spent_s = [(cpu_s(pids) - before) / polls for pids, before in zip(sides, before_s, strict=True)]
        return *spent_s, len(sides[0])
    finally:
        for process in started:
            process.kill()
            process.wait()


def memory_of(command):
    """Return the memory of a process that has read one sample, and of its children, in MB."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*command[:-1], sys.executable, "-c", OURS, command[-1]], stdin=pipe, stdout=pipe) as ours:
        assert ours.stdout.readline() == b"ready\n"
        children = subprocess.run(["pgrep", "-P", str(ours.pid)], capture_output=True, text=True).stdout.split()
        return [memory_mb(pid) for pid in (ours.pid, *children)]


@pytest.fixture
def board(tmp_path):
    board = Board(tmp_path / "sys")
    board.set(power_w=7.0, gpu_util=0.99, dram_bytes_per_s=40e9)
    return board


@pytest.fixture
def service(board, tmp_path):
    pytest.importorskip("jtop", reason="jetson-stats is not installed: pip install 'estimator-utils[jetson]'")
    if reason := jtop_harness.why_not():
        pytest.skip(reason)
    with jtop_harness.Jtop(board.root, tmp_path) as harness:
        yield harness.start()


@pytest.mark.namespace
def test_cpu_time_of_a_poll(benchmark, board, service):
    jtop_s, ours_s, processes = cpu_s_per_poll(service)
    with open_source(f"sysfs:{board.root}") as source:
        benchmark(source.read)
    ratio = jtop_s / ours_s
    benchmark.extra_info |= {"jtop_us": 1e6 * jtop_s, "sysfs_us": 1e6 * ours_s, "ratio": ratio}
    print(
        f"\nCPU time a poll at {1 / INTERVAL_S:g} Hz: jtop {1e6 * jtop_s:.0f} us ({processes} processes),"
        f" sysfs {1e6 * ours_s:.0f} us: {ratio:.0f} times less"
    )
    assert ratio >= TARGET


@pytest.mark.namespace
def test_memory_of_a_reader(benchmark, board, service):
    ours = benchmark.pedantic(memory_of, ([f"sysfs:{board.root}"],), rounds=1)
    through_jtop = memory_of([*service.inside, "jtop"])
    own = [memory_mb(pid) for pid in service.processes()]
    print(
        f"\nMemory: sysfs {ours[0]:.0f} MB; jtop source {through_jtop[0]:.0f} MB and its child"
        f" {through_jtop[1]:.0f} MB; the service, which runs anyhow, {sum(own):.0f} MB in {len(own)} processes"
    )
    assert len(ours) == 1
    assert len(through_jtop) == 2
    assert max(ours[0], sum(through_jtop)) < MEMORY_MAX_MB
