"""The commands of the operator's side: ``workload``, ``fermi``, ``virtual-board``."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields

from estimator_utils.cli import options as from_code
from estimator_utils.cli.options import Command
from estimator_utils.cli.output import show
from estimator_utils.datasets.columns import OPTIMIZERS
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.truth.workload import Workload

WORKLOAD = tuple(f.name for f in fields(Workload))
DEVICES = ("cpu", "cuda")


def _workload(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from estimator_utils.truth import flops, training

    workload = Workload(**from_code.taken(options, WORKLOAD))
    device = options.train_on or training.default_device()
    if not options.count_only:
        training.check_precision(workload.precision, device)
    counted = flops.count_checked(workload, options.attention_backward)
    result = {
        "run": workload.run,
        "flop_per_step": counted.flop_per_step,
        "truth_tflop": counted.tflop(workload.steps),
        "attention_backward": counted.attention_backward,
        "causal": counted.causal,
        "counted_by": f"{counted.method}; equal to the closed form",
    }
    if not options.count_only:
        started = time.monotonic()
        for _ in tqdm(training.train(workload, device), total=workload.steps, unit="step"):
            pass
        result |= {"device": device, "duration_s": time.monotonic() - started}
    show(result, options.json)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.truth import flops

    from_code.add(parser, Workload, WORKLOAD, choices={"optimizer": OPTIMIZERS, "precision": PRECISIONS})
    parser.add_argument("--count-only", action="store_true", help="report the FLOP without training")
    parser.add_argument("--train-on", choices=DEVICES, help="device; cuda where there is one")
    choices = {"attention_backward": (flops.MATH_BACKWARD, flops.FUSED_BACKWARD)}
    from_code.add(parser, flops.count, ("attention_backward",), choices=choices)


def _fermi(options: argparse.Namespace) -> None:
    import inspect

    from estimator_utils import outside

    names = inspect.signature(outside.fermi).parameters
    answer = outside.fermi(**{name: getattr(options, name) for name in names})
    show(answer, options.json)


def _add_fermi(parser: argparse.ArgumentParser) -> None:
    import inspect

    from estimator_utils import outside

    for name, parameter in inspect.signature(outside.fermi).parameters.items():
        kind = str if name in ("chip", "number_format") else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=parameter.default, help=" ")


def _virtual_board(options: argparse.Namespace) -> None:
    from estimator_utils.virtual import bundle

    bundle.write_bundle(options.output)
    print(f"simulated dataset {bundle.BUNDLE} in {options.output}")


def _add_virtual_board(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, help="folder to write; files of the same name are replaced")


COMMANDS = (
    Command("workload", "train the study's transformer and report its FLOP", _add_workload, _workload),
    Command("fermi", "cost, time, energy and carbon of a training run from its size", _add_fermi, _fermi),
    Command(
        "virtual-board",
        "write the bundled dataset anew: an Orin Nano in software, simulated",
        _add_virtual_board,
        _virtual_board,
        json=False,
    ),
)
