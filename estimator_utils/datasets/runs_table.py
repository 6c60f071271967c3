"""The runs table, read and checked: the study's records or a CSV become one pandas frame.

Columns, units and bounds are those of `columns.RUNS`; a cell that is not known is NaN, never 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.errors import ParserWarning

from estimator_utils.datasets import study_format
from estimator_utils.datasets.columns import RUN_COLUMNS, RUNS, TEXT_COLUMNS, TRUTH, Column
from estimator_utils.datasets.dataset import DatasetError


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
    rows = study_format.read_records(path)
    runs = _numbers(pd.DataFrame(rows, columns=list(RUN_COLUMNS), dtype=object), path)
    return runs.assign(**{column: runs[column] / unit for column, (_, unit) in study_format.READINGS.items()})


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
    if twice := sorted(set(first_names[first_names.duplicated()]) & set(RUN_COLUMNS)):
        raise DatasetError(f"{path}: column {', '.join(twice)} is there twice: remove one")
    cells = cells.set_axis(names, axis=1)[names.intersection(list(RUN_COLUMNS))]
    return _numbers(cells.apply(lambda column: column.str.strip()), path)


def _numbers(cells: pd.DataFrame, path: Path) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for column in map(str, cells):
        if column in TEXT_COLUMNS:
            columns[column] = cells[column]
            continue
        numbers = pd.to_numeric(cells[column], errors="coerce")
        _refuse(cells, path, column, numbers.isna() & cells[column].notna(), "expected a number or nothing")
        columns[column] = numbers
    return pd.DataFrame(columns)


def _checked(runs: pd.DataFrame, path: Path, need_truth: bool) -> pd.DataFrame:
    required = [c.name for c in RUNS if c.required or (c is TRUTH and need_truth)]
    if missing := [column for column in required if column not in runs]:
        raise DatasetError(
            f"{path}: missing column {', '.join(missing)}; a runs table has {', '.join(RUN_COLUMNS)}; "
            "leave a cell empty where a value is not known"
        )
    if runs.empty:
        raise DatasetError(f"{path}: holds no runs: add a row for each")
    runs = runs.reindex(columns=list(RUN_COLUMNS))
    _refuse(runs, path, "run", runs.run.isna(), "every run needs a name")
    _refuse(runs, path, "run", runs.run.duplicated(), "names must be unique in a dataset; rename one")
    for column in RUNS:
        if column is not TRUTH or need_truth:
            _refuse(runs, path, column.name, _wrong(runs[column.name], column), column.expected)
    return runs


def _wrong(cells: pd.Series[Any], column: Column) -> pd.Series[bool]:
    """Tell of each cell whether it breaks the column's bounds; an empty one does where cells must be filled."""
    if column.unit == "text":
        right = cells.isin(column.choices) if column.choices else cells.notna()
    else:
        right = cells.between(column.low, column.high)
        if column.unit == "count":
            right &= cells % 1 == 0
    return ~right if column.filled else ~right & cells.notna()


def _refuse(rows: pd.DataFrame, path: Path, column: str, bad: Iterable[bool], advice: str) -> None:
    for position, wrong in enumerate(bad):
        if wrong:
            found = rows[column].tolist()[position]
            shown = "nothing" if pd.isna(found) else repr(found)
            run = rows["run"].iloc[position] if "run" in rows else "?"
            raise DatasetError(f"{path}, row {position + 1} ({run}), column {column}: found {shown}; {advice}")
