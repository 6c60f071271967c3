from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.health import LOG_AGAIN_S, CheckedSource, SensorHealth, log
from estimator_utils.telemetry.source import Sample, SourceError

FIELDS = ("power_w", "gpu_util", "dram_bytes_per_s")
REASONS = {field: f"no wire to {field}" for field in FIELDS}
readings = st.none() | st.floats(0, 20)
samples = st.builds(Sample, st.just(0.0), power_w=readings, gpu_util=readings, dram_bytes_per_s=readings)


@given(st.lists(samples))
def test_a_checked_sample_differs_in_nothing_but_a_stuck_load_and_what_it_lacks_is_missing(rows):
    source = CheckedSource("test", "VDD_IN")
    for k, row in enumerate(rows):
        sample = replace(row, t_s=30.0 * k)
        checked = source.checked(sample, REASONS)
        assert checked == sample or (sample.gpu_util == 0 and checked == replace(sample, gpu_util=None))
        assert set(source.missing) == {field for field in FIELDS if getattr(checked, field) is None}
        assert all(source.missing[f] == REASONS[f] for f in source.missing if getattr(sample, f) is None)


@pytest.mark.parametrize("rails", [[], ["VDD_SOC"], ["VDD_IN", "VDD_SOC", "VDD_IN"]])
def test_a_rail_that_is_there_not_once_is_refused_with_those_there_are(rails):
    closed = []
    source = CheckedSource("test", "VDD_IN")
    source.close = lambda: closed.append(True)
    with pytest.raises(
        SourceError, match=rf"'VDD_IN', found {rails.count('VDD_IN')}; the board has .*`rail`"
    ) as refused:
        source._require_rail(rails)
    assert all(rail in str(refused.value) for rail in rails)
    assert closed == [True]
    source._require_rail(["VDD_IN", "VDD_SOC"])


def logged_of(caplog, lost, hours, field="power_w"):
    """What is logged, with its minute, of a field that is lost at the minutes that ``lost`` names."""
    health, logged = SensorHealth("test"), []
    for minute in range(60 * hours):
        caplog.clear()
        health.update({field: "the wire is cut"} if lost(minute) else {}, 60.0 * minute)
        logged += [(minute, message.removeprefix("test: ")) for message in caplog.messages]
    return logged


def test_a_loss_and_the_return_are_logged_each_time(caplog):
    assert logged_of(caplog, lambda minute: 10 <= minute < 20 or 100 <= minute < 130, 4) == [
        (10, "no power_w: the wire is cut"),
        (20, "power_w is back after 600 s"),
        (100, "no power_w: the wire is cut"),
        (130, "power_w is back after 1800 s"),
    ]


def test_a_flickering_reading_is_logged_once_an_hour(caplog):
    logged = logged_of(caplog, lambda minute: minute % 2 == 1, 10)
    assert len([minute for minute, message in logged if "cut" in message]) == 10
    assert len(logged) == 20


def test_a_loss_right_after_a_return_is_logged_if_it_lasts(caplog):
    assert logged_of(caplog, lambda minute: minute == 5 or minute > 10, 3)[2:] == [
        (65, "no power_w: the wire is cut, for 3240 s now")
    ]


@pytest.mark.parametrize(("field", "times"), [("power_w", 4), ("gpu_util", 4), ("dram_bytes_per_s", 1)])
def test_a_loss_of_what_estimates_need_is_logged_again_each_day(caplog, field, times):
    logged = logged_of(caplog, lambda minute: True, 73, field)
    assert [minute for minute, _ in logged] == [24 * 60 * day for day in range(times)]


@pytest.mark.parametrize(("pause_s", "logs"), [(LOG_AGAIN_S - 1, 1), (LOG_AGAIN_S, 2)])
def test_another_reason_is_logged_after_an_hour(caplog, pause_s, logs):
    health = SensorHealth("test")
    health.update({"power_w": "the wire is cut"}, 0.0)
    health.update({"power_w": "the wire is stolen"}, pause_s)
    assert len(caplog.messages) == logs


@given(st.lists(st.tuples(st.floats(1, 5000), st.sampled_from(["", "cut", "stolen"]))))
def test_no_loss_is_logged_twice_in_an_hour_and_no_return_without_its_loss(steps):
    health, t_s, losses_s, is_open = SensorHealth("test"), 0.0, [], False
    for step_s, reason in steps:
        t_s += step_s
        with patch.object(log, "warning") as warning:
            health.update({"dram_bytes_per_s": reason} if reason else {}, t_s)
        for call in warning.call_args_list:
            is_loss = call.args[0].startswith("%s: no ")
            assert is_loss or is_open
            is_open = is_loss
            losses_s += [t_s] if is_loss else []
    assert all(b - a >= LOG_AGAIN_S for a, b in pairwise(losses_s))
