"""A calibration sweep on a live board: idle baseline, DRAM counter, workloads one by one, into a dataset folder.

What is finished lies under ``OUTPUT/.record``, one file a step, so that an interrupted sweep goes on with the
rest.
"""

import datetime
import fcntl
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from estimator_utils.datasets.dataset import Metadata, Trace, write_dataset
from estimator_utils.monitor.integrate import energy_j, traffic_tb
from estimator_utils.monitor.sessions import HOLE_POLLS, Rule
from estimator_utils.recording.task import Copy, Train, Watched, run_task
from estimator_utils.telemetry.source import Sample, Source, polls
from estimator_utils.truth import flops
from estimator_utils.truth.training import check_precision, default_device
from estimator_utils.truth.workload import Workload

BAR = "{desc}{percentage:3.0f}%|{bar}| {n:.4g}/{total:.4g} TFLOP, {remaining} left"
MISSING_SHARE = 0.1  # a run with more readings of power missing is not kept
BUSY_SHARE = 0.05  # of the idle polls, above which the board is not idle


class RecordError(RuntimeError):
    """The sweep cannot go on: says why, and what to do. Finished runs are kept."""


@dataclass(frozen=True)
class Pace:
    """How a sweep is recorded.

    Attributes
    ----------
    table : str
        Name of the runs table, and the end of its traces' names: a repeated sweep is trial2.
    period_s : s
        Between two readings.
    idle_s : s
        Length of the idle baseline.
    copy_s : s
        Length of the copy that measures the DRAM counter.
    device : {"cpu", "cuda"} or None
        Where the workloads train; None: cuda where there is one.
    """

    table: str = "trial1"
    period_s: float = 0.5
    idle_s: float = 90.0
    copy_s: float = 10.0
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("period_s", "idle_s", "copy_s"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise RecordError(f"`{name}` must be a positive number, found {value:g}")


def record(
    source: Source, sweep: Sequence[Workload], output: str | Path, about: Metadata, pace: Pace | None = None
) -> Metadata:
    """Record a sweep, or the part of it that is still missing.

    Parameters
    ----------
    source : Source
        Live.
    sweep : sequence of Workload
    output : path
        Dataset folder.
    about : Metadata
        What the user says of the board and the data; the source's own identity must agree with it.
    pace : Pace, optional

    Returns
    -------
    Metadata
        As written to the dataset.

    Raises
    ------
    RecordError
        Where the source is a log, another recording goes on in the folder, the board is busy, power is missing,
        or a workload fails.
    """
    pace = pace or Pace()
    device = pace.device or default_device()
    reported = _checked(source, sweep, about, device)
    backward = flops.FUSED_BACKWARD if device == "cuda" else flops.MATH_BACKWARD
    with _locked(Path(output)):
        folder = Path(output) / ".record" / pace.table
        idle = _once(folder / "idle.json", lambda: {"identity": reported, **_idle(source, pace)})
        if idle["identity"] != reported:
            raise RecordError(
                f"the sweep began on {idle['identity']}, this is {reported}: record into another `output`"
            )
        factor = _counter_factor(source, idle, pace, device, folder)
        about = replace(
            about,
            **reported,
            dram_counter_factor=factor,
            software=f"torch {torch.__version__} on {device}, {platform.platform()}, read through {source.name};"
            f" truth by the closed form, attention backward {backward:g} times its forward",
            date=about.date or idle["date"],
            precisions=" ".join(dict.fromkeys(w.precision for w in sweep)),
        )
        bench = _Bench(source, pace.period_s, factor, idle["power_w"])
        for workload, path, truth_tflop, show in _unfinished(sweep, folder / "runs", backward):
            _once(path, partial(bench.measure, Train(workload, device), truth_tflop, show))
            show(1.0)
            _write(Path(output), about)
        _write(Path(output), about)
        return about


def _checked(source: Source, sweep: Sequence[Workload], about: Metadata, device: str) -> dict[str, Any]:
    """Return what the source reports of itself; RecordError where the sweep cannot be recorded from it."""
    if not source.live:
        raise RecordError(f"{source.name} is a log: a sweep is recorded from a live board")
    if not sweep or len({w.run for w in sweep}) < len(sweep):
        raise RecordError("a sweep needs a run, and runs of different names (they leave the steps out)")
    reported = {key: value for key, value in source.identity().items() if value is not None}
    for key, value in reported.items():
        if getattr(about, key) not in (None, value):
            raise RecordError(f"{key} is declared {getattr(about, key)!r} but the source says {value!r}")
    for workload in sweep:
        check_precision(workload.precision, device)
    return reported


def _unfinished(
    sweep: Sequence[Workload], folder: Path, backward: float
) -> Iterator[tuple[Workload, Path, float, Callable[[float], None]]]:
    """Yield the workloads that are not recorded yet, each with its file, TFLOP and what shows its progress."""
    files = {w: folder / f"{w.run}.json" for w in sweep}
    for workload, path in files.items():
        if path.exists() and asdict(workload).items() - json.loads(path.read_text())["row"].items():
            raise RecordError(f"{workload.run} was recorded with other settings: record into another `table`")
    truths = {w: flops.closed_form(w, backward).tflop(w.steps) for w in sweep if not files[w].exists()}
    with tqdm(total=sum(truths.values()), unit="TFLOP", bar_format=BAR) as bar:
        for workload, truth_tflop in truths.items():
            bar.set_description(f"{sweep.index(workload) + 1}/{len(sweep)} {workload.run}")
            before = bar.n

            def show(share: float, before: float = before, tflop: float = truth_tflop) -> None:
                bar.update(before + share * tflop - bar.n)

            yield workload, files[workload], truth_tflop, show


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Hold a dataset folder for one recording at a time; the lock goes with the process."""
    path = output / ".record" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"another recording goes on in {output}: wait for its end, or give another `output`"
            ) from None
        yield


def _once(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured before an interruption, or measure it and keep it, whole or not at all."""
    if not path.exists():
        content = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content), encoding="utf-8")
        os.replace(new, path)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _write(output: Path, about: Metadata) -> None:
    """Write the dataset folder anew from all finished runs, those of other tables too."""
    tables: dict[str, list[dict[str, Any]]] = {}
    traces = {}
    for path in sorted(output.glob(".record/*/runs/*.json"), key=lambda path: path.stat().st_mtime_ns):
        finished = json.loads(path.read_text(encoding="utf-8"))
        table = path.parent.parent.name
        tables.setdefault(table, []).append(finished["row"])
        traces[f"{path.stem}-{table}"] = Trace(**finished["trace"])
    write_dataset(output, about, dict(sorted(tables.items())), traces)


def _idle(source: Source, pace: Pace) -> dict[str, Any]:
    """Measure the baseline: the medians over the idle time."""
    n, readings = max(2, round(pace.idle_s / pace.period_s)), polls(source, pace.period_s)
    samples = [next(readings) for _ in tqdm(range(n), desc="idle baseline", unit="poll")]
    power_w = [s.power_w for s in samples if s.power_w is not None]
    traffic = [s.dram_bytes_per_s for s in samples if s.dram_bytes_per_s is not None]
    if 2 * len(power_w) <= n:
        raise RecordError(f"{source.name} gave no power: {source.missing.get('power_w', 'reason unknown')}")
    busy = sum(s.gpu_util is None or s.gpu_util > Rule().threshold for s in samples)
    if busy > BUSY_SHARE * n:
        raise RecordError(f"the GPU was busy, or its load unknown, at {busy} of {n} idle polls: end what runs on it")
    return {
        "power_w": statistics.median(power_w),
        "dram_bytes_per_s": statistics.median(traffic) if traffic else None,
        "date": datetime.date.today().isoformat(),
    }


def _counter_factor(source: Source, idle: dict[str, Any], pace: Pace, device: str, folder: Path) -> float | None:
    """Return counted bytes per true byte, measured with a copy of known size; None without a DRAM counter."""
    idle_bytes_per_s = idle["dram_bytes_per_s"]
    if idle_bytes_per_s is None:
        return None

    def measure() -> dict[str, Any]:
        watched = run_task(source, Copy(pace.copy_s, device), pace.period_s)
        t_s, n_bytes = [s.t_s for s in watched.samples], watched.end.n_bytes
        traffic = 1e12 * traffic_tb(t_s, [s.dram_bytes_per_s for s in watched.samples])
        counted = traffic - idle_bytes_per_s * (t_s[-1] - t_s[0])
        if not counted > 0:
            raise RecordError(
                f"a copy of {n_bytes / 1e9:.1f} GB moved the DRAM counter by {counted / 1e9:.1f} GB: it does not"
                " count; record without it as a user that cannot read it"
            )
        return {"factor": counted / n_bytes, "bytes": n_bytes}

    return float(_once(folder / "copy.json", measure)["factor"])


@dataclass(frozen=True)
class _Bench:
    """A source, as it is used in one sweep: counted per true byte (None: no counter) and the idle baseline."""

    source: Source
    period_s: float
    factor: float | None
    idle_power_w: float

    def measure(self, task: Train, truth_tflop: float, on_progress: Callable[[float], None]) -> dict[str, Any]:
        """Train one workload and return its row and its trace, in the clock of the launch."""
        launch_s, run = time.monotonic(), task.workload.run
        watched = run_task(self.source, task, self.period_s, on_progress)
        inside = [s for s in watched.samples if watched.start.t_s <= s.t_s <= watched.end.t_s]
        lost = sum(s.power_w is None for s in watched.samples)
        holes = sum(b.t_s - a.t_s > HOLE_POLLS * self.period_s for a, b in pairwise(watched.samples))
        if lost + holes > MISSING_SHARE * len(watched.samples) or not inside:
            raise RecordError(f"{run}: too few readings of power ({self.source.missing}): it is not kept")
        trace = self._trace(watched, run, launch_s)
        loads = [s.gpu_util for s in inside if s.gpu_util is not None]
        has_traffic = trace.dram_bytes_per_s.count(None) < MISSING_SHARE * len(watched.samples)
        row = {
            "run": run,
            **asdict(task.workload),
            "idle_power_w": self.idle_power_w,
            "truth_tflop": truth_tflop,
            "duration_s": watched.end.t_s - watched.start.t_s,
            "energy_net_j": energy_j(trace.t_s, trace.power_w, self.idle_power_w),
            "power_peak_w": max(s.power_w for s in inside if s.power_w is not None),
            "gpu_util": statistics.fmean(loads) if loads else None,
            "dram_tb": traffic_tb(trace.t_s, trace.dram_bytes_per_s) if has_traffic else None,
        }
        return {"row": row, "trace": asdict(trace)}

    def _trace(self, watched: Watched, run: str, launch_s: float) -> Trace:
        def true_bytes(sample: Sample) -> float | None:
            counted = sample.dram_bytes_per_s
            return None if counted is None or not self.factor else counted / self.factor

        return Trace(
            t_s=tuple(s.t_s - launch_s for s in watched.samples),
            power_w=tuple(s.power_w for s in watched.samples),
            gpu_util=tuple(s.gpu_util for s in watched.samples),
            dram_bytes_per_s=tuple(true_bytes(s) for s in watched.samples),
            run=run,
            launch_s=0.0,
            start_s=watched.start.t_s - launch_s,
            end_s=watched.end.t_s - launch_s,
        )
