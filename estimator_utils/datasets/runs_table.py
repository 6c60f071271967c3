"""The runs table, read and checked: the study's records or a CSV become one pandas frame.

Columns, units and meaning are those of `schema.RUN_COLUMNS`; a cell that is not known is NaN, never 0.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.errors import ParserWarning

from estimator_utils.datasets import dataset as schema
from estimator_utils.datasets.dataset import DatasetError

_POSITIVE = ("duration_s", "energy_net_j")
_LEAST, _MOST = 1e-9, 1e18  # of any reading, in its unit: further out, sums of squares lose all digits
_LARGEST = {"gpu_util": 1.0, "dram_tb": _MOST, "idle_power_w": _MOST, "power_peak_w": _MOST}
_KNOWN = {"precision": schema.PRECISIONS, "optimizer": schema.OPTIMIZERS}

# Columns and the fields of the study's record: config, what it leaves out, and readings with their unit per ours.
_STUDY_CONFIG = {
    "n_layers": "num_layers",
    "n_heads": "nhead",
    "d_ff": "dim_feedforward",
    **{same: same for same in ("d_model", "seq_len", "batch_size", "steps", "optimizer", "precision")},
}
_STUDY_DEFAULTS = {"nhead": 4, "dim_feedforward": 512, "optimizer": "adamw", "precision": "fp32"}
_STUDY_READINGS = {
    "duration_s": ("duration_s", 1.0),
    "idle_power_w": ("idle_baseline_mw", 1e3),
    "energy_net_j": ("net_energy_j", 1.0),
    "power_peak_w": ("peak_raw_mw", 1e3),
    "gpu_util": ("avg_gpu_pct", 1e2),
    "dram_tb": ("tb_moved", schema.STUDY_DRAM_COUNTER_FACTOR),
    "truth_tflop": ("ground_truth_tf", 1.0),
}


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
        A missing or repeated column; no run; a missing or non-positive duration, energy or truth; a name used
        twice; a cell that is not what its column holds. The message names file, row and column, and what to do.
    """
    runs = _read_study(path) if path.suffix == ".json" else _read_csv(path)
    return _checked(runs, path, need_truth)


def _read_study(path: Path) -> pd.DataFrame:
    try:
        records = list(json.loads(path.read_text(encoding="utf-8"))["records"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise DatasetError(f"{path}: not in the study's record format ({found}); or give a CSV") from error
    rows = []
    for number, record in enumerate(records, start=1):
        try:
            name, config = record["label"], _STUDY_DEFAULTS | record["config"]
            row = {column: config[field] for column, field in _STUDY_CONFIG.items()}
            rows.append(row | {"run": name} | {column: record[f] for column, (f, _) in _STUDY_READINGS.items()})
        except (KeyError, TypeError) as error:
            name = record.get("label", "?") if isinstance(record, dict) else "?"
            advice = f"missing {error}; add it, null where it is not known"
            if isinstance(error, TypeError):
                advice = "expected an object with label, config and readings; remove it or correct it"
            where = f"{path}, row {number} ({name})"
            raise DatasetError(f"{where}: not in the study's record format: {advice}") from error
    runs = _numbers(pd.DataFrame(rows, columns=list(schema.RUN_COLUMNS), dtype=object), path)
    return runs.assign(**{column: runs[column] / unit for column, (_, unit) in _STUDY_READINGS.items()})


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)  # rows longer than the header
            cells = pd.read_csv(path, dtype=str, skipinitialspace=True, index_col=False)
    except (ValueError, ParserWarning) as error:
        advice = "a runs table starts with its column names: save it as CSV in UTF-8"
        raise DatasetError(f"{path}: not a CSV ({str(error).strip()}); {advice}") from error
    names = cells.columns.str.strip()
    first_names = names.str.replace(r"\s*\.\d+$", "", regex=True)  # pandas numbers names that come again
    if twice := sorted(set(first_names[first_names.duplicated()]) & set(schema.RUN_COLUMNS)):
        raise DatasetError(f"{path}: column {', '.join(twice)} is there twice: remove one")
    cells = cells.set_axis(names, axis=1)[names.intersection(list(schema.RUN_COLUMNS))]
    return _numbers(cells.apply(lambda column: column.str.strip()), path)


def _numbers(cells: pd.DataFrame, path: Path) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for column in map(str, cells):
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
    if runs.empty:
        raise DatasetError(f"{path}: holds no runs: add a row for each")
    runs = runs.reindex(columns=list(schema.RUN_COLUMNS))
    _refuse(runs, path, "run", runs.run.isna(), "every run needs a name")
    _refuse(runs, path, "run", runs.run.duplicated(), "names must be unique in a dataset; rename one")
    for column in (*_POSITIVE, *(["truth_tflop"] if need_truth else [])):
        bad = ~runs[column].between(_LEAST, _MOST)
        advice = f"expected a positive number, {_LEAST:g} to {_MOST:g}; correct the row or remove it"
        _refuse(runs, path, column, bad, advice)
    for column, largest in _LARGEST.items():
        bad = (runs[column] < 0) | (runs[column] > largest)
        expected = "expected a fraction, 0 to 1" if largest == 1 else f"must not be negative, nor above {_MOST:g}"
        _refuse(runs, path, column, bad, f"{expected}; leave the cell empty where it is not known")
    for column in schema.COUNT_COLUMNS:
        bad = runs[column].notna() & ~((runs[column] > 0) & (runs[column] % 1 == 0))
        _refuse(runs, path, column, bad, "expected a positive integer or nothing")
    for column, known in _KNOWN.items():
        strange = runs[column].notna() & ~runs[column].isin(known)
        _refuse(runs, path, column, strange, f"expected {', '.join(known[:-1])} or {known[-1]}")
    return runs


def _refuse(rows: pd.DataFrame, path: Path, column: str, bad: Iterable[bool], advice: str) -> None:
    for position, wrong in enumerate(bad):
        if wrong:
            found = rows[column].tolist()[position]
            shown = "nothing" if pd.isna(found) else repr(found)
            run = rows["run"].iloc[position] if "run" in rows else "?"
            raise DatasetError(f"{path}, row {position + 1} ({run}), column {column}: found {shown}; {advice}")
