"""The commands on runs tables: ``fetch``, ``calibrate``, ``evaluate``, ``estimate``."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

import pandas as pd

from estimator_utils.cli.options import DECLARED, add, add_declared, show, taken
from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Dataset
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.estimation import estimators, evaluation, splits
from estimator_utils.estimation.applicability import ALL_PRECISIONS, passing_gate
from estimator_utils.estimation.calibration import Calibration
from estimator_utils.estimation.equations import StudyEquation
from estimator_utils.estimation.estimators import ESTIMATORS, Estimator
from estimator_utils.estimation.fitting import estimate_runs

EQUATIONS = {1: "eq1", 2: "eq2"}  # the short form


def _add_data(parser: ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="registered name, CSV, or file in the study's record format")
    add(parser, passing_gate, ("gate", "precision"), choices={"precision": (*PRECISIONS, ALL_PRECISIONS)})
    add_declared(parser)


def _load(options: Namespace, need_truth: bool = True) -> tuple[Dataset, pd.DataFrame]:
    dataset = registry.load(options.data, taken(options, DECLARED), need_truth)
    return dataset, passing_gate(dataset.runs, options.gate, options.precision)


def _add_fit(parser: ArgumentParser, *more: str) -> None:
    _add_data(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--equation", type=int, choices=EQUATIONS, help="short for the estimators eq1, eq2")
    which.add_argument("--estimator", choices=(*ESTIMATORS, *more), help="what is fitted")
    add(parser, StudyEquation, ("overhead_max_w",))


def _chosen(options: Namespace) -> list[Estimator]:
    """Return the estimators that are asked for."""
    name = EQUATIONS.get(options.equation, options.estimator)
    chosen = list(ESTIMATORS.values()) if name == "all" else [ESTIMATORS[name]]
    grid = {"overhead_max_w": options.overhead_max_w}
    return [replace(e, **grid) if isinstance(e, StudyEquation) else e for e in chosen]


def add_fetch(parser: ArgumentParser) -> None:
    """Add the options of ``fetch``."""
    parser.add_argument("data", nargs="?", help="a dataset or collection; all of them where it is left out")


def fetch(options: Namespace) -> None:
    """Fetch registered files."""
    known = registry.registry()
    for name in [options.data] if options.data else known:
        for member in [known[name]] if name in known else registry.members(name).values():
            print(f"{member.metadata.name}  {member.metadata.kind}  {registry.fetch(member)}")


def add_calibrate(parser: ArgumentParser) -> None:
    """Add the options of ``calibrate``."""
    _add_fit(parser)
    parser.add_argument("-o", "--output", help="file to save the calibration in")


def calibrate(options: Namespace) -> None:
    """Fit a calibration, show it, and save it where asked."""
    calibration = estimators.calibrate(*_load(options), *_chosen(options))
    if options.output:
        calibration.save(options.output)
    show(json.loads(calibration.to_json()), options.json)


def add_evaluate(parser: ArgumentParser) -> None:
    """Add the options of ``evaluate``."""
    _add_fit(parser, "all")
    add(parser, splits.draw, ("n_splits", "n_train", "seed"))


def evaluate(options: Namespace) -> None:
    """Show held-out errors: one object, or an array for all estimators."""
    _, runs = _load(options)
    results: list[dict[str, Any]] = []
    for estimator in _chosen(options):
        estimators.check_runs(runs, estimator.name)
        drawn = splits.draw(len(runs), options.n_train, options.n_splits, options.seed)
        errors = evaluation.held_out_errors(runs, estimator, drawn)
        head = {"equation": options.equation} if options.equation else {}
        head |= {"estimator": estimator.name, "n_runs": len(runs), "n_train": drawn.train.shape[1]}
        results.append(head | evaluation.summary(errors))
    if options.estimator == "all" and options.json:
        print(json.dumps(results))
        return
    for result in results:
        show(result, options.json)


def add_estimate(parser: ArgumentParser) -> None:
    """Add the options of ``estimate``."""
    _add_data(parser)
    parser.add_argument("--calibration", required=True, metavar="FILE", help="written by calibrate -o")


def estimate(options: Namespace) -> None:
    """Show an estimate of every run."""
    calibration = Calibration.load(options.calibration)
    dataset, runs = _load(options, need_truth=False)
    calibration.check({**vars(dataset.metadata), "precision": options.precision})
    estimators.check_runs(runs, calibration.estimator)
    tflop = estimate_runs(calibration, runs).tolist()
    if options.json:
        equation = {n: number for number, n in EQUATIONS.items()}.get(calibration.estimator)
        result = {"run": runs.run.tolist(), "estimate_tflop": tflop, "estimator": calibration.estimator}
        print(json.dumps(result | ({"equation": equation} if equation else {})))
        return
    for run, value in zip(runs.run, tflop, strict=True):
        print(f"{run}  {value:.4f} TFLOP")
