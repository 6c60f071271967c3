"""An Orin Nano in software: the readings that a board would give while it trains a workload.

Operator's side; all of it simulated. The kernels of one dispatched step become a timeline, power of the rail and
DRAM traffic (notebook 11 holds them against the study's records), and these become readings of its sensors.
Besides the ten fitted constants, COPY_W and DRIFT are set from published runs, and the spreads between runs from
all three trials; notebook 11 predicts without the spreads.

Sources: [D] Orin Nano 8 GB data sheet, nvpmodel_p3767_0003_super.conf; [T] tegrastats lines, bandwidth test of an
Orin Nano; [TI] INA3221 data sheet; [R] the study's published figures; [H] Horowitz, ISSCC 2014, figure 1.1.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from estimator_utils.datasets import dataset as schema
from estimator_utils.datasets.dataset import Metadata, Trace
from estimator_utils.monitor import sessions
from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload, reduced_precision_sweep, sweep
from estimator_utils.virtual.kernels import (
    L2_BYTES_PER_CYCLE,
    Kernel,
    Step,
    arithmetic_cycles,
    dram_bytes,
    loop_kernels,
    step_kernels,
)

Array = npt.NDArray[np.float64]

BUNDLE = "orin-nano-virtual"
POWER_MODE = "25W"  # the one that is validated; for others no source gives the CPU clock
GPU_HZ, GPU_MIN_HZ, EMC_HZ = 918e6, 306e6, 3199e6  # Hz; [D], lowest clock [T]
BUS_BYTES_PER_S = 32 * EMC_HZ * 0.94  # 128-bit LPDDR5 [D]; a copy reaches 64.1 GB/s of 68.3 [T]
MEMORY_BYTES = (7620 - 2147) * 2**20  # all less what an idle board uses [T]
# Multiply and add: fp32 3.7 + 0.9 pJ, fp16 1.1 + 0.4 pJ; tf32 multiplies like fp16, adds like fp32 [H]
ENERGY_RATIO = {"fp32": 1.0, "tf32": 2.0 / 4.6, "fp16": 1.5 / 4.6, "bf16": 1.5 / 4.6}
E_BYTE_J = 3e-12  # J; 100 pJ for 8 bytes of a 1 MB cache at 45 nm [H], at 8 nm taken as a quarter
COPY_W = 3.30  # W, of the GPU while it copies: memory spoof, 571.7 J in 150.8 s [R], less CPU and bytes
CPU_W = 0.2  # W, a busy Cortex-A78 core: 1 W at 3 GHz (Arm, 2020), times (1.344 / 3) squared
IDLE_W, IDLE_SPREAD_W = 0.642, 0.028  # W [R]; from 642 and 681 mW on two days: their difference over root 2
# Between the study's three trials, relative standard deviations of one configuration: power; time where the GPU
# limits, and where the CPU does; DRAM readings, most of them, and the one in ten that is far off (up to 17 %).
POWER_SPREAD, TIME_SPREAD, LAUNCH_SPREAD = 0.008, 0.001, 0.015
DRAM_SPREAD, DRAM_OUTLIERS, DRAM_OUTLIER_SPREAD = 0.005, 0.1, 0.1
# Power of a cold board over a warm one, 1 and s: 10.28 to 10.06 J/TFLOP in 49 minutes [R]; settled in an hour
DRIFT, DRIFT_TIME_S = 0.028, 1200.0
RAIL_V, VOLT_STEP, AMPERE_STEP = 5.016, 8e-3, 8e-3  # V, V, A; 642.048 mW is 128 mA [R]; 40 uV over 5 mOhm [TI]
OFFSET_A, OFFSET_V, GAIN = 8e-3, 8e-3, 1e-3  # A, V, 1; typical errors [TI]
CONVERSION_S = 1.1e-3  # s, one conversion, not averaged by default [TI]
LOAD_WINDOW_S = 1 / 6  # s, over which a GPU load averages: 1/6 to 1 s by product (NVML documentation)
POLL_S, POLL_JITTER_S, BASELINE_S, START_S = 0.5, 1e-3, 90.0, 5.5  # s; 301 samples in 150.7 s, launch to start [R]


@dataclass(frozen=True)
class Fitted:
    """The ten constants that no source gives, fitted on half of trial 1 by ``tools/fit_virtual_board.py``."""

    gemm_efficiency: float = 0.5952  # share of the peak that a long, well filled matrix product reaches
    ramp_k: float = 48.99  # terms of an fp32 sum that it costs to fill and drain the pipeline
    kernel_s: float = 15.01e-6  # s, an empty kernel at the highest GPU clock
    launch_s: float = 127.0e-6  # s, CPU time to issue a kernel
    host_s: float = 15.73e-3  # s, CPU time of a step before the optimizer's first kernel
    load_target: float = 0.6353  # GPU load below which the governor lowers the clock
    voltage_ratio: float = 0.8724  # GPU voltage at the lowest over that at the highest clock
    active_w: float = 5.854  # W, while a kernel that computes runs, at the highest clock
    e_flop_j: float = 2.599e-12  # J per fp32 FLOP at the highest clock
    smoothing_s: float = 22.33e-3  # s, time constant with which the rail follows the GPU


FITTED = Fitted()


@dataclass(frozen=True)
class Timeline:
    """One step: period (s), GPU clock (Hz), start (s), length (s), energy (J) of kernels, DRAM traffic (bytes)."""

    period_s: float
    gpu_hz: float
    start_s: Array
    kernel_s: Array
    energy_j: Array
    dram_bytes: float

    def upto(self, t_s: Array, amount: Array) -> Array:
        """Return how much of ``amount`` (n,), which kernels spend evenly, is spent by ``t_s`` within a step."""
        edges_s = np.column_stack([self.start_s, self.start_s + self.kernel_s]).ravel()
        return np.interp(t_s, edges_s, np.column_stack([np.cumsum(amount) - amount, np.cumsum(amount)]).ravel())

    def profile_w(self, fitted: Fitted) -> Array:
        """Return the rail's power above idle over a step, W: means over conversions, smoothed as the rail does."""
        bins = max(1, round(self.period_s / CONVERSION_S))
        edges_s = np.linspace(0, self.period_s, bins + 1)
        power_w = np.diff(self.upto(edges_s, self.energy_j)) / np.diff(edges_s)
        omega = 2 * np.pi * np.fft.rfftfreq(bins, edges_s[1])
        return CPU_W + np.fft.irfft(np.fft.rfft(power_w) / (1 + 1j * omega * fitted.smoothing_s), bins)


def timeline(step: Step, fitted: Fitted) -> Timeline:
    """Lay the kernels of a step out in time, at the clock that the governor settles at.

    A kernel takes the longer of its arithmetic and its memory time, plus a fixed part. It starts when the CPU has
    issued it and the one before has ended. The governor lowers the clock until the load reaches its target.
    """
    kernels, dram = step.kernels, dram_bytes(step.kernels)
    size = np.array([k.read_bytes + k.write_bytes for k in kernels], float)
    cycles = np.maximum(
        arithmetic_cycles(kernels, fitted.gemm_efficiency, fitted.ramp_k), size / L2_BYTES_PER_CYCLE
    )

    def at(hz: float) -> tuple[float, Array, Array]:
        kernel_s = np.maximum(cycles / hz, dram / BUS_BYTES_PER_S) + fitted.kernel_s * GPU_HZ / hz
        start_s = _starts(kernels, kernel_s, fitted)
        return float(start_s[-1] + kernel_s[-1]), start_s, kernel_s

    def busy(hz: float) -> bool:
        period_s, _, kernel_s = at(hz)
        return bool(kernel_s.sum() / period_s > fitted.load_target)

    low, high = (GPU_HZ, GPU_HZ) if busy(GPU_HZ) else (GPU_MIN_HZ, GPU_HZ if busy(GPU_MIN_HZ) else GPU_MIN_HZ)
    while high - low > 1e4:
        middle = (low + high) / 2
        low, high = (middle, high) if busy(middle) else (low, middle)
    period_s, start_s, kernel_s = at(high)
    volts = 1 - (1 - fitted.voltage_ratio) * (GPU_HZ - high) / (GPU_HZ - GPU_MIN_HZ)
    flop_j = fitted.e_flop_j * np.array([k.flop * ENERGY_RATIO[k.precision] for k in kernels])
    active_w = np.array([COPY_W if k.kind == "copy" else fitted.active_w for k in kernels])
    energy_j = volts**2 * (active_w * high / GPU_HZ * kernel_s + flop_j + E_BYTE_J * dram)
    return Timeline(period_s, high, start_s, kernel_s, energy_j, float(dram.sum()))


def _starts(kernels: tuple[Kernel, ...], kernel_s: Array, fitted: Fitted) -> Array:
    """Return each kernel's start, s: issued, and the one before ended; after a wait, issuing starts anew."""
    issue_s = np.full(len(kernels), fitted.launch_s)
    issue_s[next((i for i, k in enumerate(kernels) if k.kind == "optimizer"), slice(0))] += fitted.host_s
    start_s, first, begin_s = np.empty(len(kernels)), 0, 0.0
    for last in (i for i, k in enumerate(kernels) if k.waits):
        part = slice(first, last + 1)
        before_s = np.cumsum(kernel_s[part]) - kernel_s[part]
        start_s[part] = np.maximum.accumulate(begin_s + np.cumsum(issue_s[part]) - before_s) + before_s
        first, begin_s = last + 1, start_s[last] + kernel_s[last]
    return start_s


@dataclass(frozen=True)
class Board:
    """A board that was switched on: the errors of its sensor (A, V, 1), and the idle baseline it measured, W."""

    offset_a: float
    offset_v: float
    gain: float
    baseline_w: float = 0.0

    @classmethod
    def switch_on(cls, rng: np.random.Generator) -> Board:
        """Draw the errors of the sensor and measure the idle baseline, a median."""
        board = cls(*rng.uniform(-1, 1, 3) * (OFFSET_A, OFFSET_V, GAIN))
        idle_w = rng.normal(IDLE_W, IDLE_SPREAD_W, round(BASELINE_S / POLL_S))
        return replace(board, baseline_w=float(np.median(board.read_w(idle_w))))

    def read_w(self, power_w: Array) -> Array:
        """Return what the INA3221 reads: whole steps of current and voltage."""
        current_a = np.round((power_w / RAIL_V * (1 + self.gain) + self.offset_a) / AMPERE_STEP) * AMPERE_STEP
        return np.asarray(current_a * round((RAIL_V + self.offset_v) / VOLT_STEP) * VOLT_STEP)


@dataclass(frozen=True)
class VirtualRun:
    """A simulated run: its row of the runs table (columns of `schema.RUN_COLUMNS`) and its readings."""

    row: dict[str, Any]
    trace: Trace


def simulate(workload: Workload, power_mode: str = POWER_MODE, seed: int = 0, **conditions: Any) -> VirtualRun:
    """Simulate a training run; the same arguments give the same numbers.

    Parameters
    ----------
    **conditions
        ``board``: a `Board` that is on already. ``warm_s``: s that it has been under load. ``idle_s``: s of idle
        board in the trace, before the launch and after the end. ``spread``: 0 leaves out what differs from run to
        run. ``fitted``: other constants.

    Raises
    ------
    torch.OutOfMemoryError
        The workload does not fit in the memory of the board.
    ValueError
        Unknown power mode, negative conditions, or too few steps for the polls of a board.
    """
    if power_mode != POWER_MODE:
        raise ValueError(f"unknown power mode {power_mode!r}: only {POWER_MODE} is validated, use that")
    step = step_kernels(workload)
    if step.peak_bytes > MEMORY_BYTES:
        need_gib, have_gib = step.peak_bytes / 2**30, MEMORY_BYTES / 2**30
        raise torch.OutOfMemoryError(
            f"{workload.run} needs {need_gib:.2f} GiB and the board has {have_gib:.2f} GiB free of its 8 GB: "
            "take a smaller batch, sequence or model"
        )
    truth = flops.closed_form(workload).tflop(workload.steps)
    about = {"run": workload.run, **asdict(workload), "truth_tflop": truth}
    return _run(step, about, seed, **conditions)


def _run(
    step: Step, about: dict[str, Any], seed: int, *, board: Board | None = None, warm_s: float = 0.0,
    idle_s: float = 0.0, spread: float = 1.0, fitted: Fitted = FITTED,
) -> VirtualRun:  # fmt: skip
    rng = np.random.default_rng([seed, crc32(about["run"].encode())])
    board = board or Board.switch_on(rng)
    dram_spread = DRAM_OUTLIER_SPREAD if rng.random() < DRAM_OUTLIERS else DRAM_SPREAD
    spreads = (LAUNCH_SPREAD, TIME_SPREAD, POWER_SPREAD, dram_spread)
    issuing, slower, hungrier, misread = 1 + spread * rng.normal(0, spreads)
    line = timeline(step, replace(fitted, launch_s=fitted.launch_s * issuing, host_s=fitted.host_s * issuing))
    period_s = line.period_s * slower
    duration_s = period_s * about["steps"]
    if not all(0 <= x < np.inf for x in (idle_s, warm_s, spread, duration_s - 3 * POLL_S)):
        found = f"idle_s {idle_s}, warm_s {warm_s}, spread {spread}, {duration_s:.2g} s of training"
        raise ValueError(f"found {found}: none may be negative, and training must take {3 * POLL_S} s or more")
    start_s = idle_s + START_S if idle_s else 0.0
    all_s = start_s + duration_s + idle_s
    t_s = np.cumsum(POLL_S + rng.exponential(POLL_JITTER_S, int(all_s / POLL_S) + 1)) - POLL_S
    t_s = t_s[t_s <= all_s]
    run_s = t_s - start_s  # time in training
    trains = (run_s >= 0) & (run_s <= duration_s)

    profile = line.profile_w(fitted)
    drift = 1 + DRIFT * np.exp(-np.maximum(warm_s + run_s, 0) / DRIFT_TIME_S)
    phase = rng.integers(len(profile), size=len(t_s))  # polls and steps are not in step for long
    training_w = profile[phase] * drift * hungrier
    net_w = np.where(trains, training_w, CPU_W * ((t_s >= idle_s) & (run_s < 0)))
    power_w = board.read_w(net_w + rng.normal(IDLE_W, IDLE_SPREAD_W, len(t_s)))

    def busy_s(since_start_s: Array) -> Array:
        steps, rest_s = np.divmod(np.clip(since_start_s, 0, duration_s) / slower, line.period_s)
        return np.asarray(slower * (steps * line.kernel_s.sum() + line.upto(rest_s, line.kernel_s)))

    load = ((busy_s(run_s) - busy_s(run_s - LOAD_WINDOW_S)) / LOAD_WINDOW_S).clip(0, 1).round(3)
    rate = line.dram_bytes / period_s * misread
    measured = {
        "duration_s": duration_s,
        "idle_power_w": board.baseline_w,
        "energy_net_j": sessions.energy_j(t_s[trains], power_w[trains], board.baseline_w),
        "power_peak_w": power_w[trains].max(),
        "gpu_util": load[trains].mean(),
        "dram_tb": rate * duration_s / 1e12,
        "truth_tflop": about["truth_tflop"],
    }
    row = {**about, **{name: float(f"{value:.7g}") for name, value in measured.items()}}
    channels = (t_s.round(4), power_w.round(6), load, (rate * trains).round(-3))
    end_s = round(start_s + duration_s, 4)
    t, power, gpu, dram = (tuple(channel.tolist()) for channel in channels)
    return VirtualRun(row, Trace(t, power, gpu, dram, about["run"], idle_s or None, start_s, end_s))


def simulate_sweep(workloads: Iterable[Workload], seed: int, spread: float = 1.0) -> list[VirtualRun]:
    """Simulate workloads back to back on one board with one idle baseline, as the study ran its sweeps."""
    board, warm_s, runs = Board.switch_on(np.random.default_rng(seed)), 0.0, []
    for workload in workloads:
        runs.append(simulate(workload, seed=seed, board=board, warm_s=warm_s, spread=spread))
        warm_s += runs[-1].row["duration_s"]
    return runs


def write_bundle(output: str | Path) -> None:
    """Write the bundled dataset: three trials, and runs of ten and 49 minutes and a memory spoof with traces."""
    fp32 = sweep()
    order = (fp32[:19] + reduced_precision_sweep() + fp32[19:], fp32, fp32)  # of the files of the study
    tables = {f"trial{i}": [r.row for r in simulate_sweep(w, seed=i)] for i, w in enumerate(order, start=1)}
    ten_minutes, long = replace(fp32[2], steps=9000), replace(fp32[6], steps=18000)
    a, b = torch.empty(2, 64, 1024, 1024, device="meta")
    x, y = torch.empty(1024, 1024, device="meta"), torch.empty(1024, 448, device="meta")
    spoof = {
        "run": "memory_spoof",
        "steps": 1890,
        "precision": "fp32",
        "truth_tflop": 1890 * 2 * 1024**2 * 448 / 1e12,
    }
    further = {
        "trace": simulate(ten_minutes, seed=4, idle_s=60.0),
        "spoof": _run(loop_kernels(lambda: ([b.copy_(a) for _ in range(14)], x @ y)), spoof, 5, idle_s=60.0),
        "long": simulate(long, seed=6, idle_s=60.0),
    }
    about = Metadata(
        name=BUNDLE, kind="simulated", device="virtual Jetson Orin Nano 8GB", rail="VDD_CPU_GPU_CV",
        power_mode=POWER_MODE, precision="fp32 tf32 fp16 bf16", gpu_clock_hz=GPU_HZ, emc_clock_hz=EMC_HZ,
        dram_counter_factor=1.0, software="estimator_utils.virtual_board", date="2026-11-29", who="this project",
        licence="Apache-2.0",
    )  # fmt: skip
    tables["further"] = [run.row for run in further.values()]
    schema.write_dataset(output, about, tables, {name: run.trace for name, run in further.items()})
