"""What holds of every estimator: fitted, evaluated, saved and loaded it is one and the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.datasets.dataset import Dataset, Metadata
from estimator_utils.estimation import estimators
from estimator_utils.estimation.calibration import FORMS, Calibration, Estimate, Identity, Run
from estimator_utils.estimation.equations import StudyEquation
from estimator_utils.estimation.estimators import ESTIMATORS
from estimator_utils.estimation.fitting import RunArrays, estimate_runs
from tests.support import fits, synthetic
from tests.support.fits import BELONGS

each = pytest.mark.parametrize("name", ESTIMATORS)
seeds = st.integers(0, 10_000)
few = settings(max_examples=15)

READINGS = ("energy_net_j", "duration_s", "dram_tb", "gpu_util")
# Constants that give synthetic runs a positive truth; overheads are points of the study's grid.
PLANTED = {
    "eq1": {"e_per_tflop_j": 7.0, "e_per_tb_j": 20.0, "p_overhead_w": 1.25},
    "eq2": {"e_per_tflop_j": 7.0, "p_overhead_w": 2.0},
    "one-constant": {"e_per_tflop_j": 9.0},
    "log-energy-time": {"scale_tflop": 0.2, "energy_exponent": 0.9, "time_exponent": 0.2},
    "utilisation-time": {"tflop_per_busy_s": 0.7},
    "time": {"tflop_per_s": 0.7},
    "energy-time": {"tflop_per_j": 0.15, "tflop_per_s": -0.3},
    "energy-dram-time": {"tflop_per_j": 0.15, "tflop_per_tb": -3.0, "tflop_per_s": -0.2},
}


def test_there_is_a_form_for_every_estimator_and_an_estimator_for_every_form():
    assert set(ESTIMATORS) == set(FORMS)
    assert all(name == estimator.name for name, estimator in ESTIMATORS.items())


@each
@few
@given(seeds)
def test_planted_constants_are_recovered(name, seed):
    readings = RunArrays.of(synthetic.runs(12, seed))
    truth = FORMS[name].tflop(PLANTED[name], readings)
    found = ESTIMATORS[name].fit(replace(readings, truth_tflop=truth)).constants
    assert {key: float(value) for key, value in found.items()} == pytest.approx(PLANTED[name], rel=1e-6)


@each
@few
@given(seeds)
def test_what_is_saved_estimates_what_was_fitted_on_numbers_and_on_arrays(tmp_path_factory, name, seed):
    runs = synthetic.runs(14, seed, noise=0.05)
    fitted = ESTIMATORS[name].fit(RunArrays.of(runs))
    path = tmp_path_factory.mktemp("saved") / "c.json"
    fitted.calibration(Identity(**BELONGS)).save(path)
    loaded = Calibration.load(path)
    expected = fitted.estimate(RunArrays.of(runs)).tflop
    assert estimate_runs(loaded, runs) == pytest.approx(expected, rel=1e-12)
    assert [loaded.estimate(run).tflop for run in runs.itertuples()] == pytest.approx(expected.tolist(), rel=1e-12)
    assert (loaded.n_runs, bool(loaded.recipe)) == (14, True)


@each
def test_leading_axes_are_fitted_each_for_itself(name):
    tables = [RunArrays.of(synthetic.runs(12, seed, noise=0.04)) for seed in range(6)]
    columns = {c: np.stack([getattr(t, c) for t in tables]).reshape(2, 3, 12) for c in RunArrays.__dataclass_fields__}
    stacked = RunArrays(**columns)
    fitted = ESTIMATORS[name].fit(stacked)
    for constant in FORMS[name].constants:
        alone = [float(ESTIMATORS[name].fit(table).constants[constant]) for table in tables]
        assert fitted.constants[constant].shape == (2, 3)
        assert fitted.constants[constant].ravel() == pytest.approx(alone, rel=1e-9)
    assert fitted.estimate(stacked).tflop.shape == (2, 3, 12)


@each
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_reading_is_named_where_it_is_needed_and_not_looked_at_elsewhere(name, reading, missing):
    calibration = Calibration(name, PLANTED[name])
    whole = Run(energy_net_j=1500.0, duration_s=200.0, dram_tb=3.0, gpu_util=0.9)
    found = calibration.estimate(replace(whole, **{reading: missing}))
    needed = reading in FORMS[name].readings
    assert found == (Estimate(None, name, (reading,)) if needed else calibration.estimate(whole))


# A calibration says what it belongs to


def dataset(runs: pd.DataFrame) -> Dataset:
    about = Metadata("bench-trial1", kind="simulated", device="a board", rail="VDD", power_mode="15W")
    return Dataset(about, runs, "f" * 64)


@each
def test_calibrating_is_fitting_with_what_the_data_say(runs, name):
    found = estimators.calibrate(dataset(runs), runs[:14], ESTIMATORS[name])
    about = Identity("a board", "VDD", "15W", "fp32", 0.642, "bench-trial1", "f" * 64)
    assert found == ESTIMATORS[name].fit(RunArrays.of(runs[:14])).calibration(about)


def test_a_calibration_carries_its_recipe(runs):
    c = estimators.calibrate(dataset(runs), runs[:14], StudyEquation(1, overhead_max_w=6.0))
    e, b, p = fits.fit(RunArrays.of(runs[:14]), 1, 6.0)
    assert c.constants == {"e_per_tflop_j": e, "e_per_tb_j": b, "p_overhead_w": p}
    assert (c.n_runs, c.recipe.endswith("0 to 6 W")) == (14, True)


def test_a_baseline_that_was_not_noted_is_not_known(runs):
    c = estimators.calibrate(dataset(runs), runs.assign(idle_power_w=np.nan), StudyEquation(2))
    assert c.identity.idle_power_w is None


def test_one_calibration_takes_one_precision(runs):
    runs.loc[4, "precision"] = "tf32"
    with pytest.raises(ValueError, match="one precision, found fp32, tf32: name one as `precision`"):
        estimators.calibrate(dataset(runs), runs, StudyEquation(2))


@each
@pytest.mark.parametrize("reading", ["dram_tb", "gpu_util"])
def test_a_run_that_lacks_a_needed_reading_is_named(runs, name, reading):
    runs.loc[4, reading] = np.nan
    if reading in FORMS[name].readings:
        with pytest.raises(ValueError, match=rf"needs {reading} of every run, it is empty in \['run4'\]: fill it in"):
            estimators.calibrate(dataset(runs), runs, ESTIMATORS[name])
    else:
        assert estimators.calibrate(dataset(runs), runs, ESTIMATORS[name]).n_runs == len(runs)
