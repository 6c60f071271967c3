"""A data set: what it says of itself, its traces, and the folder that holds it.

A dataset folder is ``dataset.json`` (metadata, digests), one CSV a runs table, and one CSV a trace. Standard
library only, since a board without pandas writes and replays it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator_utils.datasets.columns import RUN_COLUMNS, TRACE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2  # of dataset.json; before 2 it had no version, and `precisions` was `precision`


class DatasetError(ValueError):
    """A dataset that is unknown, cannot be had, or does not hold what it must."""


@dataclass(frozen=True)
class Metadata:
    """What a dataset says of itself; None where it does not say.

    ``kind`` is "recorded" or "simulated". ``dram_counter_factor`` is counted bytes per true byte: the tables
    are in true bytes, the factor tells how they came to be. ``precisions`` are those of its runs, with blanks.
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
    precisions: str | None = None


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


EVENTS = ("launch_s", "start_s", "end_s")


@dataclass(frozen=True)
class Dataset:
    """A checked runs table (columns of `columns.RUNS`), what it says of itself, and its digest."""

    metadata: Metadata
    runs: pd.DataFrame
    sha256: str


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file as hex."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV with Unix line ends; None and NaN become empty cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def write_dataset(
    directory: str | Path,
    metadata: Metadata,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    traces: Mapping[str, Trace],
) -> None:
    """Write a dataset folder: ``NAME.csv`` (runs), ``traces/NAME.csv``, ``dataset.json``."""
    directory = Path(directory)
    index: dict[str, Any] = {"version": VERSION, **asdict(metadata), "tables": {}, "traces": {}}
    for name, runs in tables.items():
        path = directory / f"{name}.csv"
        write_csv(path, RUN_COLUMNS, ([run.get(column) for column in RUN_COLUMNS] for run in runs))
        index["tables"][name] = {"path": path.name, "sha256": sha256(path)}
    for name, trace in traces.items():
        path = directory / "traces" / f"{name}.csv"
        write_csv(path, TRACE_COLUMNS, zip(*(getattr(trace, column) for column in TRACE_COLUMNS), strict=True))
        about = {name: getattr(trace, name) for name in ("run", *EVENTS)}
        index["traces"][name] = {"path": f"traces/{path.name}", "sha256": sha256(path), **about}
    (directory / "dataset.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_index(path: str | Path) -> tuple[Metadata, dict[str, Any], dict[str, Any]]:
    """Read a ``dataset.json``; return the metadata, and the entries of its tables and traces.

    Raises
    ------
    ValueError
        Where the file is not such an index, naming it.
    """
    try:
        index = dict(json.loads(Path(path).read_text(encoding="utf-8")))
        tables, traces = index.pop("tables", {}), index.pop("traces", {})
        if (version := index.pop("version", 1)) > VERSION:
            raise ValueError(f"version {version} is of a later release, this one reads up to {VERSION}")
        if version == 1:
            index["precisions"] = index.pop("precision", None)
        return Metadata(**index), tables, traces
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the index of a dataset folder: {error}") from error


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a CSV with the columns of `columns.TRACE`.

    Its events come from the ``dataset.json`` of the dataset folder that the CSV lies in, where it does.

    Raises
    ------
    ValueError
        Naming file, line and column.
    """
    path = Path(path)
    about: dict[str, Any] = {}
    index = path.parent.parent / "dataset.json"
    if path.parent.name == "traces" and index.exists():
        entry = read_index(index)[2].get(path.stem, {})
        about = {name: entry[name] for name in ("run", *EVENTS) if name in entry}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := set(TRACE_COLUMNS) - set(reader.fieldnames or ()):
            expected = ", ".join(TRACE_COLUMNS)
            raise ValueError(f"{path}: missing columns {sorted(missing)}; a trace has {expected}")
        return trace_of(list(_moments(reader, path)), about)


def _moments(reader: csv.DictReader[str], path: Path) -> Iterator[list[float | None]]:
    """Yield the checked rows of a trace."""
    last_s = -math.inf
    for cells in reader:
        where = f"{path}, line {reader.line_num}, column"
        row = []
        for column in TRACE_COLUMNS:
            row.append(_finite(cells[column]) if cells[column] else None)
            if row[-1] is not None and math.isnan(row[-1]):
                raise ValueError(f"{where} {column}: expected a number or nothing, found {cells[column]!r}")
        if (t_s := row[0]) is None:
            raise ValueError(f"{where} t_s: the time is missing")
        if t_s <= last_s:
            raise ValueError(f"{where} t_s: times must increase, found {t_s:g} after {last_s:g}")
        last_s = t_s
        yield row


def _finite(cell: str) -> float:
    """Return a finite number; NaN for anything else."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def trace_of(moments: Sequence[Sequence[float | None]], about: Mapping[str, Any]) -> Trace:
    """Return the trace of rows in the order of `columns.TRACE`; ``about`` has its run and events."""
    channels: dict[str, Any] = {column: tuple(row[k] for row in moments) for k, column in enumerate(TRACE_COLUMNS)}
    return Trace(**channels, **about)
