import os

import pytest

from estimator_utils.telemetry import factories
from estimator_utils.telemetry.factories import open_source
from estimator_utils.telemetry.source import SourceError
from estimator_utils.telemetry.sysfs import Sysfs
from tests.support.player import Board


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board whose files stand for /sys, and nothing else of which a program could be found."""
    board = Board(tmp_path / "sys")
    monkeypatch.setattr(factories, "SYS", board.root)
    monkeypatch.setenv("PATH", str(tmp_path))
    return board


@pytest.mark.parametrize("name", ["", "nvml", "sysfs2", "smi", "replay", "auto:x", "jtop:fast", "tegrastats:x#0"])
def test_an_unknown_source_is_refused(name):
    with pytest.raises(SourceError, match="expected a source sysfs"):
        open_source(name)


def test_the_first_source_with_power_is_chosen(board, tmp_path):
    with open_source("auto") as source:
        assert isinstance(source, Sysfs)
    board.put(board.current(2), 0)  # all there, and no reading
    script = tmp_path / "tegrastats"
    line = "RAM 1/7620MB VDD_CPU_GPU_CV 7104mW/4944mW"
    script.write_text(f"#!/bin/sh\nwhile :; do echo '{line}'; /bin/sleep 0.1; done\n")
    script.chmod(0o755)
    with open_source("auto") as source:
        assert source.name == "tegrastats"


# HazyResearch/intelligence-per-watt #40, cosmos-reason1 #61: a library imports, and no query of it is answered.
@pytest.mark.slow
@pytest.mark.skipif(os.path.exists("/run/jtop.sock"), reason="a real jtop runs here")
def test_without_power_anywhere_each_source_has_its_reason(board):
    board.put(board.current(2), 0)
    reasons = r"(?s)sysfs: .*0 W.*tegrastats: .*cannot start.*jtop: .*(not active|No module named)"
    with pytest.raises(SourceError, match=reasons):
        open_source("auto")


def test_each_sample_names_its_source(board, tmp_path):  # zeus #181, #12: two sources of one board disagree
    assert open_source(f"sysfs:{board.root}").read().source == f"sysfs:{board.root}"
    log = tmp_path / "smi.csv"
    log.write_text("timestamp, power.draw [W]\n2025/07/27 00:34:45.155, 90 W\n")
    assert next(iter(open_source(f"smi:{log}"))).source == f"smi:{log}"
