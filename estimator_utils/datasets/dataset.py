"""The shapes everything shares: the runs table, traces, and the dataset folder that holds them.

A dataset folder is ``dataset.json`` (metadata, digests), one CSV a runs table, and one CSV a trace. Standard
library only, since a board without pandas writes and replays it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TEXT_COLUMNS = ("run", "optimizer", "precision")
COUNT_COLUMNS = ("d_model", "n_layers", "n_heads", "d_ff", "seq_len", "batch_size", "steps")
MEASURED_COLUMNS = ("duration_s", "idle_power_w", "energy_net_j", "power_peak_w", "gpu_util", "dram_tb")
RUN_COLUMNS = ("run", *COUNT_COLUMNS, "optimizer", "precision", *MEASURED_COLUMNS, "truth_tflop")
TRACE_COLUMNS = ("t_s", "power_w", "gpu_util", "dram_bytes_per_s")

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
OPTIMIZERS = ("adamw", "sgd")

# The study's counter: 0.0133 counted bytes are one true byte (it measured a copy of a known amount).
STUDY_DRAM_COUNTER_FACTOR = 0.0133


class DatasetError(ValueError):
    """A dataset that is unknown, cannot be had, or does not hold what it must."""


@dataclass(frozen=True)
class Metadata:
    """What a dataset says of itself; None where it does not say.

    ``kind`` is "recorded" or "simulated". ``dram_counter_factor`` is counted bytes per true byte: the tables
    are in true bytes, the factor tells how they came to be.
    """

    name: str
    kind: str | None = None
    device: str | None = None
    rail: str | None = None
    power_mode: str | None = None
    gpu_clock_hz: float | None = None
    emc_clock_hz: float | None = None
    dram_counter_factor: float | None = None
    software: str | None = None
    date: str | None = None
    who: str | None = None
    licence: str | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Trace:
    """Readings of one run over time; each channel may be None where it was not read at that moment.

    Attributes
    ----------
    t_s : (n,) s
        Increasing.
    power_w, gpu_util, dram_bytes_per_s : (n,) W, 1, true bytes/s
    run : str
        Name of the run, empty where unknown.
    launch_s, start_s, end_s : float or None
        When the process was launched and training began and ended, in the clock of ``t_s``.
    """

    t_s: tuple[float, ...]
    power_w: tuple[float | None, ...]
    gpu_util: tuple[float | None, ...]
    dram_bytes_per_s: tuple[float | None, ...]
    run: str = ""
    launch_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None


MARKS = ("run", "launch_s", "start_s", "end_s")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as hex."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV with Unix line ends; None and NaN become empty cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(["" if cell is None or cell != cell else cell for cell in row] for row in rows)


def write_dataset(
    directory: str | Path,
    metadata: Metadata,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    traces: Mapping[str, Trace],
) -> None:
    """Write a dataset folder: ``NAME.csv`` (runs), ``traces/NAME.csv``, ``dataset.json``."""
    directory = Path(directory)
    index: dict[str, Any] = {**asdict(metadata), "tables": {}, "traces": {}}
    for name, runs in tables.items():
        path = directory / f"{name}.csv"
        write_csv(path, RUN_COLUMNS, ([run.get(column) for column in RUN_COLUMNS] for run in runs))
        index["tables"][name] = {"path": path.name, "sha256": sha256(path)}
    for name, trace in traces.items():
        path = directory / "traces" / f"{name}.csv"
        write_csv(path, TRACE_COLUMNS, zip(*(getattr(trace, column) for column in TRACE_COLUMNS), strict=True))
        marks = {mark: getattr(trace, mark) for mark in MARKS}
        index["traces"][name] = {"path": f"traces/{path.name}", "sha256": sha256(path), **marks}
    (directory / "dataset.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_index(path: str | Path) -> tuple[Metadata, dict[str, Any], dict[str, Any]]:
    """Read ``dataset.json``; return the metadata and the entries of tables and traces.

    Raises
    ------
    ValueError
        Where the file is not such an index, naming it.
    """
    try:
        index = dict(json.loads(Path(path).read_text(encoding="utf-8")))
        tables, traces = index.pop("tables", {}), index.pop("traces", {})
        return Metadata(**index), tables, traces
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the index of a dataset folder: {error}") from error


def read_trace(path: str | Path) -> Trace:
    """Read a trace: a CSV of `TRACE_COLUMNS`, or a JSON file in the study's format.

    The marks come from the ``dataset.json`` of the dataset folder that the CSV lies in, where it does.

    Raises
    ------
    ValueError
        Naming file, line and column.
    """
    path = Path(path)
    return _read_study_trace(path) if path.suffix == ".json" else _read_csv_trace(path)


def _read_csv_trace(path: Path) -> Trace:
    rows: list[list[float | None]] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := set(TRACE_COLUMNS) - set(reader.fieldnames or ()):
            expected = ", ".join(TRACE_COLUMNS)
            raise ValueError(f"{path}: missing columns {sorted(missing)}; a trace has {expected}")
        for cells in reader:
            where = f"{path}, line {reader.line_num}, column"
            row: list[float | None] = []
            for column in TRACE_COLUMNS:
                try:
                    row.append(float(cells[column]) if cells[column] else None)
                except ValueError:
                    row.append(math.nan)
                if row[-1] is not None and not math.isfinite(row[-1]):
                    raise ValueError(f"{where} {column}: expected a number or nothing, found {cells[column]!r}")
            if row[0] is None:
                raise ValueError(f"{where} t_s: the time is missing")
            if rows and row[0] <= rows[-1][0]:  # type: ignore[operator]
                raise ValueError(f"{where} t_s: times must increase, found {row[0]:g} after {rows[-1][0]:g}")
            rows.append(row)
    marks: dict[str, Any] = {}
    index = path.parent.parent / "dataset.json"
    if path.parent.name == "traces" and index.exists():
        entry = read_index(index)[2].get(path.stem, {})
        marks = {mark: entry[mark] for mark in MARKS if mark in entry}
    return _trace(rows, marks)


def _read_study_trace(path: Path) -> Trace:
    channels = (("power_mw", 1e-3), ("gpu_pct", 1e-2), ("dram_bytes_s", 1 / STUDY_DRAM_COUNTER_FACTOR))
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a trace in the study's format: {error}") from error
    if missing := {name for name, _ in channels} - set(content):
        raise ValueError(f"{path}: missing {sorted(missing)}; expected a trace in the study's format")
    merged: dict[float, list[float | None]] = {}
    for position, (name, scale) in enumerate(channels, start=1):
        for t_s, value in content[name]:
            merged.setdefault(t_s, [t_s, None, None, None])[position] = value * scale
    marks = {mark: content.get("t_" + mark.removesuffix("_s")) for mark in MARKS[1:]}
    return _trace([merged[t_s] for t_s in sorted(merged)], marks)


def _trace(rows: list[list[float | None]], marks: Mapping[str, Any]) -> Trace:
    columns: list[tuple[Any, ...]] = [tuple(row[k] for row in rows) for k in range(len(TRACE_COLUMNS))]
    return Trace(columns[0], columns[1], columns[2], columns[3], **marks)
