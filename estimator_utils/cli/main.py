"""The command line: ``python -m estimator_utils COMMAND``. Argument parsing only; the work is in the modules."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimator_utils.cli import board as board_commands
from estimator_utils.datasets.dataset import PRECISIONS

Command = Callable[[argparse.Namespace], None]


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, ()) else action.help


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status. A refusal is one line on stderr and status 1, Ctrl-C 130."""
    parser = argparse.ArgumentParser(prog="python -m estimator_utils", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_fetch, _workload, _calibrate, _evaluate, _estimate, _fermi, _virtual_board, _notebooks):
        add(commands)
    board_commands.add(commands, _command)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            error = OSError(f"{error.filename}: {error.strerror}: give another path")
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _command(commands: Any, name: str, run: Command, text: str, json_flag: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, formatter_class=_Help)
    parser.set_defaults(run=run)
    if json_flag:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _show(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(result))
    else:
        width = max(map(len, result))
        print("\n".join(f"{key:{width}}  {_cell(value)}" for key, value in result.items()))


def _cell(value: Any) -> str:
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _fetch(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.datasets import registry as datasets

        for name in [options.data] if options.data else datasets.registry():
            entry = datasets.registry().get(name)
            for member in [entry] if entry else datasets.members(name).values():
                print(f"{member.metadata.name}  {member.metadata.kind}  {datasets.fetch(member)}")

    parser = _command(commands, "fetch", run, "download datasets and check their digests", json_flag=False)
    parser.add_argument("data", nargs="?", help="a dataset or collection; all of them where it is left out")


def _workload(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from tqdm import tqdm

        from estimator_utils.truth import flops
        from estimator_utils.truth import workload as workloads

        names = workloads.Workload.__dataclass_fields__
        workload = workloads.Workload(**{name: getattr(options, name) for name in names})
        device = options.train_on or workloads.default_device()
        if not options.count_only:
            workloads.check_precision(workload.precision, device)
        counted = flops.count([workload], options.attention_backward)[0]
        formula = flops.closed_form(workload, options.attention_backward)
        if counted.flop_per_step != formula.flop_per_step:
            raise RuntimeError(f"FlopCounterMode and the closed form disagree: {counted} {formula}")
        result = {
            "run": workload.run,
            "flop_per_step": counted.flop_per_step,
            "truth_tflop": counted.tflop(workload.steps),
            "attention_backward": counted.attention_backward,
            "causal": counted.causal,
            "counted_by": f"{counted.method}; equal to the {formula.method}",
        }
        if not options.count_only:
            started = time.monotonic()
            for _ in tqdm(workloads.train(workload, device), total=workload.steps, unit="step"):
                pass
            result |= {"device": device, "duration_s": time.monotonic() - started}
        _show(options, result)

    parser = _command(commands, "workload", run, "train the study's transformer and report its FLOP")
    parser.add_argument("--d-model", type=int, required=True, help="width")
    for name, default in (("n-layers", 3), ("n-heads", 4), ("d-ff", 512), ("seq-len", 128), ("batch-size", 8)):
        parser.add_argument(f"--{name}", type=int, default=default, help=" ")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help=" ")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help=" ")
    parser.add_argument("--count-only", action="store_true", help="report the FLOP without training")
    parser.add_argument("--train-on", choices=("cpu", "cuda"), help="device; cuda where there is one")
    parser.add_argument(
        "--attention-backward",
        type=float,
        choices=(2.0, 2.5),
        default=2.5,
        help="FLOP of attention's backward over its forward pass: 2.5 is the fused CUDA kernel, 2.0 the math path",
    )


def _data_arguments(parser: argparse.ArgumentParser, precisions: tuple[str, ...]) -> None:
    parser.add_argument("data", metavar="DATA", help="registered name, CSV, or file in the study's record format")
    parser.add_argument("--gate", type=float, default=0.8, help="least mean GPU utilisation of a run, 0 to 1")
    parser.add_argument("--precision", choices=precisions, default="fp32", help="precision of the runs")
    for name in ("device", "rail", "power-mode"):
        parser.add_argument(f"--{name}", help="declared where the data do not say")


def _load(options: argparse.Namespace, need_truth: bool = True) -> tuple[Any, Any]:
    from estimator_utils.datasets import registry as datasets

    declared = {name: getattr(options, name) for name in ("device", "rail", "power_mode")}
    dataset = datasets.load(options.data, **declared, need_truth=need_truth)
    return dataset, datasets.frontier(dataset.runs, options.gate, options.precision)


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    _data_arguments(parser, (*PRECISIONS, "all"))
    parser.add_argument("--equation", type=int, choices=(1, 2), required=True, help="1: with DRAM; 2: power only")
    parser.add_argument("--overhead-max-w", type=float, default=4.0, help="upper end of the grid of overheads, W")


def _calibrate(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.estimation import equations as estimator

        calibration = estimator.calibrate(*_load(options), options.equation, options.overhead_max_w)
        if options.output:
            calibration.check_said()
            calibration.save(options.output)
        _show(options, json.loads(calibration.to_json()))

    parser = _command(commands, "calibrate", run, "fit the constants of Eq. 1 or Eq. 2")
    _fit_arguments(parser)
    parser.add_argument("-o", "--output", help="file to save the calibration in")


def _evaluate(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        import numpy as np

        from estimator_utils.estimation import equations as estimator
        from estimator_utils.estimation import evaluation

        _, runs = _load(options)
        estimator.check_runs(runs, options.equation)
        n, seed = len(runs), options.seed
        if seed is not None and seed < 0:
            raise ValueError(f"--seed must be 0 or more, found {seed}")
        if seed is None:
            splits = evaluation.study_splits(n, options.n_train, options.n_splits)
        else:
            splits = evaluation.random_splits(n, np.random.default_rng(seed), options.n_train, options.n_splits)
        method = evaluation.equation_method(options.equation, options.overhead_max_w)
        errors = evaluation.held_out_errors(runs, method, splits)
        head = {"equation": options.equation, "n_runs": n, "n_train": splits.train.shape[1]}
        _show(options, head | evaluation.summary(errors))

    parser = _command(commands, "evaluate", run, "held-out error over random splits")
    _fit_arguments(parser)
    parser.add_argument("--n-splits", type=int, default=200, help=" ")
    parser.add_argument("--n-train", type=int, help="calibration runs of each split; two thirds where left out")
    parser.add_argument("--seed", type=int, help="seed of the splits; the study's splits where left out")


def _estimate(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.estimation.calibration import Calibration

        calibration = Calibration.load(options.calibration)
        dataset, runs = _load(options, need_truth=False)
        said = {name: getattr(dataset.metadata, name) for name in ("device", "rail", "power_mode")}
        calibration.check(**said, precision=options.precision)
        estimates = [
            calibration.estimate_tflop(row.energy_net_j, row.duration_s, row.dram_tb) for row in runs.itertuples()
        ]
        rows = {"run": runs.run.tolist(), "estimate_tflop": estimates, "equation": calibration.equation}
        if options.json:
            print(json.dumps(rows))
        else:
            for run, tflop in zip(runs.run, estimates, strict=True):
                print(f"{run}  {tflop:.4f} TFLOP")

    parser = _command(commands, "estimate", run, "estimate the TFLOP of runs with a saved calibration")
    _data_arguments(parser, PRECISIONS)
    parser.add_argument("--calibration", required=True, help="file written by calibrate -o")


def _fermi(commands: Any) -> None:
    from estimator_utils import outside

    helps = {
        "params": "parameters",
        "tokens": "training tokens",
        "flop_per_param_token": "FLOP a parameter and token: 6 to train, 3 an encoder-decoder, 2 to infer",
        "chip": f"one of {', '.join(outside.CHIPS)}",
        "number_format": f"one of {', '.join(outside.FORMATS)}; the chip's 16-bit one where left out",
        "chips": "number of chips",
        "utilisation": "achieved over peak FLOP/s, above 0 to 1",
        "usd_per_chip_hour": "price, USD/h; the chip's rental where left out",
        "power_w": "power of a chip, W; the chip's where left out",
        "pue": "facility energy over chip energy",
        "kg_co2_per_kwh": "carbon intensity of the electricity, kg/kWh",
    }
    units = ("FLOP", "petaFLOP-days", "days", "days", "chip-hours", "USD", "MWh", "t CO2")

    def run(options: argparse.Namespace) -> None:
        answer = outside.fermi(**{name: getattr(options, name) for name in helps})
        if options.json:
            print(json.dumps(answer))
            return
        del answer["inputs"]
        limits = answer.pop("thresholds")
        answer["days_range"] = " to ".join(map(_cell, answer["days_range"][::2]))
        for (key, value), unit in zip(answer.items(), units, strict=True):
            print(f"{key:13}  {_cell(value)} {unit}")
        for name, limit in limits.items():
            is_passed = "passed" if limit["passed"] else "not passed"
            print(f"{name:13}  {is_passed}: {limit['ratio']:.4g} of {outside.THRESHOLDS_FLOP[name]:g} FLOP")

    parser = _command(commands, "fermi", run, "cost, time, energy and carbon of a training run from its size")
    for name, text in helps.items():
        default = inspect.signature(outside.fermi).parameters[name].default
        kind = str if name in ("chip", "number_format") else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)


def _virtual_board(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.virtual import board as virtual_board

        virtual_board.write_bundle(options.output)
        print(f"simulated dataset {virtual_board.BUNDLE} in {options.output}")

    text = "write the bundled dataset anew: an Orin Nano in software, simulated"
    parser = _command(commands, "virtual-board", run, text, json_flag=False)
    parser.add_argument("--output", required=True, help="folder to write; files of the same name are replaced")


def _notebooks(commands: Any) -> None:
    def run(options: argparse.Namespace) -> None:
        from estimator_utils.datasets import registry as datasets
        from estimator_utils.reporting import runner

        given = dict(runner.parse_parameter(text) for text in options.parameter)
        if options.check:
            for path in runner.find(options.only):
                runner.check_fresh(path)
            return
        if options.in_place:
            if options.dataset or options.output:
                raise ValueError("--in-place executes on the defaults, where they lie: no --dataset, no --output")
            runner.execute_all(given, None, options.only, options.jobs)
            return
        dataset = options.dataset or datasets.collections()[0]
        output = Path(options.output or Path("build") / Path(dataset).name)
        runner.execute_all(given | {"dataset": dataset}, output, options.only, options.jobs)
        print(runner.headline(output))

    parser = _command(commands, "notebooks", run, "execute the notebooks headless, strictly", json_flag=False)
    parser.add_argument("--only", nargs="+", default=(), metavar="NN", help="beginnings of notebook names")
    parser.add_argument("--dataset", help="collection or dataset folder; the bundled one where left out")
    parser.add_argument("--output", help="folder for notebooks, figures and results; build/DATASET where left out")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at once")
    parser.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of notebooks"
    )
    parser.add_argument("--in-place", action="store_true", help="re-execute the committed notebooks (maintainers)")
    parser.add_argument("--check", action="store_true", help="execute nothing: are the committed outputs fresh?")


if __name__ == "__main__":
    sys.exit(main())
