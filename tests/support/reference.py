"""The study's recipe and protocol as plain loops over splits, grid points and left-out runs.

Written from the study's text, without arrays and without the package, so that the two can disagree. A run is
(energy J, DRAM TB, duration s, truth TFLOP).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

Run = tuple[float, float, float, float]

OVERHEAD_MAX_W = 4.0
GRID_POINTS = 321


class Fit(NamedTuple):
    """J/TFLOP, J/TB, W."""

    e_per_tflop_j: float
    e_per_tb_j: float
    p_overhead_w: float

    def estimate_tflop(self, run: Run) -> float:
        energy_j, dram_tb, duration_s, _ = run
        return (energy_j - self.e_per_tb_j * dram_tb - self.p_overhead_w * duration_s) / self.e_per_tflop_j


def fit_at(runs: Sequence[Run], equation: int, p_w: float) -> Fit:
    """Fit by relative least squares with a given overhead."""
    u = [(energy_j - p_w * duration_s) / truth for energy_j, _, duration_s, truth in runs]
    if equation == 2:
        return Fit(sum(v * v for v in u) / sum(u), 0.0, p_w)
    x = [dram_tb / truth for _, dram_tb, _, truth in runs]
    mean_u, mean_x = sum(u) / len(u), sum(x) / len(x)
    spread = sum((b - mean_x) ** 2 for b in x)
    slope = sum((b - mean_x) * (a - mean_u) for a, b in zip(u, x, strict=True)) / spread
    if slope < 0:
        return Fit(mean_u, 0.0, p_w)
    return Fit(mean_u - slope * mean_x, slope, p_w)


def fit(runs: Sequence[Run], equation: int, overhead_max_w: float = OVERHEAD_MAX_W) -> Fit:
    """Fit with the overhead of the grid whose left-out runs are estimated best."""
    best, least = 0.0, float("inf")
    for step in range(GRID_POINTS):
        p_w = overhead_max_w * step / (GRID_POINTS - 1)
        score = 0.0
        for left_out in range(len(runs)):
            others = [run for position, run in enumerate(runs) if position != left_out]
            run = runs[left_out]
            score += (fit_at(others, equation, p_w).estimate_tflop(run) / run[3] - 1) ** 2
        if score < least:
            best, least = p_w, score
    return fit_at(runs, equation, best)


def held_out_errors_pct(runs: Sequence[Run], equation: int, n_train: int, n_splits: int) -> list[list[float]]:
    """Return the signed errors of the study's splits, one list a split."""
    errors = []
    for i in range(n_splits):
        shuffled = list(runs)
        random.Random(1000 + i).shuffle(shuffled)
        fitted = fit(shuffled[:n_train], equation)
        errors.append([100 * (fitted.estimate_tflop(run) / run[3] - 1) for run in shuffled[n_train:]])
    return errors
