"""Parameters and forward FLOP of single layers.

FLOP is a count, a multiply-add 2 FLOP; softmax and activations are not counted. Table of Sevilla et al., Estimating
Training Compute of Deep Learning Models (Epoch, 2022), but for convolutions, whose kernel they leave out. Sizes that
cannot be raise ValueError.
"""

import math
from typing import NamedTuple


class Layer(NamedTuple):
    """Parameters, and FLOP of the forward pass on one example."""

    parameters: int
    flop: int


def require_positive(**values: float | None) -> None:
    """Raise ValueError, naming the field, where a value is neither None nor a positive number."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be a positive number, found {value!r}")


def fully_connected(inputs: int, outputs: int, bias: bool = True) -> Layer:
    """Count a matrix product: ``(N + 1) M`` parameters, ``2 N M`` FLOP.

    >>> fully_connected(1024, 1024)
    Layer(parameters=1049600, flop=2097152)
    """
    require_positive(inputs=inputs, outputs=outputs)
    weights = inputs * outputs
    return Layer(weights + outputs if bias else weights, 2 * weights)


def convolution(image: tuple[int, int, int], filters: int, kernel: int, stride: int = 1, padding: int = 0) -> Layer:
    """Count ``(K^2 C + 1) D`` parameters, ``2 H' W' K^2 C D`` FLOP; ``H' = floor((H - K + 2P) / S) + 1``.

    Parameters
    ----------
    image : (height, width, channels)
    filters, kernel, stride, padding : int
        D filters of K x K, S apart; P zeros on each side.
    """
    height, width, channels = image
    require_positive(height=height, width=width, channels=channels, filters=filters, kernel=kernel, stride=stride)
    if padding < 0 or kernel > min(height, width) + 2 * padding:
        raise ValueError(f"a `kernel` of {kernel} does not fit {height} x {width} with padding {padding}")
    outputs = math.prod((side - kernel + 2 * padding) // stride + 1 for side in (height, width))
    weights = kernel**2 * channels * filters
    return Layer(weights + filters, 2 * outputs * weights)


def recurrent(inputs: int, hidden: int, steps: int = 1, cell: str = "rnn", biases: int = 1) -> Layer:
    """Count G gates: ``G M (N + M + biases)`` parameters (PyTorch: 2), ``2 G M (N + M)`` FLOP a step."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    require_positive(inputs=inputs, hidden=hidden, steps=steps)
    if cell not in gates:
        raise ValueError(f"unknown cell {cell!r}; known: {', '.join(gates)}")
    weights = gates[cell] * hidden * (inputs + hidden)
    return Layer(weights + gates[cell] * hidden * biases, 2 * weights * steps)


def projections(tokens: int, width: int, heads: int, groups: int, head_dim: int) -> Layer:
    """Count self-attention's matrices on S tokens of width d: H heads of width h, keys and values in K groups.

    ``2 d h (H + K)`` parameters, no bias; ``4 S d h (H + K)`` FLOP.
    """
    require_positive(tokens=tokens, width=width, heads=heads, groups=groups, head_dim=head_dim)
    if heads % groups:
        raise ValueError(f"key and value groups must divide the heads: {groups} does not divide {heads}")
    weights = 2 * width * head_dim * (heads + groups)
    return Layer(weights, 2 * tokens * weights)


def attention(tokens: int, heads: int, head_dim: int, causal: bool = False) -> Layer:
    """Count self-attention's scores and their mixing of values, 4 H h FLOP a pair of tokens.

    Of S^2 pairs, or of the ``S (S + 1) / 2`` that a causal mask leaves; the matrices are those of `projections`.
    """
    require_positive(tokens=tokens, heads=heads, head_dim=head_dim)
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    return Layer(0, 4 * pairs * heads * head_dim)


def embedding(vocabulary: int, width: int) -> Layer:
    """Count a look-up: ``V d`` parameters, no FLOP."""
    require_positive(vocabulary=vocabulary, width=width)
    return Layer(vocabulary * width, 0)


def normalisation(features: int, positions: int = 1) -> Layer:
    """Count layer or batch normalisation: ``2 F`` parameters, 5 FLOP an element (fvcore's convention)."""
    require_positive(features=features, positions=positions)
    return Layer(2 * features, 5 * features * positions)
