"""No number moves unseen: what commands and notebooks answer on the bundled data is what they answered before."""

from __future__ import annotations

import json

import pytest

from tests.support import golden


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((golden.GOLDEN / "commands.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    return golden.answers(tmp_path_factory.mktemp("golden"))


@pytest.mark.slow
def test_every_command_answers_as_before(expected, found):
    assert golden.differences(expected, found) == []


def test_a_moved_number_and_a_changed_text_are_seen(expected):
    changed = json.loads(json.dumps(expected))
    changed["fermi"]["flop"] *= 1 + 2e-6
    changed["fermi"]["inputs"]["chip"] = "V100"
    del changed["fermi"]["days"]
    faults = golden.differences(expected, changed)
    assert [fault.partition(":")[0] for fault in faults] == ["/fermi/days", "/fermi/flop", "/fermi/inputs/chip"]
