"""The keys that docs/json.md names are those that the commands answer."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from estimator_utils.datasets.dataset import Metadata
from tests.support import golden

CONTRACT = Path(__file__).resolve().parents[2] / "docs" / "json.md"


def documented(command: str) -> set[str]:
    """Return the keys that docs/json.md names for a command."""
    section = CONTRACT.read_text(encoding="utf-8").split(f"\n## {command}\n")[1].split("\n## ")[0]
    cells = [row.split(" | ")[0] for row in re.findall(r"^\| (`.*)", section, re.MULTILINE)]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("command", ["calibrate", "evaluate", "estimate", "fermi", "workload", "monitor", "sessions"])
def test_the_documented_keys_are_those_that_a_command_answers(command):
    answers = json.loads((golden.GOLDEN / "commands.json").read_text(encoding="utf-8"))
    found = {
        frozenset(row)
        for name, answer in answers.items()
        if name.split()[0] == command
        for row in (answer if isinstance(answer, list) else [answer])
    }
    keys = documented(command)
    if command == "workload":  # the golden ones only count
        keys -= {"device", "duration_s"}
    if command == "sessions":
        keys |= documented("monitor")
    assert found == {frozenset(keys)}


def test_the_documented_keys_of_a_recording_are_those_of_the_metadata():
    assert documented("record") == {field.name for field in fields(Metadata)}
