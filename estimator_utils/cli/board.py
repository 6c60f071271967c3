"""The commands that deal with a board: ``record``, ``monitor``, ``sessions``. Argument parsing only."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estimator_utils.datasets.dataset import PRECISIONS


def add(commands: Any, command: Any) -> None:
    """Add the subcommands; ``command(commands, name, run, text)`` makes a parser with --json."""
    for add_one in (_record, _monitor, _sessions):
        add_one(commands, command)


def _source_arguments(parser: argparse.ArgumentParser, period_s: float) -> None:
    sources = "sysfs[:ROOT], jtop, tegrastats[:FILE], smi:FILE, replay:DATA, or auto: the first that gives power"
    parser.add_argument("--source", default="auto", help=sources)
    parser.add_argument("--period", type=float, default=period_s, metavar="S", help="seconds between two polls")
    parser.add_argument("--rail", help="label of the power rail; VDD_CPU_GPU_CV where left out")
    parser.add_argument("--device", help="declared where the source does not say")
    parser.add_argument("--power-mode", help="declared where the source does not say")


def _open_source(options: argparse.Namespace) -> Any:
    from estimator_utils import telemetry

    return telemetry.open_source(options.source, options.rail or telemetry.DEFAULT_RAIL, options.period)


def _record(commands: Any, command: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.datasets.dataset import Metadata
        from estimator_utils.recording import sweep as record

        kind, name = "simulated" if options.simulated else "recorded", Path(options.output).resolve().name
        about = Metadata(name, kind, options.device, options.rail, options.power_mode)
        sweep = record.read_sweep(options.sweep)
        pace = {"period_s": options.period, "idle_s": options.idle_s, "copy_s": options.copy_s}
        with _open_source(options) as source:
            about = record.record(
                source, sweep, options.output, about, table=options.table, device=options.train_on, **pace
            )
        print(json.dumps(asdict(about)) if options.json else f"{len(sweep)} runs in {options.output}")

    parser = command(commands, "record", run, "record a calibration sweep on a board into a dataset folder")
    _source_arguments(parser, period_s=0.5)
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="dataset folder; an interrupted sweep goes on")
    add("--sweep", default="study", help="study, study-reduced-precision, or a CSV or JSON file of workloads")
    add("--table", default="trial1", help="name of the runs table: a repeated sweep is trial2")
    add("--idle-s", type=float, default=90.0, metavar="S", help="length of the idle baseline")
    add("--copy-s", type=float, default=10.0, metavar="S", help="length of the copy that gauges the DRAM counter")
    add("--train-on", choices=("cpu", "cuda"), help="device; cuda where there is one")
    add("--simulated", action="store_true", help="the source is no real board")


def _monitor(commands: Any, command: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.estimation.calibration import Calibration
        from estimator_utils.monitor import pace as daemon
        from estimator_utils.monitor.monitor import Settings
        from estimator_utils.monitor.sessions import Rule

        settings = Settings(
            Calibration.load(options.calibration),
            Calibration.load(options.fallback) if options.fallback else None,
            Rule(period_s=options.period, edges=options.edges),
            options.merge_gap,
            options.idle_w,
            {name: getattr(options, name) for name in ("device", "rail", "power_mode", "precision")},
            options.dram_factor,
            options.force,
        )
        source = _open_source(options)
        daemon.serve(source, settings, options.log, options.keep_days, options.speed, options.json)

    parser = command(commands, "monitor", run, "watch a board and estimate the TFLOP of each training run")
    _source_arguments(parser, period_s=1.5)
    merge_help = "list fragments no further apart as one, too: a merged row repeats the sums of its fragments"
    add = parser.add_argument
    add("--precision", choices=PRECISIONS, default="fp32", help="of the runs: no sensor can tell it")
    add("--calibration", required=True, metavar="FILE", help="written by calibrate -o")
    add("--fallback", metavar="FILE", help="a calibration of Eq. 2, used where DRAM is missing")
    add("--log", metavar="FILE", help="SQLite; without it nothing is kept, and a stop loses the open session")
    add("--keep-days", type=float, default=30, metavar="DAYS", help="of samples, 5 MB a day; sessions all stay")
    add("--idle-w", type=float, metavar="W", help="idle baseline in place of the calibration's")
    add("--dram-factor", type=float, default=1.0, help="counted per true byte, as record measured it")
    add("--edges", choices=("unbiased", "study"), default="unbiased", help="between which a session is integrated")
    add("--merge-gap", type=float, default=0.0, metavar="S", help=merge_help)
    add("--speed", type=float, default=1.0, help="of the monitor's clock; 0: as fast as a log is read")
    add("--force", action="store_true", help="use a calibration of another board, marking estimates")


def _sessions(commands: Any, command: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.monitor import log as session_log
        from estimator_utils.monitor import plot as session_plot

        if options.plot is not None:
            output = options.output or f"session{options.plot}.png"
            session_plot.plot_session(options.log, options.plot, output)
            print(output)
        elif options.export:
            print(f"{session_log.export_samples(options.log, options.export)} samples in {options.export}")
        else:
            for row in session_log.read_sessions(options.log):
                print(json.dumps(row) if options.json else f"{row['id']:4d}  {session_log.session_line(row)}")

    parser = command(commands, "sessions", run, "list the sessions in a monitor's log, plot one, export samples")
    parser.add_argument("log", metavar="LOG", help="file written by monitor --log")
    parser.add_argument("--plot", type=int, metavar="ID", help="draw one session")
    parser.add_argument("-o", "--output", metavar="FILE", help="of the plot: PNG, PDF or SVG")
    parser.add_argument("--export", metavar="FILE", help="write all kept samples to a Parquet file")
