"""Readings of a board: one `Sample` a poll, from whichever source a name opens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

IDENTITY_KEYS = ("device", "rail", "power_mode", "gpu_clock_hz", "emc_clock_hz")

# The rail of the study: CPU, GPU and CV of an Orin Nano, without DRAM and SoC.
DEFAULT_RAIL = "VDD_CPU_GPU_CV"


class SourceError(Exception):
    """A source cannot be opened or read: says what was expected, what was found and what to do."""


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


class Source(Protocol):
    """Where samples come from: a live board that is polled, or a log that ends.

    Attributes
    ----------
    name : str
        As `open_source` takes it.
    live : bool
        A live source is polled with `read`; a log is iterated and ends.
    missing : dict of str to str
        Fields of `Sample` that the source cannot give at the moment, each with the reason and how to grant
        it. It may grow and shrink while the source is read.
    """

    name: str
    live: bool
    missing: dict[str, str]

    def identity(self) -> dict[str, Any]:
        """Return ``device``, ``rail``, ``power_mode`` and the mode's ``gpu_clock_hz`` and ``emc_clock_hz``.

        None where the board or the log does not say.
        """
        ...

    def read(self) -> Sample:
        """Return the newest reading of a live source; never an old one again.

        Once open, a lost sensor or service is no error: the sample has only its time and `missing` says
        why; the source keeps trying to come back. It does not block for more than a few seconds.

        Raises
        ------
        SourceError
            Where the source is a log.
        """
        raise SourceError(f"{self.name} is a log: iterate over it")

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples of a log until it ends; of a live source, as fast as it is asked."""
        while True:
            yield self.read()

    def close(self) -> None:
        """Free files and end child processes; twice does no harm."""

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
