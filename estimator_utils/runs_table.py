"""The runs table, read and checked: the study's records or a CSV become one pandas frame.

Columns, units and meaning are those of `schema.RUN_COLUMNS`; a cell that is not known is NaN, never 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from estimator_utils import schema

_POSITIVE = ("duration_s", "energy_net_j")


class DatasetError(ValueError):
    """A dataset that is unknown, cannot be had, or does not hold what it must."""


def read(path: Path, need_truth: bool = True) -> pd.DataFrame:
    """Read a runs table from a CSV, or from JSON in the study's record format, and check it.

    Parameters
    ----------
    path : Path
    need_truth : bool
        False for runs whose FLOP are to be estimated.

    Raises
    ------
    DatasetError
        A missing column; a missing or non-positive duration, energy or truth; a name used twice; a cell that is
        not a number. The message names file, row and column, and what to do.
    """
    runs = _read_study(path) if path.suffix == ".json" else _read_csv(path)
    return _checked(runs, path, need_truth)


def _read_study(path: Path) -> pd.DataFrame:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["records"]
        rows = [
            {
                "run": r["label"],
                "d_model": r["config"]["d_model"],
                "n_layers": r["config"]["num_layers"],
                "n_heads": r["config"].get("nhead", 4),
                "d_ff": r["config"].get("dim_feedforward", 512),
                "seq_len": r["config"]["seq_len"],
                "batch_size": r["config"]["batch_size"],
                "steps": r["config"]["steps"],
                "optimizer": r["config"].get("optimizer", "adamw"),
                "precision": r["config"].get("precision", "fp32"),
                "duration_s": r["duration_s"],
                "idle_power_w": r["idle_baseline_mw"] / 1e3,
                "energy_net_j": r["net_energy_j"],
                "power_peak_w": r["peak_raw_mw"] / 1e3,
                "gpu_util": r["avg_gpu_pct"] / 1e2,
                "dram_tb": r["tb_moved"] / schema.STUDY_DRAM_COUNTER_FACTOR,
                "truth_tflop": r["ground_truth_tf"],
            }
            for r in records
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: not in the study's record format ({error!r}); or give a CSV") from error
    return pd.DataFrame(rows, columns=list(schema.RUN_COLUMNS))


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        cells = pd.read_csv(path, dtype=str, skipinitialspace=True)
    except (ValueError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: not a CSV ({error}); a runs table starts with its column names") from error
    columns: dict[str, Any] = {}
    for column in cells.columns.intersection(list(schema.RUN_COLUMNS)):
        if column in schema.TEXT_COLUMNS:
            columns[column] = cells[column]
            continue
        numbers = pd.to_numeric(cells[column], errors="coerce")
        _refuse(cells, path, column, numbers.isna() & cells[column].notna(), "expected a number or nothing")
        columns[column] = numbers
    return pd.DataFrame(columns)


def _checked(runs: pd.DataFrame, path: Path, need_truth: bool) -> pd.DataFrame:
    required = ["run", "precision", *schema.MEASURED_COLUMNS, *(["truth_tflop"] if need_truth else [])]
    if missing := [column for column in required if column not in runs]:
        raise DatasetError(
            f"{path}: missing column {', '.join(missing)}; a runs table has {', '.join(schema.RUN_COLUMNS)}; "
            "leave a cell empty where a value is not known"
        )
    runs = runs.reindex(columns=list(schema.RUN_COLUMNS))
    _refuse(runs, path, "run", runs.run.isna(), "every run needs a name")
    _refuse(runs, path, "run", runs.run.duplicated(), "names must be unique in a dataset; rename one")
    for column in (*_POSITIVE, *(["truth_tflop"] if need_truth else [])):
        bad = ~(runs[column] > 0) | np.isinf(runs[column])
        _refuse(runs, path, column, bad, "expected a positive number; correct the row or remove it")
    return runs


def _refuse(rows: pd.DataFrame, path: Path, column: str, bad: Iterable[bool], advice: str) -> None:
    for position, wrong in enumerate(bad):
        if wrong:
            found = rows[column].iloc[position]
            shown = "nothing" if isinstance(found, float) and math.isnan(found) else repr(found)
            run = rows["run"].iloc[position] if "run" in rows else "?"
            raise DatasetError(f"{path}, row {position + 1} ({run}), column {column}: found {shown}; {advice}")
