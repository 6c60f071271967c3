"""The bundled data set: written anew byte for byte, and said to be simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator_utils.cli.main import main
from estimator_utils.datasets import registry
from estimator_utils.virtual.bundle import BUNDLE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_bundle_is_written_anew_byte_for_byte(tmp_path, capsys):
    assert main(["virtual-board", "--output", str(tmp_path / "anew")]) == 0
    assert "simulated" in capsys.readouterr().out
    bundled = ROOT / "data" / BUNDLE
    files = sorted(p.relative_to(bundled) for p in bundled.rglob("*") if p.is_file() and p.name != "README.md")
    assert files == sorted(p.relative_to(tmp_path / "anew") for p in (tmp_path / "anew").rglob("*") if p.is_file())
    assert [f for f in files if (bundled / f).read_bytes() != (tmp_path / "anew" / f).read_bytes()] == []
    sizes = [(bundled / f).stat().st_size for f in files]
    assert max(sizes) < 1_500_000
    assert sum(sizes) < 10_000_000


def test_the_bundle_is_the_default_and_says_that_it_is_simulated():
    assert registry.collections()[0] == BUNDLE
    trials = registry.trials(BUNDLE)
    assert [len(t.runs) for t in trials] == [38, 26, 26]
    assert {t.metadata.kind for t in trials} == {"simulated"}
    assert all(not t.metadata.device.startswith("NVIDIA") for t in trials)
    assert len(set(trials[1].runs.energy_net_j) & set(trials[2].runs.energy_net_j)) == 0
    trace = registry.trace(BUNDLE)
    assert trace.launch_s == 60.0
    assert trace.end_s < trace.t_s[-1] - 50
    assert registry.trace(BUNDLE, "spoof").run == "memory_spoof"
