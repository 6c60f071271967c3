"""The study's workload and the sweeps of its configurations. Source: the study, facts only."""

import csv
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from estimator_utils.datasets.columns import COUNT_COLUMNS, OPTIMIZERS
from estimator_utils.datasets.locations import data_folder
from estimator_utils.datasets.precision import DEFAULT_PRECISION, PRECISIONS

MOST_NUMBERS = 2**60  # of a tensor: PyTorch counts its bytes, 4 each in fp32, in 63 bits


@dataclass(frozen=True)
class Workload:
    """One training run of the study's transformer; the defaults are the study's.

    Attributes
    ----------
    d_model : int
        Width.
    n_layers : int
        Encoder layers.
    n_heads : int
        Attention heads.
    d_ff : int
        Width of the feed-forward block.
    seq_len : int
        Tokens per sequence.
    batch_size : int
        Sequences per step.
    steps : int
        Optimizer steps.
    optimizer : {"adamw", "sgd"}
        What updates the weights.
    precision : {"fp32", "tf32", "fp16", "bf16"}
        Arithmetic of the matrix products.

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
    optimizer: str = OPTIMIZERS[0]
    precision: str = DEFAULT_PRECISION

    def __post_init__(self) -> None:
        for name in COUNT_COLUMNS:
            value = getattr(self, name)
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} must be a positive integer, found {value!r}")
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model: {self.n_heads} does not divide {self.d_model}")
        rows, widest = self.batch_size * self.seq_len, max(3 * self.d_model, self.d_ff)
        largest = max(self.d_model * widest, rows * widest, rows * self.seq_len * self.n_heads)
        if largest > MOST_NUMBERS:
            raise ValueError(f"the largest tensor would have {largest:.2g} numbers: take a smaller model or batch")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")

    @property
    def run(self) -> str:
        """Name in the study's style: width, batch, sequence, layers, then whatever is not the default.

        ``h8`` are 8 heads, ``ff3072`` is the width of the feed-forward block.
        """
        name = f"d{self.d_model}_b{self.batch_size}_s{self.seq_len}_L{self.n_layers}"
        for field, prefix in (("n_heads", "h"), ("d_ff", "ff"), ("optimizer", ""), ("precision", "")):
            if (value := getattr(self, field)) != getattr(Workload, field):
                name += f"_{prefix}{value}"
        return name


def sweep_names() -> list[str]:
    """Return the names of the bundled sweeps."""
    return sorted(path.stem for path in (data_folder() / "sweeps").glob("*.csv"))


def read_sweep(name: str | Path = "study") -> list[Workload]:
    """Return the workloads of a sweep.

    Parameters
    ----------
    name : str or path
        A bundled sweep (study, study-reduced-precision), or a CSV or JSON file of workloads.

    Raises
    ------
    ValueError
        Where it is neither, listing the names.
    """
    path = data_folder() / "sweeps" / f"{name}.csv" if name in sweep_names() else Path(name)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = json.load(file) if path.suffix == ".json" else list(csv.DictReader(file))
        return [_workload(row) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        known = ", ".join(sweep_names())
        raise ValueError(f"{name} is no sweep ({error}): give one of {known}, or a file of workloads") from error


def _workload(row: dict[str, Any]) -> Workload:
    """Return the workload of a row; what is empty is the default."""
    given: dict[str, Any] = {f.name: row[f.name] for f in fields(Workload) if row.get(f.name) not in (None, "")}
    sizes = {name: int(value) for name, value in given.items() if name in COUNT_COLUMNS}
    return Workload(**given | sizes)
