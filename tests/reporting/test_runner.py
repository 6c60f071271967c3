from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from estimator_utils.datasets.dataset import DatasetError
from estimator_utils.reporting import report, runner
from estimator_utils.reporting.report import Report
from estimator_utils.reporting.runner import NotebookError

PARAMETERS = 'dataset = "bench"  # collection\nseed = 3'


def notebook(*code: str, parameters: str | None = PARAMETERS) -> Any:
    """Return a notebook with a title, a cell tagged ``parameters``, and code cells; its ids do not change."""
    cells = [new_markdown_cell("# 01 · Is it so?")]
    if parameters is not None:
        cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    cells += [new_code_cell(source) for source in code]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells, metadata=runner.METADATA)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a function that writes notebooks to a repository of this test's own, where the runner finds them."""
    monkeypatch.setattr(runner, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(runner, "build_folder", lambda: tmp_path / "build")
    monkeypatch.setenv("ESTIMATOR_OUTPUT", "nowhere")  # `execute` sets it; put back after the test
    (tmp_path / "notebooks").mkdir()

    def write(**notebooks: Any) -> Path:
        for name, content in notebooks.items():
            nbformat.write(content, tmp_path / "notebooks" / f"{name}.ipynb")
        return tmp_path

    return write


def run(place, content: Any, **given: Any) -> Any:
    """Execute one notebook; return it as written."""
    root = place(n01_test=content)
    target = root / "out" / "n01_test.ipynb"
    runner.execute(root / "notebooks" / "n01_test.ipynb", target, given, root / "out")
    return nbformat.read(target, as_version=4)


def texts(executed: Any) -> list[str]:
    """Return what each code cell printed."""
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in code]


# Parameters


def test_the_parameters_are_the_literals_of_the_tagged_cell():
    content = notebook("print(dataset, seed)")
    assert runner.parameters(content) == {"dataset": "bench", "seed": 3}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (notebook("print(1)", parameters=None), "expected one cell tagged 'parameters', found 0"),
        (notebook("print(dataset)"), "parameters that no cell reads: seed"),
        (notebook("seed = 5\nprint(dataset)"), "parameters that no cell reads: seed"),
        (notebook("print(dataset, 'seed')  # seed"), "parameters that no cell reads: seed"),
        (notebook("print(a)", parameters="a = 2 * 3\nb = a"), "must be a literal: a = 2 \\* 3"),
        (notebook("print(a)", parameters="a = list()"), "must be a literal"),
        (notebook("print(a)", parameters="import os\na = 1"), "more than assignments: import os"),
        (notebook("print(a, b)", parameters="a, b = 1, 2"), "more than assignments"),
        (notebook("print(a, b)", parameters="a = b = 1"), "more than assignments"),
    ],
)
def test_a_parameter_must_be_a_literal_that_a_later_cell_reads(content, expected):
    with pytest.raises(NotebookError, match=expected):
        runner.parameters(content)


def test_there_is_one_parameters_cell():
    content = notebook("print(dataset, seed)")
    content.cells.append(content.cells[1])
    with pytest.raises(NotebookError, match="expected one cell tagged 'parameters', found 2"):
        runner.parameters(content)


def test_a_cell_above_does_not_read_a_parameter():
    content = notebook()
    content.cells.insert(1, new_code_cell("print(dataset, seed)"))
    with pytest.raises(NotebookError, match="no cell reads: dataset, seed"):
        runner.parameters(content)


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(literals)
def test_a_literal_on_the_command_line_is_that_literal(value):
    assert runner.parse_parameter(f"name={value!r}") == ("name", value)


def test_what_is_no_literal_is_text_and_what_has_no_equals_sign_is_refused():
    assert runner.parse_parameter("dataset=orin-nano-25w") == ("dataset", "orin-nano-25w")
    assert runner.parse_parameter("path=a=b") == ("path", "a=b")
    with pytest.raises(NotebookError, match="NAME=VALUE, found 'seed'"):
        runner.parse_parameter("seed")


# Finding


def test_notebooks_are_found_by_the_beginning_of_their_names(place):
    place(**{"01_a": notebook(), "02_b": notebook(), "11_c": notebook()})
    assert [path.stem for path in runner.find()] == ["01_a", "02_b", "11_c"]
    assert [path.stem for path in runner.find(["02", "1"])] == ["02_b", "11_c"]
    with pytest.raises(NotebookError, match="no notebook starts with '03'; there are: 01_a, 02_b, 11_c"):
        runner.find(["01", "03"])


# Executing


@pytest.mark.slow
def test_a_notebook_runs_with_what_it_is_given_and_leaves_no_trace_of_when_and_where(place):
    code = (
        "import os\nprint(dataset, seed)\nos.environ['ESTIMATOR_OUTPUT'].endswith('out')",
        "from IPython.display import Markdown, display\ndisplay(Markdown('prose'))",
    )
    executed = run(place, notebook(*code), seed=8)
    assert texts(executed)[-2].startswith("bench 8\n")
    assert executed.cells[-2].outputs[1].data["text/plain"] == "True"
    assert [cell.execution_count for cell in executed.cells if cell.cell_type == "code"] == [1, 2, 3, 4]
    assert set(executed.metadata) == {"kernelspec", "language_info", "source_sha256"}
    assert all(set(cell.metadata) <= {"tags"} for cell in executed.cells)
    root = runner.NOTEBOOKS.parent
    text = (root / "out" / "n01_test.ipynb").read_text()
    assert str(root) not in text
    assert "papermill" not in text


@pytest.mark.slow
def test_running_again_changes_no_byte(place):
    root = place(
        **{
            "01_a": notebook(
                "import matplotlib.pyplot as plt\nfrom estimator_utils.reporting.report import Report",
                'report = Report("01", "orin-nano-virtual")',
                "figure, axes = plt.subplots()\naxes.plot([1, 2]);",
                'report.figure(figure, "line", "A caption.", "A rising line.")',
                "report.results(third=1 / 3, seed=seed, name=dataset)",
            )
        }
    )
    path = root / "notebooks" / "01_a.ipynb"
    assert runner.execute_all({}, None, jobs=1) == [path]
    first = contents(root)
    runner.execute(path, path, {}, root)
    assert contents(root) == first
    assert {"figures/01_line.png", "figures/01_line.pdf", "data/derived/results.json"} < set(first)
    runner.check_fresh(path)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_one_notebook_fails_by_name_and_cell_and_the_others_still_run(place):
    root = place(
        **{
            "01_good": notebook("print(dataset)", parameters='dataset = "bench"'),
            "02_bad": notebook("print(dataset)", "1 / 0", "print('never')", parameters='dataset = "bench"'),
            "03_dies": notebook("print(seed)\nimport os\nos._exit(1)", parameters="seed = 1"),
        }
    )
    with pytest.raises(NotebookError) as caught:
        runner.execute_all({"seed": 2}, root / "out", jobs=2)
    message = str(caught.value)
    assert message.startswith("2 of 3 notebooks failed:")
    assert f"02_bad.ipynb: In [3]: ZeroDivisionError: division by zero; traceback in {root}/out/02_bad" in message
    assert "03_dies.ipynb:" in message
    assert len(message.splitlines()) == 3
    assert sorted(path.name for path in (root / "out").iterdir()) == ["01_good.ipynb", "02_bad.ipynb"]
    assert "1 / 0" in (root / "out" / "02_bad.ipynb").read_text()


@pytest.mark.slow
def test_a_notebook_that_fails_in_place_keeps_its_committed_outputs(place):
    root = place(**{"01_bad": notebook("print(dataset, seed)", "1 / 0")})
    path = root / "notebooks" / "01_bad.ipynb"
    before = path.read_bytes()
    with pytest.raises(NotebookError, match=r"ZeroDivisionError: .*build/01_bad"):
        runner.execute_all({}, None, jobs=1)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_output_on_stderr_is_an_error(place):
    with pytest.raises(NotebookError, match=r"n01_test\.ipynb: cell 2 wrote to stderr: .*UserWarning: beware"):
        run(place, notebook("import warnings\nprint(dataset, seed)\nwarnings.warn('beware')"))


def test_a_misspelt_parameter_is_an_error_before_anything_runs(place):
    root = place(**{"01_a": notebook("print(dataset, seed)"), "02_b": notebook("print(x)", parameters="x = 1")})
    with pytest.raises(NotebookError, match=r"01_a\.ipynb: no parameter named sead; it has dataset, seed"):
        runner.execute(root / "notebooks" / "01_a.ipynb", root / "out.ipynb", {"sead": 1}, root)
    with pytest.raises(NotebookError, match="no notebook has a parameter named sead; known: dataset, seed, x"):
        runner.execute_all({"sead": 1, "x": 2}, root / "out")
    with pytest.raises(NotebookError, match="no notebook has a parameter named x"):
        runner.execute_all({"x": 2}, root / "out", only=["01"])
    assert not (root / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (notebook("print(dataset)"), r"02_b\.ipynb: parameters that no cell reads: seed"),
        (notebook("print(dataset, seed"), r"02_b\.ipynb: .*was never closed"),
        ("{", r"02_b\.ipynb: .*JSON"),
    ],
)
def test_an_unread_parameter_or_a_broken_notebook_is_an_error_by_name_before_anything_runs(place, content, expected):
    root = place(**{"01_a": notebook("print(dataset, seed)")})
    if isinstance(content, str):
        (root / "notebooks" / "02_b.ipynb").write_text(content)
    else:
        place(**{"02_b": content})
    with pytest.raises(NotebookError, match=expected):
        runner.execute_all({}, root / "out")
    assert not (root / "out").exists()


def test_an_unknown_dataset_is_an_error_before_anything_runs(place):
    root = place(**{"01_a": notebook("print(dataset, seed)")})
    with pytest.raises(DatasetError, match="'orin-nano-26w' is neither"):
        runner.execute_all({"dataset": "orin-nano-26w"}, root / "out")
    assert not (root / "out").exists()


def test_committed_notebooks_are_not_executed_in_place_with_other_parameters(place):
    place(**{"01_a": notebook("print(dataset, seed)")})
    with pytest.raises(NotebookError, match="in place"):
        runner.execute_all({"seed": 9}, None)


# Freshness


@pytest.fixture
def fresh(place) -> Path:
    """Return the path of a notebook with outputs that belong to it, as the runner leaves them."""
    content = notebook("print(dataset, seed)")
    for count, cell in enumerate((c for c in content.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
    content.metadata["source_sha256"] = runner.source_digest(content)
    return place(**{"01_a": content}) / "notebooks" / "01_a.ipynb"


def change(path: Path, what) -> None:
    content = nbformat.read(path, as_version=4)
    what(content)
    nbformat.write(content, path)


def test_outputs_of_the_same_sources_are_fresh(fresh):
    runner.check_fresh(fresh)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_changed_cell_makes_the_outputs_stale(fresh, position):
    change(fresh, lambda content: content.cells[position].update(source=content.cells[position].source + " "))
    with pytest.raises(NotebookError, match=r"01_a\.ipynb: outputs are stale: .*run 'make notebooks'"):
        runner.check_fresh(fresh)


@pytest.mark.parametrize("what", ["STYLE", "__file__"])
def test_a_changed_style_or_report_makes_the_outputs_stale(fresh, monkeypatch, tmp_path, what):
    """A figure depends on them as it does on its cells."""
    changed = tmp_path / "changed"
    changed.write_text(Path(getattr(report, what)).read_text() + "# changed\n")
    monkeypatch.setattr(report, what, changed)
    with pytest.raises(NotebookError, match=r"01_a\.ipynb: outputs are stale"):
        runner.check_fresh(fresh)


def test_a_removed_or_added_cell_makes_the_outputs_stale(fresh):
    change(fresh, lambda content: content.cells.append(new_markdown_cell("more", id="more")))
    with pytest.raises(NotebookError, match="stale"):
        runner.check_fresh(fresh)


def test_cells_run_out_of_order_or_not_at_all_are_an_error(fresh):
    change(fresh, lambda content: content.cells[2].update(execution_count=7))
    with pytest.raises(NotebookError, match=r"01_a\.ipynb: not run from top to bottom: \[1, 7\]"):
        runner.check_fresh(fresh)
    change(fresh, lambda content: content.cells[2].update(execution_count=None))
    with pytest.raises(NotebookError, match="not run from top to bottom"):
        runner.check_fresh(fresh)


def test_a_notebook_that_was_never_run_is_stale(place):
    root = place(**{"01_a": notebook("print(dataset, seed)")})
    with pytest.raises(NotebookError, match="stale"):
        runner.check_fresh(root / "notebooks" / "01_a.ipynb")


# Headline


def test_the_headline_names_dataset_kind_spread_and_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("ESTIMATOR_OUTPUT", str(tmp_path))
    numbers = {"mae_pct": 4.4783, "sd_pct": 3.78, "bias_pct": -0.4307, "failing_splits": 118, "n_splits": 200}
    Report("05", "orin-nano-virtual").results(eq1=numbers)
    line = runner.headline(tmp_path)
    for words in ("orin-nano-virtual (simulated data)", "4.478 %", "sd 3.780", "bias -0.431", "118 of 200 splits"):
        assert words in line


def test_without_the_evaluation_there_is_no_headline_but_no_error_either(tmp_path, monkeypatch):
    assert runner.headline(tmp_path) == f"notebooks in {tmp_path}"
    monkeypatch.setenv("ESTIMATOR_OUTPUT", str(tmp_path))
    Report("06", "orin-nano-virtual").results()
    assert runner.headline(tmp_path) == f"notebooks in {tmp_path}"
