"""What every source of readings gives: one `Sample` a poll."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IDENTITY_KEYS = ("device", "rail", "power_mode", "gpu_clock_hz", "emc_clock_hz")

# The rail of the study: CPU, GPU and CV of an Orin Nano, without DRAM and SoC.
DEFAULT_RAIL = "VDD_CPU_GPU_CV"
PERIOD_S = 1.5  # between two polls of the study


class SourceError(RuntimeError):
    """A source cannot be opened or read; the message has what was expected, what was found and what to do."""


@dataclass(frozen=True)
class Sample:
    """One poll of a board. Every field but the time may be missing (None); missing is never 0.

    Attributes
    ----------
    t_s : float
        Monotonic seconds, in the source's own clock; never falls.
    wall_s : float or None
        Unix time. Where ``wall_s - t_s`` changes, a clock was stepped or the board slept.
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


class Source:
    """Where samples come from: a live board that is polled, or a log that ends.

    Attributes
    ----------
    name : str
        As `open_source` takes it.
    live : bool
        A live source is polled with `read`; a log is iterated and ends.
    missing : mapping of str to str
        Fields that the source cannot give at the moment, each with the reason and how to grant it.
    """

    name: str
    live: bool
    missing: Mapping[str, str]

    def identity(self) -> dict[str, Any]:
        """Return the `IDENTITY_KEYS`; the clocks are the mode's. None where board or log do not have them."""
        return dict.fromkeys(IDENTITY_KEYS)

    def read(self) -> Sample:
        """Return the latest reading of a live source, each once, within a few seconds.

        Once open, a lost sensor or service is no error: the sample has only its time, `missing` has the reason,
        and the source tries to read it again.
        """
        raise SourceError(f"{self.name} is a log: iterate over it")

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples of a log until it ends; of a live source, as fast as they are taken."""
        while True:
            yield self.read()

    def fingerprint(self) -> str:
        """Return what tells a log from another of the same name, however far it grows: its first reading."""
        return "" if self.live else repr(next(iter(self), None))

    def close(self) -> None:
        """Free what is open, such as a child process; closing again changes nothing."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def product(*factors: float | None) -> float | None:
    """Return the product of readings, or None where one is missing."""
    present = [factor for factor in factors if factor is not None]
    return math.prod(present) if len(present) == len(factors) else None


def polls(source: Source, period_s: float, stop: threading.Event | None = None) -> Iterator[Sample]:
    """Yield a live source's readings at a fixed pace, until ``stop`` is set."""
    stop, due_s = stop or threading.Event(), time.monotonic()
    while not stop.is_set():
        yield source.read()
        due_s = max(due_s + period_s, time.monotonic())
        stop.wait(due_s - time.monotonic())
