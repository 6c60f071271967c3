"""Traces in the study's format; its runs tables are read in test_runs_table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator_utils.datasets import registry


def write_study_trace(path: Path, **content: object) -> Path:
    channels = {"power_mw": [[0.0, 642.0], [0.5, 7000.0]], "gpu_pct": [[0.5, 98.0]], "dram_bytes_s": [[0.5, 1.33e9]]}
    path.write_text(json.dumps(channels | content))
    return path


def test_the_study_s_trace_becomes_watts_fractions_and_true_bytes(tmp_path):
    trace = registry.read_trace(write_study_trace(tmp_path / "t.json", t_launch=0.0, t_start=0.5, t_end=1.0))
    assert trace.t_s == (0.0, 0.5)
    assert trace.power_w == pytest.approx((0.642, 7.0))
    assert trace.gpu_util == (None, pytest.approx(0.98))
    assert trace.dram_bytes_per_s == (None, pytest.approx(1e11))
    assert (trace.launch_s, trace.start_s, trace.end_s) == (0.0, 0.5, 1.0)


def test_the_study_s_trace_may_lack_its_marks(tmp_path):
    assert registry.read_trace(write_study_trace(tmp_path / "t.json")).start_s is None


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON"])
def test_what_is_not_a_trace_of_the_study_is_refused_by_name(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json"):
        registry.read_trace(path)
