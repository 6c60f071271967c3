"""The jtop source beside a child that a script stands for; the real service is in `test_jtop_service`."""

import json
import time

import pytest

from estimator_utils.telemetry import child
from estimator_utils.telemetry import jtop as jtop_source
from estimator_utils.telemetry.jtop import Jtop, _value
from estimator_utils.telemetry.source import SourceError

BOARD = {"rails": ["VDD_CPU_GPU_CV", "VDD_IN"], "device": "Orin Nano", "power_mode": "25W", "gpu_clock_hz": 918e6}
READING = {"power_w": 7.1, "gpu_util": 0.98, "gpu_clock_hz": 918e6, "emc_clock_hz": 3199e6}
LONG_S = 60.0  # for a machine that is busy with other work; what is awaited comes at once


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(child, "BACKOFF_S", (0.05, 0.1))
    monkeypatch.setattr(jtop_source, "OPEN_S", LONG_S)
    monkeypatch.setattr(jtop_source, "SILENCE_S", LONG_S)


def source_of(tmp_path, *messages, then="sleep 0.05", **options):
    """The source beside a child that writes some messages again and again."""
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps({kind: value}) + "\n" for kind, value in messages))
    return Jtop(launch=["sh", "-c", f"while :; do cat {lines}; {then}; done"], **options)


def until(source, wanted):
    deadline_s = time.monotonic() + LONG_S
    while time.monotonic() < deadline_s:
        if wanted(sample := source.read()):
            return sample
    raise AssertionError(source.missing)


def test_the_child_s_reading_is_the_sample_and_the_share_of_the_emc_is_never_jtops(tmp_path):
    with source_of(tmp_path, ("board", BOARD), ("reading", READING)) as source:
        sample = until(source, lambda sample: sample.power_w is not None)
        assert {name: getattr(sample, name) for name in READING} == READING
        assert set(source.missing) == {"dram_activity", "dram_bytes_per_s"}
        assert source.identity() == {
            "device": "Orin Nano",
            "rail": "VDD_CPU_GPU_CV",
            "power_mode": "25W",
            "gpu_clock_hz": 918e6,
            "emc_clock_hz": None,
        }


def test_a_field_without_a_reading_is_missing_with_its_own_reason(tmp_path):
    lost = {**READING, "power_w": None}
    with source_of(tmp_path, ("board", BOARD), ("reading", lost)) as source:
        sample = until(source, lambda sample: sample.gpu_util is not None)
        assert sample.power_w is None
        assert "VDD_CPU_GPU_CV is gone" in source.missing["power_w"]


@pytest.mark.parametrize(
    ("message", "then", "reason"),
    [
        (("lost", "the service gives the same for 30 s"), "sleep 0.05", "gives the same for 30 s"),
        (("error", "JtopException: Lost connection"), "sleep 0.05", "no new reading: JtopException: Lost connection"),
        (("reading", {}), "exit 1", "no new reading: sh ended"),
    ],
)
def test_without_a_reading_all_is_missing_with_the_child_s_reason(tmp_path, message, then, reason):
    with source_of(tmp_path, ("board", BOARD), message, then=then, interval_s=0.01) as source:
        sample = until(source, lambda _: reason in source.missing["power_w"])
        assert (sample.power_w, sample.gpu_util, sample.gpu_clock_hz, sample.emc_clock_hz) == (None,) * 4
        assert source.missing["gpu_util"] == source.missing["power_w"]
        assert "always 0" in source.missing["dram_activity"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([("board", {**BOARD, "rails": ["VDD_IN"]})], r"'VDD_CPU_GPU_CV', found 0; the board has \['VDD_IN'\].*`rail`"),
        ([("error", "JtopException: not active")], "jtop: JtopException: not active"),
    ],
)
def test_a_board_without_the_rail_and_a_service_that_fails_are_refused(tmp_path, messages, reason):
    with pytest.raises(SourceError, match=reason):
        source_of(tmp_path, *messages)


def test_a_child_that_ends_before_a_word_is_refused_with_its_end(tmp_path):
    with pytest.raises(SourceError, match="jtop: sh ended"):
        source_of(tmp_path, then="exit 1")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ({"freq": {"cur": 918000}}, 918e6),
        ({"freq": {"cur": 0}}, None),
        ({"freq": {"cur": True}}, None),
        ({"freq": {"cur": "918000"}}, None),
        ({"freq": {"cur": float("nan")}}, None),
        ({"freq": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_number_of_an_answer_is_scaled_and_all_else_is_missing(answer, value):  # jetson_stats #556, #567
    assert _value(answer, "freq", "cur", scale=1e3, low=1.0) == value
