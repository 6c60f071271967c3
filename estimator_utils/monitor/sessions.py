"""Where a training run began and ended in a board's readings, and its energy, traffic and time.

The study's rule decides *that* a session began and ended: GPU utilisation above 5 % on two consecutive polls,
below 5 % on three. Integrated between the polls at which it fires, a session loses 1.5 polls of energy on
average and gains one poll of time. So by default it is integrated from the last idle poll before it to the
first idle poll after it: the trapezoid gives it half of the interval at each edge: unbiased. Its time is
the same trapezoid over "busy = 1, idle = 0", so that energy and time always belong to the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from estimator_utils.monitor.integrate import NOTHING, Channel, Tally, known
from estimator_utils.telemetry import Sample

if TYPE_CHECKING:
    import numpy.typing as npt

    Readings = npt.ArrayLike | Sequence[float | None]

EDGES = ("unbiased", "study")
HOLE_POLLS = 2.5  # two readings further apart than this many poll periods have a gap between them
EDGE_POLLS = 10  # an idle poll further away than this says nothing of when the workload began or ended
UNSEEN_SHARE = 0.05  # of a session, which is marked where no power was seen for more
CLOCK_STEP_S = 1.0  # wall time may drift this far from the source's clock between two polls


@dataclass(frozen=True)
class Rule:
    """When a session starts and ends; the defaults are the study's.

    ``edges`` is "unbiased", or "study" for integration between the polls at which the rule fires.
    """

    threshold: float = 0.05
    start_polls: int = 2
    stop_polls: int = 3
    period_s: float = 1.5
    edges: str = "unbiased"

    def __post_init__(self) -> None:
        if self.edges not in EDGES:
            raise ValueError(f"edges must be one of {', '.join(EDGES)}, found {self.edges!r}")
        if not (0 < self.period_s < math.inf and self.start_polls > 0 and self.stop_polls > 0):
            found = f"--period {self.period_s:g} s, {self.start_polls} and {self.stop_polls} polls"
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
    marks: tuple[str, ...]  # whatever else was irregular, each kind once with its count
    start_wall_s: float | None


def energy_j(t_s: npt.ArrayLike, power_w: Readings, idle_power_w: float) -> float:
    """Return the energy in J above idle: the trapezoid of max(power - idle, 0). Source: the study, Eq. 1.

    Parameters
    ----------
    t_s, power_w : (n,) s, (n,) W
        Increasing times; power that is None or NaN is left out, so that the line runs between the readings on
        either side. Fewer than two readings give NaN.
    idle_power_w : float

    Examples
    --------
    >>> energy_j([0.0, 1.0, 3.0], [5.0, None, 5.0], idle_power_w=1.0)
    12.0
    """
    import numpy as np  # in the function: the monitor streams, and starts faster without it

    t, y = np.asarray(t_s, dtype=float), np.maximum(np.asarray(power_w, dtype=float) - idle_power_w, 0)
    t, y = t[np.isfinite(y)], y[np.isfinite(y)]
    if np.any(np.diff(t) <= 0):
        raise ValueError("t_s must increase from one reading to the next: sort it, or split it where it steps")
    return float(np.sum(np.diff(t) * (y[1:] + y[:-1])) / 2) if len(t) > 1 else math.nan


def traffic_tb(t_s: npt.ArrayLike, bytes_per_s: Readings) -> float:
    """Return the DRAM traffic in TB (1e12 true bytes) of (n,) bytes/s at (n,) s; missing as in `energy_j`."""
    return energy_j(t_s, bytes_per_s, 0.0) / 1e12


@dataclass
class Detector:
    """The start/stop machine, fed one `Sample` at a time, in constant memory.

    A poll without GPU load is a gap: neither busy nor idle. It starts nothing and ends nothing.
    """

    idle_power_w: float
    rule: Rule = field(default_factory=Rule)
    open: bool = False
    ups: int = 0
    downs: int = 0
    start_s: float = 0.0
    start_wall_s: float | None = None
    idle_s: float | None = None  # the last idle poll before a session
    busy_s: float = 0.0  # the last busy poll
    end_s: float = 0.0  # the first idle poll after it
    last_s: float | None = None
    last_wall_s: float | None = None
    tally: Tally = NOTHING  # since the last idle poll, or of the open session
    at_busy: Tally = NOTHING  # ... as it stood at the last busy poll
    at_idle: Tally = NOTHING  # ... and at the first idle poll

    def add(self, sample: Sample) -> Session | None:
        """Take one poll; return the session that it ended, if it ended one."""
        t_s, util, last_s = sample.t_s, known(sample.gpu_util), self.last_s
        if t_s == last_s:
            return None  # the same reading again
        if last_s is not None and t_s < last_s:
            self.mark("source clock went back", last_s - t_s)
            self.idle_s = None
        elif last_s is not None and sample.wall_s is not None and self.last_wall_s is not None:
            drift_s = (sample.wall_s - self.last_wall_s) - (t_s - last_s)
            if abs(drift_s) > CLOCK_STEP_S:
                self.mark("wall clock stepped", drift_s)
        self.last_s, self.last_wall_s = t_s, sample.wall_s
        sign = None if util is None else (util > self.rule.threshold) - (util < self.rule.threshold)
        if self.open:
            return self._add_open(sample, sign)
        self._add_waiting(sample, sign)
        return None

    def mark(self, kind: str, seconds: float = 0.0) -> None:
        """Record an irregularity on the session that is open, or that would begin here."""
        self.tally = self.tally.mark(kind, seconds)

    def _sum(self, tally: Tally, sample: Sample, busy: float | None) -> Tally:
        return tally.add(sample, busy, self.idle_power_w, HOLE_POLLS * self.rule.period_s)

    def _add_waiting(self, sample: Sample, sign: int | None) -> None:
        t_s = sample.t_s
        if sign is None:
            self.tally = self._sum(self.tally, sample, None)
        elif sign <= 0:
            self.ups, self.idle_s, self.tally = 0, t_s, self._sum(NOTHING, sample, 0.0)
        else:
            if self.ups == 0:
                self.start_s, self.start_wall_s = t_s, sample.wall_s
                if self.idle_s is None or t_s - self.idle_s > EDGE_POLLS * self.rule.period_s:
                    self.tally = Tally(marks=self.tally.marks).mark("start not seen")
            self.ups += 1
            self.open, self.downs = self.ups >= self.rule.start_polls, 0
            if self.open and self.rule.edges == "study":
                self.tally = Tally(marks=self.tally.marks)
            self.tally = self.at_busy = self._sum(self.tally, sample, 1.0)
            self.busy_s = t_s

    def _add_open(self, sample: Sample, sign: int | None) -> Session | None:
        t_s = sample.t_s
        if sign == -1 and self.downs == 0:
            self.end_s, self.at_idle = t_s, self._sum(self.tally, sample, 0.0)
            if not 0 <= t_s - self.busy_s <= EDGE_POLLS * self.rule.period_s:
                self.at_idle = self.at_busy._replace(marks=self.tally.marks).mark("end not seen")
        self.tally = self._sum(self.tally, sample, None if sign is None else 1.0)
        if sign == -1:
            self.downs += 1
        elif sign is not None:
            self.downs, self.busy_s, self.at_busy = 0, t_s, self.tally
        if self.downs < self.rule.stop_polls:
            return None
        session = self.session()
        self.open, self.ups, self.idle_s, self.tally = False, 0, t_s, self._sum(NOTHING, sample, 0.0)
        return session

    def session(self, mark: str = "") -> Session | None:
        """Return the open session as it stands, or None; ``mark`` says why it is looked at before its end."""
        if not self.open:
            return None
        tally = self.at_idle if self.downs and self.rule.edges == "unbiased" else self.tally
        busy, _, traffic, _ = tally.channels
        marks = dict((tally.mark(mark) if mark else tally).marks)
        if 0 < traffic.n < tally.polls:
            marks["poll without DRAM"] = tally.polls - traffic.n, 0.0
        texts = [f"{kind} x{n}" + (f" ({s:+.1f} s)" if s else "") for kind, (n, s) in marks.items()]
        if (unseen := tally.unseen()) >= UNSEEN_SHARE:
            texts.append(f"power not seen for {unseen:.0%} of the time")
        energy_j, traffic_b, util_s = (channel.total(tally.span_s) for channel in tally.channels[1:])
        return Session(
            start_s=self.start_s,
            end_s=self.end_s if self.downs else self.last_s or self.start_s,
            duration_s=busy.area,
            energy_net_j=energy_j,
            dram_tb=None if traffic_b is None else traffic_b / 1e12,
            gpu_util=None if util_s is None or busy.area <= 0 else util_s / busy.area,
            power_peak_w=tally.peak_w,
            idle_power_w=self.idle_power_w,
            polls=tally.polls,
            gaps=tally.gaps,
            gap_s=tally.gap_s,
            edges=self.rule.edges,
            marks=tuple(texts),
            start_wall_s=self.start_wall_s,
        )

    def state(self) -> dict[str, Any]:
        """Return what it knows, in types that JSON takes."""
        return {name: value for name, value in vars(self).items() if name not in ("idle_power_w", "rule")}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned and JSON kept."""
        for name, value in state.items():
            if isinstance(value, list):
                channels, *rest = value
                value = Tally(tuple(Channel(*channel) for channel in channels), *rest)
            setattr(self, name, value)


def find_sessions(samples: Iterable[Sample], idle_power_w: float, rule: Rule | None = None) -> list[Session]:
    """Return the sessions in ``samples``; one that is open when they end is the last, and marked."""
    detector = Detector(idle_power_w, rule or Rule())
    found = [session for sample in samples if (session := detector.add(sample))]
    return found if (last := detector.session("readings ended first")) is None else [*found, last]
