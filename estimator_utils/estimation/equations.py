"""The study's two equations and the recipe that fits them.

Symbols: E net energy (J), B DRAM traffic (TB), t duration (s), F true TFLOP, P overhead power (W). The study's

    Eq. 1   F = (E - E_per_TB B - P t) / E_per_TFLOP        Eq. 2   F = (E - P t) / E_per_TFLOP
"""

from dataclasses import dataclass

import numpy as np

from estimator_utils.estimation.fitting import Array, FittedForm, RunArrays

OVERHEAD_MAX_W = 4.0  # upper end of the study's grid for P, W: it suits the Orin Nano at 25 W
GRID_POINTS = 321  # of the study's grid
PARAMETERS = {1: 3, 2: 2}


def _sums(u: Array, x: Array) -> tuple[Array, ...]:
    return u.sum(-1), x.sum(-1), (x * u).sum(-1), (x * x).sum(-1)


def _line(n: int, su: Array, sx: Array, sxu: Array, sxx: Array) -> tuple[Array, Array]:
    """Least squares of u = e + b x from its sums, the slope kept >= 0: else e = mean(u), b = 0."""
    spread = n * sxx - sx**2
    with np.errstate(divide="ignore", invalid="ignore"):
        b = np.where(spread > 0, (n * sxu - sx * su) / spread, 0.0)
    b = np.maximum(b, 0.0)
    return (su - b * sx) / n, b


def _fit(u: Array, x: Array | None) -> tuple[Array, Array]:
    """Fit u (..., n) on the runs: J/TFLOP and J/TB of shape (...)."""
    if x is None:
        return (u**2).sum(-1) / u.sum(-1), np.zeros(u.shape[:-1])
    return _line(u.shape[-1], *_sums(u, x))


def _fit_leaving_out(u: Array, x: Array | None) -> tuple[Array, Array]:
    """Fit u (..., n) without each run in turn: J/TFLOP and J/TB of shape (..., n)."""
    if x is None:
        e = ((u**2).sum(-1, keepdims=True) - u**2) / (u.sum(-1, keepdims=True) - u)
        return e, np.zeros_like(e)
    whole = _sums(u, x)
    parts = (u, x, x * u, x * x)
    return _line(u.shape[-1] - 1, *(s[..., None] - part for s, part in zip(whole, parts, strict=True)))


def leave_one_out_rms(runs: RunArrays, equation: int, grid_w: Array) -> Array:
    """Return the root mean square relative error over left-out runs at each overhead of a grid.

    Parameters
    ----------
    runs : RunArrays of shape (..., n)
    equation : {1, 2}
    grid_w : (g,) W

    Returns
    -------
    (..., g)
        Infinite where an overhead leaves no positive J/TFLOP.
    """
    f = runs.truth_tflop[..., None, :]
    u = (runs.energy_net_j[..., None, :] - grid_w[:, None] * runs.duration_s[..., None, :]) / f
    x = runs.dram_tb[..., None, :] / f if equation == 1 else None
    with np.errstate(divide="ignore", invalid="ignore"):  # e may be 0: no fit
        e, b = _fit_leaving_out(u, x)
        error = (u - (0.0 if x is None else b * x)) / e - 1
    return np.where((e > 0).all(-1), np.sqrt((error**2).mean(-1)), np.inf)


@dataclass(frozen=True)
class StudyEquation:
    """Eq. 1 or Eq. 2 with the study's recipe.

    Attributes
    ----------
    equation : {1, 2}
    overhead_max_w : W
        Upper end of the grid of 321 overheads that starts at 0.
    """

    equation: int
    overhead_max_w: float = OVERHEAD_MAX_W

    def __post_init__(self) -> None:
        if not 0 <= self.overhead_max_w < np.inf:
            raise ValueError(f"the grid of overheads must end at 0 W or above, found {self.overhead_max_w}")

    @property
    def name(self) -> str:
        """Slug."""
        return f"eq{self.equation}"

    def grid_w(self) -> Array:
        """Return the overheads that are tried, (g,) W."""
        return np.linspace(0.0, self.overhead_max_w, GRID_POINTS)

    def fit(self, runs: RunArrays) -> FittedForm:
        """Fit the constants on ``runs`` (..., n); leading axes are fitted independently.

        For each P of a grid, u = (E - P t) / F is fitted by relative least squares (each run weighted by 1/F); P
        is the grid point with the smallest sum of squared relative FLOP errors over left-out runs.

        Raises
        ------
        ValueError
            Too few runs, a missing DRAM reading in Eq. 1, or readings that no positive J/TFLOP explains.
        """
        n, parameters = runs.energy_net_j.shape[-1], PARAMETERS[self.equation]
        if n <= parameters:
            raise ValueError(
                f"Eq. {self.equation} has {parameters} parameters and is fitted with a run left out: it needs at "
                f"least {parameters + 1} runs, found {n}"
            )
        if self.equation == 1 and np.isnan(runs.dram_tb).any():
            raise ValueError("Eq. 1 needs dram_tb of every run and some are missing: use Eq. 2")
        grid_w = self.grid_w()
        score = leave_one_out_rms(runs, self.equation, grid_w)
        best = score.argmin(-1)[..., None]
        if np.isinf(np.take_along_axis(score, best, -1)).any():
            raise ValueError("no overhead of the grid leaves a positive J/TFLOP: check energy and duration of the runs")
        p_overhead_w = grid_w[best]
        u = (runs.energy_net_j - p_overhead_w * runs.duration_s) / runs.truth_tflop
        e, b = _fit(u, runs.dram_tb / runs.truth_tflop if self.equation == 1 else None)
        constants = {"e_per_tflop_j": e, "e_per_tb_j": b, "p_overhead_w": p_overhead_w[..., 0]}
        if self.equation == 2:
            del constants["e_per_tb_j"]
        recipe = f"study: relative least squares; overhead by leave-one-out, 0 to {self.overhead_max_w:g} W"
        return FittedForm(self.name, constants, n, recipe)
