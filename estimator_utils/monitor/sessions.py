"""Where a training run began and ended in a board's readings, and its energy, traffic and time.

The study's rule decides *that* a session began and ended: GPU utilisation above 5 % on two consecutive polls,
below 5 % on three. Integrated between the polls at which it fires, a session loses 1.5 polls of energy on
average and gains one poll of time. So by default it is integrated from the last idle poll before it to the
first idle poll after it: the trapezoid gives it half of the interval at each edge: unbiased. Its time is
the same trapezoid over "busy = 1, idle = 0", so that energy and time always belong to the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args, get_type_hints

from estimator_utils.monitor.integrate import EMPTY, SessionSums, finite_or_none
from estimator_utils.telemetry.source import PERIOD_S, Sample

EDGES = ("unbiased", "study")
HOLE_POLLS = 2.5  # two readings further apart than this many poll periods have a gap between them
EDGE_POLLS = 10  # an idle poll further away than this says nothing of when the workload began or ended
UNCOVERED_SHARE = 0.05  # of a session, which is an anomaly where power has gaps for more
CLOCK_STEP_S = 1.0  # wall time may drift this far from the source's clock between two polls


class StateError(ValueError):
    """A kept state that this release did not write."""


@dataclass(frozen=True)
class Rule:
    """When a session starts and ends; the defaults are the study's.

    Attributes
    ----------
    threshold : 1
        GPU utilisation: busy above, idle below.
    start_polls : int
        Consecutive busy polls that start a session.
    stop_polls : int
        Consecutive idle polls that end it.
    period_s : s
        Between two polls.
    edges : {"unbiased", "study"}
        Between which polls a session is integrated: unbiased, or those at which the rule fires (study).
    """

    threshold: float = 0.05
    start_polls: int = 2
    stop_polls: int = 3
    period_s: float = PERIOD_S
    edges: str = EDGES[0]

    def __post_init__(self) -> None:
        if self.edges not in EDGES:
            raise ValueError(f"edges must be one of {', '.join(EDGES)}, found {self.edges!r}")
        if not (0 < self.period_s < math.inf and self.start_polls > 0 and self.stop_polls > 0):
            found = f"`period_s` {self.period_s:g}, {self.start_polls} and {self.stop_polls} polls"
            raise ValueError(f"the poll period and the numbers of polls must be positive, found {found}")

    def merging(self, gap_s: float) -> Rule:
        """Return the rule that joins fragments with an idle gap of up to ``gap_s`` between them."""
        return replace(self, stop_polls=max(self.stop_polls, math.floor(gap_s / self.period_s) + 2))


@dataclass(frozen=True)
class Session:
    """One detected workload; what could not be measured is None, and gaps are bridged by straight lines."""

    start_s: float  # first busy poll, in the source's clock
    end_s: float  # first idle poll after it
    duration_s: float  # between the edges that `edges` names, as are energy and traffic
    energy_net_j: float | None  # above idle
    dram_tb: float | None  # true TB, 1e12 bytes
    gpu_util: float | None  # mean over time, 0..1
    power_peak_w: float | None  # raw
    idle_power_w: float
    polls: int
    gaps: int  # stretches without power, without GPU load or without any poll
    gap_s: float
    edges: str
    anomalies: tuple[str, ...]  # whatever else was irregular, each once with its count
    start_wall_s: float | None


@dataclass
class Detector:
    """The start/stop machine, fed one `Sample` at a time, in constant memory.

    A poll without GPU load is a gap, and one at the threshold itself is neither busy nor idle: they start nothing
    and end nothing.
    """

    idle_power_w: float
    rule: Rule = field(default_factory=Rule)
    open: bool = False
    busy_polls: int = 0  # consecutive, before a session is open
    idle_polls: int = 0  # consecutive, in an open session
    start_s: float = 0.0
    start_wall_s: float | None = None
    idle_s: float | None = None  # the last idle poll before a session
    busy_s: float = 0.0  # the last busy poll
    end_s: float = 0.0  # the first idle poll after it
    last_s: float | None = None
    last_wall_s: float | None = None
    sums: SessionSums = EMPTY  # since the last idle poll, or of the open session
    at_busy: SessionSums = EMPTY  # ... as they stood at the last busy poll
    at_idle: SessionSums = EMPTY  # ... and at the first idle poll

    def add(self, sample: Sample) -> Session | None:
        """Take one poll; return the session that it ended, if it ended one."""
        if sample.t_s == self.last_s:
            return None  # the same reading again
        self._check_clocks(sample)
        self.last_s, self.last_wall_s = sample.t_s, sample.wall_s
        util = finite_or_none(sample.gpu_util)
        is_busy = util is not None and util > self.rule.threshold
        is_idle = util is not None and util < self.rule.threshold
        if not self.open:
            self._add_waiting(sample, is_busy, util is None)
            return None
        self._add_open(sample, is_busy, is_idle, util is None)
        return self._ended(sample) if self.idle_polls >= self.rule.stop_polls else None

    def note(self, anomaly: str, seconds: float = 0.0) -> None:
        """Record an anomaly on the session that is open, or that would begin here."""
        self.sums = self.sums.with_anomaly(anomaly, seconds)

    def _check_clocks(self, sample: Sample) -> None:
        if self.last_s is None:
            return
        step_s = sample.t_s - self.last_s
        if step_s < 0:
            self.note("source clock went back", -step_s)
            self.idle_s = None
        elif sample.wall_s is not None and self.last_wall_s is not None:
            drift_s = (sample.wall_s - self.last_wall_s) - step_s
            if abs(drift_s) > CLOCK_STEP_S:
                self.note("wall clock stepped", drift_s)

    def _added(self, sums: SessionSums, sample: Sample, busy: float | None) -> SessionSums:
        return sums.add(sample, busy, self.idle_power_w, HOLE_POLLS * self.rule.period_s)

    def _is_edge(self, seconds: float) -> bool:
        """Tell whether two polls are near enough for an edge of the workload to lie in their middle."""
        return 0 <= seconds <= EDGE_POLLS * self.rule.period_s

    def _add_waiting(self, sample: Sample, is_busy: bool, is_gap: bool) -> None:
        if is_gap:
            self.sums = self._added(self.sums, sample, None)
        elif is_busy:
            self._add_starting(sample)
        else:
            self.busy_polls, self.idle_s, self.sums = 0, sample.t_s, self._added(EMPTY, sample, 0.0)

    def _add_starting(self, sample: Sample) -> None:
        if self.busy_polls == 0:
            self.start_s, self.start_wall_s = sample.t_s, sample.wall_s
            if self.idle_s is None or not self._is_edge(sample.t_s - self.idle_s):
                self.sums = SessionSums(anomalies=self.sums.anomalies).with_anomaly("start not seen")
        self.busy_polls += 1
        self.open, self.idle_polls = self.busy_polls >= self.rule.start_polls, 0
        if self.open and self.rule.edges == "study":
            self.sums = SessionSums(anomalies=self.sums.anomalies)
        self.sums = self.at_busy = self._added(self.sums, sample, 1.0)
        self.busy_s = sample.t_s

    def _add_open(self, sample: Sample, is_busy: bool, is_idle: bool, is_gap: bool) -> None:
        if is_idle and self.idle_polls == 0:
            self.end_s, self.at_idle = sample.t_s, self._added(self.sums, sample, 0.0)
            if not self._is_edge(sample.t_s - self.busy_s):
                self.at_idle = self.at_busy._replace(anomalies=self.sums.anomalies).with_anomaly("end not seen")
        self.sums = self._added(self.sums, sample, None if is_gap else 1.0)
        if is_idle:
            self.idle_polls += 1
        elif not is_gap:
            self.idle_polls, self.busy_s, self.at_busy = 0, sample.t_s, self.sums

    def _ended(self, sample: Sample) -> Session | None:
        session = self.session()
        self.open, self.busy_polls, self.idle_s = False, 0, sample.t_s
        self.sums = self._added(EMPTY, sample, 0.0)
        return session

    def session(self, anomaly: str = "") -> Session | None:
        """Return the open session as it stands, or None; ``anomaly`` says why it is looked at before its end."""
        if not self.open:
            return None
        sums = self.at_idle if self.idle_polls and self.rule.edges == "unbiased" else self.sums
        anomalies = dict((sums.with_anomaly(anomaly) if anomaly else sums).anomalies)
        if 0 < sums.bytes_per_s.n < sums.polls:
            anomalies["poll without DRAM"] = sums.polls - sums.bytes_per_s.n, 0.0
        texts = [f"{name} x{n}" + (f" ({s:+.1f} s)" if s else "") for name, (n, s) in anomalies.items()]
        if (uncovered := sums.uncovered_share()) >= UNCOVERED_SHARE:
            texts.append(f"power not seen for {uncovered:.0%} of the time")
        traffic_bytes, util_s = sums.bytes_per_s.total(sums.span_s), sums.gpu_util.total(sums.span_s)
        duration_s = sums.busy.area
        return Session(
            start_s=self.start_s,
            end_s=self.end_s if self.idle_polls else self.last_s or self.start_s,
            duration_s=duration_s,
            energy_net_j=sums.net_w.total(sums.span_s),
            dram_tb=None if traffic_bytes is None else traffic_bytes / 1e12,
            gpu_util=None if util_s is None or duration_s <= 0 else util_s / duration_s,
            power_peak_w=sums.peak_w,
            idle_power_w=self.idle_power_w,
            polls=sums.polls,
            gaps=sums.gaps,
            gap_s=sums.gap_s,
            edges=self.rule.edges,
            anomalies=tuple(texts),
            start_wall_s=self.start_wall_s,
        )

    def state(self) -> dict[str, Any]:
        """Return what it knows, by name, in types that JSON takes."""
        values = {name: getattr(self, name) for name in _kept()}
        return {n: v.to_json() if isinstance(v, SessionSums) else v for n, v in values.items()}

    @classmethod
    def resumed(cls, state: Mapping[str, Any], idle_power_w: float, rule: Rule) -> Detector:
        """Return a detector that goes on from what `state` returned and JSON kept.

        Raises
        ------
        StateError
            Where a name or a type is another.
        """
        kept = _kept()
        try:
            if set(state) != set(kept):
                raise ValueError(f"expected {sorted(kept)}, found {sorted(state)}")
            values: dict[str, Any] = {
                n: SessionSums.from_json(v) if kept[n] is SessionSums else v for n, v in state.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"the kept state is not one of this release: {error}") from error
        for name, value in values.items():
            if not _is_of_type(value, kept[name]):
                raise StateError(f"the kept state has {value!r} for {name}")
        return cls(idle_power_w, rule, **values)


def _kept() -> dict[str, Any]:
    """Return the names and types of what a detector keeps."""
    hints = get_type_hints(Detector)
    return {f.name: hints[f.name] for f in fields(Detector) if f.name not in ("idle_power_w", "rule")}


def _is_of_type(value: object, hint: Any) -> bool:
    options = get_args(hint) or (hint,)
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value)
    return type(value) in options


def find_sessions(samples: Iterable[Sample], idle_power_w: float, rule: Rule | None = None) -> list[Session]:
    """Return the sessions in ``samples``; one that is open when they end is the last, with an anomaly."""
    detector = Detector(idle_power_w, rule or Rule())
    ended = [session for sample in samples if (session := detector.add(sample))]
    return ended if (last := detector.session("readings ended first")) is None else [*ended, last]
