"""The commands of the operator's side that train or simulate: ``workload``, ``virtual-board``."""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import fields

from tqdm import tqdm

from estimator_utils.cli.options import DEVICES, add, show, taken
from estimator_utils.datasets.columns import OPTIMIZERS
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.truth import flops, training
from estimator_utils.truth.workload import Workload
from estimator_utils.virtual import bundle

WORKLOAD = tuple(f.name for f in fields(Workload))


def add_workload(parser: ArgumentParser) -> None:
    """Add the options of ``workload``."""
    add(parser, Workload, WORKLOAD, choices={"optimizer": OPTIMIZERS, "precision": PRECISIONS})
    parser.add_argument("--count-only", action="store_true", help="report the FLOP without training")
    parser.add_argument("--train-on", choices=DEVICES, help="device; cuda where there is one")
    choices = {"attention_backward": (flops.MATH_BACKWARD, flops.FUSED_BACKWARD)}
    add(parser, flops.count, ("attention_backward",), choices=choices)


def workload(options: Namespace) -> None:
    """Count a workload, and train it unless told not to."""
    work = Workload(**taken(options, WORKLOAD))
    device = options.train_on or training.default_device()
    if not options.count_only:
        training.check_precision(work.precision, device)
    counted = flops.count_checked(work, options.attention_backward)
    result = {
        "run": work.run,
        "flop_per_step": counted.flop_per_step,
        "truth_tflop": counted.tflop(work.steps),
        "attention_backward": counted.attention_backward,
        "causal": counted.causal,
        "counted_by": f"{counted.method}; equal to the closed form",
    }
    if not options.count_only:
        started = time.monotonic()
        for _ in tqdm(training.train(work, device), total=work.steps, unit="step"):
            pass
        result |= {"device": device, "duration_s": time.monotonic() - started}
    show(result, options.json)


def add_virtual_board(parser: ArgumentParser) -> None:
    """Add the options of ``virtual-board``."""
    parser.add_argument("--output", required=True, help="folder to write; files of the same name are replaced")


def virtual_board(options: Namespace) -> None:
    """Write the bundled data set anew."""
    bundle.write_bundle(options.output)
    print(f"simulated dataset {bundle.BUNDLE} in {options.output}")
