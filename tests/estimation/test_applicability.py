"""The study's gate: which runs are calibrated on and estimated."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_utils.datasets.dataset import DatasetError
from estimator_utils.estimation.applicability import passing_gate
from tests.support import synthetic


def test_the_gate_lets_its_own_value_pass():
    table = synthetic.runs(3).assign(gpu_util=[0.799999, 0.8, 0.9])
    assert passing_gate(table).run.tolist() == ["run1", "run2"]
    assert passing_gate(table, gate=0).run.tolist() == ["run0", "run1", "run2"]


def test_the_gate_takes_one_precision_or_all_and_keeps_the_order():
    table = synthetic.runs(4).assign(precision=["tf32", "fp32", "bf16", "fp32"])
    assert passing_gate(table).run.tolist() == ["run1", "run3"]
    assert passing_gate(table).index.tolist() == [0, 1]
    assert passing_gate(table, precision="tf32").run.tolist() == ["run0"]
    assert len(passing_gate(table, precision="all")) == 4


def test_no_run_left_is_an_error():
    with pytest.raises(DatasetError, match=r"no run of precision fp32 passes the gate of 0\.99"):
        passing_gate(synthetic.runs(3), gate=0.99)
    with pytest.raises(DatasetError, match="no run of precision fp16 passes"):
        passing_gate(synthetic.runs(3), precision="fp16")


def test_the_gate_does_not_guess():
    unread = synthetic.runs(3).assign(gpu_util=[0.9, np.nan, 0.9])
    with pytest.raises(DatasetError, match=r"gpu_util is empty in \['run1'\]: .*set `gate` to 0"):
        passing_gate(unread)
    assert len(passing_gate(unread, gate=0)) == 3
    with pytest.raises(DatasetError, match=r"precision is empty in \['run0'\]"):
        passing_gate(synthetic.runs(2).assign(precision=[None, "fp32"]))
