"""The sysfs source on trees of every known layout; what bug reports elsewhere ask for is named beside the tests."""

import math
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Trace
from estimator_utils.telemetry import stuck_load, sysfs
from estimator_utils.telemetry.factories import open_source
from estimator_utils.telemetry.source import DEFAULT_RAIL, SourceError
from tests.support.player import I2C, MODEL, STEP_W, Board, Player

READINGS = ("power_w", "gpu_util", "dram_activity", "dram_bytes_per_s", "gpu_clock_hz", "emc_clock_hz")


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path / "sys")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Board(tmp_path_factory.mktemp("tree") / "sys")


@pytest.fixture(scope="module")
def study_trace():
    """The study's ten minutes."""
    return registry.trace("orin-nano-25w")


def opened(board, **options):
    return open_source(f"sysfs:{board.root}", **options)


# jetson_stats #238, #470: the files moved between releases
@pytest.mark.parametrize("release", [36, 35, 32])
def test_the_readings_of_every_layout(tmp_path, release):
    board = Board(tmp_path / "sys", release)
    source = opened(board)
    board.set(power_w=7.1, gpu_util=0.987, dram_bytes_per_s=50e9)
    sample = source.read()
    assert sample.power_w == pytest.approx(7.1, abs=STEP_W / 2)
    assert sample.gpu_util == 0.987
    assert sample.dram_bytes_per_s == pytest.approx(50e9, abs=16_000)
    assert sample.dram_activity == pytest.approx(
        50e9 / 32 / 3199e6, rel=1e-6
    )  # 49 %, of which jtop makes 0: jetson_stats #715
    assert sample.emc_clock_hz == 3199e6
    assert sample.gpu_clock_hz == 918e6
    assert source.missing == {}
    assert sample.source == source.name


def test_the_identity_is_the_board_s(board):
    assert opened(board).identity() == {
        "device": MODEL,
        "rail": DEFAULT_RAIL,
        "power_mode": "25W",
        "gpu_clock_hz": 918e6,
        "emc_clock_hz": 3199e6,
    }


def test_an_identity_that_the_board_has_not_is_none(board):
    for path in ("firmware/devicetree/base/model", "../etc/nvpmodel.conf"):
        board.remove(path)
    shutil.rmtree((board.root / board.clock).parent)
    identity = opened(board).identity()
    assert (identity["device"], identity["power_mode"], identity["gpu_clock_hz"]) == (None, None, None)


def test_without_any_path_the_memory_is_missing_with_a_reason(board):  # jetson_stats #470
    board.remove(board.activity)
    source = opened(board)
    sample = source.read()
    assert (sample.dram_activity, sample.dram_bytes_per_s) == (None, None)
    assert "debugfs" in source.missing["dram_activity"]
    assert sample.emc_clock_hz == 3199e6


def test_activity_above_1_is_not_clamped(board):
    board.put(board.rate, 204_000_000)
    board.put(board.activity, 1_300_000)
    assert opened(board).read().dram_activity == pytest.approx(6.37, abs=0.01)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("firmware/devicetree/base/model", "NVIDIA Jetson AGX Orin Developer Kit"),
        ("firmware/devicetree/base/compatible", "nvidia,p3768-0000+p3767-0004\0nvidia,p3767-0004"),
    ],
)
def test_bytes_are_unknown_where_the_bus_is(board, path, value):
    board.put(path, value, end="\0")
    source = opened(board)
    sample = source.read()
    assert sample.dram_bytes_per_s is None
    assert sample.dram_activity is not None
    assert "Orin Nano 8GB" in source.missing["dram_bytes_per_s"]


READ_AS_USER = """
import sys
from estimator_utils.telemetry.factories import open_source
source = open_source("sysfs:" + sys.argv[1])
sample = source.read()
print(sample.power_w is not None, sample.gpu_util is not None, sample.dram_activity is not None)
print(source.missing.get("dram_activity", ""))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without it")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("granted", [False, True])
def test_a_user_has_all_but_the_memory_and_the_reason_names_what_grants_it(board, granted):
    capability = "+dac_read_search"
    drop = "-all" if not granted else capability
    (board.root / "kernel/debug").chmod(0o700)
    # Root without the powers of root, and its files given away, is any other user.
    subprocess.run(["chown", "-R", "65534", board.root], check=True)
    command = ["setpriv", f"--bounding-set=-all{',' + capability if granted else ''}", "--inh-caps", drop]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", READ_AS_USER, board.root], capture_output=True, text=True
    )
    subprocess.run(["chown", "-R", "0", board.root], check=True)
    known, reason = done.stdout.splitlines()
    assert known == f"True True {granted}", done.stderr
    assert ("AmbientCapabilities=CAP_DAC_READ_SEARCH" in reason) != granted


# jetson_stats #344, and Thor's INA238 (NVIDIA forum 366461)
@pytest.mark.parametrize("rail", ["VIN", "VDD_GPU_SOC", "NC", "sum of shunt voltages", ""])
def test_a_rail_that_is_not_there_is_refused(board, rail):
    # The input monitor of Thor's carrier board measures more than the module: it is no rail here.
    board.put("bus/i2c/devices/2-0044/name", "ina238")
    for name, value in (("in1_input", 12000), ("curr1_input", 5000), ("power1_input", 60_000_000)):
        board.put(f"bus/i2c/devices/2-0044/hwmon/hwmon2/{name}", value)
    board.put(f"{I2C}/hwmon/hwmon1/in3_label", "NC")
    with pytest.raises(SourceError, match=r"\['VDD_CPU_GPU_CV', 'VDD_IN'\]: name one as `rail`"):
        opened(board, rail=rail)


def test_two_rails_of_one_name_are_refused(board):
    board.put("bus/i2c/devices/1-0041/name", "ina3221")
    board.put("bus/i2c/devices/1-0041/hwmon/hwmon2/in1_label", DEFAULT_RAIL)
    with pytest.raises(SourceError, match=r"expected one rail.*found 2"):
        opened(board)


def test_power_supplies_are_no_rails(board):  # jetson_stats PR #900
    for name, value in (("type", "USB"), ("voltage_now", 5_000_000), ("current_now", 3_000_000)):
        board.put(f"class/power_supply/ucsi-source-psy-1/{name}", value)
    assert opened(board).read().power_w == pytest.approx(0.642, abs=STEP_W / 2)
    with pytest.raises(SourceError):
        opened(board, rail="ucsi-source-psy-1")


def test_a_rail_is_itself_and_no_sum(board):  # jetson_stats #51
    board.set(power_w=5.0)
    own, all_of_it = opened(board), opened(board, rail="VDD_IN")
    assert own.read().power_w == pytest.approx(5.0, abs=STEP_W / 2)
    assert all_of_it.read().power_w == pytest.approx(5.0 + 5.072 * 0.808, abs=STEP_W / 2)


def test_two_devices_with_the_same_load_are_one_gpu(board):  # jetson_stats #362
    board.set(gpu_util=0.4)
    folder = board.root / "class/devfreq"
    (folder / "zz.gpu").symlink_to(os.readlink(folder / "17000000.gpu"))
    assert opened(board).read().gpu_util == 0.4


@pytest.mark.parametrize("content", ["", "garbage", "12 34", "-5", "1_0", "٣", "1e3", "nan", "9" * 30])
@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("current", {"power_w"}),
        ("load", {"gpu_util"}),
        ("clock", {"gpu_clock_hz"}),
        ("activity", {"dram_activity", "dram_bytes_per_s"}),
        ("rate", {"emc_clock_hz", "dram_activity"}),
    ],
)
def test_garbage_in_a_file_is_a_missing_reading_of_its_own(board, file, fields, content):  # jetson_stats #556, #567
    board.set(power_w=5.0, gpu_util=0.5, dram_bytes_per_s=1e9)
    path = board.current(2) if file == "current" else getattr(board, file)
    source = opened(board)
    board.put(path, content)
    sample = source.read()
    assert {name for name in READINGS if getattr(sample, name) is None} == fields
    assert set(source.missing) == fields
    board.remove(path)
    sample = source.read()
    assert {name for name in READINGS if getattr(sample, name) is None} == fields


def test_a_reading_that_comes_back_is_no_longer_missing(board, monkeypatch, caplog):
    monkeypatch.setattr(sysfs, "SEARCH_AGAIN_S", 0.0)
    source = opened(board)
    shutil.move(board.root / I2C / "hwmon/hwmon1", board.root / I2C / "hwmon/hwmon7")  # its driver came again
    assert source.read().power_w is None
    assert source.read().power_w is not None
    assert "power_w" not in source.missing
    assert len([message for message in caplog.messages if "no power_w" in message]) == 1


def test_0_w_from_a_rail_that_is_never_off_is_missing(board):  # codecarbon #378, #393, #608
    source = opened(board)
    board.put(board.current(2), 0)
    assert source.read().power_w is None


def test_a_sample_is_stamped_within_its_reading(board):  # nvitop #65
    source = opened(board)
    for _ in range(20):
        before_s, wall_s = time.monotonic(), time.time()
        sample = source.read()
        assert before_s <= sample.t_s <= time.monotonic()
        assert wall_s - 0.001 <= sample.wall_s <= time.time()


def test_a_load_of_0_at_high_power_is_not_believed(board, monkeypatch):  # jetson_stats PR #889
    monkeypatch.setattr(stuck_load, "DOUBT_S", 0.05)
    source = opened(board)
    source.read()
    board.set(power_w=6.0, gpu_util=0.9)
    assert source.read().gpu_util == 0.9
    board.put(board.load, 0)  # and the clock stays high
    assert source.read().gpu_util == 0.0
    time.sleep(0.06)
    assert source.read().gpu_util is None
    assert "stuck" in source.missing["gpu_util"]
    board.put(board.clock, 306_000_000)  # idle indeed: it is the CPU that works
    assert source.read().gpu_util == 0.0
    assert "gpu_util" not in source.missing


@given(st.binary(max_size=40))
def test_fuzz_a_file_is_a_plain_number_or_missing(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "value"
    path.write_bytes(content)
    value = sysfs.read_number(str(path), 0, 1e12)
    plain = re.fullmatch(rb"[ \t\n\r\f\v]*[+-]?[0-9]{1,18}(\.[0-9]{1,18})?[ \t\n\r\f\v]*", content)
    assert value is None or (plain and value == float(content) and 0 <= value <= 1e12)


FUZZED = st.sampled_from(["load", "clock", "rate", "activity", "volt", "label", "name"])


@settings(max_examples=40)
@given(st.dictionaries(FUZZED, st.binary(max_size=9)))
def test_fuzz_a_tree_is_read_or_refused(tree, contents):
    paths = {name: getattr(tree, name) for name in ("load", "clock", "rate", "activity")}
    paths |= {"volt": f"{I2C}/hwmon/hwmon1/in2_input", "label": f"{I2C}/hwmon/hwmon1/in2_label"}
    paths |= {"name": f"{I2C}/name"}
    files = {tree.root / paths[name]: content for name, content in contents.items()}
    before = {file: file.read_bytes() for file in files}
    for file, content in files.items():
        file.write_bytes(content)
    try:
        sample = opened(tree).read()
    except SourceError:
        assert {"name", "label"} & set(contents)
    else:
        values = [getattr(sample, name) for name in READINGS]
        assert all(value is None or (math.isfinite(value) and value >= 0) for value in values)
    finally:
        for file, content in before.items():
            file.write_bytes(content)


def test_a_machine_that_is_no_jetson_is_refused(tmp_path):
    with pytest.raises(SourceError, match="is this a Jetson"):
        open_source(f"sysfs:{tmp_path}")


def rows_of(trace):
    return list(zip(trace.t_s, trace.power_w, trace.gpu_util, trace.dram_bytes_per_s, strict=True))


@pytest.mark.recorded
def test_the_recorded_trace_through_the_tree_value_by_value(study_trace, tmp_path):
    board = Board(tmp_path / "sys")
    source = opened(board)
    last = (None, None, None)
    for _, *row in rows_of(study_trace)[::4]:
        board.set(*row)
        last = tuple(new if new is not None else old for new, old in zip(row, last, strict=True))
        power_w, gpu_util, dram_bytes_per_s = last
        sample = source.read()
        if power_w is not None:
            assert abs(sample.power_w - power_w) <= STEP_W / 2 + 1e-9
        if gpu_util is not None:
            assert sample.gpu_util == pytest.approx(gpu_util, abs=0.0005)
        if dram_bytes_per_s is not None:
            assert sample.dram_bytes_per_s == pytest.approx(dram_bytes_per_s, abs=16_000)


@pytest.mark.recorded
def test_the_recorded_trace_played_at_speed_shows_its_values_in_order(study_trace, tmp_path):
    shown = [round(power_w / STEP_W) * STEP_W for power_w in study_trace.power_w if power_w is not None]
    read = []
    with Player(study_trace, tmp_path / "sys", speed=300.0) as player:
        source = opened(player.board)
        while player.is_alive():
            read.append(source.read().power_w)
            time.sleep(0.001)
    read.append(source.read().power_w)
    assert read[-1] == pytest.approx(shown[-1])
    changes = [power_w for k, power_w in enumerate(read[1:], 1) if power_w != read[k - 1]]
    assert len(changes) > 100
    rest = iter(shown)
    assert all(any(power_w == pytest.approx(other) for other in rest) for power_w in changes)


def test_the_player_replaces_values_as_a_whole(tmp_path):
    steps = 400
    trace = Trace(
        t_s=tuple(0.001 * k for k in range(steps)),
        power_w=tuple(5.0 + k % 2 for k in range(steps)),
        gpu_util=(0.5,) * steps,
        dram_bytes_per_s=(None,) * steps,
    )
    with Player(trace, tmp_path / "sys") as player:
        source = opened(player.board)
        while player.is_alive():
            sample = source.read()
            assert sample.power_w is not None
            assert sample.dram_bytes_per_s == 0.0
