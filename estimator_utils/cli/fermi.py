"""The command ``fermi``."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, fields

from estimator_utils.cli.options import add, cell, documented, taken
from estimator_utils.counting import fermi as counting
from estimator_utils.counting.tables import CHIPS, FORMATS, THRESHOLDS_FLOP

NAMES = [f.name for f in fields(counting.TrainingRun)]


def add_fermi(parser: ArgumentParser) -> None:
    """Add the options of ``fermi``."""
    add(parser, counting.TrainingRun, NAMES)
    parser.epilog = f"chips: {', '.join(CHIPS)}; number formats: {', '.join(FORMATS)}"


def fermi(options: Namespace) -> None:
    """Answer, each quantity with its unit."""
    answer = asdict(counting.fermi(counting.TrainingRun(**taken(options, NAMES))))
    if options.json:
        print(json.dumps(answer))
        return
    del answer["inputs"]
    limits = answer.pop("thresholds")
    slowest, _, fastest = map(cell, answer["days_range"])
    answer["days_range"] = f"{slowest} to {fastest}"
    for name, value in answer.items():
        print(f"{name:13}  {cell(value)} {documented(counting.Answer)[name][0]}")
    for name, limit in limits.items():
        outcome = "passed" if limit["passed"] else "not passed"
        print(f"{name:13}  {outcome}: {limit['ratio']:.4g} of {THRESHOLDS_FLOP[name]:g} FLOP")
