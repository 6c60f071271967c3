"""Ground truth of a GPT-3 step by counting, beside that of a one-layer step, and beside the closed form.

A count starts a process and imports torch in it, whatever is counted; the rest is 96 layers on the meta device.
"""

from __future__ import annotations

import time

from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload

TIMES = 5  # longer than the one-layer step, which has one 1,700,000,000th of the work
GPT3 = Workload(d_model=12288, n_layers=96, n_heads=96, d_ff=49152, seq_len=2048, batch_size=1)
ONE = Workload(d_model=16, n_layers=1, n_heads=1, d_ff=16, seq_len=8, batch_size=8)


def test_a_gpt_3_step(benchmark):
    started = time.perf_counter()
    flops.count([ONE])
    one_s = time.perf_counter() - started
    started = time.perf_counter()
    expected = flops.closed_form(GPT3).flop_per_step
    formula_s = time.perf_counter() - started

    counted = benchmark.pedantic(lambda: flops.count([GPT3])[0], rounds=3)

    assert counted.flop_per_step == expected
    benchmark.extra_info |= {"one_layer_s": one_s, "closed_form_s": formula_s}
    assert benchmark.stats.stats.min < TIMES * one_s
