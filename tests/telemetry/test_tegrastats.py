"""tegrastats lines of every release, as they were published, and logs of them.

The program itself runs on Jetsons only: here a script writes its published lines instead.
"""

import sys
import time
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry import child, tegrastats
from estimator_utils.telemetry.factories import open_source
from estimator_utils.telemetry.source import SourceError
from estimator_utils.telemetry.tegrastats import Tegrastats, TegrastatsLog, parse_line

# name: line, rails in mW, GPU share, GPU MHz, EMC share, EMC MHz. The lines are shortened where shown.
LINES = {
    "TX1, L4T 28": (
        "RAM 3468/3983MB (lfb 48x4MB) SWAP 873/8192MB (cached 295MB) cpu [17%,13%,29%,5%]@408 EMC 1%@408"
        " APE 25 GR3D 3%@76",
        {}, 0.03, 76, 0.01, 408,
    ),
    "TX2, not root": (
        "RAM 2633/7850MB (lfb 3x4MB) CPU [0%@2035,0%@2035,0%@2035,0%@2035,0%@2035,0%@2035] BCPU@35C MCPU@35C"
        " GPU@41C PLL@35C AO@32C Tboard@29C Tdiode@31.25C PMIC@100C thermal@33.8C VDD_IN 3624/3624"
        " VDD_CPU 696/696 VDD_GPU 371/371 VDD_SOC 650/650 VDD_WIFI 0/0 VDD_DDR 881/881",
        {"VDD_IN": 3624, "VDD_CPU": 696, "VDD_GPU": 371, "VDD_SOC": 650, "VDD_WIFI": 0, "VDD_DDR": 881},
        None, None, None, None,
    ),
    "TX2, root": (
        "RAM 1/7850MB EMC_FREQ 0%@1866 GR3D_FREQ 0%@140 APE 150 MTS fg 1% bg 8% BCPU@41C VDD_IN 1931/1931"
        " VDD_CPU 231/231 VDD_GPU 154/154",
        {"VDD_IN": 1931, "VDD_CPU": 231, "VDD_GPU": 154}, 0.0, 140, 0.0, 1866,
    ),
    "TX2, newer": (
        "RAM 1/7850MB EMC_FREQ 1%@1866 GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 1% VDD_4V0_WIFI 633/527"
        " VDD_SYS_GPU 182/182 VDD_IN 5297/5297",
        {"VDD_4V0_WIFI": 633, "VDD_SYS_GPU": 182, "VDD_IN": 5297}, 0.0, 114, 0.01, 1866,
    ),
    "Nano, JetPack 4": (
        "RAM 958/3964MB (lfb 366x4MB) SWAP 0/4096MB (cached 0MB) IRAM 0/252kB(lfb 252kB)"
        " CPU [3%@1479,0%@1479,7%@1479,19%@1479] EMC_FREQ 0%@1600 GR3D_FREQ 0%@76 APE 25 PLL@24.5C CPU@27.5C"
        " PMIC@50C GPU@28.5C AO@29C thermal@28C POM_5V_IN 1537/1228 POM_5V_GPU 0/0 POM_5V_CPU 472/295",
        {"POM_5V_IN": 1537, "POM_5V_GPU": 0, "POM_5V_CPU": 472}, 0.0, 76, 0.0, 1600,
    ),
    "AGX Xavier, JetPack 4": (
        "RAM 1/31000MB CPU [1%@1190] EMC_FREQ 0% GR3D_FREQ 5% GPU@30C CPU@31C GPU 1155/1155 CPU 385/385"
        " SOC 2504/2503 CV 0/0 VDDRQ 192/192 SYS5V 2692/2692",
        {"GPU": 1155, "CPU": 385, "SOC": 2504, "CV": 0, "VDDRQ": 192, "SYS5V": 2692}, 0.05, None, None, None,
    ),
    "Xavier NX, JetPack 5": (
        "10-01-2025 19:41:42 RAM 1650/6834MB (lfb 20x2MB) SWAP 441/3417MB (cached 1MB)"
        " CPU [29%@1189,22%@1189,17%@1190,22%@1189,off,off] EMC_FREQ 0%@1600 GR3D_FREQ 0%@[114] VIC_FREQ 115"
        " APE 150 AUX@41C CPU@43.5C thermal@42.2C AO@42C GPU@42C PMIC@50C VDD_IN 4552mW/4552mW"
        " VDD_CPU_GPU_CV 637mW/637mW VDD_SOC 1236mW/1236mW",
        {"VDD_IN": 4552, "VDD_CPU_GPU_CV": 637, "VDD_SOC": 1236}, 0.0, 114, 0.0, 1600,
    ),
    "Orin NX, JetPack 5": (
        "RAM 1/15000MB EMC_FREQ 0%@2133 GR3D_FREQ 0%@305 GR3D2_FREQ 0%@0 VIC_FREQ 115 APE 174 CV0@42.718C"
        " CV1@-256C VDD_IN 4915mW/4915mW",
        {"VDD_IN": 4915}, 0.0, 305, 0.0, 2133,
    ),
    "Orin Nano, JetPack 6, not root": (
        "07-14-2025 10:29:36 RAM 2147/7620MB (lfb 2x4MB) SWAP 1476/3810MB (cached 1MB)"
        " CPU [0%@729,0%@729,0%@729,0%@729,0%@729,0%@729] GR3D_FREQ 0% cpu@47.687C soc2@47C tj@48.625C"
        " soc1@48.25C VDD_IN 4556mW/4556mW VDD_CPU_GPU_CV 483mW/483mW VDD_SOC 1451mW/1451mW",
        {"VDD_IN": 4556, "VDD_CPU_GPU_CV": 483, "VDD_SOC": 1451}, 0.0, None, None, None,
    ),
    "Orin Nano, later": ("RAM 1/7620MB GR3D_FREQ 62%@612", {}, 0.62, 612, None, None),
    "Orin Nano, root, 15 W": (
        "10-08-2026 04:35:02 RAM 6712/7620MB EMC_FREQ 61%@2133 GR3D_FREQ 99%@[612] NVDEC off NVJPG off VIC"
        " off OFA off APE 200 tj@60C VDD_IN 16321mW/11204mW VDD_CPU_GPU_CV 7104mW/4944mW VDD_SOC"
        " 3120mW/3659mW",
        {"VDD_IN": 16321, "VDD_CPU_GPU_CV": 7104, "VDD_SOC": 3120}, 0.99, 612, 0.61, 2133,
    ),
    "Orin Nano, root": (
        "RAM 1/7620MB EMC_FREQ 5%@2133 GR3D_FREQ 12%@[306] NVDEC off NVJPG off NVJPG1 off VIC off OFA off"
        " APE 200",
        {}, 0.12, 306, 0.05, 2133,
    ),
    "Orin Nano, 25 W": ("RAM 1/7620MB EMC_FREQ 8%@3199 GR3D_FREQ 99%@[911]", {}, 0.99, 911, 0.08, 3199),
    "AGX Orin, JetPack 6": (
        "07-21-2025 16:33:42 RAM 17953/62841MB (lfb 9x4MB) SWAP 0/31420MB (cached 0MB) CPU [7%@1728,31%@1036,"
        "7%@1036,42%@1036,4%@1420,5%@729,6%@729,1%@729,off,off,off,off] EMC_FREQ 12%@204 GR3D_FREQ"
        " 39%@[305,0] NVENC off NVDEC off NVJPG off NVJPG1 off VIC off OFA off NVDLA0 off NVDLA1 off"
        " PVA0_FREQ off APE 174 cpu@43.906C soc2@40.406C soc0@41.187C gpu@40.093C tj@43.906C soc1@40.437C"
        " VDD_GPU_SOC 2798mW/2798mW VDD_CPU_CV 799mW/799mW VIN_SYS_5V0 3315mW/3315mW",
        {"VDD_GPU_SOC": 2798, "VDD_CPU_CV": 799, "VIN_SYS_5V0": 3315}, 0.39, 305, 0.12, 204,
    ),
    "AGX Orin, JetPack 5": ("RAM 1/62841MB NC 0mW/0mW VDD_GPU_SOC 1mW/1mW NC 0mW/0mW", {"VDD_GPU_SOC": 1},
                            None, None, None, None),
    "AGX Orin, JetPack 7.2": (
        "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,5%@2201] EMC_FREQ 3%@3199 GR3D_FREQ"
        " 12%@[1300,1300] NVENC0 off NVDEC0 off NVDLA0 off PVA0_FREQ off APE 174 cpu@52.968C/52.968C"
        " VDD_GPU_SOC 5139mW/5140mW/5141mW",
        {"VDD_GPU_SOC": 5139}, 0.12, 1300, 0.03, 3199,
    ),
    "Thor, busy": (
        "RAM 1/125000MB CPU [90%@2601,75%@2601,off] EMC_FREQ 34%@4266 GR3D_FREQ 87%@[1574,1574,1574]"
        " NVENC0_FREQ @1691 VIC off VDD_GPU 37939mW/8660mW/37940mW VDD_CPU_SOC_MSS 30059mW/1mW/30059mW"
        " VIN 124486mW/1mW/124486mW",
        {"VDD_GPU": 37939, "VDD_CPU_SOC_MSS": 30059, "VIN": 124486}, 0.87, 1574, 0.34, 4266,
    ),
    "Thor, idle": (
        "RAM 1/125000MB CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ @[1574,1574,1574]",
        {}, None, 1574, None, 4266,
    ),
    "R39.2 documentation": (
        "RAM 1/1MB GR3D_FREQ 12 %@[1300, 1300] EMC_FREQ 3%@3199", {}, 0.12, 1300, 0.03, 3199,
    ),
}  # fmt: skip
ORIN = LINES["Orin Nano, root, 15 W"][0]


@pytest.mark.parametrize("board", LINES)
def test_every_published_form_is_read(board):  # jetson_stats PR #894, beszel #286 and #1631
    text, rails, gpu_share, gpu_mhz, emc_share, emc_mhz = LINES[board]
    line = parse_line(text)
    assert line.power_mw == rails
    assert (line.gpu_util, line.emc_share) == (gpu_share, emc_share)
    assert line.gpu_clock_hz == (gpu_mhz and gpu_mhz * 1e6)
    assert line.emc_clock_hz == (emc_mhz and emc_mhz * 1e6)
    assert (line.wall_s is not None) == text[:2].isdigit()


@pytest.mark.parametrize("board", LINES)
def test_an_unknown_token_is_skipped_alone(board):  # datadog-agent #52046
    text = LINES[board][0]
    known = parse_line(text)
    words = text.split(" ")
    for where in (2, len(words)):  # a value may follow its name, so not in between
        for token in ("NEW_THING off", "XPU 3%@[1,2]", "XPU_FREQ @17", "{}", "VDD_NEW 4.5W/4.5W", "xpu@C"):
            words_with = [*words[:where], token, *words[where:]]
            assert parse_line(" ".join(words_with if where > 2 else [*words, token])) == known


def test_two_gpus_are_not_added():  # jetson_stats #362
    assert parse_line("RAM 1/1MB GR3D_FREQ 40%@305 GR3D2_FREQ 40%@305").gpu_util == 0.4
    assert parse_line("RAM 1/1MB GR3D2_FREQ 40%@305").gpu_util is None


def test_a_share_above_100_of_the_emc_is_not_clamped_and_one_of_the_gpu_is_no_share():
    assert parse_line("RAM 1/1MB EMC_FREQ 636%@204").emc_share == 6.36
    assert parse_line("RAM 1/1MB GR3D_FREQ 250%@[305]").gpu_util is None


@pytest.mark.parametrize(
    ("token", "share", "mhz"),
    [
        ("EMC_FREQ 0%", None, None),  # JetPack 5 writes so to all but root
        ("EMC_FREQ 7%", 0.07, None),
        ("EMC_FREQ 0%@2133", 0.0, 2133),
        ("EMC_FREQ @2133", None, 2133),
        ("EMC_FREQ off", None, None),
        ("", None, None),
    ],
)
def test_unknown_emc_is_kept_apart_from_zero(token, share, mhz):
    line = parse_line(f"RAM 1/1MB {token} APE 200")
    assert (line.emc_share, line.emc_clock_hz) == (share, mhz and mhz * 1e6)


@pytest.mark.parametrize("text", ["", "\n", "sudo: tegrastats: command not found", "VDD_IN 1mW/1mW", "RAM"])
def test_other_lines_are_none(text):
    assert parse_line(text) is None


def write(path, lines, end="\n"):
    path.write_text("\n".join(lines) + end)
    return path


def test_a_log_gives_power_now_and_true_bytes(tmp_path):
    source = open_source(f"tegrastats:{write(tmp_path / 'log', [ORIN])}")
    (sample,) = source
    assert sample.power_w == 7.104  # and not 4.944, the mean since the start
    assert sample.gpu_util == 0.99
    assert sample.dram_activity == 0.61
    assert sample.dram_bytes_per_s == pytest.approx(0.61 * 2133e6 * 32)
    assert sample.wall_s == datetime(2026, 10, 8, 4, 35, 2).timestamp()
    assert sample.source == source.name
    assert source.identity()["rail"] == "VDD_CPU_GPU_CV"
    with pytest.raises(SourceError, match="iterate"):
        source.read()


def test_bytes_are_unknown_on_other_boards(tmp_path):
    path = write(tmp_path / "log", [LINES["AGX Orin, JetPack 6"][0]])
    source = open_source(f"tegrastats:{path}", rail="VDD_GPU_SOC")
    (sample,) = source
    assert (sample.dram_activity, sample.dram_bytes_per_s) == (0.12, None)
    assert "Orin Nano" in source.missing["dram_bytes_per_s"]


def test_the_input_rail_and_its_children_are_not_summed(tmp_path):  # jetson_stats #51
    path = write(tmp_path / "log", [LINES["Nano, JetPack 4"][0]])
    assert next(iter(open_source(f"tegrastats:{path}", rail="POM_5V_IN"))).power_w == 1.537
    assert next(iter(open_source(f"tegrastats:{path}", rail="POM_5V_GPU"))).power_w == 0.0  # gated, truly


def test_another_rail_is_refused_and_none_made_up(tmp_path):  # jetson_stats #344
    path = write(tmp_path / "log", [LINES["AGX Orin, JetPack 6"][0]])
    with pytest.raises(SourceError, match=r"'VDD_CPU_GPU_CV'.*VDD_CPU_CV.*VDD_GPU_SOC.*VIN_SYS_5V0"):
        open_source(f"tegrastats:{path}")


def test_a_rail_that_is_lost_or_0_w_is_missing(tmp_path):
    lost = ORIN.replace("VDD_CPU_GPU_CV 7104mW/4944mW ", "")
    off = ORIN.replace("7104mW", "0mW")
    source = open_source(f"tegrastats:{write(tmp_path / 'log', [ORIN, lost, off, ORIN])}")
    samples = list(source)
    assert [sample.power_w for sample in samples] == [7.104, None, None, 7.104]
    assert all(sample.gpu_util == 0.99 for sample in samples)


def stamped(*stamps):
    return [f"{stamp} {ORIN[20:]}" for stamp in stamps]


def test_lines_of_one_second_are_spread_and_steps_of_two_are_normal(tmp_path):
    day = "10-08-2026 04:35:"
    path = write(tmp_path / "log", stamped(*(f"{day}{s:02}" for s in (1, 2, 2, 3, 3, 5, 6))))
    assert [sample.t_s for sample in TegrastatsLog(path)] == [0, 1, 1.5, 2, 2.5, 4, 5]


def test_undated_lines_are_a_step_apart(tmp_path):
    path = write(tmp_path / "log", [LINES["Nano, JetPack 4"][0]] * 3)
    source = open_source(f"tegrastats:{path}#0.5", rail="POM_5V_CPU")
    assert [(sample.t_s, sample.wall_s) for sample in source] == [(0, None), (0.5, None), (1, None)]


def test_every_cut_of_the_last_line_gives_its_readings_or_none(tmp_path):
    path = tmp_path / "log"
    whole = parse_line(ORIN)
    for length in range(len(ORIN) + 1):
        path.write_text(f"{ORIN}\n{ORIN[:length]}")
        for sample in list(TegrastatsLog(path))[1:]:
            assert sample.power_w in (7.104, None)
            assert sample.gpu_util in (0.99, None)
            assert sample.gpu_clock_hz in (whole.gpu_clock_hz, None)
            assert sample.dram_activity in (0.61, None)
            assert sample.emc_clock_hz in (2133e6, None)
            assert sample.dram_bytes_per_s in (0.61 * 2133e6 * 32, None)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"timestamp, power.draw [W]\n", bytes(range(256))])
def test_a_file_without_lines_is_refused(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="tegrastats"):
        open_source(f"tegrastats:{path}")


def test_a_bad_step_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"#SECONDS.*#soon"):
        open_source(f"tegrastats:{tmp_path / 'log'}#soon")


NOISE = ["EMC_FREQ 0%", "12 %@[1,", "@", "%", "/", "off", "٣%@٣", "1_0mW/1mW"]


@given(st.lists(st.sampled_from([*ORIN.split(" "), *NOISE])))
def test_fuzz_tokens_in_any_order_make_no_number_of_a_missing_reading(tokens):
    line = parse_line(" ".join(tokens))
    if line is None:
        return
    assert set(line.power_mw.values()) <= {16321, 7104, 3120}
    assert line.gpu_util in (None, 0.99, 0.61, 0.12)
    if "GR3D_FREQ" not in tokens:
        assert (line.gpu_util, line.gpu_clock_hz) == (None, None)
    if not {"EMC_FREQ", "EMC_FREQ 0%"} & set(tokens):
        assert (line.emc_share, line.emc_clock_hz) == (None, None)
    if "VDD_CPU_GPU_CV" not in tokens:
        assert "VDD_CPU_GPU_CV" not in line.power_mw


SCRIPT = """
import sys, time
lines = {lines!r}
for line in lines:
    sys.stdout.write(line + chr(10)); sys.stdout.flush(); time.sleep({step_s})
time.sleep({then_s})
"""


def program(lines, step_s=0.05, then_s=60.0):
    return [sys.executable, "-c", SCRIPT.format(lines=lines, step_s=step_s, then_s=then_s)]


LONG_S = 60.0  # for a machine that is busy with other work; what is awaited comes at once


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(child, "BACKOFF_S", (0.05, 0.1))
    monkeypatch.setattr(tegrastats, "SILENCE_S", LONG_S)
    monkeypatch.setattr(tegrastats, "INTERVAL_S", 0.05)


def until(source, power_w):
    """Read until the power is as wanted; return the reasons why it was missing on the way."""
    reasons, deadline_s = set(), time.monotonic() + LONG_S
    while source.read().power_w != power_w:
        assert time.monotonic() < deadline_s, reasons
        reasons.add(source.missing.get("power_w", ""))
    return reasons | {source.missing.get("power_w", "")}


def test_the_program_is_read_line_by_line(quick, monkeypatch):
    monkeypatch.setattr(tegrastats, "INTERVAL_S", LONG_S / 3)  # a read waits for as long
    lines = [ORIN.replace("7104mW", f"{7000 + k}mW") for k in range(200)]
    with Tegrastats(command=program(lines, step_s=0.02)) as source:
        samples = [source.read() for _ in range(5)]
    powers = [sample.power_w for sample in samples]
    assert powers == sorted(set(powers)), powers  # each read waits for a new line
    assert all(b.t_s > a.t_s for a, b in pairwise(samples))


def test_a_program_that_ends_is_a_gap_and_is_started_again(quick):
    with Tegrastats(command=program([ORIN] * 3, then_s=0.0)) as source:
        until(source, 7.104)
        while not source._child.failures:
            until(source, None)
        assert any(reason.startswith("no new line: ") and reason.endswith(" ended") for reason in until(source, None))
        until(source, 7.104)
        assert "power_w" not in source.missing


def test_a_program_that_falls_silent_is_a_gap(quick):
    with Tegrastats(command=program([ORIN] * 4)) as source:
        until(source, None)
        assert source.missing["power_w"].startswith("no new line: ")


def test_no_program_one_without_lines_and_another_rail_are_refused(quick):
    with pytest.raises(SourceError, match="cannot start no-such-program"):
        Tegrastats(command=["no-such-program"])
    with pytest.raises(SourceError, match="found none: true ended"):
        Tegrastats(command=["true"])
    with pytest.raises(SourceError, match="'VDD_GPU'"):
        Tegrastats(rail="VDD_GPU", command=program([ORIN]))
