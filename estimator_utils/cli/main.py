"""The command line: ``estimator COMMAND``, the same as ``python -m estimator_utils COMMAND``.

A command NAME is two functions of one module of this folder: ``add_NAME``, given the parser, and ``NAME``, given
the parsed options. Only the module of the chosen command is imported.
"""

import argparse
import re
import sys
from importlib import import_module

import estimator_utils

COMMANDS = {  # name: module, what it does
    "fetch": ("study", "download datasets and check their digests"),
    "calibrate": ("study", "fit the constants of an estimator"),
    "evaluate": ("study", "held-out error over random splits"),
    "estimate": ("study", "estimate the TFLOP of runs with a saved calibration"),
    "workload": ("workload", "train the study's transformer and report its FLOP"),
    "fermi": ("fermi", "cost, time, energy and carbon of a training run from its size"),
    "virtual-board": ("workload", "write the bundled dataset anew: an Orin Nano in software, simulated"),
    "record": ("record", "record a calibration sweep on a board into a dataset folder"),
    "monitor": ("board", "watch a board and estimate the TFLOP of each training run"),
    "sessions": ("board", "list the sessions of a log, plot one, export samples"),
    "notebooks": ("notebooks", "execute the notebooks headless, strictly"),
}
WITHOUT_JSON = ("fetch", "virtual-board", "notebooks")
EXTRAS = {  # that a module comes with
    "study": ("pandas", "statsmodels", "matplotlib", "pooch"),
    "truth": ("torch", "tqdm"),
    "notebooks": ("papermill", "nbformat"),
    "fleet": ("pyarrow",),
}


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, ()) else action.help


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status. A refusal is one line on stderr and status 1, Ctrl-C 130."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="estimator", description=estimator_utils.__doc__)
    parser.add_argument("--version", action="version", version=f"estimator-utils {estimator_utils.__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    commands = {
        name: subparsers.add_parser(name, help=text, description=text, formatter_class=_Help)
        for name, (_, text) in COMMANDS.items()
    }
    chosen = commands.get(words[0] if words else "", parser)
    try:
        if chosen is not parser:
            module = import_module(f"estimator_utils.cli.{COMMANDS[words[0]][0]}")
            function = words[0].replace("-", "_")
            getattr(module, f"add_{function}")(chosen)
            chosen.set_defaults(run=getattr(module, function))
            if words[0] not in WITHOUT_JSON:
                chosen.add_argument("--json", action="store_true", help="print JSON")
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
    if isinstance(error, ModuleNotFoundError):
        for extra, modules in EXTRAS.items():
            if (error.name or "").partition(".")[0] in modules:
                return f"this needs {error.name}: pip install 'estimator-utils[{extra}]'"
    return str(error)


def _with_flags(text: str, parser: argparse.ArgumentParser) -> str:
    """Return a message in which fields in backquotes that are options of the command are their flags."""
    flags = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    return re.sub("`(\\w+)`", lambda match: flags.get(match[1], match[0]), text)
