"""Held-out evaluation: an estimator fitted on each split, and summaries of its errors."""

import numpy as np
import pandas as pd

from estimator_utils.estimation.estimators import Estimator
from estimator_utils.estimation.fitting import Array, RunArrays
from estimator_utils.estimation.splits import Splits

_BATCH = 256  # splits at once: a fit holds a few arrays of splits x grid points x runs
LIMIT_PCT = 10.0  # the study's limit of a good estimate


def held_out_errors(runs: pd.DataFrame, estimator: Estimator, splits: Splits) -> Array:
    """Return the signed relative errors of the held-out predictions in per cent, (n_splits, n_test).

    ``splits.test`` names the run of each entry; ``estimator`` is fitted on each split's calibration runs.

    Raises
    ------
    ValueError
        Where a reading that the estimator uses is missing.
    """
    arrays = RunArrays.of(runs)
    errors = []
    for start in range(0, len(splits.train), _BATCH):
        train, test = (arrays.take(part[start : start + _BATCH]) for part in splits)
        errors.append(100 * (estimator.fit(train).estimate(test).tflop / test.truth_tflop - 1))
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
    """Summarise held-out errors for each run, in file order.

    Parameters
    ----------
    runs : DataFrame
    errors_pct : (n_splits, n_test) %
    splits : Splits

    Returns
    -------
    DataFrame
        ``run``, ``n`` predictions, ``mean_pct``, ``min_pct``, ``max_pct``, and ``over_10``: how many reach 10 %.
    """
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
