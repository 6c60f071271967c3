"""The command ``fermi``."""

import inspect
from argparse import ArgumentParser, Namespace

from estimator_utils.counting import fermi as outside
from estimator_utils.cli.options import show


def add_fermi(parser: ArgumentParser) -> None:
    """Add the options of ``fermi``."""
    for name, parameter in inspect.signature(outside.fermi).parameters.items():
        kind = str if name in ("chip", "number_format") else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=parameter.default, help=" ")


def fermi(options: Namespace) -> None:
    """Answer."""
    names = inspect.signature(outside.fermi).parameters
    show(outside.fermi(**{name: getattr(options, name) for name in names}), options.json)
