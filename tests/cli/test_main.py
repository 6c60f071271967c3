from __future__ import annotations

import subprocess
import sys

import pytest

from estimator_utils.cli.main import main

pytestmark = pytest.mark.slow  # starts processes, or dispatches whole training steps


def test_the_module_runs_as_a_program():
    words = [sys.executable, "-m", "estimator_utils", "evaluate", "nowhere.csv", "--equation", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'nowhere.csv' is neither a file nor a registered dataset; registered: ")
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["fetch", "workload", "calibrate", "evaluate", "estimate", "notebooks"])
def test_every_command_explains_itself(capsys, name):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert name in capsys.readouterr().out
