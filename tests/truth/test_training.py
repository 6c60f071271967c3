"""The study's transformer, and steps that really train it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from estimator_utils.truth import flops
from estimator_utils.truth.training import Transformer, train, training_step
from estimator_utils.truth.workload import Workload

TINY = Workload(d_model=16, n_layers=2, n_heads=2, d_ff=24, seq_len=8, batch_size=2, steps=3)


def test_the_model_is_the_study_s():
    model = Transformer(TINY)
    layer = model.encoder.layers[0]
    assert len(model.encoder.layers) == TINY.n_layers
    assert not layer.norm_first
    assert layer.activation is torch.nn.functional.relu
    assert layer.self_attn.batch_first
    assert layer.dropout.p == layer.self_attn.dropout == 0.1
    assert (model.head.in_features, model.head.out_features) == (16, 16)
    d, ff = TINY.d_model, TINY.d_ff
    attention, block, norms, head = 4 * (d * d + d), 2 * d * ff + ff + d, 4 * d, d * d + d
    assert sum(p.numel() for p in model.parameters()) == TINY.n_layers * (attention + block + norms) + head


def test_no_mask_hides_later_positions():
    torch.manual_seed(0)
    model = Transformer(TINY).train(False)
    x = torch.randn(1, TINY.seq_len, TINY.d_model)
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.allclose(model(x)[:, 0], model(changed)[:, 0])


@pytest.fixture
def optimizer_steps():
    """Yield what each finished optimizer step of this test was: its optimizer, and the sum of its parameters."""
    seen = []

    def note(optimizer, *_):
        weights = [p.detach().double().sum() for group in optimizer.param_groups for p in group["params"]]
        seen.append((type(optimizer), float(sum(weights))))

    hook = register_optimizer_step_post_hook(note)
    yield seen
    hook.remove()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_training_is_real_on_a_cpu(optimizer_steps, precision, name, kind):
    workload = replace(TINY, precision=precision, optimizer=name)
    assert list(train(workload)) == [1, 2, 3]
    kinds, sums = zip(*optimizer_steps, strict=True)
    assert kinds == (kind,) * 3
    assert len(set(sums)) == 3
    assert all(map(torch.isfinite, torch.tensor(sums)))


def test_the_same_seed_trains_the_same_and_another_does_not(optimizer_steps):
    for seed in (1, 1, 2):
        list(train(replace(TINY, steps=1), seed=seed))
    first, again, other = (total for _, total in optimizer_steps)
    assert first == again != other


def test_a_step_returns_its_loss_and_training_lowers_it():
    """The loss is the mean of the output: nothing keeps an optimizer from lowering it."""
    step = training_step(TINY)
    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < losses[0] - 0.2


def test_the_step_that_trains_does_the_work_of_the_ground_truth():
    step = training_step(TINY)
    counted = flops.count_calls(step)
    assert sum(counted.values()) == flops.closed_form(TINY, flops.MATH_BACKWARD).flop_per_step


def test_bf16_multiplies_in_bf16():
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._overloadpacket.__name__ in ("mm", "addmm", "bmm"):
                seen.update(a.dtype for a in args if isinstance(a, torch.Tensor))
            return func(*args, **(kwargs or {}))

    step = training_step(replace(TINY, precision="bf16"))
    with Watch():
        step()
    assert torch.bfloat16 in seen


@pytest.mark.parametrize(("precision", "instead"), [("tf32", "use fp32"), ("fp16", "use bf16 or fp32")])
def test_a_precision_that_a_cpu_cannot_train_in_is_refused_before_any_work(precision, instead):
    with pytest.raises(ValueError, match=f"{precision} .*CUDA.*'cpu': {instead}"):
        next(train(replace(TINY, precision=precision)))
