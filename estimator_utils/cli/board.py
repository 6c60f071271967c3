"""The commands that a board runs: ``monitor``, ``sessions``."""

import json
import math
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from estimator_utils.cli.options import DECLARED, add, add_declared, taken
from estimator_utils.datasets.precision import DEFAULT_PRECISION, PRECISIONS
from estimator_utils.estimation.calibration import Calibration
from estimator_utils.monitor import log, pace, view
from estimator_utils.monitor.monitor import Monitor, Settings
from estimator_utils.monitor.sessions import EDGES, Rule
from estimator_utils.telemetry import factories
from estimator_utils.telemetry.source import Sample

RULE = ("period_s", "edges")
SETTINGS = ("merge_gap_s", "idle_power_w", "dram_counter_factor", "force")
FLAGS = {  # where they are others than the names
    "period_s": "--period",
    "merge_gap_s": "--merge-gap",
    "idle_power_w": "--idle-w",
    "dram_counter_factor": "--dram-factor",
}


def add_source(parser: ArgumentParser) -> None:
    """Add the options of a source."""
    text = f"{factories.FORMS}; auto is the first that gives power"
    parser.add_argument("--source", default="auto", help=text)
    add(parser, factories.open_source, ("rail",))
    add_declared(parser, ("device", "power_mode"))


def add_monitor(parser: ArgumentParser) -> None:
    """Add the options of ``monitor``."""
    add_source(parser)
    add(parser, Rule, RULE, flags=FLAGS, choices={"edges": EDGES})
    one = parser.add_argument
    one("--precision", choices=PRECISIONS, default=DEFAULT_PRECISION, help="of the runs: no sensor can tell it")
    chain = "written by calibrate -o; of several the first is used whose readings are there"
    one("--calibration", required=True, nargs="+", metavar="FILE", help=chain)
    one("--fallback", metavar="FILE", help="a last calibration of the chain, such as Eq. 2 where DRAM is missing")
    one("--log", metavar="FILE", help="SQLite; without it nothing is kept, and a stop loses the open session")
    one("--keep-days", type=float, default=30.0, metavar="DAYS", help="of samples, 5 MB a day; sessions all stay")
    add(parser, Settings, SETTINGS, flags=FLAGS)
    add(parser, pace.run, ("speed",))


def monitor(options: Namespace) -> None:
    """Monitor until SIGTERM, Ctrl-C or the end of a log, which all leave it resumable."""
    if not 0 <= options.keep_days < math.inf:
        raise ValueError(f"`keep_days` must be 0 or more, found {options.keep_days:g}")
    chain = [*options.calibration, *([options.fallback] if options.fallback else [])]
    settings = Settings(
        calibrations=tuple(map(Calibration.load, chain)),
        rule=Rule(**taken(options, RULE)),
        declared=taken(options, (*DECLARED, "precision")),
        **taken(options, SETTINGS),
    )
    keep = round(options.keep_days * log.DAY_S / settings.rule.period_s)
    with factories.open_source(options.source, options.rail, options.period_s) as source:
        session_log = log.SessionLog(options.log, keep) if options.log else None
        try:
            _serve(Monitor(source, settings, session_log), options.speed, options.json)
        finally:
            if session_log is not None:
                session_log.close()


def _serve(monitor: Monitor, speed: float, as_json: bool) -> None:
    """Print ended sessions, and the live view where the output is a terminal."""
    stop, is_live = threading.Event(), sys.stdout.isatty() and not as_json
    clear_line = "\r\x1b[K" if is_live else ""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def report(sample: Sample | None, rows: list[log.SessionRow]) -> None:
        for row in map(asdict, rows):
            print(clear_line + (json.dumps(row) if as_json else view.session_line(row)), flush=True)
        if is_live and sample is not None:
            print(clear_line + view.view_line(monitor, sample), end="", flush=True)

    try:
        pace.run(monitor, report, speed, stop)
    finally:
        print(end="\n" if is_live else "")


def add_sessions(parser: ArgumentParser) -> None:
    """Add the options of ``sessions``."""
    parser.add_argument("log", metavar="LOG", help="file written by monitor --log")
    parser.add_argument("--plot", type=int, metavar="ID", help="draw one session")
    parser.add_argument("-o", "--output", metavar="FILE", help="of the plot: PNG, PDF or SVG")
    parser.add_argument("--export", metavar="FILE", help="write all kept samples to a Parquet file")


def sessions(options: Namespace) -> None:
    """List the sessions of a log, plot one, or export its samples."""
    if options.plot is not None:
        output = options.output or f"session{options.plot}.png"
        view.plot_session(options.log, options.plot, output)
        print(output)
    elif options.export:
        print(f"{log.export_samples(options.log, options.export)} samples in {options.export}")
    elif options.json:
        print(json.dumps(log.read_sessions(options.log)))
    else:
        for row in log.read_sessions(options.log):
            print(f"{row['id']:4d}  {view.session_line(row)}")
