"""The commands on notebooks: ``notebooks`` executes them, ``site`` shows them."""

from __future__ import annotations

import argparse
from pathlib import Path

from estimator_utils.cli import options as from_code
from estimator_utils.cli.options import Command


def _notebooks(options: argparse.Namespace) -> None:
    from estimator_utils.datasets import registry
    from estimator_utils.reporting import runner

    given = dict(runner.parse_parameter(text) for text in options.parameter)
    if options.check:
        for path in runner.find(options.only):
            runner.check_fresh(path)
        return
    if options.in_place:
        if options.dataset or options.output:
            raise ValueError("in_place executes on the defaults, where they lie: no dataset, no output")
        runner.execute_all(given, None, options.only, options.jobs)
        return
    dataset = options.dataset or registry.collections()[0]
    output = Path(options.output or Path("build") / Path(dataset).name)
    runner.execute_all(given | {"dataset": dataset}, output, options.only, options.jobs)
    print(runner.headline(output))


def _add_notebooks(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.reporting import runner

    add = parser.add_argument
    add("--only", nargs="+", default=(), metavar="NN", help="beginnings of notebook names")
    add("--dataset", help="collection or dataset folder; the bundled one where left out")
    add("--output", help="folder for notebooks, figures and results; build/DATASET where left out")
    from_code.add(parser, runner.execute_all, ("jobs",))
    add("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of notebooks")
    add("--in-place", action="store_true", help="re-execute the committed notebooks (maintainers)")
    add("--check", action="store_true", help="execute nothing: are the committed outputs fresh?")


COMMANDS = (
    Command("notebooks", "execute the notebooks headless, strictly", _add_notebooks, _notebooks, json=False),
)
