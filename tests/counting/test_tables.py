"""Chips, facts and prices: each row has a source, and chips have their published peaks."""

import pytest

from estimator_utils.counting import tables


@pytest.mark.parametrize("table", ["chips", "facts", "memory_prices"])
def test_every_row_has_a_source(table):
    assert [row for row in tables.rows(table) if not row["source"]] == []


def test_the_default_format_is_16_bit_where_the_chip_has_one():
    known = {"V100": "fp16", "A100": "bf16", "TPUv3": "bf16", "Orin-Nano": "fp32"}
    assert {chip: tables.default_format(chip) for chip in known} == known


def test_a_number_format_is_a_column_that_is_no_figure():
    assert tables.FORMATS == ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
    assert {*tables.CHIPS["H100"]} == {*tables.FORMATS, *tables.FIGURES}


def test_peaks_are_dense_and_never_zero():
    assert tables.peak_flop_per_s("A100", "fp32") == 19.5e12
    assert tables.peaks_tflop_per_s("V100") == {"fp64": 7.8, "fp32": 15.7, "fp16": 125}
    assert min(tables.peak_flop_per_s(chip) for chip in tables.CHIPS) > 1e12


def test_what_no_source_gives_is_none():
    assert tables.chip_figures("TPUv4")["rental_usd_per_h"] is None


def test_an_unknown_chip_and_format_are_refused_with_what_is_known():
    with pytest.raises(ValueError, match="unknown `chip` 'B900'; known: V100, A100, "):
        tables.peak_flop_per_s("B900")
    with pytest.raises(ValueError, match=r"'bf16': it has fp64, fp32, fp16; known formats: .*fp8"):
        tables.peak_flop_per_s("V100", "bf16")
