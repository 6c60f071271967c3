from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.datasets.study_format import DRAM_COUNTER_FACTOR
from estimator_utils.estimation import evaluation
from estimator_utils.estimation.baselines import regress
from estimator_utils.estimation.calibration import Estimate
from estimator_utils.estimation.estimators import ESTIMATORS
from estimator_utils.estimation.fitting import RunArrays
from estimator_utils.estimation.splits import leave_one_out, study_splits
from tests.support import fits, reference, synthetic


@settings(max_examples=20)
@given(st.integers(0, 10_000))
@pytest.mark.parametrize("method", ["eq1", "energy-dram-time"])
def test_held_out_runs_of_a_board_that_obeys_eq_1_have_no_error(method, seed):
    runs = synthetic.runs(12, seed)
    assert np.abs(evaluation.held_out_errors(runs, ESTIMATORS[method], study_splits(12, 8, 5))).max() < 1e-5


@pytest.mark.parametrize(
    ("method", "truth"),
    [
        ("eq2", lambda r: (r.energy_net_j - 2.0 * r.duration_s) / 7),
        ("energy-time", lambda r: (r.energy_net_j - 2.0 * r.duration_s) / 7),
        ("one-constant", lambda r: r.energy_net_j / 9),
        ("log-energy-time", lambda r: 0.2 * r.energy_net_j**0.9 * r.duration_s**0.2),
        ("utilisation-time", lambda r: 0.7 * r.gpu_util * r.duration_s),
        ("time", lambda r: 0.7 * r.duration_s),
    ],
)
def test_each_method_is_exact_on_the_world_it_believes_in(runs, method, truth):
    runs["truth_tflop"] = truth(runs)
    assert np.abs(evaluation.held_out_errors(runs, ESTIMATORS[method], study_splits(21))).max() < 1e-6


@pytest.mark.parametrize("method", ESTIMATORS)
def test_a_method_sees_nothing_of_the_runs_it_is_tested_on(runs, method):
    """Another truth of the held-out runs gives the same estimates."""
    splits = study_splits(21, n_splits=1)
    held_out = splits.test[0]
    factor = np.where(np.isin(np.arange(21), held_out), 3.0, 1.0)
    before = evaluation.held_out_errors(runs, ESTIMATORS[method], splits)
    after = evaluation.held_out_errors(runs.assign(truth_tflop=runs.truth_tflop * factor), ESTIMATORS[method], splits)
    assert 3 * (after / 100 + 1) == pytest.approx(before / 100 + 1, rel=1e-12)


@pytest.mark.parametrize("equation", [1, 2])
def test_the_errors_are_those_of_the_plain_loop(runs, equation):
    rows = list(runs[["energy_net_j", "dram_tb", "duration_s", "truth_tflop"]].itertuples(index=False, name=None))
    expected = reference.held_out_errors_pct(rows, equation, 14, 4)
    found = evaluation.held_out_errors(runs, ESTIMATORS[f"eq{equation}"], study_splits(21, 14, 4))
    assert found == pytest.approx(np.array(expected), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("dram", [False, True])
def test_the_batched_regression_is_statsmodels_on_each_split(runs, dram):
    splits = study_splits(21, n_splits=10)
    method = ESTIMATORS["energy-dram-time" if dram else "energy-time"]
    found = evaluation.held_out_errors(runs, method, splits)
    for i, (train, test) in enumerate(zip(*splits, strict=True)):
        held_out = runs.iloc[test]
        results = regress(runs.iloc[train], dram)
        tflop = (held_out[list(results.params.index)] * results.params).sum(axis=1)
        assert found[i] == pytest.approx(fits.errors_pct(tflop, held_out).to_numpy(), rel=1e-9, abs=1e-9)


@dataclass(frozen=True)
class Oracle:
    """Knows the truth, and says so many times as much."""

    factor: float
    name: str = "oracle"

    def fit(self, runs: RunArrays) -> Oracle:
        return self

    def estimate(self, readings: RunArrays) -> Estimate:
        return Estimate(self.factor * readings.truth_tflop, self.name)


def test_the_errors_carry_the_sign_of_the_estimate(runs):
    """Estimates that are 10 % too high are +10, not -10 and not clamped."""
    for factor, error_pct in ((1.1, 10.0), (-1.0, -200.0)):
        errors = evaluation.held_out_errors(runs, Oracle(factor), study_splits(21))
        assert errors == pytest.approx(np.full((200, 7), error_pct))


@pytest.mark.parametrize(("method", "column"), [("eq1", "dram_tb"), ("utilisation-time", "gpu_util")])
def test_a_missing_reading_is_an_error_and_no_nan_in_a_summary(runs, method, column):
    splits = study_splits(21, n_splits=1)
    for position in (splits.train[0][0], splits.test[0][0]):
        spoilt = runs.copy()
        spoilt.loc[position, column] = np.nan
        with pytest.raises(ValueError, match="missing"):
            evaluation.held_out_errors(spoilt, ESTIMATORS[method], splits)


def test_too_few_calibration_runs_are_refused(runs):
    with pytest.raises(ValueError, match=r"Eq\. 1 has 3 parameters .* at least 4 runs, found 3"):
        evaluation.held_out_errors(runs, ESTIMATORS["eq1"], study_splits(21, 3))


# Summaries


def test_a_summary_by_hand():
    summary = evaluation.summary(np.array([[1.0, -3.0], [9.999999, -10.0], [-20.0, 11.0]]))
    sizes = [1.0, 3.0, 9.999999, 10.0, 20.0, 11.0]
    assert summary == pytest.approx(
        {
            "n_splits": 3,
            "n_test": 2,
            "mae_pct": np.mean(sizes),
            "sd_pct": np.std(sizes, ddof=1),
            "bias_pct": (1 - 3 + 9.999999 - 10 - 20 + 11) / 6,
            "max_abs_pct": 20.0,
            "failing_splits": 2,
            "predictions_over_10_pct": 50.0,
        }
    )


def test_one_error_has_no_spread():
    assert evaluation.summary(np.array([[-3.0]]))["sd_pct"] is None


def test_errors_by_run_are_those_of_its_own_predictions(runs):
    splits = study_splits(21, n_splits=50)
    errors = evaluation.held_out_errors(runs, ESTIMATORS["time"], splits)
    table = evaluation.by_run(runs, errors, splits)
    assert table.run.tolist() == runs.run.tolist()
    assert table.n.sum() == errors.size
    own = errors[splits.test == 4]
    row = table.iloc[4]
    assert (row.n, row.min_pct, row.max_pct) == (len(own), own.min(), own.max())
    assert row.mean_pct == pytest.approx(own.mean())
    assert row.over_10 == (np.abs(own) >= 10).sum()


def test_runs_that_no_split_held_out_are_left_out_by_name(runs):
    table = evaluation.by_run(runs, np.zeros((1, 7)), study_splits(21, n_splits=1))
    assert table.run.tolist() == [f"run{i}" for i in sorted(study_splits(21, n_splits=1).test[0])]


# The study's numbers: 200 splits, 14 to calibrate and 7 to test


@pytest.fixture(scope="module")
def studied(request):
    """Return a function: the errors of a method on a trial, computed once."""
    frontiers = request.getfixturevalue("frontiers")
    known: dict[tuple[int, str], np.ndarray] = {}

    def errors(trial: int, method: str) -> np.ndarray:
        if (trial, method) not in known:
            runs = frontiers[trial - 1]
            known[trial, method] = evaluation.held_out_errors(runs, ESTIMATORS[method], study_splits(len(runs)))
        return known[trial, method]

    return errors


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("method", "mae", "sd", "bias", "failing"),
    [
        ("eq1", "4.478", "3.780", "-0.431", 118),
        ("eq2", "4.548", "3.217", "-0.402", 27),
        ("one-constant", "6.09", "4.31", "0.12", 188),
        ("log-energy-time", "4.96", "3.86", "-0.53", 119),
        ("utilisation-time", "7.69", "5.30", "0.86", 194),
        ("time", "9.51", "8.16", "1.49", 194),
    ],
)
def test_trial_1_and_its_baselines_to_the_last_digit(studied, method, mae, sd, bias, failing):
    summary = evaluation.summary(studied(1, method))
    assert (summary["n_splits"], summary["n_test"], studied(1, method).size) == (200, 7, 1400)
    digits = len(mae.partition(".")[2])
    found = [f"{summary[name]:.{digits}f}" for name in ("mae_pct", "sd_pct", "bias_pct")]
    assert found == [mae, sd, bias]
    assert summary["failing_splits"] == failing


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("trial", "method", "mae", "failing"),
    [
        (2, "eq1", "3.61", 4),
        (2, "eq2", "3.80", 13),
        (3, "eq1", "4.58", 89),
        (3, "eq2", "4.22", 19),
        (1, "energy-time", "5.01", 89),
        (1, "energy-dram-time", "4.45", 103),
        (2, "energy-dram-time", "3.54", 4),
        (3, "energy-dram-time", "4.59", 87),
    ],
)
def test_the_other_trials_and_the_regressions_to_the_last_digit(studied, trial, method, mae, failing):
    summary = evaluation.summary(studied(trial, method))
    assert (f"{summary['mae_pct']:.2f}", summary["failing_splits"]) == (mae, failing)


@pytest.mark.recorded
def test_two_workloads_make_nearly_all_of_the_large_errors(studied, frontiers):
    errors = studied(1, "eq1")
    table = evaluation.by_run(frontiers[0], errors, study_splits(21)).set_index("run").over_10
    assert table.sum() == 123
    assert table["d512_b16_s256_L3"] + table["d640_b8_s64_L3"] == 117
    assert round(evaluation.summary(errors)["predictions_over_10_pct"], 1) == 8.8


@pytest.mark.recorded
def test_the_parameters_are_weakly_identified(frontiers):
    splits = study_splits(21)
    e_per_tflop_j, e_per_tb_j, p_overhead_w = fits.fit(RunArrays.of(frontiers[0]).take(splits.train), 1)
    b_counter = e_per_tb_j / DRAM_COUNTER_FACTOR

    def spread(values, digits):  # the study's standard deviation is here that of the 200 values themselves
        return tuple(f"{x:.{digits}f}" for x in (values.mean(), values.std(), values.min(), values.max()))

    assert spread(e_per_tflop_j, 2) == ("5.42", "0.67", "3.80", "6.60")
    assert spread(b_counter, 0) == ("4215", "1394", "1205", "6917")
    assert spread(p_overhead_w, 2) == ("1.81", "1.12", "0.00", "4.00")


@pytest.fixture(scope="module")
def left_out(request) -> dict[int, pd.DataFrame]:
    """Return, for each equation, the runs of all trials with their leave-one-out errors, trial by trial."""
    frontiers = request.getfixturevalue("frontiers")
    found = {}
    for equation in (1, 2):
        tables = []
        for number, runs in enumerate(frontiers, start=1):
            splits = leave_one_out(len(runs))
            errors = evaluation.held_out_errors(runs, ESTIMATORS[f"eq{equation}"], splits)
            tables.append(runs.assign(trial=number, error_pct=errors[:, 0]))
        found[equation] = pd.concat(tables, ignore_index=True)
    return found


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("d_model", {256: "+4.36", 384: "+1.01", 512: "-2.14", 640: "-2.14", 768: "-2.89"}),
        ("seq_len", {64: "-1.46", 128: "-0.44", 256: "-0.04", 512: "+6.61"}),
        ("d_ff", {512: "+0.05", 3072: "-1.19", 4096: "-4.44"}),
        ("batch_size", {8: "-0.66", 16: "+0.26"}),
        ("n_layers", {3: "-0.51", 6: "+0.69"}),
        ("n_heads", {2: "-1.76", 4: "-0.37", 8: "+4.22"}),
        ("optimizer", {"adamw": "-0.85", "sgd": "+5.74"}),
    ],
)
def test_figure_5_s_means_over_63_runs(left_out, column, expected):
    assert len(left_out[1]) == 63
    means = left_out[1].groupby(column).error_pct.mean()
    assert {key: f"{mean:+.2f}" for key, mean in means.items()} == expected


@pytest.mark.recorded
def test_errors_repeat_across_trials(left_out):
    """Correlations 0.96 to 0.99 of Eq. 2, with the same sign throughout, and 0.72 to 0.92 of Eq. 1."""
    for equation, expected in ((2, ("0.96", "0.99")), (1, ("0.72", "0.92"))):
        table = left_out[equation].pivot_table(index="run", columns="trial", values="error_pct")
        correlations = table.corr().to_numpy()[np.triu_indices(3, 1)]
        assert (f"{correlations.min():.2f}", f"{correlations.max():.2f}") == expected
        if equation == 2:
            assert (np.sign(table).nunique(axis=1) == 1).all()
