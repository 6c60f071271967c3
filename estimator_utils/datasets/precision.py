"""What the precisions of a training run mean, written once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a training run's matrix products.

    Attributes
    ----------
    operand_bytes : int
        Bytes of an operand in memory.
    autocast : str or None
        PyTorch's name of the format that operands are cast to; None: they stay fp32.
    tensor_speed : float
        Matrix rate over that of fp32 on CUDA cores: Orin Nano 8 GB data sheet, 15 TFLOP/s dense in fp16.
    energy_ratio : float
        Energy of a multiply-add over fp32's. fp32 takes 3.7 + 0.9 pJ, fp16 1.1 + 0.4 pJ; tf32 multiplies like
        fp16 and adds like fp32 (Horowitz, ISSCC 2014, figure 1.1.9).
    """

    operand_bytes: int
    autocast: str | None = None
    tensor_speed: float = 1.0
    energy_ratio: float = 1.0


TABLE = {
    "fp32": Precision(operand_bytes=4),
    "tf32": Precision(operand_bytes=4, tensor_speed=4.0, energy_ratio=2.0 / 4.6),
    "fp16": Precision(operand_bytes=2, autocast="float16", tensor_speed=8.0, energy_ratio=1.5 / 4.6),
    "bf16": Precision(operand_bytes=2, autocast="bfloat16", tensor_speed=8.0, energy_ratio=1.5 / 4.6),
}
PRECISIONS = tuple(TABLE)
DEFAULT_PRECISION = "fp32"
