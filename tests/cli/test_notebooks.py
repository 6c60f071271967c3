"""The command ``notebooks``."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from estimator_utils.reporting import runner


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--only", "01", "99"], "no notebook starts with '99'; there are: "),
        (["-p", "sead=3"], "no notebook has a parameter named sead; known: dataset"),
        (["--jobs", "0"], "--jobs must be 1 or more, found 0"),
        (["--output", "01_a.ipynb"], "01_a.ipynb: File exists: give another path"),
        (["-p", "sead"], "a parameter is NAME=VALUE, found 'sead'"),
        (["--dataset", "orin-nano-26w"], "'orin-nano-26w' is neither a file nor a registered dataset"),
        (["--in-place", "--dataset", "x"], "--in-place executes on the defaults, where they lie: no --dataset"),
        (["--in-place", "--output", "x"], "--in-place"),
        (["--in-place", "-p", "dataset=x"], "in place"),
    ],
)
def test_a_slip_on_the_command_line_is_an_error_before_anything_runs(refused, tmp_path, monkeypatch, words, expected):
    """With one notebook of this test's own, so that a slip let through spoils nothing."""
    monkeypatch.setattr(runner, "NOTEBOOKS", tmp_path)
    monkeypatch.chdir(tmp_path)
    tagged = new_code_cell('dataset = "bench"', metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[tagged, new_code_cell("print(dataset)")]), tmp_path / "01_a.ipynb")
    assert expected in refused("notebooks", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["01_a.ipynb"]
