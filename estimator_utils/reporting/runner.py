"""Strict headless execution of the notebooks: papermill, with every slip an error.

A misspelt or unread parameter, a failing cell, output on stderr or a stale committed output is an error. Outputs
are normalised, so that running again on the same machine gives the same bytes.
"""

import ast
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm
from traitlets.config import Config

from estimator_utils.datasets import registry
from estimator_utils.datasets.locations import bundled
from estimator_utils.processes import process_pool
from estimator_utils.reporting import report
from estimator_utils.reporting.report import build_folder

NOTEBOOKS = bundled("notebooks")
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_IPC = Config({"KernelManager": {"transport": "ipc"}})  # no TCP port: several kernels never collide
_KERNEL = {"kernel_name": "python3", "progress_bar": False, "config": _IPC}


class NotebookError(RuntimeError):
    """A notebook that failed, or is not as it must be."""


# A kernel that died, a cell that does not parse, a file that is no notebook.
_BROKEN = (RuntimeError, SyntaxError, ValueError, nbformat.ValidationError)


def find(only: Sequence[str] = ()) -> list[Path]:
    """Return the notebooks in order; ``only`` selects by the beginning of their names, such as "05"."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    for prefix in only:
        if not any(path.name.startswith(prefix) for path in paths):
            raise NotebookError(f"no notebook starts with {prefix!r}; there are: {', '.join(p.stem for p in paths)}")
    return [path for path in paths if not only or path.name.startswith(tuple(only))]


def parameters(notebook: Any) -> dict[str, Any]:
    """Return the parameters of a notebook and their defaults, the literals of the cell tagged ``parameters``.

    Raises
    ------
    NotebookError
        No such cell; anything but literals in it; a parameter that no later cell reads.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [i for i, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise NotebookError(f"expected one cell tagged 'parameters', found {len(tagged)}")
    values = {}
    for statement in ast.parse(code[tagged[0]].source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case _:
                raise NotebookError(f"the parameters cell holds more than assignments: {ast.unparse(statement)}")
        try:
            values[name] = ast.literal_eval(value)
        except ValueError as error:
            raise NotebookError(f"a parameter must be a literal: {ast.unparse(statement)}") from error
    later = [node for cell in code[tagged[0] + 1 :] for node in ast.walk(ast.parse(cell.source))]
    read = {node.id for node in later if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if unread := sorted(set(values) - read):
        raise NotebookError(f"parameters that no cell reads: {', '.join(unread)}")
    return values


def source_digest(notebook: Any) -> str:
    """Return the digest of what a notebook's outputs belong to: its cells, the figures' style, the report."""
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    style = [path.read_text(encoding="utf-8") for path in (report.STYLE, Path(report.__file__))]
    return hashlib.sha256(repr((cells, style)).encode()).hexdigest()


def check_fresh(path: Path) -> None:
    """Raise NotebookError where a committed notebook's outputs are not those of its sources, or not in order."""
    notebook = nbformat.read(path, as_version=4)
    if notebook.metadata.get("source_sha256") != source_digest(notebook):
        changed = "its cells, the figures' style or the report changed since"
        raise NotebookError(f"{path.name}: outputs are stale: {changed}; run 'make notebooks'")
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        raise NotebookError(f"{path.name}: not run from top to bottom: {counts}; run 'make notebooks'")


def execute(source: Path, target: Path, given: Mapping[str, Any], output: Path) -> Path:
    """Execute one notebook in a fresh kernel and write it, normalised, to ``target``.

    Parameters
    ----------
    source, target : Path
    given : mapping
        Parameters to inject; each must be one that the notebook has.
    output : Path
        Folder of its figures and results.

    Raises
    ------
    NotebookError
        Naming the notebook, and the cell where one failed; the output is kept, with its traceback.
    """
    try:
        notebook = nbformat.read(source, as_version=4)
        known = parameters(notebook)
        if unknown := sorted(set(given) - set(known)):
            raise NotebookError(f"no parameter named {', '.join(unknown)}; it has {', '.join(known)}")
        changed = {key: value for key, value in given.items() if value != known[key]}
        os.environ[report.OUTPUT] = str(output)
        with tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch) / source.name
            try:
                papermill.execute_notebook(str(source), str(raw), changed, cwd=scratch, **_KERNEL)
            except PapermillExecutionError as error:
                kept = target if target != source else build_folder() / source.name
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(raw, kept)
                fault = f"{error.ename}: {error.evalue}"
                raise NotebookError(f"In [{error.exec_count}]: {fault}; traceback in {kept}") from error
            executed = nbformat.read(raw, as_version=4)
        _normalise(executed, source_digest(notebook))
    except (papermill.PapermillException, *_BROKEN) as error:
        raise NotebookError(f"{source.name}: {' '.join(str(error).split())}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(executed, target)
    return target


def execute_all(given: Mapping[str, Any], output: Path | None, only: Sequence[str] = (), jobs: int = 2) -> list[Path]:
    """Execute notebooks side by side, with progress; the committed ones in place where ``output`` is None.

    Where one notebook fails the others still run.

    Parameters
    ----------
    given : mapping
        Parameters: each goes to the notebooks that have it, and must be one of some notebook.
    output : Path or None
    only : sequence of str
        Beginnings of notebook names.
    jobs : int
        Notebooks at once.

    Raises
    ------
    NotebookError
        Naming every notebook that failed.
    """
    if jobs < 1:
        raise NotebookError(f"`jobs` must be 1 or more, found {jobs}")
    if given and output is None:
        raise NotebookError(f"executed in place the defaults hold, and {', '.join(given)} would be committed")
    own = {path: _parameter_names(path) for path in find(only)}
    known = sorted(set().union(*own.values()))
    if unknown := sorted(set(given) - set(known)):
        raise NotebookError(f"no notebook has a parameter named {', '.join(unknown)}; known: {', '.join(known)}")
    given = _with_data(given)
    folder = NOTEBOOKS.parent if output is None else output.resolve()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    faults, done = [], []
    with process_pool(jobs) as pool:
        futures = []
        for path, names in own.items():
            target = path if output is None else output / path.name
            parts = {key: value for key, value in given.items() if key in names}
            futures.append(pool.submit(execute, path, target, parts, folder))
        for future in tqdm(as_completed(futures), total=len(futures), unit="notebook"):
            try:
                done.append(future.result())
            except NotebookError as error:
                faults.append(str(error))
    if faults:
        raise NotebookError(f"{len(faults)} of {len(own)} notebooks failed:\n" + "\n".join(faults))
    return sorted(done)


def _with_data(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fetch the collection that is named; a folder is named in full, since notebooks run in another directory."""
    if "dataset" not in given:
        return given
    for entry in registry.members(given["dataset"]).values():
        registry.fetch(entry)
    is_folder = Path(given["dataset"], "dataset.json").is_file()
    return {**given, "dataset": str(Path(given["dataset"]).resolve())} if is_folder else given


def _parameter_names(path: Path) -> set[str]:
    try:
        return set(parameters(nbformat.read(path, as_version=4)))
    except _BROKEN as error:
        raise NotebookError(f"{path.name}: {error}") from error


def parse_parameter(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; the value is a Python literal, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise NotebookError(f"a parameter is NAME=VALUE, found {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def headline(output: Path) -> str:
    """Return the study's headline as notebook 05 computed it into ``output``."""
    path = output / "data" / "derived" / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "05" not in results:
        return f"notebooks in {output}"
    r = results["05"]
    return (
        f"{r['dataset']} ({r['kind']} data): mean absolute held-out error of Eq. 1 {r['eq1']['mae_pct']:.3f} %, "
        f"sd {r['eq1']['sd_pct']:.3f}, bias {r['eq1']['bias_pct']:.3f}, a workload off by 10 % or more in "
        f"{r['eq1']['failing_splits']} of {r['eq1']['n_splits']} splits; notebooks in {output}"
    )


def _normalise(notebook: Any, digest: str) -> None:
    """Drop what differs from run to run: timings, paths, machine names."""
    notebook.metadata = nbformat.from_dict({**METADATA, "source_sha256": digest})
    for number, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.from_dict({key: v for key, v in cell.metadata.items() if key == "tags"})
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        for out in cell.get("outputs", []):
            if out.get("name") == "stderr":
                raise NotebookError(f"cell {number} wrote to stderr: {out.text.strip()[:500]}")
            out.get("metadata", {}).pop("papermill", None)
