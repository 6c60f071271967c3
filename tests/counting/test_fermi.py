"""Laws, layers and transformers of `outside` against PyTorch; the published tables are in another file."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from estimator_utils.counting import fermi as outside
from estimator_utils.cli.main import main
from estimator_utils.counting.fermi import BLOCK, Architecture
from estimator_utils.truth import flops
from tests.support.decoder import Decoder, small_cnn

GPT2 = Architecture(n_layers=12, d_model=768, n_heads=12, d_ff=3072, seq_len=1024, vocabulary=50257)
SIZES = {
    "124M": GPT2,
    "6.7B": Architecture(n_layers=32, d_model=4096, n_heads=32, d_ff=11008, seq_len=2048, vocabulary=32000),
    "175B": Architecture(n_layers=96, d_model=12288, n_heads=96, d_ff=49152, seq_len=2048, vocabulary=50257),
}
amount = st.floats(1e-3, 1e30)


def count(model: nn.Module, example: torch.Tensor) -> int:
    return sum(flops.count_calls(lambda: model(example).sum().backward()).values())


VARIANTS = [(size, both, both) for size in SIZES for both in (False, True)]


@pytest.mark.parametrize(("size", "grouped", "gated"), [*VARIANTS, ("124M", True, False), ("124M", False, True)])
def test_decoder_is_counted_to_the_last_flop(size: str, grouped: bool, gated: bool) -> None:
    a = replace(SIZES[size], n_kv_heads=SIZES[size].n_heads // 4 if grouped else None, gated=gated)
    model = Decoder(a)
    assert a.parameters() == sum(p.numel() for p in model.parameters())
    batch = 2
    assert a.flop(batch) == count(model, torch.zeros(batch, a.seq_len, dtype=torch.long, device="meta"))


def test_recomputation_is_counted_to_the_last_flop() -> None:
    a = replace(GPT2, n_layers=2)
    tokens = torch.zeros(1, a.seq_len, dtype=torch.long, device="meta")
    assert a.flop(recompute=BLOCK) == count(Decoder(a, recompute=True), tokens)
    once = a.parts()["attention"][1]
    assert a.flop(recompute=("attention",)) - a.flop() == once
    assert a.flop(attention_ratio=2.5) - a.flop() == once / 2


def test_mixture_of_experts() -> None:
    """Mixtral 8x7B: "47B parameters, but only uses 13B" (Jiang 2024, arXiv 2401.04088)."""
    mixtral = Architecture(32, 4096, 32, 14336, 4096, 32000, 8, gated=True, experts=8, experts_active=2)
    assert round(mixtral.parameters() / 1e9) == 47
    assert round(mixtral.parameters(active=True) / 1e9) == 13
    two_dense = replace(mixtral, experts=1, experts_active=1, d_ff=2 * 14336)
    router = 3 * 2 * 32 * 4096 * 4096 * 8  # three passes, two FLOP, layers, tokens, width, experts
    assert mixtral.flop() == two_dense.flop() + router


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_small_cnn_and_dropout(dropout: float) -> None:
    """The counter covers convolutions and linear layers; their first has no input gradient; the rest counts 0."""
    first = outside.convolution(32, 48, 3, 8, kernel=5, stride=2, padding=2)
    others = (
        outside.convolution(16, 24, 8, 16, kernel=3, padding=1),
        outside.fully_connected(256, 32),
        outside.fully_connected(32, 10),
    )
    connections = (first[1] + sum(flop for _, flop in others)) / 2
    model, batch = small_cnn(dropout), 4
    expected = outside.counting_flop(connections, batch) - batch * first[1]
    assert count(model, torch.zeros(batch, 3, 32, 48, device="meta")) == expected
    layers = (first, *others, outside.normalisation(8))
    assert sum(p.numel() for p in model.parameters()) == sum(parameters for parameters, _ in layers)


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        (outside.fully_connected(7, 5, bias=False), nn.Linear(7, 5, bias=False)),
        (outside.recurrent(7, 5, biases=2), nn.RNN(7, 5)),
        (outside.recurrent(7, 5, cell="gru", biases=2), nn.GRU(7, 5)),
        (outside.recurrent(7, 5, cell="lstm", biases=2), nn.LSTM(7, 5)),
        (outside.attention(12, 9, heads=3, groups=3, head_dim=4), nn.MultiheadAttention(12, 3, bias=False)),
        (outside.embedding(11, 6), nn.Embedding(11, 6)),
        (outside.normalisation(6), nn.LayerNorm(6)),
    ],
)
def test_parameters_of_layers(layer: outside.Layer, module: nn.Module) -> None:
    assert layer[0] == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_operations(cell: str) -> None:
    """Fused recurrent layers count 0 in PyTorch, so the cell's two products are counted, once a step."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    x, h = torch.zeros(1, 7, device="meta"), torch.zeros(1, 5, device="meta")
    to_x, to_h = (nn.Linear(n, gates * 5, device="meta") for n in (7, 5))
    counted = sum(flops.count_calls(lambda: to_x(x) + to_h(h)).values())
    assert outside.recurrent(7, 5, steps=9, cell=cell)[1] == 9 * counted


def test_normalisation_and_embedding_operations() -> None:
    assert outside.embedding(50257, 768)[1] == 0
    assert outside.normalisation(768, positions=10) == (1536, 38400)


def test_causal_mask_leaves_half_and_the_diagonal() -> None:
    full, half = (GPT2.parts(causal)["attention"][1] for causal in (False, True))
    assert half / full == pytest.approx((GPT2.seq_len + 1) / (2 * GPT2.seq_len), rel=1e-15)


def test_conventions_of_a_transformer() -> None:
    part = {name: flop for name, (_, flop) in GPT2.parts().items()}
    everything = GPT2.flop(backward_ratio=0, count=(*BLOCK, "logits", "embedding"))
    assert everything == sum(part.values())
    assert GPT2.flop(count=("projections", "feed_forward")) == 3 * (part["projections"] + part["feed_forward"])
    assert part["embedding"] == part["logits"]  # as a one-hot product


@given(amount, st.floats(0.01, 1), amount)
def test_gpu_time_and_utilisation_are_inverse(hours: float, utilisation: float, peak: float) -> None:
    flop = outside.gpu_time_flop(hours, peak, utilisation)
    assert outside.implied_utilisation(flop, hours, peak) == pytest.approx(utilisation)
    assert outside.gpu_time_flop(2 * hours, peak, utilisation) == pytest.approx(2 * flop)


@given(st.floats(1e15, 1e30))
def test_chinchilla_optimum_is_a_minimum_on_the_budget(flop: float) -> None:
    parameters, tokens = outside.chinchilla_optimum(flop)
    assert outside.dense_flop(parameters, tokens) == pytest.approx(flop)
    best = outside.chinchilla_loss(parameters, tokens)
    for factor in (0.5, 0.99, 1.01, 2):
        assert outside.chinchilla_loss(parameters * factor, tokens / factor) > best


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 4096), st.floats(0, 4))
def test_backward_ratio_is_linear(layers: int, heads: int, length: int, ratio: float) -> None:
    a = Architecture(layers, 64 * heads, heads, 256 * heads, length, 1000)
    assert a.flop(backward_ratio=ratio) == pytest.approx((1 + ratio) * a.flop(backward_ratio=0))
    assert a.flop(sequences=7) == 7 * a.flop()


def test_numpy_integers_do_not_overflow() -> None:
    import numpy as np

    sizes = [np.int64(n) for n in (96, 12288, 96, 49152, 2048, 50257)]
    assert Architecture(*sizes).flop(10**6) == SIZES["175B"].flop(10**6)


def test_fermi_is_consistent() -> None:
    answer = outside.fermi()
    assert answer["flop"] == 6 * 175e9 * 300e9
    assert answer["chip_hours"] == pytest.approx(answer["flop"] / (312e12 * 0.3 * 3600))
    assert answer["days"] == pytest.approx(answer["chip_hours"] / 1024 / 24)
    assert answer["days_range"][0] > answer["days"] > answer["days_range"][2]
    assert answer["cost_usd"] == pytest.approx(2 * answer["chip_hours"])
    assert answer["energy_mwh"] == pytest.approx(answer["chip_hours"] * 400 * 1.1 / 1e6)
    assert answer["co2_t"] == pytest.approx(0.429 * answer["energy_mwh"])
    assert not answer["thresholds"]["eu"]["passed"]
    assert answer["thresholds"]["sb53"]["ratio"] == pytest.approx(answer["flop"] / 1e26)


def test_thresholds_are_passed_only_above_them() -> None:
    for params, passed in ((1e12, False), (1.000001e12, True)):
        answer = outside.fermi(params=params, tokens=1e14, flop_per_param_token=1)
        assert answer["thresholds"]["sb53"]["passed"] is passed


def test_fermi_keeps_the_unknown_unknown() -> None:
    answer = outside.fermi(chip="TPUv4")
    assert answer["cost_usd"] is None
    assert answer["energy_mwh"] is not None
    assert outside.fermi(chip="TPUv4", usd_per_chip_hour=3)["cost_usd"] == 3 * answer["chip_hours"]


COMMAND = "fermi --params 175e9 --tokens 300e9 --chip A100 --chips 1024 --utilisation 0.3"


def test_fermi_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    used = {"chips": 1024, "number_format": "bf16", "usd_per_chip_hour": 2.0, "power_w": 400.0, "pue": 1.1}
    assert printed["inputs"].items() >= used.items()
    assert printed == outside.fermi(175e9, 300e9, chip="A100", chips=1024, utilisation=0.3)
    assert main(COMMAND.split()) == 0
    text = capsys.readouterr().out
    for unit in ("FLOP", "petaFLOP-days", "days", "chip-hours", "USD", "MWh", "t CO2", "of 1e+26 FLOP"):
        assert f" {unit}\n" in text


def test_fermi_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fermi", "--chip", "abacus"]) == 1
    assert "known: V100, A100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: outside.fermi(params=0), "params must be a positive number, found 0"),
        (lambda: outside.dense_flop(0, 1), "parameters must be a positive number, found 0"),
        (lambda: outside.fermi(flop_per_param_token=0), "flop_per_param_token must be a positive number"),
        (lambda: outside.fermi(pue=0.5), "pue must be 1 or more and chips a whole number, found 0.5 and 1024"),
        (lambda: outside.fermi(chips=0.5), "chips a whole number, found 1.1 and 0.5"),
        (lambda: outside.fermi(tokens=-1), "tokens must be"),
        (lambda: outside.fermi(chips=float("nan")), "chips must be"),
        (lambda: outside.fermi(params=1e300, tokens=1e300), "flop must be a positive number, found inf"),
        (lambda: outside.fermi(power_w=0), "power_w must be"),
        (lambda: outside.fermi(pue=float("inf")), "pue must be"),
        (lambda: outside.fermi(kg_co2_per_kwh=-1), "kg_co2_per_kwh must be"),
        (lambda: outside.fermi(usd_per_chip_hour=0), "usd_per_chip_hour must be"),
        (lambda: outside.fermi(utilisation=1.01), "at most 1, found 1.01"),
        (lambda: outside.gpu_time_flop(1, 1, utilisation=0), "above 0"),
        (lambda: outside.fermi(chip="B900"), "unknown chip 'B900'; known: V100, A100, "),
        (lambda: outside.fermi(number_format="fp4"), "fp64, fp32, tf32, fp16, bf16; known formats: .*fp8"),
        (lambda: outside.peak_flop_per_s("V100", "bf16"), "V100 has no peak in 'bf16': it has fp64, fp32, fp16;"),
        (lambda: outside.counting_flop(0, 1), "connections must be"),
        (lambda: outside.counting_flop(1, 1, backward_ratio=-2), "backward_ratio must be"),
        (lambda: outside.fully_connected(-1, 2), "inputs must be"),
        (lambda: outside.convolution(4, 4, 1, 1, kernel=5), "does not fit 4 x 4"),
        (lambda: outside.convolution(4, 4, 1, 1, kernel=1, stride=0), "stride must be"),
        (lambda: outside.recurrent(4, 4, cell="mgu"), "unknown cell 'mgu'; known: rnn, gru, lstm"),
        (lambda: outside.embedding(0, 4), "vocabulary must be"),
        (lambda: outside.normalisation(0), "features must be"),
        (lambda: outside.chinchilla_optimum(-1), "flop must be"),
        (lambda: outside.chinchilla_direct(-1), "flop must be"),
        (lambda: outside.chinchilla_loss(1, 0), "tokens must be"),
        (lambda: outside.memory_gb(1, copies=0), "copies must be"),
        (lambda: replace(GPT2, n_layers=0), "n_layers must be a positive integer, found 0"),
        (lambda: replace(GPT2, d_ff=2.5), "d_ff must be a positive integer, found 2.5"),
        (lambda: replace(GPT2, n_heads=7), "7 does not divide 768"),
        (lambda: replace(GPT2, n_kv_heads=5), "5 does not divide 12"),
        (lambda: replace(GPT2, experts_active=2), "at most experts, 1: 2"),
        (lambda: GPT2.flop(sequences=0), "sequences must be"),
        (lambda: GPT2.flop(backward_ratio=-1), "must not be negative"),
        (lambda: GPT2.flop(count=("softmax",)), "unknown parts .*softmax.*; known: projections, attention"),
        (lambda: GPT2.flop(recompute=("all",)), "unknown parts"),
    ],
)
def test_bad_input_says_what_is_known(call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        call()


def test_every_chip_and_fact_has_a_source() -> None:
    for table in ("chips", "facts", "memory_prices"):
        for row in outside._rows(table):
            assert row["source"], row
    for chip in outside.CHIPS:
        assert outside.peak_flop_per_s(chip) > 1e12


def test_only_the_standard_library_is_imported() -> None:
    tree = ast.parse(Path(outside.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(module).split(".")[0] for module in modules} <= sys.stdlib_module_names
