"""The house: two halves that do not mix, few levels, a core that needs numpy alone, functions of a readable size.

Read from the folders, by no list of modules: a new module is under these laws from its first line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import imports
from tests.support.imports import MODULES, NAME, PACKAGE

ROOT = PACKAGE.parent
FOLDERS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")})
VERIFIER = ("telemetry", "monitor", "estimation", "fleet")
OPERATOR = ("truth", "virtual", "counting")


def folder_of(module: str) -> str:
    """Return the folder of a module, or its own name where it lies beside the folders."""
    return module.split(".")[1] if "." in module else module


def modules_of(*folders: str) -> list[str]:
    return [module for module in MODULES if folder_of(module) in folders]


def arrows() -> dict[str, set[str]]:
    """Return which folders each folder imports, imports inside functions included."""
    found: dict[str, set[str]] = {}
    for module in MODULES:
        here = folder_of(module)
        there = {folder_of(name) for name in imports.imported(module) if name.startswith(f"{NAME}.")}
        found.setdefault(here, set()).update(there - {here})
    return found


def test_every_folder_is_known_to_belong_to_a_half_or_to_neither():
    meeting_places = {"datasets", "recording", "reporting", "cli"}
    assert set(FOLDERS) <= {*VERIFIER, *OPERATOR, *meeting_places}, "say to which half a new folder belongs"


@pytest.mark.parametrize("module", modules_of(*VERIFIER))
def test_what_a_verifier_sees_rests_on_nothing_that_only_the_operator_knows(module):
    reached = {folder_of(name) for name in imports.reached(module) if name.startswith(f"{NAME}.")}
    assert not reached & set(OPERATOR)


@pytest.mark.parametrize("module", modules_of("truth", "counting"))
def test_what_the_operator_knows_rests_on_nothing_that_is_measured(module):
    reached = {folder_of(name) for name in imports.reached(module) if name.startswith(f"{NAME}.")}
    assert not reached & set(VERIFIER)


@pytest.mark.parametrize("module", modules_of(*VERIFIER, "datasets"))
def test_no_import_has_a_name_that_cannot_be_read(module):
    assert not re.search(r"\b(import_module|__import__|exec|eval)\(", MODULES[module].read_text())


def test_folders_lie_on_at_most_five_levels_without_a_cycle():
    graph, levels = arrows(), {}

    def level(folder: str, above: tuple[str, ...] = ()) -> int:
        assert folder not in above, f"a cycle: {' -> '.join((*above, folder))}"
        if folder not in levels:
            levels[folder] = 1 + max((level(below, (*above, folder)) for below in graph[folder]), default=0)
        return levels[folder]

    beside = {NAME, "__main__"}  # the package's own file, and the door to the command line
    assert max(level(folder) for folder in graph if folder not in beside) <= 5


def test_a_package_re_exports_nothing():
    for path in PACKAGE.glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body
        assert [type(node).__name__ for node in body] == ["Expr"], f"{path.parent.name}: a docstring and no more"


# The core: what a board needs. Data sets without pandas, telemetry, the monitor, calibrations.

PANDAS = {f"{NAME}.datasets.runs_table"}
CORE = [m for m in modules_of("datasets", "telemetry", "monitor") if m not in PANDAS] + [
    f"{NAME}.estimation.calibration"
]
# Imported inside functions, where they are needed: by a command that an extra gives.
LAZY = {
    f"{NAME}.datasets.registry": {"pooch", "pandas"},  # fetching, and tables
    f"{NAME}.monitor.integrate": {"numpy"},
    f"{NAME}.monitor.log": {"pandas"},  # export to Parquet
    f"{NAME}.monitor.view": {"matplotlib", "numpy"},  # drawings
    f"{NAME}.telemetry.jtop": {"jtop"},
}


@pytest.mark.parametrize("module", CORE)
def test_the_core_needs_the_standard_library_and_numpy_alone(module):
    own = {name.partition(".")[0] for name in imports.imported(module)} - sys.stdlib_module_names - {NAME}
    now = {name.partition(".")[0] for name in imports.imported(module, lazy=False)} - sys.stdlib_module_names - {NAME}
    assert now <= {"numpy"}
    assert own <= {"numpy", *LAZY.get(module, ())}, "say why, in LAZY"
    inside = {name for name in imports.imported(module, lazy=False) if name.startswith(f"{NAME}.")}
    assert inside <= {NAME, *CORE, *(f"{NAME}.{folder}" for folder in FOLDERS)}


@pytest.mark.slow
def test_the_core_runs_without_the_rest():
    """In a Python that has the rest installed, and does not import it."""
    probe = f"import sys, {NAME}.cli.board; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not {"torch", "pandas", "statsmodels", "matplotlib", "papermill"} & loaded
    assert not {name for name in done.stdout.split() if any(f"{NAME}.{half}" in name for half in OPERATOR)}


def test_the_reader_of_imports_sees_lazy_and_relative_ones():
    registry = f"{NAME}.datasets.registry"
    assert f"{NAME}.datasets.runs_table" in imports.imported(registry)
    assert f"{NAME}.datasets.runs_table" not in imports.imported(registry, lazy=False)
    assert f"{NAME}.telemetry.source" in imports.reached(f"{NAME}.cli.board")


def test_every_source_file_lies_in_a_folder_of_its_idea():
    beside = {path.name for path in PACKAGE.glob("*.py")}
    assert beside == {"__init__.py", "__main__.py", "processes.py"}
    assert Path(PACKAGE / "py.typed").exists()
