"""What `sessions` adds up poll by poll: trapezoids, gaps and marks, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from estimator_utils.telemetry import Sample


def known(value: float | None) -> float | None:
    """Return a finite number as it is, anything else as None."""
    return value if value is not None and math.isfinite(value) else None


class Channel(NamedTuple):
    """The running trapezoid of one reading: its area, number of readings, the last one, seconds without holes."""

    area: float = 0.0
    n: int = 0
    t_s: float | None = None
    value: float = 0.0
    covered_s: float = 0.0

    def add(self, t_s: float, value: float | None, hole_s: float) -> Channel:
        """Return the channel with one reading more; a missing one changes nothing."""
        if value is None:
            return self
        step_s = 0.0 if self.t_s is None else t_s - self.t_s
        area = self.area + step_s * (self.value + value) / 2
        return Channel(area, self.n + 1, t_s, value, self.covered_s + (step_s if step_s <= hole_s else 0.0))

    def total(self, span_s: float) -> float | None:
        """Return the area, or None where most of ``span_s`` had no reading and would be made up."""
        return self.area if self.n > 1 and 2 * self.covered_s >= span_s else None


class Tally(NamedTuple):
    """What has been added up since some poll. Immutable, so that keeping an earlier one costs nothing."""

    channels: tuple[Channel, ...] = (Channel(),) * 4  # busy (1, or 0 at the edges), net W, bytes/s, GPU load
    polls: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    in_gap: bool = False
    t_s: float | None = None
    peak_w: float | None = None
    marks: Mapping[str, tuple[int, float]] = {}  # by kind: how often, seconds in all
    span_s: float = 0.0

    def unseen(self) -> float:
        """Return the share of the time over which power is a line between readings that are far apart."""
        return 1 - self.channels[1].covered_s / self.span_s if self.span_s else 0.0

    def mark(self, kind: str, seconds: float = 0.0) -> Tally:
        """Return the tally with an irregularity counted; memory grows with the kinds only."""
        n, total_s = self.marks.get(kind, (0, 0.0))
        return self._replace(marks={**self.marks, kind: (n + 1, total_s + seconds)})

    def add(self, sample: Sample, busy: float | None, idle_power_w: float, hole_s: float) -> Tally:
        """Return the tally with one poll more."""
        power_w, util = known(sample.power_w), known(sample.gpu_util)
        net_w = None if power_w is None else max(power_w - idle_power_w, 0.0)
        values = (busy, net_w, known(sample.dram_bytes_per_s), util)
        step_s = 0.0 if self.t_s is None else sample.t_s - self.t_s
        missing = power_w is None or util is None
        broken = missing or not 0 <= step_s <= hole_s
        # where the source's clock started again nothing can be integrated across
        old = self.channels if step_s >= 0 else [channel._replace(t_s=None) for channel in self.channels]
        pairs = zip(old, values, strict=True)
        return self._replace(
            channels=tuple(channel.add(sample.t_s, value, hole_s) for channel, value in pairs),
            polls=self.polls + 1,
            gaps=self.gaps + (broken and not self.in_gap),
            gap_s=self.gap_s + (max(step_s, 0.0) if broken or self.in_gap else 0.0),
            in_gap=missing,
            t_s=sample.t_s,
            peak_w=max((w for w in (self.peak_w, power_w) if w is not None), default=None),
            span_s=self.span_s + max(step_s, 0.0),
        )


NOTHING = Tally()
