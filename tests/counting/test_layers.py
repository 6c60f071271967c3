"""Layers against PyTorch: parameters exact, FLOP those of the products that it counts."""

import pytest
import torch
from torch import nn

from estimator_utils.counting import layers
from estimator_utils.counting.fermi import dense_flop
from estimator_utils.truth import flops
from tests.support.decoder import small_cnn


def count(model: nn.Module, example: torch.Tensor) -> int:
    return sum(flops.count_calls(lambda: model(example).sum().backward()).values())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_small_cnn_is_counted_to_the_last_flop_with_dropout_or_without(dropout):
    """The counter covers convolutions and linear layers; their first has no input gradient; the rest counts 0."""
    first = layers.convolution((32, 48, 3), 8, kernel=5, stride=2, padding=2)
    others = (
        layers.convolution((16, 24, 8), 16, kernel=3, padding=1),
        layers.fully_connected(256, 32),
        layers.fully_connected(32, 10),
    )
    connections = sum(layer.flop for layer in (first, *others)) / 2
    model, batch = small_cnn(dropout), 4
    expected = dense_flop(connections, batch) - batch * first.flop
    assert count(model, torch.zeros(batch, 3, 32, 48, device="meta")) == expected
    held = sum(layer.parameters for layer in (first, *others, layers.normalisation(8)))
    assert sum(p.numel() for p in model.parameters()) == held


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        (layers.fully_connected(7, 5, bias=False), nn.Linear(7, 5, bias=False)),
        (layers.recurrent(7, 5, biases=2), nn.RNN(7, 5)),
        (layers.recurrent(7, 5, cell="gru", biases=2), nn.GRU(7, 5)),
        (layers.recurrent(7, 5, cell="lstm", biases=2), nn.LSTM(7, 5)),
        (layers.projections(9, 12, heads=3, groups=3, head_dim=4), nn.MultiheadAttention(12, 3, bias=False)),
        (layers.embedding(11, 6), nn.Embedding(11, 6)),
        (layers.normalisation(6), nn.LayerNorm(6)),
    ],
)
def test_a_layer_has_the_parameters_of_pytorch_s(layer, module):
    assert layer.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_a_recurrent_layer_multiplies_twice_a_gate_and_step(cell, gates):
    """Fused recurrent layers count 0 in PyTorch, so the cell's two products are counted, once a step."""
    x, h = torch.zeros(1, 7, device="meta"), torch.zeros(1, 5, device="meta")
    to_x, to_h = (nn.Linear(n, gates * 5, device="meta") for n in (7, 5))
    counted = sum(flops.count_calls(lambda: to_x(x) + to_h(h)).values())
    assert layers.recurrent(7, 5, steps=9, cell=cell).flop == 9 * counted


def test_grouped_keys_and_values_spare_only_their_own_matrices():
    full, grouped = (layers.projections(8, 64, heads=16, groups=g, head_dim=4) for g in (16, 4))
    assert grouped.flop / full.flop == (16 + 4) / (16 + 16)


@pytest.mark.parametrize("tokens", [1, 2, 1024])
def test_a_causal_mask_leaves_half_of_the_pairs_and_the_diagonal(tokens):
    full, half = (layers.attention(tokens, heads=2, head_dim=8, causal=causal) for causal in (False, True))
    assert 2 * tokens * half.flop == (tokens + 1) * full.flop


def test_a_look_up_multiplies_nothing_and_a_normalisation_five_times_an_element():
    assert layers.embedding(50257, 768).flop == 0
    assert layers.normalisation(768, positions=10) == (1536, 38400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.fully_connected(-1, 2), "`inputs` must be a positive number, found -1"),
        (lambda: layers.convolution((4, 4, 1), 1, kernel=5), "does not fit 4 x 4 with padding 0"),
        (lambda: layers.convolution((4, 4, 1), 1, kernel=1, stride=0), "`stride` must be"),
        (lambda: layers.convolution((4, 4, 1), 1, kernel=1, padding=-1), "padding -1"),
        (lambda: layers.recurrent(4, 0), "`hidden` must be"),
        (lambda: layers.recurrent(4, 4, cell="mgu"), "unknown cell 'mgu'; known: rnn, gru, lstm"),
        (lambda: layers.projections(8, 64, heads=16, groups=5, head_dim=4), "5 does not divide 16"),
        (lambda: layers.attention(0, 1, 1), "`tokens` must be"),
        (lambda: layers.embedding(0, 4), "`vocabulary` must be"),
        (lambda: layers.normalisation(0), "`features` must be"),
    ],
)
def test_a_size_that_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_kernel_may_fill_its_padded_image():
    assert layers.convolution((4, 4, 1), 1, kernel=6, padding=1) == (37, 72)
