"""What the virtual board knows of an Orin Nano 8 GB at 25 W: constants with their sources.

[D] Orin Nano 8 GB data sheet, nvpmodel_p3767_0003_super.conf; [T] tegrastats lines, bandwidth test of an Orin
Nano; [TI] INA3221 data sheet; [R] the study's published figures; [H] Horowitz, ISSCC 2014, figure 1.1.9;
[C] CUTLASS, whose kernels and tilings cuBLAS uses.
"""

from dataclasses import dataclass

DEVICE, RAIL = "virtual Jetson Orin Nano 8GB", "VDD_CPU_GPU_CV"
POWER_MODE = "25W"  # the one that is validated; for others no source gives the CPU clock
GPU_HZ, GPU_MIN_HZ, EMC_HZ = 918e6, 306e6, 3199e6  # Hz; [D], lowest clock [T]
SMS = 8  # streaming multiprocessors [D]
FLOP_PER_CYCLE = 2048.0  # fp32: 1024 CUDA cores, one multiply-add each [D]
L2_BYTES_PER_CYCLE, L2_BYTES = 64.0 * SMS, 2e6  # Ampere: 64 a cycle and multiprocessor; [D]
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))  # elements of the result [C]
SPLITS = (1, 2, 4, 8)  # parts of a long sum done side by side (split-K) [C]
# Elements along one side of a wave of 16 blocks, two a multiprocessor, without and with tensor cores: it reads
# each operand once.
WAVE, TENSOR_WAVE = 4 * 64, 4 * 128
BUS_BYTES_PER_S = 32 * EMC_HZ * 0.94  # 128-bit LPDDR5 [D]; a copy reaches 64.1 GB/s of 68.3 [T]
MEMORY_BYTES = (7620 - 2147) * 2**20  # all less what an idle board uses [T]
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
