"""The command ``workload``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload

WORKLOAD = ["workload", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--d-ff", "24", "--seq-len", "8"]


@pytest.mark.slow
def test_workload_counts_without_training(ask):
    result = ask(*WORKLOAD, "--steps", 1000, "--count-only")
    known = flops.closed_form(Workload(16, 1, 2, 24, 8, 8, 1000))
    assert result["flop_per_step"] == known.flop_per_step
    assert result["truth_tflop"] == known.tflop(1000)
    assert (result["attention_backward"], result["causal"]) == (2.5, False)
    assert "FlopCounterMode on meta" in result["counted_by"]
    assert "duration_s" not in result


@pytest.mark.slow
def test_workload_trains_for_real_in_bf16_and_shows_its_progress(command):
    status, out, err = command(*WORKLOAD, "--steps", 4, "--precision", "bf16", "--optimizer", "sgd", "--json")
    assert status == 0
    assert "4/4" in err
    result = json.loads(out)
    assert (result["device"], result["run"]) == ("cpu", "d16_b8_s8_L1_h2_ff24_sgd_bf16")
    assert result["duration_s"] > 0


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_precision_impossible_on_a_device_is_an_error_before_counting(refused, precision):
    message = refused(*WORKLOAD, "--precision", precision, "--train-on", "cpu")
    assert f"{precision} " in message
    assert "CUDA" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_an_error(refused):
    assert "PyTorch finds no CUDA device: train on cpu" in refused(*WORKLOAD, "--train-on", "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("during", ["counting", "training"])
def test_an_interrupted_command_ends_at_once_and_in_one_line(during):
    """While another process counts, and while it trains: the signal comes to the parent alone."""
    words = [sys.executable, "-m", "estimator_utils", *WORKLOAD, "--steps", "1000000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while during == "counting" and len(children.read_text().split()) < 2:  # one tracks resources, one counts
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
        time.sleep(0.2)  # it has been told its task
        if during == "training":
            process.stderr.read(1)  # of the progress bar
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err


def test_a_workload_that_cannot_be_is_an_error(refused):
    assert "the largest tensor would have 3e+22 numbers" in refused("workload", "--d-model", 10**11)
    assert "n_heads must divide d_model: 3 does not divide 16" in refused("workload", "--d-model", 16, "--n-heads", 3)
    assert "steps must be a positive integer, found 0" in refused(*WORKLOAD, "--steps", 0)
