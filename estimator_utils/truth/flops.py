"""Ground truth: the FLOP of a workload, by closed form and by PyTorch's FlopCounterMode, each checking the other.

Operator's side. Optimizer steps and elementwise operations are not counted; one multiply-add is 2 FLOP.
Source: the study; torch.utils.flop_counter.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from estimator_utils.processes import process_pool
from estimator_utils.truth.training import Transformer, input_shape
from estimator_utils.truth.workload import Workload

FUSED_BACKWARD = 2.5  # attention backward / forward of the fused CUDA kernels, which recompute Q K^T
MATH_BACKWARD = 2.0  # of attention as plain matrix products

# Names of operations that multiply matrices: without a formula their work would silently count as 0.
_MATMUL_LIKE = re.compile(r"mm|mv|dot|matmul|convol|attention|linear|transformer|lstm|gru|rnn|solve|fft|cholesky")


class UncountedError(RuntimeError):
    """A matmul-like operation without a FLOP formula was dispatched: the count would fall short."""


@dataclass(frozen=True)
class FlopCount:
    """FLOP of one training step, and the convention they are counted in.

    Attributes
    ----------
    flop_per_step : int
    attention_backward : float
        FLOP of the attention's backward pass over those of its forward: 2.0 (math) or 2.5 (fused).
    causal : bool
        True where only the unmasked half of attention is counted.
    method : str
    by_operation : dict of str to int
        FLOP by dispatched operation, or by term of the closed form.
    """

    flop_per_step: int
    attention_backward: float
    causal: bool
    method: str
    by_operation: dict[str, int]

    def tflop(self, steps: int) -> float:
        """Return the TFLOP (1e12 FLOP) of a run of ``steps`` steps."""
        return self.flop_per_step * steps / 1e12


def closed_form(workload: Workload, attention_backward: float = FUSED_BACKWARD, causal: bool = False) -> FlopCount:
    """Return the FLOP of one step by formula; the study's ground truth with the default convention.

    With T = B S tokens: 3 [L (8 T d^2 + 4 T d d_ff) + 2 T d^2] - 6 T d^2 + k 4 L B S^2 d, where
    k = 1 + ``attention_backward``, and the subtracted term is the first layer's QKV input gradient, which
    autograd skips. ``causal`` counts (S + 1)/2 keys a query instead of S.

    Examples
    --------
    >>> w = Workload(d_model=384, seq_len=128, batch_size=16, n_layers=3)
    >>> round(closed_form(w).tflop(steps=9000), 2)  # the study's ten-minute run
    364.2
    """
    w = workload
    tokens = w.batch_size * w.seq_len
    matrices = w.n_layers * (8 * tokens * w.d_model**2 + 4 * tokens * w.d_model * w.d_ff) + 2 * tokens * w.d_model**2
    keys_twice = w.seq_len + 1 if causal else 2 * w.seq_len
    attention = 2 * w.n_layers * tokens * keys_twice * w.d_model
    parts = {
        "matrix products": 3 * matrices - 6 * tokens * w.d_model**2,
        "attention": round((1 + attention_backward) * attention),
    }
    return FlopCount(sum(parts.values()), attention_backward, causal, "closed form", parts)


def count(workloads: Sequence[Workload], attention_backward: float = FUSED_BACKWARD) -> list[FlopCount]:
    """Count one training step of each workload with FlopCounterMode on the meta device, in a process of its own.

    The meta device needs neither memory nor arithmetic, whatever the size; a process of its own keeps the counter
    out of measured runs, which it slows. The convention is FlopCounterMode's: causal masks are not discounted.

    Parameters
    ----------
    attention_backward : {2.0, 2.5}
        2.5 sends attention to the fused operation that CUDA runs, 2.0 to plain matrix products.

    Raises
    ------
    UncountedError
        Where a matmul-like operation has no formula.
    """
    if attention_backward not in (MATH_BACKWARD, FUSED_BACKWARD):
        raise ValueError(f"attention_backward must be 2.0 (math) or 2.5 (fused), found {attention_backward!r}")
    with process_pool(1) as pool:
        futures = [pool.submit(_count_here, w, attention_backward) for w in workloads]
        return [future.result() for future in futures]


def count_checked(workload: Workload, attention_backward: float = FUSED_BACKWARD) -> FlopCount:
    """Count one step with FlopCounterMode; RuntimeError where the closed form gives another number."""
    counted = count([workload], attention_backward)[0]
    formula = closed_form(workload, attention_backward)
    if counted.flop_per_step != formula.flop_per_step:
        raise RuntimeError(f"FlopCounterMode and the closed form disagree: {counted} {formula}")
    return counted


def count_calls(call: Callable[[], Any]) -> dict[str, int]:
    """Run ``call`` under FlopCounterMode and the guard; return FLOP by operation.

    For models other than the study's. Call it on meta tensors, and not inside a measured run.

    Raises
    ------
    UncountedError
        Where a matmul-like operation has no formula.
    """
    with _Guard() as guard, FlopCounterMode(display=False) as counter:
        call()
    if guard.uncounted:
        raise UncountedError(
            f"operations without a FLOP formula: {sorted(guard.uncounted)}; the count would fall short: "
            "count on the meta device, in training mode, or register a formula"
        )
    return {str(operation): flop for operation, flop in counter.get_flop_counts()["Global"].items()}


def _count_here(workload: Workload, attention_backward: float) -> FlopCount:
    model = Transformer(workload, device="meta").train()
    x = torch.empty(input_shape(workload), device="meta")
    fused = attention_backward == FUSED_BACKWARD
    with fused_attention() if fused else nullcontext():
        parts = count_calls(lambda: model(x).mean().backward())
    return FlopCount(sum(parts.values()), attention_backward, False, "FlopCounterMode on meta", parts)


def fused_attention(cast: Callable[[Any], Any] = lambda tensor: tensor) -> AbstractContextManager[Any]:
    """Send ``scaled_dot_product_attention`` to the memory-efficient kernel's operation, as CUDA would.

    ``cast`` is applied to query, key and value, as autocast would.
    """

    def attention(  # noqa: PLR0913 (the signature of the function that it stands for)
        q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False
    ) -> Any:
        # (B, S, H, D) is the kernel's own layout; the public function takes (B, H, S, D) in both.
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(cast(q), cast(k), cast(v), mask, True, dropout, causal)[0]

    return mock.patch.object(nn.functional, "scaled_dot_product_attention", attention)


class _Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the matmul-like operations that reach dispatch without a formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        if packet not in flop_registry and _MATMUL_LIKE.search(packet.__name__):
            self.uncounted.add(str(packet))
        return func(*args, **(kwargs or {}))
