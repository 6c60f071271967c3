"""The program itself: its commands, how a refusal reads, and what it exits with."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tomllib

import estimator_utils
from estimator_utils.cli import main as cli
from estimator_utils.cli import study
from estimator_utils.cli.main import COMMANDS, EXTRAS, main
from tests.support.repository import ROOT

EVALUATE = ["evaluate", "orin-nano-virtual-trial1", "--equation", "1"]


@pytest.fixture
def failing(monkeypatch, command):
    """Return a function that makes ``evaluate`` raise an error, and returns its exit status and stderr."""

    def run(error: BaseException) -> tuple[int, str]:
        def fail(options: object) -> None:
            raise error

        monkeypatch.setattr(study, "evaluate", fail)
        status, out, err = command(*EVALUATE)
        assert out == ""
        return status, err

    return run


@pytest.mark.slow
def test_the_module_runs_as_a_program():
    words = [sys.executable, "-m", "estimator_utils", "evaluate", "nowhere.csv", "--equation", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'nowhere.csv' is neither a file nor a registered dataset; registered: ")
    assert done.stdout == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_its_defaults(capsys, name):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert COMMANDS[name][1] in " ".join(out.split())
    assert "(default: None)" not in out
    assert "(default: False)" not in out


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"estimator-utils {estimator_utils.__version__}\n")


@pytest.mark.parametrize("words", [[], ["evaluat"], ["--evaluate"]])
def test_what_is_no_command_is_refused_with_the_usage(capsys, words):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: estimator " in capsys.readouterr().err


def test_a_field_in_a_message_is_named_as_its_flag_where_the_command_has_one(failing):
    message = "`n_train` and `overhead_max_w` of `runs`; n_train in words"
    expected = "error: --n-train and --overhead-max-w of `runs`; n_train in words\n"
    assert failing(ValueError(message)) == (1, expected)


@pytest.mark.parametrize(("extra", "module"), [(extra, m) for extra, modules in EXTRAS.items() for m in modules])
def test_a_module_that_is_not_installed_is_named_with_the_extra_that_brings_it(failing, extra, module):
    error = ModuleNotFoundError(f"No module named '{module}'", name=f"{module}.part")
    expected = f"error: this needs {module}.part: pip install 'estimator-utils[{extra}]'\n"
    assert failing(error) == (1, expected)


def test_a_module_that_no_extra_brings_is_named(failing):
    assert failing(ModuleNotFoundError("No module named 'jam'", name="jam")) == (1, "error: No module named 'jam'\n")


def test_the_extras_named_are_those_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    implied = {"nbformat"}  # by papermill and jupyterlab
    for extra, modules in EXTRAS.items():
        brought = {line.partition(">")[0] for line in declared[extra]}
        assert set(modules) - implied <= brought, extra


@pytest.mark.parametrize("error", [ValueError("so"), RuntimeError("so"), OSError("so")])
def test_a_refusal_is_one_line_and_status_1(failing, error):
    assert failing(error) == (1, "error: so\n")


def test_an_interruption_is_one_word_and_status_130(failing):
    assert failing(KeyboardInterrupt()) == (130, "interrupted\n")


def test_a_fault_of_the_program_is_not_made_a_refusal(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_offered_by_the_commands_that_answer(capsys, name):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert ("--json" in capsys.readouterr().out) == (name not in cli.WITHOUT_JSON)
