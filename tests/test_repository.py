"""The repository holds together: what it says of itself is so."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import nbformat
import pytest

from estimator_utils.cli.main import main
from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import sha256
from estimator_utils.estimation import estimators, evaluation
from estimator_utils.estimation.applicability import passing_gate
from estimator_utils.estimation.calibration import FORMS
from estimator_utils.estimation.estimators import ESTIMATORS
from estimator_utils.estimation.splits import study_splits
from estimator_utils.reporting import runner
from tests.support.repository import ROOT, tracked

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RESULTS = ROOT / "data" / "derived" / "results.json"
README = (ROOT / "README.md").read_text(encoding="utf-8")
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def texts() -> dict[str, str]:
    """Return the tracked text files by name."""
    binary = (".png", ".pdf", ".parquet", ".gz")
    files = (path for path in tracked() if path.suffix not in binary)
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


# README


def test_every_path_named_in_the_readme_exists():
    named = set(re.findall(r"\]\(([^)#]+)\)", README)) | set(re.findall(r"`([\w./-]+/[\w./*-]*)`", README))
    paths = {name for name in named if "://" not in name and not name.startswith(("build", ".venv"))}  # made by make
    assert len(paths) > 10
    assert [name for name in sorted(paths) if not list(ROOT.glob(name.rstrip("/")))] == []


def test_every_command_named_in_the_readme_exists(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    named = set(re.findall(r"^estimator ([\w-]+)", README, re.MULTILINE))
    assert named
    assert [name for name in sorted(named) if not re.search(rf"^ +{name}\b", known, re.MULTILINE)] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert targets >= {"reproduce", "test"}
    assert [name for name in sorted(targets) if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


# What the README quotes of results.json: its words, and where the numbers in them come from.
QUOTED = [
    ("misses by {:.3f} % on average", "05.eq1.mae_pct"),
    ("sd {:.3f}", "05.eq1.sd_pct"),
    ("bias {:.3f}", "05.eq1.bias_pct"),
    ("worst {:.1f} %", "05.eq1.max_abs_pct"),
    ("over {} splits of {} recorded runs", "05.eq1.n_splits", "05.n_runs"),
    ("in {} of {} splits", "05.eq1.failing_splits", "05.eq1.n_splits"),
    ("{:.1f} % of predictions", "05.eq1.predictions_over_10_pct"),
    ("gives {:.1f} to {:.1f} %", "05.eq1_ci95_pct.0", "05.eq1_ci95_pct.1"),
    ("gives {} and {} splits", *(f"05.eq1_by_trial.orin-nano-25w-trial{n}.failing_splits" for n in (2, 3))),
    ("{:.3f} %, worst {:.1f} %, {}", "05.eq2.mae_pct", "05.eq2.max_abs_pct", "05.eq2.failing_splits"),
]


def result(path: str) -> Any:
    """Return the value at a dotted path of results.json."""
    value = json.loads(RESULTS.read_text(encoding="utf-8"))
    for key in re.split(r"\.(?! )", path):  # the dot of "Eq. 1" is part of a key
        value = value[int(key) if isinstance(value, list) else key]
    return value


def test_the_readme_s_numbers_are_those_of_the_notebooks():
    flat = " ".join(README.split())
    quotes = [words.format(*map(result, places)) for words, *places in QUOTED]
    assert [quote for quote in quotes if quote not in flat] == []
    typed = set(re.findall(r"(?<![\w.-])-?\d+\.\d+(?= ?%|[,;)])", flat))
    quoted = set(re.findall(r"-?\d+\.\d+", " ".join(quotes)))
    assert typed <= quoted, "numbers that no line of QUOTED ties to results.json"


@pytest.mark.recorded
def test_the_results_are_what_the_records_give(study_trials):
    """Computed anew: results.json, the outputs and the README cannot be edited into agreement."""
    for trial in study_trials:
        runs = passing_gate(trial.runs)
        splits = study_splits(len(runs))
        for name in ("eq1", "eq2"):
            label = f"{trial.metadata.name} {FORMS[name].label}"
            summary = evaluation.summary(evaluation.held_out_errors(runs, ESTIMATORS[name], splits))
            claimed = result(f"06.by_trial.{label}")
            assert claimed == pytest.approx({k: summary[k] for k in claimed}, rel=1e-5)
            fitted = result(f"04.constants.{label}")
            constants = estimators.calibrate(trial, runs, ESTIMATORS[name]).constants
            assert {k: v for k, v in fitted.items() if v is not None} == pytest.approx(constants, rel=1e-5)
    first = evaluation.held_out_errors(passing_gate(study_trials[0].runs), ESTIMATORS["eq1"], splits)
    assert result("05.eq1") == pytest.approx(evaluation.summary(first), rel=1e-5)


# Notebooks, results and figures


def test_there_is_a_notebook_of_each_step():
    assert [path.stem[:2] for path in NOTEBOOKS][:7] == [f"{number:02}" for number in range(1, 8)]


@by_notebook
def test_a_committed_notebook_is_fresh(path):
    runner.check_fresh(path)


@by_notebook
def test_a_committed_notebook_is_clean_and_small(path):
    assert path.stat().st_size < 500_000
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for out in cell.get("outputs", []):
            assert out.output_type != "error"
            assert out.get("name") != "stderr"
            assert not re.search(
                r"0x[0-9a-f]{8}", str(out.get("text", "")) + str(out.get("data", {}).get("text/plain"))
            )
    assert set(notebook.metadata) <= {*runner.METADATA, "source_sha256"}


def test_results_belong_to_notebooks_and_have_six_digits():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results) == {path.stem[:2] for path in NOTEBOOKS}

    def floats(value: Any) -> list[float]:
        if isinstance(value, dict | list):
            return [x for item in (value.values() if isinstance(value, dict) else value) for x in floats(item)]
        return [value] if isinstance(value, float) else []

    assert all(x == float(f"{x:.6g}") for x in floats(results))


def test_every_figure_is_made_by_a_notebook_and_every_figure_made_is_there():
    made = set()
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                made |= {
                    f"{path.stem[:2]}_{node.args[1].value}"
                    for statement in ast.parse(cell.source).body
                    if not isinstance(statement, ast.If)  # drawn on request only
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == "report.figure"
                }
    assert {path.name for path in (ROOT / "figures").iterdir()} == {
        f"{n}.{kind}" for n in made for kind in ("png", "pdf")
    }


# Data


def test_bundled_data_are_simulated_and_intact():
    for name in registry.collections():
        for entry in registry.members(name).values():
            if entry.url is None:
                assert entry.metadata.kind == "simulated"
                assert sha256(entry.path) == entry.sha256


def test_the_study_s_files_are_not_in_the_repository():
    digests = {entry.sha256 for entry in registry.members("orin-nano-25w").values()}
    assert [path for path in tracked() if sha256(path) in digests] == []


@pytest.mark.recorded
def test_the_study_s_records_are_not_printed_row_by_row(study_trials):
    """A figure or a worst case may name a run's reading; a table of them would be a copy."""
    readings = {
        f"{value:.5g}"
        for trial in study_trials
        for column in ("energy_net_j", "duration_s", "dram_tb")
        for value in trial.runs[column]
    }
    # A simulated trace counts up half seconds, and meets durations of the study's by chance.
    for name, text in ((n, t) for n, t in texts().items() if not n.startswith("data/orin-nano-virtual/traces/")):
        found = {f"{float(number):.5g}" for number in re.findall(r"\d+\.\d+", text)}
        chance = max(8, len(found) // 100)  # among thousands of simulated numbers some agree to five digits
        assert len(found & readings) <= chance, f"{name} repeats {len(found & readings)} of the study's readings"


def test_no_file_names_a_place_of_one_machine():
    place = re.compile(r"(?<![\w.])/(home|root|Users|work)/\w|/tmp/\w|[.][.]/shared")
    found = {f"{name}: {match[0]}" for name, text in texts().items() for match in place.finditer(text)}
    assert {line for line in found if not line.startswith(".ci/run: ")} == set()
