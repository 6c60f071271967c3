"""Every column is described once, and its bounds are kept on either side."""

from __future__ import annotations

import math

import pytest

from estimator_utils.datasets import columns, precision, runs_table
from estimator_utils.datasets.columns import RUNS, TRACE
from estimator_utils.datasets.dataset import DatasetError, Trace
from tests.support import synthetic

NUMBERS = [column for column in RUNS if column.unit not in ("text", "count")]


@pytest.mark.parametrize("table", [RUNS, TRACE])
def test_a_column_has_one_row_and_its_unit_in_its_name(table):
    names = [column.name for column in table]
    assert len(set(names)) == len(names)
    suffixes = {"s": "_s", "W": "_w", "J": "_j", "TB": "_tb", "TFLOP": "_tflop", "bytes/s": "_bytes_per_s"}
    for column in table:
        suffix = suffixes.get(column.unit, "")
        assert column.unit in ("text", "count", "1") or suffix in column.name, column.name


def test_a_trace_has_its_columns():
    assert set(columns.TRACE_COLUMNS) <= set(Trace.__dataclass_fields__)


@pytest.mark.parametrize("column", NUMBERS, ids=lambda column: column.name)
def test_a_number_at_a_bound_is_taken_and_one_beyond_it_is_refused(write_csv, column):
    for bound, beyond in ((column.low, math.nextafter(column.low, -math.inf)), (column.high, column.high * 1.001)):
        for value, is_right in ((bound, True), (beyond, False)):
            path = write_csv(synthetic.runs(3).assign(**{column.name: [1.0, value, 1.0]}))
            if is_right:
                assert runs_table.read(path)[column.name][1] == bound
            else:
                with pytest.raises(DatasetError, match=rf"row 2 \(run1\), column {column.name}: found"):
                    runs_table.read(path)


@pytest.mark.parametrize("column", [c for c in RUNS if c.choices], ids=lambda column: column.name)
def test_a_text_is_one_of_its_choices(write_csv, column):
    for choice in column.choices:
        assert runs_table.read(write_csv(synthetic.runs(1).assign(**{column.name: choice})))[column.name][0] == choice
    with pytest.raises(DatasetError, match=f"column {column.name}: found 'other'; expected {column.choices[0]}"):
        runs_table.read(write_csv(synthetic.runs(1).assign(**{column.name: "other"})))


def test_a_precision_costs_no_more_and_is_no_slower_than_fp32():
    single = precision.TABLE[precision.DEFAULT_PRECISION]
    for name, one in precision.TABLE.items():
        assert one.tensor_speed >= single.tensor_speed, name
        assert one.energy_ratio <= single.energy_ratio, name
        assert (one.autocast is None) == (one.operand_bytes == single.operand_bytes), name
