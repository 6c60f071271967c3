"""A calibration: the constants of an estimator, what they belong to, and the estimate they give.

Verifier's side, standard library only. The forms below are all that an estimate rests on: what is fitted and
evaluated in numpy, what is saved, and what the monitor runs are one expression each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

VERSION = 2  # of the file; before 2 it had no version and held Eq. 1 or Eq. 2 alone
MUST_AGREE = ("device", "rail", "power_mode", "precision")


class CalibrationMismatchError(ValueError):
    """The calibration belongs to another device, rail, power mode or precision than the readings."""


Value = Any  # a number, or an array of several runs' numbers
Readings = Any  # has the attributes of `Run`: a session, a row of the runs table, `fitting.RunArrays`


@dataclass(frozen=True)
class Run:
    """Readings of one run, which estimates are made from: J, s, true TB (1e12 bytes), 0 to 1; None where missing."""

    energy_net_j: float
    duration_s: float
    dram_tb: float | None = None
    gpu_util: float | None = None


@dataclass(frozen=True)
class Estimate:
    """What an estimator says of a run, or of several.

    Attributes
    ----------
    tflop : float or array or None
        Estimated TFLOP, not clamped, so it may be negative; None where a reading that it needs is missing.
    estimator : str
        Slug of the estimator.
    missing : tuple of str
        The readings that are missing.
    """

    tflop: Value
    estimator: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """How an estimator turns readings into TFLOP.

    Attributes
    ----------
    label : str
        For people.
    constants : tuple of str
        With their units in the name.
    readings : tuple of str
        The `Readings` that it needs.
    tflop : callable
        Of the constants by name and the readings; numbers or arrays.
    """

    label: str
    constants: tuple[str, ...]
    readings: tuple[str, ...]
    tflop: Callable[[Mapping[str, Value], Readings], Value]


def _eq1(c: Mapping[str, Value], r: Readings) -> Value:
    net_j = r.energy_net_j - c["e_per_tb_j"] * r.dram_tb - c["p_overhead_w"] * r.duration_s
    return net_j / c["e_per_tflop_j"]


def _eq2(c: Mapping[str, Value], r: Readings) -> Value:
    return (r.energy_net_j - c["p_overhead_w"] * r.duration_s) / c["e_per_tflop_j"]


def _one_constant(c: Mapping[str, Value], r: Readings) -> Value:
    return r.energy_net_j / c["e_per_tflop_j"]


def _log_energy_time(c: Mapping[str, Value], r: Readings) -> Value:
    return c["scale_tflop"] * r.energy_net_j ** c["energy_exponent"] * r.duration_s ** c["time_exponent"]


def _utilisation_time(c: Mapping[str, Value], r: Readings) -> Value:
    return c["tflop_per_busy_s"] * r.gpu_util * r.duration_s


def _time(c: Mapping[str, Value], r: Readings) -> Value:
    return c["tflop_per_s"] * r.duration_s


def _energy_time(c: Mapping[str, Value], r: Readings) -> Value:
    return c["tflop_per_j"] * r.energy_net_j + c["tflop_per_s"] * r.duration_s


def _energy_dram_time(c: Mapping[str, Value], r: Readings) -> Value:
    return _energy_time(c, r) + c["tflop_per_tb"] * r.dram_tb


E, T, B, U = "energy_net_j", "duration_s", "dram_tb", "gpu_util"
FORMS = {
    "eq1": Form("Eq. 1", ("e_per_tflop_j", "e_per_tb_j", "p_overhead_w"), (E, T, B), _eq1),
    "eq2": Form("Eq. 2", ("e_per_tflop_j", "p_overhead_w"), (E, T), _eq2),
    "one-constant": Form("one constant J/TFLOP", ("e_per_tflop_j",), (E,), _one_constant),
    "log-energy-time": Form(
        "log F on log E, log t", ("scale_tflop", "energy_exponent", "time_exponent"), (E, T), _log_energy_time
    ),
    "utilisation-time": Form("GPU utilisation x time", ("tflop_per_busy_s",), (U, T), _utilisation_time),
    "time": Form("time only", ("tflop_per_s",), (T,), _time),
    "energy-time": Form("F on E, t", ("tflop_per_j", "tflop_per_s"), (E, T), _energy_time),
    "energy-dram-time": Form(
        "F on E, TB, t", ("tflop_per_j", "tflop_per_tb", "tflop_per_s"), (E, B, T), _energy_dram_time
    ),
}
_NOT_NEGATIVE = ("e_per_tflop_j", "e_per_tb_j", "p_overhead_w", "idle_power_w")


@dataclass(frozen=True)
class Identity:
    """What a calibration belongs to; None where the data did not say.

    Attributes
    ----------
    device, rail, power_mode, precision : str or None
        Readings must agree on them.
    idle_power_w : W or None
        Idle baseline of the calibration runs: net energy is above it.
    dataset, dataset_sha256 : str
        The data it was fitted on, and its digest.
    """

    device: str | None = None
    rail: str | None = None
    power_mode: str | None = None
    precision: str | None = None
    idle_power_w: float | None = None
    dataset: str = ""
    dataset_sha256: str = ""

    def unknown(self) -> list[str]:
        """Return the items that readings must agree on and that are not known."""
        return [name for name in MUST_AGREE if getattr(self, name) is None]


@dataclass(frozen=True)
class Calibration:
    """Constants of one estimator, fitted on one device, rail, power mode and precision.

    Attributes
    ----------
    estimator : str
        Slug, a key of `FORMS`.
    constants : dict of str to float
        Those that the form names.
    identity : Identity
    n_runs : int
        Number of calibration runs.
    recipe : str
        How the constants were fitted.

    Examples
    --------
    >>> c = Calibration("eq2", {"e_per_tflop_j": 5.0, "p_overhead_w": 2.0})
    >>> c.estimate(Run(energy_net_j=1200.0, duration_s=100.0)).tflop
    200.0
    """

    estimator: str
    constants: dict[str, float]
    identity: Identity = field(default_factory=Identity)
    n_runs: int = 0
    recipe: str = ""

    def __post_init__(self) -> None:
        if self.estimator not in FORMS:
            raise ValueError(f"estimator must be one of {', '.join(FORMS)}, found {self.estimator!r}")
        if (expected := set(self.form.constants)) != set(self.constants):
            raise ValueError(f"{self.estimator} has the constants {sorted(expected)}, found {sorted(self.constants)}")
        idle_w = self.identity.idle_power_w
        known = self.constants if idle_w is None else {**self.constants, "idle_power_w": idle_w}
        for name, value in known.items():
            if isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, found {value!r}")
            if value < 0 and name in _NOT_NEGATIVE:
                raise ValueError(f"{name} must not be negative, found {value!r}")
        if self.constants.get("e_per_tflop_j") == 0:
            raise ValueError("e_per_tflop_j must be positive, found 0")

    @property
    def form(self) -> Form:
        """How the constants are used."""
        return FORMS[self.estimator]

    def estimate(self, readings: Readings) -> Estimate:
        """Return the estimate of one run; the estimates of its parts add up to it where the form is linear."""
        values = {name: getattr(readings, name) for name in self.form.readings}
        missing = tuple(name for name, value in values.items() if value is None or math.isnan(value))
        return Estimate(None if missing else self.form.tflop(self.constants, readings), self.estimator, missing)

    def check(self, reported: Mapping[str, str | None]) -> None:
        """Refuse readings that belong elsewhere.

        Parameters
        ----------
        reported : mapping
            `MUST_AGREE` of the readings; None is "not known".

        Raises
        ------
        CalibrationMismatchError
            Naming each item that differs, or that either side does not know: it must be declared.
        """
        faults = []
        for name in MUST_AGREE:
            own, other = getattr(self.identity, name), reported.get(name)
            if own is None:
                faults.append(f"{name} is not known of the calibration: calibrate again and declare `{name}`")
            elif other is None:
                faults.append(f"{name} is not known of the data (calibration: {own!r}): declare `{name}`")
            elif own != other:
                faults.append(f"{name} is {other!r} but the calibration belongs to {own!r}")
        if faults:
            raise CalibrationMismatchError("calibration refused: " + "; ".join(faults))

    def to_json(self) -> str:
        """Return the calibration as indented JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file.

        Raises
        ------
        CalibrationMismatchError
            Where it is not known what it belongs to.
        """
        if unknown := self.identity.unknown():
            named = ", ".join(f"`{name}`" for name in unknown)
            raise CalibrationMismatchError(f"the data do not say {', '.join(unknown)}: declare {named}")
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration from a JSON file, of this release or of the one before.

        Raises
        ------
        OSError
            Where the file cannot be read.
        ValueError
            Where it is not a calibration, naming the file and what is wrong with it.
        """
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        try:
            content = dict(json.loads(text))
            version = content.pop("version", 1)
            if version == 1:
                content = _from_version_1(content)
            elif version != VERSION:
                raise ValueError(f"its version is {version!r}, this release reads 1 and {VERSION}")
            content["identity"] = Identity(**_only(Identity, content.get("identity", {})))
            return cls(**_only(cls, content))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"{path} is not a calibration: {error}; make one with calibrate") from error


def _only(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
    known = {f.name for f in fields(cls)}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"expected the keys {sorted(known)}, found others: {unknown}")
    return dict(content)


def _from_version_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file that held one equation's constants beside its identity."""
    estimator = {1: "eq1", 2: "eq2"}[content["equation"]]
    named = set(FORMS[estimator].constants)
    identity = {f.name for f in fields(Identity)}
    rest = {k: v for k, v in content.items() if k not in {"equation", "e_per_tb_j"} | named | identity}
    return rest | {
        "estimator": estimator,
        "constants": {k: v for k, v in content.items() if k in named or (k == "e_per_tb_j" and v is not None)},
        "identity": {k: v for k, v in content.items() if k in identity},
    }
