"""The regressions in one line of statsmodels, and what they find in the study's sweeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from estimator_utils.estimation.baselines import regress
from tests.support import fits, synthetic


@pytest.mark.parametrize("dram", [False, True])
def test_the_regression_is_weighted_least_squares_of_flop_on_readings(runs, dram):
    columns = ["energy_net_j", *(["dram_tb"] if dram else []), "duration_s"]
    weighted = sm.WLS(runs.truth_tflop, runs[columns], weights=runs.truth_tflop**-2.0).fit()
    ours = regress(runs, dram)
    assert ours.params.to_dict() == pytest.approx(weighted.params.to_dict(), rel=1e-9)
    assert ours.bse.to_dict() == pytest.approx(weighted.bse.to_dict(), rel=1e-9)
    assert ours.condition_number > 1
    assert len(ours.get_influence().hat_matrix_diag) == len(runs)


def test_a_regression_recovers_planted_constants_beyond_any_grid():
    runs = synthetic.runs(14, 2, e_per_tflop_j=5.0, e_per_tb_j=40.0, p_overhead_w=7.0)
    assert np.array(fits.regression_constants(regress(runs, True))) == pytest.approx((5, 40, 7))
    runs = synthetic.runs(14, 2, e_per_tflop_j=5.0, e_per_tb_j=0.0, p_overhead_w=7.0)
    assert np.array(fits.regression_constants(regress(runs, False))) == pytest.approx((5, 0, 7))


def test_a_regression_needs_more_runs_than_parameters(runs):
    with pytest.raises(ValueError, match="3 parameters need more than 3 runs, found 3"):
        regress(runs[:3], True)


@pytest.mark.recorded
def test_in_sample_the_regression_on_energy_and_time_is_eq_2(frontiers):
    e, _, p = fits.regression_constants(regress(frontiers[0], dram=False))
    assert (f"{e:.3f}", f"{p:.3f}") == ("5.728", "3.747")


@pytest.mark.recorded
def test_the_diagnosis_of_the_three_regressions(frontiers):
    """The F-test of the DRAM term and the runs that lean hardest, as first read off the three sweeps."""
    first = regress(frontiers[0], True).get_influence()
    assert f"{first.cooks_distance[0].max():.2f}" == "0.97"
    p_values = []
    for runs in frontiers:
        wide, narrow = regress(runs, True), regress(runs, False)
        p_values.append(wide.compare_f_test(narrow)[1])
        leverage = pd.Series(wide.get_influence().hat_matrix_diag, index=runs.run)
        assert leverage.idxmax() == "d640_b8_s64_L3"
        assert 0.445 < leverage.max() < 0.615
    assert [round(p, 3) for p in p_values[:2]] == [0.011, 0.005]
    assert round(p_values[2], 2) == 0.25
