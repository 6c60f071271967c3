"""What all tests share: no network, a clear skip where the study's records are missing, and made-up runs.

Fixtures for the records are session-wide: the records are read once and never changed.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pandas as pd
import pytest

from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Dataset
from estimator_utils.estimation.applicability import passing_gate
from tests.support import synthetic

STUDY = "orin-nano-25w"


def _refuse_network(event: str, details: tuple[Any, ...]) -> None:
    """Make every way out of this machine fail as a machine without a network does; loopback stays open."""
    if event == "socket.getaddrinfo" and details[0] not in (None, "", "localhost", "127.0.0.1", "::1"):
        raise socket.gaierror(socket.EAI_NONAME, f"tests use no network: {details[0]}")
    if event == "socket.connect" and details[0].family in (socket.AF_INET, socket.AF_INET6):
        host = details[1][0]
        if host != "::1" and not host.startswith("127."):
            raise OSError(f"tests use no network: {host}")


sys.addaudithook(_refuse_network)

# At import jsonschema, which reads notebooks, would build grammars of addresses for 3 s in each process of pytest,
# for checks that no notebook asks for; where this module is missing it goes without.
sys.modules["rfc3987_syntax"] = None

# The same examples on every run; no deadline, since the first call into torch takes seconds.
hypothesis.settings.register_profile("estimator", deadline=None, derandomize=True)
hypothesis.settings.load_profile("estimator")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``recorded`` where a file of the study's is missing, naming it."""
    if item.get_closest_marker("recorded"):
        missing = [entry.path.name for entry in registry.members(STUDY).values() if not entry.path.is_file()]
        if missing:
            pytest.skip(
                f"needs the study's records, missing: {', '.join(missing)}; set ESTIMATOR_DATA_DIR to the folder "
                "that holds orin-nano/, or run 'python -m estimator_utils fetch orin-nano-25w'"
            )


@pytest.fixture(scope="session")
def study_trials() -> list[Dataset]:
    """Return trials 1 to 3 of the study's records; for tests marked ``recorded``."""
    return registry.trials(STUDY)


@pytest.fixture(scope="session")
def frontiers(study_trials: list[Dataset]) -> list[pd.DataFrame]:
    """Return the 21 fp32 runs of each trial that pass the gate."""
    return [passing_gate(trial.runs) for trial in study_trials]


@pytest.fixture
def runs() -> pd.DataFrame:
    """Return 21 made-up runs of an imagined board, with noise."""
    return synthetic.runs(n=21, seed=7, noise=0.03)


@pytest.fixture
def write_csv(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a runs table to a CSV file and returns its path."""

    def write(table: pd.DataFrame, name: str = "board.csv") -> Path:
        path = tmp_path / name
        table.to_csv(path, index=False)
        return path

    return write
