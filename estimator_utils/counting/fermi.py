"""Training compute estimated without a sensor: counting, GPU time, scaling laws, Fermi arithmetic.

Operator's side, standard library only. FLOP is a count, FLOP/s a rate, a multiply-add 2 FLOP. Methods 1 and 2
and the layer table: Sevilla et al., Estimating Training Compute of Deep Learning Models (Epoch, 2022). Chips
and facts, each with its source: ``chips.csv``, ``facts.csv``. Bad sizes and unknown names raise ValueError.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Layer = tuple[int, int]  # parameters, and FLOP (2 a connection) of the forward pass on one example
PETAFLOP_DAY_FLOP = 1e15 * 86400
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
BLOCK = ("projections", "attention", "feed_forward")  # parts of a transformer layer with FLOP
ALPHA, BETA, A, B, L0 = 0.34, 0.28, 406.4, 410.7, 1.69  # Hoffmann 2022 (arXiv 2203.15556), Eq. 10


def _positive(**sizes: float | None) -> None:
    for name, value in sizes.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, found {value!r}")


def _rows(table: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


FACTS = {row["name"]: float(row["value"]) for row in _rows("facts")}
CHIPS: dict[str, dict[str, float | None]] = {
    row.pop("name"): {key: float(row[key]) if row[key] else None for key in row if key != "source"}
    for row in _rows("chips")
}
DEFAULT_FORMATS = {chip: next(f for f in ("bf16", "fp16", "fp32") if row[f]) for chip, row in CHIPS.items()}
LLM_UTILISATION = FACTS["utilisation_llm"]
UTILISATION_RANGE = (FACTS["utilisation_low"], LLM_UTILISATION, FACTS["utilisation_high"])
THRESHOLDS_FLOP = {name: FACTS[f"threshold_{name}"] for name in ("eu", "sb53")}


def chip_figures(chip: str) -> dict[str, float | None]:
    """Return a chip's row of ``chips.csv``; None where no source gives a figure."""
    if chip not in CHIPS:
        raise ValueError(f"unknown chip {chip!r}; known: {', '.join(CHIPS)}")
    return CHIPS[chip]


def peak_flop_per_s(chip: str, number_format: str | None = None) -> float:
    """Return a chip's dense peak, by default in its 16-bit format (bf16, else fp16), else in fp32."""
    peaks = {name: peak for name, peak in chip_figures(chip).items() if name in FORMATS and peak}
    number_format = number_format or DEFAULT_FORMATS[chip]
    if number_format not in peaks:
        known = f"it has {', '.join(peaks)}; known formats: {', '.join(FORMATS)}"
        raise ValueError(f"{chip} has no peak in {number_format!r}: {known}")
    return peaks[number_format] * 1e12


def fully_connected(inputs: int, outputs: int, bias: bool = True) -> Layer:
    """Count a matrix product: ``(N + 1) M`` parameters, ``2 N M`` FLOP."""
    _positive(inputs=inputs, outputs=outputs)
    return ((inputs + bias) * outputs, 2 * inputs * outputs)


def convolution(
    height: int, width: int, channels: int, filters: int, kernel: int, stride: int = 1, padding: int = 0
) -> Layer:
    """Count ``(K^2 C + 1) D`` parameters, ``2 H' W' K^2 C D`` FLOP; ``H' = floor((H - K + 2P) / S) + 1``."""
    _positive(height=height, width=width, channels=channels, filters=filters, kernel=kernel, stride=stride)
    if padding < 0 or kernel > min(height, width) + 2 * padding:
        raise ValueError(f"a kernel of {kernel} does not fit {height} x {width} with padding {padding}")
    outputs = math.prod((side - kernel + 2 * padding) // stride + 1 for side in (height, width))
    weights = kernel**2 * channels * filters
    return (weights + filters, 2 * outputs * weights)


def recurrent(inputs: int, hidden: int, steps: int = 1, cell: str = "rnn", biases: int = 1) -> Layer:
    """Count G gates: ``G M (N + M + biases)`` parameters (PyTorch: 2), ``2 G M (N + M)`` FLOP a step."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    _positive(inputs=inputs, hidden=hidden, steps=steps)
    if cell not in gates:
        raise ValueError(f"unknown cell {cell!r}; known: {', '.join(gates)}")
    weights = gates[cell] * hidden * (inputs + hidden)
    return (weights + gates[cell] * hidden * biases, 2 * weights * steps)


def attention(d: int, s: int, heads: int, groups: int, head_dim: int, causal: bool = False) -> Layer:
    """Count self-attention over S tokens of width d: H heads of width h, keys and values in K groups.

    ``2 d h (H + K)`` parameters, no bias; ``4 S d h (H + K)`` FLOP of projections, ``4 S^2 H h`` of scores and
    mixing, or ``2 S (S + 1) H h`` over the pairs that a causal mask leaves; softmax is not counted.
    """
    _positive(d=d, s=s, heads=heads, groups=groups, head_dim=head_dim)
    if heads % groups:
        raise ValueError(f"key and value groups must divide the heads: {groups} does not divide {heads}")
    weights = 2 * d * head_dim * (heads + groups)
    return (weights, 2 * s * weights + 2 * s * (s + 1 if causal else 2 * s) * heads * head_dim)


def embedding(vocabulary: int, width: int) -> Layer:
    """Count a look-up: ``V d`` parameters, no FLOP."""
    _positive(vocabulary=vocabulary, width=width)
    return (vocabulary * width, 0)


def normalisation(features: int, positions: int = 1) -> Layer:
    """Count layer or batch normalisation: ``2 F`` parameters, 5 FLOP an element (fvcore's convention)."""
    _positive(features=features, positions=positions)
    return (2 * features, 5 * features * positions)


def counting_flop(connections: float, examples: float, epochs: float = 1, backward_ratio: float = 2) -> float:
    """Count by method 1: ``2 x connections x (1 + ratio) x examples x epochs``; dropout changes nothing."""
    _positive(connections=connections, examples=examples, epochs=epochs, backward_ratio=backward_ratio)
    return 2 * connections * (1 + backward_ratio) * examples * epochs


@dataclass(frozen=True)
class Architecture:
    """Sizes of a transformer, to count it exactly.

    Attributes
    ----------
    n_layers, d_model, n_heads, d_ff, seq_len, vocabulary : int
    n_kv_heads, head_dim : int, optional
        Grouped-query attention; a head's width where it is not d_model / n_heads.
    gated, tied, positions : bool
        SwiGLU's third matrix; one matrix for both embeddings; learned positions.
    vectors : int
        Vectors of d_model parameters in a layer: 2 scales; 13 with shifts and biases at d_ff = 4 d_model.
    experts, experts_active : int
        Feed-forward blocks behind a router (mixture of experts), and how many of them a token uses.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    seq_len: int
    vocabulary: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    gated: bool = False
    tied: bool = False
    positions: bool = False
    vectors: int = 2
    experts: int = 1
    experts_active: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, bool):
                if not 0 < value < math.inf or value != int(value):
                    raise ValueError(f"{name} must be a positive integer, found {value!r}")
                object.__setattr__(self, name, int(value))  # numpy's 64-bit integers would overflow
        if not self.head_dim and self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model: {self.n_heads} does not divide {self.d_model}")
        if self.experts_active > self.experts:
            raise ValueError(f"experts_active must be at most experts, {self.experts}: {self.experts_active}")
        self.parts()

    def parts(self, causal: bool = False) -> dict[str, Layer]:
        """Return parameters, and forward FLOP of one sequence, by part of the model."""
        n, s, d, v = self.n_layers, self.seq_len, self.d_model, self.vocabulary
        head_dim, groups = self.head_dim or d // self.n_heads, self.n_kv_heads or self.n_heads
        weights, flop = attention(d, s, self.n_heads, groups, head_dim, causal)
        expert, router = (2 + self.gated) * d * self.d_ff, d * self.experts * (self.experts > 1)
        held, used = (k * expert + router for k in (self.experts, self.experts_active))
        return {
            "projections": (n * weights, 2 * n * s * weights),
            "attention": (0, n * (flop - 2 * s * weights)),
            "feed_forward": (n * held, 2 * n * s * used),
            "logits": (v * d * (not self.tied), 2 * s * v * d),
            "embedding": ((v + s * self.positions) * d, 2 * s * v * d),  # FLOP as a one-hot product
            "vectors": ((n * self.vectors + 1) * d, 0),  # with one final scale
        }

    def parameters(self, active: bool = False) -> int:
        """Return the number of parameters: all, or those that a token uses."""
        idle = (self.experts - self.experts_active) * (2 + self.gated) * self.d_model * self.d_ff
        return sum(parameters for parameters, _ in self.parts().values()) - self.n_layers * idle * active

    def flop(
        self,
        sequences: float = 1,
        backward_ratio: float = 2,
        attention_ratio: float | None = None,
        count: tuple[str, ...] = (*BLOCK, "logits"),
        recompute: tuple[str, ...] = (),
        causal: bool = False,
    ) -> float:
        """Return the FLOP of ``sequences``, forward and backward; exact where the ratios are integers.

        Model FLOP; hardware FLOP where ``recompute`` names parts whose forward pass is done twice: `BLOCK` in
        full recomputation of activations, ``("attention",)`` in selective. Ratios are backward over forward, 0
        for inference; ``attention_ratio`` (scores and mixing) is 2.5 in fused kernels, None the general one.
        """
        _positive(sequences=sequences)
        parts = self.parts(causal)
        if unknown := {*count, *recompute} - set(parts):
            raise ValueError(f"unknown parts {sorted(unknown)}; known: {', '.join(parts)}")
        ratio = {"attention": backward_ratio if attention_ratio is None else attention_ratio}
        if min(backward_ratio, *ratio.values()) < 0:
            raise ValueError(f"a backward ratio must not be negative: {backward_ratio}, {attention_ratio}")
        passes = {part: 1 + ratio.get(part, backward_ratio) + (part in recompute) for part in count}
        return sequences * sum(parts[part][1] * passes[part] for part in count)


def dense_flop(parameters: float, tokens: float, per_parameter: float = 6) -> float:
    """Return ``k N D``: k = 6 to train (Kaplan 2020, arXiv 2001.08361), 3 if encoder-decoder, 2 to infer."""
    _positive(parameters=parameters, tokens=tokens, per_parameter=per_parameter)
    return per_parameter * parameters * tokens


def gpu_time_flop(hours: float, peak_flop_per_s: float, utilisation: float = LLM_UTILISATION) -> float:
    """Estimate by method 2: ``chip-hours x peak x utilisation``; for a range, over `UTILISATION_RANGE`."""
    _positive(hours=hours, peak_flop_per_s=peak_flop_per_s)
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be a fraction above 0 and at most 1, found {utilisation!r}")
    return hours * 3600 * peak_flop_per_s * utilisation


def implied_utilisation(flop: float, hours: float, peak_flop_per_s: float) -> float:
    """Return ``FLOP / (time x chips x peak)``: MFU from model FLOP, HFU from hardware FLOP."""
    _positive(flop=flop)
    return flop / gpu_time_flop(hours, peak_flop_per_s, 1)


def chinchilla_loss(parameters: float, tokens: float) -> float:
    """Return the loss in nats a token: ``A / N^alpha + B / D^beta + L0``."""
    _positive(parameters=parameters, tokens=tokens)
    return float(A / parameters**ALPHA + B / tokens**BETA + L0)


def chinchilla_optimum(flop: float) -> tuple[float, float]:
    """Return the N and D of least loss at C = 6 N D (Hoffmann 2022, Eq. 4).

    ``N = G (C/6)^(beta/(alpha+beta))``, ``D = (C/6) / N``, ``G = (alpha A / (beta B))^(1/(alpha+beta))``.
    """
    _positive(flop=flop)
    parameters = (ALPHA * A / (BETA * B) * (flop / 6) ** BETA) ** (1 / (ALPHA + BETA))
    return parameters, flop / 6 / parameters


def chinchilla_direct(flop: float) -> tuple[float, float]:
    """Return ``N = 0.1 C^0.5`` and ``D = 1.7 C^0.5``: Hoffmann's direct fit as rounded by Liu (2023)."""
    _positive(flop=flop)
    return 0.1 * flop**0.5, 1.7 * flop**0.5


def memory_gb(parameters: float, bytes_per_parameter: float = 2, copies: int = 1) -> float:
    """Return a model's memory, 4 ``copies`` under Adam; over the bandwidth, a token's least time."""
    _positive(parameters=parameters, bytes_per_parameter=bytes_per_parameter, copies=copies)
    return parameters * bytes_per_parameter * copies / 1e9


def energy_mwh(hours: float, power_w: float, pue: float = 1) -> float:
    """Return ``chip-hours x power x PUE`` (Patterson 2021, arXiv 2104.10350, section 2.5)."""
    _positive(hours=hours, power_w=power_w, pue=pue)
    return hours * power_w * pue / 1e6


def fermi(
    params: float = 175e9, tokens: float = 300e9, flop_per_param_token: float = 6, chip: str = "A100",
    number_format: str | None = None, chips: float = 1024, utilisation: float = LLM_UTILISATION,
    usd_per_chip_hour: float | None = None, power_w: float | None = None, pue: float = FACTS["pue"],
    kg_co2_per_kwh: float = FACTS["carbon_kg_per_kwh"],
) -> dict[str, Any]:  # fmt: skip
    """Answer the common questions about a training run; the defaults are GPT-3's sizes on A100.

    None: from ``chips.csv`` (16-bit peak, rental, power); what it lacks too is None in the answer. The keys name
    their units; ``days_range`` is over `UTILISATION_RANGE`, slowest first; ``inputs`` are those used.
    """
    rental, chip_w = (chip_figures(chip)[name] for name in ("rental_usd_per_h", "power_w"))
    usd_per_chip_hour = rental if usd_per_chip_hour is None else usd_per_chip_hour
    power_w = chip_w if power_w is None else power_w
    number_format = number_format or DEFAULT_FORMATS[chip]
    inputs = {name: value for name, value in locals().items() if name not in ("rental", "chip_w")}
    _positive(**{name: value for name, value in inputs.items() if not isinstance(value, str)})
    if pue < 1 or chips % 1:
        raise ValueError(f"pue must be 1 or more and chips a whole number, found {pue:g} and {chips:g}")
    flop = dense_flop(params, tokens, flop_per_param_token)
    _positive(flop=flop)
    hours = flop / gpu_time_flop(1, peak_flop_per_s(chip, number_format), utilisation)
    mwh = None if power_w is None else energy_mwh(hours, power_w, pue)
    return {
        "flop": flop,
        "petaflop_days": flop / PETAFLOP_DAY_FLOP,
        "days": hours / chips / 24,
        "days_range": [hours * utilisation / u / chips / 24 for u in UTILISATION_RANGE],
        "chip_hours": hours,
        "cost_usd": None if usd_per_chip_hour is None else hours * usd_per_chip_hour,
        "energy_mwh": mwh,
        "co2_t": None if mwh is None else mwh * kg_co2_per_kwh,
        "thresholds": {n: {"ratio": flop / x, "passed": flop > x} for n, x in THRESHOLDS_FLOP.items()},
        "inputs": inputs,
    }
