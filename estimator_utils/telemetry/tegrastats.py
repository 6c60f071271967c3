"""NVIDIA's tegrastats: the running program, or a log of it, of any release since L4T 28."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from estimator_utils.telemetry.child import Child
from estimator_utils.telemetry.health import CheckedSource
from estimator_utils.telemetry.log_clock import LogClock
from estimator_utils.telemetry.source import DEFAULT_RAIL, Sample, product
from estimator_utils.telemetry.sysfs import ORIN_NANO_BYTES_PER_CYCLE, SYS, bytes_per_cycle, model, power_mode
from estimator_utils.telemetry.text import number, plausible_power_w, read_lines, unix_time_s

INTERVAL_S = 0.5  # of the program we start: half of the usual second, so that a poll finds a new line
COMMAND = ("tegrastats", "--interval", f"{1000 * INTERVAL_S:.0f}")
SILENCE_S = 10.0  # its timeout, far above the interval: a slow line is no fault
RAILS_128_BIT = {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}  # with a zone "tj": Orin Nano, Orin NX

_LINE = re.compile(r"\bRAM \d+/(\d+)MB|\bCPU \[", re.ASCII | re.IGNORECASE)
# "61%@2133", "0%", "@4266", "99%@[612]", "39%@[305,0]", "12 %@[1300, 1300]": share and first clock.
_SHARE = r"\s+(?:(\d+)\s?%)?(?:@(\[\s*)?(\d+)(?(2)(?:\s*,\s*\d+)*\s*\]))?(?=\s|$)"
_EMC = re.compile(r"(?<!\S)EMC(?:_FREQ)?" + _SHARE, re.ASCII)
_GPU = re.compile(r"(?<!\S)GR3D(?:_FREQ)?" + _SHARE, re.ASCII)
# The name and what it draws now; the mean since start and the peak that follow are not used.
_POWER = re.compile(r"(?<!\S)([A-Z]\w*) (\d+)(?:mW)?/\d+(?:mW)?(?:/\d+(?:mW)?)?(?=\s|$)", re.ASCII)


@dataclass(frozen=True)
class Line:
    """The readings of one line; None where it has none."""

    wall_s: float | None = None
    power_mw: dict[str, float] = field(default_factory=dict)
    gpu_util: float | None = None
    gpu_clock_hz: float | None = None
    emc_share: float | None = None
    emc_clock_hz: float | None = None
    bus_bytes: int | None = None


def parse_line(text: str) -> Line | None:
    """Read one line of tegrastats; None where it is none. Unknown tokens are skipped.

    The EMC's share is of its current clock. Without a clock, a share of 0 is what JetPack 5 prints to users
    without root whatever the memory does: unknown.
    """
    if not (line := _LINE.search(text)):
        return None
    rails = {name: number(now, 0, 1e6) for name, now in _POWER.findall(text) if name != "NC"}
    gpu_util, gpu_clock_hz = _share(_GPU, text, 100)
    emc_share, emc_clock_hz = _share(_EMC, text, 1e5)
    ram_mb = number(line.group(1) or "", 6000, 1e6)
    orin = rails.keys() >= RAILS_128_BIT and " tj@" in text and ram_mb is not None
    return Line(
        wall_s=unix_time_s(text.lstrip()[:19], "%m-%d-%Y %H:%M:%S"),
        power_mw={name: now for name, now in rails.items() if now is not None},
        gpu_util=gpu_util,
        gpu_clock_hz=gpu_clock_hz,
        emc_share=None if emc_share == 0 and emc_clock_hz is None else emc_share,
        emc_clock_hz=emc_clock_hz,
        bus_bytes=ORIN_NANO_BYTES_PER_CYCLE if orin else None,
    )


def _share(pattern: re.Pattern[str], text: str, high: float) -> tuple[float | None, float | None]:
    """Return the share as a fraction and the clock in Hz."""
    if not (match := pattern.search(text)):
        return None, None
    percent, mhz = number(match.group(1) or "", 0, high), number(match.group(3) or "", 1, 1e5)
    return None if percent is None else percent / 100, product(mhz, 1e6)


class _Lines(CheckedSource):
    """What the program and its log have in common."""

    def __init__(self, name: str, rail: str) -> None:
        super().__init__(name, rail)
        emc = "the line has no share of the EMC or no clock with it: run tegrastats as root"
        self._reasons = {
            "power_w": f"the line has no rail {rail}, or 0 W",
            "gpu_util": "the line has no share of GR3D_FREQ",
            "dram_activity": emc,
            "dram_bytes_per_s": f"{emc}; bytes a memory cycle are known for Orin Nano 8GB and NX only",
        }

    def _require_line(self, line: Line | None, reason: str) -> None:
        if line is None:
            self._refuse(f"expected lines as 'RAM 2147/7620MB ...', found none: {reason}")
        if line.power_mw:
            self._require_rail(line.power_mw)

    def _sample(self, line: Line, t_s: float, wall_s: float | None, lost: str = "") -> Sample:
        power_mw = line.power_mw.get(self._rail)
        sample = Sample(
            t_s=t_s,
            wall_s=wall_s,
            power_w=plausible_power_w(None if power_mw is None else power_mw / 1000, self._rail),
            gpu_util=line.gpu_util,
            dram_activity=line.emc_share,
            dram_bytes_per_s=product(line.emc_share, line.emc_clock_hz, line.bus_bytes),
            gpu_clock_hz=line.gpu_clock_hz,
            emc_clock_hz=line.emc_clock_hz,
            source=self.name,
        )
        return self.checked(sample, dict.fromkeys(self._reasons, lost) if lost else self._reasons)


class TegrastatsLog(_Lines):
    """A log of tegrastats; ``t_s`` counts from its first line.

    Its dates have whole seconds: lines of one second are spread over it. Without dates, before JetPack 5, the
    lines are ``step_s`` apart. Dates are local time, and are read as of this machine's zone.

    Raises
    ------
    SourceError
        Where the file cannot be read, has no line of tegrastats, or not the rail.
    """

    live = False

    def __init__(self, path: str | Path, rail: str = DEFAULT_RAIL, step_s: float = 1.0) -> None:
        super().__init__(f"tegrastats:{path}", rail)
        self._path, self._step_s = Path(path), step_s
        self._require_line(next(self._lines(), None), "is this a log of tegrastats?")

    def _lines(self) -> Iterator[Line]:
        # The last line of a program that was killed may be cut in the middle of a number.
        whole = (text if text.endswith("\n") else text.rpartition(" ")[0] for text in read_lines(self._path))
        yield from filter(None, map(parse_line, whole))

    def __iter__(self) -> Iterator[Sample]:
        """Yield one sample a line."""
        clock = LogClock(self.name, self._step_s)
        for wall_s, lines in groupby(self._lines(), lambda line: line.wall_s):
            if wall_s is None:
                yield from (self._sample(line, clock(None), None) for line in lines)
                continue
            same_second, t_s = list(lines), clock(wall_s)
            for k, line in enumerate(same_second):
                part_s = k / len(same_second)
                yield self._sample(line, t_s + part_s, wall_s + part_s)


class Tegrastats(_Lines):
    """The running program, started and watched as a child process; without root it has no EMC.

    Raises
    ------
    SourceError
        Where it cannot be started, writes no line, or not the rail.
    """

    live = True

    def __init__(self, rail: str = DEFAULT_RAIL, command: Sequence[str] = COMMAND) -> None:
        super().__init__("tegrastats", rail)
        self._bus_bytes = bytes_per_cycle(SYS)
        self._child = Child(command, parse_line, SILENCE_S)
        self._require_line(self._child.latest(SILENCE_S)[2], self._child.reason)

    def identity(self) -> dict[str, Any]:
        """Return the rail, and what the board's own files tell."""
        return super().identity() | {"device": model(SYS), "power_mode": power_mode(SYS)}

    def read(self) -> Sample:
        """Return the latest line's reading, stamped as it came, or after a while only the time."""
        t_s, wall_s, line = self._child.latest(3 * INTERVAL_S)
        lost = "" if line else f"no new line: {self._child.reason}"
        return self._sample(replace(line or Line(), bus_bytes=self._bus_bytes), t_s, wall_s, lost)

    def close(self) -> None:
        """End the program."""
        self._child.close()
