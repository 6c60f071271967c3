from __future__ import annotations

import json
import math
import re

import pandas as pd
import pytest

from estimator_utils.datasets import runs_table
from estimator_utils.datasets.columns import COUNT_COLUMNS, RUN_COLUMNS, RUNS, TRUTH
from estimator_utils.datasets.dataset import DatasetError
from tests.support import synthetic

RECORD = {
    "label": "a",
    "config": {"d_model": 256, "batch_size": 16, "seq_len": 128, "num_layers": 3, "steps": 4000},
    "duration_s": 400.0,
    "idle_baseline_mw": 642.0,
    "net_energy_j": 2800.0,
    "peak_raw_mw": 9000.0,
    "avg_gpu_pct": 95.0,
    "tb_moved": 0.133,
    "ground_truth_tf": 290.0,
}


@pytest.fixture
def write_study(tmp_path):
    def write(*records, name="records.json"):
        path = tmp_path / name
        path.write_text(json.dumps({"records": records}))
        return path

    return write


def test_a_csv_in_any_order_with_further_columns_is_the_same_table(write_csv, runs):
    jumbled = runs[runs.columns[::-1]].assign(remark="x")
    read = runs_table.read(write_csv(jumbled))
    pd.testing.assert_frame_equal(read, runs, check_dtype=False, check_exact=True)


def test_what_the_operator_alone_knows_may_be_left_out(write_csv, runs):
    bare = runs.drop(columns=[*COUNT_COLUMNS, "optimizer"])
    read = runs_table.read(write_csv(bare))
    assert list(read.columns) == list(RUN_COLUMNS)
    assert read.d_model.isna().all()


def test_missing_stays_missing_and_zero_stays_zero(write_csv, runs):
    runs.loc[0, "dram_tb"] = None
    runs.loc[1, "dram_tb"] = 0.0
    read = runs_table.read(write_csv(runs))
    assert math.isnan(read.dram_tb[0])
    assert read.dram_tb[1] == 0


def test_truth_may_be_missing_where_it_is_to_be_estimated(write_csv, runs):
    path = write_csv(runs.drop(columns="truth_tflop"))
    assert runs_table.read(path, need_truth=False).truth_tflop.isna().all()
    with pytest.raises(DatasetError, match="missing column truth_tflop"):
        runs_table.read(path)


def test_a_record_of_the_study_becomes_watts_fractions_and_true_bytes(write_study):
    row = runs_table.read(write_study(RECORD)).iloc[0]
    assert (row.run, row.n_heads, row.d_ff, row.optimizer, row.precision) == ("a", 4, 512, "adamw", "fp32")
    assert (row.duration_s, row.energy_net_j, row.truth_tflop) == (400.0, 2800.0, 290.0)
    assert (row.idle_power_w, row.power_peak_w, row.gpu_util) == pytest.approx((0.642, 9.0, 0.95))
    assert row.dram_tb == pytest.approx(10.0)


def test_a_record_says_what_differs_from_the_default(write_study):
    config = {**RECORD["config"], "nhead": 8, "dim_feedforward": 4096, "optimizer": "sgd", "precision": "tf32"}
    row = runs_table.read(write_study({**RECORD, "config": config})).iloc[0]
    assert (row.n_heads, row.d_ff, row.optimizer, row.precision) == (8, 4096, "sgd", "tf32")


REQUIRED = tuple(column.name for column in RUNS if column.required or column is TRUTH)


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_named(write_csv, runs, column):
    path = write_csv(runs.drop(columns=column))
    with pytest.raises(DatasetError, match=f"board.csv: missing column {column}; .*leave a cell empty"):
        runs_table.read(path)


@pytest.mark.parametrize("column", ["truth_tflop", "duration_s", "energy_net_j"])
@pytest.mark.parametrize("value", [None, 0.0, -3.5, math.inf, "much"])
@pytest.mark.parametrize("form", ["csv", "study"])
def test_a_bad_value_is_named_by_file_row_and_column(write_csv, write_study, form, column, value):
    if form == "csv":
        table = synthetic.runs(3).astype(object)
        table.loc[1, column] = value
        path, run = write_csv(table), "run1"
    else:
        name = {"truth_tflop": "ground_truth_tf", "energy_net_j": "net_energy_j"}.get(column, column)
        path, run = write_study(RECORD, {**RECORD, "label": "b", name: value}), "b"
    with pytest.raises(DatasetError) as caught:
        runs_table.read(path)
    found = {None: "nothing"}.get(value, f"{value!r}")
    row = 2
    assert str(caught.value).startswith(f"{path}, row {row} ({run}), column {column}: found {found}; expected a ")


def test_one_record_alone_with_nothing_in_a_column_is_named_too(write_study):
    with pytest.raises(DatasetError, match=r"row 1 \(a\), column truth_tflop: found nothing"):
        runs_table.read(write_study({**RECORD, "ground_truth_tf": None}))


@pytest.mark.parametrize("name", [key for key in RECORD if key not in ("label", "config")])
def test_a_field_that_a_record_lacks_is_named_with_the_record(write_study, name):
    lacking = {key: value for key, value in RECORD.items() if key != name} | {"label": "b"}
    with pytest.raises(DatasetError, match=rf"records\.json, row 2 \(b\).*{name}"):
        runs_table.read(write_study(RECORD, lacking))


def test_a_reading_that_the_study_lacks_is_missing(write_study):
    row = runs_table.read(write_study({**RECORD, "tb_moved": None, "avg_gpu_pct": None})).iloc[0]
    assert math.isnan(row.dram_tb)
    assert math.isnan(row.gpu_util)


@pytest.mark.parametrize(
    ("column", "value", "advice"),
    [
        ("gpu_util", 95.0, "fraction"),
        ("gpu_util", -0.1, "fraction"),
        ("dram_tb", -1.0, "negative"),
        ("idle_power_w", -0.642, "negative"),
        ("precision", "FP32", "fp32, tf32, fp16 or bf16"),
        ("precision", "int4", "fp32, tf32, fp16 or bf16"),
        ("gpu_util", "high", "expected a number or nothing"),
        ("d_model", "wide", "expected a number or nothing"),
        ("d_model", -3, "positive integer"),
        ("d_model", 3.7, "positive integer"),
        ("optimizer", "lion", "adamw or sgd"),
        ("energy_net_j", 1e308, "1e-09 to 1e"),
        ("truth_tflop", 1e-300, "1e-09 to 1e"),
        ("dram_tb", 1e300, "nor above 1e"),
    ],
)
def test_a_value_in_another_unit_or_spelling_is_named(write_csv, column, value, advice):
    table = synthetic.runs(3).astype(object)
    table.loc[2, column] = value
    with pytest.raises(
        DatasetError, match=rf"board\.csv, row 3 \(run2\), column {column}: found {re.escape(repr(value))}; .*{advice}"
    ):
        runs_table.read(write_csv(table))


@pytest.mark.parametrize("form", ["csv", "study"])
def test_two_runs_of_one_name_are_refused(write_csv, write_study, form):
    if form == "csv":
        table = synthetic.runs(4)
        table.loc[3, "run"] = "run1"
        path, expected = write_csv(table), r"row 4 \(run1\), column run: found 'run1'; names must be unique"
    else:
        path, expected = write_study(RECORD, RECORD), r"row 2 \(a\), column run: found 'a'; names must be unique"
    with pytest.raises(DatasetError, match=expected):
        runs_table.read(path)


def test_a_run_without_a_name_is_refused(write_csv, runs):
    runs.loc[1, "run"] = None
    with pytest.raises(DatasetError, match=r"row 2 .*, column run: found nothing; every run needs a name"):
        runs_table.read(write_csv(runs))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", " , "),
        lambda text: "\n".join(line + "," * (k > 0) for k, line in enumerate(text.splitlines())),
        lambda text: text.replace("fp32", "fp32  "),
        lambda text: "\ufeff" + text,
    ],
)
def test_spaces_and_trailing_commas_change_nothing(write_csv, runs, change):
    path = write_csv(runs)
    path.write_text(change(path.read_text()))
    pd.testing.assert_frame_equal(runs_table.read(path), runs, check_dtype=False, check_exact=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: lines[:1], "holds no runs"),
        (lambda lines: [line + "," + line.split(",")[1] for line in lines], "column d_model is there twice"),
        (lambda lines: [lines[0] + ", d_model ", *(line + ",1" for line in lines[1:])], "d_model is there twice"),
        (lambda lines: [*lines[:3], lines[3] + ",1,2", *lines[4:]], "Expected 17 fields in line 4, saw 19"),
        (lambda lines: [lines[0], *(line + ",1" for line in lines[1:])], "not a CSV .*column names"),
        (lambda lines: [*lines, "é"], "utf-8.*save it as CSV in UTF-8"),
    ],
)
def test_a_csv_that_is_no_table_is_refused_in_one_line(write_csv, runs, change, expected):
    path = write_csv(runs)
    path.write_text("\n".join(change(path.read_text().splitlines())), encoding="latin-1")
    with pytest.raises(DatasetError, match=rf"^[^\n]*board\.csv: [^\n]*{expected}[^\n]*$"):
        runs_table.read(path)


@pytest.mark.parametrize("text", ["", "\n", "run,run\x00", '"unclosed\n1,2', "\xff\xfe"])
def test_what_is_not_a_csv_is_refused_by_name(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=r"bad\.csv: (not a CSV|missing column)"):
        runs_table.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"records": null}',
        '{"records": [null]}',
        '{"records": [1]}',
        '{"records": {"a": 1}}',
        '{"records": [{}]}',
    ],
)
def test_what_is_not_in_the_study_s_format_is_refused_by_name(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DatasetError, match=r"bad\.json.*(not in the study's record format|study)"):
        runs_table.read(path)
