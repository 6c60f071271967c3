from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.monitor.integrate import energy_j, traffic_tb

readings = st.lists(
    st.tuples(st.floats(0.01, 10), st.one_of(st.none(), st.floats(0, 50))), min_size=2, max_size=40
).map(lambda rows: (np.cumsum([step for step, _ in rows]), [power for _, power in rows]))


@given(readings, st.floats(0, 5))
def test_energy_is_additive_over_concatenation(trace, idle_w):
    t_s, power_w = trace
    known = [k for k, power in enumerate(power_w) if power is not None]
    if len(known) < 3:
        return
    cut = known[len(known) // 2]  # both parts share the reading at the cut
    parts = energy_j(t_s[: cut + 1], power_w[: cut + 1], idle_w) + energy_j(t_s[cut:], power_w[cut:], idle_w)
    assert parts == pytest.approx(energy_j(t_s, power_w, idle_w), rel=1e-9, abs=1e-9)


@given(st.floats(0.1, 100), st.floats(0, 50), st.floats(0, 50), st.integers(2, 50))
def test_constant_power_gives_power_times_time(duration_s, power_w, idle_w, n):
    t_s = np.linspace(0, duration_s, n)
    expected_j = max(power_w - idle_w, 0) * duration_s
    assert energy_j(t_s, [power_w] * n, idle_w) == pytest.approx(expected_j)
    assert traffic_tb(t_s, [power_w * 1e12] * n) == pytest.approx(power_w * duration_s)


def test_each_reading_is_clamped_at_idle():
    assert energy_j([0, 1, 2], [1.0, 0.2, 1.0], idle_power_w=0.6) == pytest.approx(0.4)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_reading_is_left_out_and_never_zero(missing):
    assert energy_j([0, 1, 2], [5.0, missing, 5.0], 0.0) == pytest.approx(10)
    assert math.isnan(energy_j([0, 1], [5.0, missing], 0.0))
    assert math.isnan(traffic_tb([0, 1], [missing, missing]))


def test_times_that_do_not_increase_are_refused():
    with pytest.raises(ValueError, match="t_s must increase"):
        energy_j([0, 2, 1], [1, 1, 1], 0.0)
