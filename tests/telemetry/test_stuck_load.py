import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.source import Sample
from estimator_utils.telemetry.stuck_load import DOUBT_S, DOUBT_W, StuckLoad

IDLE_W = 0.64


def stuck(rows):
    """Whether the load of each sample is believed no more; rows are of time, power, load and clock."""
    check = StuckLoad()
    return [check.is_stuck(Sample(t_s, power_w=w, gpu_util=u, gpu_clock_hz=hz)) for t_s, w, u, hz in rows]


@given(st.lists(st.tuples(st.none() | st.floats(0.1, 20), st.none() | st.floats(0, 1), st.booleans())))
def test_only_an_exact_0_that_has_lasted_is_ever_stuck(rows):
    timed = [(30.0 * k, power_w, load, 9e8 if clock else None) for k, (power_w, load, clock) in enumerate(rows)]
    loads = [load for _, load, _ in rows]
    for k, is_stuck in enumerate(stuck(timed)):
        assert not is_stuck or loads[max(0, k - 2) : k + 1] == [0, 0, 0]


# jetson_stats PR #889: NVML is held from boot. A clock that jetson_clocks holds tells nothing of the load.
@pytest.mark.parametrize("clock_hz", [None, 918e6])
def test_a_load_of_0_at_high_power_is_stuck_after_a_minute_at_a_constant_clock(clock_hz):
    rows = [(1.5 * k, 7.0 if k >= 100 else IDLE_W, 0.0, clock_hz) for k in range(200)]
    assert stuck(rows) == [False] * 140 + [True] * 60


@pytest.mark.parametrize(("seconds", "is_stuck"), [(DOUBT_S - 0.001, False), (DOUBT_S, True)])
def test_it_is_stuck_from_exactly_the_set_time_on(seconds, is_stuck):
    rows = [(0.0, IDLE_W, 0.0, None), (1.0, 7.0, 0.0, None), (1.0 + seconds, 7.0, 0.0, None)]
    assert stuck(rows)[-1] == is_stuck


@pytest.mark.parametrize(("above_w", "is_stuck"), [(DOUBT_W - 0.001, False), (DOUBT_W, True)])
def test_it_is_stuck_from_exactly_the_set_power_above_idle_on(above_w, is_stuck):
    rows = [(0.0, 0.5, 0.0, None), *((t_s, 0.5 + above_w, 0.0, None) for t_s in (1.0, 100.0))]
    assert stuck(rows)[-1] == is_stuck


def test_a_clock_that_fell_to_its_idle_value_confirms_a_load_of_0():
    rows = [(0.0, IDLE_W, 0.0, 306e6), (1.0, 7.0, 0.9, 918e6), (2.0, 7.0, 0.0, 306e6), (100.0, 7.0, 0.0, 306e6)]
    assert not any(stuck(rows))
    assert stuck([*rows[:2], *((t_s, 7.0, 0.0, 918e6) for t_s in (2.0, 100.0))])[-1]


def test_a_reading_of_load_or_a_lost_power_begins_the_minute_again():
    for between in ((50.0, 7.0, 0.5, None), (50.0, None, 0.0, None), (50.0, 7.0, None, None)):
        rows = [(0.0, IDLE_W, 0.0, None), (1.0, 7.0, 0.0, None), between, (61.0, 7.0, 0.0, None)]
        assert not any(stuck(rows))
