import threading
import time
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.source import Sample, Source, SourceError, polls, product


class Made(Source):
    """A source whose readings are numbered."""

    name, missing = "made", {}

    def __init__(self, live):
        self.live, self.reads = live, 0

    def read(self):
        if not self.live:
            return super().read()
        self.reads += 1
        return Sample(time.monotonic(), power_w=float(self.reads))


def test_a_live_source_is_polled_at_its_pace_until_it_is_stopped():
    source, stop = Made(live=True), threading.Event()
    samples = list(islice(polls(source, 0.02, stop), 5))
    assert [sample.power_w for sample in samples] == [1, 2, 3, 4, 5]
    assert samples[-1].t_s - samples[0].t_s >= 4 * 0.02
    stop.set()
    assert list(polls(source, 0.02, stop)) == []


def test_polls_that_were_missed_are_not_caught_up():
    times_s = []
    for k, sample in enumerate(islice(polls(Made(live=True), 0.1), 4)):
        times_s.append(sample.t_s)
        time.sleep(0.35 if k == 0 else 0)  # longer than three periods
    assert all(b - a > 0.09 for a, b in pairwise(times_s[1:]))


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
