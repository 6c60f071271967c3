"""The commands on runs tables: ``fetch``, ``calibrate``, ``evaluate``, ``estimate``."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from estimator_utils.cli import options as from_code
from estimator_utils.cli.options import Command
from estimator_utils.cli.output import show
from estimator_utils.datasets.precision import PRECISIONS

if TYPE_CHECKING:
    import pandas as pd

    from estimator_utils.datasets.dataset import Dataset
    from estimator_utils.estimation.estimators import Estimator

DECLARED = ("device", "rail", "power_mode")


def add_declared(parser: argparse.ArgumentParser, whose: str) -> None:
    """Add the options of what readings belong to."""
    for name in DECLARED:
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"declared where {whose} not say")


def _add_data(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.estimation import applicability

    parser.add_argument("data", metavar="DATA", help="registered name, CSV, or file in the study's record format")
    choices = {"precision": (*PRECISIONS, applicability.ALL_PRECISIONS)}
    from_code.add(parser, applicability.passing_gate, ("gate", "precision"), choices=choices)
    add_declared(parser, "the data do")


def _load(options: argparse.Namespace, need_truth: bool = True) -> tuple[Dataset, pd.DataFrame]:
    from estimator_utils.datasets import registry
    from estimator_utils.estimation.applicability import passing_gate

    dataset = registry.load(options.data, from_code.taken(options, DECLARED), need_truth)
    return dataset, passing_gate(dataset.runs, options.gate, options.precision)


def _add_fit(parser: argparse.ArgumentParser, more: tuple[str, ...] = ()) -> None:
    from estimator_utils.estimation.equations import StudyEquation
    from estimator_utils.estimation.estimators import ESTIMATORS

    _add_data(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--equation", type=int, choices=(1, 2), help="short for the estimators eq1, eq2")
    which.add_argument("--estimator", choices=(*ESTIMATORS, *more), help="what is fitted")
    from_code.add(parser, StudyEquation, ("overhead_max_w",))


def _estimators(options: argparse.Namespace) -> list[Estimator]:
    """Return the estimators that are asked for."""
    from estimator_utils.estimation import estimators
    from estimator_utils.estimation.equations import StudyEquation

    names = list(estimators.ESTIMATORS) if options.estimator == "all" else [options.estimator]
    if options.equation:
        names = [f"eq{options.equation}"]
    chosen = [estimators.ESTIMATORS[name] for name in names]
    grid = {"overhead_max_w": options.overhead_max_w}
    return [replace(e, **grid) if isinstance(e, StudyEquation) else e for e in chosen]


def _fetch(options: argparse.Namespace) -> None:
    from estimator_utils.datasets import registry

    for name in [options.data] if options.data else registry.registry():
        entry = registry.registry().get(name)
        for member in [entry] if entry else registry.members(name).values():
            print(f"{member.metadata.name}  {member.metadata.kind}  {registry.fetch(member)}")


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="?", help="a dataset or collection; all of them where it is left out")


def _calibrate(options: argparse.Namespace) -> None:
    from estimator_utils.estimation.estimators import calibrate

    (estimator,) = _estimators(options)
    calibration = calibrate(*_load(options), estimator)
    if options.output:
        calibration.save(options.output)
    show(json.loads(calibration.to_json()), options.json)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    _add_fit(parser)
    parser.add_argument("-o", "--output", help="file to save the calibration in")


def _evaluate(options: argparse.Namespace) -> None:
    from estimator_utils.estimation import evaluation, splits
    from estimator_utils.estimation.estimators import check_runs

    _, runs = _load(options)
    results = []
    for estimator in _estimators(options):
        check_runs(runs, estimator.name)
        drawn = splits.draw(len(runs), options.n_train, options.n_splits, options.seed)
        errors = evaluation.held_out_errors(runs, estimator, drawn)
        head: dict[str, Any] = {"estimator": estimator.name, "n_runs": len(runs), "n_train": drawn.train.shape[1]}
        if options.equation:
            head = {"equation": options.equation, **head}
        results.append(head | evaluation.summary(errors))
    if options.estimator == "all" and options.json:
        print(json.dumps(results))
        return
    for result in results:
        show(result, options.json)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    from estimator_utils.estimation import splits

    _add_fit(parser, more=("all",))
    from_code.add(parser, splits.draw, ("n_splits", "n_train", "seed"))


def _estimate(options: argparse.Namespace) -> None:
    from estimator_utils.estimation.calibration import Calibration
    from estimator_utils.estimation.estimators import check_runs
    from estimator_utils.estimation.fitting import estimate_runs

    calibration = Calibration.load(options.calibration)
    dataset, runs = _load(options, need_truth=False)
    reported = {name: getattr(dataset.metadata, name) for name in DECLARED}
    calibration.check({**reported, "precision": options.precision})
    check_runs(runs, calibration.estimator)
    estimates = estimate_runs(calibration, runs).tolist()
    if options.json:
        result = {"run": runs.run.tolist(), "estimate_tflop": estimates, "estimator": calibration.estimator}
        equation = {"eq1": 1, "eq2": 2}.get(calibration.estimator)
        print(json.dumps(result | ({"equation": equation} if equation else {})))
        return
    for run, tflop in zip(runs.run, estimates, strict=True):
        print(f"{run}  {tflop:.4f} TFLOP")


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    _add_data(parser)
    parser.add_argument("--calibration", required=True, help="file written by calibrate -o")


COMMANDS = (
    Command("fetch", "download datasets and check their digests", _add_fetch, _fetch, json=False),
    Command("calibrate", "fit the constants of an estimator", _add_calibrate, _calibrate),
    Command("evaluate", "held-out error over random splits", _add_evaluate, _evaluate),
    Command("estimate", "estimate the TFLOP of runs with a saved calibration", _add_estimate, _estimate),
)
