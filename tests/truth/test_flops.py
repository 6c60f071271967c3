from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from estimator_utils.truth import flops
from estimator_utils.truth.flops import FUSED_BACKWARD, MATH_BACKWARD, FlopCount, UncountedError
from estimator_utils.truth.training import Transformer
from estimator_utils.truth.workload import Workload, read_sweep

TINY = Workload(d_model=16, n_layers=2, n_heads=2, d_ff=24, seq_len=8, batch_size=2)
GPT3 = Workload(d_model=12288, n_layers=96, n_heads=96, d_ff=49152, seq_len=2048, batch_size=1)

small = st.integers(1, 64)
workload = st.builds(
    lambda heads, width, **sizes: Workload(d_model=heads * width, n_heads=heads, **sizes),
    st.integers(1, 4),
    st.integers(1, 16),
    n_layers=st.integers(1, 4),
    d_ff=small,
    seq_len=small,
    batch_size=st.integers(1, 8),
)


@pytest.fixture(scope="session")
def all_recorded() -> list[Workload]:
    return read_sweep("study") + read_sweep("study-reduced-precision")


@pytest.mark.slow
@pytest.mark.parametrize("convention", [MATH_BACKWARD, FUSED_BACKWARD])
@settings(max_examples=15)
@given(workload)
def test_the_counter_equals_the_closed_form_to_the_last_flop_for_any_workload(convention, workload):
    counted = flops._count_here(workload, convention)  # what `count` runs in a process of its own
    assert counted.flop_per_step == flops.closed_form(workload, convention).flop_per_step


@given(workload, st.integers(2, 4))
def test_work_grows_with_the_batch_and_the_layers_as_it_should(workload, times):
    one = flops.closed_form(workload).flop_per_step
    assert flops.closed_form(replace(workload, batch_size=times * workload.batch_size)).flop_per_step == times * one
    thicker = [flops.closed_form(replace(workload, n_layers=n)).flop_per_step for n in (1, 2, 3)]
    assert thicker[2] - thicker[1] == thicker[1] - thicker[0] > 0


@given(workload)
def test_conventions_differ_in_attention_alone(workload):
    fused, math_path = flops.closed_form(workload, FUSED_BACKWARD), flops.closed_form(workload, MATH_BACKWARD)
    assert fused.by_operation["matrix products"] == math_path.by_operation["matrix products"]
    assert fused.by_operation["attention"] * 6 == math_path.by_operation["attention"] * 7
    causal = flops.closed_form(workload, causal=True)
    assert causal.causal
    s = workload.seq_len
    assert causal.by_operation["attention"] * 2 * s == fused.by_operation["attention"] * (s + 1)


def test_precision_optimizer_and_steps_do_not_change_the_work_of_a_step():
    same = [TINY, replace(TINY, precision="bf16"), replace(TINY, optimizer="sgd"), replace(TINY, steps=7)]
    assert len({flops.closed_form(w).flop_per_step for w in same}) == 1


@pytest.mark.recorded
def test_the_ground_truth_of_all_38_recorded_runs_follows_from_their_configuration(study_trials):
    table = study_trials[0].runs
    assert len(table) == 38
    for row in table[[*Workload.__dataclass_fields__, "truth_tflop"]].to_dict("records"):
        truth = row.pop("truth_tflop")
        recorded = Workload(**row)
        assert flops.closed_form(recorded).tflop(recorded.steps) == pytest.approx(truth, rel=0, abs=5e-5)


class Dispatched(TorchDispatchMode):
    """Counts the operations of this process."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_the_counter_in_its_own_process_equals_the_closed_form_with_k_3_on_all_38(all_recorded):
    with Dispatched() as here:
        counted = flops.count(all_recorded, MATH_BACKWARD)
    assert here.number == 0
    assert [c.flop_per_step for c in counted] == [
        flops.closed_form(w, MATH_BACKWARD).flop_per_step for w in all_recorded
    ]
    assert {(c.attention_backward, c.causal, c.method) for c in counted} == {(2.0, False, "FlopCounterMode on meta")}
    assert all(sum(c.by_operation.values()) == c.flop_per_step for c in counted)


def test_the_long_run_of_the_study():
    long_run = Workload(d_model=384, batch_size=16, seq_len=128, n_layers=3, steps=9000)
    assert round(flops.closed_form(long_run).tflop(long_run.steps), 2) == 364.20


def test_the_conventions_move_the_truth_as_the_study_says(all_recorded):
    k_ratio, without = [], []
    for w in all_recorded:
        fused, math_path = flops.closed_form(w), flops.closed_form(w, MATH_BACKWARD)
        k_ratio.append(1 - math_path.flop_per_step / fused.flop_per_step)
        without.append(fused.by_operation["attention"] / fused.flop_per_step)
    assert round(100 * max(k_ratio)) == 5
    assert (round(100 * min(without)), round(100 * max(without))) == (3, 37)


def test_the_inference_fast_path_would_have_counted_the_head_alone():
    model = encoder(0.1).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 8, 16))
    assert counter.get_total_flops() == 0


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match=r"must be 2\.0 \(math\) or 2\.5 \(fused\), found 3\.0"):
        flops.count([TINY], 3.0)


def test_a_count_of_steps_is_in_tflop():
    assert FlopCount(10**12, 2.5, False, "", {}).tflop(3) == 3.0


# The guard: work without a formula must fail the count.

Q = torch.ones(1, 2, 8, 4)


def encoder(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def attention_without_dropout() -> None:
    nn.functional.scaled_dot_product_attention(Q, Q, Q)


def training_without_dropout() -> None:
    encoder(0.0).train()(torch.ones(1, 8, 16)).mean().backward()


def encoder_fast_path() -> None:
    with torch.no_grad():
        encoder(0.1).eval()(torch.ones(1, 8, 16))


def recurrent_network() -> None:
    nn.LSTM(16, 16)(torch.ones(8, 1, 16))


def linear_solver() -> None:
    torch.linalg.solve(torch.eye(4), torch.ones(4))


def integer_product() -> None:
    torch._int_mm(torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 16, dtype=torch.int8))


def matrix_times_vector() -> None:
    torch.mv(torch.eye(4), torch.ones(4))


def dot_product() -> None:
    torch.dot(torch.ones(4), torch.ones(4))


def fourier_transform() -> None:
    torch.fft.fft(torch.ones(8))


@pytest.mark.parametrize(
    ("work", "operation"),
    [
        (attention_without_dropout, "_scaled_dot_product_flash_attention_for_cpu"),
        (training_without_dropout, "_scaled_dot_product_flash_attention_for_cpu_backward"),
        (encoder_fast_path, "_transformer_encoder_layer_fwd"),
        (recurrent_network, "lstm|rnn"),
        (linear_solver, "solve"),
        (integer_product, "_int_mm"),
        (matrix_times_vector, "mv"),
        (dot_product, "dot"),
        (fourier_transform, "fft"),
    ],
)
def test_work_without_a_formula_fails_the_count_by_name(work, operation):
    with pytest.raises(UncountedError, match=f"without a FLOP formula.*({operation}).*fall short: count on the meta"):
        flops.count_calls(work)


def test_a_product_of_the_operator_s_own_fails_too():
    """A custom operation counts as 0, even if its body multiplies."""

    @torch.library.custom_op("estimator_tests::hidden_matmul", mutates_args=())
    def hidden(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    with pytest.raises(UncountedError, match="hidden_matmul"):
        flops.count_calls(lambda: hidden(torch.ones(4, 4), torch.ones(4, 4)))


def test_the_guard_lets_the_counted_and_the_elementwise_pass():
    a = torch.ones(4, 8, requires_grad=True)
    parts = flops.count_calls(lambda: nn.functional.layer_norm((a @ a.T).softmax(-1).exp(), (4,)).sum().backward())
    assert sum(parts.values()) == 3 * 2 * 4 * 8 * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torchprofile traces a shape check of torch's own
@pytest.mark.parametrize("position", [0, 5, 17])
def test_a_second_counter_agrees_on_the_forward_pass(all_recorded, position):
    """torchprofile counts multiply-adds in a traced graph; it alone counts the layer norms, exactly known here."""
    from torchprofile import profile_macs

    w = all_recorded[position]
    x = torch.ones(w.batch_size, w.seq_len, w.d_model)
    by_node = profile_macs(Transformer(w).train(), x, reduction=None)
    macs: dict[str, int] = {}
    for node, number in by_node.items():
        macs[node.operator] = macs.get(node.operator, 0) + number
    products = macs.pop("aten::linear") + macs.pop("aten::scaled_dot_product_attention")
    forward = flops.count_calls(lambda: Transformer(w, "meta").train()(x.to("meta")))
    assert 2 * products == sum(forward.values())
    assert 2 * sum(macs.values()) < 0.002 * sum(forward.values())


MEMORY = """
import resource
from estimator_utils.truth import flops
from tests.truth.test_flops import GPT3
counted = flops.count([GPT3])[0]
assert counted.flop_per_step == flops.closed_form(GPT3).flop_per_step
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_gpt_3_step_is_counted_under_half_a_gigabyte():
    """Run in a slim process: Linux hands a child its parent's peak."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0.5e9


def test_the_closed_form_meets_the_published_gpt_3():
    """OpenAI, table D.1: 3.14e23 FLOP in 300e9 tokens, without attention. Here it is in, and the head is d x d."""
    per_token = flops.closed_form(GPT3, MATH_BACKWARD).flop_per_step / GPT3.seq_len
    assert per_token * 300e9 / 3.14e23 == pytest.approx(1.02, abs=0.02)
