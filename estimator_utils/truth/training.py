"""Training of a workload: the study's model, and one real step of it.

Source: the study's workload script, facts only.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from estimator_utils.datasets import precision
from estimator_utils.truth.workload import Workload

DROPOUT = 0.1
LEARNING_RATE = 1e-3
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


class Transformer(nn.Module):
    """The study's model: a post-norm ReLU encoder without mask or embedding, then a linear layer (d, d).

    ``forward`` maps (B, S, d) floats to (B, S, d).
    """

    def __init__(self, workload: Workload, device: str | torch.device = "cpu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            workload.d_model, workload.n_heads, workload.d_ff, dropout=DROPOUT, batch_first=True, device=device
        )
        self.encoder = nn.TransformerEncoder(layer, workload.n_layers, enable_nested_tensor=False)
        self.head = nn.Linear(workload.d_model, workload.d_model, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the encoder and the head."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]


def input_shape(workload: Workload) -> tuple[int, int, int]:
    """Return the shape (B, S, d) of a step's input."""
    return workload.batch_size, workload.seq_len, workload.d_model


def default_device() -> str:
    """Return "cuda" where there is a CUDA GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_precision(name: str, device: str) -> None:
    """Raise ValueError where ``device`` cannot train in a precision, saying what it can."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch finds no CUDA device: train on cpu, or install a driver and a PyTorch with CUDA")
    too_old = torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)
    if name == "tf32" and (device != "cuda" or too_old):
        raise ValueError(f"tf32 needs a CUDA device of compute capability 8.0 or later, not {device!r}: use fp32")
    if name == "fp16" and device != "cuda":
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
    optimizer = OPTIMIZERS[workload.optimizer](model.parameters(), lr=LEARNING_RATE)
    autocast = precision.TABLE[workload.precision].autocast
    scaler = torch.amp.GradScaler(device, enabled=autocast == "float16")

    def step() -> torch.Tensor:
        x = torch.randn(input_shape(workload), device=device)
        with torch.autocast(device, dtype=getattr(torch, autocast or "bfloat16"), enabled=autocast is not None):
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
