"""The commands on runs tables: ``calibrate``, ``evaluate``, ``estimate``, ``fetch``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator_utils.datasets import registry
from estimator_utils.estimation.applicability import passing_gate
from tests.support import synthetic

STUDY = "orin-nano-25w"
DECLARED = ["--device", "a board", "--rail", "VDD", "--power-mode", "15W"]


@pytest.fixture
def board(write_csv, runs) -> Path:
    return write_csv(runs)


# calibrate


def test_calibrate_recovers_the_planted_constants_in_their_units(ask, write_csv):
    c = ask("calibrate", write_csv(synthetic.runs(14)), "--equation", 1, *DECLARED)
    assert c["constants"] == pytest.approx({"e_per_tflop_j": 6, "e_per_tb_j": 50, "p_overhead_w": 1.5})
    about = c["identity"]
    assert (about["device"], about["rail"], about["power_mode"], about["precision"]) == (
        "a board",
        "VDD",
        "15W",
        "fp32",
    )
    assert (c["n_runs"], about["idle_power_w"], c["estimator"]) == (14, 0.642, "eq1")


def test_calibrate_saves_what_it_shows(ask, command, board, tmp_path):
    saved = tmp_path / "c.json"
    shown = ask("calibrate", board, "--equation", 2, "-o", saved, *DECLARED)
    assert json.loads(saved.read_text()) == shown
    status, out, _ = command("calibrate", board, "--equation", 2)
    assert status == 0
    assert "device          unknown" in out
    assert f"e_per_tflop_j   {shown['constants']['e_per_tflop_j']:.6g}" in out


def test_the_grid_and_the_gate_are_arguments(ask, write_csv):
    steep = write_csv(synthetic.runs(14, e_per_tb_j=0.0, p_overhead_w=9.0))
    assert ask("calibrate", steep, "--equation", 2)["constants"]["p_overhead_w"] == 4
    wide = ask("calibrate", steep, "--equation", 2, "--overhead-max-w", 16)
    assert wide["constants"]["p_overhead_w"] == pytest.approx(9)
    assert ask("calibrate", steep, "--equation", 2, "--gate", 0.9)["n_runs"] < 14


@pytest.mark.parametrize("name", ["calibrate", "evaluate"])
def test_several_precisions_in_one_calibration_are_refused(refused, write_csv, runs, name):
    runs.loc[:7, "precision"] = "bf16"
    path = write_csv(runs)
    message = refused(name, path, "--equation", 2, "--precision", "all")
    assert "one calibration belongs to one precision, found bf16, fp32: name one as --precision" in message


def test_all_precisions_are_one_where_there_is_one(ask, board):
    assert ask("calibrate", board, "--equation", 2, "--precision", "all")["identity"]["precision"] == "fp32"


@pytest.mark.parametrize(("equation", "n", "parameters"), [(1, 3, 3), (2, 2, 2)])
def test_fewer_runs_than_parameters_are_refused(refused, write_csv, runs, equation, n, parameters):
    message = refused("calibrate", write_csv(runs[:n]), "--equation", equation)
    assert f"Eq. {equation} has {parameters} parameters" in message
    assert f"found {n}" in message


def test_a_bad_row_is_named(refused, write_csv, runs):
    runs.loc[2, "energy_net_j"] = 0.0
    path = write_csv(runs)
    message = refused("calibrate", path, "--equation", 1)
    assert f"{path}, row 3 (run2), column energy_net_j: found 0.0; expected a positive number" in message


def test_a_calibration_is_saved_only_where_it_says_what_it_belongs_to(refused, board, tmp_path):
    saved = tmp_path / "c.json"
    found = refused("calibrate", board, "--equation", 2, "-o", saved, *DECLARED[:4])
    assert "do not say power_mode: declare --power-mode" in found
    assert not saved.exists()


def test_a_file_that_cannot_be_written_is_an_error(refused, board, tmp_path):
    words = ("calibrate", board, "--equation", 2, *DECLARED, "-o")
    path = tmp_path / "none" / "c.json"
    assert refused(*words, path) == f"error: {path}: No such file or directory: give another path\n"
    assert refused(*words, tmp_path) == f"error: {tmp_path}: Is a directory: give another path\n"


@pytest.mark.parametrize("gate", ["nan", "-1", "80"])
def test_a_gate_is_a_fraction(refused, board, gate):
    found = refused("calibrate", board, "--equation", 2, "--gate", gate)
    assert f"the gate is a GPU utilisation from 0 to 1 (0.8 is 80 %), found {gate}" in found


def test_a_collection_is_no_table_but_has_some(refused):
    found = refused("calibrate", "orin-nano-virtual", "--equation", 2)
    assert "orin-nano-virtual is a collection: name one of its tables, orin-nano-virtual-trial1, " in found


def test_runs_without_dram_are_named(refused, write_csv, runs):
    runs.loc[2, "dram_tb"] = None
    path = write_csv(runs)
    for name in ("calibrate", "evaluate"):
        assert "dram_tb of every run, it is empty in ['run2']" in refused(name, path, "--equation", 1)


# evaluate


def test_evaluate_shows_at_least_what_was_agreed(ask, board):
    result = ask("evaluate", board, "--equation", 1, "--n-splits", 20)
    errors = {"mae_pct", "sd_pct", "bias_pct", "max_abs_pct", "failing_splits", "predictions_over_10_pct"}
    assert errors <= set(result)
    assert (result["equation"], result["n_runs"], result["n_splits"], result["n_train"]) == (1, 21, 20, 14)


def test_a_seed_draws_other_splits_and_repeats_them(ask, board):
    words = ("evaluate", board, "--equation", 2, "--n-splits", 20)
    study, seeded, other = ask(*words), ask(*words, "--seed", 1), ask(*words, "--seed", 2)
    assert seeded == ask(*words, "--seed", 1)
    assert len({study["mae_pct"], seeded["mae_pct"], other["mae_pct"]}) == 3
    assert ask(*words, "--n-train", 9)["n_train"] == 9


@pytest.mark.parametrize("n_train", [21, 30, 0])
def test_n_train_must_leave_runs_to_test(refused, board, n_train):
    assert f"--n-train must lie between 1 and 20, one less than the runs; found {n_train}" in refused(
        "evaluate", board, "--equation", 1, "--n-train", n_train
    )


def test_evaluate_without_splits_is_refused(refused, board):
    assert "--n-splits must be 1 or more" in refused("evaluate", board, "--equation", 1, "--n-splits", 0)


def test_one_prediction_has_no_spread_and_is_json(ask, board):
    assert ask("evaluate", board, "--equation", 1, "--n-splits", 1, "--n-train", 20)["sd_pct"] is None


def test_a_seed_is_not_negative_and_one_run_is_not_split(refused, write_csv, runs):
    assert "--seed must be 0 or more, found -1" in refused("evaluate", write_csv(runs), "--equation", 1, "--seed", -1)
    one = write_csv(runs[:1])
    assert "one to hold out, found 1 in all" in refused("evaluate", one, "--equation", 1, "--gate", 0)


@pytest.mark.recorded
def test_the_headline_of_the_study_from_the_shell(ask):
    one = ask("evaluate", f"{STUDY}-trial1", "--equation", 1)
    assert [f"{one[key]:.3f}" for key in ("mae_pct", "sd_pct", "bias_pct")] == ["4.478", "3.780", "-0.431"]
    assert (one["n_runs"], one["n_splits"], one["n_train"], one["failing_splits"]) == (21, 200, 14, 118)
    assert round(one["predictions_over_10_pct"], 1) == 8.8
    two = ask("evaluate", f"{STUDY}-trial1", "--equation", 2)
    assert [f"{two[key]:.3f}" for key in ("mae_pct", "sd_pct", "bias_pct")] == ["4.548", "3.217", "-0.402"]
    assert two["failing_splits"] == 27


# estimate


@pytest.fixture
def calibration(ask, write_csv, tmp_path) -> Path:
    """Return a saved calibration of Eq. 1, made on noiseless runs of a declared board."""
    path = tmp_path / "calibration.json"
    ask("calibrate", write_csv(synthetic.runs(14), "calibration.csv"), "--equation", 1, *DECLARED, "-o", path)
    return path


def test_estimate_finds_the_truth_that_the_file_does_not_say(ask, calibration, write_csv):
    unknown = synthetic.runs(5, seed=9)
    path = write_csv(unknown.drop(columns="truth_tflop"))
    result = ask("estimate", path, "--calibration", calibration, *DECLARED)
    assert result["run"] == unknown.run.tolist()
    assert result["estimate_tflop"] == pytest.approx(unknown.truth_tflop.tolist())


def test_an_estimate_may_be_negative(ask, calibration, write_csv):
    little = synthetic.runs(3).assign(energy_net_j=1.0)
    assert max(ask("estimate", write_csv(little), "--calibration", calibration, *DECLARED)["estimate_tflop"]) < 0


@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_calibration_refuses_readings_that_say_otherwise_or_nothing(refused, calibration, board, position):
    other = [*DECLARED]
    other[position + 1] = "other"
    message = refused("estimate", board, "--calibration", calibration, *other)
    assert f"is 'other' but the calibration belongs to {DECLARED[position + 1]!r}" in message
    silent = DECLARED[:position] + DECLARED[position + 2 :]
    message = refused("estimate", board, "--calibration", calibration, *silent)
    assert f"declare {DECLARED[position]}" in message


def test_a_calibration_refuses_another_precision(refused, calibration, write_csv):
    path = write_csv(synthetic.runs(3).assign(precision="tf32"))
    message = refused("estimate", path, "--calibration", calibration, "--precision", "tf32", *DECLARED)
    assert "precision is 'tf32' but the calibration belongs to 'fp32'" in message
    assert "no run of precision fp32" in refused("estimate", path, "--calibration", calibration, *DECLARED)


def test_eq_1_refuses_to_estimate_without_dram(refused, calibration, write_csv):
    path = write_csv(synthetic.runs(3).assign(dram_tb=float("nan")))
    assert "Eq. 1 needs dram_tb of every run" in refused("estimate", path, "--calibration", calibration, *DECLARED)


@pytest.mark.parametrize("text", [None, "", "[]", "{}"])
def test_what_is_not_a_calibration_is_refused(refused, board, tmp_path, text):
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    assert str(path) in refused("estimate", board, "--calibration", path)


@pytest.mark.recorded
def test_the_study_s_trial_2_with_the_constants_of_trial_1(ask, tmp_path):
    saved = tmp_path / "c.json"
    ask("calibrate", f"{STUDY}-trial1", "--equation", 2, "-o", saved)
    result = ask("estimate", f"{STUDY}-trial2", "--calibration", saved)
    truth = passing_gate(registry.load(f"{STUDY}-trial2").runs)
    assert result["run"] == truth.run.tolist()
    assert max(abs(e / t - 1) for e, t in zip(result["estimate_tflop"], truth.truth_tflop, strict=True)) < 0.12


# fetch


@pytest.mark.recorded
def test_fetch_names_each_file_with_its_kind_and_place(command):
    status, out, _ = command("fetch", STUDY)
    lines = out.splitlines()
    assert status == 0
    assert len(lines) == 4
    assert lines[0].split()[:2] == [f"{STUDY}-trial1", "recorded"]
    assert command("fetch", f"{STUDY}-trace")[1].startswith(f"{STUDY}-trace  recorded  ")


def test_fetch_without_network_and_cache_says_what_to_do(command, refused, monkeypatch, tmp_path):
    monkeypatch.setenv("ESTIMATOR_DATA_DIR", str(tmp_path))
    assert "registered: " in refused("fetch", "orin-nano-26w")
    status, out, err = command("fetch", f"{STUDY}-trial1")
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]  # pooch says before it what it tries
    assert last.startswith(f"error: {STUDY}-trial1: no copy at ")
    assert "connect to a network, or put the file there, or set ESTIMATOR_DATA_DIR" in last
