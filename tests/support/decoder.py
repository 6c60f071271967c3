"""A plain decoder-only transformer and a small CNN, to be counted by PyTorch on the meta device."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from estimator_utils.counting.architecture import Architecture


class Block(nn.Module):
    """Attention and feed-forward, pre-norm, without biases; SwiGLU where gated."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        d, self.heads, self.groups = a.d_model, a.n_heads, a.n_kv_heads or a.n_heads
        self.head_dim = a.head_dim or d // a.n_heads
        width = self.head_dim * self.heads
        self.norm_1, self.norm_2 = (nn.RMSNorm(d, device="meta") for _ in range(2))
        self.q, self.o = nn.Linear(d, width, False, "meta"), nn.Linear(width, d, False, "meta")
        self.kv = nn.Linear(d, 2 * self.head_dim * self.groups, False, "meta")
        self.up, self.down = nn.Linear(d, a.d_ff, False, "meta"), nn.Linear(a.d_ff, d, False, "meta")
        self.gate = nn.Linear(d, a.d_ff, False, "meta") if a.gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.norm_1(x)
        q = self.q(y).view(b, s, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(y).view(b, s, 2, self.groups, self.head_dim).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups < self.heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, s, -1))
        y = self.norm_2(x)
        hidden = functional.gelu(self.up(y)) if self.gate is None else functional.silu(self.gate(y)) * self.up(y)
        return x + self.down(hidden)


class Decoder(nn.Module):
    """Token embedding, blocks, final norm, untied logits; ``recompute`` repeats each block's forward pass."""

    def __init__(self, a: Architecture, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(a.vocabulary, a.d_model, device="meta")
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.n_layers))
        self.norm = nn.RMSNorm(a.d_model, device="meta")
        self.logits = nn.Linear(a.d_model, a.vocabulary, False, "meta")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            # Re-entrant: the other kind stops before the last product of a block, which it does not need.
            x = checkpoint(block, x, use_reentrant=True) if self.recompute else block(x)
        return self.logits(self.norm(x))


def small_cnn(dropout: float) -> nn.Module:
    """Two convolutions (a stride and a padding), batch norm, pooling, dropout and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2, device="meta"),
        nn.BatchNorm2d(8, device="meta"),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, device="meta"),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 32, device="meta"),
        nn.ReLU(),
        nn.Linear(32, 10, device="meta"),
    )
