"""The real jtop service and client on a played board, and every way in which they fail.

Each way of failing that is known of jetson-stats 7.2 is provoked against jetson-stats itself. Not provoked:

- jetson_stats #555, a process of the GPU ends while the service reads it: the moment cannot be timed. What
  follows is the same as after a garbage value, which is provoked: an exception ends the sampler.
- jetson_stats PR #889, the service holds on to NVML: there is no NVML here. The check is tested on a tree of files.
"""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from statistics import mean

import pytest

from estimator_utils.datasets import registry
from estimator_utils.telemetry import child
from estimator_utils.telemetry import jtop as jtop_source
from estimator_utils.telemetry.source import SourceError
from tests.support import jtop_harness
from tests.support.player import MODEL, STEP_W, Board

jtop = pytest.importorskip("jtop", reason="jetson-stats is missing: pip install 'estimator-utils[jetson]'")
REASON = jtop_harness.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.namespace, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
INTERVAL_S = 0.1
LONG_S = 60.0  # for a machine that is busy with other work
HOST_FILES = ("/etc/group", "/run", os.path.join(sys.base_prefix, "local"))


class Bench:
    """A board, the service on it, and clients that are closed at the end."""

    def __init__(self, folder, **options):
        self.board = Board(folder / "sys")
        self.service = jtop_harness.Jtop(self.board.root, folder, **options)
        self.opened = []

    def connect(self, **options):
        options = {"interval_s": INTERVAL_S, "launch": self.service.inside} | options
        self.opened.append(jtop_source.Jtop(**options))
        return self.opened[-1]

    def restart(self):
        self.service.stop()
        self.service.start()

    def __enter__(self):
        self.service.start()
        return self

    def __exit__(self, *error):
        for source in self.opened:
            source.close()
        self.service.__exit__()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(child, "BACKOFF_S", (0.1, 0.4))
    monkeypatch.setattr(jtop_source, "SILENCE_S", LONG_S)
    monkeypatch.setattr(jtop_source, "OPEN_S", LONG_S)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """For the tests that leave the service as it was."""
    with Bench(tmp_path_factory.mktemp("shared")) as bench:
        yield bench


@pytest.fixture
def bench(tmp_path):
    with Bench(tmp_path) as bench:
        yield bench


def until(source, wanted, seconds=LONG_S):
    """Read until a sample is as wanted; return it and those before."""
    deadline_s, before = time.monotonic() + seconds, []
    while time.monotonic() < deadline_s:
        sample = source.read()
        if wanted(sample):
            return sample, before
        before.append(sample)
    raise AssertionError(f"not in {seconds} s: the last of {len(before)} is {before[-1]}, {source.missing}")


def has_power(sample):
    return sample.power_w is not None


def is_lost(sample):
    return sample.power_w is None and sample.gpu_util is None


def shows(power_w):
    return lambda sample: has_power(sample) and abs(sample.power_w - power_w) < STEP_W


def test_the_readings_are_the_boards_and_nothing_of_it_is_outside(shared):
    host = {path: os.stat(path).st_mtime_ns for path in HOST_FILES if os.path.exists(path)}
    shared.board.set(power_w=7.1, gpu_util=0.987)
    source = shared.connect()
    begin_s, wall_s = time.monotonic(), time.time()
    sample, _ = until(source, shows(7.1))
    assert sample.power_w == pytest.approx(7.1, abs=STEP_W / 2 + 0.001)  # jtop cuts off below 1 mW
    assert sample.gpu_util == pytest.approx(0.987)
    assert (sample.gpu_clock_hz, sample.emc_clock_hz) == (918e6, 3199e6)
    assert begin_s - LONG_S < sample.t_s <= time.monotonic()
    assert wall_s - LONG_S < sample.wall_s <= time.time()
    assert sample.source == "jtop"
    identity = source.identity()
    assert (identity["device"], identity["rail"]) == (MODEL, "VDD_CPU_GPU_CV")
    assert (identity["gpu_clock_hz"], identity["emc_clock_hz"]) == (918e6, 3199e6)
    assert host == {path: os.stat(path).st_mtime_ns for path in HOST_FILES if os.path.exists(path)}
    assert not os.path.exists("/run/jtop.sock")


def test_the_share_of_the_emc_is_never_jtops(shared):  # jetson_stats #715
    shared.board.set(dram_bytes_per_s=50e9)  # 49 %, of which jtop's client makes 0
    own = "from jtop import jtop\nwith jtop(0.1) as j: print(j.memory['EMC']['val'])"
    seen = shared.service.run(sys.executable, "-c", own, capture_output=True, text=True)
    assert seen.stdout == "0\n"
    source = shared.connect()
    sample, _ = until(source, has_power)
    assert (sample.dram_activity, sample.dram_bytes_per_s) == (None, None)
    assert "always 0" in source.missing["dram_activity"]


def test_a_lost_rail_is_missing_and_jtops_total_is_not_taken(shared, caplog):
    source = shared.connect(rail="VDD_IN")
    until(source, has_power)
    shared.board.remove(shared.board.current(1))
    until(source, lambda sample: sample.gpu_util is not None and not has_power(sample))
    for _ in range(3):
        sample, _ = until(source, lambda sample: sample.gpu_util is not None)
        assert sample.power_w is None  # jtop's nameless total goes on
    assert "VDD_IN is gone" in source.missing["power_w"]
    assert len([message for message in caplog.messages if "no power_w" in message]) == 1
    shared.board.set(power_w=3.0)
    until(source, has_power)
    assert "power_w" not in source.missing


def test_a_rail_that_is_not_there_is_refused(shared):  # jetson_stats #344
    with pytest.raises(SourceError, match=r"'VDD_GPU'.*VDD_CPU_GPU_CV.*VDD_IN.*VDD_SOC"):
        shared.connect(rail="VDD_GPU")


# jetson_stats #555
@pytest.mark.parametrize("value", ["", "garbage"])
def test_an_exception_in_the_sampler_ends_the_service_and_we_reconnect(bench, value):
    source = bench.connect()
    until(source, has_power)
    bench.board.put(bench.board.current(2), value)
    until(source, is_lost)
    bench.board.set(power_w=5.0)
    if value:
        bench.service.service.wait(LONG_S)  # it exits, and systemd starts it again
    bench.restart()
    until(source, shows(5.0))


def test_a_hung_sampler_is_a_loss_and_no_end(bench):
    source = bench.connect()
    until(source, has_power)
    sampler = bench.service.processes()[2]
    bench.service.signal(signal.SIGSTOP, [sampler])
    until(source, is_lost)
    assert "no new reading" in source.missing["power_w"]
    bench.service.signal(signal.SIGCONT, [sampler])
    until(source, has_power)


def test_a_killed_service_is_a_gap(bench):
    source = bench.connect()
    before, _ = until(source, has_power)
    bench.service.signal(signal.SIGKILL)
    until(source, is_lost)
    bench.board.set(power_w=4.0)
    bench.restart()
    after, _ = until(source, has_power)
    assert after.t_s > before.t_s + 3 * INTERVAL_S
    assert shows(4.0)(after)


def test_orphans_of_a_killed_main_process_keep_serving(bench):
    source = bench.connect()
    until(source, has_power)
    bench.service.signal(signal.SIGKILL, bench.service.processes()[:1])
    bench.service.service.wait()
    bench.board.set(power_w=6.0)
    until(source, shows(6.0))


def test_the_old_reading_after_a_quick_reconnect_is_dropped(shared):
    shared.board.set(power_w=2.0)
    first = shared.connect()
    until(first, shows(2.0))
    first.close()
    shared.board.set(power_w=8.0)
    sample, before = until(shared.connect(), has_power)
    assert shows(8.0)(sample)
    assert not any(has_power(sample) for sample in before)


CONNECT_TWICE = """
import sys
{connect}
client = connect()
client.close()
print("connected", flush=True)
sys.stdin.readline()
try:
    connect()
except BrokenPipeError as error:
    print(type(error).__name__, flush=True)
else:
    print("connected again", flush=True)
"""
OWN = "from jtop import jtop\ndef connect():\n    client = jtop(0.1)\n    client.start()\n    return client"
OURS = "from estimator_utils.telemetry.jtop import _connect\nconnect = lambda: _connect(0.1)"


# jetson_stats #601
@pytest.mark.parametrize(("connect", "then"), [(OWN, "BrokenPipeError\n"), (OURS, "connected again\n")])
def test_one_process_connects_again_after_a_restart(bench, connect, then):
    client = subprocess.Popen(
        [*bench.service.inside, sys.executable, "-c", CONNECT_TWICE.format(connect=connect)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout.readline() == "connected\n"
        bench.restart()
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == then
        client.kill()


def test_a_second_client_lives_with_the_first_ones_rate(bench):
    slow = bench.connect(interval_s=0.5)
    until(slow, has_power)
    quick = bench.connect(interval_s=0.1)  # jtop's own client would leave at once
    samples = [until(quick, has_power)[0] for _ in range(4)]
    assert mean(b.t_s - a.t_s for a, b in pairwise(samples)) > 0.3


def test_a_hung_manager_blocks_neither_opening_nor_reading(bench, monkeypatch):  # jetson_stats #158, #183, #417
    source = bench.connect()
    monkeypatch.setattr(jtop_source, "SILENCE_S", 1.5)
    until(source, has_power)
    manager = bench.service.processes()[1]
    bench.service.signal(signal.SIGSTOP, [manager])
    with pytest.raises(SourceError, match="silent for"):
        bench.connect()
    until(source, is_lost)
    bench.service.signal(signal.SIGCONT, [manager])
    until(source, has_power)


def test_an_inactive_service_is_refused(bench):  # jetson_stats #525
    bench.service.stop()
    with pytest.raises(SourceError, match="not active"):
        bench.connect()


def test_no_permission_is_refused_with_the_remedy(bench):
    # Root of a namespace may open any socket: take the permission and that power away.
    bench.service.run("chmod", "0", "/run/jtop.sock", check=True)
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    with pytest.raises(SourceError, match=r"can't access jtop.*usermod -aG jtop"):
        bench.connect(launch=[*bench.service.inside, *without])


def test_another_version_is_refused_with_both(tmp_path):
    with (
        Bench(tmp_path, version="4.3.2") as bench,
        pytest.raises(SourceError, match=rf"\[4\.3\.2\].*\[{jtop.__version__}\]"),
    ):
        bench.connect()


def test_data_that_never_moves_is_stale(tmp_path):  # jetson_stats #380
    still = tmp_path / "meminfo"
    with open("/proc/meminfo") as file:
        still.write_text(file.read())
    with Bench(tmp_path, meminfo=still) as bench:
        source = bench.connect(stale_s=0.6)
        until(source, has_power)
        until(source, lambda sample: is_lost(sample) and "gives the same" in source.missing["power_w"])
        bench.board.set(power_w=5.0)
        until(source, shows(5.0))


# jetson_stats PR #900, #556, #567
def test_power_supplies_are_no_rails_and_every_field_is_optional(bench):
    for supply in ("ucsi-source-psy-1", "battery"):
        values = {"type": "USB", "online": 1, "voltage_now": 5_000_000, "current_now": 3_000_000}
        for name, value in values.items():
            bench.board.put(f"class/power_supply/{supply}/{name}", value)
    for path in (bench.board.activity, bench.board.clock, bench.board.load):
        bench.board.remove(path)
    bench.restart()
    source = bench.connect()
    sample, _ = until(source, has_power)
    assert shows(0.642)(sample)
    assert (sample.gpu_util, sample.gpu_clock_hz, sample.emc_clock_hz) == (None, None, None)
    assert {"gpu_util", "gpu_clock_hz", "emc_clock_hz"} <= set(source.missing)


def test_an_unreadable_rate_of_the_emc_is_no_clock_of_1_khz(shared):
    shared.board.remove(shared.board.rate)
    try:
        assert until(shared.connect(), has_power)[0].emc_clock_hz is None
    finally:
        shared.board.put(shared.board.rate, 3_199_000_000)


def test_the_child_ends_with_its_parent(shared):
    code = (
        "from estimator_utils.telemetry.jtop import Jtop; import sys, time\n"
        "source = Jtop(launch=sys.argv[1:])\nprint(source._child._process.pid, flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-c", code, *shared.service.inside]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline_s = time.monotonic() + LONG_S
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{child}")


@pytest.mark.recorded
def test_the_recorded_trace_through_jtop_value_by_value(bench):
    trace = registry.trace("orin-nano-25w")
    rows = [row for row in zip(trace.power_w, trace.gpu_util, strict=True) if None not in row]
    source = bench.connect()
    for power_w, gpu_util in rows[:: len(rows) // 12]:
        bench.board.set(power_w, gpu_util)
        sample, _ = until(source, shows(power_w))
        assert abs(sample.power_w - power_w) <= STEP_W / 2 + 0.001  # jtop cuts off below 1 mW
