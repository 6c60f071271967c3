"""When each kernel runs, what it draws, and what it moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.virtual import kernels as virtual_kernels
from estimator_utils.virtual.kernels import step_kernels
from estimator_utils.virtual.orin_nano import BUS_BYTES_PER_S, CPU_W, FITTED, FLOP_PER_CYCLE, GPU_HZ, GPU_MIN_HZ
from estimator_utils.virtual.timeline import arithmetic_cycles, dram_bytes, timeline
from tests.support.workloads import LARGE, TINY, workloads


@pytest.mark.slow
@settings(max_examples=12)
@given(workloads)
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
