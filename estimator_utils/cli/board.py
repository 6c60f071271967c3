"""The commands that deal with a board: ``record``, ``monitor``, ``sessions``."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estimator_utils.cli import options as from_code
from estimator_utils.cli.operator import DEVICES
from estimator_utils.cli.options import Command
from estimator_utils.cli.study import DECLARED
from estimator_utils.datasets.precision import DEFAULT_PRECISION, PRECISIONS
from estimator_utils.telemetry.source import Sample, Source

PACE = ("table", "idle_s", "copy_s", "device")
RULE = ("period_s", "edges")
SETTINGS = ("merge_gap_s", "idle_power_w", "dram_counter_factor", "force")


def _add_source(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.telemetry import factories

    parser.add_argument("--source", default="auto", help=f"{factories.FORMS}: auto is the first that gives power")
    from_code.add(parser, factories.open_source, ("rail",))
    for name in ("device", "power_mode"):
        parser.add_argument(f"--{name.replace('_', '-')}", help="declared where the source does not say")


def _open(options: argparse.Namespace) -> Source:
    from estimator_utils.telemetry.factories import open_source

    return open_source(options.source, options.rail, options.period_s)


def _record(options: argparse.Namespace) -> None:
    from estimator_utils.datasets.dataset import Metadata
    from estimator_utils.recording.sweep import Pace, record
    from estimator_utils.truth.workload import read_sweep

    kind, name = "simulated" if options.simulated else "recorded", Path(options.output).resolve().name
    about = Metadata(name, kind, **from_code.taken(options, DECLARED))
    sweep = read_sweep(options.name)
    pace = Pace(options.table, options.period_s, options.idle_s, options.copy_s, options.train_on)
    with _open(options) as source:
        about = record(source, sweep, options.output, about, pace)
    print(json.dumps(asdict(about)) if options.json else f"{len(sweep)} runs in {options.output}")


def _add_record(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.recording.sweep import Pace
    from estimator_utils.truth.workload import read_sweep

    _add_source(parser)
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="dataset folder; an interrupted sweep goes on"
    )
    from_code.add(parser, Pace, ("period_s", "table", "idle_s", "copy_s"), flags={"period_s": "--period"})
    from_code.add(parser, read_sweep, ("name",), flags={"name": "--sweep"})
    parser.add_argument("--train-on", choices=DEVICES, help="device; cuda where there is one")
    parser.add_argument("--simulated", action="store_true", help="the source is no real board")


def _monitor(options: argparse.Namespace) -> None:
    from estimator_utils.estimation.calibration import Calibration
    from estimator_utils.monitor.log import DAY_S, SessionLog
    from estimator_utils.monitor.monitor import Monitor, Settings
    from estimator_utils.monitor.sessions import Rule

    if not 0 <= options.keep_days < math.inf:
        raise ValueError(f"keep_days must be 0 or more, found {options.keep_days:g}")
    chain = [*options.calibration, *([options.fallback] if options.fallback else [])]
    settings = Settings(
        calibrations=tuple(map(Calibration.load, chain)),
        rule=Rule(**from_code.taken(options, RULE)),
        declared=from_code.taken(options, (*DECLARED, "precision")),
        **from_code.taken(options, SETTINGS),
    )
    keep = round(options.keep_days * DAY_S / settings.rule.period_s)
    with _open(options) as source:
        session_log = SessionLog(options.log, keep) if options.log else None
        try:
            _serve(Monitor(source, settings, session_log), options.speed, options.json)
        finally:
            if session_log is not None:
                session_log.close()


def _serve(monitor: Any, speed: float, as_json: bool) -> None:
    """Run a monitor until SIGTERM, Ctrl-C or the end of a log, which all leave it resumable.

    Ended sessions are printed, and the live view where the output is a terminal.
    """
    from estimator_utils.monitor import pace, view

    stop, is_live = threading.Event(), sys.stdout.isatty() and not as_json
    clear_line = "\r\x1b[K" if is_live else ""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def report(sample: Sample | None, rows: list[Any]) -> None:
        for row in rows:
            line = json.dumps(asdict(row)) if as_json else view.session_line(asdict(row))
            print(clear_line + line, flush=True)
        if is_live and sample is not None:
            print(clear_line + view.view_line(monitor, sample), end="", flush=True)

    try:
        pace.run(monitor, report, speed, stop)
    finally:
        print(end="\n" if is_live else "")


def _add_monitor(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.monitor import pace
    from estimator_utils.monitor.monitor import Settings
    from estimator_utils.monitor.sessions import EDGES, Rule

    _add_source(parser)
    from_code.add(parser, Rule, RULE, flags={"period_s": "--period"}, choices={"edges": EDGES})
    add = parser.add_argument
    add("--precision", choices=PRECISIONS, default=DEFAULT_PRECISION, help="of the runs: no sensor can tell it")
    chain = "written by calibrate -o; of several the first is used whose readings are there"
    add("--calibration", required=True, nargs="+", metavar="FILE", help=chain)
    add("--fallback", metavar="FILE", help="a last calibration of the chain, such as Eq. 2 where DRAM is missing")
    add("--log", metavar="FILE", help="SQLite; without it nothing is kept, and a stop loses the open session")
    add("--keep-days", type=float, default=30.0, metavar="days", help="of samples, 5 MB a day; sessions all stay")
    flags = {"merge_gap_s": "--merge-gap", "idle_power_w": "--idle-w", "dram_counter_factor": "--dram-factor"}
    from_code.add(parser, Settings, SETTINGS, flags=flags)
    from_code.add(parser, pace.run, ("speed",))


def _sessions(options: argparse.Namespace) -> None:
    from estimator_utils.monitor import log, view

    if options.plot is not None:
        output = options.output or f"session{options.plot}.png"
        view.plot_session(options.log, options.plot, output)
        print(output)
    elif options.export:
        print(f"{log.export_samples(options.log, options.export)} samples in {options.export}")
    else:
        rows = log.read_sessions(options.log)
        lines = [f"{row['id']:4d}  {view.session_line(row)}" for row in rows]
        print(*([json.dumps(rows)] if options.json else lines), sep="\n")


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="file written by monitor --log")
    parser.add_argument("--plot", type=int, metavar="ID", help="draw one session")
    parser.add_argument("-o", "--output", metavar="FILE", help="of the plot: PNG, PDF or SVG")
    parser.add_argument("--export", metavar="FILE", help="write all kept samples to a Parquet file")


COMMANDS = (
    Command("record", "record a calibration sweep on a board into a dataset folder", _add_record, _record),
    Command("monitor", "watch a board and estimate the TFLOP of each training run", _add_monitor, _monitor),
    Command("sessions", "list the sessions of a log, plot one, export samples", _add_sessions, _sessions),
)
