"""Transformers against PyTorch on the meta device, to the last FLOP and parameter, and the laws of the count."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.counting.architecture import BLOCK, Architecture
from estimator_utils.truth import flops
from tests.support.decoder import Decoder

GPT2 = Architecture(n_layers=12, d_model=768, n_heads=12, d_ff=3072, seq_len=1024, vocabulary=50257)
SIZES = {
    "124M": GPT2,
    "6.7B": Architecture(n_layers=32, d_model=4096, n_heads=32, d_ff=11008, seq_len=2048, vocabulary=32000),
    "175B": Architecture(n_layers=96, d_model=12288, n_heads=96, d_ff=49152, seq_len=2048, vocabulary=50257),
}
VARIANTS = [(size, both, both) for size in SIZES for both in (False, True)]


def count(a: Architecture, batch: int, recompute: bool = False) -> int:
    tokens = torch.zeros(batch, a.seq_len, dtype=torch.long, device="meta")
    model = Decoder(a, recompute)
    return sum(flops.count_calls(lambda: model(tokens).sum().backward()).values())


# Laws


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 4096), st.floats(0, 4))
def test_flop_is_linear_in_the_backward_ratio(layers, heads, length, ratio):
    a = Architecture(layers, 64 * heads, heads, 256 * heads, length, 1000)
    assert a.flop(backward_ratio=ratio) == pytest.approx((1 + ratio) * a.flop(backward_ratio=0))


@given(st.integers(1, 8), st.integers(1, 8))
def test_parameters_of_all_experts_are_those_of_one_dense_block_and_a_router(experts, active):
    active = min(active, experts)
    mixture = replace(GPT2, experts=experts, experts_active=active)
    wide = replace(GPT2, d_ff=experts * GPT2.d_ff)
    router = 12 * 768 * experts if experts > 1 else 0
    assert mixture.parameters() == wide.parameters() + router
    assert mixture.parameters() - mixture.parameters(active=True) == 12 * (experts - active) * 2 * 768 * 3072


def test_flop_of_parts_add_up():
    part = {name: layer.flop for name, layer in GPT2.parts().items()}
    assert GPT2.flop(backward_ratio=0, count=(*BLOCK, "logits", "embedding")) == sum(part.values())
    assert GPT2.flop(count=("projections", "feed_forward")) == 3 * (part["projections"] + part["feed_forward"])
    assert part["embedding"] == part["logits"]  # as a one-hot product


def test_a_fused_kernel_and_recomputation_cost_what_they_repeat():
    once = GPT2.parts()["attention"].flop
    assert GPT2.flop(recompute=("attention",)) - GPT2.flop() == once
    assert GPT2.flop(attention_ratio=2.5) - GPT2.flop() == once / 2
    assert GPT2.flop() - GPT2.flop(attention_ratio=0) == 2 * once


def test_a_causal_mask_spares_attention_alone():
    full, half = GPT2.parts(), GPT2.parts(causal=True)
    assert [name for name in full if full[name] != half[name]] == ["attention"]
    assert GPT2.flop() - GPT2.flop(causal=True) == 3 * (full["attention"].flop - half["attention"].flop)


def test_numpy_integers_do_not_overflow():
    sizes = [np.int64(n) for n in (96, 12288, 96, 49152, 2048, 50257)]
    assert 10**6 * Architecture(*sizes).flop() == 10**6 * SIZES["175B"].flop()


# PyTorch


@pytest.mark.slow
@pytest.mark.parametrize(("size", "grouped", "gated"), [*VARIANTS, ("124M", True, False), ("124M", False, True)])
def test_a_decoder_is_counted_to_the_last_flop(size, grouped, gated):
    a = replace(SIZES[size], n_kv_heads=SIZES[size].n_heads // 4 if grouped else None, gated=gated)
    assert a.parameters() == sum(p.numel() for p in Decoder(a).parameters())
    assert 2 * a.flop() == count(a, batch=2)


def test_recomputation_is_counted_to_the_last_flop():
    a = replace(GPT2, n_layers=2)
    assert a.flop(recompute=BLOCK) == count(a, batch=1, recompute=True)


# Published


def test_a_mixture_of_experts_has_its_published_parameters():
    """Mixtral 8x7B: "47B parameters, but only uses 13B" (Jiang 2024, arXiv 2401.04088)."""
    mixtral = Architecture(32, 4096, 32, 14336, 4096, 32000, 8, gated=True, experts=8, experts_active=2)
    assert round(mixtral.parameters() / 1e9) == 47
    assert round(mixtral.parameters(active=True) / 1e9) == 13
    two_dense = replace(mixtral, experts=1, experts_active=1, d_ff=2 * 14336)
    router = 3 * 2 * 32 * 4096 * 4096 * 8  # three passes, two FLOP, layers, tokens, width, experts
    assert mixtral.flop() == two_dense.flop() + router


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(GPT2, n_layers=0), "`n_layers` must be a positive integer, found 0"),
        (lambda: replace(GPT2, d_ff=2.5), "`d_ff` must be a positive integer, found 2.5"),
        (lambda: replace(GPT2, vocabulary=float("nan")), "`vocabulary` must be a positive integer, found nan"),
        (lambda: replace(GPT2, n_heads=7), "7 does not divide 768"),
        (lambda: replace(GPT2, n_kv_heads=5), "5 does not divide 12"),
        (lambda: replace(GPT2, experts_active=2), "at most experts, 1: 2"),
        (lambda: GPT2.flop(backward_ratio=-1), "must not be negative"),
        (lambda: GPT2.flop(attention_ratio=-1), "must not be negative"),
        (lambda: GPT2.flop(count=("softmax",)), "unknown parts .*softmax.*; known: projections, attention"),
        (lambda: GPT2.flop(recompute=("all",)), "unknown parts"),
    ],
)
def test_a_size_or_part_that_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_heads_of_a_given_width_need_not_divide_the_model_s():
    assert replace(GPT2, n_heads=7, head_dim=64).parts()["projections"].parameters == 12 * 4 * 768 * 64 * 7
