"""Every notebook has the agreed shape: short cells, half prose, asserts, and little code that only reports."""

from __future__ import annotations

import ast
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from estimator_utils.reporting import runner

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
REPORTING = {"report.say", "report.figure", "report.results", "report.footer"}


@cache
def cells(path: Path, cell_type: str) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == cell_type]


def code_lines(source: str) -> int:
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in source.splitlines())


def nodes(path: Path) -> list[ast.AST]:
    return [node for cell in cells(path, "code") for node in ast.walk(ast.parse(cell.source))]


@by_notebook
def test_a_notebook_is_20_to_35_cells_about_half_prose(path):
    prose, code = len(cells(path, "markdown")), len(cells(path, "code"))
    assert 20 <= prose + code <= 35
    assert 0.4 <= prose / (prose + code) <= 0.6


@by_notebook
def test_code_cells_are_short(path):
    lengths = sorted(len(cell.source.splitlines()) for cell in cells(path, "code"))
    assert statistics.median(lengths) <= 8
    assert sum(length < 16 for length in lengths) >= 0.9 * len(lengths)
    assert lengths[-1] <= 25


@by_notebook
def test_less_than_a_fifth_of_the_code_only_reports(path):
    total = sum(code_lines(cell.source) for cell in cells(path, "code"))
    reporting = sum(
        statement.end_lineno - statement.lineno + 1
        for cell in cells(path, "code")
        for statement in ast.walk(ast.parse(cell.source))
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) in REPORTING
    )
    assert reporting < total / 5


@by_notebook
def test_a_notebook_checks_itself_three_to_ten_times(path):
    assert 3 <= sum(isinstance(node, ast.Assert) for node in nodes(path)) <= 10


@by_notebook
def test_a_notebook_opens_with_its_question_and_its_contract(path):
    prose = [cell.source for cell in cells(path, "markdown")]
    assert re.match(r"# (\d\d|A\d) · .+\?\n", prose[0])
    assert path.stem[:2] == prose[0][2:4]
    assert "**Question.**" in prose[0]
    contract = "\n".join(prose[:2])
    assert [word for word in ("reads", "writes", "needs", "takes") if f"**{word}**" not in contract] == []
    assert sum(line.startswith("# ") for text in prose for line in text.splitlines()) == 1


@by_notebook
def test_parameters_are_literals_each_with_its_meaning(path):
    nbformat_notebook = nbformat.read(path, as_version=4)
    assert runner.parameters(nbformat_notebook)
    (tagged,) = [cell for cell in cells(path, "code") if "parameters" in cell.metadata.get("tags", [])]
    assert all("  # " in line for line in tagged.source.splitlines())


@by_notebook
def test_logic_lives_in_the_package(path):
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert node.end_lineno - node.lineno < 5, f"{node.name} belongs into the package"


@by_notebook
def test_a_notebook_has_no_branch_on_its_data_and_multiplies_no_text(path):
    for node in nodes(path):
        if isinstance(node, ast.If | ast.IfExp):
            assert "kind" not in ast.unparse(node.test), ast.unparse(node.test)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            texts = [side for side in (node.left, node.right) if isinstance(side, ast.JoinedStr) or is_text(side)]
            assert texts == [], ast.unparse(node)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@by_notebook
def test_no_notebook_reads_the_tests(path):
    assert not any(is_text(node) and "tests/" in node.value for node in nodes(path))
