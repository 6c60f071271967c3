"""Short ways to the study's constants, for tests of several modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from estimator_utils.estimation.calibration import Calibration, Identity
from estimator_utils.estimation.equations import OVERHEAD_MAX_W, StudyEquation
from estimator_utils.estimation.fitting import RunArrays

BELONGS = {"device": "a board", "rail": "VDD", "power_mode": "25W", "precision": "fp32"}


def fit(arrays: RunArrays, equation: int, overhead_max_w: float = OVERHEAD_MAX_W) -> tuple[Any, Any, Any]:
    """Return J/TFLOP, J/TB (0 in Eq. 2) and W by the study's recipe."""
    c = StudyEquation(equation, overhead_max_w).fit(arrays).constants
    return c["e_per_tflop_j"], c.get("e_per_tb_j", np.zeros_like(c["e_per_tflop_j"])), c["p_overhead_w"]


def predict(arrays: RunArrays, equation: int) -> Any:
    """Return the TFLOP of the runs that an equation was fitted on."""
    return StudyEquation(equation).fit(arrays).estimate(arrays).tflop


def regression_constants(results: Any) -> tuple[float, float, float]:
    """Return a regression's parameters as the constants of Eq. 1 or 2: E_per_TFLOP = 1/u, P = -w/u."""
    u = results.params["energy_net_j"]
    return 1 / u, -results.params.get("dram_tb", 0.0) / u, -results.params["duration_s"] / u


def equation(number: int, e: float, p: float, b: float | None = None, **identity: Any) -> Calibration:
    """Return a calibration of Eq. 1 or 2."""
    constants = {"e_per_tflop_j": e, "p_overhead_w": p} | ({} if b is None else {"e_per_tb_j": b})
    return Calibration(f"eq{number}", constants, Identity(**identity))


def errors_pct(tflop: Any, runs: pd.DataFrame) -> pd.Series:
    """Return the signed relative errors of estimates in per cent."""
    return 100 * (pd.Series(tflop, index=runs.index) / runs.truth_tflop - 1)
