"""The command ``notebooks``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from estimator_utils.cli.options import add
from estimator_utils.datasets import registry
from estimator_utils.reporting import runner


def add_notebooks(parser: ArgumentParser) -> None:
    """Add the options of ``notebooks``."""
    one = parser.add_argument
    one("--only", nargs="+", default=(), metavar="NN", help="beginnings of notebook names")
    one("--dataset", help="collection or dataset folder; the bundled one where left out")
    one("--output", help="folder for notebooks, figures and results; build/DATASET where left out")
    add(parser, runner.execute_all, ("jobs",))
    one("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of notebooks")
    one("--in-place", action="store_true", help="re-execute the committed notebooks (maintainers)")
    one("--check", action="store_true", help="execute nothing: are the committed outputs fresh?")


def notebooks(options: Namespace) -> None:
    """Execute notebooks, or check that their outputs are fresh."""
    given = dict(runner.parse_parameter(text) for text in options.parameter)
    if options.check:
        for path in runner.find(options.only):
            runner.check_fresh(path)
        return
    if options.in_place:
        if options.dataset or options.output:
            raise ValueError("`in_place` executes on the defaults, where they lie: no `dataset`, no `output`")
        runner.execute_all(given, None, options.only, options.jobs)
        return
    dataset = options.dataset or registry.collections()[0]
    output = Path(options.output or Path("build") / Path(dataset).name)
    runner.execute_all(given | {"dataset": dataset}, output, options.only, options.jobs)
    print(runner.headline(output))
