"""Bootstrap intervals over workloads: held-out errors share them, and another sweep would change them."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from estimator_utils.estimation.fitting import Array

N_DRAWS = 4000
LEVEL = 0.95


def interval(
    values: npt.ArrayLike,
    rng: np.random.Generator,
    statistic: Callable[[Array], Array] | None = None,
    n_draws: int = N_DRAWS,
) -> tuple[Array, Array]:
    """Return the ends of the percentile interval (95 %) of a statistic under resampling of the first axis.

    Parameters
    ----------
    values : (n, ...)
        One row a workload.
    rng : numpy.random.Generator
    statistic : callable, optional
        Of draws (n_draws, n, ...), over the second axis; the mean where left out.
    n_draws : int

    Returns
    -------
    low, high : (...)
    """
    x = np.asarray(values, dtype=float)
    draws = x[rng.integers(len(x), size=(n_draws, len(x)))]
    drawn = draws.mean(axis=1) if statistic is None else statistic(draws)
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0)
    return low, high
