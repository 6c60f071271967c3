"""The simulated data set that ships with the project, written anew."""

from dataclasses import replace
from pathlib import Path

import torch

from estimator_utils.datasets.dataset import Metadata, write_dataset
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.truth.workload import read_sweep
from estimator_utils.virtual import orin_nano as orin
from estimator_utils.virtual.board import Conditions, VirtualRun, simulate, simulate_step, simulate_sweep
from estimator_utils.virtual.kernels import loop_kernels

BUNDLE = "orin-nano-virtual"
_IDLE = Conditions(idle_s=60.0)


def _memory_spoof(seed: int) -> VirtualRun:
    """Simulate a run that copies in memory and computes little, after the study's."""
    a, b = torch.empty(2, 64, 1024, 1024, device="meta")
    x, y = torch.empty(1024, 1024, device="meta"), torch.empty(1024, 448, device="meta")
    steps = 1890
    truth_tflop = steps * 2 * 1024**2 * 448 / 1e12
    about = {"run": "memory_spoof", "steps": steps, "precision": "fp32", "truth_tflop": truth_tflop}
    return simulate_step(loop_kernels(lambda: ([b.copy_(a) for _ in range(14)], x @ y)), about, seed, _IDLE)


def write_bundle(output: str | Path) -> None:
    """Write the bundled dataset: three trials, and runs of ten and 49 minutes and a memory spoof with traces.

    ``output`` is a folder; files of the same name are replaced.
    """
    fp32 = read_sweep("study")
    order = (fp32[:19] + read_sweep("study-reduced-precision") + fp32[19:], fp32, fp32)  # of the study's files
    tables = {f"trial{i}": [r.row for r in simulate_sweep(w, seed=i)] for i, w in enumerate(order, start=1)}
    further = {
        "trace": simulate(replace(fp32[2], steps=9000), 4, _IDLE),
        "spoof": _memory_spoof(5),
        "long": simulate(replace(fp32[6], steps=18000), 6, _IDLE),
    }
    about = Metadata(
        name=BUNDLE,
        kind="simulated",
        device=orin.DEVICE,
        rail=orin.RAIL,
        power_mode=orin.POWER_MODE,
        precisions=" ".join(PRECISIONS),
        gpu_clock_hz=orin.GPU_HZ,
        emc_clock_hz=orin.EMC_HZ,
        dram_counter_factor=1.0,
        software="estimator_utils.virtual",
        date="2026-11-29",
        who="this project",
        licence="Apache-2.0",
    )
    tables["further"] = [run.row for run in further.values()]
    write_dataset(output, about, tables, {name: run.trace for name, run in further.items()})
