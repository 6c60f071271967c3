"""The commands that deal with a board: ``record``, ``monitor``, ``sessions``. Argument parsing only."""

from __future__ import annotations

import argparse
import json
from typing import Any

from estimator_utils.schema import PRECISIONS


def add(commands: Any, command: Any) -> None:
    """Add the subcommands; ``command(commands, name, run, text)`` makes a parser with --json."""
    for add_one in (_monitor, _sessions):
        add_one(commands, command)


def _source_arguments(parser: argparse.ArgumentParser, period_s: float) -> None:
    parser.add_argument(
        "--source",
        default="auto",
        help="sysfs[:ROOT], jtop, tegrastats[:FILE], smi:FILE, replay:DATA, or auto: the first that gives power",
    )
    parser.add_argument("--period", type=float, default=period_s, metavar="S", help="seconds between two polls")
    parser.add_argument("--rail", help="the power rail that is read, by its label")
    for name in ("device", "power-mode"):
        parser.add_argument(f"--{name}", help="declared where the source does not say")


def _open_source(options: argparse.Namespace) -> Any:
    from estimator_utils import telemetry
    from estimator_utils.telemetry import replay

    kind, _, data = options.source.partition(":")
    if kind == "replay" and data:
        return replay.open_replay(data, options.period)
    return telemetry.open_source(options.source, options.rail or telemetry.DEFAULT_RAIL)


def _monitor(commands: Any, command: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils import daemon
        from estimator_utils.calibration import Calibration
        from estimator_utils.monitor import Settings
        from estimator_utils.sessions import Rule

        settings = Settings(
            Calibration.load(options.calibration),
            Calibration.load(options.fallback) if options.fallback else None,
            Rule(period_s=options.period, edges=options.edges),
            options.merge_gap,
            options.idle_w,
            {name: getattr(options, name) for name in ("device", "rail", "power_mode", "precision")},
            options.force,
        )
        source = _open_source(options)
        daemon.serve(source, settings, options.log, options.keep_days, options.speed, options.json)

    parser = command(commands, "monitor", run, "watch a board and estimate the TFLOP of each training run")
    _source_arguments(parser, period_s=1.5)
    parser.add_argument("--precision", choices=PRECISIONS, help="of the runs: no sensor can tell it")
    parser.add_argument("--calibration", required=True, help="file written by calibrate -o")
    parser.add_argument("--fallback", metavar="FILE", help="a calibration of Eq. 2, where DRAM is missing")
    parser.add_argument("--log", help="SQLite file; without it nothing is kept, and a stop loses the open session")
    parser.add_argument(
        "--keep-days", type=float, default=30, help="of samples, 5 MB each; sessions stay for ever"
    )
    parser.add_argument("--idle-w", type=float, help="idle baseline in place of the calibration's, W")
    parser.add_argument("--edges", choices=("unbiased", "study"), default="unbiased", help="of the sessions")
    parser.add_argument(
        "--merge-gap", type=float, default=0.0, metavar="S", help="join fragments no further apart"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="of the monitor's clock; 0: as fast as a log is read"
    )
    parser.add_argument(
        "--force", action="store_true", help="use a calibration of another board, marking estimates"
    )


def _sessions(commands: Any, command: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils import session_log

        if options.plot is not None:
            output = options.output or f"session{options.plot}.png"
            session_log.plot_session(options.log, options.plot, output)
            print(output)
        elif options.export:
            print(f"{session_log.export_samples(options.log, options.export)} samples in {options.export}")
        else:
            for row in session_log.read_sessions(options.log):
                print(json.dumps(row) if options.json else f"{row['id']:4d}  {session_log.session_line(row)}")

    parser = command(commands, "sessions", run, "list the sessions in a monitor's log, plot one, export samples")
    parser.add_argument("log", metavar="LOG", help="file written by monitor --log")
    parser.add_argument("--plot", type=int, metavar="ID", help="draw one session")
    parser.add_argument("-o", "--output", help="of the plot: a PNG, PDF or SVG file")
    parser.add_argument("--export", metavar="FILE", help="write all kept samples to a Parquet file")
