"""The kernels of one training step as CUDA would launch them, recorded by dispatching a real step.

Forward, backward and optimizer run on the meta device, whose tensors have no memory. Where it
differs from CUDA it is set right: fused attention and dropout, foreach optimizer, autocast's casts, loss scaling.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from estimator_utils.datasets import precision
from estimator_utils.truth.flops import FUSED_BACKWARD, fused_attention
from estimator_utils.truth.training import LEARNING_RATE, OPTIMIZERS, Transformer, input_shape
from estimator_utils.truth.workload import Workload

HALF = {name: getattr(torch, p.autocast) for name, p in precision.TABLE.items() if p.autocast}
_CLASSES = {
    "gemm": ("mm", "addmm"),
    "reduction": ("sum", "mean", "native_layer_norm", "native_layer_norm_backward"),
    "copy": ("clone", "copy_", "_to_copy", "select_backward"),
    "nothing": ("_unsafe_view", "empty", "new_empty", "empty_like", "detach"),
}


@dataclass(frozen=True)
class Kernel:
    """One launched operation: what it computes, and the bytes of its operands and results."""

    name: str  # of the aten operation
    kernel_class: str  # gemm, attention, reduction, copy, elementwise or optimizer
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
    optimizer = OPTIMIZERS[workload.optimizer](model.parameters(), lr=LEARNING_RATE, foreach=True)
    for _ in range(2):  # the first step also makes the optimizer's state
        recorder = _Recorder(workload.precision)
        hooks = torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda tensor: tensor)
        cast = _autocast(workload.precision)
        with recorder, hooks, fused_attention(cast), _as_on_cuda(cast):
            model(torch.randn(input_shape(workload), device="meta")).mean().backward()
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
    update = (replace(k, kernel_class="optimizer") for k in recorder.kernels[first:])
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
            read = inputs[1:] if name == "copy_" else inputs  # copy_ lists its target first and does not read it
            self._add(name, read, results or _tensors(args[0]))
        return result

    def _add(self, name: str, inputs: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        number_format = next((name for name, half in HALF.items() if written[0].dtype is half), self.single)
        kernel_class = next((key for key, names in _CLASSES.items() if name in names), "elementwise")
        flop, shape = 0, (0, 0, 0)
        if kernel_class == "gemm":
            (m, k), n = inputs[-2].shape, inputs[-1].shape[1]
            shape, flop = (m, n, k), 2 * m * n * k
        elif "attention" in name:
            b, h, s, d = inputs[0].shape
            kernel_class, shape = "attention", (b * h, s, d)
            flop = int(4 * b * h * s * s * d * (FUSED_BACKWARD if "backward" in name else 1))
        self.kernels.append(Kernel(name, kernel_class, number_format, flop, _size(inputs), _size(written), shape))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _launches_nothing(func: Any) -> bool:
    """Tell allocations and views, whose results alias an argument without writing it."""
    aliases = [r.alias_info for r in func._schema.returns]
    is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
    return is_view or func.overloadpacket.__name__ in _CLASSES["nothing"]


def _autocast(name: str) -> Callable[[Any], Any]:
    """Return what autocast does to an operand in a precision; it casts a weight once a step."""
    half = HALF.get(name)
    weights: dict[nn.Parameter, torch.Tensor] = {}

    def cast(x: Any) -> Any:
        if half is None or x is None or x.dtype is half:
            return x
        if not isinstance(x, nn.Parameter):
            return x.to(half)
        if x not in weights:
            weights[x] = x.to(half)
        return weights[x]

    return cast


def _as_on_cuda(cast: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Make a step on the meta device dispatch what CUDA would, autocast's casts included."""
    functional = nn.functional
    linear, layer_norm = functional.linear, functional.layer_norm
    return mock.patch.multiple(
        functional,
        linear=lambda x, weight, bias=None: linear(cast(x), cast(weight), cast(bias)),
        layer_norm=lambda x, *rest: layer_norm(x.float(), *rest),
        dropout=lambda x, p, training, inplace=False: torch.ops.aten.native_dropout(x, p, training)[0],
    )
