"""A GPU load that stands at exactly 0 while the board works."""

import math

from estimator_utils.telemetry.source import Sample

# A GPU load of exactly 0 is not believed where the rail draws this much above its idle for this long.
DOUBT_W = 2.0
DOUBT_S = 60.0
REASON = (
    f"a load of exactly 0 for {DOUBT_S:g} s at over {DOUBT_W:g} W above idle: the sensor is stuck, or"
    " only the CPU works; restart the service or board, or take the load from another source"
)


class StuckLoad:
    """Whether the GPU load has been 0 for long while the rail draws well above its idle.

    A stuck sensor is known for that (jetson_stats PR #889, #380). Where the GPU clock is at its idle value the load is
    believed, since then it is the CPU that draws the power: but only where the clock has been seen to move, since
    jetson_clocks holds it.
    """

    def __init__(self) -> None:
        self._idle_w = self._idle_hz = math.inf
        self._high_hz = 0.0
        self._zero_since_s: float | None = None

    def is_stuck(self, sample: Sample) -> bool:
        """Take one reading; return whether its load is not believed any more."""
        power_w, clock_hz = sample.power_w or math.inf, sample.gpu_clock_hz or math.inf
        self._idle_w, self._idle_hz = min(self._idle_w, power_w), min(self._idle_hz, clock_hz)
        self._high_hz = max(self._high_hz, sample.gpu_clock_hz or 0.0)
        has_idle_clock = clock_hz <= self._idle_hz < self._high_hz
        if sample.gpu_util != 0 or not self._idle_w + DOUBT_W <= power_w < math.inf or has_idle_clock:
            self._zero_since_s = None
        elif self._zero_since_s is None:
            self._zero_since_s = sample.t_s
        return self._zero_since_s is not None and sample.t_s - self._zero_since_s >= DOUBT_S
