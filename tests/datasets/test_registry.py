from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import DatasetError, Metadata, Trace, sha256, write_dataset
from estimator_utils.datasets.registry import Entry
from estimator_utils.datasets.study_format import DRAM_COUNTER_FACTOR
from estimator_utils.estimation.calibration import Run
from tests.support import fits, synthetic

STUDY = "orin-nano-25w"


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """Point the study's data at a folder with nothing in it, and return where its files would lie."""
    monkeypatch.setenv("ESTIMATOR_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orin-nano"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a dataset folder of two simulated trials and a trace."""
    about = Metadata("bench", kind="simulated", device="a board", rail="VDD", power_mode="15W", precisions="fp32")
    tables = {f"trial{i}": synthetic.runs(9, seed=i).to_dict("records") for i in (1, 2)}
    trace = Trace((0.0, 1.0), (0.6, 8.0), (None, 0.9), (None, 1e9), run="run0", start_s=0.5)
    write_dataset(tmp_path / "bench", about, tables, {"trace": trace})
    return tmp_path / "bench"


# The registry


def test_a_data_set_is_added_by_a_file_alone(monkeypatch, tmp_path, folder):
    """Bundled: a folder of data/; fetched: what its index says, with a place and digests."""
    data, fetched = tmp_path / "data", tmp_path / "fetched"
    (data / "registry").mkdir(parents=True)
    shutil.copytree(folder, data / "bench")
    index = json.loads((folder / "dataset.json").read_text())
    (data / "registry" / "bench.json").write_text('{"bundled": "bench"}')
    index |= {"name": "afar", "url": "https://example.org/", "folder": "afar"}
    index["tables"]["trial2"] |= {"fetch": "deep/t2.csv", "date": "2026-01-02"}
    (data / "registry" / "afar.json").write_text(json.dumps(index))
    monkeypatch.setattr(registry, "data_folder", lambda: data)
    monkeypatch.setenv("ESTIMATOR_DATA_DIR", str(fetched))
    assert registry.collections() == ["bench", "afar"]  # the bundled ones first
    assert len(registry.trials("bench")) == 2
    entry = registry.registry()["afar-trial2"]
    assert (entry.url, entry.path) == ("https://example.org/deep/t2.csv", fetched / "afar" / "trial2.csv")
    assert (entry.metadata.date, entry.metadata.rail) == ("2026-01-02", "VDD")
    assert registry.registry()["afar-trial1"].url == "https://example.org/trial1.csv"
    assert registry.registry()["afar-trace"].role == "trace"


def test_the_study_s_collection_has_its_four_files_under_the_agreed_names():
    names = {f"{STUDY}-{key}" for key in ("trial1", "trial2", "trial3", "trace")}
    assert names <= set(registry.registry())
    assert STUDY == "orin-nano-25w"
    assert registry.collections()[-1] == STUDY


def test_every_entry_says_what_it_is():
    for name, entry in registry.registry().items():
        about = entry.metadata
        assert about.name == name
        assert about.kind in ("recorded", "simulated")
        assert all((about.device, about.rail, about.power_mode, about.precisions, about.licence)), name
        assert len(entry.sha256) == 64
        assert entry.role in ("table", "trace")
        assert entry.url is not None or entry.path.is_file()


def test_the_study_s_files_come_from_a_pinned_commit():
    for entry in registry.members(STUDY).values():
        assert "/e7fff84e4779ef2590b56987ec001225430b8836/" in entry.url
        assert entry.url.startswith("https://")


def test_the_data_folder_can_be_chosen(empty_cache):
    assert {entry.path.parent for entry in registry.members(STUDY).values()} == {empty_cache}


@pytest.mark.parametrize("ask", [registry.load, registry.members, registry.fetch, registry.trials])
def test_an_unknown_dataset_is_an_error_that_lists_the_known(ask):
    with pytest.raises(DatasetError, match=r"'orin-nano-26w' is neither .* registered: .*orin-nano-25w-trial1"):
        ask("orin-nano-26w")


def test_a_trace_is_not_a_table_and_the_other_way_round(folder):
    with pytest.raises(DatasetError, match="orin-nano-25w-trace is a trace, not a table"):
        registry.load(f"{STUDY}-trace")
    with pytest.raises(DatasetError, match="holds no trace 'trial1'; it holds: trace"):
        registry.trace(folder, "trial1")
    with pytest.raises(DatasetError, match="holds no table 'trace'; it holds: trial1, trial2"):
        registry.table(folder, "trace")


# Fetching. Served from this machine, since tests use no network.


@pytest.fixture
def served(tmp_path):
    """Serve a file over HTTP from this machine; return its entry in a registry of our own."""
    content = b"t_s,power_w,gpu_util,dram_bytes_per_s\n0,1,,\n"
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "trace.csv").write_bytes(content)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=tmp_path / "public", **kwargs)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    digest = hashlib.sha256(content).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/trace.csv"
    try:
        socket.create_connection(server.server_address).close()
    except OSError:
        server.server_close()
        pytest.skip("needs the loopback interface, which is down here")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Entry(Metadata("far", licence="none"), tmp_path / "cache" / "trace.csv", digest, "trace", url)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_downloaded_once_and_then_used_without_a_network(served):
    assert not served.path.exists()
    assert registry.fetch(served) == served.path
    assert sha256(served.path) == served.sha256
    unreachable = replace(served, url="http://127.0.0.1:9/trace.csv")
    assert registry.fetch(unreachable) == served.path


def test_a_download_with_another_digest_is_refused_and_not_kept(served):
    other = replace(served, sha256="0" * 64)
    with pytest.raises(DatasetError, match=r"far: digest failed: .*trace\.csv holds is not 0000") as caught:
        registry.fetch(other)
    assert "connect to a network" not in str(caught.value)
    assert not other.path.exists()


def test_an_address_that_is_gone_is_an_error_that_names_it(served):
    gone = replace(served, url=served.url.replace("trace", "gone"))
    with pytest.raises(DatasetError, match=r"far: no copy at .*trace\.csv, and the download of .*gone\.csv failed"):
        registry.fetch(gone)


def test_without_network_and_cache_the_error_says_what_to_do(empty_cache):
    with pytest.raises(
        DatasetError, match=r"orin-nano-25w-trial1: no copy at .*eval_results_v2_records\.json"
    ) as caught:
        registry.load(f"{STUDY}-trial1")
    advice = ("connect to a network", "put the file there", "set ESTIMATOR_DATA_DIR")
    assert all(words in str(caught.value) for words in advice)


def test_a_spoilt_copy_is_refused_and_left_alone(empty_cache):
    empty_cache.mkdir(parents=True)
    path = empty_cache / "timeseries.json"
    path.write_text("{}")
    with pytest.raises(DatasetError, match=r"timeseries\.json: digest failed: expected 90c76152.*, found .*; delete"):
        registry.trace(STUDY)
    assert path.read_text() == "{}"


def test_a_spoilt_file_of_a_folder_is_refused(folder):
    with (folder / "trial2.csv").open("a") as file:
        file.write("\n")
    with pytest.raises(DatasetError, match=r"trial2\.csv: digest failed: .*restore it with git"):
        registry.trials(folder)
    (folder / "trial2.csv").unlink()
    with pytest.raises(DatasetError, match=r"trial2\.csv: missing, though its dataset\.json names it"):
        registry.trials(folder)


# Loading


def test_a_folder_gives_its_trials_and_its_trace_with_what_it_says(folder):
    first, second = registry.trials(folder)
    assert (first.metadata.name, second.metadata.name) == ("bench-trial1", "bench-trial2")
    assert first.metadata.kind == "simulated"
    assert first.runs.energy_net_j.tolist() == synthetic.runs(9, seed=1).energy_net_j.tolist()
    assert first.sha256 == sha256(folder / "trial1.csv")
    assert registry.trace(folder).start_s == 0.5
    assert registry.table(folder, "trial2").sha256 == second.sha256


def test_a_file_of_a_folder_knows_what_the_folder_says(folder):
    assert registry.load(folder / "trial1.csv").metadata.power_mode == "15W"


def test_a_bare_file_says_nothing_and_takes_what_is_declared(folder, tmp_path):
    shutil.copy(folder / "trial1.csv", tmp_path / "bare.csv")
    assert registry.load(tmp_path / "bare.csv").metadata == Metadata("bare.csv")
    told = registry.load(tmp_path / "bare.csv", {"device": "mine", "rail": "VIN", "power_mode": "7W"}).metadata
    assert (told.device, told.rail, told.power_mode, told.kind) == ("mine", "VIN", "7W", None)


@pytest.mark.parametrize("item", ["device", "rail", "power_mode"])
def test_a_declaration_against_what_the_data_say_is_refused(folder, item):
    registry.load(folder / "trial1.csv", {item: getattr(registry.members(folder)["trial1"].metadata, item)})
    with pytest.raises(DatasetError, match=rf"trial1\.csv: {item} is declared 'other' but the data say"):
        registry.load(folder / "trial1.csv", {item: "other"})


@pytest.mark.recorded
def test_a_copy_of_the_study_s_file_is_known_by_its_digest(tmp_path):
    shutil.copy(registry.fetch(f"{STUDY}-trial2"), tmp_path / "renamed.json")
    assert registry.load(tmp_path / "renamed.json").metadata.name == f"{STUDY}-trial2"


@pytest.mark.recorded
def test_the_study_s_sweeps_are_26_runs_of_which_21_pass_the_gate(study_trials, frontiers):
    assert [len(trial.runs) for trial in study_trials] == [38, 26, 26]
    assert [len(runs) for runs in frontiers] == [21, 21, 21]
    assert len({tuple(runs.run) for runs in frontiers}) == 1
    reduced = study_trials[0].runs.query("precision != 'fp32' and gpu_util >= 0.8")
    assert sorted((reduced.gpu_util * 100).round(1), reverse=True) == [88.8, 87.2]
    assert set(reduced.precision) == {"tf32"}


@pytest.mark.recorded
def test_the_study_s_rates_powers_and_energies_per_flop(study_trials, frontiers):
    runs = frontiers[0]
    rate = runs.truth_tflop / runs.duration_s
    assert (round(rate.min(), 3), round(rate.max(), 3)) == (0.545, 0.845)
    assert (round(100 * runs.gpu_util.min()), round(100 * runs.gpu_util.max())) == (84, 98)
    power = runs.energy_net_j / runs.duration_s
    assert (round(power.min(), 1), round(power.max(), 1)) == (6.7, 8.3)
    whole = study_trials[0].runs
    per_tflop = whole.energy_net_j / whole.truth_tflop
    spread = {p: (round(x.min(), 1), round(x.max(), 1)) for p, x in per_tflop.groupby(whole.precision)}
    fp32 = per_tflop[whole.run.isin(runs.run)]
    assert (round(fp32.min(), 1), round(fp32.max(), 1)) == (9.7, 12.5)
    assert spread["tf32"] == (5.4, 5.8)
    assert (min(spread["fp16"][0], spread["bf16"][0]), max(spread["fp16"][1], spread["bf16"][1])) == (3.0, 3.4)


@pytest.mark.recorded
def test_repeated_readings_differ_as_the_study_says(frontiers):
    def largest_spread(column: str) -> float:
        values = np.stack([runs[column].to_numpy() for runs in frontiers])
        return 100 * float((values.max(0) / values.min(0) - 1).max())

    assert round(largest_spread("dram_tb")) == 28
    assert round(largest_spread("energy_net_j"), 2) == 2.65


@pytest.mark.recorded
def test_the_long_trace_integrates_to_the_study_s_energy_and_estimates(study_trials):
    trace = registry.trace(STUDY)
    idle_w = study_trials[0].runs.idle_power_w.median()
    assert round(1e3 * idle_w) == 642
    assert (trace.launch_s, trace.start_s, trace.end_s) == pytest.approx((60.0, 65.5, 590.4), abs=0.05)
    energy_j = integral(trace, [None if p is None else max(p - idle_w, 0.0) for p in trace.power_w])
    dram_tb = integral(trace, trace.dram_bytes_per_s) / 1e12
    assert energy_j == pytest.approx(4117, rel=0.005)
    assert dram_tb * DRAM_COUNTER_FACTOR == pytest.approx(0.2757, rel=0.005)
    duration_s = trace.end_s - trace.start_s
    for calibration, error_pct in (
        (fits.equation(1, 5.6113, 1.4625, 61.468), 1.5),
        (fits.equation(2, 5.7230, 3.750), 3.1),
    ):
        estimate = calibration.estimate(Run(energy_j, duration_s, dram_tb)).tflop
        assert 100 * (estimate / 364.20 - 1) == pytest.approx(error_pct, abs=0.1)


def integral(trace: Trace, values) -> float:
    """Trapezoid of a channel between the trace's start and end, over the moments that it was read."""
    known = [(t, v) for t, v in zip(trace.t_s, values, strict=True) if v is not None]
    t, v = np.array(known).T
    inside = (t > trace.start_s) & (t < trace.end_s)
    ends = np.array([trace.start_s, trace.end_s])
    moments = np.concatenate([ends[:1], t[inside], ends[1:]])
    return float(np.trapezoid(np.interp(moments, t, v), moments))


@pytest.mark.recorded
def test_the_trace_s_own_first_minute_is_not_the_baseline():
    trace = registry.trace(STUDY)
    idle = [p for t, p in zip(trace.t_s, trace.power_w, strict=True) if p is not None and t < trace.launch_s]
    assert round(1e3 * float(np.median(idle))) == 681
