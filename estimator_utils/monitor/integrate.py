"""The trapezoid, once: over columns, and poll by poll in constant memory; with gaps and anomalies beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from estimator_utils.telemetry.source import Sample

if TYPE_CHECKING:
    import numpy.typing as npt

    Column = npt.ArrayLike | Sequence[float | None]


def finite_or_none(value: float | None) -> float | None:
    """Return a finite number as it is, anything else as None."""
    return value if value is not None and math.isfinite(value) else None


def energy_j(t_s: npt.ArrayLike, power_w: Column, idle_power_w: float) -> float:
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


def traffic_tb(t_s: npt.ArrayLike, bytes_per_s: Column) -> float:
    """Return the DRAM traffic in TB (1e12 true bytes) of (n,) bytes/s at (n,) s; missing as in `energy_j`."""
    return energy_j(t_s, bytes_per_s, 0.0) / 1e12


class Integral(NamedTuple):
    """The running trapezoid of one reading: its area, number of readings, the last one, seconds without holes."""

    area: float = 0.0
    n: int = 0
    t_s: float | None = None
    value: float = 0.0
    covered_s: float = 0.0

    def add(self, t_s: float, value: float | None, hole_s: float) -> Integral:
        """Return the integral with one reading more; a missing one changes nothing."""
        if value is None:
            return self
        step_s = 0.0 if self.t_s is None else t_s - self.t_s
        area = self.area + step_s * (self.value + value) / 2
        return Integral(area, self.n + 1, t_s, value, self.covered_s + (step_s if step_s <= hole_s else 0.0))

    def total(self, span_s: float) -> float | None:
        """Return the area, or None where most of ``span_s`` had no reading and would be made up."""
        return self.area if self.n > 1 and 2 * self.covered_s >= span_s else None


class SessionSums(NamedTuple):
    """What has been added up since some poll. Immutable, so that keeping an earlier one costs nothing."""

    busy: Integral = Integral()  # 1, or 0 at the edges
    net_w: Integral = Integral()
    bytes_per_s: Integral = Integral()
    gpu_util: Integral = Integral()
    polls: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    in_gap: bool = False
    t_s: float | None = None
    peak_w: float | None = None
    anomalies: Mapping[str, tuple[int, float]] = {}  # how often, and seconds in all
    span_s: float = 0.0

    def uncovered_share(self) -> float:
        """Return the share of the time over which power is a line between readings that are far apart."""
        return 1 - self.net_w.covered_s / self.span_s if self.span_s else 0.0

    def with_anomaly(self, name: str, seconds: float = 0.0) -> SessionSums:
        """Return the sums with an anomaly counted; memory grows with the names only."""
        n, total_s = self.anomalies.get(name, (0, 0.0))
        return self._replace(anomalies={**self.anomalies, name: (n + 1, total_s + seconds)})

    def add(self, sample: Sample, busy: float | None, idle_power_w: float, hole_s: float) -> SessionSums:
        """Return the sums with one poll more."""
        power_w, util = finite_or_none(sample.power_w), finite_or_none(sample.gpu_util)
        readings = {
            "busy": busy,
            "net_w": None if power_w is None else max(power_w - idle_power_w, 0.0),
            "bytes_per_s": finite_or_none(sample.dram_bytes_per_s),
            "gpu_util": util,
        }
        step_s = 0.0 if self.t_s is None else sample.t_s - self.t_s
        integrals = {name: getattr(self, name) for name in readings}
        if step_s < 0:  # where the source's clock started again nothing can be integrated across
            integrals = {name: integral._replace(t_s=None) for name, integral in integrals.items()}
        missing = power_w is None or util is None
        broken = missing or not 0 <= step_s <= hole_s
        return self._replace(
            **{name: integrals[name].add(sample.t_s, value, hole_s) for name, value in readings.items()},
            polls=self.polls + 1,
            gaps=self.gaps + (1 if broken and not self.in_gap else 0),
            gap_s=self.gap_s + (max(step_s, 0.0) if broken or self.in_gap else 0.0),
            in_gap=missing,
            t_s=sample.t_s,
            peak_w=max((w for w in (self.peak_w, power_w) if w is not None), default=None),
            span_s=self.span_s + max(step_s, 0.0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sums in types that JSON takes, by name."""
        return {n: v._asdict() if isinstance(v, Integral) else v for n, v in self._asdict().items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SessionSums:
        """Return the sums that `to_json` gave and JSON kept; TypeError or ValueError for anything else."""
        defaults = cls()._asdict()
        if set(content) != set(defaults):
            raise ValueError(f"sums have {sorted(defaults)}, found {sorted(content)}")
        values: dict[str, Any] = {
            n: Integral(**v) if isinstance(defaults[n], Integral) else v for n, v in content.items()
        }
        values["anomalies"] = {name: (int(n), float(s)) for name, (n, s) in content["anomalies"].items()}
        return cls(**values)


EMPTY = SessionSums()
