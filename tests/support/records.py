"""The study's measured records, which are not part of the repository."""

import os
from pathlib import Path

import pytest


def record(name):
    """Return the path of a record, or skip the test, saying why."""
    folder = os.environ.get("ESTIMATOR_DATA_DIR")
    if not folder:
        pytest.skip("needs the study's records: set ESTIMATOR_DATA_DIR")
    path = Path(folder) / "orin-nano" / name
    if not path.exists():
        pytest.skip(f"needs the study's records: there is no {path}")
    return path
