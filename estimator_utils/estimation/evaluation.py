"""Held-out evaluation: random splits, the estimators and baselines fitted on each, and summaries of the errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from estimator_utils.estimation import equations as estimator
from estimator_utils.estimation.equations import Array, Readings

Index = npt.NDArray[np.intp]
Method = Callable[[Readings, Readings], Array]

N_SPLITS = 200
_BATCH = 256  # splits at once: the fit holds a few arrays of splits x grid points x runs
LIMIT_PCT = 10.0  # the study's limit of a good estimate


class Splits(NamedTuple):
    """Positions of the calibration runs (n_splits, n_train) and of the held-out ones (n_splits, n_test)."""

    train: Index
    test: Index


def _cut(orders: list[list[int]], n_runs: int, n_train: int | None) -> Splits:
    n_train = round(n_runs * 2 / 3) if n_train is None else n_train
    if not orders:
        raise ValueError("n_splits must be 1 or more: no split is left")
    if n_runs < 2:
        raise ValueError(f"a split needs a run to train on and one to hold out, found {n_runs} in all")
    if not 0 < n_train < n_runs:
        raise ValueError(f"n_train must lie between 1 and {n_runs - 1}, one less than the runs; found {n_train}")
    index = np.array(orders, dtype=np.intp).reshape(-1, n_runs)
    return Splits(index[:, :n_train], index[:, n_train:])


def study_splits(n_runs: int, n_train: int | None = None, n_splits: int = N_SPLITS) -> Splits:
    """Return the study's splits: split i shuffles the runs, in file order, with ``random.Random(1000 + i)``.

    Parameters
    ----------
    n_runs, n_splits : int
    n_train : int, optional
        Two thirds of the runs by default (14 of 21).

    Raises
    ------
    ValueError
        Where nothing is left to train on or to hold out.
    """
    orders = []
    for i in range(n_splits):
        order = list(range(n_runs))
        random.Random(1000 + i).shuffle(order)
        orders.append(order)
    return _cut(orders, n_runs, n_train)


def random_splits(
    n_runs: int, rng: np.random.Generator, n_train: int | None = None, n_splits: int = N_SPLITS
) -> Splits:
    """Return splits drawn from ``rng``; otherwise as `study_splits`."""
    return _cut([rng.permutation(n_runs).tolist() for _ in range(n_splits)], n_runs, n_train)


def leave_one_out(n_runs: int) -> Splits:
    """Return n splits that hold out one run each."""
    return _cut([[j for j in range(n_runs) if j != i] + [i] for i in range(n_runs)], n_runs, n_runs - 1)


def _equation(
    train: Readings, test: Readings, equation: int, overhead_max_w: float = estimator.OVERHEAD_MAX_W
) -> Array:
    constants = estimator.fit_constants(train, equation, overhead_max_w)
    dram_tb = test.dram_tb if equation == 1 else np.zeros_like(test.energy_j)
    return constants.predict(test.energy_j, dram_tb, test.duration_s)


def _one_constant(train: Readings, test: Readings) -> Array:
    """One constant J/TFLOP, the mean of E/F."""
    e: Array = (train.energy_j / train.truth_tflop).mean(-1, keepdims=True)
    return test.energy_j / e


def _log_linear(train: Readings, test: Readings) -> Array:
    """Fit log F = a + b log E + c log t by ordinary least squares."""

    def design(r: Readings) -> Array:
        return np.stack([np.ones_like(r.energy_j), np.log(r.energy_j), np.log(r.duration_s)], axis=-1)

    coefficients = np.linalg.pinv(design(train)) @ np.log(train.truth_tflop)[..., None]
    log_f: Array = (design(test) @ coefficients)[..., 0]
    return np.exp(log_f)


def _busy_time(train: Readings, test: Readings) -> Array:
    """GPU utilisation x time at one rate, the mean of F/(u t)."""
    rate: Array = (train.truth_tflop / (train.gpu_util * train.duration_s)).mean(-1, keepdims=True)
    return rate * test.gpu_util * test.duration_s


def _time(train: Readings, test: Readings) -> Array:
    """Time at one rate, the mean of F/t: Epoch AI's GPU-time method with a calibrated utilisation."""
    rate: Array = (train.truth_tflop / train.duration_s).mean(-1, keepdims=True)
    return rate * test.duration_s


def _regression(train: Readings, test: Readings, dram: bool) -> Array:
    """F on (E, t) or (E, TB, t), relative weights, no intercept: `estimator.regress`, batched over splits."""

    def design(r: Readings) -> Array:
        return np.stack([r.energy_j, r.duration_s, *([r.dram_tb] if dram else [])], axis=-1)

    relative = design(train) / train.truth_tflop[..., None]
    coefficients = np.linalg.pinv(relative) @ np.ones((*train.truth_tflop.shape, 1))
    return (design(test) @ coefficients)[..., 0]


def equation_method(equation: int, overhead_max_w: float = estimator.OVERHEAD_MAX_W) -> Method:
    """Return Eq. 1 or Eq. 2 with the study's recipe as a method."""
    return partial(_equation, equation=equation, overhead_max_w=overhead_max_w)


METHODS: dict[str, Method] = {
    "Eq. 1": equation_method(1),
    "Eq. 2": equation_method(2),
    "one constant J/TFLOP": _one_constant,
    "log F on log E, log t": _log_linear,
    "GPU utilisation x time": _busy_time,
    "time only": _time,
    "F on E, t": partial(_regression, dram=False),
    "F on E, TB, t": partial(_regression, dram=True),
}


def held_out_errors(runs: pd.DataFrame, method: Method, splits: Splits) -> Array:
    """Return the signed relative errors of the held-out predictions in per cent, (n_splits, n_test).

    ``splits.test`` names the run of each entry.

    Raises
    ------
    ValueError
        Where a reading that the method uses is missing.
    """
    readings = Readings.of(runs)
    errors = []
    for start in range(0, len(splits.train), _BATCH):
        train, test = (readings.take(part[start : start + _BATCH]) for part in splits)
        errors.append(100 * (method(train, test) / test.truth_tflop - 1))
    errors_pct = np.concatenate(errors)
    if np.isnan(errors_pct).any():
        raise ValueError("a held-out estimate is no number: dram_tb or gpu_util of a run is missing; fill it in")
    return errors_pct


def summary(errors_pct: Array) -> dict[str, float | int | None]:
    """Summarise signed errors (n_splits, n_test) in per cent.

    Returns
    -------
    dict
        ``mae_pct`` and ``sd_pct``, mean and standard deviation (n - 1; None of one) of the absolute errors;
        ``bias_pct``, mean of the signed; ``max_abs_pct``; ``failing_splits``, how many have an error of 10 % or
        more; ``predictions_over_10_pct``, per cent of the predictions that have.
    """
    size = np.abs(errors_pct)
    wrong = size >= LIMIT_PCT
    return {
        "n_splits": errors_pct.shape[0],
        "n_test": errors_pct.shape[1],
        "mae_pct": float(size.mean()),
        "sd_pct": float(size.std(ddof=1)) if size.size > 1 else None,
        "bias_pct": float(errors_pct.mean()),
        "max_abs_pct": float(size.max()),
        "failing_splits": int(wrong.any(axis=1).sum()),
        "predictions_over_10_pct": float(100 * wrong.mean()),
    }


def by_run(runs: pd.DataFrame, errors_pct: Array, splits: Splits) -> pd.DataFrame:
    """Summarise held-out errors for each run, in file order: n, mean, min, max (%), and how many reach 10 %."""
    frame = pd.DataFrame({"position": splits.test.ravel(), "error_pct": errors_pct.ravel()})
    frame["wrong"] = frame.error_pct.abs() >= LIMIT_PCT
    table = frame.groupby("position").agg(
        n=("error_pct", "count"),
        mean_pct=("error_pct", "mean"),
        min_pct=("error_pct", "min"),
        max_pct=("error_pct", "max"),
        over_10=("wrong", "sum"),
    )
    table.insert(0, "run", runs.run.to_numpy()[table.index])
    return table.reset_index(drop=True)
