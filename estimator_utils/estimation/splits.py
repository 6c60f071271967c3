"""Which runs calibrate and which are held out."""

import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.intp]
N_SPLITS = 200  # of the study


class Splits(NamedTuple):
    """Positions of the calibration runs (n_splits, n_train) and of the held-out ones (n_splits, n_test)."""

    train: Index
    test: Index


def _cut(orders: list[list[int]], n_runs: int, n_train: int | None) -> Splits:
    n_train = round(n_runs * 2 / 3) if n_train is None else n_train
    if not orders:
        raise ValueError("`n_splits` must be 1 or more: no split is left")
    if n_runs < 2:
        raise ValueError(f"a split needs a run to train on and one to hold out, found {n_runs} in all")
    if not 0 < n_train < n_runs:
        raise ValueError(f"`n_train` must lie between 1 and {n_runs - 1}, one less than the runs; found {n_train}")
    index = np.array(orders, dtype=np.intp).reshape(-1, n_runs)
    return Splits(index[:, :n_train], index[:, n_train:])


def study_splits(n_runs: int, n_train: int | None = None, n_splits: int = N_SPLITS) -> Splits:
    """Return the study's splits: split i shuffles the runs, in file order, with ``random.Random(1000 + i)``.

    Parameters
    ----------
    n_runs, n_splits : int
    n_train : int, optional
        Two thirds of the runs by default (14 of 21).

    Raises
    ------
    ValueError
        Where nothing is left to train on or to hold out.
    """
    orders = []
    for i in range(n_splits):
        order = list(range(n_runs))
        random.Random(1000 + i).shuffle(order)
        orders.append(order)
    return _cut(orders, n_runs, n_train)


def random_splits(
    n_runs: int, rng: np.random.Generator, n_train: int | None = None, n_splits: int = N_SPLITS
) -> Splits:
    """Return splits drawn from ``rng``; otherwise as `study_splits`."""
    return _cut([rng.permutation(n_runs).tolist() for _ in range(n_splits)], n_runs, n_train)


def draw(n_runs: int, n_train: int | None = None, n_splits: int = N_SPLITS, seed: int | None = None) -> Splits:
    """Return the study's splits, or with a seed random ones.

    Parameters
    ----------
    n_runs : int
    n_train : int
        Calibration runs of each split; two thirds where left out.
    n_splits : int
        Number of splits.
    seed : int
        Of random splits; the study's splits where left out.
    """
    if seed is None:
        return study_splits(n_runs, n_train, n_splits)
    if seed < 0:
        raise ValueError(f"`seed` must be 0 or more, found {seed}")
    return random_splits(n_runs, np.random.default_rng(seed), n_train, n_splits)


def leave_one_out(n_runs: int) -> Splits:
    """Return n splits that hold out one run each."""
    return _cut([[j for j in range(n_runs) if j != i] + [i] for i in range(n_runs)], n_runs, n_runs - 1)
