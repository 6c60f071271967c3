"""What the sources share: strict numbers, missing readings said once, time of logs, child processes."""

from __future__ import annotations

import logging
import math
import os
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import Sample

log = logging.getLogger("estimator_utils.telemetry")

# A GPU load of exactly 0 is doubted where the rail draws this much above its idle for this long.
DOUBT_W = 2.0
DOUBT_S = 60.0
# No board or GPU draws more; drivers' blank values (9.2e18, 1.4e14) lie far above.
POWER_MAX_W = 1e5
DST_S = 3600.0
BACKOFF_S = (1.0, 60.0)

_NUMBER = re.compile(r"\s*([+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*", re.ASCII)
# Rails that feed the CPU, the SoC or the whole module are never off; a GPU's own rail may be.
_ALWAYS_ON = re.compile(r"CPU|SOC|IN")


def number(text: str | bytes, low: float, high: float) -> float | None:
    r"""Return a plain decimal number within ``[low, high]``, else None.

    >>> number(" 42\n", 0, 100), number("4_2", 0, 100), number("[N/A]", 0, 100), number("101", 0, 100)
    (42.0, None, None, None)
    """
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    match = _NUMBER.fullmatch(text)
    value = float(match.group(1)) if match else None
    return value if value is not None and low <= value <= high else None


def plausible_power_w(power_w: float | None, rail: str) -> float | None:
    """Return the power, or None where it cannot be true, as 0 W from a rail that is never off."""
    if power_w is None or not -POWER_MAX_W < power_w < POWER_MAX_W:
        return None
    return None if power_w <= 0 and _ALWAYS_ON.search(rail) else power_w


class Missing(dict[str, str]):
    """Fields that a source cannot give at the moment, with the reason; each reason is logged once."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._logged: set[tuple[str, str]] = set()

    def tell(self, field: str, reason: str | None) -> None:
        """Set or, with None, clear the reason why a field is missing."""
        if reason is None:
            self.pop(field, None)
            return
        self[field] = reason
        if (field, reason) not in self._logged:
            self._logged.add((field, reason))
            log.warning("%s: no %s: %s", self._source, field, reason)

    def explain(self, sample: Sample, reasons: Mapping[str, str]) -> None:
        """Give for each field that the sample lacks its reason, and clear the others."""
        for field, reason in reasons.items():
            self.tell(field, reason if getattr(sample, field) is None else None)


class ZeroLoadCheck:
    """Doubt a GPU load of exactly 0 while the rail draws well above idle (jetson_stats PR #889, #380).

    A GPU clock at its idle value speaks for the load: then it is the CPU that draws the power.
    """

    def __init__(self, missing: Missing) -> None:
        self._missing = missing
        self._idle_w = self._idle_hz = math.inf
        self._since_s: float | None = None

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample, its ``gpu_util`` None where it is in doubt."""
        power_w, clock_hz = sample.power_w or 0.0, sample.gpu_clock_hz or math.inf
        self._idle_w = min(self._idle_w, power_w or math.inf)
        self._idle_hz = min(self._idle_hz, clock_hz)
        idle_clock = clock_hz <= self._idle_hz < math.inf
        if sample.gpu_util != 0 or power_w < self._idle_w + DOUBT_W or idle_clock:
            self._since_s = None
            return sample
        self._since_s = sample.t_s if self._since_s is None else self._since_s
        if sample.t_s - self._since_s < DOUBT_S:
            return sample
        self._missing.tell(
            "gpu_util",
            f"a load of exactly 0 for {DOUBT_S:g} s at over {DOUBT_W:g} W above idle: the sensor is stuck, or"
            " only the CPU works; restart the service or board, or take the load from another source",
        )
        return replace(sample, gpu_util=None)


class LogClock:
    """Time that never falls, from the wall stamps of a log in local time without a zone.

    A stamp that falls, or jumps by the hour of daylight saving, is a step of the clock and not of time:
    ``t_s`` goes on by the usual step and ``wall_s - t_s`` changes, which a reader can see.
    """

    def __init__(self, name: str, step_s: float = 1.0) -> None:
        self._name, self._step_s, self._t_s = name, step_s, -step_s
        self._last_s: float | None = None

    def __call__(self, wall_s: float | None) -> float:
        """Return seconds since the first line, from its stamp or, without one, from the usual step."""
        step_s = self._step_s
        if wall_s is not None and self._last_s is not None:
            step_s = wall_s - self._last_s
            if step_s < 0 or abs(step_s - DST_S - self._step_s) <= 2 + self._step_s:
                log.warning("%s: its clock was stepped by %+.0f s", self._name, step_s - self._step_s)
                step_s = self._step_s
            elif 0 < step_s < 60:
                self._step_s = step_s
        self._last_s = self._last_s if wall_s is None else wall_s
        self._t_s += step_s
        return self._t_s


class Child:
    """A child process that speaks in lines, started again with back-off when it ends or falls silent.

    Its standard input stays open as long as the parent lives, so that it can end with it.
    """

    def __init__(self, command: Sequence[str], silence_s: float) -> None:
        self.reason, self.failures = "it has not spoken yet", 0
        self._command, self._silence_s = list(command), silence_s
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._heard_s = self._retry_s = 0.0
        self._backoff_s = BACKOFF_S[0]

    def lines(self, wait_s: float) -> list[str]:
        """Return the lines that have come; wait up to ``wait_s`` for the first of them."""
        deadline_s = time.monotonic() + wait_s
        if self._process is None:
            time.sleep(max(0.0, min(wait_s, self._retry_s - time.monotonic())))
            if time.monotonic() < self._retry_s:
                return []
            pipe = subprocess.PIPE
            try:
                self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            except OSError as error:
                return self.fail(f"cannot start {self._command[0]}: {error.strerror}")
            self._rest, self._heard_s = b"", time.monotonic()
        assert self._process.stdout is not None
        file, poll = self._process.stdout.fileno(), select.poll()
        poll.register(file, select.POLLIN)
        while True:
            limit_s = min(deadline_s, self._heard_s + self._silence_s)
            if poll.poll(1000 * max(0.0, limit_s - time.monotonic())):
                if not (data := os.read(file, 1 << 16)):
                    return self.fail(f"{os.path.basename(self._command[0])} ended")
                self._heard_s = time.monotonic()
                *lines, self._rest = (self._rest[-(1 << 16) :] + data).split(b"\n")
                if lines:
                    return [line.decode("utf-8", "replace") for line in lines]
            elif time.monotonic() >= self._heard_s + self._silence_s:
                return self.fail(f"silent for {self._silence_s:g} s")
            if time.monotonic() >= deadline_s:
                return []

    def fail(self, reason: str) -> list[str]:
        """End the process; it is started again after a pause that doubles with each failure."""
        self.reason, self.failures = reason, self.failures + 1
        self.close()
        self._retry_s = time.monotonic() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])
        return []

    def healthy(self) -> None:
        """Say that the process did its work: the next failure waits only briefly."""
        self._backoff_s = BACKOFF_S[0]

    def close(self) -> None:
        """End the process, by force where it does not follow."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # which closes the pipes and waits
                process.terminate()
                try:
                    process.wait(1.0)
                except subprocess.TimeoutExpired:
                    process.kill()
