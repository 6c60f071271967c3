"""The monitor: notices training runs in a source's samples and writes down how many TFLOP each one took.

Verifier's side: it knows readings and a calibration, and nothing of the workload. `daemon` runs it.

What the phase of the polls does: the study's ten minutes, polled every 1.5 s, give +1.14 to +2.15 % by Eq. 1 with
trial 1's constants. Of 1,500 phases four, 1.303 to 1.306 s, are 0.61 to 0.65 points off +1.5 %, the others within
0.6. It is sampling noise of the DRAM counter: with the traffic of all readings every phase is within 0.6 points.
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from estimator_utils.estimation.calibration import IDENTITY, Calibration, CalibrationMismatchError
from estimator_utils.monitor.log import LogError, SessionLog
from estimator_utils.monitor.sessions import Detector, Rule, Session
from estimator_utils.telemetry import Sample, Source

log = logging.getLogger("estimator_utils.monitor")

IDLE_POLLS = 20, 60  # the median of at least and at most so many idle readings is held against the baseline
# How far it may be off: a tenth, or the largest offset of an Orin Nano's INA3221 (TI SBOS576A: 80 uV over 5 mOhm
# at 5 V), whichever is more.
IDLE_TOLERANCE_W, IDLE_TOLERANCE = 0.08, 0.1
SLEEP_S = 1.0  # the machine slept where its clocks with and without sleep part by more between two polls

SUMS = ("parts", "duration_s", "energy_net_j", "dram_tb", "estimate_tflop")  # of a merged row, over its fragments

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What the monitor is told."""

    calibration: Calibration
    fallback: Calibration | None = None  # of Eq. 2, for sessions without DRAM traffic
    rule: Rule = field(default_factory=Rule)  # with the poll period
    merge_gap_s: float = 0.0  # fragments with idle gaps of up to this are listed as one session too
    idle_power_w: float | None = None  # in place of the calibration's baseline
    # device, rail, power_mode and precision, where the source does not say
    declared: Mapping[str, str | None] = field(default_factory=dict)
    dram_counter_factor: float = 1.0  # bytes that the source counts per true byte, as `record` measured it
    force: bool = False  # use a calibration that belongs elsewhere, and mark every estimate

    def __post_init__(self) -> None:
        if not 0 < self.dram_counter_factor < math.inf:
            raise ValueError(f"--dram-factor must be a positive number, found {self.dram_counter_factor:g}")
        for flag, value in (("--merge-gap", self.merge_gap_s), ("--idle-w", self.idle_power_w)):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{flag} must be 0 or more, found {value:g}")
        if self.fallback is not None and self.fallback.equation != 2:
            raise ValueError("--fallback must be a calibration of Eq. 2, found Eq. 1: it needs DRAM itself")

    def calibrations(self) -> list[Calibration]:
        """Return those given, in the order in which they are tried."""
        return [c for c in (self.calibration, self.fallback) if c is not None]

    def baseline_w(self) -> float:
        """Return the idle baseline in W; CalibrationMismatchError where there is none, or two."""
        known = [c.idle_power_w for c in self.calibrations()]
        first = known[0] if self.idle_power_w is None else self.idle_power_w
        if first is None or (self.idle_power_w is None and any(w is None or abs(w - first) > 1e-3 for w in known)):
            raise CalibrationMismatchError(
                f"one idle baseline is needed, the calibrations give {known} W: say it with --idle-w"
            )
        return first


class Monitor:
    """Detectors and estimates over one source, logged poll by poll.

    Raises
    ------
    CalibrationMismatchError
        Where a calibration belongs elsewhere and ``settings.force`` is not set.
    LogError
        Where the log belongs to another source.
    """

    def __init__(self, source: Source, settings: Settings, session_log: SessionLog | None = None) -> None:
        self.source, self.settings, self._log = source, settings, session_log
        self._idle_power_w = settings.baseline_w()
        self._warning = self._identify()
        if self._warning and not settings.force:
            raise CalibrationMismatchError(
                f"{self._warning}; --force uses it all the same and marks every estimate"
            )
        self._digest = hashlib.sha256("".join(c.to_json() for c in settings.calibrations()).encode()).hexdigest()
        self._idle_w: deque[float] = deque(maxlen=IDLE_POLLS[1])
        self._slept_s, self._missing = _slept_s(), set(source.missing)
        self._unlogged: list[Row] | None = None  # sessions that wait for a log that cannot be written
        self.last_s: float | None = None  # the last poll, in the source's clock
        self.carried: list[Row] = []  # sessions that a restart ended
        self._reset()
        # what a log must agree on, so that its open session can go on here
        self._own = {
            "source": source.name,
            "head": source.head(),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip() if source.live else "",
            "told": f"{self._idle_power_w} W, {settings.rule}, merging {settings.merge_gap_s} s",
        }
        if session_log is not None and (state := session_log.resume()):
            self._resume(state, session_log.path)

    def _reset(self) -> None:
        rule = self.settings.rule
        self.detector = Detector(self._idle_power_w, rule)
        self._whole = Detector(
            self._idle_power_w, rule.merging(self.settings.merge_gap_s)
        )  # over dips inside a run
        self._parts: Row | None = None  # sums over the fragments so far

    def _resume(self, state: dict[str, Any], path: Path) -> None:
        if state["source"] != self.source.name:
            raise LogError(f"{path}: holds {state['source']}, not {self.source.name}: give another --log")
        if state.get("head", self._own["head"]) != self._own["head"]:
            raise LogError(
                f"{path}: holds another log or trace of the name {self.source.name}, which was replaced or rotated"
                " since: give another --log"
            )
        self._parts = state["parts"]
        self.detector.restore(state["detector"])
        self._whole.restore(state["whole"])
        if state["boot"] != self._own["boot"]:  # its clock began again, and no workload survived
            self.carried = self.finish("machine restarted")
            return
        self.last_s = state["t_s"]
        self.mark("monitor restarted")
        if state["told"] != self._own["told"]:
            self.mark("baseline or rule changed")
        log.warning("%s: goes on after %.1f s of %s", path, self.last_s, self.source.name)

    def poll(self, sample: Sample) -> list[Row]:
        """Take one sample and log it; return the sessions that it ended, estimated.

        Raises
        ------
        LogError
            Where the log of a replay cannot be written; with a live source the monitor goes on and tries again.
        """
        self._mark_troubles()
        if sample.dram_bytes_per_s is not None:
            sample = replace(sample, dram_bytes_per_s=sample.dram_bytes_per_s / self.settings.dram_counter_factor)
        was_open = self.detector.open
        ended, whole = self.detector.add(sample), self._whole.add(sample)
        if self.detector.open != was_open and (warning := self._identify()) != self._warning:
            self._warning = warning
            self.mark("identity changed")
        rows = self._rows(ended, whole)
        idle = not self.detector.open and self.detector.ups == 0 and sample.gpu_util is not None
        if idle and sample.power_w is not None:
            self._idle_w.append(sample.power_w)
        self.last_s = sample.t_s
        self._commit(sample, rows)
        return rows

    def finish(self, mark: str = "readings ended first") -> list[Row]:
        """End the open session because its readings have ended, and log it."""
        rows = self._rows(self.detector.session(mark), self._whole.session(mark))
        self._reset()
        self._commit(None, rows)
        return rows

    def mark(self, kind: str, seconds: float = 0.0) -> None:
        """Record an irregularity on the session that is open."""
        self.detector.mark(kind, seconds)
        self._whole.mark(kind, seconds)

    def _mark_troubles(self) -> None:
        for name in self.source.missing.keys() - self._missing:
            self.mark(f"{name} lost")
        self._missing = set(self.source.missing)
        if self.source.live and (slept_s := _slept_s() - self._slept_s) > SLEEP_S:
            self._slept_s += slept_s
            self.mark("machine slept", slept_s)

    def estimate(self, session: Session) -> tuple[float | None, int | None, str]:
        """Return TFLOP and the equation that gave it, or None and None; and what there is to say about it."""
        if session.energy_net_j is None:
            return None, None, "no estimate: power was missing for most of the time"
        note = ""
        for calibration in self.settings.calibrations():
            if calibration.equation == 1 and session.dram_tb is None:
                note = "DRAM traffic was missing"
                continue
            tflop = calibration.estimate_tflop(session.energy_net_j, session.duration_s, session.dram_tb)
            return tflop, calibration.equation, note + (": Eq. 2 in place of Eq. 1" if note else "")
        return None, None, f"no estimate: {note}, and no Eq. 2 calibration was given"

    def _rows(self, ended: Session | None, whole: Session | None) -> list[Row]:
        """Return rows of a session that ended and, where it was the last of several fragments, of their whole."""
        rows = []
        if ended is not None:
            rows.append(self._row("session", ended))
            self._parts = _joined(self._parts, rows[0])
        if whole is not None:
            if self._parts is not None and self._parts["parts"] > 1:
                note = f"merged of {self._parts['parts']} fragments, which are listed too"
                note += "; no estimate: a fragment has none" if self._parts["estimate_tflop"] is None else ""
                rows.append({**self._row("merged", whole), **self._parts, "note": note})
            self._parts = None
        return rows

    def _row(self, kind: str, session: Session) -> Row:
        tflop, equation, note = self.estimate(session)
        idle_w = statistics.median(self._idle_w) if len(self._idle_w) >= IDLE_POLLS[0] else None
        tolerance_w = max(IDLE_TOLERANCE_W, IDLE_TOLERANCE * self._idle_power_w)
        if idle_w is not None and abs(idle_w - self._idle_power_w) > tolerance_w:
            note += f"{'; ' if note else ''}live idle is {idle_w:.3f} W, the baseline {self._idle_power_w:.3f} W"
        # another root than /sys may be played: then nobody says whether it is a board
        is_board = self.source.live and not self.source.name.startswith("sysfs:")
        return {
            "kind": kind,
            **asdict(session),
            "parts": 1,
            "estimate_tflop": tflop,
            "equation": equation,
            "note": note,
            "warning": self._warning,
            "idle_check_w": idle_w,
            **self._found,
            "data": "recorded" if is_board else self.source.identity().get("kind"),
            "source": self.source.name,
            "calibration_sha256": self._digest,
        }

    def _identify(self) -> str:
        """Ask the source what it is; return what speaks against the calibrations, or nothing."""
        said, declared = self.source.identity(), self.settings.declared
        self._found = {name: said.get(name) or declared.get(name) for name in IDENTITY}
        faults = [
            f"{name} is declared {value!r} but the source says {said[name]!r}"
            for name, value in declared.items()
            if value is not None and said.get(name) not in (None, value)
        ]
        for calibration in self.settings.calibrations():
            try:
                calibration.check(**self._found)
            except CalibrationMismatchError as error:
                faults.append(str(error))
        return "; ".join(dict.fromkeys(faults))

    def _commit(self, sample: Sample | None, rows: list[Row]) -> None:
        if self._log is None:
            return
        detectors = {"detector": self.detector.state(), "whole": self._whole.state()}
        try:
            if self._unlogged is not None:
                self._log.reopen()
            state = {**self._own, "t_s": self.last_s, "parts": self._parts, **detectors}
            self._log.commit(sample, state, [*(self._unlogged or ()), *rows])
        except LogError as error:
            if not self.source.live:
                raise
            if self._unlogged is None:
                log.error("%s; sessions are kept in memory and tried again at each poll", error)
            self._unlogged = [*(self._unlogged or ()), *rows]
            self.mark("poll not logged")
        else:
            if self._unlogged is not None:
                log.warning("%s: can be written again", self._log.path)
            self._unlogged = None


def _joined(parts: Row | None, part: Row) -> Row:
    """Return the sums with one fragment more; what one fragment lacks is unknown of the whole."""
    if parts is None:
        return {name: part[name] for name in (*SUMS, "equation")}
    sums = {n: None if None in (parts[n], part[n]) else parts[n] + part[n] for n in SUMS}
    return {**sums, "equation": parts["equation"] if parts["equation"] == part["equation"] else None}


def _slept_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
