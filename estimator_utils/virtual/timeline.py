"""One step laid out in time: what each kernel costs, when it starts, and at which clock.

Notebook 11 holds it against the study's records.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from estimator_utils.datasets import precision
from estimator_utils.virtual import orin_nano as orin
from estimator_utils.virtual.kernels import Kernel, Step
from estimator_utils.virtual.orin_nano import Fitted

Array = npt.NDArray[np.float64]


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
        bins = max(1, round(self.period_s / orin.CONVERSION_S))
        edges_s = np.linspace(0, self.period_s, bins + 1)
        power_w = np.diff(self.upto(edges_s, self.energy_j)) / np.diff(edges_s)
        omega = 2 * np.pi * np.fft.rfftfreq(bins, edges_s[1])
        return orin.CPU_W + np.fft.irfft(np.fft.rfft(power_w) / (1 + 1j * omega * fitted.smoothing_s), bins)


def timeline(step: Step, fitted: Fitted) -> Timeline:
    """Lay the kernels of a step out in time, at the clock that the governor settles at.

    A kernel takes the longer of its arithmetic and its memory time, plus a fixed part. It starts when the CPU has
    issued it and the one before has ended. The governor lowers the clock until the load reaches its target.
    """
    kernels, dram = step.kernels, dram_bytes(step.kernels)
    size = np.array([k.read_bytes + k.write_bytes for k in kernels], float)
    cycles = np.maximum(
        arithmetic_cycles(kernels, fitted.gemm_efficiency, fitted.ramp_k), size / orin.L2_BYTES_PER_CYCLE
    )

    def at(hz: float) -> tuple[float, Array, Array]:
        kernel_s = np.maximum(cycles / hz, dram / orin.BUS_BYTES_PER_S) + fitted.kernel_s * orin.GPU_HZ / hz
        start_s = _starts(kernels, kernel_s, fitted)
        return float(start_s[-1] + kernel_s[-1]), start_s, kernel_s

    def busy(hz: float) -> bool:
        period_s, _, kernel_s = at(hz)
        return bool(kernel_s.sum() / period_s > fitted.load_target)

    if busy(orin.GPU_HZ):
        low, high = orin.GPU_HZ, orin.GPU_HZ
    else:
        low, high = orin.GPU_MIN_HZ, orin.GPU_HZ if busy(orin.GPU_MIN_HZ) else orin.GPU_MIN_HZ
    while high - low > 1e4:
        middle = (low + high) / 2
        low, high = (middle, high) if busy(middle) else (low, middle)
    period_s, start_s, kernel_s = at(high)
    volts = 1 - (1 - fitted.voltage_ratio) * (orin.GPU_HZ - high) / (orin.GPU_HZ - orin.GPU_MIN_HZ)
    flop_j = fitted.e_flop_j * np.array([k.flop * precision.TABLE[k.precision].energy_ratio for k in kernels])
    active_w = np.array([orin.COPY_W if k.kernel_class == "copy" else fitted.active_w for k in kernels])
    energy_j = volts**2 * (active_w * high / orin.GPU_HZ * kernel_s + flop_j + orin.E_BYTE_J * dram)
    return Timeline(period_s, high, start_s, kernel_s, energy_j, float(dram.sum()))


def _starts(kernels: tuple[Kernel, ...], kernel_s: Array, fitted: Fitted) -> Array:
    """Return each kernel's start, s: issued, and the one before ended; after a wait, issuing starts anew."""
    issue_s = np.full(len(kernels), fitted.launch_s)
    first_update = next((i for i, kernel in enumerate(kernels) if kernel.kernel_class == "optimizer"), None)
    if first_update is not None:  # the host prepares the optimizer step once
        issue_s[first_update] += fitted.host_s
    start_s, first, begin_s = np.empty(len(kernels)), 0, 0.0
    for last in (i for i, k in enumerate(kernels) if k.waits):
        part = slice(first, last + 1)
        before_s = np.cumsum(kernel_s[part]) - kernel_s[part]
        start_s[part] = np.maximum.accumulate(begin_s + np.cumsum(issue_s[part]) - before_s) + before_s
        first, begin_s = last + 1, start_s[last] + kernel_s[last]
    return start_s


def arithmetic_cycles(kernels: Sequence[Kernel], efficiency: float, ramp_k: float) -> Array:
    """Return the GPU cycles (n,) of each kernel's arithmetic: for a matrix product those of the fastest tiling.

    ``efficiency`` is the share of the peak that a long, well filled product reaches, ``ramp_k`` how many terms of
    an fp32 sum it costs to fill and drain the pipeline.
    """
    m, n, k = np.array([kernel.shape for kernel in kernels], float).T
    flop = np.array([kernel.flop for kernel in kernels], float)
    speed = np.array([precision.TABLE[kernel.precision].tensor_speed for kernel in kernels])
    peak = orin.FLOP_PER_CYCLE * efficiency
    tilings = []
    for (rows, columns), parts in ((tile, parts) for tile in orin.TILES for parts in orin.SPLITS):
        waves = np.ceil(np.ceil(m / rows) * np.ceil(n / columns) * parts / orin.SMS)
        terms = np.ceil(k / parts) / speed + ramp_k
        sums = parts * m * n * 8 / orin.L2_BYTES_PER_CYCLE if parts > 1 else 0.0  # partial: written, read again
        tilings.append(waves * orin.SMS * 2 * rows * columns * terms / peak + sums)
    attention = flop * (1 / speed + ramp_k / np.maximum(k, 1)) / peak  # its sums are as long as a head is wide
    classes = np.array([kernel.kernel_class for kernel in kernels])
    return np.select([classes == "gemm", classes == "attention"], [np.min(tilings, axis=0), attention], 0.0)


def dram_bytes(kernels: Sequence[Kernel]) -> Array:
    """Return each kernel's DRAM bytes (n,): what L2 holds is not read, waves of a product read anew."""
    m, n, k = np.array([kernel.shape for kernel in kernels], float).T
    read, written = np.array([(kernel.read_bytes, kernel.write_bytes) for kernel in kernels], float).T
    held = np.clip(1 - (read + written) / orin.L2_BYTES, 0, 1)
    formats = [precision.TABLE[kernel.precision] for kernel in kernels]
    wave = np.array([orin.WAVE if f.tensor_speed == 1 else orin.TENSOR_WAVE for f in formats], float)
    width = np.array([f.operand_bytes for f in formats])
    again = width * k * (m * np.maximum(np.ceil(n / wave) - 1, 0) + n * np.maximum(np.ceil(m / wave) - 1, 0))
    missed = np.clip(1 - orin.L2_BYTES / np.maximum(width * (m * k + k * n + m * n), 1), 0, 1)
    is_gemm = np.array([kernel.kernel_class == "gemm" for kernel in kernels])
    return np.asarray(written + read * (1 - held) + np.where(is_gemm, missed * again, 0.0))
