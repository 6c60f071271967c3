"""What runs a `Monitor`: the pace of the polls, the terminal, signals."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from estimator_utils.monitor.log import SessionLog, session_line, with_unit
from estimator_utils.monitor.monitor import Monitor, Row, Settings
from estimator_utils.telemetry import Sample, Source, polls


def run(
    monitor: Monitor,
    report: Callable[[Sample | None, list[Row]], None],
    speed: float = 1.0,
    stop: threading.Event | None = None,
) -> None:
    """Monitor until ``stop`` is set, or the log or replay ends; an open session is kept for the next start.

    Parameters
    ----------
    report : callable
        Given each sample and the sessions it ended.
    speed : float
        The monitor's clock runs so many times faster; 0: as fast as a log or replay can be read.
    """
    stop, live = stop or threading.Event(), monitor.source.live
    if not 0 <= speed < math.inf or (live and speed == 0):
        raise ValueError(
            f"speed must be positive, or 0 with a log or replay; found {speed} with {monitor.source.name}"
        )
    report(None, monitor.carried)
    for sample in _poll(monitor, speed, stop) if live else _read(monitor, speed, stop):
        report(sample, monitor.poll(sample))
    if not live and not stop.is_set():
        report(None, monitor.finish())


def _poll(monitor: Monitor, speed: float, stop: threading.Event) -> Iterator[Sample]:
    for sample in polls(monitor.source, monitor.settings.rule.period_s / speed, stop):
        yield sample if speed == 1 else replace(sample, t_s=sample.t_s * speed, wall_s=None)


def _read(monitor: Monitor, speed: float, stop: threading.Event) -> Iterator[Sample]:
    period_s, last_s = monitor.settings.rule.period_s, monitor.last_s
    due_s = None if last_s is None else last_s + period_s
    for sample in monitor.source:
        due_s = sample.t_s if due_s is None else due_s
        if sample.t_s < due_s - 0.01 * period_s:
            continue  # logged before a restart, or a log that is denser than the polls
        due_s = max(due_s + period_s, sample.t_s + period_s / 2)
        if speed and last_s is not None:
            stop.wait((sample.t_s - last_s) / speed)
        if stop.is_set():
            return
        last_s = sample.t_s
        yield sample


def view_line(monitor: Monitor, sample: Sample) -> str:
    """Return the live view: readings, and the session so far."""
    util = None if sample.gpu_util is None else 100 * sample.gpu_util
    traffic = None if sample.dram_bytes_per_s is None else sample.dram_bytes_per_s / 1e9
    text = f"{with_unit(sample.power_w, 'W')}  GPU {with_unit(util, '%')}  DRAM {with_unit(traffic, 'GB/s')}  "
    session = monitor.detector.session()
    if session is None:
        return text + "waiting for a workload"
    tflop, equation, _ = monitor.estimate(session)
    return text + f"running {session.duration_s:.0f} s, {with_unit(tflop, 'TFLOP')} so far (Eq. {equation})"


def serve(
    source: Source, settings: Settings, log_path: str | None, keep_days: float, speed: float, as_json: bool
) -> None:
    """Run the command ``monitor``: until SIGTERM, Ctrl-C or the end of a log, which all leave it resumable.

    Ended sessions are printed, and the live view where the output is a terminal.
    """
    if not 0 <= keep_days < math.inf:
        raise ValueError(f"--keep-days must be 0 or more, found {keep_days:g}")
    stop, view = threading.Event(), sys.stdout.isatty() and not as_json
    clear_line = "\r\x1b[K" if view else ""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    session_log = SessionLog(log_path, round(keep_days * 86_400 / settings.rule.period_s)) if log_path else None
    try:
        monitor = Monitor(source, settings, session_log)

        def report(sample: Sample | None, rows: list[Row]) -> None:
            for row in rows:
                print(clear_line + (json.dumps(row) if as_json else session_line(row)), flush=True)
            if view and sample is not None:
                print(clear_line + view_line(monitor, sample), end="", flush=True)

        run(monitor, report, speed, stop)
    finally:
        print(end="\n" if view else "")
        source.close()
        if session_log is not None:
            session_log.close()
