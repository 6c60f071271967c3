"""Fit the ten constants of the virtual board on every second of trial 1's 38 runs.

    python tools/fit_virtual_board.py [--leave-one-out]

Prints the constants to put into ``estimator_utils/virtual/orin_nano.py``. The other half of trial 1, trials 2 and 3
and the trace are never read here; the power of copies and the drift are inputs, set from published runs.
``--leave-one-out`` refits without each run in turn and predicts it.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from estimator_utils.datasets import registry
from estimator_utils.truth.workload import Workload
from estimator_utils.virtual.kernels import Step, step_kernels
from estimator_utils.virtual.orin_nano import CPU_W, DRIFT, DRIFT_TIME_S, Fitted
from estimator_utils.virtual.timeline import timeline

# How far a model of this kind may be off before a run counts as an outlier: relative, utilisation absolute.
TOLERANCE = {"duration": 0.015, "energy": 0.025, "dram": 0.10, "gpu_util": 0.04, "peak": 0.05}
START = Fitted(0.6, 50.0, 15e-6, 130e-6, 15e-3, 0.63, 0.85, 5.0, 3e-12, 30e-3)


def fit_half(collection: str = "orin-nano-25w") -> pd.DataFrame:
    """Return the 1st, 3rd, ... run of trial 1 in file order."""
    return registry.table(collection, "trial1").runs.iloc[::2].reset_index(drop=True)


def workloads_of(runs: pd.DataFrame) -> list[Workload]:
    """Return the workloads of a runs table."""
    names = list(Workload.__dataclass_fields__)
    return [
        Workload(**{n: int(v) if isinstance(v, (int, np.integer)) else v for n, v in zip(names, row, strict=True)})
        for row in runs[names].itertuples(index=False)
    ]


def residuals(steps: list[Step], runs: pd.DataFrame, fitted: Fitted) -> np.ndarray:
    """Return prediction over record, log ratio (utilisation: difference), of shape (n, 5), in tolerances."""
    rows = []
    warm_s = 2 * runs.duration_s.mean() * runs.index  # the fitted runs are every second one of a sweep
    drift = 1 + DRIFT * np.exp(-(warm_s + runs.duration_s / 2) / DRIFT_TIME_S)
    for step, run, hot in zip(steps, runs.itertuples(), drift, strict=True):
        line = timeline(step, fitted)
        rows.append(
            (
                np.log(line.period_s * run.steps / run.duration_s),
                np.log((CPU_W * line.period_s + line.energy_j.sum()) * hot * run.steps / run.energy_net_j),
                np.log(line.dram_bytes * run.steps / 1e12 / run.dram_tb),
                line.kernel_s.sum() / line.period_s - run.gpu_util,
                np.log((line.profile_w(fitted).max() + run.idle_power_w) / run.power_peak_w),
            )
        )
    return np.array(rows) / np.array(list(TOLERANCE.values()))


def fit(steps: list[Step], runs: pd.DataFrame, start: Fitted = START) -> Fitted:
    """Return the constants with the least robust (soft L1) sum of squared residuals."""
    names = list(asdict(start))

    def constants(logs: np.ndarray) -> Fitted:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    solution = least_squares(
        lambda logs: residuals(steps, runs, constants(logs)).ravel(),
        np.log(list(asdict(start).values())),
        diff_step=1e-3,
        loss="soft_l1",
        xtol=1e-6,
    )
    print(f"cost {solution.cost:.2f}")
    return constants(solution.x)


def main() -> None:
    """Fit, print the constants and the residuals by quantity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave-one-out", action="store_true")
    options = parser.parse_args()
    runs = fit_half()
    steps = [step_kernels(workload) for workload in workloads_of(runs)]
    fitted = fit(steps, runs)
    for name, value in asdict(fitted).items():
        print(f"{name}: {value:.4g}")
    errors = {"in sample": residuals(steps, runs, fitted)}
    if options.leave_one_out:
        left = [fit([*steps[:i], *steps[i + 1 :]], runs.drop(index=i), fitted) for i in range(len(runs))]
        alone = [residuals([steps[i]], runs.iloc[[i]], left[i])[0] for i in range(len(runs))]
        errors["left out"] = np.array(alone)
    for name, error in errors.items():
        table = pd.DataFrame(error * list(TOLERANCE.values()), runs.run, list(TOLERANCE))
        for group, part in table.groupby(runs.precision.eq("fp32").map({True: "fp32", False: "reduced"}).values):
            print(name, group, part.abs().describe().loc[["count", "50%", "max"]].to_string(float_format="%.4f"))
        print(table.to_string(float_format="%+.3f"))


if __name__ == "__main__":
    main()
