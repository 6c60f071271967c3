"""Readings of a board in software, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

from estimator_utils.datasets.columns import RUN_COLUMNS
from estimator_utils.estimation.applicability import passing_gate
from estimator_utils.estimation.fitting import RunArrays
from estimator_utils.truth.workload import Workload, read_sweep
from estimator_utils.virtual import board as virtual_board
from estimator_utils.virtual.board import Board, Conditions, simulate
from estimator_utils.virtual.orin_nano import DRIFT, RAIL_V
from tests.support import fits
from tests.support.workloads import LARGE, TINY


@pytest.fixture(scope="module")
def study_sweep() -> pd.DataFrame:
    return pd.DataFrame([run.row for run in virtual_board.simulate_sweep(read_sweep("study"), seed=7)])


# Readings


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    first, again, other = (simulate(TINY, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.trace.power_w != other.trace.power_w


def test_power_comes_in_steps_of_8_mv_and_8_ma():
    board = Board.switch_on(np.random.default_rng(0))
    volt = round((RAIL_V + board.offset_v) / 8e-3) * 8e-3
    steps = np.array(simulate(LARGE, 0, Conditions(board=board)).trace.power_w) / volt / 8e-3
    assert np.abs(steps - steps.round()).max() < 1e-4
    assert len(set(steps.round())) > 3


def test_the_offset_of_the_sensor_cancels_in_net_energy():
    rows = [
        simulate(replace(LARGE, steps=600), 0, Conditions(Board(a, 0.0, 0.0, baseline_w=0.642 + a * 5.016))).row
        for a in (-0.016, 0.0, 0.016)
    ]
    energies = [row["energy_net_j"] for row in rows]
    assert max(energies) / min(energies) - 1 < 0.002
    assert rows[2]["power_peak_w"] > rows[0]["power_peak_w"] + 0.1


def test_a_row_follows_from_its_trace():
    run = simulate(replace(LARGE, steps=600), 5, Conditions(idle_s=20.0))
    trace, row = run.trace, run.row
    t, power = np.array(trace.t_s), np.array(trace.power_w)
    inside = (t >= trace.start_s) & (t <= trace.end_s)
    net = np.maximum(power[inside] - row["idle_power_w"], 0)
    assert row["energy_net_j"] == pytest.approx(((net[1:] + net[:-1]) / 2 * np.diff(t[inside])).sum(), rel=1e-4)
    assert row["duration_s"] == pytest.approx(trace.end_s - trace.start_s, abs=1e-3)
    assert row["gpu_util"] == pytest.approx(np.array(trace.gpu_util)[inside].mean(), abs=1e-6)
    assert row["power_peak_w"] == power[inside].max()
    assert np.array(trace.gpu_util)[t < trace.start_s].max() == 0.0
    assert (trace.launch_s, trace.start_s) == (20.0, 25.5)
    assert np.median(power[t < 20.0]) == pytest.approx(0.642, abs=0.1)
    intervals = np.diff(t)
    assert intervals.min() >= 0.4999
    assert intervals.std() > 1e-4
    assert all(load == round(load, 3) for load in trace.gpu_util)
    assert set(RUN_COLUMNS) == set(row)


def test_runs_repeat_as_closely_as_the_study_s_did():
    names = ["energy_net_j", "dram_tb", "duration_s"]
    limited_by_gpu, limited_by_cpu = (
        pd.DataFrame([simulate(replace(w, steps=400), seed=s).row for s in range(80)])[names] for w in (LARGE, TINY)
    )
    relative = limited_by_gpu.std() / limited_by_gpu.mean()
    assert 0.005 < relative.energy_net_j < 0.012
    assert 0.0005 < relative.duration_s < 0.002
    off = (limited_by_gpu.dram_tb / limited_by_gpu.dram_tb.median() - 1).abs()
    assert off.median() < 0.005
    assert 0.03 < (off > 0.02).mean() < 0.2  # 7 of 63 in the study
    assert 0.01 < limited_by_cpu.duration_s.std() / limited_by_cpu.duration_s.mean() < 0.02


def test_energy_falls_as_the_board_warms_up():
    cold, warm = (simulate(LARGE, 1, Conditions(warm_s=s)).row["energy_net_j"] for s in (0.0, 36_000.0))
    assert cold / warm - 1 == pytest.approx(DRIFT, abs=0.01)


def test_gain_in_steps_is_gain_in_time_and_energy():
    one, two = (simulate(replace(LARGE, steps=n), 1, Conditions(warm_s=1e6)).row for n in (1000, 2000))
    assert two["duration_s"] == pytest.approx(2 * one["duration_s"])
    assert two["energy_net_j"] == pytest.approx(2 * one["energy_net_j"], rel=0.02)


# The sweep


@pytest.mark.slow
def test_the_frontier_of_the_sweep_is_the_study_s(study_sweep):
    frontier = set(passing_gate(study_sweep).run)
    slow = {w.run for w in read_sweep("study")[14:19]}
    assert set(study_sweep.run) - frontier == slow  # the study's five of 26 below 80 %
    rate = study_sweep.truth_tflop / study_sweep.duration_s
    assert rate[study_sweep.run.isin(frontier)].between(0.5, 0.9).all()


@pytest.mark.slow
def test_no_formula_of_the_estimator_fits_the_virtual_board_exactly(study_sweep):
    runs = passing_gate(study_sweep)
    for equation in (1, 2):
        error = fits.predict(RunArrays.of(runs), equation) / runs.truth_tflop - 1
        assert 0.01 < np.abs(error).mean() < 0.10


# Refusals


def test_a_workload_that_does_not_fit_runs_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match=r"needs \d+\.\d+ GiB .* smaller batch"):
        simulate(Workload(d_model=4096, n_layers=2, n_heads=32, d_ff=16384, seq_len=2048, batch_size=32))


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match=r"unknown power mode '15W'.*25W"):
        Conditions(power_mode="15W")


@pytest.mark.parametrize(
    ("bad", "message"), [({"steps": 0}, "steps"), ({"batch_size": -1}, "batch_size"), ({"n_heads": 5}, "divide")]
)
def test_impossible_workloads_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        simulate(Workload(**{**asdict(TINY), **bad}))


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"idle_s": -5.0}, "idle_s must not be negative, found -5.0"),
        ({"warm_s": -1e6}, "warm_s must not be negative, found -1000000.0"),
        ({"spread": float("nan")}, "spread must not be negative, found nan"),
    ],
)
def test_impossible_conditions_are_refused(conditions, message):
    with pytest.raises(ValueError, match=message):
        Conditions(**conditions)


def test_a_run_of_too_few_polls_is_refused():
    with pytest.raises(ValueError, match=r"training must take 1\.5 s or more"):
        simulate(replace(TINY, steps=3))
