"""A transformer's parameters and FLOP, exact and by part."""

import math
from dataclasses import dataclass

from estimator_utils.counting.layers import Layer, attention, projections

BLOCK = ("projections", "attention", "feed_forward")  # parts of a transformer layer with FLOP
COUNTED = (*BLOCK, "logits")


@dataclass(frozen=True)
class Architecture:
    """Sizes of a transformer.

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

    Examples
    --------
    >>> gpt2 = Architecture(12, 768, 12, 3072, seq_len=1024, vocabulary=50257, tied=True, positions=True)
    >>> gpt2.parameters(), gpt2.flop()
    (124337664, 874944921600)
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
                    raise ValueError(f"`{name}` must be a positive integer, found {value!r}")
                object.__setattr__(self, name, int(value))  # numpy's 64-bit integers would overflow
        if self.head_dim is None and self.d_model % self.n_heads:
            raise ValueError(f"`n_heads` must divide d_model: {self.n_heads} does not divide {self.d_model}")
        if self.experts_active > self.experts:
            raise ValueError(f"`experts_active` must be at most experts, {self.experts}: {self.experts_active}")
        self.parts()  # refuses groups that do not divide the heads

    def parts(self, causal: bool = False) -> dict[str, Layer]:
        """Return parameters, and forward FLOP of one sequence, by part of the model."""
        n, s, d = self.n_layers, self.seq_len, self.d_model
        head_dim = self.head_dim or d // self.n_heads
        matrices = projections(s, d, self.n_heads, self.n_kv_heads or self.n_heads, head_dim)
        router = d * self.experts if self.experts > 1 else 0
        held, used = (k * self._expert + router for k in (self.experts, self.experts_active))
        table, position_table = self.vocabulary * d, s * d if self.positions else 0
        return {
            "projections": Layer(n * matrices.parameters, n * matrices.flop),
            "attention": Layer(0, n * attention(s, self.n_heads, head_dim, causal).flop),
            "feed_forward": Layer(n * held, 2 * n * s * used),
            "logits": Layer(0 if self.tied else table, 2 * s * table),
            "embedding": Layer(table + position_table, 2 * s * table),  # FLOP as a one-hot product
            "vectors": Layer((n * self.vectors + 1) * d, 0),  # with one final scale
        }

    @property
    def _expert(self) -> int:
        """Parameters of one feed-forward block."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    def parameters(self, active: bool = False) -> int:
        """Return the number of parameters: all, or those that a token uses."""
        held = sum(part.parameters for part in self.parts().values())
        idle = self.n_layers * (self.experts - self.experts_active) * self._expert
        return held - idle if active else held

    def flop(
        self,
        backward_ratio: float = 2,
        attention_ratio: float | None = None,
        count: tuple[str, ...] = COUNTED,
        recompute: tuple[str, ...] = (),
        causal: bool = False,
    ) -> float:
        """Return the FLOP of training on one sequence; exact where the ratios are integers.

        Parameters
        ----------
        backward_ratio : 1
            Backward over forward FLOP; 0 for inference.
        attention_ratio : 1, optional
            The same of scores and mixing: 2.5 in fused kernels; the general one where left out.
        count : parts of the model
        recompute : parts of the model
            Whose forward pass is done twice, which makes it hardware FLOP: `BLOCK` in full recomputation of
            activations, ``("attention",)`` in selective.
        causal : bool
            Spare the pairs of tokens that a causal mask excludes.
        """
        parts = self.parts(causal)
        if unknown := {*count, *recompute} - set(parts):
            raise ValueError(f"unknown parts {sorted(unknown)}; known: {', '.join(parts)}")
        ratios = dict.fromkeys(parts, backward_ratio)
        if attention_ratio is not None:
            ratios["attention"] = attention_ratio
        if min(ratios.values()) < 0:
            raise ValueError(f"a backward ratio must not be negative: {backward_ratio}, {attention_ratio}")
        forward = {part: 2 if part in recompute else 1 for part in parts}
        return sum(parts[part].flop * (forward[part] + ratios[part]) for part in count)
