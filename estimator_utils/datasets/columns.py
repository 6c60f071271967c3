"""The columns that everything shares, one row a column: of runs tables and of traces.

One row a run or a moment; units in the names; a cell that is not known is empty, never 0.
"""

from dataclasses import dataclass

from estimator_utils.datasets.precision import PRECISIONS

LEAST, MOST = 1e-9, 1e18  # of any reading, in its unit: further out, sums of squares lose all digits
OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    name : str
    unit : str
        "text", "count", or the unit of a number; "1" is a fraction.
    low, high : float
        Least and largest number of a cell.
    choices : tuple of str
        What a text may be; anything where empty.
    required : bool
        The column is in every table; its cells may be empty all the same.
    filled : bool
        No cell is empty.
    """

    name: str
    unit: str
    low: float = 0.0
    high: float = MOST
    choices: tuple[str, ...] = ()
    required: bool = False
    filled: bool = False

    @property
    def expected(self) -> str:
        """Say what a cell may hold, and what to do with another."""
        if self.choices:
            return f"expected {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.unit == "count":
            return "expected a positive integer or nothing"
        if self.filled:
            return f"expected a positive number, {self.low:g} to {self.high:g}; correct the row or remove it"
        limits = "expected a fraction, 0 to 1" if self.unit == "1" else f"must not be negative, nor above {MOST:g}"
        return f"{limits}; leave the cell empty where it is not known"


TRUTH = Column("truth_tflop", "TFLOP", low=LEAST, filled=True)  # where it is not what is to be estimated
RUNS = (
    Column("run", "text", required=True),
    Column("d_model", "count", low=1),
    Column("n_layers", "count", low=1),
    Column("n_heads", "count", low=1),
    Column("d_ff", "count", low=1),
    Column("seq_len", "count", low=1),
    Column("batch_size", "count", low=1),
    Column("steps", "count", low=1),
    Column("optimizer", "text", choices=OPTIMIZERS),
    Column("precision", "text", choices=PRECISIONS, required=True),
    Column("duration_s", "s", low=LEAST, required=True, filled=True),
    Column("idle_power_w", "W", required=True),
    Column("energy_net_j", "J", low=LEAST, required=True, filled=True),
    Column("power_peak_w", "W", required=True),
    Column("gpu_util", "1", high=1.0, required=True),
    Column("dram_tb", "TB", required=True),
    TRUTH,
)
TRACE = (
    Column("t_s", "s", filled=True),
    Column("power_w", "W"),
    Column("gpu_util", "1", high=1.0),
    Column("dram_bytes_per_s", "bytes/s"),
)
RUN_COLUMNS = tuple(column.name for column in RUNS)
COUNT_COLUMNS = tuple(column.name for column in RUNS if column.unit == "count")
TEXT_COLUMNS = tuple(column.name for column in RUNS if column.unit == "text")
TRACE_COLUMNS = tuple(column.name for column in TRACE)
