import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.monitor.integrate import energy_j
from estimator_utils.monitor.sessions import Detector, Rule, Session, find_sessions
from estimator_utils.telemetry.source import Sample

PERIOD_S, IDLE_W, BUSY_W = 1.5, 0.6, 8.1


def polls(*utils, start_s=0.0, period_s=PERIOD_S):
    """One sample a GPU load: None is a missing load; power follows the load."""
    return [
        Sample(
            start_s + k * period_s,
            power_w=None if util is None else (BUSY_W if util > 0.05 else IDLE_W),
            gpu_util=util,
            dram_bytes_per_s=None if util is None else 2e10 * (util > 0.05),
        )
        for k, util in enumerate(utils)
    ]


def runs(length_s, phase_s, lead_s=20.0):
    """Polls of one run of ``length_s`` that begins ``phase_s`` after a poll."""
    t_s = np.arange(0, lead_s * 2 + length_s, PERIOD_S)
    busy = (t_s >= lead_s + phase_s) & (t_s < lead_s + phase_s + length_s)
    return [Sample(t, power_w=BUSY_W if b else IDLE_W, gpu_util=float(b)) for t, b in zip(t_s, busy, strict=True)]


# the rule -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("utils", "sessions"),
    [
        ((0, 1, 0, 0, 0), 0),  # one poll up is not a start
        ((0, 1, 1, 0, 0, 0), 1),  # two are, and three down are an end
        ((0, 1, 0, 1, 0, 0, 0), 0),  # the two must be consecutive
        ((0, 0.05, 0.05, 0.05, 0, 0, 0), 0),  # "above 5 %" leaves 5 % itself out
        ((0, 0.0501, 0.0501, 0, 0, 0), 1),
        ((0, 1, 1, 0, 0, 1, 1, 0, 0, 0), 1),  # two polls down are not an end
        ((0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0), 2),
        ((0, 1, 1, 0.05, 0.05, 0.05, 0.05, 1, 1, 0, 0, 0), 1),  # nor are any number at 5 %
    ],
)
def test_two_polls_up_and_three_down(utils, sessions):
    assert len(find_sessions(polls(*utils), IDLE_W)) == sessions


def test_a_session_is_returned_by_the_poll_that_ends_it():
    detector = Detector(IDLE_W)
    ended = [detector.add(sample) for sample in polls(0, 1, 1, 0, 0, 0, 0)]
    assert [isinstance(session, Session) for session in ended] == [False] * 5 + [True, False]
    assert (ended[5].start_s, ended[5].end_s) == (1.5, 4.5)


@given(st.lists(st.booleans(), max_size=6), st.lists(st.booleans(), max_size=6))
def test_a_poll_without_gpu_load_neither_ends_nor_starts(before, inside):
    gap_before, gap_inside = ([None] * sum(part) for part in (before, inside))
    utils = (0, *gap_before, 1, *gap_inside, 1, 0, *gap_inside, 1, 0, *gap_inside, 0, *gap_inside, 0)
    (session,) = find_sessions(polls(*utils), IDLE_W)
    assert session.gaps == bool(gap_before) + 2 * bool(gap_inside)
    assert not any("readings ended" in text for text in session.anomalies)


def test_a_hole_is_recorded_and_bridged_and_is_not_the_end():
    whole = polls(0, 0, *[1] * 100, 0, 0, 0)
    (session,) = find_sessions([s for s in whole if not 30 < s.t_s < 90], IDLE_W)
    (undisturbed,) = find_sessions(whole, IDLE_W)
    assert session.energy_net_j == pytest.approx(undisturbed.energy_net_j)
    assert session.duration_s == pytest.approx(undisturbed.duration_s)
    assert (session.gaps, session.gap_s) == (1, pytest.approx(60))
    assert (undisturbed.gaps, undisturbed.gap_s) == (0, 0.0)


def test_power_missing_for_most_of_a_session_gives_no_energy():
    whole = [
        Sample(s.t_s, gpu_util=s.gpu_util, power_w=s.power_w if s.t_s < 6 else None)
        for s in polls(0, *[1] * 20, 0, 0, 0)
    ]
    (session,) = find_sessions(whole, IDLE_W)
    assert session.energy_net_j is None
    assert session.dram_tb is None
    assert session.duration_s == pytest.approx(30)


def test_energy_is_not_made_up_over_a_hole_of_most_of_a_session():
    busy = [1] * 40
    for hole_s, share in ((40.0, "25%"), (18_000.0, "99%")):
        seen = polls(0, *busy) + polls(*busy, 0, 0, 0, start_s=60 + hole_s)
        (session,) = find_sessions(seen, IDLE_W)
        assert session.anomalies == (f"power not seen for {share} of the time",)
        assert session.gap_s == hole_s
        assert session.duration_s == pytest.approx(120 + hole_s - PERIOD_S)
        net_j = (BUSY_W - IDLE_W) * session.duration_s
        assert session.energy_net_j == (pytest.approx(net_j) if hole_s < 100 else None)
        assert (session.dram_tb is None) == (session.gpu_util is None) == (hole_s > 100)


def test_a_hole_that_hardly_matters_is_a_gap_and_no_mark():
    (session,) = find_sessions(polls(0, *[1] * 200) + polls(*[1] * 200, 0, 0, 0, start_s=306.0), IDLE_W)
    assert (session.gaps, session.anomalies) == (1, ())


def test_dram_missing_in_part_is_marked():
    part = [
        Sample(s.t_s, power_w=s.power_w, gpu_util=s.gpu_util, dram_bytes_per_s=None if k == 5 else 1e10)
        for k, s in enumerate(polls(0, *[1] * 20, 0, 0, 0))
    ]
    (session,) = find_sessions(part, IDLE_W)
    assert session.dram_tb == pytest.approx(1e10 * 31.5 / 1e12)
    assert session.anomalies == ("poll without DRAM x1",)


def test_a_monitor_started_under_load_says_that_it_missed_the_start():
    (session,) = find_sessions(polls(1, 1, 1, 0, 0, 0), IDLE_W)
    assert session.anomalies == ("start not seen x1",)
    assert session.duration_s == pytest.approx(3 + 0.75)


def test_an_end_inside_a_long_hole_is_not_made_up():
    seen = polls(0, 1, 1, 1) + polls(0, 0, 0, start_s=3600.0)
    (session,) = find_sessions(seen, IDLE_W)
    assert session.anomalies == ("end not seen x1",)
    assert session.duration_s == pytest.approx(3 + 0.75)


def test_the_last_session_is_marked_where_the_readings_end_first():
    (session,) = find_sessions(polls(0, 1, 1, 1), IDLE_W)
    assert session.anomalies == ("readings ended first x1",)


def test_wall_clock_steps_are_recorded_and_change_nothing():
    whole = [Sample(s.t_s, 1e9 + s.t_s, s.power_w, s.gpu_util) for s in polls(0, *[1] * 20, 0, 0, 0)]
    stepped = [Sample(s.t_s, s.wall_s + (3600 if s.t_s > 15 else 0), s.power_w, s.gpu_util) for s in whole]
    (before,), (after,) = find_sessions(whole, IDLE_W), find_sessions(stepped, IDLE_W)
    assert after.anomalies == ("wall clock stepped x1 (+3600.0 s)",)
    assert (after.energy_net_j, after.duration_s) == (before.energy_net_j, before.duration_s)


def test_a_source_clock_that_starts_again_is_recorded_and_nothing_is_integrated_across():
    whole = polls(0, *[1] * 20, start_s=1000.0) + polls(*[1] * 20, 0, 0, 0)
    (session,) = find_sessions(whole, IDLE_W)
    assert session.anomalies[0].startswith("source clock went back x1")
    assert session.gaps == 1
    assert session.duration_s == pytest.approx(40 * PERIOD_S - PERIOD_S)
    assert session.energy_net_j == pytest.approx((BUSY_W - IDLE_W) * session.duration_s)


def test_the_same_poll_twice_counts_once():
    once = polls(0, 1, 1, 1, 0, 0, 0)
    assert find_sessions([s for s in once for _ in range(2)], IDLE_W) == find_sessions(once, IDLE_W)


def test_fragments_are_found_alone_and_joined():
    dipping = polls(0, *[1] * 20, *[0] * 5, *[1] * 20, *[0] * 40)
    rule = Rule()
    assert [s.duration_s for s in find_sessions(dipping, IDLE_W, rule)] == [30, 30]
    (joined,) = find_sessions(dipping, IDLE_W, rule.merging(7.5))
    assert (joined.duration_s, joined.energy_net_j) == (67.5, pytest.approx(60 * (BUSY_W - IDLE_W)))
    assert len(find_sessions(dipping, IDLE_W, rule.merging(5.9))) == 2


# edges ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.5, 3.5), min_size=3, max_size=30),
    st.lists(st.one_of(st.none(), st.floats(0, 20)), min_size=35, max_size=35),
)
def test_streaming_equals_the_integral_over_the_same_polls(steps_s, power_w):
    t_s = np.cumsum([0, 1, *steps_s, 1, 1, 1])
    utils = [0] + [1] * (len(t_s) - 4) + [0, 0, 0]
    power_w = [1.0, *power_w][: len(t_s)]
    samples = [Sample(t, power_w=p, gpu_util=u) for t, p, u in zip(t_s, power_w, utils, strict=True)]
    (session,) = find_sessions(samples, 0.6)
    if session.energy_net_j is not None:
        assert session.energy_net_j == pytest.approx(energy_j(t_s[:-2], power_w[:-2], 0.6))
    assert session.duration_s == pytest.approx((t_s[-4] + t_s[-3]) / 2 - (t_s[0] + t_s[1]) / 2)


def mean_errors(length_s, edges, phases=60):
    """Mean error of energy and of time over an even grid of phases of the poll."""
    truth_j = (BUSY_W - IDLE_W) * length_s
    energy, duration = [], []
    for phase_s in (np.arange(phases) + 0.5) / phases * PERIOD_S:
        (session,) = find_sessions(runs(length_s, phase_s), IDLE_W, Rule(edges=edges))
        energy.append(session.energy_net_j / truth_j - 1)
        duration.append(session.duration_s / length_s - 1)
    return np.mean(energy), np.mean(duration)


# Mean errors of the study's edges: energy -1.5 polls, time +1 poll (-22.5 to -0.38 % of it).
@pytest.mark.parametrize("length_s", [10, 30, 150, 600])
def test_default_edges_are_unbiased_beside_the_studys(length_s):
    energy, duration = mean_errors(length_s, "unbiased")
    assert abs(energy) < 0.001
    assert abs(duration) < 0.001
    energy, duration = mean_errors(length_s, "study")
    assert energy == pytest.approx(-1.5 * PERIOD_S / length_s, rel=0.01)
    assert duration == pytest.approx(PERIOD_S / length_s, rel=0.01)


# state ----------------------------------------------------------------------------------------------

loads = st.one_of(st.none(), st.sampled_from([0.0, 0.05, 0.3, 1.0]))


@given(st.lists(loads, min_size=5, max_size=60), st.data(), st.sampled_from(["unbiased", "study"]))
def test_a_detector_restored_at_any_poll_goes_on_as_if_nothing_had_happened(utils, data, edges):
    samples, rule = polls(*utils, 0, 0, 0), Rule(edges=edges)
    cut = data.draw(st.integers(0, len(utils)))
    whole, first = Detector(IDLE_W, rule), Detector(IDLE_W, rule)
    expected = [whole.add(sample) for sample in samples]
    found = [first.add(sample) for sample in samples[:cut]]
    second = Detector.resumed(json.loads(json.dumps(first.state())), IDLE_W, rule)
    found += [second.add(sample) for sample in samples[cut:]]
    assert found == expected


def test_the_state_does_not_grow():
    detector, sizes = Detector(IDLE_W), []
    for k in range(20_000):
        util = None if k % 7 == 0 else 1.0
        power_w, step_s = None if k % 11 == 0 else BUSY_W, 7200 * (k % 13 == 0)
        detector.add(Sample(k * PERIOD_S, 1e9 + k * PERIOD_S + step_s, power_w, util))
        if k % 1000 == 999:
            sizes.append(len(json.dumps(detector.state())))
    assert sizes[-1] < sizes[0] + 60  # digits of its sums


def test_unknown_edges_are_refused():
    with pytest.raises(ValueError, match="unbiased, study"):
        Rule(edges="exact")
