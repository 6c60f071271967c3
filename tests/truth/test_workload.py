from __future__ import annotations

from dataclasses import replace

import pytest

from estimator_utils.truth.workload import Workload, read_sweep

TINY = Workload(d_model=16, n_layers=2, n_heads=2, d_ff=24, seq_len=8, batch_size=2, steps=3)
SIZES = ("d_model", "n_layers", "n_heads", "d_ff", "seq_len", "batch_size", "steps")


def test_the_defaults_are_the_study_s():
    workload = Workload(d_model=256)
    assert (workload.n_heads, workload.d_ff, workload.optimizer, workload.precision) == (4, 512, "adamw", "fp32")


def test_the_sweep_has_the_study_s_26_configurations_with_different_names():
    sweep = read_sweep("study")
    assert len({w.run for w in sweep}) == len(sweep) == 26
    assert {w.precision for w in sweep} == {"fp32"}
    assert (min(w.steps for w in sweep), max(w.steps for w in sweep)) == (900, 4800)


def test_the_reduced_precision_runs_are_four_configurations_of_the_sweep_in_three_precisions():
    runs = read_sweep("study-reduced-precision")
    assert len({w.run for w in runs}) == len(runs) == 12
    assert {w.precision for w in runs} == {"tf32", "fp16", "bf16"}
    assert {replace(w, precision="fp32") for w in runs} <= set(read_sweep("study"))


@pytest.mark.recorded
def test_the_recorded_runs_are_the_sweeps_in_their_order_to_the_last_column(study_trials):
    for number, trial in enumerate(study_trials, start=1):
        rows = trial.runs[list(Workload.__dataclass_fields__)].to_dict("records")
        recorded = [Workload(**row) for row in rows]
        assert trial.runs.run.tolist() == [w.run for w in recorded]
        assert [w for w in recorded if w.precision == "fp32"] == read_sweep("study")
        further = [w for w in recorded if w.precision != "fp32"]
        assert further == (read_sweep("study-reduced-precision") if number == 1 else [])


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", None])
def test_a_size_is_a_positive_integer(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, found {value!r}"):
        replace(TINY, **{name: value})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"n_heads": 3}, "n_heads must divide d_model: 3 does not divide 16"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; known: adamw, sgd"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; known: fp32, tf32, fp16, bf16"),
    ],
)
def test_what_the_study_s_workload_cannot_be_is_refused(change, expected):
    with pytest.raises(ValueError, match=expected):
        replace(TINY, **change)


def test_a_sweep_is_read_from_a_file_or_by_name(tmp_path):
    assert len(read_sweep("study")) == 26
    table = tmp_path / "sweep.csv"
    table.write_text("run,d_model,n_heads,steps,optimizer,truth_tflop\nsmall,32,,100,sgd,\n")
    assert read_sweep(str(table)) == [Workload(d_model=32, steps=100, optimizer="sgd")]
    for text in ("d_model\nmany\n", "steps\n5\n", "d_model\n-3\n"):
        table.write_text(text)
        with pytest.raises(ValueError, match=r"sweep\.csv is no sweep"):
            read_sweep(str(table))
    with pytest.raises(ValueError, match="give one of study"):
        read_sweep(str(tmp_path / "nothing.json"))
