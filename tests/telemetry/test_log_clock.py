"""The time of logs: of the clock alone, and the same laws through each kind of log."""

import random
import time
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.telemetry.factories import open_source
from estimator_utils.telemetry.log_clock import DST_S, PAUSE_S, LogClock
from estimator_utils.telemetry.source import SourceError

SMI_HEADER = "timestamp, power.draw [W]"
TEGRASTATS = "RAM 6712/7620MB GR3D_FREQ 99%@[612] VDD_CPU_GPU_CV 7104mW/4944mW"


def smi(moments):
    return [SMI_HEADER, *(f"{moment:%Y/%m/%d %H:%M:%S}.000, 90 W" for moment in moments)]


def tegrastats(moments):
    return [f"{moment:%m-%d-%Y %H:%M:%S} {TEGRASTATS}" for moment in moments]


LOGS = {"smi": smi, "tegrastats": tegrastats}
every_log = pytest.mark.parametrize("kind", LOGS)


def samples_of(kind, folder, moments):
    path = folder / f"{kind}.log"
    path.write_text("\n".join(LOGS[kind](moments)) + "\n")
    return list(open_source(f"{kind}:{path}"))


@pytest.fixture
def utc(monkeypatch):
    """A zone without daylight saving: the log's own zone has it."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@given(st.lists(st.none() | st.floats(-1e9, 1e9), min_size=1))
def test_the_time_of_a_log_never_falls(stamps):
    clock = LogClock("log")
    times_s = [clock(stamp) for stamp in stamps]
    assert times_s[0] == 0
    assert all(b >= a for a, b in pairwise(times_s))


@given(st.lists(st.floats(0.001, PAUSE_S - 1), min_size=1))
def test_a_log_whose_clock_is_never_stepped_has_the_time_of_its_stamps(steps_s):
    stamps = [sum(steps_s[:k]) for k in range(len(steps_s) + 1)]
    clock = LogClock("log")
    assert [clock(1e9 + stamp) for stamp in stamps] == pytest.approx(stamps, abs=1e-4)


@pytest.mark.parametrize(("pause_s", "usual_s"), [(PAUSE_S - 1, PAUSE_S - 1), (PAUSE_S, 1.0)])
def test_a_pause_of_a_minute_is_no_usual_step(pause_s, usual_s):
    clock = LogClock("log")
    last_s = [clock(stamp) for stamp in (0.0, 1.0, 1.0 + pause_s)][-1]
    assert clock(None) - last_s == usual_s


@pytest.mark.parametrize(
    ("step_s", "is_step"),
    [(DST_S - 2.5, False), (DST_S - 2, True), (DST_S + 1, True), (DST_S + 4, True), (DST_S + 4.5, False), (-0.5, True)],
)
def test_a_step_by_the_hour_or_backwards_is_no_time_and_is_logged(caplog, step_s, is_step):
    clock = LogClock("log")
    clock(0.0)
    assert clock(step_s) == (1.0 if is_step else step_s)
    assert ["stepped" in message for message in caplog.messages] == [True] * is_step


@every_log
@pytest.mark.parametrize(
    "hours", [("2026-10-25 02:59:59", "2026-10-25 02:00:00"), ("2026-03-29 01:59:59", "2026-03-29 03:00:00")]
)
def test_a_step_of_daylight_saving_is_seen_and_not_taken_for_time(kind, hours, tmp_path, utc):
    first, second = samples_of(kind, tmp_path, map(datetime.fromisoformat, hours))
    assert second.t_s - first.t_s == 1
    assert abs(second.wall_s - first.wall_s) > 3590


@every_log
@pytest.mark.parametrize("gap_s", [7, 2700])
def test_a_gap_is_a_gap(kind, gap_s, tmp_path):
    begin = datetime(2026, 10, 8, 4, 35, 2)
    assert [s.t_s for s in samples_of(kind, tmp_path, [begin, begin + timedelta(seconds=gap_s)])] == [0, gap_s]


@every_log
def test_a_log_that_is_not_there_is_refused(kind, tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        open_source(f"{kind}:{tmp_path / 'log'}")


@every_log
@given(noise=st.binary(max_size=300), seed=st.integers(0, 2**32))
def test_fuzz_a_damaged_log_is_read_or_refused(tmp_path_factory, kind, noise, seed):
    rng = random.Random(seed)
    begin = datetime(2026, 10, 8, 4, 35)
    damaged = bytearray(("\n".join(LOGS[kind](begin + timedelta(seconds=k) for k in range(5))) + "\n").encode())
    for _ in range(rng.randrange(8)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    path = tmp_path_factory.getbasetemp() / f"fuzz-{kind}.log"
    path.write_bytes(noise * rng.randrange(2) + bytes(damaged) + noise)
    try:
        samples = list(open_source(f"{kind}:{path}"))
    except SourceError:
        return
    assert all(b.t_s >= a.t_s for a, b in pairwise(samples))
