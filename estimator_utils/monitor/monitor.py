"""The monitor: notices training runs in a source's samples and writes down how many TFLOP each one took.

It knows readings and calibrations, and nothing of the workload. `pace` runs it.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from estimator_utils.estimation.calibration import FORMS, MUST_AGREE, Calibration, CalibrationMismatchError, Estimate
from estimator_utils.monitor.log import LogError, SessionLog, SessionRow
from estimator_utils.monitor.sessions import Detector, Rule, Session, StateError
from estimator_utils.telemetry.source import Sample, Source

log = logging.getLogger(__name__)

STATE_VERSION = 2
IDLE_POLLS = 20, 60  # the median of at least and at most so many idle readings is compared with the baseline
# How far it may be off: a tenth, or the largest offset of an Orin Nano's INA3221 (TI SBOS576A: 80 uV over 5 mOhm
# at 5 V), whichever is more.
IDLE_TOLERANCE_W, IDLE_TOLERANCE = 0.08, 0.1
SLEEP_S = 1.0  # the machine slept where its clocks with and without sleep part by more between two polls
WORDS = {"dram_tb": "DRAM traffic", "gpu_util": "GPU load", "energy_net_j": "power", "duration_s": "duration"}


@dataclass(frozen=True)
class Settings:
    """What the monitor is set to.

    Attributes
    ----------
    calibrations : tuple of Calibration
        A chain: the first whose readings are there gives a session's estimate.
    rule : Rule
        With the poll period.
    merge_gap_s : s
        Fragments no further apart are listed as one, too: a merged row repeats the sums of its fragments.
    idle_power_w : W
        Idle baseline in place of the calibrations'.
    declared : mapping
        ``device``, ``rail``, ``power_mode`` and ``precision``, where the source does not know them.
    dram_counter_factor : 1
        Bytes that the source counts per true byte, as the recorder measured it.
    force : bool
        Use a calibration that belongs elsewhere, and mark every estimate.
    """

    calibrations: tuple[Calibration, ...]
    rule: Rule = field(default_factory=Rule)
    merge_gap_s: float = 0.0
    idle_power_w: float | None = None
    declared: Mapping[str, str | None] = field(default_factory=dict)
    dram_counter_factor: float = 1.0
    force: bool = False

    def __post_init__(self) -> None:
        if not self.calibrations:
            raise ValueError("calibrations: at least one is needed")
        if not 0 < self.dram_counter_factor < math.inf:
            raise ValueError(f"`dram_counter_factor` must be a positive number, found {self.dram_counter_factor:g}")
        for name in ("merge_gap_s", "idle_power_w"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be 0 or more, found {value:g}")

    def baseline_w(self) -> float:
        """Return the idle baseline in W; CalibrationMismatchError where there is none, or two."""
        if self.idle_power_w is not None:
            return self.idle_power_w
        known = [c.identity.idle_power_w for c in self.calibrations]
        first = known[0]
        if first is None or any(w is None or abs(w - first) > 1e-3 for w in known):
            raise CalibrationMismatchError(
                f"one idle baseline is needed, the calibrations give {known} W: set `idle_power_w`"
            )
        return first

    def digest(self) -> str:
        """Return the digest of the chain of calibrations."""
        return hashlib.sha256("".join(c.to_json() for c in self.calibrations).encode()).hexdigest()


class Fragments(NamedTuple):
    """Sums over the fragments of a merged session so far; what one fragment lacks is unknown of the whole."""

    parts: int
    duration_s: float
    energy_net_j: float | None
    dram_tb: float | None
    estimate_tflop: float | None
    estimator: str | None

    @classmethod
    def of(cls, row: SessionRow) -> Fragments:
        """Return the sums of one fragment."""
        return cls(*(getattr(row, name) for name in cls._fields))

    def joined(self, other: Fragments) -> Fragments:
        """Return the sums of both."""
        sums: dict[str, Any] = {}
        for name, a, b in zip(self._fields[:-1], self[:-1], other[:-1], strict=True):
            sums[name] = None if a is None or b is None else a + b
        return Fragments(**sums, estimator=self.estimator if self.estimator == other.estimator else None)


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
        self._warning = self._mismatch()
        if self._warning and not settings.force:
            raise CalibrationMismatchError(
                f"{self._warning}; with `force` it is used all the same and every estimate is marked"
            )
        self._digest = settings.digest()
        self._idle_w: deque[float] = deque(maxlen=IDLE_POLLS[1])
        self._slept_s, self._missing = _slept_s(), set(source.missing)
        self._unlogged: list[SessionRow] | None = None  # sessions that wait for a log that cannot be written
        self.last_s: float | None = None  # the last poll, in the source's clock
        self.carried: list[SessionRow] = []  # sessions that a restart ended
        self._reset()
        # what a log must agree on, so that its open session can go on here
        self._identity = {
            "source": source.name,
            "fingerprint": source.fingerprint(),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip() if source.live else "",
            "settings": f"{self._idle_power_w} W, {settings.rule}, merging {settings.merge_gap_s} s",
        }
        if session_log is not None and (state := session_log.resume()):
            self._resume(state, session_log)

    def _reset(self) -> None:
        rule = self.settings.rule
        self.detector = Detector(self._idle_power_w, rule)
        self._merging = Detector(self._idle_power_w, rule.merging(self.settings.merge_gap_s))  # over dips in a run
        self._fragments: Fragments | None = None

    def _resume(self, state: dict[str, Any], session_log: SessionLog) -> None:
        path = session_log.path
        if (source := state.get("source")) != self.source.name:
            raise LogError(f"{path}: holds {source}, not {self.source.name}: give another `log`")
        fingerprint = self._identity["fingerprint"]
        if state.get("fingerprint", fingerprint) != fingerprint:
            raise LogError(
                f"{path}: holds another log or trace of the name {self.source.name}, which was replaced or rotated"
                " since: give another `log`"
            )
        try:
            self._restore(state)
        except StateError as error:
            log.warning("%s: %s: its open session is added up again from the logged polls", path, error)
            self._replay(session_log)
        if state.get("boot") != self._identity["boot"]:  # its clock began again, and no workload survived
            self.carried = self.finish("machine restarted")
            return
        self.note("monitor restarted")
        if state.get("settings") != self._identity["settings"]:
            self.note("baseline or rule changed")
        log.warning("%s: goes on after %s s of %s", path, self.last_s, self.source.name)

    def _restore(self, state: dict[str, Any]) -> None:
        if (version := state.get("version")) != STATE_VERSION:
            raise StateError(f"the state was kept by another release (version {version}, this is {STATE_VERSION})")
        try:
            fragments, self.last_s = state["fragments"], state["t_s"]
            self._fragments = None if fragments is None else Fragments(**fragments)
            detector, merging = state["detector"], state["merging"]
        except (KeyError, TypeError) as error:
            raise StateError(f"the kept state is not one of this release: {error}") from error
        self.detector = Detector.resumed(detector, self._idle_power_w, self.detector.rule)
        self._merging = Detector.resumed(merging, self._idle_power_w, self._merging.rule)

    def _replay(self, session_log: SessionLog) -> None:
        """Add up what was logged since the last session ended; what it merged with is forgotten."""
        self._reset()
        for sample in session_log.samples_since_last_session():
            self.detector.add(sample)
            self._merging.add(sample)
            self.last_s = sample.t_s
        self.note("monitor was updated")

    def poll(self, sample: Sample) -> list[SessionRow]:
        """Take one sample and log it; return the sessions that it ended, estimated.

        Raises
        ------
        LogError
            Where the log of a replay cannot be written; with a live source the monitor goes on and tries again.
        """
        self._note_troubles()
        if sample.dram_bytes_per_s is not None:
            sample = replace(sample, dram_bytes_per_s=sample.dram_bytes_per_s / self.settings.dram_counter_factor)
        was_open = self.detector.open
        ended, merged = self.detector.add(sample), self._merging.add(sample)
        if self.detector.open != was_open and (warning := self._mismatch()) != self._warning:
            self._warning = warning
            self.note("identity changed")
        rows = self._rows(ended, merged)
        is_idle = not self.detector.open and self.detector.busy_polls == 0 and sample.gpu_util is not None
        if is_idle and sample.power_w is not None:
            self._idle_w.append(sample.power_w)
        self.last_s = sample.t_s
        self._commit(sample, rows)
        return rows

    def finish(self, anomaly: str = "readings ended first") -> list[SessionRow]:
        """End the open session because its readings have ended, and log it."""
        rows = self._rows(self.detector.session(anomaly), self._merging.session(anomaly))
        self._reset()
        self._commit(None, rows)
        return rows

    def note(self, anomaly: str, seconds: float = 0.0) -> None:
        """Record an anomaly on the session that is open."""
        self.detector.note(anomaly, seconds)
        self._merging.note(anomaly, seconds)

    def _note_troubles(self) -> None:
        for name in self.source.missing.keys() - self._missing:
            self.note(f"{name} lost")
        self._missing = set(self.source.missing)
        if self.source.live and (slept_s := _slept_s() - self._slept_s) > SLEEP_S:
            self._slept_s += slept_s
            self.note("machine slept", slept_s)

    def estimate(self, session: Session) -> tuple[Estimate | None, str]:
        """Return the estimate of the first calibration whose readings are there, or None; and a note about it."""
        if session.energy_net_j is None:
            return None, "no estimate: power was missing for most of the time"
        lacking: list[Estimate] = []
        for calibration in self.settings.calibrations:
            estimate = calibration.estimate(session)
            if estimate.tflop is None:
                lacking.append(estimate)
                continue
            return estimate, f"{_reason(lacking)}: {calibration.form.label} used" if lacking else ""
        return None, f"no estimate: {_reason(lacking)}, and no calibration without it was given"

    def _rows(self, ended: Session | None, merged: Session | None) -> list[SessionRow]:
        """Return rows of a session that ended and, where it was the last of several fragments, of their whole."""
        rows = []
        if ended is not None:
            row = self._row("session", ended)
            rows.append(row)
            fragment = Fragments.of(row)
            self._fragments = fragment if self._fragments is None else self._fragments.joined(fragment)
        if merged is not None:
            if (whole := self._fragments) is not None and whole.parts > 1:
                note = f"merged of {whole.parts} fragments, which are listed too"
                note += "; no estimate: a fragment has none" if whole.estimate_tflop is None else ""
                rows.append(replace(self._row("merged", merged), **whole._asdict(), note=note))
            self._fragments = None
        return rows

    def _row(self, record_type: str, session: Session) -> SessionRow:
        estimate, note = self.estimate(session)
        idle_w = statistics.median(self._idle_w) if len(self._idle_w) >= IDLE_POLLS[0] else None
        tolerance_w = max(IDLE_TOLERANCE_W, IDLE_TOLERANCE * self._idle_power_w)
        if idle_w is not None and abs(idle_w - self._idle_power_w) > tolerance_w:
            drift = f"live idle is {idle_w:.3f} W, the baseline {self._idle_power_w:.3f} W"
            note = f"{note}; {drift}" if note else drift
        # another root than /sys may be simulated: then nothing tells whether it is a board
        is_board = self.source.live and not self.source.name.startswith("sysfs:")
        return SessionRow(
            **vars(session),
            record_type=record_type,
            parts=1,
            estimate_tflop=None if estimate is None else estimate.tflop,
            estimator=None if estimate is None else estimate.estimator,
            note=note,
            warning=self._warning,
            idle_check_w=idle_w,
            **self._reported,
            data="recorded" if is_board else self.source.identity().get("kind"),
            source=self.source.name,
            calibration_sha256=self._digest,
        )

    def _mismatch(self) -> str:
        """Ask the source what it is; return why the calibrations do not belong to it, or nothing."""
        reported, declared = self.source.identity(), self.settings.declared
        self._reported: dict[str, Any] = {name: reported.get(name) or declared.get(name) for name in MUST_AGREE}
        faults = [
            f"{name} is declared {value!r} but the source says {reported[name]!r}"
            for name, value in declared.items()
            if value is not None and reported.get(name) not in (None, value)
        ]
        for calibration in self.settings.calibrations:
            try:
                calibration.check(self._reported)
            except CalibrationMismatchError as error:
                faults.append(str(error))
        return "; ".join(dict.fromkeys(faults))

    def _commit(self, sample: Sample | None, rows: list[SessionRow]) -> None:
        if self._log is None:
            return
        state = {
            "version": STATE_VERSION,
            **self._identity,
            "t_s": self.last_s,
            "fragments": None if self._fragments is None else self._fragments._asdict(),
            "detector": self.detector.state(),
            "merging": self._merging.state(),
        }
        try:
            if self._unlogged is not None:
                self._log.reopen()
            self._log.commit(sample, state, [*(self._unlogged or ()), *rows])
        except LogError as error:
            if not self.source.live:
                raise
            if self._unlogged is None:
                log.error("%s; sessions are kept in memory and tried again at each poll", error)
            self._unlogged = [*(self._unlogged or ()), *rows]
            self.note("poll not logged")
        else:
            if self._unlogged is not None:
                log.warning("%s: can be written again", self._log.path)
            self._unlogged = None


def _reason(lacking: list[Estimate]) -> str:
    """Name the missing readings that kept calibrations from estimating, and whose they were."""
    words = dict.fromkeys(WORDS[name] for estimate in lacking for name in estimate.missing)
    labels = dict.fromkeys(FORMS[estimate.estimator].label for estimate in lacking)
    return f"{' and '.join(words)} was missing for {', '.join(labels)}"


def _slept_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
