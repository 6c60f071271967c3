"""The kernels of one training step as CUDA would launch them, recorded by dispatching a real step.

Operator's side. Forward, backward and optimizer run on the meta device, whose tensors have no memory. Where it
differs from CUDA it is set right: fused attention and dropout, foreach optimizer, autocast's casts, loss scaling.
Sources: [D] Orin Nano 8 GB data sheet; [C] CUTLASS, whose kernels and tilings cuBLAS uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from estimator_utils.truth.flops import FUSED_BACKWARD
from estimator_utils.truth.workload import LEARNING_RATE, Transformer, Workload

Array = npt.NDArray[np.float64]

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
_KINDS = {
    "gemm": ("mm", "addmm"),
    "reduction": ("sum", "mean", "native_layer_norm", "native_layer_norm_backward"),
    "copy": ("clone", "copy_", "_to_copy", "select_backward"),
    "nothing": ("_unsafe_view", "empty", "new_empty", "empty_like", "detach"),
}

SMS = 8  # streaming multiprocessors [D]
FLOP_PER_CYCLE = 2048.0  # fp32: 1024 CUDA cores, one multiply-add each [D]
TENSOR_SPEED = {"fp32": 1.0, "tf32": 4.0, "fp16": 8.0, "bf16": 8.0}  # over fp32; 15 TFLOP/s dense in fp16 [D]
L2_BYTES_PER_CYCLE, L2_BYTES = 64.0 * SMS, 2e6  # Ampere: 64 a cycle and multiprocessor; [D]
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))  # elements of the result [C]
SPLITS = (1, 2, 4, 8)  # parts of a long sum done side by side (split-K) [C]
# Elements along one side of a wave of 16 blocks, two a multiprocessor: it reads each operand once.
WAVE = {"fp32": 4 * 64, "tf32": 4 * 128, "fp16": 4 * 128, "bf16": 4 * 128}


@dataclass(frozen=True)
class Kernel:
    """One launched operation: what it computes, and the bytes of its operands and results."""

    name: str  # of the aten operation
    kind: str  # gemm, attention, reduction, copy, elementwise or optimizer
    precision: str  # of its arithmetic: fp32, tf32, fp16, bf16
    flop: int  # of matrix products, one multiply-add being 2; 0 elsewhere
    read_bytes: int
    write_bytes: int
    shape: tuple[int, int, int]  # m, n, k of a product; batch x heads, sequence, head width of attention; or zeros
    waits: bool = False  # the host waits for its end before going on


@dataclass(frozen=True)
class Step:
    """The kernels of one step in launch order, and the memory it needs at its peak in bytes."""

    kernels: tuple[Kernel, ...]
    peak_bytes: int


def step_kernels(workload: Workload) -> Step:
    """Record one training step of ``workload``, whose number of steps does not matter.

    The host waits at the end of a step, as a loop that reads its loss does, and in fp16 to check the gradients.
    """
    return _step_kernels(replace(workload, steps=1))


@lru_cache(maxsize=128)
def _step_kernels(workload: Workload) -> Step:
    model = Transformer(workload, "meta").train()
    make: Any = torch.optim.AdamW if workload.optimizer == "adamw" else torch.optim.SGD
    optimizer = make(model.parameters(), lr=LEARNING_RATE, foreach=True)
    shape = (workload.batch_size, workload.seq_len, workload.d_model)
    for _ in range(2):  # the first step also makes the optimizer's state
        recorder = _Recorder(workload.precision)
        hooks = torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda tensor: tensor)
        with recorder, hooks, _as_on_cuda(workload.precision):
            model(torch.randn(shape, device="meta")).mean().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            if workload.precision == "fp16":
                one = torch.ones((), device="meta")
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, one, one)
                recorder.kernels[-1] = replace(recorder.kernels[-1], waits=True)
            first = len(recorder.kernels)
            optimizer.step()
            optimizer.zero_grad()
    state = [t for s in optimizer.state.values() for t in s.values() if t.is_meta]
    kept = _size([*model.parameters(), *gradients, *state]) + sum(recorder.saved.values())
    largest = max(k.read_bytes + k.write_bytes for k in recorder.kernels)
    update = (replace(k, kind="optimizer") for k in recorder.kernels[first:])
    return Step(_ending_in_a_wait([*recorder.kernels[:first], *update]), kept + largest)


def loop_kernels(call: Callable[[], Any]) -> Step:
    """Record any function of meta tensors, fp32, called over and over; its memory is not counted."""
    with _Recorder("fp32") as recorder:
        call()
    return Step(_ending_in_a_wait(recorder.kernels), 0)


def _ending_in_a_wait(kernels: list[Kernel]) -> tuple[Kernel, ...]:
    return (*kernels[:-1], replace(kernels[-1], waits=True))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the kernels that a program launches on the meta device, and what autograd keeps for its backward."""

    def __init__(self, precision: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.single = "tf32" if precision == "tf32" else "fp32"
        self.kernels: list[Kernel] = []
        self.saved: dict[Any, int] = {}  # bytes by storage: a tensor saved twice is kept once

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            self.saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs, results = _tensors((args, kwargs)), _tensors(result)
        on_board = all(t.is_meta for t in (*inputs, *results)) and (inputs or results)
        if on_board and not _launches_nothing(func):
            # In-place foreach operations return nothing: they write their first list.
            name = func.overloadpacket.__name__
            self._add(name, inputs[name == "copy_" :], results or _tensors(args[0]))
        return result

    def _add(self, name: str, inputs: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        precision = next((p for p, half in HALF.items() if written[0].dtype is half), self.single)
        kind = next((kind for kind, names in _KINDS.items() if name in names), "elementwise")
        flop, shape = 0, (0, 0, 0)
        if kind == "gemm":
            (m, k), n = inputs[-2].shape, inputs[-1].shape[1]
            shape, flop = (m, n, k), 2 * m * n * k
        elif "attention" in name:
            b, h, s, d = inputs[0].shape
            kind, shape = "attention", (b * h, s, d)
            flop = int(4 * b * h * s * s * d * (FUSED_BACKWARD if "backward" in name else 1))
        self.kernels.append(Kernel(name, kind, precision, flop, _size(inputs), _size(written), shape))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _launches_nothing(func: Any) -> bool:
    """Tell allocations and views, whose results alias an argument without writing it."""
    aliases = [r.alias_info for r in func._schema.returns]
    is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
    return is_view or func.overloadpacket.__name__ in _KINDS["nothing"]


def _as_on_cuda(precision: str) -> AbstractContextManager[Any]:
    """Make a step on the meta device dispatch what CUDA would, autocast's casts included."""
    functional, half = nn.functional, HALF.get(precision)
    linear, layer_norm = functional.linear, functional.layer_norm
    weights: dict[nn.Parameter, torch.Tensor] = {}  # autocast casts a weight once a step

    def cast(x: Any) -> Any:
        if half is None or x is None or x.dtype is half:
            return x
        if not isinstance(x, nn.Parameter):
            return x.to(half)
        if x not in weights:
            weights[x] = x.to(half)
        return weights[x]

    def attention(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False) -> Any:
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(cast(q), cast(k), cast(v), mask, True, dropout, causal)[0]

    return mock.patch.multiple(
        functional,
        linear=lambda x, weight, bias=None: linear(cast(x), cast(weight), cast(bias)),
        scaled_dot_product_attention=attention,
        layer_norm=lambda x, *rest: layer_norm(x.float(), *rest),
        dropout=lambda x, p, training, inplace=False: torch.ops.aten.native_dropout(x, p, training)[0],
    )


def arithmetic_cycles(kernels: Sequence[Kernel], efficiency: float, ramp_k: float) -> Array:
    """Return the GPU cycles (n,) of each kernel's arithmetic: for a matrix product those of the fastest tiling.

    ``efficiency`` is the share of the peak that a long, well filled product reaches, ``ramp_k`` how many terms of
    an fp32 sum it costs to fill and drain the pipeline.
    """
    m, n, k = np.array([kernel.shape for kernel in kernels], float).T
    flop = np.array([kernel.flop for kernel in kernels], float)
    speed = np.array([TENSOR_SPEED[kernel.precision] for kernel in kernels])
    peak = FLOP_PER_CYCLE * efficiency
    tilings = []
    for (rows, columns), parts in ((tile, parts) for tile in TILES for parts in SPLITS):
        waves = np.ceil(np.ceil(m / rows) * np.ceil(n / columns) * parts / SMS)
        terms = np.ceil(k / parts) / speed + ramp_k
        sums = (parts > 1) * parts * m * n * 8 / L2_BYTES_PER_CYCLE  # partial sums, written and read again
        tilings.append(waves * SMS * 2 * rows * columns * terms / peak + sums)
    attention = flop * (1 / speed + ramp_k / np.maximum(k, 1)) / peak  # its sums are as long as a head is wide
    kinds = np.array([kernel.kind for kernel in kernels])
    return np.select([kinds == "gemm", kinds == "attention"], [np.min(tilings, axis=0), attention], 0.0)


def dram_bytes(kernels: Sequence[Kernel]) -> Array:
    """Return each kernel's DRAM bytes (n,): what L2 holds is not read, waves of a product read anew."""
    m, n, k = np.array([kernel.shape for kernel in kernels], float).T
    read, written = np.array([(kernel.read_bytes, kernel.write_bytes) for kernel in kernels], float).T
    held = np.clip(1 - (read + written) / L2_BYTES, 0, 1)
    wave = np.array([WAVE[kernel.precision] for kernel in kernels], float)
    width = np.array([2 if kernel.precision in ("fp16", "bf16") else 4 for kernel in kernels])
    again = width * k * (m * np.maximum(np.ceil(n / wave) - 1, 0) + n * np.maximum(np.ceil(m / wave) - 1, 0))
    missed = np.clip(1 - L2_BYTES / np.maximum(width * (m * k + k * n + m * n), 1), 0, 1)
    is_gemm = np.array([kernel.kind == "gemm" for kernel in kernels])
    return np.asarray(written + read * (1 - held) + is_gemm * missed * again)
