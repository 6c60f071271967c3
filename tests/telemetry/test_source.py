import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry import source as source_module
from estimator_utils.telemetry.source import Sample, Source, SourceError, polls, product


class Made(Source):
    """A source whose first reading takes a while."""

    name, missing = "made", {}

    def __init__(self, live, clock=None, first_s=0.0):
        self.live, self.clock, self.costs_s = live, clock, [first_s]

    def read(self):
        if not self.live:
            return super().read()
        self.clock.now_s += self.costs_s.pop() if self.costs_s else 0.0
        return Sample(self.clock.now_s)


class Clock:
    """Time that passes only where it is waited for; also what stops the polls."""

    def __init__(self, end_s):
        self.now_s, self.end_s = 100.0, 100.0 + end_s

    def is_set(self):
        return self.now_s >= self.end_s

    def wait(self, seconds):
        self.now_s += max(seconds, 0.0)

    def monotonic(self):
        return self.now_s


@pytest.mark.parametrize(
    ("first_s", "polled_s"), [(0.0, [0, 2, 4, 6, 8]), (1.5, [1.5, 2, 4, 6, 8]), (5.0, [5, 5, 7, 9])]
)
def test_polls_keep_their_pace_and_do_not_catch_up_on_those_that_were_missed(monkeypatch, first_s, polled_s):
    clock = Clock(end_s=9.5)
    monkeypatch.setattr(source_module, "time", clock)
    samples = list(polls(Made(live=True, clock=clock, first_s=first_s), 2.0, clock))
    assert [sample.t_s - 100 for sample in samples] == polled_s


def test_a_log_is_iterated_and_not_polled():
    with pytest.raises(SourceError, match="made is a log: iterate over it"):
        Made(live=False).read()


def test_a_live_source_has_no_fingerprint_and_a_log_that_of_its_first_reading():
    class Log(Made):
        def __iter__(self):
            yield from (Sample(0.0, power_w=5.0), Sample(1.0, power_w=6.0))

    assert Made(live=True).fingerprint() == ""
    assert Log(live=False).fingerprint() == repr(Sample(0.0, power_w=5.0))


@given(st.lists(st.none() | st.floats(-1e3, 1e3), min_size=1, max_size=4))
def test_a_product_is_missing_exactly_where_a_factor_is(factors):
    result = product(*factors)
    assert (result is None) == (None in factors)
    if result is not None:
        rest = 1.0
        for factor in factors:
            rest *= factor
        assert result == rest
