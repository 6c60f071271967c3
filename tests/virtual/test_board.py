from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.cli.main import main
from estimator_utils.datasets import registry
from estimator_utils.datasets.columns import RUN_COLUMNS
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.estimation.applicability import passing_gate
from estimator_utils.estimation.fitting import RunArrays
from estimator_utils.truth import flops
from estimator_utils.truth.training import Transformer
from estimator_utils.truth.workload import Workload, read_sweep
from estimator_utils.virtual import board as virtual_board
from estimator_utils.virtual import kernels as virtual_kernels
from estimator_utils.virtual.board import Board, Conditions, simulate
from estimator_utils.virtual.bundle import BUNDLE
from estimator_utils.virtual.kernels import step_kernels
from estimator_utils.virtual.orin_nano import (
    BUS_BYTES_PER_S,
    CPU_W,
    DRIFT,
    FITTED,
    FLOP_PER_CYCLE,
    GPU_HZ,
    GPU_MIN_HZ,
    RAIL_V,
)
from estimator_utils.virtual.timeline import arithmetic_cycles, dram_bytes, timeline
from tests.support import fits
from tools import fit_virtual_board as tool

ROOT = Path(__file__).resolve().parents[2]
TINY = Workload(d_model=64, n_layers=2, seq_len=32, batch_size=4, steps=300)
LARGE = Workload(d_model=512, n_layers=6, seq_len=128, batch_size=16, steps=100)

sizes = st.builds(
    lambda heads, width, **rest: Workload(d_model=heads * width, n_heads=heads, **rest),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([16, 32, 64]),
    n_layers=st.integers(1, 3),
    d_ff=st.integers(16, 512),
    seq_len=st.integers(8, 128),
    batch_size=st.integers(1, 16),
    optimizer=st.sampled_from(["adamw", "sgd"]),
    precision=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]),
)


@pytest.fixture(scope="module")
def study_sweep() -> pd.DataFrame:
    return pd.DataFrame([run.row for run in virtual_board.simulate_sweep(read_sweep("study"), seed=7)])


# Kernels


@settings(max_examples=12)
@given(sizes)
def test_the_dispatched_step_has_the_flop_of_the_ground_truth(workload):
    kernels = step_kernels(workload).kernels
    assert sum(k.flop for k in kernels) == flops.closed_form(workload).flop_per_step
    assert {k.kernel_class for k in kernels if k.flop} == {"gemm", "attention"}


def test_a_step_dispatches_what_cuda_would_launch():
    names = [k.name for k in step_kernels(TINY).kernels]
    assert "native_dropout" in names
    assert "_foreach_addcdiv_" in names
    assert names.count("_scaled_dot_product_efficient_attention") == TINY.n_layers
    assert "bernoulli_" not in names
    assert "bmm" not in names
    again = step_kernels(replace(TINY, steps=9999))
    assert again is step_kernels(TINY), "the number of steps does not change a step"


def test_autocast_casts_once_a_weight_and_changes_no_flop():
    single, half = (step_kernels(replace(TINY, precision=p)).kernels for p in ("fp32", "bf16"))
    assert sum(k.flop for k in single) == sum(k.flop for k in half)
    assert {k.precision for k in half if k.flop} == {"bf16"}
    assert {k.precision for k in half if "norm" in k.name or k.kernel_class == "optimizer"} == {"fp32"}
    extra = [k.name for k in half].count("_to_copy")
    assert len(half) - len(single) == extra > 0
    assert sum(k.write_bytes for k in half) < sum(k.write_bytes for k in single)


def test_scaled_gradients_make_the_host_wait_in_fp16_alone():
    waits = {p: sum(k.waits for k in step_kernels(replace(TINY, precision=p)).kernels) for p in PRECISIONS}
    assert waits == {"fp32": 1, "tf32": 1, "bf16": 1, "fp16": 2}


def test_memory_holds_weights_gradients_and_adam_s_state():
    thin, thick = (replace(TINY, d_model=d, batch_size=1, seq_len=1) for d in (512, 1024))
    parameters = [sum(p.numel() for p in Transformer(w, "meta").parameters()) for w in (thin, thick)]
    need = [step_kernels(w).peak_bytes for w in (thin, thick)]
    assert need[0] >= 16 * parameters[0]
    assert need[1] >= 16 * parameters[1]
    assert step_kernels(replace(thin, optimizer="sgd")).peak_bytes <= need[0] - 8 * parameters[0]


# Timeline


@settings(max_examples=12)
@given(sizes)
def test_kernels_follow_one_another_and_never_overlap(workload):
    line = timeline(step_kernels(workload), FITTED)
    ends = line.start_s + line.kernel_s
    assert (line.start_s[1:] >= ends[:-1] - 1e-12).all()
    assert ends[-1] == pytest.approx(line.period_s)
    assert (line.kernel_s > 0).all()
    assert (line.energy_j > 0).all()
    assert GPU_MIN_HZ <= line.gpu_hz <= GPU_HZ
    profile = line.profile_w(FITTED)
    spent_j = float(profile.mean()) * line.period_s
    assert spent_j == pytest.approx(CPU_W * line.period_s + line.energy_j.sum())


def test_no_kernel_is_faster_than_the_chip():
    step = step_kernels(LARGE)
    line = timeline(step, FITTED)
    flop = np.array([k.flop for k in step.kernels])
    assert (flop <= line.kernel_s * FLOP_PER_CYCLE * GPU_HZ).all()
    assert (dram_bytes(step.kernels) <= line.kernel_s * BUS_BYTES_PER_S).all()
    assert line.gpu_hz == GPU_HZ


def test_a_slow_host_leaves_the_gpu_idle_and_the_governor_slows_it():
    step = step_kernels(TINY)
    fast, slow = (timeline(step, replace(FITTED, launch_s=s)) for s in (1e-6, 1e-3))
    assert slow.period_s > len(step.kernels) * 1e-3
    assert slow.kernel_s.sum() / slow.period_s < fast.kernel_s.sum() / fast.period_s
    assert slow.gpu_hz <= fast.gpu_hz


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_longer_sums_take_longer_and_large_operands_are_read_again(m, n, k):
    def product(depth: int) -> virtual_kernels.Kernel:
        read, write = 4 * (m * depth + depth * n), 4 * m * n
        return virtual_kernels.Kernel("mm", "gemm", "fp32", 2 * m * n * depth, read, write, (m, n, depth))

    short, long = product(k), product(2 * k)
    cycles = arithmetic_cycles([short, long], 0.6, 50.0)
    assert 0 < cycles[0] < cycles[1] <= 2 * cycles[0]
    moved = dram_bytes([short, long])
    assert moved[0] >= short.write_bytes
    assert moved[0] <= moved[1]


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


def test_the_frontier_of_the_sweep_is_the_study_s(study_sweep):
    frontier = set(passing_gate(study_sweep).run)
    slow = {w.run for w in read_sweep("study")[14:19]}
    assert set(study_sweep.run) - frontier == slow  # the study's five of 26 below 80 %
    rate = study_sweep.truth_tflop / study_sweep.duration_s
    assert rate[study_sweep.run.isin(frontier)].between(0.5, 0.9).all()


def test_no_formula_of_the_estimator_fits_the_virtual_board_exactly(study_sweep):
    runs = passing_gate(study_sweep)
    for equation in (1, 2):
        error = fits.predict(RunArrays.of(runs), equation) / runs.truth_tflop - 1
        assert 0.01 < np.abs(error).mean() < 0.10


# Refusals


def test_a_workload_that_does_not_fit_runs_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match=r"needs \d+\.\d+ GiB .* smaller batch"):
        simulate(Workload(d_model=4096, n_layers=24, n_heads=32, d_ff=16384, seq_len=2048, batch_size=32))


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


# The bundle


def test_the_bundle_is_written_anew_byte_for_byte(tmp_path, capsys):
    assert main(["virtual-board", "--output", str(tmp_path / "anew")]) == 0
    assert "simulated" in capsys.readouterr().out
    bundled = ROOT / "data" / BUNDLE
    files = sorted(p.relative_to(bundled) for p in bundled.rglob("*") if p.is_file() and p.name != "README.md")
    assert files == sorted(p.relative_to(tmp_path / "anew") for p in (tmp_path / "anew").rglob("*") if p.is_file())
    assert [f for f in files if (bundled / f).read_bytes() != (tmp_path / "anew" / f).read_bytes()] == []
    sizes = [(bundled / f).stat().st_size for f in files]
    assert max(sizes) < 1_500_000
    assert sum(sizes) < 10_000_000


def test_the_bundle_is_the_default_and_says_that_it_is_simulated():
    assert registry.collections()[0] == BUNDLE
    trials = registry.trials(BUNDLE)
    assert [len(t.runs) for t in trials] == [38, 26, 26]
    assert {t.metadata.kind for t in trials} == {"simulated"}
    assert all(not t.metadata.device.startswith("NVIDIA") for t in trials)
    assert len(set(trials[1].runs.energy_net_j) & set(trials[2].runs.energy_net_j)) == 0
    trace = registry.trace(BUNDLE)
    assert trace.launch_s == 60.0
    assert trace.end_s < trace.t_s[-1] - 50
    assert registry.trace(BUNDLE, "spoof").run == "memory_spoof"


# The fit


@pytest.mark.recorded
def test_the_constants_are_those_that_the_fit_gives():
    runs = tool.fit_half()
    assert len(runs) == 19
    assert list(runs.run[:2]) == ["d256_b16_s128_L3", "d384_b16_s128_L3"]
    fitted = tool.fit([step_kernels(w) for w in tool.workloads_of(runs)], runs)
    assert len(asdict(fitted)) == 10
    assert asdict(fitted) == pytest.approx(asdict(FITTED), rel=1e-2)


@pytest.fixture(scope="module")
def claimed() -> dict[str, Any]:
    """Return what notebook 11 wrote into results.json."""
    return json.loads((ROOT / "data" / "derived" / "results.json").read_text(encoding="utf-8"))["11"]


@pytest.mark.recorded
def test_what_notebook_11_claims_of_configurations_never_fitted_follows_anew(study_trials, claimed):
    fitted_on = set(study_trials[0].runs.run.iloc[::2])
    parts = []
    for trial in study_trials:
        real = trial.runs
        chosen = [Workload(**{n: row[n] for n in asdict(TINY)}) for row in real.to_dict("records")]
        again = pd.DataFrame([run.row for run in virtual_board.simulate_sweep(chosen, seed=0, spread=0.0)])
        columns = {"duration": "duration_s", "energy": "energy_net_j", "DRAM": "dram_tb"}
        part = pd.DataFrame({name: 100 * (again[c] / real[c] - 1).abs() for name, c in columns.items()})
        part["load"] = 100 * (again.gpu_util - real.gpu_util).abs()
        part["gate_wrong"] = (again.gpu_util >= 0.8) != (real.gpu_util >= 0.8)
        part["frontier"] = real.gpu_util >= 0.8
        parts.append(part[(real.precision == "fp32") & ~real.run.isin(fitted_on)])
    never = pd.concat(parts)
    frontier = never[never.frontier]
    found = {f"median |{name}| (%)": never[name].median() for name in columns}
    found |= {f"frontier: largest |{name}| (%)": frontier[name].max() for name in ("duration", "energy")}
    found["mean GPU load, off on average (points)"] = never.load.mean()
    found["mean GPU load, worst run off by (points)"] = never.load.max()
    found["runs with the gate wrong"] = never.gate_wrong.sum()
    targets = claimed["targets"]
    assert len(never) == claimed["n_runs"]["held out, never fitted"] == 39
    assert found == pytest.approx({name: targets[name]["here"] for name in found}, rel=1e-3)
    for name, value in found.items():
        assert targets[name]["met"] == ("met" if value <= targets[name]["target"] else "not met")
    assert set(targets) - set(found) == {"reduced precision: median |energy| (%)"}


def test_the_datasheet_s_numbers_are_those_of_notebook_11(claimed):
    sheet = " ".join((ROOT / "data" / BUNDLE / "README.md").read_text(encoding="utf-8").split())
    targets, count = claimed["targets"], claimed["n_runs"]
    duration, energy, dram = (targets[f"median |{name}| (%)"] for name in ("duration", "energy", "DRAM"))
    frontier = [targets[f"frontier: largest |{name}| (%)"]["here"] for name in ("duration", "energy")]
    load = [targets[f"mean GPU load, {which} (points)"] for which in ("off on average", "worst run off by")]
    reduced = targets["reduced precision: median |energy| (%)"]["here"]
    for words in (
        f"On {count['held out, never fitted']} fp32 runs",
        f"{duration['here']:.2f} % in duration, {energy['here']:.2f} % in net energy and {dram['here']:.2f} % in "
        "DRAM traffic",
        f"targets were {duration['target']:g}, {energy['target']:g} and {dram['target']:g} %",
        f"largest error is {frontier[0]:.1f} % in duration and {frontier[1]:.1f} % in net energy",
        f"off by {load[0]['here']:.1f} points on average and by {load[1]['here']:.1f} in the worst run",
        f"against a target of {load[1]['target']:g}",
        f"reduced precision: {reduced:.1f} % (median)",
        f"configurations, {count['held out, pooled']} runs: {duration['pooled']:.2f}, {energy['pooled']:.2f} and "
        f"{dram['pooled']:.2f} %",
        f"up to {claimed['largest_pct']['held out, pooled']['duration']:.1f} %",
    ):
        assert words in sheet
    missed = [name for name in ("duration", "energy", "DRAM") if targets[f"median |{name}| (%)"]["met"] == "not met"]
    assert missed == ["duration"]
    assert "**duration misses its target**" in sheet
    assert ("The 80 % gate is right for all runs" in sheet) == (targets["runs with the gate wrong"]["pooled"] == 0)
