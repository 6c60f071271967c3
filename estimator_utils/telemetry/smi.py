"""CSV logs of ``nvidia-smi --query-gpu=... --format=csv``, of one GPU or several."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from estimator_utils.telemetry.health import CheckedSource
from estimator_utils.telemetry.log_clock import LogClock
from estimator_utils.telemetry.source import Sample
from estimator_utils.telemetry.text import POWER_MAX_W, number, read_lines, unix_time_s

# Accepted names, the best first. The plain name is instantaneous up to A100 and a mean of 1 s on newer GPUs.
POWER = ("power.draw.instant", "instant_power_draw", "power.draw", "power_draw")
MEAN_POWER = ("power.draw.average", "average_power_draw")
LOAD = ("utilization.gpu", "gpu_util")
GPU_CLOCK = ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr")
MEMORY_CLOCK = ("clocks.current.memory", "clocks.mem")
GPU = ("index", "gpu_index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
NAME = ("name", "gpu_name")
# The GPUs of one query are 2 to 5 ms apart, two queries at least 100 ms.
ROUND_S = 0.05
SCAN_ROUNDS = 1000
STAMP = "%Y/%m/%d %H:%M:%S.%f"
# Units we read are taken off a header; a header in another unit keeps it, and so is not recognised.
_UNIT = re.compile(r"\s*\[(?:W|%|MHz)\]$")
_CELL = re.compile(r"([0-9.]+)\s*(W|%|MHz|)", re.ASCII)

Row = dict[str, str]  # cells by column, units left out
TimedRow = tuple[float, Row]


class SmiLog(CheckedSource):
    """One GPU of a log; ``t_s`` counts from its first row, ``wall_s`` reads local time as of this zone.

    GPUs are distinguished by index, UUID or bus where the log has a column of them, else by position in a
    query; ``gpus`` lists them. Utilisation of memory is no bandwidth, so there is no DRAM here.

    Raises
    ------
    SourceError
        Where the file cannot be read, has no header or no rows, or has several GPUs and none is chosen.
    """

    live = False

    def __init__(self, path: str | Path, gpu: str = "") -> None:
        super().__init__(f"smi:{path}#{gpu}" if gpu else f"smi:{path}", "GPU")
        self._path = Path(path)
        columns = next(self._rows(), (0.0, {}))[1].keys()
        self._key = next((name for name in GPU if name in columns), None)
        self._power = POWER if columns & set(POWER) else MEAN_POWER
        rounds = list(islice(self._rounds(), SCAN_ROUNDS))
        # By position, a round of another size gives no reading: a GPU is lost and the others moved up.
        sizes = Counter(map(len, rounds)).most_common(1)
        self._size = None if self._key or not sizes else sizes[0][0]
        first_rows = {key: row for rows in reversed(rounds) for key, (_, row) in rows.items()}
        self.gpus = tuple(sorted(first_rows)) if self._size is None else tuple(map(str, range(self._size)))
        if not self.gpus:
            self._refuse("expected rows that begin as 2025/07/27 00:34:45.155, found none")
        if gpu not in self.gpus and (gpu or len(self.gpus) > 1):
            choose = f"choose as in smi:{path}#{self.gpus[0]}"
            self._refuse(f"expected one of the GPUs {', '.join(self.gpus)}, found {gpu!r}: {choose}")
        self._gpu = gpu or self.gpus[0]
        self._device = next((first_rows[self._gpu][name] for name in NAME if name in columns), None)
        no_number = "its cell holds no number that can be true, or the GPU is lost"
        self._reasons = {
            "power_w": no_number if columns & set(self._power) else "the log has no column power.draw",
            "gpu_util": no_number if columns & set(LOAD) else "the log has no column utilization.gpu",
            "dram_activity": "nvidia-smi has no DRAM traffic; utilization.memory is a share of time",
            "dram_bytes_per_s": "nvidia-smi has no DRAM traffic",
        }

    def identity(self) -> dict[str, Any]:
        """Return the GPU's name where the log has it; the rail is the whole GPU board."""
        return super().identity() | {"device": self._device}

    def _rows(self) -> Iterator[TimedRow]:
        """Yield time and cells of each whole row; the header may come again, also with other columns."""
        header: list[str] = []
        for text in read_lines(self._path):
            cells = [cell.strip() for cell in text.split(",")]
            if "timestamp" in cells:
                header = [_UNIT.sub("", cell) for cell in cells]
            elif not header and unix_time_s(cells[0], STAMP) is not None:
                self._refuse("expected a header as 'timestamp, power.draw [W], ...' in the first line, found rows")
            # A log that was cut ends in the middle of a row; lines of a lost GPU are no rows.
            elif len(cells) == len(header) and text.endswith("\n"):
                row = dict(zip(header, cells, strict=True))
                if (wall_s := unix_time_s(row["timestamp"], STAMP)) is not None:
                    yield wall_s, row
        if not header:
            self._refuse("expected a header with 'timestamp', found none")

    def _rounds(self) -> Iterator[dict[str, TimedRow]]:
        """Yield the rows of each query, by GPU."""
        rows: dict[str, TimedRow] = {}
        last_s = 0.0
        for wall_s, row in self._rows():
            gpu = row.get(self._key, "") if self._key else None
            if rows and (not 0 <= wall_s - last_s <= ROUND_S if gpu is None else gpu in rows):
                yield rows
                rows = {}
            rows[str(len(rows)) if gpu is None else gpu], last_s = (wall_s, row), wall_s
        if rows:
            yield rows

    def __iter__(self) -> Iterator[Sample]:
        """Yield one sample a query; where the GPU is lost in it, only its time."""
        clock = LogClock(self.name)
        for rows in self._rounds():
            lost: TimedRow = (next(iter(rows.values()))[0], {})
            wall_s, row = rows.get(self._gpu, lost) if self._size in (None, len(rows)) else lost
            load = _value(row, LOAD, "%", 100)
            gpu_mhz, memory_mhz = (_value(row, names, "MHz", 1e5) for names in (GPU_CLOCK, MEMORY_CLOCK))
            sample = Sample(
                t_s=clock(wall_s),
                wall_s=wall_s,
                power_w=_value(row, self._power, "W", POWER_MAX_W) or None,  # 0 W is no reading
                gpu_util=None if load is None else load / 100,
                gpu_clock_hz=gpu_mhz * 1e6 if gpu_mhz else None,
                emc_clock_hz=memory_mhz * 1e6 if memory_mhz else None,
                source=self.name,
            )
            yield self.checked(sample, self._reasons)


def _value(row: Row, names: Sequence[str], unit: str, high: float) -> float | None:
    """Return the first number in these columns; None for ``[N/A]``, ``ERR!``, blank values, other units."""
    for name in names:
        match = _CELL.fullmatch(row.get(name, ""))
        if match and match.group(2) in (unit, ""):
            value = number(match.group(1), 0, high)
            if value is not None:
                return value
    return None
