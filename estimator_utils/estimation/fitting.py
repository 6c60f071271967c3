"""What every fit takes and gives: the runs as arrays, and the fitted constants of a form.

Every array function of `estimation` broadcasts over leading axes, so that splits, grid points and left-out runs
are one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pandas as pd

from estimator_utils.estimation.calibration import FORMS, Calibration, Estimate, Identity

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunArrays:
    """Columns of a runs table as arrays of one shape (..., n): J, s, TB (NaN where missing), 1, TFLOP."""

    energy_net_j: Array
    duration_s: Array
    dram_tb: Array
    gpu_util: Array
    truth_tflop: Array

    @classmethod
    def of(cls, runs: pd.DataFrame) -> RunArrays:
        """Take the columns of a runs table."""
        return cls(*(runs[f.name].to_numpy(float) for f in fields(cls)))

    def take(self, index: npt.NDArray[np.intp]) -> RunArrays:
        """Select runs by position; ``index`` may have leading axes."""
        return RunArrays(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class FittedForm:
    """Fitted constants of one form.

    Attributes
    ----------
    name : str
        Slug of the estimator, a key of `calibration.FORMS`.
    constants : dict of str to (...) array
        Of one shape, the leading axes of the runs they were fitted on.
    n_runs : int
    recipe : str
        How they were fitted.
    """

    name: str
    constants: Mapping[str, Array]
    n_runs: int
    recipe: str

    def estimate(self, readings: RunArrays) -> Estimate:
        """Return the TFLOP (..., n) of the runs; NaN where a reading is missing."""
        constants = {name: np.asarray(value)[..., None] for name, value in self.constants.items()}
        return Estimate(FORMS[self.name].tflop(constants, readings), self.name)

    def calibration(self, identity: Identity) -> Calibration:
        """Return the calibration that holds these constants, of a fit without leading axes."""
        constants = {name: float(value) for name, value in self.constants.items()}
        return Calibration(self.name, constants, identity, self.n_runs, self.recipe)


def estimate_runs(calibration: Calibration, runs: pd.DataFrame) -> Array:
    """Return the TFLOP (n,) of every row of a runs table; NaN where a reading that is needed is missing."""
    columns = {f.name: runs.get(f.name, pd.Series(np.nan, runs.index)) for f in fields(RunArrays)}
    tflop: Array = calibration.form.tflop(calibration.constants, RunArrays.of(pd.DataFrame(columns)))
    return tflop
