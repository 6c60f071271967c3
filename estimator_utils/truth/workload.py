"""The study's workload: a transformer trained on random data, and the sweeps of its configurations.

Operator's side: nothing a verifier runs imports this module.
Source: the study (workload script, hyperparameters and sweep), facts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from estimator_utils.datasets.dataset import OPTIMIZERS, PRECISIONS

DROPOUT = 0.1
LEARNING_RATE = 1e-3
MOST_NUMBERS = 2**60  # of a tensor: PyTorch counts its bytes, 4 each in fp32, in 63 bits


@dataclass(frozen=True)
class Workload:
    """One training run of the study's transformer; the defaults are the study's.

    Attributes
    ----------
    d_model, n_layers, n_heads, d_ff : int
        Width, encoder layers, attention heads, width of the feed-forward block.
    seq_len, batch_size, steps : int
        Tokens per sequence, sequences per step, optimizer steps.
    optimizer : {"adamw", "sgd"}
    precision : {"fp32", "tf32", "fp16", "bf16"}

    Raises
    ------
    ValueError
        For a size that is not a positive integer or is beyond PyTorch, heads that do not divide the width, an
        unknown optimizer or precision.

    Examples
    --------
    >>> Workload(d_model=384, batch_size=16, seq_len=128, steps=1100, d_ff=3072).run
    'd384_b16_s128_L3_ff3072'
    """

    d_model: int
    n_layers: int = 3
    n_heads: int = 4
    d_ff: int = 512
    seq_len: int = 128
    batch_size: int = 8
    steps: int = 1000
    optimizer: str = "adamw"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "d_ff", "seq_len", "batch_size", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} must be a positive integer, found {value!r}")
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model: {self.n_heads} does not divide {self.d_model}")
        rows, widest = self.batch_size * self.seq_len, max(3 * self.d_model, self.d_ff)
        largest = max(self.d_model * widest, rows * widest, rows * self.seq_len * self.n_heads)
        if largest > MOST_NUMBERS:
            raise ValueError(f"the largest tensor would have {largest:.2g} numbers: take a smaller model or batch")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZERS)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; known: {', '.join(PRECISIONS)}")

    @property
    def run(self) -> str:
        """Name in the study's style: width, batch, sequence, layers, then whatever is not the default."""
        name = f"d{self.d_model}_b{self.batch_size}_s{self.seq_len}_L{self.n_layers}"
        if self.n_heads != 4:
            name += f"_h{self.n_heads}"
        if self.d_ff != 512:
            name += f"_ff{self.d_ff}"
        if self.optimizer != "adamw":
            name += f"_{self.optimizer}"
        if self.precision != "fp32":
            name += f"_{self.precision}"
        return name


# d_model, batch_size, seq_len, n_layers, steps: the order in which the study ran them.
_BASE = (
    (256, 16, 128, 3, 4000), (256, 8, 256, 3, 3500), (384, 16, 128, 3, 2500), (384, 8, 128, 6, 2800),
    (512, 8, 128, 3, 2600), (512, 16, 64, 6, 2400), (512, 16, 128, 6, 1200), (640, 8, 64, 3, 4000),
    (640, 8, 128, 3, 2400), (768, 8, 64, 3, 4000), (768, 8, 128, 6, 1400), (256, 16, 256, 3, 2200),
    (384, 16, 256, 3, 1600), (512, 16, 256, 3, 1200), (128, 8, 64, 3, 4800), (192, 8, 64, 3, 4800),
    (256, 8, 64, 3, 4800), (384, 8, 64, 3, 4500), (512, 8, 64, 3, 4500),
)  # fmt: skip


def sweep() -> list[Workload]:
    """Return the study's 26 fp32 configurations, in its order."""
    base = [
        Workload(d_model=d, batch_size=b, seq_len=s, n_layers=layers, steps=steps)
        for d, b, s, layers, steps in _BASE
    ]
    d384, d512, d512_6, d640 = base[2], base[4], base[5], base[8]
    return [
        *base,
        replace(d384, n_heads=8),
        replace(d512, n_heads=2),
        replace(d384, d_ff=3072, steps=1100),
        replace(d512, d_ff=4096, steps=900),
        Workload(d_model=256, batch_size=8, seq_len=512, steps=1500),
        replace(d512_6, optimizer="sgd"),
        replace(d640, optimizer="sgd"),
    ]


def reduced_precision_sweep() -> list[Workload]:
    """Return the 12 further runs of the study's first trial: four configurations in tf32, fp16 and bf16."""
    base = sweep()
    chosen = (base[2], base[5], base[8], base[9])
    return [replace(w, precision=precision) for precision in ("tf32", "fp16", "bf16") for w in chosen]


SWEEPS: dict[str, Callable[[], list[Workload]]] = {
    "study": sweep,
    "study-reduced-precision": reduced_precision_sweep,
}


class Transformer(nn.Module):
    """The study's model: a post-norm ReLU encoder without mask or embedding, then a linear layer (d, d).

    ``forward`` maps (B, S, d) floats to (B, S, d).
    """

    def __init__(self, workload: Workload, device: str | torch.device = "cpu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            workload.d_model,
            workload.n_heads,
            workload.d_ff,
            dropout=DROPOUT,
            batch_first=True,
            device=device,
        )
        self.encoder = nn.TransformerEncoder(layer, workload.n_layers, enable_nested_tensor=False)
        self.head = nn.Linear(workload.d_model, workload.d_model, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the encoder and the head."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]


def default_device() -> str:
    """Return "cuda" where there is a CUDA GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_precision(precision: str, device: str) -> None:
    """Raise ValueError where ``device`` cannot train in ``precision``, saying what it can."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch finds no CUDA device: train on cpu, or install a driver and a PyTorch with CUDA")
    too_old = torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)
    if precision == "tf32" and (device != "cuda" or too_old):
        raise ValueError(f"tf32 needs a CUDA device of compute capability 8.0 or later, not {device!r}: use fp32")
    if precision == "fp16" and device != "cuda":
        raise ValueError(f"fp16 training needs a CUDA device (loss scaling), not {device!r}: use bf16 or fp32")


def training_step(workload: Workload, device: str = "cpu", seed: int = 0) -> Callable[[], torch.Tensor]:
    """Build the model and its optimizer; return a function that does one real training step.

    A step draws random input, runs forward, loss = mean, backward and the optimizer. It returns the loss, still
    on the device: reading it waits for the GPU.

    Raises
    ------
    ValueError
        Where the device cannot train in the workload's precision.
    """
    check_precision(workload.precision, device)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = workload.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = workload.precision == "tf32"
    model = Transformer(workload, device).train()
    optimizers: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = optimizers[workload.optimizer](model.parameters(), lr=LEARNING_RATE)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(workload.precision)
    scaler = torch.amp.GradScaler(device, enabled=half is torch.float16)
    shape = (workload.batch_size, workload.seq_len, workload.d_model)

    def step() -> torch.Tensor:
        x = torch.randn(shape, device=device)
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()  # type: ignore[no-any-return]

    return step


def train(workload: Workload, device: str = "cpu", seed: int = 0) -> Iterator[int]:
    """Train ``workload`` for real, yielding the number of finished steps after each one."""
    step = training_step(workload, device, seed)
    for done in range(1, workload.steps + 1):
        step()
        yield done
    if device == "cuda":
        torch.cuda.synchronize()
