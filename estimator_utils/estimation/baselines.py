"""Simpler estimators to hold the study's equations against, each fitted on the same runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm

from estimator_utils.estimation.fitting import Array, FittedForm, RunArrays


@dataclass(frozen=True)
class Baseline:
    """An estimator whose constants follow from the runs by one expression."""

    name: str
    recipe: str
    constants: Callable[[RunArrays], dict[str, Array]]

    def fit(self, runs: RunArrays) -> FittedForm:
        """Fit the constants on ``runs`` (..., n); leading axes are fitted independently."""
        return FittedForm(self.name, self.constants(runs), runs.truth_tflop.shape[-1], self.recipe)


def _log_energy_time(runs: RunArrays) -> dict[str, Array]:
    """Fit log F = a + b log E + c log t by ordinary least squares."""
    columns = [np.ones_like(runs.energy_net_j), np.log(runs.energy_net_j), np.log(runs.duration_s)]
    scale, energy, time = _solve(columns, np.log(runs.truth_tflop))
    return {"scale_tflop": np.exp(scale), "energy_exponent": energy, "time_exponent": time}


def _energy_time(runs: RunArrays) -> dict[str, Array]:
    """Fit F on (E, t), relative weights, no intercept: `regress`, batched over splits."""
    energy, time = _relative(runs, runs.energy_net_j, runs.duration_s)
    return {"tflop_per_j": energy, "tflop_per_s": time}


def _energy_dram_time(runs: RunArrays) -> dict[str, Array]:
    """Fit F on (E, TB, t) as `_energy_time` does."""
    energy, dram, time = _relative(runs, runs.energy_net_j, runs.dram_tb, runs.duration_s)
    return {"tflop_per_j": energy, "tflop_per_tb": dram, "tflop_per_s": time}


def _relative(runs: RunArrays, *columns: Array) -> list[Array]:
    return _solve([column / runs.truth_tflop for column in columns], np.ones_like(runs.truth_tflop))


def _solve(columns: list[Array], target: Array) -> list[Array]:
    """Return the coefficients (...) of the columns (..., n) by least squares."""
    coefficients = (np.linalg.pinv(np.stack(columns, axis=-1)) @ target[..., None])[..., 0]
    return [coefficients[..., k] for k in range(len(columns))]


BASELINES = (
    Baseline("one-constant", "mean of E/F", lambda r: {"e_per_tflop_j": (r.energy_net_j / r.truth_tflop).mean(-1)}),
    Baseline("log-energy-time", "ordinary least squares of log F", _log_energy_time),
    Baseline(
        "utilisation-time",
        "mean of F/(u t)",
        lambda r: {"tflop_per_busy_s": (r.truth_tflop / (r.gpu_util * r.duration_s)).mean(-1)},
    ),
    # Epoch AI's GPU-time method with a calibrated utilisation
    Baseline("time", "mean of F/t", lambda r: {"tflop_per_s": (r.truth_tflop / r.duration_s).mean(-1)}),
    Baseline("energy-time", "relative least squares of F on E and t", _energy_time),
    Baseline("energy-dram-time", "relative least squares of F on E, TB and t", _energy_dram_time),
)


def regress(runs: pd.DataFrame, dram: bool) -> Any:
    """Regress F on (E, t) or (E, B, t) in one line of statsmodels, each run weighted by 1/F^2, no intercept.

    Dividing every row by F turns the weighted fit into ordinary least squares of 1, with the same numbers and
    with statsmodels' influence measures.

    Returns
    -------
    statsmodels.regression.linear_model.RegressionResults
        Parameters ``energy_net_j`` (TFLOP/J), ``dram_tb`` (TFLOP/TB), ``duration_s`` (TFLOP/s). As constants of
        Eq. 1 or 2: E_per_TFLOP = 1/u, E_per_TB = -v/u, P = -w/u.
    """
    columns = ["energy_net_j", *(["dram_tb"] if dram else []), "duration_s"]
    if len(runs) <= len(columns):
        raise ValueError(f"{len(columns)} parameters need more than {len(columns)} runs, found {len(runs)}")
    return sm.OLS(np.ones(len(runs)), runs[columns].div(runs.truth_tflop, axis=0)).fit()
