"""A calibration: the constants of Eq. 1 or Eq. 2, what they belong to, and the estimate they give.

Verifier's side, standard library only. Equations: the study, Eq. 1 (three parameters) and Eq. 2 (two).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

IDENTITY = ("device", "rail", "power_mode", "precision")


class CalibrationMismatchError(ValueError):
    """The calibration belongs to another device, rail, power mode or precision than the readings."""


@dataclass(frozen=True)
class Calibration:
    """Constants fitted on one device, rail, power mode and precision.

    Attributes
    ----------
    equation : {1, 2}
        1: with a DRAM term; 2: power only.
    e_per_tflop_j : float
        J/TFLOP, > 0.
    e_per_tb_j : float or None
        J per true TB (1e12 bytes) of DRAM traffic, >= 0; None in Eq. 2.
    p_overhead_w : float
        W that the run draws above idle without computing, >= 0.
    idle_power_w : float or None
        W, >= 0, the idle baseline of the calibration runs: net energy is above it.
    device, rail, power_mode, precision : str or None
        What the constants belong to; None where the data did not say.
    dataset, dataset_sha256 : str
        The data they were fitted on, and its digest.
    n_runs : int
        Number of calibration runs.
    recipe : str
        How they were fitted.

    Examples
    --------
    >>> c = Calibration(equation=2, e_per_tflop_j=5.0, p_overhead_w=2.0)
    >>> c.estimate_tflop(energy_net_j=1200.0, duration_s=100.0)
    200.0
    """

    equation: int
    e_per_tflop_j: float
    p_overhead_w: float
    e_per_tb_j: float | None = None
    idle_power_w: float | None = None
    device: str | None = None
    rail: str | None = None
    power_mode: str | None = None
    precision: str | None = None
    dataset: str = ""
    dataset_sha256: str = ""
    n_runs: int = 0
    recipe: str = ""

    def __post_init__(self) -> None:
        if self.equation not in (1, 2):
            raise ValueError(f"equation must be 1 or 2, found {self.equation!r}")
        if (self.e_per_tb_j is None) != (self.equation == 2):
            raise ValueError("e_per_tb_j belongs to Eq. 1 and to it alone")
        for name in ("e_per_tflop_j", "p_overhead_w", "e_per_tb_j", "idle_power_w"):
            value = getattr(self, name)
            if value is None and name in ("e_per_tb_j", "idle_power_w"):
                continue
            if isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, found {value!r}")
            if value < 0:
                raise ValueError(f"{name} must not be negative, found {value!r}")
        if self.e_per_tflop_j == 0:
            raise ValueError("e_per_tflop_j must be positive, found 0")

    def estimate_tflop(self, energy_net_j: float, duration_s: float, dram_tb: float | None = None) -> float:
        """Return the estimated TFLOP of a run; not clamped, so it may be negative.

        Linear in its inputs: the estimates of parts add up to that of the whole.

        Raises
        ------
        ValueError
            Eq. 1 without DRAM traffic, since missing is not zero.
        """
        energy_j = energy_net_j - self.p_overhead_w * duration_s
        if self.e_per_tb_j is not None:
            if dram_tb is None or math.isnan(dram_tb):
                raise ValueError("Eq. 1 needs the DRAM traffic and it is missing: use an Eq. 2 calibration")
            energy_j -= self.e_per_tb_j * dram_tb
        return energy_j / self.e_per_tflop_j

    def check(self, **found: str | None) -> None:
        """Refuse readings that belong elsewhere.

        Parameters
        ----------
        **found : str or None
            ``device``, ``rail``, ``power_mode``, ``precision`` of the readings; None is "not said".

        Raises
        ------
        CalibrationMismatchError
            Naming each item that differs, or that either side does not say: it must be declared.
        """
        faults = []
        for name in IDENTITY:
            own, other = getattr(self, name), found.get(name)
            flag = "--" + name.replace("_", "-")
            if own is None:
                faults.append(f"{name} is not said by the calibration: calibrate again with {flag}")
            elif other is None:
                faults.append(f"{name} is not said by the data (calibration: {own!r}): declare it with {flag}")
            elif own != other:
                faults.append(f"{name} is {other!r} but the calibration belongs to {own!r}")
        if faults:
            raise CalibrationMismatchError("calibration refused: " + "; ".join(faults))

    def check_said(self) -> None:
        """Raise CalibrationMismatchError where the calibration does not say what it belongs to."""
        if unsaid := [name for name in IDENTITY if getattr(self, name) is None]:
            flags = " ".join("--" + name.replace("_", "-") for name in unsaid)
            raise CalibrationMismatchError(f"the data do not say {', '.join(unsaid)}: declare it with {flags}")

    def to_json(self) -> str:
        """Return the calibration as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration from a JSON file.

        Raises
        ------
        ValueError
            Where there is no such file or it is not a calibration, naming the file and what is wrong with it.
        """
        try:
            content = dict(json.loads(Path(path).read_text(encoding="utf-8")))
            known = {f.name for f in fields(cls)}
            if unknown := set(content) - known:
                raise ValueError(f"expected the keys {sorted(known)}, found others: {sorted(unknown)}")
            return cls(**content)
        except (OSError, ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{path} is not a calibration: {error}; make one with 'calibrate -o'") from error
