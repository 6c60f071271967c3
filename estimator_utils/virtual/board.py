"""The board: its sensors, and the readings that it would give while it trains a workload; all of it simulated.

The kernels of one dispatched step become a timeline, power of the rail and DRAM traffic, and these become
readings. Besides the ten fitted constants, COPY_W and DRIFT are set from published runs, and the spreads between
runs from all three trials; notebook 11 predicts without the spreads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch

from estimator_utils.datasets.dataset import Trace
from estimator_utils.monitor import integrate
from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload
from estimator_utils.virtual import orin_nano as orin
from estimator_utils.virtual.kernels import Step, step_kernels
from estimator_utils.virtual.orin_nano import FITTED, Fitted
from estimator_utils.virtual.timeline import Array, Timeline, timeline


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
        board = cls(*rng.uniform(-1, 1, 3) * (orin.OFFSET_A, orin.OFFSET_V, orin.GAIN))
        idle_w = rng.normal(orin.IDLE_W, orin.IDLE_SPREAD_W, round(orin.BASELINE_S / orin.POLL_S))
        return replace(board, baseline_w=float(np.median(board.read_w(idle_w))))

    def read_w(self, power_w: Array) -> Array:
        """Return what the INA3221 reads: whole steps of current and voltage."""
        current_a = (
            np.round((power_w / orin.RAIL_V * (1 + self.gain) + self.offset_a) / orin.AMPERE_STEP) * orin.AMPERE_STEP
        )
        return np.asarray(current_a * round((orin.RAIL_V + self.offset_v) / orin.VOLT_STEP) * orin.VOLT_STEP)


@dataclass(frozen=True)
class Conditions:
    """What a run happens under.

    Attributes
    ----------
    board : Board or None
        One that is on already; None: one is switched on for the run.
    warm_s : s
        How long the board has been under load.
    idle_s : s
        Idle board in the trace, before the launch and after the end.
    spread : 1
        How much of what differs from run to run is there; 0 leaves it out.
    fitted : Fitted
    power_mode : str
    """

    board: Board | None = None
    warm_s: float = 0.0
    idle_s: float = 0.0
    spread: float = 1.0
    fitted: Fitted = FITTED
    power_mode: str = orin.POWER_MODE

    def __post_init__(self) -> None:
        if self.power_mode != orin.POWER_MODE:
            raise ValueError(f"unknown power mode {self.power_mode!r}: only {orin.POWER_MODE} is validated, use that")
        for name in ("warm_s", "idle_s", "spread"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must not be negative, found {getattr(self, name)}")


ALONE = Conditions()


@dataclass(frozen=True)
class VirtualRun:
    """A simulated run: its row of the runs table (`columns.RUNS`) and its readings."""

    row: dict[str, Any]
    trace: Trace


@dataclass(frozen=True)
class _Training:
    """One run's training: its timeline, and by what this run differs from it in time, power and DRAM readings."""

    line: Timeline
    steps: int
    time_factor: float
    power_factor: float
    dram_factor: float

    @property
    def period_s(self) -> float:
        return self.line.period_s * self.time_factor

    @property
    def duration_s(self) -> float:
        return self.period_s * self.steps

    def busy_s(self, since_start_s: Array) -> Array:
        """Return for how long kernels have run by a time since the start."""
        inside_s = np.clip(since_start_s, 0, self.duration_s)
        steps, rest_s = np.divmod(inside_s / self.time_factor, self.line.period_s)
        whole_s = steps * self.line.kernel_s.sum()
        return np.asarray(self.time_factor * (whole_s + self.line.upto(rest_s, self.line.kernel_s)))

    def load(self, since_start_s: Array) -> Array:
        """Return the GPU load that the driver reports, a mean over a window."""
        window_s = orin.LOAD_WINDOW_S
        busy_s = self.busy_s(since_start_s) - self.busy_s(since_start_s - window_s)
        return np.asarray((busy_s / window_s).clip(0, 1).round(3))


def _training(step: Step, steps: int, conditions: Conditions, rng: np.random.Generator) -> _Training:
    """Draw what differs from run to run."""
    fitted = conditions.fitted
    dram_spread = orin.DRAM_OUTLIER_SPREAD if rng.random() < orin.DRAM_OUTLIERS else orin.DRAM_SPREAD
    spreads = (orin.LAUNCH_SPREAD, orin.TIME_SPREAD, orin.POWER_SPREAD, dram_spread)
    launch_factor, time_factor, power_factor, dram_factor = 1 + conditions.spread * rng.normal(0, spreads)
    slowed = replace(fitted, launch_s=fitted.launch_s * launch_factor, host_s=fitted.host_s * launch_factor)
    return _Training(timeline(step, slowed), steps, time_factor, power_factor, dram_factor)


def simulate(workload: Workload, seed: int = 0, conditions: Conditions = ALONE) -> VirtualRun:
    """Simulate a training run; the same arguments give the same numbers.

    Raises
    ------
    torch.OutOfMemoryError
        The workload does not fit in the memory of the board.
    ValueError
        Too few steps for the polls of a board.
    """
    step = step_kernels(workload)
    if step.peak_bytes > orin.MEMORY_BYTES:
        need_gib, have_gib = step.peak_bytes / 2**30, orin.MEMORY_BYTES / 2**30
        raise torch.OutOfMemoryError(
            f"{workload.run} needs {need_gib:.2f} GiB and the board has {have_gib:.2f} GiB free of its 8 GB: "
            "take a smaller batch, sequence or model"
        )
    truth = flops.closed_form(workload).tflop(workload.steps)
    return simulate_step(step, {"run": workload.run, **asdict(workload), "truth_tflop": truth}, seed, conditions)


def simulate_step(step: Step, about: Mapping[str, Any], seed: int = 0, conditions: Conditions = ALONE) -> VirtualRun:
    """Simulate a recorded step over and over; ``about`` has the operator's columns of the run's row."""
    rng = np.random.default_rng([seed, crc32(about["run"].encode())])
    board = conditions.board or Board.switch_on(rng)
    training = _training(step, about["steps"], conditions, rng)
    duration_s, idle_s = training.duration_s, conditions.idle_s
    if duration_s < 3 * orin.POLL_S:
        raise ValueError(f"training must take {3 * orin.POLL_S} s or more, found {duration_s:.2g} s: take more steps")
    start_s = idle_s + orin.START_S if idle_s else 0.0
    all_s = start_s + duration_s + idle_s
    jitter_s = rng.exponential(orin.POLL_JITTER_S, int(all_s / orin.POLL_S) + 1)
    t_s = np.cumsum(orin.POLL_S + jitter_s) - orin.POLL_S
    t_s = t_s[t_s <= all_s]
    run_s = t_s - start_s  # time in training
    trains = (run_s >= 0) & (run_s <= duration_s)

    profile = training.line.profile_w(conditions.fitted)
    drift = 1 + orin.DRIFT * np.exp(-np.maximum(conditions.warm_s + run_s, 0) / orin.DRIFT_TIME_S)
    phase = rng.integers(len(profile), size=len(t_s))  # polls and steps are not in step for long
    launch_w = np.where((t_s >= idle_s) & (run_s < 0), orin.CPU_W, 0.0)
    net_w = np.where(trains, profile[phase] * drift * training.power_factor, launch_w)
    power_w = board.read_w(net_w + rng.normal(orin.IDLE_W, orin.IDLE_SPREAD_W, len(t_s)))
    load = training.load(run_s)
    bytes_per_s = training.line.dram_bytes / training.period_s * training.dram_factor
    measured = {
        "duration_s": duration_s,
        "idle_power_w": board.baseline_w,
        "energy_net_j": integrate.energy_j(t_s[trains], power_w[trains], board.baseline_w),
        "power_peak_w": power_w[trains].max(),
        "gpu_util": load[trains].mean(),
        "dram_tb": bytes_per_s * duration_s / 1e12,
        "truth_tflop": about["truth_tflop"],
    }
    trace = Trace(
        t_s=tuple(t_s.round(4).tolist()),
        power_w=tuple(power_w.round(6).tolist()),
        gpu_util=tuple(load.tolist()),
        dram_bytes_per_s=tuple(np.where(trains, bytes_per_s, 0.0).round(-3).tolist()),
        run=about["run"],
        launch_s=idle_s or None,
        start_s=start_s,
        end_s=round(start_s + duration_s, 4),
    )
    return VirtualRun({**about, **{name: float(f"{value:.7g}") for name, value in measured.items()}}, trace)


def simulate_sweep(workloads: Iterable[Workload], seed: int, spread: float = 1.0) -> list[VirtualRun]:
    """Simulate workloads back to back on one board with one idle baseline, as the study ran its sweeps."""
    board, warm_s, runs = Board.switch_on(np.random.default_rng(seed)), 0.0, []
    for workload in workloads:
        runs.append(simulate(workload, seed, Conditions(board, warm_s, spread=spread)))
        warm_s += runs[-1].row["duration_s"]
    return runs
