"""Which runs may be calibrated on and estimated: the study's gate, and one precision."""

import pandas as pd

from estimator_utils.datasets.dataset import DatasetError
from estimator_utils.datasets.precision import DEFAULT_PRECISION, PRECISIONS

GATE = 0.80  # least mean GPU utilisation of the study's "frontier" runs
ALL_PRECISIONS = "all"


def passing_gate(runs: pd.DataFrame, gate: float = GATE, precision: str = DEFAULT_PRECISION) -> pd.DataFrame:
    """Select the frontier runs: those of one precision whose mean GPU utilisation passes the gate.

    Parameters
    ----------
    runs : DataFrame
        A runs table.
    gate : 1
        Least mean GPU utilisation of a run, 0 to 1.
    precision : str
        Precision of the runs, or "all".

    Raises
    ------
    DatasetError
        Where a run does not say its utilisation or precision, no run is left, or the gate is no fraction.
    """
    if not 0 <= gate <= 1:
        raise DatasetError(f"the gate is a GPU utilisation from 0 to 1 ({GATE:g} is {100 * GATE:g} %), found {gate:g}")
    if unknown := runs.loc[runs.precision.isna(), "run"].tolist():
        known = f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
        raise DatasetError(f"precision is empty in {unknown}: fill in {known}")
    chosen = runs if precision == ALL_PRECISIONS else runs[runs.precision == precision]
    if gate > 0:
        if unknown := chosen.loc[chosen.gpu_util.isna(), "run"].tolist():
            raise DatasetError(f"gpu_util is empty in {unknown}: the gate cannot be applied; set `gate` to 0")
        chosen = chosen[chosen.gpu_util >= gate]
    if chosen.empty:
        raise DatasetError(f"no run of precision {precision} passes the gate of {gate:g}")
    return chosen.reset_index(drop=True)
