"""Ground truth of a GPT-3 step by counting, beside the closed form that must give the same number."""

from __future__ import annotations

import time

from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload

LIMIT_S = 10.0
GPT3 = Workload(d_model=12288, n_layers=96, n_heads=96, d_ff=49152, seq_len=2048, batch_size=1)


def test_a_gpt_3_step(benchmark):
    """The count starts a process, imports torch in it and builds 174 billion parameters on the meta device."""
    started = time.perf_counter()
    expected = flops.closed_form(GPT3).flop_per_step
    formula_s = time.perf_counter() - started

    counted = benchmark.pedantic(lambda: flops.count([GPT3])[0], rounds=3)

    assert counted.flop_per_step == expected
    benchmark.extra_info["closed_form_s"] = formula_s
    assert benchmark.stats.stats.max < LIMIT_S
