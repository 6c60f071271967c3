"""Recorded and virtual traces as a source: what a monitor would have seen, had it polled then."""

from __future__ import annotations

import csv
import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from estimator_utils import schema
from estimator_utils.telemetry import IDENTITY_KEYS, Sample, Source, SourceError

PERIOD_S = 1.5
# A reading older than this many of its channel's usual intervals is missing rather than still true.
STALE_INTERVALS = 2.5


class Replay(Source):
    """A trace polled every ``period_s`` from ``phase_s`` after its first moment.

    Each poll sees the latest reading of each channel, or None where that is older than ``stale_s`` (by
    default 2.5 times the channel's median interval). `identity` is what the trace's dataset says, ``kind``
    ("recorded" or "simulated") with it.
    """

    live = False

    def __init__(
        self,
        name: str,
        trace: schema.Trace,
        metadata: schema.Metadata | None = None,
        *,
        period_s: float = PERIOD_S,
        phase_s: float = 0.0,
        stale_s: float | None = None,
    ) -> None:
        if not (period_s > 0 and phase_s >= 0):
            raise SourceError(f"{name}: expected a period > 0 s and a phase >= 0 s, found {period_s}, {phase_s}")
        self.name, self.trace, self.metadata = name, trace, metadata
        self.period_s, self.phase_s = period_s, phase_s
        channels = {
            "power_w": _channel(trace.t_s, trace.power_w, stale_s),
            "gpu_util": _channel(trace.t_s, trace.gpu_util, stale_s),
            "dram_bytes_per_s": _channel(trace.t_s, trace.dram_bytes_per_s, stale_s),
        }
        self._channels = channels
        self.missing = {
            field: "the trace has no reading of it" for field, (t_s, _, _) in channels.items() if not t_s
        }
        if "power_w" in self.missing:
            raise SourceError(f"{name}: the trace has no reading of power: nothing can be estimated from it")

    def identity(self) -> dict[str, Any]:
        """Return device, rail, power mode and clocks of the trace's dataset, and its kind; None: not said."""
        said = asdict(self.metadata) if self.metadata else {}
        return {key: said.get(key) for key in (*IDENTITY_KEYS, "kind")}

    def close(self) -> None:
        """Do nothing: the trace is in memory."""

    def __iter__(self) -> Iterator[Sample]:
        """Yield one sample a poll, up to the last moment of the trace."""
        first_s, last_s = self.trace.t_s[0] + self.phase_s, self.trace.t_s[-1]
        poll = 0
        while (t_s := first_s + poll * self.period_s) <= last_s:
            values = {field: _latest(channel, t_s) for field, channel in self._channels.items()}
            yield Sample(t_s, source=self.name, **values)
            poll += 1


Channel = tuple[list[float], list[float], float]


def _channel(t_s: Sequence[float], values: Sequence[float | None], stale_s: float | None) -> Channel:
    """Return the moments and values of the readings, and how long one stays true."""
    known = [
        (t, value) for t, value in zip(t_s, values, strict=True) if value is not None and math.isfinite(value)
    ]
    times = [t for t, _ in known]
    steps = [after - before for before, after in pairwise(times)]
    usual_s = statistics.median(steps) if steps else 0.0
    return times, [value for _, value in known], STALE_INTERVALS * usual_s if stale_s is None else stale_s


def _latest(channel: Channel, t_s: float) -> float | None:
    times, values, stale_s = channel
    k = bisect_right(times, t_s) - 1
    return values[k] if k >= 0 and t_s - times[k] <= stale_s else None


def open_replay(data: str, period_s: float = PERIOD_S, phase_s: float = 0.0) -> Replay:
    """Open a trace as a source.

    Parameters
    ----------
    data : str
        A trace as CSV or in the study's JSON format, the name of a registered trace, or the name or folder of
        a dataset with one.
    period_s, phase_s : float
        The poll period; the first poll, counted from the trace's first moment.

    Raises
    ------
    SourceError
        Where there is no such trace, it cannot be read, or has no power.
    """
    name, path = f"replay:{data}", Path(data)
    try:
        metadata = None
        if path.is_file():
            index = path.parent.parent / "dataset.json"
            if path.parent.name == "traces" and index.is_file():
                metadata = schema.read_index(index)[0]
        else:
            from estimator_utils import datasets  # pandas: only where a name has to be looked up

            entry = datasets.registry().get(data) or datasets.members(data).get("trace")
            if entry is None or entry.role != "trace":
                raise SourceError(
                    f"{name}: there is no trace of this name: give a trace file or a registered trace"
                )
            path, metadata = datasets.fetch(entry), entry.metadata
        trace = schema.read_trace(path)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise SourceError(f"{name}: cannot be read as a trace: {error}") from error
    if not trace.t_s or not all(before < after for before, after in pairwise((-math.inf, *trace.t_s))):
        raise SourceError(
            f"{name}: expected one row or more, at times that increase: sort them, or split the trace"
        )
    return Replay(name, trace, metadata, period_s=period_s, phase_s=phase_s)
