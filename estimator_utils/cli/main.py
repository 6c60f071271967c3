"""The command line: ``estimator COMMAND``, the same as ``python -m estimator_utils COMMAND``."""

from __future__ import annotations

import argparse
import re
import sys

import estimator_utils
from estimator_utils.cli import board, notebooks, operator, study

COMMANDS = (*study.COMMANDS, *operator.COMMANDS, *board.COMMANDS, *notebooks.COMMANDS)
EXTRAS = {
    "pandas": "study", "statsmodels": "study", "matplotlib": "study", "platformdirs": "study", "pooch": "study",
    "torch": "truth", "tqdm": "truth", "papermill": "notebooks", "nbformat": "notebooks", "pyarrow": "fleet",
    "nbconvert": "docs", "pdoc": "docs", "latex2mathml": "docs",
}  # fmt: skip


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, ()) else action.help


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status. A refusal is one line on stderr and status 1, Ctrl-C 130."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="estimator", description=estimator_utils.__doc__)
    parser.add_argument("--version", action="version", version=f"estimator-utils {estimator_utils.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = parser
    try:
        for command in COMMANDS:
            one = subparsers.add_parser(
                command.name, help=command.text, description=command.text, formatter_class=_Help
            )
            if command.name in words[:1]:
                chosen = one
                one.set_defaults(run=command.run)
                command.add_arguments(one)
                if command.json:
                    one.add_argument("--json", action="store_true", help="print JSON")
        options = parser.parse_args(words)
        options.run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError, ModuleNotFoundError) as error:
        print(f"error: {_with_flags(_text(error), chosen)}", file=sys.stderr)
        return 1
    return 0


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}: give another path"
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return f"this command needs {error.name}: pip install 'estimator-utils[{extra}]'"
    return str(error)


def _with_flags(text: str, parser: argparse.ArgumentParser) -> str:
    """Return a message with the names of fields that are options of the command turned into their flags."""
    for action in parser._actions:
        if "_" in action.dest and action.option_strings:
            text = re.sub(rf"(?<![\w-]){action.dest}(?![\w-])", action.option_strings[-1], text)
    return text
