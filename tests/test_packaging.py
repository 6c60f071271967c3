"""What is declared, locked and built agrees, and a wheel works outside the clone with what its extras bring."""

import importlib.metadata
import itertools
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomllib
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pip._internal.req.constructors import install_req_from_parsed_requirement
from pip._internal.req.req_file import parse_requirements
from pip._internal.req.req_install import InstallRequirement, check_invalid_constraint_type

import estimator_utils
from tests.support import golden, imports, wheels
from tests.support.imports import MODULES, NAME
from tests.support.repository import ROOT, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def declared(*extras: str) -> dict[str, Requirement]:
    """Return what the project asks for with some extras, and with the extras that those name in turn."""
    found: dict[str, Requirement] = {}
    for line in [*PROJECT["dependencies"], *itertools.chain.from_iterable(EXTRAS[name] for name in extras)]:
        requirement = Requirement(line)
        is_own = requirement.name == PROJECT["name"]
        found |= declared(*requirement.extras) if is_own else {canonicalize_name(requirement.name): requirement}
    return found


def variable(name: str) -> str:
    """Return what a variable of the Makefile is set to."""
    return re.search(rf"^{name} := (.*)$", MAKEFILE, re.MULTILINE)[1]


def read_by_pip(path: Path, is_constraint: bool = False) -> list[InstallRequirement]:
    """Return a file's lines as pip itself reads them."""
    lines = parse_requirements(str(path), session=None, constraint=is_constraint)  # a session is for addresses
    return [install_req_from_parsed_requirement(line) for line in lines]


@pytest.fixture(scope="module")
def installed() -> set[str]:
    """Return the names of all that make installs, read from what is installed."""
    asked = declared(*variable("EXTRAS").split(","))
    return {canonicalize_name(found.name) for found in wheels.distributions(asked.values())}


# What is declared


def test_the_core_asks_for_numpy_alone():
    assert set(declared()) == {"numpy"}


def test_what_is_licensed_agpl_comes_only_where_it_is_asked_for(installed):
    assert "jetson-stats" in declared("jetson")
    assert "jetson-stats" not in installed | declared(*EXTRAS.keys() - {"jetson"}).keys()


def test_lower_bounds_are_declared_and_an_upper_one_of_torch_alone():
    operators = {name: {s.operator for s in r.specifier} for name, r in declared(*EXTRAS).items()}
    assert operators.pop("torch") == {">=", "<"}
    assert {frozenset(found) for found in operators.values()} == {frozenset({">="})}


def test_the_package_imports_what_is_declared_or_comes_with_it(installed):
    providers = importlib.metadata.packages_distributions()
    known = {NAME, "jtop", *sys.stdlib_module_names}  # jtop: of jetson-stats, which is not installed everywhere
    for module in MODULES:
        for name in {full.partition(".")[0] for full in imports.imported(module)} - known:
            assert {canonicalize_name(p) for p in providers.get(name, [])} & installed, f"{module} imports {name}"


def test_the_version_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == estimator_utils.__version__
    assert f"## {estimator_utils.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]


# The lock


@pytest.fixture(scope="module")
def locked() -> dict[str, InstallRequirement]:
    """Return the lock's lines by normal name, read by pip as constraints."""
    lines = read_by_pip(ROOT / "requirements.lock", is_constraint=True)
    assert [problem for line in lines if (problem := check_invalid_constraint_type(line))] == []
    found = {canonicalize_name(line.name): line for line in lines}
    assert len(found) == len(lines), "one version of each, for every Python and machine"
    return found


def pinned(requirement: InstallRequirement) -> str:
    (specifier,) = requirement.specifier
    return specifier.version


def test_the_lock_pins_public_versions(locked):
    operators = {s.operator for r in locked.values() for s in r.specifier}
    assert operators == {"=="}
    assert [str(r) for r in locked.values() if re.search(r"[+*]", pinned(r))] == []


def test_the_lock_satisfies_what_is_declared(locked):
    for name, requirement in declared(*EXTRAS).items():
        assert name in locked, f"{name} is not in requirements.lock: run 'make lock'"
        assert requirement.specifier.contains(pinned(locked[name])), f"{requirement}: run 'make lock'"


def test_the_lock_holds_all_that_is_installed(locked, installed):
    assert len(installed) > 100
    assert installed - set(locked) == set(), "run 'make lock'"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_pins_what_a_torch_from_the_registry_asks_for(locked, machine):
    lines = (ROOT / "tests" / "oracles" / f"torch_{pinned(locked['torch'])}.txt").read_text(encoding="utf-8")
    linux = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine}
    for requirement in map(Requirement, re.findall(r"^[^#].*$", lines, re.MULTILINE)):
        pin = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned(pin)), requirement
        assert pin.markers is None or pin.markers.evaluate(linux), requirement


# The conda environment

# A name, a space, and versions with operators, comma between: the part of conda's match specifications used here.
_OPERATOR = r"(?:[<>]=?|[!=]=)\d[\w.]*"
MATCH = re.compile(rf"([a-z0-9][a-z0-9._-]*)(?: ({_OPERATOR}(?:,{_OPERATOR})*))?")
RENAMED = {"matplotlib-base": "matplotlib", "python-build": "build", "pytorch": "torch", "seaborn-base": "seaborn"}


def test_conda_and_its_pip_read_what_make_installs(tmp_path, monkeypatch):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert set(environment) == {"name", "channels", "dependencies"}
    *matches, pip = environment["dependencies"]
    assert [line for line in matches if not MATCH.fullmatch(line)] == []
    versions = dict(MATCH.fullmatch(line).groups(default="") for line in matches)
    assert versions.pop("python") == f">={variable('PYTHON_MIN')}"
    assert versions.pop("pip") == ""
    (tmp_path / "pip.txt").write_text("\n".join(pip["pip"]))
    monkeypatch.chdir(ROOT)  # where conda's pip reads '-e .'
    own, *others = sorted(read_by_pip(tmp_path / "pip.txt"), key=lambda line: not line.editable)
    assert Path(own.unpacked_source_directory) == ROOT
    asked = {RENAMED.get(name, name): SpecifierSet(version) for name, version in versions.items()}
    asked |= {canonicalize_name(line.name): SpecifierSet(str(line.specifier)) for line in others}
    assert asked == {name: r.specifier for name, r in declared(*variable("EXTRAS").split(",")).items()}


# make


def make(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    words = ("make", "--no-print-directory", *words)  # the tests may be run by make
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def test_make_alone_says_what_there_is():
    targets = re.findall(r"^\.PHONY: (\w+)$", MAKEFILE, re.MULTILINE)
    assert {"reproduce", "test", "fast"} < set(targets)
    assert [line.split()[0] for line in make().stdout.splitlines()] == targets


def test_make_refuses_an_older_python_in_one_line(tmp_path):
    older = tmp_path / "python"
    older.write_text("#!/bin/sh\necho False\n")
    older.chmod(0o755)
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "setup.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = make("test", f"PYTHON={older}", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = (done.stdout + done.stderr).splitlines()
    assert f"Python {variable('PYTHON_MIN')} or later is needed" in line
    assert not (tmp_path / ".venv").exists()


# The distributions, and the wheel used outside the clone


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """Return a new source distribution, and the wheel built of it."""
    return wheels.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """Return a function that makes an environment outside the clone of the wheel with some extras."""

    def make_environment(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("-".join(["with", *extras]))
        return wheels.environment(folder, built[1], declared(*extras).values())

    return make_environment


def estimator(environment: Path, *words: object) -> str:
    return wheels.call(environment / "bin" / "estimator", *map(str, words), cwd=environment)


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((golden.GOLDEN / "commands.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_source_distribution_holds_the_repository(built):
    with tarfile.open(built[0]) as archive:
        held = {name.partition("/")[2] for member in archive if member.isfile() and (name := member.name)}
    made = {name for name in held if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert held - made == {str(path.relative_to(ROOT)) for path in tracked()}


@pytest.mark.slow
def test_the_wheel_holds_package_data_and_notebooks_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {str(path.relative_to(ROOT)) for path in tracked()}
    package = {name for name in files if name.startswith(f"{NAME}/")}
    beside = {f"{NAME}/{name}" for name in files if name.startswith(("data/", "notebooks/"))}
    assert held == package | beside


@pytest.mark.slow
def test_the_core_of_the_wheel_monitors_a_replay_with_numpy_alone(environment, expected, tmp_path):
    golden.ask("calibrate", golden.TABLES[0], "--equation", 1, "-o", tmp_path / "eq1.json")
    core = environment()
    probe = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    assert set(wheels.call(core / "bin" / "python", "-c", probe, cwd=core).split()) == {"estimator-utils", "numpy"}
    words = ("--source", "replay:orin-nano-virtual", "--calibration", tmp_path / "eq1.json", "--speed", 0)
    estimator(core, "monitor", *words, "--log", core / "log.sqlite")
    (found,) = json.loads(estimator(core, "sessions", core / "log.sqlite", "--json"))
    (known,) = expected["sessions of replay:orin-nano-virtual-trace"]
    assert found["estimate_tflop"] == pytest.approx(known["estimate_tflop"], rel=1e-6)


@pytest.mark.slow
def test_the_wheel_with_the_extra_study_calibrates_and_evaluates_as_the_clone(environment, expected):
    study = environment("study")
    for command in (f"{verb} {golden.TABLES[0]} --equation 1" for verb in ("calibrate", "evaluate")):
        found = json.loads(estimator(study, *command.split(), "--json"))
        assert golden.differences(expected[command], found) == []


@pytest.mark.slow
def test_the_wheel_with_the_extra_notebooks_executes_one(environment):
    folder = environment("notebooks")
    estimator(folder, "notebooks", "--only", "05", "--output", folder / "out")
    found = json.loads((folder / "out" / "data" / "derived" / "results.json").read_text(encoding="utf-8"))
    known = json.loads((golden.GOLDEN / "results.json").read_text(encoding="utf-8"))
    assert golden.differences({"05": known["05"]}, found) == []
