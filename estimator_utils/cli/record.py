"""The command ``record``."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from estimator_utils.cli.board import add_source
from estimator_utils.cli.options import DECLARED, DEVICES, add, taken
from estimator_utils.datasets.dataset import Metadata
from estimator_utils.recording import sweep
from estimator_utils.telemetry.factories import open_source
from estimator_utils.truth.workload import read_sweep


def add_record(parser: ArgumentParser) -> None:
    """Add the options of ``record``."""
    add_source(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="dataset folder; an interrupted sweep goes on")
    add(parser, sweep.Pace, ("period_s", "table", "idle_s", "copy_s"), flags={"period_s": "--period"})
    add(parser, read_sweep, ("name",), flags={"name": "--sweep"})
    parser.add_argument("--train-on", choices=DEVICES, help="device; cuda where there is one")
    parser.add_argument("--simulated", action="store_true", help="the source is no real board")


def record(options: Namespace) -> None:
    """Record a sweep."""
    kind, name = "simulated" if options.simulated else "recorded", Path(options.output).resolve().name
    about = Metadata(name, kind, **taken(options, DECLARED))
    workloads = read_sweep(options.name)
    pace = sweep.Pace(options.table, options.period_s, options.idle_s, options.copy_s, options.train_on)
    with open_source(options.source, options.rail, options.period_s) as source:
        about = sweep.record(source, workloads, options.output, about, pace)
    print(json.dumps(asdict(about)) if options.json else f"{len(workloads)} runs in {options.output}")
