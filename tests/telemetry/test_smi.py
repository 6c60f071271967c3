"""Logs of nvidia-smi as people have them."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.factories import open_source
from estimator_utils.telemetry.smi import SmiLog
from estimator_utils.telemetry.source import SourceError

HEADER = "timestamp, power.draw [W], utilization.gpu [%], memory.used [MiB]"
DAY = "2025/07/27 00:34:"


def row(second, power="95.40 W", load="98 %", memory="1024 MiB", sep=", "):
    return sep.join([f"{DAY}{second:06.3f}", power, load, memory])


def log(path, lines, end="\n"):
    path.write_text("\n".join(lines) + end)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "smi.csv"


def test_a_log_of_one_gpu(path):
    source = open_source(f"smi:{log(path, [HEADER, row(45.155), row(45.657, '101.2 W', '7 %')])}")
    first, second = source
    assert (first.t_s, first.power_w, first.gpu_util) == (0.0, 95.4, 0.98)
    assert (second.t_s, second.power_w, second.gpu_util) == (pytest.approx(0.502), 101.2, 0.07)
    assert first.wall_s == datetime(2025, 7, 27, 0, 34, 45, 155000).timestamp()
    assert first.source == source.name
    assert (source.live, source.gpus, source.identity()["rail"]) == (False, ("0",), "GPU")
    # a share of time in which memory moved is no bandwidth
    assert (first.dram_activity, first.dram_bytes_per_s) == (None, None)
    assert {"dram_activity", "dram_bytes_per_s"} <= set(source.missing)
    with pytest.raises(SourceError, match="iterate"):
        source.read()


# netdata #15755: driver 535 renamed what it prints
@pytest.mark.parametrize(
    ("header", "cells", "power_w"),
    [
        ("power.draw [W]", "80.00 W", 80.0),
        ("power.draw [W]", "80.00", 80.0),  # nounits
        ("power.draw", "80", 80.0),
        ("power.draw.instant [W]", "80.5 W", 80.5),
        ("instant_power_draw", "80.5 W", 80.5),
        ("average_power_draw", "81 W", 81.0),
        ("power.draw.average [W], power.draw.instant [W]", "70 W, 80 W", 80.0),
        ("power.draw [W], power.draw.instant [W]", "70 W, [N/A]", 70.0),
        ("power.draw.average [W], power.draw [W]", "70 W, [N/A]", None),
        ("power.draw [mW]", "80000 mW", None),
        ("power.draw [mW]", "80000", None),
        ("power.draw [W]", "80000 mW", None),
        ("power.limit [W]", "300 W", None),
    ],
)
def test_names_and_units(path, header, cells, power_w):
    lines = [f"timestamp, {header}", f"{DAY}45.155, {cells}"]
    source = SmiLog(log(path, lines))
    (sample,) = source
    assert sample.power_w == power_w
    assert ("power_w" in source.missing) == (power_w is None)


def test_clocks_and_name(path):
    header = "timestamp, name, clocks.current.sm [MHz], clocks.current.memory [MHz]"
    source = SmiLog(log(path, [header, f"{DAY}45.155, NVIDIA H100 80GB HBM3, 1980 MHz, 2619 MHz"]))
    (sample,) = source
    assert (sample.gpu_clock_hz, sample.emc_clock_hz) == (1980e6, 2619e6)
    assert source.identity()["device"] == "NVIDIA H100 80GB HBM3"


NOTHING = ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU requires reset]"]
NOTHING += ["[Insufficient Permissions]", "", "nan", "inf", "-1 W", "9223372036854775807", "1e5 W"]


# carbontracker #36, nvidia_gpu_exporter #203, azhpc #77
@pytest.mark.parametrize("cell", NOTHING)
def test_a_cell_without_a_number_is_missing_and_logged_and_the_row_is_kept(path, cell, caplog):
    source = SmiLog(log(path, [HEADER, row(1), row(2, power=cell), row(3, load=cell), row(4)]))
    samples = list(source)
    assert [sample.power_w for sample in samples] == [95.4, None, 95.4, 95.4]
    assert [sample.gpu_util for sample in samples] == [0.98, 0.98, None, 0.98]
    assert [sample.t_s for sample in samples] == [0, 1, 2, 3]
    assert any("no power_w" in message for message in caplog.messages)


# dcgm-exporter #50, #216
@pytest.mark.parametrize("cell", ["[N/A]", "9223372036854776000 %", "101 %", "140737488355328.0"])
def test_the_load_under_mig_and_blank_values_are_missing(path, cell):
    (sample,) = SmiLog(log(path, [HEADER, row(1, load=cell)]))
    assert (sample.power_w, sample.gpu_util) == (95.4, None)


@pytest.mark.parametrize("cell", ["0.00 W", "0"])
def test_0_w_from_a_gpu_is_missing(path, cell):  # codecarbon #378
    (sample,) = SmiLog(log(path, [HEADER, row(1, power=cell, load="0 %")]))
    assert (sample.power_w, sample.gpu_util) == (None, 0.0)


def test_full_load_at_idle_power_is_real(path):
    (sample,) = SmiLog(log(path, [HEADER, row(1, power="110 W", load="100 %")]))
    assert (sample.power_w, sample.gpu_util) == (110.0, 1.0)


def test_a_load_of_0_at_high_power_is_not_believed_after_a_minute(path):
    lines = [row(1, power="60 W", load="0 %"), *(row(k, power="500 W", load="0 %") for k in range(2, 60))]
    lines += [row(k % 60, power="500 W", load="0 %").replace(":34:", ":35:") for k in range(60, 80)]
    samples = list(SmiLog(log(path, [HEADER, *lines])))
    assert all(sample.gpu_util == 0 for sample in samples[:60])
    assert samples[-1].gpu_util is None
    assert samples[-1].power_w == 500


def test_the_header_may_come_again_with_other_columns(path):
    other = "timestamp, utilization.gpu [%], power.draw [W]"
    path = log(path, [HEADER, row(1), HEADER, row(2), other, f"{DAY}03.000, 50 %, 60 W"])
    assert [(s.t_s, s.power_w, s.gpu_util) for s in SmiLog(path)] == [(0, 95.4, 0.98), (1, 95.4, 0.98), (2, 60, 0.5)]


def test_every_cut_of_the_last_line_leaves_the_others(path):
    last = row(2, "71.23 W", "42 %", "77 MiB")
    for length in range(len(last) + 1):
        log(path, [HEADER, row(1), last[:length]], end="")
        (sample,) = SmiLog(path)
        assert (sample.power_w, sample.gpu_util) == (95.4, 0.98)


def several(second, powers, columns=lambda k: ""):
    return [f"{DAY}{second + 0.004 * k:06.3f}, {columns(k)}{power}, 90 %, 1 MiB" for k, power in enumerate(powers)]


def test_gpus_by_position(path):
    lines = [HEADER, *several(1, ["100 W", "200 W"]), *several(1.1, ["101 W", "201 W"])]
    log(path, lines)
    with pytest.raises(SourceError, match=r"GPUs 0, 1, found ''.*#0"):
        SmiLog(path)
    assert [s.power_w for s in open_source(f"smi:{path}#0")] == [100, 101]
    second = open_source(f"smi:{path}#1")
    assert [s.power_w for s in second] == [200, 201]
    assert second.gpus == ("0", "1")
    with pytest.raises(SourceError, match="found '2'"):
        SmiLog(path, "2")


def test_a_lost_gpu_moves_no_other_into_its_place(path):  # NiceHashMiner #1695
    lost = "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost."
    lines = [HEADER, *several(1, ["100 W", "200 W", "300 W"]), *several(2, ["100 W", "300 W"]), lost]
    lines += [*several(3, ["100 W", "200 W", "300 W"])]
    log(path, lines)
    assert [s.power_w for s in SmiLog(path, "1")] == [200, None, 200]
    assert [s.power_w for s in SmiLog(path, "2")] == [300, None, 300]


@pytest.mark.parametrize("key", ["index", "uuid", "pci.bus_id"])
def test_gpus_by_a_column_and_a_lost_one(path, key):
    header = f"timestamp, {key}, power.draw [W], utilization.gpu [%], memory.used [MiB]"
    both = several(1, ["100 W", "200 W"], lambda k: f"G{k}, ")
    only = [several(s, ["101 W", "201 W"], lambda k: f"G{k}, ")[0] for s in (2, 3)]
    log(path, [header, *both, *only])
    source = SmiLog(path, "G1")
    assert source.gpus == ("G0", "G1")
    assert [(s.t_s, s.power_w) for s in source] == [
        (0, 200),
        (pytest.approx(0.996), None),
        (pytest.approx(1.996), None),
    ]
    assert [s.power_w for s in SmiLog(path, "G0")] == [100, 101, 101]


@pytest.mark.parametrize(("apart_s", "powers"), [(0.049, [100]), (0.051, [100, 101])])
def test_rows_within_50_ms_are_one_query(path, apart_s, powers):
    log(path, [HEADER, row(1, "100 W"), row(1 + apart_s, "101 W")])
    assert [s.power_w for s in SmiLog(path, "0")] == powers


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "header"),
        (row(1) + "\n", "header as"),  # noheader
        (HEADER + "\n", "found none"),
        ("RAM 1/7620MB GR3D_FREQ 62%@612\n", "header"),
        (HEADER.replace("timestamp", "time") + "\n" + row(1) + "\n", "header"),
    ],
)
def test_a_log_without_header_or_rows_is_refused(path, content, reason):
    path.write_text(content)
    with pytest.raises(SourceError, match=reason):
        SmiLog(path)


@given(st.lists(st.tuples(st.sampled_from(["95.40 W", *NOTHING]), st.sampled_from(["98 %", *NOTHING])), min_size=1))
def test_fuzz_missing_cells_never_become_numbers(tmp_path_factory, cells):
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    log(path, [HEADER, *(row(k % 60, power, load) for k, (power, load) in enumerate(cells))])
    samples = list(SmiLog(path))
    assert len(samples) == len(cells)
    for sample, (power, load) in zip(samples, cells, strict=True):
        assert sample.power_w == (95.4 if power == "95.40 W" else None)
        assert sample.gpu_util == (0.98 if load == "98 %" else None)
