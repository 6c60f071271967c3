import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.datasets.dataset import Metadata, Trace, write_dataset
from estimator_utils.telemetry.replay import Replay, open_replay
from estimator_utils.telemetry.source import Sample, SourceError

CHANNELS = ("power_w", "gpu_util", "dram_bytes_per_s")


def a_trace(n=20, step_s=0.5, **changed):
    columns = {
        "t_s": tuple(k * step_s for k in range(n)),
        "power_w": tuple(5.0 + k for k in range(n)),
        "gpu_util": (0.9,) * n,
        "dram_bytes_per_s": (None,) * n,
    }
    return Trace(**{**columns, **changed})


def folder(path, trace):
    metadata = Metadata(
        name="toy", kind="simulated", device="Orin Nano", rail="VDD_CPU_GPU_CV", power_mode="25W", gpu_clock_hz=918e6
    )
    write_dataset(path, metadata, {}, {"trace": trace})
    return path / "traces" / "trace.csv"


@pytest.mark.parametrize("phase_s", [0.0, 0.4, 1.4])
def test_a_poll_sees_the_latest_reading(phase_s):
    samples = list(Replay("toy", a_trace(), phase_s=phase_s))
    assert [s.t_s for s in samples] == pytest.approx([phase_s + 1.5 * k for k in range(len(samples))])
    assert samples[-1].t_s <= 9.5 < samples[-1].t_s + 1.5
    assert [s.power_w for s in samples] == [5.0 + s.t_s // 0.5 for s in samples]


def test_a_stale_reading_is_missing():
    hole = tuple(None if 6 <= k < 14 else 5.0 for k in range(20))  # the last reading before it is at 2.5 s
    samples = {s.t_s: s for s in Replay("toy", a_trace(power_w=hole), period_s=0.25)}
    assert samples[3.75].power_w == 5.0  # 2.5 intervals of 0.5 s later
    assert samples[4.0].power_w is None
    assert samples[7.0].power_w == 5.0
    assert all(s.gpu_util == 0.9 for s in samples.values())


traces = st.integers(2, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.01, 3), min_size=n, max_size=n),
        *[st.lists(st.one_of(st.none(), st.floats()), min_size=n, max_size=n)] * 3,
    )
)


@given(traces, st.floats(0.05, 3), st.floats(0, 3))
def test_a_replay_never_makes_up_a_number(columns, period_s, phase_s):
    steps, *channels = columns
    t_s = tuple(sum(steps[: k + 1]) for k in range(len(steps)))
    trace = Trace(t_s, *map(tuple, channels))
    try:
        source = Replay("toy", trace, period_s=period_s, phase_s=phase_s)
    except SourceError:
        assert not any(w is not None and abs(w) < float("inf") for w in channels[0])
        return
    for sample in source:
        for field in CHANNELS:
            value = getattr(sample, field)
            seen = [v for t, v in zip(t_s, getattr(trace, field), strict=True) if t <= sample.t_s]
            assert value is None or value in seen


def test_a_dataset_folder_says_whose_trace_it_is(tmp_path):
    trace = a_trace()
    path = folder(tmp_path, trace)
    for data in (path, tmp_path):  # the trace's file, and the folder
        source = open_replay(str(data), period_s=0.5)
        assert source.trace == trace
        assert source.identity() == {
            "device": "Orin Nano",
            "rail": "VDD_CPU_GPU_CV",
            "power_mode": "25W",
            "gpu_clock_hz": 918e6,
            "emc_clock_hz": None,
            "kind": "simulated",
        }
        assert next(iter(source)) == Sample(0.0, power_w=5.0, gpu_util=0.9, source=f"replay:{data}")
        assert list(source.missing) == ["dram_bytes_per_s"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a trace",
        "t_s,power_w,gpu_util,dram_bytes_per_s\n",
        "t_s,power_w,gpu_util,dram_bytes_per_s\n0,,0.5,\n",
        "t_s,power_w,gpu_util,dram_bytes_per_s\n0,x,0.5,\n",
        "t_s,power_w,gpu_util,dram_bytes_per_s\n1,5,,\n0,5,,\n",
        "t_s,power_w,gpu_util,dram_bytes_per_s\nnan,5,,\n",
        "t_s,power_w,gpu_util,dram_bytes_per_s\n0,5\0,,\n",
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"trace\.csv"):
        open_replay(str(path))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SourceError, match="orin-nano-25w-trace"):
        open_replay("orin-nano-35w-trace")


def test_a_period_of_zero_is_refused():
    with pytest.raises(SourceError, match="period_s > 0"):
        Replay("toy", a_trace(), period_s=0)


@pytest.mark.recorded
def test_the_recorded_trace_is_opened_by_name_and_by_path():
    if "ESTIMATOR_DATA_DIR" not in os.environ:
        pytest.skip("ESTIMATOR_DATA_DIR is not set: no recorded data")
    by_name = open_replay("orin-nano-25w-trace")
    assert by_name.identity()["rail"] == "VDD_CPU_GPU_CV"
    assert by_name.identity()["kind"] == "recorded"
    path = Path(os.environ["ESTIMATOR_DATA_DIR"]) / "orin-nano" / "timeseries.json"
    assert open_replay(str(path)).trace == by_name.trace
    samples = list(by_name)
    assert len(samples) == 434
    missing = {field: sum(getattr(s, field) is None for s in samples) for field in CHANNELS}
    assert missing == {"power_w": 0, "gpu_util": 1, "dram_bytes_per_s": 1}  # at 0 s only one channel has been read
