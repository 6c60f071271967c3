"""What runs a `Monitor`: the pace of the polls, live or of a log, until it ends or is stopped."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from estimator_utils.monitor.log import SessionRow
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.telemetry.source import Sample, polls

Report = Callable[[Sample | None, list[SessionRow]], None]


def run(monitor: Monitor, report: Report, speed: float = 1.0, stop: threading.Event | None = None) -> None:
    """Monitor until ``stop`` is set, or the log or replay ends; an open session is kept for the next start.

    Parameters
    ----------
    monitor : Monitor
    report : callable
        Given each sample and the sessions it ended.
    speed : float
        The monitor's clock runs so many times faster; 0: as fast as a log or replay can be read.
    stop : threading.Event, optional
    """
    stop, live = stop or threading.Event(), monitor.source.live
    if not 0 <= speed < math.inf or (live and speed == 0):
        raise ValueError(
            f"`speed` must be positive, or 0 with a log or replay; found {speed} with {monitor.source.name}"
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
