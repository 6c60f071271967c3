"""The estimators there are, behind one protocol: what is evaluated is what is saved and what the monitor runs."""

from typing import Protocol

import pandas as pd

from estimator_utils.datasets.dataset import Dataset
from estimator_utils.estimation.baselines import BASELINES
from estimator_utils.estimation.calibration import FORMS, Calibration, Estimate, Identity
from estimator_utils.estimation.equations import StudyEquation
from estimator_utils.estimation.fitting import RunArrays


class Fitted(Protocol):
    """An estimator with its constants."""

    def estimate(self, readings: RunArrays) -> Estimate:
        """Return the estimates of runs (..., n)."""

    def calibration(self, identity: Identity) -> Calibration:
        """Return what is saved."""


class Estimator(Protocol):
    """A way to estimate FLOP from readings; ``name`` is a slug."""

    @property
    def name(self) -> str:
        """Slug."""

    def fit(self, runs: RunArrays) -> Fitted:
        """Fit on runs (..., n); leading axes are independent fits."""


ESTIMATORS: dict[str, Estimator] = {e.name: e for e in (StudyEquation(1), StudyEquation(2), *BASELINES)}


def check_runs(runs: pd.DataFrame, name: str) -> str:
    """Return the precision of the runs; ValueError where there are several, or a run lacks a needed reading."""
    form = FORMS[name]
    for column in form.readings:
        if lacking := runs.loc[runs[column].isna(), "run"].tolist():
            raise ValueError(
                f"{form.label} needs {column} of every run, it is empty in {lacking}: fill it in, or take an "
                "estimator without it"
            )
    if len(precisions := sorted(set(runs.precision))) > 1:
        raise ValueError(
            f"one calibration belongs to one precision, found {', '.join(precisions)}: name one as `precision`"
        )
    return str(precisions[0])


def calibrate(dataset: Dataset, runs: pd.DataFrame, estimator: Estimator) -> Calibration:
    """Fit one calibration on ``runs``, rows of ``dataset`` of one precision.

    Raises
    ------
    ValueError
        What `check_runs` or the fit refuses.
    """
    precision = check_runs(runs, estimator.name)
    about, idle_w = dataset.metadata, runs.idle_power_w.dropna()
    identity = Identity(
        device=about.device,
        rail=about.rail,
        power_mode=about.power_mode,
        precision=precision,
        idle_power_w=None if idle_w.empty else float(idle_w.median()),
        dataset=about.name,
        dataset_sha256=dataset.sha256,
    )
    return estimator.fit(RunArrays.of(runs)).calibration(identity)
