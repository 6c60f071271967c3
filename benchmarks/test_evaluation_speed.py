"""The vectorised evaluation against plain loops over splits, grid points and left-out runs, in the same run."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest

from estimator_utils.estimation import evaluation
from estimator_utils.estimation.estimators import ESTIMATORS
from estimator_utils.estimation.splits import study_splits
from tests.support import reference, synthetic

FASTER = 50  # times: 200 splits of both equations


def evaluate(runs: pd.DataFrame) -> list[np.ndarray]:
    """Evaluate 200 splits of both equations."""
    splits = study_splits(len(runs))
    return [evaluation.held_out_errors(runs, ESTIMATORS[name], splits) for name in ("eq1", "eq2")]


def test_200_splits_of_both_equations(benchmark, capsys):
    runs = synthetic.runs(21, seed=7, noise=0.03)
    rows = list(runs[["energy_net_j", "dram_tb", "duration_s", "truth_tflop"]].itertuples(index=False, name=None))
    started = time.perf_counter()
    expected = [reference.held_out_errors_pct(rows, equation, 14, 200) for equation in (1, 2)]
    loop_s = time.perf_counter() - started

    found = benchmark.pedantic(evaluate, [runs], rounds=10, warmup_rounds=1)

    assert found == [pytest.approx(np.array(errors), rel=1e-9, abs=1e-9) for errors in expected]
    took_s = benchmark.stats.stats.median
    with capsys.disabled():
        print(f"\nplain loops {loop_s:.1f} s, vectorised {took_s:.3f} s: {loop_s / took_s:.0f} times faster")
    assert loop_s / took_s >= FASTER
