from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.source import SourceError
from estimator_utils.telemetry.text import POWER_MAX_W, number, plausible_power_w, read_lines, unix_time_s


@given(st.decimals(-1e9, 1e9, places=3), st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_a_plain_number_is_itself_within_its_bounds_and_else_missing(value, low, high):
    inside = low <= float(value) <= high
    assert number(f" {value:f}\n", low, high) == (float(value) if inside else None)


@pytest.mark.parametrize("text", ["", " ", "0x1", "1,5", "--1", "+-1", "1e5", "inf", "NaN", "1_000", "²", "1.", ".5"])
def test_what_is_no_plain_number_is_missing(text):
    assert number(text, -1e9, 1e9) is None


# codecarbon #378, #393, #608: a rail that is never off has no 0 W
@pytest.mark.parametrize(
    ("rail", "power_w"), [("VDD_GPU", 0.0), ("POM_5V_GPU", 0.0), ("VDD_IN", None), ("VDD_SOC", None)]
)
def test_0_w_is_a_reading_only_of_a_rail_that_can_be_off(rail, power_w):
    assert plausible_power_w(0.0, rail) == power_w


@pytest.mark.parametrize("sign", [1, -1])
def test_a_power_that_no_board_draws_is_missing(sign):
    assert plausible_power_w(sign * POWER_MAX_W, "VDD_GPU") is None
    assert plausible_power_w(sign * (POWER_MAX_W - 1), "VDD_GPU") == sign * (POWER_MAX_W - 1)


def test_a_file_is_read_line_by_line_with_the_ends_it_has(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\xff\nlast")
    assert list(read_lines(path)) == ["first\n", "\ufffd\n", "last"]
    with pytest.raises(SourceError, match=r"cannot read .*missing: No such file"):
        list(read_lines(tmp_path / "missing"))


def test_a_stamp_is_read_in_local_time_and_another_text_is_none():
    layout = "%m-%d-%Y %H:%M:%S"
    assert unix_time_s("10-08-2026 04:35:02", layout) == datetime(2026, 10, 8, 4, 35, 2).timestamp()
    for text in ("", "10-08-2026", "2026/10/08 04:35:02", "13-08-2026 04:35:02", "10-08-0000 04:35:02"):
        assert unix_time_s(text, layout) is None
