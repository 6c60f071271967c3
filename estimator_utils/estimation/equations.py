"""Fits of training FLOP to energy, DRAM traffic and time: the study's recipe, and one-line regressions.

Symbols: E net energy (J), B DRAM traffic (TB), t duration (s), F true TFLOP, P overhead power (W). The study's

    Eq. 1   F = (E - E_per_TB B - P t) / E_per_TFLOP        Eq. 2   F = (E - P t) / E_per_TFLOP

Every array function broadcasts over leading axes, so that splits, grid points and left-out runs are one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.api as sm

from estimator_utils.datasets.registry import Dataset
from estimator_utils.estimation.calibration import Calibration

Array = npt.NDArray[np.float64]

OVERHEAD_MAX_W = 4.0  # upper end of the study's grid for P, W: it suits the Orin Nano at 25 W
GRID_POINTS = 321  # of the study's grid
PARAMETERS = {1: 3, 2: 2}


class Constants(NamedTuple):
    """Constants of Eq. 1 or 2, of any common shape: J/TFLOP, J/TB (0 in Eq. 2), W."""

    e_per_tflop_j: Array
    e_per_tb_j: Array
    p_overhead_w: Array

    def predict(self, energy_j: Array, dram_tb: Array, duration_s: Array) -> Array:
        """Return the estimated TFLOP, not clamped; the runs are the last axis, the constants' axes precede it."""
        e, b, p = (np.asarray(x)[..., None] for x in self)
        return (energy_j - b * dram_tb - p * duration_s) / e


@dataclass(frozen=True)
class Readings:
    """Columns of a runs table as arrays of one shape (..., n): J, s, TB (NaN where missing), 1, TFLOP."""

    energy_j: Array
    duration_s: Array
    dram_tb: Array
    gpu_util: Array
    truth_tflop: Array

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Readings:
        """Take the columns of a runs table."""
        columns = ("energy_net_j", "duration_s", "dram_tb", "gpu_util", "truth_tflop")
        return cls(*(runs[column].to_numpy(float) for column in columns))

    def take(self, index: npt.NDArray[np.intp]) -> Readings:
        """Select runs by position; ``index`` may have leading axes."""
        return Readings(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def _sums(u: Array, x: Array) -> tuple[Array, ...]:
    return u.sum(-1), x.sum(-1), (x * u).sum(-1), (x * x).sum(-1)


def _line(n: int, su: Array, sx: Array, sxu: Array, sxx: Array) -> tuple[Array, Array]:
    """Least squares of u = e + b x from its sums, the slope kept >= 0: else e = mean(u), b = 0."""
    spread = n * sxx - sx**2
    with np.errstate(divide="ignore", invalid="ignore"):
        b = np.where(spread > 0, (n * sxu - sx * su) / spread, 0.0)
    b = np.maximum(b, 0.0)
    return (su - b * sx) / n, b


def _fit(u: Array, x: Array | None) -> tuple[Array, Array]:
    """Fit u (..., n) on the runs: J/TFLOP and J/TB of shape (...)."""
    if x is None:
        return (u**2).sum(-1) / u.sum(-1), np.zeros(u.shape[:-1])
    return _line(u.shape[-1], *_sums(u, x))


def _fit_leaving_out(u: Array, x: Array | None) -> tuple[Array, Array]:
    """Fit u (..., n) without each run in turn: J/TFLOP and J/TB of shape (..., n)."""
    if x is None:
        e = ((u**2).sum(-1, keepdims=True) - u**2) / (u.sum(-1, keepdims=True) - u)
        return e, np.zeros_like(e)
    whole = _sums(u, x)
    parts = (u, x, x * u, x * x)
    return _line(u.shape[-1] - 1, *(s[..., None] - part for s, part in zip(whole, parts, strict=True)))


def leave_one_out_rms(readings: Readings, equation: int, grid_w: Array) -> Array:
    """Return the root mean square relative error over left-out runs at each overhead of a grid.

    Parameters
    ----------
    readings : Readings of shape (..., n)
    equation : {1, 2}
    grid_w : (g,) W

    Returns
    -------
    (..., g)
        Infinite where an overhead leaves no positive J/TFLOP.
    """
    f = readings.truth_tflop[..., None, :]
    u = (readings.energy_j[..., None, :] - grid_w[:, None] * readings.duration_s[..., None, :]) / f
    x = readings.dram_tb[..., None, :] / f if equation == 1 else None
    with np.errstate(divide="ignore", invalid="ignore"):  # e may be 0: no fit
        e, b = _fit_leaving_out(u, x)
        error = (u - (0.0 if x is None else b * x)) / e - 1
    return np.where((e > 0).all(-1), np.sqrt((error**2).mean(-1)), np.inf)


def fit_constants(readings: Readings, equation: int, overhead_max_w: float = OVERHEAD_MAX_W) -> Constants:
    """Fit Eq. 1 or Eq. 2 by the study's recipe.

    For each P of a grid, u = (E - P t) / F is fitted by relative least squares (each run weighted by 1/F); P is
    the grid point with the smallest sum of squared relative FLOP errors over left-out runs.

    Parameters
    ----------
    readings : Readings of shape (..., n)
        n calibration runs; leading axes are fitted independently.
    equation : {1, 2}
    overhead_max_w : float
        Upper end of the grid of 321 points that starts at 0, W.

    Returns
    -------
    Constants of shape (...)

    Raises
    ------
    ValueError
        Too few runs, a missing DRAM reading in Eq. 1, no grid, or readings that no positive J/TFLOP explains.
    """
    n = readings.energy_j.shape[-1]
    if n <= PARAMETERS[equation]:
        raise ValueError(
            f"Eq. {equation} has {PARAMETERS[equation]} parameters and is fitted with a run left out: it needs at "
            f"least {PARAMETERS[equation] + 1} runs, found {n}"
        )
    if equation == 1 and np.isnan(readings.dram_tb).any():
        raise ValueError("Eq. 1 needs dram_tb of every run and some are missing: use --equation 2")
    if not 0 <= overhead_max_w < np.inf:
        raise ValueError(f"the grid of overheads must end at 0 W or above, found {overhead_max_w}")
    grid_w = np.linspace(0.0, overhead_max_w, GRID_POINTS)
    score = leave_one_out_rms(readings, equation, grid_w)
    best = score.argmin(-1)[..., None]
    if np.isinf(np.take_along_axis(score, best, -1)).any():
        raise ValueError(
            "no overhead of the grid leaves a positive J/TFLOP: check energy and duration of the runs"
        )
    p_overhead_w = grid_w[best]
    u = (readings.energy_j - p_overhead_w * readings.duration_s) / readings.truth_tflop
    e, b = _fit(u, readings.dram_tb / readings.truth_tflop if equation == 1 else None)
    return Constants(e, b, p_overhead_w[..., 0])


def calibrate(
    dataset: Dataset, runs: pd.DataFrame, equation: int, overhead_max_w: float = OVERHEAD_MAX_W
) -> Calibration:
    """Fit one calibration on ``runs``, rows of ``dataset`` of one precision.

    Raises
    ------
    ValueError
        Several precisions in one calibration, or what `fit_constants` refuses.
    """
    precision = check_runs(runs, equation)
    e, b, p = (float(x) for x in fit_constants(Readings.of(runs), equation, overhead_max_w))
    idle_w = runs.idle_power_w.dropna()
    return Calibration(
        equation=equation,
        e_per_tflop_j=e,
        e_per_tb_j=b if equation == 1 else None,
        p_overhead_w=p,
        idle_power_w=None if idle_w.empty else float(idle_w.median()),
        device=dataset.metadata.device,
        rail=dataset.metadata.rail,
        power_mode=dataset.metadata.power_mode,
        precision=precision,
        dataset=dataset.metadata.name,
        dataset_sha256=dataset.sha256,
        n_runs=len(runs),
        recipe=f"study: relative least squares; overhead by leave-one-out, 0 to {overhead_max_w:g} W",
    )


def check_runs(runs: pd.DataFrame, equation: int) -> str:
    """Return the precision of the runs; ValueError where there are several, or Eq. 1 lacks DRAM of a run."""
    if equation == 1 and (lacking := runs.loc[runs.dram_tb.isna(), "run"].tolist()):
        raise ValueError(
            f"Eq. 1 needs dram_tb of every run, it is empty in {lacking}: fill it in, or --equation 2"
        )
    if len(precisions := sorted(set(runs.precision))) > 1:
        found = ", ".join(precisions)
        raise ValueError(f"one calibration belongs to one precision, found {found}: name one with --precision")
    return str(precisions[0])


def regress(runs: pd.DataFrame, dram: bool) -> Any:
    """Regress F on (E, t) or (E, B, t) in one line of statsmodels, each run weighted by 1/F^2, no intercept.

    Dividing every row by F turns the weighted fit into ordinary least squares of 1, with the same numbers and
    with statsmodels' influence measures.

    Returns
    -------
    statsmodels.regression.linear_model.RegressionResults
        Parameters ``energy_net_j`` (TFLOP/J), ``dram_tb`` (TFLOP/TB), ``duration_s`` (TFLOP/s).
    """
    columns = ["energy_net_j", *(["dram_tb"] if dram else []), "duration_s"]
    if len(runs) <= len(columns):
        raise ValueError(f"{len(columns)} parameters need more than {len(columns)} runs, found {len(runs)}")
    return sm.OLS(np.ones(len(runs)), runs[columns].div(runs.truth_tflop, axis=0)).fit()


def regression_constants(results: Any) -> Constants:
    """Return a regression's parameters as the constants of Eq. 1 or 2: E_per_TFLOP = 1/u, P = -w/u."""
    u = results.params["energy_net_j"]
    b = -results.params.get("dram_tb", 0.0) / u
    return Constants(np.array(1 / u), np.array(b), np.array(-results.params["duration_s"] / u))
