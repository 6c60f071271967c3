"""Recorded and virtual traces as a source: what a monitor would have seen, had it polled then."""

import csv
import hashlib
import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from estimator_utils.datasets.dataset import Metadata, Trace
from estimator_utils.telemetry.source import IDENTITY_KEYS, PERIOD_S, Sample, Source, SourceError

FIELDS = ("power_w", "gpu_util", "dram_bytes_per_s")
# A reading older than this many of its channel's usual (median) intervals is missing rather than still true.
STALE_INTERVALS = 2.5


class Replay(Source):
    """A trace polled every ``period_s`` from ``phase_s`` after its first moment.

    Each poll takes the latest reading of each channel, or None where that is stale.
    """

    live = False

    def __init__(
        self,
        name: str,
        trace: Trace,
        metadata: Metadata | None = None,
        *,
        period_s: float = PERIOD_S,
        phase_s: float = 0.0,
    ) -> None:
        if not (period_s > 0 and phase_s >= 0):
            raise SourceError(f"{name}: expected period_s > 0 and phase_s >= 0, found {period_s} and {phase_s}")
        self.name, self.trace, self._metadata = name, trace, metadata
        self._period_s, self._phase_s = period_s, phase_s
        self._channels = {field: _Channel(trace.t_s, getattr(trace, field)) for field in FIELDS}
        self.missing = {
            field: "the trace has no reading of it" for field, channel in self._channels.items() if not channel.t_s
        }
        if "power_w" in self.missing:
            raise SourceError(f"{name}: the trace has no reading of power: nothing can be estimated from it")

    def identity(self) -> dict[str, Any]:
        """Return the `IDENTITY_KEYS` of the trace's dataset and its ``kind``, "recorded" or "simulated"."""
        return {key: getattr(self._metadata, key, None) for key in (*IDENTITY_KEYS, "kind")}

    def fingerprint(self) -> str:
        """Return a digest of the whole trace, which does not grow."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    def __iter__(self) -> Iterator[Sample]:
        """Yield one sample a poll, up to the last moment of the trace."""
        poll, first_s = 0, self.trace.t_s[0] + self._phase_s
        while (t_s := first_s + poll * self._period_s) <= self.trace.t_s[-1]:
            readings = {field: channel.at(t_s) for field, channel in self._channels.items()}
            yield Sample(t_s, source=self.name, **readings)
            poll += 1


class _Channel:
    """The readings of one field, in the order of time."""

    def __init__(self, t_s: Sequence[float], values: Sequence[float | None]) -> None:
        finite = [(t, v) for t, v in zip(t_s, values, strict=True) if v is not None and math.isfinite(v)]
        self.t_s, self._values = [t for t, _ in finite], [v for _, v in finite]
        steps_s = [after - before for before, after in pairwise(self.t_s)]
        self._stale_s = STALE_INTERVALS * statistics.median(steps_s) if steps_s else 0.0

    def at(self, t_s: float) -> float | None:
        """Return the latest reading at a moment, or None where there is none yet or it is stale."""
        k = bisect_right(self.t_s, t_s) - 1
        return self._values[k] if k >= 0 and t_s - self.t_s[k] <= self._stale_s else None


def open_replay(data: str, period_s: float = PERIOD_S) -> Replay:
    """Open a trace as a source.

    ``data`` is a trace as CSV or in the study's JSON format, the name of a registered trace, or the name or folder
    of a dataset with one. SourceError where there is none, it cannot be read, or has no power.
    """
    from estimator_utils.datasets import registry  # here: a live monitor needs no registry

    name, path = f"replay:{data}", Path(data)
    try:
        if path.is_file():
            metadata = registry.metadata_of(path)
        else:
            entry = registry.registry().get(data) or registry.members(data).get("trace")
            if entry is None or entry.role != "trace":
                raise ValueError("it is no trace: give a trace file or a registered trace")
            path, metadata = registry.fetch(entry), entry.metadata
        trace = registry.read_trace(path)
        if not trace.t_s:
            raise ValueError("it has no rows")
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise SourceError(f"{name}: cannot be read as a trace: {error}") from error
    return Replay(name, trace, metadata, period_s=period_s)
