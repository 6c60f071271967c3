"""A notebook run the ways a reader runs one: plain papermill from anywhere, and all cells in JupyterLab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow  # starts kernels

NOTEBOOK = ROOT / "notebooks" / "06_power_only_ablation.ipynb"
BUNDLED = "orin-nano-virtual"


def results(folder: Path) -> dict[str, object]:
    """Return the results a notebook wrote below `folder`."""
    return json.loads((folder / "data" / "derived" / "results.json").read_text())


def test_plain_papermill_from_another_directory(tmp_path):
    environment = {**os.environ, "ESTIMATOR_OUTPUT": str(tmp_path / "output")}
    arguments = [NOTEBOOK, tmp_path / "out.ipynb", "-p", "dataset", BUNDLED]
    subprocess.run([sys.executable, "-m", "papermill", *arguments], cwd=tmp_path, env=environment, check=True)
    assert set(results(tmp_path / "output")) == {"06"}


def test_run_all_cells_as_jupyterlab_does(tmp_path, monkeypatch):
    monkeypatch.setenv("ESTIMATOR_OUTPUT", str(tmp_path / "output"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = parameters.source.replace('"orin-nano-25w"', f'"{BUNDLED}"')
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    assert set(results(tmp_path / "output")) == {"06"}
