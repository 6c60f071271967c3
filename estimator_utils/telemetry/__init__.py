"""Readings of a board: one `Sample` a poll, from whichever source a name opens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One poll of a board. Every field but the time may be missing (None); missing is never 0.

    Attributes
    ----------
    t_s : float
        Monotonic seconds, in the source's own clock.
    wall_s : float or None
        Unix time.
    power_w : float or None
        Instantaneous power of the named rail.
    gpu_util : float or None
        Share of time in which the GPU was busy, 0..1.
    dram_activity : float or None
        Active share of the memory clock's cycles; may exceed 1 where a driver misreports, and is not clamped.
    dram_bytes_per_s : float or None
        True bytes per second.
    gpu_clock_hz, emc_clock_hz : float or None
    source : str
    """

    t_s: float
    wall_s: float | None = None
    power_w: float | None = None
    gpu_util: float | None = None
    dram_activity: float | None = None
    dram_bytes_per_s: float | None = None
    gpu_clock_hz: float | None = None
    emc_clock_hz: float | None = None
    source: str = ""
