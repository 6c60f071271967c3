"""Commands run in this process."""

from __future__ import annotations

import json

import pytest

from estimator_utils.cli.main import main


@pytest.fixture
def command(capsys):
    """Return a function that runs a command and returns its exit status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def ask(command):
    """Return a function that runs a command with ``--json`` and returns its one object."""

    def run(*words: object) -> dict:
        status, out, err = command(*words, "--json")
        assert (status, err) == (0, "")
        assert out.count("\n") == 1
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return run


@pytest.fixture
def refused(command):
    """Return a function that runs a command that must fail, and returns its one line on stderr."""

    def run(*words: object) -> str:
        status, out, err = command(*words)
        assert (status, out) == (1, "")
        assert err.startswith("error: ")
        assert "Traceback" not in err
        return err

    return run
