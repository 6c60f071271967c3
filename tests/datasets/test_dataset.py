from __future__ import annotations

import csv
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.datasets import registry, runs_table
from estimator_utils.datasets.dataset import EVENTS, Metadata, Trace, read_index, sha256, write_dataset
from tests.support import synthetic

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
maybe = st.none() | numbers


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    times = sorted(draw(st.lists(st.floats(0, 1e6), max_size=8, unique=True)))
    channels = [tuple(draw(st.lists(maybe, min_size=len(times), max_size=len(times)))) for _ in range(3)]
    marks = {mark: draw(maybe) for mark in EVENTS[1:]}
    return Trace(tuple(times), *channels, run=draw(st.text(max_size=5)), **marks)


@given(traces())
def test_a_trace_comes_back_from_a_dataset_folder_as_it_was(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("trace")
    write_dataset(folder, Metadata("d"), {}, {"t": trace})
    assert registry.read_trace(folder / "traces" / "t.csv") == trace


def test_a_runs_table_comes_back_to_the_last_bit(tmp_path):
    table = synthetic.runs(5, noise=0.1)
    write_dataset(tmp_path, Metadata("d"), {"trial1": table.to_dict("records")}, {})
    read = runs_table.read(tmp_path / "trial1.csv")
    assert read.astype(object).equals(table.astype(object))


@pytest.mark.parametrize("missing", [None, math.nan])
def test_missing_is_an_empty_cell_and_never_zero(tmp_path, missing):
    row = {"run": "a", "duration_s": 0.0, "dram_tb": missing}
    write_dataset(tmp_path, Metadata("d"), {"t": [row]}, {})
    with (tmp_path / "t.csv").open(newline="") as file:
        cells = next(csv.DictReader(file))
    assert cells["dram_tb"] == ""
    assert cells["truth_tflop"] == ""
    assert cells["duration_s"] == "0.0"


def test_the_index_names_every_file_with_its_digest(tmp_path):
    about = Metadata("d", kind="simulated", device="a board", emc_clock_hz=3199e6)
    trace = Trace((0.0,), (1.0,), (None,), (None,), run="a", start_s=0.0)
    write_dataset(tmp_path, about, {"trial1": [{"run": "a"}]}, {"trace": trace})
    read, tables, marks = read_index(tmp_path / "dataset.json")
    assert read == about
    assert tables == {"trial1": {"path": "trial1.csv", "sha256": sha256(tmp_path / "trial1.csv")}}
    assert marks["trace"]["sha256"] == sha256(tmp_path / "traces" / "trace.csv")


def test_the_same_data_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_dataset(tmp_path / name, Metadata("d"), {"t": synthetic.runs(3).to_dict("records")}, {})
    for file in ("t.csv", "dataset.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert b"\r" not in (tmp_path / "a" / "t.csv").read_bytes()


def test_a_trace_without_a_folder_has_no_marks(tmp_path):
    path = tmp_path / "alone.csv"
    path.write_text("t_s,power_w,gpu_util,dram_bytes_per_s\n0,1.5,,\n")
    assert registry.read_trace(path) == Trace((0.0,), (1.5,), (None,), (None,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t_s,power_w,gpu_util\n0,1,1\n", r"missing columns \['dram_bytes_per_s'\]"),
        ("", "missing columns"),
        ("t_s,power_w,gpu_util,dram_bytes_per_s\n0,1,1,1\n1,much,1,1\n", "line 3, column power_w: .*'much'"),
        ("t_s,power_w,gpu_util,dram_bytes_per_s\n,1,1,1\n", "line 2, column t_s: the time is missing"),
        ("t_s,power_w,gpu_util,dram_bytes_per_s\n0,1,1,1\n2,1,1,1\n1,1,1,1\n", "line 4, column t_s"),
        ("t_s,power_w,gpu_util,dram_bytes_per_s\n0,nan,1,1\n", "line 2, column power_w"),
    ],
)
def test_a_bad_trace_is_refused_by_file_line_and_column(tmp_path, text, expected):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=expected) as caught:
        registry.read_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ['{"name": "d", "colour": "red"}', "[]", "{", "{}"])
def test_what_is_not_an_index_is_refused_by_name(tmp_path, text):
    path = tmp_path / "dataset.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"dataset\.json"):
        read_index(path)
