"""The kernels of a training step, as PyTorch dispatches them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.truth import flops
from estimator_utils.truth.training import Transformer
from estimator_utils.virtual.kernels import step_kernels
from tests.support.workloads import TINY, workloads


@pytest.mark.slow
@settings(max_examples=12)
@given(workloads)
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
