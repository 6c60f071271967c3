import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimator_utils.cli.main import main
from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Metadata, read_index
from estimator_utils.monitor.integrate import energy_j
from estimator_utils.recording import sweep as record
from estimator_utils.recording.sweep import Pace, RecordError
from estimator_utils.recording.task import Train, TrainingError, run_task
from estimator_utils.telemetry.replay import Replay, open_replay
from estimator_utils.telemetry.sysfs import Sysfs
from estimator_utils.truth import flops
from estimator_utils.truth.workload import Workload
from tests.support.coupled_board import BUSY, IDLE, coupled_board, training_processes
from tests.support.kill9 import three_sessions
from tests.support.player import MODEL, STEP_W, Board

pytestmark = pytest.mark.slow  # starts processes, or dispatches whole training steps

SWEEP = [
    Workload(d_model=d, n_layers=1, d_ff=64, seq_len=32, batch_size=4, steps=380 - 4 * d) for d in (16, 32, 48, 64)
]
FAST = Pace(device="cpu", period_s=0.05, idle_s=0.5, copy_s=0.4)
ABOUT = Metadata(name="played", kind="simulated")


@pytest.fixture(scope="module")
def one_thread():
    """On a busy machine two threads would wait for each other at each tiny product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, one_thread):
    """A sweep that was killed after two runs, and then went on to its end; what there was after the kill."""
    folder = tmp_path_factory.mktemp("record")
    sweep = folder / "sweep.json"
    fields = ("d_model", "n_layers", "d_ff", "seq_len", "batch_size", "steps")
    sweep.write_text(json.dumps([{field: getattr(w, field) for field in fields} for w in SWEEP]))
    options = [
        "record", "--source", f"sysfs:{folder / 'sys'}", "--output", str(folder / "played"), "--sweep", str(sweep),
        "--simulated", "--train-on", "cpu", "--period", "0.05", "--idle-s", "0.5", "--copy-s", "0.4",
    ]  # fmt: skip
    with coupled_board(folder / "sys"):
        process = subprocess.Popen(
            [sys.executable, "-m", "estimator_utils", *options], stderr=subprocess.PIPE, start_new_session=True
        )
        finished = folder / "played" / ".record" / "trial1" / "runs"
        while len(list(finished.glob("*.json"))) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.kill()
        progress = process.communicate()[1].decode()
        before = {path.name: path.read_text() for path in finished.glob("*.json")}
        assert main(options) == 0
    return folder / "played", before, progress


def test_an_interrupted_sweep_goes_on_without_repeating_a_run(recorded):
    folder, before, progress = recorded
    assert 2 <= len(before) < len(SWEEP)
    for name, text in before.items():
        assert (folder / ".record" / "trial1" / "runs" / name).read_text() == text
    (trial,) = registry.trials(folder)
    assert trial.runs.run.tolist() == [w.run for w in SWEEP]
    assert "TFLOP" in progress
    assert "left" in progress
    assert main_again(folder) == [w.run for w in SWEEP]


def main_again(folder):
    """Record a finished sweep once more: nothing is left to do, so not even a board is read."""
    times = {path: path.stat().st_mtime_ns for path in (folder / ".record").rglob("*.json")}
    with Sysfs(folder.parent / "sys") as source:
        record.record(source, SWEEP, folder, Metadata(name="played", kind="simulated"), FAST)
    assert times == {path: path.stat().st_mtime_ns for path in (folder / ".record").rglob("*.json")}
    return registry.trials(folder)[0].runs.run.tolist()


def test_rows_and_traces_agree_with_each_other_and_the_board(recorded):
    folder, _, _ = recorded
    (trial,) = registry.trials(folder)
    about, _, traces = read_index(folder / "dataset.json")
    assert (about.kind, about.device, about.rail, about.power_mode) == ("simulated", MODEL, "VDD_CPU_GPU_CV", "25W")
    assert about.precisions == "fp32"
    assert "attention backward 2 times" in about.software
    for workload, row in zip(SWEEP, trial.runs.itertuples(), strict=True):
        assert row.truth_tflop == flops.closed_form(workload, flops.MATH_BACKWARD).tflop(workload.steps)
        assert row.idle_power_w == pytest.approx(IDLE["power_w"], abs=STEP_W)
        assert row.power_peak_w == pytest.approx(BUSY["power_w"], abs=STEP_W)
        assert row.gpu_util > 0.8
        trace = registry.read_trace(folder / traces[f"{workload.run}-trial1"]["path"])
        assert trace.end_s - trace.start_s == row.duration_s
        assert energy_j(trace.t_s, trace.power_w, row.idle_power_w) == row.energy_net_j
        # one reading before training and one after it, no more
        assert sum(t < trace.start_s for t in trace.t_s) == 1
        assert sum(t >= trace.end_s for t in trace.t_s) == 1
        net_w = BUSY["power_w"] - IDLE["power_w"]
        assert row.energy_net_j == pytest.approx(net_w * row.duration_s, rel=0.25)
        assert row.dram_tb * about.dram_counter_factor == pytest.approx(4e-2 * row.duration_s, rel=0.25)
    source = open_replay(str(folder / traces[f"{SWEEP[0].run}-trial1"]["path"]), 0.05)
    assert source.identity()["power_mode"] == "25W"


def test_the_dram_counter_is_measured_by_a_copy_of_known_size(recorded):
    folder, _, _ = recorded
    copy = json.loads((folder / ".record" / "trial1" / "copy.json").read_text())
    counted_b = (BUSY["dram_bytes_per_s"] - IDLE["dram_bytes_per_s"]) * FAST.copy_s
    assert copy["factor"] * copy["bytes"] == pytest.approx(counted_b, rel=0.5)
    assert copy["bytes"] % (2 << 28) == 0


def test_calibrate_and_evaluate_accept_the_dataset(recorded, tmp_path, capsys):
    """By Eq. 2: on this board all power and traffic go with time, so Eq. 1 has nothing to tell them apart by."""
    data, output = str(recorded[0] / "trial1.csv"), str(tmp_path / "eq2.json")
    assert main(["calibrate", data, "--equation", "2", "-o", output, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"]["device"] == MODEL
    assert main(["evaluate", data, "--equation", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_runs"] == len(SWEEP)
    assert main(["estimate", data, "--calibration", output, "--json"]) == 0
    estimates = json.loads(capsys.readouterr().out)["estimate_tflop"]
    assert all(tflop > 0 for tflop in estimates)


def test_a_sweep_is_not_resumed_on_another_board_or_with_other_settings(recorded):
    folder, _, _ = recorded
    board = Board(folder.parent / "sys")
    with Sysfs(board.root) as source:
        other = [Workload(**{**vars(SWEEP[0]), "steps": 7})]
        with pytest.raises(RecordError, match=r"other settings.*another `table`"):
            record.record(source, other, folder, ABOUT, FAST)
        board.put("../var/lib/nvpmodel/status", "pmode:0000")
        with pytest.raises(RecordError, match=r"the sweep began on .*25W.*, this is .*15W.*another `output`"):
            record.record(source, SWEEP, folder, ABOUT, FAST)
        board.put("../var/lib/nvpmodel/status", "pmode:0001")


def test_two_recordings_cannot_write_one_folder(tmp_path):
    board = Board(tmp_path / "sys")
    board.set(gpu_util=1.0)
    (tmp_path / "out" / ".record").mkdir(parents=True)
    with open(tmp_path / "out" / ".record" / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RecordError, match="another recording goes on"):
            record.record(Sysfs(board.root), SWEEP, tmp_path / "out", ABOUT, FAST)
    with pytest.raises(RecordError, match="busy"):
        record.record(Sysfs(board.root), SWEEP, tmp_path / "out", ABOUT, FAST)


def test_a_busy_board_has_no_idle_baseline(tmp_path):
    board = Board(tmp_path / "sys")
    board.set(gpu_util=0.5)
    with Sysfs(board.root) as source, pytest.raises(RecordError, match=r"busy.*end what runs on it"):
        record.record(source, SWEEP, tmp_path / "played", ABOUT, FAST)
    assert not (tmp_path / "played" / "dataset.json").exists()


def test_a_board_without_power_is_refused(tmp_path):
    board = Board(tmp_path / "sys")
    with Sysfs(board.root) as source:
        board.remove(board.current(2))
        with pytest.raises(RecordError, match="no power"):
            record.record(source, SWEEP, tmp_path / "played", ABOUT, FAST)


def test_a_workload_that_fails_is_told_and_not_kept(tmp_path, one_thread):
    board = Board(tmp_path / "sys")
    board.remove(board.activity)  # nothing to copy for
    too_large = [Workload(d_model=1 << 29, n_heads=1, steps=5)]
    with Sysfs(board.root) as source, pytest.raises(TrainingError, match="can't allocate memory"):
        record.record(source, too_large, tmp_path / "played", ABOUT, FAST)
    assert not list(tmp_path.rglob("runs/*.json"))


def test_a_training_process_that_is_killed_is_told_and_one_whose_parent_is_killed_ends(tmp_path, one_thread):
    board = Board(tmp_path / "sys")
    task = Train(Workload(d_model=16, steps=10**9), "cpu")

    def kill(share):
        server = {pid for pid in training_processes() if parent_of(pid) == os.getpid()}
        (pid,) = training_processes().keys() - server
        os.kill(pid, signal.SIGKILL)

    with Sysfs(board.root) as source, pytest.raises(TrainingError, match="ended with status -9"):
        run_task(source, task, 0.05, kill)
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps([{"d_model": 16, "steps": 10**9}]))
    board.remove(board.activity)
    options = ["--source", f"sysfs:{board.root}", "--sweep", sweep, "--output", tmp_path / "played", "--idle-s", "0.1"]
    parent = subprocess.Popen(
        [sys.executable, "-m", "estimator_utils", "record", "--train-on", "cpu", "--period", "0.05", *options],
        stderr=subprocess.PIPE,
    )
    deadline_s = time.monotonic() + 60
    ours = {pid for pid in training_processes() if parent_of(pid) == os.getpid()}
    # the server and the workload
    while len(below := training_processes().keys() - ours) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(below) == 2
    parent.kill()
    parent.communicate()
    while any(map(alive, below)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(alive, below))


def status_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def parent_of(pid):
    return int(status_of(pid)[1])


def alive(pid):
    try:
        return status_of(pid)[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with pytest.raises(RecordError, match="is a log"):
        record.record(Replay("replay:x", three_sessions()), SWEEP, tmp_path, ABOUT)
    with Sysfs(Board(tmp_path / "sys").root) as source:
        with pytest.raises(ValueError, match="tf32 needs a CUDA device"):
            record.record(source, [Workload(d_model=16, precision="tf32")], tmp_path, ABOUT, Pace(device="cpu"))
        with pytest.raises(RecordError, match="different names"):
            record.record(source, [SWEEP[0], SWEEP[0]], tmp_path, ABOUT)
        with pytest.raises(RecordError, match="declared 'Thor' but the source says"):
            record.record(source, SWEEP, tmp_path, Metadata(name="x", device="Thor"))
