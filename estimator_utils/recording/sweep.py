"""A calibration sweep on a live board: idle baseline, DRAM counter, workloads one by one, into a dataset folder.

Operator's side. What is finished lies under ``OUTPUT/.record``, one file a step, so that an interrupted sweep goes
on with the rest.
"""

from __future__ import annotations

import csv
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
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from estimator_utils.datasets import dataset as schema
from estimator_utils.monitor.sessions import HOLE_POLLS, Rule, energy_j, traffic_tb
from estimator_utils.recording.task import watch
from estimator_utils.telemetry import Source, polls
from estimator_utils.truth import flops
from estimator_utils.truth.workload import SWEEPS, Workload, check_precision, default_device

BAR = "{desc}{percentage:3.0f}%|{bar}| {n:.4g}/{total:.4g} TFLOP, {remaining} left"
MISSING_SHARE = 0.1  # a run with more readings of power missing is not kept


class RecordError(RuntimeError):
    """The sweep cannot go on: says why, and what to do. Finished runs are kept."""


def read_sweep(name: str) -> list[Workload]:
    """Return a sweep by its name in `workloads.SWEEPS`, or from a CSV (columns of the runs table) or JSON file."""
    if name in SWEEPS:
        return SWEEPS[name]()
    path, fields = Path(name), Workload.__dataclass_fields__
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = json.load(file) if path.suffix == ".json" else list(csv.DictReader(file))
        sweep = []
        for row in rows:
            given: dict[str, Any] = {key: row[key] for key in fields if row.get(key) not in (None, "")}
            sweep.append(Workload(**given | {key: int(given[key]) for key in given.keys() & schema.COUNT_COLUMNS}))
        return sweep
    except (OSError, ValueError, TypeError, AttributeError) as error:
        known = ", ".join(SWEEPS)
        raise RecordError(f"{name} is no sweep ({error}): give one of {known}, or a file of workloads") from error


def record(
    source: Source,
    sweep: Sequence[Workload],
    output: str | Path,
    about: schema.Metadata,
    *,
    table: str = "trial1",
    device: str | None = None,
    period_s: float = 0.5,
    idle_s: float = 90.0,
    copy_s: float = 10.0,
) -> schema.Metadata:
    """Record a sweep, or the part of it that is still missing.

    Parameters
    ----------
    source : Source
        Live.
    output : path
        Dataset folder; ``table`` is the runs table in it, and the end of its traces' names.
    about : Metadata
        What the user says of the board and the data; the source's own identity must agree with it.
    device : {"cpu", "cuda"}, optional
        Where the workloads train.
    period_s, idle_s, copy_s : float
        Between two readings; length of the idle baseline and of the copy that measures the DRAM counter.

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
    for name, value in (("period_s", period_s), ("idle_s", idle_s), ("copy_s", copy_s)):
        if not 0 < value < math.inf:
            raise RecordError(f"{name} must be a positive number, found {value:g}")
    if not source.live:
        raise RecordError(f"{source.name} is a log: a sweep is recorded from a live board")
    if not sweep or len({w.run for w in sweep}) < len(sweep):
        raise RecordError("a sweep needs a run, and runs of different names (they leave the steps out)")
    said = {key: value for key, value in source.identity().items() if value is not None}
    for key, value in said.items():
        if getattr(about, key) not in (None, value):
            raise RecordError(f"{key} is declared {getattr(about, key)!r} but the source says {value!r}")
    device = device or default_device()
    backward = flops.FUSED_BACKWARD if device == "cuda" else flops.MATH_BACKWARD
    for workload in sweep:
        check_precision(workload.precision, device)
    with _locked(Path(output)):
        folder = Path(output) / ".record" / table

        idle = _once(folder / "idle.json", lambda: {"identity": said, **_idle(source, idle_s, period_s)})
        if idle["identity"] != said:
            raise RecordError(
                f"the sweep began on {idle['identity']}, this is {said}: record into another --output"
            )
        factor = None
        if (idle_bytes_per_s := idle["dram_bytes_per_s"]) is not None:
            measure_copy = partial(_copy, source, {"copy_s": copy_s, "device": device}, period_s, idle_bytes_per_s)
            factor = _once(folder / "copy.json", measure_copy)["factor"]
        about = replace(
            about,
            **said,
            dram_counter_factor=factor,
            software=f"torch {torch.__version__} on {device}, {platform.platform()}, read through {source.name};"
            f" truth by the closed form, attention backward {backward:g} times its forward",
            date=about.date or idle["date"],
            precision=" ".join(dict.fromkeys(w.precision for w in sweep)),
        )
        files = {w: folder / "runs" / f"{w.run}.json" for w in sweep}
        for workload, path in files.items():
            if path.exists() and asdict(workload).items() - json.loads(path.read_text())["row"].items():
                raise RecordError(f"{workload.run} was recorded with other settings: record into another --table")
        truths = {w: flops.closed_form(w, backward).tflop(w.steps) for w in sweep if not files[w].exists()}
        with tqdm(total=sum(truths.values()), unit="TFLOP", bar_format=BAR) as bar:
            for workload, truth_tflop in truths.items():
                bar.set_description(f"{sweep.index(workload) + 1}/{len(sweep)} {workload.run}")
                show = partial(_show, bar, bar.n, truth_tflop)
                known = {"idle_power_w": idle["power_w"], "truth_tflop": truth_tflop}
                task = {"workload": workload, "device": device}
                _once(files[workload], partial(_run, source, task, period_s, known, factor, show))
                show(1.0)
                _write(Path(output), about)
        _write(Path(output), about)
        return about


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
                f"another recording goes on in {output}: wait for its end, or give another --output"
            ) from None
        yield


def _show(bar: Any, before: float, truth_tflop: float, share: float) -> None:
    bar.update(before + share * truth_tflop - bar.n)


def _once(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured before an interruption, or measure it and keep it, whole or not at all."""
    if not path.exists():
        content = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content), encoding="utf-8")
        os.replace(new, path)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _write(output: Path, about: schema.Metadata) -> None:
    """Write the dataset folder anew from all finished runs, those of other tables too."""
    tables: dict[str, list[dict[str, Any]]] = {}
    traces = {}
    for path in sorted(output.glob(".record/*/runs/*.json"), key=lambda path: path.stat().st_mtime_ns):
        found = json.loads(path.read_text(encoding="utf-8"))
        table = path.parent.parent.name
        tables.setdefault(table, []).append(found["row"])
        traces[f"{path.stem}-{table}"] = schema.Trace(**found["trace"])
    schema.write_dataset(output, about, dict(sorted(tables.items())), traces)


def _idle(source: Source, idle_s: float, period_s: float) -> dict[str, Any]:
    """Measure the baseline: the medians over ``idle_s``."""
    n, readings = max(2, round(idle_s / period_s)), polls(source, period_s)
    samples = [next(readings) for _ in tqdm(range(n), desc="idle baseline", unit="poll")]
    power_w = [s.power_w for s in samples if s.power_w is not None]
    traffic = [s.dram_bytes_per_s for s in samples if s.dram_bytes_per_s is not None]
    if 2 * len(power_w) <= n:
        raise RecordError(f"{source.name} gave no power: {source.missing.get('power_w', 'reason unknown')}")
    busy = sum(s.gpu_util is None or s.gpu_util > Rule().threshold for s in samples)
    if busy > n / 20:
        raise RecordError(
            f"the GPU was busy, or its load unknown, at {busy} of {n} idle polls: end what runs on it"
        )
    return {
        "power_w": statistics.median(power_w),
        "dram_bytes_per_s": statistics.median(traffic) if traffic else None,
        "date": datetime.date.today().isoformat(),
    }


def _copy(source: Source, task: dict[str, Any], period_s: float, idle_bytes_per_s: float) -> dict[str, Any]:
    """Measure counted bytes per true byte, with a copy of known size."""
    samples, _, end = watch(source, task, period_s, lambda share: None)
    t_s = [s.t_s for s in samples]
    counted = 1e12 * traffic_tb(t_s, [s.dram_bytes_per_s for s in samples]) - idle_bytes_per_s * (t_s[-1] - t_s[0])
    if not counted > 0:
        raise RecordError(
            f"a copy of {end['bytes'] / 1e9:.1f} GB moved the DRAM counter by {counted / 1e9:.1f} GB: it does not"
            " count; record without it as a user that cannot read it"
        )
    return {"factor": counted / end["bytes"], "bytes": end["bytes"]}


def _run(
    source: Source,
    task: dict[str, Any],
    period_s: float,
    known: dict[str, float],
    factor: float | None,
    show: Callable[[float], None],
) -> dict[str, Any]:
    """Train one workload and return its row and its trace, in the clock of the launch."""
    launch_s, workload = time.monotonic(), task["workload"]
    samples, start, end = watch(source, task, period_s, show)
    power_w = [s.power_w for s in samples]
    trace = schema.Trace(
        t_s=tuple(s.t_s - launch_s for s in samples),
        power_w=tuple(power_w),
        gpu_util=tuple(s.gpu_util for s in samples),
        dram_bytes_per_s=tuple(
            None if s.dram_bytes_per_s is None or not factor else s.dram_bytes_per_s / factor for s in samples
        ),
        run=workload.run,
        launch_s=0.0,
        start_s=start["t_s"] - launch_s,
        end_s=end["t_s"] - launch_s,
    )
    inside = [s for s in samples if start["t_s"] <= s.t_s <= end["t_s"]]
    holes = sum(b.t_s - a.t_s > HOLE_POLLS * period_s for a, b in pairwise(samples))
    if power_w.count(None) + holes > MISSING_SHARE * len(samples) or not inside:
        raise RecordError(f"{workload.run}: too few readings of power ({source.missing}): it is not kept")
    loads = [s.gpu_util for s in inside if s.gpu_util is not None]
    has_traffic = trace.dram_bytes_per_s.count(None) < MISSING_SHARE * len(samples)
    row = {
        "run": workload.run,
        **asdict(workload),
        **known,
        "duration_s": end["t_s"] - start["t_s"],
        "energy_net_j": energy_j(trace.t_s, power_w, known["idle_power_w"]),
        "power_peak_w": max(s.power_w for s in inside if s.power_w is not None),
        "gpu_util": statistics.fmean(loads) if loads else None,
        "dram_tb": traffic_tb(trace.t_s, trace.dram_bytes_per_s) if has_traffic else None,
    }
    return {"row": row, "trace": asdict(trace)}
