"""What the sources share: strict numbers, checks of a sample, the time of logs, child processes."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from . import Sample

log = logging.getLogger("estimator_utils.telemetry")

# A GPU load of exactly 0 is doubted where the rail draws this much above its idle for this long.
DOUBT_W = 2.0
DOUBT_S = 60.0
# No board or GPU draws more; drivers' blank values (9.2e18, 1.4e14) lie far above.
POWER_MAX_W = 1e5
DST_S = 3600.0
LOG_AGAIN_S = 3600.0
REMIND_S = 86_400.0
NEEDED = ("power_w", "gpu_util")
BACKOFF_S = (1.0, 60.0)
CLOSE_S = 5.0  # for a reader whose pipe a descendant in a session of its own holds open

_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?\s*", re.ASCII)
# Rails that feed the CPU, the SoC or the whole module are never off; a GPU's own rail may be.
_ALWAYS_ON = re.compile(r"CPU|SOC|IN")

Message = TypeVar("Message")


def number(text: str, low: float, high: float) -> float | None:
    r"""Return a plain decimal number within ``[low, high]``, else None.

    >>> number(" 42\n", 0, 100), number("4_2", 0, 100), number("[N/A]", 0, 100), number("101", 0, 100)
    (42.0, None, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if low <= value <= high else None


def plausible_power_w(power_w: float | None, rail: str) -> float | None:
    """Return the power, or None where it cannot be true, as 0 W from a rail that is never off."""
    if power_w is None or not -POWER_MAX_W < power_w < POWER_MAX_W:
        return None
    return None if power_w <= 0 and _ALWAYS_ON.search(rail) else power_w


class Loss(NamedTuple):
    """Since when a field is missing, and the reason that was logged; none while the loss is too fresh."""

    since_s: float
    logged: str = ""


class Missing(dict[str, str]):
    """Fields that a source cannot give at the moment, with the reason.

    A loss and the return are logged, of each field at most once in `LOG_AGAIN_S`, so that a flickering sensor does
    not fill the journal; a loss without which nothing can be estimated again once in `REMIND_S`.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._losses: dict[str, Loss] = {}
        self._logged_s: dict[str, float] = {}
        self._idle_w = self._idle_hz = math.inf
        self._high_hz = 0.0
        self._zero_since_s: float | None = None

    def check(self, sample: Sample, reasons: Mapping[str, str]) -> Sample:
        """Return the sample, without a GPU load in doubt, and note why it lacks what it lacks.

        ``reasons`` has one for each field that the source may lack.
        """
        if self._doubts_load(sample):
            sample = replace(sample, gpu_util=None)
            doubt = (
                f"a load of exactly 0 for {DOUBT_S:g} s at over {DOUBT_W:g} W above idle: the sensor is stuck, or"
                " only the CPU works; restart the service or board, or take the load from another source"
            )
            reasons = {**reasons, "gpu_util": doubt}
        self.clear()
        for field, reason in reasons.items():
            if getattr(sample, field) is None:
                self[field] = reason
                self._log_loss(field, reason, sample.t_s)
        for field in self._losses.keys() - self.keys():
            loss = self._losses.pop(field)
            if loss.logged:
                log.warning("%s: %s is back after %.0f s", self._source, field, sample.t_s - loss.since_s)
        return sample

    def _log_loss(self, field: str, reason: str, t_s: float) -> None:
        loss = self._losses.setdefault(field, Loss(t_s))
        pause_s = LOG_AGAIN_S if reason != loss.logged else REMIND_S if field in NEEDED else math.inf
        if t_s - self._logged_s.get(field, -math.inf) < pause_s:
            return
        since = f", for {t_s - loss.since_s:.0f} s now" if t_s > loss.since_s else ""
        log.warning("%s: no %s: %s%s", self._source, field, reason, since)
        self._losses[field], self._logged_s[field] = loss._replace(logged=reason), t_s

    def _doubts_load(self, sample: Sample) -> bool:
        """Tell whether the GPU load was 0 for long while the rail draws well above its idle.

        A stuck sensor is known for that (jetson_stats PR #889, #380). A GPU clock at its idle value speaks for
        the load, then it is the CPU that draws the power: but only where the clock has been seen to move, since
        jetson_clocks holds it.
        """
        power_w, clock_hz = sample.power_w or math.inf, sample.gpu_clock_hz or math.inf
        self._idle_w, self._idle_hz = min(self._idle_w, power_w), min(self._idle_hz, clock_hz)
        self._high_hz = max(self._high_hz, sample.gpu_clock_hz or 0.0)
        idle_clock = clock_hz <= self._idle_hz < self._high_hz
        if sample.gpu_util != 0 or not self._idle_w + DOUBT_W <= power_w < math.inf or idle_clock:
            self._zero_since_s = None
        elif self._zero_since_s is None:
            self._zero_since_s = sample.t_s
        return self._zero_since_s is not None and sample.t_s - self._zero_since_s >= DOUBT_S


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


class Child(Generic[Message]):
    """A child process that speaks in lines, started again with back-off when it ends or falls silent.

    A thread reads it, parses each line (None: no message), and keeps the newest message, stamped as it comes. The
    child's standard input stays open as long as the parent lives, so that it can end with it.
    """

    def __init__(self, command: Sequence[str], parse: Callable[[str], Message | None], silence_s: float) -> None:
        self.reason, self.failures = "it has not spoken yet", 0
        self._command, self._parse, self._silence_s = list(command), parse, silence_s
        self._process: subprocess.Popen[str] | None = None
        self._newest: tuple[float, float, Message] | None = None
        self._heard_s, self._pause_s = time.monotonic(), BACKOFF_S[0]
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def newest(self, wait_s: float) -> tuple[float, float, Message | None]:
        """Return monotonic and wall time of the newest message, and the message; each is given once.

        Waits for one up to ``wait_s``, or until the child fails: then the time is now, the message None, and
        ``reason`` says why.
        """
        with self._changed:
            failures = self.failures
            self._changed.wait_for(lambda: self._newest or self.failures > failures, wait_s)
            found, self._newest = self._newest, None
            if self._process is not None and time.monotonic() > self._heard_s + self._silence_s:
                _kill(self._process)
            return found or (time.monotonic(), time.time(), None)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                reason = self._listen()
            except OSError as error:
                reason = f"cannot start {self._command[0]}: {error.strerror}"
            except Exception as error:  # else the thread would end, and nobody hear of it
                reason = f"its reader failed: {type(error).__name__}: {error}"
            with self._changed:
                self.reason, self.failures = reason, self.failures + 1
                self._changed.notify()
            self._closed.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, BACKOFF_S[1])

    def _listen(self) -> str:
        """Run the process to its end; return why it ended."""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True, errors="replace", start_new_session=True
        ) as process:
            self._heard_s, self._process = time.monotonic(), process
            try:
                if self._closed.is_set():
                    return "closed"
                for line in process.stdout or ():
                    self._hear(line)
            finally:
                self._process = None
                _kill(process)
        is_silent = time.monotonic() > self._heard_s + self._silence_s
        return f"silent for {self._silence_s:g} s" if is_silent else f"{self._command[0].rpartition('/')[2]} ended"

    def _hear(self, line: str) -> None:
        self._heard_s = time.monotonic()
        is_whole = line.endswith("\n")  # of a program that was killed it may be cut inside of a number
        if is_whole and (message := self._parse(line)) is not None:
            with self._changed:
                self._newest = self._heard_s, time.time(), message
                self._changed.notify()
            self._pause_s = BACKOFF_S[0]

    def close(self) -> None:
        """End the process; twice does no harm."""
        self._closed.set()
        if (process := self._process) is not None:
            _kill(process)
        self._thread.join(CLOSE_S)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process that is not waited for yet, and its children, which may hold its pipe open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
